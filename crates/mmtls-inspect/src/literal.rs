//! Streaming search for many literal patterns at once.
//!
//! A [`PatternSet`] is shared; a [`Scanner`] is the small state of one stream. Matches across
//! chunk boundaries are found, and the result does not depend on where the boundaries are.
//! Refuses empty patterns and sets beyond the stated caps; refuses to buffer more of a stream
//! than twice the longest pattern.

use core::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind, packed};

/// Most patterns in a set.
pub const MAX_PATTERNS: usize = 65_536;
/// Longest pattern in bytes.
pub const MAX_PATTERN_LEN: usize = 1024;
/// Most bytes of all patterns together.
pub const MAX_TOTAL_LEN: usize = 4 << 20;
/// Up to this many pattern bytes the search runs on a full transition table (at most 16 MiB).
const MAX_TABLE_LEN: usize = 16 << 10;
/// Patterns that one vectorised pass looks for; more of them make it slower than a second pass.
const PATTERNS_PER_PASS: usize = 32;
/// More passes than these lose against the automaton.
const MAX_PASSES: usize = 8;
/// Below this length setting up a vectorised pass costs more than it saves.
const SHORT_HAYSTACK: usize = 64;

/// A set of literal byte patterns, compiled for searching.
pub struct PatternSet {
    patterns: Vec<Pattern>,
    /// Finds out fast whether there is any match.
    fast: Fast,
    /// Finds the match that ends first; runs only where `fast` found something.
    exact: AhoCorasick,
    max_len: usize,
}

struct Pattern {
    bytes: Vec<u8>,
    text: String,
}

/// Finds leftmost matches. The automaton's own prefilter gives up on first bytes that are common
/// in text, so the vectorised search is driven directly wherever it exists for the patterns.
enum Fast {
    Vectorised(Vec<packed::Searcher>),
    Automaton(AhoCorasick),
}

impl Fast {
    fn new(patterns: &[Pattern], total_len: usize) -> Result<Self, PatternFault> {
        if let Some(passes) = Self::passes(patterns) {
            return Ok(Self::Vectorised(passes));
        }
        let table = (total_len <= MAX_TABLE_LEN).then_some(AhoCorasickKind::DFA);
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .kind(table)
            .build(patterns.iter().map(|p| p.bytes.as_slice()))
            .map(Self::Automaton)
            .map_err(|_| PatternFault::TooLarge)
    }

    fn passes(patterns: &[Pattern]) -> Option<Vec<packed::Searcher>> {
        // For one pattern the automaton defers to substring search, which is faster still.
        if patterns.len() == 1 || patterns.len() > PATTERNS_PER_PASS * MAX_PASSES {
            return None;
        }
        // A pass tells patterns apart by up to four leading bytes, as many as its shortest has.
        let mut sorted: Vec<&[u8]> = patterns.iter().map(|p| p.bytes.as_slice()).collect();
        sorted.sort_by_key(|bytes| (bytes.len().min(4), *bytes));
        sorted.chunks(PATTERNS_PER_PASS).map(packed::Searcher::new).collect()
    }

    /// A range in which the match that ends first lies, if there is any match.
    fn find(&self, haystack: &[u8]) -> Option<core::ops::Range<usize>> {
        match self {
            Self::Automaton(automaton) => automaton.find(haystack).map(|found| found.range()),
            Self::Vectorised(passes) => {
                let mut range: Option<core::ops::Range<usize>> = None;
                for pass in passes {
                    // What ends later than a known match is of no interest.
                    let end = range.as_ref().map_or(haystack.len(), |range| range.end);
                    if let Some(found) = pass.find(&haystack[..end]) {
                        let start = range.map_or(found.start(), |r| r.start.min(found.start()));
                        range = Some(start..found.end());
                    }
                }
                range
            }
        }
    }
}

impl PatternSet {
    /// Reads patterns from text: one per line, blank lines and lines that start with `#` are
    /// ignored, `|48 65 78|` is bytes in hexadecimal (as in Suricata's `content`), everything
    /// else stands for itself. White space around a line is dropped; write `|20|` to search for it.
    ///
    /// # Errors
    /// [`PatternError`] with the line number; also when there is no pattern at all.
    pub fn from_lines(text: &str) -> Result<Self, PatternError> {
        Self::from_bytes(text.as_bytes())
    }

