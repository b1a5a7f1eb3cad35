//! What the engine's targets share: the null cipher with a memory, and sessions to cut up.
//!
//! Refuses to be random: everything here is made from constants.

use core::cell::RefCell;
use std::sync::LazyLock;

use mmtls_engine::tls::{
    CipherSuite, ContentType, Direction, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN,
};
use mmtls_testkit::synthesis::{NullKeys, Script, ScriptBuilder, side};

pub(crate) const SUITE: CipherSuite = CipherSuite::TLS_AES_128_GCM_SHA256;
/// What [`mmtls_testkit::synthesis`] puts into every ServerHello.
pub(crate) const SERVER_RANDOM: [u8; 32] = [0x5a; 32];
/// Sessions in [`SCRIPTS`].
pub(crate) const SCRIPT_COUNT: usize = 8;

/// The null keys of a direction and epoch, `None` for the handshake.
pub(crate) fn keys(direction: Direction, epoch: Option<u32>) -> NullKeys {
    NullKeys(side(direction) as u64 * 1000 + epoch.map_or(999, u64::from))
}

/// The client random of a script's session.
pub(crate) fn random(script: usize) -> [u8; 32] {
    // At most SCRIPT_COUNT.
    [0xc0 + script as u8; 32]
}

/// Sessions of different shapes, small enough to be run whole thousands of times a second.
pub(crate) static SCRIPTS: LazyLock<Vec<Script>> =
    LazyLock::new(|| (0..SCRIPT_COUNT).map(script).collect());

fn script(number: usize) -> Script {
    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;
    const DATA: ContentType = ContentType::APPLICATION_DATA;
    let retry = number & 1 == 1;
    let flight: &[usize] = [&[700][..], &[6, 300, 40, 36]][number / 2 % 2];
    let mut builder = ScriptBuilder::new(random(number), SUITE.0, retry, flight, keys);
    let content = |len: usize, seed: usize| -> Vec<u8> {
        (0..len).map(|at| (at * 7 + seed * 13 + number) as u8).collect()
    };
    let ticket = [&[4, 0, 0, 60][..], &[9; 60]].concat();
    match number % 4 {
        0 => {
            builder.record(CLIENT, DATA, &content(80, 1), 0);
            builder.record(SERVER, ContentType::HANDSHAKE, &ticket, 0);
            builder.record(SERVER, DATA, &content(300, 2), 0);
            builder.record(SERVER, DATA, &[], 0);
            builder.record(CLIENT, DATA, &content(20, 3), 50);
            builder.record(SERVER, ContentType::ALERT, &[1, 0], 0);
        }
        1 => {
            for round in 0..3 {
                builder.record(CLIENT, DATA, &content(40, round), 0);
                builder.key_update(CLIENT);
                builder.record(CLIENT, DATA, &content(10, round), 0);
                builder.key_update(SERVER);
                builder.record(SERVER, DATA, &content(90, round), 3);
            }
        }
        2 => {
            builder.record(CLIENT, DATA, &content(1, 1), 0);
            for piece in 0..6 {
                builder.record(SERVER, DATA, &content(200 * piece, piece), piece);
            }
            // A ticket in two records, and a KeyUpdate behind them.
            builder.record(SERVER, ContentType::HANDSHAKE, &ticket[..30], 0);
            builder.record(SERVER, ContentType::HANDSHAKE, &ticket[30..], 0);
            builder.key_update(SERVER);
            builder.record(SERVER, DATA, &content(30, 7), 0);
        }
        _ => {
            builder.record(CLIENT, DATA, &content(2000, 1), 0);
            builder.record(SERVER, DATA, &content(4000, 2), 100);
            builder.key_update(CLIENT);
            builder.record(CLIENT, DATA, &content(64, 3), 0);
        }
    }
    builder.build()
}

/// One record that was authenticated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Authentic {
    pub(crate) sequence: u64,
    pub(crate) kind: ContentType,
    pub(crate) content: Vec<u8>,
}

thread_local! {
    static LAST: RefCell<Option<Authentic>> = const { RefCell::new(None) };
}

/// The null cipher; remembers what it authenticated last, to compare with what a handler is shown.
pub(crate) struct Witness(pub(crate) NullKeys);

impl Witness {
    /// The record that was authenticated last on this thread.
    pub(crate) fn last() -> Option<Authentic> {
        LAST.with_borrow(Clone::clone)
    }
}

impl OpenRecord for Witness {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        assert!(plaintext.len() >= fragment.len().min(1 << 14), "room for any legal content");
        // The engine must not rely on what a failed opening leaves behind.
        plaintext.fill(0xee);
        let opened = self.0.open(sequence, header, fragment, plaintext)?;
        let content = plaintext[..opened.len].to_vec();
        let authentic = Authentic { sequence, kind: opened.content_type, content };
        LAST.with_borrow_mut(|last| *last = Some(authentic));
        Ok(opened)
    }
}
