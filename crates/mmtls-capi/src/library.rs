//! What there is: the configuration and the contexts, looked up by number.
//!
//! Registering callbacks is over when the contexts start, which keeps the packet path free of locks.
//!
//! Refuses to follow a handle: it is compared, and numbers are never used twice. Refuses to wait
//! for a context while the registry is locked, and in a child process for threads that it does not have.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;

use mmtls_middlebox::config::Configuration;

use crate::application::{Application, Callbacks};
use crate::context_end::{End, lock};
use crate::current::{self, Current};
use crate::error::{
    Failure, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONFIG, MMTLS_ERR_CONTEXT, MMTLS_ERR_IN_CALLBACK,
    MMTLS_ERR_INITIALISED, MMTLS_ERR_NOT_INITIALISED, MMTLS_ERR_RUN, MMTLS_ERR_STARTED,
    MMTLS_ERR_THREAD,
};
use crate::handle::{handle_of, number_of};
use crate::messages::Messages;
use crate::run::{self, STOP, Start};
use crate::types::{EVENTS, mmctx_t, mmtls_cb, mmtls_message_cb};

/// Most contexts; as many workers a configuration may have.
const MAX_CONTEXTS: c_int = 128;

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// The process whose contexts run; 0 where none do.
static RUNS_IN: AtomicU32 = AtomicU32::new(0);

/// Numbers of contexts: odd, so that no object of the application has such an address.
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0x101);

/// Between `mmtls_init` and `mmtls_destroy`.
struct Library {
    /// Tells one `mmtls_init` from the next.
    number: usize,
    configuration: Configuration,
    num_cpus: c_int,
    contexts: Vec<Context>,
    messages: Messages,
    started: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Context {
    number: usize,
    cpu: c_int,
    callbacks: Callbacks,
    end: Arc<End>,
}

/// Lends the event whose callback this thread runs, where it is one of this context.
pub(crate) fn with_current<T>(
    handle: mmctx_t,
    work: impl for<'e, 's, 'r> FnOnce(&mut Current<'e, 's, 'r>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    current::with_current(handle, work).unwrap_or_else(|| {
        match with(|library| library.context(handle).map(|_| ())) {
            Ok(()) => Err(MMTLS_ERR_THREAD.into()),
            Err(failure) if failure.code() == MMTLS_ERR_RUN => Err(failure),
            Err(_) => Err(MMTLS_ERR_CONTEXT.into()),
        }
    })
}

fn with<T>(work: impl FnOnce(&mut Library) -> Result<T, Failure>) -> Result<T, Failure> {
    not_in_child()?;
    match &mut *lock(&LIBRARY) {
        Some(library) => work(library),
        None => Err(MMTLS_ERR_NOT_INITIALISED.into()),
    }
}

/// Whether contexts were running when this process was forked: their threads are not here, and may have held any lock.
fn is_child() -> bool {
    let process = RUNS_IN.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
}

fn not_in_child() -> Result<(), Failure> {
    if !is_child() {
        return Ok(());
    }
    let text = "the contexts run in the process that this one was forked from";
    Err(Failure::Detailed(MMTLS_ERR_RUN, text.to_owned()))
}

/// In such a process: forgets everything, and waits for nothing.
fn forget() -> Result<(), Failure> {
    let mut library = match LIBRARY.try_lock() {
        Ok(library) => library,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let text = "forked while another thread was inside this library";
            return Err(Failure::Detailed(MMTLS_ERR_RUN, text.to_owned()));
        }
    };
    // What is in it may be locked: it is not touched.
    std::mem::forget(library.take());
    RUNS_IN.store(0, Ordering::Relaxed);
    STOP.store(false, Ordering::Relaxed);
    Ok(())
}

fn not_in_callback() -> Result<(), Failure> {
    if current::in_callback() { Err(MMTLS_ERR_IN_CALLBACK.into()) } else { Ok(()) }
}

pub(crate) fn init(configuration: Configuration, num_cpus: c_int) -> Result<(), Failure> {
    not_in_callback()?;
    if !(1..=MAX_CONTEXTS).contains(&num_cpus) {
        let text = format!("num_cpus must be 1 to {MAX_CONTEXTS}");
        return Err(Failure::Detailed(MMTLS_ERR_ARGUMENT, text));
    }
    run::check(&configuration).map_err(|text| Failure::Detailed(MMTLS_ERR_CONFIG, text))?;
    not_in_child()?;
    let mut library = lock(&LIBRARY);
    if library.is_some() {
        return Err(MMTLS_ERR_INITIALISED.into());
    }
    *library = Some(Library {
        number: new_number(),
        configuration,
        num_cpus,
        contexts: Vec::new(),
        messages: Messages::default(),
        started: false,
        threads: Vec::new(),
    });
    Ok(())
}

