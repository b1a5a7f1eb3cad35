//! The bodies that are under way: their content codings are taken off.
//!
//! Stands between a protocol and whoever looks at its events. Refuses to decode behind a hole: what
//! was skipped, or lies beyond a limit, ends the decoding of that body.

use std::collections::{HashMap, HashSet};

use crate::budget::AppBudget;
use crate::decode::{Codings, Decoder, Fault, is_coding};
use crate::event::{Anomaly, Body, Event, Fields, Form, Side};
use crate::http1::loose;
use crate::transaction::Transaction;
use crate::websocket::{Extensions, Reader};

/// The decoders of a connection.
#[derive(Default)]
pub(crate) struct Bodies {
    /// By side and stream.
    decoders: HashMap<(Side, u32), Decoder>,
    /// Streams of HTTP/2 that carry WebSocket (RFC 8441): asked for, and answered.
    asked: HashSet<u32>,
    websockets: HashMap<(Side, u32), Reader>,
    budget: AppBudget,
    /// What was reported, by side.
    reported: [Vec<Anomaly>; 2],
}

impl Bodies {
    pub(crate) fn new(budget: &AppBudget) -> Self {
        Self { budget: budget.clone(), ..Self::default() }
    }

    pub(crate) fn budget(&self) -> &AppBudget {
        &self.budget
    }

    /// Bytes of a side are missing: none of its bodies can be decoded any further.
    pub(crate) fn gap(&mut self, side: Side) {
        self.decoders.retain(|(of, _), _| *of != side);
        self.websockets.retain(|(of, _), _| *of != side);
    }

