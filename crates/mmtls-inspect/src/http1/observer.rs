//! The observer itself: one small state machine per direction, and the requests that wait.
//!
//! Refuses to look into a message before its head is complete.

use std::collections::VecDeque;

use super::chunked::{Chunked, Step};
use super::event::{Anomaly, Event, Side};
use super::head::{self, Collected, Framing, HeadBuffer, Refused};

/// Most runs of alike requests that wait for responses. Ordinary pipelining is one run.
const MAX_WAITING_RUNS: usize = 1024;

/// What of the current response body is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLeft {
    /// No response body is being read.
    None,
    /// So many bytes.
    Length(u64),
    /// Everything until the connection closes.
    UntilClose,
    /// Unknown: it is chunked.
    Chunked,
}

/// What a request means for its response (RFC 9112, section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Ordinary,
    Upgrade,
    Head,
    Connect,
}

enum State {
    Head,
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    /// The client sent CONNECT; what follows depends on the answer.
    Connecting {
        seen_bytes: bool,
    },
    Opaque,
}

struct Stream {
    state: State,
    head: HeadBuffer,
    /// A legal head was seen.
    http: bool,
    /// Turns opaque when the message that is under way ends.
    then_opaque: bool,
    /// Anomalies told already, one bit each.
    told: u32,
}

impl Stream {
    fn new() -> Self {
        Self {
            state: State::Head,
            head: HeadBuffer::default(),
            http: false,
            then_opaque: false,
            told: 0,
        }
    }

    fn make_opaque(&mut self) {
        match self.state {
            State::Length(_) | State::Chunked(_) => self.then_opaque = true,
            _ => {
                self.state = State::Opaque;
                self.head.clear();
            }
        }
    }

    fn message_ended(&mut self) {
        self.state = if self.then_opaque { State::Opaque } else { State::Head };
    }
}

/// The observer of one connection.
pub struct Http1 {
    client: Stream,
    server: Stream,
    /// Requests without a final response, oldest first, alike neighbours counted together.
    waiting: VecDeque<(Asked, u32)>,
    unmatched: bool,
}

impl Default for Http1 {
    fn default() -> Self {
        Self::new()
    }
}

