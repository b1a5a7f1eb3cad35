//! TCP connections put together from segments, in the order of the capture.
//!
//! The first copy of a byte counts. What the other side acknowledges and the capture does not have is a gap.
//! Refuses to look into bytes, and connections whose beginning the policy asks for and the capture lacks.

use core::net::SocketAddr;
use std::collections::HashMap;

use mmtls_middlebox::inspect::Side;

use super::capture::Segment;

/// Which connections are followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Those whose handshake is not in the capture, too.
    pub(super) midstream: bool,
    /// Those of which only one side is in it, too.
    pub(super) one_sided: bool,
    /// Segments whose checksum is wrong count, too.
    pub(super) unsound: bool,
}

/// Something of a connection.
pub(super) enum Step<'a> {
    /// It begins.
    Open { client: SocketAddr, server: SocketAddr },
    /// The next bytes of a side, as far as they came with one segment.
    Data(Side, &'a [u8]),
    /// Bytes of a side are not in the capture.
    Gap(Side),
    /// A side sends nothing more.
    Close(Side),
    /// It is over.
    End,
}

/// Called with the connection, the time in nanoseconds and what happens.
pub(super) type Sink<'a> = &'a mut dyn FnMut(usize, u64, Step<'_>);

/// All connections.
pub(super) struct Streams {
    policy: Policy,
    numbers: HashMap<(SocketAddr, SocketAddr), usize>,
    connections: Vec<Connection>,
}

struct Connection {
    client: SocketAddr,
    sides: [Direction; 2],
    /// The policy allows to follow it.
    is_followed: bool,
    is_open: bool,
    /// When the last segment came.
    at_ns: u64,
}

/// One direction.
#[derive(Default)]
struct Direction {
    /// Number of the next byte.
    next: Option<u32>,
    /// The other side has said something about it.
    is_answered: bool,
    /// What came early: distance from the first byte of the stream, and bytes. Sorted, without overlaps.
    early: Vec<(u64, Box<[u8]>)>,
    /// Bytes that were delivered or passed over.
    done: u64,
    /// Where the stream ends.
    end: Option<u64>,
    is_closed: bool,
}

impl Streams {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, numbers: HashMap::new(), connections: Vec::new() }
    }

    /// The next segment of the capture.
    pub(super) fn segment(&mut self, segment: &Segment, sink: Sink<'_>) {
        if !segment.is_sound && !self.policy.unsound {
            return;
        }
        let Some(number) = self.number(segment, sink) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.at_ns = segment.at_ns;
        let side = if segment.from == connection.client { Side::Client } else { Side::Server };
        let at_ns = segment.at_ns;
        connection.segment(self.policy, segment, side, &mut |step| sink(number, at_ns, step));
    }

    /// The capture is over.
    pub(super) fn finish(&mut self, sink: Sink<'_>) {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let at_ns = connection.at_ns;
            connection.finish(&mut |step| sink(number, at_ns, step));
        }
    }

    /// The connection of a segment; a new one where it begins one.
    fn number(&mut self, segment: &Segment, sink: Sink<'_>) -> Option<usize> {
        let (low, high) = (segment.from.min(segment.to), segment.from.max(segment.to));
        let begins = segment.syn && segment.acknowledged.is_none();
        if let Some(&number) = self.numbers.get(&(low, high)) {
            let known = self.connections.get_mut(number)?;
            let is_again = begins && known.begins_anew(segment);
            if !is_again && (known.is_open || !begins) {
                return Some(number);
            }
            known.finish(&mut |step| sink(number, segment.at_ns, step));
        }
        let is_server = match (segment.syn, segment.acknowledged) {
            (true, acknowledged) => acknowledged.is_some(),
            // Whoever is seen first asks, unless what it says, or its port, says otherwise.
            _ if segment.payload.starts_with(b"HTTP/") => true,
            _ => segment.from.port() < 1024 && segment.to.port() >= 1024,
        };
        if !segment.syn && (segment.rst || segment.payload.is_empty() && !self.policy.midstream) {
            return None;
        }
        let (client, server) = match is_server {
            true => (segment.to, segment.from),
            false => (segment.from, segment.to),
        };
        let number = self.connections.len();
        let is_followed = self.policy.midstream || self.policy.one_sided || begins;
        self.connections.push(Connection {
            client,
            sides: Default::default(),
            is_followed,
            is_open: true,
            at_ns: segment.at_ns,
        });
        self.numbers.insert((low, high), number);
        if is_followed {
            sink(number, segment.at_ns, Step::Open { client, server });
        }
        Some(number)
    }
}

