//! Which of several bridges over the same interfaces a frame belongs to: a program that the kernel runs for each.
//!
//! Both directions of a connection go to the same bridge, whatever the protocol above IP. What has no ports, or shows
//! them only in its first fragment, goes by its addresses; what is not IP goes to the first bridge. The program looks
//! for the ports where an IPv4 or IPv6 receiver does, behind up to 64 extension headers; a caller that keeps state per
//! connection should check its frames all the same with [`Steering::bridge_of`], as the kernel moves frames to other
//! bridges for a moment when an interface goes down and up.

use std::net::{IpAddr, SocketAddr};

use libc::sock_filter;

/// How frames are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Bridges that take part, at least one.
    pub bridges: u32,
    /// Something that senders cannot know, so that they cannot aim at one bridge.
    pub seed: u32,
}

impl Steering {
    /// Which bridge gets the frames between two ends, in either direction: 0 is the first.
    #[must_use]
    pub fn bridge_of(&self, one: SocketAddr, other: SocketAddr) -> u32 {
        // A sum does not depend on the direction.
        let mixed = mix(self.end(one).wrapping_add(self.end(other)));
        (mixed.wrapping_mul(SECOND_FACTOR) >> LAST_SHIFT) % self.bridges.max(1)
    }

    /// Mixed from the seed on, word by word: whoever does not know the seed cannot find ends that
    /// come together.
    fn end(&self, end: SocketAddr) -> u32 {
        let (words, count) = words(end.ip());
        let words = words[..count].iter().copied().chain([end.port().into()]);
        words.fold(self.seed, |hash, word| mix(hash ^ word))
    }
}

fn mix(word: u32) -> u32 {
    let mixed = word.wrapping_mul(FIRST_FACTOR);
    mixed ^ mixed >> FIRST_SHIFT
}

/// Odd constants that spread what differs in few bits.
const FIRST_FACTOR: u32 = 0x9e37_79b1;
const SECOND_FACTOR: u32 = 0x85eb_ca6b;
const FIRST_SHIFT: u32 = 15;
const LAST_SHIFT: u32 = 16;

/// The 32-bit words of an address, and how many there are.
fn words(address: IpAddr) -> ([u32; 4], usize) {
    match address {
        IpAddr::V4(v4) => ([v4.to_bits(), 0, 0, 0], 1),
        // Truncation takes the words one by one.
        IpAddr::V6(v6) => ([96, 64, 32, 0].map(|shift| (v6.to_bits() >> shift) as u32), 4),
    }
}

/// Most VLAN tags inside a frame, and most IPv6 extension headers, that the program looks behind.
const MAX_TAGS: usize = 2;
const MAX_EXTENSION_HEADERS: usize = 64;

const ETHER_TYPES_VLAN: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const ETHER_TYPES_IP: [u32; 2] = [0x0800, 0x86dd];
const TCP: u32 = 6;
const UDP: u32 = 17;
/// Extension headers whose length is in units of 8 bytes (RFC 8200, section 4; RFC 6275, 7401, 5533).
const IN_EIGHTS: [u32; 6] = [0, 43, 60, 135, 139, 140];
const AUTHENTICATION: u32 = 51;
const FRAGMENT: u32 = 44;

/// Instructions of classic BPF: `A` and `X` are its registers, `M[]` its memory, `P[]` the packet.
mod op {
    /// A = P[k], 4 bytes; with X added to k: 4, 2 and 1.
    pub(super) const LOAD: u16 = 0x20;
    pub(super) const LOAD_WORD_AT_X: u16 = 0x40;
    pub(super) const LOAD_HALF_AT_X: u16 = 0x48;
    pub(super) const LOAD_BYTE_AT_X: u16 = 0x50;
    /// A = k, X = k, A = M[k], X = M[k], M[k] = A, M[k] = X.
    pub(super) const SET: u16 = 0x00;
    pub(super) const SET_X: u16 = 0x01;
    pub(super) const RECALL: u16 = 0x60;
    pub(super) const RECALL_X: u16 = 0x61;
    pub(super) const STORE: u16 = 0x02;
    pub(super) const STORE_X: u16 = 0x03;
    /// A = A op k, A = A op X.
    pub(super) const ADD: u16 = 0x04;
    pub(super) const MULTIPLY: u16 = 0x24;
    pub(super) const AND: u16 = 0x54;
    pub(super) const SHIFT_LEFT: u16 = 0x64;
    pub(super) const SHIFT_RIGHT: u16 = 0x74;
    pub(super) const ADD_X: u16 = 0x0c;
    pub(super) const XOR_X: u16 = 0xac;
    /// X = A, A = X.
    pub(super) const TO_X: u16 = 0x07;
    pub(super) const FROM_X: u16 = 0x87;
    pub(super) const JUMP: u16 = 0x05;
    pub(super) const IF_EQUAL: u16 = 0x15;
    pub(super) const IF_ANY_BIT: u16 = 0x45;
    pub(super) const RETURN: u16 = 0x06;
    pub(super) const RETURN_A: u16 = 0x16;
}

