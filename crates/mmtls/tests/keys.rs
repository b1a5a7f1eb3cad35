//! Keys that come late, never, from the wrong place, or not at all on purpose: packets wait, are
//! inspected before they go on, and the stated policy holds.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, can_run, find, options, patient, sessions, stat,
    url,
};
use mmtls_keyshare::SecretBytes;
use mmtls_keyshare::client::{Client, ClientConfig};
use mmtls_keyshare::message::{Direction, Epoch, KeyEntry, Message, NullKeys, SessionKeys};
use mmtls_record::key_schedule::traffic_keys;
use mmtls_testkit::{
    Background, Middle, Mmtls, MmtlsOptions, MmtlsReport, Namespace, NginxOptions, Testbed,
    address, files,
};
use serde_json::Value;

const SUITE: u16 = 0x1301;
const SUITE_NAME: &str = "TLS_AES_128_GCM_SHA256";
pub const PATTERN: &[u8] = b"forbidden-fruit";

/// What the sender sends for each session of the key log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Both directions' keys after the delay.
    Both,
    /// The client's keys at once, the server's after the delay.
    ServerLate,
    /// The other way round.
    ClientLate,
    /// "This session is private."
    Null,
    /// Keys of the right length that are not the session's.
    Garbage,
    /// Keys of another suite.
    OtherSuite,
    /// Of sessions that there are not.
    Flood,
    /// Keys of a suite that there is not.
    NoSuite,
}

/// Not a test of its own: the others start this program again, inside a namespace, as an endpoint
/// whose keys take their time.
#[test]
#[ignore = "run by the other tests"]
fn the_sender_process() {
    let Ok(middlebox) = std::env::var("SENDER_MIDDLEBOX") else {
        return;
    };
    let text = |name| std::env::var(name).unwrap();
    let delay = Duration::from_millis(text("SENDER_DELAY_MS").parse().unwrap());
    let modes = [
        Mode::Both,
        Mode::ServerLate,
        Mode::ClientLate,
        Mode::Null,
        Mode::Garbage,
        Mode::OtherSuite,
        Mode::Flood,
        Mode::NoSuite,
    ];
    let mode = *modes.iter().find(|mode| format!("{mode:?}") == text("SENDER_MODE")).unwrap();
    let config = ClientConfig::new(vec![middlebox.parse().unwrap()], text("SENDER_CA").into());
    let say_refused = |message| {
        if let Message::Refused(refused) = message {
            println!("sender: refused: {}", refused.reason);
        }
        Vec::new()
    };
    let client = Client::start(config, Box::new(say_refused)).unwrap();
    assert!(client.wait_connected(Duration::from_secs(20)), "{:?}", client.connection_errors());
    println!("sender: connected");
    let end = Instant::now() + Duration::from_secs(60);
    let mut log = Log { path: text("SENDER_KEYLOG").into(), read: 0, halves: HashMap::new() };
    while Instant::now() < end {
        let Some((random, [client_secret, server_secret])) = log.next_session() else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        let keys = |direction, secret: &[u8]| {
            let mut secret = secret.to_vec();
            secret[0] ^= u8::from(mode == Mode::Garbage);
            entry(direction, &secret)
        };
        let to_server = keys(Direction::ClientToServer, &client_secret);
        let to_client = keys(Direction::ServerToClient, &server_secret);
        let suite = match mode {
            Mode::OtherSuite => 0x1304,
            Mode::NoSuite => 0xaaaa,
            _ => SUITE,
        };
        let send = |keys| client.send(&session(random, suite, keys)).unwrap();
        match mode {
            Mode::Both | Mode::Garbage | Mode::OtherSuite | Mode::NoSuite => {
                std::thread::sleep(delay);
                send(vec![to_server, to_client]);
            }
            Mode::ServerLate => {
                send(vec![to_server]);
                std::thread::sleep(delay);
                send(vec![to_client]);
            }
            Mode::ClientLate => {
                send(vec![to_client]);
                std::thread::sleep(delay);
                send(vec![to_server]);
            }
            Mode::Flood => {
                for number in 0..64 {
                    let keys = keys(Direction::ClientToServer, &client_secret);
                    client.send(&session([number; 32], suite, vec![keys])).unwrap();
                }
            }
            Mode::Null => {
                let null = NullKeys { client_random: random, direction: None, flow: None };
                client.send(&Message::NullKeys(null)).unwrap();
            }
        }
        println!("sender: sent");
    }
}

