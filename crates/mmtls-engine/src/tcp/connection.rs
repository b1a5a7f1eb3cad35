//! One TCP connection.

use core::net::SocketAddr;

use super::key::{Ends, FlowKey};
use super::links::Standing;
use super::opening::Opening;
use super::shares::Stake;
use super::tcp_direction::{Origin, TcpDirection};
use crate::buffer_pool::BufferPool;
use crate::port::PortId;
use crate::session::{EndReason, FlowEnd, FlowPlace, SessionId, SessionInfo};
use crate::tls::Direction;
use crate::wire::link_addresses;

/// What TCP has to know of what a connection carries. The default is that of a new connection.
pub(crate) trait Carried: Default {
    /// Whether it is TLS, followed or not.
    fn is_tls(&self) -> bool;

    /// Whether it is idle, and in a form that takes less memory.
    fn is_resting(&self) -> bool;

    /// In the form in which it is used. `flow`: what its flow says of it.
    fn wake(self, flow: SessionInfo) -> Self;

    /// The last so many bytes that are kept of a direction, since they are an incomplete record.
    fn partial(&self, direction: Direction, len: usize) -> &[u8];
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A SYN was seen; its sender has not acknowledged the answer.
    Opening,
    /// Data may flow.
    Open,
    /// Both sides have finished, or one has reset it.
    Closed(EndReason),
    /// Reset by the monitor: a tombstone. `answers` more packets of each direction are answered with a RST.
    Dead { reason: EndReason, answers: [u16; 2] },
}

/// Whether nothing of a connection is looked at any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    /// It is, or may come to be.
    No,
    /// It is left alone, whatever it carries.
    Exempt,
    /// Its session's bypass has been carried out.
    Bypassed,
}

/// Whether a connection is left to the I/O layer, or records of one direction are, and how often all of it was: in one byte, since
/// there are many.
#[derive(Clone, Copy, Default)]
pub(crate) struct Offload(u8);

impl Offload {
    const NOW: u8 = 1 << 7;
    const RECORDS: [u8; 2] = [1 << 6, 1 << 5];
    const COUNT: u8 = (1 << 5) - 1;

    pub(crate) fn is_on(self) -> bool {
        self.0 & Self::NOW != 0
    }

    /// Only some records are, of this direction.
    pub(crate) fn records(self) -> Option<Direction> {
        let is_of = |it: &Direction| self.0 & Self::RECORDS[it.index()] != 0;
        Direction::BOTH.into_iter().find(is_of)
    }

    /// All of it is left to the I/O layer, or records of this direction.
    pub(crate) fn begin(&mut self, records: Option<Direction>) {
        self.0 = Self::NOW
            | match records {
                Some(direction) => self.count() | Self::RECORDS[direction.index()],
                None => Self::COUNT.min(self.count() + 1),
            };
    }

    pub(crate) fn end(&mut self) {
        self.0 &= Self::COUNT;
    }

    /// How often all of it was.
    pub(crate) fn count(self) -> u8 {
        self.0 & Self::COUNT
    }
}

/// From which round trip of its handshake on a connection's ends are far from each other. Nearer, the processor's time counts, and
/// a window that grows slowly does not.
const FAR_NS: u64 = 2_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// One TCP connection.
pub(crate) struct Flow<P> {
    pub(crate) id: SessionId,
    pub(crate) ends: Ends,
    pub(crate) started_ns: u64,
    pub(crate) last_ns: u64,
    /// When its timeout is looked at next.
    pub(crate) check_ns: u64,
    pub(crate) phase: Phase,
    /// Client to server first.
    pub(crate) halves: [TcpDirection; 2],
    pub(crate) payload: P,
    /// Handshakes that may open the connection, or a new one on its four-tuple.
    pub(crate) opening: Opening,
    /// Whether nothing of it is looked at any more.
    pub(crate) unread: Unread,
    /// Whether the I/O layer forwards it.
    pub(crate) offload: Offload,
    /// The side that answered the SYN has spoken on the open connection, and acknowledged nothing that was
    /// not seen: it stands where the other one's bytes are counted from.
    pub(crate) confirmed: bool,
    /// Picked up behind its beginning, and only one side has spoken since: anybody can make it look
    /// like that.
    pub(crate) one_sided: bool,
    /// Bytes this flow is charged for in the engine's total.
    pub(crate) charged: usize,
    /// Whether they count as those of a connection of which it is not known what it carries.
    pub(crate) charged_undecided: bool,
    /// What it counts for in its client's shares.
    pub(super) stake: Stake,
    /// Reset along this direction; see [`Flow::waits_behind_reset`].
    pub(crate) reset_seen: Option<Direction>,
    /// Where it stands among others.
    pub(super) standing: Standing,
    pub(crate) end_reported: bool,
}

