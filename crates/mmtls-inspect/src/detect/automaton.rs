//! The search by an automaton of our own program's, in a stream.
//!
//! Refuses to look at a byte twice, but for few where long input is cut.

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::{Anchored, BuildError, MatchKind, automaton, dfa, nfa::contiguous};

use super::pattern_part::MAX_PATTERN;

/// Up to this many pattern bytes the search runs on a full transition table, of some 500 bytes for each.
const MAX_TABLE_LEN: usize = 16 << 10;
/// The same where much is searched.
const MAX_STREAM_TABLE_LEN: usize = 256 << 10;
/// Places that are searched at a time, and the least number of bytes for each.
const LANES: usize = 4;
const LEAST_LANE: usize = 4 * MAX_PATTERN;

/// Patterns, compiled for searching.
pub(super) enum Automaton {
    Table(Box<dfa::DFA>),
    Compact(Box<contiguous::NFA>),
}

/// Where the search in a stream stands.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct State(Option<StateID>);

impl Automaton {
    /// Compiles patterns of [`MAX_PATTERN`] bytes at most. For streams it may take more memory.
    pub(super) fn new(patterns: &[&[u8]], is_stream: bool) -> Result<Self, BuildError> {
        let total: usize = patterns.iter().map(|pattern| pattern.len()).sum();
        let most = if is_stream { MAX_STREAM_TABLE_LEN } else { MAX_TABLE_LEN };
        if total <= most {
            let mut builder = dfa::Builder::new();
            builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
            builder.build(patterns).map(|table| Self::Table(Box::new(table)))
        } else {
            let mut builder = contiguous::Builder::new();
            builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
            builder.build(patterns).map(|compact| Self::Compact(Box::new(compact)))
        }
    }

    /// Searches the next bytes of a stream; `found` gets each pattern that ends in them, once or more often.
    pub(super) fn search(&self, at: &mut State, bytes: &[u8], found: &mut impl FnMut(usize)) {
        match self {
            Self::Table(table) => walk(&**table, at, bytes, found),
            Self::Compact(compact) => walk(&**compact, at, bytes, found),
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Table(table) => table.memory_usage(),
            Self::Compact(compact) => compact.memory_usage(),
        }
    }
}

/// In long input several places are searched at a time: each step waits for the one before, and not
/// for those elsewhere. Where a place begins nothing is known of what was before; a pattern's length
/// of it is searched again.
fn walk(
    automaton: &impl automaton::Automaton,
    at: &mut State,
    bytes: &[u8],
    found: &mut impl FnMut(usize),
) {
    let Ok(start) = automaton.start_state(Anchored::No) else {
        return;
    };
    let mut states = [start; LANES];
    states[0] = at.0.unwrap_or(start);
    let lane = bytes.len() / LANES;
    if lane < LEAST_LANE {
        at.0 = Some(steps(automaton, states[0], bytes, found));
        return;
    }
    let (lanes, rest) = lanes(bytes, lane);
    for number in 1..LANES {
        let before = lanes[number - 1].len().saturating_sub(MAX_PATTERN);
        let before = lanes[number - 1].get(before..).unwrap_or(&[]);
        states[number] = steps(automaton, start, before, found);
    }
    for (((a, b), c), d) in lanes[0].iter().zip(lanes[1]).zip(lanes[2]).zip(lanes[3]) {
        for (state, byte) in states.iter_mut().zip([*a, *b, *c, *d]) {
            *state = automaton.next_state(Anchored::No, *state, byte);
        }
        for state in states {
            if automaton.is_special(state) {
                special(automaton, state, found);
            }
        }
    }
    at.0 = Some(steps(automaton, states[LANES - 1], rest, found));
}

fn steps(
    automaton: &impl automaton::Automaton,
    mut state: StateID,
    bytes: &[u8],
    found: &mut impl FnMut(usize),
) -> StateID {
    for &byte in bytes {
        state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) {
            special(automaton, state, found);
        }
    }
    state
}

#[cold]
fn special(automaton: &impl automaton::Automaton, state: StateID, found: &mut impl FnMut(usize)) {
    if automaton.is_match(state) {
        for index in 0..automaton.match_len(state) {
            found(automaton.match_pattern(state, index).as_usize());
        }
    }
}

/// Cuts bytes into [`LANES`] of a length, and what is left.
fn lanes(bytes: &[u8], len: usize) -> ([&[u8]; LANES], &[u8]) {
    let (mut lanes, mut rest) = ([&[][..]; LANES], bytes);
    for lane in &mut lanes {
        (*lane, rest) = rest.split_at(len.min(rest.len()));
    }
    (lanes, rest)
}