fn session(client_random: [u8; 32], cipher_suite: u16, keys: Vec<KeyEntry>) -> Message {
    Message::SessionKeys(SessionKeys {
        client_random,
        server_random: None,
        version: 0x0304,
        cipher_suite,
        flow: None,
        keys,
    })
}

fn entry(direction: Direction, secret: &[u8]) -> KeyEntry {
    let keys = traffic_keys(SUITE, secret).unwrap();
    KeyEntry {
        direction,
        epoch: Epoch::APPLICATION,
        key: SecretBytes::new(keys.key()).unwrap(),
        iv: SecretBytes::new(keys.iv()).unwrap(),
        mac_key: SecretBytes::empty(),
    }
}

/// A key log that is being written.
struct Log {
    path: PathBuf,
    read: usize,
    halves: HashMap<[u8; 32], [Option<Vec<u8>>; 2]>,
}

impl Log {
    /// The random and both application secrets of a session that is complete now.
    fn next_session(&mut self) -> Option<([u8; 32], [Vec<u8>; 2])> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        while let Some(length) = text[self.read..].find('\n') {
            let line = &text[self.read..self.read + length];
            self.read += length + 1;
            let mut words = line.split(' ');
            let side = match words.next() {
                Some("CLIENT_TRAFFIC_SECRET_0") => 0,
                Some("SERVER_TRAFFIC_SECRET_0") => 1,
                _ => continue,
            };
            let random: [u8; 32] = unhex(words.next().unwrap()).try_into().unwrap();
            let halves = self.halves.entry(random).or_default();
            halves[side] = Some(unhex(words.next().unwrap()));
            if let [Some(client), Some(server)] = halves {
                return Some((random, [client.clone(), server.clone()]));
            }
        }
        None
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    base16ct::mixed::decode_vec(digits).unwrap()
}

