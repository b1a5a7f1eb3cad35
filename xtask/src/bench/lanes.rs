//! Transfers through several middles, each in namespaces of its own, all standing during the whole
//! run and measured in turn: what parts (b), (h), (n) and (o) have in common.
//!
//! What counts is the busy time of all cores: on veth, part of a forwarder's work is billed to
//! others and part of others' work to it.
//!
//! Refuses a run in which a request failed, a session was not decrypted, or a connection went
//! another way than it should.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mmtls_testkit::{
    Background, KeyType, Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, NginxSplit, Options,
    Proxy, ProxyKind, ProxyOptions, SplitOptions, Testbed, address, files, machine_cpu,
};
use serde::Serialize;

use super::contenders;
use super::forwarder;
use super::line::{Carried, Line, LineOptions};
use super::monitor::{self, Monitored};
use super::places::Places;
use super::report::Samples;
use crate::results::Contender;

/// The suite on every leg.
pub const SUITE: &str = "TLS_AES_256_GCM_SHA384";

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
    /// What is between middle and server, besides a pair of veth.
    pub line: Option<LineOptions>,
}

/// How an object is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Http {
    /// HTTP/1.1, one request at a time.
    #[serde(rename = "HTTP/1.1")]
    One,
    /// HTTP/2 with up to so many requests at a time on a connection. The split proxy speaks HTTP/1.1 to the server.
    #[serde(rename = "HTTP/2")]
    Two { streams: u32 },
}

impl Http {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "HTTP/1.1",
            Self::Two { .. } => "HTTP/2",
        }
    }
}

