//! What all rules of a connection look at: its ends, its bits, and what it carries.
//!
//! Applies single rules, and does what a match asks for. Refuses to know where bytes come from.

use core::net::SocketAddr;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::context::{Context, Detected, Match, Sink};
use super::matcher::{Compiled, index, is_of};
use super::message::{Message, Outcome, Subject, Waiting};
use super::shared::{Counts, Ends};
use crate::event::Side;
use crate::rules::Rule;
use crate::rules::buffers::Application;
use crate::rules::flow::BitAction;
use crate::rules::header::Action;
use crate::transaction::Transaction;
use crate::uninspected::Uninspected;

/// What all rules of the connection look at.
pub(super) struct Connection {
    pub(super) flow: u64,
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    /// Bits that are set.
    pub(super) bits: HashSet<u32>,
    /// Bits that were set in the clear, before TLS, and were taken over.
    pub(super) inherited: HashSet<u32>,
    /// A rule said that no other one is applied.
    pub(super) has_passed: bool,
    /// What was told of a side.
    pub(super) uninspected: [Vec<Uninspected>; 2],
    pub(super) application: Option<Application>,
    /// It was found out what the connection carries.
    pub(super) is_known: bool,
    pub(super) is_http2: bool,
}

impl Connection {
    /// Tells, once for each side, that a cap was met.
    pub(super) fn over_cap(&mut self, side: Side, sink: Sink<'_>) {
        self.tell(side, Uninspected::OverCap, sink);
    }

    /// Tells, once for each side, that something is coded and was not decoded.
    pub(super) fn unknown_coding(&mut self, side: Side, sink: Sink<'_>) {
        self.tell(side, Uninspected::UnknownCoding, sink);
    }

    /// Tells what was not inspected when a rule was applied.
    pub(super) fn tell_applied(&mut self, cx: &mut Context<'_>, side: Side, sink: Sink<'_>) {
        if core::mem::take(&mut cx.scratch.over_cap) {
            self.tell(side, Uninspected::OverCap, sink);
        }
        if core::mem::take(&mut cx.scratch.gave_up) {
            self.tell(side, Uninspected::ExpressionLimit, sink);
        }
    }

    fn tell(&mut self, side: Side, cause: Uninspected, sink: Sink<'_>) {
        let told = &mut self.uninspected[index(side)];
        if !told.contains(&cause) {
            told.push(cause);
            sink(Detected::Uninspected(side, cause));
        }
    }

    pub(super) fn ends(&self, side: Side) -> (SocketAddr, SocketAddr) {
        match side {
            Side::Client => (self.client, self.server),
            Side::Server => (self.server, self.client),
        }
    }

    /// Whether a rule is about what the connection carries.
    pub(super) fn is_about(&self, rule: &Rule) -> bool {
        is_of(rule.header.protocol, self.application, self.is_http2)
    }

    /// Whether the header of a rule is about what a side sends.
    pub(super) fn is_addressed(&self, rule: &Rule, side: Side) -> bool {
        let header = &rule.header;
        let fits = |from: SocketAddr, to: SocketAddr| {
            header.source.contains_address(from.ip())
                && header.source_ports.contains(from.port())
                && header.destination.contains_address(to.ip())
                && header.destination_ports.contains(to.port())
        };
        let (from, to) = self.ends(side);
        fits(from, to) || header.both_ways && fits(to, from)
    }

