//! The TLS programs at the two ends, over null keys: each says its next words only when the ones
//! before them have arrived, whole and in order.
//!
//! A server is as generous about what stands in front of a ClientHello as any known one. Refuses
//! everything else that is not as it must be: such a program reads no further.

use core::ops::Range;
use std::sync::LazyLock;

use mmtls_engine::tls::{
    CipherSuite, ContentType, Direction, KeyEpoch, OpenRecord, RECORD_HEADER_LEN,
};
use mmtls_testkit::synthesis::{Seal, client_hello, plain, server_hello};

use crate::material::{SUITE, keys};

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;

/// What a handler resets sessions for.
pub(super) const PATTERN: &[u8] = b"FORBIDDEN";
/// As many empty records in front of a hello as OpenSSL takes.
const MAX_EMPTY: u32 = 32;
/// Shortest body of a ClientHello and of a ServerHello.
const MIN_HELLO: usize = 38;
const HELLO_RETRY: [u8; 4] = [0xcf, 0x21, 0xad, 0x74];

/// Whole pieces of a session, made once.
pub(super) struct Words {
    pub(super) hello: Vec<u8>,
    pub(super) other_hello: Vec<u8>,
    pub(super) server_hello: Vec<u8>,
    /// ServerHello, change_cipher_spec and the encrypted flight.
    pub(super) flight: Vec<u8>,
    pub(super) finished: Vec<u8>,
    /// Without the pattern and with it.
    pub(super) requests: [Vec<u8>; 2],
    pub(super) responses: [Vec<u8>; 2],
}

pub(super) const CLIENT_RANDOM: [u8; 32] = [0xc7; 32];
/// A change_cipher_spec for old middleboxes.
pub(super) const CCS: [u8; 6] = [20, 3, 3, 0, 1, 1];

pub(super) static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let handshake = ContentType::HANDSHAKE;
    let message = |kind: u8, len: u8| [&[kind, 0, 0, len][..], &vec![7; len.into()]].concat();
    let hello = |random: &[u8; 32], name: &str| plain(handshake, &client_hello(random, name, 60));
    let sealed =
        |direction, epoch, kind, content: &[u8]| keys(direction, epoch).seal(0, kind, content, 0);
    let data = |direction, content: &str, pattern: bool| {
        let content = [content.as_bytes(), if pattern { PATTERN } else { b"" }].concat();
        let epoch = KeyEpoch::Application(0);
        sealed(direction, epoch, ContentType::APPLICATION_DATA, &content)
    };
    let server_hello = plain(handshake, &server_hello(&[0x5a; 32], SUITE.0));
    let encrypted = [message(8, 2), message(11, 90), message(20, 32)].concat();
    let encrypted = sealed(SERVER, KeyEpoch::Handshake, handshake, &encrypted);
    Words {
        hello: hello(&CLIENT_RANDOM, "server.test"),
        other_hello: hello(&[0x11; 32], "others.test"),
        flight: [&server_hello[..], &CCS, &encrypted].concat(),
        server_hello,
        finished: [&CCS[..], &sealed(CLIENT, KeyEpoch::Handshake, handshake, &message(20, 32))]
            .concat(),
        requests: [false, true].map(|it| data(CLIENT, "GET / HTTP/1.1 ", it)),
        responses: [false, true].map(|it| data(SERVER, "HTTP/1.1 200 OK ", it)),
    }
});

/// More than the engine reads of a beginning, in each direction.
pub(super) const CLEAR_LEN: usize = 17 << 10;
/// In segments of this size, so that a run stays short.
pub(super) const CLEAR_STEP: usize = 6000;

/// What both programs say before TLS, if they do: lines of no protocol.
pub(super) static CLEAR: LazyLock<Vec<u8>> =
    LazyLock::new(|| b"a line in the clear\r\n".iter().copied().cycle().take(CLEAR_LEN).collect());

/// What a program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// So many bytes of another protocol.
    Clear(usize),
    /// TLS may begin, but this program has not been told to.
    Spoken,
    /// A ClientHello, or a ServerHello.
    Hello,
    /// The peer's encrypted handshake.
    Flight,
    Data,
    /// It has read something impossible.
    Broken,
}

