//! The buffers that frames are received into, and putting VLAN tags back.
//!
//! The kernel takes the outer VLAN tag out of every frame before packet sockets see it and reports it beside the frame
//! (PACKET_AUXDATA). Each slot has headroom, so that putting it back moves 22 bytes and never the payload.

use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::buffers::Buffers;
use super::system::{ReceiveVector, Region};
use crate::VnetHeader;

/// Bytes of the largest frame that is received whole: 64 KiB of IP packet (GSO without BIG TCP), Ethernet header, VLAN
/// tags, with room to spare.
pub const MAX_FRAME_BYTES: usize = SLOT_BYTES - FRAME_OFFSET;

/// Not a power of two, so that the starts of the slots do not compete for the same cache sets.
const SLOT_BYTES: usize = 66 * 1024;
/// The offload header and, if need be, a VLAN tag go in front of the frame.
const FRAME_OFFSET: usize = 64;
const VNET_OFFSET: usize = FRAME_OFFSET - VnetHeader::LEN;
const CONTROL_BYTES: usize = 64;

const ETHERNET_HEADER: usize = 14;
const MAC_ADDRESSES: usize = 12;
const VLAN_TAG: usize = 4;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// Buffers for one batch.
pub(super) struct ReceiveSlots {
    // Declared before the memory: the headers point into it.
    messages: ReceiveVector,
    buffers: Buffers,
    control: Region,
    /// Slots that were received into since they were last made ready.
    used: usize,
}

/// A received frame in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    index: usize,
    /// Where the offload header starts in the slot; the frame follows it.
    start: usize,
    /// Bytes of the frame.
    pub(super) length: usize,
    pub(super) vnet: VnetHeader,
    pub(super) tag_restored: bool,
}

/// Why a slot holds no frame that can be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Truncated,
    Runt,
}

impl ReceiveSlots {
    pub(super) fn new(batch: usize) -> io::Result<Self> {
        let mut slots = Self {
            messages: ReceiveVector::new(batch),
            buffers: Buffers::new(batch, SLOT_BYTES),
            control: Region::new(batch * CONTROL_BYTES)?,
            used: batch,
        };
        slots.make_ready();
        Ok(slots)
    }

    /// Readies the slots that have been used: memory that somebody keeps is replaced, and the length of the control
    /// data, which the kernel overwrites, is set back.
    fn make_ready(&mut self) {
        for index in 0..std::mem::take(&mut self.used) {
            let buffer = &mut self.buffers.writable(index)[VNET_OFFSET..];
            // SAFETY: the buffers live as long as the headers; this one is ours alone, and is not referred to before
            // something was received into it.
            unsafe { self.messages.set_buffer(index, buffer.as_mut_ptr().cast(), buffer.len()) };
            let control = self.control.address(index * CONTROL_BYTES, CONTROL_BYTES);
            // SAFETY: the region lives as long as the headers, and is referred to only between calls.
            unsafe { self.messages.set_control(index, control, CONTROL_BYTES) };
        }
    }

    /// Fills the first slots and returns how many. Each of them may be taken with [`Self::take`] before the next call.
    pub(super) fn receive(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        self.make_ready();
        self.buffers.trim();
        self.used = self.messages.receive(socket, self.messages.capacity())?;
        Ok(self.used)
    }

    /// Looks at what was received into a slot, and puts its VLAN tag back. Once for each slot and batch.
    pub(super) fn take(&mut self, index: usize) -> Result<Received, Unusable> {
        let (length, control_length, truncated) = self.messages.received(index);
        let control_length = control_length.min(CONTROL_BYTES);
        let tag = stripped_tag(self.control.bytes(index * CONTROL_BYTES, control_length));
        if truncated {
            return Err(Unusable::Truncated);
        }
        let start = VNET_OFFSET;
        let Some(length) =
            length.checked_sub(VnetHeader::LEN).filter(|length| *length >= ETHERNET_HEADER)
        else {
            return Err(Unusable::Runt);
        };
        let mut header = [0; VnetHeader::LEN];
        header.copy_from_slice(&self.buffers.get(index)[start..start + VnetHeader::LEN]);
        let vnet = VnetHeader::from_bytes(header);
        let Some(tag) = tag else {
            return Ok(Received { index, start, length, vnet, tag_restored: false });
        };
        let start = start - VLAN_TAG;
        let vnet = vnet.shifted(VLAN_TAG as u16);
        let front = start..start + VnetHeader::LEN + MAC_ADDRESSES + VLAN_TAG;
        restore_tag(&mut self.buffers.writable(index)[front], vnet, tag);
        Ok(Received { index, start, length: length + VLAN_TAG, vnet, tag_restored: true })
    }

