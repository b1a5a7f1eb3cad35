//! A key server apart from the monitor: keys as sealed packets of their own connections, or over its connection to the
//! monitor; what is forged or repeated, what the endpoints are told, and what a restart of either costs.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{
    Family, Stage, assert_all_decrypted, binaries, can_run, mmtls_program, patient, sessions, stat,
};
use crate::keys::{PATTERN, resetting, with_pattern};
use mmtls_testkit::{
    Background, Capture, KeyType, MmtlsOptions, NginxOptions, Testbed, address, require_program,
    require_python,
};

/// The name in the key server's certificate.
const NAME: &str = "keys.test";
const PORT: u16 = 5544;

/// Fetches files, one connection for each, over sockets that it shows to OpenSSL.
const PYTHON: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for number in range(int(sys.argv[3])):
    raw = socket.create_connection((sys.argv[1], 443))
    with context.wrap_socket(raw, server_hostname="server.test") as tls:
        tls.sendall(f"GET /{sys.argv[2]} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n".encode())
        while tls.recv(65536):
            pass
"#;

/// Sends the key server's packets of a capture again: as they were, with a bit changed, for another connection's secret,
/// with another port; and one that only looks like them.
const AGAIN: &str = r#"
import socket, struct, sys
data = open(sys.argv[1], "rb").read()
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(("eth0", 0))
at, count = 24, 0
while at < len(data):
    length = struct.unpack("<I", data[at + 8:at + 12])[0]
    frame = bytearray(data[at + 16:at + 16 + length])
    at += 16 + length
    magic = frame.find(b"mmTK")
    if magic < 0:
        continue
    count += 1
    def send(change=None, value=1):
        copy = bytearray(frame)
        if change is not None:
            copy[change] ^= value
        out.send(copy)
    send()
    # The highest byte of the number: it is of no key yet.
    send(magic + 12, 0x80)
    send(magic + 4)
    # The last byte of the tag, under a number that has not been seen.
    copy = bytearray(frame)
    copy[magic + 18] ^= 0x40
    copy[-1] ^= 1
    out.send(copy)
    send(magic - 8)
    # Not one of them.
    send(magic)
print(count)
"#;

fn monitor(stage: &Stage, options: MmtlsOptions, more: &str) -> MmtlsOptions {
    let ca = stage.bed.pki().ca.display();
    let limits = options.config.unwrap_or_default();
    let config =
        format!("{limits}{more}\n[keys]\nclient_ca_file = \"{ca}\"\nkey_servers = [\"{NAME}\"]\n");
    MmtlsOptions { config: Some(config), ..options }
}

/// A key server on the client's host, which is in the monitored network.
fn key_server(bed: &Testbed, family: Family, interface: Option<&str>) -> Background {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("keys-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let identity = bed.pki().issue(&name, KeyType::Ecdsa, &format!("DNS:{NAME}")).unwrap();
    let mut command = bed.client.command(mmtls_program());
    command.args(["key-server", "--listen", &listen(family)]);
    command.arg("--cert").arg(identity.certificate).arg("--key").arg(identity.key);
    command.args(["--middlebox", &family.keys(), "--ca"]).arg(&bed.pki().ca);
    if let Some(interface) = interface {
        command.args(["--interface", interface]);
    }
    let mut process = bed.background("key-server", command).unwrap();
    process.wait_for_line("connected to", Duration::from_secs(10)).unwrap();
    process
}

fn listen(family: Family) -> String {
    match family {
        Family::V4 => format!("{}:{PORT}", address::CLIENT_V4),
        Family::V6 => format!("[{}]:{PORT}", address::CLIENT_V6),
    }
}

/// A program that shares its keys with the key server.
fn sharing(stage: &Stage, family: Family, options: &[&str], program: &str) -> Command {
    let mut command = stage.bed.client.command(binaries().join("mmtls"));
    command.args(["exec", "--middlebox", &format!("{NAME}@{}", listen(family)), "--ca"]);
    command.arg(&stage.bed.pki().ca).args(options).arg("--").arg(program);
    command
}

fn fetching(stage: &Stage, family: Family, options: &[&str], file: &str, count: usize) -> Command {
    let mut command = sharing(stage, family, options, "python3");
    let server = match family {
        Family::V4 => address::SERVER_V4,
        Family::V6 => address::SERVER_V6,
    };
    command.args(["-c", PYTHON, server, file, &count.to_string()]);
    command
}

fn stopped(mut process: Background) -> std::collections::BTreeMap<String, u64> {
    process.signal("TERM");
    assert!(process.wait(Duration::from_secs(10)).unwrap().success());
    mmtls_testkit::middlebox::summary(&process.stdout_text())
}

#[test]
fn accepts_keys_as_sealed_packets() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    const COUNT: usize = 20;
    for (family, workers) in
        Family::all(&stage.bed).into_iter().flat_map(|family| [(family, 1), (family, 2)])
    {
        let workers = format!("[workers]\ncount = {workers}\n");
        let mmtls = stage.mmtls(&monitor(&stage, patient(), &workers));
        let server = key_server(&stage.bed, family, Some("eth0"));
        let got = stage.run("client", fetching(&stage, family, &[], "file", COUNT));
        assert!(got.status.success(), "{}", got.stderr);
        let counters = stopped(server);
        let report = mmtls.stop().unwrap();
        assert_all_decrypted(&report, COUNT as u64);
        assert!(counters["sealed"] >= COUNT as u64, "{counters:?}");
        assert_eq!(stat(&report, "engine", "keys_sealed"), counters["sealed"], "{counters:?}");
        assert_eq!(counters["packets lost"], 0, "{counters:?}");
        for name in ["unknown", "forged", "replayed", "malformed"] {
            assert_eq!(stat(&report, "engine", &format!("sealed_{name}")), 0, "{name}");
        }
    }
}

