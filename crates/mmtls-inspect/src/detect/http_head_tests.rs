//! What each buffer shows of given heads.

use super::http_head::Head;
use crate::event::{Event, Fields, Side};
use crate::http1::Http1;
use crate::rules::Buffer;

/// A head of HTTP/1, through the observer.
pub(super) fn http1(side: Side, text: &[u8]) -> Option<Head> {
    let mut head = None;
    Http1::new().data(side, text, &mut |event| match event {
        Event::RequestHead { fields, .. } => head = Some(Head::request(fields)),
        Event::ResponseHead(_, fields) => head = Some(Head::response(fields)),
        _ => {}
    });
    head
}

pub(super) fn http2(side: Side, fields: &[(Vec<u8>, Vec<u8>)]) -> Head {
    match side {
        Side::Client => Head::request(Fields::http2(fields)),
        Side::Server => Head::response(Fields::http2(fields)),
    }
}

pub(super) fn shown(head: &Head, buffer: Buffer) -> Vec<Vec<u8>> {
    let mut shown = Vec::new();
    head.each(buffer, &mut |bytes| shown.push(bytes.to_vec()));
    assert!(shown.len() <= 1 || buffer.is_multiple() || buffer == Buffer::HttpUri);
    shown
}

type Row = (Buffer, &'static [&'static [u8]]);
type Heads = &'static [(&'static [u8], &'static [Row])];

fn check(head: &Head, what: &str, rows: &[Row]) {
    for (buffer, expected) in rows {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let shown: Vec<_> = shown(head, *buffer).iter().map(|it| text(it)).collect();
        let expected: Vec<_> = expected.iter().map(|it| text(it)).collect();
        assert_eq!(shown, expected, "{buffer:?} of {what}");
    }
}

fn check_http1(side: Side, text: &[u8], rows: &[Row]) {
    let head = http1(side, text).unwrap_or_else(|| panic!("no head: {}", text.escape_ascii()));
    check(&head, &text.escape_ascii().to_string(), rows);
}

fn check_http2(side: Side, fields: &[(&str, &str)], rows: &[Row]) {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let owned: Vec<_> = fields.iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
    check(&http2(side, &owned), &format!("{fields:?}"), rows);
}

#[test]
fn accepts_every_buffer_of_a_request() {
    let text =
        b"POST /a?b=%63#d HTTP/1.1\r\nHost: Example.COM:80\r\nUser-Agent: u a \r\nAccept: */*\r\n\
        Accept-Encoding: gzip\r\naccept-language:en\r\nReferer: http://r/\r\nConnection: close\r\n\
        Cookie: a=1\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nServer: s\r\n\r\n";
    check_http1(
        Side::Client,
        text,
        &[
            (Buffer::HttpUri, &[b"/a?b=c#d"]),
            (Buffer::HttpUriRaw, &[b"/a?b=%63#d"]),
            (Buffer::HttpMethod, &[b"POST"]),
            (Buffer::HttpRequestLine, &[b"POST /a?b=%63#d HTTP/1.1"]),
            (
                Buffer::HttpHeader,
                &[b"Host: Example.COM:80\r\nUser-Agent: u a\r\nAccept: */*\r\n\
                    Accept-Encoding: gzip\r\naccept-language: en\r\nReferer: http://r/\r\n\
                    Connection: close\r\nContent-Type: text/plain\r\nContent-Length: 0\r\nServer: s\r\n"],
            ),
            (
                Buffer::HttpHeaderRaw,
                &[b"Host: Example.COM:80\r\nUser-Agent: u a \r\nAccept: */*\r\n\
                    Accept-Encoding: gzip\r\naccept-language:en\r\nReferer: http://r/\r\n\
                    Connection: close\r\nCookie: a=1\r\nContent-Type: text/plain\r\n\
                    Content-Length: 0\r\nServer: s\r\n\r\n"],
            ),
            (Buffer::HttpCookie, &[b"a=1"]),
            (Buffer::HttpUserAgent, &[b"u a"]),
            (Buffer::HttpHost, &[b"example.com"]),
            (Buffer::HttpHostRaw, &[b"Example.COM:80"]),
            (Buffer::HttpAccept, &[b"*/*"]),
            (Buffer::HttpAcceptEncoding, &[b"gzip"]),
            (Buffer::HttpAcceptLanguage, &[b"en"]),
            (Buffer::HttpReferer, &[b"http://r/"]),
            (Buffer::HttpConnection, &[b"close"]),
            (Buffer::HttpContentType, &[b"text/plain"]),
            (Buffer::HttpContentLength, &[b"0"]),
            (Buffer::HttpProtocol, &[b"HTTP/1.1"]),
            (
                Buffer::HttpHeaderNames,
                &[b"\r\nHost\r\nUser-Agent\r\nAccept\r\nAccept-Encoding\r\naccept-language\r\nReferer\r\n\
                    Connection\r\nCookie\r\nContent-Type\r\nContent-Length\r\nServer\r\n\r\n"],
            ),
            (Buffer::HttpServer, &[]),
            (Buffer::HttpStatCode, &[]),
            (Buffer::HttpResponseHeader, &[]),
            (Buffer::Http2HeaderName, &[]),
            (Buffer::HttpRequestBody, &[]),
        ],
    );
}

