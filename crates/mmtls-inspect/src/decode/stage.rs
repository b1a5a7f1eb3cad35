//! One coding, taken off as a stream. All output that some input allows comes out with that input.
//!
//! Checksums are not looked at: clients have the bytes by then. Refuses windows that RFC 7932 and
//! RFC 9659 do not allow.

use std::cell::RefCell;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::fault::Fault;
use crate::http1::chunked::{Chunked, Step};

/// Output at a time.
const PIECE: usize = 8 << 10;
/// Most of deflate's at a time: its window. What a decoder has ready when it meets a fault it keeps, which clients may
/// have.
const INFLATE_PIECE: usize = 32 << 10;
/// Memory of a deflate decoder: its window and tables.
const INFLATE_MEMORY: usize = 48 << 10;
/// Bytes of zlib's header.
const ZLIB_HEADER: usize = 2;
const BROTLI_MEMORY: usize = 64 << 10;
/// RFC 7932: 16 MiB.
const BROTLI_WINDOW: u64 = 16 << 20;
const ZSTD_MEMORY: usize = 256 << 10;
/// RFC 9659, section 3: 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;
/// Longest frame header (RFC 8878, section 3.1.1.1), magic number included.
const ZSTD_HEADER: u8 = 18;
/// Bytes of a magic number.
const ZSTD_MAGIC: u8 = 4;

pub(crate) type Out<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Fault>;
type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// The state of one coding.
pub(super) struct Stage {
    format: Format,
    /// Bytes that came out.
    produced: u64,
    trailing: bool,
    several: bool,
    /// It began as only zlib's frame does, and is none; or a frame of an older zstd follows.
    broke_off: bool,
}

enum Format {
    Gzip(Gzip),
    Inflate {
        state: Box<Decompress>,
        ended: bool,
        /// The first bytes, where they are those of zlib's frame.
        frame: Option<Vec<u8>>,
    },
    Brotli {
        state: Box<Brotli>,
        ended: bool,
    },
    Zstd(Zstd),
    /// No content coding: one that only some clients take off.
    Chunked {
        state: Chunked,
        ended: bool,
    },
}

struct Gzip {
    at: At,
    inflate: Box<Decompress>,
    /// A member ended.
    ended: bool,
}

/// Where in a gzip file the next byte is (RFC 1952, section 2.3).
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the magic number.
    Start,
    Magic,
    Method,
    Flags,
    /// In the time stamp and two bytes of hints.
    Hints {
        flags: u8,
        left: u8,
    },
    ExtraLength {
        flags: u8,
    },
    ExtraLengthHigh {
        flags: u8,
        low: u8,
    },
    Extra {
        flags: u8,
        left: u16,
    },
    /// In a text that ends with a zero.
    Name {
        flags: u8,
    },
    Comment {
        flags: u8,
    },
    HeaderCheck {
        left: u8,
    },
    Data,
    Trailer {
        left: u8,
    },
    Junk,
}

/// Bits of the flags.
const HEADER_CHECK: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;

struct Zstd {
    context: DCtx<'static>,
    /// Bytes of the frame that were seen, up to what a header has.
    seen: u8,
    /// Some frame ended.
    ended: bool,
    junk: Option<ZstdJunk>,
}

/// What follows frames and is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstdJunk {
    /// So many bytes came, which are those of an older format's magic number.
    Magic(u8),
    /// No decoder takes it for a frame.
    Nothing,
}

impl Stage {
    fn new(format: Format) -> Self {
        Self { format, produced: 0, trailing: false, several: false, broke_off: false }
    }

    pub(super) fn gzip() -> Self {
        let inflate = Box::new(Decompress::new(false));
        Self::new(Format::Gzip(Gzip { at: At::Start, inflate, ended: false }))
    }

    pub(super) fn inflate(zlib: bool) -> Self {
        let (state, frame) = (Box::new(Decompress::new(zlib)), zlib.then(Vec::new));
        Self::new(Format::Inflate { state, ended: false, frame })
    }

    pub(super) fn brotli() -> Self {
        let alloc = StandardAlloc::default;
        let state = Box::new(BrotliState::new_strict(alloc(), alloc(), alloc()));
        Self::new(Format::Brotli { state, ended: false })
    }

