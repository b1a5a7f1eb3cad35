//! The streaming search for many literals, and the file format of patterns.
//!
//! Claims: however a stream is cut, the matches are those of a naive search; pattern files are
//! refused with a line number or accepted within the caps.

use mmtls_inspect::literal::{MAX_PATTERN_LEN, MAX_PATTERNS, PatternSet, Scanner};

use crate::input::{Input, pieces};

/// Input: what to do; then a pattern file, or patterns and a text.
pub fn literal(data: &[u8]) {
    let mut input = Input::new(data);
    if input.u8() & 7 == 0 {
        return file(input.all());
    }
    let lengths = input.take(3);
    // More than 32 patterns need several vectorised passes, more than 256 an automaton. Sets are
    // slow to build, so most are small.
    let count = match input.u8() {
        few @ 0..=200 => usize::from(few % 40) + 1,
        some @ 201..=250 => usize::from(some),
        _ => 300,
    };
    let mut patterns: Vec<&[u8]> = Vec::new();
    for _ in 0..count {
        let len = 1 + usize::from(input.u8() % 12);
        let bytes = input.take(len);
        if !bytes.is_empty() && !patterns.contains(&bytes) {
            patterns.push(bytes);
        }
    }
    let mut builder = PatternSet::builder();
    for pattern in &patterns {
        builder.push(pattern.to_vec(), String::new()).expect("within the caps");
    }
    let Ok(set) = builder.build() else {
        assert!(patterns.is_empty(), "only a set without patterns is refused");
        return;
    };
    let text = input.all();
    let expected = naive(&patterns, text);
    assert_eq!(search(&set, text, &[]), expected, "whole");
    assert_eq!(search(&set, text, lengths), expected, "in pieces of {lengths:?}");
    assert_eq!(search(&set, text, &[1]), expected, "byte by byte");
}

fn file(bytes: &[u8]) {
    match PatternSet::from_bytes(bytes) {
        Ok(set) => {
            assert!(!set.is_empty() && set.len() <= MAX_PATTERNS);
            let mut scanner = Scanner::new();
            for at in 0..set.len() {
                let pattern = set.bytes(at).expect("every pattern has bytes");
                assert!((1..=MAX_PATTERN_LEN).contains(&pattern.len()) && set.text(at).is_some());
                scanner.restart();
                // Some shorter pattern may end earlier inside it.
                let found = set.scan(&mut scanner, pattern).expect("a pattern holds itself");
                assert!(found.consumed >= 1 && found.consumed <= pattern.len());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn search(set: &PatternSet, text: &[u8], lengths: &[u8]) -> Vec<(usize, u64)> {
    let mut scanner = Scanner::new();
    let mut found = Vec::new();
    for mut rest in pieces(text, lengths) {
        while let Some(hit) = set.scan(&mut scanner, rest) {
            assert!(hit.consumed >= 1 && hit.consumed <= rest.len());
            found.push((hit.pattern, hit.end));
            rest = &rest[hit.consumed..];
        }
    }
    found
}

/// The match that ends first, of those the longest; then on behind it.
fn naive(patterns: &[&[u8]], text: &[u8]) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    let mut from = 0;
    for end in 1..=text.len() {
        let hit = patterns
            .iter()
            .enumerate()
            .filter(|(_, pattern)| text[from..end].ends_with(pattern))
            .max_by_key(|(_, pattern)| pattern.len());
        if let Some((pattern, _)) = hit {
            found.push((pattern, end as u64));
            from = end;
        }
    }
    found
}
