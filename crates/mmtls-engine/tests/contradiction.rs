//! Two senders who share different keys for the same records: no AEAD commits to a key, so both may open them, and one of the
//! two is hostile. Servers are honest here.

use crate::harness::attack::*;
use crate::harness::{Keys, RANDOM, SUITE, keys};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const DATA: ContentType = ContentType::APPLICATION_DATA;

/// What records have in them under other keys.
#[derive(Clone, Copy)]
enum Content {
    Same,
    Another,
    Malformed,
}

/// Under these keys the same records are authentic, with numbers that are so much lower.
#[derive(Clone, Copy)]
struct Other<K> {
    keys: K,
    behind: u64,
    content: Content,
}

impl<K: OpenRecord> OpenRecord for Other<K> {
    fn open(
        &self,
        sequence: u64,
        header: [u8; 5],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let opened = self.keys.open(sequence + self.behind, header, fragment, plaintext)?;
        match self.content {
            Content::Same => {}
            Content::Another => plaintext[..opened.len].fill(b'?'),
            Content::Malformed => return Err(OpenError::Malformed),
        }
        Ok(opened)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [b'?'; 32]
    }
}

fn right(direction: Direction, epoch: KeyEpoch) -> NullKeys {
    keys(direction, epoch)
}

fn other<K>(keys: K) -> Other<K> {
    Other { keys, behind: 0, content: Content::Another }
}

const FIRST: KeyEpoch = KeyEpoch::Application(0);

/// Both ends may share.
fn both() -> T {
    let key_senders = KeySenders { server: true, ..KeySenders::CLIENT };
    T::with(Config { key_senders, ..T::config() })
}

/// One of them does.
fn share(t: &mut T, by_client: bool, of: Direction, epoch: KeyEpoch, opener: Box<dyn OpenRecord>) {
    let sender = if by_client { t.ep.client } else { t.ep.server };
    let shared = SharedKeys {
        sender: Some(sender.ip()),
        source: u64::from(by_client),
        client_random: RANDOM,
        server_random: None,
        cipher_suite: CipherSuite(SUITE),
        keys: vec![(of, epoch, opener)],
    };
    let _ = t.engine.handle_keys(t.now, shared);
    t.drain();
}

fn is_contradicted(t: &T) -> bool {
    t.engine.handler().errors().contains(&(C, SessionError::Integrity))
}

#[test]
fn keys_that_open_a_record_of_others_must_not_be_believed() {
    let right = right(C, FIRST);
    let with = |content| Box::new(Other { content, ..other(right) });
    let later: [(Box<dyn OpenRecord>, bool); 5] = [
        (with(Content::Another), false),
        (with(Content::Malformed), false),
        // Although this record is the same.
        (with(Content::Same), false),
        // From the other end.
        (Box::new(right), true),
        (Box::new(NullKeys(7000)), true),
    ];
    for (keys, is_believed) in later {
        let mut t = T::new();
        let at = established(&mut t);
        let sender = Some(t.ep.client.ip());
        t.source = 1;
        let _ = t.keys_with(C, 0, keys, RANDOM, sender);
        let judged = t.judged();
        let verdict = t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1));
        let errors = t.engine.handler().errors();
        match is_believed {
            true => assert!(t.judged() == judged + 1 && errors.is_empty(), "{errors:?}"),
            false => {
                assert_eq!(verdict, Verdict::Drop);
                assert_eq!(errors, [(C, SessionError::Integrity)]);
            }
        }
    }
    // Both before the first record, whichever came first.
    for is_first in [true, false] {
        let mut t = T::new();
        t.open();
        let sender = Some(t.ep.client.ip());
        let mut all: [Box<dyn OpenRecord>; 2] = [Box::new(other(right)), Box::new(right)];
        if !is_first {
            all.reverse();
        }
        for (source, keys) in (1..).zip(all) {
            t.source = source;
            let _ = t.keys_with(C, 0, keys, RANDOM, sender);
        }
        let _ = t.keys(S, 0);
        t.play(&simple());
        assert!(is_contradicted(&t), "{is_first}");
    }
}

