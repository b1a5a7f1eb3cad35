//! Connections that began before mmTLS did: `mid_stream = "bypass"` lets them pass, `"reset"` ends them,
//! whatever an attacker among them sends to look like a new one.
//!
//! ```text
//!  first mmTLS   TCP connections are opened, honest ones are used
//!  second one    honest ones go on; attackers send their trick, then the ClientHello
//! ```
//! Refuses to depend on the grace after the start: it is 0.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions, Testbed, address};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::attack::Outcome;
use super::honest::{PLAIN_PORT, echo_address};
use super::lane::Lane;
use super::peers::{self, Program};
use super::script::Case;
use super::tls;
use crate::netns::enter;

/// What attackers do on a connection that is open when mmTLS starts: a name and a script.
pub const TRICKS: &[(&str, &str)] = &[
    ("plain", ""),
    ("syn-lost", "send S lost; "),
    ("syn-other-lost", "send S seq=70000000 lost; "),
    ("syn", "send S; "),
    ("syn-ack-lost", "send SA seq=-1 ack=0 lost; "),
    ("syn-ack-data-lost", "send SA seq=-1 ack=0 data=fill*10 lost; "),
    (
        "peer-syn-ack-lost",
        "send S lost; send SA seq=-1 ack=0 as=peer lost; send A seq=0 ack=0 lost; ",
    ),
    ("rst-lost", "send R lost; "),
    ("fin-lost", "send FA lost; "),
    ("rst-syn-lost", "send R lost; pause 20; send S lost; "),
    ("old-decoy", "send PA seq=-1000 data=decoy; "),
    ("old-decoy-lost", "send PA seq=-1000 data=decoy lost; "),
    ("peer-data-lost", "send PA data=fill*5 as=peer lost; "),
    ("peer-hello-lost", "send PA data=shello+open as=peer lost; "),
    ("empty-first", "send A; pause 20; "),
    ("old-byte", "send A seq=-1 data=fill*1; "),
    ("urgent-lost", "send PAU urg=1 data=fill*1 lost; "),
];

/// What came of it.
#[derive(Default)]
pub struct Findings {
    pub tried: usize,
    /// Attacks that got an answer where they must not.
    pub escapes: Vec<String>,
    /// Honest connections that did not fare as the policy says.
    pub harm: Vec<String>,
    pub unharmed: usize,
}

/// Runs it: against one server, at both versions where it has them.
pub fn run(program: &Program, binaries: &Path, seed: u64) -> Result<Findings, String> {
    let mut findings = Findings::default();
    let works = one(program, binaries, seed, "bypass", &mut findings)?;
    let passed = one(program, binaries, seed, "reset", &mut findings)?;
    for (at, name) in passed {
        findings.escapes.push(format!("mid-stream/{name}: {}", TRICKS[at % TRICKS.len()].1));
    }
    if !works.iter().any(|(at, _)| TRICKS[at % TRICKS.len()].0 == "plain") {
        return Err("void: mid_stream = \"bypass\" lets nobody pass".to_owned());
    }
    println!(
        "evade: {} attacks on connections of before: {} pass with mid_stream = \"bypass\", {} escaped \"reset\"",
        findings.tried / 2,
        works.len(),
        findings.escapes.len()
    );
    Ok(findings)
}

