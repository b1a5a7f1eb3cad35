//! What nobody reads is forwarded by the kernel: everything arrives once and in order, and the records say how much it was. What
//! comes behind that is read.

use mmtls_testkit::{MmtlsOptions, MmtlsReport, NginxOptions, address, files, skip_unless};

use crate::common::{Family, Stage, can_run, options, patient, shell, stat, url};

const BYTES: usize = 50 << 20;
const AT_A_TIME: usize = 3;

/// The testbed's interfaces are no cards.
const ALWAYS: &str = "[inline]\nkernel_forwarding = \"always\"\n";

/// A stage whose server has a large file, and its content.
fn stage() -> (Stage, Vec<u8>) {
    let stage = Stage::with(NginxOptions { resumption: false, ..NginxOptions::default() });
    let content = files::pattern_bytes(BYTES, 7);
    stage.serve("file", &content);
    (stage, content)
}

fn configured(options: MmtlsOptions, more: &str) -> MmtlsOptions {
    let config = format!("{}{more}", options.config.unwrap_or_default());
    MmtlsOptions { config: Some(config), ..options }
}

/// Bytes of frames that the kernel has forwarded by itself: from the server, and from the client.
fn by_kernel(report: &MmtlsReport) -> [u64; 2] {
    ["right", "left"].map(|it| stat(report, "engine", &format!("{it}_kernel_forwarded_bytes")))
}

/// Whether the kernel can forward here; a loud skip where this machine lacks what that needs, and nothing else.
fn kernel_can(report: &MmtlsReport) -> bool {
    let told = "are not left to the kernel: ";
    let Some((_, reason)) = report.stderr.split_once(told) else {
        return true;
    };
    let reason = reason.lines().next().unwrap_or_default();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut version = release.split(['.', '-']).map_while(|it| it.parse::<u32>().ok());
    let is_old = (version.next().unwrap_or(0), version.next().unwrap_or(0)) < (6, 6);
    let lacks = ["without clang", "PREEMPT_RT", "not permitted"];
    assert!(is_old || lacks.iter().any(|it| reason.contains(it)), "{reason}");
    skip_unless(
        "MMTLS_REQUIRE_KERNEL_FORWARDING",
        &format!("the kernel forwards nothing here: {reason}"),
    )
}

