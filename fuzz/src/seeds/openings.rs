//! Seeds of `openings`: the classes of ways past the monitor that are known, in its operations.

use super::Add;

/// Nothing is delivered yet; the frame dies behind the engine.
const LATER: u8 = 0x40;
const DIES: u8 = 0x80;

/// Who is hostile.
const CLIENT: u8 = 0;
const SERVER: u8 = 1;
const THIRD: u8 = 2;
const NOBODY: u8 = 3;
const KEYS: u8 = 4;
const PATTERN: u8 = 8;
/// Without keys: behind another protocol.
const CLEAR: u8 = 8;
const BYPASS: u8 = 0x60;
/// Side 1 sends the SYN.
const OTHER_OPENS: u8 = 0x80;

const COOKIES: u8 = 0x20;
const TLS_PORTS: u8 = 0x40;

/// What an honest end makes of data on a SYN.
const QUEUED: u8 = 0x40;
const READ: u8 = 0x80;

/// Anchors and distances of numbers: see `openings::hostile`.
const OWN: u8 = 3;
const OWN_FIRST: u8 = 2;
/// The second table of distances, whose first is 2.
const NEAR: u8 = 8;

pub(super) fn openings(add: Add<'_>) {
    let mut seed = |name: &str, who: u8, how: u8, what: u8, operations: &[&[u8]]| {
        let bytes = [&[who, how, what][..], &operations.concat()].concat();
        add("openings", name, bytes);
    };
    for (name, keys) in
        [("", 0), ("-keys", KEYS | PATTERN), ("-keys-2", KEYS | PATTERN | 0x10), ("-clear", CLEAR)]
    {
        for (rules, how) in [("linux", 0), ("rfc", 3), ("cookies", COOKIES | 0x40)] {
            seed(&format!("client-{rules}{name}"), CLIENT | keys, how, 0, &[&[1, 1, 1, 1, 1]]);
            seed(&format!("server-{rules}{name}"), SERVER | keys, how, 1, &[&[10, 1, 1, 1, 1]]);
        }
        // Two SYNs, data between them, and one that dies.
        seed(
            &format!("second-syn{name}"),
            CLIENT | keys,
            0,
            0,
            &[&[2, OWN, 2 | DIES, OWN | 0x60, 13 | 0x10, 0, 0, 100], &[1, 1, 1]],
        );
        // A harmless request that dies, and another one in its place.
        seed(&format!("changed{name}"), CLIENT | keys, 0, 0, &[&[1, 1, 1, 1 | DIES | 0x20, 1, 1]]);
        // A SYN with another SYN as its answer, junk, then the server goes on.
        seed(
            &format!("simultaneous{name}"),
            SERVER | keys,
            3,
            0,
            &[&[10, 2, OWN, 3, OWN, 0, 1], &[13, 10, 0, 0, 1, 1, 1]],
        );
        seed(
            &format!("two-answers{name}"),
            SERVER | keys,
            0,
            0,
            &[&[10 | LATER, 0, 3, OWN, 0, 3, OWN | 0x60, 2, 1, 1]],
        );
        // A reset that dies, a pause, a clean start; and the other one's turn to connect.
        seed(
            &format!("reset-and-pause{name}"),
            CLIENT | keys | OTHER_OPENS,
            0,
            2,
            &[&[10, 1, 6 | DIES, 0, 0, 9 | 0x50, 1, 1, 1]],
        );
        seed(&format!("close{name}"), CLIENT | keys, 1, 4, &[&[1, 1, 7, 0, 0, 10 | 0x20, 1, 1]]);
        seed(
            &format!("any-flags{name}"),
            CLIENT | keys,
            2,
            8,
            &[&[2, OWN, 15, 0x12, 0, 0, 15, 5, 0, 0], &[1, 12, OWN_FIRST, 2, 14, 0, 50, 1, 14, 3]],
        );
    }
    // Behind another protocol: a hello in the place of bytes that died, one byte of it, far ahead of
    // them, and behind what was never said.
    let dead = [13 | DIES, 13, 0, 0];
    for (name, hello) in [
        ("whole", &[14, 60, 14, 0, 0][..]),
        ("a-byte", &[14, 60, 14, 0, 1, 13, 14, 1, 0]),
        ("ahead", &[12, 0xe0, 0, 14, 0, 0]),
        ("before", &[12, 0xf0, 0, 14, 0, 0]),
        ("unsaid", &[4, 0, 0xe0, 13, 14, 0, 0]),
    ] {
        seed(&format!("clear-{name}"), CLIENT | CLEAR, 0, 0, &[&dead, hello, &[1, 1, 1]]);
    }
    beside(&mut seed);
    fragments(&mut seed);
    for (name, who) in [("keys", KEYS), ("bypass", BYPASS), ("turned", KEYS | OTHER_OPENS)] {
        for (rules, how) in [("linux", 0), ("rfc", 3)] {
            for side in [0, 0x20] {
                // Frames in either name before, while and after the connection opens.
                let forged: Vec<u8> = (1..9).flat_map(|it| [it, it, 0, it | 0x10, it, 1]).collect();
                seed(
                    &format!("third-{name}-{rules}-{side}"),
                    THIRD | who,
                    how,
                    side,
                    &[&forged, &[10 | LATER], &forged, &[10], &forged, &[12, 0, 0, 0, 0, 0]],
                );
            }
            let lost = [10 | LATER, 11, 0, 9, 11 | 0x10, 0, 9 | 0x30, 11 | LATER | 0x30, 0, 11, 1];
            seed(&format!("network-{name}-{rules}"), NOBODY | who, how, 3, &[&lost, &lost]);
        }
    }
}

