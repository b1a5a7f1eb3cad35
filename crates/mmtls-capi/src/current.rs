//! The event that a callback is about, for the functions that the callback calls.
//!
//! Refuses to give one event's session to another thread or to a later callback, and a session that
//! the event is not about to functions that may only work on its own.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::NonNull;

use mmtls_middlebox::session::{Record, Session};

use crate::error::{
    Failure, MMTLS_ERR_EVENT, MMTLS_ERR_OTHER_SESSION, MMTLS_ERR_RESET, MMTLS_ERR_SESSION,
};
use crate::handle;
use crate::side::direction;
use crate::types::{ON_TLS_SESSION_END, UserPointer, mmctx_t};

thread_local! {
    /// The event whose callback this thread runs. The pointee's own lifetimes are erased.
    static CURRENT: Cell<Option<NonNull<Current<'static, 'static, 'static>>>> =
        const { Cell::new(None) };
    /// Whether this thread is inside a callback, also while `CURRENT` is borrowed.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// What the C side keeps of a session.
pub(crate) struct Entry {
    pub(crate) uctx: UserPointer,
    pub(crate) last_error: c_int,
    /// Declared record buffers per side: address and length in bytes.
    pub(crate) buffers: [(usize, usize); 2],
    pub(crate) reset: bool,
}

/// What is kept of the sessions that live, by number.
pub(crate) type Entries = HashMap<c_int, Entry, ahash::RandomState>;

/// What the functions work on that a callback calls.
pub(crate) struct Current<'e, 's, 'r> {
    pub(crate) context: usize,
    pub(crate) cid: c_int,
    pub(crate) event: c_int,
    pub(crate) session: &'e mut Session<'s>,
    pub(crate) record: Option<&'e mut Record<'r>>,
    pub(crate) certificate: &'e [u8],
    /// Of all sessions of the context. The functions use [`Self::any`], [`Self::own`] and [`Self::active`].
    pub(crate) sessions: &'e mut Entries,
}

impl<'s, 'r> Current<'_, 's, 'r> {
    /// What is kept of any session of this context.
    pub(crate) fn any(&mut self, cid: c_int) -> Result<&mut Entry, Failure> {
        self.sessions.get_mut(&cid).ok_or(Failure::Code(MMTLS_ERR_SESSION))
    }

    /// What is kept of the session of this event; refuses every other one.
    pub(crate) fn own(&mut self, cid: c_int) -> Result<&mut Entry, Failure> {
        let own = self.cid;
        let entry = self.any(cid)?;
        if cid == own { Ok(entry) } else { Err(MMTLS_ERR_OTHER_SESSION.into()) }
    }

    /// As [`Self::own`], where the session can still be told something.
    pub(crate) fn active(&mut self, cid: c_int) -> Result<&mut Entry, Failure> {
        let over = self.event == ON_TLS_SESSION_END;
        let entry = self.own(cid)?;
        match (over, entry.reset) {
            (true, _) => Err(MMTLS_ERR_EVENT.into()),
            (_, true) => Err(MMTLS_ERR_RESET.into()),
            _ => Ok(entry),
        }
    }

    /// The record of this event, when it is one of this side.
    pub(crate) fn record(
        &mut self,
        cid: c_int,
        side: c_int,
    ) -> Result<(&mut Record<'r>, &mut Entry), Failure> {
        let side = direction(side)?;
        self.own(cid)?;
        let entry = self.sessions.get_mut(&cid).ok_or(Failure::Code(MMTLS_ERR_SESSION))?;
        match &mut self.record {
            Some(record) if record.direction() == side => Ok((&mut **record, entry)),
            _ => Err(MMTLS_ERR_EVENT.into()),
        }
    }
}

/// Whether this thread is inside a callback.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a callback: `current` is what the functions that it calls work on.
pub(crate) fn during<'e, 's, 'r>(current: &mut Current<'e, 's, 'r>, callback: impl FnOnce()) {
    CURRENT.set(Some(NonNull::from(current).cast()));
    during_none(callback);
}

/// Runs a callback, of no session where none is current.
pub(crate) fn during_none(callback: impl FnOnce()) {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CURRENT.set(None);
            IN_CALLBACK.set(false);
        }
    }
    let _end = End;
    IN_CALLBACK.set(true);
    callback();
}

/// Gives the current event to a function that a callback of `context` calls; `None` where this
/// thread runs no callback of it.
pub(crate) fn with_current<T>(
    context: mmctx_t,
    work: impl for<'e, 's, 'r> FnOnce(&mut Current<'e, 's, 'r>) -> T,
) -> Option<T> {
    struct PutBack(NonNull<Current<'static, 'static, 'static>>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            CURRENT.set(Some(self.0));
        }
    }
    // Taken out while it is borrowed, so that there is one reference at a time.
    let borrowed = PutBack(CURRENT.take()?);
    let mut pointer = borrowed.0;
    // SAFETY: `during` set it from a unique reference that outlives the callback, and clears it
    // when the callback is over; the callback runs on this thread, which is inside it. `work`
    // takes any lifetimes, so it cannot make use of the erased ones.
    let current = unsafe { pointer.as_mut() };
    (current.context == handle::number_of(context)).then(|| work(current))
}
