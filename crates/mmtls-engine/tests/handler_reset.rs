//! A handler's reset counts in every event, whatever waits in either direction: nothing of the
//! connection passes any more, and both ends are told.

use std::collections::BTreeSet;

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM, Recorder, SUITE, early_script, keys, script, script12};
use mmtls_engine::session::{EndReason, SessionError};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Seeded, flag};
use mmtls_testkit::synthesis::{NullKeys, NullKeys12, Script, side};

const SECOND: u64 = 1_000_000_000;

/// What an endpoint or the network does to a session in its middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A FIN inside of a record.
    Cut,
    /// A RST in its place.
    Reset,
    /// A byte of a record is another one.
    Changed,
    /// Bytes that were sent are sent again as others.
    Repeated,
    /// A header that no record has.
    Malformed,
    /// A segment never comes, and is acknowledged all the same.
    Lost,
    /// Keys that fit nothing.
    WrongKeys,
    /// Nothing moves for longer than stalls may take.
    Pause,
}

const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::Cut,
    Fault::Reset,
    Fault::Changed,
    Fault::Repeated,
    Fault::Malformed,
    Fault::Lost,
    Fault::WrongKeys,
    Fault::Pause,
];

/// How it ends, if it has not ended before.
#[derive(Clone, Copy, Debug)]
enum End {
    Fins,
    Idle,
    Shutdown,
}

/// A step that the engine was given, and what it did.
struct Step {
    /// The handler has asked for the reset, in this step or before it.
    reset: bool,
    verdict: Option<Verdict>,
    outputs: Vec<Output>,
}

struct Run {
    t: T,
    steps: Vec<Step>,
}

impl Run {
    fn note(&mut self, verdict: Option<Verdict>) {
        while let Some(output) = self.t.engine.poll_output() {
            self.t.out.push(output);
        }
        let outputs = std::mem::take(&mut self.t.out);
        let reset = self.t.engine.handler().reset.is_some();
        self.steps.push(Step { reset, verdict, outputs });
    }

    fn send(&mut self, d: Direction, at: i64, ack: u64, flags: u8, bytes: &[u8]) {
        let verdict = self.t.send(d, at, ack, flags, bytes);
        self.note(Some(verdict));
    }

    fn keys(&mut self, script: &Script, d: Direction, epoch: KeyEpoch, wrong: bool) {
        let NullKeys(number) = keys(d, epoch);
        let number = if wrong { 77 } else { number };
        let opener: Box<dyn OpenRecord> = match script.tls12 {
            true => Box::new(NullKeys12(number)),
            false => Box::new(NullKeys(number)),
        };
        let shared = SharedKeys {
            sender: None,
            source: 0,
            client_random: RANDOM,
            server_random: None,
            cipher_suite: CipherSuite(SUITE),
            keys: vec![(d, epoch, opener)],
        };
        let _ = self.t.engine.handle_keys(self.t.now, shared);
        self.note(None);
    }

    fn wait(&mut self, ns: u64) {
        self.t.now += ns;
        self.t.engine.handle_timeout(self.t.now);
        self.note(None);
    }
}

