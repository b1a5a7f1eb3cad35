//! What somebody sends whom no rule binds: frames of a hostile end, or of a third party in the name of
//! either.
//!
//! Refuses to know what the engine has kept back: numbers of the honest end are those that came
//! through, and a third party has none at all.

use std::sync::LazyLock;

use super::app::{CCS, CLEAR, CLEAR_LEN, CLEAR_STEP, Stage, WORDS};
use super::network::Net;
use super::packet::{ACK, FIN, Packet, RST, SYN};
use super::tcp::State;
use super::{BASES, Choices};
use crate::input::Input;

/// A hostile end's first number.
const BASE: u32 = 0x2000_0000;

/// How far from where it belongs a number is.
const DELTAS: [i32; 16] =
    [0, 1, -1, -2, 5, -5, 100, -100, 517, -517, 1000, -1000, 65_535, 70_000, 1 << 20, -(1 << 20)];
/// And just beside it, where numbers may be taken for others.
const NEAR: [i32; 16] = [2, 3, -3, 4, -4, 7, -7, 8, 16, -16, 40, -40, 255, -256, 1999, -1999];

/// The distance that four bits of a byte say, and one more which of the tables.
fn delta(which: u8) -> u32 {
    let table = if which & 8 == 0 { DELTAS } else { NEAR };
    table[usize::from(which >> 4)].cast_unsigned()
}

/// Forms of a ClientHello that some server takes.
static FORMS: LazyLock<[Vec<u8>; 8]> = LazyLock::new(|| {
    let hello = &WORDS.hello;
    let behind = |front: &[u8]| [front, &hello[..]].concat();
    let version = |major: u8, minor: u8| {
        let mut other = hello.clone();
        other[1..3].copy_from_slice(&[major, minor]);
        other
    };
    let split = |sizes: usize| {
        let pieces = hello[5..].chunks(sizes);
        // Less than a record.
        pieces.flat_map(|it| [&[22, 3, 1, 0, it.len() as u8][..], it].concat()).collect()
    };
    [
        hello.clone(),
        version(0, 1),
        version(0xff, 0x10),
        behind(&[20, 3, 1, 0, 0]),
        behind(&CCS),
        behind(&[22, 3, 3, 0, 0].repeat(32)),
        split(20),
        split(1),
    ]
});

/// Whole things to say, of which an operation takes a part.
static TEXTS: LazyLock<[Vec<u8>; 14]> = LazyLock::new(|| {
    let other = mmtls_testkit::synthesis::server_hello(&[9; 32], 0x1301);
    let other = mmtls_testkit::synthesis::plain(mmtls_engine::tls::ContentType::HANDSHAKE, &other);
    [
        WORDS.other_hello.clone(),
        WORDS.flight.clone(),
        WORDS.finished.clone(),
        [&WORDS.finished[..], &WORDS.requests[1]].concat(),
        [&other[..], &[23, 3, 3, 0x41, 0]].concat(),
        b"GET / HTTP/1.1\r\nHost: others.test\r\n\r\n".to_vec(),
        vec![23, 3, 3, 0x41, 0],
        CCS.to_vec(),
        [22, 3, 3, 0, 0].repeat(4),
        vec![21, 3, 3, 0, 2, 1, 0],
        vec![22, 3, 3, 0, 4, 0, 0, 0, 0],
        b"EHLO x\r\nSTARTTLS\r\n".to_vec(),
        WORDS.responses[1].clone(),
        vec![0; 60],
    ]
});

/// What an end can say before it has heard the other one's first flight: its protected records are
/// bound to that, and open nowhere.
fn known(net: &Net, side: usize, mut words: Vec<u8>) -> Vec<u8> {
    const HEADER: [u8; 4] = [23, 3, 3, 0];
    if !net.is_heard(1 - side) {
        while let Some(at) = words.windows(4).position(|it| it == HEADER)
            && let Some(len) = words.get(at + 4)
        {
            // The first byte of the tag.
            let end = at + 5 + usize::from(*len);
            words[at + 3] = 0xff;
            if let Some(byte) = end.checked_sub(16).and_then(|it| words.get_mut(it)) {
                *byte ^= 0xff;
            }
        }
        for at in 0..words.len().saturating_sub(4) {
            if words[at..].starts_with(&[23, 3, 3, 0xff]) {
                words[at + 3] = 0;
            }
        }
    }
    words
}

/// Somebody hostile.
pub(super) struct Attacker {
    choices: Choices,
    /// Sequence numbers of the SYNs that were sent.
    syns: Vec<u32>,
    /// Behind what was sent last.
    end: u32,
}

impl Attacker {
    pub(super) fn new(choices: Choices) -> Self {
        Self { choices, syns: Vec::new(), end: BASE }
    }

