//! A forbidden text does not reach the client in gzip, in HTTP/2 or in both, and ordinary sessions
//! of browsers' protocols raise nothing.

use std::time::Duration;

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, can_run, find, patient, sessions, url,
};
use aws_lc_rs::digest;
use mmtls_testkit::{MmtlsOptions, NginxOptions};

const PATTERN: &[u8] = b"forbidden-fruit";

/// Text that gzip makes smaller, over several records also then.
fn content(bad: bool) -> Vec<u8> {
    let mut state = 1u32;
    let mut text: Vec<u8> = (0..400_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"etaoin shrdlu\n\n\n"[(state >> 28) as usize]
        })
        .collect();
    if bad {
        text[300_000..300_000 + PATTERN.len()].copy_from_slice(PATTERN);
    }
    text
}

#[test]
fn forbidden_text_is_stopped_in_http2_and_in_gzip() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let extra = "gzip on; gzip_min_length 1; gzip_types *;".to_owned();
    let stage = Stage::with(NginxOptions { http2: true, extra, ..NginxOptions::default() });
    let file = stage.bed.directory().join("patterns.txt");
    std::fs::write(&file, b"forbidden-fruit\n").unwrap();
    let mut options = MmtlsOptions { patterns: Some((file, "reset".to_owned())), ..patient() };
    let config = options.config.get_or_insert_default();
    config.push_str("[log]\nhost = \"sensor\"\nfileinfo = true\n");
    stage.serve("clean.txt", &content(false));
    let clean = digest::digest(&digest::SHA256, &content(false));
    stage.serve("bad.txt", &content(true));
    let cases: [(&[&str], &str, bool); 4] = [
        (&["--http1.1"], "http", false),
        (&["--http1.1", "--compressed"], "http", true),
        (&["--http2"], "http2", false),
        (&["--http2", "--compressed"], "http2", true),
    ];
    for (arguments, app_proto, coded) in cases {
        let mmtls = stage.mmtls(&options);
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
        curl.args(arguments).args(["-w", "%{stderr}size=%{size_download}\n", &url("clean.txt")]);
        let page = stage.run("curl", curl);
        assert!(page.stdout == content(false), "{arguments:?}: {}", page.stderr);
        assert_eq!(!page.stderr.contains("size=400000"), coded, "{}", page.stderr);
        let report = mmtls.stop().unwrap();
        assert_all_decrypted(&report, 1);
        assert!(report.events("anomaly").is_empty(), "{:?}", report.events("anomaly"));
        assert_eq!(sessions(&report)[0]["app_proto"], app_proto);
        let http = report.events("http");
        assert_eq!(http.len(), 1);
        let http = &http[0]["http"];
        assert_eq!((&http["url"], &http["status"]), (&"/clean.txt".into(), &200.into()), "{http}");
        assert_eq!(http["complete"], true, "{http}");
        let files = report.events("fileinfo");
        assert_eq!(files.len(), 1);
        let file = &files[0]["fileinfo"];
        assert_eq!((&file["filename"], &file["state"]), (&"/clean.txt".into(), &"CLOSED".into()));
        assert_eq!(file["sha256"], base16ct::lower::encode_string(clean.as_ref()), "{file}");
        assert!(report.eve.iter().all(|record| record["host"] == "sensor"));
        if app_proto == "http2" {
            assert_eq!((&http["version"], &http["http2"]["stream_id"]), (&"2".into(), &1.into()));
        }

        let mmtls = stage.mmtls(&options);
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
        curl.args(arguments).arg(url("bad.txt"));
        let page = stage.run("curl", curl);
        assert!(!page.status.success(), "{arguments:?}");
        assert!(find(&page.stdout, PATTERN).is_none(), "{arguments:?}");
        assert!(content(true).starts_with(&page.stdout), "{arguments:?}: what came is right");
        let report = mmtls.stop().unwrap();
        assert_eq!(
            (report.count("alerts"), report.count("resets")),
            (1, 1),
            "{:?}",
            report.summary
        );
        let alert = report.events("alert")[0];
        assert_eq!(alert["app_proto"], app_proto, "{alert}");
        assert_eq!(alert["alert"]["offset"], 300_000 + PATTERN.len(), "{alert}");
        assert_eq!(alert["http"]["url"], "/bad.txt", "{alert}");
    }
}

