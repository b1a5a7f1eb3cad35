//! One TLS session: its bytes become records, each record goes to what reads it, and a record that no key opens yet stalls
//! its direction.
//!
//! The packets stay outside; what is said about them here is a direction being stalled and the
//! session's disposition.
//!
//! Refuses to buffer beyond its limits, and to know what a record means.

use core::time::Duration;

use super::context::{Context, RawRecord, Step};
use super::protocol::{Exempt, Protocol};
use super::search::{Located, Outcome, RecordSearch, Unlocated};
use super::stream::Stream;
use crate::buffer_pool::BufferPool;
use crate::keys::{KeySource, LiveKeys};
use crate::output::{OffloadedRecords, RecordsElsewhere};
use crate::session::{Disposition, EndReason, KeyStatus, SessionError, SessionInfo};
use crate::tcp::Passed;
use crate::tls::{
    Deframed, Direction, KeyEpoch, OpenRecord, ProtocolVersion, RECORD_HEADER_LEN, deframe,
};

/// One session that is, or was, followed.
pub(crate) struct TlsSession {
    pub(super) protocol: Protocol,
    pub(super) streams: [Stream; 2],
    /// What waits of the server goes on behind the client's stall: see [`Self::answers_what_waits`].
    pub(super) server_waits: bool,
    /// It has waited for the client's stall long enough, and goes on before it.
    pub(super) order_is_lost: bool,
    pub(super) end: End,
}

/// Whether the connection has ended, and what has passed waits for its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    NotYet,
    Waits,
    HasWaited,
}

/// Why a run over contiguous records ended.
#[derive(PartialEq, Eq)]
enum Ending {
    /// A partial record, or nothing, is left.
    NeedMore,
    /// The next record is complete and waits for keys.
    NeedKeys,
    /// The next record waits behind the client's stall.
    NeedClient,
    /// The session is no longer followed.
    Stop,
}

impl TlsSession {
    /// Begins a session whose streams are processed from these positions on.
    pub(crate) fn start(info: SessionInfo, positions: [u64; 2], ctx: &mut Context<'_>) -> Self {
        let mut session = Self {
            protocol: Protocol::new(info),
            streams: positions.map(Stream::new),
            server_waits: false,
            order_is_lost: false,
            end: End::NotYet,
        };
        ctx.counters.sessions += 1;
        session.protocol.reporter.event(ctx, |sink, session| sink.session_start(session));
        session
    }

    /// Goes on with a session whose beginning was not seen. Its streams are searched for records with these keys, from
    /// what is in the searches on; `ends` is behind that. A direction without keys is not read.
    pub(crate) fn go_on(
        info: SessionInfo,
        mut keys: LiveKeys,
        searches: [RecordSearch; 2],
        ends: [u64; 2],
        ctx: &mut Context<'_>,
    ) -> Self {
        let of_client = keys.sender.is_none_or(|it| it == info.client.ip());
        let mut session = Self {
            protocol: Protocol::go_on(info, &keys),
            streams: ends.map(Stream::new),
            server_waits: false,
            order_is_lost: false,
            end: End::NotYet,
        };
        session.protocol.client_shares = of_client;
        for (direction, search) in Direction::BOTH.into_iter().zip(searches) {
            let of_it = keys.take_keys(direction);
            if of_it.is_empty() {
                session.protocol.refuse(direction, of_client, ctx);
            }
            let stream = &mut session.streams[direction.index()];
            stream.position -= search.pending_len() as u64;
            stream.unlocated = Some(Box::new(Unlocated::new(search, of_it)));
        }
        ctx.counters.sessions += 1;
        ctx.counters.mid_stream_followed += 1;
        let reporter = &mut session.protocol.reporter;
        reporter.event(ctx, |sink, session| sink.session_start(session));
        reporter.require_private_tag(Direction::ServerToClient, ctx);
        session
    }

    // Getters.

    /// What is known of it.
    pub(crate) fn info(&self) -> &SessionInfo {
        &self.protocol.reporter.info
    }

    /// What has been decided about its packets.
    pub(crate) fn disposition(&self) -> Disposition {
        self.protocol.reporter.disposition()
    }

    /// Whether its bytes are still looked at.
    pub(crate) fn following(&self) -> bool {
        self.protocol.reporter.following()
    }

