//! A simulated path: two endpoints that send a script's turns, a hostile network between them
//! and the engine, and a receiver's view behind it that checks every forwarded byte.

pub mod attack;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mmtls_engine::session::{
    Certificates, EndReason, FlowAnomaly, FlowEnd, Handler, Record, RefusedKeys, Resumption,
    Session, SessionError, TcpAnomaly, Upgrade,
};
use mmtls_engine::tls::{CipherSuite, ContentType, Direction, Hellos, KeyEpoch, OpenRecord};
use mmtls_engine::{
    Config, Engine, FrameInput, KeyRefusal, Link, Output, Policy, PortId, SharedKeys, Verdict,
};
use mmtls_testkit::segments::{Endpoints, Seeded, flag, is_reset};
use mmtls_testkit::synthesis::{
    EarlyFate, EarlyScript, NullKeys, NullKeys12, Placed, Script, ScriptBuilder, side,
};

pub const SUITE: u16 = 0x1301;
pub const RANDOM: [u8; 32] = [0xc1; 32];

/// The null keys of a direction and epoch.
pub fn keys(direction: Direction, epoch: KeyEpoch) -> NullKeys {
    let number = match epoch {
        KeyEpoch::EarlyData => 998,
        KeyEpoch::Handshake => 999,
        KeyEpoch::Application(number) => u64::from(number),
    };
    NullKeys(side(direction) as u64 * 1000 + number)
}

/// A session of several exchanges, chosen by a seed: records of many lengths, padding, tickets,
/// empty records, KeyUpdates in both directions.
pub fn script(seed: u64) -> Script {
    let mut rng = Seeded::new(seed);
    let flight: Vec<usize> = (0..1 + rng.below(4)).map(|_| 1 + rng.below(3000)).collect();
    let builder = ScriptBuilder::new(RANDOM, SUITE, rng.one_in(3), &flight, keys as Keys);
    exchanges(builder, rng)
}

/// As [`script`], with early data of any fate.
pub fn early_script(seed: u64) -> Script {
    let mut rng = Seeded::new(seed);
    let flight: Vec<usize> = (0..1 + rng.below(4)).map(|_| 1 + rng.below(3000)).collect();
    let early = early(&mut rng);
    exchanges(ScriptBuilder::early(RANDOM, SUITE, &flight, &early, keys as Keys), rng)
}

fn exchanges(mut builder: ScriptBuilder<NullKeys, Keys>, mut rng: Seeded) -> Script {
    for _ in 0..1 + rng.below(4) {
        for direction in Direction::BOTH {
            for _ in 0..1 + rng.below(4) {
                match rng.below(8) {
                    0 => {
                        builder.key_update(direction);
                    }
                    1 if direction == Direction::ServerToClient => {
                        let ticket = [&[4, 0, 0, 90][..], &[5; 90]].concat();
                        builder.record(direction, ContentType::HANDSHAKE, &ticket, 0);
                    }
                    2 => {
                        builder.record(
                            direction,
                            ContentType::APPLICATION_DATA,
                            &[],
                            rng.below(40),
                        );
                    }
                    _ => {
                        let len = [20, 300, 1500, 5000, 16000][rng.below(5)];
                        let content: Vec<u8> =
                            (0..1 + rng.below(len)).map(|_| rng.next_u64() as u8).collect();
                        let padding = if rng.one_in(4) { rng.below(300) } else { 0 };
                        builder.record(direction, ContentType::APPLICATION_DATA, &content, padding);
                    }
                }
            }
        }
    }
    builder.build()
}

/// What makes the keys of a script.
pub type Keys = fn(Direction, KeyEpoch) -> NullKeys;

/// Early data of some records, of any fate.
fn early(rng: &mut Seeded) -> EarlyScript {
    let fates = [
        EarlyFate::Accepted,
        EarlyFate::Accepted,
        EarlyFate::Refused,
        EarlyFate::RefusedWithKey,
        EarlyFate::RefusedByRetry,
    ];
    let fate = fates[rng.below(fates.len())];
    let mut records = |most: usize| -> Vec<Vec<u8>> {
        let count = rng.below(most);
        (0..count).map(|_| (0..rng.below(4000)).map(|_| rng.next_u64() as u8).collect()).collect()
    };
    let before = records(5);
    // When the server's answer is read before them depends on which keys are shared.
    let after = if fate == EarlyFate::Refused { Vec::new() } else { records(4) };
    EarlyScript { fate, before, after }
}

