//! What is known of a session, what was decided about it, and what its handler hears of both. Everything that follows the
//! session reports here: this is where errors meet their policies.
//!
//! Refuses to take a decision back, and to raise anything once the session has ended.

use core::mem;
use std::sync::Arc;

use super::context::{Context, RawRecord, Step};
use super::sink::SessionSink;
use crate::config::Policy;
use crate::output::{KeysNeeded, KeysOpenNothing, Output};
use crate::session::{
    Certificates, Control, Disposition, EarlyData, EndReason, KeyRefusal, KeyStatus, RefusedKeys,
    Session, SessionError, SessionInfo,
};
use crate::tls::{
    ClientOffer, Direction, Hellos, KeyEpoch, Malformed, ProtocolVersion, ServerChoice,
};

pub(super) struct Reporter {
    pub(super) info: SessionInfo,
    disposition: Disposition,
    pub(super) control: Control,
    /// Content bytes that a pause skipped since the last delivered record, by direction.
    pub(super) skipped: [u64; 2],
    handshake_started: bool,
    server_answered: bool,
    handshake_ended: bool,
    ended: bool,
    /// The ClientHello has an encrypted one in it, or what looks like one: where the server takes that, its random is what
    /// the endpoints know the session by.
    pub(super) offers_ech: bool,
    /// The connection of the key channel that keys in use came over last; 0 where it is not known.
    pub(super) source: u64,
}

impl Reporter {
    pub(super) fn new(info: SessionInfo) -> Self {
        Self {
            info,
            disposition: Disposition::Follow,
            control: Control::default(),
            skipped: [0; 2],
            handshake_started: false,
            server_answered: false,
            handshake_ended: false,
            ended: false,
            offers_ech: false,
            source: 0,
        }
    }

    /// Of a session whose handshake was not seen.
    pub(super) fn behind_handshake(info: SessionInfo) -> Self {
        Self {
            handshake_started: true,
            server_answered: true,
            handshake_ended: true,
            ..Self::new(info)
        }
    }

    // Getters.

    /// What has been decided about the session's packets.
    pub(super) fn disposition(&self) -> Disposition {
        self.disposition
    }

    /// Whether the session's bytes are still looked at.
    pub(super) fn following(&self) -> bool {
        self.disposition == Disposition::Follow && !self.ended
    }

    /// Whether [`Self::behind_handshake`] makes the same one of what is known, pauses, [`Self::offers_ech`] and
    /// [`Self::source`].
    pub(super) fn may_rest(&self) -> bool {
        self.following()
            && !self.control.reset
            && self.handshake_started
            && self.server_answered
            && self.handshake_ended
            && self.info.hellos.is_none()
    }

    pub(super) fn handshake_ended(&self) -> bool {
        self.handshake_ended
    }

    /// Whether TLS 1.2 was negotiated.
    pub(super) fn is_tls12(&self) -> bool {
        self.info.version == Some(ProtocolVersion::TLS_1_2)
    }

    /// What a record has led to that needed no other keys.
    pub(super) fn step(&self) -> Step {
        if self.following() { Step::Done } else { Step::Stop }
    }

    // Errors and decisions.

