//! One direction of a connection: sequence space, held frames, and what injecting needs.
//!
//! Refuses to hold frames: they stay with the I/O layer.

use std::collections::VecDeque;

use super::{Assembler, Unacknowledged};
use crate::output::{HoldId, PortId};

/// Longest link header that is remembered: Ethernet with two VLAN tags.
const MAX_LINK_HEADER: usize = 22;

/// What a sender may be ahead of the window that the monitor knows of, in bytes.
const WINDOW_SLACK: u64 = 1 << 16;

/// The largest window (RFC 7323, section 2.3): where the scale is not known.
const MAX_WINDOW: u64 = 1 << 30;

/// How far behind the stream an acceptable segment may begin: retransmissions, keep-alives.
const MAX_BEHIND: i64 = 1 << 26;

/// A held packet.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) id: HoldId,
    /// The contiguous stream end when it arrived. It may go once no record that has not been inspected ends there
    /// or before.
    pub(crate) contiguous: u64,
    /// Frames that it came in: one, or its fragments.
    pub(crate) frames: usize,
    /// Their bytes.
    pub(crate) len: usize,
}

/// Where the first sequence number of a direction is known from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Origin {
    /// Not known.
    #[default]
    Unknown,
    /// Its own SYN.
    Syn,
    /// Its SYN-ACK.
    SynAck,
    /// What the other side acknowledged, or the first segment seen.
    Learned,
}

/// One direction.
#[derive(Default)]
pub(crate) struct TcpDirection {
    /// Sequence number of stream offset 0: behind the SYN.
    pub(crate) initial: Option<u32>,
    pub(crate) origin: Origin,
    pub(crate) assembler: Assembler,
    /// What was handed on in order and is not acknowledged; nothing where bytes are not looked at.
    pub(crate) sent: Unacknowledged,
    /// Stream offset up to which everything was forwarded: where the receiver stands, or will.
    pub(crate) released: u64,
    /// Payload of a SYN: whether it counts is not known before it is acknowledged.
    pub(crate) syn_data: Vec<u8>,
    /// Stream offset of the FIN.
    pub(crate) fin: Option<u64>,
    pub(crate) conflict_reported: bool,
    /// Kinds of anomalies that were reported, by bit.
    pub(crate) reported: u16,
    /// Acknowledgment number of the last segment sent in this direction.
    pub(crate) last_ack: Option<u32>,
    /// Window scale that this direction's sender announced for what it receives.
    pub(crate) window_scale: Option<u8>,
    /// Stream offset up to which the receiver has allowed sending; `None` when it is not known.
    pub(crate) window_end: Option<u64>,
    /// Stream offset up to which the receiver has acknowledged.
    acknowledged: u64,
    /// The largest window that the receiver has announced, in bytes.
    max_window: u64,
    held: VecDeque<Held>,
    held_frames: usize,
    held_bytes: usize,
    /// Since when the receiver has acknowledged bytes that were not seen, where that means that a
    /// copy of them was lost.
    gap_since_ns: Option<u64>,
    /// The stall whose deadline has been noted.
    pub(crate) stall_checked_ns: Option<u64>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    port: Option<PortId>,
    link_header: [u8; MAX_LINK_HEADER],
    link_header_len: u8,
}

impl TcpDirection {
    /// Starts the sequence space anew; where its frames come from stays known.
    pub(crate) fn begin(&mut self, initial: u32, origin: Origin, window_scale: Option<u8>) {
        self.initial = Some(initial);
        self.origin = origin;
        self.window_scale = window_scale;
        self.window_end = None;
        self.last_ack = None;
        self.syn_data = Vec::new();
        self.acknowledged = 0;
        self.max_window = 0;
    }

    /// Puts a packet behind those that are held.
    pub(crate) fn hold(&mut self, packet: Held) {
        self.held_frames += packet.frames;
        self.held_bytes += packet.len;
        self.held.push_back(packet);
    }

    /// The packet that has been held for the longest time.
    pub(crate) fn first_held(&self) -> Option<&Held> {
        self.held.front()
    }

