//! The capture without an engine: what it writes is read again.

use std::path::PathBuf;

use mmtls_packet_io::capture::{CaptureReader, Item as Read, SecretsKind};

use super::*;
use crate::eve::tests::{TempDir, session};

const RANDOM: [u8; 32] = [0xab; 32];

fn open(dir: &TempDir, secrets: bool) -> (Capture, PathBuf) {
    std::fs::create_dir_all(&dir.0).unwrap();
    let path = dir.0.join("c");
    let file = Some(path.clone());
    let config = CaptureConfig { file, secrets, ..CaptureConfig::default() };
    (Capture::open(&config).unwrap().unwrap(), path)
}

fn info(port: u16, random: [u8; 32]) -> SessionInfo {
    let mut info = session();
    info.client.set_port(port);
    info.client_random = random;
    info
}

fn send(capture: &Capture, info: &SessionInfo, from_client: bool, opens: bool, bytes: &[u8]) {
    let [source, destination] = match from_client {
        true => [info.client, info.server],
        false => [info.server, info.client],
    };
    capture.frame(&TcpFrame { now_ns: 1, source, destination, opens, bytes });
}

pub(super) fn lines(random: [u8; 32]) -> String {
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("CLIENT_RANDOM {random} {}\n", "07".repeat(48))
}

fn say(capture: &Capture, text: &str) {
    let KeyLogTap(see) = capture.key_log_tap().unwrap();
    see(text.as_bytes());
}

/// What is in the file: frames as text, secrets in brackets.
pub(super) fn told(path: &std::path::Path) -> Vec<String> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut told = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        told.push(match item {
            Read::Packet { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
            Read::Secrets { kind, bytes } => {
                assert!(kind == SecretsKind::TLS_KEY_LOG);
                format!("[{}]", String::from_utf8_lossy(bytes))
            }
        });
    }
    told
}

#[test]
fn accepts_secrets_that_come_after_packets_and_puts_them_before() {
    let dir = TempDir::new("capture-order");
    let (capture, path) = open(&dir, true);
    let one = info(1, RANDOM);
    send(&capture, &one, true, true, b"SYN");
    send(&capture, &one, false, false, b"SYN-ACK");
    assert!(capture.session(&one));
    send(&capture, &one, true, false, b"hello");
    say(&capture, "CLIENT_RANDOM 00");
    say(&capture, &lines([1; 32]));
    capture.behind.finish(Instant::now());
    assert_eq!(told(&path), [""; 0], "held back");
    say(&capture, &lines(RANDOM));
    send(&capture, &one, false, false, b"data");
    capture.finish(Instant::now());
    let secrets = format!("[{}]", lines(RANDOM));
    assert_eq!(told(&path), [&secrets, "SYN", "SYN-ACK", "hello", "data"]);
    let counters = CaptureCounters { sessions: 1, frames: 4, ..CaptureCounters::default() };
    assert_eq!(capture.read_counters(), counters);
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn accepts_secrets_that_come_first_or_never_and_another_session_between_the_same_ends() {
    let dir = TempDir::new("capture-first");
    let (capture, path) = open(&dir, true);
    say(&capture, &lines(RANDOM));
    let (one, other) = (info(1, RANDOM), info(2, [2; 32]));
    for (info, name) in [(&one, "one"), (&other, "other")] {
        send(&capture, info, true, true, name.as_bytes());
        assert!(capture.session(info));
    }
    // A connection without TLS.
    send(&capture, &info(3, RANDOM), true, true, b"plain");
    // After the first one.
    capture.session_end(&one);
    let again = info(1, [3; 32]);
    send(&capture, &again, true, true, b"again");
    assert!(capture.session(&again));
    capture.finish(Instant::now());
    assert_eq!(told(&path), [&format!("[{}]", lines(RANDOM)), "one", "other", "again"]);
    let counters = capture.read_counters();
    assert_eq!((counters.sessions, counters.without_secrets, counters.frames_lost), (3, 2, 0));
    // For those that come late it is not too late for what comes then.
    say(&capture, &lines([2; 32]));
    send(&capture, &other, false, false, b"late");
    capture.finish(Instant::now());
    assert_eq!(told(&path)[4..], [format!("[{}]", lines([2; 32])), "late".to_owned()]);
}

#[test]
fn refuses_to_hold_back_more_than_there_is_room_for() {
    let dir = TempDir::new("capture-full");
    std::fs::create_dir_all(&dir.0).unwrap();
    let path = dir.0.join("c");
    let (file, max_buffered_bytes) = (Some(path.clone()), 1 << 20);
    let config =
        CaptureConfig { file, secrets: true, max_buffered_bytes, ..CaptureConfig::default() };
    let capture = Capture::open(&config).unwrap().unwrap();
    for number in 0..50 {
        let info = info(number, [number as u8; 32]);
        send(&capture, &info, true, true, b"SYN");
        assert!(capture.session(&info));
        send(&capture, &info, true, false, &[b'x'; 100_000]);
    }
    capture.behind.finish(Instant::now());
    // The first ones had to go, without secrets.
    let written = capture.read_counters();
    assert!((35..45).contains(&written.without_secrets), "{written:?}");
    // What carries no TLS is not held back for long, and not written.
    let plain = info(60, [60; 32]);
    for _ in 0..10 {
        send(&capture, &plain, true, false, &[b'p'; 50_000]);
    }
    capture.finish(Instant::now());
    assert!(!told(&path).iter().any(|it| it.starts_with('p')));
    assert_eq!(capture.read_counters().frames, 100);
}

#[test]
fn accepts_frames_without_secrets_where_nobody_asks_for_them() {
    let dir = TempDir::new("capture-plain");
    let (capture, path) = open(&dir, false);
    assert!(capture.key_log_tap().is_none());
    let one = info(1, RANDOM);
    send(&capture, &one, true, true, b"SYN");
    assert!(capture.session(&one));
    send(&capture, &one, true, false, b"hello");
    capture.finish(Instant::now());
    assert_eq!(told(&path), ["SYN", "hello"]);
    assert_eq!(capture.read_counters().without_secrets, 0);
}

#[test]
fn refuses_sessions_without_room_and_counts_them() {
    let dir = TempDir::new("capture-no-room");
    std::fs::create_dir_all(&dir.0).unwrap();
    let path = dir.0.join("c");
    let config =
        CaptureConfig { file: Some(path), max_buffered_bytes: 100, ..CaptureConfig::default() };
    let capture = Capture::open(&config).unwrap().unwrap();
    let one = info(1, RANDOM);
    assert!(!capture.session(&one));
    send(&capture, &one, true, false, b"hello");
    let expected =
        CaptureCounters { sessions_lost: 1, frames_lost: 1, ..CaptureCounters::default() };
    assert_eq!(capture.read_counters(), expected);
}