    /// Whether a complete record of this direction waits for keys.
    pub(crate) fn is_stalled(&self, direction: Direction) -> bool {
        self.stalled_since_ns(direction).is_some()
    }

    /// Bytes that wait behind the stall of a direction, zero without one.
    pub(crate) fn stalled_bytes(&self, direction: Direction) -> usize {
        let stream = &self.streams[direction.index()];
        self.stalled_since_ns(direction).map_or(0, |_| stream.pending().len())
    }

    /// The session is idle: gives back what can be made again.
    pub(crate) fn rest(&mut self) {
        self.protocol.rest();
        self.streams.iter_mut().for_each(Stream::rest);
    }

    /// Bytes this session keeps: partial records, handshake messages, stalls, backlogs.
    pub(crate) fn kept_bytes(&self) -> usize {
        let kept =
            |it: Direction| self.streams[it.index()].kept_bytes() + self.protocol.kept_bytes(it);
        Direction::BOTH.into_iter().map(kept).sum()
    }

    /// When the stall of a direction began.
    pub(crate) fn stalled_since_ns(&self, direction: Direction) -> Option<u64> {
        self.streams[direction.index()].stalled_since_ns.filter(|_| self.following())
    }

    /// The first stream offset that must not become complete at the receiver: the end of the
    /// first record that has not been inspected. `None` when every complete record has been.
    pub(crate) fn barrier(&self, direction: Direction) -> Option<u64> {
        if self.disposition().is_kill() {
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

    /// The last so many bytes that are kept of a direction.
    pub(crate) fn partial(&self, direction: Direction, len: usize) -> &[u8] {
        let pending = self.streams[direction.index()].pending();
        debug_assert!(len <= pending.len(), "{len} of {}", pending.len());
        pending.get(pending.len().saturating_sub(len)..).unwrap_or(&[])
    }

    /// The client random by which keys are found: that of the latest handshake.
    pub(crate) fn key_random(&self) -> Option<[u8; 32]> {
        self.protocol.key_random()
    }

    /// The server random of the latest handshake, once it is known.
    pub(crate) fn key_server_random(&self) -> Option<[u8; 32]> {
        self.protocol.key_server_random()
    }

    // Inputs.

    /// Passes over records that a pause skips, and whose content the engine has no use for, at the front of the next
    /// contiguous bytes. Returns how many bytes that is, and notes the records.
    pub(crate) fn pass(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        passed: &mut Passed,
        ctx: &mut Context<'_>,
    ) -> usize {
        let may_begin = self.may_begin_passing(direction);
        let stream = &mut self.streams[direction.index()];
        let mut used = bytes.len().min(stream.passing.into());
        stream.passing -= used as u16;
        while may_begin
            && stream.passing == 0
            && let Some((header, behind)) = bytes[used..].split_first_chunk()
            && let Some(len) = Passed::fragment_len(*header)
            && let Some(content) = self.protocol.skips(direction, len.into())
            && passed.push(len)
        {
            self.protocol.skip(direction, 1, content, ctx);
            let here = behind.len().min(len.into());
            stream.passing = len - here as u16;
            used += header.len() + here;
        }
        stream.position += used as u64;
        passed.advance(used);
        used
    }

    /// Whether [`Self::pass`] may find something to pass over.
    pub(crate) fn may_pass(&self, direction: Direction) -> bool {
        let is_within = self.streams[direction.index()].passing > 0;
        self.following() && (is_within || self.may_begin_passing(direction))
    }

    /// Whether records may pass that begin next.
    fn may_begin_passing(&self, direction: Direction) -> bool {
        let stream = &self.streams[direction.index()];
        self.following()
            && self.protocol.paused(direction) > 0
            && stream.pending().is_empty()
            && stream.unlocated.is_none()
            && !self.is_stalled(Direction::ClientToServer)
            && !self.is_stalled(direction)
    }

    /// How many bytes complete the header, or then the record, that is put together of a direction which is paused: behind it
    /// others may pass.
    pub(crate) fn missing_before_passing(&self, direction: Direction) -> Option<usize> {
        let stream = &self.streams[direction.index()];
        let is_paused = self.following() && self.protocol.paused(direction) > 0;
        if !is_paused || stream.pending().is_empty() || stream.stalled_since_ns.is_some() {
            return None;
        }
        match deframe(stream.pending()) {
            Deframed::NeedMore(missing) => Some(missing),
            Deframed::Record { .. } | Deframed::Malformed => None,
        }
    }

    /// Records of a direction that may pass elsewhere, as [`Self::pass`] passes over them.
    pub(crate) fn passing(&self, direction: Direction) -> Option<OffloadedRecords> {
        let stream = &self.streams[direction.index()];
        let content = self.protocol.paused(direction);
        let stalls = Direction::BOTH.into_iter().any(|it| self.is_stalled(it));
        (content > 0 && self.may_pass(direction) && !stalls).then_some(())?;
        Some(OffloadedRecords {
            direction,
            next: stream.position + u64::from(stream.passing),
            content,
            overhead: self.protocol.overhead(direction)?,
        })
    }

    /// They have, up to a stream offset.
    pub(crate) fn pass_elsewhere(
        &mut self,
        direction: Direction,
        position: u64,
        records: &RecordsElsewhere,
        ctx: &mut Context<'_>,
    ) {
        let stream = &mut self.streams[direction.index()];
        if position > stream.position {
            stream.position = position;
            let rest = records.next.saturating_sub(position);
            stream.passing = u16::try_from(rest).unwrap_or(u16::MAX);
            self.protocol.skip(direction, records.count, records.content, ctx);
        }
    }

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
        if let Some(unlocated) = &mut self.streams[side].unlocated {
            let before = unlocated.search.pending_len();
            let outcome = unlocated.handle_bytes(data, ctx.plaintext);
            let passed = before + data.len() - unlocated.search.pending_len();
            self.streams[side].position += passed as u64;
            match outcome {
                Outcome::Open => {}
                Outcome::Located(located) => self.begin_records(direction, located, ctx),
                Outcome::Hopeless => self.fail(direction, SessionError::KeysDoNotFit, ctx),
            }
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
                ending @ (Ending::NeedKeys | Ending::NeedClient) => {
                    self.streams[side].put_buffer(buffer, start);
                    self.streams[side].buffer.extend_from_slice(data);
                    self.wait(direction, &ending, ctx);
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
        self.wait(direction, &ending, ctx);
    }

    /// Reads a direction from its first record on that was found.
    fn begin_records(&mut self, direction: Direction, located: Located, ctx: &mut Context<'_>) {
        let Some(unlocated) = self.streams[direction.index()].unlocated.take() else {
            return;
        };
        self.protocol.begin_at(direction, located);
        let pending = unlocated.search.into_pending();
        self.handle_bytes(direction, &pending, ctx);
    }

    /// Installs keys; false when they are not needed (any more).
    pub(crate) fn handle_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_>,
    ) -> bool {
        if !self.following() {
            return false;
        }
        if !self.protocol.add_keys(direction, epoch, source, opener, ctx) {
            return false;
        }
        let stream = &self.streams[direction.index()];
        let waited = stream.stalled_since_ns.map_or(0, |since| ctx.now_ns.saturating_sub(since));
        self.protocol.reporter.event(ctx, |sink, session| {
            sink.keys(session, direction, epoch, Duration::from_nanos(waited));
        });
        self.protocol.search_backlog(direction, epoch, ctx);
        self.resume(direction, Some(waited), ctx);
        self.resume_server(ctx);
        true
    }

    /// A stall limit was reached.
    pub(crate) fn handle_missing_keys(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        if !self.following() {
            return;
        }
        ctx.counters.stalls_ended_by_limit += 1;
        if core::mem::take(&mut self.server_waits) {
            self.order_is_lost = true;
            self.resume(Direction::ServerToClient, None, ctx);
            if !self.is_stalled(direction) {
                return;
            }
        }
        if self.protocol.handle_missing_keys(direction, ctx) {
            self.resume(direction, None, ctx);
            self.resume_server(ctx);
        } else if let Some(since) = self.streams[direction.index()].stalled_since_ns {
            ctx.counters.stall_times.observe_ns(ctx.now_ns.saturating_sub(since));
        }
    }

    /// Whether it must not end yet, although the connection has: what the server sent in its first flight has passed, and keys
    /// that are on their way tell whether it was content. They are waited for once.
    pub(crate) fn waits_at_end(&self) -> bool {
        self.following() && self.end != End::HasWaited && self.protocol.passed_unjudged()
    }

    /// It begins to wait there; false where it does already.
    pub(crate) fn begin_to_wait_at_end(&mut self) -> bool {
        core::mem::replace(&mut self.end, End::Waits) == End::NotYet
    }

    /// It has waited there long enough.
    pub(crate) fn end_wait_at_end(&mut self) {
        self.end = End::HasWaited;
    }

    /// The operator decides about it.
    pub(crate) fn decide(&mut self, disposition: Disposition) {
        self.protocol.reporter.decide(disposition);
    }

    /// An operator lets the rest of it pass unread.
    pub(crate) fn note_operator_bypass(&mut self) {
        self.protocol.reporter.info.bypassed_by_operator = true;
    }

    /// The client shares the keys of this session.
    pub(crate) fn note_client_shares(&mut self) {
        self.protocol.client_shares = true;
    }

    /// An endpoint refuses to share a direction, or both: the client, or its server. Whether that is news.
    pub(crate) fn handle_null_keys(
        &mut self,
        direction: Option<Direction>,
        of_client: bool,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(direction) = direction else {
            return self.protocol.exempt(Exempt::Endpoint { of_client }, ctx);
        };
        if !self.protocol.refuse(direction, of_client, ctx) {
            return false;
        }
        // What waited for its keys passes.
        self.resume(direction, None, ctx);
        self.resume_server(ctx);
        true
    }

    /// See [`Protocol::is_one_too_many`].
    pub(crate) fn is_one_too_many(&self) -> bool {
        self.protocol.is_one_too_many()
    }

    /// See [`Protocol::refuse_version`].
    pub(crate) fn refuse_version(&mut self, version: ProtocolVersion, ctx: &mut Context<'_>) {
        self.protocol.refuse_version(version, ctx);
    }

    /// The FIN of a direction has been reached in order.
    pub(crate) fn handle_fin(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        let stalled = self.is_stalled(direction);
        let stream = &mut self.streams[direction.index()];
        let is_cut = !stream.pending().is_empty() || stream.passing > 0;
        if !stalled && is_cut && !stream.early_fin_raised {
            stream.early_fin_raised = true;
            self.protocol.reporter.raise(direction, SessionError::EarlyFin, ctx);
        }
    }

    /// Lets go of everything that is kept: the session is not followed any more.
    pub(crate) fn forget(&mut self) {
        self.protocol.forget();
        self.forget_stalls();
    }

    /// What waits in either direction is not delivered, and nothing comes behind it.
    pub(crate) fn forget_stalls(&mut self) {
        self.streams = [0, 1].map(|side: usize| Stream::new(self.streams[side].position));
    }

    /// Reports an error and applies its policy.
    pub(crate) fn fail(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_>,
    ) {
        self.protocol.reporter.fail(direction, error, ctx);
    }

    /// Reports an error without consequence; not after the end.
    pub(crate) fn raise(
        &mut self,
        direction: Direction,
        error: SessionError,
        ctx: &mut Context<'_>,
    ) {
        self.protocol.reporter.raise(direction, error, ctx);
    }

    /// Raises SESSION_END, once.
    pub(crate) fn end(&mut self, reason: EndReason, ctx: &mut Context<'_>) {
        if core::mem::take(&mut self.server_waits) {
            // The client's keys do not come any more; its own may be there.
            self.order_is_lost = true;
            self.resume(Direction::ServerToClient, None, ctx);
        }
        if self.following() {
            let stalled = self.streams.iter().any(|stream| stream.stalled_since_ns.is_some());
            // A handshake that was given up has no keys that could be missing.
            let unjudged = self.protocol.passed_unjudged() && self.protocol.server_may_answer();
            match self.info().key_status {
                KeyStatus::Waiting if stalled || unjudged => {
                    self.protocol.reporter.info.key_status = KeyStatus::Missing;
                }
                KeyStatus::Shared if unjudged => {
                    let server = Direction::ServerToClient;
                    self.protocol.reporter.raise(server, SessionError::MissingKeys, ctx);
                }
                _ => {}
            }
            for direction in Direction::BOTH {
                let stalled = self.is_stalled(direction);
                let missed = self.streams[direction.index()].unlocated.as_ref();
                if missed.is_some_and(|it| it.has_missed()) {
                    self.protocol.reporter.raise(direction, SessionError::NothingOpened, ctx);
                }
                if self.protocol.opened_nothing(direction, stalled) {
                    self.protocol.tell_nothing_opened(direction, ctx);
                }
            }
        }
        self.protocol.reporter.end(reason, ctx);
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
                    self.protocol.reporter.fail(direction, SessionError::MalformedRecord, ctx);
                    return (used, Ending::Stop);
                }
            };
            if direction == Direction::ServerToClient && self.answers_what_waits(ctx) {
                return (used, Ending::NeedClient);
            }
            let record = RawRecord { direction, header, fragment };
            let mut step = self.protocol.handle_record(record, ctx);
            while step == Step::Retry {
                self.resume(Direction::ClientToServer, None, ctx);
                step = self.protocol.handle_retry(direction, ctx);
            }
            match step {
                Step::Done | Step::Retry => {}
                Step::NeedKeys => return (used, Ending::NeedKeys),
                Step::Stop => return (used, Ending::Stop),
            }
            let len = RECORD_HEADER_LEN + fragment.len();
            used += len;
            self.streams[direction.index()].position += len as u64;
        }
    }

    // Stalls.

    /// Begins a stall, or goes on with it, where the next record cannot be read. Of one behind the client's nobody is
    /// told before it is known that keys of its own are missing.
    fn wait(&mut self, direction: Direction, why: &Ending, ctx: &mut Context<'_>) {
        let stream = &mut self.streams[direction.index()];
        if matches!(why, Ending::NeedMore | Ending::Stop) {
            return;
        }
        if stream.stalled_since_ns.is_none() {
            stream.stalled_since_ns = Some(ctx.now_ns);
            ctx.counters.stalls += 1;
        }
        if *why == Ending::NeedClient {
            self.server_waits = true;
        } else if !core::mem::replace(&mut stream.stall_told, true) {
            self.protocol.reporter.event(ctx, |sink, session| sink.stall(session, direction));
        }
    }

    /// Whether the server's next records may answer client's records that wait for keys.
    ///
    /// Inline, a server has nothing to answer while its client's records are held. Beside the traffic a whole
    /// dialog may wait for keys, or the client's keys come last: what waits of the server is inspected behind what
    /// waits of the client, so that no answer comes before its question.
    fn answers_what_waits(&self, ctx: &Context<'_>) -> bool {
        !ctx.config.inline
            && !self.order_is_lost
            && self.is_stalled(Direction::ClientToServer)
            && self.protocol.server_may_answer()
    }

    /// Goes on with a server that has waited for its client's keys.
    fn resume_server(&mut self, ctx: &mut Context<'_>) {
        if self.is_stalled(Direction::ClientToServer) {
            return;
        }
        self.order_is_lost = false;
        if core::mem::take(&mut self.server_waits) {
            let since = self.streams[1].stalled_since_ns.unwrap_or(ctx.now_ns);
            self.resume(Direction::ServerToClient, Some(ctx.now_ns.saturating_sub(since)), ctx);
        }
    }

    /// Goes on behind a stall, as far as the keys allow; without keys after the time that was
    /// waited for them, as far as policy allows.
    fn resume(&mut self, direction: Direction, waited_ns: Option<u64>, ctx: &mut Context<'_>) {
        let stream = &mut self.streams[direction.index()];
        if self.protocol.reporter.disposition() != Disposition::Follow
            || stream.stalled_since_ns.is_none()
        {
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
            if used == 0 && matches!(ending, Ending::NeedKeys | Ending::NeedClient) {
                // These keys were for a later epoch, or do not fit: the stall goes on.
                self.wait(direction, &ending, ctx);
                return;
            }
        }
        ctx.counters.stalls_ended_by_keys += u64::from(waited_ns.is_some());
        ctx.counters.stall_ns += waited_ns.unwrap_or(0);
        if let Some(since) = stream.stalled_since_ns.take() {
            ctx.counters.stall_times.observe_ns(ctx.now_ns.saturating_sub(since));
        }
        stream.stall_told = false;
        self.wait(direction, &ending, ctx);
    }
}
