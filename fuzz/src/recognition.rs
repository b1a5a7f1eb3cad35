//! Finding TLS behind other protocols: one conversation of two sides, in any cut.
//!
//! Claim: however each stretch of bytes is cut into segments, TLS is found in the same place behind
//! the same protocol, or not at all, or it is found that it was missed, which has its policy; a ClientHello behind any dialog
//! that asked for it is found; and what is kept stays within bounds.
//!
//! Whether it was missed depends on the cut: where one stretch of bytes has what answers a hello and what begins one, the
//! first segment that is complete decides; and more segments have more ends behind which a hello may go on.

use std::sync::LazyLock;

use mmtls_engine::session::{FlowAnomaly, Handler, Session, TcpAnomaly, Upgrade};
use mmtls_engine::tls::Direction;
use mmtls_engine::{Config, Engine, FrameInput, Link, Policy, PortId};
use mmtls_testkit::dialogs::{Dialog, dialogs};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{client_hello, plain, side};

use crate::input::{Input, pieces};

/// Made once: some of their text is never freed.
static DIALOGS: LazyLock<Vec<Dialog>> = LazyLock::new(dialogs);

/// Kept for a connection in which TLS has not been found: two directions of 16 KB, what is not
/// acknowledged, and the segment at hand.
const MAX_KEPT: usize = 128 << 10;

/// Input: lengths of pieces; which dialog is said first, if any, and how many of its turns; then
/// stretches: one byte with direction and form of length, the length, the bytes. In the end the
/// client says its hello when the dialog was said whole.
pub fn recognition(data: &[u8]) {
    let mut input = Input::new(data);
    let lengths = input.take(3);
    let which = usize::from(input.u8());
    let dialog = DIALOGS.get(which);
    let mut turns: Vec<(Direction, Vec<u8>)> = Vec::new();
    for (from_client, bytes) in dialog.map_or(&[][..], |dialog| &dialog.turns) {
        turns.push((Direction::BOTH[usize::from(!from_client)], bytes.clone()));
    }
    let whole = input.is_empty() && dialog.is_some();
    if dialog.is_some() && !whole {
        turns.truncate(usize::from(input.u8()) % turns.len().max(1));
    }
    while !input.is_empty() {
        let head = input.u8();
        let len = if head & 1 == 0 { usize::from(input.u8()) } else { input.u16().into() };
        turns.push((Direction::BOTH[usize::from(head >> 7)], input.take(len).to_vec()));
    }
    if whole {
        let hello = plain(
            mmtls_engine::tls::ContentType::HANDSHAKE,
            &client_hello(&[7; 32], "server.test", 10),
        );
        turns.push((Direction::ClientToServer, hello));
    }
    let [found, in_pieces] = [&[][..], lengths].map(|lengths| run(&turns, lengths));
    if found != Outcome::Missed && in_pieces != Outcome::Missed {
        assert_eq!(in_pieces, found, "in pieces of {lengths:?}");
    }
    if whole {
        for outcome in [found, in_pieces] {
            let name = match outcome {
                Outcome::Found(_, upgrade) => upgrade.map(Upgrade::name),
                Outcome::Nothing | Outcome::Missed => panic!("not found"),
            };
            assert_eq!(name, dialog.map(|dialog| dialog.name), "behind another protocol");
        }
    }
}

/// What came of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// No TLS.
    Nothing,
    /// TLS whose beginning was missed.
    Missed,
    /// The first session: in which turn, and behind which protocol.
    Found(usize, Option<Upgrade>),
}

fn run(turns: &[(Direction, Vec<u8>)], lengths: &[u8]) -> Outcome {
    let endpoints = Endpoints {
        client: ([10, 0, 0, 2], 40000).into(),
        server: ([10, 0, 0, 3], 443).into(),
        initial: [u32::MAX - 300, 7],
    };
    let mut engine = Engine::new(Config::new(Policy::Bypass), Finder::default());
    let mut sent = [0u64; 2];
    let mut send = |engine: &mut Engine<Finder>, to: Direction, flags: u8, bytes: &[u8]| {
        let at = side(to);
        let offset = if flags & flag::SYN != 0 { -1 } else { sent[at] as i64 };
        let frame = endpoints.frame(to, offset, sent[1 - at], flags, bytes);
        sent[at] += bytes.len() as u64;
        let frame = FrameInput {
            port: PortId(at as u8),
            link: Link::Ethernet,
            bytes: &frame,
            memory: None,
            checksum_trusted: true,
        };
        let _ = engine.handle_frame(1, &frame);
        while engine.poll_output().is_some() {}
    };
    send(&mut engine, Direction::ClientToServer, flag::SYN, &[]);
    send(&mut engine, Direction::ServerToClient, flag::SYN | flag::ACK, &[]);
    send(&mut engine, Direction::ClientToServer, flag::ACK, &[]);
    for (number, (to, bytes)) in turns.iter().enumerate() {
        for piece in pieces(bytes, lengths) {
            send(&mut engine, *to, flag::ACK, piece);
        }
        match engine.handler() {
            Finder { found: Some(upgrade), .. } => return Outcome::Found(number, *upgrade),
            Finder { missed: true, .. } => return Outcome::Missed,
            Finder { .. } => {}
        }
        assert!(engine.buffered_bytes() <= MAX_KEPT, "{} bytes kept", engine.buffered_bytes());
    }
    Outcome::Nothing
}

#[derive(Default)]
struct Finder {
    found: Option<Option<Upgrade>>,
    missed: bool,
}

impl Handler for Finder {
    type State = ();

    fn session_start(&mut self, session: &mut Session<'_>, (): &mut ()) {
        self.found.get_or_insert(session.info().starttls);
    }

    fn flow_anomaly(&mut self, anomaly: &FlowAnomaly) {
        self.missed |= anomaly.kind == TcpAnomaly::MissedTls;
    }
}
