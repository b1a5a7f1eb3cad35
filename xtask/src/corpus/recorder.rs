//! What an application sees of a connection, kept for comparison.

use mmtls_engine::Link;
use mmtls_engine::session::{EndReason, Handler, Record, Session, SessionError};
use mmtls_engine::tls::{ContentType, Direction};
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};

use super::trace::side;

/// An event, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    SessionStart,
    HandshakeStart,
    HandshakeEnd,
    Error(Direction, SessionError),
    SessionEnd(EndReason),
}

/// What a record held.
type Content = (ContentType, Vec<u8>);

/// Everything that the handler was told.
#[derive(Default)]
pub struct Recorder {
    /// Events in order, without records.
    pub events: Vec<Seen>,
    /// Authenticated application bytes, client first.
    pub plaintext: [Vec<u8>; 2],
    /// Records delivered, client first; `None` where one did not open.
    pub records: [Vec<Option<Content>>; 2],
    /// Some of the client's are early data.
    pub has_early_data: bool,
}

impl Recorder {
    /// Plays frames through the engine, with the policies of captures.
    pub fn watch(keys: &[u8], frames: &[Vec<u8>]) -> Self {
        let mut log = KeyLog::new();
        log.add_text(keys);
        let mut replay = Replay::new(offline::config(), log, Self::default());
        for (number, frame) in frames.iter().enumerate() {
            replay.handle_packet(number as u64 * 1_000, Link::Ethernet, frame);
        }
        replay.finish()
    }

    /// Whether every record that was opened is one of another run, in its order.
    pub fn agrees(&self, whole: &Self) -> bool {
        self.records.iter().zip(&whole.records).all(|(seen, sent)| {
            let mut sent = sent.iter();
            seen.iter().flatten().all(|record| sent.any(|it| it.as_ref() == Some(record)))
        })
    }

    /// Whether anything was said to be wrong.
    pub fn has_error(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Seen::Error(..)))
    }
}

impl Handler for Recorder {
    type State = ();

    fn session_start(&mut self, _: &mut Session<'_>, (): &mut ()) {
        self.events.push(Seen::SessionStart);
    }

    fn handshake_start(&mut self, _: &mut Session<'_>, (): &mut ()) {
        self.events.push(Seen::HandshakeStart);
    }

    fn handshake_end(&mut self, _: &mut Session<'_>, (): &mut ()) {
        self.events.push(Seen::HandshakeEnd);
    }

    fn new_record(&mut self, _: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        let at = side(record.direction());
        self.has_early_data |= record.is_early_data();
        let opened = record.open().ok();
        if let Some(plaintext) = opened
            && plaintext.content_type == ContentType::APPLICATION_DATA
        {
            self.plaintext[at].extend_from_slice(plaintext.bytes);
        }
        self.records[at].push(opened.map(|it| (it.content_type, it.bytes.to_vec())));
    }

    fn error(&mut self, _: &mut Session<'_>, (): &mut (), at: Direction, error: SessionError) {
        self.events.push(Seen::Error(at, error));
    }

    fn session_end(&mut self, _: &mut Session<'_>, (): &mut (), reason: EndReason) {
        self.events.push(Seen::SessionEnd(reason));
    }
}
