//! `content`: where a literal may be, and whether and where it is.
//!
//! Refuses to say that a literal is absent as long as a byte of where it may be is not known.

use memchr::memmem::Finder;

use super::memory::Memory;
use super::view::View;
use crate::rules::content::{Content, Place};

/// What trying one occurrence costs, besides the bytes looked at.
const TRY_WORK: usize = 8;

/// A literal, ready to be searched for.
#[derive(Debug)]
pub(super) struct Literal {
    content: Content,
    search: Search,
}

#[derive(Debug)]
enum Search {
    /// Exactly these bytes.
    Exact(Box<Finder<'static>>),
    /// ASCII letters in either case: where in the literal a rare byte is, and what it may be.
    NoCase { at: usize, either: [u8; 2] },
}

/// Where a literal may be: from the first byte up to, and without, the second place.
#[derive(Clone, Copy)]
struct Range {
    from: u64,
    /// Absent where it is the end of the buffer.
    to: Option<u64>,
}

impl Literal {
    pub(super) fn new(content: &Content) -> Self {
        let bytes = &content.bytes;
        let has_letter = bytes.iter().any(u8::is_ascii_alphabetic);
        let rarest = bytes.iter().enumerate().min_by_key(|(_, byte)| commonness(**byte));
        let search = match rarest {
            Some((at, rare)) if content.nocase && has_letter => Search::NoCase {
                at,
                either: [rare.to_ascii_lowercase(), rare.to_ascii_uppercase()],
            },
            _ => Search::Exact(Box::new(Finder::new(bytes).into_owned())),
        };
        Self { content: content.clone(), search }
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// The first occurrence, not before `not_before`, behind a match that ended at `place`.
    pub(super) fn find(
        &self,
        place: u64,
        not_before: u64,
        view: View<'_>,
        memory: &mut Memory,
    ) -> Option<u64> {
        let range = self.range(place, memory)?;
        let len = self.content.bytes.len() as u64;
        let from = range.from.max(not_before).max(view.start);
        let to = range.to.map_or(view.end(), |to| to.min(view.end()));
        if self.content.at_end {
            let at = view.end().checked_sub(len).filter(|at| view.is_whole && *at >= from)?;
            memory.spend(TRY_WORK);
            return (to == view.end() && self.is_at(at, view)).then_some(at);
        }
        let haystack = view.slice(from, to)?;
        let found = self.search(haystack, memory)?;
        Some(from.saturating_add(found as u64))
    }

    /// Whether it may be wherever the buffer is, so far as its start allows.
    pub(super) fn is_anywhere(&self) -> bool {
        matches!(self.content.place, Place::Absolute { depth: None, .. }) && !self.content.at_end
    }

    /// Whether it is anywhere in these bytes, wherever it should be; also where that could not be found out.
    pub(super) fn is_in(&self, view: View<'_>, memory: &mut Memory) -> bool {
        self.search(view.bytes, memory).is_some() || memory.over_cap
    }

    /// Whether it is certain that it is nowhere behind a match that ended at `place`.
    pub(super) fn is_absent(&self, place: u64, view: View<'_>, memory: &mut Memory) -> bool {
        let Some(range) = self.range(place, memory) else {
            return false;
        };
        let len = self.content.bytes.len() as u64;
        // Where it does not fit into, it cannot be.
        if range.to.is_some_and(|to| to.saturating_sub(range.from) < len) {
            return true;
        }
        if self.content.at_end {
            let Some(at) = view.end().checked_sub(len) else {
                return view.is_whole;
            };
            let is_within = at >= range.from && range.to.is_none_or(|to| to >= view.end());
            memory.spend(TRY_WORK);
            let is_known = at >= view.start;
            return view.is_whole && (!is_within || is_known && !self.is_at(at, view));
        }
        // What counts from the start is asked of the first bytes, however far it should reach.
        let is_relative = matches!(self.content.place, Place::Relative { .. });
        let is_last = !view.goes_on || view.start == 0 && !is_relative;
        let is_decided =
            range.to.map_or(view.is_whole, |to| to <= view.end() || view.is_whole && is_last);
        // What was before does not count, unless that is where it must not be.
        let is_open = view.starts_here && range.to.is_none();
        let from = if is_open { range.from.max(view.start) } else { range.from };
        let to = range.to.map_or(view.end(), |to| to.min(view.end()));
        if !is_decided || to.saturating_sub(from) < len {
            return is_decided;
        }
        match view.slice(from, to) {
            Some(haystack) => self.search(haystack, memory).is_none() && !memory.over_cap,
            // It may have been in what is no longer at hand.
            None => false,
        }
    }

    /// Absent where a number of it was not extracted.
    fn range(&self, place: u64, memory: &Memory) -> Option<Range> {
        let amount = |amount: Option<_>| match amount {
            Some(amount) => memory.amount(amount).map(Some),
            None => Some(None),
        };
        let (from, most) = match self.content.place {
            Place::Start => (0, Some(self.content.bytes.len() as i64)),
            Place::Absolute { offset, depth } => (amount(offset)?.unwrap_or(0), amount(depth)?),
            Place::Relative { distance, within } => {
                let place = i64::try_from(place).unwrap_or(i64::MAX);
                (place.saturating_add(amount(distance)?.unwrap_or(0)), amount(within)?)
            }
        };
        // A distance to before the buffer leaves the end where it is, as in Suricata.
        let to = most.map(|most| u64::try_from(from.saturating_add(most)).unwrap_or(0));
        Some(Range { from: u64::try_from(from).unwrap_or(0), to })
    }

    fn is_at(&self, at: u64, view: View<'_>) -> bool {
        let bytes = &self.content.bytes;
        let found = view.slice(at, at.saturating_add(bytes.len() as u64));
        found.is_some_and(|found| match self.search {
            Search::Exact(_) => *found == **bytes,
            Search::NoCase { .. } => found.eq_ignore_ascii_case(bytes),
        })
    }

    fn search(&self, haystack: &[u8], memory: &mut Memory) -> Option<usize> {
        let bytes = &self.content.bytes;
        let (at, either) = match &self.search {
            Search::Exact(finder) => {
                let found = finder.find(haystack);
                let seen = found.map_or(haystack.len(), |found| found + bytes.len());
                return if memory.spend(TRY_WORK + seen) { found } else { None };
            }
            Search::NoCase { at, either } => (*at, *either),
        };
        // Every place where the rare byte can be if the literal is to fit.
        let last = haystack.len().checked_sub(bytes.len())?;
        let mut first = 0;
        while let Some(rest) = haystack.get(first + at..=last + at) {
            let [low, high] = either;
            let found = memchr::memchr2(low, high, rest);
            if !memory.spend(TRY_WORK + found.unwrap_or(rest.len())) {
                return None;
            }
            first += found?;
            let candidate = haystack.get(first..first + bytes.len())?;
            if candidate.eq_ignore_ascii_case(bytes) {
                memory.spend(bytes.len());
                return Some(first);
            }
            first += 1;
        }
        None
    }
}

/// How often a byte is seen in what is inspected, in rough steps.
fn commonness(byte: u8) -> u8 {
    match byte.to_ascii_lowercase() {
        b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' | b' ' | 0 => 5,
        b'h' | b'l' | b'd' | b'c' | b'u' | b'm' | b'p' | b'/' | b'.' | b'-' | b'\r' | b'\n' => 4,
        b'0'..=b'9' | b'f' | b'g' | b'b' | b'w' | b'y' | b'v' | b':' | b'=' | b'"' => 3,
        b'k' | b'j' | b'x' | b'q' | b'z' => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(bytes: &[u8], nocase: bool) -> Literal {
        Literal::new(&Content {
            bytes: bytes.into(),
            negated: false,
            nocase,
            place: Place::ANYWHERE,
            at_end: false,
            fast_pattern: None,
        })
    }

    fn find(literal: &Literal, haystack: &[u8]) -> Option<usize> {
        literal.search(haystack, &mut Memory::new(u64::MAX))
    }

    #[test]
    fn accepts_either_case_wherever_the_rare_byte_is() {
        for bytes in [&b"zabe"[..], b"aeZt", b"eta", b"Ae-", b"z"] {
            let literal = literal(bytes, true);
            for before in 0..4 {
                let mut haystack = b"e-zaeZ".repeat(before);
                haystack.retain(|byte| before > 1 || *byte != b'z');
                let expected = haystack
                    .windows(bytes.len())
                    .position(|window| window.eq_ignore_ascii_case(bytes));
                assert_eq!(find(&literal, &haystack), expected);
                let at = haystack.len();
                haystack.extend(bytes.to_ascii_uppercase());
                assert_eq!(find(&literal, &haystack), Some(expected.unwrap_or(at)));
            }
        }
        assert_eq!(find(&literal(b"[a", true), b"{A[A"), Some(2));
        assert_eq!(find(&literal(b"a", false), b"AAa"), Some(2));
        assert_eq!(find(&literal(b"ab", true), b"a"), None);
        assert_eq!(find(&literal(b"ab", true), b""), None);
    }

    #[test]
    fn refuses_to_search_over_the_cap() {
        let mut memory = Memory::new(100);
        assert_eq!(literal(b"ab", true).search(&[b'a'; 1000], &mut memory), None);
        assert!(memory.over_cap);
        let mut memory = Memory::new(100);
        assert_eq!(literal(b"ab", false).search(&[b'a'; 1000], &mut memory), None);
        assert!(memory.over_cap);
    }
}
