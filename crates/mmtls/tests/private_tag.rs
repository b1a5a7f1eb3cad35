//! Sessions with a private tag in the path: the monitor reads them with the record keys alone, says
//! that they have one, and policy `require_private_tag` acts on those that have none.
//!
//! Captures of rustls endpoints always; live with Debian's nginx, curl, h2load and ab on OpenSSL
//! with the private tag, which are loud skips without `make openssl`.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::{
    Family, Stage, assert_all_decrypted, can_run, options, patient, sessions, stat, url,
};
use mmtls::monitor::{Monitor, MonitorConfig};
use mmtls_engine::tls::Direction;
use mmtls_engine::{Engine, FrameInput, Link, Output, PortId};
use mmtls_middlebox::keylog::{self, KeyLog};
use mmtls_middlebox::offline;
use mmtls_record::{private_tag, suite};
use mmtls_testkit::files::pattern_bytes;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::{
    Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, Pki, PrivateTagOpenssl, require_program,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig,
    ServerConnection, SideData,
};

/// The key log of one session.
#[derive(Debug, Default)]
struct Lines(Mutex<String>);

impl rustls::KeyLog for Lines {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        self.0.lock().unwrap().push_str(&line);
    }
}

/// One flight from a side to the other: what went over the wire.
fn carry<A: SideData, B: SideData>(
    from: &mut ConnectionCommon<A>,
    to: &mut ConnectionCommon<B>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        to.read_tls(&mut rest).unwrap();
        to.process_new_packets().unwrap();
    }
    bytes
}

/// A session of rustls endpoints on one suite, as flights and key log.
fn rustls_session(pki: &Pki, number: u16) -> (Vec<(Direction, Vec<u8>)>, String) {
    let mut provider = mmtls_endpoint::provider();
    provider.cipher_suites.retain(|suite| u16::from(suite.suite()) == number);
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&pki.ca).unwrap()).unwrap();
    let lines = Arc::new(Lines::default());
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.key_log = lines.clone();
    let chain = vec![CertificateDer::from_pem_file(&pki.server.certificate).unwrap()];
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pki.server.key).unwrap())
        .unwrap();
    let name = "server.test".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut flights = Vec::new();
    for round in 0..5 {
        if round == 2 {
            client.writer().write_all(b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n").unwrap();
        }
        if round == 3 {
            // What follows has other keys, of which the key log says nothing.
            client.refresh_traffic_keys().unwrap();
            server.refresh_traffic_keys().unwrap();
            server.writer().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        }
        flights.push((Direction::ClientToServer, carry(&mut client, &mut server)));
        flights.push((Direction::ServerToClient, carry(&mut server, &mut client)));
    }
    let mut got = Vec::new();
    let _ = client.reader().read_to_end(&mut got);
    assert!(got.ends_with(b"ok"));
    let text = lines.0.lock().unwrap().clone();
    (flights, text)
}

#[test]
fn accepts_private_tag_records_of_rustls() {
    if !require_program("openssl") {
        return;
    }
    let pki = Pki::shared().unwrap();
    for number in private_tag::SUITES.into_iter().chain([0x1301]) {
        let (flights, lines) = rustls_session(&pki, number);
        let log = KeyLog::load(lines.as_bytes()).unwrap();
        let directory = pki.directory().join(format!("monitor-{number:04x}"));
        let config = MonitorConfig { eve_dir: Some(directory.clone()), ..MonitorConfig::default() };
        let mut engine = Engine::new(offline::config(), Monitor::new(&config).unwrap());
        let ends = Endpoints {
            client: "10.0.0.2:40000".parse().unwrap(),
            server: "10.0.0.3:443".parse().unwrap(),
            initial: [7, 8],
        };
        let (up, down) = (Direction::ClientToServer, Direction::ServerToClient);
        let mut frames = vec![
            ends.frame(up, -1, 0, flag::SYN, &[]),
            ends.frame(down, -1, 0, flag::SYN | flag::ACK, &[]),
        ];
        let mut at = [0u64; 2];
        for (direction, bytes) in &flights {
            let side = usize::from(*direction == down);
            for part in bytes.chunks(1400) {
                let offset = i64::try_from(at[side]).unwrap();
                frames.push(ends.frame(*direction, offset, at[1 - side], flag::ACK, part));
                at[side] += part.len() as u64;
            }
        }
        for (time, bytes) in frames.iter().enumerate() {
            let input = FrameInput {
                port: PortId(0),
                link: Link::Ethernet,
                bytes,
                memory: None,
                checksum_trusted: true,
            };
            let now_ns = 1 + time as u64 * 1000;
            engine.handle_frame(now_ns, &input);
            while let Some(output) = engine.poll_output() {
                if let Output::KeysNeeded(wanted) = output
                    && let Some(keys) = keylog::shared_keys(&log, &wanted)
                {
                    let _ = engine.handle_keys(now_ns, keys);
                }
            }
        }
        engine.finish();
        let mut monitor = engine.into_handler();
        monitor.flush();
        let has_one = number != 0x1301;
        let summary = monitor.summary();
        assert_eq!((summary.decrypted, summary.http_responses), (1, 1), "{number:04x}");
        assert_eq!(summary.private_tag, u64::from(has_one));
        assert_eq!(summary.no_private_tag, u64::from(!has_one));
        let records = crate::common::read_eve(&directory);
        let tls = records.iter().find(|it| it["event_type"] == "tls").unwrap();
        assert_eq!(tls["tls"]["private_tag"], has_one);
        assert_eq!(tls["tls"]["cipher_suite"], suite::name(number).unwrap());
    }
}