/// Keys as the script's version has them.
pub fn opener(script: &Script, direction: Direction, epoch: KeyEpoch) -> Box<dyn OpenRecord> {
    let NullKeys(id) = keys(direction, epoch);
    if script.tls12 { Box::new(NullKeys12(id)) } else { Box::new(NullKeys(id)) }
}

/// A session of TLS 1.2, chosen by a seed, with renegotiations.
pub fn script12(seed: u64) -> Script {
    let mut rng = Seeded::new(seed);
    let keys = |direction, epoch| NullKeys12(keys(direction, epoch).0);
    let mut builder = ScriptBuilder::tls12(RANDOM, SUITE, keys);
    for exchange in 0..1 + rng.below(4) {
        if rng.one_in(3) {
            builder.renegotiate([exchange as u8; 32], SUITE);
        }
        for direction in Direction::BOTH {
            for _ in 0..1 + rng.below(4) {
                let len = [0, 20, 300, 1500, 16384][rng.below(5)];
                let content: Vec<u8> =
                    (0..rng.below(len + 1)).map(|_| rng.next_u64() as u8).collect();
                let kind = if rng.one_in(9) { ContentType(21) } else { ContentType(23) };
                builder.record(direction, kind, &content, 0);
            }
        }
    }
    builder.build()
}

/// What a handler saw, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    SessionStart,
    HandshakeStart,
    ServerHello,
    HandshakeEnd,
    Record(Direction, u8, Vec<u8>),
    Error(Direction, SessionError),
    Stall(Direction),
    Keys(Direction, KeyEpoch),
    EarlyData(bool),
    Certificates(Direction, Vec<usize>),
    SessionEnd(EndReason),
    ClearStart,
    Clear(Direction, Vec<u8>),
    ClearFin(Direction),
    ClearEnd(Option<EndReason>),
    FlowEnd(EndReason),
}

/// Opens everything and writes it down; resets at a chosen record.
#[derive(Default)]
pub struct Recorder {
    /// The first ClientHello may be lost: then that of a renegotiation, which the null cipher shows, is the first one.
    pub may_lose_hellos: bool,
    /// ClientHellos are the test's own.
    pub any_hellos: bool,
    pub events: Vec<Event>,
    /// Why keys, and refusals to share, were not taken.
    pub refusals: Vec<KeyRefusal>,
    pub judged: [usize; 2],
    /// Records of early data among them.
    pub early: usize,
    pub reset_at: Option<usize>,
    /// Resets inside this event of a session, counted from zero.
    pub reset_in: Option<usize>,
    /// Which event that was.
    pub reset: Option<Event>,
    /// Events of sessions so far.
    pub raised: usize,
    pub pause_all: bool,
    /// Pauses a server's direction for so many bytes once a record of it was shown, each time.
    pub pause_server: Option<u64>,
    /// Pauses both directions of a connection in the clear once it has shown so many bytes.
    pub clear_enough: Option<usize>,
    /// Resets a connection in the clear once one direction has shown this.
    pub reset_at_word: Option<Vec<u8>>,
    /// What its end says of resumption.
    pub resumption: Resumption,
    /// What the last connection's end says of its directions.
    pub flow_bytes: [u64; 2],
    /// Whether both sides had vouched for the flow that ended last.
    pub flow_established: bool,
    /// What the session began behind.
    pub starttls: Option<Upgrade>,
    /// Events in which hellos were told, and those.
    pub told: Vec<(Event, Hellos)>,
    /// Kinds of strange segments.
    pub anomalies: Vec<(Direction, TcpAnomaly)>,
}

