//! The lease that a monitor's workers renew, in memory that the guard's program looks at, and what each worker knows of it.
//!
//! A worker that has renewed its deadline knows until when nobody else's runs out, either. Once that time has passed it
//! cannot know whether the guard has forwarded frames meanwhile, and says so: the lease is lost. That is the only judgement,
//! made from what was seen before, so no order of pauses of the workers can hide a moment in which the guard forwarded.
//!
//! There is one exception, at the end of a monitor: a worker that lets go has the guard forward at once, and the others, which are
//! about to end as well, may go on until what they know runs out. What they forward in the middle of a turn leaves twice then.
//!
//! Refuses system calls: to renew is to read a clock and to store.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::error::GuardError;
use crate::ports::Lease;

/// As `MAX_WORKERS` of the program.
pub(super) const MAX_WORKERS: usize = 128;

/// The program, as the kernel knows it.
pub(super) const PROGRAM: &str = "mmtls_guard";

/// Of what is in the memory.
pub(super) const VERSION: u32 = 1;

/// A deadline that is so close counts as passed: a store takes a moment to be seen by other processors.
const MARGIN_NS: u64 = 1_000_000;

/// A deadline is stored as often in the time of a lease. The guard reads all of them for each frame, and each store takes them
/// out of its processor's cache.
const STORES: u64 = 8;

/// As `struct passed` of the program.
#[repr(C)]
pub(super) struct Passed {
    frames: AtomicU64,
    bytes: AtomicU64,
    unused: [AtomicU64; 6],
}

#[repr(C)]
struct Slot {
    deadline_ns: AtomicU64,
    unused: [AtomicU64; 7],
}

/// As `struct lease` of the program.
#[repr(C)]
pub(super) struct State {
    pub(super) version: AtomicU32,
    workers: AtomicU32,
    /// Which monitor; 0 for none.
    holder: AtomicU64,
    pub(super) netns: AtomicU64,
    pub(super) lease_ns: AtomicU64,
    pub(super) interfaces: [AtomicU32; 2],
    /// Of the interfaces, each of 16 bytes, zero-padded.
    pub(super) names: [AtomicU64; 4],
    unused: [AtomicU64; 7],
    passed: [Passed; 2],
    slots: [Slot; MAX_WORKERS],
}

const _: () = assert!(size_of::<State>() == 128 + 2 * 64 + MAX_WORKERS * 64);

impl State {
    /// The names of the interfaces.
    pub(super) fn names(&self) -> [String; 2] {
        let words = self.names.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let name = |at: usize| {
            let bytes = [words[at], words[at + 1]].concat();
            let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        [name(0), name(2)]
    }

    fn told(&self) -> String {
        self.names().join(" and ")
    }
}

/// The memory, mapped.
pub(crate) struct LeaseMemory {
    base: NonNull<State>,
}

// SAFETY: what is mapped consists of atomics, and belongs to this value as long as it lives.
unsafe impl Send for LeaseMemory {}
// SAFETY: as above.
unsafe impl Sync for LeaseMemory {}

impl Drop for LeaseMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), size_of::<State>()) };
    }
}

