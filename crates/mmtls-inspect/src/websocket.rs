//! WebSocket (RFC 6455): the messages in one direction's frames, their masking and their compression
//! (permessage-deflate, RFC 7692) taken off.
//!
//! Refuses to guess behind what endpoints answer by closing the connection, to show control frames, which
//! no application reads, and to decompress beyond the caps of content codings.

use flate2::Decompress;

use crate::budget::{Charge, MemoryBudget};
use crate::decode;
use crate::event::{Anomaly, Event, Side};

/// Longest head of a frame.
const MAX_HEAD: usize = 14;
/// Output at a time.
const PIECE: usize = 8 << 10;
/// Memory of a decompressor: its window and tables.
const INFLATE_MEMORY: usize = 48 << 10;
/// Most bytes that come out of a message whatever went in, and for one that went in beyond that.
const FREE_INFLATED: u64 = 4 << 20;
const MAX_RATIO: u64 = 1100;
/// Most last blocks of a message.
const MAX_ENDS: u32 = 64;
/// What a sender leaves out at the end of a compressed message (RFC 7692, section 7.2.2).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// A last block without content. Nothing else than the start of a block lets a stream end with all of it.
const LAST_BLOCK: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// What was negotiated beside the protocol itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Extensions {
    /// Messages may be compressed.
    deflate: bool,
    /// Each message of a side is compressed by itself; client first.
    no_takeover: [bool; 2],
    /// There is one that is not known.
    pub(crate) has_unknown: bool,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Endpoints close the connection.
    Malformed,
    /// More comes out than a cap allows.
    OverCap,
}

/// One direction.
pub(crate) struct Reader {
    is_client: bool,
    head: [u8; MAX_HEAD],
    head_len: usize,
    frame: Option<Frame>,
    message: Option<Message>,
    inflate: Option<Inflate>,
    failed: Option<Failed>,
}

/// Behind a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// Bytes are shown as they are sent.
    AsSent,
    /// Nothing is shown: what is compressed says nothing.
    Silent,
}

/// The payload that is under way.
#[derive(Clone, Copy)]
struct Frame {
    left: u64,
    mask: [u8; 4],
    at: usize,
    is_control: bool,
    is_last: bool,
}

/// The message that is under way.
#[derive(Clone, Copy)]
struct Message {
    is_compressed: bool,
}

/// The compression of one direction.
///
/// Messages may refer to what came before them also where they were to be compressed each by itself: Chromium
/// goes on there as everywhere, and who begins anew fails. They may not end within a block then, which only whoever goes on
/// reads to its end; nor behind a last block, where some begin anew whatever was negotiated.
struct Inflate {
    state: Box<Decompress>,
    /// Begins anew with each message, to find where those end: where each is compressed by itself, or once there was a last block.
    alone: Option<Box<Decompress>>,
    charge: Charge,
    /// Bytes of the message that went in, and that came out.
    taken: u64,
    produced: u64,
    /// Last blocks in it.
    ends: u32,
}

/// Where go what messages say and faults.
type Tell<'a> = &'a mut dyn FnMut(Result<&[u8], Fault>);

/// Both directions of a connection.
pub(crate) struct WebSocket {
    /// Client first.
    readers: [Reader; 2],
    extensions: Extensions,
}

impl WebSocket {
    /// Behind the response that changes the protocol.
    pub(crate) fn new(extensions: Extensions, budget: &MemoryBudget) -> Self {
        let readers =
            [Side::Client, Side::Server].map(|side| Reader::new(side, extensions, budget));
        Self { readers, extensions }
    }

    /// An extension that is not known may change everything.
    pub(crate) fn report_extensions(&self, sink: &mut impl FnMut(Event<'_>)) {
        if self.extensions.has_unknown {
            sink(Event::Anomaly(Side::Server, Anomaly::WebSocketUnknownExtension));
        }
    }

    /// The next bytes of a side; what its messages say is reported.
    pub(crate) fn data(&mut self, side: Side, bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
        self.reader(side).data(bytes, &mut |read| match read {
            Ok(bytes) => sink(Event::Data(side, bytes)),
            Err(fault) => sink(Event::Anomaly(side, fault.anomaly())),
        });
    }

    /// Bytes of a side are missing.
    pub(crate) fn gap(&mut self, side: Side) {
        self.reader(side).gap();
    }

    fn reader(&mut self, side: Side) -> &mut Reader {
        let [client, server] = &mut self.readers;
        match side {
            Side::Client => client,
            Side::Server => server,
        }
    }
}

impl Fault {
    /// As it is reported.
    pub(crate) const fn anomaly(self) -> Anomaly {
        match self {
            Self::Malformed => Anomaly::WebSocketMalformed,
            Self::OverCap => Anomaly::ContentCodingOverCap,
        }
    }
}

impl Extensions {
    /// Reads the Sec-WebSocket-Extensions of the answer: what the client offered does not count.
    pub(crate) fn read<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut all = Self::default();
        let values = fields
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"sec-websocket-extensions"))
            .map(|(_, value)| value);
        for extension in values.flat_map(|value| value.split(|byte| *byte == b',')) {
            let mut words = extension.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            match words.next() {
                None | Some(b"") => continue,
                Some(name) if name.eq_ignore_ascii_case(b"permessage-deflate") => {
                    all.deflate = true;
                }
                Some(_) => all.has_unknown = true,
            }
            for word in words {
                all.no_takeover[0] |= word.eq_ignore_ascii_case(b"client_no_context_takeover");
                all.no_takeover[1] |= word.eq_ignore_ascii_case(b"server_no_context_takeover");
            }
        }
        all
    }
}

