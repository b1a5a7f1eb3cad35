//! Cases from a seed: openings, first flights, and segments around each change of a connection's state.
//!
//! Most of what is added is of a kind that the peer ignores (another station's address, a wrong
//! checksum, a number outside of its window), since an attack that its own peer refuses proves
//! nothing. Refuses to be random: the same seed and number give the same case.

use mmtls_testkit::segments::Seeded;

use super::script::{Case, Event, Kind, Part, Place, Send, Step, Token, Until};
use super::wire::{Oddity, flag};

/// Whether the attacker of this number is the server: those runs have a client each, and take longer.
pub fn is_server(number: u64) -> bool {
    number % 8 == 7
}

/// The case of a number.
pub fn case(seed: u64, number: u64, server: bool) -> Case {
    let mut random = Seeded::new(seed.wrapping_mul(1_000_003) ^ number.wrapping_mul(0x1_0000_0001));
    // The first ones of neighbours are alike.
    for _ in 0..8 {
        random.next_u64();
    }
    let mut maker = Maker { random, server, behind_dialog: false };
    let mut case = Case { server, ..Case::default() };
    if !server && maker.random.one_in(3) {
        maker.behind_dialog(&mut case);
        case.steps.push(Step::Stream(Until::End));
        return case;
    }
    if !maker.random.one_in(3) {
        maker.opening(&mut case);
    }
    if !server && (case.steps.is_empty() || maker.random.one_in(4)) {
        maker.flight(&mut case);
    }
    if server && maker.random.one_in(4) {
        maker.lead(&mut case);
    }
    case.deaf = maker.random.one_in(30);
    if !server && maker.random.one_in(2) {
        // Where no port says that it must be TLS.
        case.front = Some("bare".to_owned());
    }
    case.steps.push(Step::Stream(Until::End));
    case
}

struct Maker {
    random: Seeded,
    server: bool,
    /// What is sent stands around the beginning of TLS, and not of the connection.
    behind_dialog: bool,
}

/// In front of what TLS begins late.
const FRONTS: [&str; 10] = [
    "long",
    "long",
    "long_junk",
    "long_junk",
    "socks5",
    "smtp",
    "junk",
    "junk_answered",
    "xmpp",
    "bare",
];