impl<P: Carried> Flow<P> {
    pub(crate) fn new(id: SessionId, ends: Ends, now_ns: u64) -> Self {
        Self {
            id,
            ends,
            unread: Unread::No,
            offload: Offload::default(),
            confirmed: false,
            one_sided: false,
            started_ns: now_ns,
            last_ns: now_ns,
            check_ns: u64::MAX,
            phase: Phase::Opening,
            halves: [TcpDirection::default(), TcpDirection::default()],
            payload: P::default(),
            opening: Opening::default(),
            charged: 0,
            charged_undecided: false,
            stake: Stake::default(),
            reset_seen: None,
            standing: Standing::Nowhere,
            end_reported: false,
        }
    }

    /// The connection goes on: what it carries is in the form in which it is used.
    #[cold]
    pub(super) fn wake(&mut self) {
        let info = self.session_info();
        self.payload = core::mem::take(&mut self.payload).wake(info);
    }

    /// The connection is idle: what can be made again is given back, but for what it carries.
    pub(crate) fn rest(&mut self) {
        self.halves.iter_mut().for_each(TcpDirection::rest);
        self.stake.rest();
    }

    /// The acknowledgment of its SYN-ACK has come.
    pub(crate) fn open(&mut self, now_ns: u64) {
        self.phase = Phase::Open;
        let after_ns = now_ns.saturating_sub(self.started_ns);
        let after_s = u32::try_from(after_ns.div_ceil(SECOND_NS)).unwrap_or(u32::MAX);
        for half in &mut self.halves {
            (half.is_far, half.opened_after_s) = (after_ns >= FAR_NS, after_s);
        }
    }

    /// How long it has been open, or up to a second less.
    pub(crate) fn open_for_ns(&self, now_ns: u64) -> u64 {
        let after_ns = u64::from(self.halves[0].opened_after_s) * SECOND_NS;
        now_ns.saturating_sub(self.started_ns.saturating_add(after_ns))
    }