    /// Applies a rule as far as it can be.
    pub(super) fn apply(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
        side: Side,
        subject: &Subject<'_>,
    ) -> Outcome {
        // Of a rule that is not even about this, nothing is counted.
        cx.scratch.work = 0;
        let Some(compiled) = cx.matcher.rules.get(waiting.rule as usize) else {
            return Outcome::Never;
        };
        let rule = &compiled.rule;
        if !self.is_known && !self.is_about(rule) && subject.payload.is_some() {
            return if subject.has_ended { Outcome::Never } else { Outcome::Waits };
        }
        if self.has_passed
            || !self.is_about(rule)
            || rule.flow.from.is_some_and(|from| from != side)
            || !self.is_addressed(rule, side)
        {
            return Outcome::Never;
        }
        let version = subject.handshake.and_then(super::context::Facts::version);
        let mut waits = false;
        for wanted in &rule.tls_versions {
            match version {
                Some(version) if (version == wanted.number) != wanted.negated => {}
                None if !subject.has_ended => waits = true,
                _ => return Outcome::Never,
            }
        }
        waits |= !compiled.frames.iter().all(|&it| subject.frames.is_some_and(|met| met.has(it)));
        let costs = cx.matcher.costs.as_ref().and_then(|it| it.get(waiting.rule as usize));
        let start = costs.map(|_| Instant::now());
        let (outcome, cost) = waiting.apply(compiled, &cx.matcher.slots, subject);
        if let (Some(costs), Some(start)) = (costs, start) {
            let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            costs.checks.fetch_add(1, Ordering::Relaxed);
            costs.time_ns.fetch_add(time, Ordering::Relaxed);
        }
        cx.scratch.work = cost.work;
        cx.scratch.over_cap |= cost.over_cap;
        cx.scratch.limits_hit += u64::from(cost.limits_hit);
        cx.scratch.gave_up |= cost.limits_hit > 0 && outcome != Outcome::Matched;
        match outcome {
            Outcome::Matched if waits || !self.bits_hold(cx, compiled, side) => Outcome::Waits,
            outcome => outcome,
        }
    }

    /// Whether the conditions on bits hold.
    pub(super) fn bits_hold(&self, cx: &Context<'_>, compiled: &Compiled, side: Side) -> bool {
        let holds = compiled.flow_bits.iter().all(|(action, names)| match action {
            BitAction::IsSet => names.iter().any(|name| self.bits.contains(name)),
            BitAction::IsNotSet => names.iter().any(|name| !self.bits.contains(name)),
            BitAction::Set | BitAction::Unset | BitAction::Toggle => true,
        });
        let ends = self.addresses(side);
        holds && compiled.rule.xbits.iter().all(|bit| cx.shared.bit_holds(bit, ends, cx.now_ns))
    }

    pub(super) fn addresses(&self, side: Side) -> Ends {
        let (from, to) = self.ends(side);
        Ends { source: from.ip(), destination: to.ip(), flow: self.flow }
    }

    /// A rule has matched: bits change, matches are counted.
    pub(super) fn matched(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        side: Side,
        transaction: Option<&Transaction>,
        sink: Sink<'_>,
    ) {
        let Some(compiled) = cx.matcher.rules.get(number as usize) else {
            return;
        };
        if let Some(cost) = cx.matcher.costs.as_ref().and_then(|it| it.get(number as usize)) {
            cost.matches.fetch_add(1, Ordering::Relaxed);
        }
        let (rule, ends) = (&compiled.rule, self.addresses(side));
        for (action, names) in &compiled.flow_bits {
            for name in names {
                match action {
                    BitAction::Set => drop(self.bits.insert(*name)),
                    BitAction::Unset => drop(self.bits.remove(name)),
                    BitAction::Toggle if self.bits.remove(name) => {}
                    BitAction::Toggle => drop(self.bits.insert(*name)),
                    BitAction::IsSet | BitAction::IsNotSet => {}
                }
            }
        }
        for bit in &rule.xbits {
            cx.shared.change_bit(bit, ends, cx.now_ns);
        }
        let thresholds = [&rule.detection_filter, &rule.threshold];
        let mut is_reported = !rule.no_alert;
        for threshold in thresholds.into_iter().flatten() {
            match cx.shared.count(rule.id, threshold, ends, cx.now_ns) {
                Counts::Reported => {}
                Counts::Silent => is_reported = false,
                Counts::Not => return,
            }
        }
        if rule.header.action == Action::Pass {
            self.has_passed = true;
            is_reported = false;
        }
        sink(Detected::Match(Match { rule, side, transaction, is_reported }));
    }
}

/// What becomes of a rule that was applied to a message.
#[allow(clippy::too_many_arguments, reason = "the parts of a connection are borrowed one by one")]
pub(super) fn settle(
    connection: &mut Connection,
    cx: &mut Context<'_>,
    message: &mut Message,
    waiting: Waiting,
    outcome: Outcome,
    side: Side,
    transaction: Option<&Transaction>,
    sink: Sink<'_>,
) {
    let rule = waiting.rule;
    connection.tell_applied(cx, side, sink);
    match outcome {
        Outcome::Waits => message.wait(waiting),
        Outcome::Never => message.decide(rule, false),
        Outcome::Settled => message.decide(rule, true),
        Outcome::Matched => {
            message.decide(rule, true);
            connection.matched(cx, rule, side, transaction, sink);
        }
    }
}
