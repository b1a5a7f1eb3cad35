//! Threads inside the testbed's namespaces: what opens sockets there without a program of its own.
//!
//! Refuses to come back: such a thread ends with its work.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Moves the calling thread into a network namespace.
pub fn enter(namespace: &Path) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| format!("{}: {error}", namespace.display());
    let handle = File::open(namespace).map_err(|error| text(&error))?;
    move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| text(&error))
}
