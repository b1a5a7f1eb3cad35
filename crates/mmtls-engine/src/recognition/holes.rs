//! Turns whose first bytes are missing, while later ones have passed: a ClientHello may begin there, and come behind its rest.
//!
//! Refuses to remember more than a few.

use super::hello::{self, Begins, STRICT_LEN};

/// What a sender repeats is not further behind its stream; where its receiver has said that it came, it never comes.
const MAX_BEHIND: i64 = 1 << 20;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hole {
    /// Where it begins.
    start: i64,
    /// What has come from there on, also behind it, in whatever pieces, and which of it: one bit for each.
    head: [u8; STRICT_LEN],
    known: u16,
}

/// Those of a side, if there were any: the oldest one and the latest.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Holes(Option<Box<[Option<Hole>; 2]>>);

impl Holes {
    /// The side's turn begins at this offset with bytes that are missing.
    pub(super) fn note(&mut self, start: i64) {
        let places = self.0.get_or_insert_default();
        let hole = Some(Hole { start, head: [0; STRICT_LEN], known: 0 });
        let left = places[0].filter(|it| it.start + MAX_BEHIND >= start);
        let oldest = left.or(places[1]);
        **places = if oldest.is_some() { [oldest, hole] } else { [hole, None] };
    }

    /// Takes a segment of the side that begins at this offset; whether it shows that a ClientHello begins in a hole.
    pub(super) fn fill(&mut self, offset: i64, payload: &[u8]) -> bool {
        let mut begins = false;
        for place in self.0.iter_mut().flat_map(|it| it.iter_mut()) {
            let Some(hole) = place else {
                continue;
            };
            hole.fill(offset, payload);
            let known = hole.known.trailing_ones() as usize;
            match hello::strict(&hole.head[..known]) {
                Begins::Other => *place = None,
                Begins::Unsure if known < STRICT_LEN => {}
                // Records as short as these are TLS, too.
                _ => {
                    begins = true;
                    *place = None;
                }
            }
        }
        begins
    }
}

impl Hole {
    fn fill(&mut self, offset: i64, payload: &[u8]) {
        for (at, byte) in self.head.iter_mut().enumerate() {
            if let Ok(place) = usize::try_from(self.start + at as i64 - offset)
                && let Some(came) = payload.get(place)
            {
                *byte = *came;
                self.known |= 1 << at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: [u8; 11] = [22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];

    #[test]
    fn accepts_a_hello_in_any_pieces() {
        for cut in 1..=HELLO.len() {
            let mut it = Holes::default();
            it.note(100);
            let pieces = HELLO.chunks(cut).zip((100..).step_by(cut));
            let found = pieces.filter(|(piece, at)| it.fill(*at, piece)).count();
            assert_eq!(found, 1, "{cut} at a time");
            // With what was in front, and elsewhere.
            let bytes = [&[7; 5][..], &HELLO[..cut], &[9; 20]].concat();
            let mut it = Holes::default();
            it.note(100);
            assert!(!it.fill(94, &bytes) && !it.fill(101, &bytes) && !it.fill(95, &bytes[..5]));
            it.note(100);
            assert_eq!(it.fill(95, &bytes), cut == HELLO.len(), "{cut}");
        }
        // Its end first.
        for cut in 1..HELLO.len() {
            let mut it = Holes::default();
            it.note(0);
            assert!(!it.fill(cut as i64, &HELLO[cut..]));
            assert!(it.fill(0, &HELLO[..cut]), "{cut}");
        }
        // A record of one byte.
        let mut it = Holes::default();
        it.note(0);
        assert!(it.fill(0, &[22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 9]));
    }

    #[test]
    fn accepts_another_hole_while_one_stays() {
        let mut it = Holes::default();
        for start in [100, 200, 300] {
            it.note(start);
        }
        assert!(!it.clone().fill(200, &HELLO));
        assert!(it.clone().fill(100, &HELLO) && it.clone().fill(300, &HELLO));
        it.note(300 + MAX_BEHIND);
        it.note(301 + MAX_BEHIND);
        assert!(!it.clone().fill(100, &HELLO) && it.clone().fill(301 + MAX_BEHIND, &HELLO));
        assert!(it.fill(300 + MAX_BEHIND, &HELLO) && !it.fill(300 + MAX_BEHIND, &HELLO), "once");
    }
}
