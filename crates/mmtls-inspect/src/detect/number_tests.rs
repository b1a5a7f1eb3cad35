//! Rules about numbers in a buffer and its length, and the buffers that they match.

use super::tests::check;

#[test]
fn accepts_and_refuses_isdataat() {
    check(&[
        ("isdataat:2;", b"abc", true),
        ("isdataat:3;", b"abc", false),
        ("isdataat:0;", b"", false),
        ("isdataat:!3;", b"abc", true),
        ("isdataat:!2;", b"abc", false),
        (r#"content:"a"; isdataat:1,relative;"#, b"ab", true),
        (r#"content:"a"; isdataat:1,relative;"#, b"a", false),
        (r#"content:"a"; isdataat:2,relative;"#, b"ab", false),
        (r#"content:"a"; isdataat:0,relative;"#, b"a", true),
        (r#"content:"a"; isdataat:!0,relative;"#, b"a", false),
        (r#"content:"a"; isdataat:!2,relative;"#, b"ab", true),
        (r#"content:"a"; isdataat:!2,relative;"#, b"abc", false),
        (r#"content:"a"; isdataat:!2,relative;"#, b"abca", true),
        (r#"content:"a"; isdataat:3,relative; content:"b"; within:1;"#, b"axxxab", false),
        (r#"byte_extract:1,0,n; isdataat:n;"#, b"\x01a", true),
        (r#"byte_extract:1,0,n; isdataat:n;"#, b"\x02a", false),
        (r#"byte_extract:1,0,n; isdataat:n,relative;"#, b"\x01a", true),
        (r#"byte_extract:1,0,n; isdataat:!n,relative;"#, b"\x01a", false),
        (r#"byte_extract:8,0,n; isdataat:!n;"#, b"\xff\xff\xff\xff\xff\xff\xff\xff", true),
    ]);
}

#[test]
fn accepts_and_refuses_byte_tests() {
    check(&[
        ("byte_test:1,=,97,0;", b"a", true),
        ("byte_test:1,=,97,0;", b"", false),
        ("byte_test:1,=,98,1;", b"ab", true),
        ("byte_test:1,=,98,-1;", b"ab", false),
        ("byte_test:2,=,0x6162,0;", b"ab", true),
        ("byte_test:2,=,0x6261,0,little;", b"ab", true),
        ("byte_test:3,=,0x010203,0;", b"\x01\x02\x03", true),
        ("byte_test:8,>,0xfffffffffffffffe,0;", b"\xff\xff\xff\xff\xff\xff\xff\xff", true),
        ("byte_test:2,=,97,0;", b"a", false),
        ("byte_test:1,!=,97,0;", b"b", true),
        ("byte_test:1,!=,97,0;", b"", false),
        ("byte_test:1,!,97,0;", b"a", false),
        ("byte_test:1,<,98,0;", b"a", true),
        ("byte_test:1,<,97,0;", b"a", false),
        ("byte_test:1,<=,97,0;", b"a", true),
        ("byte_test:1,>,96,0;", b"a", true),
        ("byte_test:1,>,97,0;", b"a", false),
        ("byte_test:1,>=,97,0;", b"a", true),
        ("byte_test:1,!>,97,0;", b"a", true),
        ("byte_test:1,&,0x60,0;", b"a", true),
        ("byte_test:1,&,0x80,0;", b"a", false),
        ("byte_test:1,!&,0x80,0;", b"a", true),
        ("byte_test:1,^,97,0;", b"a", false),
        ("byte_test:1,^,98,0;", b"a", true),
        ("byte_test:1,=,6,0,bitmask 0xf0;", b"a", true),
        ("byte_test:1,=,0x60,0,bitmask 0xf0;", b"a", false),
        ("byte_test:1,=,0,0,bitmask 0;", b"a", true),
        ("byte_test:3,=,123,0,string,dec;", b"1234", true),
        ("byte_test:3,=,12,0,string,dec;", b"12x", true),
        ("byte_test:3,=,0,0,string,dec;", b"x12", false),
        ("byte_test:4,=,31,0,string,hex;", b"0x1f", true),
        ("byte_test:2,=,15,0,string,oct;", b"17", true),
        ("byte_test:0,=,123,1,string,dec;", b"a123", true),
        ("byte_test:0,=,123,1,string,dec;", b"a1234", false),
        (r#"content:"x"; byte_test:1,=,97,0,relative;"#, b"xa", true),
        (r#"content:"x"; byte_test:1,=,97,0,relative;"#, b"ax", false),
        (r#"content:"x"; byte_test:1,=,97,-2,relative;"#, b"ax", true),
        (r#"content:"x"; byte_test:1,=,97,-3,relative;"#, b"ax", false),
        (r#"content:"x"; byte_test:1,=,97,0,relative;"#, b"xbxa", true),
        // Where it is counted from stays.
        (r#"content:"x"; byte_test:1,=,97,0,relative; content:"a"; within:1;"#, b"xa", true),
        ("byte_extract:1,0,n; byte_test:1,=,n,1;", b"aa", true),
        ("byte_extract:1,0,n; byte_test:1,=,n,1;", b"ab", false),
        ("byte_extract:1,0,n; byte_test:1,=,97,n;", b"\x02xa", true),
        ("byte_extract:1,0,n; byte_test:n,=,0x6161,1;", b"\x02aa", true),
        ("byte_extract:1,0,n; byte_test:n,=,0,1;", b"\x09aaaaaaaaa", false),
    ]);
}

#[test]
fn accepts_and_refuses_byte_jumps() {
    check(&[
        (r#"byte_jump:1,0; content:"b"; within:1;"#, b"\x02xxb", true),
        (r#"byte_jump:1,0; content:"b"; within:1;"#, b"\x01xxb", false),
        ("byte_jump:1,0;", b"\x02xx", true),
        ("byte_jump:1,0;", b"\x02x", false),
        ("byte_jump:1,0;", b"", false),
        (r#"byte_jump:2,0,little; content:"b"; within:1;"#, b"\x01\x00xb", true),
        (r#"byte_jump:1,0,multiplier 2; content:"b"; within:1;"#, b"\x01xxb", true),
        (r#"byte_jump:1,0,align; content:"b"; within:1;"#, b"\x01xxxxb", true),
        (r#"byte_jump:1,0,align; content:"b"; within:1;"#, b"\x04xxxxb", true),
        (r#"byte_jump:1,0,from_beginning; content:"b"; within:1;"#, b"\x02xb", true),
        (
            r#"byte_jump:1,0,from_beginning,post_offset -9; content:"|01|"; within:1;"#,
            b"\x01x",
            true,
        ),
        (r#"byte_jump:1,0,from_end,post_offset -2; content:"b"; within:1;"#, b"\x01xb", true),
        ("byte_jump:1,0,from_end;", b"\x01x", false),
        (r#"byte_jump:0,0,from_end,post_offset -1; content:"b"; within:1;"#, b"axb", true),
        (r#"byte_jump:1,0,post_offset 1; content:"b"; within:1;"#, b"\x01xxb", true),
        (r#"byte_jump:1,0,post_offset -1; content:"x"; within:1;"#, b"\x01xb", true),
        (r#"byte_jump:3,0,string,dec; content:"b"; within:1;"#, b"2; xb", false),
        // It starts behind the digits, not behind the field.
        (r#"byte_jump:3,0,string,dec; content:"b"; within:1;"#, b"3; xb", true),
        ("byte_jump:3,0,string,dec;", b"x  abc", false),
        (r#"byte_jump:1,0,bitmask 0xf0; content:"b"; within:1;"#, b"\x1fxb", true),
        (r#"content:"x"; byte_jump:1,0,relative; content:"b"; within:1;"#, b"ax\x01ab", true),
        (r#"content:"x"; byte_jump:1,0,relative; content:"b"; within:1;"#, b"x\x09x\x01ab", true),
        (r#"content:"x"; byte_jump:1,-2,relative; content:"b"; within:1;"#, b"\x01xb", true),
        (r#"content:"x"; byte_jump:1,0,relative;"#, b"ax", false),
        (r#"byte_extract:1,0,n; byte_jump:n,1; content:"b"; within:1;"#, b"\x02\x00\x01ab", true),
        (r#"byte_extract:1,0,n; byte_jump:1,n; content:"b"; within:1;"#, b"\x02x\x01ab", true),
        // 64 bits, as in Suricata: this is -1.
        ("byte_jump:8,0;", b"\xff\xff\xff\xff\xff\xff\xff\xff", true),
    ]);
}

#[test]
fn accepts_and_refuses_byte_extracts() {
    check(&[
        (r#"byte_extract:1,0,n; content:"b"; offset:n;"#, b"\x02xb", true),
        (r#"byte_extract:1,0,n; content:"b"; offset:n;"#, b"\x03xb", false),
        (r#"byte_extract:1,0,n; content:"b"; depth:n;"#, b"\x03xb", true),
        (r#"byte_extract:1,0,n; content:"b"; depth:n;"#, b"\x02xb", false),
        (r#"byte_extract:1,0,n; content:!"b"; depth:n;"#, b"\x00b", true),
        (r#"byte_extract:1,0,n; content:"b"; offset:1; depth:n;"#, b"\x02xb", true),
        (r#"byte_extract:1,0,n; content:"b"; distance:n;"#, b"\x01xb", true),
        (r#"byte_extract:1,0,n; content:"b"; distance:n;"#, b"\x02xb", false),
        (r#"byte_extract:1,0,n; content:"b"; within:n;"#, b"\x02xb", true),
        (r#"byte_extract:1,0,n; content:"b"; within:n;"#, b"\x01xb", false),
        (r#"byte_extract:1,0,n; content:"b"; distance:1; within:n;"#, b"\x01xb", true),
        // The place moves behind it.
        (r#"byte_extract:1,0,n; content:"b"; within:1;"#, b"xb", true),
        (r#"content:"x"; byte_extract:1,0,n,relative; content:"b"; distance:n;"#, b"x\x01ab", true),
        (r#"content:"x"; byte_extract:1,1,n,relative; content:"b"; within:1;"#, b"x\x01ab", true),
        (
            r#"content:"x"; byte_extract:1,0,n,relative; byte_test:1,=,n,0,relative;"#,
            b"xabxcc",
            true,
        ),
        // Another match of the first literal, and so another number.
        (
            r#"content:"x"; byte_extract:1,0,n,relative; content:"a"; content:"b"; distance:n; within:1;"#,
            b"x\x09x\x01acb",
            true,
        ),
        ("byte_extract:1,0,n;", b"", false),
        ("byte_extract:2,0,n;", b"a", false),
        ("byte_extract:1,0,n,multiplier 2; byte_test:1,=,n,1;", b"\x02\x04", true),
        ("byte_extract:1,0,n,align 4; byte_test:1,=,n,1;", b"\x01\x04", true),
        ("byte_extract:1,0,n,align 2; byte_test:1,=,n,1;", b"\x02\x02", true),
        ("byte_extract:2,0,n,little; byte_test:1,=,n,2;", b"\x05\x00\x05", true),
        ("byte_extract:2,0,n,string,hex; byte_test:1,=,n,2;", b"1f\x1f", true),
        ("byte_extract:1,0,n,bitmask 0xf0; byte_test:1,=,n,1;", b"\x50\x05", true),
        // Extracted in one buffer, used in another one.
        (r#"byte_extract:1,0,n; http.uri; content:"b"; offset:n;"#, b"\x02xb", true),
        (r#"byte_extract:1,0,n; http.uri; content:"b"; offset:n;"#, b"\x03xb", false),
    ]);
}

#[test]
fn accepts_and_refuses_sizes() {
    check(&[
        ("http.uri; bsize:3;", b"abc", true),
        ("http.uri; bsize:3;", b"ab", false),
        ("http.uri; bsize:0;", b"", true),
        ("http.uri; bsize:!3;", b"ab", true),
        ("http.uri; bsize:<3;", b"abc", false),
        ("http.uri; bsize:<=3;", b"abc", true),
        ("http.uri; bsize:>2;", b"abc", true),
        ("http.uri; bsize:>=4;", b"abc", false),
        ("http.uri; bsize:2<>4;", b"abc", true),
        ("http.uri; bsize:3<>6;", b"abc", false),
        ("urilen:3;", b"abc", true),
        ("urilen:3,raw;", b"ab", false),
        (r#"http.uri; content:"a"; bsize:3; content:"b"; within:1;"#, b"aab", true),
    ]);
}
