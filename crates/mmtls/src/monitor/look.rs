//! What decrypted bytes are searched for: patterns, and rules with what they know of the session.
//!
//! Turns what rules say into findings. Refuses to decide what becomes of the session.

use mmtls_inspect::detect::{Detected, Facts};
use mmtls_inspect::{AppProto, Event, Side};

use super::finding::{Finding, direction, record};
use crate::patterns::Patterns;
use crate::rules::{LiveRules, SessionRules};

/// What bytes are searched for.
#[derive(Default)]
pub struct Look<'a> {
    /// Literal patterns in bodies.
    pub patterns: Option<&'a Patterns>,
    /// Rules.
    pub rules: Option<RuleLook<'a>>,
}

/// The rules of a session.
pub struct RuleLook<'a> {
    /// What they know of it.
    pub session: &'a mut SessionRules,
    /// The worker's.
    pub live: &'a mut LiveRules,
    /// The time, in nanoseconds since 1970.
    pub now_ns: u64,
}

impl<'a> Look<'a> {
    /// Only for patterns.
    #[must_use]
    pub fn patterns(patterns: &'a Patterns) -> Self {
        Self { patterns: Some(patterns), rules: None }
    }

    pub(super) fn data(
        &mut self,
        side: Side,
        bytes: &[u8],
        protocol: AppProto,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        if let Some(RuleLook { session, live, now_ns }) = &mut self.rules {
            session.apply(live, *now_ns, |state, context| {
                state.data(context, side, bytes, &mut |it| show(&it, protocol, out));
            });
        }
    }

    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        protocol: AppProto,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        if let Some(RuleLook { session, live, now_ns }) = &mut self.rules {
            session.apply(live, *now_ns, |state, context| {
                state.event(context, event, &mut |it| show(&it, protocol, out));
            });
        }
    }

    pub(super) fn gap(&mut self, side: Side) {
        if let Some(RuleLook { session, live, now_ns }) = &mut self.rules {
            session.apply(live, *now_ns, |state, _| state.gap(side));
        }
    }
}

impl RuleLook<'_> {
    /// Something of a handshake is known.
    pub fn handshake(
        &mut self,
        side: Side,
        facts: &dyn Facts,
        is_complete: bool,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let Self { session, live, now_ns } = self;
        session.apply(live, *now_ns, |state, context| {
            let mut sink = |it: Detected<'_>| {
                show(&it, AppProto::Tls, &mut |mut finding| {
                    // A handshake is one transaction, as Suricata counts.
                    if let Finding::Rule { tx_id, .. } = &mut finding {
                        *tx_id = Some(0);
                    }
                    out(finding);
                });
            };
            state.handshake(context, side, facts, is_complete, &mut sink);
        });
    }
}

fn show(detected: &Detected<'_>, protocol: AppProto, out: &mut dyn FnMut(Finding<'_>)) {
    match *detected {
        Detected::Match(found) => out(Finding::Rule {
            from: direction(found.side),
            rule: found.rule,
            is_reported: found.is_reported,
            app_proto: protocol.name(),
            tx_id: found.transaction.and_then(|it| it.id),
            http: found.transaction.and_then(record),
        }),
        Detected::Uninspected(side, cause) => {
            out(Finding::Uninspected { from: direction(side), cause });
        }
    }
}
