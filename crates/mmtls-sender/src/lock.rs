//! A lock that survives `fork`: it remembers which process holds it, so that a child whose parent
//! held it at the fork can take it. Refuses to wait for long.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, Ordering};

/// How often a waiting thread lets others run before it sleeps, and how often it sleeps.
const YIELDS: u32 = 50;
const SLEEPS: u32 = 1000;
const SLEEP_NANOSECONDS: libc::c_long = 50_000;

/// Guards `T`.
pub struct ForkLock<T> {
    /// Process id of the holder, or 0.
    holder: AtomicI32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and there is one guard at a time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// Access to the value; gives the lock back when dropped.
pub struct Guard<'a, T> {
    lock: &'a ForkLock<T>,
    /// The holder was a thread of the parent, which does not exist in this process: the value may
    /// be in the middle of a change.
    pub interrupted: bool,
}

impl<T> ForkLock<T> {
    /// Held by nobody.
    pub const fn new(value: T) -> Self {
        Self { holder: AtomicI32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, or gives up after about a tenth of a second: a holder that has no
    /// processor on a busy machine gets one within that. Who gives up loses a key, and a
    /// session without its keys waits for longer, or is reset.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        // SAFETY: no preconditions.
        let own = unsafe { libc::getpid() };
        for attempt in 0..YIELDS + SLEEPS {
            match self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Guard { lock: self, interrupted: false }),
                Err(other) if other != own => {
                    let taken = self.holder.compare_exchange(
                        other,
                        own,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    );
                    // It is 0 when another thread of ours was faster and is done already.
                    if taken.is_ok() && other != 0 {
                        return Some(Guard { lock: self, interrupted: true });
                    }
                }
                Err(_) if attempt < YIELDS => {
                    // SAFETY: no preconditions.
                    unsafe { libc::sched_yield() };
                }
                Err(_) => {
                    let pause = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NANOSECONDS };
                    // SAFETY: a valid time, and no interest in what is left of it.
                    unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
                }
            }
        }
        None
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_one_holder_at_a_time() {
        static LOCK: ForkLock<u32> = ForkLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut guard = loop {
                            if let Some(guard) = LOCK.lock() {
                                break guard;
                            }
                        };
                        assert!(!guard.interrupted);
                        *guard += 1;
                    }
                });
            }
        });
        assert_eq!(LOCK.lock().map(|guard| *guard), Some(4000));
    }

    #[test]
    fn refuses_to_wait_for_long_but_takes_over_after_a_fork() {
        static LOCK: ForkLock<()> = ForkLock::new(());
        let held = LOCK.lock();
        assert!(LOCK.lock().is_none());
        std::mem::forget(held);
        // As a child sees it: held by a process that is not this one.
        LOCK.holder.store(1, Ordering::Relaxed);
        assert!(LOCK.lock().is_some_and(|guard| guard.interrupted));
        assert!(LOCK.lock().is_some_and(|guard| !guard.interrupted));
    }
}
