//! What rules look into together: one side of a transaction, of a handshake, or of the stream.
//!
//! A rule becomes a candidate by its pattern; what of it is not there yet waits. Refuses to decide on
//! what may still change: see [`super::checks`].

use super::context::Facts;
use super::frames::Met;
use super::http_head::Head;
use super::matcher::{Compiled, Group, Place, Slot};
use super::memory::Memory;
use super::multipart::{MAX_PART_HEAD, Multipart};
use super::prefilter::{Hits, Position};
use super::transform;
use super::view::View;
use super::window::Window;
use crate::budget::{Charge, MemoryBudget};
use crate::event::Form;
use crate::rules::Buffer;
use crate::rules::header::Action;

/// One side of a transaction, as far as rules look at it.
#[derive(Default)]
pub(super) struct Message {
    /// Its head has come.
    pub(super) has_head: bool,
    /// So have its trailers.
    pub(super) has_trailers: bool,
    /// What its frames have met.
    pub(super) frames: Met,
    pub(super) head: Option<(Head, Charge)>,
    /// Its body has a content coding.
    pub(super) is_coded: bool,
    pub(super) bodies: Vec<BodyStream>,
    /// The body is a form with this boundary, whose files are looked into one by one.
    pub(super) boundary: Option<Vec<u8>>,
    /// Rules of which not everything has matched, in their order.
    pub(super) waiting: Vec<Waiting>,
    /// Rules that have matched, or never will, in their order.
    pub(super) done: Vec<u32>,
    /// Those that are not begun anew when more fields come: they have matched, or are settled.
    pub(super) settled: Vec<u32>,
}

/// A body in one form.
pub(super) struct BodyStream {
    pub(super) form: Form,
    /// It is all of the message's body, not a file in it.
    pub(super) is_message: bool,
    /// It is a file.
    pub(super) is_file: bool,
    /// It is taken apart.
    pub(super) parts: Option<Box<Multipart>>,
    pub(super) window: Window,
    /// Where the search for each slot stands.
    pub(super) positions: Vec<Position>,
}

impl BodyStream {
    pub(super) fn new(
        form: Form,
        slots: usize,
        parts: Option<Box<Multipart>>,
        budget: &MemoryBudget,
    ) -> Self {
        let positions = vec![Position::default(); slots];
        let of_parts = if parts.is_some() { MAX_PART_HEAD } else { 0 };
        let window = Window::new(budget, size_of_val(&*positions) + of_parts);
        Self { form, is_message: true, is_file: true, parts, window, positions }
    }

    /// Whether rules look into it by the name of a buffer.
    pub(super) fn is_for(&self, buffer: Buffer) -> bool {
        if buffer == Buffer::FileData { self.is_file } else { self.is_message }
    }
}

/// A rule of which not everything has matched.
pub(super) struct Waiting {
    pub(super) rule: u32,
    /// The buffers that have, a bit each.
    matched: u64,
    memory: Option<Box<Memory>>,
    /// A group that cannot hold without one of its checks, which was nowhere.
    missing: Option<(usize, usize)>,
    /// Where the stream ended then.
    pub(super) known: u64,
}

/// What has come of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Matched,
    /// It may match when more has come.
    Waits,
    Never,
    /// Nor when this is asked again, of what is left then.
    Settled,
}

/// What it cost to apply a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// In bytes looked at.
    pub(super) work: u64,
    /// It was given up.
    pub(super) over_cap: bool,
    /// Expressions in it that were given up.
    pub(super) limits_hit: u32,
}

/// What a rule is applied to.
pub(super) struct Subject<'a> {
    pub(super) head: Option<&'a Head>,
    pub(super) bodies: &'a [BodyStream],
    pub(super) is_coded: bool,
    /// The stream of this side, or a part of it.
    pub(super) payload: Option<View<'a>>,
    pub(super) handshake: Option<&'a dyn Facts>,
    /// What the frames of the message have met.
    pub(super) frames: Option<&'a Met>,
    /// The body that is about to lose its start: what is there counts as all of it.
    pub(super) filled: Option<usize>,
    /// Nothing more comes of this message.
    pub(super) has_ended: bool,
}

