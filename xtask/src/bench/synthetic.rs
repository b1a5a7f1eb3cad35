//! Synthetic TLS 1.3 sessions with real protection, as frames: what the engine and the box are fed
//! where real endpoints would cost more than what is measured.
//!
//! Refuses nothing; every session has its own four-tuple, randoms and keys.

use std::net::{Ipv4Addr, SocketAddr};

use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_record::Tls13Sealer;
use mmtls_testkit::segments::Endpoints;
use mmtls_testkit::synthesis::{ScriptBuilder, Turn, side};

/// `TLS_AES_256_GCM_SHA384`.
pub const SUITE: u16 = 0x1302;

const FIRST_SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const FIRST_PORT: u32 = 10_000;
/// Client ports in use towards each server address.
const PORTS: u32 = 50_000;

/// What [`ScriptBuilder`] puts into every ServerHello.
pub const SERVER_RANDOM: [u8; 32] = [0x5a; 32];

/// Length of the server's encrypted handshake: EncryptedExtensions, an ECDSA chain of one
/// certificate with its signature, Finished.
const SERVER_FLIGHT: [usize; 4] = [10, 720, 79, 52];

/// Record keys of one direction and epoch.
#[derive(Clone, Copy)]
pub struct Keys {
    /// AEAD key.
    pub key: [u8; 32],
    /// Static IV.
    pub iv: [u8; 12],
}

impl Keys {
    /// Keys that no other session, direction or epoch of this process has.
    pub fn of(session: u32, direction: Direction, epoch: Option<u32>) -> Self {
        let epoch = epoch.map_or(0, |updates| updates as u8 + 1);
        let mut key = [epoch ^ 0x3c; 32];
        key[..4].copy_from_slice(&session.to_be_bytes());
        key[4] = side(direction) as u8;
        let mut iv = [epoch; 12];
        iv[..4].copy_from_slice(&session.to_be_bytes());
        Self { key, iv }
    }

    /// The sender's side of them.
    pub fn sealer(&self) -> Result<Tls13Sealer, String> {
        Tls13Sealer::new(SUITE, &self.key, &self.iv).map_err(|error| format!("{error:?}"))
    }
}

/// `ClientHello.random` of a session.
pub fn client_random(session: u32) -> [u8; 32] {
    let mut random = [0xc1; 32];
    random[..4].copy_from_slice(&session.to_be_bytes());
    random
}

/// Sessions from this one on are another client's: a table that is full gives a newcomer the place of one of the client that
/// has the most.
pub const OTHER_CLIENT: u32 = 100 * PORTS;

/// Where a session lives: all ports of its client from 10000 to 59999, then the next server.
pub fn endpoints(session: u32) -> Endpoints {
    let server = Ipv4Addr::from(u32::from(FIRST_SERVER) + session / PORTS);
    let client = if session < OTHER_CLIENT { [10, 77, 0, 2] } else { [10, 78, 0, 2] };
    Endpoints {
        client: SocketAddr::from((client, (FIRST_PORT + session % PORTS) as u16)),
        server: SocketAddr::from((server, 443)),
        initial: [session.wrapping_mul(0x9e37_79b9), session.wrapping_mul(0x85eb_ca6b)],
    }
}

/// Hellos and encrypted handshake of a session, to go on from.
pub fn handshake(
    session: u32,
) -> ScriptBuilder<Tls13Sealer, impl Fn(Direction, KeyEpoch) -> Tls13Sealer> {
    ScriptBuilder::new(client_random(session), SUITE, false, &SERVER_FLIGHT, move |way, epoch| {
        let epoch = match epoch {
            KeyEpoch::Application(updates) => Some(updates),
            _ => None,
        };
        Keys::of(session, way, epoch).sealer().expect("the suite and its lengths are known")
    })
}

/// The frames of a TCP connection: handshake, then turns in segments, acknowledged by the other
/// side's next data. Ends without a FIN.
pub struct Connection {
    endpoints: Endpoints,
    /// Stream bytes sent so far, client first.
    sent: [u64; 2],
}

/// A frame and who sends it.
pub type Sent = (Direction, Vec<u8>);

