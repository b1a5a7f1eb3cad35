//! What the monitor makes of a handshake: fingerprints of its two ends, and what rules say to it.
//!
//! Refuses to look into records, and to wait for what may never come.

use mmtls_engine::session::SessionInfo;
use mmtls_engine::tls::Direction;
use mmtls_inspect::Uninspected;

use super::facts::SideFacts;
use super::finding::{self, Finding};
use super::reports::Asked;
use super::{Monitor, MonitorState, limits_hit, rule_look};
use crate::eve::FlowKey;
use crate::fingerprint::Fingerprints;
use crate::rules::LiveRules;

impl Monitor {
    /// The ClientHello is complete; true when the session is to be reset.
    pub(super) fn client_said_hello(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
    ) -> bool {
        let from = Direction::ClientToServer;
        let is_asked = self.rules.as_mut().is_some_and(LiveRules::ask_fingerprints);
        let is_written = self.writes_fingerprints || is_asked;
        if is_written || self.reports.recorder.is_some() {
            let fingerprints = info.client_offer().map(Fingerprints::of_client);
            state.known.fingerprints = fingerprints.map(Box::new);
            state.known.hides_fingerprints = !is_written;
        }
        let is_cut = info.client_offer().is_some_and(|offer| offer.is_cut);
        let reset = is_cut && self.cut(info, state, from);
        self.handshake_rules(info, state, from, &[], false) || reset
    }

    /// The first answer to it is complete; true when the session is to be reset. Also what rules ask of the client may
    /// wait for that: the version.
    pub(super) fn server_said_hello(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
    ) -> bool {
        let choice = info.server_choice();
        if let (Some(fingerprints), Some(choice)) = (&mut state.known.fingerprints, choice) {
            fingerprints.add_server(choice);
        }
        let is_cut = choice.is_some_and(|choice| choice.is_cut);
        let mut reset = is_cut && self.cut(info, state, Direction::ServerToClient);
        for from in Direction::BOTH {
            reset |= self.handshake_rules(info, state, from, &[], false);
        }
        reset
    }

    /// The handshake is through; true when the session is to be reset.
    pub(super) fn handshake_known(&mut self, info: &SessionInfo, state: &mut MonitorState) -> bool {
        let mut reset = false;
        for (from, place) in Direction::BOTH.into_iter().zip(0..) {
            // Certificates may come late, and rules are to see them.
            let is_complete =
                from == Direction::ClientToServer || state.known.certificates[place].is_some();
            reset |= self.handshake_rules(info, state, from, &[], is_complete);
        }
        reset
    }

    /// The end of the handshake will not be seen; true when the session is to be reset. Nothing more comes of the client.
    /// What the server would have shown is not known to be absent.
    pub(super) fn handshake_given_up(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
    ) -> bool {
        self.handshake_rules(info, state, Direction::ClientToServer, &[], true)
    }

    /// Applies rules to what is known of the handshake; true when the session is to be reset.
    pub(super) fn handshake_rules(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
        from: Direction,
        chain: &[&[u8]],
        is_complete: bool,
    ) -> bool {
        let flow = FlowKey::from(info);
        let now_ns = self.reports.now_ns;
        self.reports.rules_stop = self.rules.as_mut().is_some_and(LiveRules::can_drop);
        let Some(mut rules) = rule_look(&mut self.rules, &mut state.rules, flow, now_ns) else {
            return false;
        };
        let certificate = match from {
            Direction::ClientToServer => state.known.certificates[0].as_deref(),
            Direction::ServerToClient => state.known.certificates[1].as_deref(),
        };
        let fingerprints = state.known.fingerprints.as_deref();
        let facts = SideFacts { info, from, certificate, chain, fingerprints };
        let (reports, mut asked) = (&mut self.reports, Asked::default());
        rules.handshake(finding::side(from), &facts, is_complete, &mut |finding| {
            reports.finding(flow, None, &finding, &mut asked);
        });
        reports.summary.expression_limits += limits_hit(&mut self.rules);
        reports.conclude(flow, &mut state.known, &asked)
    }

    /// A hello lists more than is looked at; true when the session is to be reset for it.
    fn cut(&mut self, info: &SessionInfo, state: &mut MonitorState, from: Direction) -> bool {
        let Some(live) = &mut self.rules else {
            return false;
        };
        if !live.ask_fingerprints() {
            return false;
        }
        self.reports.rules_stop = live.can_drop();
        let (flow, mut asked) = (FlowKey::from(info), Asked::default());
        let finding = Finding::Uninspected { from, cause: Uninspected::OverCap };
        self.reports.finding(flow, None, &finding, &mut asked);
        self.reports.conclude(flow, &mut state.known, &asked)
    }
}

#[cfg(test)]
mod tests;
