//! TLS behind cleartext takes over what the application knows of that, as long as it may grow.

use crate::harness::attack::*;
use crate::harness::config;
use mmtls_engine::session::{Handler, Session, SessionInfo};
use mmtls_engine::tls::{ContentType, Direction};
use mmtls_engine::{Cleartext, Config, Engine, FrameInput, Link, Policy, PortId};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{plain, server_hello, side};

/// Keeps in a state what was shown, and notes what the session knew when its hello was complete, and when it
/// was told again.
#[derive(Default)]
struct Notes {
    at_hello: Option<String>,
    told: Vec<(String, u64)>,
}

impl Handler for Notes {
    type State = String;

    fn cleartext(&mut self, _: &mut Session<'_>, seen: &mut String, _: Direction, bytes: &[u8]) {
        // What looks like a hello is shown, too.
        if bytes.ends_with(b"\r\n") {
            seen.push_str(core::str::from_utf8(bytes).unwrap());
        }
    }

    fn tls_behind_cleartext(&mut self, info: &SessionInfo, before: &String, own: &mut String) {
        own.clone_from(before);
        self.told.push((before.clone(), info.id.0));
    }

    fn handshake_start(&mut self, _: &mut Session<'_>, own: &mut String) {
        self.at_hello = Some(own.clone());
    }
}

fn run(said: &[(Direction, &[u8])]) -> Engine<Notes> {
    let config = Config { cleartext: Cleartext::FromBeginning, ..config(Policy::Forward) };
    let mut engine = Engine::new(config, Notes::default());
    let endpoints = Endpoints {
        client: "10.0.0.2:40000".parse().unwrap(),
        server: "10.0.0.3:25".parse().unwrap(),
        initial: [1, 2],
    };
    let (mut now, mut at) = (0, [0u64; 2]);
    let opening: [(Direction, i64, u8, &[u8]); 3] =
        [(C, -1, flag::SYN, b""), (S, -1, flag::SYN | flag::ACK, b""), (C, 0, flag::ACK, b"")];
    let mut send = |direction, place, ack, flags, data: &[u8]| {
        now += 1000;
        let bytes = endpoints.frame(direction, place, ack, flags, data);
        let port = PortId(side(direction) as u8);
        let link = Link::Ethernet;
        let frame = FrameInput { port, link, bytes: &bytes, memory: None, checksum_trusted: true };
        let _ = engine.handle_frame(now, &frame);
    };
    for (direction, place, flags, data) in opening {
        send(direction, place, 0, flags, data);
    }
    for &(direction, bytes) in said {
        let s = side(direction);
        send(direction, at[s] as i64, at[1 - s], flag::ACK, bytes);
        at[s] += bytes.len() as u64;
    }
    engine
}

fn noted(said: &[(Direction, &[u8])]) -> Notes {
    core::mem::take(run(said).handler_mut())
}

#[test]
fn a_session_knows_what_was_said_in_the_clear() {
    let (hello, answer) =
        (hello(), plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301)));
    let start: [(Direction, &[u8]); 4] =
        [(S, b"220 m\r\n"), (C, b"EHLO c\r\n"), (S, b"250 starttls\r\n"), (C, b"STARTTLS\r\n")];
    let clear = "220 m\r\nEHLO c\r\n250 starttls\r\nSTARTTLS\r\n220 go\r\n";
    let notes = noted(&[&start[..], &[(S, b"220 go\r\n"), (C, &hello), (S, &answer)]].concat());
    assert_eq!(notes.at_hello.as_deref(), Some(clear));
    // No more once the server has answered, and of the same connection.
    assert!(notes.told.iter().all(|(told, id)| told == clear && *id == notes.told[0].1));
    // The client does not wait: what the server says in the clear behind the hello counts, too.
    let notes = noted(&[&start[..], &[(C, &hello), (S, b"220 go\r\n"), (S, &answer)]].concat());
    assert_eq!(notes.told.last().map(|(told, _)| told.as_str()), Some(clear));
    // Without anything in the clear there is nothing to tell.
    let notes = noted(&[(C, b"")]);
    assert!(notes.told.is_empty() && notes.at_hello.is_none());
}

#[test]
fn what_is_kept_of_the_clear_and_of_tls_behind_it_can_be_changed() {
    let (hello, answer) =
        (hello(), plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301)));
    let said: [(Direction, &[u8]); 4] =
        [(C, b"STARTTLS\r\n"), (S, b"220 go\r\n"), (C, &hello), (S, &answer)];
    // Before the server has answered the hello, it may be data in the clear.
    for (count, states) in [(2, 1), (3, 2), (4, 1)] {
        let mut engine = run(&said[..count]);
        let changed = |engine: &mut Engine<Notes>, slots| {
            let mut found = Vec::new();
            engine.update_states(slots, |notes, state| {
                notes.told.clear();
                found.push(core::mem::replace(state, "changed".to_owned()));
            });
            found
        };
        let (begin, end) = (7, 3);
        for none in [begin..end, 1..usize::MAX, 0..0] {
            assert!(changed(&mut engine, none).is_empty());
        }
        let all = 0..engine.slots();
        assert_eq!(
            changed(&mut engine, all.clone()),
            vec!["STARTTLS\r\n220 go\r\n"; states],
            "{count}"
        );
        assert_eq!(changed(&mut engine, all), vec!["changed"; states], "{count}");
        assert!(engine.handler().told.is_empty());
    }
}