impl Subject<'_> {
    /// Nothing but what is added to it.
    pub(super) fn none(has_ended: bool) -> Self {
        Self {
            head: None,
            bodies: &[],
            is_coded: false,
            payload: None,
            handshake: None,
            frames: None,
            filled: None,
            has_ended,
        }
    }

    fn group(&self, group: &Group, slot: &Slot, action: Action, memory: &mut Memory) -> Outcome {
        let mut matched = false;
        match slot.place {
            Place::Head => {
                let Some(head) = self.head else {
                    return Outcome::Never;
                };
                // Which form of a path the server takes is not known: what ends the inspection must hold of all of them.
                let is_of_all = action == Action::Pass && slot.buffer == Buffer::HttpUri;
                let (mut is_there, mut has_failed) = (false, false);
                head.each(slot.buffer, &mut |bytes| {
                    is_there = true;
                    if !matched || is_of_all {
                        let holds = applies(group, slot, View::whole(bytes), memory);
                        (matched, has_failed) = (matched | holds, has_failed | !holds);
                    }
                });
                matched &= !(is_of_all && has_failed);
                decided(group.holds(is_there, matched), true)
            }
            Place::Tls => {
                let mut is_there = false;
                if let Some(facts) = self.handshake {
                    facts.each(slot.buffer, &mut |bytes| {
                        is_there = true;
                        matched |= !matched && applies(group, slot, View::whole(bytes), memory);
                    });
                }
                // It may still come.
                decided(group.holds(is_there || !self.has_ended, matched), self.has_ended)
            }
            Place::Payload => {
                if let Some(view) = self.payload {
                    matched = applies(group, slot, view, memory);
                }
                // What must not be there was there: that it is no longer at hand some time does not count.
                if !matched && self.head.is_some() && group.checks.forbid_anywhere() {
                    return Outcome::Settled;
                }
                decided(matched, self.has_ended)
            }
            Place::Body => {
                let bodies = self.bodies.iter().enumerate();
                for (at, body) in bodies.filter(|(_, body)| body.is_for(slot.buffer)) {
                    // What is coded is only searched: what is not in it can be said of any coded body.
                    let is_readable = !self.is_coded || body.form != Form::AsSent;
                    let is_search = group.checks.is_positive() && slot.transforms.is_empty();
                    if !is_readable && !is_search {
                        continue;
                    }
                    let is_filled = self.filled == Some(at) || self.has_ended;
                    // What was before may have had what must not be there, and nothing else is asked for.
                    let (window, checks) = (&body.window, &group.checks);
                    let counts = !window.has_slid()
                        || checks.seek_something() && (window.has_ended() || !checks.ask_for_end());
                    let view = if is_filled && counts { window.filled() } else { window.view() };
                    // Transformed anew each time, a long body would cost too much.
                    let is_due = slot.transforms.is_empty() || view.is_whole;
                    matched |= is_due && applies(group, slot, view, memory);
                    if matched {
                        break;
                    }
                }
                decided(matched, self.has_ended)
            }
        }
    }

    /// Shows a buffer that is there at once, and whether what comes of it is final.
    pub(super) fn each(&self, slot: &Slot, show: &mut dyn FnMut(&[u8])) {
        let mut shown = |bytes: &[u8]| {
            if let Some(transformed) = transform::apply(&slot.transforms, View::whole(bytes)) {
                show(transformed.view().bytes);
            }
        };
        match (slot.place, self.head, self.handshake) {
            (Place::Head, Some(head), _) => head.each(slot.buffer, &mut shown),
            (Place::Tls, _, Some(facts)) => facts.each(slot.buffer, &mut shown),
            _ => {}
        }
    }
}

/// Applies the checks to what transformations make of a buffer.
fn applies(group: &Group, slot: &Slot, view: View<'_>, memory: &mut Memory) -> bool {
    if slot.transforms.is_empty() {
        return group.checks.apply(view, memory);
    }
    transform::apply(&slot.transforms, view)
        .is_some_and(|transformed| group.checks.apply(transformed.view(), memory))
}

fn decided(matched: bool, is_final: bool) -> Outcome {
    match (matched, is_final) {
        (true, _) => Outcome::Matched,
        (false, true) => Outcome::Never,
        (false, false) => Outcome::Waits,
    }
}

impl Waiting {
    pub(super) fn new(rule: u32) -> Self {
        Self { rule, matched: 0, memory: None, missing: None, known: 0 }
    }

