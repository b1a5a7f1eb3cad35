//! Finding TLS in a connection by content: at its start on any port, or behind another protocol
//! that the client leaves for it (STARTTLS, CONNECT).
//!
//! ```text
//!  client  EHLO.. ─┐      ┌─ STARTTLS ─┐      ┌─ 16 03 01 .. ClientHello
//!  server  220 ..  └─ 250 ┘            └─ 220 ┘
//!                  turn                turn   here
//! ```
//! A client that leaves a protocol waits for the answer, so TLS can begin where its turn begins,
//! whatever protocol that is (SOCKS, a proxy's own). One that does not wait begins behind the message
//! that asks. In either place only the client's bytes decide: what the server says, the client may
//! not have read yet.
//!
//! Refuses to take the word of a server, and to keep more than [`MAX_BYTES`] per direction. Beyond
//! them a [`Watch`] goes on without reassembly.

mod datagram;
mod hello;
mod upgrade;

pub(crate) use datagram::{Datagram, MAX_DATAGRAM_FRONT, classify};
pub use upgrade::Upgrade;

use crate::tls::Direction;
use hello::Begins;

/// Bytes of a direction that are looked at in order, and kept at most.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// The first byte of a record that begins a ClientHello.
const HANDSHAKE: u8 = 22;

/// Most bytes of a client's turn among which there may be urgent ones in front of a ClientHello.
const MAX_URGENT: usize = 16;

/// What a header of the PROXY protocol, version 2, begins with. It is followed by a byte that says
/// version and command, one for the address family, and the length of the rest.
const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a connection turned out to carry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It cannot be told yet.
    Unsure,
    /// Nothing that is followed.
    Plain(Watch),
    /// TLS.
    Tls(Beginning),
}

/// The first bytes of a TLS stream inside a connection; everything that was given before them is
/// another protocol's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The client's bytes so far.
    pub(crate) client: Vec<u8>,
    /// The server's, since the client's first one, or since the connection began.
    pub(crate) server: Vec<u8>,
    /// The server has said more than is kept.
    pub(crate) server_lost: bool,
    /// The protocol in front.
    pub(crate) upgrade: Option<Upgrade>,
    /// The hello is one of SSL 2.0.
    pub(crate) ssl2: bool,
}

/// Looks for the beginning of TLS in the bytes of a connection, in order.
#[derive(Default)]
pub(crate) struct Recogniser {
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
    /// Bytes that have passed, per direction.
    passed: [usize; 2],
}

impl Recogniser {
    /// Goes on where a [`Watch`] has seen a turn of the client.
    pub(crate) fn at_turn(asked: Option<Upgrade>) -> Self {
        Self { in_dialog: true, asked, passed: [MAX_BYTES; 2], ..Self::default() }
    }

