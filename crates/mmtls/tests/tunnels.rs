//! TCP inside tunnels: super-frames whose offload header cannot say that there is a tunnel, and single frames.

use mmtls_testkit::{MmtlsOptions, NginxOptions, files, skip_unless, wait_until};

use crate::common::{LIMIT, Stage, can_run, options, shell, stat};

/// The server inside the tunnel.
const INSIDE: &str = "10.90.0.3";

#[test]
fn super_frames_in_tunnels_are_counted_and_told_and_single_frames_pass() {
    if !can_run(&["nginx", "curl", "ethtool"]) {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    files::pattern(&stage.nginx.root().join("large"), 3 << 20, 1).unwrap();
    let bed = &stage.bed;
    for (place, own, other) in [(&bed.client, 2, 3), (&bed.server, 3, 2)] {
        let made = shell(
            place,
            &format!(
                "ip link add vx type vxlan id 7 local 10.77.0.{own} remote 10.77.0.{other} dstport 4789 dev eth0 && \
                 ip addr add 10.90.0.{own}/24 dev vx && ip link set vx up && echo made"
            ),
        );
        if made.trim() != "made" {
            skip_unless("MMTLS_REQUIRE_TESTBED", "no VXLAN");
            return;
        }
    }
    // As a card that cuts by itself what it is told about: without that, the kernel does, and nobody else.
    shell(&bed.middlebox, "ethtool -K left tso off; ethtool -K right tso off");
    let get = |seconds: &str| {
        let mut curl = bed.client.command("curl");
        curl.args(["-skS", "--max-time", seconds, "-o", "/dev/null", "-w", "%{size_download}"]);
        curl.arg(format!("https://{INSIDE}/large"));
        stage.run("curl", curl)
    };
    let options = MmtlsOptions { missing_keys: "forward".to_owned(), ..options() };
    let mmtls = stage.mmtls(&options);
    let got = get("3");
    eprintln!("super-frames: {} {}", got.text(), got.stderr);
    assert!(
        wait_until(LIMIT, || mmtls.process.stderr_text().contains("a super-frame inside a tunnel")),
        "{}",
        mmtls.process.stderr_text()
    );
    for place in [&bed.client, &bed.server] {
        shell(place, "ethtool -K vx tso off gso off gro off");
    }
    let got = get("30");
    assert_eq!(got.text(), (3 << 20).to_string(), "{}", got.stderr);
    let report = mmtls.stop().unwrap();
    assert!(stat(&report, "engine", "offloads_refused") > 0, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "left_send_errors"), 0);
}