/// Segments that have come to a place behind ones that were still to come: lost on the way or overtaken.
fn out_of_order(stage: &Stage) -> u64 {
    let of = |place| {
        let text = shell(place, "nstat -asz TcpExtTCPOFOQueue | tail -1");
        text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    of(&stage.bed.client) + of(&stage.bed.server)
}

/// Downloads by curl at a time, which share no keys or refuse to, and what the monitor says of them.
fn downloads(
    stage: &Stage,
    family: Family,
    options: &MmtlsOptions,
    refuse: bool,
) -> (Vec<Vec<u8>>, MmtlsReport) {
    let mmtls = stage.mmtls(options);
    let pages = std::thread::scope(|scope| {
        let pages = [(); AT_A_TIME].map(|()| {
            scope.spawn(|| {
                let mut curl = match refuse {
                    true => stage.sharing_curl(&mmtls, family, &["server.test"]),
                    false => stage.plain_curl(family),
                };
                curl.arg(url("file"));
                let page = stage.run("curl", curl);
                assert!(page.status.success(), "{}", page.stderr);
                page.stdout
            })
        });
        pages.into_iter().map(|page| page.join().unwrap()).collect()
    });
    (pages, mmtls.stop().unwrap())
}

/// All but a session's beginning and end is the kernel's. It arrives once and in order, and the records are of all of it.
#[test]
fn sessions_that_refuse_to_share_are_left_to_the_kernel() {
    if !can_run(&["nginx", "curl", "nstat"]) {
        return;
    }
    let (stage, content) = stage();
    for family in Family::all(&stage.bed) {
        for (kernel, setting, workers) in
            [(true, "always", "1"), (true, "always", "2"), (false, "auto", "1")]
        {
            let config = format!("[inline]\nkernel_forwarding = {setting:?}\n");
            let mut options = configured(patient(), &config);
            options.arguments = ["--workers", workers].map(str::to_owned).to_vec();
            let before = out_of_order(&stage);
            let (pages, report) = downloads(&stage, family, &options, true);
            assert_eq!(out_of_order(&stage) - before, 0, "{family:?}");
            assert!(pages.iter().all(|page| *page == content));
            assert_eq!(report.count("exempt"), AT_A_TIME as u64, "{:#?}", report.summary);
            assert_eq!(stat(&report, "engine", "wrong_side"), 0, "what leaves does not come back");
            let [down, up] = by_kernel(&report);
            let whole = (AT_A_TIME * BYTES) as u64;
            if kernel && !kernel_can(&report) {
                return;
            }
            if kernel {
                assert!(down > whole / 10 * 9 && up > 0, "{down}, {up}\n{}", report.stderr);
            } else {
                assert_eq!([down, up], [0, 0], "the control");
                let told = "come from software, which may leave checksums to be finished";
                assert!(report.stderr.contains(told), "{}", report.stderr);
            }
            for flow in report.events("flow") {
                let flow = &flow["flow"];
                let bytes = flow["bytes_toclient"].as_u64().unwrap();
                assert!((BYTES as u64..BYTES as u64 / 100 * 102).contains(&bytes), "{flow}");
                assert_eq!(flow["state"], "bypassed", "{flow}");
                assert_eq!(flow["end_reason"], "closed", "{flow}");
            }
        }
    }
}

/// By an address nothing is looked at, by a server's port nothing but its beginning; without keys what the policy says.
#[test]
fn what_policies_leave_alone_is_left_to_the_kernel() {
    if !can_run(&["nginx", "curl", "nstat"]) {
        return;
    }
    let (stage, content) = stage();
    let rule = |rule: &str| format!("{ALWAYS}[policies]\nbypass = [{rule:?}]\n");
    let soon = format!("{ALWAYS}[limits]\nunshared_stall_timeout_milliseconds = 50\n");
    for (family, config, sessions) in [
        (Family::V4, rule(address::SERVER_V4), 0),
        (Family::V6, rule(address::SERVER_V6), 0),
        (Family::V4, rule(&format!("{}:443", address::SERVER_V4)), 0),
        (Family::V4, soon, AT_A_TIME as u64),
    ] {
        if !Family::all(&stage.bed).contains(&family) {
            continue;
        }
        let options = MmtlsOptions { missing_keys: "forward".to_owned(), ..options() };
        let before = out_of_order(&stage);
        let (pages, report) = downloads(&stage, family, &configured(options, &config), false);
        assert_eq!(out_of_order(&stage) - before, 0, "{config}");
        assert!(pages.iter().all(|page| *page == content));
        assert_eq!(report.count("TLS sessions"), sessions, "{:#?}", report.summary);
        if !kernel_can(&report) {
            return;
        }
        let [down, up] = by_kernel(&report);
        let whole = (AT_A_TIME * BYTES) as u64;
        assert!(down > whole / 10 * 9 && up > 0, "{config}: {down}, {up}\n{}", report.stderr);
    }
}

/// The kernel forwards what is behind the limit of inspection; each body's beginning is read, also the one that comes next on a
/// connection.
#[test]
fn what_is_behind_the_limit_of_inspection_is_left_to_the_kernel() {
    if !can_run(&["nginx", "curl", "nstat"]) {
        return;
    }
    let (stage, content) = stage();
    let limit = "[inspect]\nlimit_bytes = 65536\nlimit_trusts_padding = true\n";
    for (kernel, setting, version, workers) in [
        (true, "always", "1.3", "1"),
        (true, "always", "1.2", "1"),
        (true, "always", "1.3", "2"),
        (false, "never", "1.3", "1"),
    ] {
        let config = format!("{limit}[inline]\nkernel_forwarding = {setting:?}\n");
        let mut options = configured(patient(), &config);
        options.arguments = ["--workers", workers].map(str::to_owned).to_vec();
        let before = out_of_order(&stage);
        let mmtls = stage.mmtls(&options);
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
                    curl.args(["--tls-max", version]).args([url("file"), url("file")]);
                    let page = stage.run("curl", curl);
                    assert!(page.status.success(), "{}", page.stderr);
                    assert!(page.stdout == [&content[..], &content].concat());
                });
            }
        });
        let report = mmtls.stop().unwrap();
        assert_eq!(out_of_order(&stage) - before, 0, "{setting} {version} {workers}");
        assert_eq!(report.count("decrypted"), AT_A_TIME as u64, "{:#?}", report.summary);
        let responses = report.events("http");
        assert_eq!(responses.len(), 2 * AT_A_TIME, "{responses:?}");
        assert!(stat(&report, "engine", "records_paused") > 0);
        assert_eq!(stat(&report, "engine", "records_failed"), 0);
        let [down, up] = by_kernel(&report);
        let whole = (2 * AT_A_TIME * BYTES) as u64;
        if kernel && !kernel_can(&report) {
            return;
        }
        if kernel {
            assert!(down > whole / 10 * 7 && up > 0, "{down}, {up}\n{}", report.stderr);
        } else {
            assert_eq!([down, up], [0, 0], "the control");
        }
        for flow in report.events("flow") {
            let bytes = flow["flow"]["bytes_toclient"].as_u64().unwrap();
            assert!((2 * BYTES as u64..BYTES as u64 / 100 * 204).contains(&bytes), "{flow}");
            assert_eq!(flow["flow"]["end_reason"], "closed", "{flow}");
        }
    }
}

/// Everything of one family is left alone, and nothing of the other.
#[test]
fn a_rule_for_all_of_ipv6_says_nothing_of_ipv4() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let (stage, content) = stage();
    let config = format!("{ALWAYS}[policies]\nbypass = [\"::/0\"]\n");
    let mmtls = stage.mmtls(&configured(patient(), &config));
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg(url("file"));
    assert!(stage.run("curl", curl).stdout == content);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), 1, "{:#?}", report.summary);
    assert_eq!(by_kernel(&report), [0, 0]);
}

/// Whoever knows a connection that is left alone gains nothing by beginning another one on its four-tuple.
#[test]
fn the_next_connection_of_a_four_tuple_is_inspected() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let (stage, content) = stage();
    // No TIME-WAIT, so that the port can be used again at once.
    shell(&stage.bed.client, "sysctl -qw net.ipv4.tcp_max_tw_buckets=0");
    let mmtls = stage.mmtls(&configured(patient(), ALWAYS));
    for exempt in [&["server.test"][..], &[]] {
        let mut curl = stage.sharing_curl(&mmtls, Family::V4, exempt);
        curl.args(["--local-port", "40001"]).arg(url("file"));
        let page = stage.run("curl", curl);
        assert!(page.stdout == content, "{}", page.stderr);
    }
    let report = mmtls.stop().unwrap();
    assert_eq!(
        (report.count("exempt"), report.count("decrypted")),
        (1, 1),
        "{:#?}",
        report.summary
    );
    let lengths: Vec<_> =
        report.events("http").iter().map(|it| it["http"]["length"].clone()).collect();
    assert_eq!(lengths, [BYTES]);
}
