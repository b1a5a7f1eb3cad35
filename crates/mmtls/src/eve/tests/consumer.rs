//! A program that reads Suricata's `eve.json` reads ours. Its types are those that Suricata's user guide gives to the fields
//! (the chapter on the EVE JSON format); the lines of `suricata.jsonl` are made after that guide.

#![allow(dead_code, reason = "that a field has this type is what is tested")]

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Event {
    timestamp: String,
    event_type: String,
    flow_id: Option<u64>,
    pcap_cnt: Option<u64>,
    pcap_filename: Option<String>,
    in_iface: Option<String>,
    #[serde(default)]
    vlan: Vec<u16>,
    src_ip: Option<IpAddr>,
    src_port: Option<u16>,
    dest_ip: Option<IpAddr>,
    dest_port: Option<u16>,
    proto: Option<String>,
    community_id: Option<String>,
    app_proto: Option<String>,
    app_proto_orig: Option<String>,
    tx_id: Option<u64>,
    direction: Option<String>,
    host: Option<String>,
    alert: Option<AlertBody>,
    anomaly: Option<AnomalyBody>,
    http: Option<HttpBody>,
    tls: Option<Tls>,
    fileinfo: Option<File>,
    flow: Option<Flow>,
    tcp: Option<Tcp>,
    drop: Option<Drop>,
    stats: Option<Stats>,
}

#[derive(Deserialize)]
struct AlertBody {
    action: String,
    gid: u32,
    signature_id: u32,
    rev: u32,
    signature: String,
    category: String,
    severity: u8,
    #[serde(default)]
    metadata: HashMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct AnomalyBody {
    r#type: String,
    event: String,
    layer: Option<String>,
    app_proto: Option<String>,
}

#[derive(Deserialize)]
struct HttpBody {
    hostname: Option<String>,
    url: Option<String>,
    http_user_agent: Option<String>,
    http_content_type: Option<String>,
    http_refer: Option<String>,
    http_method: Option<String>,
    protocol: Option<String>,
    status: Option<u16>,
    redirect: Option<String>,
    length: u64,
}

#[derive(Deserialize)]
struct Fingerprint {
    hash: String,
    string: String,
}

#[derive(Deserialize)]
struct Tls {
    version: Option<String>,
    sni: Option<String>,
    subject: Option<String>,
    issuerdn: Option<String>,
    serial: Option<String>,
    fingerprint: Option<String>,
    notbefore: Option<String>,
    notafter: Option<String>,
    subjectaltname: Option<Vec<String>>,
    session_resumed: Option<bool>,
    ja3: Option<Fingerprint>,
    ja3s: Option<Fingerprint>,
    ja4: Option<String>,
    client_alpns: Option<Vec<String>>,
    server_alpns: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct File {
    filename: String,
    gaps: bool,
    state: String,
    stored: bool,
    size: u64,
    tx_id: u64,
    sha256: Option<String>,
}

#[derive(Deserialize)]
struct Flow {
    pkts_toserver: u64,
    pkts_toclient: u64,
    bytes_toserver: u64,
    bytes_toclient: u64,
    start: String,
    end: String,
    age: u64,
    state: String,
    reason: String,
    alerted: bool,
    action: Option<String>,
}

#[derive(Deserialize)]
struct Tcp {
    tcp_flags: Option<String>,
    state: Option<String>,
}

#[derive(Deserialize)]
struct Drop {
    reason: String,
    len: Option<u16>,
}

#[derive(Deserialize)]
struct Stats {
    uptime: u64,
}

impl Event {
    /// What a consumer makes of a line.
    #[track_caller]
    fn read(line: &str) -> Self {
        let event: Self =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let time = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%.6f%z", &event.timestamp);
        time.unwrap_or_else(|error| panic!("{error}: {line}"));
        if event.event_type != "stats" {
            assert!(event.flow_id.is_some() && event.src_ip.is_some(), "{line}");
            assert!(event.dest_ip.is_some() && event.proto.as_deref() == Some("TCP"), "{line}");
        }
        let own = match event.event_type.as_str() {
            "alert" => {
                let action = event.alert.as_ref().map(|alert| alert.action.as_str());
                matches!(action, Some("allowed" | "blocked"))
            }
            "anomaly" => {
                let kind = event.anomaly.as_ref().map(|anomaly| anomaly.r#type.as_str());
                matches!(kind, Some("stream" | "applayer" | "decode"))
            }
            "http" => event.http.is_some() && event.tx_id.is_some(),
            "tls" => event.tls.is_some(),
            "fileinfo" => {
                let state = event.fileinfo.as_ref().map(|file| file.state.as_str());
                event.http.is_some() && matches!(state, Some("CLOSED" | "TRUNCATED" | "UNKNOWN"))
            }
            "flow" => event.flow.as_ref().is_some_and(|flow| {
                matches!(flow.state.as_str(), "new" | "established" | "closed" | "bypassed")
                    && matches!(
                        flow.reason.as_str(),
                        "timeout" | "forced" | "shutdown" | "tcp_reuse"
                    )
            }),
            "drop" => event.drop.is_some(),
            "stats" => event.stats.is_some(),
            // Which Suricata has not: a consumer passes over kinds that it does not know.
            _ => true,
        };
        assert!(own, "{line}");
        event
    }
}

#[test]
fn accepts_the_same_consumer_for_suricatas_lines_and_for_ours() {
    let dir = TempDir::new("eve-consumer");
    let kinds = |lines: Vec<Event>| -> std::collections::BTreeSet<String> {
        lines.into_iter().map(|it| it.event_type).collect()
    };
    let theirs = kinds(include_str!("suricata.jsonl").lines().map(Event::read).collect());
    let ours: Vec<String> = every_kind(&dir).iter().map(Value::to_string).collect();
    let ours = kinds(ours.iter().map(|line| Event::read(line)).collect());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let own: Vec<_> = ours.difference(&theirs).map(String::as_str).collect();
    assert_eq!(own, ["control", "keys", "mmtls"], "all others are Suricata's");
}
