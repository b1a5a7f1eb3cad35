//! What one rule asks of one buffer, applied check by check.
//!
//! A check that fails sends the one before it that can match elsewhere to its next match, as in Suricata
//! but without its short cuts: every combination of matches is tried. Refuses to answer yes where
//! bytes that are not known yet, or no longer, could make it a no.

use super::dataset::{Datasets, Membership};
use super::expression::Expression;
use super::literal::Literal;
use super::memory::Memory;
use super::number;
use super::unusable::Unusable;
use super::view::View;
use crate::rules::bytes::{ByteExtract, ByteJump, ByteTest, DataAt, Field, JumpFrom, Value};
use crate::rules::compare::Comparison;
use crate::rules::content::{Amount, Content, Place};
use crate::rules::{BufferChecks, Check};

/// What applying one check costs, besides what it looks at.
const STEP_WORK: usize = 1;

/// The checks of a rule in one buffer, ready to be applied.
#[derive(Debug)]
pub(crate) struct Checks {
    steps: Box<[Step]>,
    /// A number is extracted here: what is counted with it may differ from attempt to attempt.
    extracts: bool,
}

#[derive(Debug)]
struct Step {
    test: Test,
    /// Another match of this one can help a check behind it.
    is_retried: bool,
    /// What it finds is the same whatever the checks before it found.
    is_independent: bool,
}

#[derive(Debug)]
enum Test {
    Literal(Literal),
    Expression { expression: Box<Expression>, negated: bool },
    DataAt(DataAt),
    Number(ByteTest),
    Jump(ByteJump),
    Extract(ByteExtract),
    Size(Comparison),
    Dataset(Membership),
}

/// How a check went.
enum Outcome {
    Fails,
    Holds {
        /// From where the next check counts.
        place: u64,
        /// The first place where another match may start.
        next: Option<u64>,
    },
}

/// Where to go on after a failure.
struct Retry {
    step: usize,
    place: u64,
    not_before: u64,
    captured: usize,
}

impl Checks {
    /// Compiles expressions and looks datasets up.
    ///
    /// # Errors
    /// [`Unusable`] if one of them cannot be used: then the rule cannot.
    pub(crate) fn new(group: &BufferChecks, datasets: &Datasets) -> Result<Self, Unusable> {
        let mut steps = Vec::with_capacity(group.checks.len());
        let mut rest = group.checks.as_slice();
        while let Some((check, behind)) = rest.split_first() {
            if let Some(test) = Test::new(check, behind, datasets)? {
                let is_independent = !reads_place(check) && !reads_numbers(check);
                steps.push(Step { test, is_retried: is_retried(check, behind), is_independent });
            }
            rest = behind;
        }
        let extracts = group.checks.iter().any(|check| matches!(check, Check::ByteExtract(_)));
        Ok(Self { steps: steps.into(), extracts })
    }

    /// Whether all checks hold, one after the other. A yes is certain whatever follows; a no is final
    /// where the buffer is whole, and none at all where `memory` is over its cap.
    pub(crate) fn apply(&self, view: View<'_>, memory: &mut Memory) -> bool {
        let captured_before = memory.captured().len();
        let holds = self.find(view, memory);
        if !holds {
            memory.forget_captured(captured_before);
        }
        holds
    }

    fn find(&self, view: View<'_>, memory: &mut Memory) -> bool {
        let mut retries: Vec<Retry> = Vec::new();
        let (mut at, mut place, mut again) = (0, 0, None);
        while let Some(step) = self.steps.get(at) {
            if !memory.spend(STEP_WORK) {
                return false;
            }
            let is_first = again.is_none();
            let captured = memory.captured().len();
            match step.test.apply(place, again.take().unwrap_or(0), view, memory) {
                Outcome::Holds { place: behind, next } => {
                    if let Some(not_before) = next.filter(|_| step.is_retried) {
                        retries.push(Retry { step: at, place, not_before, captured });
                    }
                    (at, place) = (at + 1, behind);
                }
                Outcome::Fails => {
                    // No attempt can do better.
                    if step.is_independent && (is_first || !self.extracts) {
                        // Where another match of it was looked for, it is there.
                        memory.missing = (is_first && !memory.over_cap).then_some(at);
                        return false;
                    }
                    let Some(retry) = retries.pop() else {
                        return false;
                    };
                    memory.forget_captured(retry.captured);
                    (at, place, again) = (retry.step, retry.place, Some(retry.not_before));
                }
            }
        }
        !memory.over_cap
    }

