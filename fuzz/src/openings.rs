//! How connections begin, inline: the engine between two ends that are models of TCP and TLS, with
//! somebody hostile, and a network.
//!
//! The input says who is hostile: the end on side 0 (the TLS client), the one on side 1 (the TLS
//! server), a third party on one of the sides, who knows nobody's numbers, or nobody. Honest ends
//! send what their TCP and their program would; hostile ones whatever the input says, in frames of
//! which some die behind the engine. In the end a hostile peer goes on as well as anybody could, from
//! where the honest one stands. Claims, after each operation:
//! * without keys, and where policy lets nothing pass unseen, no record that an honest program writes
//!   under application keys is forwarded whole, and none reaches an honest program;
//! * with keys, and a handler that resets sessions for a pattern, no record with the pattern does;
//! * where policy lets nothing pass unseen, data pass only behind numbers that both ends have proven, and
//!   fragments that one receiver can put together have left the engine together;
//! * no honest program can read what came on a SYN;
//! * what packet_path claims of counters, held frames and memory;
//!
//! and in the end, where both ends are honest and policy permits it: the connection opens within a
//! few rounds, whatever a third party has sent and the network has done, and all bytes arrive.
//!
//! Refuses urgent data, options and fragments of honest ends, which other targets and tests have.

mod app;
mod hostile;
mod network;
mod packet;
mod pieces;
mod proof;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;

use mmtls_engine::{Cleartext, Config, Policy};

use crate::input::Input;
use network::{Guard, Net};
use stream::Copies;
use tcp::{Rules, State, SynData, Tcp};

/// So that every run is short.
const MAX_STEPS: usize = 60;
/// Rounds of retransmissions in which honest ends must come to their end.
const ROUNDS: usize = 40;
/// Timeouts of honest ends before that: fewer than make them give up.
const PATIENCE: u32 = 6;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Initial sequence numbers of the two models: both wrap somewhere.
const BASES: [u32; 2] = [0xffff_ff80, 0x7fff_ff00];

/// Input: who is hostile, keys, policies, rules; then operations.
pub fn openings(data: &[u8]) {
    let _ = drive(data);
}

/// Who sends what no model would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hostile {
    /// The end on this side.
    End(usize),
    /// Somebody beside the end on this side.
    Third(usize),
    Nobody,
}

/// What the front of an input has chosen.
#[derive(Clone, Copy, Debug)]
struct Choices {
    hostile: Hostile,
    keys: bool,
    /// A handler resets sessions for the pattern, which the client's record holds, or the server's.
    pattern: Option<usize>,
    policy: Policy,
    /// Who sends the first SYN, if it is honest.
    opener: usize,
    rules: [Rules; 2],
    tls_ports: bool,
    /// Which form of a ClientHello a hostile client sends.
    form: usize,
    /// The first connection has said [`app::CLEAR_LEN`] bytes of another protocol each way before the
    /// operations begin: from there on TLS is looked for in another way.
    clear: bool,
    /// What is in the clear is shown to the handler, and so followed in order.
    shows: bool,
}

impl Choices {
    fn read(input: &mut Input<'_>) -> Self {
        let [who, how, what] = [input.u8(), input.u8(), input.u8()];
        let hostile = match who & 3 {
            side @ (0 | 1) => Hostile::End(usize::from(side)),
            2 => Hostile::Third(usize::from(what >> 5 & 1)),
            _ => Hostile::Nobody,
        };
        let rules = |linux: bool| Rules {
            linux,
            crossed: how & 0x10 == 0,
            // Two honest ends may lose a connection to them: the first acknowledgment counts alone.
            cookies: how & 0x20 != 0 && matches!(hostile, Hostile::End(_)),
            syn_data: match what >> 6 {
                1 => SynData::Queued,
                2 => SynData::Read,
                _ if linux => SynData::Dropped,
                _ => SynData::Taken,
            },
            copies: [Copies::First, Copies::Latest, Copies::Linux, Copies::Linux]
                [usize::from(how >> 2 & 3)],
            mss: [1400, 536, 100, 40][usize::from(what & 3)],
            scale: (how & 0x80 != 0).then_some(2),
        };
        let clear = who & 0x0c == 0x08;
        Self {
            hostile,
            keys: who & 4 != 0,
            pattern: (who & 0x0c == 0x0c).then_some(usize::from(who >> 4 & 1)),
            policy: [Policy::Reset, Policy::Reset, Policy::Drop, Policy::Bypass]
                [usize::from(who >> 5 & 3)],
            opener: usize::from(who >> 7),
            rules: [rules(how & 1 == 0), rules(how & 2 == 0)],
            // On a port of TLS nothing else passes.
            tls_ports: how & 0x40 != 0 && !clear,
            form: usize::from(what >> 2 & 7),
            clear,
            shows: who & 0x10 != 0 && who & 0x0c != 0x0c,
        }
    }

