//! Giving up what the process does not need: core dumps, ptrace, new privileges, capabilities.
//!
//! Refuses to run on without having done so.

use std::num::NonZeroU64;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_current_timer_slack, set_no_new_privs,
};

use crate::Error;

/// No core dumps and no debugger of the same user: keys live in this memory.
///
/// # Errors
/// [`Error::System`].
pub fn forbid_dumps() -> Result<(), Error> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("PR_SET_DUMPABLE"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(system("RLIMIT_CORE"))
}

/// Drops every capability. Call it once sockets and files are open and before threads start:
/// capabilities belong to a thread and are inherited.
///
/// # Errors
/// [`Error::System`].
pub fn drop_capabilities() -> Result<(), Error> {
    set_no_new_privs(true).map_err(system("PR_SET_NO_NEW_PRIVS"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(system("capset"))
}

/// Lets this thread sleep for microseconds: the usual slack of 50 would be most of such a sleep.
///
/// # Errors
/// [`Error::System`].
pub fn precise_timers() -> Result<(), Error> {
    set_current_timer_slack(NonZeroU64::new(1)).map_err(system("PR_SET_TIMERSLACK"))
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |error| Error::System { what, error: error.into() }
}
