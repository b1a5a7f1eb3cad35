//! The search for one pattern of each of many rules at once, in a stream.
//!
//! A hit says that a rule may match, never that it does: patterns are cut where they are long, and upper
//! and lower case are alike. Refuses to know anything of rules but their numbers.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, MatchKind, dfa, nfa::contiguous};

/// Longest part of a pattern that is searched for. What is longer is rarely told apart later, and costs memory.
const MAX_PATTERN: usize = 24;
/// Up to this many pattern bytes the search runs on a full transition table, of some 500 bytes for each.
const MAX_TABLE_LEN: usize = 16 << 10;
/// The same where much is searched.
const MAX_STREAM_TABLE_LEN: usize = 256 << 10;
/// Places that are searched at a time, and the least number of bytes for each.
const LANES: usize = 4;
const LEAST_LANE: usize = 4 * MAX_PATTERN;

/// Patterns, compiled for searching.
pub(super) struct Prefilter {
    automaton: Compiled,
    /// The rules of each pattern, ascending.
    rules: Box<[Box<[u32]>]>,
}

enum Compiled {
    Table(Box<dfa::DFA>),
    Compact(Box<contiguous::NFA>),
}

/// Where the search in a stream stands.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Position(Option<StateID>);

/// What was found in some bytes: rules, each once. Kept to save allocations.
#[derive(Default)]
pub(super) struct Hits {
    rules: Vec<u32>,
    /// By pattern: the search that last found it.
    seen: Vec<u32>,
    search: u32,
}

impl Hits {
    /// Adds a rule without a pattern, or one that waits.
    pub(super) fn add(&mut self, rule: u32) {
        self.rules.push(rule);
    }

    /// The rules in their order, each once; none are left.
    pub(super) fn take(&mut self) -> Vec<u32> {
        let mut rules = core::mem::take(&mut self.rules);
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    /// Gives the memory of [`Self::take`] back.
    pub(super) fn give_back(&mut self, mut rules: Vec<u32>) {
        rules.clear();
        self.rules = rules;
    }

    fn begin(&mut self, patterns: usize) {
        if self.seen.len() < patterns {
            self.seen.resize(patterns, self.search);
        }
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            self.seen.fill(0);
            self.search = 1;
        }
    }

    fn found(&mut self, pattern: usize, rules: &[u32]) {
        if let Some(seen) = self.seen.get_mut(pattern)
            && *seen != self.search
        {
            *seen = self.search;
            self.rules.extend_from_slice(rules);
        }
    }
}

