//! The engine in memory, one thread, every record of a TLS 1.3 AES-256-GCM download opened, and raw opening of the same
//! records: what parts (a) and (f) have in common.
//!
//! Frames are sealed and cut beforehand. A measurement of the engine gives it all frames of all
//! flows, data and acknowledgments, asks for every verdict and output, and lets a minimal handler
//! open every record. A raw measurement hands the same records, contiguous in memory, to aws-lc's
//! `open_separate_gather` and does nothing else. Both read the same number of bytes that are no
//! longer in the cache. Sessions begin (handshake, keys) before the clock runs, and the clock is
//! the thread's processor time.
//!
//! Refuses figures of an engine that held, dropped or failed to open anything.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use mmtls_engine::session::Handler;
use mmtls_engine::tls::{CipherSuite, ContentType, Direction, KeyEpoch, OpenRecord};
use mmtls_engine::{Config, Engine, FrameInput, Link, Policy, PortId, SharedKeys, Verdict};
use mmtls_record::Tls13Opener;
pub(super) use mmtls_testkit::opening::OpenAll;
use mmtls_testkit::synthesis::side;

use super::callgrind::counted;
use super::synthetic::{self, Connection, Keys, Sent};
use super::taps;

/// Plaintext of a full record.
pub(super) const RECORD_CONTENT: usize = 16384;

/// Bytes on the wire that a record has besides its content: header, inner type, tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// TCP payload of a whole super-frame: as many full segments as fit into 64 KB.
const SUPER_FRAME: usize = 45 * SEGMENT;

/// TCP payload of a segment at an MTU of 1500 with timestamps.
const SEGMENT: usize = 1448;

/// Plaintext of all flows together: larger than a last-level cache that one core has to itself.
pub(super) const TOTAL_CONTENT: usize = 64 << 20;

/// How frames are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Cut {
    /// 64 KB super-frames, acknowledged one by one.
    Super,
    /// Segments, every second one acknowledged.
    Segments,
}

impl Cut {
    fn payload(self) -> usize {
        match self {
            Self::Super => SUPER_FRAME,
            Self::Segments => SEGMENT,
        }
    }

    /// Data frames per acknowledgment: GRO makes one of a super-frame, RFC 1122 wants every second
    /// segment acknowledged.
    fn per_acknowledgment(self) -> usize {
        match self {
            Self::Super => 1,
            Self::Segments => 2,
        }
    }
}

/// Where a frame is.
enum Place {
    Ring(std::ops::Range<usize>),
    /// In memory of its own, which is lent, as packet input lends its buffers.
    Own(Arc<[u8]>),
}

/// A download that is ready to be played, over one or more flows.
pub(super) struct Download {
    /// Per flow, what happens before the clock runs.
    openings: Vec<Vec<Sent>>,
    /// Small frames of all flows in the order of play, in one piece as in a receive ring: in
    /// scattered memory, waiting for each frame's first bytes would be the main cost.
    ring: Vec<u8>,
    /// Data and acknowledgments of all flows in the order of play, and their senders.
    frames: Vec<(Direction, Place)>,
    records: u64,
    /// TCP payload bytes in `frames`.
    payload_bytes: u64,
    opener: Opener,
}

/// Makes what opens the records of one direction.
pub(super) type Opener = fn(Keys) -> Result<Box<dyn OpenRecord>, String>;

fn real(Keys { key, iv }: Keys) -> Result<Box<dyn OpenRecord>, String> {
    let opener = Tls13Opener::new(synthetic::SUITE, &key, &iv);
    Ok(Box::new(opener.map_err(|error| format!("{error:?}"))?))
}

impl Download {
    pub(super) fn prepare(sealed: &[Vec<u8>], records: u64, cut: Cut) -> Self {
        let mut openings = Vec::new();
        let mut lanes = Vec::new();
        for (session, stream) in (0u32..).zip(sealed) {
            let mut script = synthetic::handshake(session);
            let request = b"GET /download HTTP/1.1\r\nhost: server.test\r\n\r\n";
            let up = Direction::ClientToServer;
            script.record(up, ContentType::APPLICATION_DATA, request, 0);
            let mut opening = Vec::new();
            let mut connection = Connection::open(session, &mut opening);
            connection.turns(&script.build().turns, SEGMENT, &mut opening);
            openings.push(opening);
            let mut frames = Vec::new();
            for (count, piece) in (1..).zip(stream.chunks(cut.payload())) {
                connection.send(Direction::ServerToClient, piece, cut.payload(), &mut frames);
                if count % cut.per_acknowledgment() == 0 {
                    frames.push((up, connection.acknowledgment(up)));
                }
            }
            lanes.push(frames.into_iter());
        }
        // A burst of each flow at a time, as NAPI polls and GRO flushes deliver them.
        let burst = match cut {
            Cut::Super => 2,
            Cut::Segments => 48,
        };
        let (mut ring, mut frames) = (Vec::new(), Vec::new());
        loop {
            let before = frames.len();
            for lane in &mut lanes {
                for (way, frame) in lane.take(burst) {
                    if cut == Cut::Super && way == Direction::ServerToClient {
                        frames.push((way, Place::Own(frame.into())));
                        continue;
                    }
                    frames.push((way, Place::Ring(ring.len()..ring.len() + frame.len())));
                    ring.extend_from_slice(&frame);
                }
            }
            if frames.len() == before {
                break;
            }
        }
        let payload_bytes = sealed.iter().map(|stream| stream.len() as u64).sum();
        Self { openings, ring, frames, records, payload_bytes, opener: real }
    }