/// Server and monitor; whether the server's OpenSSL has the private tag.
fn stage(openssl: Option<&PrivateTagOpenssl>) -> Stage {
    let extra = "dav_methods PUT;\nclient_max_body_size 2g;\n".to_owned();
    let stage =
        Stage::with(NginxOptions { openssl: openssl.cloned(), extra, ..Default::default() });
    stage.serve("file", &pattern_bytes(3_000_000, 1));
    stage
}

/// The monitor where sessions without a private tag are reset, or not.
fn monitor(policy: &str) -> MmtlsOptions {
    let config = format!(
        "[policies]\nrequire_private_tag = \"{policy}\"\n[limits]\nstall_timeout_milliseconds = 10000\n\
         unshared_stall_timeout_milliseconds = 10000\n"
    );
    MmtlsOptions { config: Some(config), ..options() }
}

/// curl, sharing its keys, on some OpenSSL; whether the file came.
fn fetch(stage: &Stage, mmtls: &Mmtls, openssl: Option<&PrivateTagOpenssl>, more: &[&str]) -> bool {
    let mut curl = stage.sharing_curl(mmtls, Family::V4, &[]);
    if let Some(openssl) = openssl {
        openssl.lend(&mut curl);
    }
    curl.args(more).arg(url("file"));
    let finished = stage.run("curl", curl);
    finished.status.success() && finished.stdout == pattern_bytes(3_000_000, 1)
}

