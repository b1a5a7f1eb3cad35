//! The search for one pattern of each of many rules at once, in a stream.
//!
//! A hit says that a rule may match, never that it does: patterns are cut where they are long, and upper
//! and lower case are alike. Refuses to know anything of rules but their numbers.

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, MatchKind, dfa, nfa::contiguous};

/// Longest part of a pattern that is searched for. What is longer is rarely told apart later, and costs memory.
const MAX_PATTERN: usize = 24;
/// Up to this many pattern bytes the search runs on a full transition table (some 16 MB).
const MAX_TABLE_LEN: usize = 16 << 10;

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
    /// Compiles patterns with their rules; `None` without any.
    ///
    /// # Errors
    /// When they are too many for the library.
    pub(super) fn new<'a>(
        patterns: impl IntoIterator<Item = (&'a [u8], u32)>,
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
        let automaton = if total <= MAX_TABLE_LEN {
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

    fn walk(&self, automaton: &impl Automaton, at: &mut Position, bytes: &[u8], hits: &mut Hits) {
        let start = || automaton.start_state(Anchored::No).ok();
        let Some(mut state) = at.0.or_else(start) else {
            return;
        };
        for &byte in bytes {
            state = automaton.next_state(Anchored::No, state, byte);
            if automaton.is_special(state) && automaton.is_match(state) {
                for index in 0..automaton.match_len(state) {
                    let pattern = automaton.match_pattern(state, index).as_usize();
                    hits.found(pattern, self.rules.get(pattern).map_or(&[], |rules| &**rules));
                }
            }
        }
        at.0 = Some(state);
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
        let prefilter = Prefilter::new(patterns).unwrap().unwrap();
        let none: Vec<u32> = Vec::new();
        assert_eq!(
            found(&prefilter, &[b"x eViL evil", b"ev", b"il"]),
            [vec![1, 2, 3], none, vec![1, 2, 3]]
        );
        assert_eq!(Prefilter::new([]).unwrap().map(|_| ()), None);
    }

    #[test]
    fn accepts_many_and_long_patterns() {
        let many: Vec<(Vec<u8>, u32)> = (0..3000)
            .map(|it| (format!("pattern number {it} of many;").into_bytes(), it))
            .collect();
        let prefilter =
            Prefilter::new(many.iter().map(|(it, rule)| (&it[..], *rule))).unwrap().unwrap();
        assert!(matches!(prefilter.automaton, Compiled::Compact(_)) && prefilter.memory() > 0);
        assert_eq!(
            found(&prefilter, &[b"a pattern number 1234 of ", b"many;"]),
            [vec![], vec![1234]]
        );
    }

    #[test]
    fn refuses_to_tell_a_pattern_twice_when_searches_wrap_around() {
        let prefilter = Prefilter::new([(&b"a"[..], 1)]).unwrap().unwrap();
        let mut hits = Hits { search: u32::MAX - 1, ..Hits::default() };
        for _ in 0..4 {
            prefilter.search(&mut Position::default(), b"aaa", &mut hits);
            assert_eq!(hits.take(), [1]);
        }
    }
}
