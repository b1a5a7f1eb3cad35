//! The options of a rule as text: where one ends, what is its name, and what its value.
//!
//! As Suricata reads them: a semicolon ends an option unless a backslash stands directly before it,
//! inside of quotes too; the first colon ends the name. Refuses to know a keyword.

use super::fault::{FaultKind, Refused};

/// Most options of a rule.
pub const MAX_OPTIONS: usize = 512;

/// An option as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RawOption<'a> {
    /// Where it starts in the rule.
    pub(super) at: usize,
    pub(super) name: &'a str,
    /// What stands behind the colon, without white space around it; never empty.
    pub(super) value: Option<&'a str>,
}

/// Takes the text between the parentheses apart; it starts at `start` of the rule.
pub(super) fn split(text: &str, start: usize) -> Result<Vec<RawOption<'_>>, (usize, FaultKind)> {
    let mut options = Vec::new();
    let mut from = 0;
    let bytes = text.as_bytes();
    for end in 0..bytes.len() {
        if bytes[end] != b';' || end > from && bytes[end - 1] == b'\\' {
            continue;
        }
        let option = &text[from..end];
        let at = start + from + (option.len() - option.trim_start().len());
        let (name, value) = match option.split_once(':') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (option.trim(), None),
        };
        if name.is_empty() {
            return Err((at, FaultKind::Missing("keyword")));
        }
        if options.len() == MAX_OPTIONS {
            return Err((at, FaultKind::TooMany));
        }
        options.push(RawOption { at, name, value: value.filter(|value| !value.is_empty()) });
        from = end + 1;
    }
    match text[from..].trim() {
        "" => Ok(options),
        _ => Err((start + from, FaultKind::Unterminated)),
    }
}

/// A value in mandatory double quotes, and whether `!` stands before them. What is escaped in it
/// stays so.
pub(super) fn quoted(value: &str) -> Result<(bool, &str), FaultKind> {
    let (negated, value) = negation(value);
    let inner = value.strip_prefix('"').ok_or(FaultKind::NotQuoted)?;
    let inner = inner.strip_suffix('"').ok_or(FaultKind::Quote)?;
    if inner.is_empty() {
        return Err(FaultKind::ValueMissing);
    }
    Ok((negated, inner))
}

/// A value that may stand in double quotes.
pub(super) fn unquoted(value: &str) -> Result<&str, FaultKind> {
    let inner = match value.strip_prefix('"') {
        Some(inner) => inner.strip_suffix('"').ok_or(FaultKind::Quote)?,
        None => value,
    };
    match inner.trim() {
        "" => Err(FaultKind::ValueMissing),
        inner => Ok(inner),
    }
}

/// Takes a leading `!` off.
pub(super) fn negation(value: &str) -> (bool, &str) {
    match value.strip_prefix('!') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, value),
    }
}

/// Text for people: a backslash stands for the character behind it.
pub(super) fn text(value: &str) -> Result<Box<str>, FaultKind> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(next) = chars.next() {
        match next {
            '\\' => text.push(chars.next().ok_or(FaultKind::Escape)?),
            '"' => return Err(FaultKind::Quote),
            _ => text.push(next),
        }
    }
    Ok(text.into())
}

/// A number in decimal, or in hexadecimal behind `0x`, up to a limit.
pub(super) fn unsigned(text: &str, most: u64) -> Result<u64, FaultKind> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16)
        }
        // `parse` would take a sign.
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse(),
        _ => return Err(FaultKind::Number),
    };
    number.ok().filter(|number| *number <= most).ok_or(FaultKind::Number)
}

/// A decimal number that may be negative; its absolute value is at most `most`.
pub(super) fn signed(text: &str, most: i32) -> Result<i32, FaultKind> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = unsigned(digits, u64::from(most.unsigned_abs()))?;
    let number = i32::try_from(number).map_err(|_| FaultKind::Number)?;
    Ok(if negative { -number } else { number })
}

/// A name that rules give to something: letters, digits, and what Suricata's rule sets use besides.
pub(super) fn name(text: &str) -> Result<Box<str>, Refused> {
    const MAX_NAME: usize = 256;
    let allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'|' | b'"' | b';');
    if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(allowed) {
        return Err(FaultKind::Value.into());
    }
    Ok(text.into())
}

