//! What the mirror keeps of a session where it is decrypted: whether it has begun, early data whose fate is not known, and
//! whether it is over for the mirror.
//!
//! Refuses to tell anything behind bytes that are missing.

use mmtls_engine::session::{EndReason, SessionInfo};
use mmtls_engine::tls::Direction;

use super::Mirror;
use super::conversation::Ending;
use super::frame::Ends;
use super::writer::{Beginning, Event, count};

/// Most bytes of early data that wait until the server has taken or refused them.
const MAX_EARLY_BYTES: usize = 64 << 10;

/// A session's part of the mirror.
#[derive(Default)]
pub struct SessionMirror {
    phase: Phase,
    /// Early data, and when they came.
    early: Vec<(u64, Vec<u8>)>,
    early_bytes: usize,
    /// Why something is missing before the first byte.
    ahead: Option<&'static str>,
    /// Who has sent its last byte first.
    closed_first: Option<Direction>,
    has_sent: [bool; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Nothing was said.
    #[default]
    Waiting,
    /// It has begun.
    Open,
    /// Nothing more of it is mirrored.
    Over,
}

impl SessionMirror {
    /// One side has said something.
    pub(crate) fn data(
        &mut self,
        mirror: &Mirror,
        info: &SessionInfo,
        now_ns: u64,
        from: Direction,
        (bytes, early): (&[u8], bool),
    ) {
        if bytes.is_empty() {
            return;
        }
        if early && self.phase == Phase::Waiting {
            self.early_bytes += bytes.len();
            if self.early_bytes <= MAX_EARLY_BYTES {
                self.early.push((now_ns, bytes.to_vec()));
                return;
            }
        }
        self.tell_early(mirror, info);
        // An endpoint may refuse a direction later than it has begun.
        let refused = Direction::BOTH
            .into_iter()
            .find(|side| info.refused[side.index()] && self.has_sent[side.index()]);
        if let Some(side) = refused {
            self.lost(mirror, info, now_ns, side, "refused by its endpoint");
        }
        self.say(mirror, info, now_ns, from, bytes);
    }

    /// What the server has made of early data.
    pub(crate) fn early_data(
        &mut self,
        mirror: &Mirror,
        info: &SessionInfo,
        now_ns: u64,
        accepted: bool,
    ) {
        if accepted {
            self.tell_early(mirror, info);
            return;
        }
        self.early = Vec::new();
        if self.phase == Phase::Open {
            // They were told already, and are sent again.
            self.lost(mirror, info, now_ns, Direction::ClientToServer, "early data refused");
        }
    }

    /// Bytes of one side are missing here.
    pub(crate) fn lost(
        &mut self,
        mirror: &Mirror,
        info: &SessionInfo,
        now_ns: u64,
        from: Direction,
        why: &'static str,
    ) {
        match self.phase {
            Phase::Waiting => {
                self.early = Vec::new();
                self.ahead.get_or_insert(why);
            }
            Phase::Open => {
                self.phase = Phase::Over;
                count(&mirror.counters().gaps, 1);
                let ending = Ending::Reset(from, why);
                mirror.push_end(Event::End { id: info.id, now_ns, ending });
            }
            Phase::Over => {}
        }
    }

    /// One side says no more.
    pub(crate) fn close(&mut self, from: Direction) {
        self.closed_first.get_or_insert(from);
    }

    /// The session is over.
    pub(crate) fn end(&mut self, mirror: &Mirror, info: &SessionInfo, now_ns: u64, why: EndReason) {
        self.tell_early(mirror, info);
        if self.phase != Phase::Open {
            return;
        }
        self.phase = Phase::Over;
        let ending = match why {
            EndReason::Closed => {
                Ending::Closed(self.closed_first.unwrap_or(Direction::ClientToServer))
            }
            EndReason::ResetByPeer(side) => Ending::Reset(side, why.name()),
            _ => Ending::Reset(Direction::ServerToClient, why.name()),
        };
        mirror.push_end(Event::End { id: info.id, now_ns, ending });
    }

    /// Early data that the server takes, as far as is known.
    fn tell_early(&mut self, mirror: &Mirror, info: &SessionInfo) {
        for (now_ns, bytes) in std::mem::take(&mut self.early) {
            self.say(mirror, info, now_ns, Direction::ClientToServer, &bytes);
        }
    }

    fn say(
        &mut self,
        mirror: &Mirror,
        info: &SessionInfo,
        now_ns: u64,
        from: Direction,
        bytes: &[u8],
    ) {
        if self.phase == Phase::Waiting {
            let begins = mirror.push(self.beginning(mirror, info, now_ns));
            self.phase = if begins { Phase::Open } else { Phase::Over };
            if !begins {
                count(&mirror.counters().sessions_cut, 1);
            }
        }
        if self.phase == Phase::Open && !mirror.push_data(info.id, now_ns, from, bytes) {
            self.phase = Phase::Over;
            count(&mirror.counters().sessions_cut, 1);
            let ending = Ending::Reset(from, "the mirror does not keep up");
            mirror.push_end(Event::End { id: info.id, now_ns, ending });
        }
        if self.phase == Phase::Over {
            count(&mirror.counters().bytes_lost, bytes.len() as u64);
        }
        self.has_sent[from.index()] = true;
    }

    fn beginning(&self, mirror: &Mirror, info: &SessionInfo, now_ns: u64) -> Event {
        let port = mirror.port().of(info.server.port(), info.starttls.is_some());
        let server = std::net::SocketAddr::new(info.server.ip(), port);
        let (words, _) = info.client_random.as_chunks::<4>();
        // Of another session between the same ends, or without a known random, they are others.
        let salt = (info.id.0 as u32).wrapping_mul(0x9e37_79b1);
        let word = |at: usize| words.get(at).map_or(0, |word| u32::from_ne_bytes(*word));
        let comment = match (self.ahead, info.is_mid_stream) {
            (Some(why), _) => Some(why),
            (None, true) => Some("its beginning was not seen"),
            (None, false) => None,
        };
        Event::Begin(Box::new(Beginning {
            id: info.id,
            now_ns,
            ends: Ends::new([info.client, server], info.link_addresses, info.place.vlans),
            initial: [0, 1].map(|at| word(at).wrapping_add(salt)),
            comment,
        }))
    }
}
