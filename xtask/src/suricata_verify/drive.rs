//! Rules applied to the connections of a capture: what comes out, as records of alerts.
//!
//! The one place that knows how rules are applied: `mmtls read` is to replace it once it follows connections
//! that are not TLS. Refuses to decrypt.

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet};

use mmtls_middlebox::inspect::detect::{
    Context, Detected, FlowState, Match, Matcher, Scratch, Shared, WindowBudget,
};
use mmtls_middlebox::inspect::rules::header::Action;
use mmtls_middlebox::inspect::{AppLayer, AppProto, Side};
use serde_json::{Value, json};

use super::capture::Capture;
use super::streams::{Policy, Step, Streams};
use super::tls::{Handshake, Known, begins};

/// How a capture is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) policy: Policy,
    /// What drops a connection ends it.
    pub(super) inline: bool,
}

/// What came out.
#[derive(Default)]
pub(super) struct Outcome {
    /// Records of alerts, as in `eve.json`.
    pub(super) alerts: Vec<Value>,
    /// What connections carried.
    pub(super) protocols: BTreeSet<&'static str>,
    /// A cap was met.
    pub(super) over_cap: bool,
}

/// Applies rules to a capture.
pub(super) fn run(capture: &Capture, matcher: &Matcher, manner: Manner) -> Outcome {
    let (shared, budget) = (Shared::default(), WindowBudget::default());
    let mut scratch = Scratch::default();
    let mut outcome = Outcome::default();
    let mut flows: BTreeMap<usize, Flow> = BTreeMap::new();
    let mut sink = |number: usize, now_ns: u64, step: Step<'_>| {
        let mut cx =
            Context { matcher, shared: &shared, budget: &budget, scratch: &mut scratch, now_ns };
        if let Step::Open { client, server } = step {
            flows.insert(number, Flow::new(number as u64, client, server));
            return;
        }
        let Some(flow) = flows.get_mut(&number) else {
            return;
        };
        if manner.inline && flow.is_dropped {
            return;
        }
        let is_end = matches!(step, Step::End);
        flow.step(&mut cx, step, manner, &mut outcome);
        if is_end && let Some(flow) = flows.remove(&number) {
            outcome.protocols.insert(flow.protocol());
        }
    };
    let mut streams = Streams::new(manner.policy);
    for segment in &capture.segments {
        streams.segment(segment, &mut sink);
    }
    streams.finish(&mut sink);
    outcome.protocols.extend(flows.values().map(Flow::protocol));
    outcome
}

/// A connection.
struct Flow {
    client: SocketAddr,
    server: SocketAddr,
    state: FlowState,
    carried: Carried,
    is_dropped: bool,
}

/// What is made of the bytes of a connection.
enum Carried {
    /// There are none yet.
    Nothing,
    Plain(Box<AppLayer>),
    Tls(Box<Handshake>),
}

impl Flow {
    fn new(number: u64, client: SocketAddr, server: SocketAddr) -> Self {
        let state = FlowState::new(number, client, server);
        Self { client, server, state, carried: Carried::Nothing, is_dropped: false }
    }