    /// An operation of a hostile end: the low bits say what is sent, input bytes its numbers.
    pub(super) fn act(&mut self, net: &mut Net, side: usize, operation: u8, input: &mut Input<'_>) {
        let dies = operation & 0x80 != 0;
        let mut packet = Packet::new(side, 0, 0, ACK);
        match operation & 0x0f {
            // As somebody who wants to be understood; 0x20: with a harmless request.
            1 => return self.go_on(net, side, operation),
            2 => {
                packet.flags = SYN;
                packet.scale = (operation & 0x10 != 0).then_some(7);
                packet.sequence = self.sequence(net, input.u8() | 3);
                if operation & 0x20 != 0 {
                    self.text(net, &mut packet, input);
                }
            }
            3 => {
                packet.flags = SYN | ACK;
                packet.scale = (operation & 0x10 != 0).then_some(7);
                packet.sequence = self.sequence(net, input.u8() | 3);
                packet.acknowledgment = self.acknowledgment(net, input.u8());
                if operation & 0x20 != 0 {
                    self.text(net, &mut packet, input);
                }
            }
            4 | 5 => self.number(&mut packet, net, input),
            6 => {
                packet.flags = if operation & 0x10 == 0 { RST } else { RST | ACK };
                self.number(&mut packet, net, input);
            }
            7 => {
                packet.flags = FIN | ACK;
                self.number(&mut packet, net, input);
            }
            // Data where they belong, and elsewhere.
            8 | 12 | 13 => {
                // 8: in fragments.
                packet.sequence = net.seen.expected;
                packet.acknowledgment = net.seen.end;
                if operation & 0x0f == 12 {
                    self.number(&mut packet, net, input);
                }
                let from = self.text(net, &mut packet, input);
                if operation & 0x10 != 0 {
                    // At its place from the beginning of the stream.
                    packet.sequence = self.first().wrapping_add(from);
                }
            }
            // The last segment again, as another one.
            14 => {
                packet.sequence = self.end.wrapping_sub(u32::from(input.u8()));
                packet.acknowledgment = net.seen.end;
                self.text(net, &mut packet, input);
            }
            _ => {
                packet.flags = input.u8() & 0x1f;
                self.number(&mut packet, net, input);
                packet.window = [u16::MAX, 0, 1, 200][usize::from(operation >> 4 & 3)];
                self.text(net, &mut packet, input);
            }
        }
        if packet.has(SYN) {
            self.syns.push(packet.sequence);
        }
        self.end = packet.end();
        if operation & 0x0f == 8 {
            let [size, how, dying] = [input.u8(), input.u8(), input.u8()];
            let dying = if dies { u8::MAX } else { dying };
            // All of the header is in the first one.
            return net.send_pieces(&packet, 8 * (3 + usize::from(size & 31)), how, dying);
        }
        net.send(packet, side, dies);
    }

    fn number(&self, packet: &mut Packet, net: &Net, input: &mut Input<'_>) {
        packet.sequence = self.sequence(net, input.u8());
        packet.acknowledgment = self.acknowledgment(net, input.u8());
    }

    /// The first number behind its latest SYN, or behind what its first connection has said in the clear.
    fn first(&self) -> u32 {
        let clear = self.choices.clear && self.syns.len() <= 1;
        // Less than a window.
        let clear = if clear { CLEAR_LEN as u32 } else { 0 };
        self.syns.last().copied().unwrap_or(BASE).wrapping_add(1).wrapping_add(clear)
    }

    /// Says that everything has come.
    pub(super) fn acknowledge(&self, net: &mut Net, side: usize) {
        let packet = Packet::new(side, net.seen.expected, net.seen.end, ACK);
        net.send(packet, side, false);
    }

    fn sequence(&self, net: &Net, which: u8) -> u32 {
        let of = match which & 7 {
            0 | 1 => net.seen.expected,
            2 => self.first(),
            3 => BASE,
            4 => BASE + 1,
            5 => self.end,
            6 => self.syns.first().copied().unwrap_or(BASE).wrapping_add(1),
            _ => net.seen.end,
        };
        of.wrapping_add(delta(which))
    }

    fn acknowledgment(&self, net: &Net, which: u8) -> u32 {
        let initials = &net.seen.initials;
        let of = match which & 7 {
            0 | 1 => net.seen.end,
            2 => initials.last().copied().unwrap_or(0),
            3 => initials.first().copied().unwrap_or(0),
            4 => initials.iter().rev().nth(1).copied().unwrap_or(0),
            5 => 0,
            6 => self.end,
            _ => net.seen.expected,
        };
        of.wrapping_add(delta(which))
    }

    /// Part of something to say, and where it begins there.
    fn text(&self, net: &Net, packet: &mut Packet, input: &mut Input<'_>) -> u32 {
        let [which, from, len] = [input.u8(), input.u8(), input.u8()];
        let whole = match usize::from(which & 0x0f) {
            at @ 0..14 => &TEXTS[at],
            14 => &FORMS[self.choices.form],
            _ => {
                packet.data = input.take(usize::from(from & 0x1f)).to_vec();
                return 0;
            }
        };
        let start = usize::from(from).min(whole.len());
        let len = if len == 0 { whole.len() } else { len.into() };
        let whole = known(net, packet.from, whole.clone());
        packet.data = whole[start..start.saturating_add(len).min(whole.len())].to_vec();
        // At most 255.
        start as u32
    }

