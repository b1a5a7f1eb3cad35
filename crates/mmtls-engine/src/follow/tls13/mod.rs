//! TLS 1.3 behind its ServerHello: both directions are protected, and it is found out by opening what each record is.
//!
//! ```text
//!  early data ─► Searching ──record 0 opens──► Application(epoch, sequence)
//!   (client)      encrypted handshake            KeyUpdate: next epoch
//! ```
//!
//! Refuses to guess where application keys begin: the switch is found by authentication.

mod early;
mod post_handshake;
mod search;
mod side;

pub(super) use early::Early;

use core::mem;
use std::sync::Arc;

use self::search::{Search, Tried};
use self::side::{Read, Side};
use super::ahead::KeysAhead;
use super::context::{Context, RawRecord, Step};
use super::epoch::Epoch;
use super::reporter::Reporter;
use crate::keys::KeySource;
use crate::session::SessionError;
use crate::tls::{
    ContentType, Deframed, Direction, KeyEpoch, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN,
    deframe,
};

/// Longest fragment in bytes: 2^14 + 256 (RFC 8446, section 5.2).
const MAX_FRAGMENT_LEN: usize = 16384 + 256;

/// Its state. Pairs are by direction, client to server first.
pub(super) struct Tls13 {
    early: Early,
    sides: [Side; 2],
    /// The client sent a protected record after the ServerHello: from here on the server's
    /// records may be application data in answer to it.
    client_flight_seen: bool,
}

impl Tls13 {
    /// Begins behind the ServerHello, and asks for the keys that have not come before it.
    pub(super) fn begin(
        early: Early,
        ahead: [KeysAhead; 2],
        ech_hello: Option<&Arc<[u8]>>,
        reporter: &Reporter,
        ctx: &mut Context<'_>,
    ) -> Self {
        let sides = ahead.map(Side::new);
        // Once for each epoch, since who is asked about one need not be asked about the other: by the next question of it
        // they know the hello.
        let [mut handshake_hello, mut hello] = [ech_hello; 2];
        for direction in Direction::BOTH {
            let side = &sides[direction.index()];
            if side.ahead.handshake.is_empty()
                && reporter.want_first(direction, KeyEpoch::Handshake, handshake_hello, ctx)
            {
                handshake_hello = None;
            }
            if !side.search().is_some_and(Search::has_candidates)
                && reporter.want_first(direction, KeyEpoch::Application(0), hello, ctx)
            {
                hello = None;
            }
        }
        Self { early, sides, client_flight_seen: false }
    }

    /// Behind a handshake that was not seen.
    pub(super) fn go_on() -> Self {
        let sides = [0, 1].map(|_| Side::new(KeysAhead::default()));
        Self { early: Early::default(), sides, client_flight_seen: true }
    }

    /// A direction goes on there.
    pub(super) fn begin_at(&mut self, direction: Direction, epoch: Epoch) {
        self.sides[direction.index()].read = Read::Application(epoch);
    }

    /// What has passed is not known.
    pub(super) fn lose_place(&mut self) {
        for direction in Direction::BOTH {
            self.sides[direction.index()].post_handshake.lose_place(direction);
        }
    }

    /// The session is idle.
    pub(super) fn rest(&mut self) {
        self.sides.iter_mut().for_each(Side::rest);
    }

    /// Whether [`Self::go_on`] makes the same one, with its epochs.
    fn is_settled(&self) -> bool {
        let Self { early, sides, client_flight_seen } = self;
        *client_flight_seen && early.is_over() && sides.iter().all(Side::is_settled)
    }

    /// Takes its epochs where they are all that is needed to go on.
    pub(super) fn take_epochs(&mut self) -> Option<[Epoch; 2]> {
        if !self.is_settled() {
            return None;
        }
        let [client, server] = &mut self.sides;
        Some([client.take_epoch()?, server.take_epoch()?])
    }

    // Getters.

