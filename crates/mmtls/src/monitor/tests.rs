//! Tests of the parts that need no engine; whole sessions are tested with it.

use mmtls_inspect::{AppProto, Uninspected};

use super::*;
use crate::capture::CaptureConfig;
use crate::eve::tests::{TempDir, session};
use crate::patterns::{PatternAction, PatternConfig};
use crate::rules::RulesConfig;

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: example.org\r\n\r\n";
const POST: &[u8] = b"POST /page HTTP/1.1\r\nHost: example.org\r\nContent-Length: 8\r\n\r\nsome";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome EVIL";

fn monitor(dir: &TempDir, action: PatternAction) -> Monitor {
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("patterns");
    std::fs::write(&file, "# list\nharmless\n|45|VIL\n").unwrap();
    let resets = (action == PatternAction::Reset).then_some(Uninspected::Malformed);
    Monitor::new(&MonitorConfig {
        eve_dir: Some(dir.0.clone()),
        stops: Stops::Everything,
        streams_dir: Some(dir.0.join("streams")),
        uninspected_resets: resets.into_iter().collect(),
        patterns: Some(PatternConfig { file, action }),
        ..MonitorConfig::default()
    })
    .unwrap()
}

#[test]
fn accepts_a_session_and_reports_it() {
    for (action, reset) in [(PatternAction::Alert, false), (PatternAction::Reset, true)] {
        let dir = TempDir::new(&format!("monitor-{reset}"));
        let mut monitor = monitor(&dir, action);
        monitor.set_now(1_000_000_000);
        let (info, mut state) = (session(), MonitorState::default());
        assert!(!monitor.inspect(&info, &mut state, Direction::ClientToServer, GET));
        let verdict = monitor.inspect(&info, &mut state, Direction::ServerToClient, RESPONSE);
        assert_eq!(verdict, reset);
        assert!(monitor.flush().is_empty());
        let lines = dir.lines();
        let kinds: Vec<_> = lines.iter().map(|line| line["event_type"].as_str().unwrap()).collect();
        let expected = if reset { &["alert", "http", "drop"][..] } else { &["alert", "http"] };
        assert_eq!(kinds, expected);
        let alert = &lines[0];
        assert_eq!(alert["event_type"], "alert");
        assert_eq!(alert["alert"]["signature"], "|45|VIL");
        assert_eq!(alert["alert"]["signature_id"], 2);
        assert_eq!(alert["alert"]["offset"], 9);
        assert_eq!(alert["http"]["url"], "/page");
        assert_eq!(alert["http"]["status"], 200);
        assert_eq!(alert["alert"]["action"], if reset { "blocked" } else { "allowed" });
        assert_eq!(alert["alert"]["verdict"], if reset { "reset" } else { "alert" });
        assert_eq!(lines[1]["http"]["hostname"], "example.org");
        assert_eq!(lines[1]["http"]["length"], 9);
        assert_eq!(monitor.summary().alerts, 1);
        assert_eq!(monitor.summary().http_requests, 1);
        let stream = dir.0.join("streams").join(format!("{}.server", "ab".repeat(32)));
        assert_eq!(std::fs::read(stream).unwrap(), RESPONSE);
    }
}

/// A response whose body the client may find elsewhere cannot be searched.
#[test]
fn refuses_responses_that_hide_their_body_where_patterns_reset() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (action, reset) in [(PatternAction::Alert, false), (PatternAction::Reset, true)] {
        let bodies = ["0x2\r\nok\r\n", "zz", "2\r\nok\n", "2\nok\r\n"];
        for (number, body) in bodies.into_iter().enumerate() {
            let hides = number < 3;
            let dir = TempDir::new(&format!("monitor-hides-{reset}-{number}"));
            let mut monitor = monitor(&dir, action);
            let (info, mut state) = (session(), MonitorState::default());
            let response = format!("{head}{body}");
            monitor.inspect(&info, &mut state, Direction::ClientToServer, GET);
            let verdict =
                monitor.inspect(&info, &mut state, Direction::ServerToClient, response.as_bytes());
            assert_eq!(verdict, reset && hides, "{body:?}");
            // Nor before the client has asked.
            let mut state = MonitorState::default();
            let early = "HTTP/1.1 2x0 OK\r\n\r\n".as_bytes();
            assert!(!monitor.inspect(&info, &mut state, Direction::ServerToClient, early));
            let verdict = monitor.inspect(&info, &mut state, Direction::ClientToServer, GET);
            assert_eq!(verdict, reset);
        }
        // A server that greets, as mail servers do, hides nothing.
        let dir = TempDir::new(&format!("monitor-greets-{reset}"));
        let mut monitor = monitor(&dir, action);
        let (info, mut state) = (session(), MonitorState::default());
        let greeting = b"220 mail.test ESMTP\r\n";
        assert!(!monitor.inspect(&info, &mut state, Direction::ServerToClient, greeting));
    }
}