/// Every session has a private tag; returns their suites.
fn private_suites(report: &MmtlsReport) -> Vec<String> {
    let all = sessions(report);
    assert_eq!(stat(report, "monitor", "private_tag"), all.len() as u64);
    assert_eq!(report.count("with private tag"), all.len() as u64);
    assert_eq!(stat(report, "monitor", "no_private_tag"), 0);
    all.iter()
        .map(|tls| {
            assert_eq!(tls["private_tag"], true, "{tls}");
            tls["cipher_suite"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[test]
fn accepts_every_private_tag_suite_of_nginx_and_curl() {
    let Some(openssl) = PrivateTagOpenssl::require().filter(|_| can_run(&["nginx", "curl"])) else {
        return;
    };
    let stage = stage(Some(&openssl));
    let mmtls = stage.mmtls(&monitor("reset"));
    let mut wanted = Vec::new();
    for number in private_tag::SUITES {
        let name = suite::name(number).unwrap();
        assert!(fetch(&stage, &mmtls, Some(&openssl), &["--tls13-ciphers", name]), "{name}");
        wanted.push(name.to_owned());
    }
    assert!(fetch(&stage, &mmtls, Some(&openssl), &[]));
    wanted.push("MMTLS_AES_256_GCM_SHA384".to_owned());
    let report = mmtls.stop().unwrap();
    assert!(report.stderr.contains("require_private_tag=reset"), "{}", report.stderr);
    assert_all_decrypted(&report, 6);
    assert_eq!(private_suites(&report), wanted);
}

#[test]
fn accepts_private_tag_sessions_of_h2load_and_ab() {
    let Some(openssl) =
        PrivateTagOpenssl::require().filter(|_| can_run(&["nginx", "h2load", "ab"]))
    else {
        return;
    };
    let stage = stage(Some(&openssl));
    let mmtls = stage.mmtls(&monitor("reset"));
    let address = format!("https://{}/file", Family::V4.server());
    let run = |program: &str, arguments: &[&str], good: &str| {
        let mut command: Command = mmtls.sharing(&stage.bed, false, &[], program);
        openssl.lend(&mut command).args(arguments).arg(&address);
        let finished = stage.run(program, command);
        let text = finished.text();
        assert!(text.contains(good), "{text}\n{}", finished.stderr);
    };
    // h2load names its suites itself, ordinary ones unless told otherwise.
    let suites = "--tls13-ciphers=MMTLS_AES_128_GCM_SHA256";
    run("h2load", &["--h1", "-n", "40", "-c", "8", suites], "40 succeeded");
    run("ab", &["-n", "20", "-c", "4"], "Complete requests:      20");
    let report = mmtls.stop().unwrap();
    crate::common::assert_decrypted_but_aborted(&report, 28);
    private_suites(&report);
}

#[test]
fn refuses_sessions_without_private_tag_where_it_is_required() {
    let Some(openssl) = PrivateTagOpenssl::require().filter(|_| can_run(&["nginx", "curl"])) else {
        return;
    };
    // One side as it is installed: an ordinary suite, and no retry.
    for (server, client) in [(Some(&openssl), None), (None, Some(&openssl))] {
        let stage = stage(server);
        let mmtls = stage.mmtls(&monitor("forward"));
        assert!(fetch(&stage, &mmtls, client, &[]));
        let report = mmtls.stop().unwrap();
        assert_all_decrypted(&report, 1);
        let tls = sessions(&report)[0];
        assert_eq!(tls["cipher_suite"], "TLS_AES_256_GCM_SHA384");
        assert_eq!((&tls["private_tag"], &tls["hello_retry"]), (&false.into(), &false.into()));
        assert_eq!(report.count("without private tag"), 1);

        let mmtls = stage.mmtls(&monitor("reset"));
        assert!(!fetch(&stage, &mmtls, client, &[]));
        let report = mmtls.stop().unwrap();
        let tls = sessions(&report)[0];
        assert_eq!(tls["end_reason"], "reset_by_policy");
        assert_eq!(report.count("anomaly no_private_tag"), 1);
        assert_eq!((report.count("resets"), report.count("failed")), (1, 1));
    }
}

#[test]
#[ignore = "moves 2 GB; part of `make private-tag`"]
fn accepts_1_gb_each_way_with_a_private_tag() {
    let Some(openssl) = PrivateTagOpenssl::require().filter(|_| can_run(&["nginx", "curl"])) else {
        return;
    };
    let stage = stage(Some(&openssl));
    let mmtls = stage.mmtls(&patient());
    let file = stage.nginx.root().join("large");
    mmtls_testkit::files::pattern(&file, 1 << 30, 5).unwrap();
    let patience = std::time::Duration::from_secs(120);
    let sum = |command: Command| {
        let text = stage.bed.run("sum", command, patience).unwrap().text();
        text.split(' ').next().unwrap_or_default().to_owned()
    };
    let script = "\"$@\" | sha256sum";
    let pipe = |curl: Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(curl.get_program()).args(curl.get_args());
        openssl.lend(&mut shell);
        shell
    };
    let mut download = stage.sharing_curl(&mmtls, Family::V4, &[]);
    download.args(["--max-time", "120"]).arg(url("large"));
    let mut upload = stage.sharing_curl(&mmtls, Family::V4, &[]);
    openssl.lend(&mut upload).args(["--max-time", "120", "-H", "Expect:", "-T"]).arg(&file);
    upload.arg(url("copy"));
    let mut local = Command::new("sha256sum");
    local.arg(&file);
    let expected = sum(local);
    assert_eq!(sum(pipe(download)), expected);
    assert!(stage.bed.run("curl", upload, patience).unwrap().status.success());
    let mut local = Command::new("sha256sum");
    local.arg(stage.nginx.root().join("copy"));
    assert_eq!(sum(local), expected);
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 2);
    assert!(report.count("plaintext bytes") > 2 << 30, "{:#?}", report.summary);
    private_suites(&report);
}
