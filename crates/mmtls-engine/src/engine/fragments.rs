//! IP fragments that may carry TCP: put together, and judged as the packet that they are.
//!
//! Inline a fragment waits until its packet is complete; then all of them share its verdict. What
//! receivers read differently is not put together: fragments that overlap (RFC 5722; Linux drops them
//! for IPv4, too, others take the first copy, or the last), that contradict each other's length, or
//! that end in the middle of eight bytes. Those, what is over the cap or never complete, and all of them
//! where engines share interfaces, meet policy `fragments`.
//!
//! Receivers know fragments by addresses and identification alone. Of a packet that was put together,
//! some may have died behind the monitor, and fragments of a later packet with the same identification
//! would fill the holes: so an identification is remembered for longer than receivers do, and what comes
//! with it again meets the policy, too. Of copies, where nothing is prevented, it begins another packet.
//!
//! In IPv6 identifications of other protocols count too, since the header of a later fragment does not say what it carries.
//!
//! Refuses to keep more than its caps, and to let one source take everything: who waits for the most
//! makes room, and one source's identifications take an eighth.

use core::net::IpAddr;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::Engine;
use crate::config::Policy;
use crate::flow::Client;
use crate::output::{HoldId, Output, PortId, Verdict};
use crate::session::Handler;
use crate::wire::{Fragment, Parsed, Segment, vlan_of};

/// The longest IP packet (RFC 791, section 3.1).
const MAX_PACKET_LEN: usize = 65_535;

/// Packets that wait to be complete at a time.
const MAX_WAITING: usize = 512;

/// Bytes of their fragments.
const MAX_BYTES: usize = 8 << 20;

/// Pieces of a packet: of 1,280 bytes each, which every link of IPv6 takes (RFC 8200, section 5), and some
/// more.
const MAX_PIECES: usize = 64;

/// Identifications that are remembered, those of waiting packets among them.
const MAX_KNOWN: usize = 1 << 17;

/// How long a packet waits, which is Linux's own limit (`ipfrag_time`).
const WAIT_NS: u64 = 30_000_000_000;

/// How long its identification is remembered from its first fragment on: receivers keep the last one
/// for 60 seconds at most (RFC 8200, section 4.5).
const TIMEOUT_NS: u64 = WAIT_NS + 65_000_000_000;

/// What says that fragments belong together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    port: PortId,
    vlan: u32,
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Of IPv4 alone: in IPv6 only the first fragment's counts.
    protocol: u8,
}

/// Who sends fragments: somebody on the other side of the monitor is somebody else, whatever address they
/// write on them.
type Source = (PortId, Client);

impl Key {
    fn source(&self) -> Source {
        (self.port, Client::new(self.source))
    }
}

/// A packet that is incomplete.
#[derive(Default)]
struct Packet {
    /// Ranges in order, which do not overlap.
    pieces: Vec<(usize, usize)>,
    /// The whole of it so far, with holes.
    bytes: Vec<u8>,
    len: Option<usize>,
    /// The protocol that the first fragment names.
    next: Option<u8>,
    held: Vec<HoldId>,
    /// Bytes of these frames.
    held_len: usize,
    since_ns: u64,
    /// It is not put together any more: what comes meets the policy.
    over: bool,
}

pub(super) struct Fragments {
    packets: HashMap<Key, Packet, ahash::RandomState>,
    /// When each of them is forgotten, in order of time.
    order: VecDeque<(u64, Key)>,
    /// Those that wait, in order of time; some are over.
    waiting: VecDeque<Key>,
    /// How many wait, by source.
    waiting_of: HashMap<Source, usize, ahash::RandomState>,
    /// How many are known, by source.
    known_of: HashMap<Source, usize, ahash::RandomState>,
    count: usize,
    bytes: usize,
    /// Frames that wait together with another one, whose number is the key.
    together: HashMap<HoldId, Vec<HoldId>, ahash::RandomState>,
}

