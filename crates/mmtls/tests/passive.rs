//! A passive monitor sees and decrypts what an inline one does, while the kernel forwards: nothing
//! depends on it, and it sends nothing but the resets that it is asked for.

use std::time::Duration;

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, assert_decrypted_but_aborted, can_run, options,
    patient, stat, until, url,
};
use mmtls_testkit::wire::{self, BothSides, RST, Segment};
use mmtls_testkit::{Middle, Mmtls, MmtlsOptions, NginxOptions, files};

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
        assert!(report.events("flow").iter().all(|it| it["in_iface"] == interfaces));
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
        // It has copies, and may be behind.
        let log = mmtls.directory().join("eve.json");
        until("all are read", || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.matches(r#""event_type":"http""#).count() >= 4000
        });
        let report = mmtls.stop().unwrap();
        assert_decrypted_but_aborted(&report, 200);
        for name in
            ["left_kernel_drops", "right_kernel_drops", "left_send_errors", "right_send_errors"]
        {
            assert_eq!(stat(&report, "engine", name), 0, "{name}");
        }
        let told = format!("{interfaces}, {workers} workers: {:#?}", report.summary);
        assert_eq!(report.events("http").len(), 4000, "{told}");
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

/// What has been delivered cannot be taken back, but the rest of a download does not come.
#[test]
fn rejects_reach_both_ends_where_there_is_an_interface_for_them() {
    if !can_run(&["nginx", "curl", "tcpdump"]) {
        return;
    }
    let stage = stage();
    let mut page = vec![b'x'; 24 << 20];
    page[5000..5013].copy_from_slice(b"reject-me-now");
    stage.serve("bad", &page);
    page[5000] = b'X';
    stage.serve("good", &page);
    let rules = |action: &str| {
        let path = stage.bed.directory().join(format!("{action}.rules"));
        let rule = format!(
            "{action} http any any -> any any (msg:\"test\"; file.data; content:\"reject-me-now\"; sid:7;)\n"
        );
        std::fs::write(&path, rule).unwrap();
        path
    };
    let options = |interfaces: &str, action: &str, reset: &str| {
        let options = passive(interfaces);
        let config = options.config.unwrap_or_default() + reset;
        let arguments = vec!["-S".to_owned(), rules(action).display().to_string()];
        MmtlsOptions {
            passive: Some(interfaces.to_owned()),
            config: Some(config),
            arguments,
            ..patient()
        }
    };
    let sends = "[passive]\nreset_interface = \"br0\"\n";
    for interfaces in WATCHED {
        for (action, reset) in [("reject", sends), ("alert", "")] {
            let sides = BothSides::start(&stage.bed, "tcp port 443");
            let mmtls = stage.mmtls(&options(interfaces, action, reset));
            let fetch = |name: &str| {
                let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
                curl.args(["--limit-rate", "12M", "-o", "/dev/null", &url(name)]);
                curl.args(["-w", "%{local_port} %{size_download}"]);
                let done = stage.run("curl", curl);
                let text = done.text();
                let (port, size) = text.split_once(' ').unwrap();
                (port.parse::<u16>().unwrap(), size.parse::<usize>().unwrap(), done.stderr)
            };
            let (_, size, said) = fetch("good");
            assert_eq!(size, page.len(), "{interfaces}: {said}");
            let (port, size, said) = fetch("bad");
            let report = mmtls.stop().unwrap();
            let (left, right) = sides.stop();
            let alerts = report.events("alert");
            assert_eq!(alerts.len(), 1, "{interfaces}");
            // It had been delivered.
            assert_eq!(alerts[0]["alert"]["action"], "allowed");
            assert!(report.events("drop").is_empty());
            let heard = [left, right].map(|capture| {
                let frames = wire::frames(&capture);
                let segments = frames.iter().filter_map(|frame| Segment::of(&frame.bytes));
                let mut rsts = segments.filter(|segment| segment.flags & RST != 0);
                rsts.any(|it| [it.source.port(), it.destination.port()].contains(&port))
            });
            if action == "reject" {
                assert!(said.contains("reset by peer"), "{interfaces}: {said}");
                assert!(size < page.len(), "{interfaces}");
                assert_eq!(heard, [true; 2], "{interfaces}: both ends heard of it");
                assert_eq!(report.count("resets"), 1, "{:#?}", report.summary);
            } else {
                assert_eq!((size, heard), (page.len(), [false; 2]), "{interfaces}: the control");
            }
        }
    }
    for (action, reset, needs) in [
        ("drop", sends, "drop needs --inline"),
        ("reject", "", "reject needs --inline, or passive.reset_interface"),
    ] {
        let error = Mmtls::start(&stage.bed, &options("br0", action, reset)).err().unwrap();
        assert!(error.to_string().contains(needs), "{error}");
    }
}

/// ab ends connections with a RST, often before their keys have come.
#[test]
fn resets_do_not_hide_what_waits_for_keys() {
    if !can_run(&["nginx", "ab"]) {
        return;
    }
    let stage = Stage::around(
        Middle::KernelBridge,
        NginxOptions { resumption: false, ..NginxOptions::default() },
    );
    stage.serve("small", &[b'x'; 1000]);
    let mmtls = stage.mmtls(&passive("left:right"));
    let mut ab = mmtls.sharing(&stage.bed, false, &[], "ab");
    ab.args(["-q", "-n", "3000", "-c", "50", &format!("https://{}/small", Family::V4.server())]);
    let done = stage.run("ab", ab);
    assert!(done.text().contains("Failed requests:        0"), "{}{}", done.text(), done.stderr);
    let report = mmtls.stop().unwrap();
    assert_decrypted_but_aborted(&report, 3000);
    assert_eq!(report.events("http").len(), 3000, "{:#?}", report.summary);
}