impl LeaseMemory {
    /// Maps the guard's map.
    pub(super) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        Self::mapped(libc::MAP_SHARED, map.as_raw_fd())
    }

    fn mapped(flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let length = size_of::<State>();
        // SAFETY: a new mapping replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base })
    }

    pub(super) fn state(&self) -> &State {
        // SAFETY: the mapping is as long, lives as long as `self`, is aligned as pages are, and every bit pattern is one of
        // atomics.
        unsafe { self.base.as_ref() }
    }

    /// How long a deadline is ahead when it is renewed.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.state().lease_ns.load(Ordering::Relaxed))
    }

    /// Frames and bytes that came in by the first interface, or the second one, and that the guard has forwarded.
    pub(crate) fn passed(&self, at: usize) -> [u64; 2] {
        let of = &self.state().passed[at % 2];
        [of.frames.load(Ordering::Relaxed), of.bytes.load(Ordering::Relaxed)]
    }

    fn workers(&self) -> usize {
        (self.state().workers.load(Ordering::Acquire) as usize).min(MAX_WORKERS)
    }

    fn deadlines(&self) -> impl Iterator<Item = u64> {
        let slots = &self.state().slots;
        slots.iter().take(self.workers()).map(|slot| slot.deadline_ns.load(Ordering::Acquire))
    }

    /// How many workers a monitor has that has not let go of the lease; `None` where there is no sign of life of one.
    pub(crate) fn holder(&self) -> Option<usize> {
        let now = now_ns();
        self.deadlines().any(|deadline| deadline > now).then(|| self.workers())
    }

    /// Whether the guard leaves frames to the monitor.
    pub(crate) fn is_held(&self) -> bool {
        self.until_ns() > now_ns()
    }

    /// When the first deadline passes.
    fn until_ns(&self) -> u64 {
        self.deadlines().min().unwrap_or(0)
    }

    /// Makes a monitor of so many workers the holder. Each is to renew before the guard leaves anything to them.
    ///
    /// # Errors
    /// [`GuardError::Held`] where another one is alive for longer than a lease.
    pub(crate) fn claim(self: &Arc<Self>, workers: usize) -> Result<Vec<Hold>, GuardError> {
        let state = self.state();
        if workers > MAX_WORKERS {
            return Err(GuardError::TooManyWorkers);
        }
        // One that was killed a moment ago has not let go.
        let end = now_ns() + 2 * state.lease_ns.load(Ordering::Relaxed);
        while self.holder().is_some() {
            if now_ns() > end {
                return Err(GuardError::Held { names: state.told() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        state.workers.store(0, Ordering::Release);
        // Two that start at the same time: the later one has it, and the other one finds out when it renews.
        let token = now_ns();
        state.holder.store(token, Ordering::Release);
        state.slots.iter().for_each(|slot| slot.deadline_ns.store(0, Ordering::Release));
        state.workers.store(workers as u32, Ordering::Release);
        let before = [self.passed(0), self.passed(1)];
        let hold = |at| Hold {
            memory: Arc::clone(self),
            at,
            token,
            lease_ns: state.lease_ns.load(Ordering::Relaxed),
            stored_ns: 0,
            known_until_ns: 0,
            is_held: false,
            before,
        };
        Ok((0..workers).map(hold).collect())
    }
}

/// Frames and bytes that the guard has forwarded.
pub(crate) struct GuardPassed {
    /// Since it was installed.
    pub(crate) ever: [u64; 2],
    /// Since this monitor made itself the holder.
    pub(crate) since: [u64; 2],
}

/// One worker's part of the lease. What the guard forwards is its from the moment that this goes.
pub(crate) struct Hold {
    memory: Arc<LeaseMemory>,
    at: usize,
    token: u64,
    lease_ns: u64,
    /// When its deadline was stored.
    stored_ns: u64,
    /// Nobody's deadline passes before, unless a worker lets go.
    known_until_ns: u64,
    /// All that came before the lease was taken is discarded.
    is_held: bool,
    /// What the guard had forwarded before.
    before: [[u64; 2]; 2],
}

impl Hold {
    /// Whether every frame that came until now was left to this monitor, since the lease was taken.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held && self.is_known(now_ns())
    }

    fn is_known(&self, now: u64) -> bool {
        now + MARGIN_NS < self.known_until_ns
    }

    /// How long the worker may be silent.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns)
    }

    /// Renews the worker's deadline while the lease is held. [`Lease::Lost`] is said once; then what came is to be discarded, and
    /// the lease to be taken again.
    ///
    /// # Errors
    /// [`GuardError::Taken`].
    pub(crate) fn renew(&mut self) -> Result<Lease, GuardError> {
        if !self.is_held {
            return Ok(Lease::Waiting);
        }
        let now = now_ns();
        if self.is_known(now) {
            if now < self.stored_ns + self.lease_ns / STORES {
                return Ok(Lease::Held);
            }
            self.store()?;
            let until = self.memory.until_ns();
            // Only now: this thread may have stood still between the look at the clock and the store.
            if self.is_held() {
                self.known_until_ns = until;
                return Ok(Lease::Held);
            }
        }
        self.is_held = false;
        Ok(Lease::Lost)
    }

    /// Takes the lease, as far as it is this worker's: whether all have. What came until then is to be discarded once more, and only
    /// then it is [held](Self::hold).
    ///
    /// # Errors
    /// [`GuardError::Taken`].
    pub(crate) fn take(&mut self) -> Result<bool, GuardError> {
        self.store()?;
        self.known_until_ns = self.memory.until_ns();
        Ok(self.is_known(now_ns()))
    }

    /// What came before the lease was taken is discarded: whether it is held from now on, or has run out meanwhile.
    pub(crate) fn hold(&mut self) -> bool {
        self.is_held = self.is_known(now_ns());
        self.is_held
    }

    /// Lets go: the guard forwards from now on.
    pub(crate) fn release(&mut self) {
        self.is_held = false;
        if self.is_own() {
            self.slot().deadline_ns.store(0, Ordering::Release);
        }
    }

    /// How long a worker may sleep before it renews.
    pub(crate) fn pause(&self) -> Duration {
        let most = self.lease_ns / 4;
        // Nobody waits for one that has no lease.
        let since = if self.is_held { now_ns().saturating_sub(self.stored_ns) } else { 0 };
        Duration::from_nanos(most.saturating_sub(since))
    }

    /// Of all workers the first tells what the guard has forwarded, that came in by an interface with this number, and by the
    /// other one.
    pub(crate) fn passed(&self, interface: u32) -> Option<[GuardPassed; 2]> {
        let of = |at: usize| {
            let ever = self.memory.passed(at);
            let before = self.before[at];
            let since = std::array::from_fn(|it| ever[it].saturating_sub(before[it]));
            GuardPassed { ever, since }
        };
        let first = self.memory.state().interfaces[0].load(Ordering::Relaxed);
        let turned = usize::from(first != interface);
        (self.at == 0).then(|| [of(turned), of(1 - turned)])
    }

    fn slot(&self) -> &Slot {
        &self.memory.state().slots[self.at % MAX_WORKERS]
    }

    fn is_own(&self) -> bool {
        self.memory.state().holder.load(Ordering::Acquire) == self.token
    }

    fn store(&mut self) -> Result<(), GuardError> {
        if !self.is_own() {
            return Err(GuardError::Taken { names: self.memory.state().told() });
        }
        self.stored_ns = now_ns();
        let deadline = self.stored_ns.saturating_add(self.lease_ns);
        self.slot().deadline_ns.store(deadline, Ordering::Release);
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

/// The clock of the program.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative: it counts from the start of the machine.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(300);

    fn memory() -> Arc<LeaseMemory> {
        memory_with(LEASE)
    }

    fn memory_with(lease: Duration) -> Arc<LeaseMemory> {
        let memory = LeaseMemory::mapped(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).unwrap();
        memory.state().lease_ns.store(lease.as_nanos() as u64, Ordering::Relaxed);
        Arc::new(memory)
    }

    /// As a bridge does, to which nothing comes meanwhile.
    fn take(hold: &mut Hold) -> bool {
        hold.take().unwrap() && hold.hold()
    }

    #[test]
    fn accepts_a_worker_that_renews_and_tells_of_one_that_was_silent() {
        let memory = memory();
        let mut hold = memory.claim(1).unwrap().remove(0);
        assert!(!memory.is_held() && !hold.is_held());
        assert_eq!(hold.renew().unwrap(), Lease::Waiting);
        assert!(take(&mut hold) && memory.is_held());
        assert_eq!(hold.renew().unwrap(), Lease::Held);
        std::thread::sleep(LEASE + Duration::from_millis(20));
        assert!(!memory.is_held() && !hold.is_held());
        assert_eq!(hold.renew().unwrap(), Lease::Lost, "once");
        assert!(!memory.is_held(), "not before what came is discarded");
        assert_eq!(hold.renew().unwrap(), Lease::Waiting);
        assert!(take(&mut hold) && memory.is_held());
        drop(hold);
        assert!(!memory.is_held(), "at once");
    }

    #[test]
    fn one_silent_worker_makes_all_of_them_lose_the_lease() {
        let memory = memory();
        let mut holds = memory.claim(2).unwrap();
        assert!(!holds[0].take().unwrap(), "the other one has not");
        assert!(take(&mut holds[1]) && take(&mut holds[0]));
        let begun = std::time::Instant::now();
        while holds[0].renew().unwrap() == Lease::Held {
            assert!(begun.elapsed() < 10 * LEASE);
            std::thread::sleep(LEASE / 30);
        }
        // That the other one is quick when it wakes hides nothing.
        holds[1].take().unwrap();
        assert!(!holds[0].is_held());
        assert_eq!(holds[0].renew().unwrap(), Lease::Waiting);
        assert!(holds[0].take().unwrap());
    }

    /// A bridge that could not discard what came before goes on without the lease, and the others are not disturbed.
    #[test]
    fn a_lease_that_was_taken_is_not_held_before_what_came_is_discarded() {
        let memory = memory_with(Duration::from_secs(60));
        let mut hold = memory.claim(1).unwrap().remove(0);
        assert!(hold.take().unwrap());
        assert!(!hold.is_held());
        assert_eq!(hold.renew().unwrap(), Lease::Waiting);
        assert!(memory.is_held(), "the guard does not forward what is about to be discarded");
        assert!(hold.hold() && hold.is_held());
        hold.known_until_ns = now_ns();
        assert!(!hold.hold() && !hold.is_held(), "it has run out");
    }

    #[test]
    fn a_deadline_is_stored_eight_times_in_a_lease_and_not_with_each_turn() {
        let lease = Duration::from_secs(600);
        let memory = memory_with(lease);
        let mut hold = memory.claim(1).unwrap().remove(0);
        assert!(take(&mut hold));
        let stored = memory.until_ns();
        assert_eq!(hold.renew().unwrap(), Lease::Held);
        assert_eq!(memory.until_ns(), stored, "it was stored a moment ago");
        hold.stored_ns -= hold.lease_ns / STORES;
        let pause = hold.pause();
        assert!(
            pause > lease / 16 && pause <= lease / 8,
            "{pause:?}: no longer than a quarter since"
        );
        assert_eq!(hold.renew().unwrap(), Lease::Held);
        assert!(memory.until_ns() > stored);
        assert!(hold.pause() > lease / 8);
    }

    #[test]
    fn refuses_a_second_monitor_beside_one_that_is_alive() {
        let memory = memory();
        let mut first = memory.claim(1).unwrap().remove(0);
        assert!(take(&mut first));
        let (stop, other) = (std::sync::atomic::AtomicBool::new(false), Arc::clone(&memory));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    first.store().unwrap();
                    std::thread::sleep(LEASE / 30);
                }
            });
            assert!(matches!(other.claim(1), Err(GuardError::Held { .. })));
            stop.store(true, Ordering::Relaxed);
        });
        // Killed: what it held runs out.
        let second = memory.claim(1).unwrap().remove(0);
        assert!(matches!(first.take(), Err(GuardError::Taken { .. })), "it is another's now");
        drop(first);
        drop(second);
        assert!(memory.claim(MAX_WORKERS + 1).is_err());
    }
}
