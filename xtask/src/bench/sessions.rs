//! Part (c): what a new connection costs the box. Synthetic 1 KB sessions are replayed into
//! mmTLS's real interfaces, keys over the real channel, with a sink behind; in the same run, ab
//! opens a connection per 1 KB request through nginx as split-TLS proxy: with both kinds of server
//! key, and with upstream connections that are kept (the proxy then does one handshake per
//! connection) or new for each request (two, as many as there would be without it). Before that, with real ends, mmTLS beside a
//! program that only forwards ([`super::session_live`]).
//!
//! Compared is the processor time of the box's process alone: with real endpoints it drowns in
//! theirs, and the replay has none. Where there are several cores, the box has one for itself.
//! What leaves it is received at its expense, as veth has it, but only to be put into a queue.
//!
//! Refuses a run in which a frame was lost, a session was not decrypted, or a request failed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mmtls_testkit::{
    Background, KeyType, Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, NginxSplit, Options,
    SplitOptions, Testbed, address, files, machine_cpu, middlebox,
};
use serde::Serialize;

use super::ab::{CONCURRENCY, Requests};
use super::contenders;
use super::lane::{self, Tls};
use super::lanes::Directory;
use super::monitor::{self, Monitored};
use super::replayer::Replayed;
use super::report::{Samples, table};
use super::session_live::{self, LiveSessions};
use super::session_parts::SessionParts;
use super::synthetic;
use crate::results::{Axis, Contender, Figure};

/// How much is asked of the box and of the proxy.
#[derive(Clone, Copy)]
pub struct Load {
    /// Sessions per replay.
    pub sessions: u32,
    /// Sessions that are open at a time.
    pub window: u32,
    /// Seconds of ab.
    pub seconds: f64,
}

/// One replay through mmTLS.
#[derive(Debug, Serialize)]
pub(super) struct Replay {
    replayed: Replayed,
    mmtls: Monitored,
    /// User and system time of the mmtls process from the first frame to its end.
    box_cpu_s: f64,
    #[serde(skip)]
    contender: Contender,
}

/// One run of ab through a process in the middle.
#[derive(Debug, Serialize)]
pub(super) struct AbRun {
    connections: u32,
    seconds: f64,
    box_cpu_s: f64,
    machine_cpu_s: f64,
}

/// Part (c).
#[derive(Debug, Serialize)]
pub struct SessionResults {
    suite: &'static str,
    response_bytes: usize,
    window: u32,
    frames_per_session: f64,
    /// Whether the box had a core for itself.
    pinned: bool,
    /// Microseconds of the mmtls process per session.
    mmtls_us: Samples,
    /// Sessions per second that came through, with the replayer on the same cores.
    mmtls_per_s: Samples,
    /// Share of sessions in which packets waited for keys.
    stalled: Samples,
    /// Machine without the replayer's process, per session.
    mmtls_machine_us: Samples,
    replays: Vec<Replay>,
    parts: SessionParts,
    live: LiveSessions,
    splits: Vec<Split>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// One kind of proxy.
#[derive(Debug, Serialize)]
struct Split {
    server_key: &'static str,
    upstream: &'static str,
    /// Microseconds of the proxy's processes per connection.
    us: Samples,
    per_s: Samples,
    /// Divided by mmTLS's per session, of the medians.
    ratio: f64,
    /// The same of each repetition.
    per_repetition: Samples,
    runs: Vec<AbRun>,
}

/// A proxy with its server.
struct Lane {
    server_key: &'static str,
    upstream: &'static str,
    bed: Testbed,
    _server: Nginx,
    split: NginxSplit,
    /// Connections per run.
    connections: u32,
    runs: Vec<AbRun>,
}

impl Lane {
    fn start(key_type: KeyType, keepalive: bool, files: &Path) -> Result<Self, String> {
        let options = Options { middle: Middle::Routed, rps: false, ..Options::default() };
        let bed = Testbed::with_options(&options).map_err(|error| error.to_string())?;
        let options = NginxOptions { key_type, ..lane::server_options(Tls::Gcm, files) };
        let server = Nginx::start(&bed, options).map_err(|error| error.to_string())?;
        let upstream_keepalive = if keepalive { 512 } else { 0 };
        let options = SplitOptions { key_type, upstream_keepalive, ..SplitOptions::default() };
        let split = lane::start_split(&bed, Tls::Gcm, options)?;
        Ok(Self {
            server_key: if key_type == KeyType::Rsa { "RSA-2048" } else { "P-256" },
            upstream: if keepalive { "kept" } else { "new" },
            bed,
            _server: server,
            split,
            connections: 500,
            runs: Vec::new(),
        })
    }

