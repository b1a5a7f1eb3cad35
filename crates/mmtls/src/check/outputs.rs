//! Whether what a monitor writes could be written, and whether it could be asked where it is to answer.
//!
//! Refuses to open what somebody else reads: a FIFO's reader would take that for the end.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use mmtls_keyshare::server::check_address;
use mmtls_middlebox::{Error, harden};
use mmtls_packet_io::Error as PortsError;

use super::directory;
use super::problem::{Findings, Severity, told};
use crate::config::File;
use crate::control::ControlSocket;
use crate::eve::{self, outputs::settings::OutputSection};
use crate::mirror::{self, MirrorConfig, OpenError};
use crate::sandbox::parent;
use crate::web::Token;

/// The log directory: it is used before capabilities are given up, and again when the log is rotated.
pub(super) fn logs(dir: &Path, rotates: bool, found: &mut Findings<'_>) {
    let check =
        || directory::check(dir).and_then(|()| directory::check_file(&dir.join("eve.json")));
    let key = "log.directory";
    if let Err(error) = check() {
        let text = format!("log directory {}: {error}", dir.display());
        return found.add(Severity::Fatal, key, &text);
    }
    match harden::without_capabilities(check) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let (severity, what) = match rotates {
                true => (Severity::Fatal, "eve.json cannot be rotated"),
                false => (Severity::Warning, "eve.json cannot be opened anew (SIGHUP)"),
            };
            let text = format!(
                "log directory {}: {error}, once capabilities are given up: {what} unless this user owns it",
                dir.display()
            );
            found.add(severity, key, &text);
        }
        Err(error) => found.add(Severity::Fatal, "", &error),
    }
}

/// One of `log.outputs`: whoever listens may come later, and a password has to be there.
pub(super) fn consumer(section: &OutputSection, found: &mut Findings<'_>) {
    let (key, name) = ("log.outputs", section.name());
    match eve::outputs::check(section) {
        Ok(None) => {}
        Ok(Some(_)) => {
            let text = format!(
                "{name}: there is no such socket yet: events wait until somebody listens there"
            );
            found.add(Severity::Warning, key, &text);
        }
        Err(error) => found.add(Severity::Fatal, key, &format!("{name}: {error}")),
    }
}

/// The directory of streams.
pub(super) fn streams(dir: &Path, found: &mut Findings<'_>) {
    let hint = "files come into it after capabilities are given up: let this user own it";
    let text =
        |error: &dyn Display| format!("streams directory {}: {error} ({hint})", dir.display());
    let check = || directory::check(dir);
    powerless("log.streams_directory", check, &text, found);
}

/// The mirror's interface and file.
pub(super) fn mirrored(config: &MirrorConfig, found: &mut Findings<'_>) {
    match mirror::check_interface(config) {
        // Without that right, the bridge's own interfaces cannot be opened, which is told of them.
        Ok(()) | Err(OpenError::Interface(PortsError::NotPermitted)) => {}
        Err(OpenError::Interface(error)) => {
            found.add(Severity::Fatal, "mirror.interface", &told(&Error::Interface(error)));
        }
        Err(error) => found.add(Severity::Fatal, "mirror.interface", &error),
    }
    if let Some(path) = &config.file {
        packets("mirror", path, "mirror.file", found);
    }
}

/// A pcapng file, and those that come beside it.
pub(super) fn packets(what: &str, path: &Path, key: &str, found: &mut Findings<'_>) {
    match mirror::check_file(path) {
        Ok(()) => {}
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => ": its directory has to be there before",
                _ => "",
            };
            let text = format!("{what} file {}: {error}{remedy}", path.display());
            return found.add(Severity::Fatal, key, &text);
        }
    }
    let hint = "further files come beside it after capabilities are given up: let this user own the directory";
    let text = |error: &dyn Display| format!("{what} file {}: {error} ({hint})", path.display());
    powerless(key, || mirror::check_directory(path), &text, found);
}

/// Where metrics, the page and the control socket are.
pub(super) fn services(file: &File, keys_listen: SocketAddr, found: &mut Findings<'_>) {
    let keys = (Some(keys_listen), "keys are taken at this address (keys.listen)");
    let metrics = (file.metrics.listen, "metrics are served at this address (metrics.listen)");
    for (listen, key, what, taken) in [
        (file.metrics.listen, "metrics.listen", "metrics", &[keys][..]),
        (file.web.listen, "web.listen", "page", &[keys, metrics]),
    ] {
        let Some(address) = listen else { continue };
        let is_same = |(other, _): &&(Option<SocketAddr>, &str)| {
            *other == Some(address) && address.port() != 0
        };
        let text = match taken.iter().find(is_same) {
            Some((_, who)) => Err(format!("{who}: choose another port")),
            None => check_address(address).map_err(|error| error.to_string()),
        };
        if let Err(text) = text {
            found.add(Severity::Fatal, key, &format!("{what} on {address}: {text}"));
        }
    }
    if let (Some(path), Some(_)) = (&file.web.token_file, file.web.listen) {
        let parent = parent(path);
        let error = match Token::read(path) {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match parent.is_dir() {
                true => directory::check(parent).err(),
                false => Some(error),
            },
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            let text = format!("token file {}: {error}", path.display());
            found.add(Severity::Fatal, "web.token_file", &text);
        }
    }
    if let Some(path) = &file.control.socket {
        let key = "control.socket";
        if let Err(error) = ControlSocket::check(path) {
            return found.add(Severity::Fatal, key, &error);
        }
        let told = |error: io::Error, remedy: &str| {
            format!("control socket {}: {error} ({remedy})", path.display())
        };
        let directory = parent(path);
        // Of the directories the last one is made.
        if !directory.exists() && !parent(directory).exists() {
            let remedy = format!("mkdir -p {}", directory.display());
            let text = told(io::ErrorKind::NotFound.into(), &remedy);
            found.add(Severity::Fatal, key, &text);
        } else if let Err(error) = directory::check(directory) {
            let remedy = "let this user own the directory; systemd: RuntimeDirectory=mmtls";
            found.add(Severity::Fatal, key, &told(error, remedy));
        }
    }
}

/// What is done once there are no capabilities any more.
fn powerless(
    key: &str,
    check: impl FnOnce() -> io::Result<()> + Send,
    text: &dyn Fn(&dyn Display) -> String,
    found: &mut Findings<'_>,
) {
    match harden::without_capabilities(check) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => found.add(Severity::Fatal, key, &text(&error)),
        Err(error) => found.add(Severity::Fatal, "", &error),
    }
}
