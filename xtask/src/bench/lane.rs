//! One middle with the server behind it: how each is started, and what a transfer through it costs.
//!
//! Refuses a transfer in which a request failed, a session was not decrypted, or a connection went another way than it
//! should.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mmtls_testkit::{
    Background, KeyType, Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, NginxSplit, Options,
    Proxy, ProxyKind, ProxyOptions, SplitOptions, Testbed, address, machine_cpu,
};
use serde::Serialize;

use super::contenders;
use super::forwarder;
use super::h2load::{Done, Http, Object, negotiated};
use super::line::{Carried, Line, LineOptions};
use super::monitor::{self, Monitored};
use super::places::Places;
use crate::results::Contender;

/// Version and suite of every leg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// TLS 1.3 with AES-256-GCM.
    Gcm,
    /// TLS 1.2 with AES-256-CBC and HMAC-SHA1, encrypt-then-MAC where both ends have it, as OpenSSL's do.
    Cbc,
}

impl Tls {
    /// As OpenSSL names it.
    pub fn suite(self) -> &'static str {
        match self {
            Self::Gcm => "TLS_AES_256_GCM_SHA384",
            Self::Cbc => "ECDHE-ECDSA-AES256-SHA",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::Gcm => "1.3",
            Self::Cbc => "1.2",
        }
    }

    /// As nginx names it.
    fn protocols(self) -> String {
        format!("TLSv{}", self.version())
    }

    /// A split-TLS proxy's options with it on both legs.
    pub fn split(self, options: SplitOptions) -> SplitOptions {
        let (ciphersuites, ciphers) = self.lists();
        SplitOptions { ciphersuites, ciphers, protocols: self.protocols(), ..options }
    }

    /// OpenSSL has two lists: suites of TLS 1.3, and those of TLS 1.2.
    fn lists(self) -> (String, String) {
        match self {
            Self::Gcm => (self.suite().to_owned(), String::new()),
            Self::Cbc => (String::new(), self.suite().to_owned()),
        }
    }
}

/// What is moved to warm up and to find out how many requests fill the time: so many bytes, or fewer in so many requests.
const WARM_UP_BYTES: u64 = 512 << 20;
const WARM_UP_REQUESTS: u64 = 16 << 10;
/// And through what is slow.
const SLOW_WARM_UP_BYTES: u64 = 16 << 20;
const SLOW_WARM_UP_REQUESTS: u64 = 512;

/// What stands between client and server.
pub enum Middlebox {
    /// Nothing: a bridge of the kernel, end to end.
    Bridge,
    /// mmTLS, inline or, with interfaces in its options, passive beside a bridge of the kernel.
    Monitor(Box<MmtlsOptions>),
    /// mmTLS inline, whose options leave everything alone; nobody shares keys with it.
    Unread(Box<MmtlsOptions>),
    /// A program that forwards frames between the same sockets as mmTLS, and does nothing else.
    Forward,
    /// nginx as split-TLS proxy.
    Split,
    /// The same with other options than its own; suite and version are those of all.
    SplitWith(Box<SplitOptions>),
    /// Another split-TLS proxy.
    Proxy(ProxyKind),
}

/// How much is asked of a lane.
#[derive(Clone, Copy)]
pub struct Load {
    /// Persistent connections.
    pub connections: u32,
    /// Length of each transfer.
    pub seconds: f64,
    /// Receive packet steering on the middlebox's ports.
    pub steering: bool,
    /// Everything runs where the scheduler puts it.
    pub floating: bool,
    /// Offloads of all data ports are off, so that a frame is what a wire would carry.
    pub single_frames: bool,
    pub tls: Tls,
    /// What is between middle and server, besides a pair of veth.
    pub line: Option<LineOptions>,
}

/// One middle with the server behind it.
pub struct Lane {
    /// What is printed.
    pub name: &'static str,
    // Ends before the namespaces do.
    line: Option<Line>,
    bed: Testbed,
    server: Nginx,
    mmtls: Option<Mmtls>,
    split: Option<NginxSplit>,
    proxy: Option<Proxy>,
    forward: Option<Background>,
    /// Clients share their keys.
    shares: bool,
    /// TLS sessions that clients opened.
    sessions: u64,
}