#[test]
fn refuses_forged_and_repeated_packets_and_lets_none_go_on() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") || !require_program("tcpdump") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    let bed = &stage.bed;
    let mmtls = stage.mmtls(&monitor(&stage, patient(), "[workers]\ncount = 2\n"));
    let server = key_server(bed, Family::V4, Some("eth0"));
    let path = |name: &str| -> PathBuf { bed.directory().join(name) };
    let sent = Capture::start(bed, &bed.client, "eth0", &path("sent.pcap"), "udp").unwrap();
    let came = Capture::start(bed, &bed.server, "eth0", &path("came.pcap"), "udp").unwrap();
    const COUNT: u64 = 8;
    let client = fetching(&stage, Family::V4, &[], "file", COUNT as usize);
    assert!(stage.run("client", client).status.success());
    let sent = sent.stop().unwrap();
    let mut again = bed.client.command("python3");
    again.args(["-c", AGAIN]).arg(&sent);
    let again = stage.run("again", again);
    let repeated = String::from_utf8_lossy(&again.stdout).trim().parse::<u64>().unwrap();
    assert!(repeated >= COUNT, "{}", again.stderr);
    // Sessions go on as before.
    let client = fetching(&stage, Family::V4, &[], "file", COUNT as usize);
    assert!(stage.run("client", client).status.success());
    let came = std::fs::read(came.stop().unwrap()).unwrap();
    let counters = stopped(server);
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 2 * COUNT);
    let count = |name: &str| stat(&report, "engine", name);
    assert_eq!(count("keys_sealed"), counters["sealed"], "{counters:?}");
    assert_eq!(count("sealed_unknown"), repeated);
    assert_eq!(count("sealed_forged"), 2 * repeated);
    // With another port it is the same worker's, which knows it, or another one's, whose keys these are not: each counts.
    assert!(count("sealed_replayed") >= repeated);
    assert!(count("sealed_replayed") + count("sealed_malformed") >= 2 * repeated);
    let frames = |what: &[u8]| came.windows(what.len()).filter(|it| it == &what).count() as u64;
    assert_eq!(frames(b"mmTK"), 0, "none of them has gone on");
    assert_eq!(frames(b"lmTK"), repeated, "what only looks like them has");
}

#[test]
fn accepts_keys_over_its_connection_where_there_is_no_interface() {
    if !can_run(&["nginx", "curl", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    stage.serve("marked", &with_pattern(200_000, 150_000));
    let mmtls = stage.mmtls(&monitor(&stage, resetting(&stage), ""));
    let server = key_server(&stage.bed, Family::V4, None);
    let direct = fetching(&stage, Family::V4, &[], "file", 5);
    assert!(stage.run("client", direct).status.success());
    // A key log alone: the monitor must ask, through the key server; and refusals.
    let curl = |options: &[&str], file: &str| {
        let mut curl = sharing(&stage, Family::V4, options, "curl");
        curl.arg("--cacert").arg(&stage.bed.pki().ca).args(stage.bed.resolve_args());
        curl.args(["-sS", "--http1.1", "--max-time", "30", &crate::common::url(file)]);
        curl
    };
    assert!(!stage.run("curl", curl(&[], "marked")).status.success());
    let private = stage.run("curl", curl(&["--exempt", "server.test"], "marked"));
    assert!(crate::common::find(&private.stdout, PATTERN).is_some());
    let counters = stopped(server);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("decrypted"), 6, "{:#?}", report.summary);
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("exempt"), 1, "{:#?}", report.summary);
    assert_eq!(counters["sealed"], 0);
    assert_eq!(counters["relayed"], counters["messages"], "{counters:?}");
}

