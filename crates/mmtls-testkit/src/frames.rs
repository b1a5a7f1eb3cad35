//! A TLS 1.3 session as frames, with the keys that a client shares.

use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_keyshare::Flow;
use mmtls_keyshare::message::{Epoch, KeyEntry, Message, SessionKeys};
use mmtls_packet_io::Port;
use mmtls_record::Tls13Sealer;

use crate::segments::{Endpoints, flag};
use crate::synthesis::{ScriptBuilder, side};
use crate::wire;

/// From the client, which is on the left.
pub const CLIENT: Direction = Direction::ClientToServer;
/// From the server, which is on the right.
pub const SERVER: Direction = Direction::ServerToClient;

const RANDOM: [u8; 32] = [0xc1; 32];
const AES_128_GCM: u16 = 0x1301;

/// Bytes of a frame's payload.
const SEGMENT: usize = 1000;

/// A frame and the port of the worker that it arrives at.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet {
    /// Where it arrives.
    pub port: Port,
    /// From its Ethernet header on.
    pub frame: Vec<u8>,
}

impl Packet {
    /// The packet as two IPv4 fragments.
    #[must_use]
    pub fn fragments(&self) -> [Self; 2] {
        const HEADERS: usize = 14 + 20;
        // A multiple of eight, and behind the TCP header.
        const FIRST: usize = 64;
        let (headers, payload) = self.frame.split_at(HEADERS);
        let (first, last) = payload.split_at(FIRST);
        // The first one says that more follow, the last one how many bytes are before it.
        [(first, 0x2000u16), (last, FIRST as u16 / 8)].map(|(part, place)| {
            let mut frame = [headers, part].concat();
            let length = (frame.len() - 14) as u16;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            frame[18..20].copy_from_slice(&[0x12, 0x34]);
            frame[20..22].copy_from_slice(&place.to_be_bytes());
            frame[24..26].fill(0);
            let words = frame[14..HEADERS].chunks(2);
            let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            frame[24..26].copy_from_slice(&(!folded as u16).to_be_bytes());
            Self { port: self.port, frame }
        })
    }
}

/// A connection from its SYN on: clients are on the left, servers on the right.
pub struct Session {
    /// Opens the connection, and everything up to the client's Finished.
    pub handshake: Vec<Packet>,
    /// The records of application data, in the order given.
    pub records: Vec<Vec<Packet>>,
    /// What each side says in all, and how much of it is before its first record of application data.
    pub streams: [Vec<u8>; 2],
    /// See `streams`.
    pub handshake_len: [usize; 2],
    endpoints: Endpoints,
}

/// Key and static IV.
fn secrets(direction: Direction, epoch: KeyEpoch) -> ([u8; 16], [u8; 12]) {
    let number = match epoch {
        KeyEpoch::EarlyData => 1,
        KeyEpoch::Handshake => 2,
        KeyEpoch::Application(updates) => 3 + updates as u8,
    };
    ([number; 16], [side(direction) as u8; 12])
}

fn sealer(direction: Direction, epoch: KeyEpoch) -> Tls13Sealer {
    let (key, iv) = secrets(direction, epoch);
    Tls13Sealer::new(AES_128_GCM, &key, &iv).unwrap()
}

