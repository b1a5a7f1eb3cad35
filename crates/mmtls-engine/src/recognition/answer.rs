//! What a TLS server says first: found at the start of its turn, however that is cut, and where its
//! client has not waited for a dialog's answers, behind those, also in segments that are out of order.
//!
//! Refuses to look for a ServerHello in the middle of what a server says unless the client may have sent a
//! ClientHello in the middle of what it said: captures that are downloaded have both.

use super::hello::{
    ANSWER_LEN, HANDSHAKE, fits_server_hello, is_answer, is_server_hello, may_be_answer,
};

/// Bytes that are looked at together in the search for one.
const CHUNK: usize = 64;

/// What the server's bytes have shown.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The first bytes of its turn: a client's window can make them arrive one by one.
    turn: [u8; ANSWER_LEN],
    turn_len: u8,
    /// The latest bytes of its stream, one fewer than an answer has.
    latest: [u8; ANSWER_LEN - 1],
    latest_len: u8,
    /// ServerHellos that are cut over segments.
    parts: Parts,
    /// Stream offset behind what has come.
    end: i64,
    /// There may be a ClientHello among what its client has said.
    pub(super) hello_possible: bool,
}

/// All of the first bytes of a ServerHello.
const WHOLE: u16 = (1 << ANSWER_LEN) - 1;

/// ServerHellos that are cut over segments, which may come in any order. Most connections have nothing like one.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
struct Parts(Option<Box<AllPlaces>>);

/// Where they are.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct AllPlaces {
    /// The latest places where one begins.
    begun: Places<4>,
    /// Where one may begin whose beginning is missing: as many as a segment of a byte can be part of.
    missing: Places<{ ANSWER_LEN - 1 }>,
    /// One was whole, and not only of segments that continued the stream.
    found: bool,
}

/// Places in the stream where one may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places<const N: usize> {
    places: [Place; N],
    latest: u8,
}

impl<const N: usize> Default for Places<N> {
    fn default() -> Self {
        Self { places: [Place::default(); N], latest: 0 }
    }
}

/// One of them.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Place {
    /// Of its stream offset, which tells places apart that are near each other.
    start: u32,
    /// Which of the first bytes were there, one bit for each; none: this is no place.
    known: u16,
    /// Some in a segment that did not continue the stream.
    apart: bool,
}

/// A segment.
struct Part<'a> {
    offset: u32,
    payload: &'a [u8],
    in_order: bool,
}

impl Parts {
    /// Takes a segment that begins at this offset.
    fn push(&mut self, offset: i64, payload: &[u8], in_order: bool) {
        // The last bits of it.
        let offset = offset as u32;
        let segment = Part { offset, payload, in_order };
        if let Some(places) = &mut self.0 {
            places.found |= places.begun.push(&segment) | places.missing.push(&segment);
        }
        let len = payload.len();
        let end = offset.wrapping_add(len as u32);
        if payload[len.saturating_sub(ANSWER_LEN - 1)..].contains(&HANDSHAKE) {
            for begun in 1..ANSWER_LEN.min(len + 1) {
                if fits_server_hello(0, &payload[len - begun..]) {
                    let places = self.0.get_or_insert_default();
                    places.begun.begin(end.wrapping_sub(begun as u32), &segment);
                }
            }
        }
        // What comes in order has its beginning before it, unless that is missing.
        for from in (1..ANSWER_LEN).filter(|_| !in_order && len > 0) {
            let taken = len.min(ANSWER_LEN - from);
            if fits_server_hello(from, &payload[..taken]) {
                let places = self.0.get_or_insert_default();
                places.missing.begin(offset.wrapping_sub(from as u32), &segment);
            }
        }
    }

    /// Whether one was found; it is said once.
    fn take_found(&mut self) -> bool {
        self.0.as_mut().is_some_and(|it| core::mem::take(&mut it.found))
    }
}

impl<const N: usize> Places<N> {
    /// Takes a segment; whether it completes one.
    fn push(&mut self, segment: &Part<'_>) -> bool {
        let mut found = false;
        for place in self.places.iter_mut().filter(|it| it.known != 0) {
            place.push(segment);
            if place.known == WHOLE {
                found |= place.apart;
                *place = Place::default();
            }
        }
        found
    }

    /// One may begin here.
    fn begin(&mut self, start: u32, segment: &Part<'_>) {
        if self.places.iter().any(|it| it.known != 0 && it.start == start) {
            return;
        }
        let mut place = Place { start, ..Place::default() };
        place.push(segment);
        self.latest = (self.latest + 1) % N as u8;
        self.places[usize::from(self.latest)] = place;
    }
}

