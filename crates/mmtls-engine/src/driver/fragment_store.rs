//! Fragments that wait for the rest of their packets, and identifications that are remembered. When and why is in
//! `fragments`.

use core::net::IpAddr;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use crate::output::HoldId;
use crate::port::PortId;
use crate::tcp::Client;
use crate::wire::Fragment;

/// The longest IP packet (RFC 791, section 3.1).
pub(super) const MAX_PACKET_LEN: usize = 65_535;

/// Packets that wait to be complete at a time.
pub(super) const MAX_WAITING: usize = 512;

/// Bytes of their fragments.
pub(super) const MAX_BYTES: usize = 8 << 20;

/// Pieces of a packet: of 1,280 bytes each, which every link of IPv6 takes (RFC 8200, section 5), and some
/// more.
pub(super) const MAX_PIECES: usize = 64;

/// Identifications that are remembered, those of waiting packets among them.
pub(super) const MAX_KNOWN: usize = 1 << 17;

/// How long a packet waits, which is Linux's own limit (`ipfrag_time`).
pub(super) const WAIT_NS: u64 = 30_000_000_000;

/// How long its identification is remembered from its first fragment on: receivers keep the last one
/// for 60 seconds at most (RFC 8200, section 4.5).
pub(super) const TIMEOUT_NS: u64 = WAIT_NS + 65_000_000_000;

/// What says that fragments belong together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) port: PortId,
    pub(super) vlan: u32,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) identification: u32,
    /// Of IPv4 alone: in IPv6 only the first fragment's counts.
    pub(super) protocol: u8,
}

/// Who sends fragments: somebody on the other side of the monitor is somebody else, whatever address they
/// write on them.
pub(super) type Source = (PortId, Client);

impl Key {
    pub(super) fn source(&self) -> Source {
        (self.port, Client::new(self.source))
    }
}

/// A packet that is incomplete.
#[derive(Default)]
pub(super) struct Packet {
    /// Ranges in order, which do not overlap.
    pub(super) pieces: Vec<(usize, usize)>,
    /// The whole of it so far, with holes.
    pub(super) bytes: Vec<u8>,
    pub(super) len: Option<usize>,
    /// The protocol that the first fragment names.
    pub(super) next: Option<u8>,
    pub(super) held: Vec<HoldId>,
    /// Bytes of these frames.
    pub(super) held_len: usize,
    pub(super) since_ns: u64,
    /// It is not put together any more: what comes meets the policy.
    pub(super) over: bool,
}

pub(super) struct Fragments {
    pub(super) packets: HashMap<Key, Packet, ahash::RandomState>,
    /// When each of them is forgotten, in order of time.
    pub(super) order: VecDeque<(u64, Key)>,
    /// Those that wait, in order of time; some are over.
    pub(super) waiting: VecDeque<Key>,
    /// How many wait, by source.
    pub(super) waiting_of: HashMap<Source, usize, ahash::RandomState>,
    /// How many are known, by source.
    pub(super) known_of: HashMap<Source, usize, ahash::RandomState>,
    pub(super) count: usize,
    pub(super) bytes: usize,
    /// Frames that wait together with another one, whose number is the key.
    pub(super) together: HashMap<HoldId, Vec<HoldId>, ahash::RandomState>,
}

/// What a fragment leads to.
pub(super) enum Added {
    /// It was seen before.
    Again,
    /// The packet is not complete.
    Waiting,
    Complete,
    /// It cannot be put together.
    Refused,
}

impl Packet {
    pub(super) fn add(&mut self, fragment: &Fragment<'_>) -> Added {
        let (start, end) = (fragment.offset, fragment.offset + fragment.payload.len());
        let ragged = fragment.more && !fragment.payload.len().is_multiple_of(8);
        let last = (!fragment.more).then_some(end);
        let beyond = self.len.or(last).is_some_and(|len| {
            end > len || self.pieces.last().is_some_and(|(_, highest)| *highest > len)
        });
        let other_end = last.is_some() && self.len.is_some() && self.len != last;
        if end > MAX_PACKET_LEN || start == end || ragged || beyond || other_end {
            return Added::Refused;
        }
        let at = self.pieces.partition_point(|piece| piece.0 < start);
        if let Some(&(known_start, known_end)) = self.pieces.get(at)
            && (known_start, known_end) == (start, end)
        {
            let same = self.bytes[start..end] == *fragment.payload;
            return if same { Added::Again } else { Added::Refused };
        }
        let overlaps = self.pieces.get(at).is_some_and(|piece| piece.0 < end)
            || at > 0 && self.pieces[at - 1].1 > start;
        if overlaps || self.pieces.len() >= MAX_PIECES {
            return Added::Refused;
        }
        self.pieces.insert(at, (start, end));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(fragment.payload);
        self.len = self.len.or(last);
        if start == 0 {
            self.next = Some(fragment.next);
        }
        let known: usize = self.pieces.iter().map(|(start, end)| end - start).sum();
        if self.len == Some(known) { Added::Complete } else { Added::Waiting }
    }
}

impl Fragments {
    pub(super) fn new(hasher: ahash::RandomState) -> Self {
        Self {
            packets: HashMap::with_hasher(hasher.clone()),
            order: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_of: HashMap::with_hasher(hasher.clone()),
            known_of: HashMap::with_hasher(hasher.clone()),
            count: 0,
            bytes: 0,
            together: HashMap::with_hasher(hasher),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let oldest = self.waiting.front().and_then(|key| self.packets.get(key));
        let waits = oldest.map(|packet| packet.since_ns.saturating_add(WAIT_NS));
        let known = self.order.front().map(|(deadline, _)| *deadline);
        [waits, known].into_iter().flatten().min()
    }

    /// Frames that go where this one goes.
    pub(super) fn together_with(&mut self, id: HoldId) -> Vec<HoldId> {
        match self.together.is_empty() {
            true => Vec::new(),
            false => self.together.remove(&id).unwrap_or_default(),
        }
    }

    /// The packet that has to go when there is no room: of the source that waits for the most, the
    /// oldest.
    pub(super) fn largest(&self) -> Option<Key> {
        let (source, _) = self.waiting_of.iter().max_by_key(|(_, count)| **count)?;
        let waits = |key: &&Key| {
            key.source() == *source && self.packets.get(key).is_some_and(|it| !it.over)
        };
        self.waiting.iter().find(waits).copied()
    }

    /// A packet waits no longer; its frames.
    pub(super) fn end(&mut self, key: &Key) -> Option<Packet> {
        let packet = self.packets.get_mut(key).filter(|packet| !packet.over)?;
        let ended = core::mem::replace(packet, Packet { over: true, ..Packet::default() });
        self.count -= 1;
        self.bytes = self.bytes.saturating_sub(ended.bytes.len());
        count_down(&mut self.waiting_of, key);
        // At most as many as are over since: each is looked at once.
        while let Some(front) = self.waiting.front()
            && self.packets.get(front).is_none_or(|packet| packet.over)
        {
            self.waiting.pop_front();
        }
        if self.waiting.len() > 4 * MAX_WAITING {
            let packets = &self.packets;
            self.waiting.retain(|key| packets.get(key).is_some_and(|packet| !packet.over));
        }
        Some(ended)
    }
}

/// One packet less of its source.
pub(super) fn count_down(of: &mut HashMap<Source, usize, ahash::RandomState>, key: &Key) {
    if let Entry::Occupied(mut count) = of.entry(key.source()) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
