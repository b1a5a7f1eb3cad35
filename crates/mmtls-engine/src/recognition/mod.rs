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
//! Either side may be the TLS client: FTP servers open data connections (RFC 4217, section 7), and who
//! has sent a SYN says nothing of TLS. So both are looked at, each as client of the other, by a
//! [`Side`]. An answer as TLS servers give it shows that a beginning was missed.
//!
//! At the start of a connection, and behind a request for TLS that is known, a hello is recognised as generously as
//! servers take it. Elsewhere it must have the whole head of one, so that a binary protocol is not taken for TLS; one inside
//! a message (an uploaded capture) is none. Behind the first 16 KB each turn of the client is looked at for as long as the
//! connection lasts, without reassembly, at the cost of a comparison per segment.
//!
//! Refuses to take the word of a server, and to keep more than [`MAX_BYTES`] per direction and side.
//! Beyond them a [`Watch`] goes on without reassembly.

mod answer;
mod beginning;
mod datagram;
mod hello;
mod holes;
mod side;
mod upgrade;

pub(crate) use beginning::Beginning;
pub(crate) use datagram::{Datagram, MAX_DATAGRAM_FRONT, classify};
pub use upgrade::Upgrade;

use crate::tls::Direction;
use side::{Seen, Side, SideWatch};

/// What a connection turned out to carry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It cannot be told yet.
    Unsure,
    /// Nothing that is followed: [`Recogniser::take_watch`] has what is remembered of it.
    Plain,
    /// TLS.
    Tls(Beginning),
    /// TLS whose beginning was missed: a side has answered as a server does.
    Missed,
}

/// Looks for the beginning of TLS in the bytes of a connection, in order.
#[derive(Default)]
pub(crate) struct Recogniser {
    /// With the flow's client as TLS client, and with its server; nothing before the first byte: a SYN takes less
    /// memory.
    sides: Option<Box<[Looking; 2]>>,
}

/// How far one reading of a connection is.
enum Looking {
    InOrder(Side),
    /// It has passed what is kept in order.
    Past(SideWatch),
}

impl Default for Looking {
    fn default() -> Self {
        Self::InOrder(Side::default())
    }
}

/// The direction of the TLS client in a reading.
const CLIENTS: [Direction; 2] = Direction::BOTH;