    pub(super) fn zstd() -> Self {
        let mut context = DCtx::create();
        // Only a number out of range could fail.
        let _ = context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG));
        Self::new(Format::Zstd(Zstd { context, seen: 0, ended: false, junk: None }))
    }

    pub(super) fn chunked() -> Self {
        Self::new(Format::Chunked { state: Chunked::new(), ended: false })
    }

    /// Bytes of memory that are in use. Windows are not touched before there is output.
    pub(super) fn memory(&self) -> usize {
        let window = |most: u64| usize::try_from(self.produced.min(most)).unwrap_or(usize::MAX);
        match self.format {
            Format::Gzip(_) | Format::Inflate { .. } => INFLATE_MEMORY,
            Format::Brotli { .. } => BROTLI_MEMORY + window(BROTLI_WINDOW),
            Format::Zstd(_) => ZSTD_MEMORY + window(1 << ZSTD_WINDOW_LOG),
            Format::Chunked { .. } => 0,
        }
    }

    /// Whether the body may end here.
    pub(super) fn is_complete(&self) -> bool {
        match &self.format {
            Format::Gzip(gzip) => gzip.ended && matches!(gzip.at, At::Start | At::Junk),
            Format::Inflate { ended, .. }
            | Format::Brotli { ended, .. }
            | Format::Chunked { ended, .. } => *ended,
            Format::Zstd(zstd) => match zstd.junk {
                None => zstd.ended && zstd.seen == 0,
                Some(junk) => junk == ZstdJunk::Nothing,
            },
        }
    }

    pub(super) fn has_trailing_bytes(&self) -> bool {
        self.trailing
    }

    pub(super) fn has_several_members(&self) -> bool {
        self.several
    }

    /// Whether it failed where some clients go on in another format: behind a header of zlib's, as no raw deflate begins that an
    /// encoder made, and at a frame of an older zstd.
    pub(super) fn broke_off(&self) -> bool {
        self.broke_off
    }

    /// Decodes the next bytes; in all, no more than `limit` come out.
    pub(super) fn decode(&mut self, input: &[u8], limit: u64, out: Out<'_>) -> Result<(), Fault> {
        let Self { format, produced, trailing, several, broke_off } = self;
        let mut is_behind = false;
        let out: Out<'_> = &mut |piece: &[u8]| {
            if piece.is_empty() {
                return Ok(());
            }
            *produced += piece.len() as u64;
            if *produced > limit {
                return Err(Fault::OverCap);
            }
            out(piece).inspect_err(|_| is_behind = true)
        };
        match format {
            Format::Gzip(gzip) => {
                if gzip.at == At::Start
                    && !gzip.ended
                    && input.first().is_some_and(|&byte| byte != 0x1f)
                {
                    // curl's gzip reads zlib as well.
                    let mut state = Box::new(Decompress::new(true));
                    let (used, ended) = inflate(&mut state, input, out)?;
                    *trailing |= ended && used < input.len();
                    *format = Format::Inflate { state, ended, frame: None };
                    return Ok(());
                }
                gzip.decode(input, out, several, trailing)?;
                *trailing |= gzip.at == At::Junk;
            }
            Format::Inflate { state, ended, frame } => {
                if *ended {
                    *trailing |= !input.is_empty();
                    return Ok(());
                }
                if let Some(frame) = frame {
                    frame.extend(input.iter().take(ZLIB_HEADER - frame.len()));
                }
                let result = inflate(state, input, out);
                let is_zlib = frame.as_deref().is_some_and(is_zlib_header);
                *broke_off = is_zlib && result == Err(Fault::Malformed) && !is_behind;
                let (used, at_end) = result?;
                *ended = at_end;
                *trailing |= at_end && used < input.len();
            }
            Format::Brotli { state, ended } => {
                if *ended {
                    *trailing |= !input.is_empty();
                    return Ok(());
                }
                let (used, at_end) = brotli(state, input, out)?;
                *ended = at_end;
                *trailing |= at_end && used < input.len();
            }
            Format::Zstd(zstd) => {
                let result = zstd.decode(input, out, several);
                *broke_off = zstd.junk == Some(ZstdJunk::Magic(ZSTD_MAGIC));
                result?;
                *trailing |= zstd.junk == Some(ZstdJunk::Nothing);
            }
            Format::Chunked { state, ended } => chunked(state, ended, input, out)?,
        }
        Ok(())
    }
}

/// Whether this is a header of zlib's (RFC 1950, section 2.2). Raw deflate that begins so has a stored block with
/// bits set that encoders leave out (RFC 1951, section 3.2.4).
fn is_zlib_header(start: &[u8]) -> bool {
    let is_deflate = start.first().is_some_and(|method| method & 0xf == 8);
    is_deflate && matches!(start, [a, b] if u16::from_be_bytes([*a, *b]) % 31 == 0)
}

