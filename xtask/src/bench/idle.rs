//! Part (j): what open sessions cost in memory, and what it costs to find one among many.
//!
//! Each measurement is a process of its own: its resident memory before the sessions begin is taken off. A session has
//! had its handshake, a request and its response, keys included, and everything is acknowledged; then all are silent until they rest. Each gets a
//! record of 64 bytes that is opened, in random order: the first one behind a rest sets its key up again. From then on nothing rests, and
//! sessions are taken in random order for an acknowledgment, or a record: what the engine does is the same for all numbers of sessions, what
//! differs is where in memory they are. Time is the thread's.
//!
//! Refuses figures of an engine that held or dropped anything, or did not open a record.

use std::process::Command;
use std::time::Duration;

use mmtls_engine::Engine;
use mmtls_engine::tls::{ContentType, Direction};
use serde::{Deserialize, Serialize};

use super::engine::{Application, OpenAll, deliver, engine_of, play, thread_time};
use super::report::{Samples, table};
use super::synthetic::{self, Connection, Keys, Sent};
use crate::results::{Axis, Figure};

/// How many sessions are open.
pub const OPEN: [u32; 4] = [1000, 10_000, 100_000, 1_000_000];

/// Frames that are prepared, then played against the clock.
const BATCH: u32 = 5_000;

/// Length of the response, of the records that come later, and of a segment.
const RESPONSE: usize = 1024;
const LATER: usize = 64;
/// Of a later record on the wire: header, content type and tag.
const RECORD_LEN: u64 = 5 + LATER as u64 + 1 + 16;
const SEGMENT: usize = 1448;

/// A session comes every so often, and is silent from then on.
const EVERY_NS: u64 = 1_000_000;
/// What passes behind the last one.
const SILENCE_NS: u64 = 60_000_000_000;

#[derive(clap::Args)]
pub struct IdleArgs {
    /// Sessions to open.
    #[arg(long)]
    sessions: u32,
    /// Batches of look-ups of each kind.
    #[arg(long)]
    batches: u32,
}

/// What one process measured.
#[derive(Debug, Serialize, Deserialize)]
struct Pass {
    bytes_per_session: f64,
    ns_per_first_record: f64,
    ns_per_acknowledgment: f64,
    ns_per_record: f64,
}

/// With a number of open sessions.
#[derive(Debug, Serialize)]
struct Case {
    sessions: u32,
    resident_bytes_per_session: Samples,
    ns_per_first_record: Samples,
    ns_per_acknowledgment: Samples,
    ns_per_record: Samples,
}

/// Part (j).
#[derive(Debug, Serialize)]
pub struct IdleResults {
    suite: &'static str,
    cases: Vec<Case>,
}

/// Measures each number of sessions, some of [`OPEN`], in turn, `rounds` times.
pub fn measure(rounds: u32, open: &[u32]) -> Result<IdleResults, String> {
    let mut passes: [Vec<Pass>; OPEN.len()] = Default::default();
    for _ in 0..rounds {
        for (&sessions, passes) in open.iter().zip(&mut passes) {
            let pass = one(sessions)?;
            eprintln!(
                "  {sessions} sessions: {:.0} B each, {:.0} ns per record behind a rest, {:.0} per record, {:.0} per acknowledgment",
                pass.bytes_per_session,
                pass.ns_per_first_record,
                pass.ns_per_record,
                pass.ns_per_acknowledgment
            );
            passes.push(pass);
        }
    }
    let cases = open.iter().zip(&passes).map(|(&sessions, passes)| {
        let of = |figure: &dyn Fn(&Pass) -> f64| Samples::new(passes.iter().map(figure).collect());
        Case {
            sessions,
            resident_bytes_per_session: of(&|it| it.bytes_per_session),
            ns_per_first_record: of(&|it| it.ns_per_first_record),
            ns_per_acknowledgment: of(&|it| it.ns_per_acknowledgment),
            ns_per_record: of(&|it| it.ns_per_record),
        }
    });
    Ok(IdleResults { suite: super::lane::Tls::Gcm.suite(), cases: cases.collect() })
}