impl Prefilter {
    /// Compiles patterns with their rules; `None` without any. For streams it may take more memory.
    ///
    /// # Errors
    /// When they are too many for the library.
    pub(super) fn new<'a>(
        patterns: impl IntoIterator<Item = (&'a [u8], u32)>,
        is_stream: bool,
    ) -> Result<Option<Self>, TooLarge> {
        let mut sorted: Vec<(Vec<u8>, u32)> = patterns
            .into_iter()
            .map(|(pattern, rule)| (part(pattern).to_ascii_lowercase(), rule))
            .filter(|(pattern, _)| !pattern.is_empty())
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let (mut texts, mut rules): (Vec<&[u8]>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
        for (pattern, rule) in &sorted {
            match (texts.last(), rules.last_mut()) {
                (Some(last), Some(known)) if *last == &pattern[..] => known.push(*rule),
                _ => {
                    texts.push(pattern);
                    rules.push(vec![*rule]);
                }
            }
        }
        if texts.is_empty() {
            return Ok(None);
        }
        let total: usize = texts.iter().map(|text| text.len()).sum();
        let most = if is_stream { MAX_STREAM_TABLE_LEN } else { MAX_TABLE_LEN };
        let automaton = if total <= most {
            let mut builder = dfa::Builder::new();
            builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
            builder.build(&texts).map(|table| Compiled::Table(Box::new(table)))
        } else {
            let mut builder = contiguous::Builder::new();
            builder.ascii_case_insensitive(true).match_kind(MatchKind::Standard).prefilter(false);
            builder.build(&texts).map(|compact| Compiled::Compact(Box::new(compact)))
        };
        let automaton = automaton.map_err(|_| TooLarge)?;
        Ok(Some(Self { automaton, rules: rules.into_iter().map(Vec::into_boxed_slice).collect() }))
    }

    /// Searches the next bytes of a stream; patterns that began before them are found too.
    pub(super) fn search(&self, position: &mut Position, bytes: &[u8], hits: &mut Hits) {
        hits.begin(self.rules.len());
        match &self.automaton {
            Compiled::Table(table) => self.walk(&**table, position, bytes, hits),
            Compiled::Compact(compact) => self.walk(&**compact, position, bytes, hits),
        }
    }

    /// In long input several places are searched at a time: each step waits for the one before, and not
    /// for those elsewhere. Where a place begins nothing is known of what was before; a pattern's length
    /// of it is searched again.
    fn walk(&self, automaton: &impl Automaton, at: &mut Position, bytes: &[u8], hits: &mut Hits) {
        let Ok(start) = automaton.start_state(Anchored::No) else {
            return;
        };
        let mut states = [start; LANES];
        states[0] = at.0.unwrap_or(start);
        let lane = bytes.len() / LANES;
        if lane < LEAST_LANE {
            at.0 = Some(self.steps(automaton, states[0], bytes, hits));
            return;
        }
        let (lanes, rest) = lanes(bytes, lane);
        for number in 1..LANES {
            let before = lanes[number - 1].len().saturating_sub(MAX_PATTERN);
            let before = lanes[number - 1].get(before..).unwrap_or(&[]);
            states[number] = self.steps(automaton, start, before, hits);
        }
        for (((a, b), c), d) in lanes[0].iter().zip(lanes[1]).zip(lanes[2]).zip(lanes[3]) {
            for (state, byte) in states.iter_mut().zip([*a, *b, *c, *d]) {
                *state = automaton.next_state(Anchored::No, *state, byte);
            }
            for state in states {
                if automaton.is_special(state) {
                    self.found(automaton, state, hits);
                }
            }
        }
        at.0 = Some(self.steps(automaton, states[LANES - 1], rest, hits));
    }

    fn steps(
        &self,
        automaton: &impl Automaton,
        mut state: StateID,
        bytes: &[u8],
        hits: &mut Hits,
    ) -> StateID {
        for &byte in bytes {
            state = automaton.next_state(Anchored::No, state, byte);
            if automaton.is_special(state) {
                self.found(automaton, state, hits);
            }
        }
        state
    }

    #[cold]
    fn found(&self, automaton: &impl Automaton, state: StateID, hits: &mut Hits) {
        if automaton.is_match(state) {
            for index in 0..automaton.match_len(state) {
                let pattern = automaton.match_pattern(state, index).as_usize();
                hits.found(pattern, self.rules.get(pattern).map_or(&[], |rules| &**rules));
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        match &self.automaton {
            Compiled::Table(table) => table.memory_usage(),
            Compiled::Compact(compact) => compact.memory_usage(),
        }
    }
}

/// The patterns are too many for the library that searches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooLarge;

/// Cuts bytes into [`LANES`] of a length, and what is left.
fn lanes(bytes: &[u8], len: usize) -> ([&[u8]; LANES], &[u8]) {
    let (mut lanes, mut rest) = ([&[][..]; LANES], bytes);
    for lane in &mut lanes {
        (*lane, rest) = rest.split_at(len.min(rest.len()));
    }
    (lanes, rest)
}

/// The part of a long pattern that is searched for: the end, since many begin alike.
fn part(pattern: &[u8]) -> &[u8] {
    &pattern[pattern.len().saturating_sub(MAX_PATTERN)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(prefilter: &Prefilter, chunks: &[&[u8]]) -> Vec<Vec<u32>> {
        let (mut position, mut hits) = (Position::default(), Hits::default());
        chunks
            .iter()
            .map(|chunk| {
                prefilter.search(&mut position, chunk, &mut hits);
                hits.take()
            })
            .collect()
    }

    #[test]
    fn accepts_patterns_over_borders_in_either_case_each_rule_once() {
        let patterns: [(&[u8], u32); 5] =
            [(b"Evil", 3), (b"vil", 1), (b"EVIL", 2), (b"other", 9), (b"", 7)];
        let prefilter = Prefilter::new(patterns, false).unwrap().unwrap();
        let none: Vec<u32> = Vec::new();
        assert_eq!(
            found(&prefilter, &[b"x eViL evil", b"ev", b"il"]),
            [vec![1, 2, 3], none, vec![1, 2, 3]]
        );
        assert_eq!(Prefilter::new([], true).unwrap().map(|_| ()), None);
    }

    #[test]
    fn accepts_many_and_long_patterns() {
        let many: Vec<(Vec<u8>, u32)> = (0..3000)
            .map(|it| (format!("pattern number {it} of many;").into_bytes(), it))
            .collect();
        let prefilter =
            Prefilter::new(many.iter().map(|(it, rule)| (&it[..], *rule)), false).unwrap().unwrap();
        assert!(matches!(prefilter.automaton, Compiled::Compact(_)) && prefilter.memory() > 0);
        assert_eq!(
            found(&prefilter, &[b"a pattern number 1234 of ", b"many;"]),
            [vec![], vec![1234]]
        );
    }

    #[test]
    fn finds_the_same_in_long_input_wherever_it_is_cut() {
        let mut state = 1u32;
        let mut letters = |count: usize| -> Vec<u8> {
            let mut letter = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                b"aab"[(state >> 30) as usize % 3]
            };
            (0..count).map(|_| letter()).collect()
        };
        let patterns: Vec<(Vec<u8>, u32)> =
            (0..40).map(|it| (letters(4 + it as usize % 22), it)).collect();
        let patterns = || patterns.iter().map(|(it, rule)| (&it[..], *rule));
        for is_stream in [false, true] {
            let prefilter = Prefilter::new(patterns(), is_stream).unwrap().unwrap();
            for _ in 0..200 {
                let text = letters(500);
                let expected: Vec<u32> = patterns()
                    .filter(|(it, _)| {
                        let it = part(it);
                        text.windows(it.len()).any(|window| window == it)
                    })
                    .map(|(_, rule)| rule)
                    .collect();
                for cut in [500, 401, 250, 24, 1] {
                    let chunks: Vec<&[u8]> = text.chunks(cut).collect();
                    let mut all = found(&prefilter, &chunks).concat();
                    all.sort_unstable();
                    all.dedup();
                    assert_eq!(all, expected, "{cut}");
                }
            }
        }
    }

    #[test]
    fn refuses_to_tell_a_pattern_twice_when_searches_wrap_around() {
        let prefilter = Prefilter::new([(&b"a"[..], 1)], false).unwrap().unwrap();
        let mut hits = Hits { search: u32::MAX - 1, ..Hits::default() };
        for _ in 0..4 {
            prefilter.search(&mut Position::default(), b"aaa", &mut hits);
            assert_eq!(hits.take(), [1]);
        }
    }
}
