//! A monitor that is killed and started again in the middle of sessions: their endpoints share the keys once more, and it
//! goes on with them. The control has an agent that is gone.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Stage, can_run, find, sessions, stat};
use crate::keys::{PATTERN, resetting, with_pattern};
use mmtls_testkit::{Background, MmtlsReport, NginxOptions, address, require_python};

/// Long enough for a restart.
const LENGTH: usize = 20_000_000;
const PATTERN_AT: usize = 18_000_000;

/// Fetches a file, 6 MB in a second, over a connection that it shows to OpenSSL (so that the library knows its ends).
const PYTHON: &str = r#"
import socket, ssl, sys, time
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if sys.argv[4] == "1.2":
    context.maximum_version = ssl.TLSVersion.TLSv1_2
raw = socket.create_connection((sys.argv[1], 443))
with context.wrap_socket(raw, server_hostname="server.test") as tls, open(sys.argv[3], "wb") as out:
    tls.sendall(f"GET /{sys.argv[2]} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n".encode())
    while data := tls.recv(65536):
        out.write(data)
        time.sleep(len(data) / 6e6)
"#;

/// What a download over a restart has come to.
struct Outcome {
    whole: bool,
    has_pattern: bool,
    report: MmtlsReport,
}

/// Who tells of the secrets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// The preload library, which knows the connection.
    Library,
    /// A key log: nobody knows the connection.
    KeyLog,
    /// The agent is gone when the monitor starts again.
    Nobody,
}

fn over_a_restart(stage: &Stage, told: Told, version: &str) -> Outcome {
    let options = resetting(stage);
    let mut first = stage.mmtls(&options);
    let directory = stage.bed.directory().join(format!("agent-{told:?}-{version}"));
    let mut agent = first.agent(&stage.bed, false, &directory, None).unwrap();
    let out = stage.bed.directory().join(format!("out-{told:?}-{version}"));
    let mut client = client(stage, &first, &directory, &out, told, version);
    wait_for(&out, 1_000_000, &mut client);
    if told == Told::Nobody {
        agent.signal("KILL");
        agent.wait(Duration::from_secs(5)).unwrap();
    }
    first.process.signal("KILL");
    first.process.wait(Duration::from_secs(5)).unwrap();
    let second = stage.mmtls(&options);
    let status = client.wait(Duration::from_secs(60)).unwrap();
    let got = std::fs::read(&out).unwrap();
    let report = second.stop().unwrap();
    let whole = status.success() && got.len() >= LENGTH;
    Outcome { whole, has_pattern: find(&got, PATTERN).is_some(), report }
}

fn client(
    stage: &Stage,
    mmtls: &mmtls_testkit::Mmtls,
    directory: &Path,
    out: &Path,
    told: Told,
    version: &str,
) -> Background {
    let python = |command: &mut Command| {
        command.args(["-c", PYTHON, address::SERVER_V4, "file"]).arg(out).arg(version);
    };
    let command = match told {
        Told::KeyLog => {
            let mut curl = stage.bed.client.command("curl");
            curl.env("SSLKEYLOGFILE", directory.join("keylog"));
            curl.arg("--cacert").arg(&stage.bed.pki().ca).args(stage.bed.resolve_args());
            curl.args(["-sS", "--http1.1", "--limit-rate", "6M", "--tls-max", version]);
            curl.arg("-o").arg(out).arg(crate::common::url("file"));
            curl
        }
        Told::Library | Told::Nobody => {
            // Not through a key log as well.
            let options = ["--exempt", "other.test"];
            let mut command = mmtls.sharing_through(&stage.bed, directory, &options, "python3");
            python(&mut command);
            command
        }
    };
    stage.bed.background(&format!("client-{told:?}-{version}"), command).unwrap()
}

/// A download over a connection of which the preload library tells.
pub fn client_of_library(
    stage: &Stage,
    mmtls: &mmtls_testkit::Mmtls,
    directory: &Path,
    out: &Path,
) -> Background {
    client(stage, mmtls, directory, out, Told::Library, "1.3")
}