/// Takes the chunked coding off. What follows its end is passed over.
fn chunked(
    state: &mut Chunked,
    ended: &mut bool,
    mut input: &[u8],
    out: Out<'_>,
) -> Result<(), Fault> {
    while !*ended {
        match state.step(input) {
            Step::More => break,
            Step::Fault(used) => input = input.get(used..).unwrap_or_default(),
            Step::Data(bytes, used) => {
                out(bytes)?;
                input = input.get(used..).unwrap_or_default();
            }
            Step::Trailers { used, is_last, .. } => {
                *ended = is_last;
                input = input.get(used..).unwrap_or_default();
            }
            Step::Bad(_) => return Err(Fault::Malformed),
        }
    }
    Ok(())
}

thread_local! {
    /// Where deflate's output goes; as many as codings are stacked. To clear them each time would cost more than a small
    /// piece.
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Decompresses; says how much was used, and whether the stream ended. Without an end, all of it was.
pub(crate) fn inflate(
    state: &mut Decompress,
    input: &[u8],
    out: Out<'_>,
) -> Result<(usize, bool), Fault> {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; INFLATE_PIECE]);
    let result = inflate_into(&mut buffer, state, input, out);
    BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}

fn inflate_into(
    buffer: &mut [u8],
    state: &mut Decompress,
    input: &[u8],
    out: Out<'_>,
) -> Result<(usize, bool), Fault> {
    let mut used = 0;
    loop {
        let (in_before, out_before) = (state.total_in(), state.total_out());
        // Up to where its window ends there is room for all that it makes before it asks for more.
        let in_window = usize::try_from(out_before).unwrap_or(0) % INFLATE_PIECE;
        let room = &mut buffer[..INFLATE_PIECE - in_window];
        let result = state.decompress(&input[used..], room, FlushDecompress::None);
        let taken = usize::try_from(state.total_in() - in_before).unwrap_or(0);
        let made = usize::try_from(state.total_out() - out_before).unwrap_or(0);
        used += taken;
        out(&buffer[..made])?;
        match result {
            Err(_) => return Err(Fault::Malformed),
            Ok(Status::StreamEnd) => return Ok((used, true)),
            // Where its window ends, too, it may have more to give than it gives at a time.
            Ok(Status::Ok | Status::BufError) if made > 0 => {}
            Ok(Status::Ok | Status::BufError) if used == input.len() => return Ok((used, false)),
            Ok(Status::Ok | Status::BufError) if taken == 0 => return Err(Fault::Malformed),
            Ok(Status::Ok | Status::BufError) => {}
        }
    }
}

fn brotli(state: &mut Brotli, input: &[u8], out: Out<'_>) -> Result<(usize, bool), Fault> {
    let mut buffer = [0; PIECE];
    let (mut left, mut used, mut total) = (input.len(), 0, 0);
    loop {
        let (mut room, mut made) = (PIECE, 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut used,
            input,
            &mut room,
            &mut made,
            &mut buffer,
            &mut total,
            state,
        );
        out(&buffer[..made])?;
        match result {
            BrotliResult::ResultSuccess => return Ok((used, true)),
            // Without room it has more to give, although it says that it needs more.
            BrotliResult::NeedsMoreInput if room > 0 => return Ok((used, false)),
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
            BrotliResult::ResultFailure => return Err(Fault::Malformed),
        }
    }
}

impl Gzip {
    fn decode(
        &mut self,
        mut input: &[u8],
        out: Out<'_>,
        several: &mut bool,
        trailing: &mut bool,
    ) -> Result<(), Fault> {
        while let Some((&byte, rest)) = input.split_first() {
            match self.at {
                At::Data => {
                    let (used, ended) = inflate(&mut self.inflate, input, out)?;
                    input = &input[used..];
                    if ended {
                        self.at = At::Trailer { left: 8 };
                        self.inflate.reset(false);
                    }
                    continue;
                }
                At::Junk => return Ok(()),
                _ => {}
            }
            *several |= self.ended && self.at == At::Method;
            self.at = match self.framing(byte) {
                Some(at) => at,
                // What follows a member is another one, behind zeros, too, over which Python's reader goes; or nothing
                // that a client takes.
                None if self.ended && self.at == At::Start && byte == 0 => {
                    *trailing = true;
                    At::Start
                }
                None if self.ended => At::Junk,
                None => return Err(Fault::Malformed),
            };
            input = rest;
        }
        Ok(())
    }

