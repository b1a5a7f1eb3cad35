//! What the text of regular expressions shows of them.

use super::pattern::*;
use crate::rules::pcre::Pcre;

fn pcre(expression: &str) -> Pcre {
    Pcre { expression: expression.into(), ..Pcre::default() }
}

fn pattern(expression: &str, flags: &str) -> Pattern {
    Pattern::new(&Pcre {
        extended: flags.contains('x'),
        multi_line: flags.contains('m'),
        dollar_end_only: flags.contains('E'),
        ..pcre(expression)
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
fn accepts_what_is_tied_to_a_place() {
    let line = b"ab&12345\nxyz";
    let over =
        |expression: &str| pattern(expression, "").tied.map(|extent| extent.over(&line.repeat(10)));
    for (tied, extent) in [
        ("^ab", 3),
        ("^(a|bc)d?", 5),
        (r"^\x61{3}[0-9]{1,4}", 8),
        ("^a.b", 4),
        ("^[^&]*&1", 5),
        ("^[a-z]+&", 4),
        ("^(a[b-c]|x){2,}1", 4),
        ("^.*z", 10),
        ("^[.,]*a", 2),
        ("^.*?$", 9),
        (r"^\Qa.\E(?#|)\bb*", 3),
        ("^(?i)A(?:b|c)(?P<n>d)", 10),
        ("^(?:ab)(?#*)*1", 4),
    ] {
        assert_eq!(over(tied), Some(extent), "{tied}");
    }
    for far in [
        "^a(?=b)",
        "^(?s).*",
        r"^a\R",
        "^(a)(?1)",
        "^a*b*",
        r"^[\E]a]",
        "^[[=a=]]",
        "^a{,}",
        "^a{1,2,3}",
        "^a{,3}",
        "^a(*ACCEPT)",
        r"^(a)\1",
        r"^\D",
        "^.{2,5}+",
    ] {
        assert_eq!(over(far), Some(120), "{far}");
    }
    for free in ["a", "^a|b", "^(?m)a", "^?a", "(^a)|b"] {
        assert_eq!(over(free), None, "{free}");
    }
    assert!(pattern("^a", "m").tied.is_none());
    assert!(Pattern::new(&Pcre { anchored: true, ..pcre("a|b") }).tied.is_some());
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