pub fn wait_for(file: &Path, length: u64, client: &mut Background) {
    for _ in 0..500 {
        if file.metadata().is_ok_and(|it| it.len() >= length) {
            return;
        }
        assert!(client.is_running(), "{}", client.stderr_text());
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the download has not begun: {}", client.stderr_text());
}

#[test]
fn a_session_that_is_under_way_is_inspected_again_after_a_restart() {
    if !can_run(&["nginx", "curl", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &with_pattern(LENGTH, PATTERN_AT));
    for (told, version) in [
        (Told::Library, "1.3"),
        (Told::Library, "1.2"),
        (Told::KeyLog, "1.3"),
        (Told::KeyLog, "1.2"),
        (Told::Nobody, "1.3"),
    ] {
        let Outcome { whole, has_pattern, report } = over_a_restart(&stage, told, version);
        let what = format!("{told:?} {version}: {:#?}", report.summary);
        let shared = told != Told::Nobody;
        assert_eq!((whole, has_pattern), (!shared, !shared), "{what}");
        assert_eq!(report.count("alerts"), u64::from(shared), "{what}");
        assert_eq!(stat(&report, "engine", "mid_stream_followed"), u64::from(shared), "{what}");
        assert_eq!(stat(&report, "engine", "records_failed"), 0, "{what}");
        for session in sessions(&report) {
            assert_eq!(session["outcome"], "decrypted", "{session}");
        }
        let tls = report.events("tls");
        assert!(tls.iter().all(|it| it["tls"]["mid_stream"] == true), "{tls:?}");
        assert_eq!(tls.len(), usize::from(shared), "{what}");
    }
}

/// Sessions of one program.
pub const SESSIONS: usize = 1000;

/// Opens connections, and makes a request on each of them when it is told to by a file.
const MANY: &str = r#"
import os, socket, ssl, sys, time
host, directory, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
REQUEST = b"GET /small HTTP/1.1\r\nHost: server.test\r\n\r\n"
def connect():
    return context.wrap_socket(socket.create_connection((host, 443)), server_hostname="server.test")
def request(tls):
    tls.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"the end"):
        answer += tls.recv(65536) or sys.exit("closed")
all, step = [], 0
while True:
    while not os.path.exists(f"{directory}/{step}"):
        time.sleep(0.01)
    word = open(f"{directory}/{step}").read()
    if word == "end":
        break
    if word == "open":
        all += [connect() for _ in range(count)]
    failed = 0
    for tls in all:
        try:
            request(tls)
        except (OSError, SystemExit):
            failed += 1
    print("step", step, len(all), failed, flush=True)
    step += 1
"#;

/// A program with a thousand sessions, one step after another.
pub struct Many {
    pub client: Background,
    directory: std::path::PathBuf,
    steps: usize,
}

impl Many {
    pub fn start(stage: &Stage, mut command: Command, name: &str) -> Self {
        let directory = stage.bed.directory().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        command.args(["-c", MANY, address::SERVER_V4]).arg(&directory).arg(SESSIONS.to_string());
        let client = stage.bed.background(name, command).unwrap();
        Self { client, directory, steps: 0 }
    }

    pub fn say(&mut self, word: &str) -> usize {
        let step = self.steps;
        self.steps += 1;
        let file = self.directory.join(format!("{step}.new"));
        std::fs::write(&file, word).unwrap();
        std::fs::rename(&file, self.directory.join(step.to_string())).unwrap();
        step
    }

    /// How many sessions there are, and how many requests failed.
    pub fn step(&mut self, word: &str) -> (usize, usize) {
        let step = self.say(word);
        self.outcome(step)
    }

    /// The same of a step that was begun.
    pub fn outcome(&mut self, step: usize) -> (usize, usize) {
        let said = format!("step {step} ");
        self.client.wait_for_line(&said, Duration::from_secs(60)).unwrap();
        let text = self.client.stdout_text();
        let line = text.lines().find_map(|line| line.strip_prefix(&said)).unwrap();
        let (all, failed) = line.split_once(' ').unwrap();
        (all.parse().unwrap(), failed.parse().unwrap())
    }
}

/// Also where nobody knows which session is whose: each record's tag tells.
#[test]
fn a_thousand_sessions_outlive_the_monitor_and_the_agent() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("small", &[&[b'x'; 1000][..], b"the end"].concat());
    let options = resetting(&stage);
    for by_library in [true, false] {
        let name = if by_library { "library" } else { "keylog" };
        let mut first = stage.mmtls(&options);
        let directory = stage.bed.directory().join(format!("agent-many-{name}"));
        let mut agent = first.agent(&stage.bed, false, &directory, None).unwrap();
        let command = match by_library {
            true => {
                let options = ["--exempt", "other.test"];
                first.sharing_through(&stage.bed, &directory, &options, "python3")
            }
            false => {
                let mut python = stage.bed.client.command("python3");
                python.env("SSLKEYLOGFILE", directory.join("keylog"));
                python
            }
        };
        let mut many = Many::start(&stage, command, name);
        assert_eq!(many.step("open"), (SESSIONS, 0), "{name}");
        let before = first.process.resident_bytes();
        first.process.signal("KILL");
        first.process.wait(Duration::from_secs(5)).unwrap();
        let second = stage.mmtls(&options);
        // What is said before the keys are there passes; the next records are inspected.
        for _ in 0..2 {
            assert_eq!(many.step("go on"), (SESSIONS, 0), "{name}");
        }
        let after = second.process.resident_bytes();
        assert!(after < 2 * before, "{name}: {before} bytes before, {after} after");
        // The agent's secrets are gone with it; the monitor has the keys.
        agent.signal("KILL");
        agent.wait(Duration::from_secs(5)).unwrap();
        assert_eq!(many.step("go on"), (SESSIONS, 0), "{name}");
        let agent = second.agent(&stage.bed, false, &directory, None).unwrap();
        // Sessions to come are the new one's.
        assert_eq!(many.step("open"), (2 * SESSIONS, 0), "{name}");
        many.say("end");
        assert!(many.client.wait(Duration::from_secs(20)).unwrap().success());
        drop(agent);
        let report = second.stop().unwrap();
        let all = format!("{name}: {:#?}", report.summary);
        assert_eq!(stat(&report, "engine", "mid_stream_followed"), SESSIONS as u64, "{all}");
        assert_eq!(stat(&report, "engine", "records_failed"), 0, "{all}");
        assert_eq!(report.count("decrypted"), 2 * SESSIONS as u64, "{all}");
    }
}