/// Takes name, who, how, what and operations of a seed.
type Seed<'a> = &'a mut dyn FnMut(&str, u8, u8, u8, &[&[u8]]);

/// Data on SYNs and their answers, and numbers that are nearly right.
fn beside(seed: Seed<'_>) {
    for (name, what) in [("taken", 0), ("queued", QUEUED), ("read", READ)] {
        for (turned, opener) in [("", 0), ("-turned", OTHER_OPENS)] {
            let how = 3 | TLS_PORTS;
            // On a SYN before one without; as a second SYN; on the answer, and in both directions.
            let syns: &[&[u8]] = &[&[2 | 0x20, OWN, 14, 0, 40, 2, OWN], &[1, 1, 1]];
            seed(&format!("syn-data-{name}{turned}"), CLIENT | opener, how, what, syns);
            let answers: &[&[u8]] = &[&[10, 3 | 0x20, OWN, 0, 1, 0, 40], &[1, 1, 1]];
            seed(&format!("syn-ack-data-{name}{turned}"), SERVER | opener, how, what, answers);
        }
    }
    for (name, number) in [("1", 0x10), ("2", NEAR), ("before", 0x70), ("1999", NEAR | 0xe0)] {
        for (side, who) in [("client", CLIENT | OTHER_OPENS), ("server", SERVER)] {
            for (cookies, how) in [("", 3), ("-cookies", COOKIES)] {
                let how = how | TLS_PORTS;
                // The acknowledgment is not exact: by whoever has sent the SYN, with either number or
                // both; of two answers only one has come.
                let off: &[&[u8]] = &[&[2, OWN, 4, 0, number], &[1, 1, 1]];
                seed(&format!("{side}-off-{name}{cookies}"), who ^ OTHER_OPENS, how, 0, off);
                let both: &[&[u8]] = &[&[2, OWN, 4, number, number], &[1, 1, 1]];
                seed(&format!("{side}-both-off-{name}{cookies}"), who ^ OTHER_OPENS, how, 0, both);
            }
            // What belongs to the answer that has died: a byte, an alert, a HelloRequest.
            for (text, len) in [(1, 1), (9, 0), (10, 0)] {
                let answers: &[&[u8]] = &[
                    &[10, 3 | DIES, OWN | number, 0, 3, OWN, 0],
                    &[12, 4 | number, 0, text, 0, len, 1, 1, 1],
                ];
                seed(&format!("{side}-answers-{name}-{text}"), who, 3 | TLS_PORTS, 0, answers);
            }
        }
    }
}

/// A ClientHello, and others in its place, in fragments.
fn fragments(seed: Seed<'_>) {
    for (name, keys) in [("", 0), ("-keys", KEYS | PATTERN)] {
        let open: &[u8] = &[1, 1];
        for (case, pieces) in [
            ("whole", &[8, 14, 0, 0, 2, 0, 0][..]),
            ("turned", &[8, 14, 0, 0, 2, 4, 0]),
            ("one-dies", &[8, 14, 0, 0, 2, 0, 2, 8, 0, 0, 0, 2, 0, 1]),
            ("again", &[8, 14, 0, 0, 2, 0, 2, 8, 14, 0, 0, 2, 0, 1]),
            ("two-halves", &[8, 14, 0, 80, 2, 0, 4, 8 | 0x10, 14, 80, 0, 2, 0, 3]),
            ("a-copy", &[8, 14, 0, 0, 2, 0x10, 0, 8, 14, 0, 0, 2, 0, 0]),
            ("late", &[8, 14, 0, 80, 2, 0, 4, 9 | 0x50, 8 | 0x10, 14, 80, 0, 2, 0, 3]),
            ("one-is-missing", &[8, 14, 0, 0, 2, 0x10, 0, 8, 0, 0, 0, 2, 0, 1]),
            ("others", &[8, 14, 0, 0, 2, 0x10, 0, 8, 0, 0, 0, 5, 0, 0]),
            ("beside-a-hole", &[8, 13, 0, 36, 0, 0x10, 0, 8, 13, 0, 36, 1, 0x90, 0]),
            ("pause", &[8, 14, 0, 0, 2, 0, 2, 9 | 0x50, 8, 0, 0, 0, 2, 0, 1]),
            ("request", &[1, 8, 3, 0, 0, 2, 0, 0]),
        ] {
            // Zeros are not TLS, and in a hole the same.
            let how = if case == "beside-a-hole" { 0 } else { TLS_PORTS };
            seed(&format!("pieces-{case}{name}"), CLIENT | keys, how, 0, &[open, pieces, &[1, 1]]);
        }
    }
}
