//! Settings that are exchanged while connections are open. None of those is cut by it: a policy is asked when its condition
//! comes up, what was decided stays, and what waits keeps the deadline that it has.
//!
//! ```text
//! rule of Config::bypass     | connections that are there  | that begin later
//! from the start             | left alone, segment by segment, without a flow
//! comes                      | go on as they are           | left alone, each with a flow
//! goes                       | picked up: a grace of their own | followed
//! ```
//! Refuses to exchange what flows and outputs are built on: those fields of a [`Config`] are not looked at.

use core::net::SocketAddr;
use core::ops::Range;

use super::Engine;
use super::changed_rules::ChangedRules;
use super::payload::Payload;
use super::shown::Clear;
use crate::config::{Bypass, Config};
use crate::session::Handler;
use crate::tcp::{FlowIndex, Unread};

impl<H: Handler> Engine<H> {
    /// Takes over these fields of a configuration: `policies`, `limits`, `mid_stream_grace_ns`, `bypass`, `tls_ports`,
    /// `exempt_names`, `private_names` and `tell_hellos`. Returns the networks that are not left alone any more.
    ///
    /// Where a cap of [`crate::Limits`] is lowered below what is taken, connections have to make room as the cap says.
    pub fn reconfigure(&mut self, now_ns: u64, new: &Config) -> Vec<Bypass> {
        self.now_ns = self.now_ns.max(now_ns);
        let gone = self.change_rules(&new.bypass);
        let config = &mut self.config;
        config.policies = new.policies;
        config.limits = new.limits;
        config.mid_stream_grace_ns = new.mid_stream_grace_ns;
        config.tls_ports.clone_from(&new.tls_ports);
        config.exempt_names.clone_from(&new.exempt_names);
        config.private_names.clone_from(&new.private_names);
        config.tell_hellos = new.tell_hellos;
        gone
    }

    /// Has the application change what it keeps of connections, in some places of the table ([`Self::slots`]; places behind
    /// its end are none): for settings of its own, on which that is built.
    pub fn update_states(
        &mut self,
        slots: Range<usize>,
        mut update: impl FnMut(&mut H, &mut H::State),
    ) {
        let all = self.flows.slots_mut();
        let from = slots.start.min(all.len());
        let end = slots.end.clamp(from, all.len());
        for flow in all[from..end].iter_mut().flatten() {
            match &mut flow.payload {
                Payload::Tls(tls) => {
                    if let Some(before) = &mut tls.before {
                        update(&mut self.handler, before.shown.state_mut());
                    }
                    update(&mut self.handler, &mut tls.state);
                }
                Payload::Resting(resting) => update(&mut self.handler, &mut resting.state),
                Payload::Undecided(_, Clear::Shown(shown)) => {
                    update(&mut self.handler, shown.state_mut());
                }
                Payload::Undecided(_, Clear::Expected | Clear::Ignored) | Payload::Plain(_) => {}
            }
        }
    }

    fn change_rules(&mut self, new: &[Bypass]) -> Vec<Bypass> {
        let inline = self.config.inline;
        // The others are looked at when a connection opens, whenever they have come.
        let of_segments = move |rule: &Bypass| rule.port.is_none() || !inline;
        let had: Vec<Bypass> = self.config.bypass.iter().copied().filter(of_segments).collect();
        let (grace, now_ns) = (self.config.mid_stream_grace_ns, self.now_ns);
        let ChangedRules { added, removed } = &mut self.changed_rules;
        // What comes back is left alone from its next connection on.
        let gone = had.iter().filter(|rule| !new.contains(rule)).copied();
        let gone: Vec<Bypass> = gone.collect();
        let no_more = added.iter().filter(|rule| !new.contains(rule)).copied();
        removed.extend(gone.iter().copied().chain(no_more).map(|rule| (rule, now_ns)));
        removed
            .retain(|(rule, since)| now_ns.saturating_sub(*since) <= grace && !new.contains(rule));
        *added = new.iter().copied().filter(|it| of_segments(it) && !had.contains(it)).collect();
        let stays = |rule: &Bypass| !of_segments(rule) || had.contains(rule);
        self.config.bypass = new.iter().copied().filter(stays).collect();
        gone
    }

    /// Whether a connection between these ends, in either order, is of a network that a reload has named.
    pub(super) fn is_added(&self, one: SocketAddr, other: SocketAddr) -> bool {
        self.changed_rules.added.iter().any(|rule| rule.meets(one, other))
    }

    /// Whether one was left alone until a short time ago.
    pub(super) fn is_newly_read(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let grace = self.config.mid_stream_grace_ns;
        let is_in_time = |since: u64| self.now_ns.saturating_sub(since) < grace;
        let mut rules = self.changed_rules.removed.iter();
        rules.any(|(rule, since)| is_in_time(*since) && rule.meets(one, other))
    }

    /// A connection has begun: it is left alone if rules that have come say so, or the engine drains.
    pub(super) fn leave_alone_from_start(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [client, server] = flow.ends.both();
        if self.is_added(client, server) {
            self.leave_alone(index);
        } else if self.drains && self.leave_alone(index) {
            self.counters.drained += 1;
        }
    }

    /// False where that is so already.
    pub(super) fn leave_alone(&mut self, index: FlowIndex) -> bool {
        match self.flows.get(index) {
            Some(flow) if flow.unread == Unread::No => {
                flow.payload = Payload::Plain(Box::default());
                flow.unread = Unread::Exempt;
                true
            }
            _ => false,
        }
    }
}
