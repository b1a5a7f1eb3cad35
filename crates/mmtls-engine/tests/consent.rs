//! An endpoint shares one direction and refuses the other: what it refuses passes unread, whatever comes of it, and the
//! other is followed to the end.

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM, SUITE, early_script, opener, script, script12};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::{Script, side};

/// When something of a session comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// Ahead of it.
    Ahead,
    /// With the answer to the first question, or the ServerHello.
    InTime,
    /// Behind everything that can pass without it.
    Late,
}

const TIMES: [When; 3] = [When::Ahead, When::InTime, When::Late];

struct Run<'a> {
    t: T,
    script: &'a Script,
    refused: Option<Direction>,
    /// Questions that are answered late.
    open: Vec<KeysNeeded>,
}

impl<'a> Run<'a> {
    fn new(script: &'a Script, refused: Option<Direction>, inline: bool) -> Self {
        let mut config = T::config();
        config.inline = inline;
        config.supports = |_, suite| suite.0 == SUITE;
        Self { t: T::with(config), script, refused, open: Vec::new() }
    }

    fn refuse(&mut self) {
        if self.refused.is_some() {
            let sender = Some(self.t.ep.client.ip());
            let _ = self.t.engine.handle_null_keys(self.t.now, sender, RANDOM, self.refused);
            self.drain();
        }
    }

    /// Keys of an epoch, unless it is refused.
    fn share(&mut self, direction: Direction, epoch: KeyEpoch) {
        let shared = SharedKeys {
            sender: Some(self.t.ep.client.ip()),
            source: 0,
            client_random: RANDOM,
            server_random: None,
            cipher_suite: CipherSuite(SUITE),
            keys: vec![(direction, epoch, opener(self.script, direction, epoch))],
        };
        let _ = self.t.engine.handle_keys(self.t.now, shared);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.t.engine.poll_output() {
            self.t.out.push(output);
        }
        for output in std::mem::take(&mut self.t.out) {
            match output {
                Output::KeysNeeded(wanted) => self.open.push(wanted),
                Output::Discard(_)
                | Output::Inject { .. }
                | Output::Offload(_)
                | Output::TakeBack(_) => {
                    panic!("{output:?}, {:?}", self.t.engine.handler().errors())
                }
                Output::Release(_) | Output::KeysOpenNothing(_) | Output::LiveKeysNeeded(_) => {}
            }
        }
    }

    fn answer(&mut self) {
        for wanted in std::mem::take(&mut self.open) {
            if Some(wanted.direction) != self.refused && wanted.epoch != KeyEpoch::Handshake {
                self.share(wanted.direction, wanted.epoch);
            }
        }
    }

    /// Plays everything; how it came out.
    fn play(mut self, null: When, shared: When) -> T {
        self.t.open();
        if null == When::Ahead {
            self.refuse();
        }
        let mut at = [0u64; 2];
        for (number, turn) in self.script.turns.iter().enumerate() {
            let s = side(turn.direction);
            self.t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
            self.drain();
            if null == When::InTime && number == 1 {
                self.refuse();
            }
            if shared != When::Late {
                self.answer();
            }
        }
        if null == When::Late {
            self.refuse();
        }
        for _ in 0..20 {
            self.answer();
        }
        self.t
    }
}

fn records(t: &T, direction: Direction) -> Vec<&Event> {
    let of = |it: &&Event| matches!(it, Event::Record(of, ..) if *of == direction);
    t.engine.handler().events.iter().filter(of).collect()
}

/// Scripts of each kind, but those in which a handshake is hidden in a refused direction; whether they offer early data.
fn scripts() -> impl Iterator<Item = (Script, bool)> {
    let hides = |it: &Script| it.tls12 && it.client_randoms.len() > 1;
    let all = (0..120).map(|seed| match seed % 3 {
        0 => (script(seed), false),
        1 => (early_script(seed), true),
        _ => (script12(seed), false),
    });
    all.filter(move |(it, _)| !hides(it))
}

