//! The frames of one direction (RFC 9113, section 4), cut out of a stream.
//!
//! What is in DATA frames is passed on as it comes; what a header block is made of is put together,
//! up to a cap. Refuses frames that break up a header block, as endpoints do.

use crate::budget::{Charge, MemoryBudget};

/// Longest header block before decompression. Servers take 8 to 64 KiB.
const MAX_BLOCK: usize = 256 << 10;
/// Most frames that a header block is cut into.
const MAX_CONTINUATIONS: u32 = 256;
/// Longest SETTINGS: what may be in a frame before another size is agreed on. Endpoints take a few dozen of them.
const MAX_SETTINGS: usize = 16 << 10;
/// Of other frames only so many bytes are looked at: GOAWAY has the most that means something.
const MAX_OTHER: usize = 16;
const HEADER: usize = 9;
/// A direction keeps no larger buffer than this from frame to frame.
const KEPT_CAPACITY: usize = 16 << 10;

/// Types of frames (section 6) as far as they mean something here.
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const PRIORITY: u8 = 2;
    pub(in super::super) const RST_STREAM: u8 = 3;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PUSH_PROMISE: u8 = 5;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// What came.
pub(super) enum Piece<'a> {
    /// A frame of DATA begins.
    DataFrame { stream: u32 },
    /// Content of DATA, padding taken off; may be empty at the end of a stream.
    Data { stream: u32, bytes: &'a [u8], end_stream: bool },
    /// A frame with a part of a header block that goes on.
    Part { kind: u8, stream: u32 },
    /// A complete header block, in the reader's buffer: the frame that completes it, and the weight in its first
    /// one.
    Block { kind: u8, stream: u32, promised: Option<u32>, end_stream: bool, weight: Option<u8> },
    /// Another frame's first bytes, in the reader's buffer.
    Other { kind: u8, flags: u8, stream: u32 },
    /// No frame that an endpoint would take: nothing behind it means anything.
    Malformed,
    /// A header block beyond a cap.
    TooLarge,
}

#[derive(Clone, Copy, Default)]
struct Head {
    kind: u8,
    flags: u8,
    stream: u32,
}

enum State {
    /// In a frame's header.
    Header,
    /// In front of the padding's length, of so many bytes.
    PadLength {
        left: u32,
    },
    /// In content, with padding behind it.
    Content {
        left: u32,
        padding: u32,
    },
    Padding {
        left: u32,
    },
}

/// Reads the frames of one direction.
pub(super) struct Reader {
    state: State,
    header: [u8; HEADER],
    filled: usize,
    head: Head,
    /// The header block, or what was kept of another frame.
    pub(super) buffer: Vec<u8>,
    /// A header block is under way: whose, and what is known of it.
    block: Option<Block>,
    continuations: u32,
    too_large: bool,
    /// For a long buffer.
    charge: Charge,
}

#[derive(Clone, Copy)]
struct Block {
    stream: u32,
    end_stream: bool,
    promise: bool,
    priority: bool,
}

impl Reader {
    /// Long header blocks share memory with those of other connections.
    pub(super) fn new(budget: &MemoryBudget) -> Self {
        Self {
            state: State::Header,
            header: [0; HEADER],
            filled: 0,
            head: Head::default(),
            buffer: Vec::new(),
            block: None,
            continuations: 0,
            too_large: false,
            charge: budget.charge(),
        }
    }

    /// Keeps nothing more: what follows means nothing.
    pub(super) fn forget(&mut self) {
        self.buffer = Vec::new();
        self.charge.release();
    }

    /// Whether a frame, or a header block, is incomplete.
    pub(super) fn is_inside(&self) -> bool {
        self.filled > 0 || !matches!(self.state, State::Header) || self.block.is_some()
    }

