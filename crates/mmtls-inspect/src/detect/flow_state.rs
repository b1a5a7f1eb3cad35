//! What rules know of one connection, and what comes of what it carries.
//!
//! Bytes, events and facts of the handshake go in, in the order in which they came; matches come out, each
//! before what completed it goes on. Refuses to report a rule twice for one side of a transaction.

use core::net::SocketAddr;
use std::collections::{HashMap, HashSet};

use super::bodies::Bodies;
use super::connection::{Connection, settle};
use super::context::{Context, Facts, Sink};
use super::frames::{Early, MAX_EARLY};
use super::http_head::Head;
use super::matcher::{Compiled, Matcher, Place, index, is_of};
use super::message::{Message, Outcome, Subject, Waiting};
use super::part_head::boundary_of;
use super::prefilter::Position;
use super::stream::Stream;
use super::window::STEP;
use crate::decode::Codings;
use crate::event::{Body, Event, Fields, Frame, Side};
use crate::http1::loose;
use crate::protocol::AppProto;
use crate::rules::Rule;
use crate::rules::buffers::Application;
use crate::rules::header::Protocol;
use crate::transaction::Transaction;

/// What rules know of one connection.
pub struct FlowState {
    connection: Connection,
    messages: HashMap<(Side, u64), Message>,
    /// Those of which only frames have come, and no transaction yet.
    early: HashMap<Early, Message>,
    /// The numbers of transactions that their client has reset, and whose response may go on.
    resets: HashSet<u64>,
    streams: [Option<Box<Stream>>; 2],
    /// What WebSocket's messages say.
    contents: [Option<Box<Stream>>; 2],
    is_websocket: bool,
    handshake: [Message; 2],
    /// Rules that look into nothing were applied.
    has_begun: [bool; 2],
}

impl FlowState {
    /// At the start of a connection, whose number is not used by another one at the same time.
    #[must_use]
    pub fn new(flow: u64, client: SocketAddr, server: SocketAddr) -> Self {
        let connection = Connection {
            flow,
            client,
            server,
            bits: HashSet::new(),
            inherited: HashSet::new(),
            has_passed: false,
            uninspected: Default::default(),
            application: None,
            is_known: false,
            is_http2: false,
        };
        Self {
            connection,
            messages: HashMap::new(),
            early: HashMap::new(),
            resets: HashSet::new(),
            streams: [None, None],
            contents: [None, None],
            is_websocket: false,
            handshake: Default::default(),
            has_begun: [false; 2],
        }
    }

