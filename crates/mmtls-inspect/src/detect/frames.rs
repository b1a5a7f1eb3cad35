//! Conditions on frames of HTTP/2: which ones rules have, and which were met.
//!
//! A condition is met by any frame of a side of a stream, another one by another frame, as in Suricata; a frame
//! of the connection itself stands alone. Each condition is met once, and never taken back: whoever asks for
//! several waits. Refuses to keep frames.

use std::collections::HashMap;

use crate::event::{Frame, Side};
use crate::rules::application::Http2Check;

/// Streams that are not open yet of which met conditions are kept. Clients name a handful of them.
pub(super) const MAX_EARLY: usize = 1024;

/// The conditions of all rules, each once, with the rules that have it, by side.
#[derive(Default)]
pub(super) struct FrameChecks {
    numbers: HashMap<Http2Check, u32>,
    checks: Vec<(Http2Check, [Vec<u32>; 2])>,
}

/// The conditions that were met.
#[derive(Clone, Default)]
pub(super) struct Met(Vec<u64>);

impl FrameChecks {
    /// The number of a condition.
    pub(super) fn number(&mut self, check: Http2Check) -> u32 {
        let next = u32::try_from(self.checks.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(check).or_insert_with(|| {
            self.checks.push((check, Default::default()));
            next
        })
    }

    /// A rule has a condition on a side.
    pub(super) fn add(&mut self, number: u32, side: usize, rule: u32) {
        if let Some((_, rules)) = self.checks.get_mut(number as usize)
            && rules[side].last() != Some(&rule)
        {
            rules[side].push(rule);
        }
    }

    /// Whether rules look at frames at all.
    pub(super) fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// The conditions that a frame of a side meets and that were not met before, with the rules that have them.
    pub(super) fn newly_met<'a, 'b>(
        &'a self,
        side: usize,
        frame: &'b Frame<'b>,
        known: Option<&'b Met>,
    ) -> impl Iterator<Item = (u32, &'a [u32])> + use<'a, 'b> {
        (0..).zip(&self.checks).filter_map(move |(number, (check, rules))| {
            let rules = &rules[side][..];
            let is_new = !rules.is_empty() && known.is_none_or(|met| !met.has(number));
            (is_new && holds(check, frame)).then_some((number, rules))
        })
    }
}

impl Met {
    pub(super) fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn add(&mut self, number: u32) {
        let at = number as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (number % 64);
    }
}

/// Of which side and stream frames came before the transaction.
pub(super) type Early = (Side, u32);

fn holds(check: &Http2Check, frame: &Frame<'_>) -> bool {
    match *check {
        Http2Check::FrameType(kind) => frame.kind == kind,
        Http2Check::ErrorCode(code) => frame.error_code == Some(code),
        Http2Check::Priority(is) => frame.weight.is_some_and(|weight| is.holds(weight.into())),
        Http2Check::Window(is) => frame.window.is_some_and(|window| is.holds(window.into())),
        Http2Check::SizeUpdate(is) => frame.table_sizes.iter().any(|&size| is.holds(size.into())),
        Http2Check::Settings(number, is) => {
            frame.settings().any(|(it, value)| it == number && is.holds(value.into()))
        }
    }
}
