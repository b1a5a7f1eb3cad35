//! Chromium as a client of the testbed, and what its pages are made of.
//!
//! Refuses its sandbox, which needs another user than root, and its own certificates: the testbed's are not among them.

use std::path::Path;
use std::process::Command;

use crate::testbed::error::TestbedError;
use crate::testbed::{Testbed, address};

/// A script of so many bytes, of which the last ones count it in `whole`: a page knows what came whole.
#[must_use]
pub fn counted_script(number: usize, bytes: usize) -> Vec<u8> {
    const END: &str = "*/whole++;";
    let mut script = format!("/* {number} ").into_bytes();
    script.resize(bytes.saturating_sub(END.len()), b'x');
    script.extend_from_slice(END.as_bytes());
    script
}

/// Chromium without a window, which writes a key log, and keeps its profile under a name. All names below
/// [`address::SERVER_NAME`] are the server's.
///
/// # Errors
/// [`TestbedError`] where its directory cannot be made.
pub fn chromium(bed: &Testbed, keylog: &Path, profile: &str) -> Result<Command, TestbedError> {
    let mut chromium = bed.client.command("chromium");
    let home = bed.directory().join("chromium");
    std::fs::create_dir_all(&home).map_err(TestbedError::io(&home))?;
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    chromium.args(["--disable-background-networking", "--no-first-run"]);
    chromium.args(["--disable-dev-shm-usage", "--ignore-certificate-errors"]);
    let (name, server) = (address::SERVER_NAME, address::SERVER_V4);
    chromium.arg(format!("--host-resolver-rules=MAP {name} {server}, MAP *.{name} {server}"));
    chromium.arg(format!("--ssl-key-log-file={}", keylog.display()));
    chromium.arg(format!("--user-data-dir={}", home.join(profile).display()));
    chromium.env("HOME", &home);
    Ok(chromium)
}
