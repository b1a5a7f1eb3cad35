//! HTTP/2 as an observer of one connection sees it (RFC 9113).
//!
//! Every stream is a transaction; bodies are shown as their DATA comes, whatever else comes between.
//! What endpoints answer with an error of the connection ends the following of that direction: from
//! there on everything in it is shown as body, so that a search misses nothing. Refuses to follow
//! more than [`MAX_STREAMS`] streams at a time.

mod fields;
mod frames;
mod hpack;
mod huffman;
mod resets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::budget::MemoryBudget;
use crate::event::{Anomaly, Body, Event, Fields, Form, Frame, Side};
use crate::transaction::{MAX_STREAM_TEXT, Transaction, Transactions};
use fields::List;
use frames::{ACK, Piece, Reader, kind};
use resets::Resets;

/// Most streams that are followed at a time. Servers allow 100 to 256.
pub const MAX_STREAMS: usize = 1024;
/// What a client sends first (section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So many requests may be reset before their response without being suspicious, and more than half
/// of all are.
const FEW_RESETS: u64 = 100;
const HEADER_TABLE_SIZE: u16 = 1;
const REQUEST_FIELDS: &[&str] = &[":method", ":scheme", ":authority", ":path", ":protocol"];

struct Direction {
    reader: Reader,
    hpack: hpack::Decoder,
    /// Bytes of the preface that are still to come.
    preface: &'static [u8],
    /// Nothing in it can be told apart any more.
    lost: bool,
    reported: Vec<Anomaly>,
}

impl Direction {
    fn new(preface: &'static [u8], budget: &MemoryBudget) -> Self {
        Self {
            reader: Reader::new(budget),
            hpack: hpack::Decoder::new(),
            preface,
            lost: false,
            reported: Vec::new(),
        }
    }
}

struct Stream {
    transaction: Transaction,
    request_over: bool,
    response_over: bool,
}

/// The frame that completes a header block.
#[derive(Clone, Copy)]
struct BlockFrame {
    side: Side,
    kind: u8,
    weight: Option<u8>,
    /// It ends its side of the stream.
    over: bool,
}

/// The observer of one connection.
pub(crate) struct Http2 {
    client: Direction,
    server: Direction,
    streams: BTreeMap<u32, Stream>,
    transactions: Transactions,
    /// The highest streams that were opened, by the server and by the client: those below are not opened any
    /// more (section 5.1.1).
    opened: [u32; 2],
    /// Bytes of text in the streams' transactions.
    text_bytes: usize,
    requests: u64,
    resets: Resets,
    body_limit: Option<u64>,
}

impl Http2 {
    /// At the start of a connection.
    pub(crate) fn new(budget: &MemoryBudget) -> Self {
        Self {
            client: Direction::new(PREFACE, budget),
            server: Direction::new(b"", budget),
            streams: BTreeMap::new(),
            transactions: Transactions::default(),
            opened: [0; 2],
            text_bytes: 0,
            requests: 0,
            resets: Resets::default(),
            body_limit: None,
        }
    }

    /// Behind an upgrade, whose request is answered on stream 1 (RFC 7540, section 3.2).
    pub(crate) fn upgraded(from: &Transaction, budget: &MemoryBudget) -> Self {
        let mut http = Self::new(budget);
        http.transactions = Transactions::behind(from);
        if let Some(request) = from.request.clone() {
            let mut transaction = http.transactions.begin(request);
            transaction.stream_id = Some(1);
            http.add(1, transaction, true);
        }
        http
    }

    pub(crate) fn limit_response_bodies(&mut self, most: Option<u64>) {
        self.body_limit = most;
    }

    /// The next bytes of one direction.
    pub(crate) fn data(&mut self, side: Side, mut input: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        loop {
            let direction = self.direction(side);
            if direction.lost {
                if !input.is_empty() {
                    let (transaction, form) = (None, Form::AsSent);
                    sink(Event::Body(Body { side, transaction, form, bytes: input }));
                }
                return;
            }
            if let Some((&expected, rest)) = direction.preface.split_first() {
                match input.split_first() {
                    None => return,
                    Some((&byte, behind)) if byte == expected => {
                        direction.preface = rest;
                        input = behind;
                    }
                    Some(_) => self.lose(side, Anomaly::Http2Malformed, sink),
                }
                continue;
            }
            let Some(piece) = direction.reader.next(&mut input) else {
                return;
            };
            self.piece(side, piece, sink);
        }
    }

