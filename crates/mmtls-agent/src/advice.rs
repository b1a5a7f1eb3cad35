//! What can be said about a program that shared nothing, by a look at its executable.
//!
//! Refuses to be certain: it looks for names, which may be there for other reasons.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use memchr::memmem;

/// So much of an executable is looked at: names of libraries stand near the start, and few are larger.
const MOST: u64 = 64 << 20;

/// By what an executable is known, in this order, and what helps there.
const KNOWN: [(&[u8], &str); 6] = [
    (
        b"#!",
        "it is a script: what it starts has to use OpenSSL and leave LD_PRELOAD as it is, or to write a key log to SSLKEYLOGFILE",
    ),
    (
        b"\xff Go buildinf:",
        "it is written in Go, which has its own TLS: let it write a key log to SSLKEYLOGFILE (KeyLogWriter in its tls.Config)",
    ),
    (
        b"libssl.so",
        "it can use OpenSSL: perhaps it made no TLS connection, or another process did that was there before",
    ),
    (
        b"libgnutls.so",
        "it uses GnuTLS, whose keys come by key log: perhaps it made no TLS connection, or --exempt or an SSLKEYLOGFILE of its own is in the way",
    ),
    (
        b"libnss3.so",
        "it uses NSS, whose keys come by key log: perhaps it made no TLS connection, or --exempt or an SSLKEYLOGFILE of its own is in the way",
    ),
    (
        b"OpenSSL ",
        "OpenSSL is built into it, where nothing can be put in front: let it write a key log to SSLKEYLOGFILE",
    ),
];
const UNKNOWN: &str = "it names no TLS library: where one of its libraries uses OpenSSL, perhaps it made no TLS connection; else let it write a key log to SSLKEYLOGFILE";

/// What to try for a program that shared nothing.
pub(crate) fn advice(program: &OsStr) -> &'static str {
    let mut bytes = Vec::new();
    let read = find(program)
        .and_then(|path| File::open(path).ok())
        .and_then(|file| file.take(MOST).read_to_end(&mut bytes).ok());
    let Some(_) = read else {
        return UNKNOWN;
    };
    let is_there = |mark: &[u8]| match mark {
        b"#!" => bytes.starts_with(mark),
        _ => memmem::find(&bytes, mark).is_some(),
    };
    KNOWN.iter().find(|(mark, _)| is_there(mark)).map_or(UNKNOWN, |(_, advice)| advice)
}

/// Where a program is, as the system looks for it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|it| it.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_programs_by_what_is_in_them() {
        let directory = std::env::temp_dir().join(format!("mmtls-advice-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("program");
        for (content, words) in [
            (&b"#!/bin/sh\nlibssl.so"[..], "script"),
            (b"\x7fELF..\xff Go buildinf:..OpenSSL 3", "Go"),
            (b"\x7fELF..libgnutls.so.30\0", "GnuTLS"),
            (b"\x7fELF..OpenSSL 3.0.1", "built into it"),
            (b"\x7fELF..libssl.so.3..OpenSSL 3.0.1", "no TLS connection"),
            (b"\x7fELF", "names no TLS library"),
        ] {
            std::fs::write(&path, content).unwrap();
            assert!(advice(path.as_os_str()).contains(words), "{words}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(advice(path.as_os_str()), UNKNOWN);
        assert!(find(OsStr::new("sh")).is_some() && find(OsStr::new("no-such-program")).is_none());
    }
}