/// Starts the sender in a namespace; it follows the key log `keylog(bed)`.
fn sender(
    bed: &Testbed,
    place: &Namespace,
    family: Family,
    mode: Mode,
    delay_ms: u64,
) -> Background {
    let mut command = place.command(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", "keys::the_sender_process"]);
    command.env("SENDER_MIDDLEBOX", family.keys());
    command.env("SENDER_CA", &bed.pki().ca);
    command.env("SENDER_KEYLOG", keylog(bed));
    command.env("SENDER_MODE", format!("{mode:?}"));
    command.env("SENDER_DELAY_MS", delay_ms.to_string());
    let mut sender = bed.background("sender", command).unwrap();
    sender.wait_for_line("sender: connected", Duration::from_secs(25)).unwrap();
    sender
}

fn keylog(bed: &Testbed) -> PathBuf {
    bed.directory().join("keylog")
}

/// curl that shares its keys by nothing but its key log.
fn logging_curl(stage: &Stage, family: Family) -> Command {
    let mut curl = stage.plain_curl(family);
    curl.env("SSLKEYLOGFILE", keylog(&stage.bed));
    curl
}

pub fn stage() -> Stage {
    Stage::with(NginxOptions {
        ciphersuites: SUITE_NAME.to_owned(),
        protocols: "TLSv1.3".to_owned(),
        // Small records, so that several are complete in a first flight.
        record_bytes: 4096,
        ..NginxOptions::default()
    })
}

/// A monitor that resets sessions with the pattern in a response.
pub fn resetting(stage: &Stage) -> MmtlsOptions {
    let patterns = stage.bed.directory().join("patterns.txt");
    std::fs::write(&patterns, PATTERN).unwrap();
    MmtlsOptions { patterns: Some((patterns, "reset".to_owned())), ..patient() }
}

pub fn with_pattern(length: usize, at: usize) -> Vec<u8> {
    let mut content = files::pattern_bytes(length, 7);
    content[at..at + PATTERN.len()].copy_from_slice(PATTERN);
    content
}

fn held_packets_are_inspected(family: Family, mode: Mode) {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    if family.is_v6() && !stage.bed.has_ipv6() {
        return;
    }
    let clean = files::pattern_bytes(1_000_000, 7);
    stage.serve("clean", &clean);
    stage.serve("first", &with_pattern(1_000_000, 100));
    // In the second or third record of the body, and of the first flight.
    stage.serve("flight", &with_pattern(1_000_000, 9000));
    let options = resetting(&stage);
    for delay_ms in [0, 1, 5, 10, 20, 50] {
        let what = format!("{family:?} {mode:?} {delay_ms} ms");
        let _ = std::fs::remove_file(keylog(&stage.bed));
        let mmtls = stage.mmtls(&options);
        let mut sender = sender(&stage.bed, &stage.bed.client, family, mode, delay_ms);

        let mut curl = logging_curl(&stage, family);
        curl.arg(url("clean"));
        let page = stage.run("curl", curl);
        assert!(page.stdout == clean, "{what}: {} {}", page.stdout.len(), page.stderr);
        for (name, most) in [("first", 0), ("flight", 8192)] {
            let mut curl = logging_curl(&stage, family);
            curl.arg(url(name));
            let page = stage.run("curl", curl);
            assert_eq!(page.status.code(), Some(56), "{what}: {}", page.stderr);
            assert!(find(&page.stdout, PATTERN).is_none(), "{what}: {name} was let through");
            assert!(page.stdout.len() <= most, "{what}: {} bytes of {name}", page.stdout.len());
        }
        sender.stop();
        let report = mmtls.stop().unwrap();
        let ends: Vec<_> =
            sessions(&report).iter().map(|tls| tls["end_reason"].to_string()).collect();
        let all = format!("{what}: {ends:?} {:#?}", report.summary);
        assert_eq!(report.count("TLS sessions"), 3, "{all}");
        assert_eq!(report.count("decrypted"), 3, "{all}");
        assert_eq!(report.count("alerts"), 2, "{all}");
        assert_eq!(report.count("resets"), 2, "{all}");
        for name in ["missing key", "failed", "records failed"] {
            assert_eq!(report.count(name), 0, "{name}: {all}");
        }
        assert!(!report.summary.keys().any(|name| name.starts_with("anomaly")), "{all}");
        let records = &sessions(&report)[0]["decrypted"];
        assert_eq!(records["seen_toclient"], records["records_toclient"], "{what}");
        assert_eq!(records["seen_toserver"], records["records_toserver"], "{what}");
        assert!(records["bytes_toclient"].as_u64() >= Some(1_000_000), "{what}: {records}");
        if delay_ms >= 20 {
            // The key log is written a little before the first record is sent; on a busy machine
            // the keys of a session may even be there first.
            let longest = report.count("longest stall in us");
            assert!(longest >= delay_ms * 500, "{what}: stalled {longest} us");
            assert_eq!(stat(&report, "engine", "stalls_ended_by_limit"), 0, "{what}");
        }
    }
}

#[test]
fn accepts_late_keys_of_both_directions_v4() {
    held_packets_are_inspected(Family::V4, Mode::Both);
}

#[test]
fn accepts_late_keys_of_the_server_v4() {
    held_packets_are_inspected(Family::V4, Mode::ServerLate);
}

#[test]
fn accepts_late_keys_of_both_directions_v6() {
    held_packets_are_inspected(Family::V6, Mode::Both);
}

#[test]
fn accepts_late_keys_of_the_server_v6() {
    held_packets_are_inspected(Family::V6, Mode::ServerLate);
}

fn forwarding(config: Option<&str>) -> MmtlsOptions {
    let config = config.map(str::to_owned);
    MmtlsOptions { missing_keys: "forward".to_owned(), config, ..options() }
}

/// A download without keys; how long it took, and the report.
fn without_keys(
    stage: &Stage,
    family: Family,
    connected: bool,
    options: &MmtlsOptions,
) -> (Duration, bool, MmtlsReport) {
    let content = files::pattern_bytes(500_000, 9);
    stage.serve("file", &content);
    let mmtls = stage.mmtls(options);
    // One that could share keys, and has none: nobody writes its key log.
    let _sender = connected.then(|| sender(&stage.bed, &stage.bed.client, family, Mode::Both, 0));
    if !connected {
        // Just after the start every agent may be about to connect.
        std::thread::sleep(Duration::from_millis(2100));
    }
    let mut curl = stage.plain_curl(family);
    curl.arg(url("file"));
    let page = stage.run("curl", curl);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("missing key"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("decrypted"), 0, "{:#?}", report.summary);
    assert_eq!(sessions(&report)[0]["key_status"], "missing");
    assert_eq!(report.count("anomaly missing_keys"), 1, "{:#?}", report.summary);
    assert!(page.status.success() || page.stdout.is_empty(), "all or nothing");
    (page.elapsed, page.stdout == content, report)
}

#[test]
fn accepts_sessions_without_keys_where_the_policy_forwards() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    for family in Family::all(&stage.bed) {
        let (took, whole, report) = without_keys(&stage, family, true, &forwarding(None));
        assert!(whole, "{family:?}: {:#?}", report.summary);
        assert!(took > Duration::from_millis(450), "the stall limit is 500 ms: {took:?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
        assert_eq!(report.count("resets"), 0);
        assert_eq!(stat(&report, "engine", "stalls_ended_by_limit"), 1);
        assert_eq!(sessions(&report)[0]["end_reason"], "closed");
    }
    // Where nobody could share keys, waiting is for those who connect just now.
    let config = "[limits]\nstall_timeout_milliseconds = 20000\n";
    let (took, whole, report) = without_keys(&stage, Family::V4, false, &forwarding(Some(config)));
    assert!(whole, "{:#?}", report.summary);
    assert!(took > Duration::from_millis(45), "50 ms is the limit: {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    // Each of the other limits ends the wait, too.
    for limit in ["stall_max_packets = 1", "stall_max_bytes = 100"] {
        let config = format!("[limits]\nstall_timeout_milliseconds = 20000\n{limit}\n");
        let (took, whole, report) =
            without_keys(&stage, Family::V4, true, &forwarding(Some(&config)));
        assert!(whole, "{limit}: {:#?}", report.summary);
        assert!(took < Duration::from_secs(5), "{limit}: {took:?}");
    }
}

#[test]
fn refuses_sessions_without_keys_where_the_policy_resets() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    for (timeout_ms, family) in [(500, Family::V4), (200, Family::V6)] {
        if family.is_v6() && !stage.bed.has_ipv6() {
            continue;
        }
        let config = Some(format!("[limits]\nstall_timeout_milliseconds = {timeout_ms}\n"));
        let options = MmtlsOptions { config, ..options() };
        let (took, whole, report) = without_keys(&stage, family, true, &options);
        assert!(!whole);
        assert!(took >= Duration::from_millis(timeout_ms - 20), "{timeout_ms}: {took:?}");
        assert!(took < Duration::from_millis(timeout_ms + 1500), "{timeout_ms}: {took:?}");
        assert_eq!(report.count("resets"), 1, "{:#?}", report.summary);
        assert_eq!(sessions(&report)[0]["end_reason"], "reset_by_policy");
        // Not one record of application data went past the monitor.
        assert_eq!(stat(&report, "engine", "records_opened"), 0);
        assert!(stat(&report, "engine", "resets_injected") >= 2, "both ends hear of it");
    }
}

/// A download whose keys come from `place`, and the report.
fn keys_from(
    stage: &Stage,
    place: &Namespace,
    mode: Mode,
    options: &MmtlsOptions,
) -> (mmtls_testkit::Finished, MmtlsReport) {
    keys_until("sender: sent", stage, place, mode, options)
}

/// As [`keys_from`], until the sender has said something.
fn keys_until(
    line: &str,
    stage: &Stage,
    place: &Namespace,
    mode: Mode,
    options: &MmtlsOptions,
) -> (mmtls_testkit::Finished, MmtlsReport) {
    let _ = std::fs::remove_file(keylog(&stage.bed));
    let mmtls = stage.mmtls(options);
    let mut sender = sender(&stage.bed, place, Family::V4, mode, 0);
    let mut curl = logging_curl(stage, Family::V4);
    curl.arg(url("file"));
    let page = stage.run("curl", curl);
    sender.wait_for_line(line, Duration::from_secs(20)).unwrap();
    sender.stop();
    (page, mmtls.stop().unwrap())
}

#[test]
fn refuses_keys_that_cannot_be_used_and_says_so() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    stage.serve("file", b"nobody gets this");
    let client = &stage.bed.client;
    // The counter, the record's reason (what belongs to no session has no record), and how the session counts.
    for (mode, why, counter, reason, outcome) in [
        (
            Mode::OtherSuite,
            "the session has another server random or suite",
            "keys_mismatch",
            Some("mismatch"),
            "missing key",
        ),
        (Mode::NoSuite, "not supported", "keys_unusable", None, "missing key"),
        (
            Mode::Garbage,
            "the keys open no record of the session",
            "keys_open_nothing",
            Some("open_nothing"),
            "failed",
        ),
        (Mode::Flood, "no capacity", "keys_over_quota", None, "missing key"),
    ] {
        let told = format!("sender: refused: {why}");
        let config = Some("[limits]\nmax_pending_keys = 64\n".to_owned());
        let options = MmtlsOptions { config, ..options() };
        let (page, report) = keys_until(&told, &stage, client, mode, &options);
        assert!(!page.status.success() && page.stdout.is_empty(), "{}", page.stderr);
        assert_eq!(report.count(outcome), 1, "{:#?}", report.summary);
        let keys = report.events("keys");
        assert_eq!(keys.is_empty(), reason.is_none(), "{keys:?}");
        let client = address::CLIENT_V4;
        for it in keys.iter().filter(|_| reason.is_some()) {
            assert_eq!(it["keys"]["reason"].as_str(), reason, "{it}");
            assert_eq!(it["keys"]["sender"], client, "{it}");
        }
        assert!(stat(&report, "engine", counter) >= 1, "{counter}");
    }
}

