//! Following one TLS session: from contiguous bytes to records, keys and events.
//!
//! The packets stay outside; what this room says about them is a direction being stalled and the
//! session's disposition. Refuses to buffer beyond its limits and to guess where application keys begin:
//! the switch is found by authentication.
//!
//! ```text
//!  Plaintext ──ServerHello──► Searching ──record 0 opens──► Application(epoch, sequence)
//!   hellos, alerts             encrypted handshake            KeyUpdate: next epoch
//! ```

use core::mem;
use core::time::Duration;

use super::sink::SessionSink;
use super::state::{Context, Early, Negotiation, Step, TlsSession};
use super::stream::{MAX_TLS13_FRAGMENT_LEN, Read, Stream};
use crate::buffer_pool::BufferPool;
use crate::config::Policy;
use crate::session::{
    Control, Disposition, EndReason, KeyStatus, Record, Session, SessionError, SessionInfo,
};
use crate::tls::{
    ContentType, Deframed, Direction, KeyEpoch, OpenError, OpenRecord, Opened, ProtocolVersion,
    RECORD_HEADER_LEN, RecordHeader, deframe,
};

/// Fragments up to this length are opened even when no handler asked: a KeyUpdate hides in one
/// (5 bytes of message, 1 of type, 16 of tag, and some padding).
const PEEK_FRAGMENT_LEN: usize = 64;

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

impl TlsSession {
    /// Begins a session whose client stream is processed from `position` on.
    pub(crate) fn start(info: SessionInfo, positions: [u64; 2], ctx: &mut Context<'_>) -> Self {
        let mut session = Self {
            info,
            disposition: Disposition::Follow,
            control: Control::default(),
            streams: positions.map(Stream::new),
            handshake_started: false,
            handshake_ended: false,
            client_flight_seen: false,
            early: Early::default(),
            negotiation: Negotiation::new(),
            finished: [false; 2],
            refused: false,
            ended: false,
        };
        ctx.counters.sessions += 1;
        session.event(ctx, |sink, session| sink.session_start(session));
        session
    }

    // Getters.

    /// Whether a complete record of this direction waits for keys.
    pub(crate) fn is_stalled(&self, direction: Direction) -> bool {
        self.stalled_since_ns(direction).is_some()
    }

    /// Bytes that wait behind the stall of a direction, zero without one.
    pub(crate) fn stalled_bytes(&self, direction: Direction) -> usize {
        let stream = &self.streams[direction.index()];
        self.stalled_since_ns(direction).map_or(0, |_| stream.pending().len())
    }

