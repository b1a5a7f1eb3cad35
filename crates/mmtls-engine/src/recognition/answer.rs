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
    /// So many bytes of a ServerHello are the latest of the stream, one bit for each number.
    ends: u16,
    /// So many have been, or have stood at the end of a segment that did not continue the stream.
    begun: u16,
    begun_apart: u16,
    /// There may be a ClientHello among what its client has said.
    pub(super) hello_possible: bool,
}

impl Answer {
    /// Takes the next bytes of the turn; whether it is the answer of a TLS server.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return false;
        }
        let found = self.hello_possible && self.search(bytes);
        if self.hello_possible {
            let (more, _) = continued(self.ends | self.turn_begun(), bytes);
            self.ends = more | ends_of(bytes);
            self.begun |= self.ends;
        }
        let known = usize::from(self.turn_len);
        let taken = bytes.len().min(ANSWER_LEN - known);
        self.turn[known..known + taken].copy_from_slice(&bytes[..taken]);
        // At most 11.
        self.turn_len = (known + taken) as u8;
        found || taken > 0 && is_answer(&self.turn[..known + taken])
    }

    /// Takes a segment that continues the stream. Whether it goes on with a ServerHello that began out of order; one that
    /// began in order is found by [`Self::push`].
    pub(super) fn push_in_order(&mut self, payload: &[u8]) -> bool {
        let (more, found) = continued(self.begun_apart, payload);
        self.begun_apart |= more;
        found
    }

    /// Takes a segment that does not continue the stream as it is known: others may have died behind the
    /// monitor in its place. Whether a ServerHello is in it, or at its border with others, whichever of
    /// them its receiver has taken.
    pub(super) fn push_out_of_order(&mut self, payload: &[u8]) -> bool {
        let begun = self.begun | self.begun_apart | self.turn_begun();
        let (more, found) = continued(begun, payload);
        self.begun_apart |= more | ends_of(payload);
        found | has_server_hello(payload)
    }

    /// What the turn has of a ServerHello, as [`Self::begun`]: it may have begun before there could be one.
    fn turn_begun(&self) -> u16 {
        let known = usize::from(self.turn_len);
        let begins = (1..ANSWER_LEN).contains(&known) && fits_server_hello(0, &self.turn[..known]);
        u16::from(begins) << known
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

/// How many bytes of a ServerHello there are when a segment goes on behind so many, of which numbers it fits, and whether
/// one of them is whole.
fn continued(begun: u16, payload: &[u8]) -> (u16, bool) {
    let fits = |len: &usize| {
        let more = payload.len().min(ANSWER_LEN - len);
        begun >> len & 1 == 1 && fits_server_hello(*len, &payload[..more])
    };
    let more = (1..ANSWER_LEN)
        .filter(fits)
        .fold(0, |all, len| all | 1 << ANSWER_LEN.min(len + payload.len()));
    (more, more >> ANSWER_LEN & 1 == 1)
}

/// Of which numbers the last so many bytes begin a ServerHello.
fn ends_of(payload: &[u8]) -> u16 {
    (1..ANSWER_LEN.min(payload.len() + 1))
        .map(|len| u16::from(fits_server_hello(0, &payload[payload.len() - len..])) << len)
        .fold(0, |all, one| all | one)
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
                    let found = it.push_out_of_order(piece);
                    found | it.push(&[7; 60]) | it.push_out_of_order(&[0; 20])
                })
                .count();
            assert!(found > 0, "{cut} at a time");
        }
        // What stood there in order counts, too.
        let mut it = suspecting();
        let (first, rest) = SERVER_HELLO.split_at(1);
        assert!(!it.push_in_order(first) && !it.push(first));
        assert!(it.push_out_of_order(rest));
        let mut it = suspecting();
        assert!(!it.push_out_of_order(rest));
    }

    #[test]
    fn accepts_a_server_hello_that_began_before_there_could_be_one() {
        for cut in 1..SERVER_HELLO.len() {
            let (first, rest) = SERVER_HELLO.split_at(cut);
            let mut it = Answer::default();
            assert!(!it.push(first));
            it.note_client(&[22]);
            assert!(it.push_out_of_order(rest), "{cut} bytes before");
        }
        // It went on in order, and something else took the place of its end.
        let mut it = Answer::default();
        assert!(!it.push(&SERVER_HELLO[..1]));
        it.note_client(&[22]);
        for piece in [&SERVER_HELLO[1..8], &[0; 60]] {
            assert!(!it.push_in_order(piece) && !it.push(piece));
        }
        assert!(it.push_out_of_order(&SERVER_HELLO[8..]));
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
