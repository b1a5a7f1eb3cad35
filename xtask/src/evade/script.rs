//! A case as text: what an attacker sends, in which order.
//!
//! ```text
//! send S; wait synack; send S seq=-101 data=fill*100; pause 10; stream
//! ```
//!
//! One statement a line, or several with semicolons between. Sequence numbers count from the first
//! byte of the own stream (-1 is the SYN), acknowledgments from the peer's; `@` is the next one.
//!
//! * `active`: the TLS server opens the TCP connection.
//! * `front NAME`: through this front, with its dialog ([`super::front`]); `eager`: without waiting for its answers.
//! * `cookies`: the server's kernel answers with SYN cookies. `window N`: the attacker's, in `stream`.
//! * `third`: the connection is somebody else's; nothing is tidied up behind it.
//! * `server`: the attacker listens. `deaf`: does not heed RST. `source HOST:PORT`: sends from there.
//! * `big N`: the ClientHello is made longer by N bytes. `lead HEX`: the stream starts with these.
//! * `flight TOKEN…`: the records of the first flight ([`Token`]).
//! * `send FLAGS [seq=] [ack=] [data=] [win=] [urg=] [ttl=] [ts=] [opt=] [as=peer] [ODDITY…]`.
//! * `wait syn|synack|ack|data|rst|end [MS]`, `pause MS`.
//! * `stream [connected|dialog|handshake]`: goes on as an ordinary endpoint, to there or to the end.
//! * `choose N`: of the answers to several SYNs this one counts.
//! * `skip PEERS [OWN]`: goes on with these numbers more.
//! * `again`: forgets the connection and begins another one with the same ports.
//! * `reopen`: goes on as if another connection with the same numbers had just been opened, without a dialog.
//!
//! [`super::text`] reads and prints it, and refuses what it does not know.

use super::wire::{Oddity, flag};

/// What an attacker does.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Case {
    /// The attacker is the TLS server.
    pub server: bool,
    /// TLS 1.2: whom it is against says so, not the script.
    pub tls12: bool,
    /// The TLS server opens the TCP connection.
    pub active: bool,
    /// What stands in front of the server.
    pub front: Option<String>,
    /// The front's answers are not waited for.
    pub eager: bool,
    /// The server's kernel uses SYN cookies for every connection.
    pub cookies: bool,
    /// The window that an ordinary endpoint announces.
    pub window: Option<u16>,
    /// RST does not end it.
    pub deaf: bool,
    /// The connection is somebody else's.
    pub third: bool,
    /// Sends from this address and port.
    pub source: Option<String>,
    /// Bytes by which the ClientHello is longer.
    pub big: usize,
    /// What the stream starts with.
    pub lead: Vec<u8>,
    /// The records of the first flight; empty for those of the library.
    pub flight: Vec<Token>,
    pub steps: Vec<Step>,
}

/// A record of the first flight: `KIND:VERSION[RANGE]*COUNT`, or `raw:HEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub version: u16,
    pub count: usize,
}

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `hello`: this part of the first handshake message.
    Hello(usize, Option<usize>),
    /// `empty`: a handshake record with nothing in it.
    Empty,
    /// `ccs`: change_cipher_spec.
    Ccs,
    /// `eccs`: change_cipher_spec with nothing in it.
    EmptyCcs,
    /// `warn`: a warning alert (no_renegotiation).
    Warning,
    /// `ealert`: an alert record with nothing in it.
    EmptyAlert,
    /// `app`: application data with nothing in it.
    EmptyData,
    /// `raw`: these bytes, no record header.
    Raw(Vec<u8>),
}

/// One statement of the procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Send(Send),
    Wait(Event, u64),
    Pause(u64),
    Stream(Until),
    Again,
    Reopen,
    /// The answer of this number.
    Choose(usize),
    /// The peer's numbers, and the own ones.
    Skip(i64, i64),
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Syn,
    SynAck,
    /// Anything that acknowledges.
    Ack,
    Data,
    Rst,
    /// The end of the peer's stream, or a reset.
    End,
}

/// How far the ordinary endpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Connected,
    /// What is said before TLS has been said.
    Dialog,
    Handshake,
    End,
}