impl Lane {
    /// Starts the server, and what stands in the middle.
    pub fn start(
        name: &'static str,
        middlebox: Middlebox,
        load: Load,
        files: &Path,
        places: &Places,
    ) -> Result<Self, String> {
        let middle = match &middlebox {
            Middlebox::Monitor(options) if options.passive.is_none() => Middle::Empty,
            Middlebox::Unread(_) | Middlebox::Forward => Middle::Empty,
            Middlebox::Split | Middlebox::SplitWith(_) | Middlebox::Proxy(_) => Middle::Routed,
            _ => Middle::KernelBridge,
        };
        let options = Options {
            middle,
            rps: load.steering,
            gso: !load.single_frames,
            line: load.line.is_some(),
            ..Options::default()
        };
        let bed = Testbed::with_options(&options).map_err(|error| error.to_string())?;
        let line = load.line.map(|options| Line::start(&bed, options)).transpose()?;
        places.server()?;
        let server =
            Nginx::start(&bed, server_options(load.tls, files)).map_err(|e| e.to_string())?;
        places.anywhere()?;
        let shares = matches!(middlebox, Middlebox::Monitor(_));
        let mut lane = Self {
            name,
            line,
            bed,
            server,
            mmtls: None,
            split: None,
            proxy: None,
            forward: None,
            shares,
            sessions: 0,
        };
        match middlebox {
            Middlebox::Monitor(options) | Middlebox::Unread(options) => {
                let mmtls = Mmtls::start(&lane.bed, &options).map_err(|error| error.to_string())?;
                lane.mmtls = Some(mmtls);
            }
            Middlebox::Split => {
                lane.split = Some(start_split(
                    &lane.bed,
                    load.tls,
                    SplitOptions { http2: true, ..SplitOptions::default() },
                )?)
            }
            Middlebox::SplitWith(options) => {
                lane.split = Some(start_split(&lane.bed, load.tls, *options)?);
            }
            Middlebox::Proxy(kind) => {
                let (ciphersuites, ciphers) = load.tls.lists();
                let options = ProxyOptions {
                    kind,
                    ciphersuites,
                    ciphers,
                    version: load.tls.version(),
                    key_type: KeyType::Ecdsa,
                };
                let proxy = Proxy::start(&lane.bed, &options).map_err(|error| error.to_string())?;
                lane.proxy = Some(proxy);
            }
            Middlebox::Forward => lane.forward = Some(forwarder::start(&lane.bed)?),
            Middlebox::Bridge => {}
        }
        Ok(lane)
    }

    /// A program of the client, which shares its keys where the middle takes them; to be told of with [`Self::opened`].
    pub fn client(&self, program: &str) -> Command {
        match &self.mmtls {
            Some(mmtls) if self.shares => mmtls.sharing(&self.bed, false, &[], program),
            _ => self.bed.client.command(program),
        }
    }

    /// The client has opened so many TLS sessions, all of which the monitor must have decrypted at its end.
    pub fn opened(&mut self, sessions: u64) {
        self.sessions += sessions;
    }

    /// The namespaces.
    pub fn bed(&self) -> &Testbed {
        &self.bed
    }

    /// Ends the line between middle and server, if there is one, and tells what it carried.
    pub fn stop_line(&mut self) -> Result<Option<Carried>, String> {
        let carried = self.line.take().map(Line::stop).transpose();
        carried.map_err(|error| format!("{}: {error}", self.name))
    }

    pub fn server(&self) -> &Background {
        &self.server.process
    }

    /// What stands in the middle, and how it was started.
    pub fn contender(&self) -> Contender {
        let process = self.mmtls.as_ref().map(|mmtls| &mmtls.process);
        let process = process.or(self.split.as_ref().map(|split| &split.process));
        let process = process.or(self.forward.as_ref());
        match (&self.proxy, process) {
            (Some(proxy), _) => contenders::of_text(self.name, &proxy.settings),
            (None, Some(process)) => contenders::of_process(self.name, process),
            (None, None) => contenders::of_bridge(self.name),
        }
    }

