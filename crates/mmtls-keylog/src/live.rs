//! A key log that is still being written, for live use: secrets come after the sessions that want
//! them, or before.
//!
//! Refuses to grow without bound: of sessions and of pending requests the older half goes when there are too
//! many. Nothing here waits or reads; [`follow`](super::follow) does.

use std::collections::HashMap;

use crate::log::KeyLog;

/// Sessions in one of two generations of secrets, and of pending requests.
const MAX_SESSIONS: usize = 1 << 16;

/// Pending requests for one session: a few epochs of both directions. Clients can repeat a random.
const MAX_PENDING: usize = 16;

/// Secrets, and requests `W` that wait for them; they are answered with `A`.
pub struct LiveKeys<W, A> {
    /// The newer and the older generation.
    logs: [KeyLog; 2],
    pending: [HashMap<[u8; 32], Vec<W>>; 2],
    max_sessions: usize,
    answer: fn(&KeyLog, &W) -> Option<A>,
}

impl<W, A> LiveKeys<W, A> {
    /// An empty one. `answer` makes an answer where the secret is there.
    #[must_use]
    pub fn new(answer: fn(&KeyLog, &W) -> Option<A>) -> Self {
        Self::with_capacity(answer, MAX_SESSIONS)
    }

    /// The same for so many sessions in each of two generations, of secrets and of requests.
    #[must_use]
    pub fn with_capacity(answer: fn(&KeyLog, &W) -> Option<A>, max_sessions: usize) -> Self {
        Self { logs: Default::default(), pending: Default::default(), max_sessions, answer }
    }

    /// Somebody wants keys of a session: those, or they are given when their line comes.
    pub fn want(&mut self, client_random: [u8; 32], wanted: W) -> Option<A> {
        let found = self.find(&wanted);
        if found.is_none() {
            if self.pending[0].len() >= self.max_sessions {
                self.pending[1] = core::mem::take(&mut self.pending[0]);
            }
            let pending = self.pending[0].entry(client_random).or_default();
            if pending.len() >= MAX_PENDING {
                pending.remove(0);
            }
            pending.push(wanted);
        }
        found
    }

    /// Takes in whole lines; the keys that were wanted and can be made now.
    pub fn add(&mut self, text: &[u8]) -> Vec<A> {
        self.add_and_tell(text, |_| ())
    }

    /// As [`Self::add`]; `each` is told of the session of each line.
    pub fn add_and_tell(&mut self, text: &[u8], mut each: impl FnMut([u8; 32])) -> Vec<A> {
        if self.logs[0].sessions() >= self.max_sessions {
            self.logs[1] = core::mem::take(&mut self.logs[0]);
        }
        let mut randoms = Vec::new();
        self.logs[0].add_lines(text, |random| randoms.push(random));
        let mut found = Vec::new();
        for random in randoms {
            each(random);
            for generation in 0..self.pending.len() {
                let Some(pending) = self.pending[generation].remove(&random) else {
                    continue;
                };
                let mut open = Vec::new();
                for wanted in pending {
                    match self.find(&wanted) {
                        Some(keys) => found.push(keys),
                        None => open.push(wanted),
                    }
                }
                if !open.is_empty() {
                    self.pending[generation].insert(random, open);
                }
            }
        }
        found
    }

    /// What is wanted, if its secret is there.
    #[must_use]
    pub fn find(&self, wanted: &W) -> Option<A> {
        self.logs.iter().find_map(|log| (self.answer)(log, wanted))
    }
}

#[cfg(test)]
mod tests {
    use base16ct::lower::encode_string as hex;
    use mmtls_record::{Direction, KeyEpoch, SessionParameters};

    use super::*;

    type Request = (u8, KeyEpoch);

    fn line(label: &str, random: u8) -> Vec<u8> {
        format!("{label} {} {}\n", hex(&[random; 32]), hex(&[7; 32])).into_bytes()
    }

    /// Suites whose keys there are.
    fn answer(log: &KeyLog, &(random, epoch): &Request) -> Option<Vec<u16>> {
        let (client_random, direction) = ([random; 32], Direction::ClientToServer);
        let suites: Vec<u16> = match epoch {
            KeyEpoch::EarlyData => log.candidate_suites(&client_random, direction, epoch).collect(),
            _ => vec![0x1301],
        };
        let known = |&cipher_suite: &u16| {
            let parameters = SessionParameters {
                version: 0x0304,
                cipher_suite,
                client_random,
                server_random: None,
            };
            log.record_keys(parameters, direction, epoch).is_some()
        };
        let found: Vec<u16> = suites.into_iter().filter(known).collect();
        (!found.is_empty()).then_some(found)
    }

    fn want(live: &mut LiveKeys<Request, Vec<u16>>, random: u8, epoch: KeyEpoch) -> bool {
        live.want([random; 32], (random, epoch)).is_some()
    }

    #[test]
    fn accepts_lines_before_and_behind_the_request() {
        let mut live = LiveKeys::new(answer);
        let application = KeyEpoch::Application(0);
        assert!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 1)).is_empty());
        assert!(want(&mut live, 1, application));
        assert!(!want(&mut live, 2, KeyEpoch::EarlyData));
        assert!(!want(&mut live, 2, application));
        let found = live.add(&line("CLIENT_EARLY_TRAFFIC_SECRET", 2));
        // Each suite that the secret fits.
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [8]);
        assert_eq!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 2)).len(), 1);
        assert!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 2)).is_empty(), "given once");
        // A KeyUpdate needs no line of its own.
        assert!(want(&mut live, 2, KeyEpoch::Application(3)));
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut live = LiveKeys::with_capacity(answer, 4);
        for random in 0..200 {
            assert!(!want(&mut live, random, KeyEpoch::Handshake));
            live.add(&line("CLIENT_TRAFFIC_SECRET_0", random));
            assert!(live.logs.iter().all(|log| log.sessions() <= 4));
            assert!(live.pending.iter().all(|pending| pending.len() <= 4));
        }
        assert!(want(&mut live, 199, KeyEpoch::Application(0)));
        assert!(!want(&mut live, 3, KeyEpoch::Application(0)));
    }
}
