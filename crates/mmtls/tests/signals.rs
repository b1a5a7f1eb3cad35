//! Signals that ask for something end nothing, however early they come.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_testkit::{Middle, Testbed};

use crate::cli::{Place, Run, mmtls};
use crate::common::{can_run, mmtls_program, shell};

/// Sends SIGUSR1 as soon as the process is this program, and again; then it still runs.
fn survives(what: &str, mut command: Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pid = child.id().to_string();
    let end = Instant::now() + Duration::from_secs(5);
    // The kernel's side of a start is over when the handler is there.
    while !handles_usr1(&pid) {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{what} has ended: {status}");
        }
        assert!(Instant::now() < end, "{what}: no handler");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        assert!(Command::new("kill").args(["-USR1", &pid]).stderr(Stdio::null()).status().is_ok());
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{what} has ended: {status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(&mut child);
}

fn handles_usr1(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask >> 9 & 1 == 1)
}

fn stop(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn accepts_usr1_from_the_start_of_every_command() {
    if !can_run(&["kill", "mkfifo"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("usr1");
    let fifo = place.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut read = mmtls(&["read"]);
    read.arg(&fifo);
    survives("read", read);

    let pki = bed.pki();
    let identity = &pki.middlebox;
    let mut run = bed.middlebox.command(mmtls_program());
    run.args([
        "run",
        "--inline",
        "left:right",
        "--keys-listen",
        "[::]:4433",
        "--missing-keys",
        "reset",
    ]);
    run.arg("--key-cert").arg(&identity.certificate).arg("--key-key").arg(&identity.key);
    survives("run", run);

    let mut server = bed.client.command(mmtls_program());
    server.args(["key-server", "--listen", "127.0.0.1:0", "--middlebox", "127.0.0.1:1"]);
    server.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
    survives("key-server", {
        server.arg("--ca").arg(&pki.ca);
        server
    });

    let mut agent = bed.client.command(mmtls_program());
    agent.args(["agent", "--middlebox", "127.0.0.1:1", "--ca"]).arg(&pki.ca);
    agent.arg("--directory").arg(place.path("agent"));
    survives("agent", agent);
}

/// Whoever has it in a pipe may stop reading: frames go on, what is said waits, and the end comes all the same.
#[test]
fn accepts_that_nobody_reads_what_it_says() {
    if !can_run(&["kill", "curl"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut run = Run::new(&bed).command();
    let mut arguments =
        run.get_args().skip_while(|it| !it.to_string_lossy().ends_with("nsenter")).map(Into::into);
    // Without `timeout`, which would take the signals.
    let program: OsString = arguments.next().unwrap();
    let arguments: Vec<OsString> = arguments.collect();
    run = Command::new(program);
    run.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = run.stderr(OwnedFd::from(theirs.try_clone().unwrap())).spawn().unwrap();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let limit = Duration::from_secs(10);
    ours.set_read_timeout(Some(limit)).unwrap();
    let mut said = String::new();
    let hears = |ours: &mut UnixStream, said: &mut String, words: &str| {
        let begun = Instant::now();
        let mut buffer = [0; 4096];
        while !said.contains(words) {
            assert!(begun.elapsed() < limit, "no {words:?} in {said}");
            let read = ours.read(&mut buffer).unwrap();
            assert!(read > 0, "no {words:?} in {said}");
            said.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    hears(&mut ours, &mut said, "bridging left and right");
    let cross = || shell(&bed.client, "curl -s --max-time 3 http://10.77.0.3:81/ || test $? = 7");
    cross();
    let fill = || {
        // Both ends of a dup share the flag: only while this process writes.
        theirs.set_nonblocking(true).unwrap();
        while (&theirs).write(&[b'.'; 4096]).is_ok() {}
        while (&theirs).write(b".").is_ok() {}
        theirs.set_nonblocking(false).unwrap();
    };
    fill();
    for _ in 0..4 {
        signal("-USR1");
        std::thread::sleep(Duration::from_millis(400));
    }
    cross();
    said.clear();
    hears(&mut ours, &mut said, "TLS sessions: ");
    fill();
    signal("-USR1");
    std::thread::sleep(Duration::from_millis(400));
    signal("-TERM");
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > limit {
            stop(&mut child);
            panic!("it waits for who reads nothing");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What was ignored stays so, for the program, too.
#[test]
fn programs_get_signals_as_they_were() {
    if !can_run(&[]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let exec = |before: &str| {
        let mut command = bed.client.command("sh");
        let script = format!(
            "{before} exec \"$0\" exec --middlebox 127.0.0.1:1 --ca \"$1\" -- sh -c 'kill -USR1 $$'"
        );
        command.args(["-c", &script]).arg(mmtls_program()).arg(&bed.pki().ca);
        command.output().unwrap().status.code()
    };
    assert_eq!(exec(""), Some(128 + 10));
    assert_eq!(exec("trap '' USR1;"), Some(0));
}