#[test]
fn names_holes_in_streams_and_nothing_else() {
    let dir = TempDir::new("monitor-holes");
    let mut monitor = monitor(&dir, PatternAction::Alert);
    let (info, mut state) = (session(), MonitorState::default());
    let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
    // Before anything was decrypted there is nothing that could have a hole.
    monitor.copies.hole(&info, &mut state.copies, 0, client, SessionError::EarlyDataNotInspected);
    let holes = dir.0.join("streams").join(format!("{}.holes", "ab".repeat(32)));
    assert!(!holes.exists());
    monitor.inspect(&info, &mut state, client, b"rest");
    monitor.inspect(&info, &mut state, server, b"an answer");
    monitor.copies.hole(&info, &mut state.copies, 0, server, SessionError::ConflictingOverlap);
    monitor.copies.hole(&info, &mut state.copies, 0, server, SessionError::LostSynchronisation);
    let expected = "client 0 early_data_not_inspected\nserver 9 lost_synchronisation\n";
    assert_eq!(std::fs::read_to_string(holes).unwrap(), expected);
}

#[test]
fn accepts_other_protocols_once_and_stays_quiet() {
    let dir = TempDir::new("monitor-other");
    let mut monitor = monitor(&dir, PatternAction::Alert);
    let (info, mut state) = (session(), MonitorState::default());
    for bytes in [&b"\x16\x03\x01\x02\0"[..], b"more", GET] {
        monitor.inspect(&info, &mut state, Direction::ClientToServer, bytes);
    }
    assert_eq!(state.inspection.unwrap().protocol(), Some(AppProto::Tls));
    assert_eq!(monitor.summary().not_http, 1);
    assert_eq!(monitor.summary().http_requests, 0);
}