    /// Bytes that are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.client.len() + self.server.len()
    }

    /// Whether urgent data could hide a ClientHello here.
    pub(crate) fn refuses_urgent(&self) -> bool {
        !self.in_dialog || self.asked.is_some() || self.plain < self.client.len()
    }

    /// The client's next bytes are urgent data.
    pub(crate) fn note_urgent(&mut self) {
        self.urgent = true;
    }

    /// Whether these bytes of the server, the first of the connection in order, are a client's.
    pub(crate) fn is_reversed(&self, bytes: &[u8]) -> bool {
        let short = self.server.len() <= crate::tls::RECOGNITION_LEN && !self.server_lost;
        !self.in_dialog
            && self.client.is_empty()
            && short
            && self.server.first().or(bytes.first()) == Some(&HANDSHAKE)
            && hello::generous(&[&self.server, bytes].concat()) == Begins::Tls
    }

    /// The two sides turn out to be the other way round.
    pub(crate) fn swap_roles(&mut self) {
        core::mem::swap(&mut self.client, &mut self.server);
        self.passed.swap(0, 1);
    }

    /// Takes the next bytes of a direction.
    pub(crate) fn handle_bytes(&mut self, direction: Direction, bytes: &[u8]) -> Found {
        let passed = &mut self.passed[direction.index()];
        *passed = passed.saturating_add(bytes.len());
        match direction {
            Direction::ClientToServer => self.handle_client(bytes),
            Direction::ServerToClient => self.handle_server(bytes),
        }
    }

    fn handle_client(&mut self, bytes: &[u8]) -> Found {
        self.client.extend_from_slice(bytes);
        while self.plain < self.client.len() {
            let (before, rest) = self.client.split_at(self.plain);
            let mut asked = self.asked;
            // The beginnings of a record and of a hello of SSL 2.0.
            let possible = matches!(rest[0], 20..=22 | 0x80..)
                && (before.is_empty() || Upgrade::may_follow(before));
            let mut begins = if possible {
                hello::generous(rest)
            } else if self.urgent && before.len() <= MAX_URGENT || is_proxy_header(before) {
                hello::strict(rest)
            } else {
                Begins::Other
            };
            // Only now is it worth a search what the client asked for.
            if begins != Begins::Other {
                if !before.is_empty() {
                    asked = Upgrade::asked_by(before);
                }
                if self.in_dialog && asked.is_none() && !(before.is_empty() && rest[0] == HANDSHAKE)
                {
                    begins = hello::strict(rest);
                }
            }
            match begins {
                Begins::Unsure => return Found::Unsure,
                Begins::Tls | Begins::Ssl2 => {
                    let client = self.client.split_off(self.plain);
                    return Found::Tls(Beginning {
                        client,
                        server: core::mem::take(&mut self.server),
                        server_lost: self.server_lost,
                        upgrade: self.in_dialog.then_some(asked.unwrap_or(Upgrade::Other)),
                        ssl2: begins == Begins::Ssl2,
                    });
                }
                Begins::Other => {
                    self.plain += 1;
                    self.in_dialog = true;
                }
            }
        }
        // Nothing of this can become TLS any more, and neither what the server has said so far.
        self.server = Vec::new();
        self.server_lost = false;
        self.limit()
    }

    fn handle_server(&mut self, bytes: &[u8]) -> Found {
        let in_hello = self.plain < self.client.len();
        if in_hello || !self.in_dialog {
            // The client's next bytes tell whether these are TLS.
            if self.server_lost || self.server.len() + bytes.len() > MAX_BYTES {
                self.server_lost = true;
                self.server = Vec::new();
            } else {
                self.server.extend_from_slice(bytes);
            }
            return Found::Unsure;
        }
        if !self.client.is_empty() {
            self.asked = Upgrade::asked_by(&self.client);
            self.client.clear();
            self.plain = 0;
            self.urgent = false;
        }
        self.limit()
    }

    fn limit(&self) -> Found {
        if self.passed.iter().all(|passed| *passed <= MAX_BYTES) {
            return Found::Unsure;
        }
        Found::Plain(match self.client.is_empty() {
            true => Watch { asked: self.asked, turn: true },
            false => Watch { asked: Upgrade::asked_by(&self.client), turn: false },
        })
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

/// What is remembered of a connection that is not looked at in order any more: enough to notice
/// a client's turn that begins with a ClientHello.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    asked: Option<Upgrade>,
    /// The server has spoken since the client did.
    turn: bool,
}

impl Watch {
    /// Whether urgent data could hide a ClientHello here.
    pub(crate) fn refuses_urgent(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes urgent data of the client: its receiver may take a byte out, and the client's turn goes
    /// on behind it.
    pub(crate) fn handle_urgent(&mut self, payload: &[u8]) {
        self.asked = Upgrade::asked_by(payload).or(self.asked);
    }

    /// Takes a segment's payload, which continues the stream; the recogniser to go on with, when
    /// TLS may begin in it.
    pub(crate) fn handle_segment(
        &mut self,
        direction: Direction,
        payload: &[u8],
    ) -> Option<Recogniser> {
        if payload.is_empty() {
            return None;
        }
        if direction == Direction::ServerToClient {
            self.turn = true;
            return None;
        }
        let turn = core::mem::take(&mut self.turn);
        if turn || self.asked.is_some() {
            let begins = match (self.asked, payload[0]) {
                (_, HANDSHAKE) | (Some(_), 20 | 21 | 0x80..) => hello::generous(payload),
                _ => Begins::Other,
            };
            if begins != Begins::Other {
                return Some(Recogniser::at_turn(self.asked));
            }
        }
        self.asked = Upgrade::asked_by(payload);
        None
    }
}

#[cfg(test)]
mod tests;
