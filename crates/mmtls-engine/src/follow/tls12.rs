//! TLS 1.2 behind its ServerHello: from ChangeCipherSpec on, Finished included, every record counts
//! (RFC 5246, sections 6.1 and 7.1), so sequence numbers are exact and nothing is searched for.
//!
//! A renegotiation is followed inside the session, under the new client random.
//!
//! Refuses application data without keys. Finished passes without them: it shows nothing, and
//! the endpoints verify it.

use super::ahead::KeysAhead;
use super::context::{Context, RawRecord};
use super::epoch::{Audience, Epoch, Shown};
use super::negotiation::Negotiation;
use super::reporter::Reporter;
use crate::keys::KeySource;
use crate::session::{Resumption, SessionError};
use crate::tls::{ContentType, Direction, KeyEpoch, MessageBuffer, OpenRecord};

/// Its state. Pairs are by direction, client to server first.
pub(super) struct Tls12 {
    /// `None` before ChangeCipherSpec.
    epochs: [Option<Epoch>; 2],
    ahead: [KeysAhead; 2],
    /// Where a direction's keys came from, until they have opened something or it is told that they do not.
    sources: [Option<KeySource>; 2],
    /// Whose Finished has passed.
    finished: [bool; 2],
}

/// What a protected record has led to.
#[derive(PartialEq, Eq)]
pub(super) enum Handled {
    Done,
    NeedKeys,
    /// It is illegal where it stands.
    Refused,
    /// It has handshake messages, which are to be read.
    Messages,
}

impl Tls12 {
    pub(super) fn new(ahead: [KeysAhead; 2]) -> Self {
        Self { epochs: [None, None], ahead, sources: [None; 2], finished: [false; 2] }
    }

    /// Behind a handshake that was not seen.
    pub(super) fn go_on() -> Self {
        Self { finished: [true; 2], ..Self::new(Default::default()) }
    }

    /// A direction goes on there.
    pub(super) fn begin_at(&mut self, direction: Direction, epoch: Epoch) {
        self.epochs[direction.index()] = Some(epoch);
    }

    /// The session is idle.
    pub(super) fn rest(&mut self) {
        self.epochs.iter_mut().flatten().for_each(Epoch::rest);
    }

    /// Whether [`Self::go_on`] makes the same one, with its epochs.
    fn is_settled(&self) -> bool {
        let Self { epochs, ahead, sources, finished } = self;
        epochs.iter().flatten().all(Epoch::has_keys)
            && epochs.iter().all(Option::is_some)
            && ahead.iter().all(KeysAhead::is_unused)
            && *sources == [None; 2]
            && *finished == [true; 2]
    }

    /// Takes its epochs where they are all that is needed to go on.
    pub(super) fn take_epochs(&mut self) -> Option<[Epoch; 2]> {
        if !self.is_settled() {
            return None;
        }
        let [client, server] = core::mem::take(&mut self.epochs);
        Some([client?, server?])
    }

    /// Whether records of this direction are protected.
    pub(super) fn is_protected(&self, direction: Direction) -> bool {
        self.epochs[direction.index()].is_some()
    }

    /// Whether the next record is the first one behind ChangeCipherSpec: Finished.
    pub(super) fn is_finished_next(&self, direction: Direction) -> bool {
        self.epochs[direction.index()].as_ref().is_some_and(|epoch| epoch.sequence() == 0)
    }

    /// Whether the keys of an epoch came ahead of it.
    pub(super) fn has_keys_ahead(&self, direction: Direction, epoch: u32) -> bool {
        self.ahead[direction.index()].has(epoch)
    }

