//! Rules on what only lenient receivers understand, and on what is known late: what Suricata finds is found.

use std::io::Write;

use super::rule_tests::{found, http};
use crate::event::Side;

const CLIENT: Side = Side::Client;
const SERVER: Side = Side::Server;
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n";

/// A response whose body, put together, holds the pattern only where its coding is taken off.
fn chunked(head: &str, body: &str) -> Vec<u8> {
    let pieces = ["X5O!", "P%@A", "EVIL", "FILE"];
    let chunks: String = pieces.iter().map(|it| format!("4\r\n{it}\r\n")).collect();
    format!("{head}{body}{chunks}0\r\n\r\n").into_bytes()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn accepts_chunked_bodies_that_not_all_clients_see() {
    let rules = http(&["file.data; content:\"P%@AEVIL\";", "http.stat_code; content:\"200\";"]);
    let fields = "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    for start in ["HTTP/1.2 200 ok", "HTTP/2.0 200 ok", "http/1.1 200 ok", "HTTP/1.01 200 ok"] {
        let response = chunked(&format!("{start}\r\n{fields}"), "");
        assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, &response)]), [1, 2], "{start}");
    }
    for coding in [
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked;",
        "Transfer-Encoding: x\r\n chunked",
        "Transfer-Encoding:: chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "Transfer-Encoding:chu\0nked",
    ] {
        let head = format!("HTTP/1.1 200 ok\r\n{coding}\r\nConnection: close\r\n\r\n");
        let response = chunked(&head, "");
        assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, &response)]), [1, 2], "{coding:?}");
    }
    let head = format!("HTTP/1.1 200 ok\r\n{fields}");
    for blanks in [" ", "\t", "\r\n", "\n\r\n", "\x0b", "\r"] {
        let response = chunked(&head, blanks);
        assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, &response)]), [1, 2], "{blanks:?}");
    }
    for end in ["\n\r\r\n", "\n \n"] {
        let response = format!("HTTP/1.1 200 ok\r\nX: y{end}P%@AEVIL");
        let parts = [(CLIENT, GET), (SERVER, response.as_bytes())];
        assert_eq!(found(&rules, &parts), [1, 2], "{end:?}");
    }
}

#[test]
fn accepts_content_codings_as_loose_as_they_come() {
    let rules = http(&["file.data; content:\"some EVIL\";"]);
    let body = gzip(b"there is some EVIL here");
    for coding in [
        "Content-Encoding: gzip x",
        "Content-Encoding: x gzip",
        "Content-Encoding: gzip;",
        "Content-Encoding:: gzip",
        "Content-Encoding: gz\0ip",
        "Content\0-Encoding: gzip",
        "Content-Encoding\r\n : gzip",
        "Content-Encoding: gzip\r\nContent-Encoding: gzip",
        "Content-Encoding: gzip, deflate",
        "X: y\rContent-Encoding: gzip",
    ] {
        let head = format!("HTTP/1.1 200 ok\r\n{coding}\r\nContent-Length: {}\r\n\r\n", body.len());
        let response = [head.as_bytes(), &body].concat();
        assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, &response)]), [1], "{coding:?}");
    }
}

/// What the connection carries is known only with the bytes that a rule has met.
#[test]
fn accepts_contents_in_the_bytes_that_tell_the_protocol() {
    let rules = "\
        alert http any any -> any any (content:\"example.org\"; flow:to_server; sid:1;)\n\
        alert http any any -> any any (content:\"GET /a\"; content:\"Host\"; sid:2;)\n\
        alert http2 any any -> any any (content:\"GET /a\"; sid:3;)\n\
        alert tcp any any -> any any (content:\"GET /a\"; sid:4;)\n\
        alert http any any -> any any (content:\"hello\"; flow:to_client; sid:5;)\n";
    let ok: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(found(rules, &[(CLIENT, GET), (SERVER, ok)]), [1, 2, 4, 5]);
    assert_eq!(found(rules, &[(CLIENT, b"\0GET /a Host: example.org"), (SERVER, ok)]), [4]);
}

#[test]
fn accepts_request_lines_with_blanks_where_none_belong() {
    let rules = http(&[
        "http.uri; content:\"/a afterspace\"; bsize:13;",
        "http.method; content:\"POST\"; bsize:4; http.uri; content:\"/\"; bsize:1;",
        "http.cookie; content:\"id=7\";",
        "http.protocol; content:\"HTTP/1.1\"; bsize:8;",
    ]);
    let request = b"GET /a afterspace HTTP/1.1\r\nCookie: id=7\r\n\r\n";
    assert_eq!(found(&rules, &[(CLIENT, request)]), [1, 3, 4]);
    let request = b"POST   /   HTTP/1.1\r\nCookie: id=7\r\n\r\n";
    assert_eq!(found(&rules, &[(CLIENT, request)]), [2, 3, 4]);
}

#[test]
fn refuses_a_slash_as_the_host_of_a_tunnel() {
    let rules = http(&["http.host; bsize:<3;", "http.host; content:\"example.org\";"]);
    let request = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: example.org\r\n\r\n");
    assert_eq!(found(&rules, &[(CLIENT, request("/").as_bytes())]), [2]);
    assert_eq!(found(&rules, &[(CLIENT, request("a:443").as_bytes())]), [1]);
}

#[test]
fn accepts_parts_of_buffers() {
    let rules = http(&[
        "http.uri; content:\"/a?b=\"; from_base64:offset 5; content:\"thisisatest\"; bsize:12;",
        "http.uri; from_base64:offset 5, bytes 6; content:\"this\"; bsize:4;",
        "http.uri; content:\"this\";",
        "http.user_agent; content:\"curl/7\"; subslice:-6,3; content:\"7.6\"; bsize:3;",
        "http.user_agent; subslice:0,13; bsize:0;",
        "http.user_agent; subslice:0,13,truncate; bsize:11;",
        "http.user_agent; content:\"7.64\"; subslice:0,4; content:\"7.64\";",
        "http.request_body; xor:offset 1,extract 1 0; content:\"password\";",
        "http.request_body; xor:offset 1,extract 1 0; content:\"nothing\";",
        "http.request_body; xor:20; content:\"PASSWORD\";",
        "http.method; content:\"POST\"; prefilter;",
    ]);
    let head = "POST /a?b=dGhpc2lzYXRlc3QK HTTP/1.1\r\nUser-Agent: curl/7.64.1\r\nContent-Length: 9\r\n\r\n";
    let coded: Vec<u8> = b"password".iter().map(|byte| byte ^ 0x20).collect();
    let request = [head.as_bytes(), &[0x20], &coded].concat();
    assert_eq!(found(&rules, &[(CLIENT, &request)]), [1, 2, 4, 5, 6, 8, 11]);
}

#[test]
fn accepts_buffers_that_are_absent() {
    let rules = http(&[
        "http.referer; absent; flow:to_server;",
        "http.referer; absent:or_else; content:!\"example\";",
        "http.referer; absent:or_else; content:\"example\"; fast_pattern;",
        "http.method; content:\"GET\"; http.referer; absent;",
        "http.method; content:\"POST\"; http.referer; absent;",
        "http.request_header; absent:or_else; content:!\"abc\";",
    ]);
    assert_eq!(found(&rules, &[(CLIENT, GET)]), [1, 2, 3, 4, 6]);
    let with = |value: &str| format!("GET / HTTP/1.1\r\nReferer: {value}\r\n\r\n").into_bytes();
    assert_eq!(found(&rules, &[(CLIENT, &with("an example"))]), [3, 6]);
    assert_eq!(found(&rules, &[(CLIENT, &with("abc"))]), [2]);
}