/// The body of one stream, cut by another's, over two records.
#[test]
fn accepts_http2_and_reports_it_as_suricata_does() {
    let dir = TempDir::new("monitor-h2");
    let mut monitor = monitor(&dir, PatternAction::Reset);
    let (info, mut state) = (session(), MonitorState::default());
    let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
    // As nginx does, before the client has said anything.
    assert!(!monitor.inspect(&info, &mut state, server, b"\0\0\0\x04\0\0\0\0\0"));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    assert!(!monitor.inspect(&info, &mut state, client, preface));
    for stream in [1, 3] {
        let head =
            [b"\0\0\x0c\x01\x05\0\0\0", &[stream][..], b"\x82\x87\0\x05:path\x02/a"].concat();
        assert!(!monitor.inspect(&info, &mut state, client, &head));
        let head = [b"\0\0\x01\x01\x04\0\0\0", &[stream][..], b"\x88"].concat();
        assert!(!monitor.inspect(&info, &mut state, server, &head));
    }
    assert!(!monitor.inspect(&info, &mut state, server, b"\0\0\x02\0\0\0\0\0\x01EV"));
    assert!(!monitor.inspect(&info, &mut state, server, b"\0\0\x04\0\x01\0\0\0\x03IL.."));
    assert!(monitor.inspect(&info, &mut state, server, b"\0\0\x02\0\x01\0\0\0\x01IL"));
    monitor.flush();
    let lines = dir.lines();
    let kinds: Vec<_> = lines.iter().map(|line| line["event_type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["http", "alert", "http", "drop"]);
    let stream =
        |number: u32| serde_json::json!({"stream_id": number, "request": {}, "response": {}});
    assert_eq!(lines[0]["http"]["http2"], stream(3));
    assert_eq!((&lines[1]["app_proto"], &lines[1]["http"]["url"]), (&"http2".into(), &"/a".into()));
    assert_eq!(
        (&lines[2]["http"]["version"], &lines[2]["http"]["status"]),
        (&"2".into(), &200.into())
    );
    assert_eq!(lines[2]["http"]["protocol"], "HTTP/2");
    assert_eq!(monitor.summary().not_http, 0);
}

#[test]
fn reports_a_stream_of_http2_as_its_client_resets_it_and_searches_what_still_comes() {
    let dir = TempDir::new("monitor-h2-reset");
    let mut monitor = monitor(&dir, PatternAction::Reset);
    let (info, mut state) = (session(), MonitorState::default());
    let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
    let kinds = || dir.lines().iter().map(|it| it["event_type"].clone()).collect::<Vec<_>>();
    let request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
        \0\0\x0c\x01\x05\0\0\0\x01\x82\x87\0\x05:path\x02/a";
    assert!(!monitor.inspect(&info, &mut state, client, request));
    let response = b"\0\0\x01\x01\x04\0\0\0\x01\x88\0\0\x02\0\0\0\0\0\x01EV";
    assert!(!monitor.inspect(&info, &mut state, server, response));
    let reset = b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08";
    assert!(!monitor.inspect(&info, &mut state, client, reset));
    monitor.flush();
    assert_eq!(kinds(), ["http"]);
    assert!(monitor.inspect(&info, &mut state, server, b"\0\0\x02\0\x01\0\0\0\x01IL"));
    monitor.flush();
    assert_eq!(kinds(), ["http", "alert", "drop"]);
    assert_eq!(dir.lines()[1]["http"]["url"], "/a");
}

#[test]
fn accepts_stats_with_the_owners_counters() {
    let dir = TempDir::new("monitor-stats");
    let mut monitor = monitor(&dir, PatternAction::Alert);
    let summary = monitor.summary().clone();
    monitor.write_stats(Duration::from_secs(5), &summary, &serde_json::json!({"frames": 3}), &[]);
    monitor.flush();
    let line = &dir.lines()[0];
    assert_eq!(line["event_type"], "stats");
    assert_eq!(line["stats"]["uptime"], 5);
    assert_eq!(line["stats"]["monitor"]["decrypted"], 0);
    assert_eq!(line["stats"]["engine"]["frames"], 3);
}

#[test]
fn refuses_to_start_without_patterns_or_a_directory() {
    let patterns =
        Some(PatternConfig { file: "/nonexistent".into(), action: PatternAction::Alert });
    let error = Monitor::new(&MonitorConfig { patterns, ..MonitorConfig::default() });
    assert!(matches!(error.err(), Some(MonitorError::Patterns(_))));
    let config = MonitorConfig { eve_dir: Some("/dev/null/x".into()), ..MonitorConfig::default() };
    let error = Monitor::new(&config).err().unwrap();
    assert!(error.to_string().starts_with("log directory /dev/null/x: "));
}

#[test]
fn accepts_a_limit_per_response() {
    let config = MonitorConfig { inspect_limit_bytes: Some(5), ..MonitorConfig::default() };
    let mut monitor = Monitor::new(&config).unwrap();
    let (info, mut state) = (session(), MonitorState::default());
    monitor.inspect(&info, &mut state, Direction::ClientToServer, GET);
    for (bytes, past) in [(&RESPONSE[..42], false), (&RESPONSE[42..45], true)] {
        monitor.inspect(&info, &mut state, Direction::ServerToClient, bytes);
        assert_eq!(monitor.past_limit(&state).is_some(), past, "{bytes:?}");
    }
}

/// What follows from the rules follows from those that are in force.
#[test]
fn accepts_rules_that_come_to_drop_and_stops_what_they_cannot_judge() {
    let dir = TempDir::new("monitor-exchange");
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("a.rules");
    let write = |action: &str| {
        std::fs::write(&file, format!("{action} http any any -> any any (sid:1;)\n")).unwrap();
    };
    write("alert");
    let rules = RulesConfig { files: vec![file.clone()], ..RulesConfig::default() };
    let config = MonitorConfig {
        eve_dir: Some(dir.0.clone()),
        stops: Stops::Everything,
        rules: Some(rules),
        uninspected_resets_beside_rules: [Uninspected::Malformed].into(),
        ..MonitorConfig::default()
    };
    let mut first = Monitor::new(&config).unwrap();
    let mut second = first.share();
    let is_reset = |monitor: &mut Monitor| {
        let (info, mut state) = (session(), MonitorState::default());
        let server = Direction::ServerToClient;
        // Whoever waits for the request judges no answer.
        monitor.inspect(&info, &mut state, Direction::ClientToServer, b"GET /");
        monitor.inspect(&info, &mut state, server, b"no head")
    };
    for (action, reset) in [("alert", false), ("drop", true), ("alert", false)] {
        write(action);
        let (reloader, rules) = (first.reloader().unwrap(), config.rules.as_ref().unwrap());
        reloader.exchange(rules.clone(), reloader.read(rules).unwrap());
        assert_eq!([is_reset(&mut first), is_reset(&mut second)], [reset; 2], "{action}");
    }
}

/// Only what a transaction under way goes by stays in memory.
#[test]
fn keeps_no_version_of_the_rules_for_a_session_that_is_silent_or_over() {
    let dir = TempDir::new("monitor-versions");
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("a.rules");
    std::fs::write(&file, "alert http any any -> any any (http.uri; content:\"/page\"; sid:1;)\n")
        .unwrap();
    let rules = RulesConfig { files: vec![file], ..RulesConfig::default() };
    let config = MonitorConfig { rules: Some(rules.clone()), ..MonitorConfig::default() };
    let mut monitor = Monitor::new(&config).unwrap();
    let reloader = monitor.reloader().unwrap();
    let info = session();
    let [mut silent, mut waits, mut over] = <[MonitorState; 3]>::default();
    for state in [&mut silent, &mut over, &mut waits] {
        monitor.inspect(&info, state, Direction::ClientToServer, GET);
        monitor.inspect(&info, state, Direction::ServerToClient, RESPONSE);
    }
    monitor.inspect(&info, &mut waits, Direction::ClientToServer, POST);
    over.end();
    let exchanged = || reloader.exchange(rules.clone(), reloader.read(&rules).unwrap()).versions;
    let freed = || {
        reloader.free_unused();
        assert!(!reloader.has_unused());
        reloader.in_force().versions
    };
    assert_eq!(reloader.in_force().versions, 1);
    assert_eq!(exchanged(), 2);
    monitor.take_over_rules(&mut over);
    monitor.take_over_rules(&mut silent);
    monitor.take_over_rules(&mut waits);
    assert_eq!(freed(), 2, "its request comes");
    // What came between is nobody's.
    exchanged();
    monitor.take_over_rules(&mut silent);
    assert!(reloader.has_unused());
    assert_eq!(freed(), 2);
    monitor.inspect(&info, &mut waits, Direction::ClientToServer, b"body");
    assert_eq!(freed(), 1, "it has come, and nobody waits for the session to say more");
}

#[test]
fn rules_in_tls_know_what_was_said_in_the_clear_and_limits_are_counted() {
    let dir = TempDir::new("monitor-starttls");
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = dir.0.join("test.rules");
    let rules = "alert tcp any any -> any any (content:\"STARTTLS\"; flowbits:set,s; noalert; sid:1;)\n\
        drop http any any -> any any (http.uri; content:\"/page\"; flowbits:isset,s; sid:2;)\n\
        drop http any any -> any any (http.uri; pcre:\"/^\\/(a|aa)+$/\"; sid:3;)\n";
    std::fs::write(&file, rules).unwrap();
    let rules = Some(RulesConfig { files: vec![file], ..RulesConfig::default() });
    let config = MonitorConfig { stops: Stops::Everything, rules, ..MonitorConfig::default() };
    let info = session();
    for asks in [true, false] {
        let mut monitor = Monitor::new(&config).unwrap();
        let (mut before, mut state) = (MonitorState::default(), MonitorState::default());
        let text = if asks { "STARTTLS\r\n" } else { "QUIT\r\n" };
        monitor.inspect(&info, &mut before, Direction::ClientToServer, text.as_bytes());
        monitor.tls_behind_cleartext(&info, &before, &mut state);
        let verdict = monitor.inspect(&info, &mut state, Direction::ClientToServer, GET);
        assert_eq!(verdict, asks);
        assert_eq!(monitor.summary().expression_limits, 0);
        let mut state = MonitorState::default();
        let long = format!("GET /{}b HTTP/1.1\r\n\r\n", "a".repeat(60));
        monitor.inspect(&info, &mut state, Direction::ClientToServer, long.as_bytes());
        assert_eq!(monitor.summary().expression_limits, 1);
    }
}

/// What is between the same ends then is another connection; before, it is the session's.
#[test]
fn accepts_packets_of_a_session_until_it_ends_if_the_capture_has_taken_it() {
    let dir = TempDir::new("monitor-capture");
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = Some(dir.0.join("c"));
    let capture = CaptureConfig { file, ..CaptureConfig::default() };
    let mut monitor = Monitor::new(&MonitorConfig { capture, ..MonitorConfig::default() }).unwrap();
    let (info, mut state) = (session(), MonitorState::default());
    let (source, destination) = (info.client, info.server);
    let syn = TcpFrame { now_ns: 1, source, destination, opens: true, bytes: b"SYN" };
    monitor.copies.captured_session(&info, &mut state.copies);
    let captured = |monitor: &mut Monitor| {
        monitor.copies.frame(&syn);
        monitor.finish();
        monitor.summary().capture_frames
    };
    assert_eq!(captured(&mut monitor), 1);
    let why = EndReason::Closed;
    // One that the capture had no room for.
    monitor.copies.end(&info, &mut MonitorState::default().copies, 1, why);
    assert_eq!(captured(&mut monitor), 2);
    monitor.copies.end(&info, &mut state.copies, 1, why);
    assert_eq!(captured(&mut monitor), 2);
}