    /// Reports an error and applies its policy.
    pub(super) fn fail(
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
            SessionError::UnreadFlight => policies.unread_flight,
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

    /// A record of an application epoch did not open.
    pub(super) fn fail_record(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        ctx.counters.records_failed += 1;
        if self.following() {
            self.fail(direction, SessionError::Integrity, ctx);
        }
    }

    /// Reports an error without consequence; not after the end.
    pub(super) fn raise(
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

    /// Decides by a policy.
    pub(super) fn apply(&mut self, policy: Policy, error: SessionError) {
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

    /// The session is not to be followed.
    pub(super) fn bypass(&mut self) {
        self.disposition.decide(Disposition::Bypass);
    }

    /// Somebody else has decided.
    pub(super) fn decide(&mut self, disposition: Disposition) {
        self.disposition.decide(disposition);
    }

    /// Does what the handler asked for, at the end, too: the packets that brought it have not gone on.
    pub(super) fn apply_control(&mut self) {
        if self.control.reset {
            let reason = EndReason::ResetByHandler;
            self.disposition.decide(Disposition::Kill { reset: true, reason });
        }
    }

    /// Applies the policy for sessions without a private tag, as far as there is one.
    pub(super) fn require_private_tag(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        if self.info.private_tag() != Some(true)
            && ctx.config.policies.require_private_tag != Policy::Forward
        {
            self.fail(direction, SessionError::NoPrivateTag, ctx);
        }
    }

    // Events.

    pub(super) fn event(
        &mut self,
        ctx: &mut Context<'_>,
        raise: impl FnOnce(&mut dyn SessionSink, &mut Session<'_>),
    ) {
        raise(ctx.sink, &mut self.session(ctx.now_ns));
        self.apply_control();
    }

    /// The session as a handler sees it. What the handler asks for counts with [`Self::apply_control`].
    pub(super) fn session(&mut self, now_ns: u64) -> Session<'_> {
        Session { info: &self.info, control: &mut self.control, now_ns }
    }

    /// How many bytes of content the handler has paused of a direction; `u64::MAX`: all that come.
    pub(super) fn paused(&self, direction: Direction) -> u64 {
        self.control.paused[direction.index()]
    }

    /// Whether [`Self::skips`] a record with at most so many bytes of content.
    pub(super) fn may_skip(&self, direction: Direction, content: u64) -> bool {
        let left = self.control.paused[direction.index()];
        left > 0 && content <= left
    }

    /// Whether a pause skips a record with at most so many bytes of content; if not, the pause is over.
    pub(super) fn skips(
        &mut self,
        direction: Direction,
        content: u64,
        ctx: &mut Context<'_>,
    ) -> bool {
        let may_skip = self.may_skip(direction, content);
        let left = &mut self.control.paused[direction.index()];
        if !may_skip {
            // Nothing is paused, or this record crosses the edge.
            *left = 0;
            return false;
        }
        self.count_skipped(direction, 1, content, ctx);
        true
    }

    /// Counts records that a pause has skipped.
    pub(super) fn count_skipped(
        &mut self,
        direction: Direction,
        records: u64,
        content: u64,
        ctx: &mut Context<'_>,
    ) {
        let left = &mut self.control.paused[direction.index()];
        if *left != u64::MAX {
            *left = left.saturating_sub(content);
        }
        let skipped = &mut self.skipped[direction.index()];
        *skipped = skipped.saturating_add(content);
        ctx.counters.records_paused += records;
    }

    /// Content bytes that a pause skipped since the last delivered record, which is the one at hand.
    pub(super) fn take_skipped(&mut self, direction: Direction) -> u64 {
        mem::take(&mut self.skipped[direction.index()])
    }

    pub(super) fn start_handshake(&mut self, ctx: &mut Context<'_>) {
        if !mem::replace(&mut self.handshake_started, true) {
            self.event(ctx, |sink, session| sink.handshake_start(session));
        }
    }

    /// Tells what the session's first ClientHello offers, if that is asked for.
    pub(super) fn tell_offer(&mut self, body: &[u8], ctx: &Context<'_>) {
        if ctx.config.tell_hellos {
            let offer = ClientOffer::parse(body).ok();
            self.info.hellos = offer.map(|offer| Box::new(Hellos { offer, choice: None }));
        }
    }

    /// The server has answered; of several answers the first one counts.
    pub(super) fn answer_handshake(&mut self, body: &[u8], ctx: &mut Context<'_>) {
        if !mem::replace(&mut self.server_answered, true) {
            if let Some(hellos) = &mut self.info.hellos {
                hellos.choice = ServerChoice::parse(body).ok();
            }
            self.event(ctx, |sink, session| sink.server_hello(session));
        }
    }

    pub(super) fn end_handshake(&mut self, ctx: &mut Context<'_>) {
        if !mem::replace(&mut self.handshake_ended, true) {
            self.event(ctx, |sink, session| sink.handshake_end(session));
            self.info.hellos = None;
        }
    }

    /// What the server does with the early data has become known.
    pub(super) fn answer_early_data(&mut self, accepted: bool, ctx: &mut Context<'_>) {
        if self.info.early_data == EarlyData::Offered {
            self.info.early_data = if accepted { EarlyData::Accepted } else { EarlyData::Rejected };
            self.event(ctx, |sink, session| sink.early_data(session, accepted));
        }
    }

    /// A Certificate message was read.
    pub(super) fn show_certificates(
        &mut self,
        direction: Direction,
        certificates: Result<Certificates<'_>, Malformed>,
        ctx: &mut Context<'_>,
    ) {
        match certificates {
            Ok(certificates) => self.event(ctx, |sink, session| {
                sink.certificates(session, direction, &certificates);
            }),
            // Raw public keys (RFC 7250) look like this in TLS 1.2. The endpoints decide.
            Err(Malformed) => ctx.counters.certificates_unreadable += 1,
        }
    }

    /// Raises SESSION_END, once.
    pub(super) fn end(&mut self, reason: EndReason, ctx: &mut Context<'_>) {
        if !mem::replace(&mut self.ended, true) {
            self.event(ctx, |sink, session| sink.session_end(session, reason));
        }
    }

    // Keys.

    /// Asks for keys of the session's first handshake.
    pub(super) fn want(&self, direction: Direction, epoch: KeyEpoch, ctx: &mut Context<'_>) {
        self.want_first(direction, epoch, None, ctx);
    }

    /// The same of its first keys, with its ClientHello where that has an encrypted one in it; whether they are wanted.
    pub(super) fn want_first(
        &self,
        direction: Direction,
        epoch: KeyEpoch,
        ech_hello: Option<&Arc<[u8]>>,
        ctx: &mut Context<'_>,
    ) -> bool {
        let randoms = (self.info.client_random, self.info.server_random);
        self.want_of(randoms, direction, epoch, ech_hello, ctx)
    }

    /// Asks for keys of the handshake with these randoms, the client's and the server's.
    pub(super) fn want_of(
        &self,
        (client_random, server_random): ([u8; 32], Option<[u8; 32]>),
        direction: Direction,
        epoch: KeyEpoch,
        ech_hello: Option<&Arc<[u8]>>,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(version) = self.info.version.filter(|_| !self.info.refused[direction.index()])
        else {
            return false;
        };
        ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
            client: self.info.client,
            server: self.info.server,
            client_random,
            server_random,
            version,
            cipher_suite: self.info.cipher_suite,
            direction,
            epoch,
            source: self.source,
            offers_ech: self.offers_ech,
            client_hello: ech_hello.cloned(),
        }));
        true
    }