    /// As [`PatternSet::from_lines`], for files that are not UTF-8.
    ///
    /// # Errors
    /// As [`PatternSet::from_lines`].
    pub fn from_bytes(text: &[u8]) -> Result<Self, PatternError> {
        let mut builder = Builder::default();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let at_line = |fault| PatternError { line: Some(index + 1), fault };
            let bytes = unescape(line).map_err(at_line)?;
            builder.push(bytes, String::from_utf8_lossy(line).into_owned()).map_err(at_line)?;
        }
        builder.build()
    }

    /// Starts a set in code.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How many patterns there are; a repeated one counts once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.patterns.len()
    }

    /// Always false: a set without patterns cannot be built.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The bytes of a pattern.
    #[must_use]
    pub fn bytes(&self, pattern: usize) -> Option<&[u8]> {
        self.patterns.get(pattern).map(|p| p.bytes.as_slice())
    }

    /// A pattern as its author wrote it.
    #[must_use]
    pub fn text(&self, pattern: usize) -> Option<&str> {
        self.patterns.get(pattern).map(|p| p.text.as_str())
    }

    /// Searches the next bytes of a stream, up to the first match.
    ///
    /// That is the match that ends first; of several that end there, the longest. After a match,
    /// `chunk[consumed..]` has not been searched: call again with it to find the next one, which
    /// starts at or after the end of this one.
    pub fn scan(&self, scanner: &mut Scanner, chunk: &[u8]) -> Option<Match> {
        let keep = self.max_len - 1;
        let tail_len = scanner.tail.len();
        if tail_len > 0 {
            let head = &chunk[..chunk.len().min(keep)];
            scanner.tail.extend_from_slice(head);
            if let Some((pattern, end)) = self.first_end(&scanner.tail) {
                // The tail alone holds no match, or an earlier call would have reported it.
                return Some(scanner.found(pattern, end.saturating_sub(tail_len)));
            }
            if head.len() == chunk.len() {
                let surplus = scanner.tail.len().saturating_sub(keep);
                scanner.tail.drain(..surplus);
                scanner.offset += chunk.len() as u64;
                return None;
            }
        }
        if let Some((pattern, end)) = self.first_end(chunk) {
            return Some(scanner.found(pattern, end));
        }
        scanner.tail.clear();
        scanner.tail.extend_from_slice(&chunk[chunk.len().saturating_sub(keep)..]);
        scanner.offset += chunk.len() as u64;
        None
    }

    /// The match that ends first, as pattern and end.
    fn first_end(&self, haystack: &[u8]) -> Option<(usize, usize)> {
        let range = if haystack.len() < SHORT_HAYSTACK {
            0..haystack.len()
        } else {
            self.fast.find(haystack)?
        };
        let found = self.exact.find(&haystack[range.clone()])?;
        Some((found.pattern().as_usize(), range.start + found.end()))
    }
}

/// Collects the patterns of a set.
#[derive(Default)]
pub struct Builder {
    patterns: Vec<Pattern>,
    total_len: usize,
}

impl Builder {
    /// Adds a pattern; `text` is what reports call it.
    ///
    /// # Errors
    /// The fault, when the pattern is empty or a cap is reached.
    pub fn push(&mut self, bytes: Vec<u8>, text: String) -> Result<&mut Self, PatternFault> {
        if bytes.is_empty() {
            return Err(PatternFault::Empty);
        }
        if bytes.len() > MAX_PATTERN_LEN {
            return Err(PatternFault::TooLong(bytes.len()));
        }
        if self.patterns.len() == MAX_PATTERNS {
            return Err(PatternFault::TooMany);
        }
        self.total_len += bytes.len();
        if self.total_len > MAX_TOTAL_LEN {
            return Err(PatternFault::TooLarge);
        }
        self.patterns.push(Pattern { bytes, text });
        Ok(self)
    }

    /// Compiles the set. A repeated pattern is kept once, where it stood first.
    ///
    /// # Errors
    /// [`PatternFault::None`] without patterns, [`PatternFault::TooLarge`] when the search
    /// library refuses the set.
    pub fn build(self) -> Result<PatternSet, PatternError> {
        let whole_set = |fault| PatternError { line: None, fault };
        let mut seen = std::collections::HashSet::new();
        let mut keep = Vec::with_capacity(self.patterns.len());
        for pattern in &self.patterns {
            keep.push(seen.insert(pattern.bytes.as_slice()));
        }
        drop(seen);
        let patterns: Vec<Pattern> = self
            .patterns
            .into_iter()
            .zip(keep)
            .filter_map(|(pattern, first)| first.then_some(pattern))
            .collect();
        let Some(max_len) = patterns.iter().map(|p| p.bytes.len()).max() else {
            return Err(whole_set(PatternFault::None));
        };
        let fast = Fast::new(&patterns, self.total_len).map_err(whole_set)?;
        let exact = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .prefilter(false)
            .build(patterns.iter().map(|p| p.bytes.as_slice()))
            .map_err(|_| whole_set(PatternFault::TooLarge))?;
        Ok(PatternSet { patterns, fast, exact, max_len })
    }
}