impl Recorder {
    fn raise(&mut self, session: &mut Session<'_>, event: Event) {
        if self.reset_in == Some(self.raised) {
            session.reset();
            self.reset = Some(event.clone());
        }
        self.raised += 1;
        if let Some(hellos) = &session.info().hellos {
            self.told.push((event.clone(), Hellos::clone(hellos)));
        }
        self.events.push(event);
    }

    pub fn records(&self, direction: Direction) -> Vec<(u8, Vec<u8>)> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Record(of, kind, bytes) if *of == direction => Some((*kind, bytes.clone())),
                _ => None,
            })
            .collect()
    }

    /// The bytes that were shown in the clear.
    pub fn shown(&self, direction: Direction) -> Vec<u8> {
        let bytes = self.events.iter().filter_map(|event| match event {
            Event::Clear(of, bytes) if *of == direction => Some(bytes.as_slice()),
            _ => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }

    pub fn errors(&self) -> Vec<(Direction, SessionError)> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Error(direction, error) => Some((*direction, *error)),
                _ => None,
            })
            .collect()
    }

    /// The events without those whose place may depend on timing.
    pub fn skeleton(&self) -> Vec<Event> {
        let timed = |it: &Event| {
            matches!(
                it,
                Event::Record(..)
                    | Event::Stall(_)
                    | Event::Keys(..)
                    | Event::EarlyData(_)
                    | Event::Certificates(..)
            )
        };
        self.events.iter().filter(|it| !timed(it)).cloned().collect()
    }
}

impl Handler for Recorder {
    type State = ();

    fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        self.refusals.push(refused.why);
    }

    fn session_start(&mut self, session: &mut Session<'_>, (): &mut ()) {
        self.raise(session, Event::SessionStart);
    }

    fn handshake_start(&mut self, session: &mut Session<'_>, (): &mut ()) {
        if !self.any_hellos {
            let random = session.info().client_random;
            let renegotiated = random == [random[0]; 32];
            assert!(random == RANDOM || self.may_lose_hellos && renegotiated, "{random:?}");
            assert_eq!(session.info().server_name.as_deref(), Some("server.test"));
        }
        self.starttls = session.info().starttls;
        self.raise(session, Event::HandshakeStart);
    }

    fn server_hello(&mut self, session: &mut Session<'_>, (): &mut ()) {
        assert!(session.info().version.is_some() && session.info().cipher_suite.is_some());
        self.raise(session, Event::ServerHello);
    }

    fn handshake_end(&mut self, session: &mut Session<'_>, (): &mut ()) {
        assert_eq!(session.info().cipher_suite, Some(CipherSuite(SUITE)));
        assert_eq!(session.info().server_random, Some([0x5a; 32]));
        self.raise(session, Event::HandshakeEnd);
        if self.pause_all {
            for direction in Direction::BOTH {
                session.pause(direction, None);
            }
        }
    }

    fn new_record(&mut self, session: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        let direction = record.direction();
        self.judged[side(direction)] += 1;
        self.early += usize::from(record.is_early_data());
        if let Ok(plaintext) = record.open() {
            let event =
                Event::Record(direction, plaintext.content_type.0, plaintext.bytes.to_vec());
            self.raise(session, event);
        }
        if self.reset_at == Some(self.judged[0] + self.judged[1]) {
            session.reset();
        }
        if direction == Direction::ServerToClient && self.pause_server.is_some() {
            session.pause(direction, self.pause_server);
        }
    }

    fn error(&mut self, it: &mut Session<'_>, (): &mut (), at: Direction, error: SessionError) {
        self.raise(it, Event::Error(at, error));
    }

    fn stall(&mut self, session: &mut Session<'_>, (): &mut (), direction: Direction) {
        self.raise(session, Event::Stall(direction));
    }

    fn keys(
        &mut self,
        session: &mut Session<'_>,
        (): &mut (),
        direction: Direction,
        epoch: KeyEpoch,
        _: Duration,
    ) {
        self.raise(session, Event::Keys(direction, epoch));
    }

    fn early_data(&mut self, session: &mut Session<'_>, (): &mut (), accepted: bool) {
        self.raise(session, Event::EarlyData(accepted));
    }

    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        (): &mut (),
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        let lengths = certificates.chain().iter().map(|it| it.len()).collect();
        self.raise(session, Event::Certificates(direction, lengths));
    }

    fn session_end(&mut self, session: &mut Session<'_>, (): &mut (), reason: EndReason) {
        self.resumption = session.info().resumption;
        self.raise(session, Event::SessionEnd(reason));
    }

    fn cleartext_start(&mut self, session: &mut Session<'_>, (): &mut ()) {
        self.raise(session, Event::ClearStart);
    }

    fn cleartext(
        &mut self,
        session: &mut Session<'_>,
        (): &mut (),
        direction: Direction,
        bytes: &[u8],
    ) {
        self.raise(session, Event::Clear(direction, bytes.to_vec()));
        if let Some(word) = &self.reset_at_word
            && self.shown(direction).windows(word.len()).any(|it| it == word)
        {
            session.reset();
            self.reset = Some(Event::Clear(direction, Vec::new()));
        }
        let Some(enough) = self.clear_enough else {
            return;
        };
        let shown: usize = Direction::BOTH.iter().map(|it| self.shown(*it).len()).sum();
        if shown >= enough {
            for direction in Direction::BOTH {
                session.pause(direction, None);
            }
        }
    }

    fn cleartext_fin(&mut self, it: &mut Session<'_>, (): &mut (), direction: Direction) {
        self.raise(it, Event::ClearFin(direction));
    }

    fn cleartext_end(&mut self, it: &mut Session<'_>, (): &mut (), why: Option<EndReason>) {
        self.raise(it, Event::ClearEnd(why));
    }

    fn flow_anomaly(&mut self, found: &FlowAnomaly) {
        self.anomalies.push((found.direction, found.kind));
    }

    fn flow_end(&mut self, flow: &FlowEnd) {
        self.flow_bytes = flow.bytes;
        self.flow_established = flow.established;
        self.events.push(Event::FlowEnd(flow.reason));
    }
}