#[test]
fn accepts_every_buffer_of_a_response() {
    check_http1(
        Side::Server,
        b"HTTP/1.0 404 Not  Found \r\nServer : nginx\r\nSet-Cookie: a=1\r\nset-cookie: b=2; path=/\r\n\
          Location:  /x\t\r\nContent-Type: text/html\r\nContent-Length: 007\r\nConnection: close\r\nHost: h\r\n\r\n",
        &[
            (Buffer::HttpResponseLine, &[b"HTTP/1.0 404 Not  Found "]),
            (Buffer::HttpProtocol, &[b"HTTP/1.0"]),
            (Buffer::HttpStatCode, &[b"404"]),
            (Buffer::HttpStatMessage, &[b"Not  Found "]),
            (Buffer::HttpServer, &[b"nginx"]),
            (Buffer::HttpLocation, &[b"/x"]),
            (Buffer::HttpCookie, &[b"a=1, b=2; path=/"]),
            (Buffer::HttpContentType, &[b"text/html"]),
            (Buffer::HttpContentLength, &[b"007"]),
            (Buffer::HttpConnection, &[b"close"]),
            (
                Buffer::HttpResponseHeader,
                &[
                    b"Server: nginx",
                    b"Set-Cookie: a=1, b=2; path=/",
                    b"Location: /x",
                    b"Content-Type: text/html",
                    b"Content-Length: 007",
                    b"Connection: close",
                    b"Host: h",
                ],
            ),
            (
                Buffer::HttpHeader,
                &[b"Server: nginx\r\nLocation: /x\r\nContent-Type: text/html\r\n\
                    Content-Length: 007\r\nConnection: close\r\nHost: h\r\n"],
            ),
            (
                Buffer::HttpStart,
                &[b"HTTP/1.0 404 Not  Found \r\nServer: nginx\r\nSet-Cookie: a=1, b=2; path=/\r\n\
                    Location: /x\r\nContent-Type: text/html\r\nContent-Length: 007\r\nConnection: close\r\n\
                    Host: h\r\n\r\n"],
            ),
            (Buffer::HttpHost, &[]),
            (Buffer::HttpUri, &[]),
            (Buffer::HttpUserAgent, &[]),
            (Buffer::HttpRequestHeader, &[]),
        ],
    );
}

