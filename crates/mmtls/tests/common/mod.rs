//! What the live tests share: where the binaries are, how curl is called, and what a capture
//! holds (frames, TCP streams, TLS records).
//!
//! Refuses to guess: a missing binary, a hole in a stream or a retransmission with other bytes
//! fails the test that asked.

pub mod probe;
pub mod schema;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use mmtls_testkit::{
    Finished, Middle, Mmtls, MmtlsOptions, MmtlsReport, Namespace, Nginx, NginxOptions, Testbed,
    address, require_program, require_testbed, wait_until,
};
use serde_json::Value;

pub use schema::assert_valid;

/// Longer than anything here should take.
pub const LIMIT: Duration = Duration::from_secs(40);

/// Whether the machine can run a live test that needs these programs.
#[track_caller]
pub fn can_run(programs: &[&str]) -> bool {
    require_testbed() && programs.iter().all(|program| require_program(program))
}

/// Waits for what comes by itself.
#[track_caller]
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(wait_until(LIMIT, holds), "{what}");
}

/// The directory of `mmtls` and `libmmtls_preload.so`.
pub fn binaries() -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_BIN_EXE_mmtls")).parent().unwrap().to_owned();
    let library = directory.join("libmmtls_preload.so");
    let release = if directory.ends_with("release") { "--release " } else { "" };
    assert!(
        library.exists(),
        "{} is missing: run `cargo build {release}-p mmtls-preload` first",
        library.display()
    );
    directory
}

/// The `mmtls` program.
pub fn mmtls_program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_mmtls"))
}

/// `mmtls run` with missing keys reset and logs written.
pub fn options() -> MmtlsOptions {
    MmtlsOptions { check: Some(assert_valid), ..MmtlsOptions::new(binaries()) }
}

/// As [`options`], for tests in which keys do come, on machines that may stop for a second.
pub fn patient() -> MmtlsOptions {
    let config = "[limits]\nstall_timeout_milliseconds = 10000\n\
                  unshared_stall_timeout_milliseconds = 10000\n";
    let config = Some(config.to_owned());
    MmtlsOptions { config, ..options() }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Those that this machine has.
    pub fn all(bed: &Testbed) -> Vec<Self> {
        if bed.has_ipv6() { vec![Self::V4, Self::V6] } else { vec![Self::V4] }
    }

    pub fn is_v6(self) -> bool {
        self == Self::V6
    }

    /// The server's address as it stands in a URL.
    pub fn server(self) -> String {
        match self {
            Self::V4 => address::SERVER_V4.to_owned(),
            Self::V6 => format!("[{}]", address::SERVER_V6),
        }
    }

    /// The middlebox for keys, as `mmtls exec --middlebox` takes it.
    pub fn keys(self) -> String {
        let port = mmtls_testkit::middlebox::KEYS_PORT;
        match self {
            Self::V4 => format!("{}@{}:{port}", address::MIDDLEBOX_NAME, address::KEYS_V4),
            Self::V6 => format!("{}@[{}]:{port}", address::MIDDLEBOX_NAME, address::KEYS_V6),
        }
    }
}

/// Client, server with nginx, and the middlebox's place between them.
pub struct Stage {
    // In this order: nginx ends before its namespace.
    pub nginx: Nginx,
    pub bed: Testbed,
}

impl Stage {
    pub fn new() -> Self {
        Self::with(NginxOptions::default())
    }

    pub fn with(options: NginxOptions) -> Self {
        Self::around(Middle::Empty, options)
    }

    pub fn around(middle: Middle, options: NginxOptions) -> Self {
        let bed = Testbed::new(middle).unwrap();
        Self { nginx: Nginx::start(&bed, options).unwrap(), bed }
    }

    /// Puts a file into the served directory.
    pub fn serve(&self, name: &str, content: &[u8]) {
        std::fs::write(self.nginx.root().join(name), content).unwrap();
    }

    pub fn mmtls(&self, options: &MmtlsOptions) -> Mmtls {
        Mmtls::start(&self.bed, options).unwrap()
    }

    /// curl that shares its keys.
    pub fn sharing_curl(&self, mmtls: &Mmtls, family: Family, exempt: &[&str]) -> Command {
        let mut curl = mmtls.sharing(&self.bed, family.is_v6(), exempt, "curl");
        self.https(&mut curl, family);
        curl
    }

    /// curl that shares nothing.
    pub fn plain_curl(&self, family: Family) -> Command {
        let mut curl = self.bed.client.command("curl");
        self.https(&mut curl, family);
        curl
    }