    /// Opened by something else.
    pub(super) fn opened_by(self, opener: Opener) -> Self {
        Self { opener, ..self }
    }

    /// Data and acknowledgments.
    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// TCP payload bytes of all frames.
    pub(super) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// An engine with every session begun and all keys delivered.
    fn engine<A: Application>(&self, application: A) -> Result<Engine<A>, String> {
        let mut engine = engine_of(application);
        for (session, frames) in (0u32..).zip(&self.openings) {
            for (way, frame) in frames {
                play(&mut engine, *way, frame, None)?;
                if core::mem::take(engine.handler_mut().keys_wanted()) > 0 {
                    deliver_openers(&mut engine, session, self.opener)?;
                }
            }
        }
        Ok(engine)
    }

    /// Plays it once, everything opened; the time it took.
    pub(super) fn pass(&self, clock: Clock) -> Result<Duration, String> {
        let (elapsed, opened, _) = self.play(OpenAll::default(), clock)?;
        if opened != self.records {
            return Err(format!("{opened} of {} records were opened", self.records));
        }
        Ok(elapsed)
    }

    /// Plays it once; of each frame that completes records, having come behind others of the first of them, the nanoseconds on the clock
    /// until the engine has released it. All records have so many bytes of content.
    pub(super) fn last_frames(&self, content: usize) -> Result<Vec<u64>, String> {
        let mut engine = self.engine(OpenAll::default())?;
        let before = engine.handler().opened();
        let (record, mut sent, mut taken) = (content + RECORD_OVERHEAD, 0, Vec::new());
        for (way, place) in &self.frames {
            let (bytes, memory) = self.bytes(place);
            let start = Instant::now();
            play(&mut engine, *way, bytes, memory)?;
            let elapsed = start.elapsed();
            if *way == Direction::ServerToClient {
                let payload = taps::tcp(bytes).ok_or("a frame is not TCP's")?.payload().len();
                let is_last = sent % record > 0 && (sent + payload) / record > sent / record;
                if is_last {
                    taken.push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
                }
                sent += payload;
            }
        }
        match engine.handler().opened() - before {
            opened if opened == self.records => Ok(taken),
            opened => Err(format!("{opened} of {} records were opened", self.records)),
        }
    }

    fn bytes<'a>(&'a self, place: &'a Place) -> (&'a [u8], Option<&'a Arc<[u8]>>) {
        match place {
            Place::Ring(place) => (self.ring.get(place.clone()).unwrap_or_default(), None),
            Place::Own(memory) => (&**memory, Some(memory)),
        }
    }

    /// Plays it once; the time it took, and how many records were opened and passed over.
    pub(super) fn play<A: Application>(
        &self,
        application: A,
        clock: Clock,
    ) -> Result<(Duration, u64, u64), String> {
        let mut engine = self.engine(application)?;
        let opened = engine.handler().opened();
        let start = clock();
        for (way, place) in &self.frames {
            let (bytes, memory) = self.bytes(place);
            play(&mut engine, *way, bytes, memory)?;
        }
        let elapsed = clock().saturating_sub(start);
        let (opened, paused) =
            (engine.handler().opened() - opened, engine.counters().records_paused);
        if opened + paused != self.records {
            return Err(format!("{opened} and {paused} of {} records were handled", self.records));
        }
        Ok((elapsed, opened, paused))
    }
}

/// An application whose work can be counted.
pub(super) trait Application: Handler {
    /// Sessions whose keys have not been delivered.
    fn keys_wanted(&mut self) -> &mut u32;
    /// Records that were opened.
    fn opened(&self) -> u64;
}

impl Application for OpenAll {
    fn keys_wanted(&mut self) -> &mut u32 {
        &mut self.keys_wanted
    }

    fn opened(&self) -> u64 {
        self.opened
    }
}

/// An engine as all of these benchmarks have it.
pub(super) fn engine_of<A: Application>(application: A) -> Engine<A> {
    Engine::new(Config::new(Policy::Reset), application)
}

pub(super) fn play<A: Application>(
    engine: &mut Engine<A>,
    way: Direction,
    bytes: &[u8],
    memory: Option<&Arc<[u8]>>,
) -> Result<(), String> {
    let input = FrameInput {
        port: PortId(side(way) as u8),
        link: Link::Ethernet,
        bytes,
        memory,
        // What the kernel or the hardware says of every good frame.
        checksum_trusted: true,
    };
    // Time is the engine's own: what a benchmark wants to let pass it tells by `handle_timeout`.
    let verdict = engine.handle_frame(1, &input);
    while engine.poll_output().is_some() {}
    match verdict {
        Verdict::Forward => Ok(()),
        other => Err(format!("a frame met {other:?}")),
    }
}

