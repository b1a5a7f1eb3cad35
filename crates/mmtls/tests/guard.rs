//! What becomes of traffic when the monitor is killed, stopped, or out of memory: it goes on, by the guard, or it does not, as
//! the configuration says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mmtls_testkit::{Background, Mmtls, MmtlsOptions, NginxOptions, address, skip_unless};
use serde_json::Value;

use crate::common::{
    Family, LIMIT, Stage, can_run, mmtls_program, options, patient, shell, stat, url,
};
use crate::restart::{Many, SESSIONS, wait_for};

const OPEN: &str = "[inline]\nwhen_down = \"open\"\n";

/// Traffic may stand still for so long.
const GAP_MS: f64 = 100.0;

/// On a machine that is busy the probe itself may stand still: so often is tried.
const TRIES: usize = 5;

/// Sends a numbered datagram every millisecond, with the time; until a file is there.
const SENDER: &str = r#"
import os, socket, struct, sys, time
host, stop = sys.argv[1], sys.argv[2]
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
number, due = 0, time.monotonic()
while number % 64 or not os.path.exists(stop):
    out.sendto(struct.pack("!QQ", number, time.monotonic_ns()), (host, 9999))
    if number == 0:
        print("sending", flush=True)
    number += 1
    due = max(due + 0.001, time.monotonic() - 0.005)
    time.sleep(max(0, due - time.monotonic()))
"#;

/// Takes them, and says: when they were sent between which none arrived for longest, the latest one, and how many came, were
/// lost, came twice.
const RECEIVER: &str = r#"
import json, os, socket, struct, sys
stop = sys.argv[1]
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
into.bind(("", 9999))
into.settimeout(0.2)
print("ready", flush=True)
times, twice = {}, 0
while True:
    try:
        number, time = struct.unpack("!QQ", into.recv(64))
    except TimeoutError:
        if os.path.exists(stop):
            break
        continue
    twice += number in times
    times[number] = time
sent = [times[number] for number in sorted(times)]
gap = max((b - a for a, b in zip(sent, sent[1:])), default=0)
print(json.dumps({"gap_ms": gap / 1e6, "latest": sent[-1] if sent else 0, "came": len(sent), "twice": twice,
    "lost": max(times, default=0) + 1 - len(sent)}), flush=True)
"#;

/// Traffic that shows how long there was none.
struct Probe {
    sender: Background,
    receiver: Background,
    stop: PathBuf,
}

#[derive(Debug)]
struct Seen {
    gap_ms: f64,
    /// When the latest one was sent that came.
    latest_ns: u64,
    came: u64,
    lost: u64,
    twice: u64,
}

impl Probe {
    fn start(stage: &Stage) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let stop = stage.bed.directory().join(format!("stop-{count}"));
        let mut receiver = stage.bed.server.command("python3");
        receiver.args(["-c", RECEIVER]).arg(&stop);
        let mut receiver = stage.bed.background("receiver", receiver).unwrap();
        receiver.wait_for_line("ready", LIMIT).unwrap();
        let mut sender = stage.bed.client.command("python3");
        sender.args(["-c", SENDER, address::SERVER_V4]).arg(&stop);
        let mut sender = stage.bed.background("sender", sender).unwrap();
        sender.wait_for_line("sending", LIMIT).unwrap();
        Self { sender, receiver, stop }
    }

    fn stop(mut self) -> Seen {
        std::fs::write(&self.stop, "").unwrap();
        self.sender.wait(LIMIT).unwrap();
        let line = self.receiver.wait_for_line("gap_ms", LIMIT).unwrap();
        let seen: Value = serde_json::from_str(&line).unwrap();
        let number = |name: &str| seen[name].as_u64().unwrap();
        Seen {
            gap_ms: seen["gap_ms"].as_f64().unwrap(),
            latest_ns: number("latest"),
            came: number("came"),
            lost: number("lost"),
            twice: number("twice"),
        }
    }
}

/// A stage whose guard goes with it.
struct Guarded(Stage);