/// A number of a sequence space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From the start of the stream.
    At(i64),
    /// `tls+N`: from the start of TLS in it.
    Tls(i64),
    /// From the next one.
    Next(i64),
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub flags: u8,
    pub sequence: Option<Place>,
    pub acknowledgment: Option<Place>,
    pub data: Vec<Part>,
    pub window: u16,
    pub urgent: u16,
    pub ttl: u8,
    pub timestamp: Option<u32>,
    pub options: Vec<u8>,
    /// So many times, each behind the one before.
    pub times: usize,
    /// In the name of the other end.
    pub as_peer: bool,
    pub oddity: Oddity,
}

impl Default for Send {
    fn default() -> Self {
        Self {
            flags: flag::ACK,
            sequence: None,
            acknowledgment: None,
            data: vec![],
            window: 0xffff,
            urgent: 0,
            ttl: 64,
            timestamp: None,
            options: vec![],
            times: 1,
            as_peer: false,
            oddity: Oddity::default(),
        }
    }
}

/// A part of a payload; parts are joined with `+`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// `out[A..B]`: of the own stream.
    Out(usize, Option<usize>),
    /// `tls[A..B]`: of TLS in it.
    Tls(usize, Option<usize>),
    /// `swap[A..B]`: of TLS in it, with its pairs of bytes in the opposite order: the checksum stays.
    Swap(usize, Option<usize>),
    /// `veil[A..B]`: as many letters.
    Veil(usize, Option<usize>),
    /// `flip[A..B]`: the same with every bit changed.
    Flip(usize, Option<usize>),
    /// `fill*N`: letters.
    Fill(usize),
    /// `zero*N`
    Zero(usize),
    /// `decoy`: a ClientHello of nobody.
    Decoy,
    /// `shello`: a ServerHello of nobody.
    ServerHello,
    /// `open`: the header of a record longer than there may be.
    Open,
    /// `http`: a request in the clear.
    Http,
    /// `hex:…`
    Hex(Vec<u8>),
}

impl Case {
    /// Whether the attacker waits for a SYN.
    pub fn listens(&self) -> bool {
        self.server != self.active
    }

    /// Whether it takes most of a minute.
    pub fn is_slow(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Pause(5000..)))
    }

    /// Every case that is this one without one statement or one record.
    pub fn shorter(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            if case != *self {
                all.push(case);
            }
        };
        for at in 0..self.steps.len() {
            add(&|case| drop(case.steps.remove(at)));
        }
        add(&|case| case.flight.clear());
        for at in 0..self.flight.len() {
            if self.flight.len() > 1 {
                add(&|case| drop(case.flight.remove(at)));
            }
            add(&|case| case.flight[at].count = 1);
            add(&|case| case.flight[at].version = 0x0301);
        }
        add(&|case| case.big = 0);
        add(&|case| case.deaf = false);
        add(&|case| case.lead.clear());
        add(&|case| case.eager = false);
        add(&|case| case.cookies = false);
        add(&|case| case.window = None);
        for (at, step) in self.steps.iter().enumerate() {
            let Step::Send(send) = step else { continue };
            let mut simpler = |change: &dyn Fn(&mut Send)| {
                let mut changed = send.clone();
                change(&mut changed);
                add(&|case| case.steps[at] = Step::Send(changed.clone()));
            };
            simpler(&|it| it.oddity = Oddity::default());
            simpler(&|it| it.window = 0xffff);
            simpler(&|it| it.urgent = 0);
            simpler(&|it| it.timestamp = None);
            simpler(&|it| it.options.clear());
            simpler(&|it| it.data.clear());
            simpler(&|it| it.ttl = 64);
            simpler(&|it| it.as_peer = false);
            simpler(&|it| it.acknowledgment = None);
            simpler(&|it| it.sequence = None);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_shorter_case_once() {
        let case: Case = "flight empty:0900*3 hello:0301; send S badsum; stream".parse().unwrap();
        let shorter: Vec<_> = case.shorter().iter().map(Case::to_string).collect();
        assert!(shorter.contains(&"flight empty:0900*3 hello:0301; stream".to_owned()));
        assert!(shorter.contains(&"send S badsum; stream".to_owned()));
        assert!(shorter.contains(&"flight hello:0301; send S badsum; stream".to_owned()));
        assert!(
            shorter.contains(&"flight empty:0900 hello:0301; send S badsum; stream".to_owned())
        );
        assert!(shorter.contains(&"flight empty:0900*3 hello:0301; send S; stream".to_owned()));
        assert!(shorter.iter().all(|it| *it != case.to_string()));
    }
}