/// When keys reach the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyTiming {
    /// Before the first packet.
    Early,
    /// As soon as the engine says that it wants them.
    Prompt,
    /// Only when nothing moves any more.
    Late,
    Never,
}

/// Whether handlers see records of this type in TLS 1.2.
pub fn is_shown12(kind: ContentType) -> bool {
    matches!(kind, ContentType::ALERT | ContentType::APPLICATION_DATA)
}

/// What the network does to each turn.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub seed: u64,
    /// Longest segment; 0 sends each turn whole.
    pub max_segment: usize,
    pub reorder: bool,
    pub duplicate: bool,
    pub keys: KeyTiming,
    /// Handshake keys are shared too.
    pub handshake_keys: bool,
    pub v6: bool,
}

/// One direction as its receiver sees it: which bytes arrived, beyond those without a gap.
#[derive(Default)]
struct Receiver {
    arrived: BTreeMap<u64, u64>,
    contiguous: u64,
}

impl Receiver {
    fn take(&mut self, from: u64, to: u64) {
        self.arrived.insert(from, to.max(self.arrived.get(&from).copied().unwrap_or(0)));
        while let Some(first) = self.arrived.first_entry().filter(|it| *it.key() <= self.contiguous)
        {
            self.contiguous = self.contiguous.max(first.remove());
        }
    }
}

/// A packet: direction, stream range, frame.
#[derive(Clone)]
struct Packet {
    direction: Direction,
    from: u64,
    to: u64,
    frame: Vec<u8>,
}

pub struct Path {
    pub engine: Engine<Recorder>,
    pub script: Script,
    pub endpoints: Endpoints,
    pub injected: Vec<Vec<u8>>,
    /// Stream ends behind which a receiver gives up, since a record was changed before them;
    /// zero when packets are lost on purpose and nothing can be said.
    pub intact: [u64; 2],
    /// Payload bytes forwarded after the session was reset.
    pub leaked: usize,
    network: Network,
    rng: Seeded,
    now_ns: u64,
    receivers: [Receiver; 2],
    held: HashMap<mmtls_engine::HoldId, Packet>,
    sent: [u64; 2],
    reset: bool,
}

