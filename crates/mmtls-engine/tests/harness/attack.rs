//! An attacker's view of the engine: frames of its choice, one connection, and what came of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::*;

use super::{Event, Keys, RANDOM, Recorder, SUITE, keys};

pub const C: Direction = Direction::ClientToServer;
pub const S: Direction = Direction::ServerToClient;

pub struct T {
    pub engine: Engine<Recorder>,
    pub ep: Endpoints,
    pub now: u64,
    pub out: Vec<Output>,
    frames: Vec<Weak<[u8]>>,
    /// Memory that each frame comes in, at least.
    pub room: usize,
    /// The connection that keys come over.
    pub source: u64,
}

impl T {
    pub fn with(config: Config) -> Self {
        let ep = Endpoints {
            client: "10.0.0.2:40000".parse().unwrap(),
            server: "10.0.0.3:443".parse().unwrap(),
            initial: [1_000_000, 2_000_000_000],
        };
        Self {
            engine: Engine::new(config, Recorder::default()),
            ep,
            now: 1,
            out: Vec::new(),
            frames: Vec::new(),
            room: 0,
            source: 0,
        }
    }
    pub fn new() -> Self {
        Self::with(Self::config())
    }
    pub fn config() -> Config {
        let mut c = Config::new(Policy::Reset);
        c.verify_checksums = false;
        // Other protocols are spoken to port 443 here.
        c.tls_ports = Vec::new();
        c
    }
    pub fn raw(&mut self, port: u8, bytes: &[u8]) -> Verdict {
        self.now += 1000;
        let mut memory = bytes.to_vec();
        memory.resize(self.room.max(bytes.len()), 0);
        let memory: Arc<[u8]> = memory.into();
        self.frames.push(Arc::downgrade(&memory));
        let input = FrameInput {
            port: PortId(port),
            link: Link::Ethernet,
            bytes: &memory[..bytes.len()],
            memory: Some(&memory),
            checksum_trusted: true,
        };
        let v = self.engine.handle_frame(self.now, &input);
        self.drain();
        v
    }
    pub fn drain(&mut self) {
        while let Some(o) = self.engine.poll_output() {
            self.out.push(o);
        }
    }
    /// Frames whose memory the engine keeps.
    pub fn kept_frames(&self) -> usize {
        self.frames.iter().filter(|it| it.strong_count() > 0).count()
    }
    pub fn send(&mut self, d: Direction, offset: i64, ack: u64, flags: u8, data: &[u8]) -> Verdict {
        let f = self.ep.frame(d, offset, ack, flags, data);
        self.raw(side(d) as u8, &f)
    }
    pub fn open(&mut self) {
        self.send(C, -1, 0, flag::SYN, &[]);
        self.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
        self.send(C, 0, 0, flag::ACK, &[]);
    }
    pub fn keys(&mut self, d: Direction, epoch: u32) -> Result<bool, KeyRefusal> {
        self.keys_with(
            d,
            epoch,
            Box::new(keys(d, KeyEpoch::Application(epoch))),
            RANDOM,
            Some(self.ep.client.ip()),
        )
    }
    pub fn keys_with(
        &mut self,
        d: Direction,
        epoch: u32,
        opener: Box<dyn OpenRecord>,
        random: [u8; 32],
        sender: Option<std::net::IpAddr>,
    ) -> Result<bool, KeyRefusal> {
        let r = self.engine.handle_keys(
            self.now,
            SharedKeys {
                sender,
                source: self.source,
                client_random: random,
                server_random: None,
                cipher_suite: CipherSuite(SUITE),
                keys: vec![(d, KeyEpoch::Application(epoch), opener)],
            },
        );
        self.drain();
        r
    }
    /// Plays a script with keys; offsets per direction are returned.
    pub fn play(&mut self, script: &Script) -> [u64; 2] {
        let mut at = [0u64; 2];
        for t in &script.turns {
            let s = side(t.direction);
            self.send(t.direction, at[s] as i64, at[1 - s], flag::ACK, &t.bytes);
            at[s] += t.bytes.len() as u64;
        }
        at
    }
    /// Plays a dialog from the start of an open connection; stream offsets.
    pub fn say(&mut self, dialog: &[(Direction, &[u8])]) -> [u64; 2] {
        let mut at = [0u64; 2];
        for (direction, bytes) in dialog {
            let s = side(*direction);
            self.send(*direction, at[s] as i64, at[1 - s], flag::ACK, bytes);
            at[s] += bytes.len() as u64;
        }
        at
    }
    pub fn started(&self) -> bool {
        self.engine.handler().events.contains(&Event::SessionStart)
    }
    pub fn judged(&self) -> usize {
        let r = self.engine.handler();
        r.judged[0] + r.judged[1]
    }
    pub fn alive(&self) -> bool {
        !self.engine.handler().events.iter().any(|e| matches!(e, Event::SessionEnd(_)))
    }
}

/// A ServerHello of TLS 1.2 that names any suite.
pub fn tls12_hello(suite: u16) -> Vec<u8> {
    let mut body = vec![2, 0, 0, 38, 3, 3];
    body.extend_from_slice(&[0x5a; 32]);
    body.push(0);
    body.extend_from_slice(&suite.to_be_bytes());
    body.push(0);
    body
}

pub fn builder() -> ScriptBuilder<NullKeys, Keys> {
    ScriptBuilder::new(RANDOM, SUITE, false, &[1000], keys as fn(_, _) -> _)
}
pub fn simple() -> Script {
    let mut b = builder();
    b.record(C, ContentType::APPLICATION_DATA, &[7; 500], 0);
    b.record(S, ContentType::APPLICATION_DATA, &[8; 500], 0);
    b.build()
}
pub fn hello() -> Vec<u8> {
    plain(ContentType::HANDSHAKE, &client_hello(&RANDOM, "server.test", 10))
}
pub fn sealed(d: Direction, n: u64) -> Vec<u8> {
    keys(d, KeyEpoch::Application(0)).seal(n, ContentType::APPLICATION_DATA, &[9; 300], 0)
}
/// An established session with both keys; returns stream offsets.
pub fn established(t: &mut T) -> [u64; 2] {
    t.open();
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    let at = t.play(&simple());
    assert_eq!(t.judged(), 2);
    at
}

/// Keys of which is known how many there are, and how often they were told to rest.
#[derive(Clone)]
pub struct Watched {
    pub keys: NullKeys,
    pub rests: Arc<AtomicU32>,
}

impl OpenRecord for Watched {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        self.keys.open(sequence, header, fragment, plaintext)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.keys.fingerprint()
    }

    fn rest(&mut self) {
        self.rests.fetch_add(1, Ordering::Relaxed);
    }
}