    /// Whether it is worth while to apply a rule to a stream again. Also says what it took to find out, in bytes looked at.
    pub(super) fn may_hold(&self, compiled: &Compiled, view: View<'_>) -> (bool, u64) {
        let mut memory = Memory::default();
        let group = self.missing.and_then(|(at, step)| Some((compiled.groups.get(at)?, step)));
        let holds = group
            .is_none_or(|(group, step)| group.checks.may_hold(step, self.known, view, &mut memory));
        (holds, memory.work())
    }

    /// Applies what of a rule has not matched yet; also says what it cost, in bytes looked at, and whether
    /// that was too much.
    pub(super) fn apply(
        &mut self,
        compiled: &Compiled,
        slots: &[Slot],
        subject: &Subject<'_>,
    ) -> (Outcome, Cost) {
        let mut memory = self.memory.take().map_or_else(Memory::default, |known| known.go_on());
        let outcome = self.groups(compiled, slots, subject, &mut memory);
        let Memory { over_cap, limits_hit, .. } = memory;
        let cost = Cost { work: memory.work(), over_cap, limits_hit };
        if outcome == Outcome::Waits && compiled.has_memory {
            self.memory = Some(Box::new(memory));
        }
        (outcome, cost)
    }

    fn groups(
        &mut self,
        compiled: &Compiled,
        slots: &[Slot],
        subject: &Subject<'_>,
        memory: &mut Memory,
    ) -> Outcome {
        let mut outcome = Outcome::Matched;
        self.missing = None;
        for (at, group) in compiled.groups.iter().enumerate() {
            let bit = 1u64 << (at & 63);
            if self.matched & bit != 0 {
                continue;
            }
            let Some(slot) = slots.get(group.slot) else {
                return Outcome::Never;
            };
            memory.missing = None;
            let of_group = subject.group(group, slot, compiled.rule.header.action, memory);
            self.missing = memory.missing.map(|step| (at, step)).or(self.missing);
            match of_group {
                Outcome::Matched => self.matched |= bit,
                // Numbers that it extracts may be what the others need.
                Outcome::Waits if compiled.has_memory => return Outcome::Waits,
                Outcome::Waits => outcome = Outcome::Waits,
                Outcome::Never | Outcome::Settled => return of_group,
            }
        }
        outcome
    }
}

impl Message {
    /// Whether nothing but frames has come of it.
    pub(super) fn is_early(&self) -> bool {
        !self.has_head && self.bodies.is_empty()
    }

    /// Takes out what takes a body apart: the place and the form of that, if there is one left.
    pub(super) fn take_parts(&mut self) -> Option<(usize, Form, Box<Multipart>)> {
        let mut bodies = self.bodies.iter_mut().enumerate();
        bodies.find_map(|(at, body)| Some((at, body.form, body.parts.take()?)))
    }

    /// Takes a rule that waits out, or begins with it; `None` when it is decided.
    pub(super) fn take(&mut self, rule: u32) -> Option<Waiting> {
        if self.done.binary_search(&rule).is_ok() {
            return None;
        }
        match self.waiting.binary_search_by_key(&rule, |it| it.rule) {
            Ok(at) => Some(self.waiting.remove(at)),
            Err(_) => Some(Waiting::new(rule)),
        }
    }

    pub(super) fn is_waiting(&self, rule: u32) -> bool {
        self.waiting.binary_search_by_key(&rule, |it| it.rule).is_ok()
    }

    /// Puts a rule back to wait.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        let at = self.waiting.partition_point(|it| it.rule < waiting.rule);
        self.waiting.insert(at, waiting);
    }

    /// A rule is decided.
    pub(super) fn decide(&mut self, rule: u32, is_settled: bool) {
        for rules in [Some(&mut self.done), is_settled.then_some(&mut self.settled)] {
            if let Some(rules) = rules
                && let Err(at) = rules.binary_search(&rule)
            {
                rules.insert(at, rule);
            }
        }
    }

    /// There is more to look into: rules that have not matched may do so now. They are asked once: a sender of
    /// many trailers breaks the rules.
    pub(super) fn reopen(&mut self, hits: &mut Hits) {
        if !core::mem::replace(&mut self.has_trailers, true) {
            self.done.iter().for_each(|&rule| hits.add(rule));
        }
        self.done.clone_from(&self.settled);
    }

    pub(super) fn add_waiting(&self, hits: &mut Hits) {
        for waiting in &self.waiting {
            hits.add(waiting.rule);
        }
    }
}