/// Where `LOAD` finds the EtherType behind the tag that the kernel has taken out (`SKF_AD_OFF + SKF_AD_PROTOCOL`).
const ETHER_TYPE: u32 = 0xffff_f000;

/// Memory: what has been mixed of both ends, where the header at hand begins, a number that is needed again, the next
/// header.
const SOURCE: u32 = 0;
const DESTINATION: u32 = 1;
const BASE: u32 = 2;
const SCRATCH: u32 = 3;
const NEXT: u32 = 4;

/// Places that are jumped to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Ip,
    V4,
    V6,
    /// X is where the ports are.
    Ports,
    /// Without ports.
    Mix,
    Other,
    /// The n-th tag, extension header, and so on.
    Tag(usize),
    Extension(usize),
    Eights(usize),
    Fours(usize),
    Fragment(usize),
    Step(usize),
}

#[derive(Default)]
struct Assembler {
    program: Vec<sock_filter>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn label(&mut self, label: Label) {
        self.labels.push((label, self.program.len()));
    }

    fn put(&mut self, code: u16, k: u32) {
        self.program.push(sock_filter { code, jt: 0, jf: 0, k });
    }

    fn jump(&mut self, label: Label) {
        self.jumps.push((self.program.len(), label));
        self.put(op::JUMP, 0);
    }

    /// Jumps far, which the conditional instructions themselves cannot.
    fn jump_if(&mut self, condition: u16, k: u32, label: Label) {
        self.program.push(sock_filter { code: condition, jt: 0, jf: 1, k });
        self.jump(label);
    }

    /// As [`mix`]: A *= factor, A ^= A >> shift; X and M[SCRATCH] are lost.
    fn mix(&mut self) {
        self.put(op::MULTIPLY, FIRST_FACTOR);
        self.put(op::STORE, SCRATCH);
        self.put(op::SHIFT_RIGHT, FIRST_SHIFT);
        self.put(op::RECALL_X, SCRATCH);
        self.put(op::XOR_X, 0);
    }

    /// Mixes a number of the packet, `load` at X + k, into what is known of an end; X becomes M[BASE].
    fn mix_in(&mut self, load: u16, k: u32, end: u32) {
        self.put(load, k);
        self.put(op::RECALL_X, end);
        self.put(op::XOR_X, 0);
        self.mix();
        self.put(op::STORE, end);
        self.put(op::RECALL_X, BASE);
    }

    fn finish(mut self) -> Vec<sock_filter> {
        for (at, label) in self.jumps {
            let target = self.labels.iter().find(|(known, _)| *known == label);
            // Every label is put behind all jumps to it; a missing one would end the program.
            let to = target.map_or(self.program.len(), |(_, to)| *to);
            self.program[at].k = (to - at - 1) as u32;
        }
        self.program
    }
}