    fn guard(&self) -> Guard {
        let strict = matches!(self.policy, Policy::Reset | Policy::Drop);
        match (self.keys, self.pattern) {
            (false, _) if strict => Guard::Everything,
            (true, Some(_)) if strict => Guard::Pattern,
            _ => Guard::Nothing,
        }
    }

    /// Whether everything that honest ends say must arrive.
    fn is_free(&self) -> bool {
        let followed = self.keys && self.pattern.is_none();
        let passes = !self.keys && self.policy == Policy::Bypass;
        // Of whoever answered the SYN segments pass in any order in the clear: a ClientHello whose first
        // one was lost is missed there, and its answer shows it.
        let in_order = !self.clear || self.opener == 0 || self.shows;
        !matches!(self.hostile, Hostile::End(_)) && (followed || passes) && in_order
    }

    fn config(&self) -> Config {
        let mut config = Config::new(self.policy);
        config.mid_stream_grace_ns = 0;
        config.tell_hellos = true;
        config.key_senders = mmtls_engine::KeySenders::ANY;
        if !self.tls_ports {
            config.tls_ports.clear();
        }
        network::limit(&mut config, self.clear);
        if self.shows {
            config.cleartext = Cleartext::FromBeginning;
        }
        if !matches!(self.hostile, Hostile::End(_)) {
            // Longer than the network keeps honest ends from talking.
            config.limits.opening_timeout_ns = 200 * SECOND;
            config.limits.stall_timeout_ns = SECOND / 2;
        }
        config
    }
}

/// Everything, and what the input does to it.
struct World {
    choices: Choices,
    net: Net,
    attacker: hostile::Attacker,
    waited_ns: u64,
    timeouts: u32,
}

/// Runs an input; how many application records honest programs have read.
fn drive(data: &[u8]) -> usize {
    let mut input = Input::new(data);
    let choices = Choices::read(&mut input);
    let mut world = World::new(choices);
    if choices.clear {
        world.speak_in_the_clear();
    }
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.net.check();
    }
    world.end();
    let read = world.net.ends.iter().flatten().filter(|it| !it.app.got.is_empty()).count();
    world.net.finish();
    read
}

impl World {
    fn new(choices: Choices) -> Self {
        let ends = [0, 1].map(|side: usize| {
            let honest = choices.hostile != Hostile::End(side);
            let passive = side != choices.opener;
            let tcp = Tcp::new(side, passive, BASES[side], choices.rules[side]);
            let pattern = choices.pattern == Some(side);
            honest.then(|| network::End::new(tcp, side == 0, pattern, choices.clear))
        });
        let net = Net::new(choices.config(), choices.guard(), choices.keys, ends);
        Self { choices, net, attacker: hostile::Attacker::new(choices), waited_ns: 0, timeouts: 0 }
    }

    /// The connection opens, and both ends say what no TLS is, as honest ones do; no TLS program has
    /// begun when this returns.
    fn speak_in_the_clear(&mut self) {
        const HARMLESS: u8 = 0x20;
        self.net.begin_step(0xfe);
        let mss = self.net.ends.each_ref().map(|end| end.as_ref().map(|it| it.tcp.rules.mss));
        self.net.ends.iter_mut().flatten().for_each(|end| end.tcp.rules.mss = app::CLEAR_STEP);
        for _ in 0..ROUNDS {
            let spoken = self.net.ends.iter().flatten().all(|end| end.app.has_spoken());
            match self.choices.hostile {
                Hostile::End(side) if spoken => self.attacker.acknowledge(&mut self.net, side),
                Hostile::End(side) => self.attacker.go_on(&mut self.net, side, HARMLESS),
                _ => self.honest(0),
            }
            self.net.settle(network::MANY);
            let acknowledged = |end: &network::End| end.tcp.is_acknowledged();
            if spoken && self.net.ends.iter().flatten().all(acknowledged) {
                break;
            }
        }
        for (end, mss) in self.net.ends.iter_mut().zip(mss) {
            if let (Some(end), Some(mss)) = (end, mss) {
                end.tcp.rules.mss = mss;
                end.app.begin_tls();
            }
        }
        self.net.check();
    }

