//! Seeds of `detect`: rules with every kind of check, and traffic that they match or almost match.

use super::Add;

const RULES: [&str; 15] = [
    "alert http any any -> any any (http.method; content:\"POST\"; http.request_body; content:\"user=\"; content:\"length=\"; distance:0; within:12; sid:1;)",
    "alert http any any -> any any (http.uri; content:\"/evil\"; pcre:\"/evil\\.(php|asp)/\"; sid:2;)",
    "alert http any any -> any any (file.data; content:\"EVIL\"; content:!\"good\"; isdataat:!9,relative; sid:3;)",
    "alert http any any -> any any (file.data; content:\"E\"; byte_extract:1,0,n,relative; byte_test:1,>,n,1,relative; sid:4;)",
    "alert http any any -> any any (http.stat_code; content:\"200\"; flowbits:isset,a; sid:5;)\nalert http any any -> any any (http.uri; content:\"a\"; flowbits:set,a; sid:6;)",
    "alert http any any -> any any (http.request_body; to_lowercase; content:\"user=evil\"; bsize:20; sid:7;)",
    "alert tcp any any -> any any (content:\"one\"; content:\"two\"; distance:0; sid:8;)\nalert tcp any any -> any any (dsize:<9; sid:9;)",
    "alert tls any any -> any any (tls.sni; dotprefix; content:\".example.org\"; endswith; sid:10;)\nalert tls any any -> any any (tls.version:1.3; sid:11;)",
    "pass http any any -> any any (http.host; content:\"example\"; sid:12;)\ndrop http any any -> any any (http.uri; content:\"evil\"; sid:13;)",
    "alert http any any -> any any (http.uri; content:\"evil\"; threshold:type both,track by_src,count 2,seconds 9; sid:14;)",
    "alert http any any -> any any (flow:to_server; file.data; content:\"file\"; byte_jump:1,0,relative,string,dec; isdataat:1,relative; sid:15;)",
    "alert http2 any any -> any any (http2.frametype:WINDOWUPDATE; http2.window:>9; http2.priority:!7; http.uri; content:\"/e\"; sid:17;)\nalert http2 any any -> any any (http2.errorcode:CANCEL; flowbits:isset,a; sid:18;)",
    "alert http2 any any -> any any (http2.settings:SETTINGS_HEADER_TABLE_SIZE>9; flowbits:set,a; sid:19;)\nalert http2 any any -> any any (http2.size_update:31; http2.frametype:0; file.data; content:\"b\"; sid:20;)",
    "alert http any any -> any any (http.stat_code; content:\"200\"; http.response_header; content:\"x: late\"; sid:21;)\nalert http any any -> any any (http.stat_code; content:\"103\"; http.header; content:\"Link\"; sid:22;)\nalert http any any -> any any (file.data; content:\"EV\"; fast_pattern; http.header; content:\"late\"; sid:23;)",
    "alert http any any -> any any (http.header; content:\"a|3a 20|b\"; http.header_names; content:!\"x\"; urilen:>2; sid:16;)",
];

const GET: &[u8] = b"GET /a/evil.php?x=1 HTTP/1.1\r\nHost: Example.org\r\na: b\r\n\r\n";
const POST: &[u8] = b"POST /form HTTP/1.1\r\nContent-Length: 20\r\n\r\nuser=evil&length=900";
const FORM: &[u8] = b"POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 75\r\n\r\n--x\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\nfile2ab\r\n--x--\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nsome E\x02IL EVIL";
const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n";

const HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </evil.js>\r\n\r\n";
const TRAILERS: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nEVIL\r\n0\r\nx: late\r\ny:\r\n z\r\n\r\n";

fn traffic(parts: &[(u8, &[u8])]) -> Vec<u8> {
    let part = |(how, bytes): &(u8, &[u8])| {
        let len = u16::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
        [&[*how][..], &len, bytes].concat()
    };
    parts.iter().flat_map(part).collect()
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Frames of a client that meet the conditions on them, early and late.
fn frames() -> Vec<u8> {
    [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, b"\0\x01\0\0\x20\0"),
        &frame(2, 0, 1, b"\0\0\0\0\x08"),
        &frame(1, 4, 1, b"\x3f\0\x82\x87\x04\x02/e"),
        &frame(0, 1, 1, b"body"),
        &frame(8, 0, 1, b"\0\0\0\x0a"),
        &frame(3, 0, 1, b"\0\0\0\x08"),
    ]
    .concat()
}

pub(super) fn detect(add: Add<'_>) {
    let frames = frames();
    let connections = [
        traffic(&[(0, GET), (1, OK), (0, POST), (1, CHUNKED)]),
        traffic(&[(0, FORM), (1, OK)]),
        traffic(&[(0, &frames)]),
        traffic(&[(0, GET), (1, HINTS), (1, TRAILERS)]),
        traffic(&[
            (62, b"www.example.org"),
            (254, b"www.example.org"),
            (255, b"x"),
            (0, b"one"),
            (0, b" two"),
        ]),
    ];
    for (number, rules) in RULES.iter().enumerate() {
        for (which, connection) in connections.iter().enumerate() {
            let bytes = [rules.as_bytes(), &[0, 0, 2, 1, 7], connection].concat();
            add("detect", &format!("rules-{number}-{which}"), bytes);
        }
    }
}