/// The search state of one stream. A few bytes, at most twice the longest pattern.
#[derive(Default)]
pub struct Scanner {
    /// The last bytes of the stream, less than the longest pattern, searched already.
    tail: Vec<u8>,
    offset: u64,
}

impl Scanner {
    /// A scanner at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes back to the start, for the next stream.
    pub fn restart(&mut self) {
        self.tail.clear();
        self.offset = 0;
    }

    fn found(&mut self, pattern: usize, consumed: usize) -> Match {
        self.tail.clear();
        self.offset += consumed as u64;
        Match { pattern, end: self.offset, consumed }
    }
}

/// Where a pattern was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// Index of the pattern in its set.
    pub pattern: usize,
    /// Stream bytes up to and including the match.
    pub end: u64,
    /// Bytes of the given chunk up to and including the match; at least one.
    pub consumed: usize,
}

/// Why a set could not be built, and in which line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PatternError {
    /// The line, from 1; absent when the set as a whole is at fault.
    pub line: Option<usize>,
    /// What is wrong.
    pub fault: PatternFault,
}

/// What is wrong with a pattern or a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PatternFault {
    /// The pattern has no bytes.
    Empty,
    /// `|` without its partner.
    UnclosedHex,
    /// Something else than pairs of hexadecimal digits between `|` and `|`.
    BadHex,
    /// More than [`MAX_PATTERN_LEN`] bytes.
    TooLong(usize),
    /// More than [`MAX_PATTERNS`] patterns.
    TooMany,
    /// More than [`MAX_TOTAL_LEN`] bytes in all patterns.
    TooLarge,
    /// No pattern at all.
    None,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for PatternError {}

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty pattern"),
            Self::UnclosedHex => f.write_str("`|` without a closing `|` (a literal one is |7c|)"),
            Self::BadHex => f.write_str("only pairs of hexadecimal digits may stand between `|`"),
            Self::TooLong(len) => {
                write!(f, "pattern has {len} bytes, at most {MAX_PATTERN_LEN}")
            }
            Self::TooMany => write!(f, "more than {MAX_PATTERNS} patterns"),
            Self::TooLarge => write!(f, "patterns have more than {MAX_TOTAL_LEN} bytes"),
            Self::None => f.write_str("no patterns"),
        }
    }
}

fn unescape(line: &[u8]) -> Result<Vec<u8>, PatternFault> {
    let mut bytes = Vec::with_capacity(line.len());
    // Literal and hexadecimal parts alternate, so a closed line has an odd number of parts.
    let mut in_hex = false;
    for part in line.split(|&byte| byte == b'|') {
        if in_hex {
            let mut digits = part.iter().filter(|byte| !byte.is_ascii_whitespace());
            while let Some(high) = digits.next() {
                let low = digits.next().ok_or(PatternFault::BadHex)?;
                bytes.push(hex_digit(*high)? << 4 | hex_digit(*low)?);
            }
        } else {
            bytes.extend_from_slice(part);
        }
        in_hex = !in_hex;
    }
    if in_hex { Ok(bytes) } else { Err(PatternFault::UnclosedHex) }
}