impl Connection {
    /// A SYN that is not the known one again.
    fn begins_anew(&self, segment: &Segment) -> bool {
        let own = &self.sides[usize::from(segment.from != self.client)];
        let first = segment.sequence.wrapping_add(1);
        let begun = own.next.map(|next| next.wrapping_sub(own.done as u32));
        !self.is_open || begun.is_some_and(|begun| begun != first) && own.done > 0
    }

    fn segment(
        &mut self,
        policy: Policy,
        segment: &Segment,
        side: Side,
        sink: &mut dyn FnMut(Step<'_>),
    ) {
        if !self.is_followed || !self.is_open {
            return;
        }
        let [client, server] = &mut self.sides;
        let (own, other, other_side) = match side {
            Side::Client => (client, server, Side::Server),
            Side::Server => (server, client, Side::Client),
        };
        let is_answered = own.is_answered || policy.midstream || policy.one_sided;
        other.is_answered = true;
        if segment.syn {
            own.next = Some(segment.sequence.wrapping_add(1));
        }
        if let Some(acknowledged) = segment.acknowledged {
            other.deliver(other_side, sink);
            other.acknowledge(acknowledged, other_side, sink);
        }
        if segment.rst {
            self.finish(sink);
            return;
        }
        let first = if segment.syn { segment.sequence.wrapping_add(1) } else { segment.sequence };
        // What a SYN carries counts once it is answered, which takes it (RFC 7413).
        if is_answered || segment.syn {
            own.data(first, &segment.payload, segment.fin);
        }
        if is_answered {
            own.deliver(side, sink);
        }
        if self.sides.iter().all(|it| it.is_closed) {
            self.finish(sink);
        }
    }

    fn finish(&mut self, sink: &mut dyn FnMut(Step<'_>)) {
        if core::mem::replace(&mut self.is_open, false) && self.is_followed {
            sink(Step::End);
        }
    }
}

impl Direction {
    /// Takes what a segment carries.
    fn data(&mut self, first: u32, bytes: &[u8], is_last: bool) {
        let next = *self.next.get_or_insert(first);
        // Half of the numbers are before the next one, half behind it.
        let ahead = i64::from(first.wrapping_sub(next) as i32);
        let start = self.done as i64 + ahead;
        if is_last && self.end.is_none() {
            self.end = u64::try_from(start + bytes.len() as i64).ok();
        }
        let passed = usize::try_from(self.done as i64 - start).unwrap_or(0);
        if let Some(bytes) = bytes.get(passed..)
            && let Ok(start) = u64::try_from(start + passed as i64)
        {
            self.keep(start, bytes);
        }
    }

    /// Keeps what is not there yet.
    fn keep(&mut self, mut start: u64, mut bytes: &[u8]) {
        let mut at = 0;
        while !bytes.is_empty() {
            let (room, behind) = match self.early.get(at) {
                Some((from, known)) if *from <= start => {
                    let end = from + known.len() as u64;
                    let covered = end.saturating_sub(start).min(bytes.len() as u64);
                    bytes = &bytes[covered as usize..];
                    start += covered;
                    at += 1;
                    continue;
                }
                Some((from, _)) => ((from - start).min(bytes.len() as u64) as usize, true),
                None => (bytes.len(), false),
            };
            let (piece, rest) = bytes.split_at(room);
            self.early.insert(at, (start, piece.into()));
            (start, bytes) = (start + room as u64, rest);
            at += 1;
            if !behind {
                break;
            }
        }
    }

    /// Delivers what is next.
    fn deliver(&mut self, side: Side, sink: &mut dyn FnMut(Step<'_>)) {
        while self.early.first().is_some_and(|(start, _)| *start == self.done) {
            let (_, bytes) = self.early.remove(0);
            self.advance(bytes.len() as u64);
            sink(Step::Data(side, &bytes));
        }
        if self.end == Some(self.done) && !core::mem::replace(&mut self.is_closed, true) {
            sink(Step::Close(side));
        }
    }

    /// The other side has what is before a number: if that is not here, it is missing in the capture.
    fn acknowledge(&mut self, number: u32, side: Side, sink: &mut dyn FnMut(Step<'_>)) {
        let Some(next) = self.next else {
            return;
        };
        let ahead = number.wrapping_sub(next) as i32;
        let Ok(mut ahead) = u64::try_from(ahead) else {
            return;
        };
        // The end of the stream has a number, too.
        ahead = ahead.min(self.end.map_or(ahead, |end| end.saturating_sub(self.done)));
        let target = self.done + ahead;
        while self.done < target {
            let until = self.early.first().map_or(target, |(start, _)| (*start).min(target));
            if until > self.done {
                self.advance(until - self.done);
                sink(Step::Gap(side));
            }
            self.deliver(side, sink);
        }
    }

    fn advance(&mut self, count: u64) {
        self.done += count;
        self.next = self.next.map(|next| next.wrapping_add(count as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Policy = Policy { midstream: false, one_sided: false, unsound: false };

    /// `c` or `s`, then flags, number, acknowledged number and payload.
    fn run(policy: Policy, segments: &[(&str, u32, u32, &str)]) -> Vec<String> {
        let (client, server) =
            ("10.0.0.1:4000".parse().unwrap(), "10.0.0.2:80".parse::<SocketAddr>().unwrap());
        let mut streams = Streams::new(policy);
        let mut log = Vec::new();
        let mut sink = |_: usize, _: u64, step: Step<'_>| {
            log.push(match step {
                Step::Open { client, .. } => format!("open {}", client.port()),
                Step::Data(side, bytes) => {
                    format!("{side:?} {}", String::from_utf8_lossy(bytes))
                }
                Step::Gap(side) => format!("{side:?} gap"),
                Step::Close(side) => format!("{side:?} close"),
                Step::End => "end".to_owned(),
            });
        };
        for (flags, sequence, acknowledged, payload) in segments {
            let is_client = flags.starts_with('c');
            let (from, to) = if is_client { (client, server) } else { (server, client) };
            let segment = Segment {
                at_ns: 0,
                from,
                to,
                sequence: *sequence,
                acknowledged: flags.contains('A').then_some(*acknowledged),
                syn: flags.contains('S'),
                fin: flags.contains('F'),
                rst: flags.contains('R'),
                payload: payload.as_bytes().into(),
                is_sound: !flags.contains('X'),
            };
            streams.segment(&segment, &mut sink);
        }
        streams.finish(&mut sink);
        log
    }

    #[test]
    fn accepts_handshake_data_and_end() {
        let log = run(
            STRICT,
            &[
                ("cS", u32::MAX, 0, ""),
                ("sSA", 99, 0, ""),
                ("cA", 0, 100, "ab"),
                ("cA", 2, 100, "c"),
                ("sAF", 100, 3, "yes"),
                ("cAF", 3, 104, ""),
            ],
        );
        let expected = [
            "open 4000",
            "Client ab",
            "Client c",
            "Server yes",
            "Server close",
            "Client close",
            "end",
        ];
        assert_eq!(log, expected);
    }

    #[test]
    fn accepts_disorder_and_the_first_copy_of_a_byte() {
        let log = run(
            STRICT,
            &[
                ("cS", 0, 0, ""),
                ("sSA", 0, 1, ""),
                ("cA", 3, 1, "cd"),
                ("cA", 2, 1, "XXXX"),
                ("cA", 1, 1, "a"),
                ("cA", 1, 1, "YY"),
            ],
        );
        assert_eq!(log, ["open 4000", "Client a", "Client X", "Client cd", "Client X", "end"]);
    }

    #[test]
    fn accepts_gaps_once_they_are_acknowledged() {
        let log = run(
            STRICT,
            &[
                ("cS", 0, 0, ""),
                ("sSA", 0, 1, ""),
                ("cA", 4, 1, "d"),
                ("sA", 1, 6, ""),
                ("cA", 6, 1, "f"),
                ("sR", 1, 6, ""),
            ],
        );
        assert_eq!(log, ["open 4000", "Client gap", "Client d", "Client gap", "Client f", "end"]);
    }

    #[test]
    fn refuses_what_the_policy_refuses() {
        let data: &[(&str, u32, u32, &str)] = &[("cA", 5, 9, "ab"), ("sA", 9, 7, "yes")];
        assert!(run(STRICT, data).is_empty());
        let all = Policy { midstream: true, ..STRICT };
        assert_eq!(run(all, data), ["open 4000", "Client ab", "Server yes", "end"]);
        let half: &[(&str, u32, u32, &str)] = &[("cS", 0, 0, ""), ("cA", 1, 9, "ab")];
        assert_eq!(run(STRICT, half), ["open 4000", "end"]);
        let one_sided = Policy { one_sided: true, ..STRICT };
        assert_eq!(run(one_sided, half), ["open 4000", "Client ab", "end"]);
        let fast: &[(&str, u32, u32, &str)] =
            &[("cS", 0, 0, "ab"), ("sSA", 0, 3, ""), ("cA", 3, 1, "c")];
        assert_eq!(run(STRICT, fast), ["open 4000", "Client ab", "Client c", "end"]);
        let unsound = &[("cS", 0, 0, ""), ("sSAX", 0, 1, ""), ("cA", 1, 1, "ab")];
        assert_eq!(run(STRICT, unsound), ["open 4000", "end"]);
        assert_eq!(run(STRICT, &[("cS", 0, 0, ""), ("cS", 9, 0, "")]), ["open 4000", "end"]);
    }
}
