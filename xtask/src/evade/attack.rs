//! One attack at work: a script, a small TCP of our own below it, TLS inside.
//!
//! The TCP does what a connection over a lossless link needs, and no more: it puts what comes in
//! order, acknowledges it, and sends again what nobody acknowledges. It refuses windows, options
//! and congestion: the link is a testbed's, and the script is what matters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::script::{Case, Event, Part, Place, Send, Step, Until};
use super::tls::{self, Session, Settings};
use super::wire::{self, Mac, Seen, Segment, flag};

const SEGMENT_BYTES: usize = 1400;
const IN_FLIGHT_BYTES: usize = 40_000;
const RETRANSMIT: Duration = Duration::from_millis(300);
/// Nothing in order for so long is the end.
const IDLE: Duration = Duration::from_millis(1000);
/// And of a client, which may be a process that is still starting.
const CLIENT_IDLE: Duration = Duration::from_millis(2000);
/// Nobody connecting for so long is the end.
const NOBODY: Duration = Duration::from_secs(8);
/// Bytes out of order that are kept.
const MAX_AHEAD: i32 = 1 << 20;

/// How an attack ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Application data came from the peer.
    Response(String),
    /// The peer acknowledged everything, response and end.
    Served,
    /// Reset by somebody.
    Reset,
    /// The peer's stream ended without a response.
    Closed,
    /// TLS failed.
    Refused(String),
    /// Nothing came any more.
    Silent,
}

impl Outcome {
    /// Whether the attacker got what it wanted.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Response(_) | Self::Served)
    }
}

/// See the module.
pub struct Attack {
    case: Arc<Case>,
    settings: Settings,
    name: String,
    pub local: SocketAddr,
    /// Unknown until the first SYN where the attacker listens.
    pub remote: Option<SocketAddr>,
    macs: (Mac, Mac),
    session: Option<Session>,

    iss: u32,
    /// Bytes of our stream, and how many of them were sent and acknowledged.
    out: Vec<u8>,
    sent: usize,
    acked: usize,
    syn_sent: bool,
    /// The peer has acknowledged our SYN.
    synced: bool,
    fin_sent: bool,
    fin_acked: bool,

    /// Where TLS begins in `out`.
    tls_at: usize,
    /// Whether it has begun.
    tls_begun: bool,

    irs: Option<u32>,
    /// Acknowledgment and sequence numbers of the answers to SYNs.
    answers: Vec<(u32, u32)>,
    rcv_next: u32,
    ahead: BTreeMap<u32, Vec<u8>>,
    peer_fin: bool,
    reset: bool,
    failure: Option<String>,

    step: usize,
    /// The current step has begun.
    begun: Option<Instant>,
    /// What happened since the last segment of the script.
    happened: Vec<Event>,
    owes_ack: bool,
    retransmit_at: Instant,
    last_progress: Instant,
    last_activity: Instant,
    due: Instant,
    outcome: Option<Outcome>,
}

impl Attack {
    /// An attack that has not begun. `iss` may be any number; macs: own, peer's.
    pub fn new(
        case: Arc<Case>,
        settings: &Settings,
        name: String,
        (local, remote): (SocketAddr, Option<SocketAddr>),
        macs: (Mac, Mac),
        iss: u32,
        now: Instant,
    ) -> Self {
        let mut attack = Self {
            case,
            settings: settings.clone(),
            name,
            local,
            remote,
            macs,
            session: None,
            iss,
            out: vec![],
            sent: 0,
            acked: 0,
            syn_sent: false,
            synced: false,
            fin_sent: false,
            fin_acked: false,
            tls_at: 0,
            tls_begun: false,
            irs: None,
            answers: vec![],
            rcv_next: 0,
            ahead: BTreeMap::new(),
            peer_fin: false,
            reset: false,
            failure: None,
            step: 0,
            begun: None,
            happened: vec![],
            owes_ack: false,
            retransmit_at: now,
            last_progress: now,
            last_activity: now,
            due: now,
            outcome: None,
        };
        attack.begin();
        attack
    }

    /// When it wants to be polled again.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// When something was sent or came in.
    pub fn last_activity(&self) -> Instant {
        self.last_activity
    }