    pub(crate) fn direction_from(&self, source: SocketAddr) -> Direction {
        if self.ends.is_client(source) {
            Direction::ClientToServer
        } else {
            Direction::ServerToClient
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.payload.is_tls()
    }

    /// Whether what it carries rests.
    pub(crate) fn is_resting(&self) -> bool {
        self.payload.is_resting()
    }

    /// Whether it is left alone, whatever it carries.
    pub(crate) fn is_exempt(&self) -> bool {
        self.unread == Unread::Exempt
    }

    pub(crate) fn key(&self) -> FlowKey {
        self.ends.key()
    }

    /// Whether it counts as an attempt: only one side has vouched for it.
    pub(crate) fn is_attempt(&self) -> bool {
        matches!(self.standing, Standing::Attempt(_))
    }

    /// Whether both sides have vouched for the numbers of the connection: SYN, SYN-ACK and the
    /// acknowledgment of that were seen.
    pub(crate) fn is_established(&self) -> bool {
        self.phase == Phase::Open
            && self.halves.iter().all(|half| matches!(half.origin, Origin::Syn | Origin::SynAck))
    }

    /// Whether it was reset, and has not ended because what has been delivered waits for keys.
    pub(crate) fn waits_behind_reset(&self) -> bool {
        self.reset_seen.is_some() && matches!(self.phase, Phase::Opening | Phase::Open)
    }

    /// Client and server turn out to be the other way round; nothing of a session has been processed yet.
    pub(crate) fn swap_roles(&mut self) {
        self.ends.swap();
        self.halves.swap(0, 1);
    }

    /// Whether bytes at a stream offset differ from those that were handed on there and may not
    /// have arrived.
    pub(crate) fn contradicts(&self, direction: Direction, offset: u64, data: &[u8]) -> bool {
        let half = &self.halves[direction.index()];
        if offset >= half.assembler.next() {
            return false;
        }
        let is_other = half
            .sent
            .as_ref()
            .is_some_and(|sent| sent.contradicts(offset, data, self.partial(direction)));
        is_other || half.passed().is_some_and(|passed| passed.contradicts(offset, data))
    }

    /// The latest bytes, those that [`TcpDirection::sent`] has left to what the flow carries.
    fn partial(&self, direction: Direction) -> &[u8] {
        self.payload.partial(direction, self.halves[direction.index()].partial_len())
    }

    /// Keeps those bytes apart from what the flow carries, which is about to use them or to let go of them;
    /// `more` will be copied right after them.
    pub(crate) fn copy_partial(
        &mut self,
        direction: Direction,
        more: usize,
        pool: &mut BufferPool,
    ) {
        if let Some(sent) = &mut self.halves[direction.index()].sent
            && sent.partial_len() > 0
        {
            let bytes = self.payload.partial(direction, sent.partial_len());
            sent.make_room(bytes.len() + more, pool);
            sent.copy_partial(bytes);
        }
    }

    /// The half of a direction and the other one.
    pub(crate) fn halves_from(&mut self, direction: Direction) -> [&mut TcpDirection; 2] {
        let [client, server] = &mut self.halves;
        match direction {
            Direction::ClientToServer => [client, server],
            Direction::ServerToClient => [server, client],
        }
    }

    pub(crate) fn half(&mut self, direction: Direction) -> &mut TcpDirection {
        &mut self.halves[direction.index()]
    }

    /// Where it is, as applications are told.
    pub(crate) fn place(&self) -> FlowPlace {
        let vlans = [(self.ends.vlan() >> 16) as u16, self.ends.vlan() as u16];
        let [client, server] = [&self.halves[0], &self.halves[1]].map(|half| half.path());
        let port = match (client, server) {
            (Some((port, _)), _) => port,
            (None, Some((other, _))) => PortId(other.0 ^ 1),
            (None, None) => PortId(0),
        };
        FlowPlace { port, vlans }
    }

    /// What is known of a session in it from the beginning.
    pub(crate) fn session_info(&self) -> SessionInfo {
        let (id, place) = (self.id, self.place());
        let [client, server] = self.ends.both();
        let mut info = SessionInfo::new(id, client, server, place, self.started_ns);
        let of = |half: &TcpDirection| link_addresses(half.path()?.1);
        // A frame has its destination first.
        let known = of(&self.halves[0]).map(|[to, from]| [from, to]);
        info.link_addresses = known.or_else(|| of(&self.halves[1])).unwrap_or_default();
        info
    }

    pub(crate) fn end(&self, reason: EndReason) -> FlowEnd {
        let [client, server] = self.ends.both();
        FlowEnd {
            id: self.id,
            client,
            server,
            place: self.place(),
            tls: self.is_tls(),
            established: !self.is_attempt(),
            started_ns: self.started_ns,
            last_ns: self.last_ns,
            packets: [self.halves[0].packets, self.halves[1].packets],
            bytes: [self.halves[0].bytes, self.halves[1].bytes],
            reason,
        }
    }

    /// Frames of it that are held.
    pub(crate) fn held_frames(&self) -> usize {
        self.halves.iter().map(TcpDirection::held_frames).sum()
    }

    /// Both FINs have been reached and each has been acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        Direction::BOTH.into_iter().all(|direction| {
            let half = &self.halves[direction.index()];
            let acknowledged = self.halves[direction.reverse().index()].last_ack;
            half.fin_reached()
                && half.fin_sequence().is_some_and(|fin| acknowledged == Some(fin.wrapping_add(1)))
        })
    }
}
