//! Why a rule is not active. Refuses to be vague: each cause has a type and names what it is about.

use core::fmt;

/// Why a rule was left out, as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A protocol that is not inspected here.
    UnsupportedProtocol(Box<str>),
    /// A keyword that is not evaluated here, or is no keyword at all.
    UnsupportedKeyword(Box<str>),
    /// A keyword that is evaluated, in a form that is not.
    UnsupportedForm {
        /// The keyword.
        keyword: Box<str>,
        /// What of it.
        form: Box<str>,
    },
    /// A part that only shows when it is made ready: an expression that does not compile, a list that is not
    /// there.
    Unusable(Box<str>),
    /// A variable in the header that the configuration does not define.
    UndefinedVariable(Box<str>),
    /// A rule in an earlier line has the same gid and sid, and no lower revision.
    Duplicate {
        /// In which text, from 0.
        text: u16,
        /// That line.
        line: u32,
    },
    /// A rule in a later line has the same gid and sid, and a higher revision.
    Replaced {
        /// In which text, from 0.
        text: u16,
        /// That line.
        line: u32,
    },
    /// The rule is faulty.
    Fault(Fault),
}

impl Cause {
    /// The rule itself is wrong: no configuration and no other version makes it right.
    #[must_use]
    pub const fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Unusable(_))
    }

    /// What it is counted under: the cause without what is particular to one rule.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::UnsupportedKeyword(_) | Self::UnsupportedProtocol(_) => self.to_string(),
            Self::UnsupportedForm { keyword, .. } => format!("unsupported form of {keyword}"),
            Self::UndefinedVariable(_) => self.to_string(),
            Self::Unusable(_) => "cannot be applied".to_owned(),
            Self::Duplicate { .. } => "duplicate sid".to_owned(),
            Self::Replaced { .. } => "replaced by a higher revision".to_owned(),
            Self::Fault(_) => "syntax error".to_owned(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedProtocol(name) => write!(f, "unsupported protocol {name}"),
            Self::UnsupportedKeyword(name) => write!(f, "unsupported keyword {name}"),
            Self::UnsupportedForm { keyword, form } => {
                write!(f, "unsupported form of {keyword}: {form}")
            }
            Self::UndefinedVariable(name) => write!(f, "undefined variable {name}"),
            Self::Unusable(why) => write!(f, "cannot be applied: {why}"),
            Self::Duplicate { line, .. } => write!(f, "duplicate of the sid in line {line}"),
            Self::Replaced { line, .. } => {
                write!(f, "replaced by a higher revision in line {line}")
            }
            Self::Fault(fault) => write!(f, "syntax error at {fault}"),
        }
    }
}

/// A rule that is not active.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// In which text it stands, from 0 in the order in which they were read.
    pub text: u16,
    /// The line in which it starts, from 1.
    pub line: u32,
    /// Its protocol, in lower case; absent where it has none.
    pub protocol: Option<Box<str>>,
    /// Absent where it has none.
    pub sid: Option<u32>,
    /// Absent where it has none.
    pub message: Option<Box<str>>,
    /// Why it is not active.
    pub cause: Cause,
}

/// What is wrong with a rule, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Bytes of the rule before the option, or the part of the header, that is wrong. Continued lines
    /// count without the backslash and the line end.
    pub at: usize,
    /// The keyword of that option.
    pub keyword: Option<Box<str>>,
    /// What is wrong.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.keyword {
            Some(keyword) => write!(f, "byte {} ({keyword}): {}", self.at, self.kind),
            None => write!(f, "byte {}: {}", self.at, self.kind),
        }
    }
}

