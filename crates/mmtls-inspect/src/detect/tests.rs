//! Rules as they are written, and the buffers that they match.

use super::checks::Checks;
use super::dataset::Datasets;
use super::memory::Memory;
use super::transform;
use super::unusable::Unusable;
use super::view::View;
use crate::rules::dataset::DatasetKind;
use crate::rules::{BufferChecks, RuleSet, Variables};

pub(super) const WORK: u64 = 1 << 20;

fn groups(options: &str) -> Vec<BufferChecks> {
    let text = format!("alert tcp any any -> any any ({options} sid:1;)");
    let mut set = RuleSet::read(text.as_bytes(), &Variables::suricata());
    assert_eq!(set.skipped, [], "{options}");
    set.rules.remove(0).buffers
}

fn datasets() -> Datasets {
    let mut datasets = Datasets::default();
    datasets.add("words", DatasetKind::String, b"YmFk\ndmVyeSBiYWQ=\n").unwrap();
    datasets.add("md5", DatasetKind::Md5, b"bae60998ffe4923b131e3d6e4c19993e\n").unwrap();
    let digest = b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    datasets.add("sha256", DatasetKind::Sha256, digest).unwrap();
    datasets
}

pub(super) fn unusable(options: &str) -> Unusable {
    Checks::new(&groups(options)[0], &datasets()).expect_err(options)
}

/// Whether all groups of a rule hold for one and the same buffer.
pub(super) fn run(options: &str, view: View<'_>, memory: &mut Memory) -> bool {
    groups(options).iter().all(|group| {
        let checks = Checks::new(group, &datasets()).unwrap();
        let transformed = transform::apply(&group.transforms, view);
        transformed.is_some_and(|transformed| checks.apply(transformed.view(), memory))
    })
}

fn holds(options: &str, bytes: &[u8]) -> bool {
    let mut memory = Memory::new(WORK);
    let holds = run(options, View::whole(bytes), &mut memory);
    assert!(!memory.over_cap);
    holds
}

pub(super) fn check(rows: &[(&str, &[u8], bool)]) {
    for (options, bytes, expected) in rows {
        let text = bytes.escape_ascii();
        assert_eq!(holds(options, bytes), *expected, "{options} in {text}");
    }
}