    /// Whether nothing is under way that rules have looked at in part, but responses that their client has reset: of
    /// those nobody knows whether more comes.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.messages.keys().all(|(_, number)| self.resets.contains(number))
    }

    /// Goes on with other rules: bits that are set stay so by their names. Only where [`Self::is_idle`];
    /// what rules know of the streams is lost.
    pub fn exchange(&mut self, old: &Matcher, new: &Matcher) {
        self.connection.bits = renamed(&self.connection.bits, old, new);
        self.connection.inherited = renamed(&self.connection.inherited, old, new);
        self.messages.clear();
        self.early.clear();
        self.streams = [None, None];
        self.contents = [None, None];
        self.handshake = Default::default();
    }

    /// This is TLS behind what `before` has seen of the same connection, with rules of its own: bits that were set
    /// there are set here, and a pass holds. Each bit once, however often this is said: rules here may unset it.
    pub fn inherit(&mut self, own: &Matcher, before: &Self, others: &Matcher) {
        let bits = match core::ptr::eq(own, others) {
            true => before.connection.bits.clone(),
            false => renamed(&before.connection.bits, others, own),
        };
        for bit in bits {
            if self.connection.inherited.insert(bit) {
                self.connection.bits.insert(bit);
            }
        }
        self.connection.has_passed |= before.connection.has_passed;
    }

    /// Something of one side's handshake is known. `is_complete` when nothing more will be.
    pub fn handshake(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        facts: &dyn Facts,
        is_complete: bool,
        sink: Sink<'_>,
    ) {
        if self.connection.has_passed {
            return;
        }
        // What TLS carries may be known already: certificates can come late.
        let inside = self.connection.application.replace(Application::Tls);
        let message = &mut self.handshake[index(side)];
        let subject = Subject { handshake: Some(facts), ..Subject::none(is_complete) };
        candidates(cx, side, Place::Tls, &subject);
        if facts.version().is_some() {
            let is_first = !core::mem::replace(&mut self.has_begun[index(side)], true);
            bare(cx, &self.connection, side, |rule| match rule.header.protocol {
                Protocol::Tls => true,
                _ => is_first && is_of_stream(rule) && rule.data_size.is_none(),
            });
        }
        message.add_waiting(&mut cx.scratch.hits);
        let rules = cx.scratch.hits.take();
        for &rule in &rules {
            let Some(mut waiting) = message.take(rule) else { continue };
            let outcome = self.connection.apply(cx, &mut waiting, side, &subject);
            settle(&mut self.connection, cx, message, waiting, outcome, side, None, sink);
        }
        cx.scratch.hits.give_back(rules);
        self.connection.application = inside;
    }

    /// The next bytes of a side as they came: a record's, or a segment's.
    pub fn data(&mut self, cx: &mut Context<'_>, side: Side, bytes: &[u8], sink: Sink<'_>) {
        if self.connection.has_passed || bytes.is_empty() {
            return;
        }
        let at = index(side);
        let has_bare = !cx.matcher.bare[at].is_empty();
        if !cx.matcher.needs[at].payload && !has_bare {
            return;
        }
        if has_bare {
            let is_first = !core::mem::replace(&mut self.has_begun[at], true);
            bare(cx, &self.connection, side, |rule| {
                let is_due = rule.data_size.map(|size| size.holds(bytes.len() as u64));
                is_of_stream(rule) && is_due.unwrap_or(is_first)
            });
            let rules = cx.scratch.hits.take();
            for &rule in &rules {
                let subject = Subject::none(true);
                let outcome = self.connection.apply(cx, &mut Waiting::new(rule), side, &subject);
                if outcome == Outcome::Matched {
                    self.connection.matched(cx, rule, side, None, sink);
                }
            }
            cx.scratch.hits.give_back(rules);
        }
        let Self { connection, streams, .. } = self;
        Self::stream(connection, &mut streams[at], cx, side, bytes, sink);
    }

    /// The next bytes of a stream.
    fn stream(
        connection: &mut Connection,
        stream: &mut Option<Box<Stream>>,
        cx: &mut Context<'_>,
        side: Side,
        bytes: &[u8],
        sink: Sink<'_>,
    ) {
        let at = index(side);
        if !cx.matcher.needs[at].payload || connection.has_passed || bytes.is_empty() {
            return;
        }
        let slots = cx.matcher.slots.len();
        let stream = stream.get_or_insert_with(|| Box::new(Stream::new(cx.budget, slots)));
        for piece in bytes.chunks(STEP) {
            if !stream.window.push(piece) {
                connection.over_cap(side, sink);
            }
            for (number, slot) in cx.matcher.slots.iter().enumerate() {
                if slot.place != Place::Payload {
                    continue;
                }
                let (candidates, hits) = (&slot.candidates[at], &mut cx.scratch.hits);
                if let (Some(prefilter), Some(position)) =
                    (&candidates.prefilter, stream.positions.get_mut(number))
                {
                    prefilter.search(position, piece, hits);
                }
                candidates.always.iter().for_each(|&rule| hits.add(rule));
            }
            let may_apply = stream.waiting.is_empty() || stream.window.may_apply();
            if may_apply {
                stream.waiting.iter().for_each(|it| cx.scratch.hits.add(it.rule));
            } else {
                connection.over_cap(side, sink);
            }
            let rules = cx.scratch.hits.take();
            for &rule in &rules {
                // Their pattern may be in every byte that comes.
                if !may_apply && stream.waiting.iter().any(|it| it.rule == rule) {
                    continue;
                }
                let latest = Some((piece, bytes.len()));
                stream.apply(connection, cx, rule, side, latest, sink);
            }
            cx.scratch.hits.give_back(rules);
        }
    }

    /// Bytes of a side are missing.
    pub fn gap(&mut self, side: Side) {
        let at = index(side);
        for stream in [&mut self.streams[at], &mut self.contents[at]].into_iter().flatten() {
            stream.window.restart();
            stream.positions.fill(Position::default());
        }
        for ((of, _), message) in &mut self.messages {
            if *of == side {
                for body in &mut message.bodies {
                    body.window.restart();
                    body.positions.fill(Position::default());
                }
            }
        }
    }

    /// Something of the application layer.
    pub fn event(&mut self, cx: &mut Context<'_>, event: &Event<'_>, sink: Sink<'_>) {
        if self.connection.has_passed {
            return;
        }
        match event {
            Event::Protocol(protocol) => {
                self.connection.is_http2 = *protocol == AppProto::Http2;
                self.is_websocket = *protocol == AppProto::WebSocket;
                let is_http = matches!(protocol, AppProto::Http | AppProto::Http2);
                self.connection.application = is_http.then_some(Application::Http);
                self.known(cx, sink);
            }
            Event::RequestHead { transaction, fields, .. } => {
                self.begin(transaction);
                self.head(cx, Side::Client, transaction, *fields, sink);
            }
            Event::ResponseHead(transaction, fields) => {
                self.head(cx, Side::Server, transaction, *fields, sink);
            }
            // Elsewhere these are the bytes that came already.
            Event::Data(side, bytes) if self.is_websocket => {
                let Self { connection, contents, .. } = self;
                Self::stream(connection, &mut contents[index(*side)], cx, *side, bytes, sink);
            }
            Event::Body(body) => self.body(cx, body, sink),
            Event::Interim(transaction, _, fields) => {
                self.interim(cx, *transaction, *fields, sink);
            }
            Event::Trailers(side, transaction, fields) => {
                self.trailers(cx, *side, *transaction, *fields, sink);
            }
            Event::Frame(frame) => self.frame(cx, frame, sink),
            Event::RequestEnd(Some(transaction)) => {
                self.end(cx, Side::Client, transaction, false, sink);
            }
            Event::ResponseEnd(Some(transaction)) => {
                self.end(cx, Side::Server, transaction, false, sink);
            }
            Event::Complete(transaction) => {
                self.end(cx, Side::Client, transaction, true, sink);
                if transaction.is_reset {
                    self.resets.insert(number(Some(transaction)));
                } else {
                    self.end(cx, Side::Server, transaction, true, sink);
                }
            }
            Event::ResetOver(transaction) => {
                self.end(cx, Side::Server, transaction, true, sink);
                self.resets.remove(&number(Some(transaction)));
            }
            _ => {}
        }
        if self.connection.has_passed {
            self.messages.clear();
            self.early.clear();
        }
    }

    /// It is known what the connection carries: rules about it that were met in the streams can be applied.
    fn known(&mut self, cx: &mut Context<'_>, sink: Sink<'_>) {
        if core::mem::replace(&mut self.connection.is_known, true) {
            return;
        }
        for (stream, side) in self.streams.iter_mut().zip([Side::Client, Side::Server]) {
            let Some(stream) = stream else { continue };
            stream.waiting.iter().for_each(|it| cx.scratch.hits.add(it.rule));
            let rules = cx.scratch.hits.take();
            for &rule in &rules {
                stream.apply(&mut self.connection, cx, rule, side, None, sink);
            }
            cx.scratch.hits.give_back(rules);
        }
    }

    fn head(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        transaction: &Transaction,
        fields: Fields<'_>,
        sink: Sink<'_>,
    ) {
        self.connection.application = Some(Application::Http);
        self.known(cx, sink);
        let at = index(side);
        let looks_into_heads = cx.matcher.looks_into_heads(side);
        let is_wanted = !cx.matcher.bare[at].is_empty() || looks_into_heads;
        let needs = cx.matcher.needs[at];
        if !is_wanted && !needs.bodies {
            return;
        }
        let key = (side, number(Some(transaction)));
        // What is left of another message with the same number is not this one's.
        let message = self.messages.entry(key).or_default();
        if !message.is_early() {
            *message = Message::default();
        }
        message.has_head = true;
        let codings = loose::values(side, fields, b"content-encoding");
        message.is_coded = Codings::read(codings.iter().map(|value| &value[..]), false).is_coded();
        if side == Side::Client && needs.files {
            let mut kinds =
                fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"content-type"));
            // Of several, servers take one or the other: then the body is one file.
            message.boundary = match (kinds.next(), kinds.next()) {
                (Some((_, kind)), None) => boundary_of(kind),
                _ => None,
            };
        }
        let head = match side {
            Side::Client => Head::request(fields),
            Side::Server => Head::response(fields),
        };
        if head.is_cut() {
            self.connection.over_cap(side, sink);
        }
        let payload = self.streams[at].as_ref().map(|stream| stream.window.so_far());
        let met = message.frames.clone();
        let frames = Some(&met);
        let subject = Subject { head: Some(&head), payload, frames, ..Subject::none(false) };
        candidates(cx, side, Place::Head, &subject);
        bare(cx, &self.connection, side, |rule| {
            matches!(rule.header.protocol, Protocol::Http | Protocol::Http1 | Protocol::Http2)
        });
        let rules = cx.scratch.hits.take();
        for &rule in &rules {
            let Some(mut waiting) = message.take(rule) else { continue };
            let outcome = self.connection.apply(cx, &mut waiting, side, &subject);
            settle(
                &mut self.connection,
                cx,
                message,
                waiting,
                outcome,
                side,
                Some(transaction),
                sink,
            );
        }
        cx.scratch.hits.give_back(rules);
        let has_more = looks_into_heads && may_have_trailers(transaction, fields);
        let is_needed = needs.late_heads || !message.waiting.is_empty();
        if is_needed || has_more {
            match cx.budget.take(head.size()) {
                Some(charge) => message.head = Some((head, charge)),
                None if is_needed => self.connection.over_cap(side, sink),
                // Only trailers would ask for it: see there.
                None => {}
            }
        }
    }

    /// The head of an interim response. Nothing else comes of it, and what is asked of the final one may not be
    /// said of it: that it lacks something.
    fn interim(
        &mut self,
        cx: &mut Context<'_>,
        transaction: Option<&Transaction>,
        fields: Fields<'_>,
        sink: Sink<'_>,
    ) {
        let side = Side::Server;
        if !cx.matcher.looks_into_heads(side) {
            return;
        }
        let head = Head::response(fields);
        if head.is_cut() {
            self.connection.over_cap(side, sink);
        }
        let key = (side, number(transaction));
        let payload = self.streams[index(side)].as_ref().map(|stream| stream.window.so_far());
        let known = self.messages.get(&key);
        let (met, done) = known.map(|it| (it.frames.clone(), it.done.clone())).unwrap_or_default();
        let frames = Some(&met);
        let subject = Subject { head: Some(&head), payload, frames, ..Subject::none(true) };
        candidates(cx, side, Place::Head, &subject);
        let rules = cx.scratch.hits.take();
        for &rule in &rules {
            let is_due = |it: &Compiled| it.groups.iter().all(|group| group.seeks_something());
            if !cx.matcher.rules.get(rule as usize).is_some_and(is_due)
                || done.binary_search(&rule).is_ok()
            {
                continue;
            }
            let outcome = self.connection.apply(cx, &mut Waiting::new(rule), side, &subject);
            self.connection.tell_applied(cx, side, sink);
            if outcome == Outcome::Matched {
                if transaction.is_some() {
                    let message = self.messages.entry(key).or_default();
                    message.waiting.retain(|it| it.rule != rule);
                    message.decide(rule, true);
                }
                self.connection.matched(cx, rule, side, transaction, sink);
            }
        }
        cx.scratch.hits.give_back(rules);
    }

    /// Fields behind the body: further ones of the head.
    fn trailers(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        transaction: Option<&Transaction>,
        fields: Fields<'_>,
        sink: Sink<'_>,
    ) {
        if !cx.matcher.looks_into_heads(side) {
            return;
        }
        // Those of no transaction stand alone, and nothing waits for more of them.
        let mut alone = Message::default();
        let message = match transaction {
            Some(_) => self.messages.entry((side, number(transaction))).or_default(),
            None => &mut alone,
        };
        if transaction.is_some() && message.head.is_none() && !message.has_trailers {
            // There was no memory for the head that they belong to.
            self.connection.over_cap(side, sink);
        }
        // Further ones stand alone, or each would be as costly as all that came before.
        let known = message.head.as_ref().filter(|_| !message.has_trailers).map(|(head, _)| head);
        let head = Head::with_trailers(known, side, fields);
        if head.is_cut() {
            self.connection.over_cap(side, sink);
        }
        let subject = Subject { head: Some(&head), ..Subject::none(false) };
        candidates(cx, side, Place::Head, &subject);
        // Without memory they are looked at all the same, and no longer kept than that.
        let mut charge = cx.budget.charge();
        let is_paid = charge.set(head.size());
        if !is_paid {
            self.connection.over_cap(side, sink);
        }
        let is_further = message.has_trailers;
        message.reopen(&mut cx.scratch.hits);
        let before = message.head.replace((head, charge)).filter(|_| is_further);
        let payload = self.streams[index(side)].as_ref().map(|stream| stream.window.so_far());
        let connection = &mut self.connection;
        Bodies { connection, cx, side, payload, transaction, sink }.collected(message);
        let after = message.head.take().filter(|_| is_paid && !message.waiting.is_empty());
        message.head = before.or(after);
    }

    fn body(&mut self, cx: &mut Context<'_>, body: &Body<'_>, sink: Sink<'_>) {
        let at = index(body.side);
        if !cx.matcher.needs[at].bodies {
            return;
        }
        let key = (body.side, number(body.transaction));
        let message = self.messages.entry(key).or_default();
        let payload = self.streams[at].as_ref().map(|stream| stream.window.so_far());
        let (connection, side, transaction) = (&mut self.connection, body.side, body.transaction);
        Bodies { connection, cx, side, payload, transaction, sink }.data(message, body);
    }

    /// A transaction begins: frames may have come before.
    fn begin(&mut self, transaction: &Transaction) {
        let Some(stream) = transaction.stream_id.filter(|_| !self.early.is_empty()) else {
            return;
        };
        for side in [Side::Client, Side::Server] {
            if let Some(message) = self.early.remove(&(side, stream)) {
                self.messages.insert((side, number(Some(transaction))), message);
            }
        }
    }

    /// A frame of HTTP/2.
    fn frame(&mut self, cx: &mut Context<'_>, frame: &Frame<'_>, sink: Sink<'_>) {
        if cx.matcher.frames.is_empty() {
            return;
        }
        let Frame { side, transaction, .. } = *frame;
        let key = (side, number(transaction));
        let early = (frame.is_early && frame.stream > 0).then_some((side, frame.stream));
        let known = match early {
            Some(early) => self.early.get(&early),
            None => self.messages.get(&key).filter(|_| transaction.is_some()),
        };
        let matcher = cx.matcher;
        let known = known.map(|message| &message.frames);
        let newly_met = matcher.frames.newly_met(index(side), frame, known);
        let newly_met: Vec<_> = newly_met.collect();
        if newly_met.is_empty() {
            return;
        }
        let mut alone = Message::default();
        let message = match early {
            Some(early) if self.early.len() < MAX_EARLY || self.early.contains_key(&early) => {
                self.early.entry(early).or_default()
            }
            Some(_) => {
                self.connection.over_cap(side, sink);
                &mut alone
            }
            None if transaction.is_some() => self.messages.entry(key).or_default(),
            None => &mut alone,
        };
        for (check, rules) in newly_met {
            message.frames.add(check);
            for &rule in rules {
                // What looks into buffers begins with those.
                let is_bare = |it: &Compiled| it.groups.is_empty();
                if matcher.rules.get(rule as usize).is_some_and(is_bare) || message.is_waiting(rule)
                {
                    cx.scratch.hits.add(rule);
                }
            }
        }
        let payload = self.streams[index(side)].as_ref().map(|stream| stream.window.so_far());
        let connection = &mut self.connection;
        Bodies { connection, cx, side, payload, transaction, sink }.collected(message);
    }

    /// A message is over; `is_last` when no frame of it follows either.
    fn end(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        transaction: &Transaction,
        is_last: bool,
        sink: Sink<'_>,
    ) {
        let key = (side, number(Some(transaction)));
        let Some(mut message) = self.messages.remove(&key) else {
            return;
        };
        let payload = self.streams[index(side)].as_ref().map(|stream| stream.window.so_far());
        let may_go_on =
            !is_last && transaction.stream_id.is_some() && !cx.matcher.frames.is_empty();
        let (connection, transaction) = (&mut self.connection, Some(transaction));
        Bodies { connection, cx, side, payload, transaction, sink }.end(&mut message);
        if may_go_on {
            message.bodies.clear();
            message.head = message.head.filter(|_| !message.waiting.is_empty());
            self.messages.insert(key, message);
        }
    }
}

