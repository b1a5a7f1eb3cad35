//! Requests for keys of sessions with Encrypted Client Hello, at the endpoint: the middlebox names them by the random on the
//! wire, and where the server has taken the encrypted hello, the endpoint's secrets have that one's random.
//!
//! What is the same on both sides is the server's random, where the endpoint knows it, and the connection's ends. Where it
//! knows neither (a key log, rustls), the keys of any session of its own may be the right ones: the middlebox tries them on
//! records, and lets wrong ones go.
//!
//! Refuses: to answer a session's own request here, more than [`MAX_WAITING`] requests, and to keep one for more than
//! [`WAITING`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::Flow;
use crate::message::{EchKeyRequest, KeyRequest, Message, NullKeys, Random};

/// Requests that wait for secrets.
pub const MAX_WAITING: usize = 64;
/// How long: nobody waits for keys longer.
pub const WAITING: Duration = Duration::from_secs(10);
/// Most sessions whose keys are an answer to one request; a middlebox tries no more.
pub const MAX_CANDIDATES: usize = 8;

/// What an endpoint knows of a session.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// From the ClientHello that the server has answered.
    pub client_random: &'a Random,
    /// From the ServerHello.
    pub server_random: Option<&'a Random>,
    /// The connection's ends.
    pub flow: Option<Flow>,
}

impl Known<'_> {
    /// Whether the session that is asked for may be this one, by another random.
    #[must_use]
    pub fn may_be(&self, asked: &EchKeyRequest) -> bool {
        let EchKeyRequest { request, flow } = asked;
        if *self.client_random == request.client_random {
            return false;
        }
        match (self.server_random, self.flow, flow) {
            (Some(random), ..) => *random == request.server_random,
            (None, Some(own), Some(flow)) => own == *flow,
            (None, ..) => true,
        }
    }
}

/// A copy of keys or of their refusal, for the session of a request; `None` of other messages.
#[must_use]
pub fn renamed(message: &Message, client_random: Random) -> Option<Message> {
    match message {
        Message::SessionKeys(keys) => Some(Message::SessionKeys(keys.renamed(client_random))),
        Message::NullKeys(null) => {
            Some(Message::NullKeys(NullKeys { client_random, ..null.clone() }))
        }
        _ => None,
    }
}

/// Requests that wait for their session's secrets, and sessions that may be what is asked for next.
#[derive(Debug, Default)]
pub struct EchRequests {
    waiting: VecDeque<Waiting>,
    recent: VecDeque<(Instant, Random, Option<Flow>)>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    asked: EchKeyRequest,
    /// Sessions that were an answer to it.
    answers: Vec<Random>,
}