#[test]
fn accepts_odd_heads_of_requests() {
    let heads: Heads = &[
        (
            b"GET / HTTP/1.0\r\n\r\n",
            &[
                (Buffer::HttpHeader, &[]),
                (Buffer::HttpHeaderNames, &[]),
                (Buffer::HttpRequestHeader, &[]),
                (Buffer::HttpHost, &[]),
                (Buffer::HttpHostRaw, &[]),
                (Buffer::HttpCookie, &[]),
                (Buffer::HttpHeaderRaw, &[b"\r\n"]),
                (Buffer::HttpStart, &[b"GET / HTTP/1.0\r\n"]),
                (Buffer::HttpProtocol, &[b"HTTP/1.0"]),
            ],
        ),
        // Line ends are as they were only in what is raw.
        (
            b"\r\nGET /x HTTP/1.1\nA:b\nAccept:\nC: \t \n\n",
            &[
                (Buffer::HttpRequestLine, &[b"GET /x HTTP/1.1"]),
                (Buffer::HttpStart, &[b"GET /x HTTP/1.1\r\nA: b\r\nAccept: \r\nC: \r\n\r\n"]),
                (Buffer::HttpHeaderRaw, &[b"A:b\nAccept:\nC: \t \n\n"]),
                (Buffer::HttpRequestHeader, &[b"A: b", b"Accept: ", b"C: "]),
                // It is there.
                (Buffer::HttpAccept, &[b""]),
            ],
        ),
        // What repeats a name joins the first one, but lengths do not.
        (
            b"GET / HTTP/1.1\r\nAccept: a\r\nCookie: x\r\nACCEPT: \r\nX: y\r\ncookie: z\r\nAccept: c\r\n\
              Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
            &[
                (Buffer::HttpAccept, &[b"a, , c"]),
                (Buffer::HttpCookie, &[b"x; z"]),
                (Buffer::HttpContentLength, &[b"0"]),
                (Buffer::HttpHeader, &[b"Accept: a, , c\r\nX: y\r\nContent-Length: 0\r\n"]),
                (
                    Buffer::HttpHeaderNames,
                    &[b"\r\nAccept\r\nCookie\r\nX\r\nContent-Length\r\n\r\n"],
                ),
            ],
        ),
        (
            b"GET / HTTP/1.1\r\nAccept: a\r\nAccept: \r\n\r\n",
            &[(Buffer::HttpHeader, &[b"Accept: a, \r\n"])],
        ),
        // Only cookies; the cookie of the other side is none.
        (
            b"GET / HTTP/1.1\r\nCookie: x\r\n\r\n",
            &[
                (Buffer::HttpHeader, &[]),
                (Buffer::HttpRequestHeader, &[b"Cookie: x"]),
                (Buffer::HttpHeaderNames, &[b"\r\nCookie\r\n\r\n"]),
            ],
        ),
        (
            b"GET / HTTP/1.1\r\nSet-Cookie: x\r\n\r\n",
            &[(Buffer::HttpCookie, &[]), (Buffer::HttpHeader, &[b"Set-Cookie: x\r\n"])],
        ),
        // The host of the target wins.
        (
            b"GET http://u:p@A.example.:81/%7ex HTTP/1.1\r\nHost: b\r\n\r\n",
            &[
                (Buffer::HttpHost, &[b"a.example"]),
                (Buffer::HttpHostRaw, &[b"a.example"]),
                (Buffer::HttpUri, &[b"/~x"]),
                (Buffer::HttpUriRaw, &[b"http://u:p@A.example.:81/%7ex"]),
                (Buffer::HttpHeader, &[b"Host: b\r\n"]),
            ],
        ),
        // Not all servers remove dots.
        (
            b"GET http://h/%65vil/%2e%2e//x?a=%62/../c HTTP/1.1\r\n\r\n",
            &[(Buffer::HttpUri, &[b"/x?a=b/../c", b"/evil/../x?a=b/../c"])],
        ),
        (b"GET /./a/. HTTP/1.1\r\n\r\n", &[(Buffer::HttpUri, &[b"/a", b"/./a/."])]),
        (b"GET /.a/b..//%63?/../ HTTP/1.1\r\n\r\n", &[(Buffer::HttpUri, &[b"/.a/b../c?/../"])]),
        (
            b"CONNECT A.example:443 HTTP/1.1\r\nHost: b\r\n\r\n",
            &[
                (Buffer::HttpUri, &[b""]),
                (Buffer::HttpUriRaw, &[b"A.example:443"]),
                (Buffer::HttpHost, &[b"a.example"]),
            ],
        ),
        (
            b"OPTIONS * HTTP/1.1\r\nHost: [::A]:443\r\n\r\n",
            &[
                (Buffer::HttpUri, &[b"*"]),
                (Buffer::HttpHost, &[b"[::a]"]),
                (Buffer::HttpHostRaw, &[b"[::A]:443"]),
            ],
        ),
        (
            b"GET / HTTP/1.1\r\nHost: a.\r\nHost: B\r\n\r\n",
            &[(Buffer::HttpHost, &[b"a., b"]), (Buffer::HttpHostRaw, &[b"a., B"])],
        ),
        (
            b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
            &[(Buffer::HttpHost, &[]), (Buffer::HttpHostRaw, &[b"[::1"])],
        ),
        (
            b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
            &[(Buffer::HttpHost, &[]), (Buffer::HttpHostRaw, &[b""])],
        ),
        (b"GET / HTTP/1.1\r\nHost: :80\r\n\r\n", &[(Buffer::HttpHost, &[b""])]),
        (b"GET / HTTP/1.1\r\nHost: a :80\r\n\r\n", &[(Buffer::HttpHost, &[b"a"])]),
        (
            b"GET /\xc3\xa9 HTTP/1.1\r\nX: \xff\r\n\r\n",
            &[
                (Buffer::HttpUri, &[b"/\xe9"]),
                (Buffer::HttpUriRaw, &[b"/\xc3\xa9"]),
                (Buffer::HttpHeader, &[b"X: \xff\r\n"]),
            ],
        ),
    ];
    for (text, rows) in heads {
        check_http1(Side::Client, text, rows);
    }
}

