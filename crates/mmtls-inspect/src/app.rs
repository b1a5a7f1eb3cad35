//! One connection's application layer: finds out what it carries, and follows it.
//!
//! Bytes of both sides in stream order, gaps and ends go in; [`Event`]s of numbered transactions
//! come out, and how much of each side is of interest. Another protocol is followed by adding a
//! variant of [`Layer`]. Refuses to let the server alone decide what the protocol is, and to see
//! anything of records, TLS, keys or packets.

use crate::body::Bodies;
use crate::budget::AppBudget;
use crate::event::{Anomaly, Event, Fields, Side};
use crate::http1::{BodyLeft, Http1};
use crate::http2::Http2;
use crate::protocol::{AppProto, Detected, MAX_FIRST_LINE, SERVER_BYTES, detect};
use crate::transaction::Transaction;
use crate::websocket::{Extensions, WebSocket};

/// Most bytes of the server that are kept until the client has shown that this is HTTP/2. Servers
/// send their settings first, a handful of bytes.
const MAX_EARLY: usize = 16 << 10;

/// How much of what a side sends next is of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// All of it.
    All,
    /// Nothing of the next so many bytes: tell [`AppLayer::skip`] when they were passed over.
    After(u64),
    /// Nothing more: what is followed has ended.
    Nothing,
}

/// The application layer of one connection.
pub struct AppLayer {
    layer: Layer,
    decision: Decision,
    body_limit: Option<u64>,
    /// Set until the client has said enough.
    detection: Option<Box<Detection>>,
}

enum Layer {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
    /// A protocol that is not followed: bytes are reported as they are.
    Stream,
}

/// What is known of the protocol, and what stands between it and whoever looks at the events.
#[derive(Default)]
struct Decision {
    protocol: Option<AppProto>,
    /// What was wrong with the server's bytes, if this turns out to be HTTP. A greeting is no bad head.
    held: Vec<Anomaly>,
    /// The client has spoken: what the server says is told where it stands.
    is_answer: bool,
    bodies: Bodies,
    /// What the response that is under way changes the protocol to.
    changes_to: Option<Change>,
    /// What HTTP/1 became. Its observer passes the bytes on.
    upgraded: Option<Upgraded>,
}

/// A protocol that a response with status 101 changes to.
#[derive(Clone, Copy)]
enum Change {
    Http2,
    WebSocket(Extensions),
}

/// What HTTP/1 became.
enum Upgraded {
    Http2(Box<Http2>),
    WebSocket(Box<WebSocket>),
}

#[derive(Default)]
struct Detection {
    alpn: AppProto,
    /// The client's first bytes, which have not gone on.
    client: Vec<u8>,
    /// The server's, if it spoke first.
    greeting: Vec<u8>,
    /// More of them.
    early: Vec<u8>,
    /// They were too many to be kept.
    early_cut: bool,
}

