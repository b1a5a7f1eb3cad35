//! One end's TCP, as a model: how it opens, what it believes, and what it answers (RFC 9293,
//! section 3.10, with RFC 5961), or what Linux does instead.
//!
//! A Linux listener keeps a request, not a connection, until the third segment of a handshake has
//! come: any RST in the window ends it, and a SYN there, and what acknowledges something else is
//! answered for the listener. Otherwise Linux follows the RFC, limits its challenges to one in half
//! a second, and takes a crossed SYN-ACK since 6.11.
//!
//! Data on a SYN are one of the things that stacks treat in their own ways: see [`SynData`].
//!
//! Refuses what decides nothing here: congestion, delayed acknowledgments, timestamps, urgent data
//! (a byte as any other).

use super::packet::{ACK, FIN, Packet, RST, SYN, before};
use super::stream::{Copies, Stream};

/// A sender's numbers for one connection after the other.
const BETWEEN_CONNECTIONS: u32 = 250_000;
/// Linux: `tcp_invalid_ratelimit`.
const CHALLENGE_NS: u64 = 500_000_000;
/// What has not been acknowledged then is given up; Linux does after five, which take a minute.
const SYN_ACKS: u32 = 9;
/// Linux: how many segment sizes a cookie can say (`msstab`), and the one that this peer's has.
const COOKIE_SIZES: u32 = 4;
const COOKIE_MSS: u32 = 2;
/// Linux (`TCP_SYNCOOKIE_PERIOD`, `MAX_SYNCOOKIE_AGE`): how long a cookie is made of one count, and of how many
/// counts one is taken. Without it what a listener answered an hour ago would open a connection.
const COOKIE_PERIOD_NS: u64 = 60_000_000_000;
const COOKIE_PERIODS: u32 = 2;
/// Where nothing limits them, two ends that disagree answer each other for ever.
const CHALLENGES: u32 = 3;

/// Where a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    /// Open, until both FINs are acknowledged.
    Established,
    /// Over; the last acknowledgment may be wanted again.
    TimeWait,
}

/// What becomes of data on a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SynData {
    /// Their sender repeats them (Linux).
    Dropped,
    /// They are acknowledged, and read when the connection is open.
    Taken,
    /// They wait, unacknowledged, until the connection is open (RFC 9293, section 3.10.7.2).
    Queued,
    /// The program has them at once (RFC 7413).
    Read,
}

/// Which TCP this is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) linux: bool,
    /// A SYN-ACK in SYN-RECEIVED completes a simultaneous open.
    pub(super) crossed: bool,
    /// A listener keeps nothing before the third segment (RFC 4987, section 3.6).
    pub(super) cookies: bool,
    pub(super) syn_data: SynData,
    pub(super) copies: Copies,
    pub(super) mss: usize,
    pub(super) scale: Option<u8>,
}

/// One end.
#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) rules: Rules,
    side: usize,
    /// It listens wherever it has no connection.
    pub(super) passive: bool,
    pub(super) state: State,
    /// The SYN was its own.
    active: bool,
    /// How many connections it has begun.
    pub(super) connection: u32,
    /// Resets of open connections that it believed.
    pub(super) resets: u32,
    base: u32,
    initial: u32,
    unacknowledged: u32,
    next: u32,
    /// Behind the last number that was ever sent.
    sent: u32,
    window: u32,
    peer_scale: Option<u8>,
    peer_initial: u32,
    expected: u32,
    /// Data of a SYN that wait, and how many of those the program can read.
    queued: Vec<u8>,
    syn_bytes: usize,
    /// The program's bytes, from `initial + 1` on.
    pub(super) output: Vec<u8>,
    closing: bool,
    /// The peer has finished first.
    is_last: bool,
    fin_received: bool,
    pub(super) input: Stream,
    pub(super) outbox: Vec<Packet>,
    challenged_ns: Option<u64>,
    challenges: u32,
    timeouts: u32,
}

impl Tcp {
    pub(super) fn new(side: usize, passive: bool, base: u32, rules: Rules) -> Self {
        Self {
            rules,
            side,
            passive,
            state: if passive { State::Listen } else { State::Closed },
            active: false,
            connection: 0,
            resets: 0,
            base,
            initial: base,
            unacknowledged: base,
            next: base,
            sent: base,
            window: 0,
            peer_scale: None,
            peer_initial: 0,
            expected: 0,
            queued: Vec::new(),
            syn_bytes: 0,
            output: Vec::new(),
            closing: false,
            is_last: false,
            fin_received: false,
            input: Stream::default(),
            outbox: Vec::new(),
            challenged_ns: None,
            challenges: CHALLENGES,
            timeouts: 0,
        }
    }