    fn protocol(&self) -> &'static str {
        match &self.carried {
            Carried::Nothing => "nothing",
            Carried::Plain(app) => app.protocol().map_or("unknown", AppProto::name),
            Carried::Tls(_) => "tls",
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, step: Step<'_>, manner: Manner, out: &mut Outcome) {
        let (client, server, dropped) = (self.client, self.server, &mut self.is_dropped);
        let mut protocol = match &self.carried {
            Carried::Nothing => None,
            Carried::Plain(app) => app.protocol().map(AppProto::name),
            Carried::Tls(_) => Some("tls"),
        };
        let mut report = |detected: Detected<'_>, protocol: Option<&'static str>| match detected {
            Detected::Match(found) => {
                *dropped |= matches!(found.rule.header.action, Action::Drop | Action::Reject(_));
                if found.is_reported {
                    let ends = match found.side {
                        Side::Client => (client, server),
                        Side::Server => (server, client),
                    };
                    out.alerts.push(alert(&found, ends, protocol, manner.inline));
                }
            }
            Detected::OverCap(_) => out.over_cap = true,
        };
        let state = &mut self.state;
        match step {
            Step::Open { .. } => {}
            Step::Data(side, bytes) => {
                self.carried.look(bytes);
                state.data(cx, side, bytes, &mut |it| report(it, protocol));
                match &mut self.carried {
                    Carried::Nothing => {}
                    Carried::Plain(app) => app.data(side, bytes, &mut |event| {
                        if let mmtls_middlebox::inspect::Event::Protocol(it) = &event {
                            protocol = Some(it.name());
                        }
                        state.event(cx, &event, &mut |it| report(it, protocol));
                    }),
                    Carried::Tls(handshake) => {
                        let known = handshake.data(side, bytes);
                        tell(state, cx, handshake, &known, &mut |it| report(it, Some("tls")));
                    }
                }
            }
            Step::Gap(side) => {
                state.gap(side);
                match &mut self.carried {
                    Carried::Nothing => self.carried = Carried::plain(),
                    Carried::Plain(app) => {
                        app.gap(side, &mut |event| {
                            state.event(cx, &event, &mut |it| report(it, protocol));
                        });
                    }
                    Carried::Tls(handshake) => {
                        let known = handshake.end(side);
                        tell(state, cx, handshake, &known, &mut |it| report(it, Some("tls")));
                    }
                }
            }
            Step::Close(side) => {
                if let Carried::Plain(app) = &mut self.carried {
                    app.close(side, &mut |event| {
                        state.event(cx, &event, &mut |it| report(it, protocol));
                    });
                }
            }
            Step::End => match &mut self.carried {
                Carried::Nothing => {}
                Carried::Plain(app) => {
                    app.finish(&mut |event| {
                        state.event(cx, &event, &mut |it| report(it, protocol));
                    });
                }
                Carried::Tls(handshake) => {
                    for side in [Side::Client, Side::Server] {
                        let known = handshake.end(side);
                        tell(state, cx, handshake, &known, &mut |it| report(it, Some("tls")));
                    }
                }
            },
        }
    }
}

impl Carried {
    fn plain() -> Self {
        Self::Plain(Box::default())
    }

    /// Decides by the first bytes, whoever sent them.
    fn look(&mut self, bytes: &[u8]) {
        if matches!(self, Self::Nothing) {
            *self = if begins(bytes) { Self::Tls(Box::default()) } else { Self::plain() };
        }
    }
}

/// Applies rules to what is new of a handshake.
fn tell(
    state: &mut FlowState,
    cx: &mut Context<'_>,
    handshake: &Handshake,
    known: &[Known],
    sink: &mut dyn FnMut(Detected<'_>),
) {
    for step in known {
        let (side, is_complete) = match *step {
            Known::Something(side) => (side, false),
            Known::Everything(side) => (side, true),
        };
        state.handshake(cx, side, &handshake.facts(side), is_complete, sink);
    }
}

/// The record of an alert, as far as checks can ask for it.
fn alert(
    found: &Match<'_>,
    (from, to): (SocketAddr, SocketAddr),
    protocol: Option<&str>,
    inline: bool,
) -> Value {
    let rule = found.rule;
    let is_blocked = match rule.header.action {
        Action::Reject(_) => true,
        Action::Drop => inline,
        Action::Alert | Action::Pass => false,
    };
    let mut record = json!({
        "event_type": "alert",
        "src_ip": from.ip().to_string(),
        "src_port": from.port(),
        "dest_ip": to.ip().to_string(),
        "dest_port": to.port(),
        "proto": "TCP",
        "ip_v": if from.is_ipv4() { 4 } else { 6 },
        "direction": match found.side { Side::Client => "to_server", Side::Server => "to_client" },
        "alert": {
            "action": if is_blocked { "blocked" } else { "allowed" },
            "gid": rule.id.gid,
            "signature_id": rule.id.sid,
            "rev": rule.revision,
            "signature": rule.message,
            "category": rule.category(),
            "severity": rule.severity(),
        },
    });
    let tx_id = match protocol {
        Some("tls") => Some(0),
        _ => found.transaction.and_then(|it| it.id),
    };
    if let Some(tx_id) = tx_id {
        record["tx_id"] = tx_id.into();
    }
    if let Some(protocol) = protocol {
        record["app_proto"] = protocol.into();
    }
    if let Some(request) = found.transaction.and_then(|it| it.request.as_ref()) {
        record["http"] = json!({
            "hostname": request.host,
            "url": request.target,
            "http_method": request.method,
            "http_user_agent": request.user_agent,
        });
    }
    record
}