    fn https(&self, curl: &mut Command, family: Family) {
        let resolve = match family {
            Family::V4 => self.bed.resolve_args(),
            Family::V6 => self.bed.resolve_args_v6(),
        };
        curl.arg("--cacert").arg(&self.bed.pki().ca).args(resolve);
        curl.args(["-sS", "--http1.1", "--max-time", "30"]);
    }

    /// Runs a command to its end.
    pub fn run(&self, name: &str, command: Command) -> Finished {
        self.bed.run(name, command, LIMIT).unwrap()
    }
}

/// The records of `eve.json` in a directory.
pub fn read_eve(directory: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("eve.json")).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.iter().for_each(assert_valid);
    records
}

/// `https://server.test/NAME`.
pub fn url(name: &str) -> String {
    format!("https://{}/{name}", address::SERVER_NAME)
}

/// A command in a namespace that may live so long and then is ended.
pub fn shell(place: &Namespace, script: &str) -> String {
    String::from_utf8_lossy(&place.shell(script).unwrap().stdout).into_owned()
}

/// A number of the last `stats` record, for example `engine`, `keys_refused`.
#[track_caller]
pub fn stat(report: &MmtlsReport, group: &str, name: &str) -> u64 {
    let stats = report.events("stats");
    let last = stats.last().expect("a stats record");
    let value = &last["stats"][group][name];
    value.as_u64().unwrap_or_else(|| panic!("{group}.{name} is {value}"))
}

/// What was written of every session: once when its handshake was through, and once at its end.
#[track_caller]
pub fn sessions(report: &MmtlsReport) -> Vec<&Value> {
    let of_type = |name| {
        let flows: Vec<_> = report.events(name).iter().map(|it| it["flow_id"].as_u64()).collect();
        (flows.len(), BTreeSet::from_iter(flows))
    };
    let (begun, ended) = (of_type("tls"), of_type("mmtls"));
    assert_eq!(begun, ended);
    assert_eq!(begun.0, begun.1.len(), "a flow carries one session");
    report.sessions.iter().collect()
}

/// Every session decrypted, nothing failed, nothing missing; prints the report otherwise.
#[track_caller]
pub fn assert_all_decrypted(report: &MmtlsReport, sessions: u64) {
    assert_decrypted_but_aborted(report, sessions);
    assert_eq!(report.count("decrypted"), sessions, "{:#?}", report.summary);
    assert_eq!(report.count("TLS sessions"), sessions, "{:#?}", report.summary);
}

/// The same, but there may be more sessions that the client gave up before it sent anything.
#[track_caller]
pub fn assert_decrypted_but_aborted(report: &MmtlsReport, at_least: u64) {
    let show = || format!("{:#?}\n{}", report.summary, report.stderr);
    assert!(report.success, "{}", show());
    let judged = report.count("decrypted") + report.count("nothing to open");
    assert_eq!(judged, report.count("TLS sessions"), "{}", show());
    for name in ["missing key", "exempt", "failed", "records failed", "resets", "log lines lost"] {
        assert_eq!(report.count(name), 0, "{name}: {}", show());
    }
    let tls = sessions(report);
    assert_eq!(tls.len() as u64, report.count("TLS sessions"), "{}", show());
    let mut used = 0;
    for session in tls {
        let records = &session["decrypted"];
        assert_eq!(records["seen_toclient"], records["records_toclient"], "{session}");
        assert_eq!(records["seen_toserver"], records["records_toserver"], "{session}");
        if records["seen_toserver"] != 0 {
            assert_eq!(session["outcome"], "decrypted", "{session}");
            used += 1;
        }
    }
    assert!(used >= at_least, "{used} sessions: {}", show());
    assert_eq!(stat(report, "engine", "records_failed"), 0);
    assert_eq!(stat(report, "engine", "key_queue_full"), 0);
    assert_eq!(stat(report, "engine", "keys_unusable"), 0);
}

/// What tshark says of a file, with nobody's settings and no key log but the file's own.
#[track_caller]
pub fn tshark(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.env("HOME", "/nonexistent").env_remove("SSLKEYLOGFILE");
    let Output { status, stdout, stderr } =
        command.args(["-n", "-r"]).arg(file).args(arguments).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// First position of `needle`.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}

/// What follows the head of an HTTP message.
#[track_caller]
pub fn http_body(message: &[u8]) -> &[u8] {
    let head = find(message, b"\r\n\r\n").expect("an HTTP head");
    &message[head + 4..]
}
