//! Whether bytes begin a ClientHello: as generously as servers take it where one is due, strictly in
//! the middle of what a client says, so that no other protocol is taken for TLS.
//!
//! Servers skip records in front of the hello and look at few fields (OpenSSL, Go, Java and GnuTLS
//! differ): records of any version and any length up to 2^16, empty ones of any type, warning alerts,
//! change_cipher_spec. Whatever the session's reader cannot follow of this meets a policy there, since
//! it was recognised here.
//!
//! OpenSSL answers a ClientHello in the form of SSL 2.0 with TLS 1.2. It has neither a random of 32 bytes nor records, so it
//! is a session that cannot be followed (`unsupported_version`).
//!
//! Refuses to read more than the beginning.

use crate::tls::{ContentType, HandshakeType, RECORD_HEADER_LEN};

/// The first byte of a record that begins a hello.
pub(super) const HANDSHAKE: u8 = ContentType::HANDSHAKE.0;

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

/// So many records without a byte of a handshake message are TLS, whatever comes behind them: OpenSSL
/// takes 32 empty ones, Java any number. Without a bound a client could keep this search going, each
/// time from its start.
const MANY_RECORDS: usize = 8;

/// Longest alert record that may stand in front of a hello; more than the two bytes of one alert.
const MAX_ALERT_LEN: usize = 16;

/// Shortest body of a ClientHello: version, random, three lengths, a suite, a compression method.
const MIN_HELLO_LEN: u16 = 41;

/// Message type, length, version.
const HEAD_LEN: usize = 6;

/// Bytes in which [`strict`] knows a hello whose first record is not shorter than its head.
pub(super) const STRICT_LEN: usize = RECORD_HEADER_LEN + HEAD_LEN;

/// How much is asked of a hello.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// The connection's first bytes, or TLS was asked for.
    Generous,
    /// As servers take it, but the whole head of the message: no protocol has asked for TLS.
    Whole,
    /// The whole head of the message, and records of known types only.
    Strict,
}

/// As servers take it.
pub(super) fn generous(bytes: &[u8]) -> Begins {
    match scan(bytes, Demand::Generous) {
        Begins::Other => ssl2(bytes),
        found => found,
    }
}

/// The head of a handshake message, and what servers take of it, in any records.
pub(super) fn whole(bytes: &[u8]) -> Begins {
    scan(bytes, Demand::Whole)
}

/// The head of a handshake message as honest clients send it, in records as servers take them.
pub(super) fn strict(bytes: &[u8]) -> Begins {
    scan(bytes, Demand::Strict)
}