#[test]
fn refuses_keys_from_another_address() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let content = files::pattern_bytes(500_000, 5);
    stage.serve("file", &content);
    let elsewhere = &stage.bed.middlebox;
    // The client's own address is where nobody is connected: give the strangers time.
    let config = Some("[limits]\nunshared_stall_timeout_milliseconds = 500\n".to_owned());
    let strange = MmtlsOptions { config, ..options() };
    let told = "sender: refused: not the sender's address";
    let (page, report) = keys_until(told, &stage, elsewhere, Mode::Both, &strange);
    assert!(!page.status.success() && page.stdout.is_empty(), "{}", page.stderr);
    assert_eq!(report.count("decrypted"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 1, "{:#?}", report.summary);
    assert!(stat(&report, "engine", "keys_wrong_sender") >= 1);
    assert_eq!(stat(&report, "engine", "keys_accepted"), 0);
    let told = report.events("keys");
    assert!(!told.is_empty(), "{:#?}", report.eve);
    for keys in told {
        assert_eq!(keys["keys"]["reason"], "wrong_sender", "{keys}");
        assert_eq!(keys["keys"]["sender"], address::KEYS_V4, "{keys}");
        assert_eq!(keys["src_ip"], address::CLIENT_V4, "{keys}");
    }

    // Nor may a stranger declare a session private.
    let (page, report) = keys_from(&stage, elsewhere, Mode::Null, &strange);
    assert!(!page.status.success() && page.stdout.is_empty(), "{}", page.stderr);
    assert_eq!(report.count("exempt"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 1, "{:#?}", report.summary);

    // Unless the operator says so, for clients behind address translation.
    let mut options = patient();
    options.config = options.config.map(|text| text + "[keys]\naccept_from = [\"any\"]\n");
    let (page, report) = keys_from(&stage, elsewhere, Mode::Both, &options);
    assert!(page.stdout == content, "{}", page.stderr);
    assert_all_decrypted(&report, 1);
    assert!(report.stderr.contains("accept_from = [\"any\"] without"), "{}", report.stderr);
    // And from the client's own address, of course.
    let (page, report) = keys_from(&stage, &stage.bed.client, Mode::Both, &patient());
    assert!(page.stdout == content, "{}", page.stderr);
    assert_all_decrypted(&report, 1);
}

#[test]
fn refuses_keys_that_open_nothing() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    stage.serve("file", &files::pattern_bytes(500_000, 5));
    let (page, report) = keys_from(&stage, &stage.bed.client, Mode::Garbage, &options());
    assert_eq!(report.count("decrypted"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("failed"), 1, "{:#?}", report.summary);
    assert_eq!(sessions(&report)[0]["end_reason"], "reset_by_policy");
    assert!(!page.status.success(), "{}", page.stderr);
    // Records that open with no key might still be the handshake's: so many of them may pass.
    assert!(page.stdout.len() < 262_144, "max_search_bytes: {}", page.stdout.len());
    let config = Some("[limits]\nmax_search_bytes = 20000\n".to_owned());
    let options = MmtlsOptions { config, ..options() };
    let (page, report) = keys_from(&stage, &stage.bed.client, Mode::Garbage, &options);
    assert_eq!(report.count("failed"), 1, "{:#?}", report.summary);
    assert!(!page.status.success() && page.stdout.len() < 20_000, "{}", page.stdout.len());
}

#[test]
fn accepts_null_keys_as_a_refusal_to_share() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let content = with_pattern(500_000, 5000);
    stage.serve("file", &content);
    let options = resetting(&stage);
    let (page, report) = keys_from(&stage, &stage.bed.client, Mode::Null, &options);
    assert!(page.stdout == content, "{}", page.stderr);
    assert_eq!(report.count("exempt"), 1, "{:#?}", report.summary);

    for family in Family::all(&stage.bed) {
        let mmtls = stage.mmtls(&options);
        for (exempt, passes) in
            [("server.test", true), ("*.test", true), ("other.test", false), ("test", false)]
        {
            let mut curl = stage.sharing_curl(&mmtls, family, &[exempt]);
            curl.arg(url("file"));
            let page = stage.run("curl", curl);
            assert_eq!(page.stdout == content, passes, "{exempt}: {}", page.stderr);
        }
        let report = mmtls.stop().unwrap();
        assert_eq!(report.count("exempt"), 2, "{:#?}", report.summary);
        assert_eq!(report.count("decrypted"), 2, "{:#?}", report.summary);
        assert_eq!(report.count("alerts"), 2, "{:#?}", report.summary);
        assert_eq!(report.events("http").len(), 2, "nothing is reported of exempt sessions");
        let exempt = |tls: &&&Value| tls["key_status"] == "exempt";
        let exempt: Vec<_> = sessions(&report).iter().filter(exempt).copied().cloned().collect();
        assert_eq!(exempt.len(), 2);
        for tls in exempt {
            assert_eq!(tls["decrypted"]["records_toclient"], 0, "{tls}");
            assert_eq!(tls["end_reason"], "closed", "{tls}");
        }
        let states = report.events("flow").into_iter().map(|it| it["flow"]["state"].as_str());
        assert_eq!(states.filter(|it| *it == Some("bypassed")).count(), 2);
    }
}

