//! As a service: what the service manager is told and when, and that the units are ones that systemd takes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_testkit::{Background, Middle, Testbed};

use crate::cli::{Place, Run};
use crate::common::{LIMIT, can_run, mmtls_program, shell};

/// A service manager's socket.
struct Manager {
    place: Place,
    socket: UnixDatagram,
}

impl Manager {
    fn new(name: &str) -> Self {
        let place = Place::new(name);
        let socket = UnixDatagram::bind(place.path("notify")).unwrap();
        Self { place, socket }
    }

    fn start(&self, bed: &Testbed, run: Run, watchdog: Duration) -> Background {
        let inner = run.command();
        let mut command = Command::new("env");
        command.arg(format!("NOTIFY_SOCKET={}", self.place.path("notify").display()));
        command.arg(format!("WATCHDOG_USEC={}", watchdog.as_micros()));
        // `timeout` would end it: this is a test of its own end.
        let arguments =
            inner.get_args().skip_while(|it| !it.to_string_lossy().ends_with("nsenter"));
        command.args(arguments);
        bed.background("service", command).unwrap()
    }

    /// The next message with these words within so long.
    fn hears(&self, words: &str, within: Duration) -> Option<String> {
        let end = Instant::now() + within;
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).unwrap();
            // Time is up, or something interrupted it: the clock decides.
            let Ok(length) = self.socket.recv(&mut buffer) else { continue };
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.lines().any(|line| line.starts_with(words)) {
                return Some(message);
            }
        }
    }
}

/// A packet to the server and one back: it refuses the connection, which is not waited for.
fn cross(bed: &Testbed) {
    shell(&bed.client, "curl -s --max-time 0.8 http://10.77.0.3:81/ || test $? = 7 -o $? = 28");
}