/// A file that is fetched, over and over.
#[derive(Clone, Copy)]
pub struct Object {
    pub name: &'static str,
    pub bytes: u64,
    pub http: Http,
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
            gso: load.line.is_none_or(|line| !line.single_frames),
            line: load.line.is_some(),
            ..Options::default()
        };
        let bed = Testbed::with_options(&options).map_err(|error| error.to_string())?;
        let line = load.line.map(|options| Line::start(&bed, options)).transpose()?;
        places.server()?;
        let server = Nginx::start(&bed, server_options(files)).map_err(|e| e.to_string())?;
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
                    SplitOptions { http2: true, ..SplitOptions::default() },
                )?)
            }
            Middlebox::SplitWith(options) => lane.split = Some(start_split(&lane.bed, *options)?),
            Middlebox::Proxy(kind) => {
                let options = ProxyOptions {
                    kind,
                    ciphersuites: SUITE.to_owned(),
                    ciphers: String::new(),
                    version: "1.3",
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

    /// h2load with as many requests as asked for, set up for this lane.
    fn h2load(&self, load: Load, object: Object, requests: u64) -> Command {
        let mut command = self.client("h2load");
        match object.http {
            Http::One => command.arg("--h1"),
            Http::Two { streams } => command.args(["-m", &streams.to_string()]),
        };
        command.args(["-t", "1", "-c", &load.connections.to_string(), "--tls13-ciphers", SUITE]);
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
    fn middle(&mut self) -> Option<&mut Background> {
        let mmtls = self.mmtls.as_mut().map(|it| &mut it.process);
        let split = self.split.as_mut().map(|it| &mut it.process);
        let proxy = self.proxy.as_mut().map(|it| &mut it.process);
        mmtls.or(split).or(proxy).or(self.forward.as_mut())
    }

    /// Its processor time so far.
    fn middle_cpu(&mut self) -> f64 {
        self.middle().map_or(0.0, Background::cpu_seconds)
    }

    fn run(&mut self, load: Load, object: Object, requests: u64) -> Result<Sample, String> {
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
    fn calibrate(&mut self, load: Load, object: Object) -> Result<u64, String> {
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
        if !negotiated(&text, SUITE) {
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

/// Lanes, and the files that they serve.
pub struct Lanes {
    pub lanes: Vec<Lane>,
    places: Places,
    load: Load,
    _files: Directory,
}

impl Lanes {
    /// Starts all of them.
    pub fn start(
        middles: Vec<(&'static str, Middlebox)>,
        objects: &[Object],
        load: Load,
    ) -> Result<Self, String> {
        let files = Directory::create("files")?;
        for object in objects {
            files::pattern(&files.0.join(object.name), object.bytes, 1)
                .map_err(|error| error.to_string())?;
        }
        let places = Places::choose(load.floating)?;
        let mut lanes = Vec::new();
        for (name, middlebox) in middles {
            lanes.push(Lane::start(name, middlebox, load, &files.0, &places)?);
        }
        // Everything that is started from here on is a client.
        places.client()?;
        let lanes = Self { lanes, places, load, _files: files };
        if load.steering && !lanes.steering() {
            println!(
                "WARNING: receive packet steering is off here; veth reorders, figures are lower"
            );
        }
        if !lanes.cubic() {
            println!(
                "WARNING: CUBIC could not be chosen; the congestion control is the kernel's own"
            );
        }
        Ok(lanes)
    }

    /// What stands in each lane, the server that all have alike, and h2load's command.
    pub fn contenders(&self) -> Vec<Contender> {
        self.middles_and_server().into_iter().chain(self.client()).collect()
    }

    /// The same without a client.
    pub fn middles_and_server(&self) -> Vec<Contender> {
        let settings = |lane: &Lane| {
            let process = lane.mmtls.as_ref().map(|mmtls| &mmtls.process);
            let process = process.or(lane.split.as_ref().map(|split| &split.process));
            let process = process.or(lane.forward.as_ref());
            match (&lane.proxy, process) {
                (Some(proxy), _) => contenders::of_text(lane.name, &proxy.settings),
                (None, Some(process)) => {
                    contenders::of_process(lane.name, process, lane.bed.directory())
                }
                (None, None) => contenders::of_text(
                    lane.name,
                    "The kernel's bridge between two veth pairs (MTU 1500), nothing else in the middle.",
                ),
            }
        };
        let mut contenders: Vec<_> = self.lanes.iter().map(settings).collect();
        if let Some(lane) = self.lanes.first() {
            let (server, place) = (&lane.server.process, lane.bed.directory());
            contenders.push(contenders::of_process("server", server, place));
        }
        contenders
    }

    /// The client that [`Self::measure`] runs.
    fn client(&self) -> Option<Contender> {
        let line = |lane: &Lane| {
            let object = Object { name: "OBJECT", bytes: 0, http: Http::One };
            let client = lane.h2load(self.load, object, 0);
            let words = std::iter::once(client.get_program()).chain(client.get_args());
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            let line = words.join(" ").replace("-n 0", "-n AS_MANY_AS_FILL_THE_TIME");
            contenders::of_text("client, HTTP/1.1", &line)
        };
        self.lanes.first().map(line)
    }

    /// How the lanes are set up, in a sentence.
    pub fn note(&self) -> String {
        format!(
            "{} persistent connections, {SUITE} on every leg, {}, {}, {}.",
            self.load.connections,
            match self.placed() {
                true =>
                    "server and client on a processor each, the middle on a third or on either in turn",
                false => "everybody where the scheduler puts them",
            },
            if self.steering() { "receive packet steering" } else { "no receive packet steering" },
            if self.cubic() { "CUBIC" } else { "the kernel's own congestion control" },
        )
    }

    /// Whether receive packet steering is on everywhere.
    pub fn steering(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bed.rps_active())
    }

    /// Whether every leg uses CUBIC.
    pub fn cubic(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bed.uses_cubic())
    }

    /// Whether server, client and middlebox have places.
    pub fn placed(&self) -> bool {
        self.places.are_fixed()
    }

    /// Fetches an object through every lane in turn, so many times.
    pub fn measure(&mut self, repetitions: u32, object: Object) -> Result<Vec<Variant>, String> {
        let mut requests = Vec::new();
        for lane in &mut self.lanes {
            requests.push(lane.calibrate(self.load, object)?);
        }
        let load = self.load;
        let transfers = self.in_turn(repetitions, |at, lane| {
            let sample = lane.run(load, object, requests[at])?;
            eprintln!(
                "  {} {} {}: {:.1} Gbit/s, {:.2} machine CPU-s/GB",
                object.http.name(),
                object.name,
                lane.name,
                sample.bytes as f64 * 8e-9 / sample.seconds,
                sample.per_gb(sample.machine_cpu_s)
            );
            Ok(sample)
        })?;
        let lanes = self.lanes.iter().zip(transfers);
        Ok(lanes.map(|(lane, transfers)| Variant::new(lane.name, object, transfers)).collect())
    }

    /// Does something with every lane in turn, so many times; what came of it, by lane.
    pub fn in_turn<T>(
        &mut self,
        repetitions: u32,
        mut work: impl FnMut(usize, &mut Lane) -> Result<T, String>,
    ) -> Result<Vec<Vec<T>>, String> {
        let mut all: Vec<Vec<T>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for repetition in 0..repetitions as usize {
            for turn in 0..self.lanes.len() {
                let at = (turn + repetition) % self.lanes.len();
                let lane = &mut self.lanes[at];
                if let Some(middle) = lane.middle() {
                    self.places.middle(repetition, middle)?;
                }
                all[at].push(work(at, lane)?);
            }
        }
        Ok(all)
    }
}

/// nginx as split-TLS proxy: one worker, no buffering, no session reuse, the suite of this page.
pub fn start_split(bed: &Testbed, options: SplitOptions) -> Result<NginxSplit, String> {
    let options =
        SplitOptions { ciphersuites: SUITE.to_owned(), protocols: "TLSv1.3".to_owned(), ..options };
    NginxSplit::start(bed, options).map_err(|error| error.to_string())
}

/// The server of every lane: one worker, one suite, full handshakes; HTTP/2 for who asks for it.
pub fn server_options(files: &Path) -> NginxOptions {
    NginxOptions {
        ciphersuites: SUITE.to_owned(),
        protocols: "TLSv1.3".to_owned(),
        root: Some(files.to_owned()),
        http2: true,
        resumption: false,
        ..NginxOptions::default()
    }
}

/// Whether h2load says that it negotiated just this suite: those with the private tag have names
/// that end like others.
pub fn negotiated(text: &str, suite: &str) -> bool {
    text.lines().any(|line| line.trim().strip_prefix("Cipher: ") == Some(suite))
}

/// What h2load says at its end.
pub struct Done {
    /// Requests that were answered as they should be.
    pub succeeded: u64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of the objects.
    pub bytes: u64,
}

impl Done {
    /// Reads its last lines.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let time = line("finished in ")?.split(',').next()?;
        let seconds = match time.strip_suffix("ms") {
            Some(milliseconds) => milliseconds.parse::<f64>().ok()? / 1000.0,
            None => time.strip_suffix('s')?.parse().ok()?,
        };
        let requests = line("requests: ")?;
        let succeeded = requests.split(", ").find_map(|part| part.strip_suffix(" succeeded"))?;
        let data = line("traffic: ")?.strip_suffix(") data")?.rsplit_once('(')?.1;
        Some(Self { succeeded: succeeded.parse().ok()?, seconds, bytes: data.parse().ok()? })
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
    bytes: u64,
    seconds: f64,
    machine_cpu_s: f64,
    processes_cpu_s: f64,
    middle_cpu_s: f64,
}

impl Sample {
    /// Of one of its times: seconds per 10^9 bytes of objects.
    fn per_gb(&self, cpu_s: f64) -> f64 {
        cpu_s / (self.bytes as f64 / 1e9)
    }
}

/// One middle with one size of object.
#[derive(Debug, Serialize)]
pub struct Variant {
    pub variant: &'static str,
    pub http: Http,
    pub object_bytes: u64,
    pub gbit_per_s: Samples,
    /// Busy seconds of all cores per 10^9 bytes of objects.
    pub machine_cpu_s_per_gb: Samples,
    /// User and system time of client, middlebox and server: without the interrupts that met no
    /// process or another one, but whatever else the machine did.
    pub processes_cpu_s_per_gb: Samples,
    /// The middlebox process's own.
    pub middle_cpu_s_per_gb: Samples,
    pub transfers: Vec<Sample>,
}

impl Variant {
    fn new(variant: &'static str, object: Object, transfers: Vec<Sample>) -> Self {
        let of =
            |figure: &dyn Fn(&Sample) -> f64| Samples::new(transfers.iter().map(figure).collect());
        Self {
            variant,
            http: object.http,
            object_bytes: object.bytes,
            gbit_per_s: of(&|it| it.bytes as f64 * 8e-9 / it.seconds),
            machine_cpu_s_per_gb: of(&|it| it.per_gb(it.machine_cpu_s)),
            processes_cpu_s_per_gb: of(&|it| it.per_gb(it.processes_cpu_s)),
            middle_cpu_s_per_gb: of(&|it| it.per_gb(it.middle_cpu_s)),
            transfers,
        }
    }
}

/// What one middle adds to the bridge's machine time, of what another adds. Infinite where the first
/// took no more than the bridge.
pub fn ratio(bridge: f64, mmtls: f64, split: f64) -> f64 {
    if mmtls > bridge { (split - bridge) / (mmtls - bridge) } else { f64::INFINITY }
}

/// A directory of served files that goes with this value.
pub struct Directory(pub PathBuf);

impl Directory {
    /// An empty one.
    pub fn create(name: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("mmtls-bench-{name}-{}", std::process::id()));
        // Not one that is there already: it could be somebody else's, with links in it.
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_less_than_the_bridge_takes() {
        assert_eq!(ratio(1.0, 1.5, 3.0), 4.0);
        assert_eq!(format!("{:.1}", ratio(1.0, 0.9, 3.0)), "inf");
    }

    #[test]
    fn accepts_what_h2load_prints() {
        let text = "finished in 812.33ms, 100.00 req/s, 6.27MB/s\n\
            requests: 400 total, 400 started, 400 done, 399 succeeded, 1 failed, 0 errored, 0 timeout\n\
            status codes: 400 2xx, 0 3xx, 0 4xx, 0 5xx\n\
            traffic: 25.11MB (26330000) total, 93.75KB (96000) headers (space savings 0.00%), 25.00MB (26214400) data\n";
        let done = Done::parse(text).unwrap();
        assert_eq!((done.succeeded, done.bytes), (399, 26_214_400));
        assert!((done.seconds - 0.81233).abs() < 1e-9);
    }
}
