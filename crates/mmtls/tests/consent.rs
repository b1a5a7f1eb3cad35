//! What endpoints refuse to share, live: a direction, a session.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::{Family, Stage, can_run, find, mmtls_program, patient, sessions, stat, url};
use crate::keys::{resetting, secrets_of, stage, with_pattern};
use mmtls_testkit::{MmtlsOptions, NginxOptions, address, files};

/// "Inspect my own data": what the endpoint refuses passes unread, and the other direction is inspected to the end.
#[test]
fn a_refused_direction_passes_unread_and_the_other_is_inspected() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::with(NginxOptions { record_bytes: 4096, ..NginxOptions::default() });
    let clean = files::pattern_bytes(500_000, 5);
    stage.serve("clean", &clean);
    stage.serve("file", &with_pattern(500_000, 400_000));
    for (refused, version) in
        [("toserver", "1.3"), ("toserver", "1.2"), ("toclient", "1.3"), ("toclient", "1.2")]
    {
        let mmtls = stage.mmtls(&resetting(&stage));
        let fetch = |name: &str| {
            let mut curl = mmtls.sharing_with(&stage.bed, false, &["--refuse", refused], "curl");
            curl.arg("--cacert").arg(&stage.bed.pki().ca).args(stage.bed.resolve_args());
            curl.args(["-sS", "--http1.1", "--max-time", "30", "--tls-max", version, &url(name)]);
            stage.run("curl", curl)
        };
        let page = fetch("clean");
        assert!(page.stdout == clean, "{refused}, {version}: {}", page.stderr);
        let page = fetch("file");
        let reads_answers = refused == "toserver";
        assert_eq!(page.status.success(), !reads_answers, "{refused}, {version}: {}", page.stderr);
        let report = mmtls.stop().unwrap();
        let all = format!("{refused}, {version}: {:#?}", report.summary);
        assert_eq!(report.count("decrypted"), 2, "{all}");
        assert_eq!(report.count("alerts"), u64::from(reads_answers), "{all}");
        assert_eq!(stat(&report, "engine", "directions_refused"), 2, "{all}");
        assert!(stat(&report, "engine", "records_unread") >= 2, "{all}");
        for tls in sessions(&report) {
            assert_eq!(tls["refused_direction"], refused, "{tls}");
            let opened = |direction: &str| {
                tls["decrypted"][format!("records_{direction}")].as_u64().unwrap()
            };
            let other = if reads_answers { "toclient" } else { "toserver" };
            assert!(opened(refused) == 0 && opened(other) > 0, "{tls}");
        }
    }
}

/// What a process has in memory that it can write to, but for pages that it never touched: stacks and arenas reserve much.
fn memory_of(pid: u32) -> Vec<u8> {
    const PAGE: usize = 4096;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let pages = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, rest) = line.split_once('-').unwrap();
        let (to, _) = rest.split_once(' ').unwrap();
        let [from, to] = [from, to].map(|it| u64::from_str_radix(it, 16).unwrap() as usize);
        let mut states = vec![0; (to - from) / PAGE * 8];
        pages.read_exact_at(&mut states, (from / PAGE * 8) as u64).unwrap();
        for (at, state) in (from..to).step_by(PAGE).zip(states.chunks_exact(8)) {
            // Present, or in swap: bits 63 and 62 (Documentation/admin-guide/mm/pagemap.rst).
            if state[7] & 0xc0 == 0 {
                continue;
            }
            let start = all.len();
            all.resize(start + PAGE, 0);
            // What the system keeps to itself, a ring of packets for example, has no keys.
            if memory.read_exact_at(&mut all[start..], at as u64).is_err() {
                all.truncate(start);
            }
        }
    }
    all
}

