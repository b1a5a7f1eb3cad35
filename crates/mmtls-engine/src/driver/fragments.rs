//! IP fragments that may carry TCP: put together, and handled as the packet that they are.
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
//! makes room, and one source's identifications take as much as is left for all others.

use super::Engine;
use super::fragment_store::{
    Added, Key, MAX_BYTES, MAX_KNOWN, MAX_WAITING, Packet, TIMEOUT_NS, WAIT_NS, count_down,
};
use crate::config::Policy;
use crate::output::{HoldId, Output, Verdict};
use crate::port::PortId;
use crate::session::Handler;
use crate::wire::{Fragment, Parsed, Segment, vlan_of};

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
                self.handle_packet(port, fragment, link_header, packet)
            }
        }
    }

    /// Makes room for one more packet; false when too many are known.
    fn begin_packet(&mut self, key: Key) -> bool {
        let is_known = self.fragments.packets.contains_key(&key);
        // No source may have more than is left for all others.
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
    fn handle_packet(
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
            Verdict::Again => {}
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
