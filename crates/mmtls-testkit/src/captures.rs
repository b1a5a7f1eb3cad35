//! Capture files of synthetic TLS sessions, keys inside: for tests of what reads captures.
//!
//! Refuses what the sealers refuse; a conversation has whatever bytes it is given.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::Path;

use base16ct::lower::encode_string as hex;
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_packet_io::capture::{PcapngWriter, SecretsKind};
use mmtls_record::{Sealer, key_schedule};

use crate::segments::{Endpoints, flag};
use crate::synthesis::{EarlyScript, Script, ScriptBuilder, side};

/// TCP payload bytes per frame.
const SEGMENT: usize = 1400;
/// Of secrets: other labels are the handshake's and the application's, by direction.
const EARLY: u8 = 5;
/// The server random of every synthetic hello.
const SERVER_RANDOM: [u8; 32] = [0x5a; 32];

/// One TLS connection and what is said in it.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// 0x0303 or 0x0304.
    pub version: u16,
    /// A suite of that version.
    pub suite: u16,
    /// Over IPv6.
    pub v6: bool,
    /// Application data in turn, cut into records of [`Conversation::record_len`].
    pub turns: Vec<(Direction, Vec<u8>)>,
    /// Content bytes per record, at most 16384.
    pub record_len: usize,
    /// Behind so many turns the client sends a warning.
    pub alert_behind: Option<usize>,
    /// Early data, in TLS 1.3.
    pub early: Option<EarlyScript>,
}

impl Conversation {
    /// TLS 1.3 with AES-128-GCM over IPv4, full records: each request and its response.
    #[must_use]
    pub fn new(exchanges: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let turns = exchanges.iter().flat_map(|(request, response)| {
            [
                (Direction::ClientToServer, request.clone()),
                (Direction::ServerToClient, response.clone()),
            ]
        });
        let turns = turns.collect();
        Self {
            version: 0x0304,
            suite: 0x1301,
            v6: false,
            turns,
            record_len: 16384,
            alert_behind: None,
            early: None,
        }
    }
}

/// `GET` and a response with a length.
#[must_use]
pub fn http_exchange(target: &str, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: server.test\r\n\r\n");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    (request.into_bytes(), [head.as_bytes(), body].concat())
}

/// Writes conversations side by side into a pcapng file; all of them live until the last one has
/// had its turns.
///
/// # Errors
/// Those of the file; `InvalidInput` for a suite or version that cannot be sealed.
pub fn write(path: &Path, conversations: &[Conversation]) -> io::Result<()> {
    let mut writer = PcapngWriter::new(BufWriter::new(File::create(path)?))?;
    let mut keylog = String::new();
    let mut flows = Vec::new();
    for (number, conversation) in conversations.iter().enumerate() {
        let number = u16::try_from(number).map_err(io::Error::other)?;
        let script = script(conversation, number, &mut keylog)?;
        flows.push(frames(&script, &endpoints(conversation.v6, number)).into_iter());
    }
    writer.secrets(SecretsKind::TLS_KEY_LOG, keylog.as_bytes())?;
    let mut now_ns = 1_700_000_000_000_000_000;
    let mut more = true;
    while more {
        more = false;
        for frame in flows.iter_mut().filter_map(Iterator::next) {
            more = true;
            now_ns += 10_000;
            writer.packet(now_ns, &frame, frame.len())?;
        }
    }
    writer.flush()
}

fn endpoints(v6: bool, number: u16) -> Endpoints {
    let at = |v4: [u8; 4], port: u16| match v6 {
        false => SocketAddr::from((v4, port)),
        true => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(v4[3])], port)),
    };
    Endpoints {
        client: at([192, 0, 2, 7], 20_000 + number),
        server: at([198, 51, 100, 9], 443),
        initial: [7_000_000, 4_000_000_000],
    }
}

/// Any 48 bytes that no other session and label has.
fn secret(number: u16, label: u8) -> [u8; 48] {
    let [high, low] = number.to_be_bytes();
    std::array::from_fn(|at| [high, low, label, 0x77][at % 4])
}

