//! `mmtls exec` and `mmtls agent` as processes, over loopback.

mod agent;
mod common;
mod exec;
