//! The bodies that are under way: their content codings are taken off.
//!
//! Stands between a protocol and whoever looks at its events. Refuses to decode behind a hole: what
//! was skipped, or lies beyond a limit, ends the decoding of that body.

use std::collections::HashMap;

use crate::decode::{Codings, DecodeBudget, Decoder, Fault};
use crate::event::{Anomaly, Body, Event, Fields, Form, Side};
use crate::http1::loose;
use crate::transaction::Transaction;

/// The decoders of a connection.
#[derive(Default)]
pub(crate) struct Bodies {
    /// By side and stream.
    decoders: HashMap<(Side, u32), Decoder>,
    budget: DecodeBudget,
    /// What was reported, by side.
    reported: [Vec<Anomaly>; 2],
}

impl Bodies {
    pub(crate) fn new(budget: &DecodeBudget) -> Self {
        Self { budget: budget.clone(), ..Self::default() }
    }

    /// Bytes of a side are missing: none of its bodies can be decoded any further.
    pub(crate) fn gap(&mut self, side: Side) {
        self.decoders.retain(|(of, _), _| *of != side);
    }

    /// Passes an event on, and what the bodies in it come to.
    pub(crate) fn event(&mut self, event: Event<'_>, sink: &mut impl FnMut(Event<'_>)) {
        sink(event);
        match event {
            Event::RequestHead { transaction, fields, .. } => {
                self.begin(Side::Client, transaction, fields, sink);
            }
            Event::ResponseHead(transaction, fields) => {
                self.begin(Side::Server, transaction, fields, sink);
            }
            Event::Body(body) => self.body(body, sink),
            Event::RequestEnd(Some(transaction)) => self.end(Side::Client, transaction, sink),
            Event::ResponseEnd(Some(transaction)) => self.end(Side::Server, transaction, sink),
            Event::Complete(transaction) => {
                self.decoders.remove(&key(Side::Server, transaction));
                // In HTTP/1 the next request may be under way.
                if transaction.stream_id.is_some() {
                    self.decoders.remove(&key(Side::Client, transaction));
                }
            }
            _ => {}
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
        let codings = Codings::read(
            codings.iter().map(|value| &value[..]),
            loose::may_be_chunked(side, fields),
        );
        if let Some(fault) = codings.fault() {
            report(&mut self.reported, side, fault, sink);
        }
        match Decoder::new(&codings, &self.budget) {
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