    /// Whether these checks may hold now that more bytes have come: `missing` was nowhere in what ended at `known`. Says yes
    /// wherever it does not know.
    pub(crate) fn may_hold(
        &self,
        missing: usize,
        known: u64,
        view: View<'_>,
        memory: &mut Memory,
    ) -> bool {
        match self.steps.get(missing).map(|step| &step.test) {
            Some(Test::Literal(literal)) if !literal.content().negated => {
                let before = (literal.content().bytes.len() as u64).saturating_sub(1);
                literal.is_in(view.behind(known.saturating_sub(before)), memory)
            }
            _ => true,
        }
    }

    /// More bytes are all that can be missing: no check asks for the absence of something, or where the
    /// buffer ends.
    pub(crate) fn is_positive(&self) -> bool {
        self.steps.iter().all(|step| match &step.test {
            Test::Literal(literal) => !literal.content().negated && !literal.content().at_end,
            Test::Expression { expression, .. } => expression.is_monotone(),
            Test::DataAt(check) => !check.negated,
            Test::Jump(check) => check.from != JumpFrom::End,
            Test::Number(_) | Test::Extract(_) => true,
            Test::Size(comparison) => {
                matches!(comparison, Comparison::Greater(_) | Comparison::GreaterOrEqual(_))
            }
            Test::Dataset(_) => false,
        })
    }

    /// Whether all they ask is that something is nowhere: what did not hold can only seem to later.
    pub(crate) fn forbid_anywhere(&self) -> bool {
        self.steps.iter().all(|step| match &step.test {
            Test::Literal(literal) => literal.content().negated && literal.is_anywhere(),
            Test::Expression { expression, negated } => *negated && !expression.is_relative(),
            _ => false,
        })
    }

    /// Whether one of them is about where the buffer ends.
    pub(crate) fn ask_for_end(&self) -> bool {
        self.steps.iter().any(|step| match &step.test {
            Test::Literal(literal) => literal.content().at_end,
            Test::DataAt(check) => check.negated,
            Test::Jump(check) => check.from == JumpFrom::End,
            Test::Size(_) | Test::Dataset(_) => true,
            Test::Expression { .. } | Test::Number(_) | Test::Extract(_) => false,
        })
    }

    /// Whether something has to be there, besides whatever must not be: less may be so of any buffer.
    pub(crate) fn seek_something(&self) -> bool {
        self.steps.iter().any(|step| match &step.test {
            Test::Literal(literal) => !literal.content().negated,
            Test::Expression { negated, .. } => !negated,
            Test::Number(test) => !test.negated,
            Test::Dataset(dataset) => !dataset.is_negated(),
            Test::DataAt(_) | Test::Jump(_) | Test::Extract(_) | Test::Size(_) => false,
        })
    }

    /// The literals, in their order: for choosing what a search for many rules at once looks for.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &Content> {
        self.steps.iter().filter_map(|step| match &step.test {
            Test::Literal(literal) => Some(literal.content()),
            _ => None,
        })
    }
}

impl Test {
    /// `None` for what is not about bytes.
    fn new(check: &Check, behind: &[Check], datasets: &Datasets) -> Result<Option<Self>, Unusable> {
        Ok(Some(match check {
            Check::Absent { .. } => return Ok(None),
            Check::Content(content) => Self::Literal(Literal::new(content)),
            Check::Pcre(pcre) => Self::Expression {
                expression: Box::new(Expression::new(pcre, reader_of_place(behind).is_some())?),
                negated: pcre.negated,
            },
            Check::DataAt(check) => Self::DataAt(*check),
            Check::ByteTest(check) => Self::Number(*check),
            Check::ByteJump(check) => Self::Jump(*check),
            Check::ByteExtract(check) => Self::Extract(*check),
            Check::Size(comparison) => Self::Size(*comparison),
            Check::Dataset(dataset) => Self::Dataset(Membership::new(dataset, datasets)?),
        }))
    }

