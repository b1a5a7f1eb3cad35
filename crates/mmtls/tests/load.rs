//! Many connections, one after the other and at a time, with shared keys: every session is
//! decrypted, no record and no request fails. And programs that share nothing.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;

use crate::common::{
    Family, Stage, assert_all_decrypted, assert_decrypted_but_aborted, can_run, options, patient,
    sessions, stat, url,
};
use mmtls_testkit::{KeyType, Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, address, files};

const SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Each of these loads both cores on its own.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn nginx(suite: &str) -> NginxOptions {
    NginxOptions {
        ciphersuites: suite.to_owned(),
        protocols: "TLSv1.3".to_owned(),
        resumption: false,
        ..NginxOptions::default()
    }
}

/// A program of the testbed's client, with shared keys, under the monitor; returns what it
/// printed and the monitor's report.
fn load(stage: &Stage, family: Family, program: &str, arguments: &[&str]) -> (String, MmtlsReport) {
    let mmtls = stage.mmtls(&patient());
    let mut command = mmtls.sharing(&stage.bed, family.is_v6(), &[], program);
    command.args(arguments).arg(format!("https://{}/file", family.server()));
    let done = stage.run(program, command);
    let text = format!("{}{}", done.text(), done.stderr);
    assert!(done.status.success(), "{program}: {text}");
    let report = mmtls.stop().unwrap();
    eprintln!(
        "{program} {family:?} {:.1} s: {} sessions, longest stall {} us",
        done.elapsed.as_secs_f64(),
        report.count("TLS sessions"),
        report.count("longest stall in us"),
    );
    (text, report)
}

/// ApacheBench's totals: complete and failed requests.
fn assert_ab(text: &str, requests: u32) {
    for line in ["Complete requests:", "Failed requests:", "Non-2xx responses:"] {
        let value = text.lines().find_map(|found| found.strip_prefix(line)).map(str::trim);
        let expected = match line {
            "Complete requests:" => Some(requests.to_string()),
            "Failed requests:" => Some("0".to_owned()),
            _ => None,
        };
        assert_eq!(value, expected.as_deref(), "{line} in {text}");
    }
}

/// Every session that was used has this suite. (Some are given up before the server answers.)
fn assert_suite(report: &MmtlsReport, suite: &str) {
    let sessions = sessions(report);
    let used = sessions.iter().filter(|tls| tls["decrypted"]["seen_toserver"] != 0);
    let suites: BTreeSet<_> = used.map(|tls| tls["cipher_suite"].as_str()).collect();
    assert_eq!(suites, BTreeSet::from([Some(suite)]));
    let randoms: BTreeSet<_> = sessions.iter().map(|tls| tls["client_random"].as_str()).collect();
    assert_eq!(randoms.len(), sessions.len(), "every session once");
}