#[test]
fn accepts_key_updates() {
    if !can_run(&["nginx", "openssl"]) {
        return;
    }
    let stage = stage();
    stage.serve("file", &files::pattern_bytes(100_000, 5));
    let mmtls = stage.mmtls(&patient());
    // `K` at the start of a line: new keys, and ask the server for new ones, too.
    let request = |path: &str| format!("GET /{path} HTTP/1.1\\r\\nHost: server.test\\r\\n\\r\\n");
    let script = format!(
        "(printf '{}'; sleep 0.3; echo K; sleep 0.3; printf '{}'; sleep 0.3; echo k; sleep 0.3; \
         printf '{}'; sleep 0.5; echo Q) | openssl s_client -connect {}:443 -CAfile {} -no_ign_eof",
        request("file?1"),
        request("file?2"),
        request("file?3"),
        Family::V4.server(),
        stage.bed.pki().ca.display(),
    );
    let mut client = mmtls.sharing(&stage.bed, false, &[], "sh");
    client.args(["-c", &script]);
    let done = stage.run("s_client", client);
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stdout.len() > 300_000, "three pages: {}", done.stdout.len());
    assert!(format!("{}{}", done.text(), done.stderr).contains("KEYUPDATE"));
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    // Two of the client, one of the server.
    assert_eq!(stat(&report, "engine", "key_updates"), 3);
    assert_eq!(stat(&report, "engine", "keys_refused"), 0);
    let urls: Vec<_> = report.events("http").iter().map(|e| e["http"]["url"].clone()).collect();
    assert_eq!(urls, ["/file?1", "/file?2", "/file?3"]);
    assert!(report.events("http").iter().all(|e| e["http"]["length"] == 100_000));
}