    /// The next byte of a header or trailer.
    fn framing(&mut self, byte: u8) -> Option<At> {
        Some(match self.at {
            At::Start if byte == 0x1f => At::Magic,
            At::Magic if byte == 0x8b => At::Method,
            At::Method if byte == 8 => At::Flags,
            At::Start | At::Magic | At::Method => return None,
            At::Flags => At::Hints { flags: byte, left: 6 },
            At::Hints { flags, left: 1 } if flags & EXTRA != 0 => At::ExtraLength { flags },
            At::Hints { flags, left: 1 } => behind(flags, EXTRA),
            At::Hints { flags, left } => At::Hints { flags, left: left - 1 },
            At::ExtraLength { flags } => At::ExtraLengthHigh { flags, low: byte },
            At::ExtraLengthHigh { flags, low } => match u16::from_le_bytes([low, byte]) {
                0 => behind(flags, EXTRA),
                left => At::Extra { flags, left },
            },
            At::Extra { flags, left: 1 } => behind(flags, EXTRA),
            At::Extra { flags, left } => At::Extra { flags, left: left - 1 },
            At::Name { flags } if byte == 0 => behind(flags, NAME),
            At::Comment { flags } if byte == 0 => behind(flags, COMMENT),
            At::HeaderCheck { left: 1 } => At::Data,
            At::HeaderCheck { left } => At::HeaderCheck { left: left - 1 },
            At::Trailer { left: 1 } => {
                self.ended = true;
                At::Start
            }
            At::Trailer { left } => At::Trailer { left: left - 1 },
            at @ (At::Name { .. } | At::Comment { .. } | At::Data | At::Junk) => at,
        })
    }
}

/// What the flags have behind one of their parts.
fn behind(flags: u8, part: u8) -> At {
    match flags {
        _ if part < NAME && flags & NAME != 0 => At::Name { flags },
        _ if part < COMMENT && flags & COMMENT != 0 => At::Comment { flags },
        _ if flags & HEADER_CHECK != 0 => At::HeaderCheck { left: 2 },
        _ => At::Data,
    }
}

impl Zstd {
    fn decode(&mut self, mut input: &[u8], out: Out<'_>, several: &mut bool) -> Result<(), Fault> {
        let mut buffer = [0; PIECE];
        while !input.is_empty() {
            if let Some(junk) = self.junk {
                return self.junk(junk, input);
            }
            // Byte by byte through the header: a whole frame at once would be decoded in one step, and
            // all of it lost where its end is faulty.
            let len = if self.seen < ZSTD_HEADER { 1 } else { input.len() };
            let mut source = InBuffer::around(&input[..len]);
            loop {
                let mut target = OutBuffer::around(&mut buffer[..]);
                let result = self.context.decompress_stream(&mut target, &mut source);
                let made = target.pos();
                out(&buffer[..made])?;
                match result {
                    Ok(0) => {
                        *several |= self.ended;
                        self.ended = true;
                        self.seen = 0;
                        break;
                    }
                    Ok(_) => {
                        // The window may hold more than fitted.
                        if source.pos() == len && made < PIECE {
                            self.seen = self.seen.saturating_add(1).min(ZSTD_HEADER);
                            break;
                        }
                    }
                    Err(_) if self.ended && self.seen < 5 => {
                        let junk = match self.seen {
                            0 => ZstdJunk::Magic(0),
                            _ => ZstdJunk::Nothing,
                        };
                        return self.junk(junk, input);
                    }
                    Err(_) => return Err(Fault::Malformed),
                }
            }
            input = &input[source.pos()..];
        }
        Ok(())
    }

    /// What is no frame. Decoders that were built to read formats from before version 0.8, as Debian's is, read one
    /// there.
    fn junk(&mut self, mut junk: ZstdJunk, input: &[u8]) -> Result<(), Fault> {
        for &byte in input {
            let ZstdJunk::Magic(count) = junk else { break };
            let is_next = match count {
                0 => matches!(byte, 0x22..=0x27),
                1 => byte == 0xb5,
                2 => byte == 0x2f,
                _ => byte == 0xfd,
            };
            junk = if is_next { ZstdJunk::Magic(count + 1) } else { ZstdJunk::Nothing };
            if junk == ZstdJunk::Magic(ZSTD_MAGIC) {
                self.junk = Some(junk);
                return Err(Fault::Malformed);
            }
        }
        self.junk = Some(junk);
        Ok(())
    }
}