/// Plays what a seed says, with a reset inside one event or without.
fn play(seed: u64, reset_in: Option<usize>) -> Run {
    let mut rng = Seeded::new(seed);
    let script = match seed % 3 {
        0 => script(seed),
        1 => early_script(seed),
        _ => script12(seed),
    };
    let mut config = T::config();
    let policies = [Policy::Reset, Policy::Forward, Policy::Bypass];
    config.policies.missing_keys = policies[rng.below(3)];
    config.policies.integrity_failure = policies[rng.below(2)];
    config.policies.lost_synchronisation = policies[rng.below(2)];
    config.limits.idle_timeout_ns = 1000 * SECOND;
    config.supports = |_, suite| suite.0 == SUITE;
    let mut t = T::with(config);
    let recorder = t.engine.handler_mut();
    *recorder = Recorder { reset_in, ..Recorder::default() };
    let mut run = Run { t, steps: Vec::new() };
    // Which keys come before which turn: some at the start, some late, some never.
    let mut epochs = vec![KeyEpoch::EarlyData, KeyEpoch::Handshake];
    epochs.extend((0..3).map(KeyEpoch::Application));
    let turns = script.turns.len();
    let latest = turns + rng.below(3);
    let together = rng.one_in(2).then(|| rng.below(latest + 1));
    let mut arrivals = Vec::new();
    for d in Direction::BOTH {
        for epoch in &epochs {
            let share = rng.below(10) > 0 && !(rng.one_in(3) && *epoch == KeyEpoch::Handshake);
            arrivals.push((together.unwrap_or_else(|| rng.below(latest + 1)), share, d, *epoch));
        }
    }
    let deliver = |run: &mut Run, turn: usize| {
        for (at, share, d, epoch) in &arrivals {
            if *at == turn && *share {
                run.keys(&script, *d, *epoch, false);
            }
        }
    };
    let fault = FAULTS[rng.below(FAULTS.len())];
    let faulty = rng.below(turns);
    run.send(C, -1, 0, flag::SYN, &[]);
    run.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    run.send(C, 0, 0, flag::ACK, &[]);
    let mut at = [0u64; 2];
    let mut over = [false; 2];
    for (number, turn) in script.turns.iter().enumerate() {
        deliver(&mut run, number);
        let (d, s) = (turn.direction, side(turn.direction));
        let mut bytes = turn.bytes.clone();
        let strikes = number == faulty;
        if strikes && fault == Fault::Changed {
            let place = rng.below(bytes.len());
            bytes[place] ^= 1;
        }
        if strikes && fault == Fault::Malformed {
            bytes[3..5].fill(0xff);
        }
        let cut = if rng.one_in(2) { 1 + rng.below(1400) } else { 16_000 };
        let stop = match fault {
            Fault::Cut if strikes => 1 + rng.below(bytes.len()),
            _ => bytes.len(),
        };
        let mut from = 0;
        while from < stop && !over[s] {
            let to = (from + cut).min(stop);
            let lost = strikes && fault == Fault::Lost && from == 0;
            if !lost {
                let ends = strikes && fault == Fault::Cut && to == stop;
                let flags = if ends { flag::ACK | flag::FIN } else { flag::ACK };
                run.send(d, at[s] as i64, at[1 - s], flags, &bytes[from..to]);
                over[s] |= ends;
            }
            at[s] += (to - from) as u64;
            from = to;
        }
        if strikes {
            match fault {
                Fault::Lost => run.send(d.reverse(), at[1 - s] as i64, at[s], flag::ACK, &[]),
                Fault::Reset => {
                    run.send(d, at[s] as i64, at[1 - s], flag::RST | flag::ACK, &[]);
                    over = [true; 2];
                }
                Fault::Repeated => {
                    let last = at[s] as i64 - 1;
                    let other = [bytes[bytes.len() - 1] ^ 1, 0];
                    run.send(d, last, at[1 - s], flag::ACK, &other);
                }
                Fault::WrongKeys => {
                    for d in Direction::BOTH {
                        run.keys(&script, d, KeyEpoch::Application(0), true);
                    }
                }
                Fault::Pause => run.wait(20 * SECOND),
                Fault::None | Fault::Cut | Fault::Changed | Fault::Malformed => {}
            }
        }
    }
    for turn in turns..=latest {
        deliver(&mut run, turn);
    }
    let end = [End::Fins, End::Fins, End::Idle, End::Shutdown][rng.below(4)];
    match end {
        End::Fins => {
            for d in if rng.one_in(2) { [C, S] } else { [S, C] } {
                let s = side(d);
                run.send(d, at[s] as i64, at[1 - s], flag::FIN | flag::ACK, &[]);
            }
        }
        End::Idle => {
            // Stalls end first, each in its own time.
            run.wait(20 * SECOND);
            run.wait(2000 * SECOND);
        }
        End::Shutdown => {
            run.t.engine.finish();
            run.note(None);
        }
    }
    if !matches!(end, End::Shutdown) {
        for d in [C, S] {
            let s = side(d);
            run.send(d, at[s] as i64, at[1 - s], flag::ACK, &[23, 3, 3, 0, 60, 1, 2]);
        }
        run.t.engine.finish();
        run.note(None);
    }
    run
}

/// Ports that a RST was sent to.
fn told(outputs: &[Output]) -> BTreeSet<u8> {
    let to = |output: &Output| match output {
        Output::Inject { exit: Exit::AwayFrom(PortId(port)), .. } => Some(1 - port),
        Output::Inject { exit: Exit::Through(PortId(port)), .. } => Some(*port),
        _ => None,
    };
    outputs.iter().filter_map(to).collect()
}

