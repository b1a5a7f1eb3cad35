//! The mirror without an engine: what it writes is read again.

use etherparse::{SlicedPacket, TransportSlice};
use mmtls_engine::session::{EndReason, SessionInfo};
use mmtls_engine::tls::ProtocolVersion;
use mmtls_packet_io::capture::{CaptureReader, Item};

use super::*;
use crate::eve::tests::{TempDir, session};

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;

fn open(dir: &TempDir, config: MirrorConfig) -> Mirror {
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = Some(dir.0.join("m"));
    Mirror::open(&MirrorConfig { file, ..config }).unwrap().unwrap()
}

/// A session of a number, between ends of its own.
fn numbered(number: u16) -> SessionInfo {
    let mut info = session();
    info.id = SessionId(number.into());
    info.client.set_port(20_000 + number);
    info.refused = [false; 2];
    info.starttls = None;
    info.version = Some(ProtocolVersion::TLS_1_3);
    info
}

/// The frames of a file in short: ports, flags, payload.
fn told(path: &Path) -> Vec<String> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut told = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        let Item::Packet { bytes, .. } = item else { continue };
        let packet = SlicedPacket::from_ethernet(bytes).unwrap();
        assert_eq!(packet.vlan_ids().iter().map(|id| id.value()).collect::<Vec<_>>(), [100, 7]);
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
        let flags: String = [
            (tcp.syn(), 'S'),
            (tcp.ack(), '.'),
            (tcp.psh(), 'P'),
            (tcp.fin(), 'F'),
            (tcp.rst(), 'R'),
        ]
        .into_iter()
        .filter_map(|(is_set, name)| is_set.then_some(name))
        .collect();
        let payload = String::from_utf8_lossy(tcp.payload()).into_owned();
        told.push(
            format!("{}>{} {flags} {payload}", tcp.source_port(), tcp.destination_port())
                .trim_end()
                .to_owned(),
        );
    }
    told
}

fn comment_is_in(path: &Path, comment: &str) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(comment.len()).any(|it| it == comment.as_bytes())
}

/// What begins a conversation of a client's port.
fn begun(port: u16) -> Vec<String> {
    vec![format!("{port}>80 S"), format!("80>{port} S."), format!("{port}>80 .")]
}

#[test]
fn accepts_a_session_and_replaces_the_port() {
    let dir = TempDir::new("mirror-session");
    let mirror = open(&dir, MirrorConfig::default());
    let info = numbered(1);
    let mut session = SessionMirror::default();
    session.data(&mirror, &info, 1, CLIENT, (b"", false));
    session.data(&mirror, &info, 2, CLIENT, (b"GET", false));
    session.data(&mirror, &info, 3, SERVER, (b"200", false));
    session.close(SERVER);
    session.end(&mirror, &info, 4, EndReason::Closed);
    mirror.finish(Instant::now());
    let mut expected = begun(20_001);
    expected.extend(
        ["20001>80 .P GET", "80>20001 .", "80>20001 .P 200", "20001>80 ."].map(str::to_owned),
    );
    expected.extend(["80>20001 .F", "20001>80 .F", "80>20001 ."].map(str::to_owned));
    assert_eq!(told(&dir.0.join("m")), expected);
    let counters = MirrorCounters { sessions: 1, bytes: 6, ..MirrorCounters::default() };
    assert_eq!(mirror.read_counters(), counters);
}