impl Default for AppLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl AppLayer {
    /// At the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self::with_budget(&AppBudget::default())
    }

    /// At the start of a connection, whose decoders share memory with those of others.
    #[must_use]
    pub fn with_budget(budget: &AppBudget) -> Self {
        let bodies = Bodies::new(budget);
        Self {
            layer: Layer::Http1(Box::new(Http1::with_budget(&budget.heads))),
            decision: Decision { bodies, ..Decision::default() },
            body_limit: None,
            detection: Some(Box::default()),
        }
    }

    /// The protocol that the endpoints negotiated (ALPN). Has no effect once the client has said
    /// enough.
    pub fn negotiated(&mut self, name: &[u8]) {
        if let Some(detection) = &mut self.detection {
            detection.alpn = AppProto::from_alpn(name);
        }
    }

    /// Of each response's body only so many bytes are of interest.
    pub fn limit_response_bodies(&mut self, most: Option<u64>) {
        self.body_limit = most;
        match &mut self.layer {
            Layer::Http1(http) => http.limit_response_bodies(most),
            Layer::Http2(http) => http.limit_response_bodies(most),
            Layer::Stream => {}
        }
        if let Some(Upgraded::Http2(http)) = &mut self.decision.upgraded {
            http.limit_response_bodies(most);
        }
    }

    /// What the connection carries, once that was reported.
    #[must_use]
    pub fn protocol(&self) -> Option<AppProto> {
        self.decision.protocol
    }

    /// How much of what a side sends next is of interest.
    #[must_use]
    pub fn wants(&self, side: Side) -> Wants {
        match &self.layer {
            _ if self.decision.upgraded.is_some() => Wants::All,
            Layer::Http1(http) if http.is_opaque() => Wants::Nothing,
            Layer::Http1(http) if side == Side::Server => match http.uninteresting() {
                // In the record at hand nothing can be skipped any more.
                Some(BodyLeft::Length(left)) if left > 0 => Wants::After(left),
                _ => Wants::All,
            },
            Layer::Http1(_) | Layer::Http2(_) => Wants::All,
            Layer::Stream => Wants::Nothing,
        }
    }

    /// The next bytes of one side.
    pub fn data(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        match (&mut self.detection, side) {
            (Some(_), Side::Client) => self.first_bytes(bytes, sink),
            (Some(detection), Side::Server) => {
                let missing = SERVER_BYTES - detection.greeting.len();
                detection.greeting.extend_from_slice(&bytes[..bytes.len().min(missing)]);
                detection.early_cut |= detection.early.len() + bytes.len() > MAX_EARLY;
                if !detection.early_cut {
                    detection.early.extend_from_slice(bytes);
                }
                self.pass_on(side, bytes, sink);
            }
            (None, Side::Server) => {
                // It is no greeting any more, and who waits for the rest of a request may wait for ever.
                self.decision.is_answer = true;
                self.decision.tell_held(sink);
                self.pass_on(side, bytes, sink);
            }
            (None, Side::Client) => self.pass_on(side, bytes, sink),
        }
    }

    /// Bytes of one side are missing, nobody knows how many.
    pub fn gap(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        if side == Side::Client {
            self.detect_no_longer(sink);
        }
        self.decision.bodies.gap(side);
        if side == Side::Server
            && let Some(detection) = &mut self.detection
        {
            detection.early_cut = true;
        }
        match &mut self.layer {
            Layer::Http1(http) => http.gap(side, &mut self.decision.filter(sink)),
            Layer::Http2(http) => http.gap(side, &mut self.decision.filter(sink)),
            Layer::Stream => {}
        }
        self.decision.gap_behind_upgrade(side, sink);
    }

    /// The next bytes of one side were not looked at. Where [`Self::wants`] had said so nothing is
    /// lost; elsewhere this is a gap.
    pub fn skip(&mut self, side: Side, count: u64, sink: &mut impl FnMut(Event<'_>)) {
        if side == Side::Client {
            self.detect_no_longer(sink);
        }
        match &mut self.layer {
            Layer::Http1(http) => http.skip(side, count, &mut self.decision.filter(sink)),
            Layer::Http2(_) if count == 0 => {}
            // It never said that it could do without.
            Layer::Http2(_) => self.gap(side, sink),
            Layer::Stream => {}
        }
        if count > 0 {
            self.decision.gap_behind_upgrade(side, sink);
        }
    }

    /// One side closed in order. Nothing of it may follow.
    pub fn close(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        if side == Side::Client {
            if self.detection.as_ref().is_some_and(|detection| detection.client.is_empty()) {
                // It only listens: what its server says is no answer.
                return;
            }
            self.detect_no_longer(sink);
        }
        match &mut self.layer {
            Layer::Http1(http) => http.close(side, &mut self.decision.filter(sink)),
            Layer::Http2(http) => http.close(side, &mut self.decision.filter(sink)),
            Layer::Stream => {}
        }
        self.decision.behind_upgrade(sink, |http, mut sink| http.close(side, &mut sink));
    }

    /// The connection is over, in whatever way. Nothing may follow.
    pub fn finish(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        match &mut self.layer {
            Layer::Http1(http) => http.finish(&mut self.decision.filter(sink)),
            Layer::Http2(http) => http.finish(&mut self.decision.filter(sink)),
            Layer::Stream => {}
        }
        self.decision.behind_upgrade(sink, |http, mut sink| http.finish(&mut sink));
        self.layer = Layer::Stream;
    }

    fn pass_on(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        match &mut self.layer {
            Layer::Http1(http) => http.data(side, bytes, &mut self.decision.filter(sink)),
            Layer::Http2(http) => http.data(side, bytes, &mut self.decision.filter(sink)),
            Layer::Stream if bytes.is_empty() => {}
            Layer::Stream => sink(Event::Data(side, bytes)),
        }
    }

    /// The client's bytes while it is not clear what they are.
    fn first_bytes(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        let Some(mut detection) = self.detection.take() else {
            return;
        };
        let Detection { alpn, client, greeting, early, early_cut } = &mut *detection;
        let used = bytes.len().min(MAX_FIRST_LINE - client.len());
        let (first, rest) = bytes.split_at(used);
        let is_first = client.is_empty();
        if !is_first {
            client.extend_from_slice(first);
        }
        let start = if is_first { first } else { &client[..] };
        match detect(start, greeting, *alpn) {
            Detected::NeedMore => {
                if is_first {
                    client.extend_from_slice(first);
                }
                self.detection = Some(detection);
                return;
            }
            Detected::Is(AppProto::Http) => {}
            Detected::Is(other) => {
                // Requests cannot be waiting; what the server has sent ends here.
                self.finish(sink);
                self.decision.decide(other, sink);
                if other == AppProto::Http2 {
                    let mut http = Http2::new(&self.decision.bodies.budget().heads);
                    http.limit_response_bodies(self.body_limit);
                    self.layer = Layer::Http2(Box::new(http));
                    // All of it was reported already, when nobody knew what it was.
                    if *early_cut {
                        self.gap(Side::Server, sink);
                    } else {
                        self.pass_on(Side::Server, early, sink);
                    }
                }
            }
        }
        self.pass_on(Side::Client, start, sink);
        self.pass_on(Side::Client, rest, sink);
    }

    /// No more of the client's first bytes will come: they are taken as HTTP.
    fn detect_no_longer(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(detection) = self.detection.take() {
            self.pass_on(Side::Client, &detection.client, sink);
        }
    }
}