/// One program, for one connection.
#[derive(Debug)]
pub(super) struct App {
    is_client: bool,
    /// What it writes in the application epoch holds the pattern.
    pattern: bool,
    pub(super) stage: Stage,
    read: usize,
    /// Handshake messages in the clear so far.
    message: Vec<u8>,
    empty: u32,
    opened: u64,
    /// Content of application data.
    pub(super) got: Vec<u8>,
    /// Where its first flight stands in its stream.
    pub(super) first: Option<Range<usize>>,
    /// Where its application record stands in its stream.
    pub(super) marked: Option<Range<usize>>,
    /// Randoms of the session, once both are known.
    pub(super) session: Option<([u8; 32], [u8; 32])>,
    random: [u8; 32],
    begun: bool,
}

impl App {
    /// `clear`: both say [`CLEAR`] before TLS.
    pub(super) fn new(is_client: bool, pattern: bool, clear: bool) -> Self {
        Self {
            is_client,
            pattern,
            stage: if clear { Stage::Clear(CLEAR_LEN) } else { Stage::Hello },
            read: 0,
            message: Vec::new(),
            empty: 0,
            opened: 0,
            got: Vec::new(),
            first: None,
            marked: None,
            session: None,
            random: CLIENT_RANDOM,
            begun: false,
        }
    }

    /// Whether it has written all that it ever writes.
    pub(super) fn has_written(&self) -> bool {
        self.marked.is_some()
    }