    fn run(&mut self) -> Result<AbRun, String> {
        let client = self.bed.client.command("ab");
        let run = connect(client, &mut self.split.process, self.connections)?;
        eprintln!(
            "  split TLS, {}, upstream {}: {} connections in {:.2} s, {:.0} µs each",
            self.server_key,
            self.upstream,
            run.connections,
            run.seconds,
            run.us()
        );
        Ok(run)
    }

    fn name(&self) -> String {
        split_name(self.server_key, self.upstream)
    }

    fn contender(&self) -> Contender {
        contenders::of_process(&self.name(), &self.split.process)
    }

    fn finish(self, mmtls: &Samples) -> Split {
        let us = Samples::new(self.runs.iter().map(AbRun::us).collect());
        let each = us.samples.iter().zip(&mmtls.samples).map(|(split, mmtls)| split / mmtls);
        let per_s = self.runs.iter().map(AbRun::per_s);
        Split {
            server_key: self.server_key,
            upstream: self.upstream,
            per_s: Samples::new(per_s.collect()),
            ratio: us.median / mmtls.median,
            per_repetition: Samples::new(each.collect()),
            us,
            runs: self.runs,
        }
    }
}

fn split_name(server_key: &str, upstream: &str) -> String {
    format!("nginx split TLS, {server_key}, upstream {upstream}")
}

impl Replay {
    /// Microseconds of the box's process per session.
    pub fn us(&self) -> f64 {
        self.box_cpu_s * 1e6 / f64::from(self.replayed.sessions)
    }
}

impl AbRun {
    /// Microseconds of the process in the middle per connection.
    pub fn us(&self) -> f64 {
        self.box_cpu_s * 1e6 / f64::from(self.connections)
    }

    /// Microseconds of all cores per connection.
    pub fn machine_us(&self) -> f64 {
        self.machine_cpu_s * 1e6 / f64::from(self.connections)
    }

