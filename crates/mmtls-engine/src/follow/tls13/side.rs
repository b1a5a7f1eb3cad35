//! One direction of TLS 1.3 behind the ServerHello: the encrypted handshake, then the application epochs.
//!
//! Where an endpoint shares handshake keys, the messages that would be hidden are opened. Behind Finished a client's
//! record is application data or waits, and so is a server's once its application keys are there; before that a
//! server's records still pass, as without handshake keys. Keys that open nothing are ignored; once they have opened a
//! record, the next one that they do not open fails. So does content that they open.
//!
//! Refuses to parse certificates: their bytes go to the handler as they are. Tells where the
//! handshake ends, so that the switch to application keys need not be searched for.

use super::post_handshake::{Illegal, PostHandshake};
use super::search::{Search, Tried};
use crate::follow::ahead::KeysAhead;
use crate::follow::context::{Context, RawRecord};
use crate::follow::epoch::{Epoch, Shown};
use crate::follow::key_candidates::Trial;
use crate::follow::reporter::Reporter;
use crate::keys::KeySource;
use crate::session::{Certificates, SessionError};
use crate::tls::{
    ContentType, Direction, EncryptedExtensions, HandshakeType, KeyEpoch, MessageBuffer, OpenError,
    OpenRecord, Opened,
};

/// Fragments up to this length are opened even when no handler asked: a KeyUpdate hides in one
/// (5 bytes of message, 1 of type, 16 of tag, and some padding).
const PEEK_FRAGMENT_LEN: usize = 64;

/// How one direction's protected records are read.
pub(super) enum Read {
    /// The record that begins the application epoch has not been found.
    Searching(Search),
    /// Application keys are in use.
    Application(Epoch),
}

pub(super) struct Side {
    pub(super) read: Read,
    pub(super) ahead: KeysAhead,
    /// Of the encrypted handshake, where it is opened.
    messages: MessageBuffer,
    pub(super) post_handshake: PostHandshake,
}

impl Side {
    /// From the ServerHello on, with the keys that have come before it.
    pub(super) fn new(mut ahead: KeysAhead) -> Self {
        let search = Search::new(ahead.take(0));
        let (messages, post_handshake) = (MessageBuffer::default(), PostHandshake::default());
        Self { read: Read::Searching(search), ahead, messages, post_handshake }
    }

    /// The search for the application epoch, while it lasts.
    pub(super) fn search(&self) -> Option<&Search> {
        match &self.read {
            Read::Searching(search) => Some(search),
            Read::Application(_) => None,
        }
    }

    /// As [`Self::search`].
    pub(super) fn search_mut(&mut self) -> Option<&mut Search> {
        match &mut self.read {
            Read::Searching(search) => Some(search),
            Read::Application(_) => None,
        }
    }

    /// Takes note of the keys that were tried on the present record, which waits for others or is done with.
    pub(super) fn note_tried(&mut self, waits: bool) {
        let handshake = self.ahead.handshake.len();
        if let Read::Searching(search) = &mut self.read {
            let [candidates, handshake] =
                [search.candidates.len(), handshake].map(|count| count as u8);
            search.tried = if waits { Tried { candidates, handshake } } else { Tried::default() };
        }
    }

    /// The session is idle.
    pub(super) fn rest(&mut self) {
        if let Read::Application(epoch) = &mut self.read {
            epoch.rest();
        }
    }

    /// Whether [`Self::new`] makes one that does as well, with its epoch.
    pub(super) fn is_settled(&self) -> bool {
        let Self { read, ahead, messages, post_handshake } = self;
        matches!(read, Read::Application(epoch) if epoch.has_keys())
            && ahead.is_unused()
            && messages.is_empty()
            && post_handshake.is_between()
    }

    /// Takes the epoch out, where it has begun.
    pub(super) fn take_epoch(&mut self) -> Option<Epoch> {
        match core::mem::replace(&mut self.read, Read::Searching(Search::default())) {
            Read::Application(epoch) => Some(epoch),
            Read::Searching(_) => None,
        }
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.messages.capacity() + self.search().map_or(0, |search| search.backlog.capacity())
    }

    /// Adds keys of the handshake; false when they are of no use (any more).
    pub(super) fn add_handshake_keys(
        &mut self,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        let Read::Searching(search) = &mut self.read else {
            return false;
        };
        if search.finished || !self.ahead.handshake.add(source, opener) {
            return false;
        }
        // Where one had to go for it, the others have moved up, and the new one is at the end.
        let before = self.ahead.handshake.len().saturating_sub(1) as u8;
        search.tried.handshake = search.tried.handshake.min(before);
        true
    }

