use mmtls_testkit::dialogs::dialogs;
use mmtls_testkit::segments::Seeded;

use super::beginning::MAX_BYTES;
use super::*;

const C: Direction = Direction::ClientToServer;
const S: Direction = Direction::ServerToClient;

fn hello() -> Vec<u8> {
    let mut hello = vec![22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    hello.resize(517, 9);
    hello
}

fn way(from_client: bool) -> Direction {
    if from_client { C } else { S }
}

/// Gives bytes in pieces of random lengths; the first answer that is not "unsure", and how many
/// bytes came after it.
fn feed(it: &mut Recogniser, to: Direction, bytes: &[u8], cuts: &mut Seeded) -> (Found, usize) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at((1 + cuts.below(12)).min(rest.len()));
        rest = later;
        match it.handle_bytes(to, now) {
            Found::Unsure => {}
            found => return (found, rest.len()),
        }
    }
    (Found::Unsure, 0)
}

/// Whether a segment in its place makes TLS possible again.
fn begins(watch: &mut Watch, direction: Direction, payload: &[u8]) -> bool {
    matches!(watch.handle_segment(direction, None, payload, Some(payload)), Noticed::Beginning(_))
}

#[test]
fn accepts_tls_behind_every_protocol_however_it_is_cut() {
    for seed in 0..300 {
        for dialog in dialogs() {
            let mut cuts = Seeded::new(seed);
            let mut it = Recogniser::default();
            for (to, bytes) in &dialog.turns {
                let found = feed(&mut it, way(*to), bytes, &mut cuts);
                assert_eq!(found, (Found::Unsure, 0), "{}", dialog.name);
            }
            let hello = hello();
            let (found, left) = feed(&mut it, C, &hello, &mut cuts);
            let Found::Tls(beginning) = found else {
                panic!("{}: {found:?}", dialog.name);
            };
            assert_eq!(beginning.client, hello[..hello.len() - left], "{}", dialog.name);
            assert_eq!(beginning.upgrade.map(Upgrade::name), Some(dialog.name));
            assert!(beginning.server.is_empty() && !beginning.server_lost && !beginning.ssl2);
        }
    }
}

#[test]
fn accepts_a_hello_that_does_not_wait_for_the_answer() {
    for name in ["smtp", "imap", "pop3", "ftp", "postgresql", "mysql", "xmpp", "http_connect"] {
        for dialog in dialogs().iter().filter(|dialog| dialog.name == name) {
            let mut it = Recogniser::default();
            let last = dialog.turns.iter().rposition(|(from_client, _)| *from_client).unwrap();
            for (to, bytes) in &dialog.turns[..last] {
                assert_eq!(it.handle_bytes(way(*to), bytes), Found::Unsure);
            }
            let both = [&dialog.turns[last].1[..], &hello()].concat();
            let Found::Tls(beginning) = it.handle_bytes(C, &both) else {
                panic!("{name}");
            };
            assert_eq!((beginning.client, beginning.upgrade.unwrap().name()), (hello(), name));
        }
    }
}

#[test]
fn accepts_disguises_where_tls_was_asked_for() {
    // Records that servers take although no client sends them: a hello in pieces, another record
    // version, an alert in front, the form of SSL 2.0.
    for disguise in [
        &[22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 9, 0][..],
        &[22, 3, 0x7f, 0, 60, 1, 0, 0, 56, 3, 3],
        &[21, 3, 1, 0, 2, 1, 90, 22, 3, 1],
        &[0x80, 0x1f, 1, 3, 1, 0, 6, 0, 0, 0, 16],
    ] {
        for piece in [1, disguise.len()] {
            let mut it = Recogniser::default();
            it.handle_bytes(S, b"220 hello\r\n");
            it.handle_bytes(C, b"STARTTLS\r\n");
            it.handle_bytes(S, b"220 go\r\n");
            let found = disguise.chunks(piece).find_map(|bytes| match it.handle_bytes(C, bytes) {
                Found::Tls(beginning) => Some(beginning.ssl2),
                _ => None,
            });
            assert_eq!(found, Some(disguise[0] == 0x80), "{disguise:?}");
        }
    }
}

