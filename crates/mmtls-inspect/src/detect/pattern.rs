//! What a regular expression depends on, as its text shows it.
//!
//! PCRE2 can tell whether a match would change with more bytes, but only through an interface that
//! needs unsafe code. So the text is looked at instead, and what is not surely simple counts as
//! dependent: a match is then reported later, never wrongly.
//! Refuses to judge whether an expression is right: that is for PCRE2.

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
    /// Options inside of it change what `$`, or `#`, means.
    pub(super) has_own_options: bool,
}

impl Pattern {
    pub(super) fn new(pcre: &Pcre) -> Self {
        let nature = Nature {
            looks_ahead: false,
            looks_back: if pcre.anchored { Reach::Far } else { Reach::Nothing },
            is_variable: false,
        };
        let mut scanner = Scanner {
            rest: &pcre.expression,
            // Line ends count before `$` in any case where there are many lines.
            replaces_dollar: pcre.dollar_end_only && !pcre.multi_line,
            extended: pcre.extended,
            pattern: Self { text: String::new(), nature, has_own_options: false },
        };
        while scanner.item() {}
        scanner.pattern
    }
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
                self.pattern.nature.looks_ahead = true;
                if self.replaces_dollar {
                    self.pattern.text.push_str(r"\z");
                    self.rest = self.rest.strip_prefix('$').unwrap_or_default();
                } else {
                    self.copy(1);
                }
            }
            '^' => {
                self.looks_back(Reach::Byte);
                self.copy(1);
            }
            '|' => {
                self.pattern.nature.is_variable = true;
                self.copy(1);
            }
            '*' | '+' | '?' => self.quantifier(1),
            '{' => self.braces(),
            '#' if self.extended => self.copy_through("\n"),
            _ => self.copy(next.len_utf8()),
        }
        true
    }

    /// A quantifier that does not stand for one number, and what may follow it.
    fn quantifier(&mut self, len: usize) {
        self.pattern.nature.is_variable = true;
        self.copy(len);
        // A possessive one does not give back what it took, even if more could match then.
        if self.rest.trim_start().starts_with('+') {
            self.pattern.nature.looks_ahead = true;
        }
    }

    /// `{5}` is of fixed length; what else stands in braces counts as a quantifier.
    fn braces(&mut self) {
        let inner = self.rest.split_once('}').map_or("", |(inner, _)| inner);
        let digits = inner.strip_prefix('{').unwrap_or_default();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        self.copy(if is_number { inner.len() + 1 } else { 1 });
        self.pattern.nature.is_variable |= !is_number;
        // Such as `{2}+` and `{2,}+`: the plus is seen as a quantifier of its own.
        if self.rest.trim_start().starts_with('+') || !is_number && self.rest.contains("}+") {
            self.is_dependent();
        }
    }

    fn escape(&mut self) {
        self.copy(1);
        let Some(escaped) = self.copy_char() else {
            return;
        };
        match escaped {
            'Q' => self.copy_through(r"\E"),
            'z' | 'Z' => self.pattern.nature.looks_ahead = true,
            'b' | 'B' => {
                self.pattern.nature.looks_ahead = true;
                self.looks_back(Reach::Byte);
            }
            'A' => self.looks_back(Reach::Byte),
            'G' => self.looks_back(Reach::Far),
            // A line end of two bytes, or a character of several, may be known by half.
            'R' | 'X' => self.is_dependent(),
            'g' | 'k' => self.is_dependent(),
            '1'..='9' | 'K' => self.pattern.nature.is_variable = true,
            'c' => {
                self.copy_char();
            }
            'x' | 'o' | 'p' | 'P' | 'N' if self.rest.starts_with('{') => self.copy_through("}"),
            _ => {}
        }
    }

    fn class(&mut self) {
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
                '[' if self.rest.starts_with([':', '.', '=']) => self.named_class(),
                _ => {}
            }
        }
    }

    /// `[:alpha:]` in a class.
    fn named_class(&mut self) {
        let end = self.rest.find(":]");
        let name = end.and_then(|end| self.rest.get(1..end)).unwrap_or_default();
        if let Some(end) = end
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'^')
        {
            self.copy(end + 2);
        }
    }

    fn group(&mut self) {
        self.copy(1);
        if self.rest.starts_with('*') {
            // A verb; it may do anything.
            self.is_dependent();
            self.looks_back(Reach::Far);
            return;
        }
        let Some(kind) = self.rest.strip_prefix('?') else {
            return;
        };
        if kind.starts_with('#') {
            return self.copy_through(")");
        }
        // The question mark is no quantifier.
        self.copy(1);
        let mut chars = kind.chars();
        match (chars.next(), chars.next()) {
            (Some(':' | '|'), _) => {}
            (Some('<'), Some('=' | '!')) => self.looks_back(Reach::Far),
            (Some('P'), Some('<')) | (Some('<' | '\''), _) => {}
            (Some('i' | 's' | 'm' | 'x' | 'n' | 'J' | 'U' | '-' | '^' | ')'), _) => self.options(),
            // Looks ahead, does not give back, refers to another group, or depends on one.
            _ => {
                self.is_dependent();
                self.looks_back(Reach::Far);
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
        self.pattern.has_own_options |= set.contains(['x', 'm', '^']);
        self.copy(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(expression: &str, flags: &str) -> Pattern {
        Pattern::new(&Pcre {
            expression: expression.into(),
            extended: flags.contains('x'),
            multi_line: flags.contains('m'),
            dollar_end_only: flags.contains('E'),
            ..Pcre::default()
        })
    }

    /// Looks ahead, looks back, is variable.
    fn nature(expression: &str) -> (bool, Reach, bool) {
        let pattern = pattern(expression, "");
        assert_eq!(pattern.text, expression);
        (pattern.nature.looks_ahead, pattern.nature.looks_back, pattern.nature.is_variable)
    }

    #[test]
    fn accepts_expressions_that_depend_on_nothing() {
        for fixed in [
            "abc",
            "a{3}b",
            r"\x{41}[^]a$]\$\^[[:alpha:]$]",
            r"(?:a)(b)(?P<c>d)(?<e>f)(?'g'h)",
            r"\Qa$(^*\Eb",
            r"[\]$]\d\p{L}é\c$",
            "(?i)a(?s:b)(?#$)",
        ] {
            assert_eq!(nature(fixed), (false, Reach::Nothing, false), "{fixed}");
        }
        for variable in ["a+", "a*?", "ab?", "a|b", "a{2,}", "a{1,3}?", r"(a)\1", "[a$]+"] {
            assert_eq!(nature(variable), (false, Reach::Nothing, true), "{variable}");
        }
        assert_eq!(nature("(?U)a+"), (false, Reach::Nothing, true));
    }

    #[test]
    fn refuses_to_take_dependent_expressions_for_simple_ones() {
        for ahead in [
            "a$",
            r"a\z",
            r"a\Z",
            r"a\b",
            r"a\B",
            "(?=a)",
            "(?!a)",
            "(?>a|b)",
            "a++",
            "a*+",
            "a?+",
            "a{2}+",
            "a{2,}+",
            r"a\R",
            r"\X",
            "(?(?=a)b|c)",
            "(?R)",
            "(?1)",
            "(a)(?-1)",
            "(?+1)(a)",
            "(?&a)",
            "(?P>a)",
            r"\g<1>",
            "(*COMMIT)a",
            "(?x)a#$",
            "[a]$",
            r"\Qa\E$",
            "(?#a)$",
            "[[:a]$",
        ] {
            assert!(nature(ahead).0, "{ahead}");
        }
        assert!(pattern("a+ +", "x").nature.looks_ahead);
        for (back, reach) in [
            ("^a", Reach::Byte),
            (r"\Aa", Reach::Byte),
            (r"\ba", Reach::Byte),
            ("(?<=a)b", Reach::Far),
            ("(?<!a)b", Reach::Far),
            (r"\Ga", Reach::Far),
        ] {
            assert_eq!(nature(back).1, reach, "{back}");
        }
    }

    #[test]
    fn accepts_dollars_that_are_anchors() {
        for (flags, expression, text) in [
            ("E", "a$|b$", r"a\z|b\z"),
            ("E", r"[$]\$\Q$\E(?#$)$", r"[$]\$\Q$\E(?#$)\z"),
            ("Ex", "a#$\n$", "a#$\n\\z"),
            ("E", "a#$", r"a#\z"),
            ("Em", "a$", "a$"),
            ("", "a$", "a$"),
            ("E", r"[]$]$", r"[]$]\z"),
            ("E", r"[^]$]$", r"[^]$]\z"),
            ("E", r"a\", r"a\"),
            ("E", r"é$\Q$", r"é\z\Q$"),
        ] {
            assert_eq!(pattern(expression, flags).text, text, "{expression}");
        }
        assert!(pattern("(?m)a$", "E").has_own_options);
        assert!(pattern("(?x:a$)", "E").has_own_options);
        assert!(!pattern("(?i)a$", "E").has_own_options);
    }

    #[test]
    fn accepts_settings() {
        for (expression, settings) in
            [("(*CRLF)(*LIMIT_MATCH=5)a", "(*CRLF)(*LIMIT_MATCH=5)"), ("a(*F)", ""), ("(*a)", "")]
        {
            assert_eq!(split_settings(expression).0, settings);
        }
        assert_eq!(split_settings(""), ("", ""));
    }
}
