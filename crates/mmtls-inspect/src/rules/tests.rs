//! Whole rules, and sets of them.

use proptest::prelude::*;

use super::content::{Amount, FastPattern, Place};
use super::rule::Target;
use super::*;
use crate::Side;

fn read(text: &str) -> RuleSet {
    RuleSet::read(text.as_bytes(), &Variables::suricata())
}

/// The only rule, with these options besides a sid.
fn options_of(protocol: &str, options: &str) -> Result<Rule, Cause> {
    let options = options.replace('\n', " ");
    let text = format!("alert {protocol} any any -> any any ({options} sid:1;)");
    let mut set = read(&text);
    assert_eq!(set.rules.len() + set.skipped.len(), 1, "{text}");
    set.rules.pop().ok_or_else(|| set.skipped.remove(0).cause)
}

fn rule(options: &str) -> Rule {
    options_of("tcp", options).unwrap_or_else(|cause| panic!("{options}: {cause}"))
}

fn refused(options: &str) -> Cause {
    options_of("tcp", options).expect_err(options)
}

fn kind(options: &str) -> FaultKind {
    match refused(options) {
        Cause::Fault(fault) => fault.kind,
        cause => panic!("{options}: {cause}"),
    }
}

/// Buffers and how many checks each has.
fn shape(options: &str) -> Vec<(Buffer, usize)> {
    rule(options).buffers.iter().map(|group| (group.buffer, group.checks.len())).collect()
}

#[test]
fn accepts_a_whole_rule() {
    let text = r#"drop http $HOME_NET any -> $EXTERNAL_NET [80,8080:8090] (msg:"A \"b\"\; c"; flow:established,to_server; http.method; content:"POST"; http.uri; content:"/a|2e|php"; nocase; fast_pattern; content:!"x"; distance:1; within:5; pcre:"/^\/a$/R"; flowbits:set,a.b; threshold:type limit,track by_src,count 1,seconds 60; reference:url,example.com/a; reference:cve,2020-1; classtype:trojan-activity; metadata:created_at 2020_01_01, severity Major; target:src_ip; priority:2; gid:3; sid:2000001; rev:4;)"#;
    let set = read(text);
    assert_eq!(set.skipped, []);
    let rule = &set.rules[0];
    assert_eq!((rule.line, rule.id, rule.revision), (1, Id { gid: 3, sid: 2_000_001 }, 4));
    assert_eq!(&*rule.message, "A \"b\"; c");
    assert_eq!((rule.flow.from, rule.priority), (Some(Side::Client), Some(2)));
    assert_eq!((rule.target, rule.references.len()), (Some(Target::Source), 2));
    assert_eq!(rule.metadata[1], ("severity".into(), "Major".into()));
    assert_eq!(rule.class_type.as_deref(), Some("trojan-activity"));
    assert!(rule.threshold.is_some() && rule.flow_bits.len() == 1);
    assert_eq!(rule.buffers.len(), 2);
    let uri = &rule.buffers[1];
    assert_eq!((uri.buffer, uri.checks.len()), (Buffer::HttpUri, 3));
    let Check::Content(content) = &uri.checks[0] else { panic!("{uri:?}") };
    assert_eq!((&*content.bytes, content.nocase), (&b"/a.php"[..], true));
    assert_eq!(content.fast_pattern, Some(FastPattern::Whole));
    let Check::Content(content) = &uri.checks[1] else { panic!("{uri:?}") };
    let number = |number| Some(Amount::Number(number));
    assert_eq!(content.place, Place::Relative { distance: number(1), within: number(5) });
}

