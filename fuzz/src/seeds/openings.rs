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
const BYPASS: u8 = 0x60;
/// Side 1 sends the SYN.
const OTHER_OPENS: u8 = 0x80;

const COOKIES: u8 = 0x20;

/// Anchors and distances of numbers: see `openings::hostile`.
const OWN: u8 = 3;
const OWN_FIRST: u8 = 2;

pub(super) fn openings(add: Add<'_>) {
    let mut seed = |name: &str, who: u8, how: u8, what: u8, operations: &[&[u8]]| {
        let bytes = [&[who, how, what][..], &operations.concat()].concat();
        add("openings", name, bytes);
    };
    for (name, keys) in [("", 0), ("-keys", KEYS | PATTERN), ("-keys-2", KEYS | PATTERN | 0x10)] {
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