    /// What it has read of a record, but not used yet.
    pub(super) fn pending<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        input.get(self.read..).unwrap_or(&[])
    }

    /// Reads on in the bytes of its connection, which is open, and writes what there is to say.
    pub(super) fn run(&mut self, input: &[u8], output: &mut Vec<u8>) {
        self.read_clear(input, output);
        if self.is_client
            && self.stage == Stage::Hello
            && !core::mem::replace(&mut self.begun, true)
        {
            output.extend_from_slice(&WORDS.hello);
            self.first = Some(0..output.len());
        }
        while !matches!(self.stage, Stage::Broken | Stage::Clear(_) | Stage::Spoken)
            && let Some(rest) = input.get(self.read..)
            && let Some((header, rest)) = rest.split_first_chunk::<RECORD_HEADER_LEN>()
        {
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let Some(fragment) = rest.get(..len) else {
                break;
            };
            self.read += RECORD_HEADER_LEN + len;
            let fine = match self.stage {
                Stage::Hello if self.is_client => self.read_server_hello(*header, fragment),
                Stage::Hello => self.read_client_hello(*header, fragment, output),
                Stage::Flight => self.read_flight(*header, fragment, output),
                Stage::Data => self.read_data(*header, fragment, output),
                Stage::Broken | Stage::Clear(_) | Stage::Spoken => false,
            };
            if !fine {
                self.stage = Stage::Broken;
            }
        }
    }

    /// Takes the peer's part of what is said before TLS. The client speaks first.
    fn read_clear(&mut self, input: &[u8], output: &mut Vec<u8>) {
        let Stage::Clear(left) = &mut self.stage else {
            return;
        };
        let taken = input.len().saturating_sub(self.read).min(*left);
        self.read += taken;
        *left -= taken;
        let done = *left == 0;
        if done {
            self.stage = Stage::Spoken;
        }
        if output.is_empty() && (self.is_client || done) {
            output.extend_from_slice(&CLEAR);
        }
    }

    /// Whether all was said that comes before TLS.
    pub(super) fn has_spoken(&self) -> bool {
        !matches!(self.stage, Stage::Clear(_))
    }

    /// TLS begins here, if it has not.
    pub(super) fn begin_tls(&mut self) {
        if self.stage == Stage::Spoken {
            self.stage = Stage::Hello;
        }
    }

    fn write_marked(&mut self, bytes: &[u8], output: &mut Vec<u8>) {
        let start = output.len();
        output.extend_from_slice(bytes);
        self.marked = Some(start..output.len());
    }

    fn read_client_hello(
        &mut self,
        [kind, major, ..]: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        if fragment.is_empty() {
            self.empty += 1;
            return matches!(kind, 20..=22) && self.empty <= MAX_EMPTY;
        }
        match ContentType(kind) {
            ContentType::HANDSHAKE => self.message.extend_from_slice(fragment),
            ContentType::CHANGE_CIPHER_SPEC => {
                return fragment == [1] && self.message.is_empty();
            }
            ContentType::ALERT => {
                return major == 3 && matches!(fragment, [1, _]) && self.message.is_empty();
            }
            _ => return false,
        }
        let Some(body) = body(&self.message, 1) else {
            return false;
        };
        let Some(body) = body else {
            return true;
        };
        let Some(random) = hello_random(body) else {
            return false;
        };
        self.session = Some((random, [0x5a; 32]));
        self.stage = Stage::Flight;
        output.extend_from_slice(&WORDS.flight);
        self.first = Some(0..output.len());
        true
    }

    fn read_server_hello(
        &mut self,
        [kind, major, ..]: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
    ) -> bool {
        if kind != ContentType::HANDSHAKE.0 || major != 3 {
            // An old client takes warnings.
            return kind == ContentType::ALERT.0 && matches!(fragment, [1, _]);
        }
        if fragment.is_empty() {
            self.empty += 1;
            return self.empty <= MAX_EMPTY;
        }
        self.message.extend_from_slice(fragment);
        // HelloRequests are ignored (RFC 5246, section 7.4.1.1).
        while self.message.starts_with(&[0; 4]) {
            self.message.drain(..4);
        }
        let Some(body) = body(&self.message, 2) else {
            return false;
        };
        let Some(body) = body else {
            return true;
        };
        let Some(random) = hello_random(body) else {
            return false;
        };
        let suite = body.get(35..37) == Some(&SUITE.0.to_be_bytes()) && body[34] == 0;
        if random.starts_with(&HELLO_RETRY) || !suite {
            return false;
        }
        self.session = Some((self.random, random));
        self.stage = Stage::Flight;
        true
    }

    fn read_flight(
        &mut self,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        if header[0] == ContentType::CHANGE_CIPHER_SPEC.0 && fragment == [1] {
            return true;
        }
        let Some((ContentType::HANDSHAKE, content)) =
            self.open(KeyEpoch::Handshake, header, fragment)
        else {
            return false;
        };
        if !content.ends_with(&[7; 32]) {
            // Finished is not among it.
            return true;
        }
        self.stage = Stage::Data;
        self.opened = 0;
        if self.is_client {
            output.extend_from_slice(&WORDS.finished);
            self.write_marked(&WORDS.requests[usize::from(self.pattern)], output);
        }
        true
    }

    fn read_data(
        &mut self,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        output: &mut Vec<u8>,
    ) -> bool {
        let Some((ContentType::APPLICATION_DATA, content)) =
            self.open(KeyEpoch::Application(0), header, fragment)
        else {
            return false;
        };
        self.got.extend_from_slice(&content);
        if !self.is_client && self.marked.is_none() {
            self.write_marked(&WORDS.responses[usize::from(self.pattern)], output);
        }
        true
    }

    fn open(
        &mut self,
        epoch: KeyEpoch,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
    ) -> Option<(ContentType, Vec<u8>)> {
        let peer = if self.is_client { SERVER } else { CLIENT };
        let mut plaintext = vec![0; fragment.len()];
        let opened = keys(peer, epoch).open(self.opened, header, fragment, &mut plaintext).ok()?;
        self.opened += 1;
        plaintext.truncate(opened.len);
        Some((opened.content_type, plaintext))
    }
}

/// The body of a message of this type: `Some(None)` while it is not complete, `None` if it is another
/// one or there is more behind it.
fn body(message: &[u8], kind: u8) -> Option<Option<&[u8]>> {
    if message.first().is_some_and(|it| *it != kind) {
        return None;
    }
    let Some((&[_, a, b, c], body)) = message.split_first_chunk::<4>() else {
        return Some(None);
    };
    let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
    match body.len() {
        known if known < len => Some(None),
        known if known == len && len >= MIN_HELLO => Some(Some(body)),
        _ => None,
    }
}

fn hello_random(body: &[u8]) -> Option<[u8; 32]> {
    body.get(2..)?.first_chunk().copied().filter(|_| body[0] == 3)
}

/// The suite that servers choose.
pub(super) const CHOSEN: CipherSuite = SUITE;