pub fn config(missing_keys: Policy) -> Config {
    let mut config = Config::new(missing_keys);
    config.verify_checksums = false;
    config.supports = |_, suite| suite.0 == SUITE;
    config.tls_ports = Vec::new();
    // Segments of a few bytes make a long queue of a short wait. Connections rest between frames now and then.
    config.limits.stall_max_packets = 1 << 20;
    config.limits.rest_after_ns = 800;
    config
}

impl Path {
    pub fn new(script: Script, network: Network, config: Config, recorder: Recorder) -> Self {
        let mut rng = Seeded::new(network.seed ^ 0x5eed);
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let endpoints = Endpoints {
            client: address(if network.v6 { "[fd00::2]:40000" } else { "10.0.0.2:40000" }),
            server: address(if network.v6 { "[fd00::3]:443" } else { "10.0.0.3:443" }),
            // Close to the wrap, so that it is crossed in most runs.
            initial: [0, 1].map(|_| 0u32.wrapping_sub(rng.below(20_000) as u32)),
        };
        Self {
            engine: Engine::new(config, recorder),
            script,
            endpoints,
            injected: Vec::new(),
            intact: [u64::MAX; 2],
            leaked: 0,
            network,
            rng,
            now_ns: 1,
            receivers: Default::default(),
            held: HashMap::new(),
            sent: [0; 2],
            reset: false,
        }
    }

    /// Runs the whole session, FINs included; true when every byte arrived.
    pub fn run(&mut self) -> bool {
        if self.network.keys == KeyTiming::Early {
            self.deliver_keys(Direction::ClientToServer, KeyEpoch::EarlyData);
            for direction in Direction::BOTH {
                self.deliver_keys(direction, KeyEpoch::Handshake);
                for epoch in 0..3 {
                    self.deliver_keys(direction, KeyEpoch::Application(epoch));
                }
            }
        }
        self.open();
        let turns = self.script.turns.clone();
        for turn in &turns {
            if !self.send(turn.direction, &turn.bytes) {
                return false;
            }
        }
        self.control(Direction::ClientToServer, self.sent[0], flag::FIN | flag::ACK, 0);
        self.control(Direction::ServerToClient, self.sent[1], flag::FIN | flag::ACK, 1);
        self.control(Direction::ClientToServer, self.sent[0] + 1, flag::ACK, 1);
        self.engine.finish();
        true
    }

    pub fn open(&mut self) {
        let syn = self.endpoints.frame(Direction::ClientToServer, -1, 0, flag::SYN, &[]);
        assert_eq!(self.input(&syn, Direction::ClientToServer), Verdict::Forward);
        let flags = flag::SYN | flag::ACK;
        let answer = self.endpoints.frame(Direction::ServerToClient, -1, 0, flags, &[]);
        assert_eq!(self.input(&answer, Direction::ServerToClient), Verdict::Forward);
        self.control(Direction::ClientToServer, 0, flag::ACK, 0);
    }

    /// Sends one turn through the network; false when it never arrived whole.
    pub fn send(&mut self, direction: Direction, bytes: &[u8]) -> bool {
        let base = self.sent[side(direction)];
        self.sent[side(direction)] += bytes.len() as u64;
        let end = self.sent[side(direction)];
        let packets = self.cut(direction, base, bytes);
        for packet in self.disorder(packets) {
            self.offer(packet);
        }
        // Nothing lost so far in this network, but packets may be held, or dropped as copies of
        // held ones: deliver keys, then retransmit what is missing, as TCP would.
        for _ in 0..200 {
            if self.receivers[side(direction)].contiguous >= end {
                return true;
            }
            if self.network.keys == KeyTiming::Late {
                self.answer_wishes(true);
                if self.receivers[side(direction)].contiguous >= end {
                    return true;
                }
            }
            let from = self.receivers[side(direction)].contiguous.max(base);
            let len = (1 + self.rng.below(1400)).min((end - from) as usize);
            let at = (from - base) as usize;
            let packet = self.packet(direction, from, &bytes[at..at + len]);
            self.offer(packet);
        }
        false
    }

