//! Signals that ask for something end nothing, however early they come.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_testkit::{Middle, Testbed};

use crate::cli::{Place, mmtls};
use crate::common::{can_run, mmtls_program};

/// Sends SIGUSR1 as soon as the process is this program, and again; then it still runs, or has ended by itself.
fn survives(what: &str, mut command: Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pid = child.id().to_string();
    let end = Instant::now() + Duration::from_secs(5);
    // The kernel's side of a start is over when the handler is there.
    while !handles_usr1(&pid) {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.signal(), None, "{what}");
            return;
        }
        assert!(Instant::now() < end, "{what}: no handler");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        assert!(Command::new("kill").args(["-USR1", &pid]).stderr(Stdio::null()).status().is_ok());
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.signal(), None, "{what} was killed");
            return;
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