#[test]
fn tells_that_it_is_ready_when_frames_are_moved_and_what_it_does() {
    if !can_run(&["env", "curl"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let manager = Manager::new("ready");
    let watchdog = Duration::from_secs(2);
    let mut monitor = manager.start(&bed, Run::new(&bed), watchdog);
    let ready = manager.hears("READY=1", LIMIT).expect("it is ready");
    assert!(ready.contains("STATUS=bridging left and right"), "{ready}");
    cross(&bed);
    assert!(manager.hears("WATCHDOG=1", LIMIT).is_some());
    monitor.signal("HUP");
    let reloading = manager.hears("RELOADING=1", LIMIT).expect("it says so");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert!(manager.hears("READY=1", LIMIT).is_some());
    monitor.signal("TERM");
    assert!(manager.hears("STOPPING=1", LIMIT).is_some());
    assert!(monitor.wait(LIMIT).unwrap().success());

    // What does not start is never ready.
    let run = Run::new(&bed).with("--inline", "left:nosuch0");
    let mut monitor = manager.start(&bed, run, watchdog);
    assert_eq!(monitor.wait(LIMIT).unwrap().code(), Some(1));
    assert_eq!(manager.hears("READY=1", Duration::from_millis(300)), None);
}

/// Every one of them, not the first only.
#[test]
fn starves_the_watchdog_when_a_worker_stands() {
    if !can_run(&["env", "strace"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let manager = Manager::new("watchdog");
    let watchdog = Duration::from_secs(2);
    let mut monitor = manager.start(&bed, Run::new(&bed).with("--workers", "2"), watchdog);
    manager.hears("READY=1", LIMIT).expect("it is ready");
    // How late depends on what else this machine does.
    for _ in 0..4 {
        let began = Instant::now();
        let fed = manager.hears("WATCHDOG=1", LIMIT);
        assert!(fed.is_some(), "while all turn: nothing for {:?}", began.elapsed());
    }
    let tid = monitor.thread("worker-1").unwrap().to_string();
    // A system call of this thread takes ten seconds.
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-p", &tid, "-e", "trace=recvmmsg,ppoll"]);
    strace.args(["-e", "inject=recvmmsg,ppoll:delay_enter=10000000:when=1", "-o", "/dev/null"]);
    let mut strace = bed.background("strace", strace).unwrap();
    // It takes its time to begin; while all turn, no two intervals are silent.
    let falls_silent = (0..20).any(|_| manager.hears("WATCHDOG=1", 2 * watchdog).is_none());
    assert!(falls_silent, "the other worker turns, and that is not enough");
    assert!(manager.hears("WATCHDOG=1", LIMIT).is_some(), "it turns again");
    strace.stop();
    monitor.signal("TERM");
    assert!(monitor.wait(LIMIT).unwrap().success());
}

fn unit(name: &str) -> String {
    let path = format!("{}/../../packaging/systemd/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path).unwrap()
}

#[test]
fn units_are_ones_that_systemd_takes() {
    if !can_run(&["systemd-analyze"]) {
        return;
    }
    let place = Place::new("units");
    for (name, user) in [("mmtls.service", false), ("user/mmtls-agent.service", true)] {
        // Where the program is installed, here.
        let program = mmtls_program();
        let text = unit(name).replace("/usr/bin/mmtls", program.to_str().unwrap());
        let file = place.write(name.rsplit('/').next().unwrap(), text);
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).args(user.then_some("--user")).arg(&file);
        verify.env("XDG_RUNTIME_DIR", place.path(""));
        let output = verify.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let about_it: Vec<_> = said.lines().filter(|it| it.contains("mmtls")).collect();
        assert!(output.status.success() && about_it.is_empty(), "{name}: {said}");
    }
    // The figure that operators are told.
    let file = place.write("mmtls.service", unit("mmtls.service"));
    let mut security = Command::new("systemd-analyze");
    let output =
        security.args(["security", "--offline=true", "--no-pager", &file]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figure = text.split("Overall exposure level for mmtls.service: ").nth(1).unwrap();
    let figure: f32 = figure.split(' ').next().unwrap().parse().unwrap();
    assert!(figure <= 2.3, "{text}");
}

/// Names that the unit's filter lets through.
fn allowed_calls() -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in unit("mmtls.service").lines() {
        let Some(list) = line.strip_prefix("SystemCallFilter=") else { continue };
        let (refuses, list) = list.strip_prefix('~').map_or((false, list), |list| (true, list));
        for name in list.split(' ') {
            for call in calls_of(name) {
                if refuses {
                    allowed.remove(&call)
                } else {
                    allowed.insert(call)
                };
            }
        }
    }
    allowed
}

/// A system call, or those of a group and of the groups in it.
fn calls_of(name: &str) -> Vec<String> {
    if !name.starts_with('@') {
        return vec![name.to_owned()];
    }
    let mut show = Command::new("systemd-analyze");
    let output = show.args(["syscall-filter", "--no-pager", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let inner =
        text.lines().skip(1).map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    inner.flat_map(calls_of).collect()
}

/// From its start until it ends; a system call that is not allowed would fail, and not all are looked at.
#[test]
fn a_monitor_makes_no_system_call_that_its_unit_refuses() {
    if !can_run(&["curl", "strace", "systemd-analyze", "timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("calls");
    let config = place.write("forward.toml", "[inline]\nkernel_forwarding = \"always\"\n");
    let trace = place.path("trace");
    let run =
        Run::new(&bed).with("-c", &config).with("--workers", "2").with("-l", place.path("logs"));
    let inner = run.with("--streams", place.path("streams")).command();
    let mut arguments = inner.get_args().skip_while(|it| *it != mmtls_program().as_os_str());
    let mut command = bed.middlebox.command("strace");
    command.args(["-f", "-qq", "-o"]).arg(&trace).arg(arguments.next().unwrap()).args(arguments);
    command.stdout(Stdio::null());
    let mut monitor = bed.background("traced", command).unwrap();
    monitor.wait_for_line("bridging left and right", LIMIT).unwrap();
    cross(&bed);
    let children = format!("/proc/{0}/task/{0}/children", monitor.pid());
    let pid = fs::read_to_string(children).unwrap().trim().to_owned();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(monitor.wait(LIMIT).unwrap().success());

    let allowed = allowed_calls();
    assert!(allowed.contains("bpf") && !allowed.contains("chroot") && allowed.len() > 150);
    let text = fs::read_to_string(&trace).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(1)?.split_once('('));
    let made: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    assert!(made.contains("recvmmsg") && made.contains("capset"), "{made:?}");
    let refused: Vec<_> = made.iter().filter(|it| !allowed.contains(**it)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}