fn script(conversation: &Conversation, number: u16, keylog: &mut String) -> io::Result<Script> {
    let mut random = [0x11; 32];
    random[..2].copy_from_slice(&number.to_be_bytes());
    let Conversation { version, suite, .. } = *conversation;
    let random_hex = hex(&random);
    let mut log = |label: &str, secret: &[u8]| {
        let _ = writeln!(keylog, "{label} {random_hex} {}", hex(secret));
    };
    let mut builder = if version == 0x0304 {
        let hash_len = if suite == 0x1302 { 48 } else { 32 };
        for (label, name) in [
            (0, "CLIENT_HANDSHAKE_TRAFFIC_SECRET"),
            (1, "SERVER_HANDSHAKE_TRAFFIC_SECRET"),
            (2, "CLIENT_TRAFFIC_SECRET_0"),
            (3, "SERVER_TRAFFIC_SECRET_0"),
            (EARLY, "CLIENT_EARLY_TRAFFIC_SECRET"),
        ] {
            if label != EARLY || conversation.early.is_some() {
                log(name, &secret(number, label)[..hash_len]);
            }
        }
        let keys: Keys = Box::new(move |direction, epoch| {
            let label = match epoch {
                KeyEpoch::EarlyData => EARLY,
                KeyEpoch::Handshake => side(direction) as u8,
                KeyEpoch::Application(_) => 2 + side(direction) as u8,
            };
            let keys =
                key_schedule::traffic_keys(suite, &secret(number, label)[..hash_len]).ok()?;
            Sealer::new(version, suite, keys.key(), keys.iv(), &[]).ok()
        });
        check(&keys)?;
        let mut builder = match &conversation.early {
            None => ScriptBuilder::new(random, suite, false, &[900], keys),
            Some(early) => ScriptBuilder::early(random, suite, &[900], early, keys),
        };
        // What OpenSSL sends first: a session ticket.
        let ticket = [&[4, 0, 0, 60][..], &[0x55; 60]].concat();
        builder.record(Direction::ServerToClient, ContentType::HANDSHAKE, &ticket, 0);
        builder
    } else {
        log("CLIENT_RANDOM", &secret(number, 4));
        let keys: Keys = Box::new(move |direction, _| {
            let [client, server] =
                key_schedule::tls12_keys(suite, &secret(number, 4), &random, &SERVER_RANDOM)
                    .ok()?;
            let keys = if side(direction) == 0 { client } else { server };
            Sealer::new(version, suite, keys.key(), keys.iv(), keys.mac_key()).ok()
        });
        check(&keys)?;
        ScriptBuilder::tls12(random, suite, keys)
    };
    for (number, (direction, bytes)) in conversation.turns.iter().enumerate() {
        if conversation.alert_behind == Some(number) {
            // user_canceled (RFC 8446, section 6.1).
            builder.record(Direction::ClientToServer, ContentType::ALERT, &[1, 90], 0);
        }
        for content in bytes.chunks(conversation.record_len.clamp(1, 16384)) {
            builder.record(*direction, ContentType::APPLICATION_DATA, content, 0);
        }
    }
    Ok(builder.build())
}

type Keys = Box<dyn Fn(Direction, KeyEpoch) -> Option<Sealer>>;

fn check(keys: &Keys) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "no keys for this suite");
    keys(Direction::ClientToServer, KeyEpoch::Application(0)).map(drop).ok_or_else(wrong)
}

/// The whole connection, from SYN to FIN.
fn frames(script: &Script, endpoints: &Endpoints) -> Vec<Vec<u8>> {
    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;
    let mut frames = vec![
        endpoints.frame(CLIENT, -1, 0, flag::SYN, &[]),
        endpoints.frame(SERVER, -1, 0, flag::SYN | flag::ACK, &[]),
        endpoints.frame(CLIENT, 0, 0, flag::ACK, &[]),
    ];
    let mut sent = [0_u64; 2];
    let offset = |sent: u64| i64::try_from(sent).unwrap_or(i64::MAX);
    for turn in &script.turns {
        let from = side(turn.direction);
        for payload in turn.bytes.chunks(SEGMENT) {
            let frame = endpoints.frame(
                turn.direction,
                offset(sent[from]),
                sent[1 - from],
                flag::ACK,
                payload,
            );
            frames.push(frame);
            sent[from] += payload.len() as u64;
        }
    }
    let fin = flag::FIN | flag::ACK;
    frames.push(endpoints.frame(CLIENT, offset(sent[0]), sent[1], fin, &[]));
    frames.push(endpoints.frame(SERVER, offset(sent[1]), sent[0] + 1, fin, &[]));
    frames
}
