//! The socket itself: a file with permissions, lines of JSON in and out.
//!
//! Refuses to take the place of a process that lives, or of a file that is no socket; lines beyond 4 KiB, and peers that
//! are slow.

use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use super::Request;
use super::answers::Controls;
use crate::eve::Escaping;
use crate::serve::{Timed, serve};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 8;

const MAX_LINE_BYTES: usize = 4 << 10;

/// Until the next request is there, and until an answer has been taken.
const REQUEST_TIME: Duration = Duration::from_secs(30);
const ANSWER_TIME: Duration = Duration::from_secs(10);

const BUSY: &[u8] = b"{\"ok\":false,\"error\":\"too many connections; try again\"}\n";

/// Who may connect, which is everything that they need: the owner, or its group, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
pub enum SocketMode {
    /// The owner.
    #[default]
    #[serde(rename = "0600")]
    Owner,
    /// Its group, too.
    #[serde(rename = "0660")]
    Group,
}

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process answers there.
    #[error("control socket {0}: another mmtls listens there; end it, or choose another path")]
    InUse(PathBuf),
    /// Something else is there.
    #[error("control socket {0}: that is there and no socket; remove it, or choose another path")]
    NoSocket(PathBuf),
    /// The system says no.
    #[error("control socket {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A socket that listens and answers nobody yet. Its file goes with it.
pub struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
}

/// Removes the file at the end, if it is still ours.
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device, number, and when it was written to, which is when it was made: numbers are used again, and its group may be changed.
type Identity = (u64, u64, i64, i64);

fn identity(file: &std::fs::Metadata) -> Identity {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        let is_ours = found.is_ok_and(|found| identity(&found) == self.identity);
        if is_ours {
            // Without the right to, it is left to the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl ControlSocket {
    /// Whether nothing is at `path` that [`Self::bind`] would refuse to replace. Whether a file can be made there, is another
    /// question.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn check(path: &Path) -> Result<(), SocketError> {
        SocketAddr::from_pathname(path).map_err(|error| SocketError::Io(path.to_owned(), error))?;
        is_left_behind(path).map(drop)
    }

    /// Listens at `path`, whose last directory is created if need be; a socket that nobody listens at any more is replaced.
    /// To be called before there are threads: the mask for new files is the process's.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path, mode: SocketMode) -> Result<Self, SocketError> {
        let system = |error| SocketError::Io(path.to_owned(), error);
        if is_left_behind(path)? {
            std::fs::remove_file(path).map_err(system)?;
        }
        let directory = crate::sandbox::parent(path);
        if !directory.exists() {
            std::fs::create_dir(directory).map_err(system)?;
        }
        // Nobody but the owner from the beginning on.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.map_err(system)?;
        if mode == SocketMode::Group {
            let group = std::fs::Permissions::from_mode(0o660);
            std::fs::set_permissions(path, group).map_err(system)?;
        }
        let found = std::fs::symlink_metadata(path).map_err(system)?;
        let file = SocketFile { path: path.to_owned(), identity: identity(&found) };
        Ok(Self { listener, file })
    }

    /// Answers from here on, on threads that have the privileges of the calling one. The file is removed when what this
    /// returns goes.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(self, controls: Arc<Controls>) -> io::Result<SocketFile> {
        serve(
            "control",
            self.listener,
            MAX_CONNECTIONS,
            BUSY,
            || (),
            move |stream| {
                // The peer is gone, or too slow.
                let _ = converse(stream, &controls);
            },
        )?;
        Ok(self.file)
    }
}

/// Whether there is a socket whose process is gone.
fn is_left_behind(path: &Path) -> Result<bool, SocketError> {
    let system = |error| SocketError::Io(path.to_owned(), error);
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(system(error)),
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(system(error)),
    }
}

fn converse(stream: UnixStream, controls: &Controls) -> io::Result<()> {
    let uid = socket_peercred(&stream).ok().map(|peer| peer.uid.as_raw());
    let mut stream = Timed::new(stream, REQUEST_TIME);
    let mut buffer = [0; MAX_LINE_BYTES];
    let mut len = 0;
    loop {
        if let Some(end) = buffer[..len].iter().position(|byte| *byte == b'\n') {
            let answer = answer(&buffer[..end], uid, controls);
            buffer.copy_within(end + 1..len, 0);
            len -= end + 1;
            stream.allow(ANSWER_TIME);
            write_line(&mut stream, &answer)?;
            stream.allow(REQUEST_TIME);
            continue;
        }
        if len == buffer.len() {
            stream.allow(ANSWER_TIME);
            let error = format!("a request is at most {MAX_LINE_BYTES} bytes");
            return write_line(&mut stream, &json!({"ok": false, "error": error}));
        }
        match stream.read(&mut buffer[len..]) {
            Ok(0) => return Ok(()),
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn answer(line: &[u8], uid: Option<u32>, controls: &Controls) -> Value {
    let answer = serde_json::from_slice::<Request>(line)
        .map_err(|error| format!("no such request: {error}"))
        .and_then(|request| controls.answer(&request, uid));
    match answer {
        Ok(mut answer) => {
            if let Some(object) = answer.as_object_mut() {
                object.insert("ok".to_owned(), true.into());
            }
            answer
        }
        Err(error) => json!({"ok": false, "error": error}),
    }
}

/// What comes from the network is in it, and a terminal may show it.
fn write_line(stream: &mut impl Write, answer: &Value) -> io::Result<()> {
    let mut line = Vec::new();
    answer.serialize(&mut serde_json::Serializer::with_formatter(&mut line, Escaping))?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_place_of_the_dead_and_refuses_that_of_the_living() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/control.sock");
        let socket = ControlSocket::bind(&path, SocketMode::Owner).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        let again = ControlSocket::bind(&path, SocketMode::Owner).err().unwrap();
        assert!(matches!(again, SocketError::InUse(_)), "{again}");
        let ControlSocket { listener, file } = socket;
        // As after a kill -9.
        drop(listener);
        ControlSocket::check(&path).unwrap();
        assert!(path.exists(), "it is looked at, and not removed");
        let next = ControlSocket::bind(&path, SocketMode::Group).unwrap();
        assert_eq!(mode(&path), 0o660);
        drop(file);
        assert!(path.exists(), "it is another one's now");
        drop(next);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        let file = ControlSocket::bind(&path, SocketMode::Owner).err().unwrap();
        assert!(matches!(file, SocketError::NoSocket(_)), "{file}");
        assert!(matches!(ControlSocket::check(&path), Err(SocketError::NoSocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        let long = directory.path().join("x".repeat(108));
        assert!(matches!(ControlSocket::check(&long), Err(SocketError::Io(..))));
    }
}
