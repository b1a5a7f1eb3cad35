//! Following one TLS session: from contiguous bytes to records, keys and events.
//!
//! The packets stay outside; what this room says about them is a direction being stalled and the
//! session's fate. Refuses to buffer beyond its limits and to guess where application keys begin:
//! the switch is found by authentication.
//!
//! ```text
//!  Plaintext ──ServerHello──► Searching ──record 0 opens──► Application(epoch, sequence)
//!   hellos, alerts             encrypted handshake            KeyUpdate: next epoch
//! ```

use core::mem;
use core::time::Duration;
use std::collections::VecDeque;

use super::{Control, EndReason, Handler, KeyStatus, Record, Resumption, Session};
use super::{SessionError, SessionInfo};
use crate::config::{Config, Policy};
use crate::counters::Counters;
use crate::output::{KeysNeeded, Output};
use crate::tls::{
    ClientHello, ContentType, Deframed, Direction, HandshakeType, KeyEpoch, MessageBuffer,
    MessageWalker, OpenRecord, ProtocolVersion, RECORD_HEADER_LEN, RecordHeader, ServerHello,
    deframe,
};

/// Fragments up to this length are opened even when no handler asked: a KeyUpdate hides in one
/// (5 bytes of message, 1 of type, 16 of tag, and some padding).
const PEEK_FRAGMENT_LEN: usize = 64;

/// Bytes that a TLS 1.3 fragment has besides its content: inner type and tag.
const TLS13_OVERHEAD: u64 = 17;

/// Key epochs kept ahead of the current one.
const MAX_FUTURE_EPOCHS: usize = 4;

/// What the engine lends to a session while it handles one input.
pub(crate) struct Context<'a, H: Handler> {
    pub(crate) handler: &'a mut H,
    pub(crate) counters: &'a mut Counters,
    pub(crate) config: &'a Config,
    pub(crate) plaintext: &'a mut [u8],
    pub(crate) outputs: &'a mut VecDeque<Output>,
    pub(crate) spare: &'a mut Vec<Vec<u8>>,
    pub(crate) now_ns: u64,
}

/// What has been decided about a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is followed.
    Follow,
    /// Its packets are forwarded unseen.
    Bypass,
    /// Its packets are dropped, after a RST to both endpoints or silently.
    Kill { reset: bool, reason: EndReason },
}

/// How one direction's records are read.
enum Read {
    /// Nothing is encrypted yet.
    Plaintext,
    /// Protected, but the record that begins the application epoch has not been found.
    Searching {
        opener: Option<Box<dyn OpenRecord>>,
        /// Records that were forwarded before keys came, whole, in order.
        backlog: Vec<u8>,
        /// Bytes of records that did not open, or wait in the backlog.
        searched: usize,
    },
    /// Application keys are in use; `None` until this epoch's keys come.
    Application { opener: Option<Box<dyn OpenRecord>>, epoch: u32, sequence: u64 },
}

struct Stream {
    /// Bytes that are not processed yet: a partial record, or everything since a stall began.
    buffer: Vec<u8>,
    /// Stream offset of the first byte that is not processed.
    position: u64,
    messages: MessageBuffer,
    walker: MessageWalker,
    read: Read,
    future: Vec<(u32, Box<dyn OpenRecord>)>,
    /// Set while a complete record at the front of `buffer` waits for keys.
    stalled_since_ns: Option<u64>,
}

impl Stream {
    fn new(position: u64) -> Self {
        Self {
            buffer: Vec::new(),
            position,
            messages: MessageBuffer::default(),
            walker: MessageWalker::default(),
            read: Read::Plaintext,
            future: Vec::new(),
            stalled_since_ns: None,
        }
    }

    fn future_keys(&mut self, epoch: u32) -> Option<Box<dyn OpenRecord>> {
        let at = self.future.iter().position(|(of, _)| *of == epoch)?;
        Some(self.future.swap_remove(at).1)
    }
}

/// What became of one record.
enum Step {
    Done,
    NeedKeys,
    /// The session is no longer followed.
    Stop,
}

/// Why a run over contiguous records ended.
#[derive(PartialEq, Eq)]
enum Ending {
    /// A partial record, or nothing, is left.
    NeedMore,
    /// The next record is complete and waits for keys.
    NeedKeys,
    /// The session is no longer followed.
    Stop,
}

