//! Rules in Suricata's language: from text to typed rules.
//!
//! [`RuleSet::read`] is the way in. A rule is active as a whole, or it is skipped with a typed cause:
//! no condition is ever left out. What is accepted and refused follows Suricata 7 as its user guide
//! documents it; where Suricata only warns that a rule can never match, it is refused here.
//! Refuses to panic on any text, to recurse deeper than [`groups::MAX_GROUP_DEPTH`], to evaluate
//! anything, and to open the files that rules name.
//!
//! Not built on `suricatax-rule-parser` (0.2.0-alpha.1, MIT or Apache-2.0), which splits a rule into
//! strings as `reader` does in thirty lines, and no more: it brings nom and serde, takes `![a, b]` with a
//! space for two parts, never ends after an error, and calls itself experimental.

pub mod application;
pub mod buffers;
pub mod bytes;
mod classes;
pub mod compare;
pub mod content;
pub mod dataset;
pub mod fault;
pub mod flow;
pub mod groups;
pub mod header;
mod keywords;
mod options;
pub mod pcre;
pub mod ranges;
mod reader;
pub mod rule;
pub mod slices;
pub mod variables;

use std::borrow::Cow;
use std::collections::HashMap;

pub use buffers::{Buffer, Transform};
pub use fault::{Cause, Fault, FaultKind, Skipped};
pub use rule::{BufferChecks, Check, Id, Rule};
pub use variables::{VariableError, Variables};

/// Longest rule in bytes, continued lines together.
pub const MAX_RULE_LEN: usize = 16 << 10;
/// Most rules of a set, active and skipped.
pub const MAX_RULES: usize = 1 << 18;

/// The rules of one or several texts.
#[derive(Clone, Default, Debug)]
pub struct RuleSet {
    /// Those that are active, in their order.
    pub rules: Vec<Rule>,
    /// Those that are not, in no order.
    pub skipped: Vec<Skipped>,
    /// How many are switched off: comments with a rule in them.
    pub disabled: usize,
    /// Where each id stands in `rules`.
    places: HashMap<Id, usize>,
    texts: u16,
}

impl RuleSet {
    /// Reads the rules of one text, as [`Self::add`].
    #[must_use]
    pub fn read(text: &[u8], variables: &Variables) -> Self {
        let mut set = Self::default();
        set.add(text, variables);
        set
    }

    /// Adds the rules of a text: one a line, which a backslash at its end continues in the next one. Lines that
    /// start with `#` or `;` are comments; one that ends with a backslash goes on in lines that start
    /// with white space.
    pub fn add(&mut self, text: &[u8], variables: &Variables) {
        let mut sets = header::Sets::new(variables);
        let mut lines = Lines::new(text);
        while let Some((line, text)) = lines.next_rule(&mut self.disabled) {
            if self.rules.len() + self.skipped.len() >= MAX_RULES {
                self.skip_unread(line, FaultKind::TooMany);
                break;
            }
            if text.len() > MAX_RULE_LEN {
                self.skip_unread(line, FaultKind::TooLong);
                continue;
            }
            let Ok(text) = core::str::from_utf8(&text) else {
                self.skip_unread(line, FaultKind::NotUtf8);
                continue;
            };
            match reader::read(text, line, &mut sets) {
                Ok(rule) => self.add_rule(Rule { text: self.texts, ..rule }),
                Err(unread) => self.skipped.push(Skipped {
                    text: self.texts,
                    line,
                    protocol: unread.protocol,
                    sid: unread.sid,
                    message: unread.message,
                    cause: unread.cause,
                }),
            }
        }
        self.texts = self.texts.saturating_add(1);
    }

    /// Adds a rule, unless there is one with the same id: then the higher revision stays, or the
    /// earlier one of two that are equal.
    fn add_rule(&mut self, rule: Rule) {
        let place = self.places.get(&rule.id).and_then(|place| self.rules.get_mut(*place));
        let Some(known) = place else {
            self.places.insert(rule.id, self.rules.len());
            self.rules.push(rule);
            return;
        };
        let (left_out, cause) = if rule.revision <= known.revision {
            (rule, Cause::Duplicate { text: known.text, line: known.line })
        } else {
            let (text, line) = (rule.text, rule.line);
            (core::mem::replace(known, rule), Cause::Replaced { text, line })
        };
        self.skipped.push(left_out.skipped(cause));
    }

    fn skip_unread(&mut self, line: u32, kind: FaultKind) {
        let cause = Cause::Fault(Fault { at: 0, keyword: None, kind });
        let text = self.texts;
        self.skipped.push(Skipped { text, line, protocol: None, sid: None, message: None, cause });
    }
}

/// The lines of a text, continued ones put together.
struct Lines<'a> {
    rest: Option<&'a [u8]>,
    number: u32,
}

impl<'a> Lines<'a> {
    fn new(text: &'a [u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { rest: Some(text), number: 0 }
    }

    fn next_line(&mut self) -> Option<&'a [u8]> {
        let text = self.rest?;
        let end = text.iter().position(|byte| *byte == b'\n');
        self.rest = end.map(|end| &text[end + 1..]);
        self.number = self.number.saturating_add(1);
        Some(text[..end.unwrap_or(text.len())].trim_ascii_end())
    }

    /// The next rule and the line in which it starts; counts rules in comments. A rule that is too
    /// long is cut.
    fn next_rule(&mut self, disabled: &mut usize) -> Option<(u32, Cow<'a, [u8]>)> {
        let mut comment_continues = false;
        loop {
            let line = self.next_line()?;
            let starts = line.trim_ascii_start();
            let continues = line.ends_with(b"\\");
            let inside_comment = comment_continues && starts.len() < line.len();
            if starts.is_empty() || inside_comment || matches!(starts[0], b'#' | b';') {
                *disabled += usize::from(!inside_comment && is_disabled_rule(starts));
                comment_continues = continues;
                continue;
            }
            let number = self.number;
            let Some(first) = line.strip_suffix(b"\\") else {
                return Some((number, Cow::Borrowed(line)));
            };
            let mut whole = first.to_vec();
            while let Some(next) = self.next_line() {
                let part = next.strip_suffix(b"\\");
                // One byte too many shows that it is too long.
                let room = (MAX_RULE_LEN + 1).saturating_sub(whole.len());
                let text = part.unwrap_or(next);
                whole.extend_from_slice(&text[..text.len().min(room)]);
                if part.is_none() {
                    break;
                }
            }
            return Some((number, Cow::Owned(whole)));
        }
    }
}

fn is_disabled_rule(comment: &[u8]) -> bool {
    let end = comment.iter().position(|byte| !matches!(byte, b'#' | b' ' | b'\t'));
    let text = &comment[end.unwrap_or(comment.len())..];
    let word = text.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let is_action = core::str::from_utf8(word).is_ok_and(header::Action::is_name);
    is_action && text.contains(&b'(')
}

#[cfg(test)]
mod tests;
