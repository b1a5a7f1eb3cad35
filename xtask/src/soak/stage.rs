//! Where the soak takes place: namespaces, bad links, servers, and what they serve.
//!
//! Refuses to build anything without both links: a soak over good ones would say little.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use mmtls_testkit::{
    Background, Identity, KeyType, Middle, Namespace, Nginx, NginxOptions, Testbed, TestbedError,
    address, files,
};
use serde::Serialize;

use super::SoakArgs;
use crate::bench::facts::said;
use crate::impair::{Badness, Links};

/// Where programs that share nothing connect from.
pub const KEYLESS: &str = "10.77.0.22";
/// What a frame that is late is late by, at most.
const LONGEST: Duration = Duration::from_millis(5);
/// Of the server behind nginx.
const BEHIND_PORT: u16 = 8080;
/// Rules beside the one that matches, so that a reload has something to do.
const OTHER_RULES: usize = 300;

const SERVER: &str = include_str!("../../soak/server.py");
const CLIENT: &str = include_str!("../../soak/client.py");

/// Name, bytes, and how often clients ask for it. The first one has a rule.
const OBJECTS: [(&str, u64, u32); 6] = [
    ("marked", 1000, 3),
    ("1k", 1000, 32),
    ("16k", 16_000, 30),
    ("100k", 100_000, 22),
    ("1m", 1_000_000, 10),
    ("10m", 10_000_000, 3),
];

/// What clients need to know of an object.
#[derive(Clone, Debug, Serialize)]
pub struct Object {
    bytes: u64,
    sha256: String,
    weight: u32,
}

/// Frames of both links.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LinkCounts {
    pub frames: u64,
    pub lost: u64,
    pub late: u64,
}

/// Of an end's kernel.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TcpCounts {
    pub segments_sent: u64,
    pub retransmitted: u64,
    pub timeouts: u64,
    /// Segments that came before others that they follow.
    pub out_of_order: u64,
}

impl TcpCounts {
    /// What has come since another reading.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            segments_sent: self.segments_sent - before.segments_sent,
            retransmitted: self.retransmitted - before.retransmitted,
            timeouts: self.timeouts - before.timeouts,
            out_of_order: self.out_of_order - before.out_of_order,
        }
    }

    fn read(place: &Namespace) -> Result<Self, String> {
        let text = place.shell("cat /proc/net/snmp /proc/net/netstat").map_err(text)?;
        let said = String::from_utf8_lossy(&text.stdout).into_owned();
        Ok(Self {
            segments_sent: value(&said, "Tcp:", "OutSegs"),
            retransmitted: value(&said, "Tcp:", "RetransSegs"),
            timeouts: value(&said, "TcpExt:", "TCPTimeouts"),
            out_of_order: value(&said, "TcpExt:", "TCPOFOQueue"),
        })
    }
}

/// A value of two lines, names and numbers, with the same first word; 0 where the kernel does not have it.
fn value(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.split(' ').next() == Some(group));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let at = names.split(' ').position(|it| it == name);
    at.and_then(|at| values.split(' ').nth(at)?.parse().ok()).unwrap_or(0)
}

pub fn text(error: TestbedError) -> String {
    error.to_string()
}

/// All of it; ends with this value.
pub struct Stage {
    // In this order.
    links: Links,
    _nginx: Nginx,
    _behind: Background,
    /// Two of the middlebox.
    identities: [Identity; 2],
    objects: BTreeMap<&'static str, Object>,
    results: PathBuf,
    client: PathBuf,
    pub binaries: PathBuf,
    pub bed: Testbed,
}

