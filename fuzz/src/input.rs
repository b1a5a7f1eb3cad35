//! Choices read from the front of an input, so that small changes of it are small changes of what
//! is done. Refuses to run dry: behind the end everything is zero or empty.

pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&first, rest)) => {
                self.rest = rest;
                first
            }
            None => 0,
        }
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    pub(crate) fn i16(&mut self) -> i16 {
        self.u16().cast_signed()
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// The next bytes, fewer at the end.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Everything that is left.
    pub(crate) fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}

/// Cuts bytes into pieces whose lengths go round in `lengths`; a zero counts as one.
pub(crate) fn pieces<'a>(bytes: &'a [u8], lengths: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut lengths = lengths.iter().cycle();
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = lengths.next().map_or(rest.len(), |&len| usize::from(len).max(1));
        let (piece, behind) = rest.split_at(len.min(rest.len()));
        rest = behind;
        Some(piece)
    })
}
