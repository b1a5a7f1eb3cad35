//! Finds the functions of the host's own libssl.
//!
//! `dlsym(RTLD_NEXT)` alone is not enough: a module of Python brings its libssl with
//! `RTLD_LOCAL`, out of that search order. So the library is found by an address inside it (the
//! method that the host passes to `SSL_CTX_new` is a constant of libssl). A process may have two
//! versions of libssl; each has its slot, its callback and its functions.
//! Refuses more than [`MAX_LIBRARIES`], its own functions as the real ones, and to share keys of
//! OpenSSL's relatives: they have functions of the same names with other arguments.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use mmtls_sender::openssl::{self, Api, GetKeylog, SetKeylog};

/// Versions of libssl in one process.
pub const MAX_LIBRARIES: usize = 4;
/// Contexts that can be told apart when there is more than one libssl.
const MAX_FOREIGN: usize = 4096;
/// Methods whose library is remembered; OpenSSL 3 has some thirty.
const MAX_METHODS: usize = 64;

type New = unsafe extern "C-unwind" fn(*const c_void) -> *mut c_void;
type NewEx = unsafe extern "C-unwind" fn(*mut c_void, *const c_char, *const c_void) -> *mut c_void;

/// One libssl. Lives as long as the process.
pub struct Library {
    /// Which callback of ours belongs to it.
    pub slot: usize,
    base: usize,
    pub new: Option<New>,
    pub new_ex: Option<NewEx>,
    pub set_keylog: Option<SetKeylog>,
    pub get_keylog: Option<GetKeylog>,
    /// Missing when this libssl is too old or a different kind, or when nothing is to be shared.
    pub api: Option<Api>,
}

/// What makes the contexts of a method.
#[derive(Clone, Copy)]
pub struct Maker {
    pub new: Option<New>,
    pub new_ex: Option<NewEx>,
    /// Missing when there was no slot left for this libssl; nothing of it is shared.
    pub library: Option<&'static Library>,
}

static LIBRARIES: [AtomicPtr<Library>; MAX_LIBRARIES] =
    [const { AtomicPtr::new(null_mut()) }; MAX_LIBRARIES];
/// Contexts of libraries other than the first, with the slot in the low bits. Slot 0 stands for a
/// library without a slot.
static FOREIGN: [AtomicUsize; MAX_FOREIGN] = [const { AtomicUsize::new(0) }; MAX_FOREIGN];
/// A context found no room there: any context that is not in it may be anybody's.
static OVERFLOWN: AtomicBool = AtomicBool::new(false);
/// Methods with the slot of their library in the low bits: `dladdr` takes the dynamic linker's
/// lock, which another thread may hold while it waits for this one. A library with a slot is never
/// unloaded, so an entry stays true.
static METHODS: [AtomicUsize; MAX_METHODS] = [const { AtomicUsize::new(0) }; MAX_METHODS];
/// Where this library was loaded; 0 before it is known.
static OWN_BASE: AtomicUsize = AtomicUsize::new(0);
const SLOT_BITS: usize = MAX_LIBRARIES - 1;

impl Library {
    /// The library that `SSL_CTX_new(method)` is meant for.
    pub fn of_method(method: *const c_void) -> Option<Maker> {
        if let Some(library) = known_method(method) {
            return Some(library.maker());
        }
        let Some(object) = locate(method) else {
            // Null, or no constant of a library: libssl is to say itself what it thinks of it.
            return Self::any().map(Self::maker);
        };
        if let Some(library) = Self::of_object(&object) {
            remember_method(method, library.slot);
            return Some(library.maker());
        }
        // No slot left. Its own function all the same: another libssl's would misread the method.
        Maker::of(&object).or_else(|| Self::any().map(Self::maker))
    }

    fn maker(&'static self) -> Maker {
        Maker { new: self.new, new_ex: self.new_ex, library: Some(self) }
    }

