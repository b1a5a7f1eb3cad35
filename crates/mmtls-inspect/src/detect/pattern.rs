//! What a regular expression depends on, as its text shows it.
//!
//! PCRE2 can tell whether a match would change with more bytes, but only through an interface that
//! needs unsafe code. So the text is looked at instead, and what is not surely simple counts as
//! dependent: a match is then reported later, never wrongly.
//! Refuses to judge whether an expression is right: that is for PCRE2.

use super::alphabet::Alphabet;
use super::extent::{Builder, Extent};
use crate::rules::pcre::Pcre;

/// What a regular expression depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nature {
    /// A match may be none any more when more bytes follow.
    pub(super) looks_ahead: bool,
    /// What stands before the first byte that is searched matters.
    pub(super) looks_back: Reach,
    /// From the same first byte, a match may be of another length when more bytes follow.
    pub(super) is_variable: bool,
    /// It refers to the whole of itself, or to where the search began: it finds something else where each place is
    /// tried by itself.
    pub(super) is_of_search: bool,
}

/// How far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reach {
    /// Not at all.
    Nothing,
    /// One byte.
    Byte,
    /// Any number of bytes.
    Far,
}

/// What was found out about an expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern {
    /// The expression, flag `E` worked into it.
    pub(super) text: String,
    pub(super) nature: Nature,
    /// What it extends over, where it can match where the subject or the search starts, and nowhere else.
    pub(super) tied: Option<Extent>,
    /// Options inside of it change what `$`, or `#`, means.
    pub(super) has_own_options: bool,
}

impl Pattern {
    pub(super) fn new(pcre: &Pcre) -> Self {
        let nature = Nature {
            looks_ahead: false,
            looks_back: if pcre.anchored { Reach::Far } else { Reach::Nothing },
            is_variable: false,
            is_of_search: false,
        };
        let mut scanner = Scanner {
            rest: &pcre.expression,
            // Line ends count before `$` in any case where there are many lines.
            replaces_dollar: pcre.dollar_end_only && !pcre.multi_line,
            extended: pcre.extended,
            dot_all: pcre.dot_all,
            starts_tied: starts_tied(pcre),
            extent: Builder::default(),
            pattern: Self { text: String::new(), nature, tied: None, has_own_options: false },
        };
        while scanner.item() {}
        let Scanner { mut pattern, starts_tied, extent, .. } = scanner;
        let is_tied = pcre.anchored || starts_tied && !pattern.has_own_options;
        pattern.tied = is_tied.then(|| extent.finish());
        pattern
    }
}

/// What flag `x` passes over. Expressions are of bytes: no blank of Unicode is one.
const fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t'..='\r')
}

/// Whether an expression begins where the subject does, as far as its first alternative goes.
fn starts_tied(pcre: &Pcre) -> bool {
    let behind = pcre.expression.strip_prefix('^');
    !pcre.multi_line && behind.is_some_and(|rest| !rest.starts_with(['*', '+', '?', '{']))
}

/// Splits off what may only stand at the start of an expression: settings such as `(*CRLF)`.
pub(super) fn split_settings(expression: &str) -> (&str, &str) {
    let mut len = 0;
    while let Some((_, rest)) = expression.split_at_checked(len)
        && let Some(inner) = rest.strip_prefix("(*")
        && let Some((name, _)) = inner.split_once(')')
        && name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'='))
    {
        len += name.len() + 3;
    }
    expression.split_at_checked(len).unwrap_or(("", expression))
}

struct Scanner<'a> {
    rest: &'a str,
    replaces_dollar: bool,
    extended: bool,
    dot_all: bool,
    /// Every alternative so far begins where the subject does.
    starts_tied: bool,
    extent: Builder,
    pattern: Pattern,
}

impl<'a> Scanner<'a> {
    /// Takes so many bytes over, or up to the end.
    fn copy(&mut self, len: usize) {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.pattern.text.push_str(taken);
        self.rest = rest;
    }

    /// Takes everything over up to and with an end.
    fn copy_through(&mut self, end: &str) {
        self.copy(self.rest.find(end).map_or(self.rest.len(), |at| at + end.len()));
    }

    fn copy_char(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.copy(next.len_utf8());
        Some(next)
    }

