//! Rules against the HTTP/2 clients that people have: Chromium, nghttp and h2load, with nginx as server.

use std::process::Command;

use crate::common::{Stage, can_run, patient, stat};
use mmtls_testkit::{MmtlsOptions, MmtlsReport, NginxOptions, address, require_browser};

/// What rules look for. In two halves, so that no scanner takes this file for another.
const EICAR: [&str; 2] = ["EICAR-STANDARD-", "ANTIVIRUS-TEST-FILE"];

fn stage() -> Stage {
    let extra = "gzip on;\ngzip_min_length 1;\ngzip_types *;\n".to_owned();
    Stage::with(NginxOptions { http2: true, extra, ..NginxOptions::default() })
}

/// A monitor with one rule on bodies.
fn looking(stage: &Stage, action: &str) -> MmtlsOptions {
    let path = stage.bed.directory().join("browsers.rules");
    let rule = format!(
        "{action} http2 any any -> any any (msg:\"test\"; flow:to_client; file.data; content:\"{}\"; sid:1;)\n",
        EICAR.concat()
    );
    std::fs::write(&path, rule).unwrap();
    let arguments = vec!["-S".to_owned(), path.display().to_string()];
    MmtlsOptions { arguments, ..patient() }
}

/// Alerts, all of them on HTTP/2 and with the same action.
#[track_caller]
fn alerts(report: &MmtlsReport, action: &str, url: &str) -> usize {
    let alerts = report.events("alert");
    for alert in &alerts {
        assert_eq!(alert["alert"]["action"], action, "{alert}");
        assert_eq!(alert["app_proto"], "http2", "{alert}");
        assert_eq!(alert["http"]["url"], url, "{alert}");
    }
    alerts.len()
}

/// Ends Chromium when it has a page, whose DOM it shows.
pub const ONE_PAGE: [&str; 2] = ["--timeout=8000", "--dump-dom"];

/// What Chromium makes of a page, without the preload library.
fn visit(stage: &Stage, keylog: &std::path::Path, name: &str) -> String {
    let mut chromium = mmtls_testkit::browsers::chromium(&stage.bed, keylog, name).unwrap();
    chromium.args(ONE_PAGE).arg(format!("https://{}/{name}", address::SERVER_NAME));
    stage.run("chromium", chromium).text()
}

#[test]
fn what_is_dropped_does_not_reach_a_page_of_chromium() {
    if !can_run(&["nginx"]) || !require_browser("chromium") {
        return;
    }
    let stage = stage();
    let page = |script: &str| {
        format!(
            "<!DOCTYPE html><html><body><p>the page</p><script src=\"/{script}\"></script></body></html>"
        )
    };
    stage.serve("bad.html", page("bad.js").as_bytes());
    stage.serve("good.html", page("good.js").as_bytes());
    let script = |text: &str| format!("document.body.append({text:?});\n");
    stage.serve("bad.js", script(&EICAR.concat()).as_bytes());
    stage.serve("good.js", script("all is well").as_bytes());
    for action in ["drop", "alert"] {
        let keylog = stage.bed.directory().join(format!("{action}.keys"));
        let options = MmtlsOptions { keylog: Some(keylog.clone()), ..looking(&stage, action) };
        let mmtls = stage.mmtls(&options);
        let good = visit(&stage, &keylog, "good.html");
        assert!(good.contains("the page") && good.contains("all is well"), "{action}: {good}");
        let bad = visit(&stage, &keylog, "bad.html");
        let report = mmtls.stop().unwrap();
        assert_eq!(report.count("missing key"), 0, "{:#?}", report.summary);
        assert!(report.count("decrypted") >= 2, "{:#?}", report.summary);
        if action == "drop" {
            assert!(!bad.contains(&EICAR.concat()), "{bad}");
            // The browser may have tried again.
            assert!(alerts(&report, "blocked", "/bad.js") >= 1, "{:#?}", report.summary);
        } else {
            assert!(bad.contains(&EICAR.concat()), "the control: {bad}");
            assert_eq!(alerts(&report, "allowed", "/bad.js"), 1, "{:#?}", report.summary);
            assert_eq!(report.count("resets"), 0, "{:#?}", report.summary);
        }
    }
}

/// nghttp's, that shares its keys.
fn client(mmtls: &mmtls_testkit::Mmtls, stage: &Stage, program: &str, args: &[&str]) -> Command {
    let mut command = mmtls.sharing(&stage.bed, false, &[], program);
    command.args(args);
    command
}

fn address_of(name: &str) -> String {
    format!("https://{}/{name}", address::SERVER_V4)
}

#[test]
fn what_is_dropped_does_not_reach_nghttp() {
    if !can_run(&["nginx", "nghttp"]) {
        return;
    }
    let stage = stage();
    stage.serve("bad", format!("before {} behind\n", EICAR.concat()).as_bytes());
    stage.serve("good", b"all is well\n");
    for action in ["drop", "alert"] {
        let mmtls = stage.mmtls(&looking(&stage, action));
        let get = |name: &str| {
            // nghttp asks for gzip, and shows what that says.
            stage.run("nghttp", client(&mmtls, &stage, "nghttp", &[&address_of(name)])).text()
        };
        assert_eq!(get("good"), "all is well\n");
        let bad = get("bad");
        let report = mmtls.stop().unwrap();
        if action == "drop" {
            assert!(!bad.contains(EICAR[1]), "{bad}");
            assert_eq!(alerts(&report, "blocked", "/bad"), 1);
            assert_eq!(report.count("resets"), 1, "{:#?}", report.summary);
        } else {
            assert!(bad.contains(&EICAR.concat()), "the control: {bad}");
            assert_eq!(alerts(&report, "allowed", "/bad"), 1);
        }
    }
}

#[test]
fn rules_stand_64_connections_with_32_streams() {
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = stage();
    stage.serve("bad", EICAR.concat().repeat(10).as_bytes());
    stage.serve("good", &b"all is well\n".repeat(200));
    let mmtls = stage.mmtls(&looking(&stage, "drop"));
    let load = |name: &str, requests: u64| {
        let (requests, url) = (requests.to_string(), address_of(name));
        let args = ["-c", "64", "-m", "32", "-n", &requests, &url];
        let done = stage.run("h2load", client(&mmtls, &stage, "h2load", &args));
        let text = done.text();
        let line = text.lines().find_map(|line| line.strip_prefix("requests: "));
        let line = line.unwrap_or_else(|| panic!("{text}")).to_owned();
        let succeeded = line.split(", ").find_map(|it| it.strip_suffix(" succeeded"));
        succeeded.unwrap_or_else(|| panic!("{line}")).parse::<u64>().unwrap()
    };
    assert_eq!(load("good", 20_000), 20_000);
    assert_eq!(load("bad", 64 * 32), 0, "no body that is forbidden arrives");
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("missing key") + report.count("failed"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("decrypted"), 128, "{:#?}", report.summary);
    assert_eq!(report.count("resets"), 64, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "records_failed"), 0);
    let good = report.events("http").iter().filter(|it| it["http"]["url"] == "/good").count();
    assert_eq!(good, 20_000);
    let blocked = report.events("alert").iter().all(|it| it["alert"]["action"] == "blocked");
    assert!(blocked && report.events("alert").len() >= 64);
}