impl Maker {
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len())]
    }

    /// TLS behind a dialog, with other segments around where it begins, in pieces of any order, and an answer
    /// that the window cuts.
    fn behind_dialog(&mut self, case: &mut Case) {
        self.behind_dialog = true;
        case.front = Some(self.pick(&FRONTS).to_owned());
        case.eager = self.random.one_in(2);
        case.window = self.random.one_in(6).then(|| self.pick(&[200, 1000]));
        case.deaf = self.random.one_in(30);
        if self.random.one_in(4) {
            self.flight(case);
        }
        let steps = &mut case.steps;
        steps.push(Step::Stream(Until::Dialog));
        self.extras(steps, |random| random.below(3));
        if self.random.one_in(2) {
            steps.push(Step::Pause(self.pick(&[5, 30])));
        }
        let small = self.random.one_in(2);
        let mut at = 0;
        let mut pieces = vec![];
        for _ in 0..self.random.below(3) {
            let end = at + self.pick(&[1, 1, 2, 5, 20, 100]);
            pieces.push((at, Some(end)));
            at = end;
        }
        pieces.push((at, None));
        if self.random.one_in(3) {
            pieces.reverse();
        }
        for (from, to) in pieces {
            let mut send = Send { flags: flag::ACK | flag::PSH, ..Send::default() };
            send.sequence = Some(Place::Tls(from as i64));
            send.data = vec![Part::Tls(from, to)];
            if small {
                send.window = self.pick(&[1, 3, 5, 7, 12]);
            }
            if self.random.one_in(8) {
                send.flags |= 32;
            }
            steps.push(Step::Send(send));
            self.extras(steps, |random| usize::from(random.one_in(3)));
        }
        if small {
            for _ in 0..1 + self.random.below(3) {
                steps.push(Step::Wait(Event::Data, 400));
                let window = self.pick(&[1, 5, 7, 100]);
                steps.push(Step::Send(Send { window, ..Send::default() }));
            }
        }
    }

    fn flight(&mut self, case: &mut Case) {
        if self.random.one_in(12) {
            case.big = self.pick(&[300, 2000, 16_000, 16_400, 16_800, 17_400, 18_000, 30_000]);
        }
        for _ in 0..self.random.below(3) {
            let token = self.filler();
            case.flight.push(token);
        }
        let parts = self.pick(&[1, 1, 1, 2, 2, 3]);
        let mut at = 0;
        for part in 0..parts {
            let last = part + 1 == parts;
            let end = at + self.pick(&[1, 1, 2, 3, 4, 5, 9, 40, 100]);
            let version = self.version();
            let kind = Kind::Hello(at, (!last).then_some(end));
            case.flight.push(Token { kind, version, count: 1 });
            at = end;
            if !last && self.random.one_in(3) {
                let token = self.filler();
                case.flight.push(token);
            }
        }
        // One part and nothing else is what the library sends.
        if self.random.one_in(10) {
            let token = self.filler();
            case.flight.push(token);
        }
    }

    fn filler(&mut self) -> Token {
        let version = self.version();
        let kind = match self.random.below(12) {
            0..=3 => Kind::Empty,
            4 => Kind::Ccs,
            5 | 6 => Kind::EmptyCcs,
            7 | 8 => Kind::Warning,
            9 => Kind::EmptyAlert,
            10 => Kind::EmptyData,
            _ => Kind::Raw(self.raw()),
        };
        let count = match kind {
            Kind::Raw(_) => 1,
            _ => self.pick(&[1, 1, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 65, 300]),
        };
        Token { kind, version, count }
    }

    fn raw(&mut self) -> Vec<u8> {
        let all: [&[u8]; 7] = [
            &[0x18, 3, 3, 0, 3, 1, 0, 0],
            &[0x16, 3, 3, 0, 4, 0, 0, 0, 0],
            &[0x19, 3, 3, 0, 0],
            &[0x14, 3, 3, 0, 1, 2],
            &[0x80, 0x2e, 1, 3, 3],
            &[0],
            b"\r\n",
        ];
        self.pick(&all).to_vec()
    }

    fn version(&mut self) -> u16 {
        match self.random.below(10) {
            0..=4 => self.pick(&[0x0301, 0x0303]),
            5 | 6 => self.pick(&[0x0300, 0x0302, 0x0304, 0x03ff, 0x0305]),
            7 | 8 => self.pick(&[0x0001, 0x0200, 0x0401, 0x0900, 0x1000, 0x10ff, 0xfefd, 0xffff]),
            _ => self.random.next_u64() as u16,
        }
    }

    fn lead(&mut self, case: &mut Case) {
        let all: [&[u8]; 8] = [
            &[0x16, 3, 3, 0, 4, 0, 0, 0, 0],
            &[0x16, 3, 3, 0, 0],
            &[0x14, 3, 3, 0, 1, 1],
            &[0x15, 3, 3, 0, 2, 1, 100],
            &[0x15, 3, 3, 0, 0],
            &[0x17, 3, 3, 0, 0],
            b"abcde",
            &[0x16, 3, 1, 0, 0, 0x16, 3, 1, 0, 0],
        ];
        case.lead = self.pick(&all).to_vec();
    }

    /// The handshake of TCP with other segments in between.
    fn opening(&mut self, case: &mut Case) {
        let steps = &mut case.steps;
        let own = |random: &mut Seeded| if random.one_in(3) { 1 + random.below(3) } else { 0 };
        if self.server {
            steps.push(Step::Wait(Event::Syn, 1500));
            self.extras(steps, own);
            let flags = match self.random.below(6) {
                0 => flag::SYN,
                _ => flag::SYN | flag::ACK,
            };
            let mut syn = Send { flags, ..Send::default() };
            self.maybe_data(&mut syn);
            steps.push(Step::Send(syn));
            if flags == flag::SYN {
                steps.push(Step::Wait(Event::SynAck, 1500));
            }
        } else {
            self.extras(steps, own);
            let mut syn = Send { flags: flag::SYN, ..Send::default() };
            if self.random.one_in(3) {
                self.maybe_data(&mut syn);
            }
            if self.random.one_in(20) {
                syn.window = self.pick(&[0, 1, 100, 1000]);
            }
            syn.timestamp = self.random.one_in(8).then_some(700_000);
            steps.push(Step::Send(syn));
            self.extras(steps, own);
            steps.push(Step::Wait(Event::SynAck, 1500));
        }
        self.extras(steps, own);
        if self.random.one_in(2) {
            steps.push(Step::Stream(Until::Connected));
            self.extras(steps, |random| 1 + random.below(2));
        }
        if !self.server && self.random.one_in(3) {
            let end = self.pick(&[1, 2, 3, 4, 5, 6, 9, 50, 100, 200]);
            let mut part = Send { flags: flag::ACK | flag::PSH, ..Send::default() };
            part.sequence = Some(Place::At(0));
            part.data = vec![Part::Out(0, Some(end))];
            steps.push(Step::Send(part));
            if self.random.one_in(2) {
                steps.push(Step::Wait(Event::Ack, 50));
            }
            self.extras(steps, |random| 1 + random.below(2));
        }
        if self.random.one_in(6) {
            steps.push(Step::Stream(Until::Handshake));
            self.extras(steps, |random| 1 + random.below(2));
        }
    }

    fn maybe_data(&mut self, send: &mut Send) {
        if self.random.one_in(2) {
            send.data = vec![self.part()];
        }
    }

    fn part(&mut self) -> Part {
        let at = self.pick(&[0, 0, 0, 1, 5, 9, 50, 100]);
        let end = at + self.pick(&[1, 2, 4, 5, 9, 50, 100, 600]);
        if self.behind_dialog && self.random.one_in(2) {
            let end = self.random.one_in(2).then_some(end);
            return match self.random.below(3) {
                0 => Part::Tls(at, end),
                _ => Part::Veil(at, end),
            };
        }
        match self.random.below(10) {
            0 | 1 => Part::Out(at, Some(end)),
            2 => Part::Flip(at, Some(end)),
            3 | 4 => Part::Fill(self.pick(&[1, 2, 4, 5, 6, 20, 100, 500])),
            5 => Part::Zero(self.pick(&[1, 5, 100])),
            6 => Part::Decoy,
            7 => Part::ServerHello,
            8 => Part::Open,
            _ => Part::Http,
        }
    }

    fn extras(&mut self, steps: &mut Vec<Step>, count: impl Fn(&mut Seeded) -> usize) {
        for _ in 0..count(&mut self.random) {
            let send = self.segment();
            steps.push(Step::Send(send));
            if self.random.one_in(4) {
                steps.push(Step::Pause(self.pick(&[1, 3, 10, 30])));
            }
        }
    }

    fn segment(&mut self) -> Send {
        const FLAGS: [u8; 16] = [
            flag::SYN,
            flag::SYN,
            flag::SYN,
            flag::SYN | flag::ACK,
            flag::SYN | flag::ACK,
            flag::ACK,
            flag::ACK | flag::PSH,
            flag::ACK | flag::PSH,
            flag::ACK | flag::PSH,
            flag::RST,
            flag::RST | flag::ACK,
            flag::FIN | flag::ACK,
            flag::FIN | flag::SYN,
            0,
            flag::PSH,
            flag::SYN | flag::RST,
        ];
        let mut send = Send { flags: self.pick(&FLAGS), ..Send::default() };
        send.sequence = Some(self.place());
        if self.random.one_in(3) {
            send.acknowledgment = Some(self.place());
        }
        let carries = send.flags & flag::PSH != 0 || self.random.one_in(4);
        if carries {
            send.data = vec![self.part()];
            if self.random.one_in(6) {
                send.data.push(self.part());
            }
        }
        send.as_peer = self.random.one_in(7);
        self.spoil(&mut send);
        send
    }

    fn place(&mut self) -> Place {
        let offset = match self.random.below(8) {
            0 | 1 => 0,
            2 | 3 => self.pick(&[-1, 1, -2, 2, 5, -5, 10]),
            4 | 5 => self.pick(&[-100, 100, -1000, 1000, 250, -500]),
            6 => self.pick(&[-70_000, 60_000, 70_000, -1_000_000, 1_000_000]),
            _ => self.pick(&[1 << 30, -(1 << 30), 1 << 31, 1 << 28]),
        };
        if self.behind_dialog && !self.random.one_in(4) {
            return Place::Tls(offset);
        }
        if self.random.one_in(3) { Place::Next(offset) } else { Place::At(offset - 1) }
    }

    /// Makes it one that the peer ignores, mostly.
    fn spoil(&mut self, send: &mut Send) {
        let odd = &mut send.oddity;
        match self.random.below(20) {
            0..=8 => odd.lost = true,
            9 | 10 => odd.bad_checksum = true,
            11 => *odd = Oddity { bad_offset: true, ..*odd },
            12 => send.timestamp = Some(1),
            13 => send.options = [&[19, 18][..], &[0x5a; 16]].concat(),
            14 => send.ttl = 1,
            15 => {
                send.flags |= 32;
                send.urgent = self.pick(&[0, 1, 5, 100]);
            }
            16 => send.window = self.pick(&[0, 1, 1000]),
            _ => {}
        }
        if self.random.one_in(25) {
            let field = self.pick(&super::text::ODDITIES).1;
            *field(&mut send.oddity) = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_cases_as_text_and_makes_them_again() {
        for number in 0..2000 {
            let case = case(7, number, number % 3 == 0);
            let text = case.to_string();
            let read: Case = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!(super::case(7, number, number % 3 == 0).to_string(), text);
        }
    }

    #[test]
    fn refuses_to_repeat_itself() {
        let all: std::collections::BTreeSet<_> =
            (0..1000).map(|number| case(1, number, false).to_string()).collect();
        assert!(all.len() > 800, "{}", all.len());
    }
}
