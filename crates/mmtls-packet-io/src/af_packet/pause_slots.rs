//! Slots of connections whose records are not read: memory in which the kernel's programs keep how far they are, mapped here.
//!
//! A slot that was closed under its lock changes no more, so what is read then is where the kernel has stopped. The programs hold
//! that lock for as long as they look at one frame, and let user space have a frame for which they do not get it.
//!
//! Refuses to wait for anybody but such a program.

use std::collections::VecDeque;
use std::hint;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::OffloadSide;
use crate::{Forwarded, ForwardedRecords, Records};

/// As `SLOTS` of the programs.
const SLOTS: usize = 4096;
/// As `LENGTHS` of the programs.
const LENGTHS: usize = 2048;
/// The oldest lengths, which a frame that was not taken in the end may have overwritten: as `MAX_HEADERS`.
const UNCERTAIN: u64 = 64;

/// Behind it there is an acknowledgment number.
const ACKNOWLEDGED: u64 = 1 << 32;

/// As `struct slot` of the programs.
#[repr(C)]
struct Slot {
    lock: AtomicU32,
    generation: AtomicU32,
    position: AtomicU64,
    next: AtomicU64,
    content: AtomicU64,
    frames: AtomicU64,
    payload_bytes: AtomicU64,
    records: AtomicU64,
    other_frames: AtomicU64,
    acknowledgment: AtomicU64,
    tail: AtomicU64,
    tail_record: AtomicU64,
    initial: AtomicU32,
    overhead: AtomicU32,
    peer_initial: AtomicU32,
    _unused: AtomicU32,
    lengths: [AtomicU16; LENGTHS],
}

impl Slot {
    fn lock(&self) {
        while self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            hint::spin_loop();
        }
    }

    fn unlock(&self) {
        self.lock.store(0, Ordering::Release);
    }
}

/// A slot that was given to a connection, until it is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotId {
    pub(super) number: u32,
    pub(super) generation: u32,
}

/// The slots, and which of them are free.
pub(super) struct Slots {
    base: NonNull<Slot>,
    free: Mutex<Free>,
}

struct Free {
    /// Used longest ago first.
    numbers: VecDeque<u32>,
    generation: u32,
}

// SAFETY: what is mapped consists of atomics, and belongs to this value as long as it lives.
unsafe impl Send for Slots {}
// SAFETY: as above; everything else is behind a lock.
unsafe impl Sync for Slots {}

impl Slots {
    /// Maps the programs' map of slots.
    pub(super) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (length, fd) = (SLOTS * size_of::<Slot>(), map.as_raw_fd());
        // SAFETY: a new mapping replaces nothing.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let free = Free { numbers: (0..SLOTS as u32).collect(), generation: 0 };
        Ok(Self { base, free: Mutex::new(free) })
    }

    fn get(&self, number: u32) -> &Slot {
        let number = number as usize % SLOTS;
        // SAFETY: the mapping has so many slots.
        let slot = unsafe { self.base.add(number) };
        // SAFETY: it lives as long as `self`, is aligned as the kernel's pages and its own size are, and every bit pattern is one
        // of atomics.
        unsafe { slot.as_ref() }
    }

    /// A slot that nobody uses, closed; `None` where there is none.
    pub(super) fn take(&self) -> Option<SlotId> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let number = free.numbers.pop_front()?;
        // Never 0, which is that of a closed one.
        free.generation = free.generation.checked_add(1).unwrap_or(1);
        Some(SlotId { number, generation: free.generation })
    }

    /// Nobody uses a closed slot any more.
    pub(super) fn give(&self, id: SlotId) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).numbers.push_back(id.number);
    }

    /// Frames that have gone by an open one.
    pub(super) fn frames(&self, id: SlotId) -> u64 {
        let slot = self.get(id.number);
        slot.frames.load(Ordering::Relaxed) + slot.other_frames.load(Ordering::Relaxed)
    }

    /// Opens a closed slot for a connection one side of which has these records.
    pub(super) fn open(&self, id: SlotId, side: &OffloadSide, records: &Records) {
        let slot = self.get(id.number);
        let counts = [
            (&slot.position, side.position),
            (&slot.next, records.next),
            (&slot.content, records.content),
            (&slot.frames, 0),
            (&slot.payload_bytes, 0),
            (&slot.records, 0),
            (&slot.other_frames, 0),
            (&slot.acknowledgment, 0),
            (&slot.tail, records.next),
            (&slot.tail_record, 0),
        ];
        // A program that has found it open the last time sees all of it, or nothing.
        slot.lock();
        for (place, value) in counts {
            place.store(value, Ordering::Relaxed);
        }
        slot.initial.store(side.initial, Ordering::Relaxed);
        slot.peer_initial.store(side.peer_initial, Ordering::Relaxed);
        slot.overhead.store(records.overhead.into(), Ordering::Relaxed);
        slot.generation.store(id.generation, Ordering::Release);
        slot.unlock();
    }

    /// Closes a slot; says what has come of the direction with the records, which it was opened with, and of the other one.
    pub(super) fn close(&self, id: SlotId, records: &Records) -> [Forwarded; 2] {
        let slot = self.get(id.number);
        slot.lock();
        slot.generation.store(0, Ordering::Relaxed);
        slot.unlock();
        let read = |place: &AtomicU64| place.load(Ordering::Relaxed);
        let count = read(&slot.records);
        let known = count.min(LENGTHS as u64 - UNCERTAIN);
        let length = |number: u64| slot.lengths[number as usize % LENGTHS].load(Ordering::Relaxed);
        let passed = ForwardedRecords {
            count,
            content: records.content.saturating_sub(read(&slot.content)),
            next: read(&slot.next),
            fragment_lens: (count - known..count).map(length).collect(),
        };
        let acknowledgment = read(&slot.acknowledgment);
        let of = Forwarded {
            frames: read(&slot.frames),
            payload_bytes: read(&slot.payload_bytes),
            position: read(&slot.position),
            acknowledgment: None,
            records: passed,
        };
        let other = Forwarded {
            frames: read(&slot.other_frames),
            // Truncation takes the number.
            acknowledgment: (acknowledgment & ACKNOWLEDGED != 0).then_some(acknowledgment as u32),
            ..Forwarded::default()
        };
        [of, other]
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SLOTS * size_of::<Slot>()) };
    }
}

/// As the kernel has it: values of an array lie one behind the other if their size is a multiple of 8.
const _: () = assert!(
    size_of::<Slot>() == 8 + 10 * 8 + 16 + 2 * LENGTHS && size_of::<Slot>().is_multiple_of(8)
);