    /// The library that made `context`, where that is certain.
    pub fn of_context(context: *const c_void) -> Option<&'static Self> {
        if Self::in_slot(1).is_some() {
            let foreign = FOREIGN
                .iter()
                .map(|entry| entry.load(Ordering::Acquire))
                .find(|entry| entry & !SLOT_BITS == context as usize && *entry != 0);
            match foreign.map(|entry| entry & SLOT_BITS) {
                Some(0) => return None,
                Some(slot) => return Self::in_slot(slot),
                None if OVERFLOWN.load(Ordering::Acquire) => return None,
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
                    let new = Box::into_raw(Box::new(Self::resolve(object, slot)?));
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
        None
    }

    fn resolve(object: &Object, slot: usize) -> Option<Self> {
        let handle = open_loaded(object.name)?;
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
            api: crate::config::get().and_then(|_| {
                // SAFETY: what one libssl's handle finds under these names is OpenSSL's, if it is one.
                unsafe { Api::resolve(|name| symbol(handle, name), Some(forget)) }
            }),
        };
        library.new.is_some().then_some(library)
    }
}

impl Maker {
    /// Not kept anywhere. `None` when the object is no libssl.
    fn of(object: &Object) -> Option<Self> {
        let handle = open_loaded(object.name)?;
        // SAFETY: the type is the one that OpenSSL's headers give this name.
        let new = unsafe { function(handle, c"SSL_CTX_new") }?;
        // SAFETY: as above.
        let new_ex = unsafe { function(handle, c"SSL_CTX_new_ex") };
        Some(Self { new: Some(new), new_ex, library: None })
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

/// Notes which library made a new context, where it is not the first one. `None`: one without a
/// slot.
pub fn adopt(library: Option<&Library>, context: *mut c_void) {
    // Not every library says when it frees a context, so another's may have stood here.
    disown(context);
    let slot = library.map(|library| library.slot);
    if slot == Some(0) {
        return;
    }
    let value = context as usize | slot.unwrap_or(0);
    for entry in &FOREIGN {
        let free = entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            return;
        }
    }
    OVERFLOWN.store(true, Ordering::Release);
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
    if Library::in_slot(1).is_none() {
        return;
    }
    for entry in &FOREIGN {
        let value = entry.load(Ordering::Relaxed);
        if value != 0 && value & !SLOT_BITS == context as usize {
            let _ = entry.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
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
mod tests {
    use super::*;

    fn put(slot: usize) -> &'static Library {
        let library = Box::leak(Box::new(Library {
            slot,
            base: slot + 1,
            new: None,
            new_ex: None,
            set_keylog: None,
            get_keylog: None,
            api: None,
        }));
        LIBRARIES[slot].store(library, Ordering::Release);
        library
    }

    #[test]
    fn refuses_to_guess_whose_a_context_or_a_method_is() {
        let libraries = [put(0), put(1)];
        let slot = |address: usize| {
            Library::of_context(address as *const c_void).map(|library| library.slot)
        };
        adopt(Some(libraries[0]), 0x1000 as *mut c_void);
        adopt(Some(libraries[1]), 0x2000 as *mut c_void);
        adopt(None, 0x3000 as *mut c_void);
        assert_eq!((slot(0x1000), slot(0x2000), slot(0x3000)), (Some(0), Some(1), None));
        for number in 0..MAX_FOREIGN {
            adopt(Some(libraries[1]), (0x10000 + 16 * number) as *mut c_void);
        }
        // Not all of them are known, so any other may be one of them.
        assert_eq!((slot(0x1000), slot(0x2000), slot(0x3000)), (None, Some(1), None));
        // A method that was seen before costs no look into the list of objects: none has this.
        remember_method(0x4000 as *const c_void, 1);
        let maker = Library::of_method(0x4000 as *const c_void).unwrap();
        assert_eq!(maker.library.map(|library| library.slot), Some(1));
    }
}