fn hex_digit(byte: u8) -> Result<u8, PatternFault> {
    match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        b'A'..=b'F' => Ok(byte - b'A' + 10),
        _ => Err(PatternFault::BadHex),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(patterns: &[&[u8]]) -> PatternSet {
        let mut builder = PatternSet::builder();
        for pattern in patterns {
            builder.push(pattern.to_vec(), String::new()).unwrap();
        }
        builder.build().unwrap()
    }

    fn all(set: &PatternSet, chunks: &[&[u8]]) -> Vec<(usize, u64)> {
        let mut scanner = Scanner::new();
        let mut found = Vec::new();
        for chunk in chunks {
            let mut rest = *chunk;
            while let Some(hit) = set.scan(&mut scanner, rest) {
                assert!(hit.consumed > 0);
                found.push((hit.pattern, hit.end));
                rest = &rest[hit.consumed..];
            }
        }
        found
    }

    #[test]
    fn accepts_the_file_format() {
        let text = "# comment\r\n\n  secret \r\nHT|54 50|/|31|\n|20|\n|ff00|x|7C|\n\tsecret\n";
        let set = PatternSet::from_lines(text).unwrap();
        assert_eq!(set.len(), 4);
        assert_eq!(set.bytes(0), Some(&b"secret"[..]));
        assert_eq!(set.bytes(1), Some(&b"HTTP/1"[..]));
        assert_eq!(set.bytes(2), Some(&b" "[..]));
        assert_eq!(set.bytes(3), Some(&b"\xff\x00x|"[..]));
        assert_eq!(set.text(1), Some("HT|54 50|/|31|"));
        assert!(PatternSet::from_bytes(b"caf\xe9\n").is_ok());
    }

    #[test]
    fn refuses_bad_lines_by_number() {
        let fault = |text: &str| {
            let error = PatternSet::from_lines(text).err().unwrap();
            (error.line, error.fault)
        };
        assert_eq!(fault("a\nb|41\n"), (Some(2), PatternFault::UnclosedHex));
        assert_eq!(fault("\n|4|"), (Some(2), PatternFault::BadHex));
        assert_eq!(fault("|4 1 zz|"), (Some(1), PatternFault::BadHex));
        assert_eq!(fault("||"), (Some(1), PatternFault::Empty));
        assert_eq!(fault("# only\n"), (None, PatternFault::None));
        let long = "x".repeat(MAX_PATTERN_LEN + 1);
        assert_eq!(fault(&long), (Some(1), PatternFault::TooLong(1025)));
        let many: String = (0..=MAX_PATTERNS).map(|n| format!("{n:x}\n")).collect();
        assert_eq!(fault(&many), (Some(65_537), PatternFault::TooMany));
        let error = PatternSet::from_lines("a\nb|41\n").err().unwrap();
        assert!(error.to_string().starts_with("line 2: "));
    }

    #[test]
    fn accepts_matches_across_boundaries() {
        let set = set(&[b"needle"]);
        assert_eq!(all(&set, &[b"hay need", b"le hay"]), [(0, 10)]);
        assert_eq!(all(&set, &[b"n", b"e", b"", b"e", b"d", b"l", b"e"]), [(0, 6)]);
        assert_eq!(all(&set, &[b"needleneed", b"le"]), [(0, 6), (0, 12)]);
        assert_eq!(all(&set, &[b"need", b" le"]), []);
    }

    #[test]
    fn accepts_the_match_that_ends_first_then_the_longest() {
        let both = set(&[b"abcdefgh", b"de", b"cde"]);
        assert_eq!(all(&both, &[b"abcdefgh"]), [(2, 5)]);
        assert_eq!(all(&both, &[b"abcd", b"efgh"]), [(2, 5)]);
    }

    fn naive(patterns: &[Vec<u8>], text: &[u8]) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        let mut from = 0;
        for end in 1..=text.len() {
            let best = patterns
                .iter()
                .enumerate()
                .filter(|(_, p)| text[from..end].ends_with(p))
                .max_by_key(|(_, p)| p.len());
            if let Some((index, _)) = best {
                found.push((index, end as u64));
                from = end;
            }
        }
        found
    }

    fn agrees_with_naive(patterns: Vec<Vec<u8>>, text: &[u8], cuts: &[usize]) {
        let refs: Vec<&[u8]> = patterns.iter().map(Vec::as_slice).collect();
        let set = set(&refs);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        assert_eq!(all(&set, &chunks), naive(&patterns, text));
    }

    fn bytes(len: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(b'a'..b'd', len)
    }

    proptest! {
        /// However a stream is cut, the matches are those of a naive search.
        #[test]
        fn accepts_any_chunking(
            patterns in proptest::collection::hash_set(bytes(1..6), 1..8),
            text in bytes(0..400),
            cuts in proptest::collection::vec(0usize..400, 0..8),
        ) {
            agrees_with_naive(patterns.into_iter().collect(), &text, &cuts);
        }

        /// The same with matches that are rare, and patterns for several passes or none.
        #[test]
        fn accepts_any_chunking_of_large_sets(
            patterns in proptest::collection::hash_set(bytes(6..10), 1..300),
            text in bytes(0..2000),
            cuts in proptest::collection::vec(0usize..2000, 0..8),
        ) {
            agrees_with_naive(patterns.into_iter().collect(), &text, &cuts);
        }
    }
}
