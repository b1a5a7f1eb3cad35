//! Finds the functions of the host's own libssl.
//!
//! `dlsym(RTLD_NEXT)` alone is not enough: a module of Python brings its libssl with
//! `RTLD_LOCAL`, out of that search order. So the library is found by an address inside it (the
//! method that the host passes to `SSL_CTX_new` is a constant of libssl). A process may have two
//! versions of libssl; each has its slot, its callback and its functions.
//! Refuses to share keys of more than [`MAX_LIBRARIES`] (calls of the others go on to them all the same), to take its
//! own functions for the real ones, and to share keys of OpenSSL's relatives: they have functions of the same names with
//! other arguments.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use mmtls_sender::openssl::{self, Api, GetKeylog, SetKeylog};

use crate::contexts;

/// Versions of libssl in one process that have a callback of ours.
pub const MAX_LIBRARIES: usize = 4;
/// Methods whose library is remembered; OpenSSL 3 has some thirty.
const MAX_METHODS: usize = 64;

type New = unsafe extern "C-unwind" fn(*const c_void) -> *mut c_void;
type NewEx = unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const c_void) -> *mut c_void;

/// One libssl. Lives as long as the process.
pub struct Library {
    /// Which callback of ours belongs to it. Missing where none was left: nothing of it is shared.
    pub slot: Option<usize>,
    base: usize,
    pub new: Option<New>,
    pub new_ex: Option<NewEx>,
    pub set_keylog: Option<SetKeylog>,
    pub get_keylog: Option<GetKeylog>,
    /// Missing when this libssl is too old or a different kind, or when nothing is to be shared.
    pub api: Option<Api>,
    /// Another one without a slot.
    next: Option<&'static Library>,
}

static LIBRARIES: [AtomicPtr<Library>; MAX_LIBRARIES] =
    [const { AtomicPtr::new(null_mut()) }; MAX_LIBRARIES];
/// The latest library without a slot, before the others.
static WITHOUT_SLOT: AtomicPtr<Library> = AtomicPtr::new(null_mut());
/// Methods with the slot of their library in the low bits: `dladdr` takes the dynamic linker's
/// lock, which another thread may hold while it waits for this one. A library is never
/// unloaded, so an entry stays true.
static METHODS: [AtomicUsize; MAX_METHODS] = [const { AtomicUsize::new(0) }; MAX_METHODS];
/// Where this library was loaded; 0 before it is known.
static OWN_BASE: AtomicUsize = AtomicUsize::new(0);
const SLOT_BITS: usize = MAX_LIBRARIES - 1;