impl EchRequests {
    /// Keeps a request; the oldest gives way. `answer` is asked for one from each session noted before that may be the
    /// one, the latest first; the answers.
    pub fn wait<A>(
        &mut self,
        asked: EchKeyRequest,
        now: Instant,
        mut answer: impl FnMut(Random) -> Option<A>,
    ) -> Vec<A> {
        self.forget_old(now);
        let (mut all, mut answers) = (Vec::new(), Vec::new());
        for (_, client_random, flow) in self.recent.iter().rev() {
            let known = Known { client_random, server_random: None, flow: *flow };
            if known.may_be(&asked)
                && let Some(found) = answer(*client_random)
            {
                answers.push(*client_random);
                all.push(found);
            }
        }
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { since: now, asked, answers });
        all
    }

    /// Notes a session that nobody has asked for by its own random.
    pub fn note(&mut self, client_random: &Random, flow: Option<Flow>, now: Instant) {
        self.forget_old(now);
        if self.recent.iter().all(|(_, random, _)| random != client_random) {
            if self.recent.len() >= MAX_CANDIDATES {
                self.recent.pop_front();
            }
            self.recent.push_back((now, *client_random, flow));
        }
    }

    /// A session was asked for by its own random: it is no other one.
    pub fn is_known(&mut self, client_random: &Random) {
        self.recent.retain(|(_, random, _)| random != client_random);
        self.waiting.retain(|it| it.asked.request.client_random != *client_random);
    }

    /// Gives each request that this session may be meant by, once for each of the session's secrets that `answer` has an
    /// answer from; the answers.
    pub fn answers<A>(
        &mut self,
        known: Known<'_>,
        now: Instant,
        mut answer: impl FnMut(&KeyRequest) -> Option<A>,
    ) -> Vec<A> {
        self.forget_old(now);
        let mut all = Vec::new();
        for Waiting { asked, answers, .. } in &mut self.waiting {
            let is_new = answers.len() < MAX_CANDIDATES && !answers.contains(known.client_random);
            if is_new
                && known.may_be(asked)
                && let Some(found) = answer(&asked.request)
            {
                answers.push(*known.client_random);
                all.push(found);
            }
        }
        all
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |since: &Instant| now.duration_since(*since) >= WAITING;
        while self.waiting.front().is_some_and(|it| is_old(&it.since)) {
            self.waiting.pop_front();
        }
        while self.recent.front().is_some_and(|(since, ..)| is_old(since)) {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use mmtls_tls::Direction;

    use super::*;
    use crate::message::Epoch;

    fn asked(random: u8, server_random: u8, port: u16) -> EchKeyRequest {
        let request = KeyRequest {
            client_random: [random; 32],
            server_random: [server_random; 32],
            version: 0x0304,
            cipher_suite: 0x1301,
            direction: Direction::ClientToServer,
            epoch: Epoch::APPLICATION,
        };
        EchKeyRequest { request, flow: flow(port) }
    }

    fn flow(port: u16) -> Option<Flow> {
        Flow::new(([10, 0, 0, 2], port).into(), ([10, 0, 0, 3], 443).into())
    }

    const ANY: Known<'static> =
        Known { client_random: &[200; 32], server_random: None, flow: None };

    #[test]
    fn accepts_sessions_by_what_both_sides_know() {
        let asked = asked(1, 9, 4000);
        let known = |client_random: &'static Random, server_random, port: Option<u16>| {
            Known { client_random, server_random, flow: port.and_then(flow) }.may_be(&asked)
        };
        let nine: Option<&'static Random> = Some(&[9; 32]);
        assert!(known(&[2; 32], nine, None) && known(&[2; 32], nine, Some(1)));
        assert!(!known(&[2; 32], Some(&[8; 32]), Some(4000)), "the server's random counts most");
        assert!(known(&[2; 32], None, Some(4000)) && !known(&[2; 32], None, Some(1)));
        assert!(known(&[2; 32], None, None), "perhaps");
        assert!(!known(&[1; 32], nine, Some(4000)), "that is no other random");
    }

    #[test]
    fn accepts_secrets_before_and_after_the_request() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        requests.note(&[2; 32], None, now);
        requests.note(&[3; 32], flow(1), now);
        requests.note(&[4; 32], flow(2), now);
        let found = requests.wait(asked(1, 9, 2), now, |random| Some(random[0]));
        assert_eq!(found, [4, 2]);
        // Once for each session, and not where there is no answer yet.
        assert!(requests.answers(ANY, now, |_| None::<u8>).is_empty());
        let randoms = |requests: &mut EchRequests, known| {
            requests.answers(known, now, |request| Some(request.client_random[0]))
        };
        assert_eq!(randoms(&mut requests, ANY), [1]);
        assert!(randoms(&mut requests, ANY).is_empty());
        let before = Known { client_random: &[4; 32], ..ANY };
        assert!(randoms(&mut requests, before).is_empty());
        requests.is_known(&[2; 32]);
        assert!(requests.wait(asked(5, 9, 9), now, |random| Some(random[0])).is_empty());
        // Another direction's secret was there.
        assert!(requests.wait(asked(6, 9, 2), now, |_| None::<u8>).is_empty());
        assert_eq!(randoms(&mut requests, before), [5, 6]);
        requests.is_known(&[5; 32]);
        let other = Known { client_random: &[201; 32], ..ANY };
        assert_eq!(randoms(&mut requests, other), [1, 6]);
    }

    #[test]
    fn refuses_to_keep_many_requests_or_for_long() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        for number in 0..=MAX_WAITING {
            requests.wait(asked(number as u8, 9, 1), now, |_| Some(()));
        }
        for number in 0..=MAX_CANDIDATES {
            requests.note(&[number as u8 + 100; 32], None, now);
        }
        let count = requests.answers(ANY, now, |request| Some(request.client_random[0]));
        assert_eq!((count.len(), count[0]), (MAX_WAITING, 1));
        assert_eq!(requests.wait(asked(1, 9, 1), now, Some).len(), MAX_CANDIDATES);
        let later = now + WAITING;
        assert!(requests.answers(ANY, later, |_| Some(())).is_empty());
        assert!(requests.wait(asked(1, 9, 1), later, Some).is_empty());
        // One request is answered by so many sessions.
        let mut sessions = 0;
        for number in 0..20_u8 {
            let known = Known { client_random: &[number + 10; 32], ..ANY };
            sessions += requests.answers(known, later, |_| Some(())).len();
        }
        assert_eq!(sessions, MAX_CANDIDATES);
    }
}