impl Connection {
    /// A connection and the three frames that open it.
    pub fn open(session: u32, out: &mut Vec<Sent>) -> Self {
        use mmtls_testkit::segments::flag::{ACK, SYN};
        let me = Self { endpoints: endpoints(session), sent: [0, 0] };
        let (up, down) = (Direction::ClientToServer, Direction::ServerToClient);
        out.push((up, me.frame(up, -1, 0, SYN, &[])));
        out.push((down, me.frame(down, -1, 0, SYN | ACK, &[])));
        out.push((up, me.frame(up, 0, 0, ACK, &[])));
        me
    }

    /// A connection that is under way: how much each side has sent, client first.
    pub fn at(session: u32, sent: [u64; 2]) -> Self {
        Self { endpoints: endpoints(session), sent }
    }

    /// How much each side has sent, client first.
    pub fn sent(&self) -> [u64; 2] {
        self.sent
    }

    /// Sends stream bytes in segments of at most `segment` bytes.
    pub fn send(&mut self, way: Direction, bytes: &[u8], segment: usize, out: &mut Vec<Sent>) {
        for piece in bytes.chunks(segment) {
            out.push((way, self.data(way, 0, piece)));
        }
    }

    /// Sends turns.
    pub fn turns(&mut self, turns: &[Turn], segment: usize, out: &mut Vec<Sent>) {
        for turn in turns {
            self.send(turn.direction, &turn.bytes, segment, out);
        }
    }

    /// One frame with stream bytes and more flags.
    pub fn data(&mut self, way: Direction, flags: u8, bytes: &[u8]) -> Vec<u8> {
        use mmtls_testkit::segments::flag::{ACK, FIN};
        let side = side(way);
        let frame =
            self.frame(way, self.sent[side] as i64, self.sent[1 - side], ACK | flags, bytes);
        self.sent[side] += bytes.len() as u64 + u64::from(flags & FIN);
        frame
    }

    /// A pure acknowledgment of all that was sent to `way`'s sender.
    pub fn acknowledgment(&mut self, way: Direction) -> Vec<u8> {
        self.data(way, 0, &[])
    }

    fn frame(&self, way: Direction, offset: i64, acked: u64, flags: u8, bytes: &[u8]) -> Vec<u8> {
        let mut frame = self.endpoints.frame(way, offset, acked, flags, bytes);
        // Unicast stations that no interface has: a host that sees such a frame ignores it.
        let (client, server) = ([2, 0, 0, 0, 0, 0xc], [2, 0, 0, 0, 0, 0x5]);
        let (to, from) = match way {
            Direction::ClientToServer => (server, client),
            Direction::ServerToClient => (client, server),
        };
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&from);
        frame
    }
}

/// Plaintext of a small HTTP exchange: what ab fetches in the same benchmark.
const REQUEST: &[u8] = b"GET /1k HTTP/1.0\r\nHost: server.test\r\nUser-Agent: replay/1\r\n\
    Accept: */*\r\n\r\n";

/// Length of the response's body.
pub const BODY: usize = 1024;

