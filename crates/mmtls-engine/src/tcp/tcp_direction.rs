//! One direction of a connection: sequence space, held frames, and what injecting needs.
//!
//! Refuses to hold frames: they stay with the I/O layer.

use core::num::NonZeroU64;
use std::collections::VecDeque;

use super::Assembler;
use super::passed::Passed;
use super::unacknowledged::Unacknowledged;
use crate::output::{HoldId, RecordsElsewhere};
use crate::port::PortId;

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

/// A stream offset that may not be known, in the memory of one: one more than it.
#[derive(Clone, Copy, Default)]
struct MaybeOffset(Option<NonZeroU64>);

impl MaybeOffset {
    /// Streams are shorter than 2^64 - 1 bytes.
    fn new(offset: Option<u64>) -> Self {
        Self(offset.and_then(|it| NonZeroU64::MIN.checked_add(it)))
    }

    fn get(self) -> Option<u64> {
        self.0.map(|it| it.get() - 1)
    }
}

/// What is made when it is first needed: of an unanswered SYN, which costs its sender 54 bytes, as little is to be
/// kept as can be.
#[derive(Default)]
struct Rare {
    /// Payload of a SYN: whether it counts is not known before it is acknowledged.
    syn_data: Vec<u8>,
    held: VecDeque<Held>,
    held_frames: usize,
    held_bytes: usize,
    /// Since when the receiver has acknowledged bytes that were not seen, where that means that a
    /// copy of them was lost.
    gap_since_ns: Option<u64>,
    /// The stall whose deadline has been noted.
    stall_checked_ns: Option<u64>,
    /// Records that passed unread, and that the receiver may not have yet.
    passed: Option<Passed>,
}

