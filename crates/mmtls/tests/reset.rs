//! A forbidden response is stopped before its record is complete, both ends hear of it, and
//! nothing of the session is forwarded any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{
    Family, LIMIT, Stage, assert_all_decrypted, can_run, find, patient, sessions, url,
};
use mmtls_testkit::wire::{self, BothSides, RST, Segment};
use mmtls_testkit::{
    Finished, Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, Options, Testbed, files,
};

const PATTERN: &[u8] = b"forbidden-fruit";
const LENGTH: usize = 5_000_000;
/// Content bytes of nginx's records.
const RECORD: usize = 16_384;

fn content(pattern_at: Option<usize>) -> Vec<u8> {
    let mut content = files::pattern_bytes(LENGTH, 3);
    if let Some(at) = pattern_at {
        content[at..at + PATTERN.len()].copy_from_slice(PATTERN);
    }
    content
}

fn patterns(bed: &Testbed, action: &str) -> MmtlsOptions {
    let file = bed.directory().join("patterns.txt");
    std::fs::write(&file, b"# a comment\nnever-there\nforbidden-fruit\n").unwrap();
    MmtlsOptions { patterns: Some((file, action.to_owned())), ..patient() }
}

/// Downloads `name`; the response head's length and curl's result.
fn download(stage: &Stage, mmtls: &Mmtls, family: Family, name: &str) -> (usize, Finished) {
    let mut curl = stage.sharing_curl(mmtls, family, &[]);
    curl.args(["-w", "%{stderr}head=%{size_header}\nport=%{local_port}\n", &url(name)]);
    let page = stage.run("curl", curl);
    (said(&page, "head="), page)
}