    fn looks_back(&mut self, reach: Reach) {
        let nature = &mut self.pattern.nature;
        nature.looks_back = nature.looks_back.max(reach);
    }

    fn is_dependent(&mut self) {
        self.extent.is_far();
        self.pattern.nature.looks_ahead = true;
        self.pattern.nature.is_variable = true;
    }

    /// Takes one item over. False at the end.
    fn item(&mut self) -> bool {
        let Some(next) = self.rest.chars().next() else {
            return false;
        };
        match next {
            '\\' => self.escape(),
            '[' => self.class(),
            '(' => self.group(),
            '$' => {
                self.extent.condition();
                self.pattern.nature.looks_ahead = true;
                if self.replaces_dollar {
                    self.pattern.text.push_str(r"\z");
                    self.rest = self.rest.strip_prefix('$').unwrap_or_default();
                } else {
                    self.copy(1);
                }
            }
            '^' => {
                self.extent.condition();
                self.looks_back(Reach::Byte);
                self.copy(1);
            }
            '|' => {
                self.pattern.nature.is_variable = true;
                self.starts_tied &= self.extent.depth() > 0;
                self.copy(1);
            }
            ')' => {
                self.extent.close();
                self.copy(1);
            }
            '.' => {
                self.extent.one_of(Alphabet::any(self.dot_all));
                self.copy(1);
            }
            '*' | '+' | '?' => {
                self.extent.repeat((next == '?').then_some(1));
                self.quantifier(1);
            }
            '{' => self.braces(),
            '#' if self.extended => self.copy_through("\n"),
            _ if self.extended && is_blank(next) => self.copy(next.len_utf8()),
            _ => {
                self.extent.text(next.encode_utf8(&mut [0; 4]));
                self.copy(next.len_utf8());
            }
        }
        true
    }

    /// A quantifier that does not stand for one number, and what may follow it.
    fn quantifier(&mut self, len: usize) {
        self.pattern.nature.is_variable = true;
        self.copy(len);
        // A possessive one does not give back what it took, even if more could match then.
        if self.rest.trim_start_matches(is_blank).starts_with('+') {
            self.pattern.nature.looks_ahead = true;
        }
    }

    /// `{5}` is of fixed length; what else stands in braces counts as a quantifier.
    fn braces(&mut self) {
        let inner = self.rest.split_once('}').map_or("", |(inner, _)| inner);
        let digits = inner.strip_prefix('{').unwrap_or_default();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // `{,3}` is a quantifier in newer releases only, as are blanks between the numbers; `{,}` is text.
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let range = digits.split_once(',').filter(|(least, _)| !least.is_empty());
        let is_range = range.is_some_and(|(least, most)| is_digits(least) && is_digits(most));
        let is_possessive = !is_number && self.rest.contains("}+");
        if is_number || is_range {
            let most = digits.rsplit(',').next().and_then(|most| most.parse().ok());
            self.extent.repeat(most);
            self.copy(inner.len() + 1);
        } else {
            self.extent.is_far();
            self.copy(1);
        }
        self.pattern.nature.is_variable |= !is_number;
        // Such as `{2}+` and `{2,}+`: the plus is seen as a quantifier of its own.
        if self.rest.trim_start_matches(is_blank).starts_with('+') || is_possessive {
            self.is_dependent();
        }
    }

    fn escape(&mut self) {
        self.copy(1);
        let Some(escaped) = self.copy_char() else {
            return;
        };
        if matches!(escaped, 'z' | 'Z' | 'b' | 'B' | 'A' | 'G' | 'K') {
            self.extent.condition();
        } else if !matches!(escaped, 'Q' | 'E') {
            let taken = Alphabet::escape(escaped, self.rest);
            if taken == Alphabet::EVERYTHING {
                // Perhaps several bytes.
                self.extent.is_far();
            }
            self.extent.one_of(taken);
        }
        match escaped {
            'Q' => {
                let quoted = self.rest.split_once(r"\E").map_or(self.rest, |(quoted, _)| quoted);
                self.extent.text(quoted);
                self.copy_through(r"\E");
            }
            'z' | 'Z' => self.pattern.nature.looks_ahead = true,
            'b' | 'B' => {
                self.pattern.nature.looks_ahead = true;
                self.looks_back(Reach::Byte);
            }
            'A' => self.looks_back(Reach::Byte),
            'G' => {
                self.looks_back(Reach::Far);
                self.pattern.nature.is_of_search = true;
            }
            // A line end of two bytes, or a character of several, may be known by half.
            'R' | 'X' => self.is_dependent(),
            'g' | 'k' => {
                self.is_dependent();
                // `\g<0>` is the whole expression.
                let name = self.rest.trim_start_matches(['<', '\'', '{', '+', '-']);
                self.pattern.nature.is_of_search |= name.starts_with('0');
            }
            '1'..='9' | 'K' => self.pattern.nature.is_variable = true,
            'c' => {
                self.copy_char();
            }
            'x' if self.rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2 => {
                self.copy(2)
            }
            'x' | 'o' | 'p' | 'P' | 'N' if self.rest.starts_with('{') => self.copy_through("}"),
            _ => {}
        }
    }

