//! Tests of the writer: every line is read back by a JSON parser.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use mmtls_engine::session::{EarlyData, EndReason, KeyStatus, Resumption, SessionId, Upgrade};
use mmtls_engine::tls::{CipherSuite, ProtocolVersion};
use serde_json::Value;

use super::*;

/// A directory of this test's own, removed at the end.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        std::fs::read_to_string(self.0.join("eve.json"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key() -> FlowKey {
    FlowKey {
        id: 7,
        client: "128.232.110.120:34855".parse().unwrap(),
        server: "66.35.250.204:80".parse().unwrap(),
    }
}

fn transaction<'a>(url: &'a str, agent: &'a str) -> HttpTransaction<'a> {
    HttpTransaction {
        tx_id: 3,
        hostname: Some("example.org"),
        url,
        http_user_agent: Some(agent),
        http_content_type: None,
        http_method: "GET",
        protocol: "HTTP/1.1",
        request_length: 0,
        status: Some(200),
        reason: Some("OK"),
        response_protocol: Some("HTTP/1.1"),
        length: 12,
        complete: true,
        version: None,
        http2: None,
    }
}

/// A session that was decrypted.
pub(crate) fn session() -> SessionInfo {
    SessionInfo {
        id: SessionId(7),
        client: key().client,
        server: key().server,
        started_ns: 0,
        client_random: [0xab; 32],
        client_hello: true,
        server_random: Some([0xcd; 32]),
        server_name: Some("example.org".into()),
        alpn_offered: vec![b"h2".to_vec(), b"\xff\"".to_vec()],
        starttls: Some(Upgrade::Smtp),
        version: Some(ProtocolVersion::TLS_1_3),
        cipher_suite: Some(CipherSuite(0x1302)),
        hello_retry: true,
        resumption: Resumption::Accepted,
        early_data: EarlyData::None,
        alpn: None,
        key_status: KeyStatus::Shared,
        records_opened: [1, 2],
        records_seen: [1, 3],
        plaintext_bytes: [10, 20],
    }
}

#[test]
fn accepts_every_character_and_writes_no_control_character() {
    let dir = TempDir::new("eve-controls");
    let mut eve = EveWriter::create(&dir.0).unwrap();
    let all: String = ('\0'..='\u{a1}').chain("\u{2028}\u{fffd}\u{1f512}".chars()).collect();
    eve.http(0, key(), &transaction(&all, "\u{9b}2J\u{7f}"));
    eve.flush();
    let text = std::fs::read_to_string(dir.0.join("eve.json")).unwrap();
    assert_eq!(text.chars().filter(|it| it.is_control()).collect::<String>(), "\n");
    assert!(text.contains("\\u009b2J\\u007f"), "{text}");
    let http = &dir.lines()[0]["http"];
    assert_eq!(http["url"], all.as_str());
    assert_eq!(http["http_user_agent"], "\u{9b}2J\u{7f}");
}

#[test]
fn accepts_sessions_known_in_full_and_not_at_all() {
    let dir = TempDir::new("eve-tls");
    let mut eve = EveWriter::create(&dir.0).unwrap();
    let end = TlsEnd {
        reason: EndReason::Closed,
        outcome: "decrypted",
        app_proto: Some("http"),
        certificates: [None; 2],
    };
    let full = session();
    eve.tls(0, &full, &end);
    let unknown = SessionInfo {
        client_random: [0; 32],
        client_hello: false,
        server_random: None,
        server_name: None,
        alpn_offered: Vec::new(),
        starttls: None,
        version: Some(ProtocolVersion(0x7f1c)),
        cipher_suite: None,
        ..full
    };
    eve.tls(0, &unknown, &end);
    // A random like any other, where a hello had it.
    let zero = SessionInfo { client_hello: true, ..unknown.clone() };
    eve.tls(0, &zero, &end);
    drop(eve);
    let lines = dir.lines();
    let tls = &lines[0]["tls"];
    assert_eq!(tls["sni"], "example.org");
    assert_eq!(tls["version"], "TLS 1.3");
    assert_eq!(tls["cipher_suite"], "TLS_AES_256_GCM_SHA384");
    assert_eq!(tls["client_random"], "ab".repeat(32));
    assert_eq!(tls["server_random"], "cd".repeat(32));
    assert_eq!(tls["client_alpns"][1], "\u{fffd}\"");
    assert_eq!(tls["starttls"], "smtp");
    assert_eq!(tls["session_resumed"], true);
    assert_eq!(tls["hello_retry"], true);
    assert_eq!(tls["key_status"], "shared");
    assert_eq!(tls["outcome"], "decrypted");
    assert_eq!(tls["decrypted"]["records_toclient"], 2);
    assert_eq!(tls["decrypted"]["seen_toclient"], 3);
    assert_eq!(tls["decrypted"]["bytes_toserver"], 10);
    let tls = &lines[1]["tls"];
    assert_eq!(tls["version"], "0x7f1c");
    for absent in
        ["sni", "starttls", "client_random", "server_random", "client_alpns", "cipher_suite"]
    {
        assert!(tls.get(absent).is_none(), "{absent}");
    }
    assert_eq!(lines[2]["tls"]["client_random"], "0".repeat(64));
}