/// Secrets and record keys of a session with an exempt name are nowhere but in the program.
#[test]
fn keys_of_exempt_sessions_are_in_no_memory() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let content = files::pattern_bytes(100_000, 5);
    stage.serve("file", &content);
    let mmtls = stage.mmtls(&patient());
    let directory = stage.bed.directory().join("agent");
    let agent = mmtls.agent(&stage.bed, false, &directory, None).unwrap();
    for (exempt, there) in [("server.test", false), ("other.test", true)] {
        let log = stage.bed.directory().join(exempt);
        let options = ["--exempt", exempt];
        let mut curl = mmtls.sharing_through(&stage.bed, &directory, &options, "curl");
        curl.env("SSLKEYLOGFILE", &log).arg("--cacert").arg(&stage.bed.pki().ca);
        curl.args(stage.bed.resolve_args()).args(["-sS", "--http1.1", &url("file")]);
        let page = stage.run("curl", curl);
        assert!(page.stdout == content, "{}", page.stderr);
        let secrets = secrets_of(&log);
        assert!(secrets.len() >= 10, "{} secrets", secrets.len());
        // The control, with keys that are shared: the agent keeps secrets for what comes behind a KeyUpdate, and the TLS
        // library of the key channel has the last messages in its buffer.
        for (process, pid) in [("agent", agent.pid()), ("monitor", mmtls.process.pid())] {
            let memory = memory_of(pid);
            let found = secrets.iter().filter(|it| find(&memory, it).is_some()).count();
            assert_eq!(found > 0, there, "{found} of {} in the {process}", secrets.len());
        }
    }
    drop(agent);
    let report = mmtls.stop().unwrap();
    assert_eq!(
        (report.count("exempt"), report.count("decrypted")),
        (1, 1),
        "{:#?}",
        report.summary
    );
}

/// What a client refuses beyond its limit meets the policy, and both sides are told why.
#[test]
fn too_many_refusals_meet_a_policy() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let content = files::pattern_bytes(100_000, 5);
    stage.serve("file", &content);
    for private in [false, true] {
        let names = if private { "[\"*.test\"]" } else { "[]" };
        let config =
            format!("[policies]\nprivate_names = {names}\n[limits]\nnull_keys_per_minute = 2\n");
        let mmtls = stage.mmtls(&MmtlsOptions { config: Some(config), ..resetting(&stage) });
        let directory = stage.bed.directory().join(format!("agent-{private}"));
        let agent = mmtls.agent(&stage.bed, false, &directory, None).unwrap();
        for number in 1..=3 {
            let options = ["--exempt", "server.test"];
            let mut curl = mmtls.sharing_through(&stage.bed, &directory, &options, "curl");
            curl.arg("--cacert").arg(&stage.bed.pki().ca).args(stage.bed.resolve_args());
            curl.args(["-sS", "--http1.1", "--max-time", "20", &url("file")]);
            let page = stage.run("curl", curl);
            let passes = private || number < 3;
            assert_eq!(page.stdout == content, passes, "{private} {number}: {}", page.stderr);
            assert_eq!(page.stdout.is_empty(), !passes, "{private} {number}");
        }
        let status = || {
            let mut status = stage.bed.client.command(mmtls_program());
            status.args(["agent", "status", "--directory"]).arg(&directory);
            stage.run("status", status).text()
        };
        let end = Instant::now() + Duration::from_secs(5);
        while !private && !status().contains("forbidden by policy") {
            assert!(Instant::now() < end, "{}", status());
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(agent);
        let report = mmtls.stop().unwrap();
        let too_many = u64::from(!private);
        assert_eq!(stat(&report, "engine", "too_many_null_keys"), too_many);
        let events = report.events("keys");
        assert_eq!(events.len() as u64, too_many, "{events:?}");
        for event in events {
            assert_eq!(event["keys"]["reason"], "too_many_null_keys", "{event}");
            assert_eq!(event["keys"]["sender"], address::CLIENT_V4, "{event}");
        }
    }
}

#[test]
fn exempt_names_pass_unread_with_keys_and_without() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let content = with_pattern(500_000, 5000);
    stage.serve("file", &content);
    let config = Some("[policies]\nexempt_names = [\"bank.example\", \"*.test\"]\n".to_owned());
    let mmtls = stage.mmtls(&MmtlsOptions { config, ..resetting(&stage) });
    let mut silent = stage.plain_curl(Family::V4);
    silent.arg(url("file"));
    let mut sharing = stage.sharing_curl(&mmtls, Family::V4, &[]);
    sharing.arg(url("file"));
    for curl in [silent, sharing] {
        let page = stage.run("curl", curl);
        assert!(page.stdout == content, "{}", page.stderr);
    }
    // The control: it says no name, and nobody shares keys.
    let mut nameless = stage.plain_curl(Family::V4);
    nameless.arg(format!("https://{}/file", address::SERVER_V4));
    let page = stage.run("curl", nameless);
    assert!(!page.status.success() && page.stdout.is_empty(), "{}", page.stderr);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("exempt"), 2, "{:#?}", report.summary);
    assert_eq!(report.count("decrypted") + report.count("alerts"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 1, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "exempt_names"), 2);
    assert_eq!(stat(&report, "engine", "keys_accepted"), 0);
    assert!(report.events("http").is_empty());
}