/// The program: its result modulo the number of bridges is the bridge.
pub(super) fn program(seed: u32) -> Vec<sock_filter> {
    let mut asm = Assembler::default();
    // For a received frame P[0] is behind the Ethernet header and the tag that was taken out.
    asm.put(op::SET_X, 0);
    asm.put(op::LOAD, ETHER_TYPE);
    for tag in 0..=MAX_TAGS {
        ETHER_TYPES_IP.iter().for_each(|kind| asm.jump_if(op::IF_EQUAL, *kind, Label::Ip));
        if tag == MAX_TAGS {
            asm.jump(Label::Other);
            break;
        }
        ETHER_TYPES_VLAN.iter().for_each(|kind| asm.jump_if(op::IF_EQUAL, *kind, Label::Tag(tag)));
        asm.jump(Label::Other);
        asm.label(Label::Tag(tag));
        asm.put(op::LOAD_HALF_AT_X, 2);
        asm.put(op::STORE, SCRATCH);
        advance(&mut asm, 4);
        asm.put(op::RECALL, SCRATCH);
    }
    asm.label(Label::Ip);
    asm.put(op::STORE_X, BASE);
    asm.put(op::SET, seed);
    asm.put(op::STORE, SOURCE);
    asm.put(op::STORE, DESTINATION);
    asm.put(op::LOAD_BYTE_AT_X, 0);
    asm.put(op::SHIFT_RIGHT, 4);
    asm.jump_if(op::IF_EQUAL, 4, Label::V4);
    asm.jump_if(op::IF_EQUAL, 6, Label::V6);
    asm.jump(Label::Other);
    ipv4(&mut asm);
    ipv6(&mut asm);
    asm.label(Label::Ports);
    asm.put(op::STORE_X, BASE);
    asm.mix_in(op::LOAD_HALF_AT_X, 0, SOURCE);
    asm.mix_in(op::LOAD_HALF_AT_X, 2, DESTINATION);
    asm.label(Label::Mix);
    asm.put(op::RECALL, SOURCE);
    asm.put(op::RECALL_X, DESTINATION);
    asm.put(op::ADD_X, 0);
    asm.mix();
    asm.put(op::MULTIPLY, SECOND_FACTOR);
    asm.put(op::SHIFT_RIGHT, LAST_SHIFT);
    asm.put(op::RETURN_A, 0);
    asm.label(Label::Other);
    asm.put(op::RETURN, 0);
    asm.finish()
}

/// X += k; A is lost.
fn advance(asm: &mut Assembler, k: u32) {
    asm.put(op::FROM_X, 0);
    asm.put(op::ADD, k);
    asm.put(op::TO_X, 0);
}

/// Mixes in both addresses, which have so many words each.
fn mix_addresses(asm: &mut Assembler, from: u32, words: u32) {
    for (end, from) in [(SOURCE, from), (DESTINATION, from + 4 * words)] {
        (0..words).for_each(|word| asm.mix_in(op::LOAD_WORD_AT_X, from + 4 * word, end));
    }
}

fn ipv4(asm: &mut Assembler) {
    asm.label(Label::V4);
    mix_addresses(asm, 12, 1);
    // Fragments: more of them, or an offset.
    asm.put(op::LOAD_HALF_AT_X, 6);
    asm.jump_if(op::IF_ANY_BIT, 0x3fff, Label::Mix);
    // The header's length.
    asm.put(op::LOAD_BYTE_AT_X, 9);
    asm.put(op::STORE, NEXT);
    asm.put(op::LOAD_BYTE_AT_X, 0);
    asm.put(op::AND, 0x0f);
    asm.put(op::SHIFT_LEFT, 2);
    asm.put(op::ADD_X, 0);
    asm.put(op::TO_X, 0);
    asm.put(op::RECALL, NEXT);
    asm.jump_if(op::IF_EQUAL, TCP, Label::Ports);
    asm.jump_if(op::IF_EQUAL, UDP, Label::Ports);
    asm.jump(Label::Mix);
}

