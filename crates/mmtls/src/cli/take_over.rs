//! An upgrade: a run that is ready to start has the one before it end, and takes its place.
//!
//! What takes long (rules, patterns, certificates) is read while the other one still moves frames; between its last frame and
//! the first one here, nothing is forwarded, and sessions that were followed are followed on once their endpoints have sent
//! their keys again. Refuses to end a run before that, and before all is free that the other one does not have itself.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mmtls::config::File;
use mmtls::control::{ControlSocket, DrainTime, Nothing, Request};
use mmtls_keyshare::server::check_address;
use mmtls_middlebox::{Error, Settings};
use mmtls_packet_io::af_packet::refuse_bridged;
use serde_json::Value;

use super::say::say;

/// Until the other one has answered, and until it has gone: it writes first what it has of its log.
const TIME: Duration = Duration::from_secs(20);

const MAX_ANSWER: u64 = 64 << 10;

/// Nothing is in the place of a run that has ended. Says so when it goes without having been filled: nobody else may notice.
pub struct Vacancy {
    told: Option<String>,
}

impl Vacancy {
    /// Somebody is there again.
    pub fn fill(mut self) {
        self.told = None;
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        if let Some(text) = self.told.take() {
            say(&text);
        }
    }
}

/// Finds what would keep this run from starting once the one at the socket has ended: a file that it may be writing, and that
/// would be put aside when it is opened here; an address or a socket at which somebody else listens; an interface that somebody
/// else bridges.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(socket: &Path, file: &File, settings: &Settings) -> Result<(), Error> {
    for (key, path) in [("mirror.file", &file.mirror.file), ("capture.file", &file.capture.file)] {
        if let Some(path) = path.as_ref().filter(|it| it.is_file()) {
            let text = format!("{} may be written there: name another {key}", path.display());
            return Err(wrong(socket, &text));
        }
    }
    let status = status(socket).map_err(|error| wrong(socket, &error))?;
    let bridge = &settings.bridge;
    let bridges = |name: &str| {
        status["interfaces"].as_array().is_some_and(|all| all.iter().any(|it| it == name))
    };
    let ours = [Some(&bridge.left), bridge.right.as_ref()].into_iter().flatten();
    let others = ours.map(String::as_str).filter(|name| !bridge.passive && !bridges(name));
    refuse_bridged(others).map_err(|error| wrong(socket, &error))?;
    let theirs = status["listens"].as_array();
    let theirs: Option<Vec<SocketAddr>> =
        theirs.map(|all| all.iter().filter_map(|it| it.as_str()?.parse().ok()).collect());
    for (what, address) in [
        ("keys", Some(settings.server.listen)),
        ("metrics", file.metrics.listen),
        ("page", file.web.listen),
    ] {
        let Some(address) = address.filter(|it| it.port() != 0) else { continue };
        let Err(error) = check_address(address) else { continue };
        let is_theirs = error.kind() == ErrorKind::AddrInUse
            && theirs.as_ref().is_none_or(|all| all.iter().any(|it| meet(*it, address)));
        if !is_theirs {
            let text = format!("{what} on {address}: {error}, and not by the run there");
            return Err(wrong(socket, &text));
        }
    }
    match &file.control.socket {
        Some(path) if !is_same(path, socket) => {
            ControlSocket::check(path).map_err(|error| wrong(socket, &error))
        }
        _ => Ok(()),
    }
}

/// What the run at a socket says of itself; nobody has no address. Of a version that does not say where it listens, that is missing.
fn status(socket: &Path) -> io::Result<Value> {
    let Some(stream) = connect(socket)? else { return Ok(serde_json::json!({"listens": []})) };
    ask(&mut BufReader::new(stream), &Request::Status(Nothing::default()))
}

/// Whether nobody can listen at one while somebody does at the other one.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (is_any || one.ip().to_canonical() == other.ip().to_canonical())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let [real, other_real] = [one, other].map(|it| it.canonicalize().ok());
    one == other || (real.is_some() && real == other_real)
}

/// `None` where nobody runs.
fn connect(socket: &Path) -> io::Result<Option<UnixStream>> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    Ok(Some(stream))
}

fn wrong(socket: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("--take-over {}: {what}", socket.display()))
}

/// Ends the run that answers at a socket, and waits until it is gone; done where nobody does. `without`: what becomes of traffic
/// while none is there.
///
/// # Errors
/// [`Error::Usage`]; the other one may still be there.
pub fn take_over(socket: &Path, without: &str) -> Result<Vacancy, Error> {
    let at = format!("--take-over {}", socket.display());
    let Some(stream) = connect(socket).map_err(|error| wrong(socket, &error))? else {
        say(&format!("{at}: nobody runs there"));
        return Ok(Vacancy { told: None });
    };
    end(stream).map_err(|error| wrong(socket, &error))?;
    say(&format!("{at}: the run there has ended"));
    let told = format!("{at}: the run there has ended, and this one does not start: {without}");
    Ok(Vacancy { told: Some(told) })
}

fn ask(reader: &mut BufReader<UnixStream>, request: &Request) -> io::Result<Value> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    reader.get_mut().write_all(&line)?;
    let mut answer = String::new();
    reader.by_ref().take(MAX_ANSWER).read_line(&mut answer)?;
    let answer: Value = serde_json::from_str(&answer)?;
    if answer["ok"] != true {
        let why = answer["error"].as_str().unwrap_or("it does not answer");
        return Err(io::Error::other(why.escape_debug().to_string()));
    }
    Ok(answer)
}

fn end(stream: UnixStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    ask(&mut reader, &Request::Drain(DrainTime { timeout_seconds: Some(0) }))?;
    // The end of the process closes it, with all that it listens at.
    loop {
        match reader.read(&mut [0; 64]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
