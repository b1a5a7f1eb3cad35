//! A set of rules, ready to be applied: which ones may match where, and in which order.
//!
//! Each rule has one pattern in a search for many rules at once, in the buffer where that pattern is
//! looked for; rules without one are candidates wherever their buffer is. Refuses rules that ask for what
//! its owner cannot show, with the cause, as a whole.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::checks::Checks;
use super::dataset::Datasets;
use super::frames::FrameChecks;
use super::prefilter::Prefilter;
use super::search::{Search, SearchError};
use crate::Side;
use crate::rules::buffers::Application;
use crate::rules::content::{Content, FastPattern};
use crate::rules::flow::BitAction;
use crate::rules::header::{Action, Protocol};
use crate::rules::{Buffer, BufferChecks, Cause, Check, Rule, RuleSet, Skipped, Transform};

/// Most buffers of a rule: which of them matched is one word.
const MAX_GROUPS: usize = 64;
/// Patterns beyond this length tell rules apart no better.
const LONG_PATTERN: usize = 12;

/// Rules, ready to be applied.
pub struct Matcher {
    pub(super) rules: Box<[Compiled]>,
    pub(super) slots: Box<[Slot]>,
    /// Rules that look into no buffer, by side; they belong to what their protocol says.
    pub(super) bare: [Box<[u32]>; 2],
    /// What of each side somebody looks at.
    pub(super) needs: [Needs; 2],
    /// Conditions on frames of HTTP/2.
    pub(super) frames: FrameChecks,
    /// The number of each name of a bit.
    pub(super) bits: HashMap<Box<str>, u32>,
    /// What each rule cost, where that is asked for.
    pub(super) costs: Option<Box<[RuleCost]>>,
}

/// What a rule cost so far.
#[derive(Default, Debug)]
pub(super) struct RuleCost {
    pub(super) checks: AtomicU64,
    pub(super) matches: AtomicU64,
    pub(super) time_ns: AtomicU64,
}

/// What a rule cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// How often it was applied: the search had found its pattern, or more had come of what it looks into.
    pub checks: u64,
    /// How often it matched.
    pub matches: u64,
    /// Nanoseconds that it took.
    pub time_ns: u64,
}

/// What rules look at on one side.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Needs {
    /// The stream as it is.
    pub(super) payload: bool,
    /// Bodies.
    pub(super) bodies: bool,
    /// Files.
    pub(super) files: bool,
    /// Heads, after bodies have begun.
    pub(super) late_heads: bool,
}

/// A rule.
pub(super) struct Compiled {
    pub(super) rule: Rule,
    pub(super) groups: Box<[Group]>,
    /// Names of the connection's bits, as numbers.
    pub(super) flow_bits: Box<[(BitAction, Box<[u32]>)]>,
    /// Numbers or values pass from one buffer to another.
    pub(super) has_memory: bool,
    /// Conditions on frames, as numbers.
    pub(super) frames: Box<[u32]>,
}

/// The checks of a rule in a buffer.
pub(super) struct Group {
    pub(super) slot: usize,
    pub(super) checks: Checks,
    pub(super) absence: Absence,
}

/// What it means that there is no such buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// The checks do not hold.
    Fails,
    /// As good as if they held.
    Holds,
    /// There must be none.
    Needed,
}

impl Group {
    /// Whether it asks for something that has to be there.
    pub(super) fn seeks_something(&self) -> bool {
        self.absence == Absence::Fails && self.checks.seek_something()
    }

    /// What comes of checks that have matched, or not, in a buffer that is there, or not.
    pub(super) fn holds(&self, is_there: bool, matched: bool) -> bool {
        match self.absence {
            Absence::Fails => matched,
            Absence::Holds => matched || !is_there,
            Absence::Needed => !is_there,
        }
    }
}

impl Absence {
    fn of(group: &BufferChecks) -> Self {
        let asked = group.checks.iter().find_map(|check| match check {
            Check::Absent { or_else } => Some(*or_else),
            _ => None,
        });
        match asked {
            None => Self::Fails,
            Some(true) => Self::Holds,
            Some(false) => Self::Needed,
        }
    }
}

/// A buffer with transformations that rules look into.
pub(super) struct Slot {
    pub(super) buffer: Buffer,
    pub(super) transforms: Box<[Transform]>,
    pub(super) place: Place,
    /// By side.
    pub(super) candidates: [Candidates; 2],
}

/// Where a buffer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The head of a message: there at once.
    Head,
    /// The body of a message: comes in parts.
    Body,
    /// The stream of one direction: comes in parts, and belongs to no message.
    Payload,
    /// The handshake.
    Tls,
}

