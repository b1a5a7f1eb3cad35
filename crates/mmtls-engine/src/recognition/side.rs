//! One reading of a connection: who is the client of TLS, if there is TLS in it.
//!
//! Refuses to know which side has opened the connection.

use core::mem;

use super::answer::Answer;
use super::beginning::{Beginning, MAX_BYTES};
use super::hello::{self, Begins, HANDSHAKE};
use super::holes::Holes;
use super::upgrade::{Upgrade, UpgradeSearch};

/// Most bytes of a client's turn among which there may be urgent ones in front of a ClientHello.
const MAX_URGENT: usize = 16;

/// What a header of the PROXY protocol, version 2, begins with. It is followed by a byte that says
/// version and command, one for the address family, and the length of the rest.
const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Longest such header behind its first 16 bytes: addresses take 216, certificates' names some more.
const MAX_PROXY_LEN: usize = 2048;

/// What bytes have shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It cannot be told yet.
    Unsure,
    /// Nothing that is followed.
    Plain(SideWatch),
    /// TLS.
    Tls(Beginning),
    /// The answer of a TLS server to something that was not recognised.
    Answer,
}

/// Looks for the beginning of TLS in the bytes of a connection, in order.
#[derive(Default)]
pub(super) struct Side {
    /// What the client has sent since the server spoke last.
    client: Vec<u8>,
    /// How many of them are not TLS for certain.
    plain: usize,
    /// The server's bytes that are TLS if the client's next ones are.
    server: Vec<u8>,
    server_lost: bool,
    /// The client has left the first bytes of the connection behind.
    in_dialog: bool,
    /// There were urgent data in the client's turn, which are part of the stream or not.
    urgent: bool,
    /// What the client asked for before the server spoke last.
    asked: Option<Upgrade>,
    /// What its turn asks for.
    search: UpgradeSearch,
    /// How the server's turn begins.
    answer: Answer,
    /// Where turns of the client began before this was looked at in order.
    pub(super) holes: Holes,
    /// What is in front of TLS here, if it comes, is no header of a load balancer.
    excluded: bool,
    /// Bytes that have passed, per direction.
    passed: [usize; 2],
}

impl Side {
    /// Goes on where a [`SideWatch`] has seen a turn of the client.
    pub(super) fn at_turn(asked: Option<Upgrade>) -> Self {
        let passed = [MAX_BYTES; 2];
        Self { in_dialog: true, excluded: true, asked, passed, ..Self::default() }
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.client.len() + self.server.len()
    }

    /// Whether urgent data could hide a ClientHello here.
    pub(super) fn refuses_urgent(&self) -> bool {
        !self.in_dialog || self.asked.is_some() || self.plain < self.client.len()
    }

    /// The client's next bytes are urgent data.
    pub(super) fn note_urgent(&mut self) {
        self.urgent = true;
    }

    /// Whether there are bytes in front that are neither TLS nor a load balancer's header.
    pub(super) fn is_excluded(&self) -> bool {
        self.excluded
    }

    /// Whether the client has spoken.
    pub(super) fn has_begun(&self) -> bool {
        self.in_dialog || !self.client.is_empty()
    }

    /// Takes the next bytes of a direction.
    pub(super) fn handle_bytes(&mut self, from_client: bool, bytes: &[u8]) -> Seen {
        let passed = &mut self.passed[usize::from(!from_client)];
        *passed = passed.saturating_add(bytes.len());
        match from_client {
            true => self.handle_client(bytes),
            false => self.handle_server(bytes),
        }
    }

    /// See [`super::Recogniser::note_repeated`].
    pub(super) fn note_repeated(&mut self, payload: &[u8]) {
        self.answer.note_client(payload);
    }

    /// See [`super::Recogniser::handle_uncompared`], of the server's.
    pub(super) fn handle_uncompared(&mut self, offset: i64, payload: &[u8]) -> bool {
        self.answer.push_segment(offset, payload, false) || hello::is_answer(payload)
    }