fn ipv6(asm: &mut Assembler) {
    asm.label(Label::V6);
    mix_addresses(asm, 8, 4);
    asm.put(op::LOAD_BYTE_AT_X, 6);
    asm.put(op::STORE, NEXT);
    advance(asm, 40);
    for header in 0..=MAX_EXTENSION_HEADERS {
        asm.label(Label::Extension(header));
        asm.put(op::RECALL, NEXT);
        asm.jump_if(op::IF_EQUAL, TCP, Label::Ports);
        asm.jump_if(op::IF_EQUAL, UDP, Label::Ports);
        IN_EIGHTS.iter().for_each(|it| asm.jump_if(op::IF_EQUAL, *it, Label::Eights(header)));
        asm.jump_if(op::IF_EQUAL, AUTHENTICATION, Label::Fours(header));
        asm.jump_if(op::IF_EQUAL, FRAGMENT, Label::Fragment(header));
        asm.jump(Label::Mix);
        for (label, shift) in [(Label::Eights(header), 3), (Label::Fours(header), 2)] {
            asm.label(label);
            asm.put(op::LOAD_BYTE_AT_X, 1);
            asm.put(op::SHIFT_LEFT, shift);
            asm.put(op::ADD, 8);
            asm.jump(Label::Step(header));
        }
        // A packet that says it is a fragment and is whole (RFC 6946) has ports.
        asm.label(Label::Fragment(header));
        asm.put(op::LOAD_HALF_AT_X, 2);
        asm.jump_if(op::IF_ANY_BIT, 0xfff9, Label::Mix);
        asm.put(op::SET, 8);
        asm.label(Label::Step(header));
        asm.put(op::STORE, SCRATCH);
        asm.put(op::LOAD_BYTE_AT_X, 0);
        asm.put(op::STORE, NEXT);
        asm.put(op::RECALL, SCRATCH);
        asm.put(op::ADD_X, 0);
        asm.put(op::TO_X, 0);
    }
    asm.jump(Label::Mix);
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEERING: Steering = Steering { bridges: 7, seed: 0x1234_5678 };

    /// Runs the program as the kernel does: a load outside of the packet ends it with 0.
    fn run(ether_type: u16, packet: &[u8]) -> u32 {
        let program = program(STEERING.seed);
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0);
        let load = |at: u32, len: usize| -> Option<u32> {
            let bytes = packet.get(at as usize..at as usize + len)?;
            Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let loaded = match code {
                op::LOAD => Some(u32::from(ether_type)),
                op::LOAD_WORD_AT_X => load(x + k, 4),
                op::LOAD_HALF_AT_X => load(x + k, 2),
                op::LOAD_BYTE_AT_X => load(x + k, 1),
                _ => Some(a),
            };
            let Some(loaded) = loaded else { return 0 };
            a = loaded;
            match code {
                op::SET => a = k,
                op::SET_X => x = k,
                op::RECALL => a = memory[k as usize],
                op::RECALL_X => x = memory[k as usize],
                op::STORE => memory[k as usize] = a,
                op::STORE_X => memory[k as usize] = x,
                op::ADD => a = a.wrapping_add(k),
                op::MULTIPLY => a = a.wrapping_mul(k),
                op::AND => a &= k,
                op::SHIFT_LEFT => a <<= k,
                op::SHIFT_RIGHT => a >>= k,
                op::ADD_X => a = a.wrapping_add(x),
                op::XOR_X => a ^= x,
                op::TO_X => x = a,
                op::FROM_X => a = x,
                op::JUMP => at += k as usize,
                op::IF_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                op::IF_ANY_BIT => at += usize::from(if a & k != 0 { jt } else { jf }),
                op::RETURN => return k % STEERING.bridges,
                op::RETURN_A => return a % STEERING.bridges,
                _ => {}
            }
        }
    }

    fn ipv4(source: SocketAddr, destination: SocketAddr, options: usize) -> Vec<u8> {
        let mut packet = vec![0; 20 + 4 * options];
        packet[0] = 0x45 + options as u8;
        packet[9] = 6;
        for (at, end) in [(12, source), (16, destination)] {
            if let IpAddr::V4(address) = end.ip() {
                packet[at..at + 4].copy_from_slice(&address.octets());
            }
        }
        packet.extend(source.port().to_be_bytes());
        packet.extend(destination.port().to_be_bytes());
        packet
    }

    /// `headers`: types and lengths in bytes.
    fn ipv6(source: SocketAddr, destination: SocketAddr, headers: &[(u8, usize)]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 0, 64];
        for end in [source, destination] {
            if let IpAddr::V6(address) = end.ip() {
                packet.extend(address.octets());
            }
        }
        let mut next = 6;
        for (kind, len) in headers {
            packet[next] = *kind;
            next = packet.len();
            let units = match *kind {
                44 => 0,
                51 => (len - 8) / 4,
                _ => (len - 8) / 8,
            };
            packet.extend([0, units as u8]);
            packet.resize(next + len, 0);
        }
        packet[next] = 17;
        packet.extend(source.port().to_be_bytes());
        packet.extend(destination.port().to_be_bytes());
        packet
    }

    fn ends(number: u16) -> [[SocketAddr; 2]; 2] {
        let port = 40_000 + number;
        let v4 = [([10, 0, 0, 2], port).into(), ([192, 0, 2, number as u8], 443).into()];
        let v6 = [
            ([0xfd00, 0, 0, 1, 2, 3, number, 5], port).into(),
            ([0xfd00, 0, 0, 9, 0, 0, 0, 7], 443).into(),
        ];
        [v4, v6]
    }

    #[test]
    fn accepts_both_directions_at_one_bridge() {
        let mut used = [false; 7];
        for number in 0..200 {
            let [[a, b], [c, d]] = ends(number);
            let place = STEERING.bridge_of(a, b);
            used[place as usize] = true;
            assert_eq!(STEERING.bridge_of(b, a), place);
            for options in [0, 1, 10] {
                assert_eq!(run(0x0800, &ipv4(a, b, options)), place);
                assert_eq!(run(0x0800, &ipv4(b, a, options)), place);
            }
            let place = STEERING.bridge_of(c, d);
            let many = [(60, 16); 64];
            let mixed = [(0, 8), (51, 24), (43, 16), (44, 8), (135, 8), (139, 40), (140, 8)];
            for headers in [&[][..], &mixed, &many] {
                assert_eq!(run(0x86dd, &ipv6(c, d, headers)), place, "{headers:?}");
                assert_eq!(run(0x86dd, &ipv6(d, c, headers)), place, "{headers:?}");
            }
        }
        assert!(used.iter().all(|used| *used));
    }

    /// Ends whose numbers have the same sum, which a linear hash would keep together.
    #[test]
    fn refuses_to_be_aimed_at() {
        let mut used = [0; 7];
        for number in 0..7000u16 {
            let low = u32::from(number);
            let client = ([10, 7, (low >> 8) as u8, low as u8], number ^ 443).into();
            used[STEERING.bridge_of(client, ([192, 0, 2, 1], 443).into()) as usize] += 1;
        }
        assert!(used.iter().all(|used| (700..1300).contains(used)), "{used:?}");
    }

    #[test]
    fn accepts_tags_inside_the_frame() {
        let [[a, b], _] = ends(3);
        let place = STEERING.bridge_of(a, b);
        let tagged = |tags: &[u16]| {
            let mut packet = Vec::new();
            for ether_type in tags {
                packet.extend([0, 9]);
                packet.extend(ether_type.to_be_bytes());
            }
            packet.extend(ipv4(a, b, 0));
            packet
        };
        assert_eq!(run(0x8100, &tagged(&[0x0800])), place);
        assert_eq!(run(0x88a8, &tagged(&[0x8100, 0x0800])), place);
        assert_eq!(run(0x9100, &tagged(&[0x88a8, 0x8100, 0x0800])), 0);
    }

    #[test]
    fn keeps_fragments_of_a_packet_together() {
        let [[a, b], [c, d]] = ends(5);
        let mut first = ipv4(a, b, 0);
        first[6] = 0x20;
        let mut later = first.clone();
        later[7] = 9;
        later[20] = 77;
        assert_eq!(run(0x0800, &first), run(0x0800, &later));
        let mut first = ipv6(c, d, &[(44, 8)]);
        first[43] = 1;
        let mut later = first.clone();
        later[42] = 8;
        later[48] = 77;
        assert_eq!(run(0x86dd, &first), run(0x86dd, &later));
    }

    #[test]
    fn refuses_what_has_no_place() {
        assert_eq!(run(0x0806, &[0; 28]), 0);
        assert_eq!(run(0x0800, &[0x45; 10]), 0);
        assert_eq!(run(0x0800, &[0x55; 60]), 0);
        assert_eq!(run(0x86dd, &[]), 0);
        let endless: Vec<u8> = [0x60, 0, 0, 0, 0, 0, 0, 64].into_iter().chain([0; 1200]).collect();
        assert!(run(0x86dd, &endless) < 7);
    }
}
