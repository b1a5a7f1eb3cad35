//! Giving up what the process does not need (core dumps, ptrace, new privileges, capabilities),
//! and asking for the descriptors that it does need.
//!
//! Refuses to run on without having done so.

use std::num::NonZeroU64;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, sched_getaffinity, sched_setaffinity, set_capabilities,
    set_current_timer_slack, set_no_new_privs,
};

use crate::Error;

/// Descriptors beside those of the key channel: interfaces, logs, stream files.
pub const SPARE_DESCRIPTORS: u64 = 256;

/// No core dumps and no debugger of the same user: keys live in this memory.
///
/// # Errors
/// [`Error::System`].
pub fn forbid_dumps() -> Result<(), Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("PR_SET_DUMPABLE"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(system("RLIMIT_CORE"))
}

/// Raises the limit of open descriptors, usually 1024, as far as it goes: a key channel that has
/// used them up would take the log files' too.
///
/// # Errors
/// [`Error::Usage`] when fewer than `needed` are allowed.
pub fn allow_descriptors(needed: u64) -> Result<(), Error> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    // Only root may go beyond the maximum.
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    let raised = Rlimit { current: maximum.or(Some(needed)), maximum };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        Error::Usage(format!(
            "{needed} open files are needed (keys.max_connections and {SPARE_DESCRIPTORS} more), \
             and the system allows {} (ulimit -Hn): {error}",
            limit.maximum.unwrap_or_default()
        ))
    })
}

/// Drops every capability, and empties the set of those that could ever come back (the bounding set), where this thread has
/// the capability to do that: without it, `no_new_privs` alone prevents it. Call it once sockets and files are open and before threads start:
/// capabilities belong to a thread and are inherited.
///
/// # Errors
/// [`Error::System`].
pub fn drop_capabilities() -> Result<(), Error> {
    set_no_new_privs(true).map_err(system("PR_SET_NO_NEW_PRIVS"))?;
    let held = capabilities(None).map_err(system("capget"))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for one in CapabilitySet::all().iter() {
            if capability_is_in_bounding_set(one).unwrap_or(false) {
                remove_capability_from_bounding_set(one).map_err(system("PR_CAPBSET_DROP"))?;
            }
        }
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(system("capset"))
}

/// What `work` finds without any capability: on a thread of its own, since there is no way back.
///
/// # Errors
/// [`Error::System`] when the thread cannot be started, or keeps its capabilities.
pub fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let job = || drop_capabilities().map(|()| work());
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("powerless".to_owned());
        let thread = thread.spawn_scoped(scope, job);
        let thread = thread.map_err(|error| Error::System { what: "a thread", error })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Lets this thread sleep for microseconds: the usual slack of 50 would be most of such a sleep.
///
/// # Errors
/// [`Error::System`].
pub fn precise_timers() -> Result<(), Error> {
    set_current_timer_slack(NonZeroU64::new(1)).map_err(system("PR_SET_TIMERSLACK"))
}

/// The processors that this process may run on.
///
/// # Errors
/// [`Error::System`].
pub fn allowed_cpus() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None).map_err(system("sched_getaffinity"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Whether this process may run on a processor.
///
/// # Errors
/// [`Error::Usage`] when there is no such processor for this process.
pub fn check_cpu(cpu: usize) -> Result<(), Error> {
    match allowed_cpus()?.contains(&cpu) {
        true => Ok(()),
        false => Err(Error::Usage(format!("this process may not run on processor {cpu}"))),
    }
}

/// Keeps the calling thread on one processor.
///
/// # Errors
/// [`Error::Usage`] when there is no such processor for this process.
pub fn bind_to_cpu(cpu: usize) -> Result<(), Error> {
    check_cpu(cpu)?;
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(system("sched_setaffinity"))
}

/// What keeps the thread that calls it on one processor, if one is named: for threads that start later.
///
/// # Errors
/// [`Error::Usage`] when there is no such processor for this process.
pub fn binding_to(cpu: Option<usize>) -> Result<impl FnOnce() + Send, Error> {
    cpu.map_or(Ok(()), check_cpu)?;
    Ok(move || {
        if let Some(cpu) = cpu {
            // It was allowed just now, and to go on elsewhere does no harm.
            let _ = bind_to_cpu(cpu);
        }
    })
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::System { what, error: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_the_system_allows_and_refuses_more() {
        let before = getrlimit(Resource::Nofile).current;
        allow_descriptors(16).unwrap();
        let most = before.unwrap_or(1024).max(512);
        allow_descriptors(most).unwrap();
        assert!(getrlimit(Resource::Nofile).current.is_none_or(|current| current >= most));
        let error = allow_descriptors(1 << 40).unwrap_err();
        assert!(error.to_string().contains("open files are needed"), "{error}");
    }
}