fn many_connections(family: Family, suite: &str) {
    if !can_run(&["nginx", "ab", "h2load"]) {
        return;
    }
    let _alone = alone();
    let stage = Stage::with(nginx(suite));
    if family.is_v6() && !stage.bed.has_ipv6() {
        return;
    }
    stage.serve("file", &files::pattern_bytes(1000, 1));

    let (text, report) = load(&stage, family, "ab", &["-q", "-n", "1000", "-c", "1"]);
    assert_ab(&text, 1000);
    assert_all_decrypted(&report, 1000);
    assert_eq!(report.count("HTTP requests"), 1000);
    assert_suite(&report, suite);

    let (text, report) = load(&stage, family, "h2load", &["--h1", "-c256", "-n", "20000", "-t1"]);
    assert!(text.contains("20000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
    assert_all_decrypted(&report, 256);
    assert_eq!(report.count("HTTP requests"), 20_000);
    assert_suite(&report, suite);

    let (text, report) = load(&stage, family, "ab", &["-q", "-n", "1536", "-c", "256"]);
    assert_ab(&text, 1536);
    // It opens more connections than it uses.
    assert_decrypted_but_aborted(&report, 1536);
    assert_eq!(report.count("HTTP requests"), 1536);
    assert_suite(&report, suite);
}

#[test]
fn accepts_many_connections_aes_128_v4() {
    many_connections(Family::V4, SUITES[0]);
}

#[test]
fn accepts_many_connections_aes_128_v6() {
    many_connections(Family::V6, SUITES[0]);
}

#[test]
fn accepts_many_connections_aes_256_v4() {
    many_connections(Family::V4, SUITES[1]);
}

#[test]
fn accepts_many_connections_aes_256_v6() {
    many_connections(Family::V6, SUITES[1]);
}

#[test]
fn accepts_many_connections_chacha20_v4() {
    many_connections(Family::V4, SUITES[2]);
}

#[test]
fn accepts_many_connections_chacha20_v6() {
    many_connections(Family::V6, SUITES[2]);
}

#[test]
fn accepts_requests_that_share_connections() {
    if !can_run(&["nginx", "ab"]) {
        return;
    }
    let _alone = alone();
    let stage = Stage::with(nginx(""));
    stage.serve("file", &files::pattern_bytes(20_000, 1));
    let (text, report) = load(&stage, Family::V4, "ab", &["-q", "-k", "-n", "2000", "-c", "10"]);
    assert_ab(&text, 2000);
    assert!(text.contains("Keep-Alive requests:    2000"), "{text}");
    assert_all_decrypted(&report, 10);
    assert_eq!(report.count("TLS sessions"), 10);
    assert_eq!(report.count("HTTP requests"), 2000);
    assert!(report.events("http").iter().all(|record| record["http"]["complete"] == true));
}

#[test]
fn accepts_python_and_its_keys() {
    if !can_run(&["nginx", "python3"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", &files::pattern_bytes(300_000, 1));
    let mmtls = stage.mmtls(&patient());
    for family in Family::all(&stage.bed) {
        let script = "import ssl, sys, urllib.request as r\n\
                      c = ssl.create_default_context(cafile=sys.argv[1])\n\
                      print(len(r.urlopen(sys.argv[2], context=c, timeout=20).read()))";
        let mut python = mmtls.sharing(&stage.bed, family.is_v6(), &[], "/usr/bin/python3");
        python.args(["-c", script]).arg(&stage.bed.pki().ca);
        python.arg(format!("https://{}/file", family.server()));
        let done = stage.run("python", python);
        assert_eq!(done.text(), "300000\n", "{}", done.stderr);
    }
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, Family::all(&stage.bed).len() as u64);
    assert!(report.events("http").iter().all(|record| record["http"]["length"] == 300_000));
}

/// wget in Debian uses GnuTLS, which shares no keys.
fn wget(stage: &Stage, mut command: Command) -> mmtls_testkit::Finished {
    command.args(["-q", "--no-check-certificate", "--tries=1", "--timeout=10", "-O", "-"]);
    command.arg(format!("https://{}/file", address::SERVER_V4));
    stage.run("wget", command)
}

#[test]
fn accepts_or_refuses_programs_without_keys_as_the_policy_says() {
    if !can_run(&["nginx", "wget"]) {
        return;
    }
    let stage = Stage::new();
    let content = files::pattern_bytes(200_000, 1);
    stage.serve("file", &content);
    for policy in ["forward", "reset"] {
        let mmtls = stage.mmtls(&MmtlsOptions { missing_keys: policy.to_owned(), ..options() });
        // With names that are exempt there is no key log, which has none.
        let done = wget(&stage, mmtls.sharing(&stage.bed, false, &["other.test"], "wget"));
        let told = "mmtls exec: no TLS session was shared; it uses GnuTLS";
        assert!(done.stderr.contains(told), "{}", done.stderr);
        let absent = mmtls.sharing(&stage.bed, false, &[], "no-such-program");
        let absent = stage.run("no-such-program", absent);
        assert_eq!(absent.status.code(), Some(127), "{}", absent.stderr);
        let report = mmtls.stop().unwrap();
        let all = format!("{:#?} {}", report.summary, done.stderr);
        assert_eq!(report.count("missing key"), 1, "{policy}: {all}");
        assert_eq!(report.count("decrypted"), 0, "{policy}: {all}");
        assert_eq!(sessions(&report)[0]["key_status"], "missing", "{policy}");
        assert_eq!(stat(&report, "engine", "stalls_ended_by_limit"), 1, "{policy}");
        if policy == "forward" {
            assert!(done.status.success() && done.stdout == content, "{all}");
            assert_eq!(report.count("resets"), 0, "{all}");
        } else {
            assert!(!done.status.success() && done.stdout.is_empty(), "{all}");
            assert_eq!(report.count("resets"), 1, "{all}");
        }
    }
}

#[test]
fn accepts_tls_1_2() {
    if !can_run(&["nginx", "curl", "ab"]) {
        return;
    }
    let stage =
        Stage::with(NginxOptions { protocols: "TLSv1.2".to_owned(), ..NginxOptions::default() });
    let content = files::pattern_bytes(200_000, 1);
    stage.serve("file", &content);
    let mmtls = stage.mmtls(&patient());
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("file"));
    let done = stage.run("curl", curl);
    assert!(done.stdout == content, "{}", done.stderr);
    let mut ab = mmtls.sharing(&stage.bed, false, &[], "ab");
    ab.args(["-q", "-n", "200", "-c", "16", "https://10.77.0.3/file"]);
    assert_ab(&stage.run("ab", ab).text(), 200);
    let report = mmtls.stop().unwrap();
    // ab opens more connections than it uses.
    assert!(report.count("decrypted") >= 201, "{:#?}", report.summary);
    assert_eq!(report.count("failed"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("records failed"), 0, "{:#?}", report.summary);
    assert!(report.count("plaintext bytes") >= 201 * 200_000, "{:#?}", report.summary);
    assert!(crate::common::sessions(&report).iter().all(|tls| tls["version"] == "TLS 1.2"));
}

#[test]
fn accepts_tls_1_2_ciphers_of_every_kind() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::with(NginxOptions {
        protocols: "TLSv1.2".to_owned(),
        key_type: KeyType::Rsa,
        ciphers: "ALL:!aNULL".to_owned(),
        ..NginxOptions::default()
    });
    let content = files::pattern_bytes(300_000, 1);
    stage.serve("file", &content);
    let mmtls = stage.mmtls(&patient());
    let ciphers = [
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-RSA-CHACHA20-POLY1305",
        "ECDHE-RSA-AES256-SHA384",
        "AES128-SHA",
    ];
    for (n, cipher) in ciphers.into_iter().enumerate() {
        let family = if n % 2 == 1 && stage.bed.has_ipv6() { Family::V6 } else { Family::V4 };
        let mut curl = stage.sharing_curl(&mmtls, family, &[]);
        curl.args(["--ciphers", cipher, &url("file")]);
        let done = stage.run("curl", curl);
        assert!(done.stdout == content, "{cipher}: {}", done.stderr);
    }
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, ciphers.len() as u64);
    let suites: BTreeSet<_> =
        sessions(&report).iter().map(|tls| tls["cipher_suite"].to_string()).collect();
    assert_eq!(suites.len(), ciphers.len(), "{suites:?}");
    assert!(report.events("http").iter().all(|record| record["http"]["length"] == 300_000));
}

#[test]
fn refuses_unsupported_suites_by_policy() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    // No AES and no ChaCha20: nobody follows it.
    let suite = "ECDHE-ECDSA-CAMELLIA128-SHA256";
    let stage = Stage::with(NginxOptions {
        protocols: "TLSv1.2".to_owned(),
        ciphers: suite.to_owned(),
        ..NginxOptions::default()
    });
    let content = files::pattern_bytes(200_000, 1);
    stage.serve("file", &content);
    let fetch = |mmtls: &Mmtls| {
        let mut curl = stage.sharing_curl(mmtls, Family::V4, &[]);
        curl.args(["--ciphers", suite, &url("file")]);
        stage.run("curl", curl)
    };
    let config = Some("[policies]\nunsupported = \"bypass\"\n".to_owned());
    let mmtls = stage.mmtls(&MmtlsOptions { config, ..options() });
    let done = fetch(&mmtls);
    assert!(done.stdout == content, "{}", done.stderr);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("failed"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("anomaly unsupported_cipher_suite"), 1, "{:#?}", report.summary);

    // Where missing keys reset, so does this, unless it is said otherwise.
    let mmtls = stage.mmtls(&options());
    let done = fetch(&mmtls);
    assert!(!done.status.success() && done.stdout.is_empty());
    assert_eq!(mmtls.stop().unwrap().count("resets"), 1);
}