/// Bits as other rules number them; those that they do not know are left out.
fn renamed(bits: &HashSet<u32>, old: &Matcher, new: &Matcher) -> HashSet<u32> {
    let names = old.bits.iter().filter(|(_, number)| bits.contains(*number));
    names.filter_map(|(name, _)| new.bits.get(name).copied()).collect()
}

/// The number of a transaction's messages. What has no number of its own, because of its request nothing is
/// kept, has that of its stream.
fn number(transaction: Option<&Transaction>) -> u64 {
    let (id, stream) = transaction.map_or((None, None), |it| (it.id, it.stream_id));
    id.unwrap_or(u64::MAX - stream.map_or(0, u64::from))
}

/// Whether fields may follow behind the body of a message.
fn may_have_trailers(transaction: &Transaction, fields: Fields<'_>) -> bool {
    let is_coding = |(name, _): (&[u8], &[u8])| name.eq_ignore_ascii_case(b"transfer-encoding");
    transaction.stream_id.is_some() || fields.iter().any(is_coding)
}

/// Collects the rules that may match in the buffers that are there at once.
fn candidates(cx: &mut Context<'_>, side: Side, place: Place, subject: &Subject<'_>) {
    let at = index(side);
    for slot in cx.matcher.slots.iter().filter(|slot| slot.place == place) {
        let candidates = &slot.candidates[at];
        if candidates.is_empty() {
            continue;
        }
        let hits = &mut cx.scratch.hits;
        if let Some(prefilter) = &candidates.prefilter {
            subject.each(slot, &mut |bytes| {
                prefilter.search(&mut Position::default(), bytes, hits);
            });
        }
        candidates.always.iter().for_each(|&rule| hits.add(rule));
    }
}

/// Collects the rules that look into no buffer.
fn bare(cx: &mut Context<'_>, connection: &Connection, side: Side, is_due: impl Fn(&Rule) -> bool) {
    for &rule in &cx.matcher.bare[index(side)] {
        let compiled = cx.matcher.rules.get(rule as usize);
        if compiled.is_some_and(|it| is_due(&it.rule) && connection.is_about(&it.rule)) {
            cx.scratch.hits.add(rule);
        }
    }
}

/// Whether a rule belongs to the stream, whatever it carries.
fn is_of_stream(rule: &Rule) -> bool {
    is_of(rule.header.protocol, None, false)
}
