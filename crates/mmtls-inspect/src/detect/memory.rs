//! What the inspection of one rule carries from check to check, and from buffer to buffer.
//!
//! Refuses to hold more captured bytes than [`MAX_CAPTURED_LEN`], and to let work go on over its cap.

use crate::rules::content::Amount;
use crate::rules::pcre::Scope;

/// Most bytes of captured values, names included.
pub(crate) const MAX_CAPTURED_LEN: usize = 16 << 10;

/// A value that an expression captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Captured {
    /// How long it is kept.
    pub(crate) scope: Scope,
    /// Its name.
    pub(crate) name: Box<str>,
    /// The bytes.
    pub(crate) value: Box<[u8]>,
}

/// What the inspection of one rule carries: extracted numbers, captured values, and the work done.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    numbers: Vec<Option<u64>>,
    /// In the order in which they were captured.
    captured: Vec<Captured>,
    captured_len: usize,
    work: u64,
    most_work: u64,
    /// More work was needed than allowed: what was answered since then is no answer.
    pub(crate) over_cap: bool,
    /// Expressions that were given up at a limit of PCRE2; each counts as no match.
    pub(crate) limits_hit: u32,
    /// Which check has failed that finds the same whatever the others do, if that was why all of them did.
    pub(crate) missing: Option<usize>,
    /// Captured values that were over [`MAX_CAPTURED_LEN`].
    pub(crate) captures_dropped: u32,
}

/// Most bytes that one application of a rule may look at: some ten times the largest window.
const MOST_WORK: u64 = 1 << 20;

impl Default for Memory {
    fn default() -> Self {
        Self::new(MOST_WORK)
    }
}

impl Memory {
    /// Nothing kept yet. `most_work` is about the number of bytes that may be looked at.
    pub(crate) const fn new(most_work: u64) -> Self {
        Self {
            numbers: Vec::new(),
            captured: Vec::new(),
            captured_len: 0,
            work: 0,
            most_work,
            over_cap: false,
            limits_hit: 0,
            missing: None,
            captures_dropped: 0,
        }
    }

    /// What is kept, for what comes later; the work begins anew.
    pub(crate) fn go_on(self) -> Self {
        Self { work: 0, over_cap: false, limits_hit: 0, ..self }
    }

    /// The work done, in about bytes looked at.
    pub(crate) const fn work(&self) -> u64 {
        self.work
    }

    /// Counts work; false means that it must end.
    pub(crate) fn spend(&mut self, work: usize) -> bool {
        self.work = self.work.saturating_add(work as u64);
        self.over_cap |= self.work > self.most_work;
        !self.over_cap
    }

    /// An expression was given up.
    pub(crate) fn limit_hit(&mut self) {
        self.limits_hit = self.limits_hit.saturating_add(1);
    }

    /// A number of `byte_extract`; absent where none was extracted.
    pub(crate) fn number(&self, index: u8) -> Option<u64> {
        self.numbers.get(usize::from(index)).copied().flatten()
    }

    /// Keeps a number.
    pub(crate) fn keep(&mut self, index: u8, number: u64) {
        let index = usize::from(index);
        if self.numbers.len() <= index {
            self.numbers.resize(index + 1, None);
        }
        if let Some(kept) = self.numbers.get_mut(index) {
            *kept = Some(number);
        }
    }

    /// What an amount comes to. A number that no buffer can have comes to the greatest one.
    pub(crate) fn amount(&self, amount: Amount) -> Option<i64> {
        match amount {
            Amount::Number(number) => Some(i64::from(number)),
            Amount::Extracted(index) => {
                self.number(index).map(|number| i64::try_from(number).unwrap_or(i64::MAX))
            }
        }
    }

    /// The values that were captured. Of several with the same scope and name, the last one counts.
    pub(crate) fn captured(&self) -> &[Captured] {
        &self.captured
    }

    /// Keeps a captured value, unless there is no room.
    pub(crate) fn capture(&mut self, scope: Scope, name: &str, value: &[u8]) {
        let len = self.captured_len.saturating_add(name.len()).saturating_add(value.len());
        if len > MAX_CAPTURED_LEN {
            self.captures_dropped = self.captures_dropped.saturating_add(1);
            return;
        }
        self.captured_len = len;
        self.captured.push(Captured { scope, name: name.into(), value: value.into() });
    }

    /// Forgets what was captured after the first `count` values: it came of an attempt that failed.
    pub(crate) fn forget_captured(&mut self, count: usize) {
        for captured in self.captured.drain(count.min(self.captured.len())..) {
            self.captured_len -= captured.name.len() + captured.value.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_numbers_in_any_order() {
        let mut memory = Memory::new(0);
        memory.keep(2, u64::MAX);
        memory.keep(0, 5);
        assert_eq!([0, 1, 2, 3].map(|at| memory.number(at)), [Some(5), None, Some(u64::MAX), None]);
        assert_eq!(memory.amount(Amount::Extracted(2)), Some(i64::MAX));
        assert_eq!(memory.amount(Amount::Extracted(1)), None);
        assert_eq!(memory.amount(Amount::Number(-3)), Some(-3));
        memory.keep(255, 1);
    }

    #[test]
    fn refuses_work_and_captures_over_the_caps() {
        let mut memory = Memory::new(10);
        assert!(memory.spend(10) && !memory.over_cap);
        assert!(!memory.spend(1) && memory.over_cap);
        memory.capture(Scope::Flow, "a", &[0; MAX_CAPTURED_LEN]);
        assert_eq!((memory.captured().len(), memory.captures_dropped), (0, 1));
        memory.capture(Scope::Flow, "a", &[0; MAX_CAPTURED_LEN - 1]);
        memory.capture(Scope::Flow, "b", b"");
        assert_eq!((memory.captured().len(), memory.captures_dropped), (1, 2));
        memory.forget_captured(0);
        memory.capture(Scope::Packet, "b", b"x");
        assert_eq!(memory.captured().len(), 1);
        memory.forget_captured(7);
        assert_eq!(memory.captured().len(), 1);
    }
}
