//! Bounds-checked reading and writing of big-endian fields. Refuses to read or write outside its
//! slice; a writer that ran out of room says so at the end.

/// The input ends inside a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// Reads fields from the front of a slice.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Short> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn array_ref<const N: usize>(&mut self) -> Result<&'a [u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// All that is left; it stays.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// A field with its length in one byte before it.
    pub(crate) fn vec8(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    /// The same with its length in two bytes.
    pub(crate) fn vec16(&mut self) -> Result<&'a [u8], Short> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

/// Writes fields into a slice, front to back.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    full: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, full: false }
    }

    /// How many bytes were written; `None` when they did not all fit.
    pub(crate) fn finish(self) -> Option<usize> {
        (!self.full).then_some(self.at)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let room = self.out.get_mut(self.at..);
        match room.and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) if !self.full => {
                room.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            _ => self.full = true,
        }
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// What `write` writes, with its length in two bytes before it; longer fields count as "does not fit".
    pub(crate) fn vec16(&mut self, write: impl FnOnce(&mut Self)) {
        let before = self.at;
        self.u16(0);
        write(self);
        let length = u16::try_from(self.at.saturating_sub(before + 2));
        match (length, self.out.get_mut(before..before + 2)) {
            (Ok(length), Some(field)) => field.copy_from_slice(&length.to_be_bytes()),
            _ => self.full = true,
        }
    }

    /// A field with its length in one byte before it; longer ones count as "does not fit".
    pub(crate) fn vec8(&mut self, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(length) => {
                self.u8(length);
                self.bytes(bytes);
            }
            Err(_) => self.full = true,
        }
    }
}