impl Decision {
    fn decide(&mut self, protocol: AppProto, sink: &mut impl FnMut(Event<'_>)) {
        self.protocol = Some(protocol);
        sink(Event::Protocol(protocol));
        if protocol == AppProto::Http {
            self.tell_held(sink);
        }
        self.held.clear();
    }

    fn tell_held(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        for anomaly in self.held.drain(..) {
            sink(Event::Anomaly(Side::Server, anomaly));
        }
    }

    /// What a protocol's events come to.
    fn filter(&mut self, sink: &mut impl FnMut(Event<'_>)) -> impl FnMut(Event<'_>) {
        move |event| match event {
            Event::Protocol(protocol) => self.decide(protocol, sink),
            Event::Anomaly(Side::Server, anomaly) if self.protocol.is_none() && !self.is_answer => {
                self.held.push(anomaly);
            }
            other => self.event(other, sink),
        }
    }

    fn event(&mut self, event: Event<'_>, sink: &mut impl FnMut(Event<'_>)) {
        match event {
            Event::ResponseHead(transaction, fields) => {
                self.changes_to = None;
                if is_status(transaction, 101) {
                    let (change, is_twofold) = change(fields);
                    self.changes_to = change;
                    if is_twofold {
                        sink(Event::Anomaly(Side::Server, Anomaly::WebSocketMalformed));
                    }
                }
                self.bodies.event(event, sink);
            }
            Event::Upgraded(transaction) => {
                self.bodies.event(event, sink);
                match self.changes_to {
                    Some(Change::Http2) => {
                        self.decide(AppProto::Http2, sink);
                        let http =
                            Box::new(Http2::upgraded(transaction, &self.bodies.budget().heads));
                        self.upgraded = Some(Upgraded::Http2(http));
                    }
                    Some(Change::WebSocket(extensions)) => {
                        self.decide(AppProto::WebSocket, sink);
                        let web = WebSocket::new(extensions, &self.bodies.budget().decoders);
                        web.report_extensions(sink);
                        self.upgraded = Some(Upgraded::WebSocket(Box::new(web)));
                    }
                    None => {}
                }
            }
            Event::Data(side, bytes) if self.upgraded.is_some() => {
                if let Some(Upgraded::WebSocket(web)) = &mut self.upgraded {
                    web.data(side, bytes, sink);
                }
                self.behind_upgrade(sink, |http, mut sink| http.data(side, bytes, &mut sink));
            }
            other => self.bodies.event(other, sink),
        }
    }

    /// Does something with what HTTP/1 became.
    fn behind_upgrade(
        &mut self,
        sink: &mut impl FnMut(Event<'_>),
        act: impl FnOnce(&mut Http2, &mut dyn FnMut(Event<'_>)),
    ) {
        if let Some(Upgraded::Http2(http)) = &mut self.upgraded {
            act(http, &mut |event| self.bodies.event(event, sink));
        }
    }

    fn gap_behind_upgrade(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(Upgraded::WebSocket(web)) = &mut self.upgraded {
            web.gap(side);
        }
        self.behind_upgrade(sink, |http, mut sink| http.gap(side, &mut sink));
    }
}

/// What a response with status 101 changes the protocol to, if that is followed; and whether it names the other one, too,
/// so that clients take what they have asked for.
fn change(fields: Fields<'_>) -> (Option<Change>, bool) {
    let names = |wanted: &[u8]| {
        fields
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"upgrade"))
            .flat_map(|(_, value)| value.split(|&byte| byte == b','))
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(wanted))
    };
    let is_http2 = names(b"h2c");
    if names(b"websocket") {
        return (Some(Change::WebSocket(Extensions::read(fields.iter()))), is_http2);
    }
    (is_http2.then_some(Change::Http2), false)
}

fn is_status(transaction: &Transaction, status: u16) -> bool {
    transaction.response.as_ref().is_some_and(|response| response.status == status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Form;

    const GET: &str = "GET / HTTP/1.1\r\n\r\n";
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    fn show(event: Event<'_>, log: &mut Vec<String>) {
        let mut bytes = |name: &str, bytes: &[u8]| {
            assert!(!bytes.is_empty());
            match log.last_mut() {
                Some(last) if last.starts_with(name) => {
                    last.push_str(&bytes.escape_ascii().to_string());
                }
                _ => log.push(format!("{name}{}", bytes.escape_ascii())),
            }
        };
        match event {
            Event::Body(body) => bytes(&format!("{:?} body ", body.side), body.bytes),
            Event::Data(side, data) => bytes(&format!("{side:?} data "), data),
            Event::Protocol(protocol) => log.push(protocol.to_string()),
            Event::Anomaly(side, anomaly) => log.push(format!("{side:?} {anomaly}")),
            Event::Complete(it) => log.push(format!("{:?} over", it.id)),
            _ => {}
        }
    }

    fn run(parts: &[(Side, &str)], most: usize) -> Vec<String> {
        let mut app = AppLayer::new();
        let mut log = Vec::new();
        let mut sink = |event: Event<'_>| show(event, &mut log);
        for (side, text) in parts {
            for piece in text.as_bytes().chunks(most) {
                app.data(*side, piece, &mut sink);
            }
        }
        app.close(Side::Client, &mut sink);
        app.close(Side::Server, &mut sink);
        app.finish(&mut sink);
        log
    }

    fn observe(parts: &[(Side, &str)]) -> Vec<String> {
        let whole = run(parts, usize::MAX);
        for most in [1, 2, 3, 5] {
            assert_eq!(run(parts, most), whole, "pieces of {most}");
        }
        whole
    }

    #[test]
    fn accepts_http_and_holds_back_what_a_greeting_may_be() {
        assert_eq!(
            observe(&[(Side::Client, GET), (Side::Server, OK)]),
            ["http", "Server body ok", "Some(0) over"]
        );
        // What the server said first was an answer without a head.
        assert_eq!(
            observe(&[(Side::Server, "220 EVIL"), (Side::Client, GET)]),
            ["Server body 220 EVIL", "http", "Server http_bad_head", "Some(0) over"]
        );
    }

    #[test]
    fn accepts_other_protocols_as_streams() {
        assert_eq!(
            observe(&[
                (Side::Server, "220 mail.test\r\n"),
                (Side::Client, "EHLO c\r\n"),
                (Side::Server, "250 hi\r\n"),
            ]),
            [
                "Server body 220 mail.test\\r\\n",
                "smtp",
                "Client data EHLO c\\r\\n",
                "Server data 250 hi\\r\\n"
            ]
        );
        assert_eq!(observe(&[(Side::Client, "AB\x01C")]), ["unknown", "Client data AB\\x01C"]);
        assert_eq!(
            observe(&[(Side::Server, "220 x"), (Side::Client, "EH")])[1..],
            ["Client http_truncated"]
        );
    }

    #[test]
    fn accepts_codings_of_requests_and_responses() {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        encoder.write_all(b"EVIL").unwrap();
        let coded = encoder.finish().unwrap();
        let head = |line: &str| {
            format!("{line}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", coded.len())
        };
        for most in [1, 2, usize::MAX] {
            let mut app = AppLayer::new();
            let mut decoded = Vec::new();
            for (side, line) in
                [(Side::Client, "POST / HTTP/1.1"), (Side::Server, "HTTP/1.1 200 OK")]
            {
                let message = [head(line).as_bytes(), &coded].concat();
                for piece in message.chunks(most) {
                    app.data(side, piece, &mut |event| match event {
                        Event::Body(body) if body.form != Form::AsSent => {
                            decoded.extend_from_slice(body.bytes);
                        }
                        Event::Anomaly(side, anomaly) => panic!("{side:?} {anomaly}"),
                        _ => {}
                    });
                }
            }
            assert_eq!(decoded, b"EVILEVIL", "pieces of {most}");
        }
        // What lies beyond a limit is no truncation, and nothing behind a hole is decoded.
        let mut app = AppLayer::new();
        let mut log = Vec::new();
        let mut sink = |event: Event<'_>| show(event, &mut log);
        app.limit_response_bodies(Some(12));
        app.data(Side::Client, GET.as_bytes(), &mut sink);
        app.data(Side::Server, head("HTTP/1.1 200 OK").as_bytes(), &mut sink);
        app.data(Side::Server, &coded, &mut sink);
        assert_eq!(log.len(), 3);
        assert_eq!(log[2], "Some(0) over");
    }

    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &str = "\0\0\0\x04\0\0\0\0\0";
    /// A head with `:path: /a`, a body, both on stream 1.
    const HEADERS: &str = "\0\0\x0a\x01\x05\0\0\0\x01\x00\x05:path\x02/a";
    const BODY: &str = "\0\0\x04\x00\x01\0\0\0\x01EVIL";

    #[test]
    fn accepts_http2_however_it_begins() {
        // Servers may send their settings first: that is no bad head.
        let early: &[_] = &[(Side::Server, SETTINGS), (Side::Client, PREFACE)];
        let late: &[_] = &[(Side::Client, PREFACE), (Side::Server, SETTINGS)];
        for start in [early, late] {
            let parts =
                [start, &[(Side::Client, SETTINGS), (Side::Client, HEADERS), (Side::Server, BODY)]];
            let log = observe(&parts.concat());
            let log = &log[log.iter().position(|line| line == "http2").unwrap()..];
            assert_eq!(log, ["http2", "Server body EVIL", "Some(0) over"]);
        }
        // By upgrade: the first request is answered on stream 1.
        let log = observe(&[
            (Side::Client, "GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n"),
            (Side::Server, "HTTP/1.1 101 S\r\nUpgrade: h2c\r\n\r\n"),
            (Side::Server, SETTINGS),
            (Side::Server, BODY),
            (Side::Client, PREFACE),
        ]);
        assert_eq!(log, ["http", "http2", "Some(0) over", "Server body EVIL", "Some(1) over"]);
        let huge = "\0".repeat(MAX_EARLY + 1);
        let log = observe(&[(Side::Server, &huge), (Side::Client, PREFACE)]);
        assert_eq!(log[1..], ["http2", "Server http_gap"]);
    }

    #[test]
    fn accepts_what_follows_an_upgrade_as_a_stream() {
        let log = observe(&[
            (Side::Client, "GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n"),
            (Side::Server, "HTTP/1.1 101 S\r\n\r\nabc"),
            (Side::Client, "def"),
        ]);
        assert_eq!(log, ["http", "Some(0) over", "Server data abc", "Client data def"]);
    }

    #[test]
    fn keeps_of_a_reset_stream_what_decodes_its_response() {
        let frame = |kind: u8, stream: u8, payload: &[u8]| {
            [&[0, 0, payload.len() as u8, kind, 4, 0, 0, 0, stream], payload].concat()
        };
        // Literal fields without an index: POST by number, and what is coded.
        let coded = b"\0\x10content-encoding\x04gzip";
        let budget = AppBudget::new(1 << 20, 1 << 20);
        let mut app = AppLayer::with_budget(&budget);
        let used = || (1 << 20) - budget.decoders.left();
        app.data(Side::Client, PREFACE.as_bytes(), &mut |_| ());
        let mut used_by = Vec::new();
        for (side, bytes) in [
            (Side::Client, frame(1, 1, &[b"\x83\x87\x84", &coded[..]].concat())),
            (Side::Server, frame(1, 1, &[b"\x88", &coded[..]].concat())),
            (Side::Client, frame(3, 1, &[0, 0, 0, 8])),
            (Side::Server, frame(3, 1, &[0, 0, 0, 8])),
        ] {
            app.data(side, &bytes, &mut |_| ());
            used_by.push(used());
        }
        let one = used_by[0];
        assert!(one > 0);
        assert_eq!(used_by, [one, 2 * one, one, 0]);
    }

    #[test]
    fn wants_nothing_of_the_rest_of_a_limited_body() {
        let mut app = AppLayer::new();
        let mut log = Vec::new();
        let mut sink = |event: Event<'_>| show(event, &mut log);
        app.limit_response_bodies(Some(3));
        app.data(Side::Client, GET.as_bytes(), &mut sink);
        assert_eq!(app.wants(Side::Server), Wants::All);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n01234";
        app.data(Side::Server, head, &mut sink);
        assert_eq!(
            (app.wants(Side::Server), app.wants(Side::Client)),
            (Wants::After(95), Wants::All)
        );
        app.skip(Side::Server, 95, &mut sink);
        assert_eq!(app.wants(Side::Server), Wants::All);
        app.gap(Side::Client, &mut sink);
        app.finish(&mut sink);
        assert_eq!(app.wants(Side::Client), Wants::Nothing);
        assert_eq!(log, ["http", "Server body 012", "Some(0) over", "Client http_gap"]);
    }
}
