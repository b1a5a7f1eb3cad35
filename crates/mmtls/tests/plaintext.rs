//! TCP without TLS between real programs: rules stop what they drop in HTTP/1.1 and HTTP/2, TLS behind STARTTLS
//! is a session as before, and nothing of it is looked at where nobody asks for that.

use std::process::Command;
use std::time::Duration;

use crate::common::{Family, Stage, can_run, patient, read_eve, url};
use mmtls_testkit::wire::{self, Segment};
use mmtls_testkit::{Capture, Finished, Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, address};
use serde_json::Value;

const FORBIDDEN: &str = "forbidden-content-of-this-test";

/// nginx that also speaks HTTP/1.1 on port 80 and HTTP/2 on 81, both without TLS.
fn stage() -> Stage {
    let listen = |family: &str| format!("listen {family}80;\nlisten {family}81 http2;\n");
    let extra = listen("") + "gzip on;\ngzip_min_length 1;\ngzip_types *;\n";
    let stage = Stage::with(NginxOptions { extra, ..NginxOptions::default() });
    let page = format!("{}{FORBIDDEN}{}", "before ".repeat(9_000), " behind".repeat(9_000));
    stage.serve("forbidden", page.as_bytes());
    stage.serve("allowed", page.replace(FORBIDDEN, "").as_bytes());
    stage
}

fn start(stage: &Stage, action: &str, config: &str) -> Mmtls {
    let rule = |protocol: &str, buffer: &str, sid: u32| {
        format!(
            "{action} {protocol} any any -> any any (msg:\"test\"; flow:to_client; {buffer}\
             content:\"{FORBIDDEN}\"; sid:{sid}; rev:1;)\n"
        )
    };
    let path = stage.bed.directory().join("plain.rules");
    std::fs::write(&path, rule("http", "file.data; ", 1)).unwrap();
    let arguments = vec!["-S".to_owned(), path.to_str().unwrap().to_owned()];
    let patient = patient();
    let config = Some(patient.config.clone().unwrap_or_default() + config);
    stage.mmtls(&MmtlsOptions { arguments, config, ..patient })
}

/// Asks without TLS.
fn fetch(stage: &Stage, version: &str, name: &str, more: &[&str]) -> Finished {
    let mut curl: Command = stage.plain_curl(Family::V4);
    let port = if version == "--http1.1" { 80 } else { 81 };
    curl.arg(version).args(more);
    curl.arg(format!("http://{}:{port}/{name}", address::SERVER_V4));
    stage.run("curl", curl)
}

const VERSIONS: [(&str, &str); 2] = [("--http1.1", "http"), ("--http2-prior-knowledge", "http2")];

fn of_kind<'a>(report: &'a MmtlsReport, kind: &str, app_proto: &str) -> Vec<&'a Value> {
    report.events(kind).into_iter().filter(|it| it["app_proto"] == app_proto).collect()
}

#[test]
fn drops_act_on_connections_without_tls() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let mmtls = start(&stage, "drop", "");
    for (version, app_proto) in VERSIONS {
        for more in [&[][..], &["--compressed"]] {
            let page = fetch(&stage, version, "allowed", more);
            assert!(page.status.success(), "{version} {more:?}: {}", page.stderr);
            assert!(page.text().contains("behind"));
            let page = fetch(&stage, version, "forbidden", more);
            assert!(!page.status.success(), "{version} {more:?}");
            assert!(!page.text().contains(FORBIDDEN), "{version} {more:?}");
        }
        let is_there = |all: &[Value]| {
            let drops = all.iter().filter(|it| it["event_type"] == "drop").count();
            drops == if app_proto == "http" { 2 } else { 4 }
        };
        mmtls.wait_for_eve("the drops", Duration::from_secs(5), is_there).unwrap();
    }
    // Beside TLS, of which nothing changes.
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("allowed"));
    assert!(stage.run("curl", curl).status.success());
    let report = mmtls.stop().unwrap();
    for (_, app_proto) in VERSIONS {
        let alerts = of_kind(&report, "alert", app_proto);
        assert_eq!(alerts.len(), 2, "{app_proto}: {alerts:?}");
        assert!(alerts.iter().all(|it| it["alert"]["action"] == "blocked"));
        assert!(alerts.iter().all(|it| it["http"]["url"] == "/forbidden"));
        let flows = of_kind(&report, "flow", app_proto);
        let dropped = flows.iter().filter(|it| it["flow"]["action"] == "drop").count();
        assert_eq!((flows.len(), dropped), (4, 2), "{app_proto}: {flows:?}");
    }
    assert_eq!(report.count("sessions in the clear"), 8, "{:#?}", report.summary);
    assert_eq!((report.count("resets"), report.count("decrypted")), (4, 1));
}