impl Guarded {
    /// `None`, loudly, where the kernel has no place for a guard.
    fn new() -> Option<Self> {
        let it = Self(Stage::with(NginxOptions::default()));
        let done = it.guard(&["install", "left", "right"]);
        if done.is_ok() {
            return Some(it);
        }
        let why = done.unwrap_err();
        let lacks = ["no guard can be installed: ", "/sys/fs/bpf: "];
        assert!(lacks.iter().any(|it| why.contains(it)), "{why}");
        skip_unless("MMTLS_REQUIRE_KERNEL_FORWARDING", &why);
        None
    }

    /// What `mmtls guard` says, or its error.
    fn guard(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.0.bed.middlebox.command(mmtls_program());
        command.arg("guard").args(arguments);
        let done = self.0.run("guard", command);
        if done.status.success() { Ok(done.text()) } else { Err(done.stderr) }
    }

    /// A monitor that has the traffic.
    fn monitor(&self, options: &MmtlsOptions) -> Mmtls {
        let mmtls = self.0.mmtls(options);
        let begun = Instant::now();
        while self.guard(&["status", "left", "right"]).unwrap().contains("the kernel forwards") {
            assert!(begun.elapsed() < LIMIT, "{}", mmtls.process.stderr_text());
        }
        mmtls
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // It may be gone.
        let _ = self.guard(&["remove", "--force", "left", "right"]);
    }
}

fn with(config: &str, options: MmtlsOptions) -> MmtlsOptions {
    let config = format!("{}{config}", options.config.unwrap_or_default());
    MmtlsOptions { config: Some(config), ..options }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Long enough for the guard to forward for a while.
fn wait() {
    std::thread::sleep(Duration::from_millis(700));
}

/// Lets `fail` do it while there is traffic, until the traffic has stood still for no longer than allowed.
fn quickest(it: &Guarded, what: &str, mut fail: impl FnMut(Mmtls)) {
    let mut gaps = Vec::new();
    for _ in 0..TRIES {
        let mmtls = it.monitor(&with(OPEN, options()));
        let probe = Probe::start(&it.0);
        wait();
        fail(mmtls);
        let seen = probe.stop();
        eprintln!("{what}: {seen:?}");
        assert!(seen.came > 500 && seen.twice == 0, "{what}: {seen:?}");
        assert!(seen.lost < seen.came, "{what}: {seen:?}");
        gaps.push(seen.gap_ms);
        if seen.gap_ms <= GAP_MS {
            return;
        }
    }
    panic!("{what}: {gaps:?}");
}

#[test]
fn a_killed_monitor_fails_open() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    quickest(&it, "no monitor", |mut mmtls| {
        mmtls.process.signal("KILL");
        mmtls.process.wait(LIMIT).unwrap();
        wait();
    });
    quickest(&it, "the end", |mmtls| {
        assert!(mmtls.stop().unwrap().success);
        wait();
    });
    let status = it.guard(&["status", "left", "right"]).unwrap();
    assert!(status.contains("no monitor is there: the kernel forwards"), "{status}");
}

#[test]
fn a_stopped_monitor_fails_open_and_takes_the_traffic_back() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    for workers in ["1", "3"] {
        quickest(&it, &format!("stopped, {workers} workers"), |mmtls| {
            // The monitor of the stage is replaced by one with so many workers.
            mmtls.stop().unwrap();
            let arguments = ["--workers", workers].map(str::to_owned).to_vec();
            let mut mmtls = it.monitor(&MmtlsOptions { arguments, ..with(OPEN, options()) });
            mmtls.process.signal("STOP");
            wait();
            let status = it.guard(&["status", "left", "right"]).unwrap();
            assert!(status.contains("no monitor is there"), "{status}");
            mmtls.process.signal("CONT");
            mmtls.process.wait_for_line("failed open", LIMIT).unwrap();
            let begun = Instant::now();
            while it.guard(&["status", "left", "right"]).unwrap().contains("the kernel forwards") {
                assert!(begun.elapsed() < LIMIT);
            }
            wait();
            let report = mmtls.stop().unwrap();
            assert!(report.success, "{}", report.stderr);
            assert!(stat(&report, "engine", "guard_leases_lost") >= 1);
            assert!(stat(&report, "engine", "left_guard_forwarded") > 100);
            assert!(stat(&report, "engine", "left_guard_discarded") > 100, "what waited meanwhile");
            assert!(stat(&report, "engine", "frames") > 100, "it goes on");
        });
    }
}