pub(super) fn deliver<A: Application>(engine: &mut Engine<A>, session: u32) -> Result<(), String> {
    deliver_openers(engine, session, real)
}

fn deliver_openers<A: Application>(
    engine: &mut Engine<A>,
    session: u32,
    opener: Opener,
) -> Result<(), String> {
    let mut keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)> = Vec::new();
    for way in Direction::BOTH {
        keys.push((way, KeyEpoch::Application(0), opener(Keys::of(session, way, Some(0)))?));
    }
    let shared = SharedKeys {
        sender: None,
        source: 0,
        client_random: synthetic::client_random(session),
        server_random: Some(synthetic::SERVER_RANDOM),
        cipher_suite: CipherSuite(synthetic::SUITE),
        keys,
    };
    match engine.handle_keys(1, shared) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(format!("keys: {refusal:?}")),
    }
}

/// The records of every flow, sealed and contiguous, each with `content` bytes.
pub(super) fn seal(
    flows: usize,
    records_per_flow: usize,
    content: usize,
) -> Result<Vec<Vec<u8>>, String> {
    let content = mmtls_testkit::files::pattern_bytes(content, 1);
    (0..flows as u32)
        .map(|session| {
            let sealer = Keys::of(session, Direction::ServerToClient, Some(0)).sealer()?;
            let mut stream = Vec::new();
            for sequence in 0..records_per_flow as u64 {
                let kind = ContentType::APPLICATION_DATA;
                let record = sealer.seal(sequence, kind, &content, 0);
                stream.extend_from_slice(&record.ok_or("sealing failed")?);
            }
            Ok(stream)
        })
        .collect()
}

/// Tells the time that counts.
pub(super) type Clock = fn() -> Duration;

/// For counting instructions: under valgrind there is no vDSO to ask.
pub(super) fn no_time() -> Duration {
    Duration::ZERO
}

/// Processor time of this thread: what another program takes away in between does not count.
pub(super) fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Opens every record, of `content` bytes each, with nothing but the AEAD; the time it took.
pub(super) fn raw_pass(
    sealed: &[Vec<u8>],
    content: usize,
    clock: Clock,
) -> Result<Duration, String> {
    let keys: Vec<_> = (0..sealed.len() as u32)
        .map(|session| Keys::of(session, Direction::ServerToClient, Some(0)))
        .map(|keys| Ok((LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &keys.key)?), keys.iv)))
        .collect::<Result<_, aws_lc_rs::error::Unspecified>>()
        .map_err(|_| "AES-256-GCM keys")?;
    let mut plaintext = vec![0; content + 1];
    let start = clock();
    for ((key, iv), stream) in keys.iter().zip(sealed) {
        let records = stream.chunks_exact(content + RECORD_OVERHEAD);
        for (sequence, record) in (0u64..).zip(records) {
            let mut nonce = *iv;
            for (byte, with) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
                *byte ^= with;
            }
            let (header, fragment) = record.split_at(5);
            let (ciphertext, tag) = fragment.split_at(fragment.len() - 16);
            let nonce = Nonce::assume_unique_for_key(nonce);
            key.open_separate_gather(nonce, Aad::from(header), ciphertext, tag, &mut plaintext)
                .map_err(|_| "a record did not open")?;
            black_box(&plaintext);
        }
    }
    Ok(clock().saturating_sub(start))
}

/// Repeats a measurement for about `seconds`; its mean time in seconds.
pub(super) fn repeat(
    seconds: f64,
    mut once: impl FnMut() -> Result<Duration, String>,
) -> Result<f64, String> {
    let (mut total, mut count) = (0.0, 0);
    while total < seconds || count == 0 {
        total += once()?.as_secs_f64();
        count += 1;
    }
    Ok(total / f64::from(count))
}

/// Arguments of the hidden subcommand that callgrind counts.
#[derive(clap::Args)]
pub struct PassArgs {
    /// How the download is cut; without it, raw opening.
    #[arg(long)]
    cut: Option<Cut>,
    /// How often it is played.
    #[arg(long)]
    passes: u32,
}

/// Records of the download that is counted.
const COUNTED_RECORDS: usize = 64;

/// Prints what one pass is: frames and payload bytes.
pub fn pass(args: &PassArgs) -> Result<(), String> {
    let sealed = seal(1, COUNTED_RECORDS, RECORD_CONTENT)?;
    let (frames, bytes) = match args.cut {
        None => {
            counted(&mut || {
                (0..args.passes)
                    .try_for_each(|_| raw_pass(&sealed, RECORD_CONTENT, no_time).map(drop))
            })?;
            (COUNTED_RECORDS, sealed[0].len() as u64)
        }
        Some(cut) => {
            let download = Download::prepare(&sealed, COUNTED_RECORDS as u64, cut);
            counted(&mut || (0..args.passes).try_for_each(|_| download.pass(no_time).map(drop)))?;
            (download.frames.len(), download.payload_bytes)
        }
    };
    println!("{frames} {bytes}");
    Ok(())
}