#[test]
fn refuses_to_go_on_behind_bytes_that_are_missing() {
    let dir = TempDir::new("mirror-gap");
    let mirror = open(&dir, MirrorConfig::default());
    let mut info = numbered(1);
    let mut session = SessionMirror::default();
    // Before the first byte nothing can be seen of it, so it is told.
    session.lost(&mirror, &info, 1, CLIENT, "early_data_not_inspected");
    session.data(&mirror, &info, 2, CLIENT, (b"GET", false));
    session.lost(&mirror, &info, 3, SERVER, "integrity_failure");
    session.data(&mirror, &info, 4, SERVER, (b"rest", false));
    session.end(&mirror, &info, 5, EndReason::Closed);
    // A direction that is refused before it has said anything is no gap; one that is refused later is.
    let mut other = SessionMirror::default();
    info = numbered(2);
    info.refused = [false, true];
    other.data(&mirror, &info, 6, CLIENT, (b"one", false));
    info.refused = [true, true];
    other.data(&mirror, &info, 7, SERVER, (b"two", false));
    mirror.finish(Instant::now());
    let mut expected = begun(20_001);
    expected.extend(["20001>80 .P GET", "80>20001 .", "80>20001 .R"].map(str::to_owned));
    expected.extend(begun(20_002));
    expected.extend(["20002>80 .P one", "80>20002 .", "20002>80 .R"].map(str::to_owned));
    assert_eq!(told(&dir.0.join("m")), expected);
    for comment in ["early_data_not_inspected", "integrity_failure", "refused by its endpoint"] {
        assert!(comment_is_in(&dir.0.join("m"), comment), "{comment}");
    }
    let counters = mirror.read_counters();
    assert_eq!((counters.gaps, counters.bytes, counters.bytes_lost), (2, 6, 7));
}

/// What passes unread without an error: behind a refusal, or an operator's decision.
#[test]
fn refuses_to_end_as_if_whole_what_passed_unread() {
    let dir = TempDir::new("mirror-unread");
    let mirror = open(&dir, MirrorConfig::default());
    for (number, comment) in [(1, "bypassed by an operator"), (2, "refused by its endpoint")] {
        let mut info = numbered(number);
        let mut session = SessionMirror::default();
        session.data(&mirror, &info, 1, CLIENT, (b"read", false));
        info.bypassed_by_operator = number == 1;
        info.refused = [number == 2, false];
        session.end(&mirror, &info, 2, EndReason::Closed);
        mirror.finish(Instant::now());
        assert!(comment_is_in(&dir.0.join("m"), comment), "{comment}");
    }
    assert_eq!(mirror.read_counters().gaps, 2);
    assert!(!told(&dir.0.join("m")).iter().any(|it| it.contains('F')));
}

/// However small the pieces are, and however many sessions wait for their server.
#[test]
fn refuses_to_keep_more_early_data_than_there_is_room_for() {
    let dir = TempDir::new("mirror-early-room");
    let most = 1 << 20;
    let mirror = open(&dir, MirrorConfig { max_buffered_bytes: most, ..MirrorConfig::default() });
    let kept = || mirror.shared.early.load(Ordering::Relaxed);
    let mut sessions = Vec::new();
    for number in 1..=100 {
        let info = numbered(number);
        let mut session = SessionMirror::default();
        for _ in 0..100 {
            session.data(&mirror, &info, 1, CLIENT, (b"x", true));
        }
        sessions.push(session);
    }
    assert!(kept() > most / EARLY_SHARE / 2 && kept() <= most / EARLY_SHARE, "{}", kept());
    drop(sessions);
    assert_eq!(kept(), 0);
}

#[test]
fn accepts_early_data_once_they_are_taken() {
    let dir = TempDir::new("mirror-early");
    let mirror = open(&dir, MirrorConfig::default());
    for (number, accepted) in [(1, Some(true)), (2, Some(false)), (3, None)] {
        let info = numbered(number);
        let mut session = SessionMirror::default();
        session.data(&mirror, &info, 1, CLIENT, (b"early", true));
        if let Some(accepted) = accepted {
            session.early_data(&mirror, &info, 2, accepted);
        }
        session.data(&mirror, &info, 3, CLIENT, (b"late", false));
        session.end(&mirror, &info, 4, EndReason::ResetByPeer(CLIENT));
    }
    mirror.finish(Instant::now());
    let mut expected = Vec::new();
    for (port, has_early) in [(20_001, true), (20_002, false), (20_003, true)] {
        expected.extend(begun(port));
        for text in [has_early.then_some("early"), Some("late")].into_iter().flatten() {
            expected.extend([format!("{port}>80 .P {text}"), format!("80>{port} .")]);
        }
        expected.push(format!("{port}>80 .R"));
    }
    assert_eq!(told(&dir.0.join("m")), expected);
    assert_eq!(mirror.read_counters().gaps, 0);
}