impl Place {
    fn push(&mut self, segment: &Part<'_>) {
        let before = self.known;
        for at in 0..ANSWER_LEN {
            let place = self.start.wrapping_add(at as u32).wrapping_sub(segment.offset);
            if let Some(byte) = segment.payload.get(place as usize) {
                self.known |= u16::from(fits_server_hello(at, &[*byte])) << at;
            }
        }
        self.apart |= !segment.in_order && self.known != before;
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

    /// Takes bytes that continue the stream where it is followed. Whether they complete a ServerHello of which there were
    /// parts out of order; one that comes in order is found by [`Self::push`].
    pub(super) fn push_in_order(&mut self, bytes: &[u8]) -> bool {
        self.push_segment(self.end, bytes, true)
    }

    /// Where it is not known where a segment begins: behind what has come.
    pub(super) fn end(&self) -> i64 {
        self.end
    }

    /// Takes a segment that begins at this stream offset. If it does not continue the stream as it is known, others may have
    /// died behind the monitor in its place. Whether it has a ServerHello, or completes one, as [`Self::push_in_order`].
    pub(super) fn push_segment(&mut self, offset: i64, payload: &[u8], in_order: bool) -> bool {
        self.parts.push(offset, payload, in_order);
        self.end = self.end.max(offset + payload.len() as i64);
        self.hello_possible && (self.parts.take_found() || !in_order && has_server_hello(payload))
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
            let pieces = SERVER_HELLO.chunks(cut).zip((100..).step_by(cut));
            let found = pieces
                .filter(|(piece, at)| {
                    // What died in the place of the next one.
                    let found = it.push_segment(*at, piece, false);
                    let next = at + piece.len() as i64;
                    found | it.push(&[7; 60]) | it.push_segment(next, &[0; 20], false)
                })
                .count();
            assert!(found > 0, "{cut} at a time");
        }
        // What stood there in order counts, too; what stands elsewhere does not.
        let (first, rest) = SERVER_HELLO.split_at(1);
        for (at, expected) in [(1, true), (0, false), (2, false), (100, false)] {
            let mut it = suspecting();
            assert!(!it.push_in_order(first) && !it.push(first));
            assert_eq!(it.push_segment(at, rest, false), expected, "{at}");
        }
        // A repeated byte in front of the rest.
        let mut it = suspecting();
        assert!(!it.push_in_order(&SERVER_HELLO[..4]) && !it.push_in_order(&[0; 20]));
        assert!(it.push_segment(3, &SERVER_HELLO[3..], false));
        let mut it = suspecting();
        assert!(!it.push_segment(1, rest, false));
    }

    #[test]
    fn accepts_a_server_hello_whose_parts_come_in_any_order() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for cut in 1..SERVER_HELLO.len() {
            for other in cut + 1..SERVER_HELLO.len() {
                let front = [&[0x20; 30][..], &SERVER_HELLO[..cut]].concat();
                let behind = [&SERVER_HELLO[other..], &[9; 30]].concat();
                let parts = [&front[..], &SERVER_HELLO[cut..other], &behind];
                let at = [1000, 1030 + cut as i64, 1030 + other as i64];
                for order in orders {
                    let mut it = suspecting();
                    let found = order.map(|part| it.push_segment(at[part], parts[part], false));
                    assert_eq!(found, [false, false, true], "{cut} {other} {order:?}");
                }
                // The beginning in order, as if nothing had been lost, and the rest in either order.
                for order in [[1, 2], [2, 1]] {
                    let mut it = suspecting();
                    assert!(!it.push_segment(at[0], parts[0], true));
                    let found = order.map(|part| it.push_segment(at[part], parts[part], false));
                    assert_eq!(found, [false, true], "{cut} {other} {order:?}");
                }
                let mut it = suspecting();
                let found = [0, 1, 2].map(|part| it.push_segment(at[part], parts[part], true));
                assert_eq!(found, [false; 3], "each in its place");
            }
        }
    }

    #[test]
    fn accepts_a_server_hello_that_began_before_there_could_be_one() {
        for cut in 1..SERVER_HELLO.len() {
            let (first, rest) = SERVER_HELLO.split_at(cut);
            for early in [true, false] {
                let mut it = Answer::default();
                let parts = [(0, first), (cut as i64, rest)];
                let [one, other] = if early { [parts[0], parts[1]] } else { [parts[1], parts[0]] };
                assert!(!it.push_segment(one.0, one.1, early) && !it.push(one.1));
                it.note_client(&[22]);
                assert!(it.push_segment(other.0, other.1, false), "{cut} bytes, {early}");
            }
        }
        // It went on in order, and something else took the place of its end.
        let mut it = Answer::default();
        let first = &SERVER_HELLO[..1];
        assert!(!it.push_in_order(first) && !it.push(first));
        it.note_client(&[22]);
        for piece in [&SERVER_HELLO[1..8], &[0; 60]] {
            assert!(!it.push_in_order(piece) && !it.push(piece));
        }
        assert!(it.push_segment(8, &SERVER_HELLO[8..], false));
    }

    /// Short messages have parts of everything: what counts is where they stand.
    #[test]
    fn refuses_to_put_together_what_stands_apart() {
        let mut it = suspecting();
        let mut at = 0;
        for number in 0..100_000_u64 {
            // A length, and a message, each in a segment of its own; some come again.
            let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let message = &random.to_be_bytes()[..1 + number as usize % 8];
            let length = (message.len() as u32).to_be_bytes();
            for part in [&length[..], message] {
                for again in 0..1 + usize::from(number % 50 == 0) {
                    assert!(!it.push_segment(at, part, again == 0), "{number}");
                }
                at += part.len() as i64;
            }
        }
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
