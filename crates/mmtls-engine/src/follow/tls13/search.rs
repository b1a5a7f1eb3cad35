//! Finding where application keys begin: by authentication, never by length.
//!
//! A client can share its keys only when it has the server's whole flight. So the server's encrypted records pass until
//! the client has sent its own protected record; they are kept, within limits, and searched when keys come. The client's
//! records wait for keys from the first one on, its Finished included: sharing does not depend on it.
//!
//! Where the server may share, too, they cannot wait that long: OpenSSL tells of the client's keys when it has the client's
//! Finished. There one record passes: with that the flight ends, or an honest server goes on waiting. Longer flights, with a
//! certificate of the client, and those behind early data that were refused, need the handshake's keys.
//!
//! Before the switch a changed record 0 cannot be told from a handshake record. It passes, its receiver refuses it, and a
//! session in which nothing ever opened although keys were there ends with `nothing_opened`.
//!
//! Refuses to let more than a handshake's worth of records pass that nothing opens: the rest
//! waits for keys that do.

use crate::config::Config;
use crate::follow::context::{Context, RawRecord};
use crate::follow::reporter::Reporter;
use crate::keys::Candidates;
use crate::session::SessionError;
use crate::tls::{Direction, OpenRecord, RECORD_HEADER_LEN};

/// Protected records of a client's last flight: EndOfEarlyData, Certificate, CertificateVerify,
/// Finished, and some room for fragments (RFC 8446, section 2).
const MAX_CLIENT_RECORDS: u32 = 8;

/// Protected records of a server's first flight, however it is cut: each key that comes is tried on
/// all of them.
const MAX_SERVER_RECORDS: u32 = 1024;

/// Lengths of Finished with its header: SHA-256 and SHA-384 (RFC 8446, section 4.4.4).
pub(super) const FINISHED_LEN: [usize; 2] = [4 + 32, 4 + 48];

/// How many keys, from the first one on, were tried on the record that waits for keys. There are never many of them.
#[derive(Clone, Copy, Default)]
pub(super) struct Tried {
    pub(super) candidates: u8,
    pub(super) handshake: u8,
}

/// The search for the first application record of a direction.
#[derive(Default)]
pub(super) struct Search {
    /// Keys that have not opened anything yet. Several, since junk may be delivered before the
    /// right ones.
    pub(super) candidates: Candidates<Box<dyn OpenRecord>>,
    pub(super) tried: Tried,
    /// Records that did not open, or came before keys, whole, in order. They were forwarded.
    pub(super) backlog: Vec<u8>,
    /// How many they are.
    pub(super) records: u32,
    /// Of a client: more than Finished has passed, which was reported.
    pub(super) is_flight_told: bool,
    /// Finished was opened: the next record is number 0 of the application epoch.
    pub(super) finished: bool,
}

impl Search {
    pub(super) fn new(candidates: Candidates<Box<dyn OpenRecord>>) -> Self {
        Self { candidates, ..Self::default() }
    }

    /// Whether keys are there, and have opened nothing.
    pub(super) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Whether one more record that nothing opens may pass. `early`: it may be early data; `client_flight_seen`:
    /// as [`super::Tls13`] has it.
    pub(super) fn may_pass(
        &self,
        record: RawRecord<'_>,
        early: bool,
        client_flight_seen: bool,
        config: &Config,
    ) -> bool {
        let len = RECORD_HEADER_LEN + record.fragment.len();
        let max_bytes = config.limits.max_search_bytes;
        let (max_records, max_client_bytes) = match early {
            // Early data that nothing opens may be among them.
            true => (u32::MAX, max_bytes),
            false => (MAX_CLIENT_RECORDS, max_bytes / 2),
        };
        match record.direction {
            // The client's flight waits for keys; with them, what does not open is Finished.
            Direction::ClientToServer => {
                let is_awaited = config.key_senders.server && !early && self.records == 0;
                (self.has_candidates() || is_awaited)
                    && !self.finished
                    && self.records < max_records
                    && self.backlog.len() + len <= max_client_bytes
            }
            // The client shares keys when it has the server's whole flight, so that flight must
            // pass. It was complete when the client's came.
            Direction::ServerToClient => {
                let is_application = self.finished && self.has_candidates();
                !client_flight_seen
                    && !is_application
                    && self.records < MAX_SERVER_RECORDS
                    && self.backlog.len() + len <= max_bytes
            }
        }
    }

    /// Reports, once, a record of the client's flight that passes unopened and is no Finished without padding, or not the
    /// only one. Without keys nothing tells the length of what is in it: it is judged when they come.
    pub(super) fn judge_flight(
        &mut self,
        record: RawRecord<'_>,
        is_first: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let len = self.candidates.get(0).map(|keys| keys.content_len(record.fragment.len()));
        let exceeds = !is_first || len.is_some_and(|len| !FINISHED_LEN.contains(&len));
        if exceeds && !core::mem::replace(&mut self.is_flight_told, true) {
            reporter.fail(record.direction, SessionError::UnreadFlight, ctx);
        }
    }

    /// Keeps a record that passes.
    pub(super) fn keep(&mut self, record: RawRecord<'_>) {
        self.records += 1;
        self.backlog.extend_from_slice(&record.header.bytes);
        self.backlog.extend_from_slice(record.fragment);
    }

    /// Whether records have passed of which keys that have not come may show that they were content.
    pub(super) fn passed_unjudged(&self) -> bool {
        self.records > 0 && !self.has_candidates()
    }

    /// Whether it has come to nothing although keys were there: a changed record 0 looks like one more handshake
    /// record.
    pub(super) fn opened_nothing(&self, direction: Direction, is_stalled: bool) -> bool {
        // A client's Finished alone is a session that was never used.
        let expected = match direction {
            Direction::ClientToServer => 1,
            Direction::ServerToClient => 0,
        };
        self.has_candidates() && (self.records > expected || (self.finished && is_stalled))
    }
}
