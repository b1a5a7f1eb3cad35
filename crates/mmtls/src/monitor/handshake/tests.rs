//! Handshakes through the engine into the monitor: what rules on fingerprints stop, and when.

use mmtls_engine::tls::{ContentType, MAX_LISTED};
use mmtls_engine::{Config, Engine, FrameInput, Link, Policy, PortId, Verdict};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{client_hello, plain, server_hello};
use serde_json::Value;

use super::*;
use crate::eve::tests::TempDir;
use crate::monitor::{MonitorConfig, Stops};
use crate::rules::RulesConfig;

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;
/// Of `771,4865-4866-4867,0-43-65520,,`.
const JA3: &str = "d496ac1ca8fac6d61a4481c726da0b04";
const JA4: &str = "t13d030300_55b375c5d22e_6138cc2326a6";
/// Of `771,4865,43`.
const JA3S: &str = "cce84e7a8b742462e40afb585a3e3ccc";

/// A connection, and what came of it.
struct Wire {
    engine: Engine<Monitor>,
    ends: Endpoints,
    now_ns: u64,
    sent: [u64; 2],
}

impl Wire {
    /// Opens a connection under rules; sessions without keys and those that are not followed pass.
    fn open(dir: &TempDir, rules: &str, supports_all: bool) -> Self {
        Self::writing(true, dir, rules, supports_all)
    }

    fn writing(fingerprints: bool, dir: &TempDir, rules: &str, supports_all: bool) -> Self {
        std::fs::create_dir_all(&dir.0).unwrap();
        let file = dir.0.join("a.rules");
        std::fs::write(&file, rules).unwrap();
        let monitor_config = MonitorConfig {
            eve_dir: Some(dir.0.clone()),
            stops: Stops::Everything,
            fingerprints,
            rules: Some(RulesConfig { files: vec![file], ..RulesConfig::default() }),
            uninspected_resets_beside_rules: [Uninspected::OverCap].into(),
            ..MonitorConfig::default()
        };
        let mut config = Config::new(Policy::Bypass);
        config.verify_checksums = false;
        config.tell_hellos = monitor_config.wants_hellos();
        if !supports_all {
            config.supports = |_, _| false;
        }
        let ends = Endpoints {
            client: "10.0.0.2:40000".parse().unwrap(),
            server: "10.0.0.3:443".parse().unwrap(),
            initial: [7, 8],
        };
        let monitor = Monitor::new(&monitor_config).unwrap();
        let engine = Engine::new(config, monitor);
        let mut wire = Self { engine, ends, now_ns: 1, sent: [0; 2] };
        wire.frame(CLIENT, -1, 0, flag::SYN, &[]);
        wire.frame(SERVER, -1, 0, flag::SYN | flag::ACK, &[]);
        wire.frame(CLIENT, 0, 0, flag::ACK, &[]);
        wire
    }

    fn frame(&mut self, way: Direction, at: i64, ack: u64, flags: u8, bytes: &[u8]) -> Verdict {
        self.now_ns += 1000;
        let bytes = &self.ends.frame(way, at, ack, flags, bytes);
        let port = PortId(way.index() as u8);
        let link = Link::Ethernet;
        let input = FrameInput { port, link, bytes, memory: None, checksum_trusted: true };
        let verdict = self.engine.handle_frame(self.now_ns, &input);
        while self.engine.poll_output().is_some() {}
        verdict
    }

    /// Sends a handshake message.
    fn say(&mut self, way: Direction, message: &[u8]) -> Verdict {
        let record = plain(ContentType::HANDSHAKE, message);
        let (at, ack) = (self.sent[way.index()], self.sent[way.reverse().index()]);
        self.sent[way.index()] += record.len() as u64;
        self.frame(way, i64::try_from(at).unwrap(), ack, flag::ACK, &record)
    }

    /// The client's hello, and the server's, with the verdicts about them.
    fn hellos(&mut self) -> [Verdict; 2] {
        let hello = client_hello(&[1; 32], "server.test", 9);
        [self.say(CLIENT, &hello), self.say(SERVER, &server_hello(&[2; 32], 0x1301))]
    }

    fn end(mut self, dir: &TempDir) -> Vec<Value> {
        self.engine.finish();
        let mut monitor = self.engine.into_handler();
        assert!(monitor.flush().is_empty());
        dir.lines()
    }
}

fn sids(lines: &[Value]) -> Vec<u64> {
    lines.iter().filter_map(|line| line["alert"]["signature_id"].as_u64()).collect()
}

fn rule(action: &str, options: &str, sid: u32) -> String {
    format!("{action} tls any any -> any any ({options} sid:{sid};)\n")
}

#[test]
fn writes_fingerprints_into_the_record_of_the_handshake() {
    for supports_all in [true, false] {
        let dir = TempDir::new(&format!("fingerprints-eve-{supports_all}"));
        let mut wire = Wire::open(&dir, "", supports_all);
        assert_eq!(wire.hellos(), [Verdict::Forward; 2]);
        let lines = wire.end(&dir);
        let tls = &lines.iter().find(|line| line["event_type"] == "tls").unwrap()["tls"];
        let string = "771,4865-4866-4867,0-43-65520,,";
        assert_eq!(tls["ja3"], serde_json::json!({"hash": JA3, "string": string}));
        assert_eq!(tls["ja3s"], serde_json::json!({"hash": JA3S, "string": "771,4865,43"}));
        assert_eq!(tls["ja4"], JA4);
    }
}

