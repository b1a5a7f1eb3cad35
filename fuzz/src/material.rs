//! What the engine's targets share: the null cipher with a memory, and sessions to cut up.
//!
//! Refuses to be random: everything here is made from constants.

use core::cell::RefCell;
use std::sync::LazyLock;

use mmtls_engine::tls::{
    CipherSuite, ContentType, Direction, KeyEpoch, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN,
};
use mmtls_testkit::synthesis::{
    EarlyFate, EarlyScript, NullKeys, NullKeys12, Placed, Script, ScriptBuilder, Seal, side,
};

pub(crate) const SUITE: CipherSuite = CipherSuite::TLS_AES_128_GCM_SHA256;
/// What [`mmtls_testkit::synthesis`] puts into every ServerHello.
pub(crate) const SERVER_RANDOM: [u8; 32] = [0x5a; 32];
/// Sessions in [`SCRIPTS`].
pub(crate) const SCRIPT_COUNT: usize = 16;
/// The first of [`SCRIPTS`] that speaks TLS 1.2.
pub(crate) const FIRST_TLS12: usize = 8;
/// The first of [`SCRIPTS`] with early data; each has another fate.
pub(crate) const FIRST_EARLY: usize = 12;

/// The null keys of a direction and epoch.
pub(crate) fn keys(direction: Direction, epoch: KeyEpoch) -> NullKeys {
    let number = match epoch {
        KeyEpoch::EarlyData => 998,
        KeyEpoch::Handshake => 999,
        KeyEpoch::Application(number) => u64::from(number),
    };
    NullKeys(side(direction) as u64 * 1000 + number)
}

/// The epochs that an input can name.
pub(crate) fn epoch(number: u8) -> KeyEpoch {
    match number & 7 {
        6 => KeyEpoch::Handshake,
        7 => KeyEpoch::EarlyData,
        updates => KeyEpoch::Application(u32::from(updates)),
    }
}

/// The client random of a script's session.
pub(crate) fn random(script: usize) -> [u8; 32] {
    // At most SCRIPT_COUNT.
    [0xc0 + script as u8; 32]
}

/// One epoch's keys of a script: the client random and the number they are delivered under, and
/// what opens the records.
pub(crate) fn delivery(
    script: usize,
    direction: Direction,
    epoch: KeyEpoch,
) -> ([u8; 32], KeyEpoch, Box<Witness>) {
    let id = keys(direction, epoch);
    if !SCRIPTS[script].tls12 {
        return (random(script), epoch, Box::new(Witness(Box::new(id))));
    }
    // In TLS 1.2 each handshake has a random of its own, and one epoch.
    let number = match epoch {
        KeyEpoch::Application(number) => number as usize,
        _ => usize::MAX,
    };
    let randoms = &SCRIPTS[script].client_randoms;
    let random = randoms.get(number).copied().unwrap_or([0xef; 32]);
    (random, KeyEpoch::Application(0), Box::new(Witness(Box::new(NullKeys12(id.0)))))
}

/// Seals a record as a script's endpoint does.
pub(crate) fn seal(
    script: usize,
    direction: Direction,
    epoch: u32,
    sequence: u64,
    kind: ContentType,
    content: &[u8],
    padding: usize,
) -> Vec<u8> {
    let id = keys(direction, KeyEpoch::Application(epoch));
    match SCRIPTS[script].tls12 {
        false => id.seal(sequence, kind, content, padding),
        true => NullKeys12(id.0).seal(sequence, kind, content, padding),
    }
}

/// Whether a handler is shown the record: in TLS 1.2 the engine keeps handshakes to itself.
pub(crate) fn is_shown(script: &Script, record: &Placed) -> bool {
    let own = [ContentType::HANDSHAKE, ContentType::CHANGE_CIPHER_SPEC];
    !script.tls12 || !own.contains(&record.kind)
}

/// Sessions of different shapes, small enough to be run whole thousands of times a second.
pub(crate) static SCRIPTS: LazyLock<Vec<Script>> =
    LazyLock::new(|| (0..SCRIPT_COUNT).map(script).collect());

fn script(number: usize) -> Script {
    match number {
        FIRST_EARLY.. => early(number),
        FIRST_TLS12.. => tls12(number),
        _ => tls13(number),
    }
}

fn early(number: usize) -> Script {
    const DATA: ContentType = ContentType::APPLICATION_DATA;
    let fates = [
        EarlyFate::Accepted,
        EarlyFate::Refused,
        EarlyFate::RefusedWithKey,
        EarlyFate::RefusedByRetry,
    ];
    let fate = fates[number - FIRST_EARLY];
    // What the handler is shown of refused data behind the answer depends on the keys.
    let after = match fate {
        EarlyFate::Accepted => vec![vec![3; 20], vec![4; 300]],
        _ => Vec::new(),
    };
    let early = EarlyScript { fate, before: vec![vec![1; 90], Vec::new(), vec![2; 700]], after };
    let mut builder = ScriptBuilder::early(random(number), SUITE.0, &[80, 200], &early, keys);
    builder.record(Direction::ClientToServer, DATA, &[5; 60], 0);
    builder.record(Direction::ServerToClient, DATA, &[6; 500], 9);
    builder.key_update(Direction::ClientToServer);
    builder.record(Direction::ClientToServer, DATA, &[7; 60], 0);
    builder.build()
}

fn tls12(number: usize) -> Script {
    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;
    const DATA: ContentType = ContentType::APPLICATION_DATA;
    let keys = |direction, epoch| NullKeys12(keys(direction, epoch).0);
    let mut builder = ScriptBuilder::tls12(random(number), SUITE.0, keys);
    for round in 0..number - FIRST_TLS12 + 1 {
        if round > 0 {
            // Never more than a few.
            builder.renegotiate([0xe0 + (4 * number + round) as u8 % 16; 32], SUITE.0);
        }
        builder.record(CLIENT, DATA, &[round as u8; 90], 0);
        builder.record(SERVER, DATA, &[number as u8; 400], 0);
        builder.record(SERVER, DATA, &[], 0);
        builder.record(CLIENT, DATA, &[7], 0);
    }
    builder.record(CLIENT, ContentType::ALERT, &[1, 0], 0);
    builder.record(SERVER, ContentType::ALERT, &[1, 0], 0);
    builder.build()
}

fn tls13(number: usize) -> Script {
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
pub(crate) struct Witness(pub(crate) Box<dyn OpenRecord>);

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
    fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint()
    }

    fn content_len(&self, fragment_len: usize) -> usize {
        self.0.content_len(fragment_len)
    }
}