impl Library {
    /// The library that `SSL_CTX_new(method)` is meant for.
    pub fn of_method(method: *const c_void) -> Option<&'static Self> {
        if let Some(library) = known_method(method) {
            return Some(library);
        }
        // Null, or no constant of a libssl: one is to say itself what it thinks of it. Another one than the method's
        // would misread it.
        let Some(library) = locate(method).and_then(|object| Self::of_object(&object)) else {
            return Self::any();
        };
        if let Some(slot) = library.slot {
            remember_method(method, slot);
        }
        Some(library)
    }

    /// The library that made `context`, where that is certain.
    pub fn of_context(context: *const c_void) -> Option<&'static Self> {
        if Self::in_slot(1).is_some() && !context.is_null() {
            match contexts::library_of(context) {
                Some(library) => return Some(library),
                None if !contexts::are_complete() => return None,
                None => {}
            }
        }
        Self::in_slot(0).or_else(Self::any)
    }

    /// The library with our callback number `slot`.
    pub fn in_slot(slot: usize) -> Option<&'static Self> {
        let pointer = LIBRARIES.get(slot)?.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked for the life of the process.
        unsafe { pointer.as_ref() }
    }

    /// The libssl that the dynamic linker would choose, or any that is loaded.
    fn any() -> Option<&'static Self> {
        let next = symbol(libc::RTLD_NEXT, c"SSL_CTX_new");
        if let Some(object) = next.and_then(|address| locate(address.cast_const())) {
            return Self::of_object(&object);
        }
        [c"libssl.so.3", c"libssl.so.1.1", c"libssl.so"].into_iter().find_map(|name| {
            let handle = open_loaded(name.as_ptr())?;
            let address = symbol(handle, c"SSL_CTX_new")?;
            Self::of_object(&locate(address.cast_const())?)
        })
    }

    fn of_object(object: &Object) -> Option<&'static Self> {
        for (slot, place) in LIBRARIES.iter().enumerate() {
            match Self::in_slot(slot) {
                Some(known) if known.base == object.base => return Some(known),
                Some(_) => {}
                None => {
                    let new = Box::into_raw(Box::new(Self::resolve(object, Some(slot))?));
                    let placed = place.compare_exchange(
                        null_mut(),
                        new,
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if placed.is_err() {
                        // Another thread was faster, with this library or another one.
                        // SAFETY: nobody else has seen this box.
                        drop(unsafe { Box::from_raw(new) });
                        return Self::of_object(object);
                    }
                    return Self::in_slot(slot);
                }
            }
        }
        Self::without_slot(object)
    }

    fn without_slot(object: &Object) -> Option<&'static Self> {
        let mut latest = WITHOUT_SLOT.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was leaked for the life of the process.
            let next = unsafe { latest.as_ref() };
            let mut known = std::iter::successors(next, |it| it.next);
            if let Some(known) = known.find(|it| it.base == object.base) {
                return Some(known);
            }
            let new = Box::into_raw(Box::new(Self { next, ..Self::resolve(object, None)? }));
            match WITHOUT_SLOT.compare_exchange(latest, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it is leaked from here on.
                Ok(_) => return unsafe { new.as_ref() },
                Err(other) => {
                    // SAFETY: nobody else has seen this box.
                    drop(unsafe { Box::from_raw(new) });
                    latest = other;
                }
            }
        }
    }

    fn resolve(object: &Object, slot: Option<usize>) -> Option<Self> {
        let handle = open_loaded(object.name)?;
        let find = |name: &CStr| symbol(handle, name);
        let library = Self {
            slot,
            base: object.base,
            // SAFETY: the type is the one that OpenSSL's headers give this name.
            new: unsafe { function(handle, c"SSL_CTX_new") },
            // SAFETY: as above.
            new_ex: unsafe { function(handle, c"SSL_CTX_new_ex") },
            // SAFETY: as above.
            set_keylog: unsafe { function(handle, c"SSL_CTX_set_keylog_callback") },
            // SAFETY: as above.
            get_keylog: unsafe { function(handle, c"SSL_CTX_get_keylog_callback") },
            api: crate::config::get().filter(|_| slot.is_some()).and_then(|_| {
                // SAFETY: what one libssl's handle finds under these names is OpenSSL's, if it is one.
                unsafe { Api::resolve(find, Some(forget)) }
            }),
            next: None,
        };
        // Those of the first one are not noted.
        if library.new.is_some() && library.api.is_none() && slot != Some(0) {
            // SAFETY: as above. Without it, addresses stay noted until others have them.
            unsafe { openssl::watch_contexts(find, forget) };
        }
        library.new.is_some().then_some(library)
    }
}

/// libssl calls this when a context is freed.
unsafe extern "C-unwind" fn forget(
    context: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: c_int,
    _: c_long,
    _: *mut c_void,
) {
    disown(context);
}

/// Notes which library made a new context, where it is not the first one.
pub fn adopt(library: &'static Library, context: *mut c_void) {
    // OpenSSL's relatives do not say when they free a context, so another's may have stood here.
    disown(context);
    if library.slot != Some(0) {
        contexts::note(context, library);
    }
}

/// The library of a method that was seen before.
fn known_method(method: *const c_void) -> Option<&'static Library> {
    METHODS
        .iter()
        .map(|entry| entry.load(Ordering::Acquire))
        .take_while(|entry| *entry != 0)
        .find(|entry| entry & !SLOT_BITS == method as usize)
        .and_then(|entry| Library::in_slot(entry & SLOT_BITS))
}

