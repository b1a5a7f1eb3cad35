//! What mmTLS is known not to do yet. Such cases are run and judged like all others, and counted
//! on their own; once they work they are ok.
//!
//! Refuses to cover for anything else: a gap explains exactly its own faults.

use super::case::{Case, Feature};
use super::stacks::STACKS;
use super::suite::Version;

/// A gap.
#[derive(Debug)]
pub struct Gap {
    /// Whether a case is about it.
    applies: fn(&Case) -> bool,
    /// Every fault of the case must contain one of these.
    faults: &'static [&'static str],
    /// What is missing.
    pub reason: &'static str,
}

/// All of them.
pub const GAPS: &[Gap] = &[Gap {
    applies: |case| {
        let asks = STACKS[case.client].name == "wolfssl";
        asks && case.version == Version::V12 && case.feature == Feature::Ticket
    },
    faults: &["session 1: session_resumed is false, not true"],
    reason: "the resumption of a TLS 1.2 session with a ticket and without a session id, as \
             wolfSSL asks for it, is decrypted but not reported as resumption",
}];

/// The gap that explains all faults of a case.
pub fn explain(case: &Case, faults: &[String]) -> Option<&'static str> {
    let explains = |gap: &Gap| {
        (gap.applies)(case)
            && faults.iter().all(|fault| gap.faults.iter().any(|known| fault.contains(known)))
            && faults.iter().any(|fault| fault.contains(gap.faults[0]))
    };
    GAPS.iter().find(|gap| explains(gap)).map(|gap| gap.reason)
}