impl Http1 {
    /// An observer at the start of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            client: Stream::new(),
            server: Stream::new(),
            waiting: VecDeque::new(),
            unmatched: false,
        }
    }

    /// Whether both directions are of no interest any more: not HTTP, or upgraded.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        matches!((&self.client.state, &self.server.state), (State::Opaque, State::Opaque))
    }

    /// What of the current response body is still to come.
    #[must_use]
    pub fn response_body_left(&self) -> BodyLeft {
        match self.server.state {
            State::Length(left) => BodyLeft::Length(left),
            State::UntilClose => BodyLeft::UntilClose,
            State::Chunked(_) => BodyLeft::Chunked,
            State::Head | State::Connecting { .. } | State::Opaque => BodyLeft::None,
        }
    }

    /// The next bytes that the client sent.
    pub fn request_bytes(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        self.bytes(Side::Client, bytes, sink);
    }

    /// The next bytes that the server sent.
    pub fn response_bytes(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        self.bytes(Side::Server, bytes, sink);
    }

    /// The next `count` bytes that the server sent, which the caller did not look at. Inside a
    /// body of known length, or one that runs until the connection closes, nothing is lost;
    /// anywhere else this is a gap.
    pub fn skip_response_bytes(&mut self, count: u64, sink: &mut impl FnMut(Event<'_>)) {
        if count == 0 {
            return;
        }
        match &mut self.server.state {
            State::Length(left) if count < *left => *left -= count,
            State::Length(left) if count == *left => self.end_message(Side::Server, sink),
            State::UntilClose | State::Opaque => {}
            _ => self.gap(Side::Server, sink),
        }
    }

    /// Bytes of one direction are missing, nobody knows how many.
    pub fn gap(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        match self.stream(side).state {
            State::Opaque | State::UntilClose => {}
            _ => {
                self.tell(side, Anomaly::Gap, sink);
                self.lose_framing(side);
                let lost = core::mem::take(&mut self.stream(side).head);
                self.flush_lost_head(side, &lost.bytes, sink);
            }
        }
    }

    /// The connection was closed in order: ends what runs until then. Nothing may follow.
    pub fn close(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        for side in [Side::Client, Side::Server] {
            match self.stream(side).state {
                State::UntilClose => self.end_message(side, sink),
                State::Length(_) | State::Chunked(_) => self.tell(side, Anomaly::Truncated, sink),
                State::Head | State::Connecting { .. } | State::Opaque => {}
            }
            if !self.stream(side).head.bytes.is_empty() {
                self.tell(side, Anomaly::Truncated, sink);
            }
            let stream = self.stream(side);
            stream.state = State::Opaque;
            stream.head.clear();
        }
    }

    fn stream(&mut self, side: Side) -> &mut Stream {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn tell(&mut self, side: Side, anomaly: Anomaly, sink: &mut impl FnMut(Event<'_>)) {
        let bit = 1 << anomaly as u32;
        let told = &mut self.stream(side).told;
        if *told & bit == 0 {
            *told |= bit;
            sink(Event::Anomaly(side, anomaly));
        }
    }

    fn bytes(&mut self, side: Side, mut input: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        while !input.is_empty() {
            let stream = self.stream(side);
            match &mut stream.state {
                State::Head => input = self.head_bytes(side, input, sink),
                State::Length(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    let (body, rest) = input.split_at(len);
                    *left -= len as u64;
                    let ended = *left == 0;
                    body_event(side, body, sink);
                    if ended {
                        self.end_message(side, sink);
                    }
                    input = rest;
                }
                State::Chunked(chunked) => {
                    let step = chunked.step(input);
                    let faults = chunked.faults;
                    for (is_there, anomaly) in [
                        (faults.bare_line_feed, Anomaly::BareLineFeed),
                        (faults.bad_size, Anomaly::BadChunkSize),
                        (faults.bad_end, Anomaly::BadChunkEnd),
                    ] {
                        if is_there {
                            self.tell(side, anomaly, sink);
                        }
                    }
                    match step {
                        Step::More => return,
                        Step::Fault(used) => input = &input[used..],
                        Step::Data(body, used) => {
                            body_event(side, body, sink);
                            input = &input[used..];
                        }
                        Step::Done(used) => {
                            self.end_message(side, sink);
                            input = &input[used..];
                        }
                        Step::Bad(used) => {
                            self.tell(side, Anomaly::BadChunk, sink);
                            self.lose_framing(side);
                            input = &input[used..];
                        }
                    }
                }
                State::UntilClose => return body_event(side, input, sink),
                State::Connecting { seen_bytes } => {
                    *seen_bytes = true;
                    return;
                }
                State::Opaque => return,
            }
        }
    }

    /// Collects a head and acts on it; returns the input that follows.
    fn head_bytes<'i>(
        &mut self,
        side: Side,
        mut input: &'i [u8],
        sink: &mut impl FnMut(Event<'_>),
    ) -> &'i [u8] {
        let stream = self.stream(side);
        if stream.head.bytes.is_empty() {
            // Empty lines before a start line are to be ignored (RFC 9112, section 2.2).
            input = skip_line_ends(input);
            if input.is_empty() {
                return input;
            }
        }
        match stream.head.collect(side, input) {
            Collected::More => &[],
            Collected::InPlace(len) => {
                let (head, rest) = input.split_at(len);
                if self.head(side, head, sink) { rest } else { input }
            }
            Collected::Buffered(used) => {
                let mut buffer = core::mem::take(&mut stream.head);
                if self.head(side, &buffer.bytes, sink) {
                    buffer.clear();
                    self.stream(side).head = buffer;
                } else {
                    self.flush_lost_head(side, &buffer.bytes, sink);
                }
                &input[used..]
            }
            Collected::Refused(why) => {
                let buffer = core::mem::take(&mut stream.head);
                match why {
                    Refused::Implausible => self.refuse_head(side, Anomaly::BadHead, false, sink),
                    Refused::TooLarge { http1 } => {
                        self.refuse_head(side, Anomaly::HeadTooLarge, http1, sink);
                    }
                }
                self.flush_lost_head(side, &buffer.bytes, sink);
                input
            }
        }
    }

    /// Acts on a complete head; false when it was refused and its bytes are still to be dealt with.
    fn head(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let accepted = match side {
            Side::Client => self.request_head(bytes, sink),
            Side::Server => self.response_head(bytes, sink),
        };
        if !accepted {
            if side == Side::Client && !self.client.http && bytes.starts_with(b"PRI * HTTP/2.0\r\n")
            {
                self.not_http(true, sink);
            } else {
                self.refuse_head(side, Anomaly::BadHead, head::names_http1(bytes), sink);
            }
        }
        accepted
    }

    fn request_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let Some((head, fields)) = head::parse_request(bytes) else {
            return false;
        };
        self.client.http = true;
        let asked = match head.method {
            "HEAD" => Asked::Head,
            "CONNECT" => Asked::Connect,
            _ if fields.upgrade => Asked::Upgrade,
            _ => Asked::Ordinary,
        };
        self.enqueue(asked, sink);
        if let Some(anomaly) = fields.anomaly {
            self.tell(Side::Client, anomaly, sink);
        }
        sink(Event::RequestHead(head));
        match fields.framing {
            // The tunnel begins right after the head (RFC 9110, section 9.3.6).
            _ if asked == Asked::Connect => {
                sink(Event::RequestEnd);
                self.client.state = State::Connecting { seen_bytes: false };
            }
            Framing::Unstated | Framing::Length(0) => sink(Event::RequestEnd),
            Framing::Length(length) => self.client.state = State::Length(length),
            Framing::Chunked => self.client.state = State::Chunked(Chunked::new()),
            Framing::UntilClose => self.client.state = State::UntilClose,
        }
        true
    }

    fn response_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let mended = head::without_control_bytes(bytes);
        let Some((mut head, fields)) = head::parse_response(mended.as_deref().unwrap_or(bytes))
        else {
            return false;
        };
        if mended.is_some() {
            self.tell(Side::Server, Anomaly::ControlInHead, sink);
        }
        self.server.http = true;
        head.answers_request = !self.waiting.is_empty();
        if head.interim {
            sink(Event::ResponseHead(head));
            return true;
        }
        let asked = self.dequeue();
        if let Some(anomaly) = fields.anomaly {
            self.tell(Side::Server, anomaly, sink);
        }
        sink(Event::ResponseHead(head));
        let tunnel = asked == Asked::Connect && (200..300).contains(&head.status);
        let switching = head.status == 101;
        if tunnel || switching && asked == Asked::Upgrade {
            sink(Event::ResponseEnd);
            sink(Event::Upgraded);
            self.client.make_opaque();
            self.server.make_opaque();
            return true;
        }
        if switching {
            // Clients that did not ask take it for a final response.
            self.tell(Side::Server, Anomaly::UnexpectedUpgrade, sink);
        }
        if asked == Asked::Connect {
            self.connect_refused(sink);
        }
        let bodiless = asked == Asked::Head || matches!(head.status, 204 | 304);
        match fields.framing {
            _ if bodiless => sink(Event::ResponseEnd),
            Framing::Length(0) => sink(Event::ResponseEnd),
            Framing::Length(length) => self.server.state = State::Length(length),
            Framing::Chunked => self.server.state = State::Chunked(Chunked::new()),
            Framing::Unstated | Framing::UntilClose => self.server.state = State::UntilClose,
        }
        true
    }

    fn connect_refused(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if let State::Connecting { seen_bytes } = self.client.state {
            self.client.state = State::Head;
            if seen_bytes {
                self.client.state = State::Opaque;
                self.tell(Side::Client, Anomaly::BytesAfterConnect, sink);
            }
        }
    }

    fn end_message(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        self.stream(side).message_ended();
        sink(match side {
            Side::Client => Event::RequestEnd,
            Side::Server => Event::ResponseEnd,
        });
    }

    /// What is not a head: no HTTP at all, or HTTP that cannot be followed any further. Whether it
    /// is HTTP is for the client to say: a server that speaks first may as well be answering the
    /// request that is on its way, without a head (HTTP/0.9).
    fn refuse_head(
        &mut self,
        side: Side,
        anomaly: Anomaly,
        names_http1: bool,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        if side == Side::Server || self.client.http || self.server.http || names_http1 {
            self.tell(side, anomaly, sink);
            self.lose_framing(side);
        } else {
            self.not_http(false, sink);
        }
    }

    fn not_http(&mut self, http2: bool, sink: &mut impl FnMut(Event<'_>)) {
        self.client.make_opaque();
        self.server.make_opaque();
        sink(Event::NotHttp { http2 });
    }

    /// From here on everything in this direction is body.
    fn lose_framing(&mut self, side: Side) {
        self.stream(side).state = State::UntilClose;
    }

    /// Bytes that were collected as a head and turned out to be none.
    fn flush_lost_head(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        if matches!(self.stream(side).state, State::UntilClose) && !bytes.is_empty() {
            body_event(side, bytes, sink);
        }
    }

    fn enqueue(&mut self, asked: Asked, sink: &mut impl FnMut(Event<'_>)) {
        if self.unmatched {
            return;
        }
        if let Some((last, count)) = self.waiting.back_mut()
            && *last == asked
            && *count < u32::MAX
        {
            *count += 1;
        } else if self.waiting.len() < MAX_WAITING_RUNS {
            self.waiting.push_back((asked, 1));
        } else {
            self.unmatched = true;
            self.waiting = VecDeque::new();
            self.tell(Side::Client, Anomaly::PipelineTooDeep, sink);
        }
    }

    fn dequeue(&mut self) -> Asked {
        let Some((asked, count)) = self.waiting.front_mut() else {
            return Asked::Ordinary;
        };
        let asked = *asked;
        *count -= 1;
        if *count == 0 {
            self.waiting.pop_front();
        }
        asked
    }
}

fn body_event(side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
    sink(match side {
        Side::Client => Event::RequestBody(bytes),
        Side::Server => Event::ResponseBody(bytes),
    });
}

fn skip_line_ends(bytes: &[u8]) -> &[u8] {
    let count = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    &bytes[count..]
}