/// One session that is, or was, followed.
pub(crate) struct TlsSession<S> {
    pub(crate) info: SessionInfo,
    pub(crate) fate: Fate,
    control: Control,
    state: S,
    streams: [Stream; 2],
    handshake_started: bool,
    handshake_ended: bool,
    /// The client sent a protected record after the ServerHello: from here on the server's
    /// records may be application data in answer to it.
    client_flight_seen: bool,
    early_data_reported: bool,
    ended: bool,
}

impl<S: Default> TlsSession<S> {
    /// Begins a session whose client stream is processed from `position` on.
    pub(crate) fn start<H: Handler<State = S>>(
        info: SessionInfo,
        positions: [u64; 2],
        ctx: &mut Context<'_, H>,
    ) -> Self {
        let mut session = Self {
            info,
            fate: Fate::Follow,
            control: Control::default(),
            state: S::default(),
            streams: positions.map(Stream::new),
            handshake_started: false,
            handshake_ended: false,
            client_flight_seen: false,
            early_data_reported: false,
            ended: false,
        };
        ctx.counters.sessions += 1;
        session.event(ctx, |handler, session, state| handler.session_start(session, state));
        session
    }

    // Getters.

    /// Whether a complete record of this direction waits for keys.
    pub(crate) fn is_stalled(&self, direction: Direction) -> bool {
        self.streams[direction.index()].stalled_since_ns.is_some()
    }

    /// Bytes that wait behind the stall of a direction, zero without one.
    pub(crate) fn stalled_bytes(&self, direction: Direction) -> usize {
        let stream = &self.streams[direction.index()];
        stream.stalled_since_ns.map_or(0, |_| stream.buffer.len())
    }

    /// Bytes this session keeps: partial records, stalls, backlogs.
    pub(crate) fn buffered(&self) -> usize {
        let of = |stream: &Stream| {
            stream.buffer.len()
                + match &stream.read {
                    Read::Searching { backlog, .. } => backlog.len(),
                    _ => 0,
                }
        };
        self.streams.iter().map(of).sum()
    }

    /// When the stall of a direction began.
    pub(crate) fn stalled_since_ns(&self, direction: Direction) -> Option<u64> {
        self.streams[direction.index()].stalled_since_ns
    }

    /// The first stream offset that must not become complete at the receiver: the end of the
    /// first record that has not been judged. `None` when every complete record has been.
    pub(crate) fn barrier(&self, direction: Direction) -> Option<u64> {
        let stream = &self.streams[direction.index()];
        stream.stalled_since_ns?;
        match deframe(&stream.buffer) {
            Deframed::Record { fragment, .. } => {
                Some(stream.position + (RECORD_HEADER_LEN + fragment.len()) as u64)
            }
            _ => Some(stream.position),
        }
    }

    /// Whether its bytes are still looked at.
    pub(crate) fn following(&self) -> bool {
        self.fate == Fate::Follow && !self.ended
    }

    // Inputs.