/// One direction.
#[derive(Default)]
pub(crate) struct TcpDirection {
    /// Sequence number of stream offset 0: behind the SYN.
    pub(crate) initial: Option<u32>,
    pub(crate) origin: Origin,
    pub(crate) assembler: Assembler,
    /// What was handed on in order and is not acknowledged; nothing before there was any, and where bytes
    /// are not looked at.
    pub(crate) sent: Option<Box<Unacknowledged>>,
    /// Stream offset up to which everything was forwarded: where the receiver stands, or will.
    pub(crate) released: u64,
    fin: MaybeOffset,
    pub(crate) conflict_reported: bool,
    /// Kinds of anomalies that were reported, by bit.
    pub(crate) reported: u16,
    /// Acknowledgment number of the last segment sent in this direction.
    pub(crate) last_ack: Option<u32>,
    /// Window scale that this direction's sender announced for what it receives.
    pub(crate) window_scale: Option<u8>,
    window_end: MaybeOffset,
    /// Stream offset up to which the receiver has acknowledged.
    acknowledged: u64,
    /// The largest window that the receiver has announced, in bytes: with the largest scale 2³⁰.
    max_window: u32,
    /// The connection's handshake took a long round trip. In both directions, which have room for it.
    pub(crate) is_far: bool,
    /// So many seconds after its first packet the connection opened, rounded up. In both directions, as this.
    pub(crate) opened_after_s: u32,
    rare: Option<Box<Rare>>,
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
        self.set_window_end(None);
        self.last_ack = None;
        self.take_syn_data();
        self.acknowledged = 0;
        self.max_window = 0;
    }

    /// Counts stream offsets from further in front: bytes before the first one that was seen may be sent again. Nothing is
    /// held, kept or in order yet.
    pub(crate) fn make_room_before(&mut self) {
        let room = MAX_BEHIND.unsigned_abs();
        // Truncation is the modulus.
        self.initial = self.initial.map(|initial| initial.wrapping_sub(room as u32));
        self.assembler.advance(room as usize);
        self.released += room;
        self.acknowledged += room;
        let moved = |offset: Option<u64>| offset.map(|it| it + room);
        self.set_window_end(moved(self.window_end.get()));
        self.set_fin(moved(self.fin()));
    }

    /// Payload of a SYN: whether it counts is not known before it is acknowledged.
    pub(crate) fn syn_data(&self) -> &[u8] {
        self.rare.as_ref().map_or(&[], |rare| &rare.syn_data)
    }

    /// Keeps it. There is none of an earlier one: [`Self::begin`] comes first.
    pub(crate) fn keep_syn_data(&mut self, data: &[u8]) {
        if !data.is_empty() {
            self.rare.get_or_insert_default().syn_data = data.to_vec();
        }
    }

    pub(crate) fn take_syn_data(&mut self) -> Vec<u8> {
        self.rare.as_mut().map_or_else(Vec::new, |rare| core::mem::take(&mut rare.syn_data))
    }

    /// Puts a packet behind those that are held.
    pub(crate) fn hold(&mut self, packet: Held) {
        let rare = self.rare.get_or_insert_default();
        rare.held_frames += packet.frames;
        rare.held_bytes += packet.len;
        rare.held.push_back(packet);
    }

    /// The packet that has been held for the longest time.
    pub(crate) fn first_held(&self) -> Option<&Held> {
        self.rare.as_ref()?.held.front()
    }

    /// Takes that packet out.
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        let rare = self.rare.as_mut()?;
        let packet = rare.held.pop_front()?;
        rare.held_frames -= packet.frames;
        rare.held_bytes -= packet.len;
        let is_idle = rare.syn_data.is_empty() && rare.passed.is_none();
        if rare.held.is_empty() && is_idle && rare.gap_since_ns.is_none() {
            // Most sessions wait once. To note the deadline of a stall twice does no harm.
            self.rare = None;
        }
        Some(packet)
    }

    /// Frames that are held.
    pub(crate) fn held_frames(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.held_frames)
    }

    /// Notes that records have waited for keys since then; whether that is news.
    pub(crate) fn note_stall(&mut self, since_ns: u64) -> bool {
        let rare = self.rare.get_or_insert_default();
        rare.stall_checked_ns.replace(since_ns) != Some(since_ns)
    }

    /// Forgets the sequence space.
    pub(crate) fn unlearn(&mut self) {
        self.initial = None;
        self.origin = Origin::Unknown;
        self.take_syn_data();
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

    /// Stream offset of the FIN.
    pub(crate) fn fin(&self) -> Option<u64> {
        self.fin.get()
    }

    pub(crate) fn set_fin(&mut self, offset: Option<u64>) {
        self.fin = MaybeOffset::new(offset);
    }

    /// Sets the stream offset up to which the receiver has allowed sending; `None` when it is not known.
    pub(crate) fn set_window_end(&mut self, offset: Option<u64>) {
        self.window_end = MaybeOffset::new(offset);
    }

    pub(crate) fn fin_sequence(&self) -> Option<u32> {
        self.sequence_of(self.fin()?)
    }

    /// Everything up to the FIN has been seen.
    pub(crate) fn fin_reached(&self) -> bool {
        self.fin() == Some(self.assembler.next())
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
        let window_end = self.window_end.get().unwrap_or(self.assembler.next() + MAX_WINDOW);
        window_end.max(self.assembler.next()) + WINDOW_SLACK
    }

    /// Whether a segment at this offset can be the sender's: a blind attacker cannot guess it.
    pub(crate) fn is_acceptable(&self, offset: i64) -> bool {
        let next = self.assembler.next() as i64;
        offset >= next - MAX_BEHIND && offset <= self.limit() as i64
    }

    /// Bytes that were handed on in order and are kept.
    pub(crate) fn sent_len(&self) -> usize {
        self.sent.as_ref().map_or(0, |sent| sent.len())
    }

    /// From where on every byte of the stream is kept, or belongs to records whose headers are: what passed while nothing was
    /// kept is behind what was kept before.
    pub(crate) fn kept_from(&self) -> u64 {
        let next = self.assembler.next();
        let kept = self.sent.as_ref().filter(|sent| sent.end() == next);
        let kept = kept.map_or(next, |sent| sent.start());
        let passed = self.passed().filter(|passed| (passed.start()..=passed.end()).contains(&kept));
        passed.map_or(kept, Passed::start)
    }

    /// Records that passed unread, and that the receiver may not have yet.
    pub(crate) fn passed(&self) -> Option<&Passed> {
        self.rare.as_ref()?.passed.as_ref()
    }

    /// Where those are added that begin, or go on, at the end of what has been seen; `None` while others are kept from
    /// further in front.
    pub(crate) fn passing(&mut self) -> Option<&mut Passed> {
        let next = self.assembler.next();
        let passed = &mut self.rare.get_or_insert_default().passed;
        let passed = passed.get_or_insert_with(|| Passed::new(next));
        if passed.is_empty() {
            *passed = Passed::new(next);
        }
        (passed.end() == next).then_some(passed)
    }

    /// The connection is idle: what keeps no bytes is given back.
    pub(crate) fn rest(&mut self) {
        self.sent.take_if(|sent| sent.len() == 0);
    }

    /// Lets go of what was kept of bytes on their way.
    pub(crate) fn forget_sent(&mut self) {
        self.sent = None;
        if let Some(rare) = &mut self.rare {
            rare.passed = None;
        }
    }

    /// Memory that these take, in bytes.
    pub(crate) fn sent_capacity(&self) -> usize {
        self.sent.as_ref().map_or(0, |sent| sent.capacity())
    }

    /// How many of them at the end are not there, but where their record is put together.
    pub(crate) fn partial_len(&self) -> usize {
        self.sent.as_ref().map_or(0, |sent| sent.partial_len())
    }

    /// The window that a segment of this direction announces, in bytes.
    pub(crate) fn announced(&self, window: u16) -> u64 {
        let scale = self.window_scale.unwrap_or(match self.origin {
            // Not known: it may have been anything.
            Origin::Learned => 14,
            _ => 0,
        });
        u64::from(window) << scale
    }

    /// Memory of what is under way and not acknowledged, in bytes.
    pub(crate) fn flight_capacity(&self) -> usize {
        self.sent_capacity() + self.passed().map_or(0, Passed::capacity)
    }

    /// Takes the receiver's acknowledgment and window into account; returns memory that is not
    /// needed any more.
    pub(crate) fn open_window(&mut self, acknowledgment: u32, window: u64) -> Option<Vec<u8>> {
        let offset = self.offset_of(acknowledgment)?;
        if !(0..=self.seen()).contains(&offset) {
            return None;
        }
        let offset = offset.unsigned_abs();
        self.max_window = self.max_window.max(u32::try_from(window).unwrap_or(u32::MAX));
        let end = offset + window;
        self.set_window_end(Some(self.window_end.get().map_or(end, |known| known.max(end))));
        self.note_arrived(offset)
    }

    /// The receiver has acknowledged bytes up to a stream offset; returns memory that is not needed any more.
    fn note_arrived(&mut self, offset: u64) -> Option<Vec<u8>> {
        self.acknowledged = self.acknowledged.max(offset);
        // What was not forwarded cannot have arrived.
        let arrived = offset.min(self.released);
        if let Some(passed) = self.rare.as_mut().and_then(|rare| rare.passed.as_mut()) {
            passed.acknowledge(arrived);
        }
        self.sent.as_mut()?.acknowledge(arrived)
    }

    /// Records of it have passed elsewhere, while its receiver acknowledged up to this number; what that has allowed since is
    /// not known.
    pub(crate) fn pass_elsewhere(
        &mut self,
        position: u64,
        records: &RecordsElsewhere,
        acknowledgment: Option<u32>,
    ) {
        if position > self.assembler.next() {
            let RecordsElsewhere { count, next, fragment_lens, .. } = records;
            if let Some(passed) = self.passing() {
                passed.extend(position, *count, fragment_lens, *next);
            }
            self.stand_at(position);
        }
        let offset = acknowledgment.and_then(|it| self.offset_of(it));
        if let Some(offset) = offset.filter(|it| (0..=self.seen()).contains(it)) {
            // Nothing was kept of what went this way.
            let _ = self.note_arrived(offset.unsigned_abs());
        }
    }

    /// See [`Engine::coalescing_limit`](crate::Engine::coalescing_limit). Half of the receiver's largest window is
    /// what a sender's TCP makes of it at most, too. Where round trips are long, it has to have grown first.
    pub(crate) fn coalescing_limit(&self) -> Option<u32> {
        let window = Some(self.max_window).filter(|bytes| *bytes > 0)?;
        Some(if self.is_far { window / 16 } else { window / 2 })
    }

    /// Whether an acknowledgment of this direction's bytes can be the receiver's: not of bytes that were not
    /// sent, and not older than its largest window (RFC 5961, section 5.2).
    pub(crate) fn is_acknowledgeable(&self, offset: i64) -> bool {
        let oldest = self.acknowledged.saturating_sub(u64::from(self.max_window) + WINDOW_SLACK);
        offset >= oldest as i64 && offset <= self.seen()
    }

    /// Whether the receiver acknowledges bytes that have not been seen in order.
    pub(crate) fn is_acknowledged_beyond(&self, acknowledgment: u32) -> bool {
        self.offset_of(acknowledgment).is_some_and(|offset| offset > self.seen())
    }

    /// Notes whether the receiver has acknowledged bytes that have not been seen; for how long, if it has.
    pub(crate) fn note_gap(&mut self, beyond: bool, now_ns: u64) -> Option<u64> {
        if !beyond {
            self.forget_gap();
            return None;
        }
        let since = self.rare.get_or_insert_default().gap_since_ns.get_or_insert(now_ns);
        Some(now_ns.saturating_sub(*since))
    }

    fn forget_gap(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.gap_since_ns = None;
        }
    }

    /// Goes on behind bytes that will not be seen any more, which the receiver has acknowledged.
    pub(crate) fn skip_to(&mut self, acknowledgment: u32) {
        let next = self.assembler.next();
        if let Some(offset) = self.offset_of(acknowledgment).and_then(|it| u64::try_from(it).ok())
            && let Some(missing) = offset.min(self.fin().unwrap_or(offset)).checked_sub(next)
            && let Ok(missing) = usize::try_from(missing)
        {
            self.assembler.clear();
            self.assembler.advance(missing);
            self.forget_sent();
            self.released = self.assembler.next();
            self.set_window_end(None);
        }
        self.forget_gap();
    }

    /// A data segment of a flow that is not followed: keeps up with the stream, so that FIN, RST and the flow's end are still
    /// understood.
    pub(crate) fn keep_up(&mut self, sequence: u32, len: usize, fin: bool) {
        let Some(offset) = self.offset_of(sequence) else {
            return;
        };
        let Ok(end) = u64::try_from(offset + len as i64) else {
            return;
        };
        let next = self.assembler.next();
        if !self.is_acceptable(offset) || end < next {
            return;
        }
        self.assembler.advance((end - next) as usize);
        self.released = end;
        if fin {
            self.set_fin(Some(end));
        }
    }

    /// Goes on at a stream offset, up to which somebody else has forwarded everything: what the receiver has acknowledged and
    /// allowed since is not known.
    pub(crate) fn stand_at(&mut self, position: u64) {
        if let Some(missing) = position.checked_sub(self.assembler.next())
            && let Ok(missing) = usize::try_from(missing)
            && missing > 0
        {
            self.assembler.advance(missing);
            self.released = position;
            self.set_window_end(None);
        }
    }

    /// Whether bytes are known to be missing: later ones were seen, or the FIN, or the receiver
    /// acknowledged them.
    pub(crate) fn has_gap(&self, acknowledged: Option<u32>) -> bool {
        self.assembler.highest() > self.assembler.next()
            || self.fin().is_some_and(|fin| fin > self.assembler.next())
            || acknowledged.is_some_and(|it| self.is_acknowledged_beyond(it))
    }

    /// Bytes that are kept for this direction, held frames included.
    pub(crate) fn kept_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| rare.syn_data.len() + rare.held_bytes);
        self.assembler.buffered() + self.flight_capacity() + rare
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_count_what_was_kept_before_others_as_kept() {
        let mut half = TcpDirection::default();
        assert_eq!(half.kept_from(), 0);
        half.sent.get_or_insert_default().push(0, &[7; 10]);
        half.assembler.advance(10);
        assert_eq!(half.kept_from(), 0);
        // These passed while nothing was kept.
        half.assembler.advance(5);
        assert_eq!(half.kept_from(), 15);
        half.sent.get_or_insert_default().push(15, &[7; 2]);
        half.assembler.advance(2);
        assert_eq!(half.kept_from(), 15);
    }
}