#[test]
fn accepts_keys_again_after_the_agent_lost_its_connection() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    // The monitor is restarted under a living agent: its client connects again by itself, and soon, however long the
    // outage was.
    let stage = stage();
    let content = files::pattern_bytes(200_000, 5);
    stage.serve("file", &content);
    let first = stage.mmtls(&patient());
    let go = stage.bed.directory().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done; exec curl \"$@\"", go.display());
    let mut client = first.sharing(&stage.bed, false, &[], "sh");
    client.args(["-c", &wait, "curl", "--cacert"]).arg(&stage.bed.pki().ca);
    client.args(stage.bed.resolve_args());
    client.args(["-sS", "--max-time", "20", &url("file")]);
    let client = stage.bed.background("agent", client).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    first.stop().unwrap();
    std::thread::sleep(Duration::from_secs(6));
    let second = stage.mmtls(&patient());
    std::fs::write(&go, "").unwrap();
    let page = client.finish(LIMIT).unwrap();
    assert!(page.stdout == content, "{}", page.stderr);
    let report = second.stop().unwrap();
    assert_all_decrypted(&report, 1);
    let stall_us = report.count("longest stall in us");
    eprintln!("waited {stall_us} us for keys");
    // A tenth of a second and a handshake, where the machine has nothing else to do.
    assert!(stall_us < 5_000_000, "{stall_us} us");
}