    /// Takes the next contiguous bytes of a direction.
    pub(crate) fn handle_bytes<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        mut data: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let side = direction.index();
        if !self.following() {
            return;
        }
        if self.is_stalled(direction) {
            self.streams[side].buffer.extend_from_slice(data);
            return;
        }
        // First complete the partial record: only its own bytes are copied.
        while !self.streams[side].buffer.is_empty() {
            if let Deframed::NeedMore(missing) = deframe(&self.streams[side].buffer) {
                let (head, rest) = data.split_at(missing.min(data.len()));
                self.keep(direction, head, missing, ctx);
                data = rest;
                if head.len() < missing {
                    return;
                }
                continue;
            }
            let buffer = mem::take(&mut self.streams[side].buffer);
            match self.handle_records(direction, &buffer, ctx).1 {
                Ending::NeedMore => recycle(ctx.spare, buffer),
                Ending::NeedKeys => {
                    self.streams[side].buffer = buffer;
                    self.streams[side].buffer.extend_from_slice(data);
                    self.stall(direction, ctx);
                    return;
                }
                Ending::Stop => return,
            }
        }
        // Then whole records straight out of the packet.
        let (used, ending) = self.handle_records(direction, data, ctx);
        let rest = &data[used..];
        if ending != Ending::Stop && !rest.is_empty() {
            self.keep(direction, rest, rest.len(), ctx);
        }
        if ending == Ending::NeedKeys {
            self.stall(direction, ctx);
        }
    }

    /// Installs keys; false when they are not needed (any more).
    pub(crate) fn handle_keys<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        // Early-data and handshake keys have no use yet.
        let KeyEpoch::Application(number) = epoch else {
            return false;
        };
        if !self.following() {
            return false;
        }
        let stream = &mut self.streams[direction.index()];
        let current = match &mut stream.read {
            Read::Searching { opener: slot @ None, .. } if number == 0 => Some(slot),
            Read::Application { opener: slot @ None, epoch, .. } if number == *epoch => Some(slot),
            _ => None,
        };
        match current {
            Some(slot) => *slot = Some(opener),
            None => {
                let expected = match stream.read {
                    Read::Plaintext => 0,
                    Read::Searching { .. } => 1,
                    Read::Application { epoch, .. } => epoch.saturating_add(1),
                };
                let known = stream.future.iter().any(|(of, _)| *of == number);
                if number < expected || known || stream.future.len() >= MAX_FUTURE_EPOCHS {
                    return false;
                }
                stream.future.push((number, opener));
            }
        }
        ctx.counters.keys_accepted += 1;
        self.info.key_status = KeyStatus::Shared;
        let waited = stream.stalled_since_ns.map_or(0, |since| ctx.now_ns.saturating_sub(since));
        self.event(ctx, |handler, session, state| {
            handler.keys(session, state, direction, epoch, Duration::from_nanos(waited));
        });
        self.search_backlog(direction, ctx);
        self.resume(direction, waited, ctx);
        true
    }

    /// The endpoint refuses to share.
    pub(crate) fn handle_null_keys<H: Handler<State = S>>(
        &mut self,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        if !self.following() || self.info.key_status != KeyStatus::Waiting {
            return false;
        }
        ctx.counters.null_keys += 1;
        self.info.key_status = KeyStatus::Exempt;
        self.apply(ctx.config.policies.null_keys, SessionError::MissingKeys);
        true
    }

    /// A stall limit was reached.
    pub(crate) fn handle_missing_keys<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        if !self.following() {
            return;
        }
        ctx.counters.stalls_ended_by_limit += 1;
        if self.info.key_status == KeyStatus::Waiting {
            self.info.key_status = KeyStatus::Missing;
        }
        self.fail(direction, SessionError::MissingKeys, ctx);
    }

    /// The FIN of a direction has been reached in order.
    pub(crate) fn handle_fin<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        let stream = &self.streams[direction.index()];
        if self.following() && stream.stalled_since_ns.is_none() && !stream.buffer.is_empty() {
            self.raise(direction, SessionError::EarlyFin, ctx);
        }
    }

    /// Reports an error and applies its policy.
    pub(crate) fn fail<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_, H>,
    ) {
        self.raise(direction, error, ctx);
        let policies = &ctx.config.policies;
        let policy = match error {
            SessionError::Integrity | SessionError::KeysDoNotFit => policies.integrity_failure,
            SessionError::UnsupportedVersion | SessionError::UnsupportedCipherSuite => {
                policies.unsupported
            }
            SessionError::MissingKeys => match policies.missing_keys {
                Policy::Forward => Policy::Bypass,
                other => other,
            },
            SessionError::EarlyDataNotInspected => match policies.missing_keys {
                Policy::Bypass => Policy::Forward,
                other => other,
            },
            // Behind a gap or a malformed record there is nothing left to follow.
            SessionError::MalformedRecord
            | SessionError::MalformedHandshake
            | SessionError::LostSynchronisation => match policies.lost_synchronisation {
                Policy::Forward => Policy::Bypass,
                other => other,
            },
            SessionError::EarlyFin
            | SessionError::ConflictingOverlap
            | SessionError::NothingOpened => Policy::Forward,
        };
        self.apply(policy, error);
        if self.fate == Fate::Bypass && self.info.key_status != KeyStatus::Missing {
            self.info.key_status = KeyStatus::Unusable;
        }
    }

    /// Reports an error without consequence; not after the end.
    pub(crate) fn raise<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_, H>,
    ) {
        if self.ended {
            return;
        }
        self.event(ctx, |handler, session, state| handler.error(session, state, direction, error));
    }

    /// Raises SESSION_END, once.
    pub(crate) fn end<H: Handler<State = S>>(
        &mut self,
        reason: EndReason,
        ctx: &mut Context<'_, H>,
    ) {
        if self.following() {
            for direction in Direction::BOTH {
                // A changed record 0 looks like one more handshake record.
                if let Read::Searching { opener: Some(_), searched: 1.., .. } =
                    self.streams[direction.index()].read
                {
                    self.raise(direction, SessionError::NothingOpened, ctx);
                }
            }
        }
        if !mem::replace(&mut self.ended, true) {
            self.event(ctx, |handler, session, state| handler.session_end(session, state, reason));
        }
        self.streams = [0, 1].map(|side: usize| Stream::new(self.streams[side].position));
    }

    // Records.

    /// Handles the complete records at the front of `bytes`; returns how many bytes they had.
    fn handle_records<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> (usize, Ending) {
        let mut used = 0;
        loop {
            let (header, fragment) = match deframe(&bytes[used..]) {
                Deframed::Record { header, fragment } => (header, fragment),
                Deframed::NeedMore(_) => return (used, Ending::NeedMore),
                Deframed::Malformed => {
                    self.fail(direction, SessionError::MalformedRecord, ctx);
                    return (used, Ending::Stop);
                }
            };
            match self.handle_record(direction, header, fragment, ctx) {
                Step::Done => {}
                Step::NeedKeys => return (used, Ending::NeedKeys),
                Step::Stop => return (used, Ending::Stop),
            }
            let len = RECORD_HEADER_LEN + fragment.len();
            used += len;
            self.streams[direction.index()].position += len as u64;
        }
    }

    fn handle_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> Step {
        let protected = header.content_type == ContentType::APPLICATION_DATA;
        match &self.streams[direction.index()].read {
            Read::Plaintext => match header.content_type {
                ContentType::HANDSHAKE => self.handle_hello_record(direction, fragment, ctx),
                ContentType::APPLICATION_DATA => self.handle_early_data(direction, ctx),
                // change_cipher_spec for old middleboxes, and alerts.
                _ => {}
            },
            Read::Searching { .. } if protected => {
                return self.handle_search_record(direction, header, fragment, ctx);
            }
            Read::Searching { .. } => {
                if header.content_type == ContentType::HANDSHAKE {
                    self.fail(direction, SessionError::MalformedRecord, ctx);
                }
            }
            Read::Application { opener: None, .. } if protected => return Step::NeedKeys,
            Read::Application { .. } if protected => {
                self.handle_application_record(direction, header, fragment, ctx);
            }
            // Nothing is sent in the clear once application keys are in use.
            Read::Application { .. } => self.fail(direction, SessionError::MalformedRecord, ctx),
        }
        self.step()
    }

    fn step(&self) -> Step {
        if self.following() { Step::Done } else { Step::Stop }
    }

    fn handle_hello_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let cap = ctx.config.limits.max_handshake_bytes;
        if self.streams[direction.index()].messages.push(fragment, cap).is_err() {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
            return;
        }
        while self.following() {
            match self.streams[direction.index()].messages.pop(cap) {
                Ok(Some((kind, body))) => self.handle_message(direction, kind, &body, ctx),
                Ok(None) => return,
                Err(_) => self.fail(direction, SessionError::MalformedHandshake, ctx),
            }
        }
    }

    fn handle_message<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        kind: HandshakeType,
        body: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let malformed = match (direction, kind) {
            (Direction::ClientToServer, HandshakeType::CLIENT_HELLO) => {
                match ClientHello::parse(body) {
                    Ok(hello) => {
                        self.handle_client_hello(hello, ctx);
                        false
                    }
                    Err(_) => true,
                }
            }
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO) => {
                match ServerHello::parse(body) {
                    Ok(hello) => {
                        self.handle_server_hello(&hello, ctx);
                        false
                    }
                    Err(_) => true,
                }
            }
            // Before protection, TLS 1.3 sends nothing but hellos.
            _ => true,
        };
        if malformed {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
        }
    }

    fn handle_client_hello<H: Handler<State = S>>(
        &mut self,
        hello: ClientHello,
        ctx: &mut Context<'_, H>,
    ) {
        let info = &mut self.info;
        info.client_random = hello.random;
        info.server_name = hello.server_name;
        info.alpn_offered = hello.alpn;
        info.resumption = if hello.offers_psk { Resumption::Offered } else { Resumption::None };
        // After a HelloRetryRequest no early data may follow (RFC 8446, section 4.2.10).
        info.early_data_offered = hello.offers_early_data;
        if !mem::replace(&mut self.handshake_started, true) {
            self.event(ctx, |handler, session, state| handler.handshake_start(session, state));
        }
    }

    fn handle_server_hello<H: Handler<State = S>>(
        &mut self,
        hello: &ServerHello,
        ctx: &mut Context<'_, H>,
    ) {
        if !self.handshake_started {
            self.fail(Direction::ServerToClient, SessionError::MalformedHandshake, ctx);
            return;
        }
        let info = &mut self.info;
        info.version = Some(hello.version);
        info.cipher_suite = Some(hello.cipher_suite);
        if hello.is_hello_retry() && hello.version == ProtocolVersion::TLS_1_3 {
            info.hello_retry = true;
            return;
        }
        info.server_random = Some(hello.random);
        if hello.selects_psk {
            info.resumption = Resumption::Accepted;
        }
        if hello.version != ProtocolVersion::TLS_1_3 {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedVersion, ctx);
        } else if !(ctx.config.supports)(hello.version, hello.cipher_suite) {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedCipherSuite, ctx);
        } else {
            for direction in Direction::BOTH {
                let stream = &mut self.streams[direction.index()];
                stream.messages.clear();
                let opener = stream.future_keys(0);
                let wanted = opener.is_none();
                stream.read = Read::Searching { opener, backlog: Vec::new(), searched: 0 };
                if wanted {
                    self.want_keys(direction, 0, ctx);
                }
            }
        }
    }

    /// 0-RTT records pass before the ServerHello; their keys are not handled yet.
    fn handle_early_data<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        if direction == Direction::ClientToServer && self.info.early_data_offered {
            if !mem::replace(&mut self.early_data_reported, true) {
                self.fail(direction, SessionError::EarlyDataNotInspected, ctx);
            }
        } else {
            self.fail(direction, SessionError::MalformedRecord, ctx);
        }
    }

    /// A protected record before the switch is known: it is a handshake record under keys that
    /// were not shared, or number 0 of the application epoch. Its tag tells.
    fn handle_search_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> Step {
        // Early data looks the same; with it, only the switch itself marks the client's flight.
        if direction == Direction::ClientToServer && !self.info.early_data_offered {
            self.client_flight_seen = true;
            self.end_handshake(ctx);
            if !self.following() {
                return Step::Stop;
            }
        }
        // The client shares keys when it has the server's whole flight, so that flight must
        // pass; it is kept, and searched when the keys come. Everything else can wait.
        let must_pass = direction == Direction::ServerToClient && !self.client_flight_seen;
        let stream = &mut self.streams[direction.index()];
        let Read::Searching { opener, backlog, searched } = &mut stream.read else {
            return Step::Done;
        };
        if opener.is_none() && !must_pass {
            return Step::NeedKeys;
        }
        *searched += RECORD_HEADER_LEN + fragment.len();
        if *searched > ctx.config.limits.max_search_bytes {
            let error = match opener {
                Some(_) => SessionError::KeysDoNotFit,
                None => SessionError::LostSynchronisation,
            };
            self.fail(direction, error, ctx);
            return self.step();
        }
        match opener.take() {
            None => {
                backlog.extend_from_slice(&header.bytes);
                backlog.extend_from_slice(fragment);
                Step::Done
            }
            Some(opener) => {
                self.try_switch(direction, opener, header, fragment, ctx);
                self.step()
            }
        }
    }

    /// Tries a record as number 0 of the application epoch.
    fn try_switch<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        opener: Box<dyn OpenRecord>,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let outcome = opener.open(0, header.bytes, fragment, ctx.plaintext);
        let stream = &mut self.streams[direction.index()];
        if outcome.is_err() {
            ctx.counters.trials_failed += 1;
            if let Read::Searching { opener: slot, .. } = &mut stream.read {
                *slot = Some(opener);
            }
            return;
        }
        stream.read = Read::Application { opener: Some(opener), epoch: 0, sequence: 0 };
        if direction == Direction::ClientToServer {
            self.client_flight_seen = true;
        }
        self.deliver(direction, header, fragment, Some(outcome), ctx);
    }

    /// Searches the records that passed before the keys came.
    fn search_backlog<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        let stream = &mut self.streams[direction.index()];
        let Read::Searching { opener: Some(_), backlog, .. } = &mut stream.read else {
            return;
        };
        let backlog = mem::take(backlog);
        let mut rest = &backlog[..];
        while let Deframed::Record { header, fragment } = deframe(rest) {
            rest = &rest[RECORD_HEADER_LEN + fragment.len()..];
            match &mut self.streams[direction.index()].read {
                Read::Searching { opener, .. } => {
                    if let Some(opener) = opener.take() {
                        self.try_switch(direction, opener, header, fragment, ctx);
                    }
                }
                _ => self.handle_application_record(direction, header, fragment, ctx),
            }
            if !self.following() {
                return;
            }
        }
    }

    fn handle_application_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let left = &mut self.control.paused[direction.index()];
        let content = (fragment.len() as u64).saturating_sub(TLS13_OVERHEAD);
        let skipped = *left > 0 && content <= *left;
        if !skipped {
            // Nothing is paused, or this record crosses the edge.
            *left = 0;
            self.deliver(direction, header, fragment, None, ctx);
            return;
        }
        if *left != u64::MAX {
            *left -= content;
        }
        ctx.counters.records_paused += 1;
        self.with_record(direction, header, fragment, None, ctx, |_, _, _, _| {});
    }

    /// Raises NEW_RECORD and then looks at what the handler opened.
    fn deliver<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        outcome: Option<Result<crate::tls::Opened, crate::tls::OpenError>>,
        ctx: &mut Context<'_, H>,
    ) {
        self.end_handshake(ctx);
        if self.following() {
            self.with_record(direction, header, fragment, outcome, ctx, H::new_record);
        }
    }

    fn with_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        outcome: Option<Result<crate::tls::Opened, crate::tls::OpenError>>,
        ctx: &mut Context<'_, H>,
        judge: impl FnOnce(&mut H, &mut Session<'_>, &mut S, &mut Record<'_>),
    ) {
        let stream = &mut self.streams[direction.index()];
        let Read::Application { opener: Some(opener), sequence, .. } = &mut stream.read else {
            return;
        };
        let mut record = Record {
            direction,
            sequence: *sequence,
            header: header.bytes,
            fragment,
            opener: &**opener,
            plaintext: ctx.plaintext,
            outcome,
        };
        // 2^64 records do not happen; a wrapped number would only fail to open.
        *sequence = sequence.wrapping_add(1);
        ctx.counters.records_seen += 1;
        let mut session =
            Session { info: &self.info, control: &mut self.control, now_ns: ctx.now_ns };
        judge(ctx.handler, &mut session, &mut self.state, &mut record);
        if record.outcome.is_none() && fragment.len() <= PEEK_FRAGMENT_LEN {
            // Only a KeyUpdate is looked for; an error is handled below as any other.
            let _ = record.open();
        }
        record.count(&mut self.info);
        let mut failed = false;
        let mut updated = false;
        match record.outcome {
            None => {}
            Some(Err(_)) => failed = true,
            Some(Ok(opened)) => {
                ctx.counters.records_opened += 1;
                updated = opened.content_type == ContentType::HANDSHAKE
                    && stream.walker.walk(&record.plaintext[..opened.len]);
            }
        }
        self.obey();
        if failed {
            ctx.counters.records_failed += 1;
            if self.following() {
                self.fail(direction, SessionError::Integrity, ctx);
            }
        } else if updated {
            self.update_keys(direction, ctx);
        }
    }

    /// Moves a direction to its next epoch (RFC 8446, section 4.6.3).
    fn update_keys<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        ctx.counters.key_updates += 1;
        let stream = &mut self.streams[direction.index()];
        let Read::Application { epoch, .. } = stream.read else {
            return;
        };
        let next = epoch.saturating_add(1);
        stream.future.retain(|(of, _)| *of >= next);
        let opener = stream.future_keys(next);
        let wanted = opener.is_none();
        stream.read = Read::Application { opener, epoch: next, sequence: 0 };
        if wanted {
            self.want_keys(direction, next, ctx);
        }
    }

    fn want_keys<H: Handler<State = S>>(
        &self,
        direction: Direction,
        epoch: u32,
        ctx: &mut Context<'_, H>,
    ) {
        if let (Some(version), Some(cipher_suite), Some(server_random)) =
            (self.info.version, self.info.cipher_suite, self.info.server_random)
        {
            ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
                client: self.info.client,
                client_random: self.info.client_random,
                server_random,
                version,
                cipher_suite,
                direction,
                epoch: KeyEpoch::Application(epoch),
            }));
        }
    }

    // Stalls.

    fn stall<H: Handler<State = S>>(&mut self, direction: Direction, ctx: &mut Context<'_, H>) {
        let stream = &mut self.streams[direction.index()];
        if stream.stalled_since_ns.is_none() {
            stream.stalled_since_ns = Some(ctx.now_ns);
            ctx.counters.stalls += 1;
            self.event(ctx, |handler, session, state| handler.stall(session, state, direction));
        }
    }

    /// Goes on behind a stall, as far as the keys allow.
    fn resume<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        waited_ns: u64,
        ctx: &mut Context<'_, H>,
    ) {
        let stream = &mut self.streams[direction.index()];
        if self.fate != Fate::Follow || stream.stalled_since_ns.is_none() {
            return;
        }
        let mut buffer = mem::take(&mut stream.buffer);
        let (used, ending) = self.handle_records(direction, &buffer, ctx);
        buffer.drain(..used);
        if ending == Ending::NeedKeys && used == 0 {
            // These keys were for a later epoch: the stall goes on.
            self.streams[direction.index()].buffer = buffer;
            return;
        }
        ctx.counters.stalls_ended_by_keys += 1;
        ctx.counters.stall_ns += waited_ns;
        let stream = &mut self.streams[direction.index()];
        stream.stalled_since_ns = None;
        if ending != Ending::Stop {
            stream.buffer = buffer;
            if ending == Ending::NeedKeys {
                self.stall(direction, ctx);
            }
        }
    }

    // Events.

    fn end_handshake<H: Handler<State = S>>(&mut self, ctx: &mut Context<'_, H>) {
        if !mem::replace(&mut self.handshake_ended, true) {
            self.event(ctx, |handler, session, state| handler.handshake_end(session, state));
        }
    }

    fn event<H: Handler<State = S>>(
        &mut self,
        ctx: &mut Context<'_, H>,
        raise: impl FnOnce(&mut H, &mut Session<'_>, &mut S),
    ) {
        let mut session =
            Session { info: &self.info, control: &mut self.control, now_ns: ctx.now_ns };
        raise(ctx.handler, &mut session, &mut self.state);
        self.obey();
    }

    /// Does what the handler asked for.
    fn obey(&mut self) {
        if self.control.reset && !self.ended && !matches!(self.fate, Fate::Kill { .. }) {
            self.fate = Fate::Kill { reset: true, reason: EndReason::ResetByHandler };
        }
    }

    fn apply(&mut self, policy: Policy, error: SessionError) {
        if !self.following() {
            return;
        }
        let reason = EndReason::ResetByPolicy(error);
        self.fate = match policy {
            Policy::Forward if error != SessionError::MissingKeys => Fate::Follow,
            Policy::Forward | Policy::Bypass => Fate::Bypass,
            Policy::Drop => Fate::Kill { reset: false, reason },
            Policy::Reset => Fate::Kill { reset: true, reason },
        };
    }

    /// Buffers bytes; `total` is how many will be needed until they are processed.
    fn keep<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        total: usize,
        ctx: &mut Context<'_, H>,
    ) {
        let buffer = &mut self.streams[direction.index()].buffer;
        if buffer.capacity() == 0 {
            *buffer = ctx.spare.pop().unwrap_or_default();
        }
        buffer.reserve(total);
        buffer.extend_from_slice(bytes);
    }
}

/// Keeps a buffer's allocation for the next partial record.
fn recycle(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    const MAX_SPARE: usize = 32;
    const MAX_SPARE_CAPACITY: usize = 1 << 16;
    if spare.len() < MAX_SPARE && buffer.capacity() <= MAX_SPARE_CAPACITY {
        buffer.clear();
        spare.push(buffer);
    }
}
