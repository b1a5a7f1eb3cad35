//! Handles: numbers that are looked up in a table of 16, with a count of the calls that use each.
//!
//! No lock: a fork in the middle of anything must leave the table usable in the child. (What a thread of the parent was using
//! then stays allocated there.) Refuses handles that are closed or were never given out.

use std::ffi::c_int;
use std::ops::Deref;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use mmtls_sender::agent::Sender;
use mmtls_sender::settings::Settings;

use crate::error::{MMTLS_SHARE_ERR_CAPACITY, MMTLS_SHARE_ERR_HANDLE};
use crate::types::mmtls_share_t;

/// Handles that are open at one time.
const MAX_HANDLES: usize = 16;
/// Bits of a handle that are the place in the table, counted from 1 so that no handle is NULL.
const PLACE_BITS: u32 = 8;
/// Where the generation of a slot's state begins; below it are `OPEN` and the number of users.
const GENERATION_SHIFT: u32 = 32;
/// A stale handle is found again after so many others in its place.
const GENERATIONS: u64 = (1 << 24) - 1;
const OPEN: u64 = 1 << 31;
const USERS: u64 = OPEN - 1;

/// What a handle stands for.
pub(crate) struct Share {
    pub(crate) settings: Settings,
    pub(crate) sender: Sender,
    /// Which OpenSSL it uses, counted from 1; 0 before that is known.
    pub(crate) openssl: AtomicUsize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.sender.end(&self.settings.agent);
    }
}

struct Slot {
    /// Generation, `OPEN`, and users. Free when it is neither open nor used.
    state: AtomicU64,
    /// A box that lives until the last user of a closed slot has left.
    share: AtomicPtr<Share>,
}

static SLOTS: [Slot; MAX_HANDLES] =
    [const { Slot { state: AtomicU64::new(0), share: AtomicPtr::new(null_mut()) } }; MAX_HANDLES];

/// A use of a handle: what it stands for lives as long as this.
pub(crate) struct User {
    slot: &'static Slot,
}

/// Gives out a handle.
pub(crate) fn open(settings: Settings) -> Result<mmtls_share_t, c_int> {
    let share = Box::new(Share { settings, sender: Sender::new(), openssl: AtomicUsize::new(0) });
    for (index, slot) in SLOTS.iter().enumerate() {
        let state = slot.state.load(Ordering::Acquire);
        let generation = (state >> GENERATION_SHIFT) % GENERATIONS + 1;
        // Used by us, and not open: nobody else touches it.
        let claimed = generation << GENERATION_SHIFT | 1;
        if state & (OPEN | USERS) != 0
            || slot
                .state
                .compare_exchange(state, claimed, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
        {
            continue;
        }
        share.sender.connect_early(&share.settings.agent);
        slot.share.store(Box::into_raw(share), Ordering::Release);
        slot.state.store(generation << GENERATION_SHIFT | OPEN, Ordering::Release);
        let handle = (generation << PLACE_BITS) as usize | (index + 1);
        return Ok(without_provenance_mut(handle));
    }
    Err(MMTLS_SHARE_ERR_CAPACITY)
}

/// Looks a handle up.
pub(crate) fn enter(handle: mmtls_share_t) -> Result<User, c_int> {
    let (slot, generation) = place(handle).ok_or(MMTLS_SHARE_ERR_HANDLE)?;
    let mut state = slot.state.load(Ordering::Acquire);
    loop {
        if state >> GENERATION_SHIFT != generation || state & OPEN == 0 || state & USERS == USERS {
            return Err(MMTLS_SHARE_ERR_HANDLE);
        }
        match slot.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Ok(User { slot }),
            Err(now) => state = now,
        }
    }
}

/// Closes a handle: what waits is sent if it can be, and the connection is closed.
pub(crate) fn close(handle: mmtls_share_t) -> Result<(), c_int> {
    let user = enter(handle)?;
    let before = user.slot.state.fetch_and(!OPEN, Ordering::AcqRel);
    if before & OPEN == 0 {
        // Another thread has closed it meanwhile.
        return Err(MMTLS_SHARE_ERR_HANDLE);
    }
    // Not left to the last user, which may be a thread that the child of a fork does not have.
    user.sender.end(&user.settings.agent);
    Ok(())
}

fn place(handle: mmtls_share_t) -> Option<(&'static Slot, u64)> {
    let number = handle.addr();
    let index = (number & ((1 << PLACE_BITS) - 1)).checked_sub(1)?;
    Some((SLOTS.get(index)?, (number >> PLACE_BITS) as u64))
}

impl Deref for User {
    type Target = Share;

    fn deref(&self) -> &Share {
        // SAFETY: the box was put there before the slot was opened, and lives while it has users.
        unsafe { &*self.slot.share.load(Ordering::Acquire) }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = self.slot.state.load(Ordering::Acquire);
        loop {
            if state & OPEN == 0 && state & USERS == 1 {
                // The last one, and nobody enters a closed slot: it is ours until its state says that it is free.
                let share = self.slot.share.swap(null_mut(), Ordering::AcqRel);
                // SAFETY: made by `open`, and taken by nobody else.
                drop(unsafe { Box::from_raw(share) });
                self.slot.state.store(state - 1, Ordering::Release);
                return;
            }
            match self.slot.state.compare_exchange_weak(
                state,
                state - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Result<mmtls_share_t, c_int> {
        open(Settings::read(Some(b"/nonexistent/agent")).unwrap())
    }

    /// In one test, since all of them share the table.
    #[test]
    fn refuses_handles_that_are_closed_or_were_never_given_out() {
        let handles: Vec<_> = (0..MAX_HANDLES).map(|_| opened().unwrap()).collect();
        assert_eq!(opened(), Err(MMTLS_SHARE_ERR_CAPACITY));
        let first = handles[0];
        let user = enter(first).unwrap();
        assert_eq!(close(first), Ok(()));
        assert_eq!(close(first), Err(MMTLS_SHARE_ERR_HANDLE));
        assert!(enter(first).is_err());
        // Still in use, so its place is not free.
        assert_eq!(opened(), Err(MMTLS_SHARE_ERR_CAPACITY));
        drop(user);
        let again = opened().unwrap();
        assert!(again != first && enter(first).is_err() && enter(again).is_ok());
        for number in [0, 1, MAX_HANDLES + 1, 255, 256, usize::MAX, again.addr() + 1] {
            assert!(enter(without_provenance_mut(number)).is_err(), "{number}");
        }
        // Threads that use it while it is closed and others are opened in its place.
        std::thread::scope(|scope| {
            let number = again.addr();
            for _ in 0..2 {
                scope.spawn(move || {
                    while let Ok(user) = enter(without_provenance_mut(number)) {
                        assert_eq!(user.openssl.load(Ordering::Relaxed), 0);
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            close(without_provenance_mut(number)).unwrap();
            for _ in 0..100 {
                // No room while the others still use the closed one.
                if let Ok(handle) = opened() {
                    close(handle).unwrap();
                }
            }
        });
        for handle in handles.into_iter().skip(1) {
            close(handle).unwrap();
        }
        assert!(SLOTS.iter().all(|slot| slot.state.load(Ordering::Relaxed) & (OPEN | USERS) == 0));
    }
}
