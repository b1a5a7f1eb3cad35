//! Contiguous bytes, handed to what the connection carries: the recognition of TLS, then the session.
//!
//! Refuses to let go of bytes before their receiver has acknowledged them: a copy with other bytes must not pass.

use super::passing::Passing;
use super::payload::{Flow, Payload, Tls, is_followed};
use super::shown::Clear;
use super::{Engine, context};
use crate::config::Cleartext;
use crate::follow::TlsSession;
use crate::recognition::{Beginning, Found, Noticed};
use crate::session::{Handler, SessionError, TcpAnomaly};
use crate::tcp::{FlowIndex, Origin, SharedBytes, TcpDirection};
use crate::tls::{Direction, ProtocolVersion};

/// As long as no more than one part in so many of the memory is taken, some of it is wasted where that saves time.
const WASTE_SHARE: usize = 16;

impl<H: Handler> Engine<H> {
    /// Hands contiguous bytes to whatever the flow carries, and keeps them until they are
    /// acknowledged. Returns whether the flow may take other memory now than before.
    pub(super) fn hand_on(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) -> bool {
        let Passing { kept_from, read_from, changed } = self.pass(index, direction, bytes);
        let (kept, bytes) = (&bytes[kept_from..], &bytes[read_from..]);
        if let Some(flow) = self.flows.get(index)
            && is_followed(flow)
            && !kept.is_empty()
        {
            let half = &mut flow.halves[direction.index()];
            let offset = half.assembler.next() + kept_from as u64;
            if let Payload::Tls(tls) = &mut flow.payload
                && let Some(before) = &mut tls.before
            {
                let direction = before.direction(direction);
                let handler = &mut self.handler;
                before.shown.handle_bytes(handler, self.now_ns, direction, bytes, true);
            }
            if let Payload::Tls(tls) = &mut flow.payload
                && let Some(changed) = tls.session.keep_partial(direction, bytes, &mut self.pool)
            {
                half.sent.get_or_insert_default().push_partial(offset, bytes.len());
                return changed;
            }
            let lent = self.frame_memory.as_ref().and_then(|memory| {
                let affordable = self.config.limits.max_buffered_bytes / WASTE_SHARE;
                let waste = self.buffered < affordable
                    && half.sent.as_ref().is_none_or(|sent| sent.is_small());
                SharedBytes::new(memory, kept, waste)
            });
            let more = if lent.is_some() { 0 } else { kept.len() };
            flow.copy_partial(direction, more, &mut self.pool);
            let sent = flow.half(direction).sent.get_or_insert_default();
            if let Some(lent) = lent {
                sent.push_shared(offset, lent);
            } else {
                sent.make_room(kept.len(), &mut self.pool);
                sent.push(offset, kept);
            }
        }
        if bytes.is_empty() && read_from > 0 {
            return changed || !kept.is_empty();
        }
        self.feed(index, direction, bytes);
        true
    }

    /// Lets whatever the flow carries see contiguous bytes.
    fn feed(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) {
        let shows = self.config.cleartext != Cleartext::Ignored;
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let is_exempt = flow.is_exempt();
        let offset = flow.half(direction).assembler.next() as i64;
        match &mut flow.payload {
            // Pieces that waited for the one with which the connection stopped being read.
            Payload::Plain(_) if is_exempt => {}
            Payload::Plain(watch) => {
                match watch.handle_segment(direction, Some(offset), bytes, Some(bytes)) {
                    Noticed::Nothing => {}
                    Noticed::Missed => self.miss(index, direction),
                    Noticed::Beginning(recogniser) => {
                        flow.payload = Payload::Undecided(recogniser, Clear::Ignored);
                        // From here on they are kept, too.
                        self.hand_on(index, direction, bytes);
                    }
                }
            }
            Payload::Tls(tls) => {
                if let Some(before) = &tls.before {
                    let before = before.shown.state();
                    self.handler.tls_behind_cleartext(tls.session.info(), before, &mut tls.state);
                }
                let mut ctx = context!(self, tls.state);
                let known = tls.session.key_random();
                tls.session.handle_bytes(direction, bytes, &mut ctx);
                let is_answered = tls.session.info().server_random.is_some();
                if let Some(before) = &mut tls.before
                    && (is_answered || !tls.session.following())
                {
                    before.shown.end(&mut self.handler, self.now_ns, None);
                    if !before.shown.disposition().is_kill() {
                        tls.before = None;
                    }
                }
                if tls.session.key_random() != known {
                    self.register(index, known);
                }
            }
            // The look-up has woken it.
            Payload::Resting(_) => {}
            Payload::Undecided(_, clear) if clear.disposition().is_kill() => {}
            Payload::Undecided(recogniser, clear) => {
                // It has met the policy of that time.
                let was_excluded = recogniser.is_excluded();
                match recogniser.handle_bytes(direction, bytes) {
                    // Also where TLS was found behind what came first: whether that is seen before depends on
                    // how the client has cut its bytes.
                    _ if recogniser.is_excluded()
                        && !was_excluded
                        && self.config.meets_not_tls(flow.ends.client(), flow.ends.server()) =>
                    {
                        let policy = self.config.policies.not_tls;
                        self.counters.not_tls += 1;
                        self.note(index, direction, TcpAnomaly::NotTls);
                        self.refuse(index, policy, direction, SessionError::NotTls);
                    }
                    Found::Plain if !shows || matches!(clear, Clear::Ignored) => {
                        flow.payload = Payload::Plain(Box::new(recogniser.take_watch()));
                    }
                    // It goes on to be looked at in order.
                    Found::Unsure | Found::Plain => {
                        if shows {
                            self.show_cleartext(index, direction, bytes);
                        }
                    }
                    Found::Tls(beginning) => {
                        let is_behind = bytes.len() > beginning.client.len() || clear.is_shown();
                        if shows && is_behind {
                            self.show_cleartext(index, direction, bytes);
                        }
                        self.begin_session(index, beginning, bytes.len());
                    }
                    Found::Missed => self.miss(index, direction),
                }
            }
        }
    }