    /// Low four bits: what; 0x40: nothing is delivered yet; 0x80: it dies behind the engine.
    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.u8();
        self.net.begin_step(operation);
        match (operation & 0x0f, self.choices.hostile) {
            (0, _) => self.net.settle(usize::from(operation >> 4 & 3)),
            (9, _) => self.wait(operation >> 4 & 7),
            (10, _) => self.honest(operation >> 4 & 3),
            (11, _) | (_, Hostile::Nobody) => self.disturb(operation, input.u8()),
            (_, Hostile::End(side)) => {
                self.attacker.act(&mut self.net, side, operation, input);
            }
            (_, Hostile::Third(port)) => {
                self.attacker.forge(&mut self.net, port, operation, input);
            }
        }
        if operation & 0x40 == 0 {
            self.net.settle(network::MANY);
        }
    }

    /// Time passes: not so much that honest ends would have given up.
    fn wait(&mut self, which: u8) {
        let patient = !matches!(self.choices.hostile, Hostile::End(_));
        let times = [1, 499, 501, 1000, 11_000, 31_000, 200_000, 4_000_000];
        let which = if patient { which & 3 } else { which };
        let ns = times[usize::from(which)] * MS;
        if patient && self.waited_ns > 60 * SECOND {
            return;
        }
        self.waited_ns += ns;
        self.net.wait(ns);
        if ns >= SECOND {
            self.time_out();
        }
    }

    fn time_out(&mut self) {
        self.timeouts += 1;
        if self.timeouts <= PATIENCE || matches!(self.choices.hostile, Hostile::End(_)) {
            self.net.time_out();
        }
    }

    /// An honest end does something of its own.
    fn honest(&mut self, which: u8) {
        let opener = self.choices.opener;
        for (side, end) in self.net.ends.iter_mut().enumerate() {
            let Some(end) = end else {
                continue;
            };
            match which {
                0 | 1 if side == opener => end.tcp.connect(),
                // A connection between honest ends is used to its end.
                2 if matches!(self.choices.hostile, Hostile::End(_)) => end.tcp.close(),
                _ => {}
            }
        }
        if which == 3 {
            self.time_out();
        }
        self.net.collect();
    }

    /// The network: something on its way is lost, repeated, late, or lost behind the engine.
    fn disturb(&mut self, operation: u8, which: u8) {
        let queue = &mut self.net.queue;
        if queue.is_empty() {
            return;
        }
        let at = usize::from(which) % queue.len();
        match operation >> 4 & 3 {
            0 => drop(queue.remove(at)),
            1 => queue.push_back(queue[at].clone()),
            2 => {
                if let Some(late) = queue.remove(at) {
                    queue.push_back(late);
                }
            }
            _ => queue[at].dies = true,
        }
    }

    /// What comes behind the input: a hostile end goes on as well as it can, honest ends repeat what
    /// was lost.
    fn end(&mut self) {
        self.net.begin_step(0xff);
        self.net.settle(network::MANY);
        if let Hostile::End(side) = self.choices.hostile {
            for _ in 0..10 {
                self.attacker.go_on(&mut self.net, side, 0);
                self.net.settle(network::MANY);
                // What is held is let go, or its session is reset.
                self.net.wait(SECOND);
                self.net.settle(network::MANY);
                self.net.check();
            }
            return;
        }
        let opener = self.choices.opener;
        let mut last_resets = 0;
        for _ in 0..ROUNDS {
            let done = self.is_done();
            let opening = self.net.ends[opener].as_ref().map(|it| it.tcp.state);
            if let (State::Closed, Some(end)) =
                (opening.unwrap_or(State::Closed), &mut self.net.ends[opener])
            {
                end.tcp.connect();
            }
            if done {
                break;
            }
            self.net.collect();
            self.net.settle(network::MANY);
            self.net.wait(SECOND);
            self.net.time_out();
            self.net.settle(network::MANY);
            self.net.check();
            last_resets = self.net.ends.iter().flatten().map(|it| it.tcp.resets).sum();
        }
        if self.choices.is_free() {
            self.net.claim(last_resets == 0, "an honest connection was reset");
            self.net.claim(self.is_done(), "honest ends have not come to their end");
        }
    }

    /// Whether both programs have what the other one wrote, and know it.
    fn is_done(&self) -> bool {
        let content = |side: usize| -> &[u8] {
            if side == 0 { b"HTTP/1.1 200 OK " } else { b"GET / HTTP/1.1 " }
        };
        self.net.ends.iter().enumerate().all(|(side, end)| {
            end.as_ref().is_some_and(|end| {
                end.tcp.is_open() && end.tcp.is_acknowledged() && end.app.got == content(side)
            })
        })
    }
}