    /// Adds keys; false when they are not needed.
    pub(super) fn add_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: KeySource,
        mut opener: Box<dyn OpenRecord>,
        negotiation: &Negotiation,
        reporter: &Reporter,
    ) -> bool {
        let ahead = &mut self.ahead[direction.index()];
        let current = &mut self.epochs[direction.index()];
        let number = match epoch {
            // Each handshake has its own random, and one epoch.
            KeyEpoch::Application(number) if negotiation.number() == 0 => number,
            KeyEpoch::Application(_) => negotiation.number(),
            KeyEpoch::EarlyData => return false,
            // Of no use here, and no fault: they may have been sent for any version.
            KeyEpoch::Handshake => {
                return current.is_none()
                    && !reporter.handshake_ended()
                    && ahead.handshake.add(source, opener);
            }
        };
        match current {
            Some(epoch) if number == epoch.number() && !epoch.has_keys() => {
                if negotiation.encrypts_then_macs() {
                    opener.set_encrypt_then_mac();
                }
                epoch.set_keys(opener);
                self.sources[direction.index()] = Some(source);
                true
            }
            Some(epoch) if number == epoch.number() => {
                // Not needed, but they may contradict those that are in use.
                if negotiation.encrypts_then_macs() {
                    opener.set_encrypt_then_mac();
                }
                if !epoch.is_under(&*opener) {
                    let _ = ahead.add(number, source, opener);
                }
                false
            }
            Some(epoch) if number < epoch.number() => false,
            _ => ahead.add(number, source, opener),
        }
    }

    /// A ChangeCipherSpec in the clear or opened: the next record is number 0 of the new epoch.
    pub(super) fn change_cipher(
        &mut self,
        direction: Direction,
        negotiation: &Negotiation,
        reporter: &mut Reporter,
    ) {
        if direction == Direction::ServerToClient
            && negotiation.number() == 0
            && !negotiation.is_in_full()
        {
            // Only this tells where a client offers a ticket without a session id (RFC 5077,
            // section 3.4).
            reporter.info.resumption = Resumption::Accepted;
        }
        let current = &mut self.epochs[direction.index()];
        let number = current.as_ref().map_or(0, |epoch| epoch.number().saturating_add(1));
        let ahead = &mut self.ahead[direction.index()];
        let mut keys = ahead.take(number).into_items().into_iter().map(|(source, mut opener)| {
            if negotiation.encrypts_then_macs() {
                opener.set_encrypt_then_mac();
            }
            (source, opener)
        });
        let (source, opener) = keys.next().unzip();
        let epoch = match current {
            Some(before) => before.followed_by(opener),
            None => Epoch::new(number, opener),
        };
        for (source, other) in keys.filter(|(_, other)| !epoch.is_under(&**other)) {
            let _ = ahead.add(number, source, other);
        }
        self.sources[direction.index()] = source;
        *current = Some(epoch);
    }

    /// A protected record.
    pub(super) fn handle_record(
        &mut self,
        record: RawRecord<'_>,
        negotiation: &Negotiation,
        messages: &mut MessageBuffer,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Handled {
        let direction = record.direction;
        let Some(epoch) = &mut self.epochs[direction.index()] else {
            return Handled::Done;
        };
        let is_finished = epoch.sequence() == 0;
        let content_type = record.header.content_type;
        if is_finished && content_type != ContentType::HANDSHAKE {
            reporter.fail(direction, SessionError::MalformedRecord, ctx);
            return Handled::Refused;
        }
        if !epoch.has_keys() {
            if !is_finished {
                return Handled::NeedKeys;
            }
            epoch.pass();
            return Handled::Done;
        }
        // Handshake messages and ChangeCipherSpec under protection are the engine's own business.
        let is_inner =
            matches!(content_type, ContentType::HANDSHAKE | ContentType::CHANGE_CIPHER_SPEC);
        let shown = if is_inner {
            epoch.show(record, None, Audience::Engine, false, reporter, ctx)
        } else {
            match epoch.deliver(record, None, false, reporter, ctx) {
                Some(shown) => shown,
                None => return Handled::Done,
            }
        };
        let source = &mut self.sources[direction.index()];
        let failed = match shown {
            Shown::Unopened => false,
            Shown::Failed => {
                if let Some(source) = source.take() {
                    reporter.refuse_keys(source.connection, ctx);
                }
                true
            }
            Shown::Opened(opened) => {
                if let Some(source) = source.take() {
                    reporter.source = source.connection;
                }
                let cap = ctx.config.limits.max_handshake_bytes;
                let content = &ctx.plaintext[..opened.len];
                opened.content_type == ContentType::HANDSHAKE
                    && messages.push(content, cap).is_err()
                    || {
                        let others = self.ahead[direction.index()].take_others(epoch.number());
                        epoch.is_contradicted(others, record, ctx.counters)
                    }
            }
        };
        if failed {
            reporter.fail_record(direction, ctx);
        }
        if !is_inner || failed || !reporter.following() {
            return Handled::Done;
        }
        if content_type == ContentType::CHANGE_CIPHER_SPEC {
            self.change_cipher(direction, negotiation, reporter);
            return Handled::Done;
        }
        Handled::Messages
    }

    /// At most so many bytes of content are in the next record, if it is one of content, and may be.
    pub(super) fn content_len(&self, direction: Direction, fragment_len: usize) -> Option<u64> {
        let epoch = self.epochs[direction.index()].as_ref();
        let epoch = epoch.filter(|epoch| epoch.sequence() > 0)?;
        epoch.content_len(fragment_len)
    }

    /// So many records are skipped, with at most so much content.
    pub(super) fn skip(
        &mut self,
        direction: Direction,
        records: u64,
        content: u64,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        if let Some(epoch) = &mut self.epochs[direction.index()] {
            epoch.skip(direction, records, content, reporter, ctx);
        }
    }

    /// A protected record whose keys are refused.
    pub(super) fn pass_unread(
        &mut self,
        record: RawRecord<'_>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let direction = record.direction;
        let is_finished = self.is_finished_next(direction);
        if is_finished && record.header.content_type != ContentType::HANDSHAKE {
            return reporter.fail(direction, SessionError::MalformedRecord, ctx);
        }
        if let Some(epoch) = &mut self.epochs[direction.index()] {
            epoch.pass();
        }
        if is_finished {
            self.finish(direction, reporter, ctx);
        }
    }

    /// A direction's Finished has passed: with the second one the handshake is over.
    pub(super) fn finish(
        &mut self,
        direction: Direction,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        self.finished[direction.index()] = true;
        if self.finished == [true; 2] {
            reporter.end_handshake(ctx);
        }
    }
}
