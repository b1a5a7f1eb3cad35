//! Synthetic TLS 1.3 sessions with real protection, as frames: what the engine and the box are fed
//! where real endpoints would cost more than what is measured.
//!
//! Refuses nothing; every session has its own four-tuple, randoms and keys.

use std::net::{Ipv4Addr, SocketAddr};

use mmtls_engine::tls::Direction;
use mmtls_record::Tls13Sealer;
use mmtls_testkit::segments::Endpoints;
use mmtls_testkit::synthesis::{ScriptBuilder, Turn, side};

/// `TLS_AES_256_GCM_SHA384`.
pub const SUITE: u16 = 0x1302;

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

/// Where a session lives: one client address, all ports from 10000 to 59999, then the next server.
pub fn endpoints(session: u32) -> Endpoints {
    const PORTS: u32 = 50_000;
    let server = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 3)) + session / PORTS);
    Endpoints {
        client: SocketAddr::from(([10, 77, 0, 2], (10_000 + session % PORTS) as u16)),
        server: SocketAddr::from((server, 443)),
        initial: [session.wrapping_mul(0x9e37_79b9), session.wrapping_mul(0x85eb_ca6b)],
    }
}

/// Hellos and encrypted handshake of a session, to go on from.
pub fn handshake(
    session: u32,
) -> ScriptBuilder<Tls13Sealer, impl Fn(Direction, Option<u32>) -> Tls13Sealer> {
    ScriptBuilder::new(client_random(session), SUITE, false, &SERVER_FLIGHT, move |way, epoch| {
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