impl Reader {
    /// At the start of a direction.
    pub(crate) fn new(side: Side, extensions: Extensions, budget: &MemoryBudget) -> Self {
        let is_client = side == Side::Client;
        // Without memory for it, compressed messages cannot be told from malformed ones.
        let mut charge = budget.charge();
        let no_takeover = extensions.no_takeover[usize::from(!is_client)];
        let memory = if no_takeover { 2 * INFLATE_MEMORY } else { INFLATE_MEMORY };
        let has_memory = extensions.deflate && charge.set(memory);
        let new = || Box::new(Decompress::new(false));
        let inflate = has_memory.then(|| Inflate {
            state: new(),
            alone: no_takeover.then(new),
            charge,
            taken: 0,
            produced: 0,
            ends: 0,
        });
        Self {
            is_client,
            head: [0; MAX_HEAD],
            head_len: 0,
            frame: None,
            message: None,
            inflate,
            failed: None,
        }
    }

    /// The next bytes. Tells what messages say and, once, a fault, in their order; behind one in a frame's head,
    /// everything as it is sent.
    pub(crate) fn data(&mut self, mut bytes: &[u8], tell: Tell<'_>) {
        while !bytes.is_empty() {
            let out = &mut |bytes: &[u8]| tell(Ok(bytes));
            let (result, failed) = match (self.failed, self.frame) {
                (Some(Failed::AsSent), _) => return tell(Ok(bytes)),
                (Some(Failed::Silent), _) => return,
                (None, Some(frame)) => (self.payload(frame, &mut bytes, out), Failed::Silent),
                (None, None) => (self.head(&mut bytes, out), Failed::AsSent),
            };
            if let Err(fault) = result {
                self.failed = Some(failed);
                self.inflate = None;
                tell(Err(fault));
            }
        }
    }

    /// Bytes are missing: where the next frame begins is not known.
    pub(crate) fn gap(&mut self) {
        self.failed = Some(Failed::AsSent);
        self.inflate = None;
    }

    fn head(&mut self, bytes: &mut &[u8], out: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        let Some((&first, rest)) = bytes.split_first() else {
            return Ok(());
        };
        if let Some(place) = self.head.get_mut(self.head_len) {
            *place = first;
            self.head_len += 1;
        }
        *bytes = rest;
        let so_far = self.head;
        let Some(head) = so_far.get(..self.head_len) else {
            return Err(Fault::Malformed);
        };
        let Some(frame) = self.frame_of(head)? else {
            return Ok(());
        };
        self.head_len = 0;
        if frame.left > 0 {
            self.frame = Some(frame);
            return Ok(());
        }
        self.frame_over(frame, out)
    }