    /// The frame's bytes, and the memory that they are in.
    pub(super) fn bytes(&self, received: Received) -> (&[u8], &Arc<[u8]>) {
        let memory = self.buffers.get(received.index);
        let start = received.start + VnetHeader::LEN;
        (&memory[start..start + received.length], memory)
    }

    /// Offload header and frame, for sending. As they are until the next [`Self::receive`].
    pub(super) fn packet(&self, received: Received) -> &[u8] {
        let length = VnetHeader::LEN + received.length;
        &self.buffers.get(received.index)[received.start..received.start + length]
    }
}

/// Moves the addresses forward over the headroom that starts `front`, and writes the changed offload header before and
/// the tag behind them.
fn restore_tag(front: &mut [u8], vnet: VnetHeader, tag: [u8; VLAN_TAG]) {
    let addresses = VnetHeader::LEN + VLAN_TAG;
    front.copy_within(addresses..addresses + MAC_ADDRESSES, VnetHeader::LEN);
    front[..VnetHeader::LEN].copy_from_slice(&vnet.to_bytes());
    front[VnetHeader::LEN + MAC_ADDRESSES..].copy_from_slice(&tag);
}

/// The VLAN tag in `struct tpacket_auxdata`, as it was on the wire. The control data is one `cmsghdr` and that struct.
fn stripped_tag(control: &[u8]) -> Option<[u8; VLAN_TAG]> {
    const STATUS: usize = size_of::<libc::cmsghdr>();
    const TCI: usize = STATUS + 16;
    const TPID: usize = STATUS + 18;
    const LEVEL: usize = size_of::<libc::cmsghdr>() - 8;
    const KIND: usize = LEVEL + 4;
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?))
    };
    let half = |at: usize| -> Option<u16> {
        Some(u16::from_ne_bytes(control.get(at..at + 2)?.try_into().ok()?))
    };
    if word(LEVEL)? != libc::SOL_PACKET as u32 || word(KIND)? != libc::PACKET_AUXDATA as u32 {
        return None;
    }
    let status = word(STATUS)?;
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let tpid = if known { half(TPID)? } else { ETHERTYPE_VLAN };
    let [t0, t1] = tpid.to_be_bytes();
    let [c0, c1] = half(TCI)?.to_be_bytes();
    Some([t0, t1, c0, c1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auxdata(status: u32, tci: u16, tpid: u16) -> Vec<u8> {
        let mut control = vec![0; size_of::<libc::cmsghdr>()];
        let length = control.len() + 20;
        control[..8].copy_from_slice(&(length as u64).to_ne_bytes());
        control[8..12].copy_from_slice(&libc::SOL_PACKET.to_ne_bytes());
        control[12..16].copy_from_slice(&libc::PACKET_AUXDATA.to_ne_bytes());
        control.extend(status.to_ne_bytes());
        control.extend([0; 12]);
        control.extend(tci.to_ne_bytes());
        control.extend(tpid.to_ne_bytes());
        control
    }

    #[test]
    fn accepts_tag_in_auxdata() {
        let both = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(stripped_tag(&auxdata(both, 0x2064, 0x88a8)), Some([0x88, 0xa8, 0x20, 0x64]));
        let valid = libc::TP_STATUS_VLAN_VALID;
        assert_eq!(stripped_tag(&auxdata(valid, 7, 0)), Some([0x81, 0, 0, 7]));
        assert_eq!(stripped_tag(&auxdata(1, 7, 0x8100)), None);
    }

    #[test]
    fn refuses_short_or_other_control_data() {
        let whole = auxdata(libc::TP_STATUS_VLAN_VALID, 7, 0);
        for length in 0..whole.len() - 4 {
            assert_eq!(stripped_tag(&whole[..length]), None, "{length}");
        }
        let mut other = whole;
        other[12] = 99;
        assert_eq!(stripped_tag(&other), None);
    }

    #[test]
    fn accepts_tag_put_back() {
        let vnet = VnetHeader { flags: 1, checksum_start: 38, ..Default::default() };
        let mut front = [0xee; VnetHeader::LEN + VLAN_TAG + MAC_ADDRESSES];
        for (byte, at) in front[VnetHeader::LEN + VLAN_TAG..].iter_mut().zip(1..) {
            *byte = at;
        }
        restore_tag(&mut front, vnet, [0x81, 0, 0, 5]);
        assert_eq!(front[..10], vnet.to_bytes());
        assert_eq!(front[10..], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0, 5]);
    }
}
