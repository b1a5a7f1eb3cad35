//! Whether bytes begin a ClientHello: generously where one is due or the client's turn begins,
//! strictly in the middle of what it says, so that no other protocol is taken for TLS.
//!
//! Refuses to read more than the beginning.

use crate::tls::{Recognition, recognise};

/// What a client's bytes begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    /// Records of SSL 3.0 or TLS.
    Tls,
    /// A ClientHello of SSL 2.0; servers answer one that offers later versions with those.
    Ssl2,
    /// Something else.
    Other,
    /// Too few bytes to tell.
    Unsure,
}

/// As servers take it.
pub(super) fn generous(bytes: &[u8]) -> Begins {
    match recognise(bytes) {
        Recognition::Tls => Begins::Tls,
        Recognition::Unsure => Begins::Unsure,
        Recognition::Other => ssl2(bytes),
    }
}

/// As honest clients send it: the head of a handshake message in the head of a record.
pub(super) fn strict(bytes: &[u8]) -> Begins {
    // Record type and version, length; message type, length below 2^16; legacy version.
    let legal: [fn(u8) -> bool; 11] = [
        |it| it == 22,
        |it| it == 3,
        |it| it <= 4,
        |it| it <= 0x40,
        |_| true,
        |it| it == 1,
        |it| it == 0,
        |_| true,
        |_| true,
        |it| it == 3,
        |it| it <= 3,
    ];
    if !bytes.iter().zip(legal).all(|(byte, legal)| legal(*byte)) {
        return Begins::Other;
    }
    match bytes {
        [_, _, _, _, _, _, _, high, low, _, _, ..] => {
            // No hello is shorter: version, random, three lengths, a suite, a compression method.
            let len = u16::from_be_bytes([*high, *low]);
            if len >= 41 { Begins::Tls } else { Begins::Other }
        }
        _ => Begins::Unsure,
    }
}

/// A ClientHello of SSL 2.0 (RFC 5246, appendix E.2): its parts must fit into it. Servers take any
/// later version, some take trailing bytes, and few look at the sizes.
fn ssl2(bytes: &[u8]) -> Begins {
    let legal: [fn(u8) -> bool; 4] =
        [|it| it & 0x80 != 0, |_| true, |it| it == 1, |it| it == 0 || it == 3];
    if bytes.is_empty() || !bytes.iter().zip(legal).all(|(byte, legal)| legal(*byte)) {
        return Begins::Other;
    }
    let Some(head) = bytes.first_chunk::<11>() else {
        return Begins::Unsure;
    };
    let at = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let (suites, session, challenge) = (at(5), at(7), at(9));
    let version_known = at(3) == 2 || head[3] == 3;
    let fits = 9 + suites + session + challenge <= at(0) & 0x7fff;
    let sizes = suites > 0 && suites.is_multiple_of(3) && session <= 32;
    if version_known && fits && sizes { Begins::Ssl2 } else { Begins::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: [u8; 11] = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    const OLD: [u8; 11] = [0x80, 0x1f, 1, 3, 1, 0, 6, 0, 0, 0, 16];

    #[test]
    fn accepts_hellos_and_their_beginnings() {
        assert_eq!((strict(&HELLO), generous(&HELLO)), (Begins::Tls, Begins::Tls));
        assert_eq!(generous(&OLD), Begins::Ssl2);
        for len in 0..11 {
            assert_eq!(strict(&HELLO[..len]), Begins::Unsure);
            if len > 0 {
                assert_eq!(generous(&OLD[..len]), Begins::Unsure, "{len}");
            }
        }
    }

    #[test]
    fn accepts_old_hellos_as_servers_take_them() {
        for (at, value) in [(4, 5), (1, 0x21), (8, 8), (10, 8)] {
            let mut other = OLD;
            other[1] = 0x30;
            other[at] = value;
            assert_eq!(generous(&other), Begins::Ssl2, "{at}");
        }
    }

    #[test]
    fn refuses_any_changed_byte_that_matters() {
        for at in [0, 1, 2, 3, 5, 6, 7, 9, 10] {
            let mut other = HELLO;
            other[at] = if at == 7 { 0 } else { 0x77 };
            other[8] = 40;
            assert_eq!(strict(&other), Begins::Other, "{at}");
        }
        // The length: a shorter one does not hold the parts.
        for (at, value) in [(0, 0x55), (1, 0x1e), (2, 2), (3, 4), (6, 5), (8, 33), (10, 17)] {
            let mut other = OLD;
            other[at] = value;
            assert_eq!(generous(&other), Begins::Other, "{at}");
        }
        assert_eq!(strict(&OLD), Begins::Other);
    }
}
