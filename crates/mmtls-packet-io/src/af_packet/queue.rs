//! Frames that wait to leave by one port, in order; those of one connection may leave as one ([`super::coalesce`]).
//!
//! Frames of different connections may change places by that, those of one connection never do, and nothing overtakes a
//! frame that could not be joined with others.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::coalesce::{HEADER_ROOM, Piece};
use super::system::{Memory, SendVector};
use crate::VnetHeader;

/// The kernel takes 1024 iovecs at most for one message.
const MAX_FRAMES: u64 = 64;

/// Frames that leave as one.
struct Message {
    /// Its first and last entry in the list of iovecs.
    first: usize,
    last: usize,
    frames: u64,
    /// What more can be appended to.
    piece: Option<Piece>,
}

/// Where a part of a message is, and which entry of the list is the next part.
struct IoVec {
    memory: Memory,
    next: Option<usize>,
}

/// What left with one call.
pub(super) struct Sent {
    pub(super) messages: usize,
    pub(super) frames: u64,
    /// Without offload headers.
    pub(super) bytes: u64,
}

pub(super) struct Queue {
    messages: Vec<Message>,
    iovecs: Vec<IoVec>,
    /// Messages from this one on may be appended to.
    open_from: usize,
    /// Offload header and headers of each message that has, or may get, more than one frame.
    headers: Box<[[u8; HEADER_ROOM]]>,
    /// Packets among them that are ours.
    owned: Vec<Vec<u8>>,
    vector: SendVector,
    coalesce: bool,
}

impl Queue {
    /// Room for so many messages.
    pub(super) fn new(capacity: usize, coalesce: bool) -> Self {
        Self {
            messages: Vec::with_capacity(capacity),
            iovecs: Vec::with_capacity(2 * capacity),
            open_from: 0,
            headers: vec![[0; HEADER_ROOM]; capacity].into(),
            owned: Vec::new(),
            vector: SendVector::default(),
            coalesce,
        }
    }

    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Frames of some of the messages.
    pub(super) fn frames(&self, messages: Range<usize>) -> u64 {
        self.messages[messages].iter().map(|message| message.frames).sum()
    }

    /// Whether it has to be sent before more is pushed.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() == self.headers.len()
    }

    /// Adds offload header and frame in someone else's memory. It is joined with others to `most` bytes of payload.
    ///
    /// # Safety
    /// `packet` must stay valid and unchanged until [`Self::clear`].
    pub(super) unsafe fn push_borrowed(&mut self, vnet: VnetHeader, packet: &[u8], most: usize) {
        let frame = packet.get(VnetHeader::LEN..).unwrap_or_default();
        let Some(piece) = self.coalesce.then(|| Piece::of(vnet, frame)).flatten() else {
            return self.push(Memory::of(packet), None);
        };
        let precedes = |message: &Message| message.piece.is_some_and(|it| it.may_precede(piece));
        if let Some(latest) = self.messages[self.open_from..].iter().rposition(precedes)
            && self.append(self.open_from + latest, piece, packet, most)
        {
            return;
        }
        let headers = VnetHeader::LEN + piece.headers();
        self.headers[self.messages.len()][..headers].copy_from_slice(&packet[..headers]);
        self.push(Memory::of(packet), Some(piece));
    }

    /// Adds offload header and frame.
    pub(super) fn push_owned(&mut self, packet: Vec<u8>) {
        // Its memory stays where it is when the vector moves.
        let memory = Memory::of(&packet);
        self.owned.push(packet);
        self.push(memory, None);
    }

    fn push(&mut self, memory: Memory, piece: Option<Piece>) {
        let at = self.iovecs.len();
        self.iovecs.push(IoVec { memory, next: None });
        self.messages.push(Message { first: at, last: at, frames: 1, piece });
        if piece.is_none() {
            self.open_from = self.messages.len();
        }
    }

    /// Appends to a message, if the frame belongs there.
    fn append(&mut self, at: usize, next: Piece, packet: &[u8], most: usize) -> bool {
        let message = &mut self.messages[at];
        if message.frames == MAX_FRAMES {
            return false;
        }
        let Some(piece) = &mut message.piece else { return false };
        let headers = &mut self.headers[at][..VnetHeader::LEN + piece.headers()];
        if !piece.append(headers, next, &packet[VnetHeader::LEN..], most) {
            return false;
        }
        if message.frames == 1 {
            // Its own headers stay as they are, since somebody may keep them; ours take their place.
            let first = &mut self.iovecs[message.first].memory;
            *first = first.skip(headers.len());
        }
        let payload = Memory::of(packet).skip(headers.len());
        message.link(&mut self.iovecs, payload);
        message.frames += 1;
        true
    }

    /// Readies what was pushed for [`Self::send`].
    pub(super) fn gather(&mut self) {
        let Self { messages, iovecs, vector, headers, .. } = self;
        for (message, headers) in messages.iter().zip(headers.iter()) {
            let several = message.piece.filter(|_| message.frames > 1);
            let front = several.map(|it| Memory::of(&headers[..VnetHeader::LEN + it.headers()]));
            let first = iovecs.get(message.first);
            let parts = std::iter::successors(first, |part| iovecs.get(part.next?));
            vector.push(front.into_iter().chain(parts.map(|part| part.memory)));
        }
    }

    /// Sends the messages from `from` on without blocking. An error is that of `from`.
    pub(super) fn send(&mut self, socket: &OwnedFd, from: usize) -> io::Result<Sent> {
        // SAFETY: who pushed frames promised that they stay as they are; ours and the headers do.
        let messages = unsafe { self.vector.send(socket, from) }?;
        let sent = from..(from + messages).min(self.messages.len());
        let bytes =
            sent.clone().map(|at| self.vector.sent_bytes(at).saturating_sub(VnetHeader::LEN));
        Ok(Sent {
            messages: sent.len(),
            bytes: bytes.sum::<usize>() as u64,
            frames: self.frames(sent),
        })
    }

    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.iovecs.clear();
        self.open_from = 0;
        self.owned.clear();
        self.vector.clear();
    }
}