#[test]
fn accepts_odd_heads_of_responses() {
    let heads: Heads = &[
        (
            b"HTTP/1.1 200\r\n\r\n",
            &[
                (Buffer::HttpStatMessage, &[]),
                (Buffer::HttpStatCode, &[b"200"]),
                (Buffer::HttpResponseLine, &[b"HTTP/1.1 200"]),
                (Buffer::HttpHeader, &[]),
                (Buffer::HttpHeaderRaw, &[b"\r\n"]),
            ],
        ),
        (
            b"HTTP/1.1 200 \r\nA: b\r\n\r\n",
            &[(Buffer::HttpStatMessage, &[]), (Buffer::HttpResponseLine, &[b"HTTP/1.1 200 "])],
        ),
        (b"HTTP/1.1 200   O K\r\n\r\n", &[(Buffer::HttpStatMessage, &[b"O K"])]),
        (
            b"HTTP/1.1 200 \xffK\r\n\r\n",
            &[
                (Buffer::HttpStatMessage, &[b"\xffK"]),
                (Buffer::HttpResponseLine, &[b"HTTP/1.1 200 \xffK"]),
            ],
        ),
        // Folded: joined with its white space, unless it looks like a field in HTTP/1.1.
        (
            b"HTTP/1.1 200 OK\r\nServer: a\r\n  b\r\n\tc\r\nX: y\r\n\r\n",
            &[
                (Buffer::HttpServer, &[b"a  b\tc"]),
                (Buffer::HttpHeader, &[b"Server: a  b\tc\r\nX: y\r\n"]),
                (Buffer::HttpHeaderRaw, &[b"Server: a\r\n  b\r\n\tc\r\nX: y\r\n\r\n"]),
            ],
        ),
        (
            b"HTTP/1.1 200 OK\r\nX: y\r\n Server: a\r\n b\r\n\r\n",
            &[
                (Buffer::HttpServer, &[b"a b"]),
                (Buffer::HttpHeaderNames, &[b"\r\nX\r\nServer\r\n\r\n"]),
            ],
        ),
        (
            b"HTTP/1.0 200 OK\r\nX: y\r\n Server: a\r\n\r\n",
            &[(Buffer::HttpServer, &[]), (Buffer::HttpHeader, &[b"X: y Server: a\r\n"])],
        ),
        // No field at all, or none with a name.
        (
            b"HTTP/1.1 200 OK\r\nno field \r\n: x\r\nA: b\r\n\r\n",
            &[
                (Buffer::HttpHeader, &[b": no field, x\r\nA: b\r\n"]),
                (Buffer::HttpHeaderNames, &[b"\r\n\r\nA\r\n\r\n"]),
                (Buffer::HttpResponseHeader, &[b": no field, x", b"A: b"]),
            ],
        ),
        // A CR alone ends a line too. Control bytes are shown as they were.
        (
            b"HTTP/1.1 200 OK\r\nA: b\rServer: c\x01d\r\n\r\n",
            &[
                (Buffer::HttpServer, &[b"c\x01d"]),
                (Buffer::HttpHeaderRaw, &[b"A: b\rServer: c\x01d\r\n\r\n"]),
            ],
        ),
        (
            b"HTTP/1.1 200 OK\r\nA: b\n\rServer: c\r\r\n\r\n",
            &[(Buffer::HttpHeader, &[b"A: b\r\nServer: c\r\n"])],
        ),
        // Servers may send NULs in names.
        (
            b"HTTP/1.1 200 OK\r\nSer\0ver: c\r\n\r\n",
            &[(Buffer::HttpServer, &[b"c"]), (Buffer::HttpHeader, &[b"Ser\0ver: c\r\n"])],
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length\x0b: 1\r\nContent-Length: 2\r\n\r\n",
            &[(Buffer::HttpContentLength, &[b"1"])],
        ),
    ];
    for (text, rows) in heads {
        check_http1(Side::Server, text, rows);
    }
}