    pub fn per_s(&self) -> f64 {
        f64::from(self.connections) / self.seconds
    }
}

/// Measures with real ends, then both in turn.
pub fn measure(repetitions: u32, load: Load) -> Result<SessionResults, String> {
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let files = Directory::create("files")?;
    files::pattern(&files.0.join("1k"), synthetic::BODY as u64, 1).map_err(failed)?;
    let live = session_live::measure(repetitions, load.seconds, &files.0)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bed = replay_bed().map_err(failed)?;
    let options = MmtlsOptions::new(crate::binaries()?);
    let mut lanes = Vec::new();
    for key_type in [KeyType::Rsa, KeyType::Ecdsa] {
        for keepalive in [true, false] {
            let mut lane = Lane::start(key_type, keepalive, &files.0)?;
            let warm = lane.run()?;
            lane.connections = ((warm.per_s() * load.seconds) as u32).max(500);
            lanes.push(lane);
        }
    }
    let few = Load { sessions: load.sessions.div_ceil(10), ..load };
    replay(&bed, cores, few, &options, few.sessions)?;

    let (mut replays, mut parts) = (Vec::new(), SessionParts::default());
    for _ in 0..repetitions {
        replays.push(replay(&bed, cores, load, &options, load.sessions)?);
        parts.measure(&bed, cores, load)?;
        for lane in &mut lanes {
            let run = lane.run()?;
            lane.runs.push(run);
        }
    }
    let of_replays =
        |figure: &dyn Fn(&Replay) -> f64| Samples::new(replays.iter().map(figure).collect());
    let sessions = f64::from(load.sessions);
    let contenders = replays.iter().take(1).map(|it| it.contender.clone());
    let contenders = contenders.chain(lanes.iter().map(Lane::contender)).collect();
    let mmtls_us = of_replays(&Replay::us);
    Ok(SessionResults {
        suite: Tls::Gcm.suite(),
        response_bytes: synthetic::BODY,
        window: load.window,
        pinned: cores > 1,
        frames_per_session: replays[0].replayed.frames as f64 / sessions,
        mmtls_per_s: of_replays(&|it| sessions / it.replayed.seconds),
        stalled: of_replays(&|it| it.mmtls.stalls as f64 / sessions),
        mmtls_machine_us: of_replays(&|it| {
            (it.replayed.machine_cpu_s - it.replayed.own_cpu_s) * 1e6 / sessions
        }),
        splits: lanes.into_iter().map(|lane| lane.finish(&mmtls_us)).collect(),
        mmtls_us,
        replays,
        parts,
        live,
        contenders,
    })
}

/// A path whose both ends are in the client's namespace, where one process plays both. Without
/// receive steering: order is the replayer's business, and in a virtual machine each interrupt
/// from core to core costs as much as two packets.
pub(super) fn replay_bed() -> Result<Testbed, mmtls_testkit::TestbedError> {
    let options = Options { middle: Middle::Empty, rps: false, ..Options::default() };
    let bed = Testbed::with_options(&options)?;
    bed.server.ip(&format!("link set eth0 netns {} name eth1\n", bed.client.name()))?;
    bed.client.ip("link set eth1 up\n")?;
    Ok(bed)
}

/// One replay, through a monitor that follows and opens so many of the sessions; where it is none, no keys come.
pub(super) fn replay(
    bed: &Testbed,
    cores: usize,
    load: Load,
    options: &MmtlsOptions,
    followed: u32,
) -> Result<Replay, String> {
    let mut mmtls = Mmtls::start(bed, options).map_err(|error| error.to_string())?;
    let command = player(bed, &mmtls, cores, load, followed > 0)?;
    let contender = contenders::of_process("mmTLS", &mmtls.process);
    let before = mmtls.process.cpu_seconds();
    let output = output(command)?;
    let replayed: Replayed = serde_json::from_str(&output).map_err(|error| error.to_string())?;
    // The last sessions end when both FINs are acknowledged, which they are; logs follow.
    std::thread::sleep(Duration::from_millis(300));
    let seen = monitor::stop(mmtls, u64::from(followed))?;
    let replay = Replay { box_cpu_s: seen.cpu_s - before, replayed, mmtls: seen, contender };
    eprintln!(
        "  mmTLS: {} sessions in {:.2} s, {followed} followed, {:.1} µs each",
        replay.replayed.sessions,
        replay.replayed.seconds,
        replay.us()
    );
    Ok(replay)
}

/// What plays both ends of a bed of [`replay_bed`], beside the box, which gets a core for itself where there are several.
pub(super) fn player(
    bed: &Testbed,
    mmtls: &Mmtls,
    cores: usize,
    load: Load,
    sends_keys: bool,
) -> Result<Command, String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = if cores > 1 {
        let mut pin = Command::new("taskset");
        pin.args(["-a", "-c", "-p", "0", &mmtls.process.pid().to_string()]);
        output(pin)?;
        let mut command = bed.client.command("taskset");
        command.arg("-c").arg(format!("1-{}", cores - 1)).arg(me);
        command
    } else {
        bed.client.command(me)
    };
    command.args(["bench", "replayer", "--client", "eth0", "--server", "eth1"]);
    if sends_keys {
        let (name, port) = (address::MIDDLEBOX_NAME, middlebox::KEYS_PORT);
        command.arg("--middlebox").arg(format!("{name}@{}:{port}", address::KEYS_V4));
        command.arg("--ca").arg(&bed.pki().ca);
    }
    command.args(["--sessions", &load.sessions.to_string()]);
    command.args(["--window", &load.window.to_string()]);
    Ok(command)
}

