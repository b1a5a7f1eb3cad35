//! The command line: bad input gives one clear line and a failure status, captures give the same
//! streams in every format, and a running monitor has given up what it does not need.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    Family, LIMIT, Stage, can_run, find, http_body, mmtls_program, options, patient, read_eve,
    sessions, stat, url,
};
use mmtls_packet_io::capture::{PcapngWriter, SecretsKind};
use mmtls_testkit::wire::BothSides;
use mmtls_testkit::{Middle, Mmtls, MmtlsOptions, OpensslServer, Testbed, files, require_program};

/// A directory that goes with the test.
pub struct Place(PathBuf);

impl Place {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mmtls-cli-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn mmtls(arguments: &[&str]) -> Command {
    let mut command = Command::new(mmtls_program());
    command.args(arguments).env_remove("SSLKEYLOGFILE").stdin(Stdio::null());
    command
}

/// The command fails with exactly one line that starts with `mmtls: ` and holds these words.
#[track_caller]
pub fn fails(mut command: Command, words: &[&str]) -> Output {
    let shown = format!("{:?}", command.get_args().collect::<Vec<_>>());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{shown} succeeded: {text}");
    assert!(output.status.code().is_some(), "{shown} was killed: {text}");
    assert!(text.starts_with("mmtls: ") && text.ends_with('\n'), "{shown}: {text:?}");
    assert_eq!(text.lines().count(), 1, "{shown}: {text}");
    for word in words {
        assert!(text.contains(word), "{shown}: no {word:?} in {text:?}");
    }
    output
}

/// A pcap file without packets.
pub fn empty_capture() -> Vec<u8> {
    let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    file
}

#[test]
fn refuses_bad_captures() {
    let place = Place::new("captures");
    let missing = place.path("missing.pcap");
    let missing = missing.to_str().unwrap();
    fails(mmtls(&["read", "-r", missing]), &[missing, "No such file"]);
    fails(mmtls(&["read", "-r", place.0.to_str().unwrap()]), &["irectory"]);
    for (name, content) in [
        ("text", b"this is no capture at all, but longer than a header".as_slice()),
        ("empty", b""),
        ("short", &empty_capture()[..20]),
        ("gzip", b"\x1f\x8b\x08\x00garbage that does not inflate"),
        ("record", &[&empty_capture()[..], &[0xff; 40]].concat()),
        ("pcapng", b"\x0a\x0d\x0d\x0a\xff\xff\xff\xff\x4d\x3c\x2b\x1a\x01\x00\x00\x00"),
    ] {
        let file = place.write(name, content);
        fails(mmtls(&["read", "-r", &file]), &[&file]);
    }
    let fine = place.write("fine", empty_capture());
    let output = mmtls(&["read", "-r", &fine]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("flows seen: 0"));
}

/// What a capture shows has passed: nothing of it is called stopped, and all of it is looked at.
#[test]
fn accepts_patterns_in_captures_and_calls_nothing_blocked() {
    let place = Place::new("patterns");
    let patterns = place.write("patterns", "5OaNVJc8\nLaQabnB84\n");
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/download.pcapng");
    let mut command = mmtls(&["read", "-r", capture, "--patterns", &patterns, "--fileinfo"]);
    command.args(["--pattern-action", "reset", "-l"]).arg(place.path("logs"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("alerts: 2\nresets: 0\n"), "{text}");
    let records = read_eve(&place.path("logs"));
    let kinds: Vec<_> = records.iter().map(|it| it["event_type"].as_str().unwrap()).collect();
    let expected = ["tls", "alert", "alert", "fileinfo", "http", "mmtls", "flow", "stats"];
    assert_eq!(kinds, expected);
    for alert in &records[1..3] {
        let said = (&alert["alert"]["action"], &alert["alert"]["verdict"]);
        assert_eq!(said, (&"allowed".into(), &"alert".into()), "{alert}");
        assert_eq!(alert["http"]["url"], "/download", "{alert}");
    }
    assert_eq!(records[3]["fileinfo"]["size"], 120_000, "{}", records[3]);
    assert_eq!(records[5]["mmtls"]["end_reason"], "closed", "{}", records[5]);
    let flow = &records[6]["flow"];
    assert_eq!((&flow["alerted"], &flow["state"]), (&true.into(), &"closed".into()), "{flow}");
    assert!(records.iter().all(|it| it["pcap_filename"] == capture && it["host"].is_string()));
}

#[test]
fn refuses_bad_arguments_and_files() {
    let place = Place::new("arguments");
    let capture = place.write("fine", empty_capture());
    let read = |more: &[&str]| mmtls(&[&["read", "-r", &capture], more].concat());
    fails(read(&["--keylog", "/nonexistent/log"]), &["/nonexistent/log"]);
    let bad = place.write("bad.patterns", "good\n# comment\n\nbroken |zz|\n");
    fails(read(&["--patterns", &bad]), &[&bad, "line 4"]);
    let none = place.write("no.patterns", "# only a comment\n");
    fails(read(&["--patterns", &none]), &[&none, "no patterns"]);
    fails(read(&["--patterns", "/nonexistent/patterns"]), &["/nonexistent/patterns"]);
    // Also root cannot make a directory below a file.
    let below = format!("{capture}/logs");
    fails(read(&["-l", &below]), &[&below]);
    fails(read(&["--streams", &below]), &[&below]);
    // Files come into it when capabilities are gone: those of root, too.
    let closed = place.path("closed");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    let closed = closed.to_str().unwrap();
    fails(read(&["--streams", closed]), &["streams directory", closed, "ermission denied"]);
    let taken = place.path("logs");
    fs::create_dir_all(taken.join("eve.json")).unwrap();
    fails(read(&["-l", taken.to_str().unwrap()]), &[taken.to_str().unwrap()]);

    // What the argument parser finds.
    fails(mmtls(&["read"]), &["CAPTURE"]);
    fails(read(&["--no-such-option"]), &["--no-such-option"]);
    fails(read(&["--pattern-action", "reset"]), &["--patterns"]);
    fails(read(&["--patterns", &bad, "--pattern-action", "explode"]), &["explode"]);
    fails(mmtls(&["fly"]), &["fly"]);
    fails(mmtls(&["run", "--keys-listen", "here"]), &["here"]);
    fails(mmtls(&["run", "--missing-keys", "hope"]), &["hope", "forward", "reset"]);
    let offline = place.write("offline.toml", "[offline]\ncapture_file = \"capture\"\n");
    fails(mmtls(&["run", "-c", &offline, "--test-config"]), &["[offline]", "`mmtls read`"]);
    fails(mmtls(&["exec", "--", "true"]), &["--middlebox"]);
    fails(
        mmtls(&["exec", "--middlebox", "h:1", "--ca", "/nonexistent", "--", "true"]),
        &["/nonexistent"],
    );
    let ca = place.write("ca.pem", "no PEM");
    fails(mmtls(&["exec", "--middlebox", "h:1", "--ca", &ca, "--", "true"]), &[&ca]);
    for good in [vec!["--version"], vec!["--help"], vec!["run", "--help"]] {
        let output = mmtls(&good).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    let said = mmtls(&["--version"]).output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let search = if cfg!(feature = "hyperscan") { "Hyperscan 5." } else { "aho-corasick" };
    assert!(said.contains(&format!("\npatterns of rules: {search}")), "{said}");
}

#[test]
fn refuses_key_logs_without_a_single_key() {
    let place = Place::new("keylogs");
    let capture = place.write("fine", empty_capture());
    for (name, text) in [("prose", b"dear diary\n".as_slice()), ("binary", &[0, 255, 10, 200])] {
        let log = place.write(name, text);
        fails(mmtls(&["read", "-r", &capture, "--keylog", &log]), &[&log, "key log", "line 1"]);
    }
}

#[test]
fn refuses_to_look_into_connections_without_their_start_where_it_looks_into_none() {
    let place = Place::new("midstream");
    let capture = place.write("fine", empty_capture());
    fails(mmtls(&["read", "-r", &capture, "--midstream"]), &["--midstream needs --plaintext"]);
    let output = mmtls(&["read", "-r", &capture, "--midstream", "--plaintext"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// `mmtls run` in the middlebox's namespace with everything it needs.
pub struct Run<'a> {
    bed: &'a Testbed,
    arguments: BTreeMap<&'static str, OsString>,
    /// For what may be given twice or has no value.
    more: Vec<OsString>,
}

impl<'a> Run<'a> {
    pub fn new(bed: &'a Testbed) -> Self {
        let identity = &bed.pki().middlebox;
        let arguments = BTreeMap::from([
            ("--inline", "left:right".into()),
            ("--keys-listen", "[::]:4433".into()),
            ("--missing-keys", "reset".into()),
            ("--key-cert", identity.certificate.clone().into()),
            ("--key-key", identity.key.clone().into()),
        ]);
        Self { bed, arguments, more: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.arguments.insert(name, value.into());
        self
    }

    pub fn without(mut self, name: &'static str) -> Self {
        self.arguments.remove(name);
        self
    }

    pub fn flag(mut self, name: &str) -> Self {
        self.more.push(name.into());
        self
    }

    pub fn command(self) -> Command {
        let mut command = self.bed.middlebox.command(mmtls_program());
        command.arg("run").stdin(Stdio::null());
        for (name, value) in self.arguments {
            command.arg(name).arg(value);
        }
        command.args(self.more);
        // Whoever does not fail must not stay.
        let mut limited = Command::new("timeout");
        limited.args(["-k", "1", "5"]).arg(command.get_program()).args(command.get_args());
        limited
    }
}

/// It can stop nothing, so it must not be asked to.
#[test]
fn refuses_what_a_passive_monitor_cannot_do() {
    if !can_run(&["timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("passive");
    let run = || {
        let run = Run::new(&bed).without("--inline").without("--missing-keys");
        run.with("--passive", "left:right").flag("-T")
    };
    fails(run().with("--inline", "left:right").command(), &["--inline", "--passive"]);
    fails(run().with("--missing-keys", "reset").command(), &["policies.missing_keys", "--inline"]);
    let patterns = place.write("patterns", "secret\n");
    let resetting = run().with("--patterns", patterns).with("--pattern-action", "reset");
    fails(resetting.command(), &["--pattern-action", "--inline"]);
    for bad in ["", ":", "left:", "left:right:left"] {
        fails(run().with("--passive", bad).command(), &["--passive takes one"]);
    }
    for (text, words) in [
        ("[policies]\nunsupported = \"reset\"\n", ["policies.unsupported", "--inline"]),
        ("[policies]\nudp_tls = \"drop\"\n", ["policies.udp_tls", "--inline"]),
    ] {
        let config = place.write("bad.toml", text);
        fails(run().with("-c", &config).command(), &words);
    }
    let both = "[inline]\ninterfaces = [\"a\", \"b\"]\n[passive]\ninterfaces = [\"a\"]\n";
    let none = "[passive]\ninterfaces = []\n";
    for (text, words) in [(both, ["inline.interfaces", "passive"]), (none, ["one", "two"])] {
        let config = place.write("bad.toml", text);
        fails(run().without("--passive").with("-c", &config).command(), &words);
    }
    // The command line wins.
    let config = place.write("good.toml", both);
    let output = run().with("-c", &config).command().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let started = Run::new(&bed).without("--inline").without("--missing-keys");
    fails(started.with("--passive", "nosuch0").command(), &["nosuch0"]);
}

#[test]
fn refuses_to_run_with_bad_settings() {
    if !can_run(&["openssl", "timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("settings");
    let run = || Run::new(&bed);

    fails(run().without("--missing-keys").command(), &["--missing-keys"]);
    fails(run().without("--inline").command(), &["--inline"]);
    fails(run().without("--keys-listen").command(), &["--keys-listen"]);
    fails(run().without("--key-cert").command(), &["--key-cert"]);
    fails(run().without("--key-key").command(), &["--key-key"]);
    for bad in ["left", "left:", ":right", ":", ""] {
        fails(run().with("--inline", bad).command(), &["--inline"]);
    }
    fails(run().with("--inline", "left:nosuch0").command(), &["nosuch0"]);
    fails(run().with("--inline", "left:left").command(), &["left"]);
    fails(
        run().with("--inline", "left:an-interface-with-a-long-name").command(),
        &["an-interface"],
    );
    fails(run().with("--inline", "left:../right").command(), &["../right"]);

    let pki = bed.pki();
    fails(run().with("--key-key", &pki.server.key).command(), &["key"]);
    fails(run().with("--key-key", "/nonexistent/key").command(), &["/nonexistent/key"]);
    fails(run().with("--key-cert", "/nonexistent/cert").command(), &["/nonexistent/cert"]);
    let junk = place.write("junk.pem", "-----BEGIN CERTIFICATE-----\n%%%\n");
    fails(run().with("--key-cert", &junk).command(), &[&junk]);
    fails(run().with("--keys-client-ca", &junk).command(), &[&junk]);
    fails(run().with("--keys-listen", "192.0.2.1:4433").command(), &["192.0.2.1:4433"]);

    let below = format!("{junk}/logs");
    fails(run().with("-l", &below).command(), &[&below]);
    fails(run().with("--streams", &below).command(), &[&below]);
    let bad = place.write("bad.patterns", "fine\n|4|\n");
    fails(run().with("--patterns", &bad).command(), &[&bad, "line 2"]);

    for (text, words) in [
        ("[keys]\nlisten_on = \"[::]:1\"\n", vec!["listen_on", "line 2"]),
        ("[no_such_section]\n", vec!["no_such_section"]),
        ("[limits]\nmax_flows = \"many\"\n", vec!["line 2"]),
        ("[limits]\nmax_flows = -1\n", vec!["line 2"]),
        ("[policies]\nmissing_keys = \"perhaps\"\n", vec!["perhaps"]),
        ("[inline]\nbatch_frames = 0\n", vec!["batch"]),
        ("[inline]\nbatch_frames = 100000\n", vec!["batch"]),
        ("not toml at all\n", vec!["line 1"]),
    ] {
        let config = place.write("bad.toml", text);
        let mut words = words;
        words.push(&config);
        fails(run().with("-c", &config).command(), &words);
        fails(run().with("-c", &config).flag("-T").command(), &words);
    }
    fails(run().with("-c", "/nonexistent/mmtls.toml").command(), &["/nonexistent/mmtls.toml"]);
    // What only the machine, or the command line too, can tell.
    let secret = place.path("secret.keys");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let log = format!("[keys]\nlog_file = {secret:?}\n");
    for (text, words) in [
        ("[workers]\ncpus = [1023]\n", vec!["processor 1023"]),
        ("[inline]\nsocket_buffer_bytes = 2147483648\n", vec!["socket_buffer_bytes", "2 GiB"]),
        (&log, vec!["key log", secret.to_str().unwrap(), "ermission denied"]),
        ("[keys]\nlog_file = \"/tmp\"\n", vec!["key log /tmp", "irectory"]),
        ("[inspect]\ndecrypt = false\npatterns_file = \"p\"\n", vec!["inspect.decrypt"]),
        ("[inspect]\npattern_action = \"reset\"\n", vec!["--patterns"]),
    ] {
        let config = place.write("bad.toml", text);
        fails(run().with("-c", &config).flag("-T").command(), &words);
        if !text.starts_with("[workers]") && !text.starts_with("[inline]") {
            fails(run().with("-c", &config).command(), &words);
        }
    }
    let config = place.write("bad.toml", "[policies]\nmissing_keys = \"drop\"\n");
    let without = || run().without("--missing-keys").with("-c", &config);
    fails(without().flag("-T").command(), &["must be forward or reset, not drop"]);
    let config = place.write("bad.toml", "[inspect]\ndecrypt = false\n");
    let streams = run().with("-c", &config).with("--streams", place.path("s"));
    fails(streams.flag("-T").command(), &["inspect.decrypt", "--streams"]);
    assert!(!place.path("s").exists());

    // The port is taken.
    let mut other = bed.middlebox.command("openssl");
    let identity = &pki.middlebox;
    other.args(["s_server", "-accept", "4433", "-quiet", "-cert"]).arg(&identity.certificate);
    other.arg("-key").arg(&identity.key);
    let mut other = bed.background("other", other).unwrap();
    other.wait_for_listen(4433, Duration::from_secs(5)).unwrap();
    fails(run().command(), &["4433", "in use"]);
    other.stop();

    // A good configuration is checked, and nothing is started.
    let output = run().flag("-T").command().output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "configuration is valid\n");
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/mmtls.toml");
    let output = run().with("-c", sample).flag("-T").command().output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Of a configuration file that says what its rules name.
#[test]
fn takes_the_variables_of_rules_from_a_configuration() {
    let place = Place::new("variables");
    let rules = place.write(
        "own.rules",
        "alert http $CLINIC any -> any any (msg:\"m\"; http.uri; content:\"/\"; sid:1;)\n",
    );
    let config = "[inspect]\naddress_groups.CLINIC = \"[192.0.2.0/24]\"\n";
    let config = place.write("own.toml", config);
    let list = |more: &[&str]| {
        let output = mmtls(&[&["rules", "list", &rules], more].concat()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("own.rules:1: 1:1:0 alert http m")
    };
    assert!(list(&["-c", &config]) && !list(&[]));
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/download.pcapng");
    let read = |rules: &[&str], variables: &str| {
        mmtls(&[&["read", "-r", capture, "--rule-variables", variables], rules].concat())
    };
    let output = read(&["-S", &rules], &config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1 active"), "{said}");
    fails(read(&[], &config), &["--rule-variables needs rules"]);
    let faulty = place.write("faulty.toml", "[inspect]\naddress_group = 1\n");
    fails(read(&["-S", &rules], &faulty), &["faulty.toml: line 2", "address_group"]);
}

#[test]
fn refuses_to_call_it_a_success_when_the_log_was_lost() {
    if !can_run(&["openssl", "timeout"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let place = Place::new("full");
    let logs = place.path("logs");
    fs::create_dir_all(&logs).unwrap();
    std::os::unix::fs::symlink("/dev/full", logs.join("eve.json")).unwrap();
    let config = place.write("fast.toml", "[log]\nstats_interval_seconds = 1\n");
    let command = Run::new(&bed).with("-c", &config).with("-l", &logs).command();
    let mut monitor = bed.background("full", command).unwrap();
    monitor.wait_for_line("writing eve.json", Duration::from_secs(4)).unwrap();
    monitor.signal("TERM");
    let status = monitor.wait(Duration::from_secs(5)).unwrap();
    let said = monitor.stderr_text();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("lines are missing in eve.json"), "{said}");
    assert_eq!(said.matches("writing eve.json").count(), 1, "told once: {said}");
}

#[test]
fn refuses_an_interface_that_goes_away_and_keeps_what_it_wrote() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", b"content");
    let mut mmtls = stage.mmtls(&patient());
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("file"));
    assert_eq!(stage.run("curl", curl).text(), "content");
    stage.bed.middlebox.ip("link delete left\n").unwrap();
    let status = mmtls.process.wait(Duration::from_secs(5)).unwrap();
    assert_eq!(status.code(), Some(1));
    let said = mmtls.process.stderr_text();
    assert!(said.lines().last().unwrap().starts_with("mmtls: "), "{said}");
    assert!(said.lines().last().unwrap().contains("left"), "{said}");
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), 1, "the summary is printed");
    assert_eq!(report.events("http").len(), 1);
    assert_eq!(report.events("stats").len(), 1);
}

/// The stream files of a directory by name, after a look at their permissions.
fn stream_files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    assert_eq!(mode(directory), 0o700, "{}", directory.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        files.insert(name, fs::read(path).unwrap());
    }
    files
}

pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn read_capture(place: &Place, name: &str, capture: &Path, keylog: Option<&Path>) -> Output {
    let mut command = mmtls(&["read", "-r"]);
    command.arg(capture).arg("-l").arg(place.path(name));
    command.arg("--streams").arg(place.path(&format!("{name}.streams")));
    if let Some(keylog) = keylog {
        command.arg("--keylog").arg(keylog);
    }
    command.output().unwrap()
}

#[test]
fn accepts_captures_of_every_format_and_writes_the_same_streams() {
    if !can_run(&["nginx", "curl", "tcpdump", "gzip"]) {
        return;
    }
    let stage = Stage::new();
    let place = Place::new("streams");
    let keylog = place.path("keylog");
    let live = MmtlsOptions { streams: true, ..patient() };
    let monitor = stage.mmtls(&live);
    let live_streams = monitor.directory().join("streams");
    let sides = BothSides::start(&stage.bed, "tcp port 443");
    let suites =
        ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"];
    let mut pages = Vec::new();
    for (n, suite) in suites.into_iter().enumerate() {
        let page = files::pattern_bytes(300_000 + n, n as u64);
        stage.serve(&n.to_string(), &page);
        let family = if n == 1 && stage.bed.has_ipv6() { Family::V6 } else { Family::V4 };
        let mut curl = stage.sharing_curl(&monitor, family, &[]);
        curl.env("SSLKEYLOGFILE", &keylog);
        curl.args(["--tls13-ciphers", suite, &url(&n.to_string())]);
        let got = stage.run("curl", curl);
        assert!(got.stdout == page, "{}", got.stderr);
        pages.push(page);
    }
    let (capture, _) = sides.stop();
    let report = monitor.stop().unwrap();
    let expected = stream_files(&live_streams);
    assert_eq!(expected.len(), 6);
    assert_eq!(mode(&live_streams.parent().unwrap().join("eve.json")), 0o600);
    for (n, tls) in sessions(&report).into_iter().enumerate() {
        let random = tls["client_random"].as_str().unwrap();
        assert!(http_body(&expected[&format!("{random}.server")]) == pages[n], "{tls}");
        let request = &expected[&format!("{random}.client")];
        assert!(request.starts_with(format!("GET /{n} HTTP/1.1\r\n").as_bytes()), "{tls}");
        assert_eq!(tls["cipher_suite"], suites[n]);
    }

    // The capture as it is, zipped, and as pcapng with the secrets inside.
    let zipped = place.path("capture.gz");
    let pack = Command::new("gzip").arg("-c").arg(&capture).output().unwrap();
    fs::write(&zipped, pack.stdout).unwrap();
    let packed = place.path("capture.pcapng");
    let mut writer = PcapngWriter::new(fs::File::create(&packed).unwrap()).unwrap();
    writer.secrets(SecretsKind::TLS_KEY_LOG, &fs::read(&keylog).unwrap()).unwrap();
    for frame in mmtls_testkit::wire::frames(&capture) {
        writer.packet(frame.time_ns, &frame.bytes, frame.bytes.len()).unwrap();
    }
    writer.flush().unwrap();
    for (name, file, log) in [
        ("pcap", &capture, Some(keylog.as_path())),
        ("gzip", &zipped, Some(keylog.as_path())),
        ("pcapng", &packed, None),
    ] {
        let output = read_capture(&place, name, file, log);
        assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for line in ["TLS sessions: 3\n", "decrypted: 3\n", "failed: 0\n", "missing key: 0\n"] {
            assert!(text.contains(line), "{name}: {text}");
        }
        assert!(stream_files(&place.path(&format!("{name}.streams"))) == expected, "{name}");
        assert_eq!(mode(&place.path(name).join("eve.json")), 0o600);
        let records = read_eve(&place.path(name));
        let origin = file.to_str().unwrap();
        assert!(records.iter().all(|it| it["pcap_filename"] == origin && it["host"].is_string()));
        assert!(records.iter().all(|it| it["in_iface"].is_null()));
        let urls: Vec<_> = records
            .iter()
            .filter(|record| record["event_type"] == "http")
            .map(|record| record["http"]["url"].clone())
            .collect();
        assert_eq!(urls, ["/0", "/1", "/2"], "{name}");
    }
    // Without keys nothing is decrypted, and nothing is written.
    let output = read_capture(&place, "blind", &capture, None);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("missing key: 3\n"), "{output:?}");
    assert!(
        !place.path("blind.streams").exists()
            || stream_files(&place.path("blind.streams")).is_empty()
    );

    damaged_captures(&place, &capture, &keylog, &expected);
}

/// A capture that was cut: what came before is reported, and then the damage.
fn damaged_captures(
    place: &Place,
    capture: &Path,
    keylog: &Path,
    expected: &BTreeMap<String, Vec<u8>>,
) {
    let whole = fs::read(capture).unwrap();
    let cut = place.path("cut.pcap");
    // In the third session.
    fs::write(&cut, &whole[..whole.len() * 8 / 10]).unwrap();
    let zipped = place.path("cut.gz");
    let all = fs::read(place.path("capture.gz")).unwrap();
    fs::write(&zipped, &all[..all.len() * 8 / 10]).unwrap();
    for (name, file) in [("cut", &cut), ("cut zipped", &zipped)] {
        let mut command = mmtls(&["read", "-r"]);
        command.arg(file).arg("-l").arg(place.path(name)).arg("--keylog").arg(keylog);
        command.arg("--streams").arg(place.path(&format!("{name}.streams")));
        let output = fails(command, &[file.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("TLS sessions: 3\n"), "{name}: the summary is printed: {text}");
        let records = read_eve(&place.path(name));
        let complete = records.iter().filter(|record| record["http"]["complete"] == true).count();
        assert_eq!(complete, 2, "{name}");
        assert!(records.iter().any(|record| record["event_type"] == "stats"), "{name}");
        let streams = stream_files(&place.path(&format!("{name}.streams")));
        assert_eq!(streams.len(), 6, "{name}");
        let same = streams.iter().filter(|(file, bytes)| &expected[*file] == *bytes).count();
        assert_eq!(same, 5, "{name}: all but the server's side of the last session");
        for (file, bytes) in &streams {
            assert!(expected[file].starts_with(bytes), "{name}: {file} has other bytes");
        }
    }
}

/// Runs `cat` on a file of /proc as the same user, but without capabilities.
fn powerless_cat(path: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "cat", path]);
    command.output().unwrap()
}

/// Whether a process of the same user without capabilities may look into the process.
fn is_open(pid: u32) -> bool {
    powerless_cat(&format!("/proc/{pid}/environ")).status.success()
}

fn wait_until_closed(what: &str, pid: u32) {
    let end = Instant::now() + Duration::from_secs(5);
    while is_open(pid) {
        assert!(Instant::now() < end, "{what} can be looked into");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Path::new(&format!("/proc/{pid}")).exists(), "{what} runs");
}

#[test]
fn refuses_to_be_looked_into() {
    if !can_run(&["setpriv", "mkfifo"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let monitor = Mmtls::start(&bed, &options()).unwrap();
    let pid = monitor.process.pid();
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name}")).trim().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&value(set), 16), Ok(0), "{set} of {}", value("Name:"));
        }
        assert_eq!(value("NoNewPrivs:"), "1");
        threads += 1;
    }
    assert!(threads >= 2, "the worker and the key server");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);

    // A process of the same user, equally without capabilities: only the dumpable flag differs.
    let mut ordinary = Command::new("setpriv");
    ordinary.args(["--bounding-set=-all", "--inh-caps=-all", "sleep", "30"]);
    let mut ordinary = bed.background("ordinary", ordinary).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while !is_open(ordinary.pid()) {
        assert!(Instant::now() < end, "this check cannot tell");
        std::thread::sleep(Duration::from_millis(20));
    }
    ordinary.stop();
    wait_until_closed("mmtls run", pid);
    assert!(!powerless_cat(&format!("/proc/{pid}/maps")).status.success());
    assert!(monitor.stop().unwrap().success);

    let place = Place::new("fifo");
    let fifo = place.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut drop_all = Command::new("setpriv");
    drop_all.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(mmtls_program());
    let read = |command: &mut Command| command.args(["read", "-r"]).arg(&fifo).spawn().unwrap();
    let mut reader = read(drop_all.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until_closed("mmtls read", reader.id());
    reader.kill().unwrap();
    reader.wait().unwrap();

    // As root, it has nothing left when it reads what others sent.
    let mut reader = read(mmtls(&[]).stdout(Stdio::null()).stderr(Stdio::null()));
    let mut capture = fs::File::options().write(true).open(&fifo).unwrap();
    capture.write_all(&empty_capture()).unwrap();
    let status = format!("/proc/{}/status", reader.id());
    let end = Instant::now() + Duration::from_secs(5);
    while !fs::read_to_string(&status).unwrap().contains("CapEff:\t0000000000000000\n") {
        assert!(Instant::now() < end, "mmtls read keeps capabilities");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(capture);
    assert!(reader.wait().unwrap().success());

    let mut agent = bed.client.command("setpriv");
    agent.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(mmtls_program());
    agent.args(["exec", "--middlebox", &Family::V4.keys(), "--ca"]).arg(&bed.pki().ca);
    agent.args(["--", "sleep", "20"]);
    let mut agent = bed.background("agent", agent).unwrap();
    wait_until_closed("mmtls exec", agent.pid());
    agent.stop();
}

#[test]
fn accepts_signals_and_prints_a_live_summary() {
    if !require_program("openssl") || !can_run(&["curl"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let server = OpensslServer::status_page(&bed, &["-tls1_3"]).unwrap();
    let mut monitor = Mmtls::start(&bed, &options()).unwrap();
    let mut curl = monitor.sharing(&bed, false, &[], "curl");
    curl.arg("--cacert").arg(&bed.pki().ca).args(bed.resolve_args());
    curl.args(["-sS", "--http1.0", "--max-time", "20", &url("")]);
    let page = bed.run("curl", curl, LIMIT).unwrap();
    assert!(find(&page.stdout, b"TLSv1.3").is_some(), "{}", page.stderr);
    monitor.process.signal("USR1");
    monitor.process.wait_for_line("decrypted: 1", Duration::from_secs(5)).unwrap();
    assert!(monitor.process.is_running());
    let report = monitor.stop().unwrap();
    assert!(report.success);
    assert_eq!(report.count("decrypted"), 1);
    drop(server);
}

#[test]
fn accepts_a_link_that_goes_down_and_a_log_that_is_rotated() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", b"content");
    let mut mmtls = stage.mmtls(&patient());
    let fetch = |mmtls: &Mmtls| {
        let mut curl = stage.sharing_curl(mmtls, Family::V4, &[]);
        curl.arg(url("file")).args(["--retry", "8", "--retry-all-errors", "--retry-delay", "1"]);
        assert_eq!(stage.run("curl", curl).text(), "content");
    };
    fetch(&mmtls);
    // As drivers do when they are reconfigured.
    for port in ["left", "right"] {
        stage.bed.middlebox.ip(&format!("link set {port} down\n")).unwrap();
        let told = format!("mmtls: {port} is down; going on");
        mmtls.process.wait_for_line(&told, LIMIT).unwrap();
        stage.bed.middlebox.ip(&format!("link set {port} up\n")).unwrap();
        fetch(&mmtls);
        std::thread::sleep(Duration::from_millis(1200));
    }
    // As log rotation does.
    let (log, rotated) = (mmtls.directory().join("eve.json"), mmtls.directory().join("rotated"));
    fs::rename(&log, &rotated).unwrap();
    mmtls.process.signal("HUP");
    let deadline = Instant::now() + LIMIT;
    while !log.exists() {
        assert!(Instant::now() < deadline, "no new log");
        std::thread::sleep(Duration::from_millis(20));
    }
    fetch(&mmtls);
    let old = fs::read_to_string(&rotated).unwrap();
    assert_eq!(old.matches("\"event_type\":\"http\"").count(), 3, "{old}");
    let report = mmtls.stop().unwrap();
    assert_eq!(report.events("http").len(), 1);
    assert_eq!(report.count("decrypted"), 4, "{:#?}", report.summary);
    assert!(stat(&report, "engine", "interface_downs") >= 2);
}

#[test]
fn accepts_endpoints_that_are_to_be_left_alone() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", b"content");
    let fetch = |config: &str| {
        let mmtls = stage.mmtls(&MmtlsOptions { config: Some(config.to_owned()), ..options() });
        let mut curl = stage.plain_curl(Family::V4);
        curl.arg(url("file"));
        let finished = stage.run("curl", curl);
        (finished.status.success(), mmtls.stop().unwrap())
    };
    let (passed, report) = fetch("[policies]\nbypass = [\"10.77.0.3:443\"]\n");
    assert!(passed && report.count("TLS sessions") == 0, "{:#?}", report.summary);
    assert!(stat(&report, "engine", "bypassed") > 5);
    let (passed, report) = fetch("[policies]\nbypass = [\"10.77.0.3:444\", \"10.78.0.0/16\"]\n");
    assert!(!passed && report.count("TLS sessions") == 1, "{:#?}", report.summary);
}
