//! A buffer as far as it is known. Refuses to tell bytes that are not at hand from any others.

/// A buffer as far as it is known. Places in it count from its first byte, at hand or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The bytes at hand, without a hole.
    pub(crate) bytes: &'a [u8],
    /// How many bytes of the buffer were before them and are no longer at hand.
    pub(crate) start: u64,
    /// Nothing follows.
    pub(crate) is_whole: bool,
    /// What was before does not count: a literal that is not in the bytes at hand is not there.
    pub(crate) starts_here: bool,
    /// More may follow: what must not be within so many bytes waits for them.
    pub(crate) goes_on: bool,
}

impl<'a> View<'a> {
    /// A buffer that is wholly known.
    pub(crate) const fn whole(bytes: &'a [u8]) -> Self {
        Self { bytes, start: 0, is_whole: true, starts_here: false, goes_on: false }
    }

    /// Only what stands at a place and behind it, as if the rest were no longer at hand.
    pub(crate) fn behind(self, place: u64) -> Self {
        let at = self.index(place.max(self.start)).unwrap_or(self.bytes.len());
        let bytes = self.bytes.get(at..).unwrap_or(&[]);
        Self { bytes, start: self.end() - bytes.len() as u64, ..self }
    }

    /// Where what is known ends.
    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    /// The bytes between two places; absent where one of them is not at hand.
    pub(crate) fn slice(self, from: u64, to: u64) -> Option<&'a [u8]> {
        self.bytes.get(self.index(from)?..self.index(to)?)
    }

    /// The bytes from a place on; absent where they are not at hand.
    pub(crate) fn tail(self, from: u64) -> Option<&'a [u8]> {
        self.bytes.get(self.index(from)?..)
    }

    fn index(self, place: u64) -> Option<usize> {
        usize::try_from(place.checked_sub(self.start)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_places_at_hand_and_refuses_others() {
        let view =
            View { bytes: b"cdef", start: 2, is_whole: false, starts_here: false, goes_on: false };
        assert_eq!(view.end(), 6);
        assert_eq!(view.slice(2, 4), Some(&b"cd"[..]));
        assert_eq!(view.slice(6, 6), Some(&b""[..]));
        assert_eq!(view.tail(5), Some(&b"f"[..]));
        for (from, to) in [(1, 3), (4, 7), (5, 4), (7, 7)] {
            assert_eq!(view.slice(from, to), None, "{from} {to}");
        }
        assert_eq!((view.tail(1), view.tail(7)), (None, None));
        let far = View {
            bytes: b"a",
            start: u64::MAX,
            is_whole: true,
            starts_here: false,
            goes_on: false,
        };
        assert_eq!(far.end(), u64::MAX);
    }
}