#[test]
fn accepts_every_keyword_once() {
    for options in [
        r#"msg:"a";"#,
        "rev:1;",
        "gid:2;",
        "classtype:a-b;",
        "priority:255;",
        "reference:url,a.b/c;",
        "metadata:a b, c;",
        "target:dest_ip;",
        "noalert;",
        "tag:session,5,packets;",
        "flow:to_client;",
        "flowbits:isset,a;",
        "xbits:isset,a,track ip_src;",
        "threshold:type limit,track by_src,count 1,seconds 1;",
        "detection_filter:track by_src,count 1,seconds 1;",
        "dsize:1<>9;",
        "urilen:>5,raw;",
        "tls.version:1.2;",
        "http2.frametype:GOAWAY;",
        "http2.errorcode:CANCEL;",
        "http2.priority:1;",
        "http2.window:>1;",
        "http2.size_update:1;",
        "http2.settings:SETTINGS_ENABLE_PUSH=0;",
        r#"content:"a"; rawbytes;"#,
        r#"content:"a"; offset:1; depth:5;"#,
        r#"content:"a"; startswith; endswith;"#,
        r#"content:"a"; fast_pattern:only;"#,
        r#"uricontent:"a"; nocase;"#,
        r#"tls.subject:!"CN=a";"#,
        r#"tls.issuerdn:"CN=a";"#,
        r#"tls.fingerprint:"aa:bb";"#,
        r#"pcre:"/a/i";"#,
        "isdataat:5;",
        "byte_test:1,=,1,0;",
        "byte_jump:1,0;",
        "byte_extract:1,0,a;",
        "http.host; bsize:5;",
        "http.host; dataset:isset,a,type string;",
        r#"http.uri; content:"a"; pkt_data; content:"b";"#,
    ] {
        rule(options);
    }
}

#[test]
fn refuses_a_faulty_form_of_every_keyword() {
    for options in [
        "msg:a;",
        r#"msg:!"a";"#,
        "rev:x;",
        "gid:-1;",
        "classtype:a b;",
        "priority:0;",
        "priority:256;",
        "reference:url;",
        "metadata:;",
        "target:both;",
        "noalert:1;",
        "tag:x;",
        "flow:x;",
        "flowbits:x,a;",
        "xbits:set,a;",
        "threshold:type limit;",
        "detection_filter:track by_src;",
        "dsize:65536;",
        "urilen:5,x;",
        "tls.version:2;",
        "http2.frametype:x;",
        "http2.errorcode:x;",
        "http2.priority:x;",
        "http2.window:x;",
        "http2.size_update:x;",
        "http2.settings:x;",
        "content:a;",
        r#"content:"a";nocase:1;"#,
        "nocase;",
        r#"uricontent:"|4|";"#,
        r#"tls.subject:"";"#,
        r#"pcre:"a";"#,
        "isdataat:x;",
        "byte_test:x;",
        "byte_jump:x;",
        "byte_extract:x;",
        "bsize:5;",
        "http.host;bsize:x;",
        "http.host;dataset:isset;",
        "http.uri:5;",
        "http_uri;",
        "to_md5;",
        "http.uri;xor:x;",
        "sid:2;",
    ] {
        assert!(refused(options).is_fault(), "{options}");
    }
}

