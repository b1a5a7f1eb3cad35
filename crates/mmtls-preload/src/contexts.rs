//! Which libssl made a context, where that is not the first one of the process.
//!
//! The context itself does not say it in a way that all versions share, and a call about it must go on to the library
//! that made it. Refuses to run out of room: that grows with the contexts that live at once, by 16 bytes each, and is
//! used again. They are kept in lists by their address, so that each stays short.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::library::Library;

/// Contexts of a list that there is room for before more memory is asked for.
const CHUNK_CONTEXTS: usize = 64;
const LIST_BITS: u32 = 6;

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

/// The first chunk of each list.
static LISTS: [Chunk; 1 << LIST_BITS] = [const {
    Chunk {
        entries: [const { Entry { context: AtomicUsize::new(0), library: AtomicPtr::new(null_mut()) } };
            CHUNK_CONTEXTS],
        next: AtomicPtr::new(null_mut()),
    }
}; 1 << LIST_BITS];
/// The host had no memory left, once: from there on any context that is not noted may be anybody's, also one of the
/// first library, whose calls are lost then. A chunk is one kilobyte: a host that is refused that seldom lives on.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Notes the library of a new context. Its address is in no list: [`forget`] comes first.
pub fn note(context: *mut c_void, library: &'static Library) {
    let mut last = list(context);
    for chunk in chunks(context) {
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
    // SAFETY: null, or a library, which lives as long as the process.
    unsafe { find(context)?.library.load(Ordering::Acquire).as_ref() }
}

/// Whether a context that is not noted is none that should be.
pub fn are_complete() -> bool {
    !IS_INCOMPLETE.load(Ordering::Acquire)
}

/// A context is gone, or another one has its address now.
pub fn forget(context: *mut c_void) {
    if let Some(entry) = find(context) {
        let known = context as usize;
        let _ = entry.context.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn take_entry(chunk: &Chunk, context: *mut c_void, library: &'static Library) -> bool {
    let is_taken = |entry: &&Entry| {
        let (place, known) = (&entry.context, context as usize);
        // Most are taken by others: to look is cheaper than to try.
        place.load(Ordering::Relaxed) == 0
            && place.compare_exchange(0, known, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let entry = chunk.entries.iter().find(is_taken);
    if let Some(entry) = entry {
        entry.library.store(std::ptr::from_ref(library).cast_mut(), Ordering::Release);
    }
    entry.is_some()
}

fn find(context: *const c_void) -> Option<&'static Entry> {
    chunks(context)
        .flat_map(|chunk| &chunk.entries)
        .find(|it| it.context.load(Ordering::Acquire) == context as usize)
}

fn chunks(context: *const c_void) -> impl Iterator<Item = &'static Chunk> {
    std::iter::successors(Some(list(context)), |it| {
        // SAFETY: null, or a chunk, which is never freed.
        unsafe { it.next.load(Ordering::Acquire).as_ref() }
    })
}

/// The list of an address. Allocators space them evenly, so all bits have a say (Fibonacci hashing).
fn list(context: *const c_void) -> &'static Chunk {
    let hash = (context as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &LISTS[(hash >> (u64::BITS - LIST_BITS)) as usize]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_hundred_thousand_contexts_in_short_lists() {
        let library = crate::library::tests::put(None, 0);
        // As far apart as OpenSSL's are, in a part of the address space that no other test has.
        let context = |number: usize| (0x7000_0000 + 1040 * number) as *mut c_void;
        let length = |number| chunks(context(number)).count();
        for number in 0..100_000 {
            note(context(number), library);
        }
        assert!((0..100_000).all(|it| library_of(context(it)).is_some()));
        assert!(library_of(context(100_000)).is_none() && are_complete());
        let longest = (0..1000).map(length).max().unwrap();
        // Twice as long as if they were alike.
        assert!(longest <= 2 * 100_000 / (LISTS.len() * CHUNK_CONTEXTS), "{longest} chunks");
        for number in 0..100_000 {
            forget(context(number));
        }
        assert!((0..100_000).all(|it| library_of(context(it)).is_none()));
        // Their room is used again.
        for number in 200_000..290_000 {
            note(context(number), library);
        }
        assert_eq!((0..1000).map(length).max(), Some(longest));
    }
}
