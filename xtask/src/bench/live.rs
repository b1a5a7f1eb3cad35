//! Part (b): the same downloads over persistent connections through four middles, each in its own
//! namespaces: the kernel's bridge (end to end, nothing added), mmTLS (keys shared by `mmtls exec`,
//! every record opened, HTTP followed, logs on), the same as a passive monitor beside the kernel's
//! bridge, and nginx as split-TLS proxy.
//!
//! All of them stand during the whole run and are measured in turn, in rotating order, with
//! processors of their own as far as there are enough ([`super::places`]). What counts
//! is the busy time of all cores: on veth, part of a forwarder's work is billed to others and
//! part of others' work to it.
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
    Background, Middle, Mmtls, Nginx, NginxOptions, NginxSplit, Options, SplitOptions, Testbed,
    address, files, machine_cpu,
};
use serde::Serialize;

use super::monitor::{self, Monitored};
use super::places::Places;
use super::report::{Samples, table};

/// The suite on every leg.
pub const SUITE: &str = "TLS_AES_256_GCM_SHA384";

const VARIANTS: [&str; 4] = ["kernel bridge", "mmTLS", "nginx split TLS", "mmTLS passive"];
const BRIDGE: usize = 0;
const MMTLS: usize = 1;
const SPLIT: usize = 2;
const PASSIVE: usize = 3;

/// Served files: name and length.
const OBJECTS: [(&str, u64); 2] = [("64k", 64 << 10), ("1m", 1 << 20)];

/// Bytes moved to warm up and to find out how many requests fill the time.
const WARM_UP_BYTES: u64 = 512 << 20;

/// One middle with the server behind it.
struct Lane {
    bed: Testbed,
    server: Nginx,
    mmtls: Option<Mmtls>,
    split: Option<NginxSplit>,
    /// TLS sessions that clients opened.
    sessions: u64,
}

impl Lane {
    fn start(variant: usize, load: Load, files: &Path, places: &Places) -> Result<Self, String> {
        let middle = match variant {
            MMTLS => Middle::Empty,
            SPLIT => Middle::Routed,
            _ => Middle::KernelBridge,
        };
        let options = Options { middle, rps: load.steering, ..Options::default() };
        let bed = Testbed::with_options(&options).map_err(|error| error.to_string())?;
        places.server()?;
        let server = Nginx::start(&bed, server_options(files)).map_err(|e| e.to_string())?;
        places.anywhere()?;
        let mut lane = Self { bed, server, mmtls: None, split: None, sessions: 0 };
        match variant {
            MMTLS => lane.mmtls = Some(monitor::start(&lane.bed, None)?),
            PASSIVE => lane.mmtls = Some(monitor::start(&lane.bed, Some("left:right"))?),
            SPLIT => lane.split = Some(start_split(&lane.bed, SplitOptions::default())?),
            _ => {}
        }
        Ok(lane)
    }