    /// Bytes this session keeps: partial records, handshake messages, stalls, backlogs.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.streams.iter().map(Stream::kept_bytes).sum()
    }

    /// When the stall of a direction began.
    pub(crate) fn stalled_since_ns(&self, direction: Direction) -> Option<u64> {
        self.streams[direction.index()].stalled_since_ns.filter(|_| self.following())
    }

    /// The first stream offset that must not become complete at the receiver: the end of the
    /// first record that has not been judged. `None` when every complete record has been.
    pub(crate) fn barrier(&self, direction: Direction) -> Option<u64> {
        if self.disposition.is_kill() {
            return Some(0);
        }
        self.stalled_since_ns(direction)?;
        let stream = &self.streams[direction.index()];
        match deframe(stream.pending()) {
            Deframed::Record { fragment, .. } => {
                Some(stream.position + (RECORD_HEADER_LEN + fragment.len()) as u64)
            }
            _ => Some(stream.position),
        }
    }

    /// The client random by which keys are found: that of the latest handshake.
    pub(crate) fn key_random(&self) -> Option<[u8; 32]> {
        self.info.client_hello.then_some(self.negotiation.client_random)
    }

    /// The server random of the latest handshake, once it is known.
    pub(crate) fn key_server_random(&self) -> Option<[u8; 32]> {
        self.negotiation.server_random
    }

    /// Whether its bytes are still looked at.
    pub(crate) fn following(&self) -> bool {
        self.disposition == Disposition::Follow && !self.ended
    }

    // Inputs.

    /// As [`Self::handle_bytes`], of bytes that continue an incomplete record and do not complete it.
    /// Returns whether other memory is taken now; `None`, and nothing done, if they do more than that.
    pub(crate) fn keep_partial(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        pool: &mut BufferPool,
    ) -> Option<bool> {
        if !self.following() {
            return None;
        }
        self.streams[direction.index()].keep_partial(bytes, pool)
    }

    /// Takes the next contiguous bytes of a direction.
    pub(crate) fn handle_bytes(
        &mut self,
        direction: Direction,
        mut data: &[u8],
        ctx: &mut Context<'_>,
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
            if let Deframed::NeedMore(missing) = deframe(self.streams[side].pending()) {
                let (head, rest) = data.split_at(missing.min(data.len()));
                self.streams[side].keep(head, ctx.pool);
                data = rest;
                if head.len() < missing {
                    return;
                }
                continue;
            }
            let (buffer, start) = self.streams[side].take_buffer();
            match self.handle_records(direction, &buffer[start..], ctx).1 {
                Ending::NeedMore => ctx.pool.give(buffer),
                Ending::NeedKeys => {
                    self.streams[side].put_buffer(buffer, start);
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
            self.streams[side].keep(rest, ctx.pool);
        }
        if ending == Ending::NeedKeys {
            self.stall(direction, ctx);
        }
    }

    /// Installs keys that came over the connection `source`; false when they are not needed (any
    /// more).
    pub(crate) fn handle_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: u64,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_>,
    ) -> bool {
        if !self.following() {
            return false;
        }
        let taken = match epoch {
            KeyEpoch::EarlyData => {
                direction == Direction::ClientToServer && self.add_early_keys(source, opener)
            }
            KeyEpoch::Handshake => self.add_handshake_keys(direction, source, opener),
            KeyEpoch::Application(number) => {
                self.add_application_keys(direction, number, source, opener, ctx)
            }
        };
        if !taken {
            return false;
        }
        ctx.counters.keys_accepted += 1;
        if matches!(epoch, KeyEpoch::Application(_)) {
            self.info.key_status = KeyStatus::Shared;
        }
        let stream = &self.streams[direction.index()];
        let waited = stream.stalled_since_ns.map_or(0, |since| ctx.now_ns.saturating_sub(since));
        self.event(ctx, |sink, session| {
            sink.keys(session, direction, epoch, Duration::from_nanos(waited));
        });
        self.search_backlog(direction, epoch, ctx);
        self.resume(direction, Some(waited), ctx);
        true
    }

    /// The endpoint refuses to share.
    pub(crate) fn handle_null_keys(&mut self, ctx: &mut Context<'_>) -> bool {
        if !self.following() || self.info.key_status != KeyStatus::Waiting {
            return false;
        }
        let unsettled = self.info.server_random.is_none();
        if unsettled && ctx.config.policies.require_private_tag != Policy::Forward {
            // The ServerHello has not told yet whether there is a private tag.
            self.refused = true;
            return true;
        }
        ctx.counters.null_keys += 1;
        self.info.key_status = KeyStatus::Exempt;
        self.apply(ctx.config.policies.null_keys, SessionError::MissingKeys);
        true
    }

    /// A stall limit was reached.
    pub(crate) fn handle_missing_keys(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        if !self.following() {
            return;
        }
        ctx.counters.stalls_ended_by_limit += 1;
        if self.handle_missing_early_keys(direction, ctx) {
            self.resume(direction, None, ctx);
            return;
        }
        if self.info.key_status == KeyStatus::Waiting {
            self.info.key_status = KeyStatus::Missing;
        }
        let error = match &self.streams[direction.index()].read {
            Read::Searching(search) if !search.candidates.is_empty() => SessionError::KeysDoNotFit,
            _ => SessionError::MissingKeys,
        };
        self.fail(direction, error, ctx);
    }

    /// The FIN of a direction has been reached in order.
    pub(crate) fn handle_fin(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        let stalled = self.is_stalled(direction);
        let stream = &mut self.streams[direction.index()];
        if !stalled && !stream.pending().is_empty() && !stream.early_fin_raised {
            stream.early_fin_raised = true;
            self.raise(direction, SessionError::EarlyFin, ctx);
        }
    }

    /// Lets go of everything that is kept: the session is not followed any more.
    pub(crate) fn forget(&mut self) {
        self.streams = [0, 1].map(|side: usize| Stream::new(self.streams[side].position));
    }

    /// The client speaks a version that is told by its first bytes, and not followed.
    pub(crate) fn refuse_version(&mut self, version: ProtocolVersion, ctx: &mut Context<'_>) {
        self.info.version = Some(version);
        self.require_private_tag(Direction::ClientToServer, ctx);
        if self.following() {
            self.fail(Direction::ClientToServer, SessionError::UnsupportedVersion, ctx);
        }
        self.disposition.decide(Disposition::Bypass);
    }

    /// Reports an error and applies its policy.
    pub(crate) fn fail(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_>,
    ) {
        self.raise(direction, error, ctx);
        let policies = &ctx.config.policies;
        let policy = match error {
            SessionError::Integrity => policies.integrity_failure,
            // The records that wait for other keys would wait for ever.
            SessionError::KeysDoNotFit => match policies.integrity_failure {
                Policy::Forward => Policy::Bypass,
                other => other,
            },
            SessionError::UnsupportedVersion
            | SessionError::UnsupportedCipherSuite
            | SessionError::UnsupportedCompression => policies.unsupported,
            SessionError::NoPrivateTag => policies.require_private_tag,
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
            SessionError::MemoryCap => match policies.memory_cap {
                Policy::Forward => Policy::Bypass,
                other => other,
            },
            SessionError::EarlyFin
            | SessionError::ConflictingOverlap
            | SessionError::JudgedLate
            | SessionError::NotTls
            | SessionError::NothingOpened => Policy::Forward,
        };
        self.apply(policy, error);
        if self.disposition == Disposition::Bypass && self.info.key_status != KeyStatus::Missing {
            self.info.key_status = KeyStatus::Unusable;
        }
    }

    /// Reports an error without consequence; not after the end.
    pub(crate) fn raise(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_>,
    ) {
        if self.ended || self.disposition.is_kill() {
            return;
        }
        self.event(ctx, |sink, session| sink.error(session, direction, error));
    }

    /// Raises SESSION_END, once.
    pub(crate) fn end(&mut self, reason: EndReason, ctx: &mut Context<'_>) {
        if self.following() {
            let stalled = self.streams.iter().any(|stream| stream.stalled_since_ns.is_some());
            if stalled && self.info.key_status == KeyStatus::Waiting {
                self.info.key_status = KeyStatus::Missing;
            }
            for direction in Direction::BOTH {
                // A changed record 0 looks like one more handshake record. A client's Finished
                // alone is a session that was never used.
                let expected = match direction {
                    Direction::ClientToServer => 1,
                    Direction::ServerToClient => 0,
                };
                if let Read::Searching(search) = &self.streams[direction.index()].read
                    && !search.candidates.is_empty()
                    && (search.records > expected
                        || (search.finished && self.is_stalled(direction)))
                {
                    self.raise(direction, SessionError::NothingOpened, ctx);
                }
            }
        }
        if !mem::replace(&mut self.ended, true) {
            self.event(ctx, |sink, session| sink.session_end(session, reason));
        }
        self.forget();
    }

    // Records.

    /// Handles the complete records at the front of `bytes`; returns how many bytes they had.
    fn handle_records(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        ctx: &mut Context<'_>,
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

    fn handle_record(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_>,
    ) -> Step {
        let protected = header.content_type == ContentType::APPLICATION_DATA;
        if protected && header.bytes[1..3] != [3, 3] && !self.is_tls12() {
            // Senders have no choice (RFC 8446, section 5.1), and receivers may authenticate what
            // they must be rather than what they are, so that the record opens only there.
            self.fail(direction, SessionError::MalformedRecord, ctx);
            return Step::Stop;
        }
        match &self.streams[direction.index()].read {
            Read::Plaintext => match header.content_type {
                ContentType::HANDSHAKE => self.handle_handshake_content(direction, fragment, ctx),
                ContentType::APPLICATION_DATA if direction == Direction::ClientToServer => {
                    return self.handle_first_flight_record(header, fragment, ctx);
                }
                ContentType::APPLICATION_DATA => {
                    self.fail(direction, SessionError::MalformedRecord, ctx);
                }
                ContentType::CHANGE_CIPHER_SPEC if self.is_tls12() => self.change_cipher(direction),
                // change_cipher_spec of TLS 1.3 for old middleboxes, and alerts.
                _ => {}
            },
            Read::Application { .. } if self.is_tls12() => {
                return self.handle_tls12_record(direction, header, fragment, ctx);
            }
            _ if fragment.len() > MAX_TLS13_FRAGMENT_LEN => {
                self.fail(direction, SessionError::MalformedRecord, ctx);
            }
            Read::Searching(_) if protected => {
                return self.handle_search_record(direction, header, fragment, ctx);
            }
            // In the clear only change_cipher_spec for old middleboxes and an alert of a side
            // that has no keys yet, both of fixed form (RFC 8446, sections 5 and 6).
            Read::Searching(_) => match (header.content_type, fragment) {
                (ContentType::CHANGE_CIPHER_SPEC, [1]) | (ContentType::ALERT, [_, _]) => {}
                _ => self.fail(direction, SessionError::MalformedRecord, ctx),
            },
            Read::Application { opener: None, .. } if protected => return Step::NeedKeys,
            Read::Application { .. } if protected => {
                self.handle_application_record(direction, header, fragment, None, ctx);
            }
            // Nothing is sent in the clear once application keys are in use.
            Read::Application { .. } => self.fail(direction, SessionError::MalformedRecord, ctx),
        }
        self.step()
    }

    pub(super) fn step(&self) -> Step {
        if self.following() { Step::Done } else { Step::Stop }
    }

    /// Delivers a record of the application epochs, unless a pause skips it. `outcome` is there
    /// when the record was opened to find where they begin.
    pub(super) fn handle_application_record(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        outcome: Option<Result<Opened, OpenError>>,
        ctx: &mut Context<'_>,
    ) {
        if outcome.is_some() {
            self.end_handshake(ctx);
            if !self.following() {
                return;
            }
        }
        let content = match &self.streams[direction.index()].read {
            Read::Application { opener: Some(opener), .. } => opener.content_len(fragment.len()),
            _ => fragment.len(),
        } as u64;
        let left = &mut self.control.paused[direction.index()];
        // TLS 1.2 tells alerts from content: they do not count.
        let counts = header.content_type == ContentType::APPLICATION_DATA;
        let skipped = counts && *left > 0 && content <= *left;
        if !skipped {
            if counts {
                // Nothing is paused, or this record crosses the edge.
                *left = 0;
            }
            self.deliver(direction, header, fragment, outcome, ctx);
            return;
        }
        if *left != u64::MAX {
            *left -= content;
        }
        let stream = &mut self.streams[direction.index()];
        stream.skipped = stream.skipped.saturating_add(content);
        ctx.counters.records_paused += 1;
        self.with_record(direction, header, fragment, outcome, ctx, |_, _, _| {});
    }

    /// Raises NEW_RECORD and then looks at what the handler opened.
    pub(super) fn deliver(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        outcome: Option<Result<Opened, OpenError>>,
        ctx: &mut Context<'_>,
    ) {
        self.end_handshake(ctx);
        if self.following() {
            self.with_record(direction, header, fragment, outcome, ctx, |sink, session, record| {
                sink.new_record(session, record);
            });
            self.streams[direction.index()].skipped = 0;
        }
    }

    /// Lets `show` see a record and then looks at what was opened; false when it failed to open.
    pub(super) fn with_record(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        outcome: Option<Result<Opened, OpenError>>,
        ctx: &mut Context<'_>,
        show: impl FnOnce(&mut dyn SessionSink, &mut Session<'_>, &mut Record<'_>),
    ) -> bool {
        let cap = ctx.config.limits.max_handshake_bytes;
        let stream = &mut self.streams[direction.index()];
        let Read::Application { opener: Some(opener), sequence, .. } = &mut stream.read else {
            return false;
        };
        let mut record = Record {
            direction,
            early: false,
            sequence: *sequence,
            skipped: stream.skipped,
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
        show(ctx.sink, &mut session, &mut record);
        let tls12 = self.info.version == Some(ProtocolVersion::TLS_1_2);
        if record.outcome.is_none() && !tls12 && fragment.len() <= PEEK_FRAGMENT_LEN {
            // Only a KeyUpdate is looked for; an error is handled below as any other.
            let _ = record.open();
        }
        record.count(&mut self.info);
        let mut failed = false;
        let mut updated = false;
        match record.outcome {
            // Whatever it was, the next message does not go on in the middle of one.
            None => stream.walker.reset(),
            Some(Err(_)) => failed = true,
            Some(Ok(opened)) => {
                ctx.counters.records_opened += 1;
                let content = &record.plaintext[..opened.len];
                if opened.content_type != ContentType::HANDSHAKE {
                } else if tls12 {
                    failed = stream.messages.push(content, cap).is_err();
                } else {
                    updated = stream.walker.walk(content);
                }
            }
        }
        self.apply_control();
        if failed {
            ctx.counters.records_failed += 1;
            if self.following() {
                self.fail(direction, SessionError::Integrity, ctx);
            }
        } else if updated {
            self.update_keys(direction, ctx);
        }
        !failed
    }

    /// Moves a direction to its next epoch (RFC 8446, section 4.6.3).
    fn update_keys(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        ctx.counters.key_updates += 1;
        let stream = &mut self.streams[direction.index()];
        let Read::Application { epoch, .. } = stream.read else {
            return;
        };
        let next = epoch.saturating_add(1);
        let opener = stream.future_keys(next).take(0);
        let wanted = opener.is_none();
        stream.read = Read::Application { opener, epoch: next, sequence: 0 };
        if wanted {
            self.want_keys(direction, next, ctx);
        }
    }

    // Stalls.

    fn stall(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        let stream = &mut self.streams[direction.index()];
        if stream.stalled_since_ns.is_none() {
            stream.stalled_since_ns = Some(ctx.now_ns);
            ctx.counters.stalls += 1;
            self.event(ctx, |sink, session| sink.stall(session, direction));
        }
    }

    /// Goes on behind a stall, as far as the keys allow; without keys after the time that was
    /// waited for them, as far as policy allows.
    pub(super) fn resume(
        &mut self,
        direction: Direction,
        waited_ns: Option<u64>,
        ctx: &mut Context<'_>,
    ) {
        let stream = &mut self.streams[direction.index()];
        if self.disposition != Disposition::Follow || stream.stalled_since_ns.is_none() {
            return;
        }
        let (buffer, start) = stream.take_buffer();
        let (used, ending) = self.handle_records(direction, &buffer[start..], ctx);
        let stream = &mut self.streams[direction.index()];
        if ending != Ending::Stop {
            match start + used == buffer.len() {
                true => ctx.pool.give(buffer),
                false => stream.put_buffer(buffer, start + used),
            }
            if ending == Ending::NeedKeys && used == 0 {
                // These keys were for a later epoch, or do not fit: the stall goes on.
                return;
            }
        }
        ctx.counters.stalls_ended_by_keys += u64::from(waited_ns.is_some());
        ctx.counters.stall_ns += waited_ns.unwrap_or(0);
        stream.stalled_since_ns = None;
        if ending == Ending::NeedKeys {
            self.stall(direction, ctx);
        }
    }

    // Events.

    pub(super) fn end_handshake(&mut self, ctx: &mut Context<'_>) {
        if !mem::replace(&mut self.handshake_ended, true) {
            self.event(ctx, |sink, session| sink.handshake_end(session));
        }
    }

    pub(super) fn event(
        &mut self,
        ctx: &mut Context<'_>,
        raise: impl FnOnce(&mut dyn SessionSink, &mut Session<'_>),
    ) {
        let mut session =
            Session { info: &self.info, control: &mut self.control, now_ns: ctx.now_ns };
        raise(ctx.sink, &mut session);
        self.apply_control();
    }

    /// Does what the handler asked for, at the end, too: the packets that brought it have not gone on.
    pub(super) fn apply_control(&mut self) {
        if self.control.reset {
            let reason = EndReason::ResetByHandler;
            self.disposition.decide(Disposition::Kill { reset: true, reason });
        }
    }

    fn apply(&mut self, policy: Policy, error: SessionError) {
        if !self.following() {
            return;
        }
        let reason = EndReason::ResetByPolicy(error);
        self.disposition.decide(match policy {
            Policy::Forward if error != SessionError::MissingKeys => Disposition::Follow,
            Policy::Forward | Policy::Bypass => Disposition::Bypass,
            Policy::Drop => Disposition::Kill { reset: false, reason },
            Policy::Reset => Disposition::Kill { reset: true, reason },
        });
    }
}