    /// Bytes kept of a direction.
    pub(super) fn kept_bytes(&self, direction: Direction) -> usize {
        self.sides[direction.index()].kept_bytes()
    }

    /// Whether a direction's application keys are there, and have opened nothing.
    pub(super) fn keys_do_not_fit(&self, direction: Direction) -> bool {
        self.sides[direction.index()].search().is_some_and(Search::has_candidates)
    }

    /// Tells of the keys that have opened nothing in a direction.
    pub(super) fn refuse_keys(
        &self,
        direction: Direction,
        reporter: &Reporter,
        ctx: &mut Context<'_>,
    ) {
        if let Some(search) = self.sides[direction.index()].search() {
            search.candidates.sources().for_each(|source| reporter.refuse_keys(source, ctx));
        }
    }

    /// Whether protected records of a direction were seen and nothing opened although keys were there.
    pub(super) fn opened_nothing(&self, direction: Direction, is_stalled: bool) -> bool {
        let search = self.sides[direction.index()].search();
        search.is_some_and(|search| search.opened_nothing(direction, is_stalled))
    }

    /// Whether records of the server have passed that may have been content, and its keys have not come.
    pub(super) fn passed_unjudged(&self) -> bool {
        let search = self.sides[Direction::ServerToClient.index()].search();
        search.is_some_and(Search::passed_unjudged)
    }

    /// Whether the client's first protected record behind the ServerHello was seen.
    pub(super) fn client_flight_seen(&self) -> bool {
        self.client_flight_seen
    }

    /// At most so many bytes of content are in the next record, if it is one of content and no KeyUpdate is looked for in
    /// it.
    pub(super) fn content_len(&self, direction: Direction, fragment_len: usize) -> Option<u64> {
        self.sides[direction.index()].content_len(fragment_len)
    }

    // Inputs.

    /// So many records are skipped, with at most so much content.
    pub(super) fn skip(
        &mut self,
        direction: Direction,
        records: u64,
        content: u64,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        self.sides[direction.index()].skip(direction, records, content, reporter, ctx);
    }