/// A whole session, from SYN to the last acknowledgment, in turns: one side sends all frames of a
/// turn when it has all of the turn before.
pub fn session(number: u32, body: &[u8]) -> Result<Vec<Vec<Sent>>, String> {
    use mmtls_testkit::segments::flag::FIN;
    const SEGMENT: usize = 1448;
    let (up, down) = (Direction::ClientToServer, Direction::ServerToClient);
    let (client, server) =
        (Keys::of(number, up, Some(0)).sealer()?, Keys::of(number, down, Some(0)).sealer()?);
    let seal = |sealer: &Tls13Sealer, sequence, kind, content: &[u8]| {
        sealer.seal(sequence, kind, content, 0).ok_or_else(|| "sealing failed".to_owned())
    };
    let (handshake, data, alert) =
        (ContentType::HANDSHAKE, ContentType::APPLICATION_DATA, ContentType(21));
    let close_notify = [1, 0];
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: replay\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\
         ETag: \"6955b900-400\"\r\nAccept-Ranges: bytes\r\n\r\n",
        body.len()
    );
    let script = self::handshake(number).build();
    let [client_hello, server_flight, finished] = script.turns.as_slice() else {
        return Err("a handshake of other turns".to_owned());
    };
    let mut opening = Vec::new();
    let mut tcp = Connection::open(number, &mut opening);
    let mut turns: Vec<Vec<Sent>> = vec![];
    let mut opening = opening.into_iter();
    turns.extend(opening.next().map(|syn| vec![syn]));
    turns.extend(opening.next().map(|answer| vec![answer]));
    let mut hello: Vec<Sent> = opening.collect();
    tcp.send(up, &client_hello.bytes, SEGMENT, &mut hello);
    turns.push(hello);
    let mut turn = |way, pieces: &[&[u8]]| {
        let mut frames = Vec::new();
        for piece in pieces {
            tcp.send(way, piece, SEGMENT, &mut frames);
        }
        turns.push(frames);
    };
    turn(down, &[&server_flight.bytes]);
    turn(up, &[&finished.bytes, &seal(&client, 0, data, REQUEST)?]);
    // NewSessionTicket: type 4, a length, and what only the client can read.
    let ticket = [&[4, 0, 0, 229][..], &[0x77; 229]].concat();
    let tickets =
        [seal(&server, 0, handshake, &ticket)?, seal(&server, 1, handshake, &ticket)?].concat();
    let response = seal(&server, 2, data, &[head.as_bytes(), body].concat())?;
    turn(down, &[&tickets, &response]);
    turns.push(vec![(up, tcp.acknowledgment(up))]);
    turns.push(vec![(down, tcp.data(down, FIN, &seal(&server, 3, alert, &close_notify)?))]);
    turns.push(vec![(up, tcp.data(up, FIN, &seal(&client, 1, alert, &close_notify)?))]);
    turns.push(vec![(down, tcp.acknowledgment(down))]);
    Ok(turns)
}

/// So many turns are handshake, request, response and its acknowledgment; what follows ends the session.
pub const TURNS_BEFORE_END: usize = 7;

/// The turn that a client begins when it has the keys of the application epoch: it sends them to
/// the middlebox at the same time.
pub const KEYS_BEFORE_TURN: usize = 4;

/// Client addresses and server addresses and ports back to the session's number.
pub fn session_of(frame: &[u8], way: Direction) -> Option<u32> {
    // Ethernet 14, IPv4 without options 20: source at 26, destination at 30, ports behind.
    let field = |at: usize| Some([*frame.get(at)?, *frame.get(at + 1)?]);
    let (server, port) = match way {
        Direction::ClientToServer => (30, 34),
        Direction::ServerToClient => (26, 36),
    };
    if field(12)? != [8, 0] || *frame.get(23)? != 6 {
        return None;
    }
    let (high, low) = (field(server)?, field(server + 2)?);
    let server = u32::from_be_bytes([high[0], high[1], low[0], low[1]]);
    let lane = server.checked_sub(u32::from(FIRST_SERVER))?;
    let port = u32::from(u16::from_be_bytes(field(port)?)).checked_sub(FIRST_PORT)?;
    (port < PORTS).then(|| lane.checked_mul(PORTS)?.checked_add(port))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_frames() {
        for number in [0, 7, 49_999, 50_000, 123_456, OTHER_CLIENT, OTHER_CLIENT + 99_999] {
            let turns = session(number, &[1; BODY]).unwrap();
            assert_eq!(turns.iter().map(Vec::len).sum::<usize>(), 13);
            assert_eq!(turns.len(), TURNS_BEFORE_END + 3);
            for (at, turn) in turns.iter().enumerate() {
                for (way, frame) in turn {
                    assert_eq!(side(*way), at % 2);
                    assert_eq!(session_of(frame, *way), Some(number));
                    assert!(frame.len() <= 1514);
                }
            }
        }
    }

    #[test]
    fn refuses_frames_of_others() {
        assert_eq!(session_of(&[0; 60], Direction::ClientToServer), None);
        assert_eq!(session_of(&[], Direction::ServerToClient), None);
    }
}