impl Session {
    /// A session with records of these contents.
    #[must_use]
    pub fn new(records: &[(Direction, Vec<u8>)]) -> Self {
        let mut builder = ScriptBuilder::new(RANDOM, AES_128_GCM, false, &[700], sealer);
        for (direction, content) in records {
            builder.record(*direction, ContentType::APPLICATION_DATA, content, 0);
        }
        let script = builder.build();
        let mut streams = [Vec::new(), Vec::new()];
        for turn in &script.turns {
            streams[side(turn.direction)].extend_from_slice(&turn.bytes);
        }
        let endpoints = Endpoints {
            client: ([10, 0, 0, 2], 40000).into(),
            server: ([10, 0, 0, 3], 443).into(),
            initial: [1000, 2000],
        };
        let mut session = Self {
            handshake: Vec::new(),
            records: Vec::new(),
            streams: [Vec::new(), Vec::new()],
            handshake_len: [0; 2],
            endpoints,
        };
        for (direction, flags) in [(CLIENT, flag::SYN), (SERVER, flag::SYN | flag::ACK)] {
            session.handshake.push(session.packet(direction, -1, 0, flags, &[]));
        }
        session.handshake.push(session.packet(CLIENT, 0, 0, flag::ACK, &[]));
        // The ClientHello, the server's flight, and the client's up to its first record.
        let mut sent = [0; 2];
        let hello = script.turns[0].bytes.len();
        let ends = [CLIENT, SERVER].map(|direction| {
            let end = streams[side(direction)].len() as u64;
            let sealed = |content: &[u8]| content.len() as u64 + 5 + 1 + 16;
            let of = script.records[side(direction)].iter().map(|it| sealed(&it.content));
            (end - of.sum::<u64>()) as usize
        });
        for (direction, end) in [(CLIENT, hello), (SERVER, ends[1]), (CLIENT, ends[0])] {
            let acknowledged = sent[1 - side(direction)];
            let packets = session.stretch(direction, &streams, &mut sent, end, acknowledged);
            session.handshake.extend(packets);
        }
        // Records acknowledge the handshake only: what a middlebox holds, nobody can acknowledge.
        let opened = sent;
        let mut next = [0; 2];
        for (direction, _) in records {
            let at = side(*direction);
            let end = script.records[at][next[at]].end as usize;
            next[at] += 1;
            let acknowledged = opened[1 - at];
            let packets = session.stretch(*direction, &streams, &mut sent, end, acknowledged);
            session.records.push(packets);
        }
        session.handshake_len = opened;
        session.streams = streams;
        session
    }

    /// What one side sends up to an offset of its stream.
    fn stretch(
        &self,
        direction: Direction,
        streams: &[Vec<u8>; 2],
        sent: &mut [usize; 2],
        end: usize,
        acknowledged: usize,
    ) -> Vec<Packet> {
        let at = side(direction);
        let mut packets = Vec::new();
        while sent[at] < end {
            let to = end.min(sent[at] + SEGMENT);
            let payload = &streams[at][sent[at]..to];
            let (offset, acknowledged) = (sent[at] as i64, acknowledged as u64);
            packets.push(self.packet(direction, offset, acknowledged, flag::ACK, payload));
            sent[at] = to;
        }
        packets
    }

    /// A segment of one side, with a checksum.
    #[must_use]
    pub fn packet(
        &self,
        direction: Direction,
        offset: i64,
        acknowledged: u64,
        flags: u8,
        payload: &[u8],
    ) -> Packet {
        let mut frame = self.endpoints.frame(direction, offset, acknowledged, flags, payload);
        wire::finish_checksum(&mut frame);
        Packet { port: if direction == CLIENT { Port::Left } else { Port::Right }, frame }
    }

    /// What the client's agent sends: the keys of both directions, of the handshake or of what follows.
    #[must_use]
    pub fn keys(&self, epoch: KeyEpoch) -> Message {
        let mut keys = Vec::new();
        for direction in [CLIENT, SERVER] {
            let number = Epoch::from_key_epoch(epoch).unwrap();
            let (key, iv) = secrets(direction, epoch);
            keys.push(KeyEntry::new(direction, number, &key, &iv, &[]).unwrap());
        }
        Message::SessionKeys(SessionKeys {
            client_random: RANDOM,
            server_random: None,
            version: 0x0304,
            cipher_suite: AES_128_GCM,
            flow: Flow::new(self.endpoints.client, self.endpoints.server),
            keys,
        })
    }

    /// Where the client's agent sends from.
    #[must_use]
    pub fn sender(&self) -> std::net::IpAddr {
        self.endpoints.client.ip()
    }
}