    /// Adds keys of the application epochs: the present one's, the next ones', or candidates for the
    /// first.
    pub(super) fn add_application_keys(
        &mut self,
        number: u32,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        match &mut self.read {
            Read::Searching(search) if number == 0 => {
                let added = search.candidates.add(source, opener);
                ctx.counters.keys_refused += u64::from(added.is_err());
                if let Ok(Some(_)) = added {
                    // The others have moved up, and the new one is at the end.
                    search.tried.candidates = search.tried.candidates.saturating_sub(1);
                }
                added.is_ok()
            }
            Read::Application(epoch) if number == epoch.number() && !epoch.has_keys() => {
                epoch.set_keys(opener);
                reporter.source = source.connection;
                true
            }
            Read::Application(epoch) if number == epoch.number() => {
                // Not needed, but they may contradict those that are in use.
                if !epoch.is_under(&*opener) {
                    let _ = self.ahead.add(number, source, opener);
                }
                false
            }
            Read::Application(epoch) if number < epoch.number() => false,
            _ => self.ahead.add(number, source, opener),
        }
    }

    // Application epochs.

    /// Tries a record as number 0 of the application epoch, with the candidates from number `from`
    /// on. What opening it has come to, where it was that: the epoch has begun then.
    pub(super) fn try_switch(
        &mut self,
        record: RawRecord<'_>,
        from: usize,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Option<Result<Opened, OpenError>> {
        let Read::Searching(Search { candidates, records, .. }) = &mut self.read else {
            return None;
        };
        for at in from..candidates.len() {
            let candidate = candidates.get_mut(at)?;
            let outcome = candidate.open(0, record.header.bytes, record.fragment, ctx.plaintext);
            if outcome.is_err() {
                ctx.counters.trials_failed += 1;
                continue;
            }
            reporter.source = candidates.source(at).unwrap_or_default();
            let epoch = Epoch::first(candidates.take(at), *records);
            for (source, other) in core::mem::take(candidates).into_items() {
                if !epoch.is_under(&*other) {
                    let _ = self.ahead.add(0, source, other);
                }
            }
            self.read = Read::Application(epoch);
            self.ahead.drop_handshake_keys();
            return Some(outcome);
        }
        None
    }

    /// Delivers a record of the application epochs, unless a pause skips it. `outcome` is there
    /// when the record was opened to find where they begin; `may_answer`: see [`PostHandshake::handle_content`].
    pub(super) fn handle_application_record(
        &mut self,
        record: RawRecord<'_>,
        outcome: Option<Result<Opened, OpenError>>,
        may_answer: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let Read::Application(epoch) = &mut self.read else {
            return;
        };
        // Only what changes keys is looked for.
        let peek = record.fragment.len() <= PEEK_FRAGMENT_LEN;
        match epoch.deliver(record, outcome, peek, reporter, ctx) {
            None => {}
            Some(Shown::Unopened) => self.post_handshake.lose_place(record.direction),
            Some(Shown::Failed) => reporter.fail_record(record.direction, ctx),
            Some(Shown::Opened(opened)) => {
                if self.ahead.has_application_keys() {
                    let is_of_both = outcome.is_some() && self.ahead.has_of_another(epoch);
                    let others = self.ahead.take_others(epoch.number());
                    if is_of_both || epoch.is_contradicted(others, record, ctx.counters) {
                        return reporter.fail_record(record.direction, ctx);
                    }
                }
                if opened.content_type == ContentType::APPLICATION_DATA
                    && self.post_handshake.is_settled()
                {
                    return;
                }
                let updated = self.post_handshake.handle_content(
                    record.direction,
                    opened.content_type,
                    &ctx.plaintext[..opened.len],
                    may_answer,
                    ctx.config.limits.max_handshake_bytes,
                );
                match updated {
                    Ok(false) => {}
                    Ok(true) => self.update_keys(record.direction, reporter, ctx),
                    Err(Illegal) => {
                        reporter.fail(record.direction, SessionError::MalformedHandshake, ctx);
                    }
                }
            }
        }
    }

    /// See [`Tls13::content_len`](super::Tls13::content_len).
    pub(super) fn content_len(&self, fragment_len: usize) -> Option<u64> {
        match &self.read {
            Read::Application(epoch) if fragment_len > PEEK_FRAGMENT_LEN => {
                epoch.content_len(fragment_len)
            }
            Read::Application(_) | Read::Searching(_) => None,
        }
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
        if let Read::Application(epoch) = &mut self.read {
            epoch.skip(direction, records, content, reporter, ctx);
            self.post_handshake.lose_place(direction);
        }
    }

    /// Moves to the next epoch (RFC 8446, section 4.6.3).
    fn update_keys(
        &mut self,
        direction: Direction,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        ctx.counters.key_updates += 1;
        let Read::Application(epoch) = &mut self.read else {
            return;
        };
        let next = epoch.number().saturating_add(1);
        // One key is of one epoch alone.
        let is_of_both = self.ahead.has_of_another(epoch);
        let mut keys = self.ahead.take(next);
        reporter.source = keys.source(0).unwrap_or(reporter.source);
        *epoch = epoch.followed_by(keys.take(0));
        for (source, other) in keys.into_items() {
            if !epoch.is_under(&*other) {
                let _ = self.ahead.add(next, source, other);
            }
        }
        let wanted = !epoch.has_keys();
        if is_of_both {
            reporter.fail(direction, SessionError::Integrity, ctx);
        } else if wanted {
            reporter.want(direction, KeyEpoch::Application(next), ctx);
        }
    }

    // The handshake.

    /// Opens a record as the next one of the handshake, with the keys from number `from` on. An error, once
    /// others have opened, is the record's.
    pub(super) fn open_handshake(
        &mut self,
        record: RawRecord<'_>,
        from: usize,
        ctx: &mut Context<'_>,
    ) -> Result<Option<Opened>, SessionError> {
        let keys = &mut self.ahead.handshake;
        if keys.is_empty() {
            return Ok(None);
        }
        match keys.open(from, record, ctx.plaintext, ctx.counters) {
            Trial::Opened(opened) => {
                ctx.counters.handshake_records_opened += 1;
                return Ok(Some(opened));
            }
            Trial::Failed if !keys.is_confirmed() => return Ok(None),
            Trial::Failed | Trial::Contradicted => {}
        }
        // From the first record up to Finished all are under these keys.
        self.ahead.drop_handshake_keys();
        ctx.counters.records_failed += 1;
        Err(SessionError::Integrity)
    }

    /// Acts on the content of a handshake record that was opened.
    pub(super) fn handle_handshake(
        &mut self,
        direction: Direction,
        opened: Opened,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let cap = ctx.config.limits.max_handshake_bytes;
        if self.messages.push(&ctx.plaintext[..opened.len], cap).is_err() {
            reporter.fail(direction, SessionError::MalformedHandshake, ctx);
        }
        while reporter.following() {
            let legal = match self.messages.pop(cap) {
                Ok(None) => return,
                Err(_) => false,
                Ok(Some((HandshakeType::FINISHED, _))) => {
                    // Keys change behind it, so it ends its record (RFC 8446, section 5.1).
                    let last = self.messages.is_empty();
                    self.ahead.drop_handshake_keys();
                    if let Read::Searching(search) = &mut self.read {
                        search.finished = true;
                    }
                    if direction == Direction::ClientToServer {
                        reporter.end_handshake(ctx);
                    }
                    last
                }
                Ok(Some((kind, body))) => handle_message(direction, kind, &body, reporter, ctx),
            };
            if !legal {
                reporter.fail(direction, SessionError::MalformedHandshake, ctx);
                return;
            }
        }
    }
}

/// A message of the handshake that certificates or extensions may be in; false when it
/// contradicts itself.
fn handle_message(
    direction: Direction,
    kind: HandshakeType,
    body: &[u8],
    reporter: &mut Reporter,
    ctx: &mut Context<'_>,
) -> bool {
    let certificates = match kind {
        HandshakeType::ENCRYPTED_EXTENSIONS if direction == Direction::ServerToClient => {
            let Ok(extensions) = EncryptedExtensions::parse(body) else {
                return false;
            };
            reporter.info.alpn = extensions.alpn;
            reporter.answer_early_data(extensions.accepts_early_data, ctx);
            return true;
        }
        HandshakeType::CERTIFICATE => Certificates::parse_tls13(body),
        HandshakeType::COMPRESSED_CERTIFICATE => Certificates::parse_compressed(body),
        _ => return true,
    };
    reporter.show_certificates(direction, certificates, ctx);
    true
}