#[test]
fn accepts_a_key_log_whose_keys_are_asked_for_through_the_key_server() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    let bed = &stage.bed;
    let mmtls = stage.mmtls(&monitor(&stage, patient(), ""));
    let server = key_server(bed, Family::V4, Some("eth0"));
    let directory = bed.directory().join("agent");
    let mut agent = bed.client.command(mmtls_program());
    agent.args(["agent", "--middlebox", &format!("{NAME}@{}", listen(Family::V4)), "--ca"]);
    agent.arg(&bed.pki().ca).arg("--directory").arg(&directory);
    let mut agent = bed.background("agent", agent).unwrap();
    agent.wait_for_line("connected to", Duration::from_secs(10)).unwrap();
    let mut curl = stage.plain_curl(Family::V4);
    curl.env("SSLKEYLOGFILE", directory.join("keylog")).arg(crate::common::url("file"));
    assert!(stage.run("curl", curl).status.success());
    drop(agent);
    let counters = stopped(server);
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    assert!(counters["relayed"] > 0, "{counters:?}");
}

#[test]
fn accepts_keys_over_its_connection_while_its_interface_is_down() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    let bed = &stage.bed;
    bed.client.ip("link add keys8 type veth peer name keys9\nlink set keys8 up\n").unwrap();
    let limits = "[limits]\nstall_timeout_milliseconds = 1000\n";
    let options = MmtlsOptions { config: Some(limits.to_owned()), ..patient() };
    let mmtls = stage.mmtls(&monitor(&stage, options, ""));
    let server = key_server(bed, Family::V4, Some("keys8"));
    bed.client.ip("link set keys8 down\n").unwrap();
    // How it finds out: these keys may be lost, unless the monitor has asked for them, too.
    stage.run("first", fetching(&stage, Family::V4, &[], "file", 1));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        let got = stage.run("client", fetching(&stage, Family::V4, &[], "file", 2));
        assert!(got.status.success(), "{}", got.stderr);
    }
    let counters = stopped(server);
    let report = mmtls.stop().unwrap();
    assert!(report.count("decrypted") >= 6, "{:#?}", report.summary);
    // To notice cost the first ones.
    assert!((1..=2).contains(&counters["packets lost"]), "{counters:?}");
}

#[test]
fn refuses_a_key_server_that_nobody_has_named() {
    if !can_run(&["nginx"]) {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    let ca = stage.bed.pki().ca.display().to_string();
    let keys = format!("[keys]\nclient_ca_file = \"{ca}\"\nkey_servers = [\"other.test\"]\n");
    let mmtls = stage.mmtls(&MmtlsOptions { config: Some(keys), ..patient() });
    let bed = &stage.bed;
    let mut command = bed.client.command(mmtls_program());
    command.args(["key-server", "--listen", &listen(Family::V4)]);
    command.arg("--cert").arg(&bed.pki().client.certificate);
    command.arg("--key").arg(&bed.pki().client.key);
    command.args(["--middlebox", &Family::V4.keys(), "--ca", &ca]);
    let mut process = bed.background("key-server", command).unwrap();
    process.wait_for_line("closed by the middlebox", Duration::from_secs(10)).unwrap();
    let report = mmtls.stop().unwrap();
    assert!(stat(&report, "engine", "key_messages_malformed") > 0);
}

#[test]
fn sessions_go_on_over_restarts_of_key_server_and_monitor() {
    if !can_run(&["nginx", "python3"]) || !require_python("ssl") {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    stage.serve("file", &vec![7; 40_000]);
    let options = monitor(&stage, patient(), "");
    let fetch = |count| {
        let client = fetching(&stage, Family::V4, &[], "file", count);
        let got = stage.run("client", client);
        assert!(got.status.success(), "{}", got.stderr);
    };
    let mut first = stage.mmtls(&options);
    let mut server = key_server(&stage.bed, Family::V4, Some("eth0"));
    fetch(3);
    first.process.signal("KILL");
    first.process.wait(Duration::from_secs(5)).unwrap();
    let second = stage.mmtls(&options);
    // Keys that come before it is connected wait.
    fetch(3);
    server.signal("KILL");
    server.wait(Duration::from_secs(5)).unwrap();
    let server = key_server(&stage.bed, Family::V4, Some("eth0"));
    fetch(3);
    let counters = stopped(server);
    let report = second.stop().unwrap();
    assert_all_decrypted(&report, 6);
    assert!(counters["sealed"] >= 3, "{counters:?}");
    assert_eq!(sessions(&report).len(), 6);
}