    /// The next step of somebody who wants to be understood, from where the honest end stands.
    pub(super) fn go_on(&mut self, net: &mut Net, side: usize, operation: u8) {
        let Some(end) = &mut net.ends[1 - side] else {
            return;
        };
        let numbers = (net.seen.initials.last().copied(), net.seen.end);
        let answered =
            net.seen.answered.filter(|it| Some(&it.0.wrapping_sub(1)) == self.syns.last());
        let mut packet = Packet::new(side, 0, 0, ACK);
        match (end.tcp.state, numbers.0) {
            (State::Closed, _) => {
                end.tcp.connect();
                return net.collect();
            }
            (State::Listen, _) if end.tcp.rules.cookies && answered.is_some() => {
                let (sequence, acknowledgment) = answered.unwrap_or_default();
                packet.sequence = sequence;
                packet.acknowledgment = acknowledgment;
                net.seen.answered = None;
            }
            (State::Listen | State::TimeWait, _) => {
                packet.flags = SYN;
                // More than a window behind the last one.
                packet.sequence = self.syns.last().copied().unwrap_or(BASE).wrapping_add(80_000);
                self.syns.push(packet.sequence);
            }
            (State::SynSent, Some(initial)) => {
                packet.flags = SYN | ACK;
                packet.sequence = self.syns.last().copied().unwrap_or(BASE);
                packet.acknowledgment = initial;
                self.syns.push(packet.sequence);
            }
            (State::SynReceived, Some(initial)) => {
                packet.sequence = end.tcp.expected().unwrap_or_default();
                packet.acknowledgment = initial;
            }
            (State::Established, Some(_)) => {
                packet.sequence = end.tcp.expected().unwrap_or_default();
                packet.acknowledgment = numbers.1;
                let has_pattern = operation & 0x20 == 0 && self.choices.pattern == Some(side);
                let form = usize::from(has_pattern);
                let words = match (end.app.stage, side) {
                    (Stage::Clear(left), _) => CLEAR[..left.min(CLEAR_STEP)].to_vec(),
                    (Stage::Hello, 0) => FORMS[self.choices.form].clone(),
                    (Stage::Flight, 0) => [&WORDS.finished[..], &WORDS.requests[form]].concat(),
                    (Stage::Data, 0) => WORDS.requests[form].clone(),
                    (Stage::Hello, _) => WORDS.flight.clone(),
                    (Stage::Flight, _) => WORDS.flight[WORDS.server_hello.len()..].to_vec(),
                    (Stage::Data, _) => WORDS.responses[form].clone(),
                    (Stage::Broken | Stage::Spoken, _) => Vec::new(),
                };
                let words = known(net, side, words);
                let Some(end) = &net.ends[1 - side] else {
                    return;
                };
                let reading = !matches!(end.app.stage, Stage::Clear(_));
                let pending = end.app.pending(&end.tcp.input.bytes);
                let pending = if reading { pending } else { &[] };
                // In the middle of a record, its rest.
                let rest = |words: &[u8]| words.strip_prefix(pending).map(<[u8]>::to_vec);
                packet.data = rest(&words)
                    .or_else(|| rest(&WORDS.hello))
                    .or_else(|| rest(&WORDS.other_hello))
                    .unwrap_or_default();
            }
            _ => return,
        }
        self.end = packet.end();
        net.send(packet, side, operation & 0x80 != 0);
    }

    /// A frame of a third party on side `port`, in the name of either end, with numbers far from all
    /// that these may have.
    pub(super) fn forge(
        &mut self,
        net: &mut Net,
        port: usize,
        operation: u8,
        input: &mut Input<'_>,
    ) {
        let name = if operation & 0x10 == 0 { port } else { 1 - port };
        let which = input.u8();
        let blind = |side: usize, which: u8| {
            BASES[side].wrapping_add((u32::from(which & 7) + 1) << 24).wrapping_add(delta(which))
        };
        let sequence = blind(name, which);
        let acknowledgment = blind(1 - name, input.u8());
        let flags = match operation & 0x0f {
            1 | 2 => SYN,
            3 => SYN | ACK,
            4 | 5 => ACK,
            6 => RST,
            7 => RST | ACK,
            8 => FIN | ACK,
            12..=14 => ACK,
            _ => input.u8() & 0x1f,
        };
        let mut packet = Packet::new(name, sequence, acknowledgment, flags);
        packet.scale = (operation & 0x20 != 0).then_some(14);
        if matches!(operation & 0x0f, 12..) {
            self.text(net, &mut packet, input);
        }
        net.send(packet, port, operation & 0x80 != 0);
    }
}
