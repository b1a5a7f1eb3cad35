//! mmTLS leaves everything as it is: the server's own certificate reaches the client, the TCP
//! payload is the same on both sides of the middlebox, and what is no TLS passes unchanged.

use std::collections::BTreeMap;

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, can_run, find, options, patient, stat, url,
};
use mmtls_testkit::wire::{self, BothSides, Segment};
use mmtls_testkit::{Middle, Mmtls, Nginx, NginxOptions, Options, Testbed, address, files};

/// Uploads land beside the downloads; plain HTTP on port 80.
fn nginx() -> NginxOptions {
    let plain = "listen 0.0.0.0:80;\nlisten [::]:80 ipv6only=on;\n";
    let uploads =
        "location /up/ { dav_methods PUT; create_full_put_path on; client_max_body_size 0; }\n";
    NginxOptions { extra: format!("{plain}{uploads}"), ..NginxOptions::default() }
}

/// The base64 text of the first certificate.
fn certificate(pem: &str) -> String {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----").expect("a certificate");
    let (base64, _) = rest.split_once("-----END CERTIFICATE-----").expect("a whole certificate");
    base64.split_whitespace().collect()
}

#[test]
fn accepts_only_the_servers_own_certificate() {
    if !can_run(&["nginx", "curl", "openssl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("file", b"content");
    let mmtls = stage.mmtls(&patient());
    let own = std::fs::read_to_string(&stage.bed.pki().server.certificate).unwrap();
    let own = certificate(&own);
    for family in Family::all(&stage.bed) {
        let mut curl = stage.sharing_curl(&mmtls, family, &[]);
        curl.args(["-o", "/dev/null", "-w", "%{ssl_verify_result}\n%{certs}", &url("file")]);
        let seen = stage.run("curl", curl);
        assert!(seen.status.success(), "{}", seen.stderr);
        assert!(seen.text().starts_with("0\n"), "verified: {}", seen.text());
        assert_eq!(certificate(&seen.text()), own, "{family:?}");

        // The same program refuses the server where it does not trust its authority.
        let mut curl = mmtls.sharing(&stage.bed, family.is_v6(), &[], "curl");
        let resolve = match family {
            Family::V4 => stage.bed.resolve_args(),
            Family::V6 => stage.bed.resolve_args_v6(),
        };
        curl.arg("--cacert").arg(&stage.bed.pki().client.certificate).args(resolve);
        curl.args(["-sS", "--max-time", "20", &url("file")]);
        assert_eq!(stage.run("curl", curl).status.code(), Some(60));

        let mut client = mmtls.sharing(&stage.bed, family.is_v6(), &[], "openssl");
        client.args(["s_client", "-verify_return_error", "-connect"]);
        client.arg(format!("{}:443", family.server())).arg("-CAfile").arg(&stage.bed.pki().ca);
        client.args([
            "-servername",
            address::SERVER_NAME,
            "-verify_hostname",
            address::SERVER_NAME,
        ]);
        client.args(["-no_ign_eof"]);
        let seen = stage.run("openssl", client);
        let said = format!("{}{}", seen.text(), seen.stderr);
        assert!(seen.status.success() && said.contains("Verification: OK"), "{said}");
        assert_eq!(certificate(&seen.text()), own, "{family:?}");
    }
    let report = mmtls.stop().unwrap();
    // Sessions that the client gave up at the certificate have nothing to decrypt.
    let families = Family::all(&stage.bed).len() as u64;
    assert_eq!(report.count("TLS sessions"), 3 * families, "{:#?}", report.summary);
    assert_eq!(report.count("failed"), 0, "{:#?}", report.summary);
    assert_eq!(report.count("missing key"), 0, "{:#?}", report.summary);
}

/// Downloads and uploads through the middlebox, captured on both sides.
fn streams_are_equal(bed: Testbed) {
    let stage = Stage { nginx: Nginx::start(&bed, nginx()).unwrap(), bed };
    let mmtls = stage.mmtls(&patient());
    let (download, upload) =
        (files::pattern_bytes(3_000_000, 1), files::pattern_bytes(2_000_000, 2));
    stage.serve("file", &download);
    let source = stage.bed.directory().join("upload");
    std::fs::write(&source, &upload).unwrap();
    let sides = BothSides::start(&stage.bed, "tcp port 443");
    let families = Family::all(&stage.bed);
    for &family in &families {
        let mut curl = stage.sharing_curl(&mmtls, family, &[]);
        curl.arg(url("file"));
        let page = stage.run("curl", curl);
        assert!(
            page.stdout == download,
            "{family:?}: {} bytes, {}",
            page.stdout.len(),
            page.stderr
        );

        let name = format!("up/{family:?}");
        let mut curl = stage.sharing_curl(&mmtls, family, &[]);
        curl.args(["-w", "%{http_code}", "-T"]).arg(&source).arg(url(&name));
        let done = stage.run("curl", curl);
        assert_eq!(done.text(), "201", "{}", done.stderr);
        assert!(std::fs::read(stage.nginx.root().join(name)).unwrap() == upload);
    }
    let (left, right) = sides.stop();
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 2 * families.len() as u64);
    let urls: Vec<_> = report.events("http").iter().map(|record| &record["http"]["url"]).collect();
    let mut expected = Vec::new();
    for family in &families {
        expected.extend(["/file".to_owned(), format!("/up/{family:?}")]);
    }
    assert_eq!(urls, expected.iter().collect::<Vec<_>>(), "the decrypted requests");

    let (left, right) = (wire::streams(&left), wire::streams(&right));
    // Both directions of two connections per family, with all the bytes that were moved.
    assert_eq!(left.len(), 4 * families.len());
    let moved: usize = left.values().map(Vec::len).sum();
    assert!(moved > families.len() * (download.len() + upload.len()), "{moved} bytes");
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (ends, bytes) in &left {
        assert!(bytes == &right[ends], "{ends:?}: {} and {} bytes", bytes.len(), right[ends].len());
        let records: usize = wire::records(bytes).iter().map(|(_, length)| length).sum();
        assert_eq!(records, bytes.len(), "{ends:?} is TLS from its first to its last byte");
    }
}

#[test]
fn accepts_equal_streams_on_both_sides() {
    if !can_run(&["nginx", "curl", "tcpdump"]) {
        return;
    }
    streams_are_equal(Testbed::new(Middle::Empty).unwrap());
}

#[test]
fn accepts_equal_streams_without_segmentation_offload() {
    if !can_run(&["nginx", "curl", "tcpdump", "ethtool"]) {
        return;
    }
    let options = Options { gso: false, mtu: Some(1400), ..Options::default() };
    streams_are_equal(Testbed::with_options(&options).unwrap());
}

/// Sends an ICMP echo (`sys.argv`: family, address, payload size) and checks what comes back.
const PING: &str = r#"
import socket, struct, sys
v6, host, size = sys.argv[1] == "6", sys.argv[2], int(sys.argv[3])
payload = bytes(i * 7 & 255 for i in range(size))
kind = 128 if v6 else 8
message = struct.pack("!BBHHH", kind, 0, 0, 0x4d54, 1) + payload
if not v6:
    total = sum(struct.unpack("!%dH" % (len(message) // 2), message))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~total & 0xffff) + message[4:]
if v6:
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
s.settimeout(5)
s.sendto(message, (host, 0))
while True:
    answer = s.recvfrom(65535)[0]
    if not v6:
        answer = answer[(answer[0] & 15) * 4:]
    if answer[0] == (129 if v6 else 0):
        assert answer[8:] == payload, "other payload"
        break
print("echoed")
"#;

/// How often each frame went over a wire.
fn count(path: &std::path::Path, wanted: impl Fn(&[u8]) -> bool) -> BTreeMap<Vec<u8>, u32> {
    let mut counts = BTreeMap::new();
    for frame in wire::frames(path) {
        if wanted(&frame.bytes) {
            *counts.entry(frame.bytes).or_default() += 1;
        }
    }
    counts
}

#[test]
fn accepts_what_is_no_tls_unchanged() {
    if !can_run(&["nginx", "curl", "tcpdump", "python3"]) {
        return;
    }
    let stage = Stage::with(nginx());
    let content = files::pattern_bytes(1_000_000, 3);
    stage.serve("file", &content);
    let mmtls = stage.mmtls(&patient());
    let sides = BothSides::start(&stage.bed, "");
    let families = Family::all(&stage.bed);
    for &family in &families {
        // 3000 bytes need fragments.
        for size in ["100", "3000"] {
            let (version, host) = match family {
                Family::V4 => ("4", address::SERVER_V4),
                Family::V6 => ("6", address::SERVER_V6),
            };
            let mut ping = stage.bed.client.command("/usr/bin/python3");
            ping.args(["-c", PING, version, host, size]);
            let done = stage.run("ping", ping);
            assert_eq!(done.text(), "echoed\n", "{family:?} {size}: {}", done.stderr);
        }
        let mut curl = stage.bed.client.command("curl");
        curl.args(["-sS", "--max-time", "20", &format!("http://{}/file", family.server())]);
        let page = stage.run("curl", curl);
        assert!(page.stdout == content, "{family:?}: {}", page.stderr);
    }
    let (left, right) = sides.stop();
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("TLS sessions"), 0);
    assert_eq!(report.count("flows seen"), families.len() as u64);
    assert_eq!(report.count("resets"), 0);
    // Nothing of it waits but what a later fragment of IPv6 does not say: three fragments for each way of
    // the long ping, of which the last one completes the packet.
    let waiting = if families.contains(&Family::V6) { 4 } else { 0 };
    assert_eq!(stat(&report, "engine", "held"), waiting);
    assert_eq!(stat(&report, "engine", "released"), waiting);

    let streams = wire::streams(&left);
    assert_eq!(streams.len(), 2 * families.len());
    assert!(streams == wire::streams(&right));
    // Every other frame is the same, byte for byte and as often.
    // Kernels report multicast groups and look for routers at any time, also between the starts of
    // the two captures.
    let groups = |frame: &[u8]| matches!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x02 | 0x16]);
    let other = |frame: &[u8]| Segment::of(frame).is_none() && !groups(frame);
    let (left, right) = (count(&left, other), count(&right, other));
    assert!(left == right, "{:x?}\n{:x?}", left.keys(), right.keys());
    let of_type =
        |ethertype: [u8; 2]| left.keys().filter(|frame| frame[12..14] == ethertype).count();
    assert!(of_type([0x08, 0x06]) >= 2, "ARP request and answer");
    assert!(of_type([0x08, 0x00]) >= 8, "two echoes, one of them in fragments");
    if families.contains(&Family::V6) {
        let ipv6: Vec<_> = left.keys().filter(|frame| frame[12..14] == [0x86, 0xdd]).collect();
        let has = |kind| ipv6.iter().any(|frame| frame[20] == 58 && frame[54] == kind);
        assert!(has(135) && has(136), "neighbour discovery");
        assert!(ipv6.iter().any(|frame| frame[20] == 44), "fragments");
    }
}

/// Sends frames of kinds that a monitor has no use for, from the client's port.
const RAW_FRAMES: &str = r#"
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
broadcast, me = b"\xff" * 6, bytes.fromhex("02aabbccddee")
def send(*parts):
    s.send((broadcast + me + b"".join(parts)).ljust(60, b"\x5a"))
udp = bytes.fromhex("4500002000010000401100000a4d00020a4d0003" "30390035000c0000") + b"data"
tcp = bytes.fromhex("4500002800010000400666310a4d00020a4d0003" "303901bb000000010000000050020040690f" "0000")
send(struct.pack("!H", 0x88b5), b"private ethertype")
send(struct.pack("!H", 40), b"\xaa\xaa\x03 a length, not a type")
send(struct.pack("!HHH", 0x8100, 5, 0x0800), udp)
send(struct.pack("!HHH", 0x8100, 0xe005, 0x0800), tcp)
send(struct.pack("!HHHHH", 0x88a8, 7, 0x8100, 8, 0x0800), udp)
send(struct.pack("!H", 0x0800), udp)
send(struct.pack("!H", 0x0800), b"\x4f not an IP header")
send(struct.pack("!H", 0x0800), udp, b"\x00" * 1400)
# No receiver accepts these; they may be meant to mislead the monitor.
bad = b"bad"
send(struct.pack("!H", 0x86dd), b"\x60 short", bad)
send(struct.pack("!H", 0x0800), tcp[:36] + b"\x12\x34" + tcp[38:], bad)
"#;

#[test]
fn accepts_frames_of_any_kind_unchanged() {
    if !can_run(&["tcpdump", "python3"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let mmtls = Mmtls::start(&bed, &options()).unwrap();
    let sides = BothSides::start(&bed, "ether src 02:aa:bb:cc:dd:ee");
    let mut python = bed.client.command("/usr/bin/python3");
    python.args(["-c", RAW_FRAMES]);
    let done = bed.run("frames", python, LIMIT).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    let (left, right) = sides.stop();
    let (left, right) = (count(&left, |_| true), count(&right, |_| true));
    assert_eq!(left.values().sum::<u32>(), 10);
    let (bad, good): (BTreeMap<_, _>, BTreeMap<_, _>) =
        left.into_iter().partition(|(frame, _)| find(frame, b"bad").is_some());
    assert_eq!(bad.len(), 2);
    let starts = |frames: &BTreeMap<Vec<u8>, u32>| -> Vec<Vec<u8>> {
        frames.keys().map(|frame| frame[12..32].to_vec()).collect()
    };
    assert!(good == right, "{:02x?}\n{:02x?}", starts(&good), starts(&right));
    let tagged = good.keys().filter(|frame| matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]));
    assert_eq!(tagged.count(), 3, "VLAN and QinQ tags are seen by the capture");
    let report = mmtls.stop().unwrap();
    assert_eq!(stat(&report, "engine", "malformed_frames"), 1);
    assert_eq!(stat(&report, "engine", "bad_checksums"), 1);
}