    /// Bytes of one direction are missing, nobody knows how many.
    pub(crate) fn gap(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        self.lose(side, Anomaly::Gap, sink);
    }

    /// One side closed in order.
    pub(crate) fn close(&mut self, side: Side, sink: &mut impl FnMut(Event<'_>)) {
        let direction = self.direction(side);
        if !direction.lost && direction.reader.is_inside() {
            self.report(side, Anomaly::Truncated, sink);
        }
    }

    /// The connection is over: tells the transactions that were under way.
    pub(crate) fn finish(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        for stream in core::mem::take(&mut self.streams).into_values() {
            sink(Event::Complete(&stream.transaction));
        }
        self.text_bytes = 0;
        self.resets.clear(sink);
    }

    fn direction(&mut self, side: Side) -> &mut Direction {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    fn report(&mut self, side: Side, anomaly: Anomaly, sink: &mut impl FnMut(Event<'_>)) {
        let reported = &mut self.direction(side).reported;
        if !reported.contains(&anomaly) {
            reported.push(anomaly);
            sink(Event::Anomaly(side, anomaly));
        }
    }

    fn lose(&mut self, side: Side, why: Anomaly, sink: &mut impl FnMut(Event<'_>)) {
        let direction = self.direction(side);
        if !direction.lost {
            direction.lost = true;
            direction.reader.forget();
            self.report(side, why, sink);
            if side == Side::Server {
                self.resets.clear(sink);
            }
        }
    }

    fn piece(&mut self, side: Side, piece: Piece<'_>, sink: &mut impl FnMut(Event<'_>)) {
        match piece {
            Piece::DataFrame { stream } => self.frame(side, stream, kind::DATA, sink),
            Piece::Part { kind, stream } => self.frame(side, stream, kind, sink),
            Piece::Data { stream, bytes, end_stream } => {
                self.body(side, stream, bytes, sink);
                if end_stream {
                    self.end_stream(side, stream, sink);
                }
            }
            Piece::Block { kind, stream, promised, end_stream, weight } => {
                let direction = self.direction(side);
                let mut list = List::default();
                let block = &direction.reader.buffer;
                let decoded = direction.hpack.decode(block, &mut |name, value| {
                    list.push(name, value);
                });
                match decoded {
                    Err(hpack::Fault::Malformed) => {
                        return self.lose(side, Anomaly::Http2Malformed, sink);
                    }
                    Err(hpack::Fault::OverCap) => {
                        return self.lose(side, Anomaly::Http2HeadersTooLarge, sink);
                    }
                    Ok(()) => {}
                }
                if list.cut {
                    self.report(side, Anomaly::Http2HeadersTooLarge, sink);
                }
                let over = promised.is_some() || end_stream;
                let frame = BlockFrame { side, kind, weight, over };
                match (side, promised) {
                    (_, Some(promised)) => self.request(promised, &list, frame, sink),
                    (Side::Client, None) => self.request(stream, &list, frame, sink),
                    (Side::Server, None) => self.response(stream, &list, frame, sink),
                }
            }
            Piece::Other { kind, flags, stream } => {
                // An empty one says nothing, as in Suricata.
                let is_empty = self.direction(side).reader.buffer.is_empty();
                if kind != kind::SETTINGS || !is_empty {
                    self.frame(side, stream, kind, sink);
                }
                match kind {
                    kind::SETTINGS if stream == 0 && flags & ACK == 0 => self.settings(side),
                    kind::RST_STREAM => self.reset(side, stream, sink),
                    _ => {}
                }
            }
            Piece::Malformed => self.lose(side, Anomaly::Http2Malformed, sink),
            Piece::TooLarge => self.lose(side, Anomaly::Http2HeadersTooLarge, sink),
        }
    }

    /// Tells of a frame: of DATA that begins, of a part of a header block, or of another one with its content
    /// in the reader's buffer.
    fn frame(&self, side: Side, stream: u32, kind: u8, sink: &mut impl FnMut(Event<'_>)) {
        let content = match side {
            Side::Client => &self.client.reader.buffer,
            Side::Server => &self.server.reader.buffer,
        };
        let number = |at: usize| {
            let bytes = content.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_be_bytes(*bytes))
        };
        // Of another length they mean nothing.
        let has = |wanted, len| kind == wanted && content.len() == len;
        let transaction = self.transaction(side, stream);
        let error_code = match kind {
            kind::GOAWAY => number(4),
            _ => number(0).filter(|_| has(kind::RST_STREAM, 4)),
        };
        sink(Event::Frame(Frame {
            error_code,
            weight: content.get(4).copied().filter(|_| has(kind::PRIORITY, 5)),
            window: number(0).filter(|_| has(kind::WINDOW_UPDATE, 4)).map(|it| it & 0x7fff_ffff),
            settings: if kind == kind::SETTINGS { content } else { &[] },
            ..self.frame_of(side, stream, transaction, kind)
        }));
    }

    /// Whose it is what a side sends on a stream.
    fn transaction(&self, side: Side, stream: u32) -> Option<&Transaction> {
        match (self.streams.get(&stream), side) {
            (Some(it), _) => Some(&it.transaction),
            (None, Side::Server) => self.resets.get(stream),
            (None, Side::Client) => None,
        }
    }

    fn transaction_mut(&mut self, side: Side, stream: u32) -> Option<&mut Transaction> {
        match (self.streams.get_mut(&stream), side) {
            (Some(it), _) => Some(&mut it.transaction),
            (None, Side::Server) => self.resets.get_mut(stream),
            (None, Side::Client) => None,
        }
    }

    /// A frame that says nothing but its type.
    fn frame_of<'a>(
        &self,
        side: Side,
        stream: u32,
        transaction: Option<&'a Transaction>,
        kind: u8,
    ) -> Frame<'a> {
        let is_early = transaction.is_none() && self.may_open(stream);
        let (error_code, weight, window) = (None, None, None);
        let (settings, table_sizes) = (&[][..], &[][..]);
        Frame {
            side,
            stream,
            transaction,
            is_early,
            kind,
            error_code,
            weight,
            window,
            settings,
            table_sizes,
        }
    }

    /// Tells of a frame that completes a header block.
    fn block_frame(
        &self,
        stream: u32,
        frame: BlockFrame,
        transaction: Option<&Transaction>,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let BlockFrame { side, kind, weight, .. } = frame;
        sink(Event::Frame(Frame {
            weight,
            table_sizes: match side {
                Side::Client => &self.client.hpack.sizes,
                Side::Server => &self.server.hpack.sizes,
            },
            ..self.frame_of(side, stream, transaction, kind)
        }));
    }

    /// Whether a stream can be opened yet.
    fn may_open(&self, stream: u32) -> bool {
        stream > self.opened[usize::from(stream % 2 == 1)]
    }

    /// What a side allows holds for what the other one sends.
    fn settings(&mut self, side: Side) {
        let (own, other) = match side {
            Side::Client => (&self.client, &mut self.server),
            Side::Server => (&self.server, &mut self.client),
        };
        for setting in own.reader.buffer.chunks_exact(6) {
            let [a, b, value @ ..] = setting else {
                continue;
            };
            if u16::from_be_bytes([*a, *b]) == HEADER_TABLE_SIZE
                && let Ok(value) = value.try_into()
            {
                other.hpack.allow(u32::from_be_bytes(value));
            }
        }
    }

    /// A head of the client, or one that the server promises to answer.
    fn request(
        &mut self,
        stream: u32,
        list: &List,
        frame: BlockFrame,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let BlockFrame { side, over, .. } = frame;
        if self.streams.contains_key(&stream) {
            // A stream that is there already cannot be promised.
            self.trailers(Side::Client, stream, list, frame, sink);
            if over && side == Side::Client {
                self.end_stream(side, stream, sink);
            }
            return;
        }
        if self.resets.get(stream).is_some() {
            // The old response may go on, so this stands alone.
            self.report(side, Anomaly::Http2BadHead, sink);
            self.block_frame(stream, frame, None, sink);
            return sink(Event::Trailers(Side::Client, None, Fields::http2(&list.fields)));
        }
        // Trailers may come of a stream whose response was complete, or that was one too many.
        let is_again = side == Side::Client
            && !stream.is_multiple_of(2)
            && !self.may_open(stream)
            && list.fields.iter().any(|(name, _)| name == b":method");
        if is_again || list.is_malformed(REQUEST_FIELDS) {
            self.report(side, Anomaly::Http2BadHead, sink);
        }
        if list.names_two_hosts() {
            self.report(side, Anomaly::AmbiguousHost, sink);
        }
        if list.compresses_messages() {
            self.report(side, Anomaly::GrpcMessageCoding, sink);
        }
        self.requests += 1;
        let opened = &mut self.opened[usize::from(stream % 2 == 1)];
        *opened = stream.max(*opened);
        let (method, target) = list.line();
        let mut transaction = self.transactions.begin(list.request(&method, &target));
        transaction.stream_id = Some(stream);
        let fields = Fields::http2(&list.fields);
        sink(Event::RequestHead {
            transaction: &transaction,
            method: &method,
            target: &target,
            fields,
        });
        self.block_frame(stream, frame, Some(&transaction), sink);
        if self.streams.len() == MAX_STREAMS {
            self.report(side, Anomaly::Http2TooManyStreams, sink);
            return sink(Event::Complete(&transaction));
        }
        if self.text_bytes + transaction.text_bytes() > MAX_STREAM_TEXT {
            // Its response is told apart, but not known as its, and a body of its own is not decoded.
            if !over {
                self.report(side, Anomaly::Http2TooManyStreams, sink);
            }
            sink(Event::Complete(&transaction));
            transaction.request = None;
            transaction.id = None;
        }
        self.add(stream, transaction, false);
        if over {
            self.end_stream(Side::Client, stream, sink);
        }
    }

    /// A further header block of a stream's side.
    fn trailers(
        &mut self,
        side: Side,
        stream: u32,
        list: &List,
        frame: BlockFrame,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        // Without the end of the stream they are none.
        if list.is_malformed(&[]) || frame.side != side || !frame.over {
            self.report(frame.side, Anomaly::Http2BadHead, sink);
        }
        let transaction = self.transaction(side, stream);
        self.block_frame(stream, frame, transaction, sink);
        sink(Event::Trailers(side, transaction, Fields::http2(&list.fields)));
    }

    fn add(&mut self, stream: u32, transaction: Transaction, request_over: bool) {
        self.text_bytes += transaction.text_bytes();
        self.streams.insert(stream, Stream { transaction, request_over, response_over: false });
    }

    fn response(
        &mut self,
        stream: u32,
        list: &List,
        frame: BlockFrame,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let followed = self.transaction(Side::Server, stream);
        if followed.is_some_and(|it| it.response.is_some()) {
            self.trailers(Side::Server, stream, list, frame, sink);
            if frame.over {
                self.end_stream(Side::Server, stream, sink);
            }
            return;
        }
        match (&followed, list.status()) {
            // What a client would do with it is its own affair, unless it can still ask for it.
            (None, _) => {
                if self.may_open(stream) && !self.client.lost {
                    self.report(Side::Server, Anomaly::Http2BadHead, sink);
                }
                sink(Event::Trailers(Side::Server, None, Fields::http2(&list.fields)));
            }
            (Some(_), None) => self.report(Side::Server, Anomaly::Http2BadHead, sink),
            (Some(it), Some(status)) if (100..200).contains(&status) => {
                // Nobody waits for what else may come of such a head.
                self.block_frame(stream, frame, Some(it), sink);
                let fields = Fields::http2(&list.fields);
                sink(Event::Interim(Some(it), status, fields));
                if list.is_malformed(&[":status"]) {
                    self.report(Side::Server, Anomaly::Http2BadHead, sink);
                }
                if frame.over {
                    self.end_stream(Side::Server, stream, sink);
                }
                return;
            }
            (Some(_), Some(status)) => {
                if list.is_malformed(&[":status"]) {
                    self.report(Side::Server, Anomaly::Http2BadHead, sink);
                }
                if list.compresses_messages() {
                    self.report(Side::Server, Anomaly::GrpcMessageCoding, sink);
                }
                if let Some(it) = self.transaction_mut(Side::Server, stream) {
                    let mut response = list.response(status);
                    response.solicited = true;
                    it.response = Some(response);
                    sink(Event::ResponseHead(it, Fields::http2(&list.fields)));
                }
            }
        }
        let transaction = self.transaction(Side::Server, stream);
        self.block_frame(stream, frame, transaction, sink);
        if frame.over {
            self.end_stream(Side::Server, stream, sink);
        }
    }

    fn body(
        &mut self,
        side: Side,
        stream: u32,
        mut bytes: &[u8],
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let limit = self.body_limit.unwrap_or(u64::MAX);
        let followed = self.transaction_mut(side, stream);
        let count = bytes.len() as u64;
        let transaction = match (followed, side) {
            (None, _) => None,
            (Some(transaction), Side::Client) => {
                if let Some(request) = &mut transaction.request {
                    request.body_bytes = request.body_bytes.saturating_add(count);
                }
                Some(transaction)
            }
            (Some(transaction), Side::Server) => {
                if let Some(response) = &mut transaction.response {
                    let wanted = limit.saturating_sub(response.body_bytes);
                    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
                    bytes = &bytes[..bytes.len().min(wanted)];
                    // First what is shown, then what is beyond the limit.
                    response.body_bytes = response.body_bytes.saturating_add(bytes.len() as u64);
                }
                Some(transaction)
            }
        };
        if !bytes.is_empty() {
            let shown = transaction.as_deref();
            sink(Event::Body(Body { side, transaction: shown, form: Form::AsSent, bytes }));
        }
        if side == Side::Server
            && let Some(response) = transaction.and_then(|it| it.response.as_mut())
        {
            let beyond = count - bytes.len() as u64;
            if beyond > 0 && response.body_bytes <= limit {
                sink(Event::BodyLimit(side));
            }
            response.body_bytes = response.body_bytes.saturating_add(beyond);
        }
    }

    /// A side has ended its half of a stream.
    fn end_stream(&mut self, side: Side, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        let Some(it) = self.streams.get_mut(&stream) else {
            if side == Side::Server {
                self.resets.end(stream, sink);
            }
            return;
        };
        match side {
            Side::Client if !it.request_over => {
                it.request_over = true;
                if let Some(request) = &mut it.transaction.request {
                    request.complete = true;
                }
                sink(Event::RequestEnd(Some(&it.transaction)));
            }
            Side::Server if !it.response_over => {
                it.response_over = true;
                if let Some(response) = &mut it.transaction.response {
                    response.complete = true;
                }
                sink(Event::ResponseEnd(Some(&it.transaction)));
            }
            _ => {}
        }
        if it.request_over && it.response_over {
            self.remove(stream, sink);
        }
    }

    /// A side gives a stream up. A response that is complete may be followed by this.
    fn reset(&mut self, side: Side, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        let Some(it) = self.streams.get(&stream) else {
            if side == Side::Server {
                self.resets.forget(stream, sink);
            }
            return;
        };
        let may_go_on = side == Side::Client && !it.response_over && !self.server.lost;
        if side == Side::Client && it.transaction.response.is_none() {
            self.resets.unanswered += 1;
            let unanswered = self.resets.unanswered;
            if unanswered > FEW_RESETS && unanswered > self.requests / 2 {
                self.report(side, Anomaly::Http2RapidReset, sink);
            }
        }
        if !may_go_on {
            return self.remove(stream, sink);
        }
        if let Some(it) = self.streams.remove(&stream) {
            let mut transaction = it.transaction;
            self.text_bytes -= transaction.text_bytes();
            transaction.is_reset = true;
            sink(Event::Complete(&transaction));
            self.resets.follow(stream, transaction, sink);
        }
    }

    fn remove(&mut self, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(stream) = self.streams.remove(&stream) {
            self.text_bytes -= stream.transaction.text_bytes();
            sink(Event::Complete(&stream.transaction));
        }
    }
}
