//! Tests of the writer: every line is read back by a JSON parser.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use mmtls_engine::PortId;
use mmtls_engine::session::{
    EarlyData, EndReason, KeyRefusal, KeyStatus, RefusedKeys, Resumption, SessionError, SessionId,
    Upgrade,
};
use mmtls_engine::tls::{CipherSuite, ProtocolVersion};
use serde_json::Value;

use super::*;
use crate::fingerprint::Ja3;

mod consumer;
#[path = "../../tests/common/schema.rs"]
mod schema;

/// A directory of this test's own, removed at the end.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    /// The lines of `eve.json`, each of which the schema takes.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.0.join("eve.json")).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().for_each(schema::assert_valid);
        lines
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
        place: place(),
    }
}

/// Behind the second interface, on a VLAN in another.
fn place() -> FlowPlace {
    FlowPlace { port: PortId(1), vlans: [100, 7] }
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
        bypassed_by_operator: false,
        id: SessionId(7),
        client: key().client,
        server: key().server,
        place: place(),
        link_addresses: [[2; 6], [3; 6]],
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
        hellos: None,
        resumption: Resumption::Accepted,
        early_data: EarlyData::None,
        alpn: None,
        is_mid_stream: false,
        key_status: KeyStatus::Shared,
        refused: [false, true],
        records_opened: [1, 2],
        records_seen: [1, 3],
        plaintext_bytes: [10, 20],
    }
}