    /// Takes that packet out.
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        let packet = self.held.pop_front()?;
        self.held_frames -= packet.frames;
        self.held_bytes -= packet.len;
        Some(packet)
    }

    /// Frames that are held.
    pub(crate) fn held_frames(&self) -> usize {
        self.held_frames
    }

    /// Forgets the sequence space.
    pub(crate) fn unlearn(&mut self) {
        self.initial = None;
        self.origin = Origin::Unknown;
        self.syn_data = Vec::new();
    }

    /// Remembers where the direction's frames come in and what they begin with.
    pub(crate) fn remember_path(&mut self, port: PortId, link_header: &[u8]) {
        if self.port.is_none() && link_header.len() <= MAX_LINK_HEADER {
            self.port = Some(port);
            self.link_header[..link_header.len()].copy_from_slice(link_header);
            // At most 22.
            self.link_header_len = link_header.len() as u8;
        }
    }

    /// Port and link header of this direction, once a frame of it was seen.
    pub(crate) fn path(&self) -> Option<(PortId, &[u8])> {
        Some((self.port?, &self.link_header[..usize::from(self.link_header_len)]))
    }

    /// Stream offset of a sequence number, relative to what is expected next; negative for
    /// numbers before the stream. `None` before the SYN is known.
    pub(crate) fn offset_of(&self, sequence: u32) -> Option<i64> {
        let next = self.sequence_of(self.assembler.next())?;
        // Sequence arithmetic modulo 2^32 (RFC 9293, section 3.4).
        let delta = sequence.wrapping_sub(next) as i32;
        Some(self.assembler.next() as i64 + i64::from(delta))
    }

    /// Sequence number of a stream offset.
    pub(crate) fn sequence_of(&self, offset: u64) -> Option<u32> {
        // Truncation is the modulus.
        Some(self.initial?.wrapping_add(offset as u32))
    }

    pub(crate) fn fin_sequence(&self) -> Option<u32> {
        self.sequence_of(self.fin?)
    }

    /// Everything up to the FIN has been seen.
    pub(crate) fn fin_reached(&self) -> bool {
        self.fin == Some(self.assembler.next())
    }

    /// The offset behind everything that was seen in order, a FIN included.
    pub(crate) fn seen(&self) -> i64 {
        self.assembler.next() as i64 + i64::from(self.fin_reached())
    }

    /// Stream offset up to which the receiver has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The first stream offset that no receiver takes yet.
    pub(crate) fn limit(&self) -> u64 {
        let window_end = self.window_end.unwrap_or(self.assembler.next() + MAX_WINDOW);
        window_end.max(self.assembler.next()) + WINDOW_SLACK
    }

    /// Whether a segment at this offset can be the sender's: a blind attacker cannot guess it.
    pub(crate) fn is_acceptable(&self, offset: i64) -> bool {
        let next = self.assembler.next() as i64;
        offset >= next - MAX_BEHIND && offset <= self.limit() as i64
    }

    /// Takes the receiver's acknowledgment and window into account; returns memory that is not
    /// needed any more.
    pub(crate) fn open_window(&mut self, acknowledgment: u32, window: u64) -> Option<Vec<u8>> {
        let offset = self.offset_of(acknowledgment)?;
        if !(0..=self.seen()).contains(&offset) {
            return None;
        }
        let offset = offset.unsigned_abs();
        self.acknowledged = self.acknowledged.max(offset);
        self.max_window = self.max_window.max(window);
        let end = offset + window;
        self.window_end = Some(self.window_end.map_or(end, |known| known.max(end)));
        // What was not forwarded cannot have arrived.
        self.sent.acknowledge(offset.min(self.released))
    }

    /// Whether an acknowledgment of this direction's bytes can be the receiver's: not of bytes that were not
    /// sent, and not older than its largest window (RFC 5961, section 5.2).
    pub(crate) fn is_acknowledgeable(&self, offset: i64) -> bool {
        let oldest = self.acknowledged.saturating_sub(self.max_window.saturating_add(WINDOW_SLACK));
        offset >= oldest as i64 && offset <= self.seen()
    }

    /// Whether the receiver acknowledges bytes that have not been seen in order.
    pub(crate) fn is_acknowledged_beyond(&self, acknowledgment: u32) -> bool {
        self.offset_of(acknowledgment).is_some_and(|offset| offset > self.seen())
    }

    /// Notes whether the receiver has acknowledged bytes that have not been seen; for how long, if it has.
    pub(crate) fn note_gap(&mut self, beyond: bool, now_ns: u64) -> Option<u64> {
        let since = self.gap_since_ns.filter(|_| beyond).unwrap_or(now_ns);
        self.gap_since_ns = beyond.then_some(since);
        beyond.then(|| now_ns.saturating_sub(since))
    }

    /// Goes on behind bytes that will not be seen any more, which the receiver has acknowledged.
    pub(crate) fn skip_to(&mut self, acknowledgment: u32) {
        let next = self.assembler.next();
        if let Some(offset) = self.offset_of(acknowledgment).and_then(|it| u64::try_from(it).ok())
            && let Some(missing) = offset.min(self.fin.unwrap_or(offset)).checked_sub(next)
            && let Ok(missing) = usize::try_from(missing)
        {
            self.assembler.clear();
            self.assembler.advance(missing);
            self.sent = Unacknowledged::default();
            self.released = self.assembler.next();
            self.window_end = None;
        }
        self.gap_since_ns = None;
    }

    /// Whether bytes are known to be missing: later ones were seen, or the FIN, or the receiver
    /// acknowledged them.
    pub(crate) fn has_gap(&self, acknowledged: Option<u32>) -> bool {
        self.assembler.highest() > self.assembler.next()
            || self.fin.is_some_and(|fin| fin > self.assembler.next())
            || acknowledged.is_some_and(|it| self.is_acknowledged_beyond(it))
    }

    /// Bytes that are kept for this direction, held frames included.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.assembler.buffered() + self.sent.capacity() + self.syn_data.len() + self.held_bytes
    }
}
