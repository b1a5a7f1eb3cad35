//! Honest clients that meet an attacker who is the server.
//!
//! rustls over the kernel's TCP for numbers; curl, which shares its keys or does not, for the named
//! cases. Refuses to trust what the attacker says of itself: the outcome is what the client's
//! application read.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mmtls_testkit::{TestbedError, address};

use super::attack::Outcome;
use super::lane::Lane;
use super::peers;
use super::script::Case;
use super::tls::{PATTERN, Session, Settings, response};
use crate::netns::enter;

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// rustls in this process; shares nothing.
    Rustls,
    /// curl with OpenSSL; shares nothing.
    Curl,
    /// curl that shares its keys, where there is somebody to share them with.
    SharingCurl,
    /// The endpoint of a stack; shares nothing.
    Stack(&'static str),
}

impl Victim {
    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rustls => "rustls client",
            Self::Curl => "curl",
            Self::SharingCurl => "curl with keys",
            Self::Stack("go") => "Go client",
            Self::Stack("java") => "Java client",
            Self::Stack("gnutls") => "GnuTLS client",
            Self::Stack("nss") => "NSS client",
            Self::Stack("wolfssl") => "wolfSSL client",
            Self::Stack("mbedtls") => "mbedTLS client",
            Self::Stack(name) => name,
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
                        let outcome = meet(lane, settings, case, *victim, *v6)?;
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

fn meet(
    lane: &Lane,
    settings: &Settings,
    case: &Arc<Case>,
    victim: Victim,
    v6: bool,
) -> Result<Outcome, String> {
    if case.active {
        return match victim {
            Victim::Rustls => be_called(lane, settings, case, v6),
            _ => Ok(Outcome::Refused("accepts no connections".to_owned())),
        };
    }
    let job = lane.listener(case, None, v6);
    let at = job.local;
    let attacker = lane.server_side.submit(job)?;
    // The order must be there before the SYN is.
    std::thread::sleep(Duration::from_millis(6));
    let outcome = match victim {
        Victim::Rustls => {
            let stream = TcpStream::connect_timeout(&at, PATIENCE);
            let stream = stream.map_err(|error| error.to_string());
            let outcome = stream.and_then(|stream| talk(settings, stream, &attacker));
            outcome.unwrap_or_else(Outcome::Refused)
        }
        Victim::Curl | Victim::SharingCurl => curl(lane, at, victim, case.tls12)?,
        Victim::Stack(name) => endpoint(lane, at, name, case.tls12)?,
    };
    let _ = attacker.recv_timeout(Duration::from_millis(5));
    Ok(outcome)
}

/// The attacker connects, and is the TLS server all the same.
fn be_called(
    lane: &Lane,
    settings: &Settings,
    case: &Arc<Case>,
    v6: bool,
) -> Result<Outcome, String> {
    let text = |error: std::io::Error| error.to_string();
    let own = if v6 { address::CLIENT_V6 } else { address::CLIENT_V4 };
    let own: IpAddr = own.parse().map_err(|error| format!("{own}: {error}"))?;
    let listener = TcpListener::bind((own, 0)).map_err(text)?;
    listener.set_nonblocking(true).map_err(text)?;
    let at = listener.local_addr().map_err(text)?;
    let attacker = lane.server_side.submit(lane.listener(case, Some(at), v6))?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).map_err(text)?;
            let outcome = talk(settings, stream, &attacker);
            return Ok(outcome.unwrap_or_else(Outcome::Refused));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(Outcome::Silent)
}

fn talk(
    settings: &Settings,
    mut stream: TcpStream,
    attacker: &Receiver<(usize, Outcome)>,
) -> Result<Outcome, String> {
    let text = |error: std::io::Error| error.to_string();
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

fn curl(lane: &Lane, at: SocketAddr, victim: Victim, tls12: bool) -> Result<Outcome, String> {
    let mut command = match (&lane.mmtls, victim) {
        (Some(mmtls), Victim::SharingCurl) => mmtls.sharing(&lane.bed, at.is_ipv6(), &[], "curl"),
        _ => lane.bed.client.command("curl"),
    };
    let host = if at.is_ipv6() { format!("[{}]", at.ip()) } else { at.ip().to_string() };
    command.arg("--resolve").arg(format!("{}:{}:{host}", address::SERVER_NAME, at.port()));
    command.arg("--cacert").arg(&lane.bed.pki().ca);
    if tls12 {
        command.args(["--tls-max", "1.2"]);
    }
    command.args(["-sS", "-i", "--http1.1", "--max-time", "3"]);
    command.arg(format!("https://{}:{}/victim", address::SERVER_NAME, at.port()));
    let limit = Duration::from_secs(20);
    let text = |error: TestbedError| error.to_string();
    let mut process = lane.bed.background("curl", command).map_err(text)?;
    // One that waits for ever is judged by what came.
    let status = process.wait(limit).ok();
    let (answer, error) = (process.stdout_text(), process.stderr_text());
    let bad = match victim {
        // With keys, the head of a response may come: what must not is the record with the pattern.
        Victim::SharingCurl => answer.contains(PATTERN),
        _ => !answer.is_empty(),
    };
    Ok(match status.map(|it| it.code()) {
        _ if bad => Outcome::Response(answer.lines().next().unwrap_or_default().to_owned()),
        Some(Some(56 | 35)) if error.contains("reset") => Outcome::Reset,
        None | Some(Some(28)) => Outcome::Silent,
        _ => Outcome::Refused(error.trim().to_owned()),
    })
}

fn endpoint(lane: &Lane, at: SocketAddr, name: &str, tls12: bool) -> Result<Outcome, String> {
    let program = lane.programs.iter().find(|it| it.name == name);
    let Some((executable, arguments)) = program.and_then(|it| it.command.split_first()) else {
        return Err(format!("no {name}"));
    };
    let directory = lane.bed.directory();
    // Every attacker has an address and port of its own.
    let unique = format!("{name}-{}-{}", at.ip(), at.port()).replace(':', "_");
    let send = directory.join("request");
    let received = directory.join(unique);
    let text = |error: std::io::Error| error.to_string();
    let request = "GET /victim HTTP/1.1\r\nHost: server.test\r\n\r\n";
    std::fs::write(send.with_extension("0"), request).map_err(text)?;
    let mut command = lane.bed.client.command(executable);
    command.env_remove("SSLKEYLOGFILE").args(arguments).arg("client");
    command.arg(format!("host={}", at.ip())).arg(format!("port={}", at.port()));
    command.arg(format!("send={}", send.display()));
    command.arg(format!("received={}", received.display()));
    command.arg(format!("expect={}", response().len()));
    command.arg(format!("ca={}", lane.bed.pki().ca.display()));
    command.arg(peers::version_argument(name, tls12));
    let finished = lane.bed.run(name, command, Duration::from_secs(6));
    let got = std::fs::read(format!("{}.0", received.display())).unwrap_or_default();
    let _ = std::fs::remove_file(format!("{}.0", received.display()));
    if !got.is_empty() {
        let text = String::from_utf8_lossy(&got).into_owned();
        return Ok(Outcome::Response(text.lines().next().unwrap_or_default().to_owned()));
    }
    // One that waits for ever was ended.
    let Ok(finished) = finished else { return Ok(Outcome::Silent) };
    Ok(Outcome::Refused(finished.stderr.trim().to_owned()))
}