#[test]
fn what_is_refused_must_pass_unread_and_the_other_direction_be_followed() {
    let (mut opened, mut unread) = (0, 0);
    for (script, early) in scripts() {
        for inline in [true, false] {
            // Without keys nothing tells where early data end, and the server's answers begin.
            let latest = if early { When::InTime } else { When::Late };
            let both = [When::InTime, latest]
                .map(|shared| Run::new(&script, None, inline).play(When::Late, shared));
            for refused in [C, S] {
                for (null, shared) in
                    TIMES.into_iter().flat_map(|it| [(it, When::InTime), (it, When::Late)])
                {
                    if shared == When::Late && early {
                        continue;
                    }
                    let run = Run::new(&script, Some(refused), inline);
                    let t = run.play(null, shared);
                    let what =
                        format!("{refused:?} refused {null:?}, keys {shared:?}, inline {inline}");
                    let other = refused.reverse();
                    let both = &both[usize::from(shared == When::Late)];
                    assert_eq!(records(&t, other), records(both, other), "{what}");
                    assert_eq!(records(&t, refused).len(), 0, "{what}");
                    assert_eq!(t.engine.handler().errors(), [], "{what}");
                    let counters = t.engine.counters();
                    assert_eq!((counters.directions_refused, counters.null_keys), (1, 0), "{what}");
                    opened += records(&t, other).len();
                    unread += counters.records_unread;
                }
            }
        }
    }
    assert!(opened > 1000 && unread > 1000, "{opened} opened, {unread} unread");
}

fn refuse(t: &mut T, direction: Option<Direction>) -> Result<bool, KeyRefusal> {
    let sender = Some(t.ep.client.ip());
    let outcome = t.engine.handle_null_keys(t.now, sender, RANDOM, direction);
    while let Some(output) = t.engine.poll_output() {
        t.out.push(output);
    }
    outcome
}

#[test]
fn keys_of_a_refused_direction_must_not_be_used() {
    let script = simple();
    for early in [true, false] {
        let mut t = T::new();
        t.open();
        if early {
            // Whoever else has them: they wait for the session, and so does the refusal.
            let _ = t.keys(C, 0);
        }
        assert_eq!(refuse(&mut t, Some(C)), Ok(false));
        let _ = t.keys(S, 0);
        t.play(&script);
        assert_eq!(t.keys(C, 0), Err(KeyRefusal::NotNeeded));
        assert_eq!((records(&t, C).len(), records(&t, S).len()), (0, 1), "{early}");
        assert_eq!(refuse(&mut t, Some(C)), Err(KeyRefusal::NotNeeded), "it is known");
    }
}

#[test]
fn a_direction_that_is_read_must_go_on_being_read() {
    for direction in [C, S] {
        let mut t = T::new();
        let at = established(&mut t);
        assert_eq!(refuse(&mut t, Some(direction)), Err(KeyRefusal::NotNeeded));
        let s = side(direction);
        t.send(direction, at[s] as i64, at[1 - s], flag::ACK, &sealed(direction, 1));
        assert_eq!(t.judged(), 3, "{direction:?}");
    }
}

#[test]
fn refusals_of_both_directions_must_exempt_the_session() {
    let mut t = T::new();
    t.open();
    let at = t.play(&simple());
    assert!(refuse(&mut t, Some(C)).is_ok() && refuse(&mut t, Some(S)).is_ok());
    let counters = t.engine.counters();
    assert_eq!((counters.directions_refused, counters.null_keys), (1, 1));
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Forward);
    assert_eq!(t.judged(), 0);
}

#[test]
fn refusals_must_meet_their_policy() {
    for direction in [C, S] {
        let mut config = T::config();
        config.policies.null_keys = Policy::Reset;
        let mut t = T::with(config);
        t.open();
        t.play(&simple());
        assert!(refuse(&mut t, Some(direction)).is_ok());
        assert!(!t.alive(), "{direction:?}");
        assert!(t.out.iter().any(|it| matches!(it, Output::Inject { .. })));
    }
}

/// A renegotiation whose ClientHello nobody can read is no session that can be followed: it ends, and passes nothing unseen.
#[test]
fn hidden_handshakes_must_fail_closed() {
    let renegotiates = |it: &Script| it.client_randoms.len() > 1;
    let scripts: Vec<Script> =
        (0..60).map(|it| script12(it * 3 + 2)).filter(renegotiates).collect();
    assert!(scripts.len() > 5);
    for script in &scripts {
        let mut config = T::config();
        config.supports = |_, suite| suite.0 == SUITE;
        let mut t = T::with(config);
        t.open();
        let _ = refuse(&mut t, Some(C));
        let shared = SharedKeys {
            sender: Some(t.ep.client.ip()),
            source: 0,
            client_random: RANDOM,
            server_random: None,
            cipher_suite: CipherSuite(SUITE),
            keys: vec![(S, KeyEpoch::Application(0), opener(script, S, KeyEpoch::Application(0)))],
        };
        let _ = t.engine.handle_keys(t.now, shared);
        t.play(script);
        assert!(!t.alive(), "{:?}", t.engine.handler().errors());
    }
}