impl Place {
    const fn of(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Payload => Self::Payload,
            Buffer::HttpRequestBody | Buffer::HttpResponseBody | Buffer::FileData => Self::Body,
            _ => match buffer.application() {
                Some(Application::Tls) => Self::Tls,
                _ => Self::Head,
            },
        }
    }
}

/// The rules that may match in a buffer.
#[derive(Default)]
pub(super) struct Candidates {
    pub(super) prefilter: Option<Prefilter>,
    /// Those without a pattern.
    pub(super) always: Box<[u32]>,
}

impl Candidates {
    pub(super) fn is_empty(&self) -> bool {
        self.prefilter.is_none() && self.always.is_empty()
    }
}

/// Patterns and rules of a slot while it is put together.
#[derive(Default)]
struct Draft<'a> {
    patterns: Vec<(&'a [u8], u32)>,
    always: Vec<u32>,
}

impl Matcher {
    /// Compiles rules; those that cannot be applied are returned with the cause. `shows` says which buffers
    /// the caller can show.
    ///
    /// # Errors
    /// The buffer whose patterns cannot be searched for.
    pub fn new(
        set: RuleSet,
        datasets: &Datasets,
        shows: impl Fn(Buffer) -> bool,
    ) -> Result<(Self, Vec<Skipped>), SearchError> {
        Self::with_search(Search::default(), set, datasets, shows)
    }

    /// As [`Self::new`], with a search of the caller's choice.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_search(
        search: Search,
        set: RuleSet,
        datasets: &Datasets,
        shows: impl Fn(Buffer) -> bool,
    ) -> Result<(Self, Vec<Skipped>), SearchError> {
        let mut skipped = set.skipped;
        let (mut slots, mut bits) = (Slots::default(), Names::default());
        let mut frames = FrameChecks::default();
        let mut rules = Vec::with_capacity(set.rules.len());
        let mut sorted = set.rules;
        sorted.sort_by_key(order);
        for rule in sorted {
            match compile(&rule, datasets, &shows, &mut slots, &mut bits) {
                Ok((groups, flow_bits)) => {
                    let has_memory = rule.extracted > 0 && groups.len() > 1;
                    let frames = rule.http2.iter().map(|&check| frames.number(check)).collect();
                    rules.push(Compiled { rule, groups, flow_bits, has_memory, frames });
                }
                Err(cause) => skipped.push(rule.skipped(cause)),
            }
        }
        for (number, compiled) in (0..).zip(&rules) {
            for &check in &compiled.frames {
                sides(&compiled.rule).for_each(|side| frames.add(check, side, number));
            }
        }
        Ok((Self { bits: bits.0, frames, ..Self::link(search, rules, slots.0)? }, skipped))
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules, in the order in which they are applied.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|compiled| &compiled.rule)
    }

    /// Counts from here on what each rule costs, which itself costs a little.
    pub fn count_costs(&mut self) {
        self.costs = Some(self.rules.iter().map(|_| RuleCost::default()).collect());
    }

    /// What each rule cost that was applied; nothing where that was not counted.
    pub fn profile(&self) -> impl Iterator<Item = Profile<'_>> {
        let costs = self.costs.as_deref().unwrap_or_default();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let profiles = self.rules.iter().zip(costs).map(move |(compiled, cost)| Profile {
            rule: &compiled.rule,
            checks: read(&cost.checks),
            matches: read(&cost.matches),
            time_ns: read(&cost.time_ns),
        });
        profiles.filter(|profile| profile.checks > 0)
    }

    /// Whether a match can end a connection.
    #[must_use]
    pub fn can_drop(&self) -> bool {
        self.rules().any(|rule| matches!(rule.header.action, Action::Drop | Action::Reject(_)))
    }

    /// Whether a rule looks into a buffer.
    #[must_use]
    pub fn looks_into(&self, buffer: Buffer) -> bool {
        self.slots.iter().any(|slot| slot.buffer == buffer)
    }

    /// Whether a rule looks into heads of a side.
    pub(super) fn looks_into_heads(&self, side: Side) -> bool {
        let at = index(side);
        let is_head = |slot: &Slot| slot.place == Place::Head && !slot.candidates[at].is_empty();
        self.needs[at].late_heads || self.slots.iter().any(is_head)
    }

    /// Bytes of memory of the searches, without what a search needs in each thread.
    #[must_use]
    pub fn search_memory(&self) -> usize {
        let sides = self.slots.iter().flat_map(|slot| &slot.candidates);
        sides.filter_map(|it| it.prefilter.as_ref()).map(Prefilter::memory).sum()
    }

    /// Puts each rule where it becomes a candidate.
    fn link(
        search: Search,
        rules: Vec<Compiled>,
        keys: Vec<(Buffer, Box<[Transform]>)>,
    ) -> Result<Self, SearchError> {
        let mut drafts: Vec<[Draft<'_>; 2]> = Vec::new();
        drafts.resize_with(keys.len(), Default::default);
        let mut bare = [Vec::new(), Vec::new()];
        let mut needs = [Needs::default(); 2];
        for (number, compiled) in rules.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let (place_of, fast) =
                (|slot: usize| Place::of(keys[slot].0), fast_pattern(compiled, &keys));
            for side in sides(&compiled.rule) {
                let Some((slot, pattern)) = fast else {
                    // A frame makes the others candidates.
                    if compiled.frames.is_empty() {
                        bare[side].push(number);
                    }
                    continue;
                };
                match pattern {
                    Some(pattern) => drafts[slot][side].patterns.push((pattern, number)),
                    None => drafts[slot][side].always.push(number),
                }
                let needs = &mut needs[side];
                for group in &compiled.groups {
                    needs.payload |= place_of(group.slot) == Place::Payload;
                    needs.bodies |= place_of(group.slot) == Place::Body;
                    needs.files |= keys[group.slot].0 == Buffer::FileData;
                    needs.late_heads |=
                        place_of(group.slot) == Place::Head && place_of(slot) != Place::Head;
                }
            }
        }
        let mut candidates = Vec::with_capacity(keys.len());
        for (draft, (buffer, _)) in drafts.into_iter().zip(&keys) {
            let mut compiled = Vec::with_capacity(2);
            for Draft { patterns, always } in draft {
                let is_stream = matches!(Place::of(*buffer), Place::Body | Place::Payload);
                let prefilter = Prefilter::new(search, patterns, is_stream)
                    .map_err(|fault| SearchError { buffer: *buffer, fault })?;
                compiled.push(Candidates { prefilter, always: always.into() });
            }
            let server = compiled.pop().unwrap_or_default();
            candidates.push([compiled.pop().unwrap_or_default(), server]);
        }
        let slots = keys.into_iter().zip(candidates).map(|((buffer, transforms), candidates)| {
            Slot { place: Place::of(buffer), buffer, transforms, candidates }
        });
        let slots = slots.collect();
        let bare = bare.map(Vec::into_boxed_slice);
        Ok(Self {
            rules: rules.into(),
            slots,
            bare,
            needs,
            frames: FrameChecks::default(),
            bits: HashMap::new(),
            costs: None,
        })
    }
}