/// What can be wrong with a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// Over [`super::MAX_RULE_LEN`].
    TooLong,
    /// Not UTF-8.
    NotUtf8,
    /// A part of the header, or the options, are missing.
    Missing(&'static str),
    /// No action.
    Action,
    /// Neither `->` nor `<>`.
    Direction,
    /// No address, range or group.
    Address,
    /// No port, range or group.
    Port,
    /// A group matches nothing.
    MatchesNothing,
    /// Deeper nested than the cap.
    TooDeep,
    /// More elements than the cap.
    TooMany,
    /// No `;` behind the last option.
    Unterminated,
    /// The value must be in double quotes.
    NotQuoted,
    /// A quote opens and does not close, or the other way round.
    Quote,
    /// The keyword needs a value.
    ValueMissing,
    /// The keyword takes no value.
    ValueUnexpected,
    /// Not one of the values that the keyword takes.
    Value,
    /// Not a number, or out of range.
    Number,
    /// Bytes in hexadecimal that are not.
    Hex,
    /// A backslash before a character that needs none.
    Escape,
    /// No preceding `content` that the keyword could belong to.
    NoContent,
    /// No sticky buffer directly before.
    NoBuffer,
    /// A sticky buffer is in force, which the keyword cannot leave.
    StickyBuffer,
    /// A sticky buffer in which nothing is looked for.
    UnusedBuffer,
    /// No `byte_extract` before defines the name.
    UndefinedName,
    /// Given twice.
    Twice,
    /// What it cannot be combined with.
    Conflict(&'static str),
    /// Nothing can ever match it.
    NeverMatches(&'static str),
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "rule too long",
            Self::NotUtf8 => "not UTF-8",
            Self::Missing(what) => return write!(f, "{what} missing"),
            Self::Action => "no such action",
            Self::Direction => "direction is neither -> nor <>",
            Self::Address => "not an address",
            Self::Port => "not a port",
            Self::MatchesNothing => "matches nothing",
            Self::TooDeep => "nested too deep",
            Self::TooMany => "too many",
            Self::Unterminated => "no ; at the end",
            Self::NotQuoted => "value is not in double quotes",
            Self::Quote => "unbalanced double quote",
            Self::ValueMissing => "value missing",
            Self::ValueUnexpected => "takes no value",
            Self::Value => "no such value",
            Self::Number => "not a number, or out of range",
            Self::Hex => "not hexadecimal",
            Self::Escape => "nothing to escape behind a backslash",
            Self::NoContent => "no content before",
            Self::NoBuffer => "no sticky buffer directly before",
            Self::StickyBuffer => "not with a sticky buffer in force",
            Self::UnusedBuffer => "nothing is looked for in the buffer",
            Self::UndefinedName => "name is not extracted before",
            Self::Twice => "given twice",
            Self::Conflict(with) => return write!(f, "not together with {with}"),
            Self::NeverMatches(why) => return write!(f, "can never match: {why}"),
        })
    }
}

/// Why a part of a rule is refused, before it is known which part that is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Form(Box<str>),
    Variable(Box<str>),
    Fault(FaultKind),
}

impl From<FaultKind> for Refused {
    fn from(kind: FaultKind) -> Self {
        Self::Fault(kind)
    }
}

impl Refused {
    /// A form that is not evaluated; long text is cut.
    pub(super) fn form(text: &str) -> Self {
        Self::Form(text.chars().take(64).collect::<String>().into())
    }

    /// The cause, now that the part is known.
    pub(super) fn cause(self, at: usize, keyword: Option<&str>) -> Cause {
        match self {
            Self::Form(form) => {
                Cause::UnsupportedForm { keyword: keyword.unwrap_or("the header").into(), form }
            }
            Self::Variable(name) => Cause::UndefinedVariable(name),
            Self::Fault(kind) => Cause::Fault(Fault { at, keyword: keyword.map(Into::into), kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_causes_as_readable_text() {
        let fault = Refused::from(FaultKind::Hex).cause(7, Some("content"));
        assert_eq!(fault.to_string(), "syntax error at byte 7 (content): not hexadecimal");
        assert!(fault.is_fault());
        let form = Refused::form(&"x".repeat(99)).cause(0, None);
        assert_eq!(form.summary(), "unsupported form of the header");
        assert_eq!(form.to_string().len(), "unsupported form of the header: ".len() + 64);
        let variable = Refused::Variable("$X".into()).cause(0, None);
        assert_eq!(variable.to_string(), "undefined variable $X");
        let kind = FaultKind::Conflict("depth");
        let fault = Fault { at: 0, keyword: None, kind };
        assert_eq!(fault.to_string(), "byte 0: not together with depth");
    }
}