    fn class(&mut self) {
        self.extent.one_of(Alphabet::class(self.rest));
        let start = self.pattern.text.len();
        self.class_text();
        let inner = self.pattern.text.get(start + 1..).unwrap_or_default();
        if [r"\E", r"\Q", "[.", "[="].iter().any(|odd| inner.contains(odd)) {
            // Where it ends is not known.
            self.is_dependent();
            self.looks_back(Reach::Far);
        }
    }

    fn class_text(&mut self) {
        self.copy(1);
        if self.rest.starts_with('^') {
            self.copy(1);
        }
        if self.rest.starts_with(']') {
            self.copy(1);
        }
        while let Some(next) = self.copy_char() {
            match next {
                ']' => return,
                '\\' => match self.copy_char() {
                    Some('Q') => self.copy_through(r"\E"),
                    Some('c') => {
                        self.copy_char();
                    }
                    _ => {}
                },
                '[' if self.rest.starts_with(':') => self.named_class(),
                _ => {}
            }
        }
    }

    /// `[:alpha:]` in a class.
    fn named_class(&mut self) {
        let end = self.rest.get(1..).and_then(|rest| rest.find(":]")).map(|end| end + 1);
        let name = end.and_then(|end| self.rest.get(1..end)).unwrap_or_default();
        if let Some(end) = end
            && !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'^')
        {
            self.copy(end + 2);
        }
    }

    fn group(&mut self) {
        self.extent.open();
        self.copy(1);
        if self.rest.starts_with('*') {
            // A verb; it may do anything.
            self.is_dependent();
            self.looks_back(Reach::Far);
            self.pattern.nature.is_of_search = true;
            return;
        }
        let Some(kind) = self.rest.strip_prefix('?') else {
            return;
        };
        if kind.starts_with('#') {
            self.extent.comment();
            return self.copy_through(")");
        }
        // The question mark is no quantifier.
        self.copy(1);
        let mut chars = kind.chars();
        match (chars.next(), chars.next()) {
            (Some(':' | '|'), _) => {}
            (Some('<'), Some('=' | '!' | '*')) => self.looks_back(Reach::Far),
            (Some('P'), Some('<')) | (Some('<' | '\''), _) => {}
            (Some('i' | 's' | 'm' | 'x' | 'n' | 'J' | 'U' | '-' | '^' | ')'), _) => self.options(),
            // Looks ahead, does not give back, refers to another group, or depends on one.
            (kind, _) => {
                self.is_dependent();
                self.looks_back(Reach::Far);
                self.pattern.nature.is_of_search |= matches!(kind, Some('R' | '0'));
            }
        }
    }

    /// Options inside of the expression. How far those reach is not followed up: the others count as
    /// in force from here on.
    fn options(&mut self) {
        let end = self.rest.find([':', ')']).unwrap_or(self.rest.len());
        let set = self.rest.split_at_checked(end).map_or("", |(set, _)| set);
        // Whether `#` starts a comment, and so what the rest is, is not known then. And `(?-1)` is no
        // option, but the group before.
        if set.contains(['x', '^']) || set.contains(|set: char| set.is_ascii_digit()) {
            self.is_dependent();
            self.looks_back(Reach::Far);
        }
        self.dot_all |= set.contains('s');
        self.pattern.has_own_options |= set.contains(['x', 'm', '^']);
        self.copy(end);
    }
}