#[test]
fn accepts_hostile_text_as_valid_json() {
    let dir = TempDir::new("eve-hostile");
    let mut eve = EveWriter::create(&dir.0).unwrap();
    let agent = "a\"b\\c\n\u{0}\u{1b}[31m\u{7f}\u{2028}é";
    eve.http(1_500_000_000, key(), &transaction("/\"\r\n", agent));
    eve.stats(1_500_000_000, &serde_json::json!({"flows": 1}));
    drop(eve);
    let lines = dir.lines();
    assert_eq!(lines.len(), 2);
    let http = &lines[0];
    assert_eq!(http["timestamp"], "1970-01-01T00:00:01.500000+0000");
    assert_eq!(http["event_type"], "http");
    assert_eq!(http["flow_id"], 7);
    assert_eq!(http["src_ip"], "128.232.110.120");
    assert_eq!(http["src_port"], 34855);
    assert_eq!(http["dest_ip"], "66.35.250.204");
    assert_eq!(http["dest_port"], 80);
    assert_eq!(http["proto"], "TCP");
    assert_eq!(http["community_id"], "1:LQU9qZlK+B5F3KDmev6m5PMibrg=");
    assert_eq!(http["tx_id"], 3);
    assert_eq!(http["http"]["http_user_agent"], agent);
    assert_eq!(http["http"]["url"], "/\"\r\n");
    assert_eq!(http["http"]["status"], 200);
    assert_eq!(lines[1]["stats"]["flows"], 1);
    assert_eq!(serde_json::to_string(&Lossy(b"h\xff2")).unwrap(), "\"h\u{fffd}2\"");
}

#[test]
fn accepts_alerts_and_anomalies_from_the_sender() {
    let dir = TempDir::new("eve-alert");
    let mut eve = EveWriter::create(&dir.0).unwrap();
    let alert = Alert {
        tx_id: 0,
        app_proto: "http",
        action: "blocked",
        verdict: "reset",
        gid: 1,
        signature_id: 2,
        rev: 1,
        signature: "EVIL|00|",
        category: "http response body",
        severity: 1,
        offset: 99,
        hostname: None,
        url: Some("/x"),
    };
    eve.alert(0, key(), Direction::ServerToClient, &alert);
    let anomaly = Anomaly { kind: "stream", event: "integrity_failure", code: Some(-20) };
    eve.anomaly(0, key(), Direction::ClientToServer, &anomaly);
    eve.flush();
    let lines = dir.lines();
    assert_eq!(lines[0]["src_ip"], "66.35.250.204");
    assert_eq!(lines[0]["direction"], "to_client");
    assert_eq!(lines[0]["alert"]["signature"], "EVIL|00|");
    assert_eq!(lines[0]["alert"]["action"], "blocked");
    assert_eq!(lines[1]["direction"], "to_server");
    assert_eq!(lines[1]["anomaly"]["type"], "stream");
    assert_eq!(lines[1]["anomaly"]["code"], -20);
}

#[test]
fn accepts_flows_and_appends_to_a_private_file() {
    let dir = TempDir::new("eve-flow");
    let flow = FlowEnd {
        id: SessionId(9),
        client: "[2001:db8::1]:50000".parse().unwrap(),
        server: "[2001:db8::2]:443".parse().unwrap(),
        tls: true,
        started_ns: 1_000_000_000,
        last_ns: 3_250_000_000,
        packets: [4, 5],
        bytes: [600, 7000],
        reason: EndReason::ResetByPeer(Direction::ClientToServer),
    };
    for _ in 0..2 {
        EveWriter::create(&dir.0).unwrap().flow(4_000_000_000, &flow);
    }
    let lines = dir.lines();
    assert_eq!(lines.len(), 2);
    let line = &lines[1];
    assert_eq!(line["src_ip"], "2001:db8::1");
    assert_eq!(line["app_proto"], "tls");
    assert_eq!(line["flow"]["bytes_toclient"], 7000);
    assert_eq!(line["flow"]["start"], "1970-01-01T00:00:01.000000+0000");
    assert_eq!(line["flow"]["age"], 2);
    assert_eq!(line["flow"]["state"], "closed");
    assert_eq!(line["flow"]["reason"], "reset_by_client");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.0), 0o700);
    assert_eq!(mode(&dir.0.join("eve.json")), 0o600);
}

/// Not a benchmark, a guard: three records per session must stay far below the session's budget.
#[test]
#[ignore = "prints a speed; run with --release -- --ignored --nocapture"]
fn accepts_many_records_per_second() {
    let dir = TempDir::new("eve-speed");
    let mut eve = EveWriter::create(&dir.0).unwrap();
    let start = std::time::Instant::now();
    let count = 200_000;
    for id in 0..count {
        let flow = FlowKey { id, ..key() };
        eve.http(id * 1000, flow, &transaction("/index.html", "curl/8.5.0"));
    }
    eve.flush();
    let each = start.elapsed().as_nanos() / u128::from(count);
    println!("{each} ns per http record");
}