/// A group of processes with little memory.
struct SmallMemory {
    directory: PathBuf,
    is_v2: bool,
}

impl SmallMemory {
    /// `None`, loudly, where this machine does not let one be made.
    fn new(name: &str, bytes: u64) -> Option<Self> {
        let name = format!("mmtls-{name}-{}", std::process::id());
        let v2 = Path::new("/sys/fs/cgroup");
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let controllers = std::fs::read_to_string(v2.join("cgroup.controllers"));
        let is_v2 = controllers.is_ok_and(|it| it.split_whitespace().any(|it| it == "memory"));
        let directory = if is_v2 { v2 } else { v1 }.join(name);
        let limit = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        if is_v2 {
            let _ = std::fs::write(v2.join("cgroup.subtree_control"), "+memory");
        }
        let made = match is_v2 || v1.join("memory.limit_in_bytes").exists() {
            true => std::fs::create_dir(&directory),
            false => Err(std::io::ErrorKind::NotFound.into()),
        };
        let made = made.and_then(|()| std::fs::write(directory.join(limit), bytes.to_string()));
        let it = Self { directory, is_v2 };
        match made {
            Ok(()) => Some(it),
            Err(error) => {
                let why = format!("no memory cgroup: {error}");
                skip_unless("MMTLS_REQUIRE_KERNEL_FORWARDING", &why);
                None
            }
        }
    }

    /// What the process takes from now on counts.
    fn add(&self, process: u32) {
        std::fs::write(self.directory.join("cgroup.procs"), process.to_string()).unwrap();
    }