/// In which order rules are applied, as Suricata does: by what a match leads to, those that set bits before
/// those that ask for them, by priority, and as they stand in the file.
fn order(rule: &Rule) -> (u8, u8, u8) {
    let action = match rule.header.action {
        Action::Pass => 0,
        Action::Drop => 1,
        Action::Reject(_) => 2,
        Action::Alert => 3,
    };
    let actions = rule.flow_bits.iter().map(|bits| bits.action);
    let actions = actions.chain(rule.xbits.iter().map(|bit| bit.action));
    let (mut sets, mut asks) = (false, false);
    for action in actions {
        match action {
            BitAction::IsSet | BitAction::IsNotSet => asks = true,
            BitAction::Set | BitAction::Unset | BitAction::Toggle => sets = true,
        }
    }
    let bits = match (sets, asks) {
        (true, false) => 0,
        (true, true) => 1,
        (false, true) => 2,
        (false, false) => 3,
    };
    (action, bits, rule.severity())
}

/// The sides that a rule looks at.
fn sides(rule: &Rule) -> impl Iterator<Item = usize> + use<> {
    let side = rule.buffers.iter().find_map(|group| group.buffer.side()).or(rule.flow.from);
    [Side::Client, Side::Server]
        .into_iter()
        .filter(move |it| side.is_none_or(|side| side == *it))
        .map(index)
}

/// A side as an index.
pub(super) const fn index(side: Side) -> usize {
    match side {
        Side::Client => 0,
        Side::Server => 1,
    }
}

/// Buffers with their transformations, each once.
#[derive(Default)]
struct Slots(Vec<(Buffer, Box<[Transform]>)>);

impl Slots {
    fn number(&mut self, group: &BufferChecks) -> usize {
        let known =
            |key: &(Buffer, Box<[Transform]>)| key.0 == group.buffer && key.1 == group.transforms;
        self.0.iter().position(known).unwrap_or_else(|| {
            self.0.push((group.buffer, group.transforms.clone()));
            self.0.len() - 1
        })
    }
}