/// Nothing of this may end up in what the monitor says or writes.
pub fn secrets_of(log: &Path) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(log).unwrap();
    let mut secrets = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let secret = unhex(line.rsplit(' ').next().unwrap());
        if let Ok(keys) = traffic_keys(SUITE, &secret) {
            secrets.push(keys.key().to_vec());
            secrets.push(keys.iv().to_vec());
        }
        secrets.push(secret);
    }
    secrets
}

#[test]
fn refuses_to_tell_secrets() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    stage.serve("file", &files::pattern_bytes(100_000, 5));
    let mmtls: Mmtls = stage.mmtls(&patient());
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.env("SSLKEYLOGFILE", keylog(&stage.bed));
    curl.args(["-v", &url("file")]);
    let page = stage.run("curl", curl);
    assert!(page.status.success(), "{}", page.stderr);
    let (directory, stdout) =
        (mmtls.directory().to_owned(), mmtls.process.stdout_path().to_owned());
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    let mut written = vec![
        ("stderr", report.stderr.clone().into_bytes()),
        ("stdout", std::fs::read(stdout).unwrap()),
        ("the agent's output", page.stderr.clone().into_bytes()),
    ];
    for entry in std::fs::read_dir(directory).unwrap() {
        written.push(("logs", std::fs::read(entry.unwrap().path()).unwrap()));
    }
    let secrets = secrets_of(&keylog(&stage.bed));
    assert!(secrets.len() >= 10, "{} secrets", secrets.len());
    for secret in &secrets {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        for (place, bytes) in &written {
            for form in [secret.as_slice(), hex.as_bytes(), hex.to_uppercase().as_bytes()] {
                assert!(find(bytes, form).is_none(), "a secret in {place}");
            }
            // As Rust prints bytes in decimal.
            let list = secret.iter().take(6).map(u8::to_string).collect::<Vec<_>>().join(", ");
            assert!(find(bytes, list.as_bytes()).is_none(), "a secret in {place}");
        }
    }
}

