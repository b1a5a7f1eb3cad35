//! What a TLS server says first: found at the start of its turn, however that is cut, and where its
//! client has not waited for a dialog's answers, behind those.
//!
//! Refuses to look for a ServerHello in the middle of what a server says unless the client may have sent a
//! ClientHello in the middle of what it said: captures that are downloaded have both.

use super::hello::{
    ANSWER_LEN, HANDSHAKE, fits_server_hello, is_answer, is_server_hello, may_be_answer,
};

/// Bytes that are looked at together in the search for one.
const CHUNK: usize = 64;

/// What the server's bytes have shown.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The first bytes of its turn: a client's window can make them arrive one by one.
    turn: [u8; ANSWER_LEN],
    turn_len: u8,
    /// The latest bytes of its stream, one fewer than an answer has.
    latest: [u8; ANSWER_LEN - 1],
    latest_len: u8,
    /// Parts of a ServerHello that segments have been.
    parts: Parts,
    /// There may be a ClientHello among what its client has said.
    pub(super) hello_possible: bool,
}

/// Which parts of the first bytes of a ServerHello segments can have been: from each number of them on, up to which others,
/// one bit for each. Of segments that continued the stream, and of those that did not.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Parts {
    in_order: [u16; ANSWER_LEN],
    apart: [u16; ANSWER_LEN],
}

impl Parts {
    /// Takes a segment: it may begin one, go on with one, or be the middle of one.
    fn push(&mut self, payload: &[u8], in_order: bool) {
        let parts = if in_order { &mut self.in_order } else { &mut self.apart };
        let len = payload.len();
        if payload[len.saturating_sub(ANSWER_LEN - 1)..].contains(&HANDSHAKE) {
            for begun in (1..ANSWER_LEN).filter(|it| *it <= len) {
                let fits = fits_server_hello(0, &payload[len - begun..]);
                parts[0] |= u16::from(fits) << begun;
            }
        }
        for (from, to) in parts.iter_mut().enumerate().skip(1) {
            let taken = len.min(ANSWER_LEN - from);
            let fits = fits_server_hello(from, &payload[..taken]);
            *to |= u16::from(fits) << (from + taken);
        }
    }

    /// Whether some of them make one together, of which one at least did not continue the stream.
    fn make_one(&self) -> bool {
        // What can be reached from nothing: with parts that continued the stream, and with another one.
        let (mut in_order, mut apart) = (1_u16, 0_u16);
        for from in 0..ANSWER_LEN {
            let [next, other] = [self.in_order[from], self.apart[from]];
            if in_order >> from & 1 == 1 {
                in_order |= next;
                apart |= other;
            }
            if apart >> from & 1 == 1 {
                apart |= next | other;
            }
        }
        apart >> ANSWER_LEN & 1 == 1
    }
}

impl Answer {
    /// Takes the next bytes of the turn; whether it is the answer of a TLS server.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let found = self.hello_possible && self.search(bytes);
        let known = usize::from(self.turn_len);
        let taken = bytes.len().min(ANSWER_LEN - known);
        self.turn[known..known + taken].copy_from_slice(&bytes[..taken]);
        // At most 11.
        self.turn_len = (known + taken) as u8;
        found || taken > 0 && is_answer(&self.turn[..known + taken])
    }

    /// Takes a segment, and whether it continues the stream as it is known: if not, others may have died behind the
    /// monitor in its place. Whether there is a ServerHello in it, or in the segments that came so far, in whatever order, if
    /// one of them is out of order; one that comes in order is found by [`Self::push`].
    pub(super) fn push_segment(&mut self, payload: &[u8], in_order: bool) -> bool {
        self.parts.push(payload, in_order);
        self.hello_possible && (self.parts.make_one() || !in_order && has_server_hello(payload))
    }

    /// Looks for a ServerHello in bytes that continue the stream, wherever it begins.
    fn search(&mut self, bytes: &[u8]) -> bool {
        let known = usize::from(self.latest_len);
        let mut border = [0; 2 * (ANSWER_LEN - 1)];
        let ahead = bytes.len().min(ANSWER_LEN - 1);
        border[..known].copy_from_slice(&self.latest[..known]);
        border[known..known + ahead].copy_from_slice(&bytes[..ahead]);
        let border = &border[..known + ahead];
        let found = has_server_hello(border) || has_server_hello(bytes);
        let latest = if bytes.len() < ANSWER_LEN - 1 { border } else { bytes };
        let latest = &latest[latest.len().saturating_sub(ANSWER_LEN - 1)..];
        self.latest[..latest.len()].copy_from_slice(latest);
        // At most 10.
        self.latest_len = latest.len() as u8;
        found
    }

    /// The client speaks: the turn is over, unless it may be in the middle of an answer.
    pub(super) fn interrupt(&mut self) {
        let known = usize::from(self.turn_len);
        if known == ANSWER_LEN || !may_be_answer(&self.turn[..known]) {
            self.turn_len = 0;
        }
    }

    /// The client has said this, which is not where a ClientHello is expected.
    pub(super) fn note_client(&mut self, bytes: &[u8]) {
        self.hello_possible = self.hello_possible || may_have_hello(bytes);
    }
}