#[test]
fn accepts_every_sticky_buffer_and_transformation() {
    for name in [
        "http.uri",
        "http.uri.raw",
        "http.method",
        "http.request_line",
        "http_request_line",
        "http.request_body",
        "http.response_body",
        "http.header",
        "http.header.raw",
        "http.cookie",
        "http.user_agent",
        "http.host",
        "http.host.raw",
        "http.accept",
        "http.accept_enc",
        "http.accept_lang",
        "http.referer",
        "http.connection",
        "http.content_type",
        "http.content_len",
        "http.start",
        "http.protocol",
        "http.header_names",
        "http.request_header",
        "http.response_header",
        "http.stat_code",
        "http.stat_msg",
        "http.response_line",
        "http.server",
        "http.location",
        "http2.header_name",
        "file.data",
        "file_data",
        "tls.sni",
        "tls_sni",
        "tls.cert_subject",
        "tls.cert_issuer",
        "tls.cert_serial",
        "tls.cert_fingerprint",
        "tls.certs",
        "tls.alpn",
        "ja3.hash",
        "ja3_hash",
        "ja3.string",
        "ja3_string",
        "ja3s.hash",
        "ja3s.string",
        "ja4.hash",
        "ja4_hash",
    ] {
        let rule = rule(&format!(r#"{name}; content:"a"; endswith;"#));
        assert_eq!(rule.buffers.len(), 1);
        assert_ne!(rule.buffers[0].buffer, Buffer::Payload, "{name}");
        assert_eq!(kind(&format!("{name};")), FaultKind::UnusedBuffer, "{name}");
    }
    let all = "to_lowercase; to_uppercase; strip_whitespace; compress_whitespace; url_decode; \
               to_md5; to_sha1; to_sha256; dotprefix; header_lowercase; strip_pseudo_headers; \
               xor:\"0aff\";";
    let rule = rule(&format!(r#"http.uri; {all} content:"a";"#));
    assert_eq!(rule.buffers[0].transforms.len(), 12);
    assert_eq!(kind(r#"http.uri; content:"a"; to_md5;"#), FaultKind::UnusedBuffer);
    let many = "to_md5; ".repeat(buffers::MAX_TRANSFORMS + 1);
    assert_eq!(kind(&format!("http.uri; {many}")), FaultKind::TooMany);
}

#[test]
fn accepts_modifiers_of_the_content_before() {
    for (name, buffer) in [
        ("http_uri", Buffer::HttpUri),
        ("http_raw_uri", Buffer::HttpUriRaw),
        ("http_method", Buffer::HttpMethod),
        ("http_client_body", Buffer::HttpRequestBody),
        ("http_server_body", Buffer::HttpResponseBody),
        ("http_header", Buffer::HttpHeader),
        ("http_raw_header", Buffer::HttpHeaderRaw),
        ("http_cookie", Buffer::HttpCookie),
        ("http_user_agent", Buffer::HttpUserAgent),
        ("http_host", Buffer::HttpHost),
        ("http_raw_host", Buffer::HttpHostRaw),
        ("http_stat_code", Buffer::HttpStatCode),
        ("http_stat_msg", Buffer::HttpStatMessage),
    ] {
        assert_eq!(shape(&format!(r#"content:"a"; {name}; nocase;"#)), [(buffer, 1)]);
    }
    let options = r#"content:"GET"; http_method; content:"a"; http_uri; content:"b"; distance:0;
        http_uri; isdataat:2,relative; content:"c"; pcre:"/d/U"; pcre:"/e/";"#;
    let expected = [(Buffer::Payload, 2), (Buffer::HttpMethod, 1), (Buffer::HttpUri, 4)];
    assert_eq!(shape(options), expected);
}

#[test]
fn accepts_no_data_behind_a_content_as_its_end() {
    for options in [
        r#"content:"a"; http_uri; isdataat:!1,relative;"#,
        r#"content:"a"; isdataat:!1,relative; http_uri;"#,
        r#"http.uri; content:"a"; isdataat: !1 , relative;"#,
        r#"http.uri; content:"a"; endswith; endswith;"#,
    ] {
        let rule = rule(options);
        let [group] = &rule.buffers[..] else { panic!("{rule:?}") };
        let [Check::Content(content)] = &group.checks[..] else { panic!("{rule:?}") };
        assert!(content.at_end && group.buffer == Buffer::HttpUri);
    }
    assert_eq!(shape(r#"http.uri; pcre:"/a/"; isdataat:!1,relative;"#), [(Buffer::HttpUri, 2)]);
    let other = r#"http.uri; content:"a"; pkt_data; pcre:"/a/"; isdataat:!1,relative;"#;
    assert_eq!(shape(other), [(Buffer::HttpUri, 1), (Buffer::Payload, 2)]);
}

#[test]
fn refuses_modifiers_that_belong_to_nothing() {
    assert_eq!(kind("http_uri;"), FaultKind::NoContent);
    assert_eq!(kind(r#"content:"a"; http_uri; http_header;"#), FaultKind::Twice);
    assert_eq!(kind(r#"http.uri; content:"a"; http_uri;"#), FaultKind::StickyBuffer);
    assert_eq!(kind(r#"http.uri; pcre:"/a/H";"#), FaultKind::StickyBuffer);
    assert_eq!(kind(r#"http.uri; to_lowercase; pcre:"/a/U";"#), FaultKind::StickyBuffer);
    assert_eq!(shape(r#"http.uri; pcre:"/a/U";"#), [(Buffer::HttpUri, 1)]);
    assert_eq!(shape("pcre: ! /a/U;"), [(Buffer::HttpUri, 1)]);
    assert_eq!(shape(r#"file_data; pcre:"/a/Q";"#), [(Buffer::FileData, 1)]);
    assert_eq!(kind(r#"http.uri; uricontent:"a";"#), FaultKind::StickyBuffer);
    assert_eq!(kind(r#"content:"a"; http.uri; depth:5;"#), FaultKind::NoContent);
    assert_eq!(kind(r#"http.uri; http.header; content:"a";"#), FaultKind::UnusedBuffer);
}

#[test]
fn accepts_a_buffer_named_twice_as_one_list_unless_there_can_be_several() {
    let twice =
        |name| format!(r#"{name}; content:"a"; http.start; content:"b"; {name}; content:"c";"#);
    assert_eq!(shape(&twice("http.uri")), [(Buffer::HttpUri, 2), (Buffer::HttpStart, 1)]);
    let header = Buffer::HttpRequestHeader;
    let expected = [(header, 1), (Buffer::HttpStart, 1), (header, 1)];
    assert_eq!(shape(&twice("http.request_header")), expected);
    let lower = r#"http.uri; content:"a"; http.uri; to_lowercase; content:"c";"#;
    assert_eq!(shape(lower), [(Buffer::HttpUri, 1), (Buffer::HttpUri, 1)]);
}

#[test]
fn accepts_names_of_extracted_numbers_and_refuses_others() {
    let options = r#"content:"a"; byte_extract:2,0,len,relative; content:"b"; distance:len; within:9;
        byte_test:1,>,len,0; isdataat:len; byte_jump:1,len;"#;
    let rule = rule(options);
    assert_eq!((rule.extracted, rule.buffers[0].checks.len()), (1, 6));
    assert_eq!(kind(r#"content:"a"; distance:len;"#), FaultKind::UndefinedName);
    assert_eq!(kind("byte_extract:1,0,a; byte_extract:1,1,a;"), FaultKind::Twice);
    let many: String =
        (0..=reader::MAX_EXTRACTED).map(|at| format!("byte_extract:1,0,n{at};")).collect();
    assert_eq!(kind(&many), FaultKind::TooMany);
}

#[test]
fn refuses_what_cannot_match() {
    let conflict = |options| matches!(kind(options), FaultKind::Conflict(_));
    assert!(conflict(r#"http.uri; content:"a"; tls.sni; content:"b";"#));
    assert!(conflict(r#"http.uri; content:"a"; http.stat_code; content:"b";"#));
    assert!(conflict(r#"flow:to_client; http.uri; content:"a";"#));
    assert!(conflict(r#"tls.version:1.2; http.start; content:"a";"#));
    assert!(conflict(r#"content:"a"; fast_pattern; content:"b"; fast_pattern;"#));
    assert!(conflict(r#"content:"a"; fast_pattern:only; content:"b"; distance:1;"#));
    assert!(options_of("tls", r#"http.uri; content:"a";"#).is_err());
    assert!(options_of("http2", r#"tls.sni; content:"a";"#).is_err());
    for of_http2 in [r#"http2.header_name; content:"a";"#, "http2.frametype:DATA;"] {
        assert!(options_of("http1", of_http2).is_err() && options_of("http", of_http2).is_ok());
    }
    assert!(options_of("tls", r#"ja3.hash; content:"a";"#).is_ok());
    for never in [r#"content:"g";"#.to_owned(), format!(r#"content:"{}";"#, "a".repeat(33))] {
        assert!(options_of("tls", &format!("ja3s.hash; {never}")).is_err(), "{never}");
        assert!(options_of("tls", &format!("ja3s.string; {never}")).is_ok(), "{never}");
    }
    let never = |options| matches!(kind(options), FaultKind::NeverMatches(_));
    assert!(never(r#"http.host; content:"Example.com";"#));
    assert!(never(r#"content:"abc"; depth:2;"#));
    assert!(options_of("http", r#"http.host; content:"Example.com"; nocase;"#).is_ok());
}

#[test]
fn refuses_unsupported_rules_by_the_first_name() {
    let unsupported = |name: &str| Cause::UnsupportedKeyword(name.into());
    assert_eq!(refused(r#"dns.query; content:"a";"#), unsupported("dns.query"));
    assert_eq!(refused(r#"content:"broken|"; lua:a.lua;"#), unsupported("lua"));
    let protocol = Cause::UnsupportedProtocol("udp".into());
    assert_eq!(options_of("udp", "lua:a.lua;").unwrap_err(), protocol);
    let form = Cause::UnsupportedForm { keyword: "dataset".into(), form: "set".into() };
    assert_eq!(refused("http.host; dataset:set,a,type md5;"), form);
    let set = read("alert tcp $NOWHERE any -> any any (msg:\"x\"; sid:7;)");
    let skipped = &set.skipped[0];
    assert_eq!(skipped.cause, Cause::UndefinedVariable("$NOWHERE".into()));
    assert_eq!((skipped.sid, skipped.message.as_deref()), (Some(7), Some("x")));
    assert_eq!(skipped.protocol.as_deref(), Some("tcp"));
}

#[test]
fn refuses_faults_at_their_place() {
    for (text, at, kind) in [
        ("alert tcp any any -> any any", 28, FaultKind::Missing("options")),
        ("alert tcp any any -> any any (sid:1;", 36, FaultKind::Missing(")")),
        ("alert tcp any any -> any any (msg:\"a\";)", 30, FaultKind::Missing("sid")),
        ("alert tcp any any -> any any (sid:1; rev:x;)", 37, FaultKind::Number),
        ("alert tcp any any -> any any (sid:1; rev:1)", 36, FaultKind::Unterminated),
        ("nothing", 7, FaultKind::Missing("protocol")),
        ("alert tcp any any -> any any (sid:0;)", 30, FaultKind::Number),
    ] {
        let set = read(text);
        let Cause::Fault(fault) = &set.skipped[0].cause else { panic!("{text}") };
        assert_eq!((fault.at, &fault.kind), (at, &kind), "{text}");
    }
}

#[test]
fn accepts_comments_continued_lines_and_white_space() {
    let text = "\u{feff}# a comment\r\n\n\
        alert tcp any any -> any any \\\r\n  (msg:\"two \\ \n lines\"; sid:1;)\r\n\
        #alert tcp any any -> any any (sid:2;)\n\
        ## drop http any any -> any any (\\\n   sid:3;) \\\n\talso a comment\n\
        ; an older comment\n\
        # alerts and drops are counted (only) in rules\n\
        \x20 alert tcp any any -> any any (sid:4;)";
    let set = read(text);
    assert_eq!(set.skipped, []);
    let lines: Vec<(u32, u32)> = set.rules.iter().map(|rule| (rule.line, rule.id.sid)).collect();
    assert_eq!(lines, [(3, 1), (12, 4)]);
    assert_eq!(&*set.rules[0].message, "two  lines");
    assert_eq!(set.disabled, 2);
}

#[test]
fn accepts_the_higher_revision_of_a_sid() {
    let rule = |sid, rev| format!("alert tcp any any -> any any (sid:{sid}; rev:{rev};)\n");
    let text = [rule(1, 2), rule(1, 2), rule(2, 1), rule(1, 3), rule(1, 1)].concat();
    let set = read(&text);
    let kept: Vec<_> = set.rules.iter().map(|rule| (rule.id.sid, rule.revision)).collect();
    assert_eq!(kept, [(1, 3), (2, 1)]);
    let causes: Vec<_> = set.skipped.iter().map(|it| (it.line, it.cause.clone())).collect();
    let expected = [
        (2, Cause::Duplicate { text: 0, line: 1 }),
        (1, Cause::Replaced { text: 0, line: 4 }),
        (5, Cause::Duplicate { text: 0, line: 4 }),
    ];
    assert_eq!(causes, expected);
}

#[test]
fn refuses_rules_over_the_caps_and_other_encodings() {
    let long =
        format!("alert tcp any any -> any any (msg:\"{}\"; sid:1;)", "x".repeat(MAX_RULE_LEN));
    assert!(
        matches!(&read(&long).skipped[0].cause, Cause::Fault(it) if it.kind == FaultKind::TooLong)
    );
    let continued = format!("alert tcp any any -> any any \\\n{}", "x \\\n".repeat(MAX_RULE_LEN));
    let set = read(&continued);
    assert!(
        matches!(&set.skipped[..], [Skipped { cause: Cause::Fault(it), .. }] if it.kind == FaultKind::TooLong)
    );
    let set = RuleSet::read(
        b"alert tcp any any -> any any (msg:\"\xff\"; sid:1;)",
        &Variables::default(),
    );
    assert!(matches!(&set.skipped[0].cause, Cause::Fault(it) if it.kind == FaultKind::NotUtf8));
}

#[test]
fn accepts_the_same_set_for_the_same_addresses() {
    let text =
        "alert tcp $HOME_NET any -> any any (sid:1;)\nalert tcp $HOME_NET any -> any any (sid:2;)";
    let set = read(text);
    let [first, second] = &set.rules[..] else { panic!() };
    assert!(std::sync::Arc::ptr_eq(&first.header.source, &second.header.source));
}

/// Text that gets further than random bytes would.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("alert tcp $HOME_NET any -> [1.2.3.4,!::1/64] 80: ("),
        Just("msg:\"a\\;\"; "),
        Just("content:\"a|0d 0a|\"; "),
        Just("content:!\"|\"; "),
        Just("http_uri; "),
        Just("http.uri; "),
        Just("tls.sni; "),
        Just("to_md5; "),
        Just("distance:"),
        Just("within:len; "),
        Just("byte_extract:2,0,len,relative; "),
        Just("byte_test:len,=,5,-1; "),
        Just("isdataat:!1,relative; "),
        Just("bsize:1<>5; "),
        Just("pcre:\"/a/Ri\"; "),
        Just("startswith; "),
        Just("endswith; "),
        Just("fast_pattern:"),
        Just("only; "),
        Just("sid:1; "),
        Just(")"),
        Just("\\"),
        Just("\n"),
        Just("# "),
        Just("\""),
        Just("["),
        Just("]"),
        Just("!"),
        Just("$"),
        Just(":"),
        Just(";"),
        Just(","),
        Just("é"),
        Just("9"),
        Just("flow:to_server; "),
        Just("threshold:type limit, track by_src, count 1, seconds 1; "),
        Just("-"),
        Just("pkt_data; "),
        Just("urilen:>5,raw; "),
        Just("|"),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn accepts_any_text_without_panic(text in pieces(), noise in proptest::collection::vec(any::<u8>(), 0..40)) {
        let variables = Variables::suricata();
        let whole = format!("alert tcp any any -> any any ({text} sid:1;)\n{text}");
        let set = RuleSet::read(whole.as_bytes(), &variables);
        for rule in &set.rules {
            prop_assert!(rule.buffers.iter().all(|group| !group.checks.is_empty()));
        }
        for skipped in &set.skipped {
            prop_assert!(!skipped.cause.to_string().is_empty() && !skipped.cause.summary().is_empty());
        }
        let _ = RuleSet::read(&[text.as_bytes(), &noise].concat(), &variables);
        let _ = RuleSet::read(&noise, &variables);
    }
}

/// Digits of certificates and of MD5 are the same in either case.
#[test]
fn accepts_digits_in_either_case() {
    let text = "alert tls any any -> any any (tls.fingerprint:\"90:86:A4\"; sid:1;)\n\
        alert tls any any -> any any (tls.cert_serial; content:\"0a:b1\"; sid:2;)\n\
        alert tls any any -> any any (tls.cert_subject; content:\"CN=a\"; sid:3;)\n\
        alert tls any any -> any any (ja3.hash; content:\"0A\"; sid:4;)\n\
        alert tls any any -> any any (ja3s.hash; content:\"0A\"; sid:5;)\n\
        alert tls any any -> any any (ja4.hash; content:\"0A\"; sid:6;)\n";
    let set = RuleSet::read(text.as_bytes(), &Variables::suricata());
    let ignores_case = set.rules.iter().map(|rule| match &rule.buffers[0].checks[0] {
        Check::Content(content) => content.nocase,
        other => panic!("{other:?}"),
    });
    assert_eq!(ignores_case.collect::<Vec<_>>(), [true, true, false, true, true, false]);
}