/// Walks over records until there is enough of a handshake message.
fn scan(bytes: &[u8], demand: Demand) -> Begins {
    let mut head = [0; HEAD_LEN];
    let (mut known, mut skipped, mut plain_versions) = (0, 0, demand == Demand::Generous);
    let mut rest = bytes;
    loop {
        let Some((&[kind, major, _, high, low], behind)) =
            rest.split_first_chunk::<RECORD_HEADER_LEN>()
        else {
            return if may_be_header(rest, demand) { Begins::Unsure } else { Begins::Other };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if !may_be_header(&rest[..RECORD_HEADER_LEN], demand) {
            return Begins::Other;
        }
        plain_versions &= major == 3;
        let content = behind.get(..len).unwrap_or(behind);
        skipped += usize::from(len == 0 || ContentType(kind) != ContentType::HANDSHAKE);
        match ContentType(kind) {
            ContentType::HANDSHAKE => {
                let taken = content.len().min(HEAD_LEN - known);
                head[known..known + taken].copy_from_slice(&content[..taken]);
                known += taken;
            }
            // Servers that take neither in front of a hello answer with an alert.
            ContentType::ALERT | ContentType::CHANGE_CIPHER_SPEC
                if demand == Demand::Generous && plain_versions && len > 0 && known == 0 =>
            {
                return Begins::Tls;
            }
            _ => {}
        }
        match check_head(&head[..known], demand, plain_versions) {
            Begins::Unsure if skipped < MANY_RECORDS => {}
            Begins::Unsure => return Begins::Tls,
            found => return found,
        }
        let Some(next) = behind.get(len..) else {
            return Begins::Unsure;
        };
        rest = next;
    }
}

/// Whether these bytes, five at most, can be the header of a record in front of a hello, or of its
/// own.
fn may_be_header(bytes: &[u8], demand: Demand) -> bool {
    let len = match bytes {
        [_, _, _, high, low] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
        _ => None,
    };
    match bytes.first().map(|kind| ContentType(*kind)) {
        None => true,
        Some(ContentType::HANDSHAKE) => true,
        Some(ContentType::CHANGE_CIPHER_SPEC) => len.is_none_or(|it| it <= 1),
        Some(ContentType::ALERT) => len.is_none_or(|it| it <= MAX_ALERT_LEN),
        // Of any type, as long as it is empty.
        Some(_) => {
            demand != Demand::Strict
                && bytes.get(1).is_none_or(|major| *major == 3)
                && bytes.get(3..).is_none_or(|len| len.iter().all(|byte| *byte == 0))
        }
    }
}

/// What the head of a handshake message is, as far as it is known.
fn check_head(head: &[u8], demand: Demand, plain_versions: bool) -> Begins {
    if demand == Demand::Generous && plain_versions && !head.is_empty() {
        // With a version that TLS has, the record says enough.
        let is_hello = head[0] == HandshakeType::CLIENT_HELLO.0;
        return if is_hello { Begins::Tls } else { Begins::Other };
    }
    // Lengths below 2^16 from honest clients; what servers take ends somewhere below 2^18.
    let most = if demand == Demand::Strict { 0 } else { 3 };
    let legal: [fn(u8, u8) -> bool; HEAD_LEN] = [
        |it, _| it == HandshakeType::CLIENT_HELLO.0,
        |it, most| it <= most,
        |_, _| true,
        |_, _| true,
        |it, _| it == 3,
        |it, most| most > 0 || it <= 4,
    ];
    if !head.iter().zip(legal).all(|(byte, legal)| legal(*byte, most)) {
        return Begins::Other;
    }
    match *head {
        [_, long, high, low, _, _] => {
            let fits = long > 0 || u16::from_be_bytes([high, low]) >= MIN_HELLO_LEN;
            if fits { Begins::Tls } else { Begins::Other }
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

/// Bytes that [`is_answer`] needs.
pub(super) const ANSWER_LEN: usize = 11;

/// Whether a side answers as a TLS server does: with a ServerHello or an alert in the clear. Too short
/// bytes are no answer.
pub(super) fn is_answer(bytes: &[u8]) -> bool {
    is_server_hello(bytes) || matches!(bytes, [21, 3, 0..=4, 0, 2, 1 | 2, _, ..])
}

/// Whether these bytes begin a ServerHello in the clear.
pub(super) fn is_server_hello(bytes: &[u8]) -> bool {
    bytes.len() >= ANSWER_LEN && fits_server_hello(0, &bytes[..ANSWER_LEN])
}

/// Whether bytes can be those from a place on among the first [`ANSWER_LEN`] of a ServerHello in the clear.
pub(super) fn fits_server_hello(from: usize, bytes: &[u8]) -> bool {
    (from..).zip(bytes).all(|(at, byte)| match at {
        0 => *byte == HANDSHAKE,
        1 | 9 => *byte == 3,
        2 | 10 => *byte <= 4,
        3 => *byte <= 0x40,
        5 => *byte == HandshakeType::SERVER_HELLO.0,
        6 => *byte == 0,
        _ => true,
    })
}

/// Whether these bytes, fewer than [`ANSWER_LEN`], may become an answer.
pub(super) fn may_be_answer(bytes: &[u8]) -> bool {
    let legal: [fn(u8) -> bool; ANSWER_LEN] = [
        |it| matches!(it, 21 | 22),
        |it| it == 3,
        |it| it <= 4,
        |it| it <= 0x40,
        |_| true,
        |it| matches!(it, 1 | 2),
        |_| true,
        |_| true,
        |_| true,
        |it| it == 3,
        |it| it <= 4,
    ];
    bytes.iter().zip(legal).all(|(byte, legal)| legal(*byte))
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
        assert_eq!(generous(&HELLO[..5]), Begins::Unsure);
        assert_eq!(generous(&HELLO[..6]), Begins::Tls);
    }

    #[test]
    fn accepts_records_of_any_version_and_length() {
        for version in [[0, 1], [4, 1], [9, 0], [0x10, 3], [0xff, 0xff], [2, 0], [3, 0x7f]] {
            for len in [[2, 0], [0x42, 0xbd], [0xff, 0xff]] {
                let record = [&[22], &version[..], &len, &HELLO[5..]].concat();
                assert_eq!(generous(&record), Begins::Tls, "{record:?}");
                assert_eq!(strict(&record), Begins::Tls, "{record:?}");
                // However it is cut, it is never something else.
                for cut in 0..record.len() {
                    assert_ne!(generous(&record[..cut]), Begins::Other, "{cut}");
                }
            }
        }
    }

    #[test]
    fn accepts_what_servers_skip_in_front() {
        let empty = |kind| [kind, 3, 1, 0, 0];
        let fronts: [&[u8]; 7] = [
            &empty(20),
            &empty(22).repeat(7),
            &empty(23),
            &empty(99),
            &[21, 3, 1, 0, 2, 1, 90],
            &[20, 3, 1, 0, 1, 1],
            &[22, 9, 0, 0, 0],
        ];
        for front in fronts {
            let all = [front, &HELLO].concat();
            assert_eq!(generous(&all), Begins::Tls, "{front:?}");
            for cut in 0..front.len() {
                assert_ne!(generous(&all[..cut]), Begins::Other, "{front:?} {cut}");
            }
        }
        // Behind another protocol, too, where their types are known.
        for front in [0, 1, 4, 5] {
            assert_eq!(strict(&[fronts[front], &HELLO].concat()), Begins::Tls);
        }
        assert_eq!(strict(&[fronts[3], &HELLO].concat()), Begins::Other);
        for kind in [20, 22] {
            assert_eq!(strict(&empty(kind).repeat(MANY_RECORDS)), Begins::Tls);
        }
        let cut = [22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 9, 0, 0, 60, 3, 3];
        assert_eq!((strict(&cut), generous(&cut)), (Begins::Tls, Begins::Tls));
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
        for at in [0, 5, 6, 7, 9, 10] {
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

    #[test]
    fn refuses_other_protocols() {
        let others: [&[u8]; 10] = [
            b"GET / HTTP/1.1\r\n",
            b"SSH-2.0-x\r\n",
            &[22, 3, 1, 2, 0, 2],
            // SOCKS, MySQL, DNS, MQTT, PostgreSQL, a command of 22 bytes in MySQL, RDP.
            &[5, 3, 0, 1, 2],
            &[0x4a, 0, 0, 0, 10],
            &[0, 0x1d, 0x12, 0x34, 1, 0],
            &[0x10, 0x1a, 0, 4, b'M'],
            &[0, 0, 0, 8, 4],
            &[22, 0, 0, 0, 3, b's'],
            &[3, 0, 0, 0x13, 0x0e],
        ];
        for other in others {
            assert_eq!(generous(other), Begins::Other, "{other:?}");
            assert_eq!(strict(other), Begins::Other, "{other:?}");
        }
    }

    #[test]
    fn accepts_answers_of_servers_only() {
        assert!(is_answer(&[22, 3, 3, 0, 122, 2, 0, 0, 118, 3, 3, 9]));
        assert!(is_answer(&[21, 3, 1, 0, 2, 2, 40]));
        for other in [&HELLO[..], &[22, 3, 3, 0, 122, 2], &[21, 3, 1, 0, 2, 3, 40], b"HTTP/1.1 200"]
        {
            assert!(!is_answer(other), "{other:?}");
        }
    }
}