/// A number that curl printed.
fn said(page: &Finished, name: &str) -> usize {
    page.stderr.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

/// The server's socket for a client's port, in whatever state.
fn server_socket(stage: &Stage, client_port: usize) -> String {
    crate::common::shell(&stage.bed.server, &format!("ss -Htan dport = :{client_port}"))
}

fn patterns_are_stopped(family: Family) {
    if !can_run(&["nginx", "curl", "ss", "tcpdump"]) {
        return;
    }
    let stage = Stage::new();
    if family.is_v6() && !stage.bed.has_ipv6() {
        return;
    }
    let options = patterns(&stage.bed, "reset");
    stage.serve("clean", &content(None));
    let mmtls = stage.mmtls(&options);
    let (head, page) = download(&stage, &mmtls, family, "clean");
    assert!(page.stdout == content(None), "{}", page.stderr);
    assert_all_decrypted(&mmtls.stop().unwrap(), 1);

    let boundary = RECORD - head - 5;
    let mut let_through = 0;
    for (name, at) in [
        ("start", 0),
        ("boundary", boundary),
        ("before", boundary - 10),
        ("end", LENGTH - PATTERN.len()),
    ] {
        let what = format!("{family:?} {name}");
        let bad = content(Some(at));
        stage.serve("bad", &bad);
        let mmtls = stage.mmtls(&options);
        let sides = BothSides::start(&stage.bed, "tcp port 443");
        let (same_head, page) = download(&stage, &mmtls, family, "bad");

        // The client: fails soon, has nothing of the record in which the pattern ends.
        assert_eq!(page.status.code(), Some(56), "{what}: {}", page.stderr);
        assert!(page.elapsed < Duration::from_secs(2), "{what}: {:?}", page.elapsed);
        let last_record = (head + at + PATTERN.len() - 1) / RECORD;
        let most = (last_record * RECORD).saturating_sub(head);
        assert!(page.stdout.len() <= most, "{what}: {} of {most} bytes", page.stdout.len());
        assert!(bad.starts_with(&page.stdout), "{what}: what came is right");
        assert!(find(&page.stdout, PATTERN).is_none(), "{what}");
        // A RST takes what was not read yet with it, and one super-frame may have had both records: then
        // nothing came, which a busy machine brings about.
        assert!(same_head == head || same_head == 0 && page.stdout.is_empty(), "{what}");
        let_through += usize::from(same_head > 0);
        // The server: its socket is gone.
        let end = Instant::now() + Duration::from_secs(1);
        loop {
            let socket = server_socket(&stage, said(&page, "port="));
            if socket.is_empty() {
                break;
            }
            assert!(Instant::now() < end, "{what}: {socket}");
            std::thread::sleep(Duration::from_millis(20));
        }

        let (left, right) = sides.stop();
        check_wires(&what, &left, &right, last_record);
        let report = mmtls.stop().unwrap();
        let all = format!("{what}: {:#?}", report.summary);
        for (name, count) in [("decrypted", 1), ("alerts", 1), ("resets", 1), ("failed", 0)] {
            assert_eq!(report.count(name), count, "{name}: {all}");
        }
        let alerts = report.events("alert");
        assert_eq!(alerts.len(), 1, "{all}");
        let alert = &alerts[0]["alert"];
        assert_eq!(alert["action"], "blocked", "{alert}");
        assert_eq!(alert["verdict"], "reset", "{alert}");
        assert_eq!(alert["signature"], "forbidden-fruit", "{alert}");
        assert_eq!(alert["signature_id"], 2, "{alert}");
        assert_eq!(alert["offset"], at + PATTERN.len(), "{alert}");
        let http = &alerts[0]["http"];
        assert_eq!((&http["url"], &http["status"]), (&"/bad".into(), &200.into()), "{http}");
        let drops = report.events("drop");
        assert_eq!((drops.len(), &drops[0]["drop"]["reason"]), (1, &"rules".into()), "{all}");
        let flow = report.events("flow")[0];
        assert_eq!(flow["flow"]["alerted"], true, "{flow}");
        assert_eq!(flow["flow"]["action"], "drop", "{flow}");
        assert_eq!(flow["in_iface"], "left", "{flow}");
        assert_eq!(sessions(&report)[0]["end_reason"], "reset_by_application");
    }
    assert!(let_through > 0, "{family:?}: what came before the record is let through");
}

/// The client's side has whole records only before the one in question, nothing after its RST,
/// and each side got a RST in the other's name.
fn check_wires(what: &str, left: &Path, right: &Path, last_record: usize) {
    let from_server = |segment: &Segment<'_>| segment.source.port() == 443;
    let reset_at = |path: &Path, by_server: bool| {
        let frames = wire::frames(path);
        let segments = frames.iter().filter_map(|frame| Segment::of(&frame.bytes));
        let mut segments = segments.enumerate();
        let found = segments
            .find(|(_, segment)| segment.flags & RST != 0 && from_server(segment) == by_server);
        let at = found.unwrap_or_else(|| panic!("{what}: no RST in {}", path.display())).0;
        let later = segments.filter(|(_, segment)| from_server(segment) == by_server);
        let later: usize = later.map(|(_, segment)| segment.payload.len()).sum();
        (at, later)
    };
    assert_eq!(reset_at(left, true).1, 0, "{what}: payload after the client's RST");
    assert_eq!(reset_at(right, false).1, 0, "{what}: payload after the server's RST");

    let stream = |path: &Path| {
        let streams = wire::streams(path);
        let found = streams.into_iter().find(|((source, _), _)| source.port() == 443);
        found.unwrap().1
    };
    let (client_got, server_sent) = (stream(left), stream(right));
    assert!(server_sent.starts_with(&client_got), "{what}");
    let full = |stream: &[u8]| {
        wire::records(stream).iter().filter(|record| **record == (23, 5 + RECORD + 17)).count()
    };
    // The record at the end of the response is shorter than the others.
    assert!(full(&server_sent) >= last_record, "{what}: {} sent", full(&server_sent));
    assert!(full(&client_got) <= last_record, "{what}: {} forwarded", full(&client_got));
    assert!(client_got.len() < server_sent.len(), "{what}: the last packet was not forwarded");
    let whole: usize = wire::records(&client_got).iter().map(|(_, length)| length).sum();
    let rest = &client_got[whole..];
    let begun = server_sent[whole..].get(3..5).map(|b| u16::from_be_bytes([b[0], b[1]]));
    assert!(rest.len() < 5 + usize::from(begun.unwrap()), "{what}: a record was completed");
}

#[test]
fn refuses_forbidden_content_v4() {
    patterns_are_stopped(Family::V4);
}

#[test]
fn refuses_forbidden_content_v6() {
    patterns_are_stopped(Family::V6);
}

#[test]
fn accepts_forbidden_content_of_exempt_sessions_and_where_it_is_only_reported() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    let bad = content(Some(4_000_000));
    stage.serve("bad", &bad);
    let mmtls = stage.mmtls(&patterns(&stage.bed, "reset"));
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &["server.test"]);
    curl.arg(url("bad"));
    let page = stage.run("curl", curl);
    assert!(page.status.success() && page.stdout == bad, "{}", page.stderr);
    let report = mmtls.stop().unwrap();
    for (name, count) in [("exempt", 1), ("decrypted", 0), ("alerts", 0), ("resets", 0)] {
        assert_eq!(report.count(name), count, "{name}: {:#?}", report.summary);
    }
    assert!(report.events("http").is_empty() && report.events("alert").is_empty());

    let mmtls = stage.mmtls(&patterns(&stage.bed, "alert"));
    let (_, page) = download(&stage, &mmtls, Family::V4, "bad");
    assert!(page.status.success() && page.stdout == bad, "{}", page.stderr);
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    let alerts = report.events("alert");
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0]["alert"]["action"], "allowed");
    assert_eq!(alerts[0]["alert"]["offset"], 4_000_000 + PATTERN.len());
}