fn new_number() -> usize {
    NEXT_NUMBER.fetch_add(2, Ordering::Relaxed)
}

/// Ends the contexts, waits for them, and forgets everything.
pub(crate) fn destroy() -> Result<(), Failure> {
    if is_child() {
        return forget();
    }
    not_in_callback()?;
    let (number, ends, threads) = {
        let mut guard = lock(&LIBRARY);
        let library = guard.as_mut().ok_or(Failure::Code(MMTLS_ERR_NOT_INITIALISED))?;
        STOP.store(true, Ordering::Relaxed);
        if !library.started {
            // At once, so that nobody starts the contexts meanwhile.
            *guard = None;
            STOP.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let ends: Vec<Arc<End>> =
            library.contexts.iter().map(|context| Arc::clone(&context.end)).collect();
        (library.number, ends, std::mem::take(&mut library.threads))
    };
    for end in ends {
        // Who joins hears why it ended.
        let _ = end.wait();
    }
    for thread in threads {
        // Its panic was caught and reported inside.
        let _ = thread.join();
    }
    let mut library = lock(&LIBRARY);
    // Another thread may have destroyed it meanwhile, and even begun anew.
    if library.as_ref().is_some_and(|library| library.number == number) {
        *library = None;
        RUNS_IN.store(0, Ordering::Relaxed);
        STOP.store(false, Ordering::Relaxed);
    }
    Ok(())
}

pub(crate) fn create_context(cpu: c_int) -> Result<mmctx_t, Failure> {
    not_in_callback()?;
    with(|library| {
        library.not_started()?;
        if !(0..library.num_cpus).contains(&cpu) {
            let text = format!("cpu must be 0 to {}", library.num_cpus - 1);
            return Err(Failure::Detailed(MMTLS_ERR_ARGUMENT, text));
        }
        if library.contexts.iter().any(|context| context.cpu == cpu) {
            let text = format!("there is a context for cpu {cpu}");
            return Err(Failure::Detailed(MMTLS_ERR_ARGUMENT, text));
        }
        let number = new_number();
        let end = Arc::default();
        library.contexts.push(Context { number, cpu, callbacks: [None; EVENTS], end });
        Ok(handle_of(number))
    })
}

/// Registers or removes a callback.
pub(crate) fn set_callback(
    handle: mmctx_t,
    event: c_int,
    callback: mmtls_cb,
) -> Result<(), Failure> {
    with(|library| {
        let started = library.not_started();
        let context = library.context(handle)?;
        started?;
        let slot = usize::try_from(event).ok().and_then(|event| context.callbacks.get_mut(event));
        *slot.ok_or(Failure::Code(MMTLS_ERR_ARGUMENT))? = callback;
        Ok(())
    })
}

/// Registers or removes the callback for what operators should know.
pub(crate) fn set_message_callback(callback: mmtls_message_cb) -> Result<(), Failure> {
    not_in_callback()?;
    with(|library| {
        library.not_started()?;
        library.messages = Messages(callback);
        Ok(())
    })
}

/// Starts every context where none was started, and waits for this one.
pub(crate) fn join(handle: mmctx_t) -> Result<(), Failure> {
    not_in_callback()?;
    let end = with(|library| {
        let end = Arc::clone(&library.context(handle)?.end);
        if !library.started {
            library.start();
        }
        Ok(end)
    })?;
    end.wait().map_err(|text| Failure::Detailed(MMTLS_ERR_RUN, text))
}

/// A counter of a context.
pub(crate) fn counter(handle: mmctx_t, name: &[u8]) -> Result<u64, Failure> {
    let end = with(|library| Ok(Arc::clone(&library.context(handle)?.end)))?;
    let counters = end.counters();
    let found = counters.list().find(|(known, _)| known.as_bytes() == name);
    found.map(|(_, value)| value).ok_or(Failure::Code(MMTLS_ERR_ARGUMENT))
}

impl Library {
    fn context(&mut self, handle: mmctx_t) -> Result<&mut Context, Failure> {
        let number = number_of(handle);
        let found = self.contexts.iter_mut().find(|context| context.number == number);
        found.ok_or(Failure::Code(MMTLS_ERR_CONTEXT))
    }

    fn not_started(&self) -> Result<(), Failure> {
        if self.started { Err(MMTLS_ERR_STARTED.into()) } else { Ok(()) }
    }

    fn start(&mut self) {
        self.started = true;
        RUNS_IN.store(std::process::id(), Ordering::Relaxed);
        self.contexts.sort_by_key(|context| context.cpu);
        let starts = self.contexts.iter().map(|context| Start {
            number: context.number,
            application: Application::new(context.number, context.callbacks),
            // Checked when it was created.
            cpu: context.cpu.unsigned_abs() as usize,
            end: Arc::clone(&context.end),
        });
        self.threads = run::start(&self.configuration, starts.collect(), self.messages);
    }
}