/// Which kind of event this is, for counting.
fn kind(event: &Event) -> String {
    match event {
        Event::Record(..) => "record".to_owned(),
        Event::Error(_, error) => format!("error {error}"),
        Event::Stall(_) => "stall".to_owned(),
        Event::Keys(..) => "keys".to_owned(),
        Event::Certificates(..) => "certificates".to_owned(),
        Event::SessionEnd(EndReason::ResetByPolicy(_)) => "end by policy".to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_reset_in_any_event_must_stop_both_directions() {
    let mut kinds = BTreeSet::new();
    let (mut runs, mut waiting) = (0, [0; 4]);
    for seed in 0..600 {
        let events = play(seed, None).t.engine.handler().raised;
        for number in 0..events {
            let run = play(seed, Some(number));
            let event = run.t.engine.handler().reset.clone();
            let event = event.unwrap_or_else(|| panic!("{seed}: no event {number}"));
            let at = run.steps.iter().position(|step| step.reset).unwrap();
            // Policy has decided first where the end is its doing.
            let decided = matches!(event, Event::SessionEnd(EndReason::ResetByPolicy(_)));
            for (later, step) in run.steps[at..].iter().enumerate() {
                let what = format!("seed {seed}, event {number} ({event:?}), step +{later}");
                let released = step.outputs.iter().any(|it| matches!(it, Output::Release(_)));
                assert!(!released, "{what}: released");
                match step.verdict {
                    None | Some(Verdict::Drop) => {}
                    Some(Verdict::Hold(id)) => {
                        assert!(step.outputs.contains(&Output::Discard(id)), "{what}: held");
                    }
                    Some(Verdict::Forward | Verdict::Again) => panic!("{what}: forwarded"),
                }
            }
            let told = told(&run.steps[at].outputs);
            assert!(decided || told.len() == 2, "seed {seed}, {event:?}: told {told:?}");
            let stalled = |d: Direction| {
                let events = &run.t.engine.handler().events;
                events.contains(&Event::Stall(d))
            };
            waiting[usize::from(stalled(C)) + 2 * usize::from(stalled(S))] += 1;
            kinds.insert(kind(&event));
            runs += 1;
        }
    }
    println!("{runs} resets, {waiting:?} with stalls of neither, the client, the server, both");
    println!("{kinds:?}");
    assert!(waiting.iter().all(|count| *count > 50), "{waiting:?}");
    let errors = [
        SessionError::EarlyFin,
        SessionError::Integrity,
        SessionError::ConflictingOverlap,
        SessionError::MalformedRecord,
        SessionError::KeysDoNotFit,
        SessionError::MissingKeys,
        SessionError::LostSynchronisation,
        SessionError::EarlyDataNotInspected,
        SessionError::NothingOpened,
        SessionError::JudgedLate,
    ];
    let others = [
        "SessionStart",
        "HandshakeStart",
        "ServerHello",
        "HandshakeEnd",
        "EarlyData(true)",
        "EarlyData(false)",
        "certificates",
        "record",
        "stall",
        "keys",
        "SessionEnd(Closed)",
        "SessionEnd(ResetByPeer(ClientToServer))",
        "SessionEnd(ResetByPeer(ServerToClient))",
        "SessionEnd(TimedOut)",
        "SessionEnd(Shutdown)",
    ];
    let all = errors.iter().map(|it| format!("error {it}")).chain(others.map(str::to_owned));
    let missing: Vec<_> = all.filter(|it| !kinds.contains(it)).collect();
    assert!(missing.is_empty(), "never raised: {missing:?}");
}

#[test]
fn a_session_that_is_reset_when_its_time_is_over_must_be_forgotten() {
    let idle = |t: &mut T, seconds: u64| {
        t.now += seconds * SECOND;
        t.engine.handle_timeout(t.now);
    };
    let mut dry = T::new();
    established(&mut dry);
    idle(&mut dry, 3 * 3600);
    let last = dry.engine.handler().raised - 1;
    let mut t = T::new();
    t.engine.handler_mut().reset_in = Some(last);
    let at = established(&mut t);
    idle(&mut t, 3 * 3600);
    assert_eq!(t.engine.handler().reset, Some(Event::SessionEnd(EndReason::TimedOut)));
    let late = t.send(C, at[0] as i64, at[1], flag::ACK, b"late");
    assert_eq!((late, t.engine.flow_count()), (Verdict::Drop, 1), "a tombstone");
    idle(&mut t, 3600);
    assert_eq!((t.engine.flow_count(), t.engine.next_timeout()), (0, None));
}

#[test]
fn the_end_must_name_what_ended_it() {
    for fin_first in [false, true] {
        let mut t = T::new();
        let at = established(&mut t);
        if fin_first {
            t.send(S, at[1] as i64, at[0], flag::ACK | flag::FIN, &[]);
        }
        let mut bad = sealed(C, 1);
        *bad.last_mut().unwrap() ^= 1;
        let ack = at[1] + u64::from(fin_first);
        let sent = t.send(C, at[0] as i64, ack, flag::ACK | flag::FIN, &bad);
        assert_eq!(sent, Verdict::Drop);
        let end = EndReason::ResetByPolicy(SessionError::Integrity);
        assert!(t.engine.handler().events.contains(&Event::SessionEnd(end)), "{fin_first}");
    }
}