    /// h2load with as many requests as asked for, set up for this lane.
    fn h2load(&self, load: Load, object: usize, requests: u64) -> Command {
        let mut command = match &self.mmtls {
            Some(mmtls) => mmtls.sharing(&self.bed, false, &[], "h2load"),
            None => self.bed.client.command("h2load"),
        };
        command.args(["--h1", "-t", "1", "-c", &load.connections.to_string()]);
        command.args(["-n", &requests.to_string(), "--connection-inactivity-timeout", "10"]);
        command.arg(format!("https://{}/{}", address::SERVER_V4, OBJECTS[object].0));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What stands in the middle, if that is a process.
    fn middle(&mut self) -> Option<&mut Background> {
        match (&mut self.mmtls, &mut self.split) {
            (Some(mmtls), _) => Some(&mut mmtls.process),
            (_, Some(split)) => Some(&mut split.process),
            _ => None,
        }
    }

    /// Its processor time so far.
    fn middle_cpu(&mut self) -> f64 {
        self.middle().map_or(0.0, Background::cpu_seconds)
    }

    fn run(&mut self, load: Load, object: usize, requests: u64) -> Result<Sample, String> {
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
            format!("h2load: {}", String::from_utf8_lossy(&said).trim())
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
    fn calibrate(&mut self, load: Load, object: usize, variant: usize) -> Result<u64, String> {
        let length = OBJECTS[object].1;
        let child = self.h2load(load, object, WARM_UP_BYTES / length).spawn();
        let mut child = child.map_err(|error| format!("h2load: {error}"))?;
        let mut peers = BTreeSet::new();
        while peers.is_empty() && matches!(child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(10));
            peers = clients_of(self.server.process.pid());
        }
        let output = child.wait_with_output().map_err(|error| format!("h2load: {error}"))?;
        self.sessions += u64::from(load.connections);
        let expected = if variant == SPLIT { [10, 79, 0, 1] } else { [10, 77, 0, 2] };
        if peers != BTreeSet::from([Ipv4Addr::from(expected)]) {
            return Err(format!("{}: the server was talking to {peers:?}", VARIANTS[variant]));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        if !negotiated(&text, SUITE) {
            return Err(format!("{}: another suite: {text}", VARIANTS[variant]));
        }
        let done = Done::parse(&text)
            .filter(|done| output.status.success() && done.succeeded == WARM_UP_BYTES / length)
            .ok_or_else(|| format!("h2load: {text}"))?;
        let bytes = done.bytes as f64 / done.seconds * load.seconds;
        Ok(((bytes / length as f64) as u64).max(u64::from(load.connections)))
    }
}

/// nginx as split-TLS proxy: one worker, no buffering, no session reuse, the suite of this page.
pub fn start_split(bed: &Testbed, options: SplitOptions) -> Result<NginxSplit, String> {
    let options =
        SplitOptions { ciphersuites: SUITE.to_owned(), protocols: "TLSv1.3".to_owned(), ..options };
    NginxSplit::start(bed, options).map_err(|error| error.to_string())
}

/// The server of every lane: one worker, one suite, full handshakes.
pub fn server_options(files: &Path) -> NginxOptions {
    NginxOptions {
        ciphersuites: SUITE.to_owned(),
        protocols: "TLSv1.3".to_owned(),
        root: Some(files.to_owned()),
        resumption: false,
        ..NginxOptions::default()
    }
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
struct Sample {
    bytes: u64,
    seconds: f64,
    machine_cpu_s: f64,
    processes_cpu_s: f64,
    middle_cpu_s: f64,
}

impl Sample {
    fn per_gb(&self, cpu_s: f64) -> f64 {
        cpu_s / (self.bytes as f64 / 1e9)
    }
}

/// One middle with one size of object.
#[derive(Debug, Serialize)]
struct Variant {
    variant: &'static str,
    object_bytes: u64,
    gbit_per_s: Samples,
    /// Busy seconds of all cores per 10^9 bytes of objects.
    machine_cpu_s_per_gb: Samples,
    /// User and system time of client, middlebox and server: without the interrupts that met no
    /// process or another one, but whatever else the machine did.
    processes_cpu_s_per_gb: Samples,
    /// The middlebox process's own.
    middle_cpu_s_per_gb: Samples,
    transfers: Vec<Sample>,
}

/// What the comparison is about.
#[derive(Debug, Serialize)]
struct Headline {
    object_bytes: u64,
    /// (split − bridge) / (mmTLS − bridge) of the medians of machine CPU per byte.
    ratio: f64,
    /// The same of each repetition.
    per_repetition: Samples,
    /// Of the passive monitor.
    passive_ratio: f64,
    /// The same of each repetition.
    passive_per_repetition: Samples,
    /// As `ratio`, of the processes' CPU: to be compared with, when the machine was not idle.
    processes_ratio: f64,
}

/// Part (b).
#[derive(Debug, Serialize)]
pub struct LiveResults {
    suite: &'static str,
    connections: u32,
    receive_steering: bool,
    /// Whether every leg used CUBIC.
    cubic: bool,
    /// Whether server, client and middlebox had places, or ran where the scheduler put them.
    placed: bool,
    variants: Vec<Variant>,
    headlines: Vec<Headline>,
    mmtls: Monitored,
    passive: Monitored,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<LiveResults, String> {
    let files = Directory::create()?;
    for (name, length) in OBJECTS {
        files::pattern(&files.0.join(name), length, 1).map_err(|error| error.to_string())?;
    }
    let places = Places::choose(load.floating)?;
    let mut lanes = Vec::new();
    for variant in 0..VARIANTS.len() {
        lanes.push(Lane::start(variant, load, &files.0, &places)?);
    }
    // Everything that is started from here on is a client.
    places.client()?;
    let receive_steering = lanes.iter().all(|lane| lane.bed.rps_active());
    if load.steering && !receive_steering {
        println!("WARNING: receive packet steering is off here; veth reorders, figures are lower");
    }
    let cubic = lanes.iter().all(|lane| lane.bed.uses_cubic());
    if !cubic {
        println!("WARNING: CUBIC could not be chosen; the congestion control is the kernel's own");
    }
    let mut variants = Vec::new();
    for (object, (name, object_bytes)) in OBJECTS.into_iter().enumerate() {
        let mut requests = Vec::new();
        for (variant, lane) in lanes.iter_mut().enumerate() {
            requests.push(lane.calibrate(load, object, variant)?);
        }
        let mut transfers = vec![Vec::new(); lanes.len()];
        for repetition in 0..repetitions as usize {
            for turn in 0..lanes.len() {
                let variant = (turn + repetition) % lanes.len();
                let lane = &mut lanes[variant];
                if let Some(middle) = lane.middle() {
                    places.middle(repetition, middle)?;
                }
                let sample = lane.run(load, object, requests[variant])?;
                eprintln!(
                    "  {name} {}: {:.1} Gbit/s, {:.2} machine CPU-s/GB",
                    VARIANTS[variant],
                    sample.bytes as f64 * 8e-9 / sample.seconds,
                    sample.per_gb(sample.machine_cpu_s)
                );
                transfers[variant].push(sample);
            }
        }
        for (variant, transfers) in VARIANTS.into_iter().zip(transfers) {
            let of = |figure: &dyn Fn(&Sample) -> f64| {
                Samples::new(transfers.iter().map(figure).collect())
            };
            variants.push(Variant {
                variant,
                object_bytes,
                gbit_per_s: of(&|it| it.bytes as f64 * 8e-9 / it.seconds),
                machine_cpu_s_per_gb: of(&|it| it.per_gb(it.machine_cpu_s)),
                processes_cpu_s_per_gb: of(&|it| it.per_gb(it.processes_cpu_s)),
                middle_cpu_s_per_gb: of(&|it| it.per_gb(it.middle_cpu_s)),
                transfers,
            });
        }
    }
    let mut stop = |variant: usize| {
        let mmtls = lanes[variant].mmtls.take().ok_or("mmtls is not running")?;
        monitor::stop(mmtls, lanes[variant].sessions)
    };
    let (mmtls, passive) = (stop(MMTLS)?, stop(PASSIVE)?);
    let headlines = variants.chunks_exact(VARIANTS.len()).map(headline).collect();
    Ok(LiveResults {
        suite: SUITE,
        connections: load.connections,
        receive_steering,
        cubic,
        placed: places.are_fixed(),
        variants,
        headlines,
        mmtls,
        passive,
    })
}

/// The headline, of three figures of a kind. Infinite where mmTLS took no more than the bridge.
fn ratio(bridge: f64, mmtls: f64, split: f64) -> f64 {
    if mmtls > bridge { (split - bridge) / (mmtls - bridge) } else { f64::INFINITY }
}

fn headline(variants: &[Variant]) -> Headline {
    let cpu = |variant: usize| &variants[variant].machine_cpu_s_per_gb;
    let each = |variant: usize| {
        let of = |it: usize, at: usize| cpu(it).samples[at];
        let all = 0..cpu(BRIDGE).samples.len();
        Samples::new(all.map(|at| ratio(of(BRIDGE, at), of(variant, at), of(SPLIT, at))).collect())
    };
    let median = |variant: usize| ratio(cpu(BRIDGE).median, cpu(variant).median, cpu(SPLIT).median);
    let processes = |variant: usize| variants[variant].processes_cpu_s_per_gb.median;
    Headline {
        processes_ratio: ratio(processes(BRIDGE), processes(MMTLS), processes(SPLIT)),
        object_bytes: variants[BRIDGE].object_bytes,
        ratio: median(MMTLS),
        per_repetition: each(MMTLS),
        passive_ratio: median(PASSIVE),
        passive_per_repetition: each(PASSIVE),
    }
}

impl LiveResults {
    /// Prints the tables.
    pub fn print(&self) {
        let added = |it: &Variant| {
            let bridge = &self.variants.iter().find(|other| other.object_bytes == it.object_bytes);
            bridge.map_or(0.0, |bridge| {
                it.machine_cpu_s_per_gb.median - bridge.machine_cpu_s_per_gb.median
            })
        };
        let rows: Vec<Vec<String>> = self
            .variants
            .iter()
            .map(|it| {
                let machine = &it.machine_cpu_s_per_gb;
                vec![
                    format!("{} KB, {}", it.object_bytes >> 10, it.variant),
                    format!("{:.1}", it.gbit_per_s.median),
                    format!("{:.3}", machine.median),
                    format!("{:.3}–{:.3}", machine.min, machine.max),
                    format!("{:.3}", added(it)),
                    format!("{:.3}", it.processes_cpu_s_per_gb.median),
                    format!("{:.3}", it.middle_cpu_s_per_gb.median),
                ]
            })
            .collect();
        table(
            &format!(
                "(b) h2load HTTP/1.1, {} persistent connections, {}, {}; CPU-s/GB, medians",
                self.connections,
                self.suite,
                if self.placed { "everybody placed" } else { "nobody placed" }
            ),
            &["object, middle", "Gbit/s", "machine", "range", "added", "processes", "box alone"],
            &rows,
        );
        let rows: Vec<Vec<String>> = self
            .headlines
            .iter()
            .map(|it| {
                let (each, passive) = (&it.per_repetition, &it.passive_per_repetition);
                vec![
                    format!("{} KB", it.object_bytes >> 10),
                    format!("{:.1}", it.ratio),
                    format!("{:.1}–{:.1}", each.min, each.max),
                    format!("{:.1}", it.processes_ratio),
                    format!("{:.1}", it.passive_ratio),
                    format!("{:.1}–{:.1}", passive.min, passive.max),
                ]
            })
            .collect();
        let title = "(b) added machine CPU: (split − bridge) / (mmTLS − bridge)";
        let columns = ["object", "ratio", "range", "of processes", "passive", "range"];
        table(title, &columns, &rows);
        self.mmtls.print(VARIANTS[MMTLS]);
        self.passive.print(VARIANTS[PASSIVE]);
    }
}

/// A directory of served files that goes with this value.
pub struct Directory(pub PathBuf);

impl Directory {
    /// An empty one.
    pub fn create() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("mmtls-bench-{}", std::process::id()));
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