/// A client that ends its connection with a RST as soon as it has what it wants. Arguments: CA, key log, server.
const ABRUPT: &str = r"
import socket, ssl, struct, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.keylog_filename = sys.argv[2]
plain = socket.create_connection((sys.argv[3], 443))
with context.wrap_socket(plain, server_hostname='server.test') as tls:
    for _ in range(2):
        tls.sendall(b'GET /file HTTP/1.1\r\nHost: server.test\r\n\r\n')
        got = b''
        while len(got.partition(b'\r\n\r\n')[2]) < 100000: got += tls.recv(65536)
    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
";

/// Beside the traffic everything has passed when the keys come: what waits is a dialog, whose end may have
/// been seen.
#[test]
fn accepts_late_keys_of_whole_dialogs_beside_the_traffic() {
    if !can_run(&["nginx", "curl", "python3"]) {
        return;
    }
    let options = NginxOptions {
        ciphersuites: SUITE_NAME.to_owned(),
        protocols: "TLSv1.3".to_owned(),
        ..NginxOptions::default()
    };
    let stage = Stage::around(Middle::KernelBridge, options);
    stage.serve("file", &files::pattern_bytes(100_000, 7));
    for (mode, is_abrupt) in [(Mode::Both, false), (Mode::ClientLate, false), (Mode::Both, true)] {
        let what = format!("{mode:?}, abrupt: {is_abrupt}");
        let _ = std::fs::remove_file(keylog(&stage.bed));
        let passive = Some("left:right".to_owned());
        let mmtls = stage.mmtls(&MmtlsOptions { passive, ..patient() });
        let mut sender = sender(&stage.bed, &stage.bed.client, Family::V4, mode, 250);
        for _ in 0..4 {
            // Two requests on a connection.
            let client = if is_abrupt {
                let mut python = stage.bed.client.command("python3");
                python.args(["-c", ABRUPT]).arg(&stage.bed.pki().ca).arg(keylog(&stage.bed));
                python.arg(address::SERVER_V4);
                python
            } else {
                let mut curl = logging_curl(&stage, Family::V4);
                curl.args(["-o", "/dev/null", "-o", "/dev/null", &url("file"), &url("file")]);
                curl
            };
            let page = stage.run("client", client);
            assert!(page.status.success(), "{what}: {}", page.stderr);
        }
        let all = |eve: &[Value]| eve.iter().filter(|it| it["event_type"] == "mmtls").count() == 4;
        mmtls.wait_for_eve("the last keys", LIMIT, all).unwrap();
        sender.stop();
        let report = mmtls.stop().unwrap();
        assert_eq!(report.count("decrypted"), 4, "{what}: {:#?}", report.summary);
        let http = report.events("http");
        assert_eq!(http.len(), 8, "{what}: {:#?}", report.summary);
        for transaction in http {
            let http = &transaction["http"];
            let whole = (&http["status"], &http["complete"]);
            assert_eq!(whole, (&200.into(), &true.into()), "{what}: {http}");
            assert_eq!(http["length"], 100_000, "{what}: {http}");
        }
    }
}
