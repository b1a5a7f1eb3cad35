//! A passive monitor sees and decrypts what an inline one does, while the kernel forwards: nothing
//! depends on it, and it sends nothing.

use std::time::Duration;

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, assert_decrypted_but_aborted, can_run, options,
    patient, stat, url,
};
use mmtls_testkit::{Middle, MmtlsOptions, NginxOptions, files};

/// Both ports of the kernel's bridge, or the bridge itself, which sees everything as one interface,
/// as a switch's mirror port does.
const WATCHED: [&str; 2] = ["left:right", "br0"];

fn passive(interfaces: &str) -> MmtlsOptions {
    MmtlsOptions { passive: Some(interfaces.to_owned()), ..patient() }
}

fn stage() -> Stage {
    Stage::around(Middle::KernelBridge, NginxOptions::default())
}

#[test]
fn accepts_what_a_bridge_of_the_kernel_forwards() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    files::pattern(&stage.nginx.root().join("large"), 5 << 20, 1).unwrap();
    for interfaces in WATCHED {
        let mmtls = stage.mmtls(&MmtlsOptions { streams: true, ..passive(interfaces) });
        let families = Family::all(&stage.bed);
        for family in &families {
            let mut curl = stage.sharing_curl(&mmtls, *family, &[]);
            curl.args(["-o", "/dev/null", "-w", "%{size_download}", &url("large")]);
            let seen = stage.run("curl", curl);
            assert_eq!(seen.text(), (5 << 20).to_string(), "{interfaces}: {}", seen.stderr);
        }
        let streams = mmtls.directory().join("streams");
        let report = mmtls.stop().unwrap();
        assert_all_decrypted(&report, families.len() as u64);
        assert_eq!(report.events("http").len(), families.len(), "{interfaces}");
        assert_eq!(report.events("anomaly").len(), 0, "{interfaces}");
        assert!(
            report
                .events("flow")
                .iter()
                .all(|it| Some(it["in_iface"].as_str().unwrap()) == interfaces.split(':').next())
        );
        for entry in std::fs::read_dir(streams).unwrap() {
            let path = entry.unwrap().path();
            let len = path.metadata().unwrap().len();
            if path.extension().is_some_and(|it| it == "server") {
                assert!(len > 5 << 20, "{interfaces}: {} of {len}", path.display());
            }
        }
    }
}

/// Many at a time: what comes in by two interfaces must be seen in the order in which it came.
#[test]
fn accepts_many_connections_at_a_time() {
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = stage();
    stage.serve("small", &[b'x'; 1000]);
    for (interfaces, workers) in [("left:right", 1), ("left:right", 2), ("br0", 2)] {
        let mut options = passive(interfaces);
        let limits = options.config.unwrap_or_default();
        options.config = Some(format!("{limits}[workers]\ncount = {workers}\n"));
        let mmtls = stage.mmtls(&options);
        let mut load = mmtls.sharing(&stage.bed, false, &[], "h2load");
        load.args(["--h1", "-t", "1", "-c", "200", "-n", "4000"]);
        load.arg(format!("https://{}/small", Family::V4.server()));
        let seen = stage.run("h2load", load);
        assert!(seen.text().contains("4000 succeeded"), "{}", seen.text());
        let report = mmtls.stop().unwrap();
        assert_decrypted_but_aborted(&report, 200);
        assert_eq!(report.events("http").len(), 4000, "{interfaces}, {workers} workers");
        for name in ["left_kernel_drops", "left_send_errors", "right_send_errors"] {
            assert_eq!(stat(&report, "engine", name), 0, "{name}");
        }
    }
}

/// Its end, however sudden, is nobody's trouble.
#[test]
fn accepts_going_on_without_it() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    files::pattern(&stage.nginx.root().join("large"), 8 << 20, 1).unwrap();
    let mut mmtls = stage.mmtls(&passive("left:right"));
    let mut curl = stage.plain_curl(Family::V4);
    curl.args(["--limit-rate", "4M", "-o", "/dev/null", "-w", "%{size_download}", &url("large")]);
    let mut curl = stage.bed.background("curl", curl).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    mmtls.process.signal("KILL");
    let status = curl.wait(LIMIT).unwrap();
    assert!(status.success(), "{}", curl.stderr_text());
    assert_eq!(curl.stdout_text().trim(), (8 << 20).to_string());
}

/// Keys that never come: the session passes unseen, and is counted.
#[test]
fn accepts_sessions_without_keys() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = stage();
    stage.serve("file", b"content");
    let mmtls = stage.mmtls(&MmtlsOptions { passive: Some("br0".to_owned()), ..options() });
    let mut curl = stage.plain_curl(Family::V4);
    curl.arg(url("file"));
    let seen = stage.run("curl", curl);
    assert_eq!(seen.text(), "content", "{}", seen.stderr);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("TLS sessions"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("resets"), 0, "{:#?}", report.summary);
    assert!(report.success, "{}", report.stderr);
}