    /// Offers one range of a direction's stream once, with given bytes.
    pub fn offer_range(&mut self, direction: Direction, from: u64, bytes: &[u8]) -> Verdict {
        let packet = self.packet(direction, from, bytes);
        self.offer(packet)
    }

    /// A pure acknowledgment.
    pub fn acknowledge(&mut self, direction: Direction, offset: u64, acknowledged: u64) {
        let frame = self.endpoints.frame(direction, offset as i64, acknowledged, flag::ACK, &[]);
        let _ = self.input(&frame, direction);
        self.act();
    }

    fn cut(&mut self, direction: Direction, base: u64, bytes: &[u8]) -> Vec<Packet> {
        let mut packets = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let len = match self.network.max_segment {
                0 => bytes.len(),
                max => 1 + self.rng.below(max),
            };
            let len = len.min(bytes.len() - at);
            // Retransmissions with other boundaries overlap what was sent before.
            let back = if self.network.duplicate && self.rng.one_in(5) {
                self.rng.below(at + 1).min(3000)
            } else {
                0
            };
            packets.push(self.packet(
                direction,
                base + (at - back) as u64,
                &bytes[at - back..at + len],
            ));
            at += len;
        }
        packets
    }

    fn disorder(&mut self, mut packets: Vec<Packet>) -> VecDeque<Packet> {
        if self.network.reorder {
            for at in 0..packets.len() {
                let reach = if self.rng.one_in(3) { 8 } else { 2 };
                let other = (at + self.rng.below(reach)).min(packets.len() - 1);
                packets.swap(at, other);
            }
        }
        let mut out = VecDeque::new();
        for packet in packets {
            let copies = if self.network.duplicate && self.rng.one_in(4) { 2 } else { 1 };
            out.extend(core::iter::repeat_n(packet, copies));
        }
        out
    }

    fn packet(&self, direction: Direction, from: u64, bytes: &[u8]) -> Packet {
        let acknowledged = self.receivers[side(direction.reverse())].contiguous;
        let frame = self.endpoints.frame(direction, from as i64, acknowledged, flag::ACK, bytes);
        Packet { direction, from, to: from + bytes.len() as u64, frame }
    }

    fn control(&mut self, direction: Direction, offset: u64, flags: u8, extra_ack: u64) {
        let acknowledged = self.receivers[side(direction.reverse())].contiguous + extra_ack;
        let frame = self.endpoints.frame(direction, offset as i64, acknowledged, flags, &[]);
        let _ = self.input(&frame, direction);
        self.act();
    }

    fn offer(&mut self, packet: Packet) -> Verdict {
        let verdict = self.input(&packet.frame, packet.direction);
        match verdict {
            Verdict::Forward => self.arrive(&packet),
            Verdict::Hold(id) => {
                self.held.insert(id, packet);
            }
            Verdict::Drop => {}
            Verdict::Again => panic!("nothing was left to anybody"),
        }
        self.act();
        verdict
    }

    fn input(&mut self, frame: &[u8], direction: Direction) -> Verdict {
        self.now_ns += 1000;
        self.engine.handle_timeout(self.now_ns);
        // Large ones are kept, others are not: both ways must come to the same.
        let memory: Arc<[u8]> = frame.into();
        let input = FrameInput {
            port: PortId(side(direction) as u8),
            link: Link::Ethernet,
            bytes: &memory,
            memory: (frame.len().is_multiple_of(2)).then_some(&memory),
            checksum_trusted: true,
        };
        self.engine.handle_frame(self.now_ns, &input)
    }

    /// Lets time pass.
    pub fn wait(&mut self, ns: u64) {
        self.now_ns += ns;
        self.engine.handle_timeout(self.now_ns);
        self.act();
    }

    fn act(&mut self) {
        let mut wishes = false;
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Release(id) => {
                    let packet = self.held.remove(&id).expect("released frames are held");
                    self.arrive(&packet);
                }
                Output::Discard(id) => {
                    self.held.remove(&id).expect("discarded frames are held");
                }
                Output::Inject { frame, .. } if !is_reset(&frame) => {}
                Output::Inject { frame, .. } => {
                    self.reset = true;
                    self.injected.push(frame);
                }
                Output::KeysNeeded(_) => wishes = true,
                Output::KeysOpenNothing(_) | Output::LiveKeysNeeded(_) => {}
                Output::Offload(_) | Output::TakeBack(_) => {
                    panic!("nothing can be left to anybody")
                }
            }
        }
        if wishes && matches!(self.network.keys, KeyTiming::Early | KeyTiming::Prompt) {
            self.answer_wishes(false);
        }
    }

    /// Delivers the keys of every epoch, as an endpoint that has them all would.
    pub fn answer_wishes(&mut self, in_random_order: bool) {
        // Early keys come before application keys, or not at all.
        self.deliver_keys(Direction::ClientToServer, KeyEpoch::EarlyData);
        let epochs = || (0..40).map(KeyEpoch::Application);
        let mut wanted: Vec<(Direction, KeyEpoch)> = Direction::BOTH
            .into_iter()
            .flat_map(|it| [KeyEpoch::Handshake].into_iter().chain(epochs()).map(move |e| (it, e)))
            .collect();
        if in_random_order && self.rng.one_in(2) {
            wanted.sort_by_key(|(direction, epoch)| (*epoch, std::cmp::Reverse(*direction)));
        }
        for (direction, epoch) in wanted {
            self.deliver_keys(direction, epoch);
        }
    }

    pub fn deliver_keys(&mut self, direction: Direction, epoch: KeyEpoch) {
        if epoch == KeyEpoch::Handshake && !self.network.handshake_keys {
            return;
        }
        // In TLS 1.2 each handshake has a random, and one epoch.
        let (random, number) = match (self.script.tls12, epoch) {
            (false, _) => (RANDOM, epoch),
            (true, KeyEpoch::Application(number)) => {
                match self.script.client_randoms.get(number as usize) {
                    Some(random) => (*random, KeyEpoch::Application(0)),
                    None => return,
                }
            }
            (true, _) => return,
        };
        let opener = opener(&self.script, direction, epoch);
        self.deliver_as(random, direction, number, opener);
    }

    /// Delivers any keys for the session.
    pub fn deliver(&mut self, direction: Direction, epoch: KeyEpoch, opener: Box<dyn OpenRecord>) {
        self.deliver_as(RANDOM, direction, epoch, opener);
    }

    /// From now on handshake keys are delivered, or not.
    pub fn share_handshake_keys(&mut self, share: bool) {
        self.network.handshake_keys = share;
    }

    fn deliver_as(
        &mut self,
        random: [u8; 32],
        direction: Direction,
        epoch: KeyEpoch,
        opener: Box<dyn OpenRecord>,
    ) {
        let shared = SharedKeys {
            sender: Some(self.endpoints.client.ip()),
            source: 0,
            client_random: random,
            server_random: (epoch != KeyEpoch::EarlyData).then_some([0x5a; 32]),
            cipher_suite: CipherSuite(SUITE),
            keys: vec![(direction, epoch, opener)],
        };
        let _ = self.engine.handle_keys(self.now_ns, shared);
        self.act();
    }

    /// A forwarded packet reaches its receiver: the one invariant of an inline monitor is
    /// checked here.
    fn arrive(&mut self, packet: &Packet) {
        if self.reset {
            self.leaked += (packet.to - packet.from) as usize;
        }
        let at = side(packet.direction);
        self.receivers[at].take(packet.from, packet.to);
        let contiguous = self.receivers[at].contiguous;
        // The engine keeps the handshake messages of TLS 1.2 to itself, and judges them itself.
        let shown = |it: &&Placed| !self.script.tls12 || is_shown12(it.kind);
        let complete = self.script.records[at]
            .iter()
            .filter(shown)
            .filter(|it| it.end <= contiguous.min(self.intact[at]))
            .count();
        let recorder = self.engine.handler();
        if self.network.keys != KeyTiming::Never && !recorder.pause_all {
            assert!(
                complete <= recorder.judged[at],
                "{complete} records could be read, {} were judged",
                recorder.judged[at]
            );
        }
    }
}