/// The first record of content passes for one of the client's flight, since the client's keys open it from the next one on.
#[test]
fn keys_that_open_from_a_later_record_on_must_not_be_believed() {
    for server_shares in [true, false] {
        let mut builder = builder();
        for _ in 0..3 {
            builder.record(C, DATA, b"GET /secret", 0);
        }
        let script = builder.build();
        let mut t = both();
        t.open();
        let later = Other { behind: 1, ..other(right(C, FIRST)) };
        share(&mut t, true, C, FIRST, Box::new(later));
        share(&mut t, true, S, FIRST, Box::new(right(S, FIRST)));
        let (last, before) = script.turns.split_last().unwrap();
        let at = t.play(&Script { turns: before.to_vec(), ..script.clone() });
        // The first two, of which one was judged.
        let (two, third) = last.bytes.split_at((script.records[0][1].end - at[0]) as usize);
        t.send(C, at[0] as i64, at[1], flag::ACK, two);
        assert_eq!(t.judged(), 1);
        if server_shares {
            share(&mut t, false, C, FIRST, Box::new(right(C, FIRST)));
        }
        t.send(C, at[0] as i64 + two.len() as i64, at[1], flag::ACK, third);
        assert_eq!(is_contradicted(&t), server_shares);
    }
}

/// What was sent under the first epoch's keys passed for the client's flight, and the KeyUpdate with it.
#[test]
fn keys_that_are_of_two_epochs_must_not_be_believed() {
    for server_shares in [true, false] {
        let mut builder = builder();
        builder.record(C, DATA, b"GET /secret", 0);
        builder.key_update(C);
        builder.record(C, DATA, b"GET /", 0);
        let mut t = both();
        t.open();
        let next = KeyEpoch::Application(1);
        share(&mut t, true, C, FIRST, Box::new(right(C, next)));
        share(&mut t, true, S, FIRST, Box::new(right(S, FIRST)));
        t.play(&builder.build());
        assert!(!is_contradicted(&t));
        if server_shares {
            share(&mut t, false, C, FIRST, Box::new(right(C, FIRST)));
            share(&mut t, false, C, next, Box::new(right(C, next)));
        }
        assert_eq!(is_contradicted(&t), server_shares);
        assert_eq!(t.alive(), !server_shares);
    }
}

/// Told before either is in use.
#[test]
fn keys_that_are_shared_for_two_epochs_must_not_be_believed() {
    let mut builder = builder();
    builder.record(C, DATA, b"GET /secret", 0);
    builder.key_update(C);
    builder.record(C, DATA, b"GET /", 0);
    let mut t = both();
    t.open();
    let mut at = [0; 2];
    for turn in builder.build().turns {
        let own = side(turn.direction);
        t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, &turn.bytes);
        at[own] += turn.bytes.len() as u64;
        if at[1] == 0 {
            let next = KeyEpoch::Application(1);
            for epoch in [next, FIRST] {
                share(&mut t, true, C, epoch, Box::new(right(C, next)));
            }
            share(&mut t, true, S, FIRST, Box::new(right(S, FIRST)));
        }
    }
    assert!(is_contradicted(&t));
}

#[test]
fn keys_of_tls12_must_not_contradict_others() {
    let keys = |direction, epoch| NullKeys12(keys(direction, epoch).0);
    for (is_ahead, is_other) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut builder = ScriptBuilder::tls12(RANDOM, SUITE, keys);
        builder.record(C, DATA, b"GET /", 0);
        let script = builder.build();
        let key_senders = KeySenders { server: true, ..KeySenders::CLIENT };
        let mut t = T::with(Config { key_senders, supports: |_, _| true, ..T::config() });
        t.open();
        for direction in Direction::BOTH {
            share(&mut t, true, direction, FIRST, Box::new(keys(direction, FIRST)));
        }
        let second = |t: &mut T| {
            let right = keys(C, FIRST);
            let keys: Box<dyn OpenRecord> =
                if is_other { Box::new(other(right)) } else { Box::new(right) };
            share(t, false, C, FIRST, keys);
        };
        let (last, before) = script.turns.split_last().unwrap();
        if is_ahead {
            second(&mut t);
        }
        let at = t.play(&Script { turns: before.to_vec(), ..script.clone() });
        if !is_ahead {
            second(&mut t);
        }
        t.send(last.direction, at[0] as i64, at[1], flag::ACK, &last.bytes);
        assert_eq!(is_contradicted(&t), is_other, "{is_ahead}");
        assert_eq!(t.judged(), usize::from(!(is_other && is_ahead)), "{is_ahead}");
    }
}