/// The words of a part such as `track by_src`.
pub(super) fn words(part: &str) -> (&str, Option<&str>) {
    match part.trim().split_once(|char: char| char.is_ascii_whitespace()) {
        Some((word, rest)) => (word, Some(rest.trim())),
        None => (part.trim(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(&str, Option<&str>)> {
        split(text, 0).unwrap().into_iter().map(|option| (option.name, option.value)).collect()
    }

    #[test]
    fn accepts_options_with_escaped_semicolons() {
        assert_eq!(
            names(r#" msg:"a\;b: c" ; nocase;sid : 1;"#),
            [("msg", Some(r#""a\;b: c""#)), ("nocase", None), ("sid", Some("1"))]
        );
        assert_eq!(names(""), []);
        assert_eq!(names("a:;"), [("a", None)]);
        // Only the one byte before counts, as in Suricata.
        assert_eq!(names(r"pcre:a\\;b;"), [("pcre", Some(r"a\\;b"))]);
        assert_eq!(split(" a; b;", 10).unwrap()[1].at, 14);
    }

    #[test]
    fn refuses_options_that_do_not_end() {
        assert_eq!(split("a;b", 5), Err((7, FaultKind::Unterminated)));
        assert_eq!(split(r#"msg:"x\;"#, 0), Err((0, FaultKind::Unterminated)));
        assert_eq!(split("a; ;", 0), Err((3, FaultKind::Missing("keyword"))));
        assert_eq!(split(":1;", 0), Err((0, FaultKind::Missing("keyword"))));
        let many = "a;".repeat(MAX_OPTIONS + 1);
        assert!(matches!(split(&many, 0), Err((_, FaultKind::TooMany))));
    }

    #[test]
    fn accepts_quotes_and_negation() {
        assert_eq!(quoted(r#""a""#), Ok((false, "a")));
        assert_eq!(quoted(r#"! "a""#), Ok((true, "a")));
        assert_eq!(unquoted(r#"" 5""#), Ok("5"));
        assert_eq!(unquoted("5"), Ok("5"));
    }

    #[test]
    fn refuses_missing_and_unbalanced_quotes() {
        assert_eq!(quoted("a"), Err(FaultKind::NotQuoted));
        assert_eq!(quoted("\"a"), Err(FaultKind::Quote));
        assert_eq!(quoted("\""), Err(FaultKind::Quote));
        assert_eq!(quoted("\"\""), Err(FaultKind::ValueMissing));
        assert_eq!(unquoted("\""), Err(FaultKind::Quote));
        assert_eq!(unquoted("\" \""), Err(FaultKind::ValueMissing));
    }

    #[test]
    fn accepts_and_refuses_text() {
        assert_eq!(text(r#"a\;\"\\é"#).as_deref(), Ok(r#"a;"\é"#));
        assert_eq!(text(r"a\"), Err(FaultKind::Escape));
        assert_eq!(text("a\"b"), Err(FaultKind::Quote));
    }

    #[test]
    fn accepts_and_refuses_numbers() {
        assert_eq!(unsigned("0x1F", 31), Ok(31));
        assert_eq!(unsigned("007", 7), Ok(7));
        for faulty in ["", "0x", "+1", "-1", "1 ", "32", "0x+1", "99999999999999999999"] {
            assert_eq!(unsigned(faulty, 31), Err(FaultKind::Number), "{faulty}");
        }
        assert_eq!(signed("-5", 5), Ok(-5));
        assert_eq!(signed("+5", 5), Ok(5));
        assert_eq!(signed("-6", 5), Err(FaultKind::Number));
        assert_eq!(signed("--1", 5), Err(FaultKind::Number));
    }

    #[test]
    fn accepts_and_refuses_names() {
        assert!(name("ET.x-1").is_ok());
        for faulty in ["", "a b", "a,b", "é"] {
            assert!(name(faulty).is_err());
        }
        assert!(name(&"x".repeat(257)).is_err());
        assert_eq!(words(" track  by_src "), ("track", Some("by_src")));
        assert_eq!(words("relative"), ("relative", None));
    }
}