/// A protocol that nobody knows here, in whose place TLS begins in a form that only servers take.
#[test]
fn accepts_disguises_where_the_turn_begins() {
    let disguise = [22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 9, 0, 1, 0xfc, 3, 3];
    let mut it = Recogniser::default();
    it.handle_bytes(C, &[5, 1, 0]);
    it.handle_bytes(S, &[5, 0]);
    it.handle_bytes(C, &[5, 1, 0, 1, 10, 0, 0, 1, 1, 187]);
    it.handle_bytes(S, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let Found::Tls(beginning) = it.handle_bytes(C, &disguise) else {
        panic!("not found");
    };
    assert_eq!(beginning.upgrade, Some(Upgrade::Other));
    let mut watch = Watch::default();
    assert!(!begins(&mut watch, S, b"+OK"));
    assert!(begins(&mut watch, C, &disguise));
    // In a segment of its own behind a request that does not wait for the answer.
    let mut watch = Watch::default();
    assert!(!begins(&mut watch, C, b"STARTTLS\r\n"));
    assert!(begins(&mut watch, C, &disguise));
}

#[test]
fn accepts_no_interruption_by_the_server() {
    // A server may say what it likes in the middle of a hello.
    let hello = hello();
    for cut in 1..6 {
        let mut it = Recogniser::default();
        it.handle_bytes(C, b"STARTTLS\r\n");
        it.handle_bytes(S, b"220 go\r\n");
        assert_eq!(it.handle_bytes(C, &hello[..cut]), Found::Unsure);
        assert_eq!(it.handle_bytes(S, b"early"), Found::Unsure);
        let Found::Tls(beginning) = it.handle_bytes(C, &hello[cut..]) else {
            panic!("cut at {cut}");
        };
        assert_eq!((beginning.client, beginning.server), (hello.clone(), b"early".to_vec()));
    }
}

#[test]
fn refuses_a_hello_inside_of_a_message() {
    let mut it = Recogniser::default();
    let upload = [b"POST / HTTP/1.1\r\n\r\nd4c3b2a1 ", &hello()[..]].concat();
    assert_eq!(it.handle_bytes(C, &upload), Found::Unsure);
    it.handle_bytes(S, b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(it.handle_bytes(C, b"GET / HTTP/1.1\r\n\r\n"), Found::Unsure);
}

#[test]
fn refuses_to_keep_more_than_its_share() {
    let mut it = Recogniser::default();
    it.handle_bytes(C, b"GET / HTTP/1.1\r\n\r\n");
    let mut passed = 0;
    while it.handle_bytes(S, &[b'x'; 1000]) == Found::Unsure {
        passed += 1000;
        assert!(it.kept_bytes() <= MAX_BYTES && passed <= MAX_BYTES);
    }
    // A server may talk before the client does, as long as it wants.
    let mut it = Recogniser::default();
    let mut watch = loop {
        match it.handle_bytes(S, &[b'x'; 1000]) {
            Found::Plain => break it.take_watch(),
            found => assert_eq!(found, Found::Unsure),
        }
        assert!(it.kept_bytes() <= 2 * MAX_BYTES);
    };
    assert!(begins(&mut watch, C, &hello()));
    // A client that sends much.
    let mut it = Recogniser::default();
    let line = [b'y'; 999];
    while it.handle_bytes(C, &line) == Found::Unsure {
        assert!(it.kept_bytes() <= 2 * MAX_BYTES);
    }
}

#[test]
fn accepts_a_turn_long_after_the_beginning() {
    let mut it = Recogniser::default();
    it.handle_bytes(S, b"220 hello\r\n");
    let mut watch = loop {
        it.handle_bytes(C, &b"NOOP\r\n".repeat(20));
        if it.handle_bytes(S, &b"250 ok\r\n".repeat(20)) == Found::Plain {
            break it.take_watch();
        }
    };
    assert!(!begins(&mut watch, C, b"NOOP\r\n"));
    assert!(!begins(&mut watch, C, &hello()), "not its turn");
    assert!(!begins(&mut watch, S, b"250 ok\r\n"));
    assert!(!begins(&mut watch, C, b"STARTTLS\r\n"));
    assert!(!begins(&mut watch, S, b"220 go\r\n"));
    let first = &hello()[..1];
    let Noticed::Beginning(mut it) = watch.handle_segment(C, None, first, Some(first)) else {
        panic!("not noticed");
    };
    assert_eq!(it.handle_bytes(C, &hello()[..1]), Found::Unsure);
    let Found::Tls(beginning) = it.handle_bytes(C, &hello()[1..]) else {
        panic!("not found");
    };
    assert_eq!((beginning.client, beginning.upgrade), (hello(), Some(Upgrade::Smtp)));
    // And what only looked like it.
    watch = Watch::default();
    assert!(!begins(&mut watch, S, b"250 ok\r\n"));
    let Noticed::Beginning(mut it) = watch.handle_segment(C, None, &[22, 3], Some(&[22, 3])) else {
        panic!("not noticed");
    };
    assert_eq!(it.handle_bytes(C, &[22, 3]), Found::Unsure);
    assert_eq!(it.handle_bytes(C, b"other"), Found::Plain);
}

#[test]
fn accepts_a_client_on_either_side() {
    let server_first =
        [b"220 hello\r\n".to_vec(), vec![0, 1, 2, 3, 4], vec![22, 3, 3, 0, 4, 0, 0, 0, 0]];
    for junk in server_first {
        // Whoever has opened the connection says something else first.
        let mut it = Recogniser::default();
        assert_eq!(it.handle_bytes(C, &junk), Found::Unsure);
        let mut found = Found::Unsure;
        for byte in hello() {
            found = it.handle_bytes(S, &[byte]);
            if found != Found::Unsure {
                break;
            }
        }
        let Found::Tls(beginning) = found else {
            panic!("{junk:?}: {found:?}");
        };
        assert!(beginning.reversed);
        assert!(hello().starts_with(&beginning.client));
        // And long after the beginning.
        let mut watch = Watch::default();
        assert!(!begins(&mut watch, C, &junk));
        assert!(begins(&mut watch, S, &hello()));
    }
}

#[test]
fn accepts_answers_to_what_was_missed() {
    let answers = [&[22, 3, 3, 0, 122, 2, 0, 0, 118, 3, 3][..], &[21, 3, 1, 0, 2, 2, 40]];
    for answer in answers {
        for piece in [1, answer.len()] {
            let mut it = Recogniser::default();
            assert_eq!(it.handle_bytes(C, b"something else"), Found::Unsure);
            let found: Vec<Found> =
                answer.chunks(piece).map(|bytes| it.handle_bytes(S, bytes)).collect();
            assert!(found.contains(&Found::Missed), "{found:?}");
            let mut watch = Watch::default();
            assert!(!begins(&mut watch, C, b"something else"));
            let mut it = None;
            let noticed = answer.chunks(piece).any(|bytes| match &mut it {
                None => match watch.handle_segment(S, None, bytes, Some(bytes)) {
                    Noticed::Missed => true,
                    Noticed::Nothing => false,
                    Noticed::Beginning(mut recogniser) => {
                        let found = recogniser.handle_bytes(S, bytes);
                        it = Some(recogniser);
                        found == Found::Missed
                    }
                },
                Some(it) => it.handle_bytes(S, bytes) == Found::Missed,
            });
            assert!(noticed);
        }
        // In the middle of what a server says, it is content.
        let mut it = Recogniser::default();
        it.handle_bytes(C, b"GET / HTTP/1.1\r\n\r\n");
        it.handle_bytes(S, b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(it.handle_bytes(S, answer), Found::Unsure);
    }
}

#[test]
fn accepts_only_tls_and_load_balancers_on_its_ports() {
    let excluded = |bytes: &[u8]| {
        let mut it = Recogniser::default();
        it.handle_bytes(C, bytes);
        it.is_excluded()
    };
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\x9c\x40\x01\xbb";
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";
    for front in [&header[..], line] {
        for cut in 0..=front.len() {
            assert!(!excluded(&front[..cut]), "{cut}");
        }
        assert!(excluded(&[front, b"GET /"].concat()));
    }
    assert!(!excluded(&hello()[..4]));
    for other in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", &[5, 1, 0], b"P ROXY"] {
        assert!(excluded(other));
    }
    // A server that speaks first is none of TLS.
    let mut it = Recogniser::default();
    it.handle_bytes(S, b"SSH-2.0-x\r\n");
    assert!(it.is_excluded());
}

#[test]
fn refuses_to_stay_unsure_for_long() {
    let fronts: [&[u8]; 6] = [
        &[20, 9, 0, 0, 1, 1],
        &[20, 9, 0, 0, 0],
        &[21, 9, 0, 0, 2, 1, 90],
        &[21, 9, 0, 0, 16, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[22, 9, 0, 0, 0],
        &[99, 3, 1, 0, 0],
    ];
    for front in fronts {
        for dialog in [true, false] {
            let mut it = Recogniser::default();
            if dialog {
                assert_eq!(it.handle_bytes(C, b"HELLO\r\n"), Found::Unsure);
                assert_eq!(it.handle_bytes(S, b"HELLO\r\n"), Found::Unsure);
            }
            let times = 3 * MAX_BYTES / front.len();
            let found = (0..times).any(|_| it.handle_bytes(C, front) != Found::Unsure);
            assert!(found, "{front:?} {dialog}, {} kept", it.kept_bytes());
        }
    }
}

#[test]
fn accepts_answers_behind_those_of_a_dialog_that_was_not_waited_for() {
    let server_hello = [22, 3, 3, 0, 122, 2, 0, 0, 118, 3, 3];
    for early in [0, 3 * MAX_BYTES] {
        for piece in [1, 5, 100] {
            let mut it = Recogniser::default();
            let mut watch = None;
            let mut missed = false;
            let mut say = |to: Direction, bytes: &[u8]| {
                for bytes in bytes.chunks(piece) {
                    if watch.is_none() {
                        match it.handle_bytes(to, bytes) {
                            Found::Plain => watch = Some(it.take_watch()),
                            Found::Missed => missed = true,
                            Found::Unsure => {}
                            found @ Found::Tls(_) => panic!("{found:?}"),
                        }
                    } else if let Some(now) = &mut watch {
                        match now.handle_segment(to, None, bytes, Some(bytes)) {
                            Noticed::Nothing => {}
                            Noticed::Missed => missed = true,
                            Noticed::Beginning(again) => {
                                it = again;
                                watch = None;
                                match it.handle_bytes(to, bytes) {
                                    Found::Plain => watch = Some(it.take_watch()),
                                    Found::Missed => missed = true,
                                    _ => {}
                                }
                            }
                        }
                    }
                }
            };
            say(C, b"hello");
            say(S, &vec![b'x'; early]);
            say(C, &[b"what nobody knows", &hello()[..]].concat());
            say(S, b"fine");
            say(S, &server_hello);
            assert!(missed, "{early} bytes before, {piece} at a time");
        }
    }
}
