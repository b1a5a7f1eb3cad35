//! What the rules of all connections share while they are applied, and what comes out.

use super::matcher::Matcher;
use super::prefilter::Hits;
use super::shared::Shared;
use crate::budget::MemoryBudget;
use crate::event::Side;
use crate::rules::{Buffer, Rule};
use crate::transaction::Transaction;
use crate::uninspected::Uninspected;

/// What is known of a TLS handshake.
pub trait Facts {
    /// The version, once it is negotiated.
    fn version(&self) -> Option<u16>;
    /// Shows each instance of a buffer, as far as there is one.
    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8]));
}

/// What the rules of all connections of a worker share.
pub struct Context<'a> {
    /// The rules.
    pub matcher: &'a Matcher,
    /// What they remember beyond connections.
    pub shared: &'a Shared,
    /// Memory for windows.
    pub budget: &'a MemoryBudget,
    /// Memory that is used again.
    pub scratch: &'a mut Scratch,
    /// The time of what came, in nanoseconds since 1970.
    pub now_ns: u64,
}

/// Memory that is used again, one for each thread.
#[derive(Default)]
pub struct Scratch {
    pub(super) hits: Hits,
    /// What the last rule cost, in bytes looked at.
    pub(super) work: u64,
    /// A rule was given up.
    pub(super) over_cap: bool,
    /// One did not match, and an expression in it was given up.
    pub(super) gave_up: bool,
    /// Expressions that were given up.
    pub(super) limits_hit: u64,
}

impl Scratch {
    /// How often a regular expression met its limit since this was asked last: each is no match.
    pub fn take_limits_hit(&mut self) -> u64 {
        core::mem::take(&mut self.limits_hit)
    }
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub enum Detected<'a> {
    /// A rule has matched.
    Match(Match<'a>),
    /// Something of this side is not inspected as rules ask: beyond a cap they are applied late, or not at all.
    Uninspected(Side, Uninspected),
}

/// A rule has matched.
#[derive(Clone, Copy, Debug)]
pub struct Match<'a> {
    /// The rule; its action is to be taken.
    pub rule: &'a Rule,
    /// Who sent what matched.
    pub side: Side,
    /// Whose it is.
    pub transaction: Option<&'a Transaction>,
    /// Whether it is reported: rules can be silent, and thresholds can be met.
    pub is_reported: bool,
}

pub(super) type Sink<'a> = &'a mut dyn FnMut(Detected<'_>);
