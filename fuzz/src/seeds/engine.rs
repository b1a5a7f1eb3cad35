//! Seeds of the engine's targets: whole sessions in the language of each target's operations.

use mmtls_engine::tls::Direction;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{Script, side};

use super::Add;
use crate::material::{FIRST_EARLY, FIRST_TLS12, SCRIPT_COUNT, SCRIPTS};

fn way(direction: Direction) -> u8 {
    (side(direction) as u8) << 7
}

fn half(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

/// What a session can need: early data, the handshake, four epochs.
const EVERYTHING: &[u8] = &[7, 6, 0, 1, 2, 3];
/// The same without the handshake.
const USUAL: &[u8] = &[7, 0, 1, 2, 3];
/// What TLS 1.2 has.
const OLD: &[u8] = &[0, 1, 2, 3];

/// Keys of both directions for the given epochs; `operation` with direction and epoch, and `who` to
/// follow where the target wants it.
fn keys(operation: u8, who: Option<u8>, epochs: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for direction in Direction::BOTH {
        for epoch in epochs {
            let place = way(direction) | epoch << 4;
            match who {
                Some(at) => bytes.extend([operation, place | at]),
                None => bytes.push(operation | place),
            }
        }
    }
    bytes
}

pub(super) fn packet_path(add: Add<'_>) {
    // Policies, settings without checksums, VLANs, actions of the handler.
    let calm = [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let busy = [0xe4, 0x1b, 7, 0xe4, 0, 0x22, 0, 6, 0x84, 0, 1, 3];
    let resetting = [0, 0, 2, 0x1b, 0, 0, 0, 0, 0, 0, 0x75, 0];
    let numbers = [0usize, 1, 0, 0, 8, 9];
    for (at, number) in (0u8..).zip(numbers) {
        let script = &SCRIPTS[number];
        for (name, settings) in [("calm", &calm), ("busy", &busy), ("reset", &resetting)] {
            let early = name != "busy";
            let mut bytes = settings.to_vec();
            bytes.extend([6, at]);
            let turns = turns(script, at);
            if early {
                // Those that come too early for their epoch come again.
                for turn in turns.chunks(4) {
                    bytes.extend(turn);
                    bytes.extend(keys(
                        0x1a,
                        Some(at),
                        if at & 2 == 0 { EVERYTHING } else { USUAL },
                    ));
                }
            } else {
                bytes.extend(turns);
                bytes.extend(keys(0x1a, Some(at), if at & 2 == 0 { EVERYTHING } else { USUAL }));
            }
            // Both ends, then some time.
            bytes.extend([15, at, 15, at | 0x80, 8, at, flag::ACK, 1, 1, 13, 0, 9, 0x34]);
            add("packet_path", &format!("{name}-{at}"), bytes);
        }
    }
    let mut stalled = calm.to_vec();
    stalled.extend([6, 0]);
    stalled.extend(turns(&SCRIPTS[0], 0));
    stalled.extend([9, 0x02, 13, 0, 9, 0x01, 13, 0]);
    add("packet_path", "stall-without-keys", stalled.clone());
    // The same where this client has no agent, and more policies differ.
    let mut unshared = vec![0, 0, 0x22, 0x79];
    unshared.extend_from_slice(&stalled[3..]);
    add("packet_path", "stall-without-an-agent", unshared);
    stalled.extend([12, 0x10, 6, 0, 7, 0, 0, 0, 0]);
    add("packet_path", "null-keys-and-another-connection", stalled);
    let mut made = calm.to_vec();
    made.extend([6, 0]);
    made.extend(keys(0x1a, Some(0), USUAL));
    made.extend(handshake(&SCRIPTS[0], 0));
    // Data, an empty record, a KeyUpdate, and data under the next keys; out of order as well.
    for record in [
        &[14, 0, 23, 3, 0, b'a', b'b', b'c'][..],
        &[14, 0, 22, 5, 9, 24, 0, 0, 1, 0],
        &[14, 0, 23, 0, 0],
        &[14, 0x80, 23, 1, 100, b'x'],
        &[4, 0, 0xff, 0, 80, 5, 0, 0, 64, 16, 3, 1, 2, 3],
    ] {
        made.extend_from_slice(record);
    }
    add("packet_path", "records-of-any-content", made);
    raw(add);
}

/// Every turn of a script as one operation, in causal order.
fn turns(script: &Script, at: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for turn in &script.turns {
        bytes.extend([2, at | way(turn.direction)]);
        bytes.extend(half(turn.bytes.len()));
    }
    bytes
}

/// As [`turns`], without what follows the client's first protected flight.
fn handshake(script: &Script, at: u8) -> Vec<u8> {
    turns(script, at)[..4 * 2].to_vec()
}

/// Frames with everything that stands before TCP.
fn raw(add: Add<'_>) {
    let endpoints = Endpoints {
        client: ([10, 0, 0, 2], 40000).into(),
        server: ([10, 0, 0, 3], 443).into(),
        initial: [1, 1],
    };
    let syn = endpoints.frame(Direction::ClientToServer, -1, 0, flag::SYN, &[]);
    let data =
        endpoints.frame(Direction::ClientToServer, 0, 0, flag::ACK, b"\x16\x03\x01\x02\x00\x01");
    let six = Endpoints {
        client: "[fd00::2]:40000".parse().expect("an address"),
        server: "[fd00::3]:443".parse().expect("an address"),
        initial: [1, 1],
    };
    let mut extended = six.frame(Direction::ClientToServer, -1, 0, flag::SYN, &[]);
    let headers = [60, 0, 0, 0, 0, 0, 0, 0, 44, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 9];
    extended.splice(54..54, headers);
    extended[20] = 0;
    extended[19] += headers.len() as u8;
    let mut fragment = syn.clone();
    fragment[20] = 0x20;
    let mut tagged = data.clone();
    tagged.splice(12..12, [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]);
    let mut bytes = vec![0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for frame in [&syn, &data, &extended, &fragment, &tagged] {
        bytes.extend([0x40, frame.len() as u8]);
        bytes.extend_from_slice(frame);
    }
    bytes.extend([0x50, (syn.len() - 14) as u8]);
    bytes.extend_from_slice(&syn[14..]);
    add("packet_path", "raw-frames", bytes);
}

pub(super) fn session(add: Add<'_>) {
    const CLIENT: u8 = 0;
    const SERVER: u8 = 0x80;
    for number in 0..SCRIPT_COUNT as u8 {
        let rounds = SCRIPTS[usize::from(number)].turns.len();
        let whole: Vec<u8> = [CLIENT | 3, SERVER | 3].repeat(rounds);
        let epochs = match number & 2 {
            _ if SCRIPTS[usize::from(number)].tls12 => OLD,
            0 => EVERYTHING,
            _ => USUAL,
        };
        let all_keys = keys(9, None, epochs);
        let mut early = vec![number];
        early.extend(&all_keys);
        for _ in 0..rounds {
            // Keys of later epochs are not kept before their session is there.
            early.extend([CLIENT | 3, SERVER | 3]);
            early.extend(&all_keys);
        }
        early.extend([12, SERVER | 12, 11, SERVER | 11]);
        add("session", &format!("early-keys-{number}"), early);

        // Keys when everything waits for them; then what was dropped is sent again.
        let mut late = vec![number | 0x40];
        for _ in 0..rounds {
            late.extend(&whole);
            late.extend(&all_keys);
            late.extend([4, 7, 0xff, SERVER | 4, 7, 0xff]);
        }
        add("session", &format!("late-keys-{number}"), late);

        // Small pieces, some ahead, some twice, some changed or lost.
        let mut rough = vec![number];
        rough.extend(&all_keys);
        for round in 0..40u8 {
            let from = if round % 8 < 4 { CLIENT } else { SERVER };
            rough.extend([from | 6, 0, 90, 60, from, 250, from | 15, from | 5, 0, 200, 0, 120]);
            if round % 4 == 3 {
                rough.extend(&all_keys);
            }
            if round % 16 == 13 {
                rough.extend([from | 8, 30, from | 4, 1, 0]);
            }
        }
        rough.extend([7, 40, 30, 9, 1, CLIENT | 3, SERVER | 3]);
        add("session", &format!("rough-{number}"), rough);

        let mut lenient = vec![number | 0x80, 0x55 * (number & 3), number & 1, 0, 0x22, 6, 0x83];
        lenient.extend([SERVER | 0x0e, 0, 1]);
        lenient.extend(&all_keys);
        lenient.extend(&whole);
        lenient.extend([8, 20, SERVER | 8, 40, 13, 10 | 0x20]);
        lenient.extend(&whole);
        add("session", &format!("lenient-{number}"), lenient);
    }
}

pub(super) fn tls_deframer(add: Add<'_>) {
    for number in 0..SCRIPT_COUNT {
        for (name, choices, actions) in
            [("keys", 0x40, [0; 4]), ("none", 0x05, [0; 4]), ("pause", 0x6a, [0, 6, 0x12, 3])]
        {
            // Only these scripts' randoms are given keys.
            let given = [0, FIRST_TLS12, FIRST_TLS12 + 2, FIRST_EARLY, FIRST_EARLY + 2];
            if name != "none" && !given.contains(&number) {
                continue;
            }
            let mut bytes = vec![choices];
            bytes.extend(actions);
            bytes.extend([5, 1, 200]);
            for turn in &SCRIPTS[number].turns {
                bytes.push(way(turn.direction) | 1);
                bytes.extend(half(turn.bytes.len()));
                bytes.extend(&turn.bytes);
            }
            add("tls_deframer", &format!("{name}-{number}"), bytes);
        }
    }
    let hello = |version: [u8; 2], extensions: &[u8]| {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0]);
        body.extend(version);
        body.extend([0]);
        body.extend(half(extensions.len()));
        body.extend_from_slice(extensions);
        let mut record = vec![22, 3, 3];
        record.extend(half(body.len() + 4));
        record.extend([2, 0]);
        record.extend(half(body.len()));
        record.extend(body);
        record
    };
    let client = &SCRIPTS[0].turns[0].bytes;
    for (name, server) in [
        ("tls-1.2", hello([0xc0, 0x2f], &[])),
        ("unknown-suite", hello([0x13, 0x99], &[0, 43, 0, 2, 3, 4])),
        ("alert", vec![21, 3, 3, 0, 2, 2, 40]),
        ("not-tls", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("heartbeat-and-more", vec![24, 3, 3, 0, 1, 0, 20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 1, 0]),
    ] {
        let mut bytes = vec![0x55, 0, 0, 0, 0, 1, 2, 3, 1];
        bytes.extend(half(client.len()));
        bytes.extend_from_slice(client);
        bytes.extend([0x80, server.len() as u8]);
        bytes.extend(server);
        add("tls_deframer", name, bytes);
    }
}

/// Every dialog whole, and some talk with detours.
pub(super) fn recognition(add: Add<'_>) {
    let dialogs = mmtls_testkit::dialogs::dialogs();
    for (number, dialog) in dialogs.iter().enumerate() {
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        add("recognition", &format!("{}-{number}", dialog.name), vec![1, 7, 3, number]);
    }
    let hello = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9];
    let ssl2 = [0x80, 0x1f, 1, 3, 1, 0, 6, 0, 0, 0, 16, 9];
    for (name, last) in [("hello", &hello[..]), ("ssl2", &ssl2), ("text", b"QUIT\r\n")] {
        let mut talk = vec![2, 1, 9, 255];
        for (direction, bytes) in [
            (0x80, &b"220 hello\r\n"[..]),
            (0, b"NOOP\r\nSTARTTLS\r\n"),
            (0x80, b"220 go\r\n"),
            (0, last),
            (0x80, b"early"),
            (0, last),
        ] {
            talk.extend_from_slice(&[direction, u8::try_from(bytes.len()).unwrap_or(0)]);
            talk.extend_from_slice(bytes);
        }
        add("recognition", name, talk);
    }
}
