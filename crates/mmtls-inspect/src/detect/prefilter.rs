//! The search for one pattern of each of many rules at once, in a stream.
//!
//! A hit says that a rule may match, never that it does: patterns are cut where they are long, and upper
//! and lower case are alike. Refuses to know anything of rules but their numbers.

use super::automaton::{Automaton, State};
#[cfg(feature = "hyperscan")]
use super::hyperscan::{Hyperscan, Tail};
use super::pattern_part::part;
use super::search::{Search, SearchFault};

/// Patterns, compiled for searching.
pub(super) struct Prefilter {
    compiled: Compiled,
    /// The rules of each pattern, ascending.
    rules: Box<[Box<[u32]>]>,
}

enum Compiled {
    Automaton(Automaton),
    #[cfg(feature = "hyperscan")]
    Hyperscan(Hyperscan),
}

/// Where the search in a stream stands.
#[derive(Clone, Copy, Default, Debug)]
pub(super) enum Position {
    #[default]
    Start,
    Automaton(State),
    #[cfg(feature = "hyperscan")]
    Hyperscan(Tail),
}

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
    /// What searches refuses them.
    pub(super) fn new<'a>(
        search: Search,
        patterns: impl IntoIterator<Item = (&'a [u8], u32)>,
        is_stream: bool,
    ) -> Result<Option<Self>, SearchFault> {
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
        let compiled = match search {
            Search::AhoCorasick => Compiled::Automaton(Automaton::new(&texts, is_stream)?),
            #[cfg(feature = "hyperscan")]
            Search::Hyperscan => Compiled::Hyperscan(Hyperscan::new(&texts)?),
        };
        Ok(Some(Self { compiled, rules: rules.into_iter().map(Vec::into_boxed_slice).collect() }))
    }

    /// Searches the next bytes of a stream; patterns that began before them are found too.
    pub(super) fn search(&self, position: &mut Position, bytes: &[u8], hits: &mut Hits) {
        hits.begin(self.rules.len());
        let found = &mut |pattern: usize| {
            hits.found(pattern, self.rules.get(pattern).map_or(&[], |rules| &**rules));
        };
        match &self.compiled {
            Compiled::Automaton(automaton) => {
                let mut state = match position {
                    Position::Automaton(state) => *state,
                    _ => State::default(),
                };
                automaton.search(&mut state, bytes, found);
                *position = Position::Automaton(state);
            }
            #[cfg(feature = "hyperscan")]
            Compiled::Hyperscan(hyperscan) => {
                if !matches!(position, Position::Hyperscan(_)) {
                    *position = Position::Hyperscan(Tail::default());
                }
                let Position::Hyperscan(tail) = position else { return };
                // Where the library fails every rule may match: none is missed, and it only takes longer.
                if hyperscan.search(tail, bytes, found).is_err() {
                    (0..self.rules.len()).for_each(found);
                }
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        match &self.compiled {
            Compiled::Automaton(automaton) => automaton.memory(),
            #[cfg(feature = "hyperscan")]
            Compiled::Hyperscan(hyperscan) => hyperscan.memory(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern_part::MAX_PATTERN;
    use super::*;
    use proptest::prelude::*;

    fn made<'a>(
        patterns: impl IntoIterator<Item = (&'a [u8], u32)>,
        is_stream: bool,
        search: Search,
    ) -> Prefilter {
        Prefilter::new(search, patterns, is_stream).unwrap().unwrap()
    }

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
        let none: Vec<u32> = Vec::new();
        for &search in Search::ALL {
            let prefilter = made(patterns, false, search);
            assert_eq!(
                found(&prefilter, &[b"x eViL evil", b"ev", b"il", b"", b"e"]),
                [vec![1, 2, 3], none.clone(), vec![1, 2, 3], none.clone(), none.clone()]
            );
            assert_eq!(Prefilter::new(search, [], true).unwrap().map(|_| ()), None);
        }
    }

    #[test]
    fn accepts_many_and_long_patterns() {
        let many: Vec<(Vec<u8>, u32)> = (0..3000)
            .map(|it| (format!("pattern number {it} of many;").into_bytes(), it))
            .collect();
        for &search in Search::ALL {
            let prefilter = made(many.iter().map(|(it, rule)| (&it[..], *rule)), false, search);
            let is_compact =
                matches!(prefilter.compiled, Compiled::Automaton(Automaton::Compact(_)));
            assert_eq!(is_compact, search == Search::AhoCorasick);
            assert!(prefilter.memory() > 0);
            assert_eq!(
                found(&prefilter, &[b"a pattern number 1234 of ", b"many;"]),
                [vec![], vec![1234]]
            );
        }
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
        let each = Search::ALL.iter().flat_map(|search| [(*search, false), (*search, true)]);
        for (search, is_stream) in each {
            let prefilter = made(patterns(), is_stream, search);
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
        for &search in Search::ALL {
            let prefilter = made([(&b"a"[..], 1)], false, search);
            let mut hits = Hits { search: u32::MAX - 1, ..Hits::default() };
            for _ in 0..4 {
                prefilter.search(&mut Position::default(), b"aaa", &mut hits);
                assert_eq!(hits.take(), [1]);
            }
        }
    }

    /// For each chunk the rules of the patterns that end in it, with nothing but loops.
    fn naive(patterns: &[(Vec<u8>, u32)], chunks: &[&[u8]]) -> Vec<Vec<u32>> {
        let (mut before, mut all) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let start = before.len();
            before.extend_from_slice(chunk);
            let ends_in = |pattern: &[u8]| {
                let part = part(pattern);
                // Those that begin where they can end in the chunk.
                let from = (start + 1).saturating_sub(part.len());
                let mut windows = before[from..].windows(part.len());
                windows.any(|window| window.eq_ignore_ascii_case(part))
            };
            let mut rules: Vec<u32> =
                patterns.iter().filter(|(it, _)| ends_in(it)).map(|(_, rule)| *rule).collect();
            rules.sort_unstable();
            rules.dedup();
            all.push(rules);
        }
        all
    }

    /// Few letters make patterns overlap; some bytes are of no text.
    fn bytes(len: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        let few = prop::sample::select(&b"aAbB.\\\n\0\xff"[..]);
        prop_oneof![
            proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'A'), Just(b'b')], len.clone()),
            proptest::collection::vec(few, len.clone()),
            proptest::collection::vec(any::<u8>(), len),
        ]
    }

    proptest! {
        /// However a stream is cut, every search gives for each piece the candidates that are in it.
        #[test]
        fn accepts_the_same_candidates_by_every_search(
            patterns in proptest::collection::vec(
                (prop_oneof![4 => bytes(1..6), 4 => bytes(6..40), 1 => bytes(200..251)], 0u32..60),
                1..60,
            ),
            mut text in bytes(0..3000),
            planted in proptest::collection::vec((0usize..60, 0usize..3000), 0..20),
            cuts in proptest::collection::vec(0usize..3000, 0..12),
            near in proptest::collection::vec(0usize..40, 0..12),
            is_stream: bool,
        ) {
            for (pattern, at) in planted {
                let pattern = &patterns[pattern % patterns.len()].0;
                let at = at.min(text.len());
                let end = (at + pattern.len()).min(text.len());
                text.splice(at..end, pattern.iter().map(u8::to_ascii_uppercase));
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
            // Some pieces are shorter than patterns.
            for step in near {
                let last = cuts.last().copied().unwrap_or(0);
                cuts.push((last + step).min(text.len()));
            }
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|it| &text[it[0]..it[1]]).collect();
            let expected = naive(&patterns, &chunks);
            for &search in Search::ALL {
                let each = patterns.iter().map(|(it, rule)| (&it[..], *rule));
                let prefilter = made(each, is_stream, search);
                prop_assert_eq!(&found(&prefilter, &chunks), &expected, "{}", search);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// The same with thousands of patterns, and pieces as long as records.
        #[test]
        fn accepts_the_same_candidates_of_many_patterns(
            seed: u64,
            count in 500usize..4000,
            cuts in proptest::collection::vec(0usize..40_000, 0..6),
        ) {
            let mut state = seed | 1;
            let mut below = |most: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % most
            };
            let patterns: Vec<(Vec<u8>, u32)> = (0..count as u32)
                .map(|rule| {
                    let len = 3 + below(MAX_PATTERN + 6);
                    ((0..len).map(|_| b"abcdeABCDE01 \0"[below(14)]).collect(), rule)
                })
                .collect();
            let mut text: Vec<u8> = (0..40_000).map(|_| b"abcdeABCDE01 \0"[below(14)]).collect();
            for _ in 0..50 {
                let pattern = &patterns[below(count)].0;
                let at = below(text.len() - pattern.len());
                text[at..at + pattern.len()].copy_from_slice(pattern);
            }
            let mut cuts = cuts;
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|it| &text[it[0]..it[1]]).collect();
            let each = || patterns.iter().map(|(it, rule)| (&it[..], *rule));
            let mut all = Search::ALL.iter();
            let first = found(&made(each(), false, *all.next().unwrap()), &chunks);
            for search in all {
                prop_assert_eq!(&found(&made(each(), true, *search), &chunks), &first);
            }
        }
    }
}