    fn handle_client(&mut self, bytes: &[u8]) -> Seen {
        self.client.extend_from_slice(bytes);
        self.answer.interrupt();
        self.answer.note_client(bytes);
        while self.plain < self.client.len() {
            let (before, rest) = self.client.split_at(self.plain);
            let mut asked = self.asked;
            // The beginnings of a record and of a hello of SSL 2.0.
            let possible = match before {
                [] if !self.in_dialog || self.asked.is_some() => true,
                [] => matches!(rest[0], 20..=22 | 0x80..),
                _ => matches!(rest[0], 20..=22 | 0x80..) && Upgrade::may_follow(before),
            };
            // Alerts in front count where neither side has spoken: elsewhere they may be answers.
            let spoken = self.server_lost || !self.server.is_empty();
            let strictly = match possible {
                true => spoken && matches!(rest[0], 20 | 21),
                false => self.urgent && before.len() <= MAX_URGENT || is_proxy_header(before),
            };
            let mut begins = match (possible, strictly) {
                (_, true) => hello::strict(rest),
                (true, false) => hello::generous(rest),
                (false, false) => Begins::Other,
            };
            // Only now is it worth a search what the client asked for.
            if begins != Begins::Other {
                if !before.is_empty() {
                    asked = self.search.asked_by(before);
                }
                if self.in_dialog && asked.is_none() {
                    begins = match self.plain == 0 && rest[0] == HANDSHAKE {
                        true => hello::whole(rest),
                        false => hello::strict(rest),
                    };
                }
            }
            match begins {
                Begins::Unsure => {
                    if self.plain > MAX_BYTES {
                        self.leave_behind();
                    }
                    return Seen::Unsure;
                }
                Begins::Tls | Begins::Ssl2 => {
                    let client = self.client.split_off(self.plain);
                    return Seen::Tls(Beginning {
                        client,
                        server: mem::take(&mut self.server),
                        server_lost: self.server_lost,
                        upgrade: self.in_dialog.then_some(asked.unwrap_or(Upgrade::Other)),
                        ssl2: begins == Begins::Ssl2,
                        reversed: false,
                    });
                }
                Begins::Other => {
                    self.plain += 1;
                    self.in_dialog = true;
                    // What begins behind it is not what the server has spoken of so far, whatever segment it is in.
                    self.server = Vec::new();
                    self.server_lost = false;
                    // Once it is excluded this costs nothing: the longest header bounds it.
                    self.excluded =
                        self.excluded || !may_be_proxy_header(&self.client[..self.plain]);
                }
            }
        }
        self.limit()
    }

    /// Keeps what a long turn asks for, and not the turn: its sender decides how often TLS may begin in it.
    fn leave_behind(&mut self) {
        let possible = self.client.split_off(self.plain);
        self.asked = Upgrade::asked_by(&self.client);
        self.client = possible;
        self.plain = 0;
        self.search = UpgradeSearch::default();
    }

    fn handle_server(&mut self, bytes: &[u8]) -> Seen {
        let in_hello = self.plain < self.client.len();
        let borders = self.answer.push_in_order(bytes);
        if (in_hello || self.in_dialog) && (borders || self.answer.push(bytes)) {
            return Seen::Answer;
        }
        if in_hello || !self.in_dialog {
            // The client's next bytes tell whether these are TLS.
            if self.server_lost || self.server.len() + bytes.len() > MAX_BYTES {
                if self.client.is_empty() {
                    // No server of TLS talks like this before the client does.
                    let answer = mem::take(&mut self.answer);
                    return Seen::Plain(SideWatch { turn: true, answer, ..SideWatch::default() });
                }
                self.server_lost = true;
                self.server = Vec::new();
            } else {
                self.server.extend_from_slice(bytes);
            }
            return Seen::Unsure;
        }
        if !self.client.is_empty() {
            self.asked = Upgrade::asked_by(&self.client);
            self.client.clear();
            self.plain = 0;
            self.search = UpgradeSearch::default();
            self.urgent = false;
            self.excluded = true;
        }
        self.limit()
    }

    fn limit(&mut self) -> Seen {
        if self.passed.iter().all(|passed| *passed <= MAX_BYTES) {
            return Seen::Unsure;
        }
        let turn = self.client.is_empty();
        let asked = if turn { self.asked } else { Upgrade::asked_by(&self.client) };
        let (answer, holes) = (mem::take(&mut self.answer), mem::take(&mut self.holes));
        Seen::Plain(SideWatch { asked, turn, answer, holes })
    }
}

/// Whether these bytes are the header that load balancers put in front of a client's stream: there is
/// no answer to it, so a ClientHello follows at once. (That of version 1 is a line.)
fn is_proxy_header(before: &[u8]) -> bool {
    before.starts_with(PROXY_SIGNATURE)
        && before.get(14..16).is_some_and(|length| {
            before.len() == 16 + usize::from(u16::from_be_bytes([length[0], length[1]]))
        })
}