impl Message {
    fn link(&mut self, iovecs: &mut Vec<IoVec>, memory: Memory) {
        let at = iovecs.len();
        iovecs[self.last].next = Some(at);
        iovecs.push(IoVec { memory, next: None });
        self.last = at;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    const ACK: u8 = 0x10;
    const FIN: u8 = 0x11;

    /// Offload header and frame of a connection's segment, by ports.
    fn packet(ports: u32, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let tcp_bytes = 20 + payload.len() as u16;
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((20 + tcp_bytes).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(ports.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend([0, 0, 0, 1, 5 << 4, flags, 1, 0]);
        // The sum of addresses, protocol and length, for the kernel to go on with.
        frame.extend((0x1409 + tcp_bytes).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload);
        [vnet().to_bytes().as_slice(), &frame].concat()
    }

    fn vnet() -> VnetHeader {
        VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            checksum_start: 34,
            checksum_offset: 16,
            ..VnetHeader::default()
        }
    }

    fn push(queue: &mut Queue, packets: &[Vec<u8>]) {
        for packet in packets {
            // SAFETY: no test sends from its queue after its packets are gone.
            unsafe { queue.push_borrowed(vnet(), packet, usize::MAX) };
        }
    }

    /// What leaves: ports and payload of each frame.
    fn sent(queue: &mut Queue, packets: &[Vec<u8>]) -> Vec<(u8, Vec<u8>)> {
        push(queue, packets);
        let (out, input) = UnixDatagram::pair().expect("sockets");
        queue.gather();
        let all = queue.messages();
        let sent = queue.send(&out.into(), 0).expect("sent");
        assert_eq!((sent.messages, sent.frames), (all, queue.frames(0..all)));
        let mut bytes = 0;
        let frames = (0..all)
            .map(|_| {
                let mut frame = vec![0; 70_000];
                let length = input.recv(&mut frame).expect("received");
                bytes += length - VnetHeader::LEN;
                (frame[VnetHeader::LEN + 37], frame[VnetHeader::LEN + 54..length].to_vec())
            })
            .collect();
        assert_eq!(sent.bytes, bytes as u64);
        queue.clear();
        assert_eq!(queue.messages(), 0);
        frames
    }

    #[test]
    fn accepts_joining_the_frames_of_each_connection() {
        let mut queue = Queue::new(8, true);
        let packets = [
            packet(1, 100, ACK, b"one "),
            packet(2, 200, ACK, b"ONE "),
            packet(1, 104, ACK, b"two "),
            packet(2, 204, ACK, b"TWO"),
            packet(1, 108, ACK, b"six"),
        ];
        for _ in 0..2 {
            let frames = sent(&mut queue, &packets);
            assert_eq!(frames, [(1, b"one two six".to_vec()), (2, b"ONE TWO".to_vec())]);
        }
        // The frames themselves are as they were.
        assert_eq!(packets[0], packet(1, 100, ACK, b"one "));
    }

    #[test]
    fn accepts_many_small_frames() {
        let mut queue = Queue::new(8, true);
        let packets: Vec<_> = (0..200).map(|at| packet(1, at, ACK, b"a")).collect();
        let lengths: Vec<_> = sent(&mut queue, &packets).iter().map(|it| it.1.len()).collect();
        assert_eq!(lengths, [64, 64, 64, 8]);
    }

    /// What the kernel does not take is named, and what is behind it goes out.
    #[test]
    fn accepts_going_on_behind_a_frame_that_is_refused() {
        let mut queue = Queue::new(8, true);
        let long = vec![1; 30_000];
        let packets = [
            packet(1, 0, ACK, &long),
            packet(2, 0, ACK, b"a"),
            packet(1, 30_000, ACK, &long),
            packet(2, 1, ACK, b"b"),
        ];
        push(&mut queue, &packets);
        let (out, input) = UnixDatagram::pair().expect("sockets");
        let out: OwnedFd = out.into();
        super::super::system::set_option(&out, libc::SOL_SOCKET, libc::SO_SNDBUF, &20_000i32)
            .expect("a small buffer");
        queue.gather();
        assert_eq!(queue.frames(0..1), 2);
        let error = queue.send(&out, 0).map(|_| ()).expect_err("too long");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        let sent = queue.send(&out, 1).expect("the other");
        assert_eq!((sent.messages, sent.frames, sent.bytes), (1, 2, 56));
        let mut frame = [0; 100];
        assert_eq!(input.recv(&mut frame).expect("received"), VnetHeader::LEN + 56);
        queue.clear();
        assert_eq!(self::sent(&mut queue, &packets[1..2]), [(2, b"a".to_vec())]);
    }

    #[test]
    fn accepts_every_frame_for_itself() {
        let mut queue = Queue::new(8, false);
        let packets = [packet(1, 100, ACK, b"one "), packet(1, 104, ACK, b"two")];
        assert_eq!(sent(&mut queue, &packets).len(), 2);
    }

    #[test]
    fn refuses_to_change_the_order_within_a_connection() {
        let mut queue = Queue::new(16, true);
        let packets = [
            packet(1, 100, ACK, b"a"),
            // Out of turn, and what would fit behind the first is now behind this one.
            packet(1, 150, ACK, b"x"),
            packet(1, 101, ACK, b"b"),
            packet(2, 200, ACK, b"A"),
            packet(1, 102, FIN, b"c"),
            // Nothing overtakes what cannot be joined.
            packet(1, 103, ACK, b"d"),
            packet(2, 201, ACK, b"B"),
        ];
        let frames = sent(&mut queue, &packets);
        let expected = [(1, "a"), (1, "x"), (1, "b"), (2, "A"), (1, "c"), (1, "d"), (2, "B")];
        assert_eq!(frames, expected.map(|(ports, text)| (ports, text.as_bytes().to_vec())));
    }

    #[test]
    fn refuses_to_join_across_a_frame_of_ours() {
        let mut queue = Queue::new(8, true);
        let packets = [packet(1, 100, ACK, b"a"), packet(1, 101, ACK, b"b")];
        push(&mut queue, &packets[..1]);
        queue.push_owned(packet(1, 100, ACK, b"held"));
        let frames = sent(&mut queue, &packets[1..]);
        let texts: Vec<_> = frames.iter().map(|(_, text)| text.as_slice()).collect();
        assert_eq!(texts, [b"a".as_slice(), b"held", b"b"]);
    }

    #[test]
    fn accepts_frames_until_it_is_full() {
        let mut queue = Queue::new(2, true);
        let packets = [packet(1, 1, ACK, b"a"), packet(2, 1, ACK, b"a"), packet(1, 2, ACK, b"b")];
        push(&mut queue, &packets);
        assert!(queue.is_full());
        assert_eq!(queue.frames(0..2), 3);
    }
}