#[test]
fn keys_of_early_data_and_of_the_handshake_must_not_contradict_others() {
    for (epoch, fate) in [
        (KeyEpoch::EarlyData, EarlyFate::Accepted),
        (KeyEpoch::Handshake, EarlyFate::RefusedWithKey),
    ] {
        for is_late in [false, true] {
            let is_early = epoch == KeyEpoch::EarlyData;
            let before = if is_early { vec![vec![7; 300]; 3] } else { vec![] };
            let early = EarlyScript { fate, before, after: vec![] };
            let keys = keys as Keys;
            let mut builder = match is_early {
                true => ScriptBuilder::early(RANDOM, SUITE, &[900, 100], &early, keys),
                false => ScriptBuilder::new(RANDOM, SUITE, false, &[900, 100, 100], keys),
            };
            builder.record(C, DATA, b"a request", 0);
            let script = builder.build();
            let direction = if is_early { C } else { S };
            let hostile = Other { content: Content::Same, ..other(right(direction, epoch)) };
            let mut t = both();
            t.open();
            share(&mut t, true, direction, epoch, Box::new(hostile));
            if !is_late {
                share(&mut t, false, direction, epoch, Box::new(right(direction, epoch)));
            }
            let mut at = [0; 2];
            for turn in &script.turns {
                let own = side(turn.direction);
                for part in turn.bytes.chunks(500) {
                    t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, part);
                    at[own] += part.len() as u64;
                    if is_late {
                        let keys = right(direction, epoch);
                        share(&mut t, false, direction, epoch, Box::new(keys));
                    }
                }
            }
            let errors = t.engine.handler().errors();
            assert_eq!(errors, [(direction, SessionError::Integrity)], "{epoch:?} {is_late}");
        }
    }
}

/// Whoever the client gets to send keys, too.
#[test]
fn many_keys_of_one_end_must_not_keep_the_others_from_being_compared() {
    let mut t = both();
    let mut at = established(&mut t);
    let sender = Some(t.ep.client.ip());
    let junk = |t: &mut T, connections: std::ops::Range<u64>| {
        for connection in connections {
            t.source = connection;
            for number in 0..8 {
                let _ = t.keys_with(C, 0, Box::new(NullKeys(7000 + number)), RANDOM, sender);
            }
        }
    };
    let before = t.engine.counters().trials_failed;
    let mut last = 0;
    for record in 1..10 {
        junk(&mut t, 100 * record..100 * record + 32);
        if record == 9 {
            share(&mut t, false, C, FIRST, Box::new(other(right(C, FIRST))));
            junk(&mut t, 1000..1032);
        }
        last = t.engine.counters().trials_failed - before;
        let bytes = sealed(C, record);
        t.send(C, at[0] as i64, at[1], flag::ACK, &bytes);
        at[0] += bytes.len() as u64;
        assert_eq!(is_contradicted(&t), record == 9);
    }
    assert_eq!(last, 64, "the client's share");
}

/// Not even those of the handshake, of which there are several until one has opened a record.
#[test]
fn keys_that_open_nothing_must_not_displace_those_that_do() {
    let mut builder = ScriptBuilder::new(RANDOM, SUITE, false, &[900, 100, 100], keys as Keys);
    builder.record(C, DATA, b"a request", 0);
    let mut t = both();
    t.open();
    share(&mut t, true, S, KeyEpoch::Handshake, Box::new(right(S, KeyEpoch::Handshake)));
    let mut at = [0; 2];
    for turn in builder.build().turns {
        let own = side(turn.direction);
        for part in turn.bytes.chunks(500) {
            t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, part);
            at[own] += part.len() as u64;
            let is_known = t.engine.counters().handshake_records_opened > 0;
            for connection in 0..if is_known { 20 } else { 0 } {
                t.source = 100 * at[1] + connection;
                for number in 0..8 {
                    let keys = vec![(S, KeyEpoch::Handshake, Box::new(NullKeys(number)) as Box<_>)];
                    let shared = SharedKeys {
                        sender: Some(t.ep.client.ip()),
                        source: t.source,
                        client_random: RANDOM,
                        server_random: None,
                        cipher_suite: CipherSuite(SUITE),
                        keys,
                    };
                    let _ = t.engine.handle_keys(t.now, shared);
                }
            }
        }
    }
    assert_eq!(t.engine.handler().errors(), []);
    let opened = t.engine.counters().handshake_records_opened;
    assert!(opened >= 3, "{opened}");
}

/// Who shares keys makes the monitor try them: not on every record.
#[test]
fn keys_that_contradict_nothing_must_not_cost_much() {
    let mut t = T::new();
    let mut at = established(&mut t);
    let sender = Some(t.ep.client.ip());
    let before = t.engine.counters().trials_failed;
    for record in 1..30 {
        t.source = record;
        for number in 0..8 {
            let _ = t.keys_with(C, 0, Box::new(NullKeys(7000 + number)), RANDOM, sender);
        }
        let bytes = sealed(C, record);
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &bytes), Verdict::Forward);
        at[0] += bytes.len() as u64;
        // As the record that it is, and as the one behind it: Finished has passed unopened.
        assert_eq!(t.engine.counters().trials_failed - before, 64.min(16 * record));
    }
}