/// What a fragment leads to.
enum Added {
    /// It was seen before.
    Again,
    /// The packet is not complete.
    Waiting,
    Complete,
    /// It cannot be put together.
    Refused,
}

impl Packet {
    fn add(&mut self, fragment: &Fragment<'_>) -> Added {
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
    fn largest(&self) -> Option<Key> {
        let (source, _) = self.waiting_of.iter().max_by_key(|(_, count)| **count)?;
        let waits = |key: &&Key| {
            key.source() == *source && self.packets.get(key).is_some_and(|it| !it.over)
        };
        self.waiting.iter().find(waits).copied()
    }

    /// A packet waits no longer; its frames.
    fn end(&mut self, key: &Key) -> Option<Packet> {
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
fn count_down(of: &mut HashMap<Source, usize, ahash::RandomState>, key: &Key) {
    if let Entry::Occupied(mut count) = of.entry(key.source()) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl<H: Handler> Engine<H> {
    /// A fragment: it waits, or completes its packet, or meets the policy.
    pub(super) fn handle_fragment(
        &mut self,
        port: PortId,
        fragment: &Fragment<'_>,
        link_header: &[u8],
    ) -> Verdict {
        self.counters.fragments += 1;
        if self.config.share.is_some_and(|share| share.engines > 1) {
            // Only the first one has the ports that tell whose the connection is.
            return match fragment.may_carry_tcp() {
                true => self.refuse_fragment(),
                false => Verdict::Forward,
            };
        }
        let key = Key {
            port,
            vlan: vlan_of(link_header),
            source: fragment.source,
            destination: fragment.destination,
            identification: fragment.identification,
            protocol: if fragment.source.is_ipv4() { fragment.next } else { 0 },
        };
        let begins = match self.fragments.packets.get(&key) {
            None => true,
            Some(packet) => packet.over && !self.config.inline,
        };
        if begins && !self.begin_packet(key) {
            return self.refuse_fragment();
        }
        let end = fragment.offset + fragment.payload.len();
        while self.fragments.bytes + end > MAX_BYTES
            && let Some(largest) = self.fragments.largest()
        {
            self.forget_packet(&largest);
        }
        let fragments = &mut self.fragments;
        let Some(packet) = fragments.packets.get_mut(&key).filter(|packet| !packet.over) else {
            return self.refuse_fragment();
        };
        let before = packet.bytes.len();
        let added = packet.add(fragment);
        fragments.bytes += packet.bytes.len() - before;
        match added {
            Added::Again if self.config.inline => Verdict::Drop,
            Added::Again => Verdict::Forward,
            Added::Refused => {
                self.forget_packet(&key);
                self.refuse_fragment()
            }
            Added::Waiting => self.wait_for_more(&key),
            Added::Complete => {
                let Some(packet) = self.fragments.end(&key) else {
                    return self.refuse_fragment();
                };
                self.judge_packet(port, fragment, link_header, packet)
            }
        }
    }

    /// Makes room for one more packet; false when too many are known.
    fn begin_packet(&mut self, key: Key) -> bool {
        let is_known = self.fragments.packets.contains_key(&key);
        // Nobody may have more than is left for all others.
        let left = MAX_KNOWN.saturating_sub(self.fragments.packets.len());
        let of_source = self.fragments.known_of.get(&key.source()).copied().unwrap_or_default();
        if !is_known && of_source >= left {
            return false;
        }
        while self.fragments.count >= MAX_WAITING
            && let Some(largest) = self.fragments.largest()
        {
            self.forget_packet(&largest);
        }
        let fragments = &mut self.fragments;
        if !is_known {
            fragments.order.push_back((self.now_ns.saturating_add(TIMEOUT_NS), key));
            *fragments.known_of.entry(key.source()).or_default() += 1;
        }
        fragments.waiting.push_back(key);
        fragments.count += 1;
        *fragments.waiting_of.entry(key.source()).or_default() += 1;
        fragments.packets.insert(key, Packet { since_ns: self.now_ns, ..Packet::default() });
        true
    }

    fn wait_for_more(&mut self, key: &Key) -> Verdict {
        if !self.config.inline {
            return Verdict::Forward;
        }
        let id = self.next_hold();
        if let Some(packet) = self.fragments.packets.get_mut(key) {
            packet.held.push(id);
            packet.held_len += self.frame_len;
        }
        Verdict::Hold(id)
    }

    /// All fragments are there: the last one's verdict is that of all.
    fn judge_packet(
        &mut self,
        port: PortId,
        fragment: &Fragment<'_>,
        link_header: &[u8],
        packet: Packet,
    ) -> Verdict {
        let Packet { bytes, next, held, held_len, pieces, .. } = packet;
        self.frame_count += held.len();
        self.frame_len += held_len;
        // Memory of this frame alone is not where the segment is.
        self.frame_memory = None;
        let next = next.unwrap_or(fragment.next);
        self.counters.fragments_joined += pieces.len() as u64;
        let verdict = match Segment::reassembled(link_header, fragment, next, &bytes) {
            // No card checks the checksum of a packet that comes in pieces.
            Parsed::Tcp(segment) => self.handle_parsed(port, &segment, false),
            Parsed::Encapsulated => self.handle_encapsulated(),
            Parsed::Other => Verdict::Forward,
            _ if self.config.inline => Verdict::Drop,
            _ => Verdict::Forward,
        };
        match verdict {
            Verdict::Forward => self.end_fragments(&held, Policy::Forward),
            Verdict::Drop => self.end_fragments(&held, Policy::Drop),
            Verdict::Hold(_) if held.is_empty() => {}
            Verdict::Hold(id) => {
                self.fragments.together.insert(id, held);
            }
        }
        verdict
    }

    /// The policy's answer to a fragment that is not put together.
    fn refuse_fragment(&self) -> Verdict {
        match self.config.policies.fragments {
            Policy::Forward | Policy::Bypass => Verdict::Forward,
            Policy::Drop | Policy::Reset => Verdict::Drop,
        }
    }

    fn end_fragments(&mut self, held: &[HoldId], policy: Policy) {
        for &id in held {
            match policy {
                Policy::Forward | Policy::Bypass => {
                    self.counters.released += 1;
                    self.outputs.push_back(Output::Release(id));
                }
                Policy::Drop | Policy::Reset => {
                    self.counters.dropped += 1;
                    self.outputs.push_back(Output::Discard(id));
                }
            }
        }
    }

    fn forget_packet(&mut self, key: &Key) {
        if let Some(packet) = self.fragments.end(key) {
            self.end_fragments(&packet.held, self.config.policies.fragments);
        }
    }

    /// Ends what has not become complete in time; with `None` everything.
    pub(super) fn expire_fragments(&mut self, now_ns: Option<u64>) {
        while let Some(&key) = self.fragments.waiting.front()
            && let Some(packet) = self.fragments.packets.get(&key)
            && now_ns.is_none_or(|now| packet.since_ns.saturating_add(WAIT_NS) <= now)
        {
            self.forget_packet(&key);
        }
        while let Some(&(deadline, key)) = self.fragments.order.front()
            && now_ns.is_none_or(|now| deadline <= now)
        {
            self.fragments.order.pop_front();
            let again = self.fragments.packets.get(&key).map(|it| it.since_ns + TIMEOUT_NS);
            if let Some(again) = again.filter(|it| now_ns.is_some_and(|now| *it > now)) {
                // Another one has begun with it.
                self.fragments.order.push_back((again, key));
                continue;
            }
            self.forget_packet(&key);
            self.fragments.packets.remove(&key);
            count_down(&mut self.fragments.known_of, &key);
        }
    }
}