/// The attacks that were answered: number and name.
fn one(
    program: &Program,
    binaries: &Path,
    seed: u64,
    policy: &str,
    findings: &mut Findings,
) -> Result<Vec<(usize, String)>, String> {
    let mut first = |_: &Testbed, mut options: MmtlsOptions| {
        options.missing_keys = "forward".to_owned();
        Ok(options)
    };
    let programs = std::slice::from_ref(program);
    let mut lane = Lane::start(programs, Some(binaries), &mut first, (seed, false))?;
    let before = lane.mmtls.take().ok_or("no mmTLS")?;
    let mut jobs = vec![];
    let mut names = vec![];
    let families: &[bool] = if lane.bed.has_ipv6() { &[false, true] } else { &[false] };
    for (tls12, v6) in
        peers::versions(program.name, false).flat_map(|it| families.iter().map(move |v6| (it, *v6)))
    {
        for (name, trick) in TRICKS {
            let script = format!("stream connected; send A; pause 4000; {trick}stream");
            let case = Arc::new(Case { tls12, ..script.parse()? });
            jobs.push(lane.job(&case, peers::address(program.name, tls12, v6))?);
            names.push(format!("{name} {} {}", program.name, if tls12 { "1.2" } else { "1.3" }));
        }
    }
    findings.tried += jobs.len();
    let namespace = lane.bed.client.path();
    let mut streams = std::thread::scope(|scope| {
        let open = || {
            enter(&namespace)?;
            let all = families.iter().flat_map(|v6| [false, true].map(|tls| open(&lane, *v6, tls)));
            all.collect::<Result<Vec<_>, String>>()
        };
        scope.spawn(open).join().unwrap_or_else(|_| Err("a thread has panicked".to_owned()))
    })?;
    let (outcomes, now) = std::thread::scope(|scope| {
        let attackers = scope.spawn(|| lane.client_side.run(jobs, usize::MAX));
        std::thread::sleep(Duration::from_millis(1500));
        let second = || {
            before.stop().map_err(|error| error.to_string())?;
            let mut options = MmtlsOptions::new(binaries);
            options.log = false;
            if policy == "bypass" {
                // A ClientHello is seen wherever it comes.
                options.missing_keys = "forward".to_owned();
            }
            options.config = Some(format!(
                "[policies]\nmid_stream = \"{policy}\"\n[limits]\nmid_stream_grace_seconds = 0\n"
            ));
            Mmtls::start(&lane.bed, &options).map_err(|error| error.to_string())
        };
        let now = second();
        (attackers.join(), now)
    });
    let outcomes = outcomes.map_err(|_| "a thread has panicked")??;
    for stream in &mut streams {
        let went_on = there_and_back(&mut **stream);
        if went_on.is_ok() == (policy == "bypass") {
            findings.unharmed += 1;
        } else {
            findings.harm.push(format!("mid_stream = \"{policy}\": {went_on:?}"));
        }
    }
    now?.stop().map_err(|error| error.to_string())?;
    let answered = |it: &(usize, Outcome)| it.1.is_success();
    let answered = outcomes.into_iter().enumerate().filter(answered);
    Ok(answered.map(|(at, _)| (at, names[at].clone())).collect())
}

/// Both kinds of connection.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// An honest connection, and its first words.
fn open(lane: &Lane, v6: bool, tls: bool) -> Result<Box<dyn Stream>, String> {
    let text = |error: std::io::Error| error.to_string();
    let to = echo_address(v6, if tls { 443 } else { PLAIN_PORT });
    let tcp = TcpStream::connect_timeout(&to, Duration::from_secs(4)).map_err(text)?;
    tcp.set_read_timeout(Some(Duration::from_secs(3))).map_err(text)?;
    let mut stream: Box<dyn Stream> = if tls {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = Arc::new(tls::client_config(lane.bed.pki(), provider)?);
        let name = ServerName::try_from(address::SERVER_NAME).map_err(|e| e.to_string())?;
        let session = ClientConnection::new(config, name).map_err(|error| error.to_string())?;
        Box::new(StreamOwned::new(session, tcp))
    } else {
        Box::new(tcp)
    };
    there_and_back(&mut *stream)?;
    Ok(stream)
}

fn there_and_back(stream: &mut dyn Stream) -> Result<(), String> {
    let mut back = [0; 5];
    stream.write_all(b"words").map_err(|error| error.to_string())?;
    stream.flush().map_err(|error| error.to_string())?;
    stream.read_exact(&mut back).map_err(|error| error.to_string())?;
    if back == *b"words" { Ok(()) } else { Err("other bytes came back".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_trick() {
        for (name, script) in TRICKS {
            assert!(script.parse::<Case>().is_ok(), "{name}");
        }
    }
}