#[test]
fn refuses_unsupported_versions_by_policy() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::with(NginxOptions {
        protocols: "TLSv1 TLSv1.1".to_owned(),
        ciphers: "ALL:@SECLEVEL=0".to_owned(),
        ..NginxOptions::default()
    });
    let content = files::pattern_bytes(200_000, 1);
    stage.serve("file", &content);
    for policy in ["bypass", "reset"] {
        let config = Some(format!("[policies]\nunsupported = \"{policy}\"\n"));
        let mmtls = stage.mmtls(&MmtlsOptions { config, ..options() });
        for version in ["1.0", "1.1"] {
            let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
            curl.args(["--tls-max", version, "--tlsv1.0"]);
            curl.args(["--ciphers", "ALL:@SECLEVEL=0", &url("file")]);
            let done = stage.run("curl", curl);
            let passed = done.status.success() && done.stdout == content;
            assert_eq!(passed, policy == "bypass", "{version}: {}", done.stderr);
            assert!(passed || done.stdout.is_empty());
        }
        let report = mmtls.stop().unwrap();
        let all = format!("{policy}: {:#?}", report.summary);
        assert_eq!(report.count("TLS sessions"), 2, "{all}");
        assert_eq!(report.count("decrypted"), 0, "{all}");
        assert_eq!(report.count("failed"), 2, "{all}");
        assert_eq!(report.count("anomaly unsupported_version"), 2, "{all}");
        assert_eq!(report.count("resets"), if policy == "reset" { 2 } else { 0 }, "{all}");
    }
}