    /// The frame that a head begins, once the head is whole.
    fn frame_of(&mut self, head: &[u8]) -> Result<Option<Frame>, Fault> {
        let [first, second, rest @ ..] = head else {
            return Ok(None);
        };
        let (opcode, length) = (first & 0xf, second & 0x7f);
        let is_masked = second & 0x80 != 0;
        let long = match length {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let (Some(extended), Some(behind)) = (rest.get(..long), rest.get(long..)) else {
            return Ok(None);
        };
        let mask = match (is_masked, behind) {
            (false, _) => [0; 4],
            (true, [a, b, c, d, ..]) => [*a, *b, *c, *d],
            (true, _) => return Ok(None),
        };
        let number = extended.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let left = if long == 0 { length.into() } else { number };
        // Lengths have one form each (RFC 6455, section 5.2).
        let is_minimal = match long {
            2 => left > 125,
            8 => left > 0xffff && left >> 63 == 0,
            _ => true,
        };
        let (is_last, is_compressed) = (first & 0x80 != 0, first & 0x40 != 0);
        let is_control = opcode & 8 != 0;
        let is_legal = match opcode {
            0 => self.message.is_some() && !is_compressed,
            1 | 2 => self.message.is_none() && (!is_compressed || self.inflate.is_some()),
            8..=10 => is_last && !is_compressed && length <= 125,
            _ => false,
        };
        if !is_legal || !is_minimal || first & 0x30 != 0 || is_masked != self.is_client {
            return Err(Fault::Malformed);
        }
        if matches!(opcode, 1 | 2) {
            self.message = Some(Message { is_compressed });
        }
        Ok(Some(Frame { left, mask, at: 0, is_control, is_last }))
    }

    fn payload(
        &mut self,
        mut frame: Frame,
        bytes: &mut &[u8],
        out: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Fault> {
        let len = usize::try_from(frame.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (now, rest) = bytes.split_at(len.min(PIECE));
        *bytes = rest;
        frame.left -= now.len() as u64;
        if !frame.is_control {
            let mut piece = [0; PIECE];
            let piece = piece.get_mut(..now.len()).unwrap_or_default();
            for (at, (place, byte)) in (frame.at..).zip(piece.iter_mut().zip(now)) {
                *place = byte ^ frame.mask[at & 3];
            }
            self.content(piece, out)?;
        }
        frame.at = (frame.at + now.len()) & 3;
        self.frame = (frame.left > 0).then_some(frame);
        if frame.left == 0 { self.frame_over(frame, out) } else { Ok(()) }
    }

    fn content(&mut self, piece: &[u8], out: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        match (&mut self.inflate, self.message) {
            (Some(inflate), Some(Message { is_compressed: true })) => inflate.data(piece, out),
            _ => {
                out(piece);
                Ok(())
            }
        }
    }

    fn frame_over(&mut self, frame: Frame, out: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        if frame.is_control || !frame.is_last {
            return Ok(());
        }
        let message = self.message.take();
        match (&mut self.inflate, message) {
            (Some(inflate), Some(Message { is_compressed: true })) => inflate.message_over(out),
            _ => Ok(()),
        }
    }
}

impl Inflate {
    fn data(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        self.taken = self.taken.saturating_add(bytes.len() as u64);
        let limit = FREE_INFLATED.max(self.taken.saturating_mul(MAX_RATIO));
        let produced = &mut self.produced;
        let mut ends = self.ends;
        let mut out = |piece: &[u8]| {
            *produced = produced.saturating_add(piece.len() as u64);
            if *produced > limit {
                return Err(decode::Fault::OverCap);
            }
            if !piece.is_empty() {
                out(piece);
            }
            Ok(())
        };
        let behind_last = blocks(&mut self.state, bytes, &mut ends, &mut out)?;
        match (&mut self.alone, behind_last) {
            (Some(alone), _) => {
                blocks(alone, bytes, &mut { self.ends }, &mut |_| Ok(()))?;
            }
            (None, Some(behind)) => {
                if !self.charge.set(2 * INFLATE_MEMORY) {
                    return Err(Fault::OverCap);
                }
                let mut alone = Box::new(Decompress::new(false));
                blocks(&mut alone, behind, &mut { self.ends }, &mut |_| Ok(()))?;
                self.alone = Some(alone);
            }
            (None, None) => {}
        }
        self.ends = ends;
        Ok(())
    }

    fn message_over(&mut self, out: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        self.data(&TAIL, out)?;
        (self.taken, self.produced, self.ends) = (0, 0, 0);
        if let Some(alone) = &mut self.alone {
            let mut nothing = |piece: &[u8]| match piece {
                [] => Ok(()),
                _ => Err(decode::Fault::Malformed),
            };
            let over = decode::inflate(alone, &LAST_BLOCK, &mut nothing);
            if over != Ok((LAST_BLOCK.len(), true)) {
                return Err(Fault::Malformed);
            }
            alone.reset(false);
        }
        Ok(())
    }
}

/// Decompresses, also behind last blocks, which are counted. What is behind the latest one, where there is one.
fn blocks<'b>(
    state: &mut Decompress,
    mut bytes: &'b [u8],
    ends: &mut u32,
    out: decode::Out<'_>,
) -> Result<Option<&'b [u8]>, Fault> {
    let mut behind_last = None;
    loop {
        let (used, has_ended) =
            decode::inflate(state, bytes, out).map_err(|fault| match fault {
                decode::Fault::OverCap => Fault::OverCap,
                _ => Fault::Malformed,
            })?;
        bytes = bytes.get(used..).unwrap_or_default();
        if !has_ended {
            return Ok(behind_last);
        }
        behind_last = Some(bytes);
        // A last block may be followed by another one (RFC 7692, section 7.2.3.5), which nobody does
        // often: to begin anew costs more than a block.
        *ends += 1;
        if *ends > MAX_ENDS {
            return Err(Fault::OverCap);
        }
        state.reset(false);
        if bytes.is_empty() {
            return Ok(behind_last);
        }
    }
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
pub(crate) mod tests;