    /// Looks at the input up to the next thing worth telling; how much was used comes with it.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        loop {
            match self.state {
                State::Header => {
                    let taken = input.len().min(HEADER - self.filled);
                    let (bytes, rest) = input.split_at(taken);
                    self.header[self.filled..self.filled + taken].copy_from_slice(bytes);
                    self.filled += taken;
                    *input = rest;
                    if self.filled < HEADER {
                        return None;
                    }
                    self.filled = 0;
                    if !self.begin() {
                        return Some(Piece::Malformed);
                    }
                    if self.head.kind == kind::DATA {
                        return Some(Piece::DataFrame { stream: self.head.stream });
                    }
                }
                State::PadLength { left } => {
                    let (&padding, rest) = input.split_first()?;
                    *input = rest;
                    let padding = u32::from(padding);
                    // Section 6.1: padding that is as long as the frame is an error.
                    let Some(content) = (left - 1).checked_sub(padding) else {
                        return Some(Piece::Malformed);
                    };
                    self.state = State::Content { left: content, padding };
                }
                State::Content { left: 0, padding } => {
                    self.state = State::Padding { left: padding };
                    if padding == 0
                        && let Some(piece) = self.end()
                    {
                        return Some(piece);
                    }
                }
                State::Content { left, padding } => {
                    if input.is_empty() {
                        return None;
                    }
                    let most = usize::try_from(left).unwrap_or(usize::MAX);
                    let (bytes, rest) = input.split_at(most.min(input.len()));
                    *input = rest;
                    // Within u32: not longer than `left`.
                    self.state = State::Content { left: left - bytes.len() as u32, padding };
                    if self.head.kind == kind::DATA {
                        let stream = self.head.stream;
                        return Some(Piece::Data { stream, bytes, end_stream: false });
                    }
                    self.keep(bytes);
                    if self.too_large {
                        return Some(Piece::TooLarge);
                    }
                }
                State::Padding { left } => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX);
                    let skipped = most.min(input.len());
                    *input = &input[skipped..];
                    self.state = State::Padding { left: left - skipped as u32 };
                    if left as usize > skipped {
                        return None;
                    }
                    if let Some(piece) = self.end() {
                        return Some(piece);
                    }
                }
            }
        }
    }

    /// A frame's header is complete; false when no endpoint takes the frame.
    fn begin(&mut self) -> bool {
        let [a, b, c, kind, flags, stream @ ..] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        self.head = Head { kind, flags, stream };
        let continues = kind == kind::CONTINUATION;
        match self.block {
            Some(block) if !continues || block.stream != stream => return false,
            None if continues => return false,
            _ => {}
        }
        let of_a_stream = matches!(kind, kind::DATA | kind::HEADERS | kind::PUSH_PROMISE);
        if of_a_stream && stream == 0 {
            return false;
        }
        match kind {
            kind::CONTINUATION => {
                self.continuations += 1;
                self.too_large |= self.continuations > MAX_CONTINUATIONS;
            }
            kind::HEADERS | kind::PUSH_PROMISE => {
                self.buffer.clear();
                self.continuations = 0;
                let is_headers = kind == kind::HEADERS;
                self.block = Some(Block {
                    stream,
                    end_stream: is_headers && flags & END_STREAM != 0,
                    promise: !is_headers,
                    priority: is_headers && flags & PRIORITY != 0,
                });
            }
            _ => self.buffer.clear(),
        }
        if self.buffer.capacity() > KEPT_CAPACITY && self.block.is_none_or(|_| !continues) {
            self.forget();
        }
        self.state = if of_a_stream && flags & PADDED != 0 {
            if length == 0 {
                return false;
            }
            State::PadLength { left: length }
        } else {
            State::Content { left: length, padding: 0 }
        };
        true
    }

    fn keep(&mut self, bytes: &[u8]) {
        let most = match self.head.kind {
            _ if self.block.is_some() => MAX_BLOCK,
            kind::SETTINGS => MAX_SETTINGS,
            _ => MAX_OTHER,
        };
        let room = most - self.buffer.len().min(most);
        // What is beyond may say something else than what is kept.
        self.too_large |= bytes.len() > room && most > MAX_OTHER;
        let needed = self.buffer.len() + bytes.len().min(room);
        // In steps that double, as the buffer grows.
        if needed > KEPT_CAPACITY && !self.charge.grow(needed.next_power_of_two()) {
            self.too_large = true;
            self.buffer = Vec::new();
            return;
        }
        self.buffer.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// A frame is complete.
    fn end<'a>(&mut self) -> Option<Piece<'a>> {
        self.state = State::Header;
        let Head { kind, flags, stream } = self.head;
        if self.too_large {
            return Some(Piece::TooLarge);
        }
        match kind {
            kind::DATA if flags & END_STREAM != 0 => {
                Some(Piece::Data { stream, bytes: &[], end_stream: true })
            }
            kind::DATA => None,
            kind::HEADERS | kind::PUSH_PROMISE | kind::CONTINUATION => {
                if flags & END_HEADERS == 0 {
                    let promised = self.buffer.first_chunk().filter(|_| kind == kind::PUSH_PROMISE);
                    let stream =
                        promised.map_or(stream, |it| u32::from_be_bytes(*it) & 0x7fff_ffff);
                    return Some(Piece::Part { kind, stream });
                }
                let block = self.block.take()?;
                Some(self.block(kind, block).unwrap_or(Piece::Malformed))
            }
            _ => Some(Piece::Other { kind, flags, stream }),
        }
    }

    /// Takes off what stands in front of the fields.
    fn block<'a>(&mut self, kind: u8, block: Block) -> Option<Piece<'a>> {
        let Block { stream, end_stream, promise, priority } = block;
        let (mut promised, mut weight) = (None, None);
        if promise {
            let first = self.buffer.first_chunk::<4>()?;
            promised = Some(u32::from_be_bytes(*first) & 0x7fff_ffff);
            self.buffer.drain(..4);
        }
        if priority {
            weight = Some(*self.buffer.get(4)?);
            self.buffer.drain(..5);
        }
        Some(Piece::Block { kind, stream, promised, end_stream, weight })
    }
}