impl Stage {
    /// Builds it.
    pub fn build(args: &SoakArgs) -> Result<Self, String> {
        // nginx tells that itself.
        for program in ["python3", "curl"] {
            if said(program, &["--version"]) == "unknown" {
                return Err(format!("{program} is not installed"));
            }
        }
        let bed = Testbed::new(Middle::Empty).map_err(text)?;
        bed.client.ip(&format!("addr add {KEYLESS}/24 dev eth0\n")).map_err(text)?;
        let badness = Badness { lost: args.lost, late: args.late, twice: 0, longest: LONGEST };
        let links = Links::install(&bed, badness, args.seed)?;
        let behind = start_behind(&bed)?;
        let nginx = Nginx::start(&bed, server_options()).map_err(text)?;
        let mut objects = BTreeMap::new();
        for (seed, (name, bytes, weight)) in (1..).zip(OBJECTS) {
            let path = nginx.root().join(name);
            files::pattern(&path, bytes, seed).map_err(text)?;
            let content = std::fs::read(&path).map_err(|error| error.to_string())?;
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &content);
            let sha256 = base16ct::lower::encode_string(digest.as_ref());
            objects.insert(name, Object { bytes, sha256, weight });
        }
        let (results, client) =
            (bed.directory().join("results.jsonl"), bed.directory().join("client.py"));
        for (path, content) in [(&results, ""), (&client, CLIENT)] {
            write(path, content.as_bytes())?;
        }
        let stage = Self {
            links,
            _nginx: nginx,
            _behind: behind,
            identities: identities(&bed)?,
            objects,
            results,
            client,
            binaries: crate::binaries()?,
            bed,
        };
        stage.choose(0)?;
        Ok(stage)
    }

    /// Has one of two versions of what a reload reads stand in the files: rules, certificate and key.
    pub fn choose(&self, version: usize) -> Result<(), String> {
        let pki = &self.bed.pki().middlebox;
        let identity = &self.identities[version % 2];
        replace(&pki.certificate, &read(&identity.certificate)?)?;
        replace(&pki.key, &read(&identity.key)?)?;
        replace(&self.rules(), rules(version).as_bytes())
    }

    /// The monitor's configuration, of either version, where a reload reads that, too.
    pub fn config(&self, version: usize) -> String {
        format!(
            "[policies]\nbypass = [\"192.0.2.{}:443\"]\n[inspect]\nrules_files = [\"{}\"]\n\
             [log]\nstats_interval_seconds = 5\n",
            version % 2 + 1,
            self.rules().display()
        )
    }

    fn rules(&self) -> PathBuf {
        self.bed.directory().join("soak.rules")
    }

    /// Where clients write what they have done.
    pub fn results(&self) -> &Path {
        &self.results
    }

    /// The clients' program.
    pub fn client(&self) -> &Path {
        &self.client
    }

    /// What is served.
    pub fn objects(&self) -> &BTreeMap<&'static str, Object> {
        &self.objects
    }

    /// What the links have done so far.
    pub fn links(&self) -> LinkCounts {
        let counts = &self.links.counts;
        LinkCounts {
            frames: counts.frames.load(Ordering::Relaxed),
            lost: counts.lost.load(Ordering::Relaxed),
            late: counts.late.load(Ordering::Relaxed),
        }
    }

    /// What TCP has done so far, at the clients and at the servers.
    pub fn tcp(&self) -> Result<[TcpCounts; 2], String> {
        Ok([TcpCounts::read(&self.bed.client)?, TcpCounts::read(&self.bed.server)?])
    }
}

fn server_options() -> NginxOptions {
    NginxOptions {
        http2: true,
        extra: format!(
            "client_max_body_size 16m;\nlocation = /hash {{ proxy_pass http://127.0.0.1:{BEHIND_PORT}; }}\n\
             location = /websocket {{ proxy_pass http://127.0.0.1:{BEHIND_PORT}; proxy_http_version 1.1; \
             proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; \
             proxy_read_timeout 120s; }}"
        ),
        ..NginxOptions::default()
    }
}

fn start_behind(bed: &Testbed) -> Result<Background, String> {
    let path = bed.directory().join("server.py");
    write(&path, SERVER.as_bytes())?;
    let mut command = bed.server.command("python3");
    command.arg(&path).arg(BEHIND_PORT.to_string());
    let mut behind = bed.background("behind", command).map_err(text)?;
    behind.wait_for_listen(BEHIND_PORT, Duration::from_secs(10)).map_err(text)?;
    Ok(behind)
}

/// The testbed's own identity under another name, and a second one: reloads take turns.
fn identities(bed: &Testbed) -> Result<[Identity; 2], String> {
    let pki = bed.pki();
    let copy = |path: &Path| {
        let copy = bed.directory().join(path.file_name().unwrap_or_default());
        write(&copy, &read(path)?)?;
        Ok::<_, String>(copy)
    };
    let first =
        Identity { certificate: copy(&pki.middlebox.certificate)?, key: copy(&pki.middlebox.key)? };
    let names = format!("DNS:{},IP:{}", address::MIDDLEBOX_NAME, address::KEYS_V4);
    let second = pki.issue("soak", KeyType::Ecdsa, &names).map_err(text)?;
    Ok([first, second])
}

fn rules(version: usize) -> String {
    let mut rules = format!(
        "alert http any any -> any any (msg:\"soak\"; http.uri; content:\"/marked\"; sid:1; rev:{};)\n",
        version % 2 + 1
    );
    for sid in 2..OTHER_RULES + 2 {
        rules += &format!(
            "alert http any any -> any any (msg:\"soak\"; file.data; content:\"-- version {version} number {sid} --\"; \
             sid:{sid};)\n"
        );
    }
    rules
}

/// Puts a file in another's place at once.
fn replace(path: &Path, content: &[u8]) -> Result<(), String> {
    let new = path.with_extension("new");
    write(&new, content)?;
    std::fs::rename(&new, path).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    std::fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_counters_of_the_kernel() {
        let text = "Ip: a b\nIp: 1 2\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 17 4\n\
                    TcpExt: TCPTimeouts\nTcpExt: 9\n";
        assert_eq!(value(text, "Tcp:", "OutSegs"), 17);
        assert_eq!(value(text, "TcpExt:", "TCPTimeouts"), 9);
        assert_eq!(value(text, "TcpExt:", "Other"), 0);
    }
}