fn remember_method(method: *const c_void, slot: usize) {
    if method as usize & SLOT_BITS != 0 {
        return;
    }
    let value = method as usize | slot;
    for entry in &METHODS {
        match entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) if other == value => return,
            Err(_) => {}
        }
    }
}

fn disown(context: *mut c_void) {
    if Library::in_slot(1).is_some() {
        contexts::forget(context);
    }
}

/// A loaded shared object.
struct Object {
    /// Owned by the dynamic linker; stays while the object is loaded.
    name: *const c_char,
    base: usize,
}

/// The object that `address` lies in, unless it is this library.
fn locate(address: *const c_void) -> Option<Object> {
    let info = object_info(address)?;
    (info.dli_fbase as usize != own_base()? && !info.dli_fname.is_null())
        .then_some(Object { name: info.dli_fname, base: info.dli_fbase as usize })
}

fn own_base() -> Option<usize> {
    let known = OWN_BASE.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let base = object_info(crate::SSL_CTX_new as *const c_void)?.dli_fbase as usize;
    OWN_BASE.store(base, Ordering::Relaxed);
    Some(base)
}

fn object_info(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is allowed, and the linker fills the structure.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it was zeroed, and all-zero is valid for this plain C structure.
    Some(unsafe { info.assume_init() })
}

/// A handle of an object that is loaded already. It is never closed, so that the addresses found
/// through it stay valid even when the host unloads the object.
fn open_loaded(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: a C string; with NOLOAD no code of the object runs.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a live handle (or RTLD_NEXT) and a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    let info = object_info(address)?;
    // A handle of the main program finds our own functions first; they are not the real ones.
    (!address.is_null() && info.dli_fbase as usize != own_base()?).then_some(address)
}

/// A function of the library behind `handle`.
///
/// # Safety
/// `F` must be the function pointer type that belongs to `name`.
unsafe fn function<F: Copy>(handle: *mut c_void, name: &CStr) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { openssl::function(symbol(handle, name)?) }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn put(slot: Option<usize>, base: usize) -> &'static Library {
        let (new, new_ex, set_keylog, get_keylog) = (None, None, None, None);
        let (api, next) = (None, None);
        Box::leak(Box::new(Library { slot, base, new, new_ex, set_keylog, get_keylog, api, next }))
    }

    #[test]
    fn refuses_to_guess_whose_a_context_or_a_method_is() {
        let libraries = [put(Some(0), 1), put(Some(1), 2), put(None, 3)];
        for (slot, library) in libraries.iter().take(2).enumerate() {
            LIBRARIES[slot].store(std::ptr::from_ref(*library).cast_mut(), Ordering::Release);
        }
        let of = |address: usize| {
            Library::of_context(address as *const c_void).map(|library| library.base)
        };
        for (at, library) in libraries.into_iter().enumerate() {
            adopt(library, (0x1000 * (at + 1)) as *mut c_void);
        }
        let all = || [0x1000, 0x2000, 0x3000].map(of);
        assert_eq!(all(), [Some(1), Some(2), Some(3)]);
        // However many there are.
        for number in 0..12_000 {
            adopt(libraries[1], (0x10000 + 16 * number) as *mut c_void);
        }
        assert_eq!(all(), [Some(1), Some(2), Some(3)]);
        assert_eq!(of(0x10000 + 16 * (12_000 - 1)), Some(2));
        // One that is gone leaves its address to others.
        disown(0x2000 as *mut c_void);
        adopt(libraries[2], 0x10000 as *mut c_void);
        assert_eq!([0x2000, 0x10000].map(of), [Some(1), Some(3)]);
        // A method that was seen before costs no look into the list of objects: none has this.
        remember_method(0x4000 as *const c_void, 1);
        let library = Library::of_method(0x4000 as *const c_void).unwrap();
        assert_eq!(library.slot, Some(1));
    }
}
