//! C middleboxes in the path between nginx and 256 connections at a time.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{WORD, body_with, can_compile, compile_as, directory, installed, number, root};
use mmtls_testkit::middlebox::KEYS_PORT;
use mmtls_testkit::{
    Background, Finished, Middle, Nginx, NginxOptions, Testbed, address, files, require_program,
    require_testbed,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Each of these loads both cores on its own.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Stage {
    // In this order: nginx ends before its namespace.
    nginx: Nginx,
    bed: Testbed,
    config: PathBuf,
}

fn can_run() -> bool {
    require_testbed()
        && can_compile()
        && ["nginx", "h2load", "curl", "python3"].iter().all(|program| require_program(program))
}

impl Stage {
    fn new(name: &str) -> Self {
        let bed = Testbed::new(Middle::Empty).unwrap();
        let options = NginxOptions { protocols: "TLSv1.3".to_owned(), ..NginxOptions::default() };
        let nginx = Nginx::start(&bed, options).unwrap();
        let identity = &bed.pki().middlebox;
        let config = directory().join(format!("{name}.toml"));
        let text = format!(
            "[inline]\ninterfaces = [\"left\", \"right\"]\n\
             [keys]\nlisten = \"[::]:{KEYS_PORT}\"\ncertificate_file = {:?}\nkey_file = {:?}\n\
             [policies]\nmissing_keys = \"reset\"\n\
             [limits]\nstall_timeout_milliseconds = 10000\n\
             unshared_stall_timeout_milliseconds = 10000\n",
            identity.certificate, identity.key
        );
        fs::write(&config, text).unwrap();
        Self { nginx, bed, config }
    }

    fn serve(&self, name: &str, content: &[u8]) {
        fs::write(self.nginx.root().join(name), content).unwrap();
    }

    /// Starts a C program of the examples in the middlebox's place.
    fn middlebox(&self, source: &str, arguments: &[&str]) -> Background {
        let program = compile_as("c", &root().join("examples/c").join(source));
        let mut command = self.bed.middlebox.command(program);
        command.arg(&self.config).args(arguments);
        let mut process = self.bed.background("middlebox", command).unwrap();
        process.wait_for_listen(KEYS_PORT, Duration::from_secs(10)).unwrap();
        process
    }

    /// A program of the client that shares its keys.
    fn sharing(&self, program: &str) -> Command {
        let mut command = self.bed.client.command(installed().join("bin/mmtls"));
        let middlebox = format!("{}@{}:{KEYS_PORT}", address::MIDDLEBOX_NAME, address::KEYS_V4);
        command.args(["exec", "--middlebox", &middlebox, "--ca"]).arg(&self.bed.pki().ca);
        command.args(["--", program]);
        command
    }

    fn h2load(&self, requests: &str, file: &str) {
        let mut command = self.sharing("h2load");
        command.args(["--h1", "-c256", "-t1", "-n", requests]);
        command.arg(format!("https://{}/{file}", address::SERVER_V4));
        let done = self.bed.run("h2load", command, LIMIT).unwrap();
        let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
        assert!(done.text().contains(&all), "{}{}", done.text(), done.stderr);
    }

    /// Connects to the key port and resets, as port scanners do: the program at its other end, which
    /// does not ignore SIGPIPE, must not write to what is no longer there.
    fn reset_key_channels(&self) {
        const SCRIPT: &str = "import socket, struct, sys\n\
             for _ in range(50):\n\
             \x20   s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
             \x20   s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
             \x20   s.close()\n";
        let mut command = self.bed.client.command("python3");
        command.args(["-c", SCRIPT, address::KEYS_V4, &KEYS_PORT.to_string()]);
        let done = self.bed.run("reset", command, LIMIT).unwrap();
        assert!(done.status.success(), "{}", done.stderr);
    }

    fn curl(&self, file: &str) -> Finished {
        let mut command = self.sharing("curl");
        command.arg("--cacert").arg(&self.bed.pki().ca).args(self.bed.resolve_args());
        command.args(["-sS", "--http1.1", "--max-time", "30"]);
        command.arg(format!("https://{}/{file}", address::SERVER_NAME));
        self.bed.run("curl", command, LIMIT).unwrap()
    }
}

/// Ends a middlebox as an operator does, and returns what it printed.
fn end(mut process: Background) -> String {
    process.signal("TERM");
    let status = process.wait(Duration::from_secs(20)).unwrap();
    assert!(status.success(), "{status}: {}{}", process.stdout_text(), process.stderr_text());
    process.stdout_text()
}

fn patterns() -> PathBuf {
    let path = directory().join("patterns");
    fs::write(&path, [b"nothing-like-this\n", WORD, b"\n"].concat()).unwrap();
    path
}

#[test]
fn accepts_256_connections_of_which_only_a_match_is_reset() {
    if !can_run() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stage = Stage::new("live-ips");
    let long = 512 << 10;
    let clean = files::pattern_bytes(long, 4);
    stage.serve("clean", &clean);
    stage.serve("found", &body_with(WORD, 60_000, long));
    stage.serve("behind", &body_with(WORD, 70_000, long));
    let patterns = patterns();
    let ips = stage.middlebox("ips.c", &[patterns.to_str().unwrap(), "64", "2"]);

    stage.h2load("1024", "clean");
    let done = stage.curl("clean");
    assert!(done.status.success() && done.stdout == clean, "{}", done.stderr);
    let done = stage.curl("behind");
    assert!(done.status.success() && done.stdout.len() == long, "{}", done.stderr);
    for _ in 0..3 {
        let done = stage.curl("found");
        assert!(!done.status.success(), "it came through");
        let place = done.stdout.windows(WORD.len()).any(|window| window == WORD);
        assert!(!place && done.stdout.len() < 60_000, "{} bytes", done.stdout.len());
    }

    let printed = end(ips);
    let resets = printed.lines().filter(|line| line.contains("pattern of line 2 found: reset"));
    assert_eq!(resets.count(), 3, "{printed}");
    assert_eq!(number(&printed, "sessions"), 256 + 5, "{printed}");
    let [seen, opened, paused] =
        ["records_seen", "records_opened", "records_paused"].map(|it| number(&printed, it));
    eprintln!("{seen} records, {opened} opened, {paused} paused");
    // 512 KiB in records of 16 KiB at most, of which 64 KiB, a head, and short records are opened.
    // (Records that a pause skips and that might be a KeyUpdate count as both.)
    assert!(paused >= 1026 * (512 - 64 - 32) / 16, "{printed}");
    assert!(opened * 4 < seen && seen <= opened + paused, "{printed}");
}

#[test]
fn accepts_256_connections_and_logs_every_suite() {
    if !can_run() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stage = Stage::new("cipherstat");
    stage.serve("file", &files::pattern_bytes(1000, 1));
    let cipherstat = stage.middlebox("cipherstat.c", &["2"]);
    stage.reset_key_channels();
    stage.h2load("2560", "file");
    stage.h2load("256", "file");
    assert!(stage.curl("file").status.success());
    let printed = end(cipherstat);
    let logged = printed.lines().filter(|line| line.starts_with("server name:"));
    assert_eq!(logged.count(), 513, "{printed}");
    assert!(printed.contains("server name:server.test version:772 cipher:"), "{printed}");
    let counted: u64 = printed
        .lines()
        .filter_map(|line| line.strip_suffix(" sessions")?.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(counted, 513, "{printed}");
    assert!(printed.contains("cpu 0: ") && printed.contains("cpu 1: "), "{printed}");
}