    /// How it ended.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Starts a connection from the beginning.
    fn begin(&mut self) {
        self.out = self.case.lead.clone();
        (self.sent, self.acked) = (0, 0);
        (self.syn_sent, self.synced, self.fin_sent, self.fin_acked) = (false, false, false, false);
        (self.irs, self.rcv_next) = (None, 0);
        self.answers.clear();
        self.ahead.clear();
        (self.peer_fin, self.reset, self.owes_ack) = (false, false, false);
        self.failure = None;
        self.happened.clear();
        match Session::new(&self.settings, &self.case, &self.name) {
            Ok(session) => {
                self.session = Some(session);
                self.tls_begun = false;
                self.say();
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Goes on as if a connection with the same numbers had just been opened, without the dialog of a front.
    fn reopen(&mut self) {
        let irs = self.irs;
        let with_front = Arc::clone(&self.case);
        self.case = Arc::new(Case { front: None, ..Case::clone(&with_front) });
        self.begin();
        self.case = with_front;
        if let Some(irs) = irs {
            (self.irs, self.rcv_next) = (Some(irs), irs.wrapping_add(1));
        }
    }

    /// What the session has to say becomes part of the stream.
    fn say(&mut self) {
        let Some(session) = &mut self.session else { return };
        self.out.extend(session.dialog_output());
        if session.is_in_dialog() {
            return;
        }
        if !self.tls_begun {
            (self.tls_at, self.tls_begun) = (self.out.len(), true);
        }
        self.out.extend(session.output());
    }

    /// Takes a segment from the peer.
    pub fn handle_segment(&mut self, seen: &Seen<'_>, now: Instant) {
        self.due = now;
        self.last_activity = now;
        if seen.flags & flag::RST != 0 {
            let exact = self.irs.is_none_or(|_| {
                let ahead = seen.sequence.wrapping_sub(self.rcv_next).cast_signed();
                (0..1 << 16).contains(&ahead)
            });
            if exact {
                self.happened.push(Event::Rst);
                self.reset = true;
            }
            return;
        }
        if seen.flags & flag::SYN != 0 {
            self.handle_syn(seen);
        }
        if self.irs.is_none() {
            return;
        }
        if seen.flags & flag::ACK != 0 {
            self.handle_ack(seen.acknowledgment, now);
        }
        let syn = u32::from(seen.flags & flag::SYN != 0);
        self.handle_payload(seen.sequence.wrapping_add(syn), seen, now);
    }

    fn handle_syn(&mut self, seen: &Seen<'_>) {
        let answers = seen.flags & flag::ACK != 0;
        self.happened.push(if answers { Event::SynAck } else { Event::Syn });
        if answers {
            self.answers.push((seen.acknowledgment, seen.sequence));
        }
        if self.irs.is_none() {
            if answers && !self.case.listens() {
                // Whichever of several SYNs the peer chose is the connection's.
                let taken = seen.acknowledgment.wrapping_sub(self.iss.wrapping_add(1));
                if taken as usize > self.out.len() {
                    self.iss = seen.acknowledgment.wrapping_sub(1);
                }
            }
            self.irs = Some(seen.sequence);
            self.rcv_next = seen.sequence.wrapping_add(1);
        }
        // Where the other side speaks first, nothing else brings it.
        self.owes_ack = true;
    }

    fn handle_ack(&mut self, acknowledgment: u32, now: Instant) {
        self.happened.push(Event::Ack);
        let count = acknowledgment.wrapping_sub(self.iss.wrapping_add(1)) as usize;
        if count > self.out.len() + usize::from(self.fin_sent) {
            return;
        }
        self.synced = true;
        self.fin_acked |= self.fin_sent && count > self.out.len();
        let count = count.min(self.out.len());
        if count > self.acked {
            self.acked = count;
            self.sent = self.sent.max(count);
            self.retransmit_at = now + RETRANSMIT;
            self.last_progress = now;
        }
    }

    fn handle_payload(&mut self, sequence: u32, seen: &Seen<'_>, now: Instant) {
        let fin = seen.flags & flag::FIN != 0;
        if seen.payload.is_empty() && !fin {
            return;
        }
        self.owes_ack = true;
        let ahead = sequence.wrapping_sub(self.rcv_next).cast_signed();
        if !(-MAX_AHEAD..MAX_AHEAD).contains(&ahead) {
            return;
        }
        let mut bytes = seen.payload.to_vec();
        if fin {
            // Kept as a byte of its own, so that it waits for its turn.
            bytes.push(0);
        }
        let end = sequence.wrapping_add(bytes.len() as u32);
        self.ahead.insert(sequence, bytes);
        let fin_at = fin.then_some(end);
        loop {
            let next = self.ahead.iter().find_map(|(sequence, bytes)| {
                let skip = self.rcv_next.wrapping_sub(*sequence);
                (skip.cast_signed() >= 0).then_some((*sequence, (skip as usize) < bytes.len()))
            });
            let Some((at, is_new)) = next else { break };
            let Some(bytes) = self.ahead.remove(&at) else { break };
            if !is_new {
                continue;
            }
            let skip = self.rcv_next.wrapping_sub(at) as usize;
            let end = at.wrapping_add(bytes.len() as u32);
            let mut fresh = &bytes[skip..];
            if fin_at == Some(end) {
                self.peer_fin = true;
                fresh = &fresh[..fresh.len() - 1];
            }
            self.rcv_next = end;
            self.last_progress = now;
            if !fresh.is_empty() {
                self.happened.push(Event::Data);
            }
            self.feed(fresh);
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.session else { return };
        if let Err(error) = session.input(bytes) {
            self.failure.get_or_insert(error);
        }
        self.say();
    }

    /// Goes on with the script. Frames to send are appended.
    pub fn poll(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        let case = Arc::clone(&self.case);
        let before = frames.len();
        if self.remote.is_none() {
            // Nobody has connected yet.
            self.due = now + Duration::from_millis(20);
            if now >= self.last_progress + NOBODY {
                self.outcome = Some(Outcome::Silent);
            }
            return;
        }
        while self.outcome.is_none() {
            let begun = *self.begun.get_or_insert(now);
            let done = match case.steps.get(self.step) {
                Some(Step::Send(send)) => {
                    self.happened.clear();
                    self.send(send, frames);
                    true
                }
                Some(Step::Pause(time)) => self.wait_until(begun, *time, now),
                Some(Step::Wait(event, time)) => {
                    self.has_happened(*event) || self.wait_until(begun, *time, now)
                }
                Some(Step::Choose(number)) => {
                    if let Some((acknowledgment, sequence)) = self.answers.get(*number) {
                        self.iss = acknowledgment.wrapping_sub(1);
                        self.irs = Some(*sequence);
                        self.rcv_next = sequence.wrapping_add(1);
                    }
                    true
                }
                Some(Step::Skip(peers, own)) => {
                    // The modulus of sequence numbers.
                    self.iss = self.iss.wrapping_add(*own as u32);
                    self.irs = self.irs.map(|irs| irs.wrapping_add(*peers as u32));
                    self.rcv_next = self.rcv_next.wrapping_add(*peers as u32);
                    true
                }
                Some(Step::Again) => {
                    self.iss = self.iss.wrapping_add(1_000_003);
                    self.begin();
                    true
                }
                Some(Step::Reopen) => {
                    self.reopen();
                    true
                }
                Some(Step::Stream(until)) => {
                    if begun == now {
                        self.sent = self.acked;
                        self.owes_ack = self.irs.is_some();
                        self.retransmit_at = now;
                        self.last_progress = now;
                    }
                    self.stream(*until, now, frames)
                }
                None => {
                    self.finish(now, begun);
                    false
                }
            };
            if !done {
                break;
            }
            self.step += 1;
            self.begun = None;
        }
        if frames.len() > before {
            self.last_activity = now;
        }
        let tidy = match self.outcome {
            None => false,
            // A reset would take from the client what its kernel has and it has not read.
            Some(Outcome::Served) => false,
            Some(_) => self.irs.is_some() && !self.case.third,
        };
        if tidy {
            // So that the peer's memory is free again.
            self.segment(flag::RST | flag::ACK, self.sent, &[], frames);
        }
    }

    fn wait_until(&mut self, begun: Instant, time: u64, now: Instant) -> bool {
        self.due = begun + Duration::from_millis(time);
        now >= self.due
    }

    fn has_happened(&self, event: Event) -> bool {
        match event {
            Event::SynAck => self.irs.is_some() && !self.case.listens() || self.seen(event),
            Event::Syn => self.irs.is_some() && self.case.listens() || self.seen(event),
            Event::End => self.peer_fin || self.reset,
            _ => self.seen(event),
        }
    }

    fn seen(&self, event: Event) -> bool {
        self.happened.contains(&event)
    }

    /// A script that ends without a stream: what came, came.
    fn finish(&mut self, now: Instant, begun: Instant) {
        self.judge(now);
        if self.outcome.is_none() && self.wait_until(begun, 100, now) {
            self.outcome = Some(Outcome::Silent);
        }
    }

    fn judge(&mut self, now: Instant) {
        let Some(session) = &self.session else {
            self.outcome = Some(Outcome::Refused(self.failure.clone().unwrap_or_default()));
            return;
        };
        let done = self.acked == self.out.len();
        let outcome = if !self.case.server && session.plaintext.len() >= 8 {
            let text = String::from_utf8_lossy(&session.plaintext).into_owned();
            Outcome::Response(text.lines().next().unwrap_or_default().to_owned())
        } else if self.case.server && session.has_answered() && done && self.fin_acked {
            Outcome::Served
        } else if self.reset && !self.case.deaf {
            Outcome::Reset
        } else if let Some(failure) = &self.failure {
            Outcome::Refused(failure.clone())
        } else if self.peer_fin {
            Outcome::Closed
        } else if now >= self.last_progress + self.idle() {
            Outcome::Silent
        } else {
            return;
        };
        self.outcome = Some(outcome);
    }

    fn idle(&self) -> Duration {
        if self.case.server { CLIENT_IDLE } else { IDLE }
    }

    /// The ordinary endpoint. True when it came as far as asked.
    fn stream(&mut self, until: Until, now: Instant, frames: &mut Vec<Vec<u8>>) -> bool {
        self.judge(now);
        if self.outcome.is_some() {
            return false;
        }
        self.due = self.last_progress + self.idle();
        if self.irs.is_none() {
            if !self.case.listens() {
                if now >= self.retransmit_at {
                    self.syn(flag::SYN, frames);
                    self.retransmit_at = now + RETRANSMIT;
                }
                self.due = self.due.min(self.retransmit_at);
            }
            return false;
        }
        if self.case.listens() && !self.syn_sent {
            self.syn(flag::SYN | flag::ACK, frames);
            self.owes_ack = false;
        }
        let connected = !self.case.listens() || self.synced;
        let before = self.sent;
        if connected {
            if now >= self.retransmit_at && self.acked < self.sent {
                self.sent = self.acked;
            }
            let stop = match until {
                Until::Connected => self.sent,
                Until::Dialog if self.tls_begun => self.tls_at,
                _ => self.out.len(),
            };
            self.transmit(stop, now, frames);
        }
        if self.owes_ack {
            if self.sent == before {
                self.segment(flag::ACK, self.sent, &[], frames);
            }
            self.owes_ack = false;
        }
        if self.acked < self.sent {
            self.due = self.due.min(self.retransmit_at);
        }
        match until {
            Until::Connected => connected,
            Until::Dialog => self.tls_begun && self.acked >= self.tls_at,
            Until::Handshake => self.session.as_ref().is_some_and(|it| !it.is_handshaking()),
            Until::End => false,
        }
    }

    /// Sends the stream up to there.
    fn transmit(&mut self, stop: usize, now: Instant, frames: &mut Vec<Vec<u8>>) {
        while self.sent < stop && self.sent - self.acked < IN_FLIGHT_BYTES {
            if self.sent == self.acked {
                self.retransmit_at = now + RETRANSMIT;
            }
            let end = (self.sent + SEGMENT_BYTES).min(stop);
            let bytes = self.out[self.sent..end].to_vec();
            self.segment(flag::ACK | flag::PSH, self.sent, &bytes, frames);
            self.sent = end;
        }
        let answered = self.session.as_ref().is_some_and(Session::has_answered);
        if self.case.server && answered && self.sent == self.out.len() && !self.fin_sent {
            self.segment(flag::FIN | flag::ACK, self.sent, &[], frames);
            self.fin_sent = true;
        }
    }

    fn syn(&mut self, flags: u8, frames: &mut Vec<Vec<u8>>) {
        let window = self.case.window.unwrap_or(0xffff);
        let send = Send { flags, window, ..Send::default() };
        self.send(&send, frames);
    }

    fn segment(&self, flags: u8, at: usize, payload: &[u8], frames: &mut Vec<Vec<u8>>) {
        let Some(remote) = self.remote else { return };
        let segment = Segment {
            source: self.local,
            destination: remote,
            sequence: self.iss.wrapping_add(1).wrapping_add(at as u32),
            acknowledgment: self.rcv_next,
            flags,
            window: self.case.window.unwrap_or(0xffff),
            urgent: 0,
            options: &[],
            payload,
            ttl: 64,
            oddity: super::wire::Oddity::default(),
        };
        frames.extend(wire::frames(&segment, self.macs.0, self.macs.1));
    }

    /// A segment of the script.
    fn send(&mut self, send: &Send, frames: &mut Vec<Vec<u8>>) {
        let Some(remote) = self.remote else { return };
        let is_syn = send.flags & flag::SYN != 0;
        // In the peer's name, both number spaces change places.
        let own = self.iss.wrapping_add(1);
        let peers = self.irs.map_or(0, |irs| irs.wrapping_add(1));
        let (base, next, other_base, other_next) = if send.as_peer {
            (peers, self.rcv_next, own, own.wrapping_add(self.sent as u32))
        } else {
            (own, own.wrapping_add(self.acked.max(self.sent) as u32), peers, self.rcv_next)
        };
        let resolve = |place: Place, base: u32, next: u32| match place {
            // The modulus of sequence numbers.
            Place::At(at) => base.wrapping_add(at as u32),
            Place::Tls(at) => base.wrapping_add(self.tls_at as u32).wrapping_add(at as u32),
            Place::Next(offset) => next.wrapping_add(offset as u32),
        };
        let usual = if is_syn { Place::At(-1) } else { Place::Next(0) };
        let sequence = resolve(send.sequence.unwrap_or(usual), base, next);
        let acknowledgment = match send.acknowledgment {
            Some(place) => resolve(place, other_base, other_next),
            None if send.flags & flag::ACK != 0 => other_next,
            None => 0,
        };
        let mut options = send.options.clone();
        if is_syn && options.is_empty() {
            options.extend([2, 4, 5, 0x78]);
        }
        if let Some(value) = send.timestamp {
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend([0; 4]);
        }
        let payload = self.payload(&send.data);
        let (source, destination) =
            if send.as_peer { (remote, self.local) } else { (self.local, remote) };
        // Longer ones than a frame takes are cut like any other data.
        let all = (0..send.times).flat_map(|time| {
            let base = time * payload.len();
            pieces(&payload).enumerate().map(move |(at, piece)| (base + at * SEGMENT_BYTES, piece))
        });
        for (at, piece) in all {
            let segment = Segment {
                source,
                destination,
                sequence: sequence.wrapping_add(at as u32),
                acknowledgment,
                flags: send.flags,
                window: send.window,
                urgent: send.urgent,
                options: &options,
                payload: piece,
                ttl: send.ttl,
                oddity: send.oddity,
            };
            // Towards the peer, whoever is named as the sender: the attacker has one side only.
            frames.extend(wire::frames(&segment, self.macs.0, self.macs.1));
        }
        self.syn_sent |= is_syn && !send.as_peer;
    }

    fn payload(&self, parts: &[Part]) -> Vec<u8> {
        let slice = |from: usize, to: Option<usize>| {
            let to = to.unwrap_or(self.out.len()).min(self.out.len());
            &self.out[from.min(to)..to]
        };
        let tls = |from: usize, to: Option<usize>| {
            slice(self.tls_at + from, to.map(|to| self.tls_at + to))
        };
        let mut bytes = Vec::new();
        for part in parts {
            match part {
                Part::Out(from, to) => bytes.extend(slice(*from, *to)),
                Part::Tls(from, to) => bytes.extend(tls(*from, *to)),
                Part::Swap(from, to) => {
                    bytes.extend(tls(*from, *to).chunks(2).rev().flatten());
                }
                Part::Veil(from, to) => bytes.extend(tls(*from, *to).iter().map(|_| b'x')),
                Part::Flip(from, to) => bytes.extend(slice(*from, *to).iter().map(|it| !it)),
                Part::Fill(count) => bytes.extend(std::iter::repeat_n(b'x', *count)),
                Part::Zero(count) => bytes.extend(std::iter::repeat_n(0, *count)),
                Part::Decoy => bytes.extend(tls::decoy()),
                Part::ServerHello => bytes.extend(tls::server_hello()),
                Part::Open => bytes.extend([0x17, 3, 3, 0x41, 0]),
                Part::Http => bytes.extend(b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n"),
                Part::Hex(hex) => bytes.extend(hex),
            }
        }
        bytes
    }
}

/// One empty piece of nothing.
fn pieces(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let empty = payload.is_empty().then_some(payload);
    empty.into_iter().chain(payload.chunks(SEGMENT_BYTES))
}