    /// A flow turned out to carry TLS; `latest` of the client's bytes are not counted as delivered
    /// yet.
    fn begin_session(&mut self, index: FlowIndex, first: Beginning, latest: usize) {
        let before = self.take_cleartext(index, first.reversed);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if first.reversed {
            flow.swap_roles();
        }
        let next = |half: &TcpDirection| half.assembler.next();
        let delivered = next(&flow.halves[0]) + latest as u64;
        let positions = [
            delivered - first.client.len() as u64,
            next(&flow.halves[1]) - first.server.len() as u64,
        ];
        let mut info = flow.session_info();
        info.starttls = first.upgrade;
        let mut state = H::State::default();
        let mut ctx = context!(self, state);
        let mut session = TlsSession::start(info, positions, &mut ctx);
        if first.ssl2 {
            session.refuse_version(ProtocolVersion::SSL_2_0, &mut ctx);
        }
        flow.payload = Payload::Tls(Box::new(Tls { session, state, before }));
        self.feed(index, Direction::ClientToServer, &first.client);
        if first.server_lost {
            self.fail(index, Direction::ServerToClient, SessionError::LostSynchronisation);
        } else {
            self.feed(index, Direction::ServerToClient, &first.server);
        }
        // The frame at hand is the client's: what the server sent before may wait, unheld.
        self.note_stalls(index);
    }

    /// A side has answered as a TLS server does to something that was not recognised.
    pub(super) fn miss(&mut self, index: FlowIndex, direction: Direction) {
        if self.has_begun_unseen(index) {
            return;
        }
        self.note(index, direction, TcpAnomaly::MissedTls);
        self.give_up(index, direction, SessionError::LostSynchronisation);
    }

    /// Whether a ClientHello may have passed before the monitor was there, or while the kernel forwarded in its place: such a
    /// connection is left alone for a while, as one that had no more to say than records.
    fn has_begun_unseen(&mut self, index: FlowIndex) -> bool {
        let Some(flow) = self.flows.get(index).filter(|_| self.config.inline) else {
            return false;
        };
        let is_proven = |half: &TcpDirection| matches!(half.origin, Origin::Syn | Origin::SynAck);
        let picked_up = !flow.halves.iter().any(is_proven);
        let [client, server] = flow.ends.both();
        picked_up && matches!(flow.payload, Payload::Plain(_)) && self.is_in_grace(client, server)
    }

    /// Tells of bytes that were sent again as others.
    pub(super) fn report_conflict(&mut self, index: FlowIndex, direction: Direction) {
        if let Some(Flow { payload: Payload::Tls(tls), .. }) = self.flows.get(index) {
            let mut ctx = context!(self, tls.state);
            tls.session.raise(direction, SessionError::ConflictingOverlap, &mut ctx);
        } else {
            self.note(index, direction, TcpAnomaly::ConflictingOverlap);
        }
    }

    /// Raises an error; its policy is carried out when the connection is concluded.
    pub(super) fn fail(&mut self, index: FlowIndex, direction: Direction, error: SessionError) {
        if let Some(Flow { payload: Payload::Tls(tls), .. }) = self.flows.get(index)
            && tls.session.following()
        {
            let mut ctx = context!(self, tls.state);
            tls.session.fail(direction, error, &mut ctx);
        }
    }
}