#[test]
fn nothing_is_looked_at_where_nobody_asks_for_it() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    // The control: the same rule and traffic.
    let mmtls = start(&stage, "drop", "[inspect]\nplaintext = false\n");
    for (version, _) in VERSIONS {
        let page = fetch(&stage, version, "forbidden", &[]);
        assert!(page.text().contains(FORBIDDEN), "{version}: {}", page.stderr);
    }
    let report = mmtls.stop().unwrap();
    assert_eq!(report.events("alert"), Vec::<&Value>::new());
    assert!(of_kind(&report, "flow", "http").is_empty());
}

#[test]
fn requests_do_not_reach_the_server() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    let path = stage.bed.directory().join("requests.rules");
    let rule = "reject http any any -> any any (http.uri; content:\"/forbidden\"; sid:2;)\n";
    std::fs::write(&path, rule).unwrap();
    let arguments = vec!["-S".to_owned(), path.to_str().unwrap().to_owned()];
    let capture = stage.bed.directory().join("server.pcap");
    let capture =
        Capture::start(&stage.bed, &stage.bed.middlebox, "right", &capture, "tcp port 80").unwrap();
    let mmtls = stage.mmtls(&MmtlsOptions { arguments, ..patient() });
    assert!(fetch(&stage, "--http1.1", "allowed", &[]).status.success());
    for (version, _) in VERSIONS {
        assert!(!fetch(&stage, version, "forbidden", &[]).status.success(), "{version}");
    }
    let report = mmtls.stop().unwrap();
    assert_eq!(report.events("alert").len(), 2);
    let path = capture.stop().unwrap();
    let frames = wire::frames(&path);
    let segments: Vec<_> = frames.iter().filter_map(|it| Segment::of(&it.bytes)).collect();
    let asks = |what: &[u8]| {
        segments.iter().filter(|it| it.payload.starts_with(&[b"GET /", what].concat())).count()
    };
    assert_eq!((asks(b"allowed"), asks(b"forbidden")), (1, 0));
}

#[test]
fn captures_have_them_too() {
    if !can_run(&["nginx", "curl", "tcpdump"]) {
        return;
    }
    let stage = stage();
    let mmtls = start(&stage, "alert", "[inspect]\nplaintext = false\n");
    let path = stage.bed.directory().join("plain.pcap");
    let capture = Capture::start(&stage.bed, &stage.bed.middlebox, "right", &path, "tcp").unwrap();
    for (version, _) in VERSIONS {
        assert!(fetch(&stage, version, "allowed", &[]).status.success(), "{version}");
    }
    let capture = capture.stop().unwrap();
    mmtls.stop().unwrap();
    let log = stage.bed.directory().join("log");
    for (option, count) in [("--plaintext", 2), ("--plaintext=false", 0)] {
        let mut read = Command::new(crate::common::mmtls_program());
        read.arg("read").arg("-r").arg(&capture).arg("-l").arg(&log).arg(option);
        let done = read.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let eve = read_eve(&log);
        let http = eve.iter().filter(|it| it["event_type"] == "http").count();
        assert_eq!(http, count, "{option}");
        std::fs::remove_file(log.join("eve.json")).unwrap();
    }
}