/// ab, which this command is to be, opens so many connections, one for each request, through this process.
pub(super) fn connect(
    mut client: Command,
    middle: &mut Background,
    connections: u32,
) -> Result<AbRun, String> {
    let bytes = synthetic::BODY as u64;
    let requests = Requests {
        object: "1k",
        bytes,
        number: connections,
        concurrency: CONCURRENCY,
        keep: false,
    };
    requests.ask(&mut client);
    let (machine, own) = (machine_cpu(), middle.cpu_seconds());
    let text = output(client)?;
    let machine_cpu_s = machine_cpu() - machine;
    let box_cpu_s = middle.cpu_seconds() - own;
    Ok(AbRun { connections, seconds: requests.seconds(&text)?, box_cpu_s, machine_cpu_s })
}

/// Standard output of a program that must succeed.
pub(super) fn output(mut command: Command) -> Result<String, String> {
    command.stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl SessionResults {
    /// Figure 11.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("11", panel, title, Axis::category("object per connection"), y)
        };
        let mut cpu = figure(
            "cpu",
            "New connections: processor time of the process in the middle",
            Axis::linear("processor time per connection", "µs"),
        )
        .note(format!(
            "{}; {:.0} frames per session, {} at a time, both ends played by one program; ab for nginx, {CONCURRENCY} at a time{}.",
            self.suite,
            self.frames_per_session,
            self.window,
            if self.pinned { "; mmTLS has the first processor for itself" } else { "" }
        ))
        .note(format!(
            "{:.0} % of the sessions through mmTLS waited for keys; the machine without the player: {:.1} µs per session.",
            self.stalled.median * 100.0,
            self.mmtls_machine_us.median
        ));
        let mut rate = figure(
            "rate",
            "New connections per second, clients and servers on the same machine",
            Axis::linear("rate", "connections/s"),
        );
        let x = format!("{} B", self.response_bytes);
        cpu.add("mmTLS", x.clone(), &self.mmtls_us.samples);
        rate.add("mmTLS", x.clone(), &self.mmtls_per_s.samples);
        for it in &self.splits {
            let name = split_name(it.server_key, it.upstream);
            cpu.add(&name, x.clone(), &it.us.samples);
            rate.add(&name, x.clone(), &it.per_s.samples);
        }
        vec![cpu, rate, self.parts.figure(&self.mmtls_us), self.live.figure()]
    }

    /// Prints the tables.
    pub fn print(&self) {
        let row = |name: String, us: &Samples, per_s: &Samples, ratio: String, range: String| {
            let spread = format!("{:.1}–{:.1}", us.min, us.max);
            let per_s = format!("{:.0}", per_s.median);
            vec![name, format!("{:.1}", us.median), spread, per_s, ratio, range]
        };
        let one = "mmTLS, replayed".to_owned();
        let mut rows =
            vec![row(one, &self.mmtls_us, &self.mmtls_per_s, "1".to_owned(), String::new())];
        for it in &self.splits {
            let name = split_name(it.server_key, it.upstream);
            let each = &it.per_repetition;
            let range = format!("{:.1}–{:.1}", each.min, each.max);
            rows.push(row(name, &it.us, &it.per_s, format!("{:.1}", it.ratio), range));
        }
        table(
            &format!(
                "(c) new connections, {} B each, {}: processor time of the box's process, medians",
                self.response_bytes, self.suite
            ),
            &["box", "µs/session", "range", "sessions/s", "ratio", "range"],
            &rows,
        );
        self.parts.print();
        self.live.print();
        println!(
            "{:.0} frames per session, {} sessions at a time; {:.0} % waited for keys; machine \
             without the replayer: {:.1} µs per session",
            self.frames_per_session,
            self.window,
            self.stalled.median * 100.0,
            self.mmtls_machine_us.median
        );
    }
}
