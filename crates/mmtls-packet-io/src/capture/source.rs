//! The bytes of a capture file, gunzipped if need be, a window at a time.
//!
//! The window grows to what is asked for and is zeroed when given up: capture files may carry TLS secrets.

use std::io::{self, BufReader, Chain, Cursor, Read, Take};

use flate2::bufread::MultiGzDecoder;
use zeroize::Zeroize;

use super::error::CaptureError;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const FIRST_WINDOW: usize = 256 * 1024;

/// The first bytes, which were read to look at them, and the rest.
type Peeked<R> = Chain<Take<Cursor<[u8; 2]>>, R>;

enum Input<R: Read> {
    Plain(Peeked<R>),
    // Boxed: the decompressor's state is large.
    Gzip(Box<MultiGzDecoder<BufReader<Peeked<R>>>>),
}

pub(super) struct Source<R: Read> {
    input: Input<R>,
    window: Vec<u8>,
    /// `window[start..end]` was read and not consumed yet.
    start: usize,
    end: usize,
    /// Position of `start` in the uncompressed file.
    offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(mut reader: R) -> Result<Self, CaptureError> {
        let mut magic = [0; 2];
        let mut count = 0;
        while let Some(rest) = magic.get_mut(count..).filter(|rest| !rest.is_empty()) {
            match reader.read(rest) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CaptureError::Io(error)),
            }
        }
        let peeked = Cursor::new(magic).take(count as u64).chain(reader);
        let input = if count == 2 && magic == GZIP_MAGIC {
            Input::Gzip(Box::new(MultiGzDecoder::new(BufReader::with_capacity(65536, peeked))))
        } else {
            Input::Plain(peeked)
        };
        Ok(Self { input, window: vec![0; FIRST_WINDOW], start: 0, end: 0, offset: 0 })
    }

    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// What was read and not consumed.
    pub(super) fn available(&self) -> &[u8] {
        self.window.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads until `length` bytes are available or the file ends, and returns what is available: possibly more, and
    /// less only at the end of the file.
    pub(super) fn fill(&mut self, length: usize) -> Result<&[u8], CaptureError> {
        if self.end - self.start < length {
            self.make_room(length);
        }
        while self.end - self.start < length {
            let Some(room) = self.window.get_mut(self.end..) else { break };
            let read = match &mut self.input {
                Input::Plain(reader) => reader.read(room),
                Input::Gzip(reader) => reader.read(room),
            };
            match read {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.read_error(error)),
            }
        }
        Ok(self.available())
    }

    /// Moves on. Not beyond what is available.
    pub(super) fn consume(&mut self, length: usize) {
        let length = length.min(self.end - self.start);
        self.start += length;
        self.offset += length as u64;
    }

    fn make_room(&mut self, length: usize) {
        if self.window.len() < length {
            let mut larger = vec![0; length.next_power_of_two()];
            let waiting = self.end - self.start;
            if let (Some(to), Some(from)) =
                (larger.get_mut(..waiting), self.window.get(self.start..self.end))
            {
                to.copy_from_slice(from);
            }
            self.window.zeroize();
            self.window = larger;
            (self.start, self.end) = (0, waiting);
        } else if self.start + length > self.window.len() {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    fn read_error(&self, error: io::Error) -> CaptureError {
        let offset = self.offset + (self.end - self.start) as u64;
        match (&self.input, error.kind()) {
            (Input::Gzip(_), io::ErrorKind::UnexpectedEof) => {
                CaptureError::Truncated { offset, what: "gzip stream" }
            }
            (Input::Gzip(_), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => {
                CaptureError::Compression { offset, error }
            }
            _ => CaptureError::Io(error),
        }
    }
}

impl<R: Read> Drop for Source<R> {
    fn drop(&mut self) {
        self.window.zeroize();
    }
}