    /// h2load with as many requests as asked for, set up for this lane.
    pub fn h2load(&self, load: Load, object: Object, requests: u64) -> Command {
        let mut command = self.client("h2load");
        match object.http {
            Http::One => command.arg("--h1"),
            Http::Two { streams } => command.args(["-m", &streams.to_string()]),
        };
        command.args(["-t", "1", "-c", &load.connections.to_string()]);
        let list = if load.tls == Tls::Gcm { "--tls13-ciphers" } else { "--ciphers" };
        command.args([list, load.tls.suite()]);
        command.args(["-n", &requests.to_string(), "--connection-inactivity-timeout", "10"]);
        let name = match self.proxy_kind() {
            // It wants the server's certificate to have what was asked for as a name.
            Some(squid @ ProxyKind::Squid) => {
                command.arg(format!("--connect-to={}:443", squid.server()));
                address::SERVER_NAME
            }
            _ => address::SERVER_V4,
        };
        command.arg(format!("https://{name}/{}", object.name));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn proxy_kind(&self) -> Option<ProxyKind> {
        self.proxy.as_ref().map(|proxy| proxy.kind)
    }

    /// What stands in the middle, if that is a process.
    pub fn middle(&mut self) -> Option<&mut Background> {
        let mmtls = self.mmtls.as_mut().map(|it| &mut it.process);
        let split = self.split.as_mut().map(|it| &mut it.process);
        let proxy = self.proxy.as_mut().map(|it| &mut it.process);
        mmtls.or(split).or(proxy).or(self.forward.as_mut())
    }

    /// Its processor time so far.
    fn middle_cpu(&mut self) -> f64 {
        self.middle().map_or(0.0, Background::cpu_seconds)
    }

    /// One transfer.
    pub fn run(&mut self, load: Load, object: Object, requests: u64) -> Result<Sample, String> {
        let (server, middle) = (self.server.process.cpu_seconds(), self.middle_cpu());
        let (machine, client) = (machine_cpu(), children_cpu());
        let output = self.h2load(load, object, requests).output();
        let machine_s = machine_cpu() - machine;
        let middle_s = self.middle_cpu() - middle;
        let ends_s = children_cpu() - client + self.server.process.cpu_seconds() - server;
        let output = output.map_err(|error| format!("h2load: {error}"))?;
        self.sessions += u64::from(load.connections);
        let done = Done::parse(&String::from_utf8_lossy(&output.stdout));
        let done = done.filter(|done| output.status.success() && done.succeeded == requests);
        let done = done.ok_or_else(|| {
            let said = [output.stdout, output.stderr].concat();
            format!("{}: h2load: {}", self.name, String::from_utf8_lossy(&said).trim())
        })?;
        Ok(Sample {
            bytes: done.bytes,
            seconds: done.seconds,
            machine_cpu_s: machine_s,
            processes_cpu_s: middle_s + ends_s,
            middle_cpu_s: middle_s,
        })
    }

    /// Warms up, checks who talks to the server, and returns the requests that fill `seconds`.
    pub fn calibrate(&mut self, load: Load, object: Object) -> Result<u64, String> {
        let is_slow = self.line.is_some() || self.proxy_kind() == Some(ProxyKind::Mitmproxy);
        let (bytes, most) = match is_slow {
            true => (SLOW_WARM_UP_BYTES, SLOW_WARM_UP_REQUESTS),
            false => (WARM_UP_BYTES, WARM_UP_REQUESTS),
        };
        let requests = (bytes / object.bytes).min(most).max(u64::from(load.connections));
        let child = self.h2load(load, object, requests).spawn();
        let mut child = child.map_err(|error| format!("h2load: {error}"))?;
        let mut peers = BTreeSet::new();
        while peers.is_empty() && matches!(child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(10));
            peers = clients_of(self.server.process.pid());
        }
        let output = child.wait_with_output().map_err(|error| format!("h2load: {error}"))?;
        self.sessions += u64::from(load.connections);
        let is_split = self.split.is_some() || self.proxy.is_some();
        let expected = if is_split { [10, 79, 0, 1] } else { [10, 77, 0, 2] };
        if peers != BTreeSet::from([Ipv4Addr::from(expected)]) {
            return Err(format!("{}: the server was talking to {peers:?}", self.name));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        if !negotiated(&text, load.tls.suite()) {
            return Err(format!("{}: another suite: {text}", self.name));
        }
        let done = Done::parse(&text)
            .filter(|done| output.status.success() && done.succeeded == requests)
            .ok_or_else(|| format!("{}: h2load: {text}", self.name))?;
        let bytes = done.bytes as f64 / done.seconds * load.seconds;
        Ok(((bytes / object.bytes as f64) as u64).max(u64::from(load.connections)))
    }

    /// Ends the monitor; it must have decrypted everything, or have followed nothing where it leaves everything alone.
    pub fn stop_monitor(&mut self) -> Result<Monitored, String> {
        let mmtls = self.mmtls.take().ok_or("mmtls is not running")?;
        monitor::stop(mmtls, if self.shares { self.sessions } else { 0 })
            .map_err(|error| format!("{}: {error}", self.name))
    }
}

/// nginx as split-TLS proxy: one worker, no buffering, no session reuse, the suite of this page.
pub fn start_split(bed: &Testbed, tls: Tls, options: SplitOptions) -> Result<NginxSplit, String> {
    NginxSplit::start(bed, tls.split(options)).map_err(|error| error.to_string())
}

/// The server of every lane: one worker, one suite, full handshakes; HTTP/2 for who asks for it.
pub fn server_options(tls: Tls, files: &Path) -> NginxOptions {
    let (ciphersuites, ciphers) = tls.lists();
    NginxOptions {
        ciphersuites,
        ciphers,
        protocols: tls.protocols(),
        root: Some(files.to_owned()),
        http2: true,
        resumption: false,
        ..NginxOptions::default()
    }
}

/// User and system seconds of this process's children that have ended, and of theirs.
pub fn children_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the command's name, which is in parentheses: proc(5), fields 16 and 17.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Peers of the established connections to port 443 in a process's network namespace.
fn clients_of(pid: u32) -> BTreeSet<Ipv4Addr> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
            // The kernel prints the address as a number in the host's byte order.
            let address = u32::from_str_radix(remote.split_once(':')?.0, 16).ok()?;
            let wanted = local.ends_with(":01BB") && state == "01";
            wanted.then(|| Ipv4Addr::from(address.to_ne_bytes()))
        })
        .collect()
}

/// One transfer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    pub bytes: u64,
    pub seconds: f64,
    pub machine_cpu_s: f64,
    pub processes_cpu_s: f64,
    pub middle_cpu_s: f64,
}

impl Sample {
    /// Of one of its times: seconds per 10^9 bytes of objects.
    pub fn per_gb(&self, cpu_s: f64) -> f64 {
        cpu_s / (self.bytes as f64 / 1e9)
    }
}
