//! Keys that open nothing: their senders cannot know it otherwise.

use crate::harness::attack::*;
use crate::harness::{RANDOM, SUITE, opener, script12};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

/// Once for each connection that has sent some, whatever the version.
#[test]
fn keys_that_open_nothing_must_be_told_of() {
    for script in [simple(), script12(2)] {
        let mut config = T::config();
        config.supports = |_, suite| suite.0 == SUITE;
        let mut t = T::with(config);
        t.open();
        let mut at = [0u64; 2];
        for turn in &script.turns {
            for source in [7, 9] {
                for direction in [C, S] {
                    // Those of another epoch.
                    let wrong = opener(&script, direction, KeyEpoch::Application(source + 30));
                    (t.source, t.now) = (u64::from(source), t.now + 1);
                    let _ = t.keys_with(direction, 0, wrong, RANDOM, Some(t.ep.client.ip()));
                }
            }
            let s = side(turn.direction);
            t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
        }
        t.now += 30_000_000_000;
        let now = t.now;
        t.engine.handle_timeout(now);
        while let Some(output) = t.engine.poll_output() {
            t.out.push(output);
        }
        assert!(!t.alive());
        let told = |source: u64| {
            let of =
                |it: &&Output| matches!(it, Output::KeysOpenNothing(it) if it.source == source);
            t.out.iter().filter(of).count()
        };
        // In TLS 1.2 the first ones count, and the others are not tried.
        let others = if script.tls12 { 0 } else { 1 };
        assert!(told(7) >= 1 && told(9) >= others, "{} and {}", told(7), told(9));
        let counters = t.engine.counters();
        assert_eq!(counters.keys_open_nothing, (told(7) + told(9)) as u64);
    }
}
