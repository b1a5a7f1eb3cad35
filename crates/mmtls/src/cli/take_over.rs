//! An upgrade: a run that is ready to start has the one before it end, and takes its place.
//!
//! What takes long (rules, patterns, certificates) is read while the other one still moves frames; between its last frame and
//! the first one here, nothing is forwarded, and sessions that were followed are followed on once their endpoints have sent
//! their keys again. Refuses to end a run before that.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mmtls::config::File;
use mmtls::control::{DrainTime, Request};
use mmtls_middlebox::Error;
use serde_json::Value;

use super::say::say;

/// Until the other one has answered, and until it has gone: it writes first what it has of its log.
const TIME: Duration = Duration::from_secs(20);

const MAX_ANSWER: u64 = 4 << 10;

/// Finds a file that the run at the socket may be writing, and that would be put aside when it is opened here.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(socket: &Path, file: &File) -> Result<(), Error> {
    for (key, path) in [("mirror.file", &file.mirror.file), ("capture.file", &file.capture.file)] {
        if let Some(path) = path.as_ref().filter(|it| it.is_file()) {
            let text = format!("{} may be written there: name another {key}", path.display());
            return Err(wrong(socket, &text));
        }
    }
    Ok(())
}

fn wrong(socket: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("--take-over {}: {what}", socket.display()))
}

/// Ends the run that answers at a socket, and waits until it is gone; done where nobody does.
///
/// # Errors
/// [`Error::Usage`]; the other one may still be there.
pub fn take_over(socket: &Path) -> Result<(), Error> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            say(&format!("--take-over {}: nobody runs there", socket.display()));
            return Ok(());
        }
        Err(error) => return Err(wrong(socket, &error)),
    };
    end(stream).map_err(|error| wrong(socket, &error))?;
    say(&format!("--take-over {}: the run there has ended", socket.display()));
    Ok(())
}

fn end(mut stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    let request = Request::Drain(DrainTime { timeout_seconds: Some(0) });
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reader = BufReader::new(stream);
    let mut answer = String::new();
    reader.by_ref().take(MAX_ANSWER).read_line(&mut answer)?;
    let answer: Value = serde_json::from_str(&answer)?;
    if answer["ok"] != true {
        let why = answer["error"].as_str().unwrap_or("it does not end");
        return Err(io::Error::other(why.escape_debug().to_string()));
    }
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