fn one(sessions: u32) -> Result<Pass, String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = Command::new(me);
    command.args(["bench", "idle-pass", "--batches", "40"]);
    let output = command.args(["--sessions", &sessions.to_string()]).output();
    let output = output.map_err(|error| format!("idle-pass: {error}"))?;
    if !output.status.success() {
        return Err(format!("idle-pass: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("idle-pass: {error}"))
}

/// The measurement itself.
pub fn pass(args: &IdleArgs) -> Result<(), String> {
    let sessions = args.sessions.max(1);
    let mut engine = engine_of(OpenAll::default());
    // Whatever is made once is there. The session is one too many, and stays.
    open(&mut engine, sessions)?;
    let before = resident_bytes()?;
    let mut sent = [0; 2];
    for session in 0..sessions {
        // All are of the same lengths.
        sent = open(&mut engine, session)?;
        OpenAll::pass_time(&mut engine, u64::from(session) * EVERY_NS);
    }
    OpenAll::pass_time(&mut engine, u64::from(sessions) * EVERY_NS + SILENCE_NS);
    let resident = resident_bytes()?.saturating_sub(before);

    let (up, down) = (Direction::ClientToServer, Direction::ServerToClient);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut records_of = vec![0_u16; sessions as usize];
    let mut record = |session: u32, frames: &mut Vec<Sent>| {
        let count = records_of.get_mut(session as usize).ok_or("a session too many")?;
        // The response was the first.
        let record = seal(session, u64::from(*count) + 1, &[b'a'; LATER])?;
        let before = u64::from(*count) * record.len() as u64;
        *count += 1;
        let mut connection = Connection::at(session, [sent[0], sent[1] + before]);
        connection.send(down, &record, SEGMENT, frames);
        frames.push((up, connection.acknowledgment(up)));
        Ok::<(), String>(())
    };
    let opened = engine.handler().opened();
    let mut order: Vec<u32> = (0..sessions).collect();
    for at in 1..sessions {
        order.swap(at as usize, random.below(at + 1) as usize);
    }
    let mut first_records = Duration::ZERO;
    for sessions in order.chunks(BATCH as usize) {
        let mut frames = Vec::new();
        sessions.iter().try_for_each(|session| record(*session, &mut frames))?;
        first_records += timed(&mut engine, &frames)?;
    }
    let mut records = Duration::ZERO;
    for _ in 0..args.batches {
        let mut frames = Vec::new();
        (0..BATCH).try_for_each(|_| record(random.below(sessions), &mut frames))?;
        records += timed(&mut engine, &frames)?;
    }
    let mut acknowledgments = Duration::ZERO;
    for _ in 0..args.batches {
        let mut one = || {
            let session = random.below(sessions);
            let record_len = u64::from(records_of[session as usize]) * RECORD_LEN;
            (up, Connection::at(session, [sent[0], sent[1] + record_len]).acknowledgment(up))
        };
        let frames: Vec<Sent> = (0..BATCH).map(|_| one()).collect();
        acknowledgments += timed(&mut engine, &frames)?;
    }
    let lookups = args.batches * BATCH;
    if engine.handler().opened() - opened != u64::from(lookups) + u64::from(sessions) {
        return Err("a record was not opened".to_owned());
    }
    let ns_each = |time: Duration, of: u32| time.as_secs_f64() * 1e9 / f64::from(of);
    let pass = Pass {
        bytes_per_session: resident as f64 / f64::from(sessions),
        ns_per_first_record: ns_each(first_records, sessions),
        ns_per_acknowledgment: ns_each(acknowledgments, lookups),
        ns_per_record: ns_each(records, lookups),
    };
    println!("{}", serde_json::to_string(&pass).map_err(|error| error.to_string())?);
    Ok(())
}

/// Opens a session; tells how many bytes both sides have sent.
fn open(engine: &mut Engine<OpenAll>, session: u32) -> Result<[u64; 2], String> {
    let (up, down) = (Direction::ClientToServer, Direction::ServerToClient);
    let mut script = synthetic::handshake(session);
    let request = b"GET / HTTP/1.1\r\nhost: server.test\r\n\r\n";
    script.record(up, ContentType::APPLICATION_DATA, request, 0);
    let mut frames = Vec::new();
    let mut connection = Connection::open(session, &mut frames);
    connection.turns(&script.build().turns, SEGMENT, &mut frames);
    connection.send(down, &seal(session, 0, &[b'a'; RESPONSE])?, SEGMENT, &mut frames);
    frames.push((up, connection.acknowledgment(up)));
    for (way, frame) in &frames {
        play(engine, *way, frame, None)?;
        if core::mem::take(engine.handler_mut().keys_wanted()) > 0 {
            deliver(engine, session)?;
        }
    }
    Ok(connection.sent())
}

/// A record of the server.
fn seal(session: u32, sequence: u64, content: &[u8]) -> Result<Vec<u8>, String> {
    let sealer = Keys::of(session, Direction::ServerToClient, Some(0)).sealer()?;
    let sealed = sealer.seal(sequence, ContentType::APPLICATION_DATA, content, 0);
    sealed.ok_or_else(|| "sealing failed".to_owned())
}

fn timed(engine: &mut Engine<OpenAll>, frames: &[Sent]) -> Result<Duration, String> {
    let start = thread_time();
    for (way, frame) in frames {
        play(engine, *way, frame, None)?;
    }
    Ok(thread_time().saturating_sub(start))
}

fn resident_bytes() -> Result<u64, String> {
    crate::soak::of_status("self", "VmRSS:").ok_or_else(|| "/proc/self/status: no VmRSS".to_owned())
}

/// Numbers that are spread well enough (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from((it ^ (it >> 31)) as u32) * u64::from(end)) >> 32) as u32
    }
}

impl IdleResults {
    /// Ours: memory of a session, and what its frames cost.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("M3", panel, title, Axis::log("open sessions", ""), y)
        };
        let mut memory = figure(
            "memory",
            "Resident memory of a session that is open and silent",
            Axis::linear("memory per session", "B"),
        )
        .note(format!(
            "{}; the engine alone, keys included: a handshake, a request and a response each, then a minute of silence.",
            self.suite
        ));
        let mut time = figure(
            "time",
            "What a frame costs where many sessions are open",
            Axis::linear("processor time", "ns"),
        );
        for case in &self.cases {
            let x = u64::from(case.sessions);
            memory.add("mmTLS engine", x, &case.resident_bytes_per_session.samples);
            time.add("first record behind a rest", x, &case.ns_per_first_record.samples);
            time.add("record and acknowledgment", x, &case.ns_per_record.samples);
            time.add("acknowledgment", x, &case.ns_per_acknowledgment.samples);
        }
        vec![memory, time]
    }

    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .cases
            .iter()
            .map(|case| {
                vec![
                    case.sessions.to_string(),
                    format!("{:.0}", case.resident_bytes_per_session.median),
                    format!("{:.0}", case.ns_per_first_record.median),
                    format!("{:.0}", case.ns_per_record.median),
                    format!("{:.0}", case.ns_per_acknowledgment.median),
                ]
            })
            .collect();
        table(
            &format!("(j) open sessions, idle, in memory, {}; medians", self.suite),
            &[
                "sessions",
                "resident B each",
                "ns per record behind a rest",
                "ns per record, both with acknowledgment",
                "ns per acknowledgment",
            ],
            &rows,
        );
    }
}