#[test]
fn refuses_two_sessions_between_the_same_ends() {
    let dir = TempDir::new("mirror-same");
    let mirror = open(&dir, MirrorConfig::default());
    let (one, mut two) = (numbered(1), numbered(1));
    two.id = SessionId(2);
    two.server.set_port(8443);
    let mut sessions = [SessionMirror::default(), SessionMirror::default()];
    sessions[0].data(&mirror, &one, 1, CLIENT, (b"one", false));
    sessions[1].data(&mirror, &two, 2, CLIENT, (b"two", false));
    sessions[0].end(&mirror, &one, 3, EndReason::TimedOut);
    sessions[1].end(&mirror, &two, 4, EndReason::Closed);
    // Now the place is free.
    two.id = SessionId(3);
    sessions[1] = SessionMirror::default();
    sessions[1].data(&mirror, &two, 5, CLIENT, (b"three", false));
    mirror.finish(Instant::now());
    let texts: Vec<_> = told(&dir.0.join("m")).into_iter().filter(|it| it.contains(".P")).collect();
    assert_eq!(texts, ["20001>80 .P one", "20001>80 .P three"]);
    let counters = mirror.read_counters();
    assert_eq!((counters.sessions, counters.sessions_cut, counters.bytes_lost), (2, 1, 3));
}

#[test]
fn accepts_conversations_that_go_on_in_another_file() {
    let dir = TempDir::new("mirror-files");
    let mirror = open(&dir, MirrorConfig { max_file_bytes: 1 << 16, ..MirrorConfig::default() });
    let info = numbered(1);
    let mut session = SessionMirror::default();
    for _ in 0..10 {
        session.data(&mirror, &info, 1, CLIENT, (&[b'x'; 10_000], false));
    }
    session.end(&mirror, &info, 2, EndReason::Closed);
    mirror.finish(Instant::now());
    let mut bytes = 0;
    for (name, comment) in [("m.1", false), ("m", true)] {
        let path = dir.0.join(name);
        assert_eq!(comment_is_in(&path, "goes on from the file before"), comment, "{name}");
        let told = told(&path);
        assert_eq!(told[..3], begun(20_001), "{name}");
        bytes += told.iter().map(|it| it.matches('x').count()).sum::<usize>();
    }
    assert_eq!(bytes, 100_000);
}

/// What comes faster than it is written: each session is whole, or cut where its conversation ends.
#[test]
fn refuses_what_the_queue_has_no_room_for() {
    let dir = TempDir::new("mirror-full");
    let most = 1 << 16;
    let mut mirror =
        open(&dir, MirrorConfig { max_buffered_bytes: most, ..MirrorConfig::default() });
    mirror.write_behind().unwrap();
    let behind = mirror.behind.without_thread();
    let workers: Vec<_> = (0..2u16)
        .map(|worker| {
            let mirror = mirror.clone();
            std::thread::spawn(move || {
                for number in 0..500 {
                    let info = numbered(worker * 500 + number);
                    let mut session = SessionMirror::default();
                    for _ in 0..10 {
                        session.data(&mirror, &info, 1, CLIENT, (&[b'x'; 4000], false));
                        let buffered = mirror.behind.waiting();
                        // Ends are always taken, and each worker may be about to take back what had no room.
                        assert!(buffered < most + 1000 * EVENT_BYTES + 2 * 8000, "{buffered}");
                    }
                    session.end(&mirror, &info, 2, EndReason::Closed);
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|it| it.join().unwrap());
    mirror.finish(Instant::now());
    let counters = mirror.read_counters();
    assert_eq!(counters.bytes + counters.bytes_lost, 1000 * 10 * 4000);
    assert!(counters.sessions_cut > 0 && counters.sessions > 0, "{counters:?}");
    let told = told(&dir.0.join("m"));
    let count = |what: &str| told.iter().filter(|it| it.contains(what)).count() as u64;
    assert_eq!(count(" S."), counters.sessions);
    let bytes = told.iter().map(|it| it.matches('x').count() as u64).sum::<u64>();
    assert_eq!(bytes, counters.bytes);
    assert_eq!(count(" .R") + count(" .F") / 2, counters.sessions);
    drop(mirror);
    assert!(!behind.is_behind(), "the thread has ended");
    assert_eq!(behind.waiting(), 0);
}
