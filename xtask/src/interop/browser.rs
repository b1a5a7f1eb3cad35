//! Chromium as a client: its command line, what it is served, and what it must have seen.
//!
//! Refuses to take its word: the page that it printed must be the one that the server sent.

use std::fs;
use std::path::Path;
use std::process::Command;

use mmtls_testkit::{address, files};

use super::case::Case;
use super::drive::Plaintext;
use super::suite::Version;

/// Bytes of the page.
const PAGE_BYTES: usize = 40_007;

/// Adds the arguments of a visit.
pub fn arguments(command: &mut Command, case: &Case, port: u16, keylog: &Path, directory: &Path) {
    let version = match case.version {
        Version::V12 => "tls1.2",
        Version::V13 => "tls1.3",
    };
    let name = address::SERVER_NAME;
    // The sandbox needs another user than root; the certificates are the testbed's.
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    command.args(["--disable-background-networking", "--no-first-run", "--disable-dev-shm-usage"]);
    command.arg("--ignore-certificate-errors");
    command.arg(format!("--ssl-version-max={version}"));
    command.arg(format!("--host-resolver-rules=MAP {name} {}", address::SERVER_V4));
    command.arg(format!("--ssl-key-log-file={}", keylog.display()));
    command.arg(format!("--user-data-dir={}", directory.join("profile").display()));
    command.args(["--timeout=20000", "--dump-dom"]).arg(format!("https://{name}:{port}/"));
    command.env("HOME", directory);
}

fn page(seed: u64) -> Vec<u8> {
    files::pattern_bytes(PAGE_BYTES, seed)
}

/// Writes the response for every connection that may come.
pub fn write_responses(case: &Case, seed: u64, directory: &Path) -> std::io::Result<()> {
    let body = page(seed);
    let mut response = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    response.extend(body);
    for connection in 0..case.feature.connections() {
        fs::write(directory.join(format!("server-sent.{connection}")), &response)?;
    }
    Ok(())
}

/// The connections that carried something: the request is what the server received.
pub fn sessions(
    case: &Case,
    seed: u64,
    printed: &str,
    directory: &Path,
) -> Result<Vec<Plaintext>, String> {
    let _ = fs::remove_dir_all(directory.join("profile"));
    if !printed.as_bytes().windows(PAGE_BYTES).any(|window| window == page(seed)) {
        return Err("the browser did not show the page".to_owned());
    }
    let mut sessions = Vec::new();
    for connection in 0..case.feature.connections() {
        let client = directory.join(format!("server-received.{connection}"));
        if fs::metadata(&client).is_ok_and(|it| it.len() > 0) {
            let server = directory.join(format!("server-sent.{connection}"));
            sessions.push(Plaintext { client, server });
        }
    }
    if sessions.is_empty() {
        return Err("the server got no request".to_owned());
    }
    Ok(sessions)
}