    /// Asks for the keys of early data, before anything is negotiated.
    pub(super) fn want_early(&self, ech_hello: Option<&Arc<[u8]>>, ctx: &mut Context<'_>) {
        ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
            client: self.info.client,
            server: self.info.server,
            client_random: self.info.client_random,
            server_random: None,
            version: ProtocolVersion::TLS_1_3,
            cipher_suite: None,
            direction: Direction::ClientToServer,
            epoch: KeyEpoch::EarlyData,
            source: self.source,
            offers_ech: self.offers_ech,
            client_hello: ech_hello.cloned(),
        }));
    }

    /// Keys of the connection `source` open nothing.
    pub(super) fn refuse_keys(&self, source: u64, ctx: &mut Context<'_>) {
        ctx.counters.keys_open_nothing += 1;
        ctx.counters.keys_refused += 1;
        let client = self.info.client;
        // Elsewhere nothing tells where the connection comes from, nor is there one for a key log.
        let senders = &ctx.config.key_senders;
        let is_known = source != 0 && !senders.server && !senders.has_trusted();
        ctx.sink.keys_refused(&RefusedKeys {
            session: &self.info,
            sender: is_known.then_some(client.ip()),
            why: KeyRefusal::OpenNothing,
            now_ns: ctx.now_ns,
        });
        let client_random = self.info.client_random;
        let output = KeysOpenNothing { client, client_random, source };
        ctx.outputs.push_back(Output::KeysOpenNothing(output));
    }

    /// What changes when a record with application content is delivered, or may have been.
    pub(super) fn content(&self, direction: Direction) -> (u64, u64) {
        let (info, side) = (&self.info, direction.index());
        (info.plaintext_bytes[side], info.records_seen[side] - info.records_opened[side])
    }

    /// Whether a record of early data must not be shown, since its server drops it.
    pub(super) fn early_data_is_void(&self) -> bool {
        self.info.early_data == EarlyData::Rejected
    }

    /// Whether a record's header has the version that it must have.
    pub(super) fn has_legal_version(&self, record: RawRecord<'_>) -> bool {
        // Senders have no choice (RFC 8446, section 5.1), and receivers may authenticate what
        // they must be rather than what they are, so that the record opens only there.
        !record.is_application_data() || record.header.bytes[1..3] == [3, 3] || self.is_tls12()
    }
}