impl Recogniser {
    /// Bytes that are kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.sides
            .iter()
            .flat_map(|sides| sides.iter())
            .map(|side| match side {
                Looking::InOrder(side) => side.kept_bytes(),
                Looking::Past(_) => 0,
            })
            .sum()
    }

    /// Whether urgent data could hide a ClientHello here.
    pub(crate) fn refuses_urgent(&self) -> bool {
        self.looking(|sides| {
            sides.iter().any(|side| match side {
                Looking::InOrder(side) => side.refuses_urgent(),
                Looking::Past(watch) => watch.refuses_urgent(),
            })
        })
    }

    /// The next bytes of a direction are urgent data.
    pub(crate) fn note_urgent(&mut self, direction: Direction) {
        if let Looking::InOrder(side) = &mut self.sides.get_or_insert_default()[direction.index()] {
            side.note_urgent();
        }
    }

    /// Whether what has passed begins no TLS connection, whatever comes: there are other bytes in
    /// front, which are no header of a load balancer.
    pub(crate) fn is_excluded(&self) -> bool {
        self.looking(|sides| match sides {
            // The acceptor has not spoken, or has not waited for a client as a TLS server does.
            [Looking::InOrder(client), Looking::InOrder(server)] => {
                client.is_excluded() || (!client.has_begun() && server.is_excluded())
            }
            _ => true,
        })
    }

    fn looking<T>(&self, look: impl FnOnce(&[Looking; 2]) -> T) -> T {
        match &self.sides {
            Some(sides) => look(sides),
            None => look(&Default::default()),
        }
    }

    /// Takes a segment some of which repeats bytes that were not kept: its receiver may take it, or those. Whether it
    /// answers as a TLS server does.
    pub(crate) fn handle_uncompared(
        &mut self,
        direction: Direction,
        offset: i64,
        payload: &[u8],
    ) -> bool {
        let mut missed = false;
        for (looking, client) in self.sides.get_or_insert_default().iter_mut().zip(CLIENTS) {
            match looking {
                _ if direction == client => {}
                Looking::Past(watch) => missed |= watch.handle_server(Some(offset), payload, None),
                Looking::InOrder(side) => missed |= side.handle_uncompared(offset, payload),
            }
        }
        missed
    }

    /// Takes a segment some of which repeats bytes that were not kept: there may be a ClientHello in it, whose answer
    /// will show. Whoever acknowledges the bytes may be its server, and lie.
    pub(crate) fn note_repeated(&mut self, direction: Direction, payload: &[u8]) {
        match &mut self.sides.get_or_insert_default()[direction.index()] {
            Looking::Past(watch) => watch.note_client(payload),
            Looking::InOrder(side) => side.note_repeated(payload),
        }
    }

    /// Takes a segment that begins at this offset; whether it shows that a ClientHello begins where bytes were missing, whose
    /// rest has passed before it.
    pub(crate) fn begins_behind_rest(
        &mut self,
        direction: Direction,
        offset: i64,
        payload: &[u8],
    ) -> bool {
        let side = self.sides.as_mut().map(|sides| &mut sides[direction.index()]);
        let holes = side.map(|side| match side {
            Looking::Past(watch) => &mut watch.holes,
            Looking::InOrder(side) => &mut side.holes,
        });
        holes.is_some_and(|holes| holes.fill(offset, payload))
    }

    /// Takes the next bytes of a direction.
    pub(crate) fn handle_bytes(&mut self, direction: Direction, bytes: &[u8]) -> Found {
        let sides = self.sides.get_or_insert_default();
        let mut missed = false;
        for (looking, client) in sides.iter_mut().zip(CLIENTS) {
            let from_client = direction == client;
            if let Looking::Past(watch) = looking {
                if !from_client {
                    missed |= watch.handle_server(None, bytes, Some(bytes));
                    continue;
                }
                watch.note_client(bytes);
                match watch.handle_client(bytes) {
                    // From these bytes on it looks in order again.
                    Some(side) => *looking = Looking::InOrder(side),
                    None => continue,
                }
            }
            let Looking::InOrder(side) = looking else {
                continue;
            };
            match side.handle_bytes(from_client, bytes) {
                Seen::Unsure => {}
                Seen::Answer => missed = true,
                Seen::Plain(watch) => *looking = Looking::Past(watch),
                Seen::Tls(mut beginning) => {
                    beginning.reversed = client == Direction::ServerToClient;
                    return Found::Tls(beginning);
                }
            }
        }
        match &**sides {
            _ if missed => Found::Missed,
            [Looking::Past(_), Looking::Past(_)] => Found::Plain,
            _ => Found::Unsure,
        }
    }

    /// What is remembered of a connection that carries nothing that is followed.
    pub(crate) fn take_watch(&mut self) -> Watch {
        let past = |side| match side {
            Looking::Past(watch) => watch,
            Looking::InOrder(_) => SideWatch::default(),
        };
        self.sides.take().map(|sides| Watch { sides: sides.map(past) }).unwrap_or_default()
    }
}

/// What is remembered of a connection that is not looked at in order any more: enough to notice
/// a turn that begins with a ClientHello, or with the answer to one.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    sides: [SideWatch; 2],
}

/// What a segment of such a connection shows.
pub(crate) enum Noticed {
    /// Nothing.
    Nothing,
    /// TLS may begin here.
    Beginning(Recogniser),
    /// See [`Found::Missed`].
    Missed,
}