    fn apply(&self, place: u64, not_before: u64, view: View<'_>, memory: &mut Memory) -> Outcome {
        let stays = |holds| {
            if holds { Outcome::Holds { place, next: None } } else { Outcome::Fails }
        };
        let moves = |to| match to {
            Some(place) => Outcome::Holds { place, next: None },
            None => Outcome::Fails,
        };
        match self {
            Self::Literal(literal) if literal.content().negated => {
                stays(literal.is_absent(place, view, memory))
            }
            Self::Literal(literal) => match literal.find(place, not_before, view, memory) {
                Some(start) => Outcome::Holds {
                    place: start.saturating_add(literal.content().bytes.len() as u64),
                    next: start.checked_add(1),
                },
                None => Outcome::Fails,
            },
            Self::Expression { expression, negated: true } => {
                stays(expression.is_absent(place, view, memory))
            }
            Self::Expression { expression, .. } => {
                match expression.find(place, not_before, view, memory) {
                    Some(found) => Outcome::Holds {
                        place: found.end,
                        // An expression may say that its match starts before it does (`\K`).
                        next: found.start.max(not_before).checked_add(1),
                    },
                    None => Outcome::Fails,
                }
            }
            Self::DataAt(check) => stays(number::data_at(check, place, view, memory)),
            Self::Number(check) => stays(number::test(check, place, view, memory)),
            Self::Jump(check) => moves(number::jump(check, place, view, memory)),
            Self::Extract(check) => moves(number::extract(check, place, view, memory)),
            Self::Size(comparison) if view.is_whole => stays(comparison.holds(view.end())),
            Self::Size(comparison) => stays(comparison.holds_from(view.end())),
            Self::Dataset(membership) => stays(membership.holds(view)),
        }
    }
}

/// Whether a check counts from where the one before it has left off.
fn reads_place(check: &Check) -> bool {
    match check {
        Check::Content(content) => matches!(content.place, Place::Relative { .. }),
        Check::Pcre(pcre) => pcre.relative,
        Check::DataAt(check) => check.relative,
        Check::ByteTest(check) => check.field.relative,
        Check::ByteJump(check) => check.field.relative,
        Check::ByteExtract(check) => check.field.relative,
        Check::Size(_) | Check::Dataset(_) | Check::Absent { .. } => false,
    }
}

/// Whether a check changes from where the next one counts.
fn sets_place(check: &Check) -> bool {
    match check {
        Check::Content(content) => !content.negated,
        Check::Pcre(pcre) => !pcre.negated,
        Check::ByteJump(_) | Check::ByteExtract(_) => true,
        Check::DataAt(_)
        | Check::ByteTest(_)
        | Check::Size(_)
        | Check::Dataset(_)
        | Check::Absent { .. } => false,
    }
}

/// Whether a check needs numbers that were extracted.
fn reads_numbers(check: &Check) -> bool {
    let is_number = |amount: Amount| matches!(amount, Amount::Extracted(_));
    let field = |field: &Field| is_number(field.len) || is_number(field.offset);
    match check {
        Check::Content(content) => match content.place {
            Place::Start => false,
            Place::Absolute { offset: from, depth: most }
            | Place::Relative { distance: from, within: most } => {
                from.is_some_and(is_number) || most.is_some_and(is_number)
            }
        },
        Check::DataAt(check) => is_number(check.at),
        Check::ByteTest(check) => field(&check.field) || matches!(check.value, Value::Extracted(_)),
        Check::ByteJump(check) => field(&check.field),
        Check::ByteExtract(check) => field(&check.field),
        Check::Pcre(_) | Check::Size(_) | Check::Dataset(_) | Check::Absent { .. } => false,
    }
}

/// The first check that counts from the place that the check before all of these has left.
fn reader_of_place(behind: &[Check]) -> Option<&Check> {
    let ends = |check: &&Check| reads_place(check) || sets_place(check);
    behind.iter().find(ends).filter(|check| reads_place(check))
}

/// Whether another match of a check could help those behind it.
fn is_retried(check: &Check, behind: &[Check]) -> bool {
    match (check, reader_of_place(behind)) {
        (_, None) => false,
        // The later a literal ends, the fewer places remain for one that may be anywhere behind it.
        (Check::Content(_), Some(Check::Content(next))) => {
            next.negated || !matches!(next.place, Place::Relative { within: None, .. })
        }
        (Check::Content(_) | Check::Pcre(_), Some(_)) => true,
        _ => false,
    }
}