#[test]
fn accepts_heads_of_http2() {
    check_http2(
        Side::Client,
        &[
            (":method", "GET"),
            (":authority", "u@Example.COM:443"),
            (":scheme", "https"),
            (":path", "/%61/../b"),
            ("cookie", "a=1"),
            ("user-agent", " u "),
            ("cookie", "b=2"),
            ("accept", ""),
            ("host", "other"),
            ("accept-language", "de"),
            ("accept-language", "en"),
        ],
        &[
            (Buffer::HttpMethod, &[b"GET"]),
            // As it is, normalised, and decoded with its dots.
            (Buffer::HttpUri, &[b"/%61/../b", b"/b", b"/a/../b"]),
            (Buffer::HttpUriRaw, &[b"/%61/../b"]),
            (Buffer::HttpRequestLine, &[b"GET /%61/../b HTTP/2\r\n"]),
            (Buffer::HttpProtocol, &[b"HTTP/2"]),
            (Buffer::HttpHost, &[b"example.com"]),
            (Buffer::HttpHostRaw, &[b"u@Example.COM:443"]),
            (Buffer::HttpCookie, &[b"a=1; b=2"]),
            (Buffer::HttpUserAgent, &[b" u "]),
            // One that is empty is as good as none.
            (Buffer::HttpAccept, &[]),
            (Buffer::HttpAcceptLanguage, &[b"de, en"]),
            (
                Buffer::HttpHeader,
                &[b":method: GET\r\n:authority: u@Example.COM:443\r\n:scheme: https\r\n\
                    :path: /%61/../b\r\nuser-agent: u\r\naccept: \r\nhost: other\r\n\
                    accept-language: de\r\naccept-language: en\r\n"],
            ),
            (
                Buffer::HttpHeaderRaw,
                &[b":method: GET\r\n:authority: u@Example.COM:443\r\n:scheme: https\r\n\
                    :path: /%61/../b\r\ncookie: a=1\r\nuser-agent:  u \r\ncookie: b=2\r\naccept: \r\n\
                    host: other\r\naccept-language: de\r\naccept-language: en\r\n"],
            ),
            (
                Buffer::HttpHeaderNames,
                &[b"\r\n:method\r\n:authority\r\n:scheme\r\n:path\r\ncookie\r\nuser-agent\r\ncookie\r\n\
                    accept\r\nhost\r\naccept-language\r\naccept-language\r\n\r\n"],
            ),
            (Buffer::HttpStart, &[]),
            (Buffer::HttpStatCode, &[]),
        ],
    );
    check_http2(
        Side::Client,
        &[(":method", "POST"), ("x", " y"), ("", "z"), ("Accept", "q")],
        &[
            (Buffer::HttpRequestHeader, &[b":method: POST", b"x:  y", b": z", b"Accept: q"]),
            (Buffer::Http2HeaderName, &[b":method", b"x", b"Accept"]),
            // Names in HTTP/2 are in lower case.
            (Buffer::HttpAccept, &[]),
            (Buffer::HttpUri, &[]),
            (Buffer::HttpHost, &[]),
            (Buffer::HttpRequestLine, &[b"POST  HTTP/2\r\n"]),
        ],
    );
    check_http2(
        Side::Client,
        &[(":method", "CONNECT"), (":protocol", "websocket"), (":path", "/%61")],
        &[(Buffer::HttpUri, &[b"/%61", b"/a"]), (Buffer::HttpUriRaw, &[b"/%61"])],
    );
    check_http2(Side::Client, &[(":path", "/a?b")], &[(Buffer::HttpUri, &[b"/a?b"])]);
    check_http2(Side::Client, &[(":path", "/a/../b")], &[(Buffer::HttpUri, &[b"/a/../b", b"/b"])]);
    check_http2(
        Side::Client,
        &[(":authority", "[::1]:443")],
        &[(Buffer::HttpHost, &[b"["]), (Buffer::HttpHeader, &[b":authority: [::1]:443\r\n"])],
    );
    check_http2(
        Side::Server,
        &[(":status", "200"), ("server", "s"), ("set-cookie", "a"), ("location", "/l")],
        &[
            (Buffer::HttpStatCode, &[b"200"]),
            (Buffer::HttpStatMessage, &[b""]),
            (Buffer::HttpResponseLine, &[b"HTTP/2 200\r\n"]),
            (Buffer::HttpProtocol, &[b"HTTP/2"]),
            (Buffer::HttpServer, &[b"s"]),
            (Buffer::HttpLocation, &[b"/l"]),
            (Buffer::HttpCookie, &[b"a"]),
            (Buffer::HttpHeader, &[b":status: 200\r\nserver: s\r\nlocation: /l\r\n"]),
            (
                Buffer::HttpResponseHeader,
                &[b":status: 200", b"server: s", b"set-cookie: a", b"location: /l"],
            ),
            (Buffer::Http2HeaderName, &[b":status", b"server", b"set-cookie", b"location"]),
            (Buffer::HttpMethod, &[]),
        ],
    );
    check_http2(
        Side::Server,
        &[],
        &[
            (Buffer::HttpHeader, &[]),
            (Buffer::HttpHeaderRaw, &[]),
            (Buffer::HttpHeaderNames, &[]),
            (Buffer::HttpStatCode, &[]),
            (Buffer::HttpResponseLine, &[b"HTTP/2 \r\n"]),
        ],
    );
}
