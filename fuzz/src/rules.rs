//! The reader of rules in Suricata's language.
//!
//! Claims: any text is read without panic; an active rule is complete and within the caps, its id is
//! its own; a skipped one says why; the same rules again are duplicates and change nothing.

use std::collections::HashSet;

use mmtls_inspect::rules::content::{Amount, MAX_CONTENT_LEN, Place};
use mmtls_inspect::rules::{Cause, Check, Rule, RuleSet, Variables};

/// Input: a file of rules.
pub fn rules(data: &[u8]) {
    let variables = Variables::suricata();
    let set = RuleSet::read(data, &variables);
    let lines = data.split(|byte| *byte == b'\n').count();
    let in_file = |line: u32| (1..=lines).contains(&(line as usize));
    let mut ids = HashSet::new();
    for rule in &set.rules {
        assert!(in_file(rule.line) && rule.id.sid > 0 && ids.insert(rule.id));
        check(rule);
    }
    for skipped in &set.skipped {
        assert!(in_file(skipped.line) && !skipped.cause.to_string().is_empty());
    }
    // A mark of the encoding is one at the start of a file only.
    if !data.starts_with(b"\xef\xbb\xbf") {
        let twice = RuleSet::read(&[data, b"\n\n", data].concat(), &variables);
        assert_eq!(twice.rules, set.rules, "the same rules again");
        assert_eq!(twice.disabled, 2 * set.disabled);
        let new = twice.skipped.iter().skip(set.skipped.len());
        let duplicates = new.filter(|it| matches!(it.cause, Cause::Duplicate { .. })).count();
        assert!(duplicates >= set.rules.len());
    }
}

fn check(rule: &Rule) {
    let header = &rule.header;
    for ranges in [header.source.as_slice(), header.destination.as_slice()] {
        assert!(!ranges.is_empty() && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
    for ranges in [header.source_ports.as_slice(), header.destination_ports.as_slice()] {
        assert!(!ranges.is_empty() && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
    for group in &rule.buffers {
        assert!(!group.checks.is_empty(), "a buffer in which nothing is looked for");
        for check in &group.checks {
            let Check::Content(content) = check else {
                continue;
            };
            assert!((1..=MAX_CONTENT_LEN).contains(&content.bytes.len()));
            let (Place::Absolute { offset: first, depth: second }
            | Place::Relative { distance: first, within: second }) = content.place
            else {
                continue;
            };
            for amount in [first, second].into_iter().flatten() {
                if let Amount::Extracted(index) = amount {
                    assert!(index < rule.extracted, "a number that nothing extracts");
                }
            }
        }
    }
}
