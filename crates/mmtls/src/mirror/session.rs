//! What the mirror keeps of a session where it is decrypted: whether it has begun, early data whose fate is not known, and
//! whether it is over for the mirror.
//!
//! Refuses to tell anything behind bytes that are missing.

use mmtls_engine::session::{EndReason, KeyStatus, SessionInfo};
use mmtls_engine::tls::Direction;

use super::conversation::Ending;
use super::frame::Ends;
use super::writer::{Beginning, Event, count};
use super::{EVENT_BYTES, EarlyRoom, Mirror};

/// Most memory for early data that wait until the server has taken or refused them, in bytes.
const MAX_EARLY_BYTES: usize = 64 << 10;

/// A session's part of the mirror.
#[derive(Default)]
pub struct SessionMirror {
    phase: Phase,
    /// Early data, and when they came.
    early: Vec<(u64, Vec<u8>)>,
    /// What they take of the memory for those of all sessions.
    early_room: Option<EarlyRoom>,
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
            let room = self.early_room.get_or_insert_with(|| mirror.early_room());
            if room.take(EVENT_BYTES + bytes.len(), MAX_EARLY_BYTES) {
                self.early.push((now_ns, bytes.to_vec()));
                return;
            }
        }
        self.tell_early(mirror, info);
        self.tell_unread(mirror, info, now_ns);
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
        self.drop_early();
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
                self.drop_early();
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
        self.tell_unread(mirror, info, now_ns);
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
        for (now_ns, bytes) in self.drop_early() {
            self.say(mirror, info, now_ns, Direction::ClientToServer, &bytes);
        }
    }

    fn drop_early(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.early_room = None;
        std::mem::take(&mut self.early)
    }

    /// What is not read any more, which no error tells: an endpoint may refuse later than it has begun, and an operator.
    fn tell_unread(&mut self, mirror: &Mirror, info: &SessionInfo, now_ns: u64) {
        let has_sent = |side: &Direction| self.has_sent[side.index()];
        let refused = |side: &Direction| info.refused[side.index()] && has_sent(side);
        let why = if info.bypassed_by_operator {
            "bypassed by an operator"
        } else if info.key_status == KeyStatus::Exempt || Direction::BOTH.iter().any(refused) {
            "refused by its endpoint"
        } else {
            return;
        };
        if let Some(side) = Direction::BOTH.into_iter().find(has_sent) {
            self.lost(mirror, info, now_ns, side, why);
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