/// Whether these bytes begin such a header, of either version, or are one. That of version 1 is a line
/// of at most 107 bytes.
fn may_be_proxy_header(before: &[u8]) -> bool {
    const LINE: &[u8] = b"PROXY ";
    const MAX_LINE: usize = 107;
    let begins = |with: &[u8]| before.iter().zip(with).all(|(one, other)| one == other);
    let line_end = before.iter().position(|byte| *byte == b'\n').map_or(before.len(), |at| at + 1);
    if begins(LINE) {
        return before.len() <= MAX_LINE && line_end == before.len();
    }
    begins(PROXY_SIGNATURE)
        && before.get(14..16).is_none_or(|length| {
            let len = usize::from(u16::from_be_bytes([length[0], length[1]]));
            len <= MAX_PROXY_LEN && before.len() <= 16 + len
        })
}

/// What is remembered of a connection that is not looked at in order any more: enough to notice
/// a client's turn that begins with a ClientHello.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct SideWatch {
    asked: Option<Upgrade>,
    /// The server has spoken since the client did.
    turn: bool,
    answer: Answer,
    /// Where turns of the client began whose first bytes are missing.
    pub(super) holes: Holes,
}

impl SideWatch {
    /// Whether urgent data could hide a ClientHello here.
    pub(super) fn refuses_urgent(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes urgent data of the client: its receiver may take a byte out, and the client's turn goes
    /// on behind it.
    pub(super) fn handle_urgent(&mut self, payload: &[u8]) {
        self.note_client(payload);
        self.asked = Upgrade::asked_by(payload).or(self.asked);
    }

    /// Whether TLS may begin with the client's next bytes.
    pub(super) fn may_begin(&self) -> bool {
        self.turn || self.asked.is_some()
    }

    /// Takes a segment of the server, where it begins, and which of it continues the stream; whether it answers as a TLS
    /// server does.
    pub(super) fn handle_server(
        &mut self,
        offset: Option<i64>,
        payload: &[u8],
        new: Option<&[u8]>,
    ) -> bool {
        if payload.is_empty() {
            return false;
        }
        self.turn = true;
        let in_order = new.is_some_and(|new| new.len() == payload.len());
        let offset = offset.unwrap_or(self.answer.end());
        self.answer.push_segment(offset, payload, in_order)
            || self.answer.push(new.unwrap_or_default())
            || hello::is_answer(payload)
    }

    /// Bytes of the client that are not where its stream goes on: what they are part of is not known.
    pub(super) fn skip_client(&mut self) {
        self.answer.hello_possible = true;
    }

    /// The same, of a segment that has passed ahead of its stream, which goes on at `next`: its turn begins there. Whether
    /// a ClientHello begins with it; what is missing may be the end of something else.
    pub(super) fn pass_ahead(&mut self, next: i64, payload: &[u8]) -> bool {
        self.skip_client();
        if !self.may_begin() {
            return false;
        }
        self.holes.note(next);
        self.turn = false;
        self.asked = None;
        hello::strict(payload) == Begins::Tls
    }

    /// Bytes that the client has said, wherever they stand in its stream.
    pub(super) fn note_client(&mut self, payload: &[u8]) {
        self.answer.interrupt();
        self.answer.note_client(payload);
    }

    /// Takes bytes that continue the client's stream and were noted; how to go on when TLS may begin in them.
    pub(super) fn handle_client(&mut self, bytes: &[u8]) -> Option<Side> {
        let first = *bytes.first()?;
        let turn = mem::take(&mut self.turn);
        if turn || self.asked.is_some() {
            let begins = match (self.asked, first) {
                (Some(_), _) => hello::generous(bytes),
                (None, HANDSHAKE) => hello::whole(bytes),
                (None, 20 | 21) => hello::strict(bytes),
                _ => Begins::Other,
            };
            if begins != Begins::Other {
                let (answer, holes) = (mem::take(&mut self.answer), mem::take(&mut self.holes));
                return Some(Side { answer, holes, ..Side::at_turn(self.asked) });
            }
        }
        self.asked = Upgrade::asked_by(bytes);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_request_behind_many_places_in_any_cut() {
        // Places that look like a hello, some until one of their last bytes shows that they are none.
        let fronts: [&[u8]; 2] =
            [b"x>\x16\x09\0\xff\xff\x01\0\x30\0\x04", b"x>\x16\x03\x01\x00\x20\x01\x7f"];
        let hello = [20, 3, 1, 0, 1, 1];
        for front in fronts {
            let bytes = [&front.repeat(175)[..], b"\nSTARTTLS\n", &hello].concat();
            for piece in [1, 2, 200, bytes.len()] {
                let mut side = Side::default();
                let mut pieces = bytes.chunks(piece);
                let found = pieces.any(|it| matches!(side.handle_bytes(true, it), Seen::Tls(_)));
                assert!(found, "in pieces of {piece}");
            }
        }
    }
}
