//! What becomes of traffic when the monitor is killed, stopped, or out of memory: it goes on, by the guard, or it does not, as
//! the configuration says.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mmtls_testkit::{
    Background, Mmtls, MmtlsOptions, NginxOptions, address, require_python, skip_unless, wait_until,
};

use crate::common::probe::Probe;
use crate::common::{
    Family, LIMIT, Stage, can_run, mmtls_program, options, patient, shell, stat, until, url,
};
use crate::metrics::{measured, samples, scrape};
use crate::restart::{Many, SESSIONS, wait_for};

const OPEN: &str = "[inline]\nwhen_down = \"open\"\n";

/// Traffic may stand still for so long.
const GAP_MS: f64 = 100.0;

/// On a machine that is busy the probe itself may stand still: so often is tried.
const TRIES: usize = 5;

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
        let has = wait_until(LIMIT, || !self.status().contains("the kernel forwards"));
        assert!(has, "{}", mmtls.process.stderr_text());
        mmtls
    }

    /// What a monitor says that does not start.
    fn refused(&self, config: &str, interfaces: &str, is_test: bool) -> String {
        let path = self.0.bed.directory().join("refused.toml");
        std::fs::write(&path, config).unwrap();
        let mut command = self.0.bed.middlebox.command(mmtls_program());
        let pki = self.0.bed.pki();
        command.args(["run", "--inline", interfaces, "--missing-keys", "reset"]);
        command
            .args(["--keys-listen", "127.0.0.1:0", "--key-cert"])
            .arg(&pki.middlebox.certificate);
        command.arg("--key-key").arg(&pki.middlebox.key).arg("-c").arg(path);
        if is_test {
            command.arg("-T");
        }
        let done = self.0.run("refused", command);
        assert!(!done.status.success(), "{config}");
        done.stderr
    }

    fn status(&self) -> String {
        self.guard(&["status", "left", "right"]).unwrap()
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

/// So many datagrams are traffic enough to see what becomes of it.
const SOME: u64 = 300;

/// Lets `fail` do it while there is traffic, until the traffic has stood still for no longer than allowed.
fn quickest(it: &Guarded, what: &str, arguments: &[&str], mut fail: impl FnMut(Mmtls, &Probe)) {
    let mut gaps = Vec::new();
    for _ in 0..TRIES {
        let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        let mmtls = it.monitor(&MmtlsOptions { arguments, ..with(OPEN, options()) });
        let probe = Probe::start(&it.0);
        probe.passes(SOME);
        fail(mmtls, &probe);
        probe.passes(SOME);
        let seen = probe.stop();
        eprintln!("{what}: {seen:?}");
        assert!(seen.twice == 0 && seen.lost < seen.came, "{what}: {seen:?}");
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
    quickest(&it, "no monitor", &[], |mut mmtls, _| {
        mmtls.process.signal("KILL");
        mmtls.process.wait(LIMIT).unwrap();
    });
    quickest(&it, "the end", &[], |mmtls, _| assert!(mmtls.stop().unwrap().success));
    let status = it.status();
    assert!(status.contains("no monitor is there: the kernel forwards"), "{status}");
    // What was forwarded while none was there is the next one's to tell.
    let report = it.monitor(&with(OPEN, patient())).stop().unwrap();
    let passed = stat(&report, "engine", "left_guard_passed_frames");
    assert!(passed >= SOME, "{passed}");
    assert!(stat(&report, "engine", "left_guard_forwarded") < passed);
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
        let what = format!("stopped, {workers} workers");
        quickest(&it, &what, &["--workers", workers], |mut mmtls, probe| {
            mmtls.process.signal("STOP");
            until("the guard forwards", || it.status().contains("no monitor is there"));
            probe.passes(SOME);
            mmtls.process.signal("CONT");
            mmtls.process.wait_for_line("failed open", LIMIT).unwrap();
            until("it takes over", || !it.status().contains("the kernel forwards"));
            probe.passes(SOME);
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
    fn new(bytes: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mmtls-guard-{}-{count}", std::process::id());
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
            false => Err(ErrorKind::NotFound.into()),
        };
        let made = made.and_then(|()| std::fs::write(directory.join(limit), bytes.to_string()));
        let it = Self { directory, is_v2 };
        match made {
            Ok(()) => Some(it),
            // No controller, or no rights: a container's are its host's, or are there to be read.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::PermissionDenied
                        | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                skip_unless("MMTLS_REQUIRE_MEMORY_CGROUP", &format!("no memory cgroup: {error}"));
                None
            }
            Err(error) => panic!("{}: {error}", it.directory.display()),
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
fn starve(stage: &Stage, memory: &SmallMemory, mmtls: &mut Mmtls) {
    let before = memory.killed();
    memory.add(mmtls.process.pid());
    let mut crowd = crowd(stage, "2000");
    let ended = mmtls.process.wait(LIMIT).unwrap();
    assert!(!ended.success());
    assert!(memory.killed() > before, "{}", mmtls.process.stderr_text());
    crowd.stop();
}

#[test]
fn a_monitor_out_of_memory_fails_open() {
    if !can_run(&["nginx", "python3", "h2load"]) {
        return;
    }
    let (Some(it), Some(memory)) = (Guarded::new(), SmallMemory::new(1 << 20)) else {
        return;
    };
    it.0.serve("small", b"small");
    quickest(&it, "out of memory", &[], |mut mmtls, _| starve(&it.0, &memory, &mut mmtls));
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
        probe.passes(SOME);
        match how {
            "killed" => {
                mmtls.process.signal("KILL");
                mmtls.process.wait(LIMIT).unwrap();
            }
            "stopped" => mmtls.process.signal("STOP"),
            _ => {
                let Some(memory) = SmallMemory::new(1 << 20) else {
                    return;
                };
                starve(&stage, &memory, &mut mmtls);
            }
        }
        // What has been sent is on its way for longer than a moment only if the machine stands still.
        std::thread::sleep(Duration::from_millis(200));
        let since = now_ns();
        probe.sends(SOME);
        let seen = probe.stop();
        eprintln!("closed, {how}: {seen:?}");
        assert!(seen.latest_ns < since, "{how}: {seen:?}, {since}");
        if how == "stopped" {
            let probe = Probe::start(&stage);
            mmtls.process.signal("CONT");
            probe.passes(SOME);
        }
    }
}

/// Sessions whose beginning the monitor has not seen, and that it has keys of.
fn followed(stage: &Stage) -> f64 {
    let text = scrape(stage);
    let of_worker = |(name, count): (&str, f64)| {
        name.starts_with("mmtls_engine_mid_stream_followed_total").then_some(count)
    };
    samples(&text).into_iter().filter_map(of_worker).sum()
}

/// Sessions that are under way: with their requests, while the monitor is killed; stopped, they are found again.
#[test]
fn a_thousand_sessions_outlive_a_monitor_that_fails_open() {
    if !can_run(&["nginx", "python3", "curl"]) || !require_python("ssl") {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    it.0.serve("small", &[&[b'x'; 1000][..], b"the end"].concat());
    for how in ["stopped", "killed"] {
        let mut mmtls = it.monitor(&measured(with(OPEN, patient())));
        let directory = it.0.bed.directory().join(format!("agent-{how}"));
        let agent = mmtls.agent(&it.0.bed, false, &directory, None).unwrap();
        let options = ["--exempt", "other.test"];
        let python = mmtls.sharing_through(&it.0.bed, &directory, &options, "python3");
        let mut many = Many::start(&it.0, python, how);
        assert_eq!(many.step("open"), (SESSIONS, 0), "{how}");
        let probe = Probe::start(&it.0);
        probe.passes(SOME);
        let step = many.say("go on");
        std::thread::sleep(Duration::from_millis(50));
        mmtls.process.signal(if how == "killed" { "KILL" } else { "STOP" });
        assert_eq!(many.outcome(step), (SESSIONS, 0), "{how}");
        assert_eq!(many.step("go on"), (SESSIONS, 0), "{how}");
        if how == "stopped" {
            mmtls.process.signal("CONT");
            mmtls.process.wait_for_line("failed open", LIMIT).unwrap();
            // What is said before the keys are there passes; the next records are inspected.
            until("all are followed", || {
                assert_eq!(many.step("go on"), (SESSIONS, 0), "{how}");
                // Endpoints are asked once in a second, and so many records are hashed in one.
                std::thread::sleep(Duration::from_millis(500));
                followed(&it.0) >= SESSIONS as f64
            });
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

/// Sessions that open while the monitor is silent time and again: whatever of a handshake it has seen, and whatever it has
/// held, an operator who has it fail open wants none of them cut.
#[test]
fn sessions_open_while_a_monitor_fails_open() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    it.0.serve("small", &[&[b'x'; 1000][..], b"the end"].concat());
    let mut mmtls = it.monitor(&measured(with(OPEN, patient())));
    let directory = it.0.bed.directory().join("agent");
    let agent = mmtls.agent(&it.0.bed, false, &directory, None).unwrap();
    let options = ["--exempt", "other.test"];
    let python = mmtls.sharing_through(&it.0.bed, &directory, &options, "python3");
    let mut many = Many::start(&it.0, python, "many");
    let step = many.say("open");
    for _ in 0..10 {
        mmtls.process.signal("STOP");
        std::thread::sleep(Duration::from_millis(100));
        mmtls.process.signal("CONT");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(many.outcome(step), (SESSIONS, 0), "{}", mmtls.process.stderr_text());
    assert_eq!(many.step("go on"), (SESSIONS, 0));
    many.say("end");
    assert!(many.client.wait(LIMIT).unwrap().success());
    drop(agent);
    let report = mmtls.stop().unwrap();
    let lost = stat(&report, "engine", "guard_leases_lost");
    assert!(lost >= 3, "{:#?}", report.summary);
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
                skip_unless("MMTLS_REQUIRE_TESTBED", &format!("no tmpfs: {other:?}"));
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
    probe.passes(SOME);
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
    if !can_run(&["nginx", "curl", "tcpdump"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    for is_test in [false, true] {
        let told = it.refused("", "left:right", is_test);
        assert!(told.contains("a guard is installed on left"), "{told}");
        assert!(told.contains("inline.when_down = \"open\""), "{told}");
    }
    let monitor = it.monitor(&with(OPEN, options()));
    for is_test in [false, true] {
        let told = it.refused(OPEN, "right:left", is_test);
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
    assert!(told.contains("packet sockets receive from left and right (mmtls, process"), "{told}");
    // One of its interfaces is enough: what comes by it would go twice.
    shell(&it.0.bed.middlebox, "ip link add spare type veth peer name other");
    let told = it.guard(&["install", "spare", "right"]).unwrap_err();
    assert!(told.contains("packet sockets receive from right (mmtls, process"), "{told}");
    assert!(monitor.stop().unwrap().success);
    // Who only looks keeps nobody from it.
    let mut tcpdump = it.0.bed.middlebox.command("tcpdump");
    tcpdump.args(["-ni", "left", "-w", "/dev/null"]);
    let mut tcpdump = it.0.bed.background("tcpdump", tcpdump).unwrap();
    tcpdump.wait_for_line("listening on left", LIMIT).unwrap();
    it.guard(&["install", "left", "spare"]).unwrap();
    it.guard(&["remove", "left", "spare"]).unwrap();
    tcpdump.stop();
    let passive = it.0.mmtls(&MmtlsOptions { passive: Some("left".to_owned()), ..options() });
    it.guard(&["install", "left", "spare"]).unwrap();
    it.guard(&["remove", "left", "spare"]).unwrap();
    assert!(passive.stop().unwrap().success);
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

/// A guard of another pair is ahead of a pair's own: what comes by the interface of both would leave uninspected, or be lost.
#[test]
fn guards_of_other_pairs_are_refused_and_those_of_gone_interfaces_make_way() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let middlebox = &it.0.bed.middlebox;
    shell(middlebox, "ip link add spare type veth peer name other && ip link set spare up");
    // Neither beside it, nor in its place.
    let told = it.guard(&["install", "left", "spare"]).unwrap_err();
    assert!(told.contains("the guard of left and right is installed on left"), "{told}");
    assert!(told.contains("`mmtls guard remove left right` as root"), "{told}");
    for is_test in [false, true] {
        let told = it.refused(OPEN, "spare:right", is_test);
        assert!(told.contains("the guard of left and right is installed on right"), "{told}");
    }
    let monitor = it.monitor(&with(OPEN, options()));
    let told = it.refused(OPEN, "left:spare", true);
    assert!(told.contains("`mmtls guard remove --force left right` as root"), "{told}");
    assert!(monitor.stop().unwrap().success);

    // Nobody has removed what an interface that was unplugged has left.
    it.guard(&["remove", "left", "right"]).unwrap();
    it.guard(&["install", "left", "spare"]).unwrap();
    let told = it.guard(&["install", "left", "right"]).unwrap_err();
    assert!(told.contains("`mmtls guard remove left spare` as root"), "{told}");
    shell(middlebox, "ip link del spare");
    assert!(it.guard(&["status"]).unwrap().contains("left and spare: an interface is gone"));
    quickest(&it, "behind what a gone one has left", &[], |mut mmtls, _| {
        mmtls.process.signal("KILL");
        mmtls.process.wait(LIMIT).unwrap();
    });
    let all = it.guard(&["status"]).unwrap();
    assert!(!all.contains("left and spare"), "{all}");
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
    quickest(&it, "one worker of three", &["--workers", "3"], |mmtls, probe| {
        let thread = mmtls.process.thread("worker-2").expect("a thread of that name");
        let mut debugger = Command::new("python3");
        debugger.args(["-c", DEBUGGER, &thread.to_string()]);
        let mut debugger = it.0.bed.background("debugger", debugger).unwrap();
        debugger.wait_for_line("stopped", LIMIT).unwrap();
        let words = "one is silent: the kernel forwards";
        until("the guard forwards", || it.status().contains(words));
        probe.passes(SOME);
        debugger.stop();
        until("they take over", || !it.status().contains("the kernel forwards"));
        probe.passes(SOME);
        let report = mmtls.stop().unwrap();
        let lost = stat(&report, "engine", "guard_leases_lost");
        assert!(lost >= 3, "{lost}: all of them noticed it");
        assert!(stat(&report, "engine", "left_guard_forwarded") > 100);
    });
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
    until("the guard forwards", || it.status().contains("no monitor is there"));
    wait_for(&out, 8 << 20, &mut curl);
    mmtls.process.signal("CONT");
    assert!(curl.wait(LIMIT).unwrap().success(), "{}", curl.stderr_text());
    assert!(std::fs::read(&out).unwrap() == content);
    let report = mmtls.stop().unwrap();
    assert!(stat(&report, "engine", "guard_leases_lost") >= 1);
}

/// The run that is to end holds the lease while the next one looks whether it can start.
#[test]
fn a_run_that_takes_over_takes_the_lease_too() {
    if !can_run(&["nginx"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let at = it.0.bed.directory().join("control.sock").display().to_string();
    let run = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|it| (*it).to_owned()).collect();
        it.monitor(&MmtlsOptions { arguments, ..with(OPEN, options()) })
    };
    let mut first = run(&["--control", &at]);
    let second = run(&["--control", &at, "--take-over", &at]);
    assert!(first.process.wait(LIMIT).unwrap().success(), "{}", first.process.stderr_text());
    let told = second.process.stderr_text();
    assert!(told.contains("the run there has ended"), "{told}");
    let status = it.guard(&["status", "left", "right"]).unwrap();
    assert!(status.contains("a monitor forwards"), "{status}");
    let report = second.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
}

/// A directory of somebody else where guards are.
struct Foreign(PathBuf);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What is there when an installation was killed, or another version has been.
#[test]
fn what_is_no_guard_is_marked_and_keeps_nobody_from_the_others() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let place = Path::new("/sys/fs/bpf/mmtls");
    let name = format!("foreign_{}", std::process::id());
    let foreign = Foreign(place.join(&name));
    std::fs::create_dir(&foreign.0).unwrap();
    let all = it.guard(&["status"]).unwrap();
    assert!(all.contains(&format!("{name}: no guard of this version")), "{all}");
    assert!(
        all.lines().any(|line| line.starts_with("left and right: no monitor is there")),
        "{all}"
    );
    it.guard(&["remove", "--gone"]).unwrap();
    assert!(foreign.0.exists(), "somebody else's");

    // The map is the last that is made.
    let script = "python3 -c 'import socket, struct; print(struct.unpack(\"Q\", socket.socket().getsockopt(1, 71, 8))[0])'";
    let cookie = shell(&it.0.bed.middlebox, script);
    let number = |name: &str| {
        let line = shell(&it.0.bed.middlebox, &format!("ip -o link show {name}"));
        line.split(':').next().unwrap().parse::<u32>().unwrap()
    };
    let directory = |mut numbers: [u32; 2]| {
        numbers.sort_unstable();
        let [one, other] = numbers;
        place.join(format!("guard_{}_{one}_{other}", cookie.trim()))
    };
    shell(&it.0.bed.middlebox, "ip link add spare type veth peer name other");
    let begun = Foreign(directory([number("left"), number("spare")]));
    let directory = directory([number("left"), number("right")]);
    std::fs::remove_file(directory.join("lease")).unwrap();
    let all = it.guard(&["status"]).unwrap();
    // By their numbers, since which of them was the left one is not known.
    let line = ": not complete: its installation has been interrupted, or is under way";
    let of_these = |line: &str, (one, other): (&str, &str)| {
        all.contains(&format!("{one} and {other}{line}"))
            && all.contains(&format!("`mmtls guard remove {one} {other}`"))
    };
    assert!(of_these(line, ("left", "right")) || of_these(line, ("right", "left")), "{all}");
    let told = it.guard(&["install", "left", "right"]).unwrap_err();
    assert!(told.contains("the guard of left and right is not complete"), "{told}");
    it.guard(&["remove", "left", "right"]).unwrap();
    assert!(!directory.exists());
    it.guard(&["install", "left", "right"]).unwrap();
    it.guard(&["remove", "left", "right"]).unwrap();

    // One that was interrupted before there was a link, which could have told that an interface is gone.
    let make = || std::fs::create_dir(&begun.0).unwrap();
    make();
    let told = it.guard(&["install", "left", "right"]).unwrap_err();
    assert!(told.contains(" is installed on left"), "{told}");
    it.guard(&["remove", "--gone"]).unwrap();
    assert!(begun.0.exists(), "it may be under way");
    shell(&it.0.bed.middlebox, "ip link del spare");
    let all = it.guard(&["status"]).unwrap();
    assert!(all.contains("not complete") && all.contains("`mmtls guard remove --gone`"), "{all}");
    it.guard(&["remove", "--gone"]).unwrap();
    assert!(!begun.0.exists());
    make();
    it.guard(&["install", "left", "right"]).unwrap();
    assert!(!begun.0.exists());
}

/// Who may not ask the kernel for the programs of an interface finds the guard where it is kept.
#[test]
fn a_monitor_without_capabilities_is_refused_beside_a_guard_too() {
    if !can_run(&["nginx", "setpriv"]) {
        return;
    }
    let Some(it) = Guarded::new() else {
        return;
    };
    let pki = it.0.bed.pki();
    let mut command = it.0.bed.middlebox.command("setpriv");
    command.args(["--bounding-set", "-all,+net_raw", "--inh-caps", "-all"]).arg(mmtls_program());
    command.args(["run", "-T", "--inline", "left:right", "--missing-keys", "reset"]);
    command.args(["--keys-listen", "127.0.0.1:0", "--key-cert"]).arg(&pki.middlebox.certificate);
    command.arg("--key-key").arg(&pki.middlebox.key);
    let done = it.0.run("without", command);
    let told = &done.stderr;
    assert!(!done.status.success() && told.contains("a guard is installed on left"), "{told}");
}
