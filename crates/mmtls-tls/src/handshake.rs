//! Handshake messages inside record contents.
//!
//! Refuses to keep more bytes than its cap.

use crate::HandshakeType;

/// Reassembles plaintext handshake messages over records (RFC 8446, section 5.1). One pointer while nothing is kept.
#[derive(Default)]
pub struct MessageBuffer(Option<Box<Kept>>);

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    /// Bytes in front that were taken already. They go with the next push: a record may hold
    /// thousands of messages, and moving the rest for each would be quadratic.
    taken: usize,
}

/// A message is longer than the cap allows.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl MessageBuffer {
    /// Adds a record's content.
    pub fn push(&mut self, content: &[u8], cap: usize) -> Result<(), TooLong> {
        if self.len() + content.len() > cap {
            return Err(TooLong);
        }
        let Kept { bytes, taken } = &mut **self.0.get_or_insert_default();
        bytes.drain(..core::mem::take(taken));
        bytes.extend_from_slice(content);
        Ok(())
    }

    /// Takes the next complete message: its type and body.
    pub fn pop(&mut self, cap: usize) -> Result<Option<(HandshakeType, Vec<u8>)>, TooLong> {
        let Some(kept) = self.0.as_mut() else {
            return Ok(None);
        };
        let rest = kept.bytes.get(kept.taken..).unwrap_or_default();
        let Some((&[kind, a, b, c], rest)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > cap {
            return Err(TooLong);
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let body = body.to_vec();
        kept.taken += 4 + len;
        if kept.taken == kept.bytes.len() {
            self.clear();
        }
        Ok(Some((HandshakeType(kind), body)))
    }

    /// Memory that is taken, in bytes.
    pub fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |kept| kept.bytes.capacity())
    }

    /// Bytes that are not taken.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |kept| kept.bytes.len() - kept.taken)
    }

    /// Whether all have been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what is kept.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_messages_split_and_coalesced() {
        let mut buffer = MessageBuffer::default();
        let bytes = [1, 0, 0, 2, 7, 8, 2, 0, 0, 0, 9];
        for byte in bytes {
            buffer.push(&[byte], 64).unwrap();
        }
        assert_eq!(buffer.pop(64), Ok(Some((HandshakeType(1), vec![7, 8]))));
        assert_eq!(buffer.pop(64), Ok(Some((HandshakeType(2), vec![]))));
        assert_eq!(buffer.pop(64), Ok(None));
        assert_eq!(buffer.len(), 1);
        buffer.push(&[0, 0, 1, 5], 64).unwrap();
        assert_eq!(buffer.pop(64), Ok(Some((HandshakeType(9), vec![5]))));
        assert_eq!(buffer.len(), 0);
    }

    #[test]
    fn refuses_long_messages_before_they_arrive() {
        let mut buffer = MessageBuffer::default();
        buffer.push(&[1, 1, 0, 0], 64).unwrap();
        assert_eq!(buffer.pop(64), Err(TooLong));
        assert_eq!(buffer.push(&[0; 61], 64), Err(TooLong));
    }
}