    /// Adds keys; false when they are not needed (any more).
    pub(super) fn add_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        let side = &mut self.sides[direction.index()];
        match epoch {
            KeyEpoch::EarlyData => self.early.add_keys(direction, source, opener),
            KeyEpoch::Handshake => side.add_handshake_keys(source, opener),
            KeyEpoch::Application(number) => {
                side.add_application_keys(number, source, opener, reporter, ctx)
            }
        }
    }

    /// Whether these keys are in use in this direction as those of another epoch: one key is of one epoch alone, so that
    /// content has passed, or will, for something that is not shown.
    pub(super) fn uses_for_another_epoch(
        &self,
        direction: Direction,
        epoch: KeyEpoch,
        keys: &dyn OpenRecord,
    ) -> bool {
        let side = &self.sides[direction.index()];
        match &side.read {
            Read::Application(present) => {
                epoch != KeyEpoch::Application(present.number()) && present.is_under(keys)
            }
            Read::Searching(_) => {
                epoch != KeyEpoch::Handshake && side.ahead.handshake.are_known_to_be(keys)
            }
        }
    }

    pub(super) fn handle_record(
        &mut self,
        record: RawRecord<'_>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Step {
        let side = &mut self.sides[record.direction.index()];
        let legal = match &mut side.read {
            _ if record.fragment.len() > MAX_FRAGMENT_LEN => false,
            Read::Searching(_) if record.is_application_data() => {
                return self.handle_search_record(record, reporter, ctx);
            }
            // In the clear only change_cipher_spec for old middleboxes and an alert of a side
            // that has no keys yet, both of fixed form (RFC 8446, sections 5 and 6).
            Read::Searching(_) => matches!(
                (record.header.content_type, record.fragment),
                (ContentType::CHANGE_CIPHER_SPEC, [1]) | (ContentType::ALERT, [_, _])
            ),
            Read::Application(epoch) if record.is_application_data() => {
                if !epoch.has_keys() {
                    return Step::NeedKeys;
                }
                self.handle_application_record(record, None, reporter, ctx);
                true
            }
            // Nothing is sent in the clear once application keys are in use.
            Read::Application(_) => false,
        };
        if !legal {
            reporter.fail(record.direction, SessionError::MalformedRecord, ctx);
        }
        reporter.step()
    }

    /// A protected record whose keys are refused. Where early data may be among them nothing tells which of the client's
    /// records are its last flight: the server's go on passing until one opens, or its limit.
    pub(super) fn pass_unread(
        &mut self,
        record: RawRecord<'_>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        self.sides[record.direction.index()].note_tried(false);
        if record.fragment.len() > MAX_FRAGMENT_LEN {
            reporter.fail(record.direction, SessionError::MalformedRecord, ctx);
        } else if record.direction == Direction::ClientToServer && !self.early.is_open() {
            self.client_flight_seen = true;
            reporter.end_handshake(ctx);
        }
    }

    /// A protected record before the switch is known: it is a handshake record under keys that
    /// were not shared, or number 0 of the application epoch. Its tag tells. One that waits comes again with each key, and is
    /// tried with those alone that have come since.
    fn handle_search_record(
        &mut self,
        record: RawRecord<'_>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Step {
        let at = record.direction.index();
        let tried = self.sides[at].search().map_or(Tried::default(), |search| search.tried);
        let step = self.search_record(record, tried, reporter, ctx);
        self.sides[at].note_tried(step == Step::NeedKeys);
        step
    }

    fn search_record(
        &mut self,
        record: RawRecord<'_>,
        tried: Tried,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Step {
        let of_client = record.direction == Direction::ClientToServer;
        let known = (of_client && self.early.try_record(record, reporter, ctx))
            || self.try_handshake(record, tried.handshake.into(), reporter, ctx);
        if known {
            return reporter.step();
        }
        // Without their keys early data look the same; then only the switch itself marks the
        // client's flight.
        if of_client && !self.early.misses_keys() {
            self.early.close();
            self.client_flight_seen = true;
            reporter.end_handshake(ctx);
            if !reporter.following() {
                return Step::Stop;
            }
        }
        if self.try_switch(record, tried.candidates.into(), reporter, ctx) {
            return reporter.step();
        }
        let Self { early, sides, client_flight_seen } = self;
        let Read::Searching(search) = &mut sides[record.direction.index()].read else {
            return reporter.step();
        };
        if of_client {
            let keys = search.candidates.get(0).map(|opener| &**opener);
            let is_first = search.records == 0;
            match early.handle_unopened(record.fragment, keys, is_first, reporter, ctx) {
                Step::Done => {}
                waiting_or_over => return waiting_or_over,
            }
        }
        let may_be_early = of_client && early.is_open();
        if !search.may_pass(record, may_be_early, *client_flight_seen, ctx.config) {
            return Step::NeedKeys;
        }
        if of_client {
            if !may_be_early {
                search.judge_flight(record, search.records == 0, reporter, ctx);
            }
            if !reporter.following() {
                return reporter.step();
            }
            // Its keys are here, so the server's flight is complete, whatever this record is.
            *client_flight_seen = true;
            early.end_keys();
        }
        search.keep(record);
        Step::Done
    }

    /// Tries a record as number 0 of the application epoch, with the candidates from number `from`
    /// on; true when it was.
    fn try_switch(
        &mut self,
        record: RawRecord<'_>,
        from: usize,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        let side = &mut self.sides[record.direction.index()];
        let Some(outcome) = side.try_switch(record, from, reporter, ctx) else {
            return false;
        };
        if record.direction == Direction::ClientToServer {
            self.client_flight_seen = true;
            self.early.end_unmarked(reporter, ctx);
        }
        self.handle_application_record(record, Some(outcome), reporter, ctx);
        true
    }

    /// See [`Side::handle_application_record`]. What a server asks for, its client may answer.
    fn handle_application_record(
        &mut self,
        record: RawRecord<'_>,
        outcome: Option<Result<Opened, OpenError>>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let [client, server] = &mut self.sides;
        if record.direction == Direction::ClientToServer {
            let may_answer = reporter.info.was_passed_over(Direction::ServerToClient);
            client.handle_application_record(record, outcome, may_answer, reporter, ctx);
        } else {
            server.handle_application_record(record, outcome, false, reporter, ctx);
            client.post_handshake.add_requests(server.post_handshake.take_requests());
        }
    }

    /// Tries a record as the next one of the handshake, with the keys from number `from` on; true
    /// when it is known now what it is.
    fn try_handshake(
        &mut self,
        record: RawRecord<'_>,
        from: usize,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        let side = &mut self.sides[record.direction.index()];
        let opened = match side.open_handshake(record, from, ctx) {
            Ok(Some(opened)) => opened,
            Ok(None) => return false,
            Err(error) => {
                reporter.fail(record.direction, error, ctx);
                return true;
            }
        };
        if record.direction == Direction::ClientToServer {
            self.client_flight_seen = true;
            self.early.end_unmarked(reporter, ctx);
        }
        match opened.content_type {
            ContentType::HANDSHAKE => {
                side.handle_handshake(record.direction, opened, reporter, ctx);
            }
            ContentType::ALERT => {}
            // No endpoint sends content under these keys (RFC 8446, section 2): they are an application epoch's, delivered
            // as others so that it passes unshown.
            _ => reporter.fail(record.direction, SessionError::MalformedRecord, ctx),
        }
        true
    }

    /// Searches the records that have passed, with the keys that have come last. All others were
    /// tried on them.
    pub(super) fn search_backlog(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let side = &mut self.sides[direction.index()];
        let Read::Searching(search) = &mut side.read else {
            return;
        };
        let (candidates, handshake_keys) = (search.candidates.len(), side.ahead.handshake.len());
        let (candidate, handshake_key) = match epoch {
            KeyEpoch::EarlyData => return,
            KeyEpoch::Handshake => (candidates, handshake_keys.saturating_sub(1)),
            KeyEpoch::Application(_) => (candidates.saturating_sub(1), handshake_keys),
        };
        let backlog = mem::take(&mut search.backlog);
        let mut unknown = Vec::new();
        let mut rest = &backlog[..];
        let mut records = 0;
        let before = reporter.content(direction);
        while let Deframed::Record { header, fragment } = deframe(rest) {
            let (whole, behind) = rest.split_at(RECORD_HEADER_LEN + fragment.len());
            rest = behind;
            let record = RawRecord { direction, header, fragment };
            let side = &mut self.sides[direction.index()];
            match &side.read {
                Read::Application(epoch) if !epoch.has_keys() => {
                    // Behind a KeyUpdate: the rest has passed, and nothing will ever open it.
                    return reporter.fail(direction, SessionError::LostSynchronisation, ctx);
                }
                Read::Application(_) => {
                    self.handle_application_record(record, None, reporter, ctx);
                }
                // What is known now need not be kept.
                Read::Searching(_) => {
                    if !self.try_handshake(record, handshake_key, reporter, ctx)
                        && !self.try_switch(record, candidate, reporter, ctx)
                    {
                        let is_of_flight =
                            direction == Direction::ClientToServer && !self.early.is_open();
                        if let Some(search) = self.sides[direction.index()].search_mut()
                            && is_of_flight
                        {
                            search.judge_flight(record, records == 0, reporter, ctx);
                        }
                        unknown.extend_from_slice(whole);
                        records += 1;
                    }
                }
            }
            if !reporter.following() {
                return;
            }
        }
        if let Read::Searching(search) = &mut self.sides[direction.index()].read {
            search.backlog = unknown;
            search.records = records;
        }
        // Offline everything has passed, and tickets (Go sends them with its Finished) are not the
        // application's.
        if ctx.config.inline && reporter.content(direction) != before {
            reporter.raise(direction, SessionError::JudgedLate, ctx);
        }
    }
}