impl Watch {
    /// Whether urgent data could hide a ClientHello here.
    pub(crate) fn refuses_urgent(&self) -> bool {
        self.sides.iter().any(SideWatch::refuses_urgent)
    }

    /// Whether TLS may begin with the next bytes of a direction.
    pub(crate) fn may_begin(&self, direction: Direction) -> bool {
        self.sides[direction.index()].may_begin()
    }

    /// Bytes of a direction have passed that were not read in order.
    pub(crate) fn note_unread(&mut self, direction: Direction) {
        self.sides[direction.index()].skip_client();
    }

    /// Takes a segment that passes ahead of its stream, which goes on at `next`, and whether it shows that TLS was missed.
    pub(crate) fn handle_ahead(
        &mut self,
        direction: Direction,
        next: i64,
        offset: i64,
        payload: &[u8],
    ) -> bool {
        let begins = self.sides[direction.index()].pass_ahead(next, payload);
        let noticed = self.handle_segment(direction, Some(offset), payload, None);
        begins || matches!(noticed, Noticed::Missed)
    }

    /// Takes urgent data that begin at this stream offset: their receiver may take a byte out, and their sender's turn goes
    /// on behind it. Whether they answer as a TLS server does.
    pub(crate) fn handle_urgent(
        &mut self,
        direction: Direction,
        offset: Option<i64>,
        payload: &[u8],
    ) -> bool {
        let mut missed = false;
        for (side, client) in self.sides.iter_mut().zip(CLIENTS) {
            match client == direction {
                true => side.handle_urgent(payload),
                false => missed |= side.handle_server(offset, payload, None),
            }
        }
        missed
    }

    /// Takes a segment's payload, where in its stream it begins, and which of it continues the stream; `None` where it does
    /// not.
    pub(crate) fn handle_segment(
        &mut self,
        direction: Direction,
        offset: Option<i64>,
        payload: &[u8],
        new: Option<&[u8]>,
    ) -> Noticed {
        let begins = new.is_some() && self.sides[direction.index()].may_begin();
        let mut before = begins.then(|| self.sides.clone());
        let (mut missed, mut begun) = (false, None);
        for at in 0..2 {
            // Wherever they stand: a segment that died behind the monitor may have moved the stream
            // on, and what comes in its place is the first that a receiver takes.
            if CLIENTS[at] != direction {
                missed |= self.sides[at].handle_server(offset, payload, new);
                continue;
            }
            self.sides[at].note_client(payload);
            if let Some(offset) = offset {
                missed |= self.sides[at].holes.fill(offset, payload);
            }
            if let Some(new) = new
                && let Some(side) = self.sides[at].handle_client(new)
                && let Some(before) = before.take()
            {
                // The segment will be handed on in order: nothing of it counts yet.
                let mut sides = before.map(Looking::Past);
                sides[at] = Looking::InOrder(side);
                begun = Some(Recogniser { sides: Some(Box::new(sides)) });
            }
        }
        match begun {
            _ if missed => Noticed::Missed,
            Some(recogniser) => Noticed::Beginning(recogniser),
            None => Noticed::Nothing,
        }
    }
}

/// Whether bytes of a connection whose beginning was not seen are a ClientHello's first ones: an
/// alert or a change_cipher_spec is not, since those come later, too.
pub(crate) fn begins_hello(bytes: &[u8]) -> bool {
    hello::strict(bytes) == hello::Begins::Tls
}

/// Whether other bytes in place of some that were taken for another protocol's could begin TLS, or ask
/// for it.
pub(crate) fn may_begin(bytes: &[u8]) -> bool {
    let begins = |at: usize| hello::generous(&bytes[at..]) != hello::Begins::Other;
    let possible = |at: &usize| *at == 0 || matches!(bytes[*at], 20..=22 | 0x80..);
    Upgrade::asked_by(bytes).is_some() || (0..bytes.len()).filter(possible).any(begins)
}

#[cfg(test)]
mod tests;