/// Whether a ServerHello begins in these bytes.
fn has_server_hello(bytes: &[u8]) -> bool {
    let starts = |at: &usize| bytes[*at] == HANDSHAKE;
    (0..bytes.len()).step_by(CHUNK).any(|from| {
        let to = (from + CHUNK).min(bytes.len());
        bytes[from..to].contains(&HANDSHAKE)
            && (from..to).filter(starts).any(|at| is_server_hello(&bytes[at..]))
    })
}

/// Whether a ClientHello may begin in these bytes, or go on behind them. Text has none.
fn may_have_hello(bytes: &[u8]) -> bool {
    // As in `hello`.
    let ssl2 =
        |at: usize| bytes[at] & 0x80 != 0 && bytes.get(at + 2).is_none_or(|message| *message == 1);
    (0..bytes.len()).step_by(CHUNK).any(|from| {
        let chunk = &bytes[from..(from + CHUNK).min(bytes.len())];
        chunk.contains(&HANDSHAKE)
            || chunk.iter().fold(0, |all, byte| all | byte) & 0x80 != 0
                && (from..from + chunk.len()).any(ssl2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspecting() -> Answer {
        Answer { hello_possible: true, ..Answer::default() }
    }

    const SERVER_HELLO: [u8; 11] = [22, 3, 3, 0, 122, 2, 0, 0, 118, 3, 3];

    #[test]
    fn accepts_a_server_hello_behind_an_answer_however_it_is_cut() {
        for len in 0..200 {
            let bytes = [&vec![7; len][..], &SERVER_HELLO, &[9; 20]].concat();
            for cut in 1..40 {
                let mut it = suspecting();
                let found = bytes.chunks(cut).filter(|piece| it.push(piece)).count();
                assert!(found > 0, "{len} in front, {cut} at a time");
                let mut it = Answer::default();
                let found = bytes.chunks(cut).filter(|piece| it.push(piece)).count();
                assert_eq!(found > 0, len == 0, "where no client has said anything");
            }
        }
    }

    #[test]
    fn accepts_a_server_hello_whose_segments_are_out_of_order() {
        for cut in 1..=SERVER_HELLO.len() {
            let mut it = suspecting();
            let found = SERVER_HELLO
                .chunks(cut)
                .filter(|piece| {
                    // What died in the place of the next one.
                    let found = it.push_segment(piece, false);
                    found | it.push(&[7; 60]) | it.push_segment(&[0; 20], false)
                })
                .count();
            assert!(found > 0, "{cut} at a time");
        }
        // What stood there in order counts, too.
        let mut it = suspecting();
        let (first, rest) = SERVER_HELLO.split_at(1);
        assert!(!it.push_segment(first, true) && !it.push(first));
        assert!(it.push_segment(rest, false));
        let mut it = suspecting();
        assert!(!it.push_segment(rest, false));
    }

    #[test]
    fn accepts_a_server_hello_whose_parts_come_in_any_order() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for cut in 1..SERVER_HELLO.len() {
            for other in cut..SERVER_HELLO.len() {
                let front = [&[0x20; 30][..], &SERVER_HELLO[..cut]].concat();
                let behind = [&SERVER_HELLO[other..], &[9; 30]].concat();
                let parts = [&front[..], &SERVER_HELLO[cut..other], &behind];
                for (order, in_order) in orders.iter().flat_map(|it| (0..4).map(move |at| (it, at)))
                {
                    let mut it = suspecting();
                    let found: Vec<bool> = order
                        .iter()
                        .map(|at| it.push_segment(parts[*at], in_order == *at))
                        .collect();
                    // Of two parts the middle one is empty.
                    let [.., last] = found[..] else { unreachable!() };
                    assert!(found.contains(&true), "{cut} {other} {order:?} {in_order}");
                    assert!(last || cut == other, "{cut} {other} {order:?} {in_order}: {found:?}");
                }
                let mut it = suspecting();
                assert!(!parts.iter().any(|part| it.push_segment(part, true)), "each in its place");
                let mut it = suspecting();
                let ends = [parts[0], parts[2]];
                let found = ends.iter().any(|part| it.push_segment(part, false));
                assert_eq!(found, cut == other, "{cut} {other}: without the middle");
            }
        }
    }

    #[test]
    fn accepts_a_server_hello_that_began_before_there_could_be_one() {
        for cut in 1..SERVER_HELLO.len() {
            let (first, rest) = SERVER_HELLO.split_at(cut);
            for in_order in [true, false] {
                let mut it = Answer::default();
                assert!(!it.push_segment(first, in_order) && !it.push(first));
                it.note_client(&[22]);
                assert!(it.push_segment(rest, !in_order), "{cut} bytes before");
            }
        }
        // It went on in order, and something else took the place of its end.
        let mut it = Answer::default();
        let first = &SERVER_HELLO[..1];
        assert!(!it.push_segment(first, true) && !it.push(first));
        it.note_client(&[22]);
        for piece in [&SERVER_HELLO[1..8], &[0; 60]] {
            assert!(!it.push_segment(piece, true) && !it.push(piece));
        }
        assert!(it.push_segment(&SERVER_HELLO[8..], false));
    }

    #[test]
    fn accepts_what_may_have_a_hello() {
        for bytes in [&[1, 22, 3][..], &[22], &[0x80, 46, 1], &[7, 0xff], &[7, 0x80, 46]] {
            assert!(may_have_hello(bytes), "{bytes:?}");
        }
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[5, 1, 0], &[0xc3, 0xa4, 0x20, 0x20]] {
            assert!(!may_have_hello(bytes), "{bytes:?}");
        }
    }
}