/// What an idle session takes of the middlebox's memory, as the system counts it.
#[test]
#[ignore = "measures, and takes a minute"]
fn memory_of_idle_sessions() {
    const SESSIONS: u64 = 10_000;
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = Stage::with(nginx(SUITES[0]));
    stage.serve("file", &files::pattern_bytes(1000, 1));
    let mmtls = stage.mmtls(&patient());
    let h2load = |arguments: &[&str]| {
        let mut command = mmtls.sharing(&stage.bed, false, &[], "h2load");
        command.args(["--h1", "-t1"]).args(arguments);
        command.arg(format!("https://{}/file", Family::V4.server()));
        command
    };
    // What sessions share is there then.
    stage.run("h2load", h2load(&["-c", "200", "-n", "2000"]));
    let before = mmtls.process.resident_bytes();
    // Each asks once, and again after a long time.
    let (sessions, requests) = (SESSIONS.to_string(), (2 * SESSIONS).to_string());
    let h2load = h2load(&["-r", "500", "--rps", "0.02", "-c", &sessions, "-n", &requests]);
    let mut h2load = stage.bed.background("h2load", h2load).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(45));
    let idle = mmtls.process.resident_bytes();
    h2load.signal("TERM");
    let _ = h2load.wait(std::time::Duration::from_secs(20));
    let report = mmtls.stop().unwrap();
    eprintln!("{:#?}", report.summary);
    assert!(report.count("HTTP requests") >= SESSIONS, "{:#?}", report.summary);
    let each = (idle - before) / SESSIONS;
    eprintln!("{each} bytes for each of {SESSIONS} idle sessions");
    assert!(each < 6000, "{each}");
}