    /// Passes an event on, and what the bodies in it come to.
    pub(crate) fn event(&mut self, event: Event<'_>, sink: &mut impl FnMut(Event<'_>)) {
        sink(event);
        match event {
            Event::RequestHead { transaction, method, fields, .. } => {
                self.websocket_asked(transaction, method, fields);
                self.begin(Side::Client, transaction, fields, sink);
            }
            Event::ResponseHead(transaction, fields) => {
                self.websocket_answered(transaction, fields, sink);
                self.begin(Side::Server, transaction, fields, sink);
            }
            Event::Body(body) => self.body(body, sink),
            Event::RequestEnd(Some(transaction)) => self.end(Side::Client, transaction, sink),
            Event::ResponseEnd(Some(transaction)) => self.end(Side::Server, transaction, sink),
            Event::Complete(transaction) | Event::ResetOver(transaction) => {
                // In HTTP/1 the next request may be under way, or another response.
                if let Some(stream) = transaction.stream_id {
                    self.forget(Side::Client, stream);
                    // The server may still answer what was reset.
                    if !transaction.is_reset || matches!(event, Event::ResetOver(_)) {
                        self.asked.remove(&stream);
                        self.forget(Side::Server, stream);
                    }
                }
            }
            _ => {}
        }
    }

    fn forget(&mut self, side: Side, stream: u32) {
        self.decoders.remove(&(side, stream));
        self.websockets.remove(&(side, stream));
    }

    fn websocket_asked(&mut self, transaction: &Transaction, method: &str, fields: Fields<'_>) {
        if let Some(stream) = transaction.stream_id
            && method == "CONNECT"
            && fields.iter().any(|(name, value)| name == b":protocol" && value == b"websocket")
        {
            self.asked.insert(stream);
        }
    }

    fn websocket_answered(
        &mut self,
        transaction: &Transaction,
        fields: Fields<'_>,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let status = transaction.response.as_ref().map_or(0, |response| response.status);
        let Some(stream) = transaction.stream_id.filter(|it| self.asked.remove(it)) else {
            return;
        };
        if !(200..300).contains(&status) {
            return;
        }
        // The client may not know before how its messages are to be sent.
        if body_bytes(Side::Client, transaction) > 0 {
            sink(Event::Anomaly(Side::Client, Anomaly::WebSocketMalformed));
            return;
        }
        let extensions = Extensions::read(fields.iter());
        if extensions.has_unknown {
            sink(Event::Anomaly(Side::Server, Anomaly::WebSocketUnknownExtension));
        }
        for side in [Side::Client, Side::Server] {
            let reader = Reader::new(side, extensions, &self.budget.decoders);
            self.websockets.insert((side, stream), reader);
        }
    }

    fn begin(
        &mut self,
        side: Side,
        transaction: &Transaction,
        fields: Fields<'_>,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        let key = key(side, transaction);
        self.decoders.remove(&key);
        let codings = loose::values(side, fields, b"content-encoding");
        let codings = codings.iter().map(|value| &value[..]);
        // Put on after the content codings. curl takes them off, also where it did not ask for them; that
        // others do not is told by the head's anomaly.
        let named = |field: &(&[u8], &[u8])| field.0.eq_ignore_ascii_case(b"transfer-encoding");
        let transfer = fields
            .iter()
            .filter(named)
            .flat_map(|(_, value)| value.split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|name| is_coding(name));
        let may_be_chunked = loose::may_be_chunked(side, fields);
        let codings = Codings::read(codings.chain(transfer), may_be_chunked);
        if let Some(fault) = codings.fault() {
            report(&mut self.reported, side, fault, sink);
        }
        match Decoder::new(&codings, &self.budget.decoders) {
            Ok(Some(decoder)) => drop(self.decoders.insert(key, decoder)),
            Ok(None) => {}
            Err(fault) => report(&mut self.reported, side, fault, sink),
        }
    }

    fn body(&mut self, body: Body<'_>, sink: &mut impl FnMut(Event<'_>)) {
        let Body { side, transaction: Some(transaction), bytes, .. } = body else {
            return;
        };
        let key = key(side, transaction);
        if let Some(reader) = self.websockets.get_mut(&key) {
            return reader.data(bytes, &mut |read| match read {
                Ok(bytes) => sink(Event::Body(Body { form: Form::Decoded(0), bytes, ..body })),
                Err(fault) => sink(Event::Anomaly(side, fault.anomaly())),
            });
        }
        let Some(decoder) = self.decoders.get_mut(&key) else {
            return;
        };
        if decoder.taken() + bytes.len() as u64 != body_bytes(side, transaction) {
            self.decoders.remove(&key);
            return;
        }
        let mut faults = Vec::new();
        let mut out = |reading: u8, bytes: &[u8]| {
            sink(Event::Body(Body { form: Form::Decoded(reading), bytes, ..body }));
        };
        decoder.data(bytes, &mut out, &mut |fault| faults.push(fault));
        for fault in faults {
            report(&mut self.reported, side, fault, sink);
        }
    }

    fn end(&mut self, side: Side, transaction: &Transaction, sink: &mut impl FnMut(Event<'_>)) {
        let Some(mut decoder) = self.decoders.remove(&key(side, transaction)) else {
            return;
        };
        if decoder.taken() == body_bytes(side, transaction) {
            decoder.finish(&mut |fault| report(&mut self.reported, side, fault, sink));
        }
    }
}

fn key(side: Side, transaction: &Transaction) -> (Side, u32) {
    (side, transaction.stream_id.unwrap_or(0))
}

/// Bytes of the body so far, looked at or not.
fn body_bytes(side: Side, transaction: &Transaction) -> u64 {
    match side {
        Side::Client => transaction.request.as_ref().map_or(0, |request| request.body_bytes),
        Side::Server => transaction.response.as_ref().map_or(0, |response| response.body_bytes),
    }
}

/// Each kind once per side.
fn report(
    reported: &mut [Vec<Anomaly>; 2],
    side: Side,
    fault: Fault,
    sink: &mut impl FnMut(Event<'_>),
) {
    let anomaly = match fault {
        Fault::Unknown => Anomaly::ContentCodingUnknown,
        Fault::Malformed => Anomaly::ContentCodingMalformed,
        Fault::Truncated => Anomaly::ContentCodingTruncated,
        Fault::OverCap => Anomaly::ContentCodingOverCap,
        Fault::TrailingBytes => Anomaly::ContentCodingTrailingBytes,
        Fault::SeveralMembers => Anomaly::ContentCodingSeveralMembers,
    };
    let reported = &mut reported[usize::from(side == Side::Server)];
    if !reported.contains(&anomaly) {
        reported.push(anomaly);
        sink(Event::Anomaly(side, anomaly));
    }
}