#[test]
fn makes_fingerprints_that_rules_look_into_and_no_others_where_none_are_to_be_written() {
    for (options, expected) in [("tls.sni;", false), ("ja4.hash;", true)] {
        let dir = TempDir::new(&format!("fingerprints-off-{expected}"));
        let rules = rule("alert", &format!("{options} content:\"t\";"), 1);
        let mut wire = Wire::writing(false, &dir, &rules, true);
        assert_eq!(wire.hellos(), [Verdict::Forward; 2]);
        let lines = wire.end(&dir);
        assert_eq!(sids(&lines), [1]);
        let is_written = |line: &Value| line["tls"].get("ja3").is_some();
        assert_eq!(lines.iter().any(is_written), expected, "{options}");
    }
    let written =
        MonitorConfig { eve_dir: Some("l".into()), fingerprints: true, ..Default::default() };
    assert!(written.wants_hellos());
    assert!(!MonitorConfig { fingerprints: false, ..written.clone() }.wants_hellos());
    assert!(!MonitorConfig { eve_dir: None, ..written }.wants_hellos());
}

#[test]
fn refuses_a_client_at_its_hello_and_a_server_at_its_answer() {
    let client = |options: &str| rule("drop", options, 1);
    for (rules, expected) in [
        (client(&format!("ja3.hash; content:\"{}\";", JA3.to_uppercase())), 0),
        (client("ja3.string; content:\"4866-4867\";"), 0),
        (client(&format!("ja4.hash; content:\"{JA4}\";")), 0),
        (client(&format!("ja3s.hash; content:\"{JA3S}\";")), 1),
        (client("ja3s.string; content:\",4865,\"; flow:to_client;"), 1),
        // The version comes with the answer.
        (client(&format!("ja3.hash; content:\"{JA3}\"; tls.version:1.3;")), 1),
        (client("ja3.hash; content:\"d496ac1ca8fac6d61a4481c726da0b05\";"), 2),
    ] {
        let dir = TempDir::new("fingerprints-drop");
        let mut wire = Wire::open(&dir, &rules, true);
        let verdicts =
            [[Verdict::Drop; 2], [Verdict::Forward, Verdict::Drop], [Verdict::Forward; 2]];
        assert_eq!(wire.hellos(), verdicts[expected], "{rules}");
        let found = if expected < 2 { vec![1] } else { vec![] };
        assert_eq!(sids(&wire.end(&dir)), found, "{rules}");
    }
}

/// A client that offers nothing that is followed is known all the same.
#[test]
fn completes_what_is_asked_of_a_client_whose_session_is_not_followed() {
    let rules = [
        rule("alert", &format!("ja3.hash; content:\"{JA3}\";"), 1),
        rule("alert", "ja4.hash; content:\"t13\"; startswith; tls.version:1.3;", 2),
        // That it shows no certificate is known when nothing more comes.
        rule("alert", "ja3.string; content:\"771,\"; tls.cert_subject; absent;", 3),
        rule("alert", "ja3s.string; content:\"771,\"; tls.cert_subject; absent;", 4),
    ];
    for (supports_all, expected) in [(false, vec![1, 2, 3]), (true, vec![1, 2])] {
        let dir = TempDir::new(&format!("fingerprints-unsupported-{supports_all}"));
        let mut wire = Wire::open(&dir, &rules.concat(), supports_all);
        assert_eq!(wire.hellos(), [Verdict::Forward; 2]);
        let mut found = sids(&wire.end(&dir));
        found.sort_unstable();
        assert_eq!(found, expected);
    }
    let dir = TempDir::new("fingerprints-unsupported-drop");
    let rules = rule("drop", "ja3.string; content:\"771,\"; tls.cert_subject; absent;", 3);
    let mut wire = Wire::open(&dir, &rules, false);
    assert_eq!(wire.hellos(), [Verdict::Forward, Verdict::Drop]);
}

/// As long as nothing can be stopped by what is left out, nothing is.
#[test]
fn refuses_hellos_that_list_more_than_is_looked_at() {
    let suites: Vec<u8> = (0x1000..).take(MAX_LISTED + 1).flat_map(u16::to_be_bytes).collect();
    let len = u16::try_from(suites.len()).unwrap().to_be_bytes();
    let body = [&[3, 3][..], &[1; 32], &[0], &len, &suites, &[1, 0]].concat();
    let [_, len @ ..] = u32::try_from(body.len()).unwrap().to_be_bytes();
    let hello = [&[1][..], &len, &body].concat();
    for (rules, verdict) in [
        (rule("drop", "ja3.string; content:\"none\";", 1), Verdict::Drop),
        (rule("alert", "ja3.string; content:\"none\";", 1), Verdict::Forward),
        (rule("drop", "tls.sni; content:\"none\";", 1), Verdict::Forward),
    ] {
        let dir = TempDir::new("fingerprints-cut");
        let mut wire = Wire::open(&dir, &rules, true);
        assert_eq!(wire.say(CLIENT, &hello), verdict, "{rules}");
        let lines = wire.end(&dir);
        let dropped = lines.iter().any(|line| line["drop"]["cause"] == "over_cap");
        assert_eq!(dropped, verdict == Verdict::Drop, "{rules}");
        let string = lines.iter().find_map(|line| line["tls"]["ja3"]["string"].as_str()).unwrap();
        assert_eq!(string.split('-').count(), MAX_LISTED);
    }
}