    // Getters.

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Established
    }

    /// Whether the program can read what came on a SYN.
    pub(super) fn reads_syn_data(&self) -> bool {
        self.syn_bytes > 0 && (self.is_open() || self.rules.syn_data == SynData::Read)
    }

    /// Whether the peer has everything that was written.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.unacknowledged == self.sent && self.unsent() == 0
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn peer_has_finished(&self) -> bool {
        self.fin_received
    }

    /// What it expects next, where it expects something.
    pub(super) fn expected(&self) -> Option<u32> {
        matches!(self.state, State::SynReceived | State::Established).then_some(self.expected)
    }

    fn receive_window(&self) -> u32 {
        let scale = self.rules.scale.filter(|_| self.peer_scale.is_some()).unwrap_or(0);
        u32::from(u16::MAX) << scale
    }

    /// Place in the stream of the next byte to be sent.
    fn sent_bytes(&self) -> usize {
        self.next.wrapping_sub(self.initial).saturating_sub(1) as usize
    }

    fn unsent(&self) -> usize {
        self.output.len().saturating_sub(self.sent_bytes())
    }

    // Calls of the program, and time.

    /// Opens a connection.
    pub(super) fn connect(&mut self) {
        if !matches!(self.state, State::Closed | State::Listen | State::TimeWait) {
            return;
        }
        let initial = self.next_initial();
        self.begin(initial);
        self.active = true;
        self.state = State::SynSent;
        self.send_syn();
    }

    /// The program will write no more.
    pub(super) fn close(&mut self) {
        if !core::mem::replace(&mut self.closing, true) {
            self.is_last = self.fin_received;
        }
    }

    /// Sends what the program has written, as far as the peer allows it.
    pub(super) fn transmit(&mut self) {
        if self.state != State::Established {
            return;
        }
        loop {
            let at = self.sent_bytes();
            let allowed = self.window.saturating_sub(self.next.wrapping_sub(self.unacknowledged));
            let len = self.unsent().min(self.rules.mss).min(allowed as usize);
            if len == 0 {
                break;
            }
            let data = self.output[at..at + len].to_vec();
            self.send_data(at, data);
        }
        let all = self.output.len() as u32 + 1;
        if self.closing && self.next == self.initial.wrapping_add(all) {
            self.emit(self.next, ACK | FIN);
            self.move_to(self.next.wrapping_add(1));
        }
    }

    /// A retransmission timeout.
    pub(super) fn time_out(&mut self) {
        self.challenges = CHALLENGES;
        self.timeouts += 1;
        match self.state {
            State::SynSent => self.send_syn(),
            State::SynReceived if self.timeouts > SYN_ACKS => self.end(),
            State::SynReceived => self.send_syn_ack(),
            State::Established if self.unacknowledged != self.sent => {
                // Now and then in other segments than before.
                let mss = self.rules.mss;
                if self.timeouts.is_multiple_of(2) {
                    self.rules.mss = (mss / 2).max(1);
                }
                self.next = self.unacknowledged;
                self.transmit();
                self.rules.mss = mss;
                self.probe();
            }
            State::Established => self.probe(),
            State::Closed | State::Listen | State::TimeWait => {}
        }
    }

    /// One byte into a closed window (RFC 9293, section 3.8.6.1).
    fn probe(&mut self) {
        let at = self.sent_bytes();
        if self.unacknowledged == self.next
            && let Some(byte) = self.output.get(at)
        {
            self.send_data(at, vec![*byte]);
        }
    }

    /// Answers may be sent again, where only the model's rule limits them.
    pub(super) fn step(&mut self) {
        self.challenges = CHALLENGES;
    }

    // Segments.

    /// Takes a segment that has arrived.
    pub(super) fn handle(&mut self, it: &Packet, now_ns: u64) {
        match self.state {
            State::Closed => self.refuse(it),
            State::Listen => self.handle_in_listen(it, now_ns),
            State::SynSent => self.handle_in_syn_sent(it),
            State::SynReceived if self.rules.linux && !self.active => {
                self.handle_for_request(it, now_ns);
            }
            State::SynReceived => self.handle_in_syn_received(it, now_ns),
            State::Established => self.handle_in_established(it, now_ns),
            State::TimeWait => self.handle_in_time_wait(it, now_ns),
        }
    }

    /// Section 3.10.7.1.
    fn refuse(&mut self, it: &Packet) {
        if it.has(RST) {
            return;
        }
        if it.has(ACK) {
            return self.emit_at(it.acknowledgment, 0, RST);
        }
        self.emit_at(0, it.end(), RST | ACK);
    }

    /// Section 3.10.7.2.
    fn handle_in_listen(&mut self, it: &Packet, now_ns: u64) {
        if it.has(RST) {
            return;
        }
        if it.has(ACK) {
            let initial = it.acknowledgment.wrapping_sub(1);
            let peer = it.sequence.wrapping_sub(1);
            if !self.rules.cookies || it.has(SYN) || !self.is_cookie(peer, initial, now_ns) {
                return self.emit_at(it.acknowledgment, 0, RST);
            }
            self.begin(initial);
            self.begin_peer(peer, it);
            self.move_to(initial.wrapping_add(1));
            self.establish(it);
            return self.take_data(it);
        }
        if !it.has(SYN) || (self.rules.linux && it.has(FIN)) {
            return;
        }
        if self.rules.cookies {
            let initial = self.cookie(it.sequence, cookie_count(now_ns));
            let mut answer =
                Packet::new(self.side, initial, it.sequence.wrapping_add(1), SYN | ACK);
            answer.scale = self.rules.scale;
            return self.outbox.push(answer);
        }
        let initial = self.next_initial();
        self.begin(initial);
        self.begin_peer(it.sequence, it);
        self.take_syn_data(it);
        self.state = State::SynReceived;
        self.send_syn_ack();
    }

    /// Section 3.10.7.3.
    fn handle_in_syn_sent(&mut self, it: &Packet) {
        let answers = it.has(ACK) && it.acknowledgment == self.initial.wrapping_add(1);
        if it.has(ACK) && !answers {
            if !it.has(RST) {
                self.emit_at(it.acknowledgment, 0, RST);
            }
            return;
        }
        if it.has(RST) {
            if answers {
                self.end();
            }
            return;
        }
        if !it.has(SYN) {
            return;
        }
        self.begin_peer(it.sequence, it);
        self.take_syn_data(it);
        if answers {
            self.establish(it);
            self.acknowledge();
        } else {
            // Both have opened it.
            self.state = State::SynReceived;
            self.send_syn_ack();
        }
    }

    /// `tcp_check_req` of Linux.
    fn handle_for_request(&mut self, it: &Packet, now_ns: u64) {
        if it.flags & (SYN | ACK | RST | FIN) == SYN && it.sequence == self.peer_initial {
            return self.send_syn_ack();
        }
        if it.has(ACK) && it.acknowledgment != self.initial.wrapping_add(1) {
            // The listener's.
            if !it.has(RST) {
                self.emit_at(it.acknowledgment, 0, RST);
            }
            return;
        }
        if !self.is_acceptable(it) {
            if !it.has(RST) {
                self.challenge(now_ns);
            }
            return;
        }
        let own_syn = it.sequence == self.peer_initial;
        if it.has(RST) || (it.has(SYN) && !own_syn) {
            if !it.has(RST) {
                self.refuse(it);
            }
            return self.end();
        }
        if it.has(ACK) {
            self.establish(it);
            self.take_data(it);
        }
    }

    /// Section 3.10.7.4 in SYN-RECEIVED.
    fn handle_in_syn_received(&mut self, it: &Packet, now_ns: u64) {
        let own_syn = it.has(SYN | ACK) && it.end() == self.expected && it.data.is_empty();
        let completes = it.has(ACK) && it.acknowledgment == self.initial.wrapping_add(1);
        if self.active && self.rules.crossed && own_syn && completes && !it.has(RST) {
            self.establish(it);
            return self.acknowledge();
        }
        if !self.check(it, now_ns) {
            return;
        }
        if it.has(SYN) {
            // Of a listener: back to it. Otherwise a challenge (RFC 5961, section 4).
            return if self.active { self.challenge(now_ns) } else { self.end() };
        }
        if !it.has(ACK) {
            return;
        }
        if !completes {
            return self.emit_at(it.acknowledgment, 0, RST);
        }
        self.establish(it);
        self.take_data(it);
    }

    fn handle_in_established(&mut self, it: &Packet, now_ns: u64) {
        if self.rules.linux && it.flags & (ACK | SYN | RST) == 0 {
            return;
        }
        if !self.check(it, now_ns) {
            return;
        }
        if it.has(SYN) {
            return self.challenge(now_ns);
        }
        if !it.has(ACK) {
            return;
        }
        // RFC 5961, section 5.
        let behind = self.unacknowledged.wrapping_sub(it.acknowledgment).cast_signed();
        let taken = self.unacknowledged.wrapping_sub(self.initial).saturating_sub(1);
        let most = if self.rules.linux { taken.min(self.window) } else { self.window.max(1 << 16) };
        if before(self.sent, it.acknowledgment) || i64::from(behind) > i64::from(most) {
            return self.challenge(now_ns);
        }
        if behind <= 0 {
            self.unacknowledged = it.acknowledgment;
            if before(self.next, self.unacknowledged) {
                self.next = self.unacknowledged;
            }
            self.window = u32::from(it.window) << self.send_scale();
        }
        self.take_data(it);
        let fin = self.initial.wrapping_add(self.output.len() as u32 + 2);
        if self.closing && self.fin_received && self.unacknowledged == fin {
            self.state = match (self.is_last, self.passive) {
                (true, true) => State::Listen,
                (true, false) => State::Closed,
                (false, _) => State::TimeWait,
            };
        }
    }

    fn handle_in_time_wait(&mut self, it: &Packet, now_ns: u64) {
        if it.has(RST) {
            return;
        }
        if self.passive && it.flags & (SYN | ACK) == SYN && before(self.expected, it.sequence) {
            // Section 3.6.1.
            self.state = State::Listen;
            return self.handle_in_listen(it, now_ns);
        }
        self.acknowledge();
    }

    /// Sequence number and RST (section 3.10.7.4, first and second); whether to go on.
    fn check(&mut self, it: &Packet, now_ns: u64) -> bool {
        if !self.is_acceptable(it) {
            if !it.has(RST) {
                if it.data.is_empty() { self.challenge(now_ns) } else { self.acknowledge() }
            }
            return false;
        }
        if it.has(RST) {
            if it.sequence == self.expected {
                self.end();
            } else {
                self.challenge(now_ns);
            }
            return false;
        }
        true
    }

    fn is_acceptable(&self, it: &Packet) -> bool {
        let end = self.expected.wrapping_add(self.receive_window());
        let within = |at: u32| !before(at, self.expected) && before(at, end);
        match it.len() {
            0 => within(it.sequence),
            // Linux looks at both ends apart.
            _ if self.rules.linux => !before(it.end(), self.expected) && !before(end, it.sequence),
            _ => within(it.sequence) || within(it.end().wrapping_sub(1)),
        }
    }

    fn take_data(&mut self, it: &Packet) {
        let skip = u32::from(it.has(SYN));
        let offset = it.sequence.wrapping_add(skip).wrapping_sub(self.expected).cast_signed();
        let known = self.input.bytes.len();
        if !it.data.is_empty() && !self.fin_received {
            let room = i64::from(self.receive_window()) - i64::from(offset);
            let len = it.data.len().min(usize::try_from(room).unwrap_or(0));
            let at = known as i64 + i64::from(offset);
            self.input.insert(at, &it.data[..len], self.rules.copies);
            // At most a window.
            self.expected = self.expected.wrapping_add((self.input.bytes.len() - known) as u32);
        }
        let fin_at = it.end().wrapping_sub(1);
        if it.has(FIN) && !self.fin_received && fin_at == self.expected {
            self.fin_received = true;
            self.expected = self.expected.wrapping_add(1);
        }
        if it.len() > 0 {
            self.acknowledge();
        }
    }

    // Changes of state.

    fn next_initial(&self) -> u32 {
        self.base.wrapping_add(self.connection.wrapping_mul(BETWEEN_CONNECTIONS))
    }

    /// What a listener that keeps nothing answers to a SYN in a period.
    fn cookie(&self, peer: u32, count: u32) -> u32 {
        let base = self.base.wrapping_add(count.wrapping_mul(0x3c6e_f35f));
        match self.rules.linux {
            true => base.wrapping_add(peer).wrapping_add(COOKIE_MSS),
            false => base.wrapping_add(peer.wrapping_mul(0x9e37_79b1) >> 12),
        }
    }

    /// Whether it takes this for its answer. Linux (`__cookie_v4_check`): any of the segment sizes that
    /// the lowest bits may say; and both numbers may be off by the same.
    fn is_cookie(&self, peer: u32, initial: u32, now_ns: u64) -> bool {
        let now = cookie_count(now_ns);
        (0..COOKIE_PERIODS).filter_map(|age| now.checked_sub(age)).any(|count| {
            let cookie = self.cookie(peer, count);
            match self.rules.linux {
                true => initial.wrapping_sub(cookie.wrapping_sub(COOKIE_MSS)) < COOKIE_SIZES,
                false => initial == cookie,
            }
        })
    }

    fn begin(&mut self, initial: u32) {
        self.connection += 1;
        self.timeouts = 0;
        self.active = false;
        self.initial = initial;
        self.unacknowledged = initial;
        self.next = initial;
        self.sent = initial;
        self.peer_scale = None;
        self.expected = 0;
        self.queued.clear();
        self.syn_bytes = 0;
        self.output.clear();
        self.closing = false;
        self.is_last = false;
        self.fin_received = false;
        self.input = Stream::default();
    }

    fn begin_peer(&mut self, initial: u32, it: &Packet) {
        self.peer_initial = initial;
        self.expected = initial.wrapping_add(1);
        self.peer_scale = it.scale.filter(|_| self.rules.scale.is_some());
        self.window = u32::from(it.window);
    }

    fn take_syn_data(&mut self, it: &Packet) {
        match self.rules.syn_data {
            SynData::Dropped => {}
            SynData::Queued => self.queued.clone_from(&it.data),
            SynData::Taken | SynData::Read => self.insert_syn_data(&it.data),
        }
    }

    fn insert_syn_data(&mut self, data: &[u8]) {
        self.input.insert(0, data, self.rules.copies);
        self.syn_bytes += data.len();
        // Less than a packet.
        self.expected = self.expected.wrapping_add(data.len() as u32);
    }

    fn establish(&mut self, it: &Packet) {
        self.state = State::Established;
        self.unacknowledged = it.acknowledgment;
        self.next = it.acknowledgment;
        let scale = if it.has(SYN) { 0 } else { self.send_scale() };
        self.window = u32::from(it.window) << scale;
        let queued = core::mem::take(&mut self.queued);
        if !queued.is_empty() {
            self.insert_syn_data(&queued);
            self.acknowledge();
        }
    }

    fn send_scale(&self) -> u8 {
        self.peer_scale.unwrap_or(0).min(14)
    }

    /// A reset, or the end of an attempt.
    fn end(&mut self) {
        self.resets += u32::from(self.state == State::Established);
        self.state = if self.passive { State::Listen } else { State::Closed };
    }

    // Sending.

    fn send_syn(&mut self) {
        let mut syn = Packet::new(self.side, self.initial, 0, SYN);
        syn.scale = self.rules.scale;
        self.outbox.push(syn);
        self.move_to(self.initial.wrapping_add(1));
    }

    fn send_syn_ack(&mut self) {
        let mut answer = Packet::new(self.side, self.initial, self.expected, SYN | ACK);
        // RFC 7323, section 2.2; who has sent a SYN without it does not offer it later.
        answer.scale = self.rules.scale.filter(|_| self.active || self.peer_scale.is_some());
        self.outbox.push(answer);
        self.move_to(self.initial.wrapping_add(1));
    }

    fn send_data(&mut self, at: usize, data: Vec<u8>) {
        let len = data.len() as u32;
        let mut packet = Packet::new(self.side, self.next, self.expected, ACK);
        packet.data = data;
        packet.place = Some((self.connection, at));
        self.outbox.push(packet);
        self.move_to(self.next.wrapping_add(len));
    }

    fn acknowledge(&mut self) {
        self.emit(self.next, ACK);
    }

    /// An acknowledgment that the peer has not asked for (RFC 5961).
    fn challenge(&mut self, now_ns: u64) {
        let quiet = self.challenged_ns.is_none_or(|it| now_ns >= it + CHALLENGE_NS);
        if self.challenges == 0 || (self.rules.linux && !quiet) {
            return;
        }
        self.challenges -= 1;
        self.challenged_ns = Some(now_ns);
        self.acknowledge();
    }

    fn emit(&mut self, sequence: u32, flags: u8) {
        self.emit_at(sequence, self.expected, flags);
    }

    fn emit_at(&mut self, sequence: u32, acknowledgment: u32, flags: u8) {
        self.outbox.push(Packet::new(self.side, sequence, acknowledgment, flags));
    }

    fn move_to(&mut self, next: u32) {
        self.next = next;
        if before(self.sent, next) {
            self.sent = next;
        }
    }
}

/// How many periods of cookies have passed.
fn cookie_count(now_ns: u64) -> u32 {
    (now_ns / COOKIE_PERIOD_NS) as u32
}