#[test]
fn what_is_not_inspected_meets_its_policy() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let extra = "add_header Content-Encoding x-nobody-knows;".to_owned();
    let stage = Stage::with(NginxOptions { extra, ..NginxOptions::default() });
    stage.serve("coded.txt", &content(false));
    for (setting, cause, policy) in [
        ("", "unknown_coding", "forward"),
        ("uninspected.unknown_coding = \"reset\"\n", "unknown_coding", "reset"),
        ("limit_bytes = 1000\n", "body_limit", "forward"),
        ("limit_bytes = 1000\nlimit_trusts_padding = true\n", "body_limit", "forward"),
        ("limit_bytes = 1000\nuninspected.body_limit = \"reset\"\n", "body_limit", "reset"),
    ] {
        let config = Some(format!("[inspect]\n{setting}"));
        let mmtls = stage.mmtls(&MmtlsOptions { config, ..patient() });
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
        let page = stage.run("curl", {
            curl.arg(url("coded.txt"));
            curl
        });
        assert_eq!(page.status.success(), policy == "forward", "{setting}: {}", page.stderr);
        // What was found in a record is found before it goes on.
        let delivered = if policy == "forward" { content(false).len() } else { 0 };
        assert!(page.stdout.len() <= delivered, "{setting}: {}", page.stdout.len());
        let report = mmtls.stop().unwrap();
        assert_eq!(report.count("resets"), u64::from(policy == "reset"), "{setting}");
        assert_eq!(report.count(&format!("uninspected {cause}")), 1, "{:?}", report.summary);
        // In TLS 1.3 the rest of a body is only passed over where padding is trusted.
        let opened = report.count("records opened");
        let passes_over = setting.contains("limit_trusts_padding");
        assert!(policy == "reset" || (opened < 10) == passes_over, "{setting}: {opened} opened");
        let anomalies = report.events("anomaly");
        let named = |name: &str| anomalies.iter().any(|it| it["anomaly"]["event"] == name);
        assert!(named("http_content_coding_unknown"), "{anomalies:?}");
        assert_eq!(named("body_limit"), cause == "body_limit" && policy == "reset", "{setting}");
        let drops: Vec<_> = report.events("drop").iter().map(|it| it["drop"].clone()).collect();
        let expected = serde_json::json!({"reason": "applayer error", "cause": cause});
        assert_eq!(drops, if policy == "reset" { vec![expected] } else { Vec::new() }, "{setting}");
    }
}

/// A download that takes long is seen when it begins.
#[test]
fn a_session_is_reported_when_its_handshake_is_through_and_when_it_ends() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    // Much more than the client's kernel takes for it at once: 6 MB, where nobody has changed that.
    stage.serve("large", &vec![7; 24 << 20]);
    let mmtls = stage.mmtls(&patient());
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.args(["--limit-rate", "6M", "-o", "/dev/null", &url("large")]);
    let mut curl = stage.bed.background("curl", curl).unwrap();
    let of_type = |name: &'static str| {
        move |all: &[serde_json::Value]| all.iter().any(|it| it["event_type"] == name)
    };
    let begun = mmtls.wait_for_eve("the handshake", Duration::from_secs(10), of_type("tls"));
    let begun = begun.unwrap();
    assert!(!of_type("mmtls")(&begun) && !of_type("http")(&begun), "{begun:?}");
    assert!(curl.wait(LIMIT).unwrap().success(), "{}", curl.stderr_text());
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    assert_eq!(sessions(&report)[0]["end_reason"], "closed");
    assert_eq!(report.events("tls")[0]["tls"]["version"], "TLS 1.3");
}