#[test]
fn accepts_every_character_and_writes_no_control_character() {
    let dir = TempDir::new("eve-controls");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
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

fn end<'a>() -> SessionEnd<'a> {
    SessionEnd {
        reason: EndReason::Closed,
        outcome: "decrypted",
        app_proto: Some("http"),
        stall_us: Some(17),
        late: Late::default(),
    }
}

#[test]
fn accepts_sessions_known_in_full_and_not_at_all() {
    let dir = TempDir::new("eve-tls");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    let full = SessionInfo { alpn: Some(b"h2".to_vec()), ..session() };
    eve.tls(0, &full, [None; 2], None);
    let unknown = SessionInfo {
        client_random: [0; 32],
        client_hello: false,
        server_random: None,
        server_name: None,
        alpn_offered: Vec::new(),
        alpn: None,
        starttls: None,
        version: Some(ProtocolVersion(0x7f1c)),
        cipher_suite: None,
        ..full.clone()
    };
    eve.tls(0, &unknown, [None; 2], None);
    // A random like any other, where a hello had it.
    let zero = SessionInfo { client_hello: true, ..unknown.clone() };
    eve.tls(0, &zero, [None; 2], None);
    eve.session(0, &full, &end());
    let reason = EndReason::ResetByPolicy(SessionError::Integrity);
    eve.session(0, &unknown, &SessionEnd { reason, app_proto: None, ..end() });
    drop(eve);
    let lines = dir.lines();
    let tls = &lines[0]["tls"];
    assert_eq!(tls["sni"], "example.org");
    assert_eq!(tls["version"], "TLS 1.3");
    assert_eq!(tls["cipher_suite"], "TLS_AES_256_GCM_SHA384");
    assert_eq!(tls["client_random"], "ab".repeat(32));
    assert_eq!(tls["server_random"], "cd".repeat(32));
    assert_eq!(tls["client_alpns"][1], "\u{fffd}\"");
    assert_eq!(tls["server_alpns"], serde_json::json!(["h2"]));
    assert_eq!(tls["starttls"], "smtp");
    assert_eq!(tls["session_resumed"], true);
    assert_eq!(tls["hello_retry"], true);
    let tls = &lines[1]["tls"];
    assert_eq!(tls["version"], "TLS 1.3 draft-28");
    let absent =
        ["sni", "starttls", "client_random", "server_random", "client_alpns", "cipher_suite"];
    for absent in absent.into_iter().chain(["server_alpns"]) {
        assert!(tls.get(absent).is_none(), "{absent}");
    }
    assert_eq!(lines[2]["tls"]["client_random"], "0".repeat(64));
    let ended = &lines[3]["mmtls"];
    assert_eq!(ended["sni"], "example.org");
    assert_eq!(ended["key_status"], "shared");
    assert_eq!(ended["outcome"], "decrypted");
    assert_eq!(ended["end_reason"], "closed");
    assert_eq!(ended["app_proto"], "http");
    assert_eq!(ended["decrypted"]["records_toclient"], 2);
    assert_eq!(ended["decrypted"]["seen_toclient"], 3);
    assert_eq!(ended["decrypted"]["bytes_toserver"], 10);
    assert!(ended.get("server_alpns").is_none(), "the `tls` record has them");
    let ended = &lines[4]["mmtls"];
    assert_eq!(
        (&ended["end_reason"], &ended["error"]),
        (&"reset_by_policy".into(), &"integrity_failure".into())
    );
    assert!(ended.get("client_random").is_none() && ended.get("app_proto").is_none());
}

#[test]
fn accepts_what_became_known_after_the_handshake() {
    let dir = TempDir::new("eve-late");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    let info = SessionInfo { alpn: Some(b"h2".to_vec()), ..session() };
    let der = base16ct::lower::decode_vec(
        include_str!("../../../mmtls-middlebox/tests/data/rfc8448-server.txt")
            .split_whitespace()
            .collect::<String>(),
    );
    let server = crate::certificate::CertificateFacts::of(&der.unwrap());
    let client = crate::certificate::CertificateFacts::compressed(2);
    let certificates = [Some(&client), Some(&server)];
    eve.tls(0, &info, certificates, None);
    eve.session(0, &info, &SessionEnd { late: Late { certificates, alpn: true }, ..end() });
    drop(eve);
    let lines = dir.lines();
    for object in [&lines[0]["tls"], &lines[1]["mmtls"]] {
        assert_eq!(object["subject"], "CN=rsa");
        assert_eq!(object["server_alpns"][0], "h2");
        assert_eq!(object["client"], serde_json::json!({"certificate_compression": 2}));
    }
}

fn fingerprints() -> Fingerprints {
    let ja3 = |string: &str| Ja3 { hash: "0f".repeat(16).into(), string: string.into() };
    Fingerprints {
        ja3: Some(ja3("771,4865-4866,0-10,29,0")),
        ja4: Some("t13d1516h2_8daaf6152771_e5627efa2ab1".into()),
        ja3s: Some(ja3("771,4865,43-51")),
        is_cut: false,
    }
}

#[test]
fn accepts_fingerprints_in_suricatas_form() {
    let dir = TempDir::new("eve-fingerprints");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    eve.tls(0, &session(), [None; 2], Some(&fingerprints()));
    let client_only = Fingerprints { ja3s: None, ..fingerprints() };
    eve.tls(0, &session(), [None; 2], Some(&client_only));
    drop(eve);
    let lines = dir.lines();
    let tls = &lines[0]["tls"];
    let hash = "0f".repeat(16);
    let of = |string: &str| serde_json::json!({"hash": hash, "string": string});
    assert_eq!(tls["ja3"], of("771,4865-4866,0-10,29,0"));
    assert_eq!(tls["ja3s"], of("771,4865,43-51"));
    assert_eq!(tls["ja4"], "t13d1516h2_8daaf6152771_e5627efa2ab1");
    assert!(lines[1]["tls"].get("ja3s").is_none());
}

/// One line of each kind, with everything that there is.
fn every_kind(dir: &TempDir) -> Vec<Value> {
    let origin = Origin {
        host: Some("sensor\"1".into()),
        interfaces: vec!["left".into(), "right".into()],
        pcap_filename: Some("a\u{7f}.pcap".into()),
    };
    let mut first = EveWriter::create(&dir.0, &origin).unwrap();
    let mut eve = first.share();
    eve.tls(0, &session(), [None; 2], Some(&fingerprints()));
    eve.session(0, &session(), &end());
    let http = transaction("/", "curl");
    eve.http(0, key(), &http);
    let info = session();
    let refused = RefusedKeys {
        session: &info,
        sender: Some([192, 0, 2, 9].into()),
        why: KeyRefusal::WrongSender,
        now_ns: 0,
    };
    eve.keys_refused(&refused);
    eve.control(0, key(), "kill", Some(0));
    eve.anomaly(
        0,
        key(),
        Direction::ServerToClient,
        &Anomaly { kind: "stream", event: "early_fin", code: Some(-17) },
    );
    let alert = Alert {
        tx_id: Some(3),
        app_proto: "http",
        action: "blocked",
        verdict: "reset",
        gid: 1,
        signature_id: 1,
        rev: 1,
        signature: "EVIL",
        category: "http response body",
        severity: 1,
        offset: Some(9),
        metadata: Metadata::default(),
        http: Some(http),
    };
    eve.alert(0, key(), Direction::ServerToClient, &alert);
    for dropped in [Dropped::RULE, Dropped::uninspected("gap")] {
        eve.dropped(0, key(), Direction::ServerToClient, &dropped);
    }
    let file = FileInfo {
        filename: "/",
        gaps: false,
        state: "CLOSED",
        sha256: Some(&"ab".repeat(32)),
        stored: false,
        size: 12,
        tx_id: 3,
        app_proto: "http",
        http,
    };
    eve.fileinfo(0, key(), Direction::ServerToClient, &file);
    eve.flow(0, &flow(EndReason::Closed), FlowFacts::default());
    eve.stats(0, &serde_json::json!({"uptime": 1, "monitor": crate::summary::Summary::default(), "engine": {"flows": 1}}));
    eve.flush();
    first.flush();
    dir.lines()
}

#[test]
fn accepts_every_kind_of_event_with_where_it_comes_from() {
    let dir = TempDir::new("eve-kinds");
    let lines = every_kind(&dir);
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/eve.schema.json")).unwrap();
    let kinds = schema["properties"]["event_type"]["enum"].as_array().unwrap();
    for kind in kinds {
        assert!(lines.iter().any(|line| line["event_type"] == *kind), "{kind}");
    }
    let flow_id = lines[0]["flow_id"].as_u64().unwrap();
    for line in &lines {
        assert_eq!(line["host"], "sensor\"1");
        assert_eq!(line["pcap_filename"], "a\u{7f}.pcap");
        let of_flow = line["event_type"] != "stats";
        assert_eq!(line["in_iface"] == "right", of_flow, "{line}");
        assert_eq!(line["vlan"] == serde_json::json!([100, 7]), of_flow, "{line}");
        // Both are those of the session, of whatever event.
        assert_eq!(line["flow_id"] == flow_id, of_flow && line["event_type"] != "flow", "{line}");
    }
}

#[test]
fn refuses_events_that_are_not_as_the_schema_says() {
    let dir = TempDir::new("eve-wrong");
    for line in every_kind(&dir) {
        let kind = line["event_type"].as_str().unwrap().to_owned();
        let wrong = |what: &str, change: &dyn Fn(&mut Value)| {
            let mut line = line.clone();
            change(&mut line);
            assert!(!schema::faults(&line).is_empty(), "{what}: {line}");
        };
        wrong("an unknown member", &|it| it["more"] = 1.into());
        wrong("an unknown member of the object", &|it| it[&kind]["more"] = 1.into());
        wrong("no object", &|it| drop(it.as_object_mut().unwrap().remove(&kind)));
        wrong("another kind", &|it| it["event_type"] = "dns".into());
        wrong("no time", &|it| drop(it.as_object_mut().unwrap().remove("timestamp")));
        wrong("a time of another form", &|it| it["timestamp"] = "1970-01-01T00:00:01Z".into());
        wrong("a foreign object", &|it| {
            it[if kind == "drop" { "anomaly" } else { "drop" }] =
                serde_json::json!({"reason": "rules"});
        });
        let required = line[&kind].as_object().unwrap();
        for (name, value) in required {
            wrong("a list for a value", &|it| it[&kind][name] = serde_json::json!([[value]]));
        }
        if kind != "stats" {
            wrong("no flow", &|it| drop(it.as_object_mut().unwrap().remove("flow_id")));
            wrong("a flow beyond 51 bits", &|it| it["flow_id"] = (1u64 << 51).into());
        }
    }
}

#[test]
fn accepts_hostile_text_as_valid_json() {
    let dir = TempDir::new("eve-hostile");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    let agent = "a\"b\\c\n\u{0}\u{1b}[31m\u{7f}\u{2028}é";
    eve.http(1_500_000_000, key(), &transaction("/\"\r\n", agent));
    let counters = crate::summary::Summary { flows: 1, ..Default::default() };
    let counters = serde_json::json!({"uptime": 0, "monitor": counters, "engine": {}});
    eve.stats(1_500_000_000, &counters);
    drop(eve);
    let lines = dir.lines();
    assert_eq!(lines.len(), 2);
    let http = &lines[0];
    assert_eq!(http["timestamp"], "1970-01-01T00:00:01.500000+0000");
    assert_eq!(http["event_type"], "http");
    assert!(http["flow_id"].as_u64().is_some_and(|id| id > 0));
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
    assert_eq!(lines[1]["stats"]["monitor"]["flows"], 1);
    assert_eq!(serde_json::to_string(&Lossy(b"h\xff2")).unwrap(), "\"h\u{fffd}2\"");
}

#[test]
fn accepts_alerts_and_anomalies_from_the_sender() {
    let dir = TempDir::new("eve-alert");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    let alert = Alert {
        tx_id: Some(0),
        app_proto: "http",
        action: "blocked",
        verdict: "reset",
        gid: 1,
        signature_id: 2,
        rev: 1,
        signature: "EVIL|00|",
        category: "http response body",
        severity: 1,
        offset: Some(99),
        metadata: Metadata::default(),
        http: None,
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

fn flow(reason: EndReason) -> FlowEnd {
    FlowEnd {
        established: true,
        id: SessionId(9),
        client: "[2001:db8::1]:50000".parse().unwrap(),
        server: "[2001:db8::2]:443".parse().unwrap(),
        place: place(),
        tls: true,
        started_ns: 1_000_000_000,
        last_ns: 3_250_000_000,
        packets: [4, 5],
        bytes: [600, 7000],
        reason,
    }
}

#[test]
fn accepts_a_flow_and_appends_to_a_private_file() {
    let dir = TempDir::new("eve-flow");
    let flow = flow(EndReason::ResetByPeer(Direction::ClientToServer));
    for _ in 0..2 {
        EveWriter::create(&dir.0, &Origin::default()).unwrap().flow(
            4_000_000_000,
            &flow,
            FlowFacts { alerted: true, ..FlowFacts::default() },
        );
    }
    let lines = dir.lines();
    assert_eq!(lines.len(), 2);
    assert_ne!(lines[0]["flow_id"], lines[1]["flow_id"], "two runs number flows in different ways");
    let line = &lines[1];
    assert_eq!(line["src_ip"], "2001:db8::1");
    assert_eq!(line["app_proto"], "tls");
    assert_eq!(line["flow"]["bytes_toclient"], 7000);
    assert_eq!(line["flow"]["start"], "1970-01-01T00:00:01.000000+0000");
    assert_eq!(line["flow"]["age"], 2);
    assert_eq!(line["flow"]["alerted"], true);
    assert_eq!(line["flow"]["end_reason"], "reset_by_client");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.0), 0o700);
    assert_eq!(mode(&dir.0.join("eve.json")), 0o600);
}

#[test]
fn accepts_the_ends_of_flows_in_suricatas_words() {
    let dir = TempDir::new("eve-ends");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
    let policy = EndReason::ResetByPolicy(SessionError::MissingKeys);
    let cases = [
        (EndReason::Closed, false, "closed", "timeout"),
        (EndReason::Closed, true, "bypassed", "timeout"),
        (EndReason::ResetByPeer(Direction::ServerToClient), false, "closed", "timeout"),
        (EndReason::TimedOut, false, "established", "timeout"),
        (EndReason::TimedOut, true, "bypassed", "timeout"),
        (EndReason::Replaced, false, "established", "tcp_reuse"),
        (EndReason::Shutdown, false, "established", "shutdown"),
        (EndReason::ResetByHandler, false, "closed", "forced"),
        (policy, true, "closed", "forced"),
    ];
    for (reason, bypassed, ..) in cases {
        eve.flow(0, &flow(reason), FlowFacts { bypassed, ..FlowFacts::default() });
    }
    let facts = FlowFacts { closed: true, ..FlowFacts::default() };
    eve.flow(0, &flow(EndReason::Shutdown), facts);
    let unanswered = FlowEnd { tls: false, packets: [3, 0], ..flow(EndReason::TimedOut) };
    eve.flow(0, &unanswered, FlowFacts::default());
    drop(eve);
    let lines = dir.lines();
    for (line, (end, _, state, reason)) in lines.iter().zip(cases) {
        let flow = &line["flow"];
        assert_eq!((&flow["state"], &flow["reason"]), (&state.into(), &reason.into()), "{end:?}");
        assert_eq!(flow["end_reason"], end.name());
        assert_eq!(flow["action"] == "drop", reason == "forced", "{end:?}");
        assert_eq!(flow["error"] == "missing_keys", end == policy, "{end:?}");
    }
    let states: Vec<_> = lines[cases.len()..].iter().map(|it| &it["flow"]["state"]).collect();
    assert_eq!(states, ["closed", "new"]);
}

/// Not a benchmark, a guard: three records per session must stay far below the session's budget.
#[test]
#[ignore = "prints a speed; run with --release -- --ignored --nocapture"]
fn accepts_many_records_per_second() {
    let dir = TempDir::new("eve-speed");
    let mut eve = EveWriter::create(&dir.0, &Origin::default()).unwrap();
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