#[test]
fn refuses_the_second_response_of_a_connection_and_serves_the_first() {
    if !can_run(&["nginx", "curl"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("good", &content(None));
    // Far enough in that curl does not try again on a new connection.
    stage.serve("bad", &content(Some(20_000)));
    let mmtls = stage.mmtls(&patterns(&stage.bed, "reset"));
    let target = |name: &str| -> PathBuf { stage.bed.directory().join(name) };
    let mut curl = stage.sharing_curl(&mmtls, Family::V4, &[]);
    curl.arg("-o").arg(target("good")).arg(url("good"));
    curl.arg("-o").arg(target("bad")).arg(url("bad"));
    let page = stage.run("curl", curl);
    assert_eq!(page.status.code(), Some(56), "{}", page.stderr);
    assert!(std::fs::read(target("good")).unwrap() == content(None));
    assert!(std::fs::read(target("bad")).unwrap().len() < RECORD);
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("TLS sessions"), 1, "{:#?}", report.summary);
    assert_eq!(report.events("alert")[0]["tx_id"], 1);
    let http = report.events("http");
    assert_eq!(http.len(), 2);
    assert_eq!(http[0]["http"]["complete"], true);
    assert_eq!(http[1]["http"]["complete"], false);
}

/// Sends the frames of a file (each with a 16-bit length before it) from `eth0`.
const REPLAY: &str = r#"
import socket, struct, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
data, at, sent = open(sys.argv[1], "rb").read(), 0, 0
while at < len(data):
    length = struct.unpack("!H", data[at:at + 2])[0]
    s.send(data[at + 2:at + 2 + length])
    at, sent = at + 2 + length, sent + 1
    if sent % 64 == 0:
        time.sleep(0.001)
print(sent)
"#;

/// Payload bytes that went over a wire in one direction.
fn payload(path: &Path, from_server: bool) -> usize {
    let frames = wire::frames(path);
    let segments = frames.iter().filter_map(|frame| Segment::of(&frame.bytes));
    segments
        .filter(|segment| (segment.source.port() == 443) == from_server)
        .map(|segment| segment.payload.len())
        .sum()
}

#[test]
fn refuses_retransmissions_after_a_reset() {
    if !can_run(&["nginx", "curl", "tcpdump", "ethtool", "python3"]) {
        return;
    }
    // Frames of one MTU can be sent again as they were captured.
    let bed =
        Testbed::with_options(&Options { middle: Middle::Empty, gso: false, ..Options::default() });
    let bed = bed.unwrap();
    let nginx = Nginx::start(&bed, NginxOptions::default()).unwrap();
    let stage = Stage { nginx, bed };
    stage.serve("bad", &content(Some(40_000)));
    let mmtls = stage.mmtls(&patterns(&stage.bed, "reset"));
    let sides = BothSides::start(&stage.bed, "tcp port 443");
    let (_, page) = download(&stage, &mmtls, Family::V4, "bad");
    assert_eq!(page.status.code(), Some(56), "{}", page.stderr);
    let (left, right) = sides.stop();
    let forwarded = payload(&left, true);
    assert!(forwarded > RECORD && forwarded < 3 * RECORD + 5000, "{forwarded} bytes forwarded");
    assert!(payload(&right, true) > forwarded);

    // What each endpoint had sent is sent again, as if it had heard no RST.
    for (place, from_server, capture) in
        [(&stage.bed.server, true, &right), (&stage.bed.client, false, &left)]
    {
        let mut replay = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        for mut frame in wire::frames(capture) {
            let again = Segment::of(&frame.bytes).filter(|segment| {
                (segment.source.port() == 443) == from_server && !segment.payload.is_empty()
            });
            let Some(length) = again.map(|segment| segment.payload.len()) else {
                continue;
            };
            wire::finish_checksum(&mut frame.bytes);
            replay.extend((frame.bytes.len() as u16).to_be_bytes());
            replay.extend(frame.bytes);
            count += 1;
            bytes += length;
        }
        let file = stage.bed.directory().join("replay");
        std::fs::write(&file, replay).unwrap();
        let sides = BothSides::start(&stage.bed, "tcp port 443");
        let mut python = place.command("/usr/bin/python3");
        python.args(["-c", REPLAY]).arg(&file);
        let done = stage.bed.run("replay", python, LIMIT).unwrap();
        assert_eq!(done.text(), format!("{count}\n"), "{}", done.stderr);
        let (left, right) = sides.stop();
        let (near, far) = if from_server { (&right, &left) } else { (&left, &right) };
        assert_eq!(payload(near, from_server), bytes, "all of it reached the middlebox");
        assert_eq!(payload(far, from_server), 0, "none of it was forwarded");
    }
    let report = mmtls.stop().unwrap();
    assert_eq!(report.count("TLS sessions"), 1, "{:#?}", report.summary);
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    let flows: BTreeSet<_> = report.events("flow").iter().map(|e| e["flow_id"].as_u64()).collect();
    assert_eq!(flows.len(), 1, "a tombstone, not a new flow");
}
