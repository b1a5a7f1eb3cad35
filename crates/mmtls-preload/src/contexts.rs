//! Which libssl made a context, where that is not the first one of the process.
//!
//! The context itself does not say it in a way that all versions share, and a call about it must go on to the library
//! that made it. Refuses to run out of room: that grows with the contexts that live, by 16 bytes each.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::library::Library;

/// Contexts that there is room for before more memory is asked for.
pub const CHUNK_CONTEXTS: usize = 4096;

/// All zero: free. It is taken before its library is written, which nobody misses: until then its context is
/// known to the thread alone that has just made it.
struct Entry {
    context: AtomicUsize,
    library: AtomicPtr<Library>,
}

/// All zero: nothing in it, and the last one.
struct Chunk {
    entries: [Entry; CHUNK_CONTEXTS],
    /// Never freed.
    next: AtomicPtr<Chunk>,
}

static FIRST: Chunk = Chunk {
    entries: [const { Entry { context: AtomicUsize::new(0), library: AtomicPtr::new(null_mut()) } };
        CHUNK_CONTEXTS],
    next: AtomicPtr::new(null_mut()),
};
/// The host has no memory left: any context that is not noted may be anybody's.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Notes the library of a new context.
pub fn note(context: *mut c_void, library: &'static Library) {
    let mut last = &FIRST;
    for chunk in chunks() {
        last = chunk;
        if take_entry(chunk, context, library) {
            return;
        }
    }
    while let Some(chunk) = next_or_new(last) {
        last = chunk;
        if take_entry(chunk, context, library) {
            return;
        }
    }
    IS_INCOMPLETE.store(true, Ordering::Release);
}

/// The library that was noted.
pub fn library_of(context: *const c_void) -> Option<&'static Library> {
    let entry = entries().find(|it| it.context.load(Ordering::Acquire) == context as usize)?;
    // SAFETY: null, or a library, which lives as long as the process.
    unsafe { entry.library.load(Ordering::Acquire).as_ref() }
}

/// Whether a context that is not noted is none that should be.
pub fn are_complete() -> bool {
    !IS_INCOMPLETE.load(Ordering::Acquire)
}

/// A context is gone.
pub fn forget(context: *mut c_void) {
    let known = context as usize;
    for entry in entries().filter(|it| it.context.load(Ordering::Relaxed) == known) {
        let _ = entry.context.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn take_entry(chunk: &Chunk, context: *mut c_void, library: &'static Library) -> bool {
    let is_taken = |entry: &&Entry| {
        let known = context as usize;
        entry.context.compare_exchange(0, known, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let entry = chunk.entries.iter().find(is_taken);
    if let Some(entry) = entry {
        entry.library.store(std::ptr::from_ref(library).cast_mut(), Ordering::Release);
    }
    entry.is_some()
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    chunks().flat_map(|chunk| &chunk.entries)
}

fn chunks() -> impl Iterator<Item = &'static Chunk> {
    // SAFETY: null, or a chunk, which is never freed.
    std::iter::successors(Some(&FIRST), |it| unsafe { it.next.load(Ordering::Acquire).as_ref() })
}

/// The chunk behind the last one; `None` without memory for it.
fn next_or_new(last: &'static Chunk) -> Option<&'static Chunk> {
    let layout = Layout::new::<Chunk>();
    // Not by way of the stack, which may be small. SAFETY: its size is not zero.
    let new = unsafe { alloc_zeroed(layout) }.cast::<Chunk>();
    if new.is_null() {
        return None;
    }
    let placed = last.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    let next = match placed {
        Ok(_) => new,
        Err(other) => {
            // Another thread was faster. SAFETY: allocated with this layout, and nobody else has seen it.
            unsafe { dealloc(new.cast(), layout) };
            other
        }
    };
    // SAFETY: a chunk, for which all zero is valid, and which is never freed.
    unsafe { next.as_ref() }
}