#[test]
fn accepts_and_refuses_contents() {
    check(&[
        (r#"content:"bc";"#, b"abcd", true),
        (r#"content:"bd";"#, b"abcd", false),
        (r#"content:"abc";"#, b"ab", false),
        (r#"content:"a";"#, b"", false),
        (r#"content:"|00 ff|";"#, b"a\x00\xffb", true),
        (r#"content:"bc";"#, b"aBCd", false),
        (r#"content:"bC"; nocase;"#, b"aBcd", true),
        (r#"content:"[1]"; nocase;"#, b"{1}", false),
        (r#"content:"ab"; fast_pattern:only;"#, b"xxabxx", true),
        (r#"content:"ab"; fast_pattern:only;"#, b"xxaxbx", false),
        (r#"content:"abcd"; fast_pattern:1,2;"#, b"xbcx", false),
        (r#"content:"ab"; rawbytes;"#, b"ab", true),
        (r#"content:"a"; content:"b";"#, b"ba", true),
        (r#"content:"a"; content:"a";"#, b"a", true),
        (r#"content:"a"; content:"b";"#, b"aa", false),
        // Negated.
        (r#"content:!"a";"#, b"bcd", true),
        (r#"content:!"a";"#, b"bca", false),
        (r#"content:!"a";"#, b"", true),
        (r#"content:!"A"; nocase;"#, b"a", false),
        (r#"content:"b"; content:!"a";"#, b"ba", false),
    ]);
}

#[test]
fn accepts_and_refuses_places_in_the_buffer() {
    check(&[
        (r#"content:"a"; offset:1;"#, b"ab", false),
        (r#"content:"a"; offset:1;"#, b"aba", true),
        (r#"content:"a"; offset:9;"#, b"aba", false),
        (r#"content:"ab"; depth:2;"#, b"abc", true),
        (r#"content:"ab"; depth:2;"#, b"xab", false),
        (r#"content:"ab"; depth:3;"#, b"xab", true),
        (r#"content:"ab"; depth:9;"#, b"xab", true),
        (r#"content:"ab"; offset:1; depth:2;"#, b"xabx", true),
        (r#"content:"ab"; depth:2; offset:1;"#, b"xabx", true),
        (r#"content:"ab"; offset:1; depth:2;"#, b"xxab", false),
        (r#"content:"ab"; offset:1; depth:3;"#, b"xxab", true),
        (r#"content:"ab"; startswith;"#, b"abx", true),
        (r#"content:"ab"; startswith;"#, b"xab", false),
        (r#"content:"ab"; endswith;"#, b"abxab", true),
        (r#"content:"ab"; endswith;"#, b"abx", false),
        (r#"content:"ab"; endswith; depth:3;"#, b"xab", true),
        (r#"content:"ab"; endswith; depth:3;"#, b"xxab", false),
        (r#"content:"ab"; endswith; offset:2;"#, b"xab", false),
        (r#"content:"ab"; startswith; endswith;"#, b"ab", true),
        (r#"content:"ab"; startswith; endswith;"#, b"abab", false),
        (r#"content:"AB"; nocase; endswith;"#, b"xab", true),
        (r#"content:"ab"; isdataat:!1,relative;"#, b"xab", true),
        (r#"content:"ab"; isdataat:!1,relative;"#, b"abx", false),
        // Negated: only there it must not be.
        (r#"content:!"a"; offset:1;"#, b"abc", true),
        (r#"content:!"a"; offset:1;"#, b"aba", false),
        (r#"content:!"a"; offset:9;"#, b"aba", true),
        (r#"content:!"a"; depth:2;"#, b"bba", true),
        (r#"content:!"a"; depth:3;"#, b"bba", false),
        (r#"content:!"ab"; offset:1; depth:2;"#, b"abab", true),
        (r#"content:!"ab"; startswith;"#, b"xab", true),
        (r#"content:!"ab"; startswith;"#, b"ab", false),
        (r#"content:!"ab"; endswith;"#, b"abx", true),
        // Suricata looks at the first one only.
        (r#"content:!"ab"; endswith;"#, b"abxab", false),
        (r#"content:!"ab"; endswith;"#, b"b", true),
        (r#"content:!"ab"; endswith; depth:3;"#, b"xxab", true),
    ]);
}

#[test]
fn accepts_and_refuses_places_behind_a_match() {
    check(&[
        (r#"content:"a"; content:"b"; distance:0;"#, b"ab", true),
        (r#"content:"a"; content:"b"; distance:0;"#, b"ba", false),
        (r#"content:"a"; content:"a"; distance:0;"#, b"a", false),
        (r#"content:"a"; content:"b"; distance:1;"#, b"ab", false),
        (r#"content:"a"; content:"b"; distance:1;"#, b"axb", true),
        (r#"content:"ab"; content:"b"; distance:-1;"#, b"ab", true),
        (r#"content:"ab"; content:"a"; distance:-1;"#, b"ab", false),
        (r#"content:"b"; content:"a"; distance:-99;"#, b"ab", true),
        (r#"content:"a"; content:"b"; within:1;"#, b"ab", true),
        (r#"content:"a"; content:"b"; within:1;"#, b"axb", false),
        (r#"content:"a"; content:"b"; within:2;"#, b"axb", true),
        (r#"content:"a"; content:"b"; distance:1; within:1;"#, b"axb", true),
        (r#"content:"a"; content:"b"; distance:1; within:1;"#, b"axxb", false),
        (r#"content:"a"; content:"b"; distance:1; within:2;"#, b"axxb", true),
        (r#"content:"a"; content:"b"; distance:1; within:2;"#, b"ab", false),
        // The end is counted from the distance, even where that is before the buffer.
        (r#"content:"b"; content:"a"; distance:-2; within:1;"#, b"ab", true),
        (r#"content:"b"; content:"a"; distance:-3; within:2;"#, b"ab", true),
        (r#"content:"b"; content:"a"; distance:-3; within:1;"#, b"ab", false),
        (r#"content:"b"; content:!"a"; distance:-9; within:1;"#, b"ab", true),
        // Another one of the first literal.
        (r#"content:"a"; content:"b"; within:1;"#, b"axab", true),
        (r#"content:"a"; content:"b"; distance:0; within:1;"#, b"aab", true),
        (r#"content:"aa"; content:"b"; within:1;"#, b"aaab", true),
        (r#"content:"a"; content:"b"; within:2; content:"c"; within:1;"#, b"axbxabxabc", true),
        (r#"content:"a"; content:"b"; within:2; content:"c"; within:1;"#, b"axbxabxab", false),
        (r#"content:"a"; content:!"b"; within:1;"#, b"abab", false),
        (r#"content:"a"; content:!"b"; within:1;"#, b"abac", true),
        (r#"content:"a"; content:!"b"; distance:0;"#, b"aba", true),
        (r#"content:"a"; content:!"b"; distance:0;"#, b"ab", false),
        // A negated one leaves the place where it was. Suricata gives up after the first one here.
        (r#"content:"a"; content:!"z"; content:"c"; within:1;"#, b"abac", true),
        (
            r#"content:"a"; content:!"b"; within:1; content:"d"; distance:1; within:1;"#,
            b"abdacd",
            true,
        ),
        // One that is not relative starts anew.
        (r#"content:"b"; content:"a"; content:"b"; within:1;"#, b"xbab", true),
        (r#"content:"b"; content:"a"; depth:1; content:"b"; within:1;"#, b"axb", false),
        // Without a match before, it counts from the start.
        (r#"content:"b"; distance:1; within:1;"#, b"ab", true),
        (r#"content:"b"; within:1;"#, b"ab", false),
        (r#"content:"a"; content:"b"; within:3; endswith;"#, b"axbxb", false),
        (r#"content:"a"; content:"b"; within:3; endswith;"#, b"abab", true),
        (r#"content:"a"; content:!"b"; within:1; endswith;"#, b"ab", false),
        (r#"content:"a"; content:!"b"; within:1; endswith;"#, b"abx", true),
    ]);
}

#[test]
fn accepts_and_refuses_datasets() {
    let digest = b"\xba\xe6\x09\x98\xff\xe4\x92\x3b\x13\x1e\x3d\x6e\x4c\x19\x99\x3e";
    check(&[
        ("http.uri; dataset:isset,words,type string;", b"bad", true),
        ("http.uri; dataset:isset,words;", b"very bad", true),
        ("http.uri; dataset:isset,words;", b"Bad", false),
        ("http.uri; dataset:isset,words;", b"bad ", false),
        ("http.uri; dataset:isset,words;", b"", false),
        ("http.uri; dataset:isnotset,words;", b"bad", false),
        ("http.uri; dataset:isnotset,words;", b"good", true),
        ("http.uri; dataset:isnotset,words;", b"", false),
        ("http.uri; dataset:isset,md5;", digest, true),
        ("http.uri; dataset:isset,md5;", b"bad", false),
        ("http.uri; to_md5; dataset:isset,md5,type md5;", b"bad", true),
        ("http.uri; to_md5; dataset:isset,md5,type md5;", b"good", false),
        ("http.uri; to_md5; dataset:isnotset,md5;", b"good", true),
        ("http.uri; dataset:isnotset,md5;", b"not even a digest", true),
        ("http.uri; to_sha256; dataset:isset,sha256;", b"abc", true),
        ("http.uri; to_sha256; dataset:isset,sha256;", b"abd", false),
    ]);
    let name = "other".into();
    assert_eq!(unusable("http.uri; dataset:isset,other;"), Unusable::NoDataset(name));
    let fault = unusable("http.uri; dataset:isset,words,type md5;");
    assert_eq!(fault, Unusable::DatasetKind("words".into()));
    assert_eq!(fault.to_string(), "dataset words is of another type");
}

#[test]
fn accepts_and_refuses_transformed_buffers() {
    check(&[
        (r#"http.uri; to_lowercase; content:"abc1é";"#, "aBC1é".as_bytes(), true),
        (r#"http.uri; to_uppercase; content:"ABC";"#, b"abC", true),
        (r#"http.uri; strip_whitespace; content:"abcd"; bsize:4;"#, b" a\tb\r\n\x0b\x0cc d ", true),
        (r#"http.uri; compress_whitespace; content:"a b"; bsize:3;"#, b"a   b", true),
        (r#"http.uri; compress_whitespace; content:"a|09|b"; bsize:3;"#, b"a\t \nb", true),
        (r#"http.uri; url_decode; content:"a b/c%zz%4";"#, b"a+b%2fc%zz%4", true),
        (r#"http.uri; url_decode; content:"%"; bsize:1;"#, b"%25", true),
        (r#"http.uri; dotprefix; content:".example.com"; endswith;"#, b"example.com", true),
        (r#"http.uri; dotprefix; content:".example.com"; endswith;"#, b"a.example.com", true),
        (r#"http.uri; dotprefix; content:".example.com"; endswith;"#, b"anexample.com", false),
        ("http.uri; dotprefix; bsize:0;", b"", true),
        (r#"http.uri; xor:"0d0ac8ff"; content:"password=";"#, b"}k\xbb\x8cze\xba\x9b0", true),
        (r#"http.header; header_lowercase; content:"host: A|0a|b:C";"#, b"Host: A\nB:C\n", true),
        (r#"http.header; header_lowercase; content:"a:B:C";"#, b"A:B:C", true),
        (
            r#"http.header; strip_pseudo_headers; content:"a: b|0a|c"; bsize:6;"#,
            b":m: G\na: b\n:p\nc",
            true,
        ),
        ("http.header; strip_pseudo_headers; bsize:0;", b":a: b\r\n:c: d\r\n", true),
        (
            r#"http.uri; to_md5; content:"|90015098 3cd24fb0 d6963f7d 28e17f72|"; bsize:16;"#,
            b"abc",
            true,
        ),
        (r#"http.uri; to_md5; content:"|d41d8cd9 8f00b204 e9800998 ecf8427e|";"#, b"", true),
        (
            r#"http.uri; to_sha1; content:"|a9993e36 4706816a ba3e2571 7850c26c 9cd0d89d|";"#,
            b"abc",
            true,
        ),
        (r#"http.uri; to_sha256; content:"|ba7816bf|"; startswith; bsize:32;"#, b"abc", true),
        (r#"http.uri; to_lowercase; strip_whitespace; content:"ab"; bsize:2;"#, b"A B", true),
        (r#"http.uri; url_decode; url_decode; content:"/"; bsize:1;"#, b"%252f", true),
    ]);
}

/// Whether checks hold for these bytes so far, for these as the whole, and for them with three bytes
/// before that are lost.
fn partly(options: &str, bytes: &[u8]) -> [bool; 3] {
    [(0, false), (0, true), (3, true)].map(|(start, is_whole)| {
        run(
            options,
            View { bytes, start, is_whole, starts_here: false, goes_on: false },
            &mut Memory::new(WORK),
        )
    })
}

#[test]
fn refuses_to_decide_before_it_is_certain() {
    for (options, bytes, expected) in [
        (r#"content:"a";"#, &b"xa"[..], [true, true, true]),
        (r#"content:"a"; depth:2;"#, b"xa", [true, true, false]),
        (r#"content:"a"; offset:4;"#, b"xa", [false, false, true]),
        (r#"content:"a"; startswith;"#, b"a", [true, true, false]),
        (r#"content:"a"; endswith;"#, b"xa", [false, true, true]),
        (r#"content:!"b";"#, b"xa", [false, true, false]),
        (r#"content:!"b"; depth:2;"#, b"xa", [true, true, false]),
        (r#"content:!"b"; depth:3;"#, b"xa", [false, true, false]),
        (r#"content:!"b"; offset:3;"#, b"xa", [false, true, true]),
        (r#"content:!"ab"; depth:2;"#, b"a", [false, true, false]),
        (r#"content:!"b"; endswith;"#, b"xa", [false, true, true]),
        (r#"content:"x"; content:!"b"; within:1;"#, b"xa", [true, true, true]),
        (r#"content:"x"; content:!"b"; within:2;"#, b"xa", [false, true, true]),
        ("isdataat:1;", b"xa", [true, true, true]),
        ("isdataat:!2;", b"xa", [false, true, false]),
        (r#"content:"x"; isdataat:1,relative;"#, b"xa", [true, true, true]),
        (r#"content:"x"; isdataat:!2,relative;"#, b"xa", [false, true, true]),
        ("byte_test:1,=,97,1;", b"xa", [true, true, false]),
        ("byte_test:1,=,97,4;", b"xa", [false, false, true]),
        ("byte_test:0,=,12,0,string,dec;", b"12", [false, true, false]),
        ("byte_test:0,=,12,0,string,dec;", b"12;", [true, true, false]),
        ("byte_jump:1,0;", b"\x01x", [true, true, false]),
        ("byte_jump:0,0,from_end,post_offset -1;", b"xa", [false, true, false]),
        ("http.uri; bsize:2;", b"xa", [false, true, false]),
        ("http.uri; bsize:5;", b"xa", [false, false, true]),
        ("http.uri; bsize:>1;", b"xa", [true, true, true]),
        ("http.uri; bsize:!1;", b"xa", [true, true, true]),
        ("http.uri; bsize:<9;", b"xa", [false, true, true]),
        ("http.uri; dataset:isset,words;", b"bad", [false, true, false]),
        ("http.uri; dataset:isnotset,words;", b"good", [false, true, false]),
        (r#"pcre:"/xa+/";"#, b"xa", [true, true, true]),
        (r#"pcre:"/a$/";"#, b"xa", [false, true, true]),
        (r#"pcre:"/a\b/";"#, b"xa", [false, true, true]),
        (r#"pcre:"/a(?!b)/";"#, b"xa", [false, true, false]),
        (r#"pcre:!"/b/";"#, b"xa", [false, true, false]),
        (r#"pcre:"/^x/";"#, b"xa", [true, true, false]),
        (r#"pcre:"/^a/m";"#, b"\na", [true, true, true]),
        (r#"pcre:"/(?<=x)a/";"#, b"xa", [true, true, false]),
        (r#"pcre:"/x/A";"#, b"xa", [true, true, false]),
        (r#"content:"x"; pcre:"/^a/R";"#, b"xa", [true, true, true]),
        (r#"content:"x"; pcre:!"/^b/R";"#, b"xa", [false, true, true]),
        // How long the match is can change, and with it where the literal must be.
        (r#"pcre:"/x.?/"; content:"a"; distance:-1; within:1;"#, b"xa", [false, true, true]),
        (r#"pcre:"/x./"; content:"a"; distance:-1; within:1;"#, b"xa", [true, true, true]),
        (r#"pcre:"/(a+)/,flow:a";"#, b"xa", [false, true, true]),
        (r#"http.uri; to_lowercase; content:"a";"#, b"XA", [true, true, true]),
        (r#"http.uri; strip_whitespace; content:"xa";"#, b"x a", [true, true, false]),
        (r#"http.uri; to_md5; isdataat:1;"#, b"x a", [false, true, false]),
        (r#"http.uri; url_decode; content:"%";"#, b"x%", [false, true, false]),
        (r#"http.uri; url_decode; content:"%4";"#, b"x%4", [false, true, false]),
        (r#"http.uri; xor:"0001020304"; content:"a";"#, b"xb", [false, false, false]),
        (r#"http.uri; xor:"0001020304"; content:"a";"#, b"xe", [false, false, true]),
    ] {
        assert_eq!(partly(options, bytes), expected, "{options} in {}", bytes.escape_ascii());
    }
}

#[test]
fn accepts_which_checks_only_wait_for_bytes() {
    for (options, expected) in [
        (r#"content:"a"; offset:1; content:"b"; within:5;"#, true),
        (r#"content:!"a";"#, false),
        (r#"content:"a"; endswith;"#, false),
        (r#"pcre:"/a+/"; byte_test:1,=,1,0; byte_jump:1,0; byte_extract:1,0,n; isdataat:5;"#, true),
        (r#"pcre:"/a$/";"#, false),
        (r#"pcre:!"/a/";"#, false),
        ("isdataat:!5;", false),
        ("byte_jump:1,0,from_end;", false),
        ("http.uri; bsize:5;", false),
        ("http.uri; bsize:>5;", true),
        ("http.uri; dataset:isset,words;", false),
    ] {
        let checks = Checks::new(&groups(options)[0], &datasets()).unwrap();
        assert_eq!(checks.is_positive(), expected, "{options}");
    }
}

#[test]
fn accepts_the_contents_of_a_rule() {
    let group = &groups(r#"content:"a"; nocase; pcre:"/b/"; content:!"c"; fast_pattern;"#)[0];
    let checks = Checks::new(group, &datasets()).unwrap();
    let contents: Vec<_> = checks.contents().collect();
    assert_eq!((contents.len(), &*contents[0].bytes, contents[0].nocase), (2, &b"a"[..], true));
    assert!(contents[1].negated && contents[1].fast_pattern.is_some());
    fn is_shared<T: Send + Sync>(_: &T) {}
    is_shared(&checks);
}

#[test]
fn refuses_work_over_the_cap() {
    let mut options = String::from(r#"content:"a"; "#);
    for _ in 0..20 {
        options.push_str(r#"content:"a"; within:9; "#);
    }
    options.push_str(r#"content:"b"; within:9;"#);
    let bytes = [&[b'a'; 4000][..], b"cccccccccb"].concat();
    let mut memory = Memory::new(WORK);
    assert!(!run(&options, View::whole(&bytes), &mut memory));
    assert!(memory.over_cap && memory.work() < WORK + 10_000);
    // What follows is no answer either.
    assert!(!run(r#"content:"a";"#, View::whole(&bytes), &mut memory));
    let mut memory = Memory::new(100);
    assert!(!run(r#"content:!"b";"#, View::whole(&[b'a'; 1000]), &mut memory));
    assert!(memory.over_cap);
    let mut memory = Memory::new(100);
    assert!(!run(r#"pcre:"/b|a$/";"#, View::whole(&[b'a'; 1000]), &mut memory));
    assert!(memory.over_cap);
    let mut memory = Memory::new(100);
    assert!(!run(r#"pcre:!"/b/";"#, View::whole(&[b'a'; 1000]), &mut memory));
    assert!(memory.over_cap);
}
