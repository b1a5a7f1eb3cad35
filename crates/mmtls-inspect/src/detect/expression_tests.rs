//! Rules with regular expressions, and the buffers that they match.

use super::memory::Memory;
use super::tests::{WORK, check, run, unusable};
use super::unusable::Unusable;
use super::view::View;
use crate::rules::pcre::Scope;

#[test]
fn accepts_and_refuses_expressions() {
    check(&[
        (r#"pcre:"/b+c/";"#, b"abbc", true),
        (r#"pcre:"/b+c/";"#, b"abb", false),
        (r#"pcre:!"/b/";"#, b"ac", true),
        (r#"pcre:!"/b/";"#, b"abc", false),
        (r#"pcre:"/^$/";"#, b"", true),
        (r#"pcre:"/B/";"#, b"b", false),
        (r#"pcre:"/B/i";"#, b"b", true),
        (r#"pcre:"/^b$/";"#, b"a\nb\nc", false),
        (r#"pcre:"/^b$/m";"#, b"a\nb\nc", true),
        (r#"pcre:"/a.b/";"#, b"a\nb", false),
        (r#"pcre:"/a.b/s";"#, b"a\nb", true),
        (r#"pcre:"/a b # c/x";"#, b"ab", true),
        (r#"pcre:"/a b/";"#, b"ab", false),
        (r#"pcre:"/b/A";"#, b"ab", false),
        (r#"pcre:"/b/A";"#, b"ba", true),
        (r#"pcre:"/a|b/A";"#, b"xb", false),
        (r#"pcre:"/b # c/Ax";"#, b"b", true),
        (r#"pcre:"/a$/";"#, b"a\n", true),
        (r#"pcre:"/a$/E";"#, b"a\n", false),
        (r#"pcre:"/a$/E";"#, b"a", true),
        (r#"pcre:"/[$]\$$/E";"#, b"$$", true),
        (r#"pcre:"/\xff/";"#, b"\xff", true),
        (r#"pcre:"/a.c/";"#, b"a\xffc", true),
        (r#"pcre:"/a\/b/";"#, b"a/b", true),
        // Greedy or not shows in where it ends.
        (r#"pcre:"/a+/"; content:"a"; within:1;"#, b"aa", false),
        (r#"pcre:"/a+/G"; content:"a"; within:1;"#, b"aa", true),
        (r#"pcre:"/a+?/"; content:"a"; within:1;"#, b"aa", true),
        // Relative.
        (r#"content:"a"; pcre:"/^b/R";"#, b"ab", true),
        (r#"content:"a"; pcre:"/^b/R";"#, b"axb", false),
        (r#"content:"a"; pcre:"/b/R";"#, b"ba", false),
        (r#"content:"a"; pcre:!"/^b/R";"#, b"abab", false),
        (r#"content:"a"; pcre:!"/^b/R";"#, b"abac", true),
        (r#"pcre:"/^a/R";"#, b"ab", true),
        // Another match of what is before. Suricata takes only the first literal where `within` is not next.
        (r#"content:"a"; pcre:"/^b/R";"#, b"acab", true),
        (r#"pcre:"/a/"; content:"b"; within:1;"#, b"acab", true),
        (r#"pcre:"/a/"; content:"b"; within:1;"#, b"acac", false),
        (r#"content:"x"; pcre:"/a/R"; content:"b"; within:1;"#, b"abxacab", true),
        (r#"content:"x"; pcre:"/a/R"; content:"b"; within:1;"#, b"abxac", false),
        // The same start again would not end.
        (r#"pcre:"/a*/"; content:"b"; within:1;"#, b"ccc", false),
        (r#"pcre:"/a*/"; content:"b"; within:1;"#, b"ccb", true),
        (r#"pcre:"/a\Kb/"; content:"c"; within:1;"#, b"abxabc", true),
        // Flags that name a buffer.
        (r#"pcre:"/b/U";"#, b"b", true),
        (r#"pcre:"/(*CRLF)^b/m";"#, b"a\nb", false),
        (r#"pcre:"/(*CRLF)^b/Am";"#, b"b", true),
    ]);
}

#[test]
fn refuses_expressions_that_do_not_compile() {
    for faulty in
        [r#"pcre:"/(a/";"#, r#"pcre:"/a)|(b/A";"#, r#"pcre:"/[a/";"#, r#"pcre:"/a{2,1}/";"#]
    {
        assert!(matches!(unusable(faulty), Unusable::Expression(_)), "{faulty}");
    }
    assert_eq!(unusable(r#"pcre:"/(?m)a$/E";"#), Unusable::DollarEndOnly);
    let fault = unusable(r#"pcre:"/(a)b/,pkt:x,pkt:y";"#);
    assert_eq!(fault, Unusable::Groups { wanted: 2, there: 1 });
    assert!(!fault.to_string().is_empty());
}

#[test]
fn refuses_expressions_over_the_limits() {
    let bytes = [&[b'a'; 60][..], b"b"].concat();
    for (options, limits) in
        [(r#"pcre:"/^(a|aa)+$/";"#, 1), (r#"pcre:!"/^(a|aa)+$/";"#, 1), (r#"pcre:"/^a+$/";"#, 0)]
    {
        let mut memory = Memory::new(WORK);
        assert!(!run(options, View::whole(&bytes), &mut memory), "{options}");
        assert_eq!(memory.limits_hit, limits, "{options}");
    }
    // What the limit of Suricata is too low for.
    let bytes = [&[b'a'; 14][..], b"b"].concat();
    let mut memory = Memory::new(WORK);
    run(r#"pcre:"/^(a|aa|aaa)+$/";"#, View::whole(&bytes), &mut memory);
    assert_eq!(memory.limits_hit, 1);
    let mut memory = Memory::new(WORK);
    run(r#"pcre:"/^(a|aa|aaa)+$/O";"#, View::whole(&bytes), &mut memory);
    assert_eq!(memory.limits_hit, 0);
}

/// PCRE2 counts steps for each place where a match may begin; together they could take seconds.
#[test]
fn refuses_long_searches_from_many_places() {
    let words = [&[b'a'; 3400][..], b"!"].concat().repeat(18);
    let long = [&words[..], b".exe"].concat();
    for (options, given_up) in [
        (r#"pcre:"/\w+\d{4}\.exe/";"#, 1),
        (r#"pcre:!"/\w+\d{4}\.exe/";"#, 1),
        (r#"pcre:"/\w+\d{4}\.exe/O";"#, 1),
        // Nothing tells where such a search could go on.
        (r#"pcre:"/(\w(?1)|\d)+\.exe/";"#, 1),
        (r#"pcre:"/(?P<a>\w+)\d{4}(?P=a)/";"#, 1),
        (r#"pcre:"/(?:a(?R)?)+\d{4}/";"#, 1),
        (r#"pcre:"/[ab]{1,9}c/";"#, 0),
    ] {
        let mut memory = Memory::new(u64::MAX);
        assert!(!run(options, View::whole(&long), &mut memory), "{options}");
        assert_eq!(memory.limits_hit, given_up, "{options}");
        let mut memory = Memory::default();
        assert!(!run(options, View::whole(&long), &mut memory), "{options}");
        assert_eq!(memory.limits_hit > 0 || memory.over_cap, given_up > 0, "{options}");
    }
}

#[test]
fn accepts_matches_behind_places_that_need_many_steps() {
    let words = [&[b'a'; 400][..], b"! "].concat();
    let captured = |options: &str, bytes: &[u8]| {
        let mut memory = Memory::new(u64::MAX);
        let holds = run(options, View::whole(bytes), &mut memory);
        assert_eq!(memory.limits_hit, 0, "{options}");
        let values = memory.captured().iter().map(|it| it.value.escape_ascii().to_string());
        (holds, values.collect::<Vec<_>>())
    };
    let found = [&words[..], &words, b"x1234.exe"].concat();
    let rule = r#"pcre:"/(\w+)\d{4}\.exe/,flow:a";"#;
    assert_eq!(captured(rule, &found), (true, vec!["x".to_owned()]));
    assert_eq!(captured(rule, &[&words[..], &words].concat()), (false, vec![]));
    assert!(captured(r#"pcre:"/(?<=x)\d+\.exe|\w+\d{4}\.com/";"#, &found).0);
    assert!(
        captured(r#"content:"!"; pcre:"/\w+\d{4}\.exe$/R"; content:!"z"; within:1;"#, &found).0
    );
}

#[test]
fn accepts_captured_values() {
    let captured = |options: &str, bytes: &[u8]| {
        let mut memory = Memory::new(WORK);
        let holds = run(options, View::whole(bytes), &mut memory);
        let values = memory.captured().iter().map(|captured| {
            let value = captured.value.escape_ascii().to_string();
            (captured.scope, captured.name.to_string(), value)
        });
        (holds, values.collect::<Vec<_>>())
    };
    let value = |scope, name: &str, value: &str| (scope, name.to_owned(), value.to_owned());
    assert_eq!(
        captured(r#"pcre:"/(\d+)-(x)?(y*)/,flow:n,pkt:x,pkt:y";"#, b"a12-b"),
        (true, vec![value(Scope::Flow, "n", "12"), value(Scope::Packet, "y", "")])
    );
    assert_eq!(
        captured(r#"pcre:"/(a)(?P<pkt_b>b)/";"#, b"ab"),
        (true, vec![value(Scope::Packet, "b", "b")])
    );
    // What a failed attempt captured is forgotten.
    let retried = r#"pcre:"/(a.)/,flow:a"; content:"!"; within:1;"#;
    assert_eq!(captured(retried, b"a1?a2!"), (true, vec![value(Scope::Flow, "a", "a2")]));
    assert_eq!(captured(retried, b"a1?a2?"), (false, vec![]));
    assert_eq!(captured(r#"pcre:"/a/,flow:a";"#, b"a"), (true, vec![]));
}

#[test]
fn refuses_searches_beyond_the_work_of_a_rule() {
    let spent = |options: &str, bytes: &[u8]| {
        let mut memory = Memory::new(WORK);
        run(options, View::whole(bytes), &mut memory);
        memory.work()
    };
    // What it was started on, whether it matches or not; a second time where something is captured.
    let bytes = [&[b'x'; 500][..], b"ab"].concat();
    let found = spent(r#"pcre:"/ab/";"#, &bytes);
    assert!((502..700).contains(&found), "{found}");
    assert!((502..700).contains(&spent(r#"pcre:"/ac/";"#, &bytes)));
    assert!((502..700).contains(&spent(r#"pcre:!"/ac/";"#, &bytes)));
    assert!((1004..1300).contains(&spent(r#"pcre:"/(a)b/,flow:a";"#, &bytes)));
    // Its steps, where it is given up.
    let bytes = [&[b'a'; 60][..], b"b"].concat();
    assert!(spent(r#"pcre:"/^(a|aa)+$/";"#, &bytes) > 3500);
    assert!(spent(r#"pcre:!"/^(a|aa)+$/";"#, &bytes) > 3500);
    // From every place anew, it ends with the work of the rule.
    let mut memory = Memory::new(100_000);
    let bytes = [&[b'a'; 500][..], b"b"].concat();
    let rule = r#"pcre:"/a.*?b/"; content:"c"; within:1;"#;
    assert!(!run(rule, View::whole(&bytes), &mut memory));
    assert!(memory.over_cap && memory.work() < 110_000);
}

#[test]
fn shows_how_often_a_limit_was_met() {
    let rules = super::rule_tests::http(&["http.uri; pcre:\"/^\\/(a|aa)+$/\";"]);
    let mut run = super::rule_tests::Run::new(&rules);
    let request = format!("GET /{}b HTTP/1.1\r\n\r\n", "a".repeat(60));
    run.connection(&[(crate::Side::Client, request.as_bytes())], usize::MAX);
    assert_eq!((run.scratch.take_limits_hit(), run.scratch.take_limits_hit()), (1, 0));
    assert_eq!((run.gave_up, run.over_cap), (1, 0));
    run.connection(&[(crate::Side::Client, b"GET /aaab HTTP/1.1\r\n\r\n")], usize::MAX);
    assert_eq!((run.scratch.take_limits_hit(), run.gave_up), (0, 1));
}

/// What is tied to a place costs what it can have looked at, not the rest of the page.
#[test]
fn accepts_tied_expressions_at_many_places() {
    let page = "<p>id=x&name=y</p>\n".repeat(3000);
    for (rule, fits) in [
        ("pcre:\"/^[0-9a-f]{32}&/R\";", true),
        ("pcre:\"/^[^&]*&key=/R\";", true),
        ("pcre:\"/^.*secret/R\";", true),
        ("pcre:\"/.secret/AR\";", true),
        ("pcre:\"/.secret/R\";", false),
        ("pcre:\"/^.*secret/Rs\";", false),
    ] {
        let mut memory = Memory::default();
        let rule = format!("content:\"id=\"; {rule}");
        assert!(!run(&rule, View::whole(page.as_bytes()), &mut memory));
        assert_eq!(!memory.over_cap, fits, "{rule} {}", memory.work());
    }
}
