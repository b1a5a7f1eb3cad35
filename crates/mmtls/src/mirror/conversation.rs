//! A session as a TCP conversation: where each side is in its sequence space, and the segments that an event makes.
//!
//! Refuses to leave a hole: what cannot be told in order ends the conversation.

use mmtls_engine::tls::Direction;

use super::frame::{Ends, Kind, Segment};

/// One mirrored session.
pub(super) struct Conversation {
    pub(super) ends: Ends,
    /// The next sequence number of each side, client's first.
    next: [u32; 2],
    /// Time of the last segment: later ones are not before it.
    last_ns: u64,
    /// The file that has its beginning; `None` where no file has it any more.
    pub(super) file: Option<u64>,
    /// The interface has got all of it.
    pub(super) is_on_interface: bool,
    /// Some output has lost some of it, and that was counted.
    pub(super) is_cut: bool,
}

/// Takes segments: time, segment, comment.
pub(super) type Emit<'a> = dyn FnMut(u64, &Segment<'_>, Option<&str>) + 'a;

/// How a conversation ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// Both sides have closed; this one first.
    Closed(Direction),
    /// One side resets it, and why.
    Reset(Direction, &'static str),
}

impl Conversation {
    /// A conversation in which nothing was said; `initial` is known to its ends alone.
    pub(super) fn new(ends: Ends, initial: [u32; 2]) -> Self {
        let next = initial.map(|number| number.wrapping_add(1));
        Self { ends, next, last_ns: 0, file: None, is_on_interface: false, is_cut: false }
    }

    /// When an event is told of, in the conversation's own time.
    fn time(&mut self, now_ns: u64) -> u64 {
        self.last_ns = self.last_ns.max(now_ns);
        self.last_ns
    }

    fn segment<'a>(&self, from: Direction, kind: Kind, payload: &'a [u8]) -> Segment<'a> {
        let (sequence, acknowledgment) = (self.next[from.index()], self.next[1 - from.index()]);
        Segment { from, kind, sequence, acknowledgment, payload }
    }

    /// Opens it, where it stands.
    pub(super) fn open(&mut self, now_ns: u64, comment: Option<&str>, emit: &mut Emit<'_>) {
        let time = self.time(now_ns);
        let before = |mut segment: Segment<'static>| {
            segment.sequence = segment.sequence.wrapping_sub(1);
            segment
        };
        let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
        emit(time, &before(self.segment(client, Kind::Syn, &[])), comment);
        emit(time, &before(self.segment(server, Kind::SynAck, &[])), None);
        emit(time, &self.segment(client, Kind::Ack, &[]), None);
    }

    /// One side says something, and the other one has got it: tools take bytes for received once they are acknowledged.
    pub(super) fn say(
        &mut self,
        now_ns: u64,
        from: Direction,
        bytes: &[u8],
        mtu: u16,
        emit: &mut Emit<'_>,
    ) {
        let time = self.time(now_ns);
        let mut pieces = bytes.chunks(self.ends.max_payload(mtu)).peekable();
        while let Some(piece) = pieces.next() {
            let kind = if pieces.peek().is_some() { Kind::Ack } else { Kind::Push };
            emit(time, &self.segment(from, kind, piece), None);
            self.advance(from, piece.len());
        }
        emit(time, &self.segment(from.reverse(), Kind::Ack, &[]), None);
    }

    /// Ends it.
    pub(super) fn end(&mut self, now_ns: u64, ending: Ending, emit: &mut Emit<'_>) {
        let time = self.time(now_ns);
        match ending {
            Ending::Closed(first) => {
                for side in [first, first.reverse()] {
                    emit(time, &self.segment(side, Kind::Fin, &[]), None);
                    self.advance(side, 1);
                }
                emit(time, &self.segment(first, Kind::Ack, &[]), None);
            }
            Ending::Reset(from, why) => {
                emit(time, &self.segment(from, Kind::Reset, &[]), Some(why));
            }
        }
    }

    /// A side has sent so many bytes, of at most one record.
    fn advance(&mut self, side: Direction, count: usize) {
        let next = &mut self.next[side.index()];
        *next = next.wrapping_add(count as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;

    type Told = (u64, Direction, Kind, u32, u32, Vec<u8>);

    fn told(mut work: impl FnMut(&mut Conversation, &mut Emit<'_>)) -> Vec<Told> {
        let addresses = ["192.0.2.1:5", "192.0.2.2:80"].map(|it| it.parse().unwrap());
        let ends = Ends::new(addresses, [[0; 6]; 2], [0, 0]);
        let mut conversation = Conversation::new(ends, [u32::MAX - 1, 100]);
        let mut told = Vec::new();
        work(&mut conversation, &mut |time, it, _| {
            let numbers = (it.sequence, it.acknowledgment);
            told.push((time, it.from, it.kind, numbers.0, numbers.1, it.payload.to_vec()));
        });
        told
    }

    #[test]
    fn accepts_a_conversation_whose_numbers_wrap() {
        let told = told(|it, emit| {
            it.open(10, None, emit);
            it.say(20, CLIENT, b"GET", 1500, emit);
            // Time never goes back.
            it.say(15, SERVER, &[b'x'; 1461], 1500, emit);
            it.end(30, Ending::Closed(SERVER), emit);
        });
        let expected: Vec<Told> = vec![
            (10, CLIENT, Kind::Syn, u32::MAX - 1, 101, vec![]),
            (10, SERVER, Kind::SynAck, 100, u32::MAX, vec![]),
            (10, CLIENT, Kind::Ack, u32::MAX, 101, vec![]),
            (20, CLIENT, Kind::Push, u32::MAX, 101, b"GET".to_vec()),
            (20, SERVER, Kind::Ack, 101, 2, vec![]),
            (20, SERVER, Kind::Ack, 101, 2, vec![b'x'; 1460]),
            (20, SERVER, Kind::Push, 1561, 2, vec![b'x']),
            (20, CLIENT, Kind::Ack, 2, 1562, vec![]),
            (30, SERVER, Kind::Fin, 1562, 2, vec![]),
            (30, CLIENT, Kind::Fin, 2, 1563, vec![]),
            (30, SERVER, Kind::Ack, 1563, 3, vec![]),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn accepts_a_reset_of_either_side() {
        let told = told(|it, emit| it.end(1, Ending::Reset(SERVER, "why"), emit));
        assert_eq!(told, [(1, SERVER, Kind::Reset, 101, u32::MAX, vec![])]);
    }
}
