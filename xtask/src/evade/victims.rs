//! Honest clients that meet an attacker who is the server.
//!
//! rustls over the kernel's TCP for numbers; curl, which shares its keys or does not, for the named
//! cases. Refuses to trust what the attacker says of itself: the outcome is what the client's
//! application read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mmtls_testkit::address;

use super::attack::Outcome;
use super::lane::Lane;
use super::script::Case;
use super::station::{Job, enter};
use super::tls::{PATTERN, Session, Settings};

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// rustls in this process; shares nothing.
    Rustls,
    /// curl with OpenSSL; shares nothing.
    Curl,
    /// curl that shares its keys, where there is somebody to share them with.
    SharingCurl,
}

impl Victim {
    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rustls => "rustls client",
            Self::Curl => "curl",
            Self::SharingCurl => "curl with keys",
        }
    }
}

/// Time for a connection, with one SYN sent again.
const PATIENCE: Duration = Duration::from_millis(2000);

/// Runs cases with a victim each, so many at a time; outcomes are the victims'.
pub fn run(
    lane: &Lane,
    settings: &Settings,
    cases: &[(Arc<Case>, Victim, bool)],
    parallel: usize,
) -> Result<Vec<Outcome>, String> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![Outcome::Silent; cases.len()]);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..parallel.min(cases.len()) {
            scope.spawn(|| {
                let work = || -> Result<(), String> {
                    enter(&lane.bed.client.path())?;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((case, victim, v6)) = cases.get(at) else { return Ok(()) };
                        let job = lane.listener(case, &at.to_string(), *v6);
                        let outcome = meet(lane, settings, job, *victim)?;
                        results.lock().unwrap_or_else(PoisonError::into_inner)[at] = outcome;
                    }
                };
                if let Err(error) = work() {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn meet(lane: &Lane, settings: &Settings, job: Job, victim: Victim) -> Result<Outcome, String> {
    let at = job.local;
    let attacker = lane.server_side.submit(job)?;
    // The order must be there before the SYN is.
    std::thread::sleep(Duration::from_millis(6));
    let outcome = match victim {
        Victim::Rustls => connect(settings, at, &attacker).unwrap_or_else(Outcome::Refused),
        Victim::Curl | Victim::SharingCurl => curl(lane, at, victim)?,
    };
    let _ = attacker.recv_timeout(Duration::from_millis(5));
    Ok(outcome)
}

fn connect(
    settings: &Settings,
    at: SocketAddr,
    attacker: &Receiver<(usize, Outcome)>,
) -> Result<Outcome, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_millis(100))).map_err(text)?;
    let mut session = Session::new(settings, &Case::default(), "victim")?;
    let mut buffer = [0; 4096];
    let end = Instant::now() + PATIENCE;
    let mut is_over = false;
    loop {
        stream.write_all(&session.output()).map_err(text)?;
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(Outcome::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return Ok(Outcome::Reset);
            }
            Err(_) if is_over || Instant::now() >= end => return Ok(Outcome::Silent),
            Err(_) => {
                // What the attacker has sent last may be on its way still: once more.
                is_over = attacker.try_recv().is_ok();
                continue;
            }
        };
        session.input(&buffer[..count])?;
        if !session.plaintext.is_empty() {
            let text = String::from_utf8_lossy(&session.plaintext).into_owned();
            return Ok(Outcome::Response(text.lines().next().unwrap_or_default().to_owned()));
        }
    }
}

fn curl(lane: &Lane, at: SocketAddr, victim: Victim) -> Result<Outcome, String> {
    let mut command = match (&lane.mmtls, victim) {
        (Some(mmtls), Victim::SharingCurl) => mmtls.sharing(&lane.bed, at.is_ipv6(), &[], "curl"),
        _ => lane.bed.client.command("curl"),
    };
    let host = if at.is_ipv6() { format!("[{}]", at.ip()) } else { at.ip().to_string() };
    command.arg("--resolve").arg(format!("{}:{}:{host}", address::SERVER_NAME, at.port()));
    command.arg("--cacert").arg(&lane.bed.pki().ca);
    command.args(["-sS", "-i", "--http1.1", "--max-time", "3"]);
    command.arg(format!("https://{}:{}/victim", address::SERVER_NAME, at.port()));
    let limit = Duration::from_secs(20);
    let done = lane.bed.run("curl", command, limit).map_err(|error| error.to_string())?;
    let text = done.text();
    let bad = match victim {
        // With keys, the head of a response may come: what must not is the record with the pattern.
        Victim::SharingCurl => text.contains(PATTERN),
        _ => !text.is_empty(),
    };
    Ok(match done.status.code() {
        _ if bad => Outcome::Response(text.lines().next().unwrap_or_default().to_owned()),
        Some(56 | 35) if done.stderr.contains("reset") => Outcome::Reset,
        Some(28) => Outcome::Silent,
        _ => Outcome::Refused(done.stderr.trim().to_owned()),
    })
}
