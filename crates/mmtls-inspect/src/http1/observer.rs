//! The observer itself: one small state machine per direction, and the transactions.
//!
//! Refuses to look into a message before its head is complete.

use core::mem::MaybeUninit;

use super::chunked::{Chunked, Step};
use super::head::{self, Collected, Framing, HeadBuffer, MAX_FIELDS, Refused};
use super::loose::{self, LooseRequest};
use crate::budget::{Kept, MemoryBudget};
use crate::event::{Anomaly, Body, Event, Fields, Form, Side};
use crate::protocol::{AppProto, HTTP2_REQUEST};
use crate::transaction::{Answered, Expects, Queued, Response, Transaction, Transactions};

/// Most bytes of trailers that are kept.
const MAX_TRAILERS: usize = head::MAX_HEAD_LEN / 2;

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
    /// Trailers that are under way.
    trailers: Kept,
    /// Not all of them are kept.
    trailers_cut: bool,
    /// A legal head was seen.
    http: bool,
    /// Turns opaque when the message that is under way ends.
    then_opaque: bool,
    /// Anomalies reported already, one bit each.
    reported: u32,
}

impl Stream {
    fn new(budget: &MemoryBudget) -> Self {
        Self {
            state: State::Head,
            head: HeadBuffer::new(budget),
            trailers: Kept::new(budget),
            trailers_cut: false,
            http: false,
            then_opaque: false,
            reported: 0,
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

    fn has_reported(&self, anomaly: Anomaly) -> bool {
        self.reported & 1 << anomaly as u32 != 0
    }

    fn message_ended(&mut self) {
        self.state = if self.then_opaque { State::Opaque } else { State::Head };
    }
}

/// The observer of one connection.
pub struct Http1 {
    client: Stream,
    server: Stream,
    /// Requests without a final response.
    transactions: Transactions,
    /// The response that is under way, and its request.
    answering: Option<Box<Transaction>>,
    /// The request whose body is under way.
    requesting: Option<u64>,
    /// Its transaction, where it has been answered already: it is not over before its request is.
    answered: Option<Box<Transaction>>,
    /// The last response had status 205 and no length.
    behind_unframed: bool,
    /// There was a response that nobody had asked for.
    has_unsolicited: bool,
    /// It was reported that this is HTTP.
    decided: bool,
    /// Body bytes of a response that are reported; the rest is not looked at.
    body_limit: Option<u64>,
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
        Self::with_budget(&MemoryBudget::default())
    }

    /// At the start of a connection, whose long heads share memory with those of others.
    #[must_use]
    pub fn with_budget(budget: &MemoryBudget) -> Self {
        Self {
            client: Stream::new(budget),
            server: Stream::new(budget),
            transactions: Transactions::default(),
            answering: None,
            requesting: None,
            answered: None,
            behind_unframed: false,
            has_unsolicited: false,
            decided: false,
            body_limit: None,
        }
    }

    /// Of each response's body only so many bytes are of interest. Has no effect where endpoints may
    /// disagree about the end of the body: what one takes for the rest, another may take for a
    /// response.
    pub fn limit_response_bodies(&mut self, most: Option<u64>) {
        self.body_limit = most;
    }

    /// What is left of the current response's body, once as much of it was seen as is of interest.
    #[must_use]
    pub fn uninteresting(&self) -> Option<BodyLeft> {
        let left = self.response_body_left();
        let framed = matches!(left, BodyLeft::Length(_) | BodyLeft::Chunked);
        let response = self.answering.as_ref()?.response.as_ref()?;
        (framed && self.server.reported == 0 && response.body_bytes >= self.body_limit?)
            .then_some(left)
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

    /// The next `count` bytes of one direction, which the caller did not look at. Inside a body of
    /// known length, or one that runs until the connection closes, nothing is lost; anywhere else
    /// this is a gap.
    pub fn skip(&mut self, side: Side, count: u64, sink: &mut impl FnMut(Event<'_>)) {
        if count == 0 {
            return;
        }
        self.count_body(side, count);
        match &mut self.stream(side).state {
            State::Length(left) if count < *left => *left -= count,
            State::Length(left) if count == *left => self.end_message(side, sink),
            State::UntilClose | State::Opaque => {}
            _ => self.gap(side, sink),
        }
    }

    /// Bytes of one direction are missing, nobody knows how many.
    pub fn gap(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        match self.stream(side).state {
            State::Opaque | State::UntilClose => {}
            _ => {
                self.report(side, Anomaly::Gap, sink);
                self.trailers(side, sink);
                self.lose_framing(side);
                let lost = self.stream(side).head.take();
                self.flush_lost_head(side, lost.bytes(), sink);
            }
        }
    }

    /// One side closed in order: ends what runs until then. Nothing of it may follow.
    pub fn close(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        if !self.stream(side).head.bytes().is_empty() {
            self.report(side, Anomaly::Truncated, sink);
        }
        self.endless_head(side, sink);
        match self.stream(side).state {
            State::UntilClose => self.end_message(side, sink),
            State::Length(_) | State::Chunked(_) => {
                self.trailers(side, sink);
                self.report(side, Anomaly::Truncated, sink);
            }
            State::Head | State::Connecting { .. } | State::Opaque => {}
        }
        let stream = self.stream(side);
        stream.state = State::Opaque;
        stream.head.clear();
    }

    /// The connection is over, in whatever way: tells the transactions that were under way.
    pub fn finish(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        self.endless_head(Side::Server, sink);
        self.trailers(Side::Client, sink);
        self.trailers(Side::Server, sink);
        self.response_over(false, sink);
        self.settle_answered(sink);
        for transaction in self.transactions.give_up() {
            sink(Event::Complete(&transaction));
        }
    }

    fn stream(&mut self, side: Side) -> &mut Stream {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn report(&mut self, side: Side, anomaly: Anomaly, sink: &mut impl FnMut(Event<'_>)) {
        let bit = 1 << anomaly as u32;
        let reported = &mut self.stream(side).reported;
        if *reported & bit == 0 {
            *reported |= bit;
            sink(Event::Anomaly(side, anomaly));
        }
    }

    /// The next bytes of one direction.
    pub fn data(&mut self, side: Side, mut input: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        while !input.is_empty() {
            let stream = self.stream(side);
            match &mut stream.state {
                State::Head => input = self.head_bytes(side, input, sink),
                State::Length(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    let (body, rest) = input.split_at(len);
                    *left -= len as u64;
                    let ended = *left == 0;
                    self.body(side, body, sink);
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
                            self.report(side, anomaly, sink);
                        }
                    }
                    match step {
                        Step::More => return,
                        Step::Fault(used) => input = &input[used..],
                        Step::Data(body, used) => {
                            self.body(side, body, sink);
                            input = &input[used..];
                        }
                        Step::Trailers { bytes, used, is_last } => {
                            self.add_trailers(side, bytes, sink);
                            if is_last {
                                self.trailers(side, sink);
                                self.end_message(side, sink);
                            }
                            input = &input[used..];
                        }
                        Step::Bad(used) => {
                            self.trailers(side, sink);
                            self.report(side, Anomaly::BadChunk, sink);
                            self.lose_framing(side);
                            input = &input[used..];
                        }
                    }
                }
                State::UntilClose => return self.body(side, input, sink),
                State::Connecting { seen_bytes } => {
                    *seen_bytes = true;
                    return sink(Event::Data(side, input));
                }
                State::Opaque => return sink(Event::Data(side, input)),
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
        if stream.head.bytes().is_empty() {
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
            Collected::Buffered { used, before } => {
                let mut buffer = stream.head.take();
                if self.head(side, buffer.bytes(), sink) {
                    buffer.clear();
                    self.stream(side).head = buffer;
                } else {
                    self.flush_lost_head(side, buffer.bytes(), sink);
                }
                self.data(side, before, sink);
                &input[used..]
            }
            Collected::Refused(why) => {
                let buffer = stream.head.take();
                match why {
                    Refused::Implausible { http1 } => {
                        self.refuse_head(side, Anomaly::BadHead, http1, sink);
                    }
                    Refused::TooLarge { http1 } => {
                        self.refuse_head(side, Anomaly::HeadTooLarge, http1, sink);
                    }
                }
                self.flush_lost_head(side, buffer.bytes(), sink);
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
            if side == Side::Client && !self.client.http && bytes.starts_with(HTTP2_REQUEST) {
                self.not_http(AppProto::Http2, sink);
            } else {
                self.refuse_head(side, Anomaly::BadHead, head::names_http1(bytes), sink);
            }
        }
        accepted
    }

    fn request_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let Some(head) = head::parse_request(bytes, &mut headers) else {
            return self.loose_request_head(bytes, sink);
        };
        self.client.http = true;
        self.is_http(sink);
        let [method, target] = head.line;
        let expects = match method {
            "HEAD" => Expects::Head,
            "CONNECT" => Expects::Connect,
            _ if head.meaning.upgrade => Expects::Upgrade,
            _ => Expects::Ordinary,
        };
        let framing = head.meaning.framing;
        let two_hosts = head::names_two_hosts(target.as_bytes(), head.headers);
        let anomalies = [
            head.meaning.anomaly,
            // Some servers go by the length, or know no coding: they find other requests.
            head.meaning.has_length_and_coding.then_some(Anomaly::LengthAndCodingInRequest),
            two_hosts.then_some(Anomaly::AmbiguousHost),
        ];
        let transaction = Box::new(self.transactions.begin(head.message));
        self.requesting = None;
        self.settle_answered(sink);
        for anomaly in anomalies.into_iter().flatten() {
            self.report(Side::Client, anomaly, sink);
        }
        if self.has_unsolicited && matches!(expects, Expects::Head | Expects::Connect) {
            // A client that had asked already takes it for the answer, and reads another body than was seen here.
            self.report(Side::Server, Anomaly::ConflictingLengths, sink);
        }
        let fields = Fields::http1(head.headers, bytes);
        sink(Event::RequestHead { transaction: &transaction, method, target, fields });
        let id = transaction.id;
        match self.transactions.queue(transaction, expects) {
            Queued::Kept => self.requesting = id,
            Queued::Forgotten(transaction) => {
                // Its body will belong to nobody, and is not decoded.
                if !matches!(framing, Framing::Unstated | Framing::Length(0)) {
                    self.report(Side::Client, Anomaly::PipelineTooDeep, sink);
                }
                sink(Event::Complete(&transaction));
            }
            Queued::TooDeep(transaction) => {
                self.report(Side::Client, Anomaly::PipelineTooDeep, sink);
                sink(Event::Complete(&transaction));
            }
        }
        match framing {
            // The tunnel begins right after the head (RFC 9110, section 9.3.6).
            _ if expects == Expects::Connect => {
                self.request_over(sink);
                self.client.state = State::Connecting { seen_bytes: false };
            }
            Framing::Unstated | Framing::Length(0) => self.request_over(sink),
            Framing::Length(length) => self.client.state = State::Length(length),
            Framing::Chunked => self.client.state = State::Chunked(Chunked::new()),
            Framing::UntilClose => self.client.state = State::UntilClose,
        }
        true
    }

    fn response_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let mended = head::without_control_bytes(bytes);
        let mut headers = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let head = head::parse_response(mended.as_deref().unwrap_or(bytes), &mut headers);
        let Some(head) = head else {
            return self.loose_response_head(bytes, sink);
        };
        if mended.is_some() || head::hides_framing(bytes) {
            self.report(Side::Server, Anomaly::ControlInHead, sink);
        }
        self.server.http = true;
        self.is_http(sink);
        let status = head.message.status;
        let fields = Fields::http1(head.headers, bytes);
        let switching = status == 101;
        if (100..200).contains(&status) && !switching {
            sink(Event::Interim(self.transactions.oldest(), status, fields));
            return true;
        }
        // A response that lost its framing never ended.
        self.response_over(false, sink);
        let Answered { mut transaction, expects, solicited } = self.transactions.answer();
        if core::mem::take(&mut self.behind_unframed) && !solicited {
            // To who reads until the end it is the content of what came before.
            self.report(Side::Server, Anomaly::ConflictingLengths, sink);
        }
        self.has_unsolicited |= !solicited;
        if let Some(anomaly) = head.meaning.anomaly {
            self.report(Side::Server, anomaly, sink);
        }
        transaction.response = Some(Response { solicited, ..head.message });
        sink(Event::ResponseHead(&transaction, fields));
        self.answering = Some(transaction);
        let tunnel = expects == Expects::Connect && (200..300).contains(&status);
        if tunnel || switching && expects == Expects::Upgrade {
            self.upgraded(sink);
            return true;
        }
        if switching {
            // Clients that did not ask take it for a final response.
            self.report(Side::Server, Anomaly::UnexpectedUpgrade, sink);
        }
        if expects == Expects::Connect {
            self.connect_refused(sink);
        }
        let bodiless = expects == Expects::Head || matches!(status, 204 | 304);
        match head.meaning.framing {
            _ if bodiless => self.response_over(true, sink),
            // As browsers read it, and as frameworks mean it that take the length away.
            Framing::Unstated if status == 205 => {
                self.behind_unframed = true;
                self.response_over(true, sink);
            }
            Framing::Length(0) => self.response_over(true, sink),
            Framing::Length(length) => self.server.state = State::Length(length),
            Framing::Chunked => self.server.state = State::Chunked(Chunked::new()),
            Framing::Unstated | Framing::UntilClose => self.server.state = State::UntilClose,
        }
        true
    }

    /// Acts on the head of a request that strict servers refuse, as [`Self::loose_response_head`].
    fn loose_request_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        let Some(LooseRequest { message, method, target }) = loose::request(bytes) else {
            return false;
        };
        self.client.http = true;
        self.is_http(sink);
        self.report(Side::Client, Anomaly::BadHead, sink);
        self.requesting = None;
        self.settle_answered(sink);
        self.body(Side::Client, bytes, sink);
        let transaction = Box::new(self.transactions.begin(message));
        let fields = Fields::http1(&[], bytes);
        let (id, method) = (transaction.id, method.as_str());
        sink(Event::RequestHead { transaction: &transaction, method, target: &target, fields });
        let expects = if method == "HEAD" { Expects::Head } else { Expects::Ordinary };
        match self.transactions.queue(transaction, expects) {
            Queued::Kept => self.requesting = id,
            Queued::Forgotten(transaction) => sink(Event::Complete(&transaction)),
            Queued::TooDeep(transaction) => {
                self.report(Side::Client, Anomaly::PipelineTooDeep, sink);
                sink(Event::Complete(&transaction));
            }
        }
        self.lose_framing(Side::Client);
        true
    }

    /// Acts on the head of a response that strict clients refuse: who looks at it sees what the others see,
    /// and everything that follows as its body.
    fn loose_response_head(&mut self, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) -> bool {
        if !self.client.http || matches!(self.client.state, State::Connecting { .. }) {
            return false;
        }
        let Some(message) = loose::response(bytes) else {
            return false;
        };
        self.report(Side::Server, Anomaly::BadHead, sink);
        self.server.http = true;
        self.response_over(false, sink);
        // To whoever takes it for no head it is content.
        self.body(Side::Server, bytes, sink);
        let Answered { mut transaction, solicited, .. } = self.transactions.answer();
        transaction.response = Some(Response { solicited, ..message });
        sink(Event::ResponseHead(&transaction, Fields::http1(&[], bytes)));
        self.answering = Some(transaction);
        self.lose_framing(Side::Server);
        true
    }

    /// Nothing more comes, and the head of a response has not ended for strict clients.
    fn endless_head(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        if side == Side::Client || self.server.head.bytes().is_empty() {
            return;
        }
        let kept = self.server.head.take();
        let bytes = kept.bytes();
        let end = loose::blank_line_end(bytes).unwrap_or(bytes.len());
        let (head, body) = bytes.split_at(end);
        if self.loose_response_head(head, sink) {
            self.flush_lost_head(Side::Server, body, sink);
        } else if !bytes.starts_with(b"H") {
            // White space was waiting for a start line.
            self.lose_framing(Side::Server);
            self.flush_lost_head(Side::Server, bytes, sink);
        }
    }

    /// The current response ends the HTTP of both directions.
    fn upgraded(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(transaction) = &mut self.answering {
            if let Some(response) = &mut transaction.response {
                response.complete = true;
            }
            sink(Event::ResponseEnd(Some(transaction)));
            sink(Event::Upgraded(transaction));
            sink(Event::Complete(transaction));
        }
        self.settle_answered(sink);
        self.answering = None;
        self.client.make_opaque();
        self.server.make_opaque();
    }

    /// The current request was seen to its end.
    fn request_over(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        let transaction = self.requested();
        if let Some(request) = transaction.and_then(|transaction| transaction.request.as_mut()) {
            request.complete = true;
        }
        sink(Event::RequestEnd(self.requested().map(|transaction| &*transaction)));
        self.requesting = None;
        self.settle_answered(sink);
    }

    /// The request of what has been answered is over.
    fn settle_answered(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(transaction) = self.answered.take() {
            sink(Event::Complete(&transaction));
        }
    }

    /// The transaction whose request is under way: it may have been answered already.
    fn requested(&mut self) -> Option<&mut Transaction> {
        let id = Some(self.requesting?);
        let known = [
            self.answering.as_deref_mut(),
            self.answered.as_deref_mut(),
            self.transactions.youngest(),
        ];
        known.into_iter().flatten().find(|transaction| transaction.id == id)
    }

    /// The current response, if any, ends; `complete` when it was seen to its end.
    fn response_over(&mut self, complete: bool, sink: &mut impl FnMut(Event<'_>)) {
        let mut transaction = self.answering.take();
        if complete {
            let response = transaction.as_mut().and_then(|it| it.response.as_mut());
            if let Some(response) = response {
                response.complete = true;
            }
            sink(Event::ResponseEnd(transaction.as_deref()));
        }
        let Some(transaction) = transaction else {
            return;
        };
        // A server may answer before it has read the request, which goes on: what is asked of both holds.
        if transaction.id.is_some() && transaction.id == self.requesting {
            self.answered = Some(transaction);
        } else {
            sink(Event::Complete(&transaction));
        }
    }

    fn is_http(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if !self.decided {
            self.decided = true;
            sink(Event::Protocol(AppProto::Http));
        }
    }

    fn connect_refused(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if let State::Connecting { seen_bytes } = self.client.state {
            self.client.state = State::Head;
            if seen_bytes {
                self.client.state = State::Opaque;
                self.report(Side::Client, Anomaly::BytesAfterConnect, sink);
            }
        }
    }

    /// Keeps trailers until they are complete, unless they are only the empty line.
    fn add_trailers(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        let Stream { trailers, trailers_cut, .. } = self.stream(side);
        let is_blank = trailers.bytes().is_empty() && skip_line_ends(bytes).is_empty();
        if is_blank || *trailers_cut {
            return;
        }
        let room = bytes.len().min(MAX_TRAILERS - trailers.bytes().len());
        // Behind a hole nothing means what it says.
        *trailers_cut = !trailers.extend(&bytes[..room]) || room < bytes.len();
        if *trailers_cut {
            self.report(side, Anomaly::HeadTooLarge, sink);
        }
    }

    /// The trailers are complete, or nothing more comes of them.
    fn trailers(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        let stream = self.stream(side);
        let trailers = stream.trailers.take();
        stream.trailers_cut = false;
        if trailers.bytes().is_empty() {
            return;
        }
        let transaction = match side {
            Side::Client => self.requested().map(|transaction| &*transaction),
            Side::Server => self.answering.as_deref(),
        };
        sink(Event::Trailers(side, transaction, Fields::http1(&[], trailers.bytes())));
    }

    fn end_message(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        self.stream(side).message_ended();
        match side {
            Side::Client => self.request_over(sink),
            Side::Server => self.response_over(true, sink),
        }
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
            if side == Side::Client {
                self.is_http(sink);
            }
            self.report(side, anomaly, sink);
            self.lose_framing(side);
        } else {
            self.not_http(AppProto::Unknown, sink);
        }
    }

    fn not_http(&mut self, what: AppProto, sink: &mut impl FnMut(Event<'_>)) {
        self.client.make_opaque();
        self.server.make_opaque();
        sink(Event::Protocol(what));
    }

    /// From here on everything in this direction is body.
    fn lose_framing(&mut self, side: Side) {
        self.stream(side).state = State::UntilClose;
    }

    /// Bytes that were collected as a head and turned out to be none.
    fn flush_lost_head(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        match self.stream(side).state {
            _ if bytes.is_empty() => {}
            State::UntilClose => self.body(side, bytes, sink),
            State::Opaque => sink(Event::Data(side, bytes)),
            _ => {}
        }
    }

    fn body(&mut self, side: Side, mut bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        if side == Side::Server && !bytes.is_empty() && self.may_have_none() {
            self.report(side, Anomaly::ConflictingLengths, sink);
        }
        if side == Side::Server
            && let Some(limit) = self.body_limit
            && self.server.reported == 0
            && !matches!(self.server.state, State::UntilClose)
            && let Some(response) = self.answering.as_ref().and_then(|it| it.response.as_ref())
        {
            let wanted = limit.saturating_sub(response.body_bytes);
            let all = bytes;
            bytes = &all[..all.len().min(usize::try_from(wanted).unwrap_or(usize::MAX))];
            let beyond = all.len() - bytes.len();
            if beyond > 0 && response.body_bytes <= limit {
                sink(Event::BodyLimit(side));
            }
            self.count_body(side, beyond as u64);
        }
        if bytes.is_empty() {
            return;
        }
        self.count_body(side, bytes.len() as u64);
        let transaction = match side {
            Side::Client => self.requested().map(|transaction| &*transaction),
            Side::Server => self.answering.as_deref(),
        };
        sink(Event::Body(Body { side, transaction, form: Form::AsSent, bytes }));
    }

    /// Whether some clients know, by its status, that the response under way has no body, whatever its head says: they take
    /// what others see as its content for the next response. Of 205 browsers do, of 101 Python.
    fn may_have_none(&self) -> bool {
        let response = self.answering.as_ref().and_then(|it| it.response.as_ref());
        response.is_some_and(|it| match it.status {
            205 => true,
            // Where the client's bytes are missing, it may have asked.
            101 => !self.client.has_reported(Anomaly::Gap),
            _ => false,
        })
    }

    /// Body bytes came by, looked at or not.
    fn count_body(&mut self, side: Side, count: u64) {
        match side {
            Side::Client => {
                let request = self.requested().and_then(|it| it.request.as_mut());
                if let Some(request) = request {
                    request.body_bytes = request.body_bytes.saturating_add(count);
                }
            }
            Side::Server => {
                let response = self.answering.as_mut().and_then(|it| it.response.as_mut());
                if let Some(response) = response {
                    response.body_bytes = response.body_bytes.saturating_add(count);
                }
            }
        }
    }
}

fn skip_line_ends(bytes: &[u8]) -> &[u8] {
    let count = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    &bytes[count..]
}
