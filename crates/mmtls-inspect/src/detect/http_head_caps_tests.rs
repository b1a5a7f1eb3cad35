//! What heads take and show at most, whatever they hold.

use proptest::prelude::*;

use super::http_head::{Head, MAX_BUFFER};
use super::http_head_tests::{http1, http2, shown};
use crate::event::{Fields, Side};
use crate::rules::Buffer;

const ALL: [Buffer; 33] = [
    Buffer::HttpUri,
    Buffer::HttpUriRaw,
    Buffer::HttpMethod,
    Buffer::HttpRequestLine,
    Buffer::HttpHeader,
    Buffer::HttpHeaderRaw,
    Buffer::HttpCookie,
    Buffer::HttpUserAgent,
    Buffer::HttpHost,
    Buffer::HttpHostRaw,
    Buffer::HttpAccept,
    Buffer::HttpAcceptEncoding,
    Buffer::HttpAcceptLanguage,
    Buffer::HttpReferer,
    Buffer::HttpConnection,
    Buffer::HttpContentType,
    Buffer::HttpContentLength,
    Buffer::HttpStart,
    Buffer::HttpProtocol,
    Buffer::HttpHeaderNames,
    Buffer::HttpRequestHeader,
    Buffer::HttpResponseHeader,
    Buffer::HttpStatCode,
    Buffer::HttpStatMessage,
    Buffer::HttpResponseLine,
    Buffer::HttpServer,
    Buffer::HttpLocation,
    Buffer::Http2HeaderName,
    // Not of a head.
    Buffer::HttpRequestBody,
    Buffer::HttpResponseBody,
    Buffer::FileData,
    Buffer::Payload,
    Buffer::TlsSni,
];

#[test]
fn refuses_more_than_caps() {
    let many: Vec<u8> = (0..2000).flat_map(|at| format!("a{at}: b\r").into_bytes()).collect();
    let head = [b"HTTP/1.1 200 OK\r\n", &many[..], b"\n\r\n"].concat();
    let head = http1(Side::Server, &head).unwrap();
    assert_eq!(shown(&head, Buffer::HttpResponseHeader).len(), 1024);
    let same = "Server: a\r".repeat(100);
    let head = http1(Side::Server, format!("HTTP/1.1 200 OK\r\n{same}\n\r\n").as_bytes()).unwrap();
    // The second one does not count.
    assert_eq!(shown(&head, Buffer::HttpServer)[0].len(), 1 + 3 * 65);
    let large = vec![(b":path".to_vec(), vec![b'a'; 100_000]); 10];
    let head = http2(Side::Client, &large);
    assert_eq!(shown(&head, Buffer::HttpRequestHeader).len(), 2);
    assert!(head.size() > 200_000 && head.size() < 300_000);
}

#[test]
fn accepts_heads_at_little_more_than_their_size() {
    let text = b"GET /index.html HTTP/1.1\r\nHost: a\r\nUser-Agent: b\r\nAccept: */*\r\n\r\n";
    let head = http1(Side::Client, text).unwrap();
    assert!(head.size() < 2 * text.len() + 200, "{}", head.size());
}

/// Bytes that heads are made of, and others.
fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => proptest::sample::select(&b"%u0cfeE2./\\:@?#[]+ aA,\r\n\t\0-"[..]),
        1 => any::<u8>(),
    ];
    proptest::collection::vec(byte, 0..most)
}

fn check_caps(head: &Head) {
    for buffer in ALL {
        head.each(buffer, &mut |bytes| assert!(bytes.len() <= MAX_BUFFER));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn refuses_to_panic_on_bytes(text in bytes(120), side in any::<bool>()) {
        let side = if side { Side::Client } else { Side::Server };
        let head = match side {
            Side::Client => Head::request(Fields::http1(&[], &text)),
            Side::Server => Head::response(Fields::http1(&[], &text)),
        };
        check_caps(&head);
        let start = if side == Side::Client { &b"GET /"[..] } else { b"HTTP/1.1 200 O" };
        if let Some(head) = http1(side, &[start, &text, b"\r\n\r\n"].concat()) {
            check_caps(&head);
        }
    }

    #[test]
    fn refuses_to_panic_on_fields(
        fields in proptest::collection::vec((bytes(9), bytes(20)), 0..9),
        side in any::<bool>(),
    ) {
        check_caps(&http2(if side { Side::Client } else { Side::Server }, &fields));
    }

    /// Requests that a strict parser accepts: both readings of the fields agree.
    #[test]
    fn accepts_fields_as_the_observer_does(
        fields in proptest::collection::vec(("[a-z]{1,3}", "[ -~]{0,9}"), 0..6),
    ) {
        let mut text = b"GET / HTTP/1.1\r\n".to_vec();
        let mut expected: Vec<(String, String)> = Vec::new();
        for (name, value) in &fields {
            text.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
            let value = value.trim_matches(' ');
            match expected.iter_mut().find(|(known, _)| known == name) {
                Some((_, joined)) => *joined += &format!(", {value}"),
                None => expected.push((name.clone(), value.to_owned())),
            }
        }
        text.extend_from_slice(b"\r\n");
        let head = http1(Side::Client, &text).unwrap();
        let expected: Vec<_> =
            expected.iter().map(|(name, value)| format!("{name}: {value}").into_bytes()).collect();
        prop_assert_eq!(shown(&head, Buffer::HttpRequestHeader), expected);
    }
}