/// Names as numbers.
#[derive(Default)]
struct Names(HashMap<Box<str>, u32>);

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(name.into()).or_insert(next)
    }
}

type Parts = (Box<[Group]>, Box<[(BitAction, Box<[u32]>)]>);

fn compile(
    rule: &Rule,
    datasets: &Datasets,
    shows: &impl Fn(Buffer) -> bool,
    slots: &mut Slots,
    bits: &mut Names,
) -> Result<Parts, Cause> {
    let unsupported = |keyword: &str| Cause::UnsupportedKeyword(keyword.into());
    if rule.flow.fragments == Some(true) {
        return Err(unsupported("flow:only_frag"));
    }
    if rule.flow.established == Some(false) {
        // Only what is established has bytes to look into.
        return Err(unsupported("flow:not_established"));
    }
    let looks_into = |buffer| rule.buffers.iter().any(|group| group.buffer == buffer);
    if !rule.http2.is_empty() && (looks_into(Buffer::Payload) || rule.data_size.is_some()) {
        // What is in a stream belongs to no transaction.
        return Err(unsupported("content in the stream with frames of http2"));
    }
    if rule.header.protocol == Protocol::Tls && looks_into(Buffer::Payload) {
        // The records of a handshake as they are sent; what TLS carries is looked into as what it is.
        return Err(unsupported("content in the records of tls"));
    }
    if rule.buffers.len() > MAX_GROUPS {
        return Err(unsupported("more than 64 buffers"));
    }
    if let Some(group) = rule.buffers.iter().find(|group| !shows(group.buffer)) {
        return Err(unsupported(group.buffer.name()));
    }
    let groups = rule
        .buffers
        .iter()
        .map(|group| {
            let checks = Checks::new(group, datasets)
                .map_err(|unusable| Cause::Unusable(unusable.to_string().into()))?;
            Ok((group, checks))
        })
        .collect::<Result<Vec<_>, Cause>>()?;
    // Only now: a rule that is not applied must leave nothing to look for.
    let groups = groups
        .into_iter()
        .map(|(group, checks)| Group {
            slot: slots.number(group),
            checks,
            absence: Absence::of(group),
        })
        .collect();
    let flow_bits = rule
        .flow_bits
        .iter()
        .map(|it| (it.action, it.names.iter().map(|name| bits.number(name)).collect()))
        .collect();
    Ok((groups, flow_bits))
}

/// The buffer in which a rule becomes a candidate, and the pattern that makes it one; `None` where it looks
/// into no buffer.
fn fast_pattern<'a>(
    compiled: &'a Compiled,
    keys: &[(Buffer, Box<[Transform]>)],
) -> Option<(usize, Option<&'a [u8]>)> {
    let mut best: Option<(usize, usize, &'a [u8])> = None;
    // What may be absent is not searched for.
    for group in compiled.groups.iter().filter(|group| group.absence == Absence::Fails) {
        for content in group.checks.contents().filter(|content| !content.negated) {
            let bytes = searched_part(content);
            let score = if content.fast_pattern.is_some() {
                usize::MAX
            } else {
                // What is there at once is better to begin with than what comes later.
                let at_once = matches!(Place::of(keys[group.slot].0), Place::Head | Place::Tls);
                bytes.len().min(LONG_PATTERN) * 2 + usize::from(at_once) * 3
            };
            if best.is_none_or(|(known, ..)| score > known) {
                best = Some((score, group.slot, bytes));
            }
        }
    }
    if let Some((_, slot, bytes)) = best {
        return Some((slot, Some(bytes)));
    }
    let places = || compiled.groups.iter().map(|group| group.slot);
    let at_once =
        places().find(|slot| matches!(Place::of(keys[*slot].0), Place::Head | Place::Tls));
    at_once.or_else(|| places().next()).map(|slot| (slot, None))
}

fn searched_part(content: &Content) -> &[u8] {
    match content.fast_pattern {
        Some(FastPattern::Part { offset, len }) => {
            content.bytes.get(offset..).and_then(|rest| rest.get(..len)).unwrap_or(&content.bytes)
        }
        _ => &content.bytes,
    }
}

/// Whether a rule is about what the connection carries.
pub(super) fn is_of(protocol: Protocol, application: Option<Application>, is_http2: bool) -> bool {
    match protocol {
        Protocol::Ip | Protocol::Tcp | Protocol::TcpPacket | Protocol::TcpStream => true,
        Protocol::Http => application == Some(Application::Http),
        Protocol::Http1 => application == Some(Application::Http) && !is_http2,
        Protocol::Http2 => application == Some(Application::Http) && is_http2,
        Protocol::Tls => application == Some(Application::Tls),
    }
}