    /// How many processes the kernel has killed here.
    fn killed(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(self.directory.join(file)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().parse().unwrap()
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// A thousand clients at once, who share nothing.
fn crowd(stage: &Stage, requests: &str) -> Background {
    let mut h2load = stage.bed.client.command("h2load");
    h2load.args(["--h1", "-t1", "-c", "1000", "-n", requests]);
    h2load.arg(format!("https://{}/small", address::SERVER_V4));
    stage.bed.background("h2load", h2load).unwrap()
}

/// Has the kernel kill it, since it wants more memory than there is.
fn starve(stage: &Stage, mmtls: &mut Mmtls) -> bool {
    let Some(memory) = SmallMemory::new("guard", 1 << 20) else {
        return false;
    };
    memory.add(mmtls.process.pid());
    let mut crowd = crowd(stage, "2000");
    let ended = mmtls.process.wait(LIMIT).unwrap();
    assert!(!ended.success());
    assert!(memory.killed() >= 1, "{}", mmtls.process.stderr_text());
    crowd.stop();
    true
}

#[test]
fn a_monitor_out_of_memory_fails_open() {
    if !can_run(&["nginx", "python3", "h2load"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    it.0.serve("small", b"small");
    quickest(&it, "out of memory", |mut mmtls| {
        if starve(&it.0, &mut mmtls) {
            wait();
        }
    });
}

/// Without a guard, and with the answer that is the default.
#[test]
fn a_monitor_that_fails_closed_lets_nothing_pass() {
    if !can_run(&["nginx", "python3", "h2load"]) {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("small", b"small");
    for how in ["killed", "stopped", "out of memory"] {
        let mut mmtls = stage.mmtls(&options());
        let probe = Probe::start(&stage);
        wait();
        match how {
            "killed" => {
                mmtls.process.signal("KILL");
                mmtls.process.wait(LIMIT).unwrap();
            }
            "stopped" => mmtls.process.signal("STOP"),
            _ if starve(&stage, &mut mmtls) => {}
            _ => return,
        }
        // What has been sent is on its way for longer than a moment only if the machine stands still.
        std::thread::sleep(Duration::from_millis(200));
        let since = now_ns();
        wait();
        let seen = probe.stop();
        eprintln!("closed, {how}: {seen:?}");
        assert!(seen.came > 300 && seen.latest_ns < since, "{how}: {seen:?}, {since}");
        if how == "stopped" {
            let probe = Probe::start(&stage);
            mmtls.process.signal("CONT");
            wait();
            assert!(probe.stop().came > 300, "it goes on");
        }
    }
}

/// Sessions that are under way: with their requests, while the monitor is killed; stopped, they are found again.
#[test]
fn a_thousand_sessions_outlive_a_monitor_that_fails_open() {
    if !can_run(&["nginx", "python3"]) || !mmtls_testkit::require_python("ssl") {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    it.0.serve("small", &[&[b'x'; 1000][..], b"the end"].concat());
    for how in ["stopped", "killed"] {
        let mut mmtls = it.monitor(&with(OPEN, patient()));
        let directory = it.0.bed.directory().join(format!("agent-{how}"));
        let agent = mmtls.agent(&it.0.bed, false, &directory, None).unwrap();
        let options = ["--exempt", "other.test"];
        let python = mmtls.sharing_through(&it.0.bed, &directory, &options, "python3");
        let mut many = Many::start(&it.0, python, how);
        assert_eq!(many.step("open"), (SESSIONS, 0), "{how}");
        let probe = Probe::start(&it.0);
        wait();
        let step = many.say("go on");
        std::thread::sleep(Duration::from_millis(50));
        mmtls.process.signal(if how == "killed" { "KILL" } else { "STOP" });
        assert_eq!(many.outcome(step), (SESSIONS, 0), "{how}");
        assert_eq!(many.step("go on"), (SESSIONS, 0), "{how}");
        if how == "stopped" {
            mmtls.process.signal("CONT");
            mmtls.process.wait_for_line("failed open", LIMIT).unwrap();
            // What is said before the keys are there passes; the next records are inspected. Endpoints are asked once in a
            // second, and so many records are hashed in one.
            for _ in 0..6 {
                assert_eq!(many.step("go on"), (SESSIONS, 0), "{how}");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        let seen = probe.stop();
        eprintln!("{SESSIONS} sessions, {how}: {seen:?}");
        assert_eq!(seen.twice, 0, "{seen:?}");
        many.say("end");
        assert!(many.client.wait(LIMIT).unwrap().success());
        drop(agent);
        if how == "killed" {
            continue;
        }
        let report = mmtls.stop().unwrap();
        let all = format!("{:#?}\n{}", report.summary, report.stderr);
        assert!(stat(&report, "engine", "failed_open") >= SESSIONS as u64, "{all}");
        let found = stat(&report, "engine", "mid_stream_followed");
        assert!(found >= SESSIONS as u64, "{found}: {all}");
        assert_eq!(stat(&report, "engine", "records_failed"), 0, "{all}");
        let ends = report.events("mmtls");
        let failed = ends.iter().filter(|it| it["mmtls"]["end_reason"] == "failed_open").count();
        assert!(failed >= SESSIONS, "{failed}");
    }
}

/// A directory on a disk of its own.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(stage: &Stage, size: &str) -> Option<Self> {
        let directory = stage.bed.directory().join("small-disk");
        std::fs::create_dir(&directory).unwrap();
        let size = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&directory);
        match mount.output() {
            Ok(done) if done.status.success() => Some(Self(directory)),
            other => {
                skip_unless("MMTLS_REQUIRE_KERNEL_FORWARDING", &format!("no tmpfs: {other:?}"));
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_stops_the_log_and_nothing_else() {
    if !can_run(&["nginx", "python3", "h2load"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    it.0.serve("small", b"small");
    let Some(disk) = SmallDisk::new(&it.0, "64k") else {
        return;
    };
    let log = ["-l".to_owned(), disk.0.display().to_string()].to_vec();
    let options = MmtlsOptions { log: false, arguments: log, ..with(OPEN, options()) };
    let options = MmtlsOptions { missing_keys: "forward".to_owned(), ..options };
    let mmtls = it.monitor(&options);
    let probe = Probe::start(&it.0);
    let mut crowd = crowd(&it.0, "2000");
    assert!(crowd.wait(LIMIT).unwrap().success(), "{}", crowd.stderr_text());
    let text = crowd.stdout_text();
    assert!(text.contains("2000 succeeded, 0 failed"), "{text}");
    wait();
    let seen = probe.stop();
    eprintln!("full disk: {seen:?}");
    assert_eq!(seen.twice, 0);
    let report = mmtls.stop().unwrap();
    assert!(!report.success, "not all of the log is there: {}", report.stderr);
    assert!(report.count("log lines lost") > 0, "{:#?}\n{}", report.summary, report.stderr);
    assert!(report.count("TLS sessions") >= 1000, "{:#?}", report.summary);
    assert!(report.stderr.contains("lines are missing in eve.json"), "{}", report.stderr);
}

/// Two bridges in different places have interfaces of the same names, and often of the same numbers.
#[test]
fn guards_of_different_places_are_told_apart() {
    if !can_run(&["nginx"]) {
        return;
    }
    let (Some(one), Some(other)) = (Guarded::new(), Guarded::new()) else {
        return;
    };
    let first = one.monitor(&with(OPEN, options()));
    let second = other.monitor(&with(OPEN, options()));
    let all = one.guard(&["status"]).unwrap();
    assert!(all.lines().filter(|line| line.starts_with("left and right")).count() >= 2, "{all}");
    assert!(first.stop().unwrap().success && second.stop().unwrap().success);
}

/// What would have each frame forwarded twice, or not at all when it is to be.
#[test]
fn what_does_not_fit_the_guard_is_refused_with_the_remedy() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let refused = |config: &str, interfaces: &str, is_test: bool| {
        let path = it.0.bed.directory().join("refused.toml");
        std::fs::write(&path, config).unwrap();
        let mut command = it.0.bed.middlebox.command(mmtls_program());
        let pki = it.0.bed.pki();
        command.args(["run", "--inline", interfaces, "--missing-keys", "reset"]);
        command
            .args(["--keys-listen", "127.0.0.1:0", "--key-cert"])
            .arg(&pki.middlebox.certificate);
        command.arg("--key-key").arg(&pki.middlebox.key).arg("-c").arg(path);
        if is_test {
            command.arg("-T");
        }
        let done = it.0.run("refused", command);
        assert!(!done.status.success(), "{config}");
        done.stderr
    };
    for is_test in [false, true] {
        let told = refused("", "left:right", is_test);
        assert!(told.contains("a guard is installed on left"), "{told}");
        assert!(told.contains("inline.when_down = \"open\""), "{told}");
    }
    let monitor = it.monitor(&with(OPEN, options()));
    for is_test in [false, true] {
        let told = refused(OPEN, "right:left", is_test);
        assert!(told.contains("another monitor holds the lease"), "{told}");
    }
    let told = it.guard(&["remove", "left", "right"]).unwrap_err();
    assert!(told.contains("another monitor holds the lease"), "{told}");
    let told = it.guard(&["install", "left", "right", "--lease-ms", "500"]).unwrap_err();
    assert!(told.contains("the guard of left and right has a lease of 50 ms"), "{told}");
    it.guard(&["install", "right", "left", "--user", "nobody"]).unwrap();
    assert!(monitor.stop().unwrap().success);
    it.guard(&["remove", "left", "right"]).unwrap();
    assert!(it.guard(&["status", "left", "right"]).unwrap_err().contains("no guard is installed"));

    // Beside a monitor that knows nothing of it.
    let monitor = it.0.mmtls(&options());
    let told = it.guard(&["install", "left", "right"]).unwrap_err();
    assert!(told.contains("packet sockets receive from left and right"), "{told}");
    assert!(monitor.stop().unwrap().success);
    // The start installs it itself.
    let monitor = it.monitor(&with(OPEN, options()));
    assert!(monitor.stop().unwrap().stderr.contains("fails open"));
    assert!(it.guard(&["status", "left", "right"]).is_ok(), "it stays");

    // An interface that is made again is another one.
    shell(&it.0.bed.middlebox, "ip link del left");
    let all = it.guard(&["status"]).unwrap();
    assert!(all.contains("left and right: an interface is gone"), "{all}");
    it.guard(&["remove", "--gone"]).unwrap();
    let all = it.guard(&["status"]).unwrap();
    assert!(!all.contains("left and right: "), "{all}");
}

/// Stops one thread of a process, and goes on when it is told to.
const DEBUGGER: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT = 0x4206, 0x4207
for request in (SEIZE, INTERRUPT):
    if libc.ptrace(request, int(sys.argv[1]), None, None):
        sys.exit(f"ptrace: {ctypes.get_errno()}")
print("stopped", flush=True)
import time
time.sleep(60)
"#;

/// Which worker's a frame is, nobody but the packet sockets knows: so all of them wait for the one that hangs.
#[test]
fn one_worker_that_hangs_makes_the_monitor_fail_open() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let arguments = ["--workers", "3"].map(str::to_owned).to_vec();
    let mmtls = it.monitor(&MmtlsOptions { arguments, ..with(OPEN, options()) });
    let probe = Probe::start(&it.0);
    let is_worker = |thread: &u32| {
        let name = format!("/proc/{}/task/{thread}/comm", mmtls.process.pid());
        std::fs::read_to_string(name).is_ok_and(|it| it.trim() == "worker-2")
    };
    let threads = mmtls.process.threads();
    let thread = threads.into_iter().find(is_worker).expect("a thread of that name");
    let mut debugger = Command::new("python3");
    debugger.args(["-c", DEBUGGER, &thread.to_string()]);
    let mut debugger = it.0.bed.background("debugger", debugger).unwrap();
    debugger.wait_for_line("stopped", LIMIT).unwrap();
    wait();
    let status = it.guard(&["status", "left", "right"]).unwrap();
    assert!(status.contains("one is silent: the kernel forwards"), "{status}");
    debugger.stop();
    wait();
    let seen = probe.stop();
    eprintln!("one worker of three: {seen:?}");
    // However long it took the debugger: what was lost is less than what has passed.
    assert!(seen.twice == 0 && seen.came > 500 && seen.gap_ms < 500.0, "{seen:?}");
    let report = mmtls.stop().unwrap();
    let lost = stat(&report, "engine", "guard_leases_lost");
    assert!(lost >= 3, "{lost}: all of them noticed it");
    assert!(stat(&report, "engine", "left_guard_forwarded") > 100);
}

/// What the kernel forwards for the monitor goes on while that is stopped, and arrives whole.
#[test]
fn connections_that_are_left_to_the_kernel_outlive_a_stop() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let content = mmtls_testkit::files::pattern_bytes(30 << 20, 3);
    it.0.serve("file", &content);
    let always = format!("{OPEN}kernel_forwarding = \"always\"\n");
    let mut mmtls = it.monitor(&with(&always, options()));
    let out = it.0.bed.directory().join("exempt");
    let mut curl = it.0.sharing_curl(&mmtls, Family::V4, &[address::SERVER_NAME]);
    curl.args(["--limit-rate", "10M", "-o"]).arg(&out).arg(url("file"));
    let mut curl = it.0.bed.background("curl", curl).unwrap();
    wait_for(&out, 3 << 20, &mut curl);
    mmtls.process.signal("STOP");
    wait();
    mmtls.process.signal("CONT");
    assert!(curl.wait(LIMIT).unwrap().success(), "{}", curl.stderr_text());
    assert!(std::fs::read(&out).unwrap() == content);
    let report = mmtls.stop().unwrap();
    assert!(stat(&report, "engine", "guard_leases_lost") >= 1);
}
