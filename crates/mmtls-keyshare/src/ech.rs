//! Requests for keys of sessions with Encrypted Client Hello, at the endpoint: the middlebox names them by the random on the
//! wire, and where the server has taken the encrypted hello, the endpoint's secrets have that one's random.
//!
//! What is the same on both sides is the server's random, where the endpoint knows it, and the connection's ends. Where it
//! knows neither (a key log, rustls without a flow), the keys of any session of its own may be the right ones: the middlebox
//! tries them on records, and lets wrong ones go. A refusal cannot be tried, and is never a guess; nor are keys after a
//! KeyUpdate. An endpoint that has the secret of the hello inside finds its random in the request's ClientHello, and does not
//! guess: that is done where the secret is.
//!
//! Refuses: to answer a session's own request here, more than [`MAX_WAITING`] requests, to keep one for more than [`WAITING`],
//! and more than [`MAX_GUESSES`] for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Flow;
use crate::message::{EchKeyRequest, KeyRequest, Message, NullKeys, Random};

/// Requests that wait for secrets.
pub const MAX_WAITING: usize = 64;
/// How long: nobody waits for keys longer.
pub const WAITING: Duration = Duration::from_secs(10);
/// Most sessions whose keys are tried for one request; a middlebox tries no more.
pub const MAX_GUESSES: usize = 8;
/// Of these, and for how long, sessions whose secrets came before the request: most come after it.
const MAX_EARLIER: usize = 2;
const EARLIER: Duration = Duration::from_secs(2);
/// Refused connections that are remembered.
const MAX_REFUSED: usize = 64;

/// How sure it is that a session is the one that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// By what both sides know.
    Exact,
    /// It may be the one.
    Guess,
}

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
    /// Whether the session that is asked for is this one, by another random.
    #[must_use]
    pub fn matches(&self, asked: &EchKeyRequest) -> Option<Match> {
        let EchKeyRequest { request, flow, .. } = asked;
        if *self.client_random == request.client_random {
            return None;
        }
        match (self.server_random, self.flow, flow) {
            (Some(random), ..) => (*random == request.server_random).then_some(Match::Exact),
            (None, Some(own), Some(flow)) => (own == *flow).then_some(Match::Exact),
            // Behind a KeyUpdate nothing is tried: wrong keys would end the session.
            (None, ..) => request.epoch.updates().is_none_or(|it| it == 0).then_some(Match::Guess),
        }
    }
}

/// A copy of keys or of their refusal, for the session of a request; `None` of other messages, and of a refusal that would be
/// a guess.
#[must_use]
pub fn renamed(message: &Message, client_random: Random, by: Match) -> Option<Message> {
    match message {
        Message::SessionKeys(keys) => Some(Message::SessionKeys(keys.renamed(client_random))),
        Message::NullKeys(null) if by == Match::Exact => {
            Some(Message::NullKeys(NullKeys { client_random, ..null.clone() }))
        }
        _ => None,
    }
}

/// Requests that wait for their session's secrets, sessions that may be what is asked for next, and connections that are
/// private.
#[derive(Debug, Default)]
pub struct EchRequests {
    waiting: VecDeque<Waiting>,
    recent: VecDeque<Recent>,
    refused: VecDeque<(Instant, Flow)>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    asked: EchKeyRequest,
    /// Sessions that were an answer to it.
    answers: Vec<Random>,
}

/// A session that was not asked for by its own random.
#[derive(Debug)]
struct Recent {
    since: Instant,
    client_random: Random,
    flow: Option<Flow>,
    /// Where its keys were the first answer to a request: sessions that it may be. Their other direction is asked for, too.
    claimed_by: Vec<Random>,
}

impl EchRequests {
    /// Keeps a request; the oldest gives way. `answer` is asked for one from each session noted before that may be the
    /// one, the latest first; the answers.
    pub fn wait<A>(
        &mut self,
        mut asked: EchKeyRequest,
        now: Instant,
        mut answer: impl FnMut(Random, Match) -> Option<A>,
    ) -> Vec<A> {
        self.forget_old(now);
        // Nothing here looks into it.
        asked.client_hello = Arc::default();
        let (mut all, mut answers) = (Vec::new(), Vec::new());
        for Recent { since, client_random, flow, claimed_by } in self.recent.iter().rev() {
            let known = Known { client_random, server_random: None, flow: *flow };
            let is_other =
                !claimed_by.is_empty() && !claimed_by.contains(&asked.request.client_random);
            let by = known.matches(&asked).filter(|by| {
                let is_late = answers.len() < MAX_EARLIER && now.duration_since(*since) < EARLIER;
                *by == Match::Exact || is_late && !is_other
            });
            if let Some(found) = by.and_then(|by| answer(*client_random, by)) {
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

    /// Notes a session that was not asked for by its own random, and which it may be.
    fn note(&mut self, known: Known<'_>, claimed_by: Vec<Random>, now: Instant) {
        let (client_random, flow) = (*known.client_random, known.flow);
        match self.recent.iter_mut().find(|it| it.client_random == client_random) {
            Some(noted) => {
                let more = claimed_by.iter().filter(|it| !noted.claimed_by.contains(it));
                let more: Vec<Random> = more.copied().collect();
                noted.claimed_by.extend(more);
            }
            None => {
                if self.recent.len() >= MAX_GUESSES {
                    self.recent.pop_front();
                }
                self.recent.push_back(Recent { since: now, client_random, flow, claimed_by });
            }
        }
    }

    /// A session was asked for by its own random: it is no other one.
    pub fn is_known(&mut self, client_random: &Random) {
        self.recent.retain(|it| it.client_random != *client_random);
        self.waiting.retain(|it| it.asked.request.client_random != *client_random);
    }

    /// A session that was not asked for by its own random. `answer` is asked for one to each request that it may be meant by,
    /// once; the answers. A request may come later, too: the session is noted.
    pub fn answers<A>(
        &mut self,
        known: Known<'_>,
        now: Instant,
        mut answer: impl FnMut(&KeyRequest, Match) -> Option<A>,
    ) -> Vec<A> {
        self.forget_old(now);
        let (mut all, mut claimed_by) = (Vec::new(), Vec::new());
        for Waiting { asked, answers, .. } in &mut self.waiting {
            let is_new = !answers.contains(known.client_random);
            let by = known
                .matches(asked)
                .filter(|by| is_new && (*by == Match::Exact || answers.len() < MAX_GUESSES));
            if let Some(found) = by.and_then(|by| answer(&asked.request, by)) {
                if answers.is_empty() {
                    claimed_by.push(asked.request.client_random);
                }
                answers.push(*known.client_random);
                all.push(found);
            }
        }
        self.note(known, claimed_by, now);
        all
    }

    /// The session of this connection is private: what those are told that wait for it, and who asks next.
    pub fn refuse(&mut self, flow: Flow, now: Instant) -> Vec<Message> {
        self.forget_old(now);
        if self.refused.len() >= MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back((now, flow));
        let mut randoms: Vec<Random> = Vec::new();
        for Waiting { asked, .. } in &self.waiting {
            if asked.flow == Some(flow) && !randoms.contains(&asked.request.client_random) {
                randoms.push(asked.request.client_random);
            }
        }
        randoms.into_iter().map(|random| refusal(random, flow)).collect()
    }

    /// A session of this connection is shared: it is not the private one that it had before.
    pub fn shares(&mut self, flow: Flow) {
        self.refused.retain(|(_, it)| *it != flow);
    }

    /// The refusal, where the connection that is asked for is private.
    pub fn refused(&mut self, asked: &EchKeyRequest, now: Instant) -> Option<Message> {
        self.forget_old(now);
        let flow = asked.flow.filter(|flow| self.refused.iter().any(|(_, it)| it == flow))?;
        Some(refusal(asked.request.client_random, flow))
    }

    fn forget_old(&mut self, now: Instant) {
        let is_old = |since: &Instant| now.duration_since(*since) >= WAITING;
        while self.waiting.front().is_some_and(|it| is_old(&it.since)) {
            self.waiting.pop_front();
        }
        while self.recent.front().is_some_and(|it| is_old(&it.since)) {
            self.recent.pop_front();
        }
        while self.refused.front().is_some_and(|(since, _)| is_old(since)) {
            self.refused.pop_front();
        }
    }
}

fn refusal(client_random: Random, flow: Flow) -> Message {
    Message::NullKeys(NullKeys { client_random, direction: None, flow: Some(flow) })
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
        EchKeyRequest { request, flow: flow(port), client_hello: Arc::default() }
    }

    fn flow(port: u16) -> Option<Flow> {
        Flow::new(([10, 0, 0, 2], port).into(), ([10, 0, 0, 3], 443).into())
    }

    const ANY: Known<'static> =
        Known { client_random: &[200; 32], server_random: None, flow: None };

    fn randoms(requests: &mut EchRequests, known: Known<'_>, now: Instant) -> Vec<u8> {
        requests.answers(known, now, |request, _| Some(request.client_random[0]))
    }

    #[test]
    fn accepts_sessions_by_what_both_sides_know() {
        let mut asked = asked(1, 9, 4000);
        let known = |asked: &EchKeyRequest, client_random, server_random, port: Option<u16>| {
            Known { client_random, server_random, flow: port.and_then(flow) }.matches(asked)
        };
        let nine: Option<&'static Random> = Some(&[9; 32]);
        let (exact, guess) = (Some(Match::Exact), Some(Match::Guess));
        assert_eq!(known(&asked, &[2; 32], nine, None), exact);
        assert_eq!(known(&asked, &[2; 32], nine, Some(1)), exact);
        // The server's random counts most.
        assert_eq!(known(&asked, &[2; 32], Some(&[8; 32]), Some(4000)), None);
        assert_eq!(known(&asked, &[2; 32], None, Some(4000)), exact);
        assert_eq!(known(&asked, &[2; 32], None, Some(1)), None);
        assert_eq!(known(&asked, &[2; 32], None, None), guess);
        assert_eq!(known(&asked, &[1; 32], nine, Some(4000)), None, "that is no other random");
        asked.request.epoch = Epoch(3);
        assert_eq!(known(&asked, &[2; 32], nine, None), exact);
        assert_eq!(known(&asked, &[2; 32], None, None), None, "behind a KeyUpdate");
    }

    #[test]
    fn accepts_secrets_before_and_after_the_request() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        for (client_random, flow) in [([2; 32], None), ([3; 32], flow(1)), ([4; 32], flow(2))] {
            let known = Known { client_random: &client_random, server_random: None, flow };
            assert!(randoms(&mut requests, known, now).is_empty());
        }
        let found = requests.wait(asked(1, 9, 2), now, |random, by| Some((random[0], by)));
        assert_eq!(found, [(4, Match::Exact), (2, Match::Guess)]);
        // Once for each session, and not where there is no answer yet.
        assert!(requests.answers(ANY, now, |_, _| None::<u8>).is_empty());
        assert_eq!(randoms(&mut requests, ANY, now), [1]);
        assert!(randoms(&mut requests, ANY, now).is_empty());
        let before = Known { client_random: &[4; 32], ..ANY };
        assert!(randoms(&mut requests, before, now).is_empty());
        requests.is_known(&[2; 32]);
        // Whose keys were no request's first answer may still be the one.
        assert_eq!(requests.wait(asked(5, 9, 9), now, |random, _| Some(random[0])), [200]);
        // Another direction's secret was there.
        assert!(requests.wait(asked(6, 9, 2), now, |_, _| None::<u8>).is_empty());
        assert_eq!(randoms(&mut requests, before, now), [5, 6]);
        requests.is_known(&[5; 32]);
        let other = Known { client_random: &[201; 32], ..ANY };
        assert_eq!(randoms(&mut requests, other, now), [1, 6]);
    }

    /// Sessions from before must not take the place of the one that is asked for, whose secrets are yet to come.
    #[test]
    fn refuses_many_guesses_of_sessions_from_before() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        for number in 0..20 {
            let known = Known { client_random: &[number + 100; 32], ..ANY };
            assert!(randoms(&mut requests, known, now).is_empty());
        }
        let found = requests.wait(asked(1, 9, 1), now, |random, _| Some(random[0]));
        assert_eq!(found, [119, 118]);
        assert!(requests.wait(asked(2, 9, 1), now + EARLIER, |_, _| Some(())).is_empty());
        let mut count = 0;
        for number in 0..20 {
            let known = Known { client_random: &[number; 32], ..ANY };
            count += usize::from(randoms(&mut requests, known, now).contains(&1));
        }
        assert_eq!(count, MAX_GUESSES - MAX_EARLIER);
        let exact = Known { client_random: &[99; 32], flow: flow(1), ..ANY };
        assert!(randoms(&mut requests, exact, now).contains(&1));
    }

    /// The requests of the two directions may come before and after the secrets.
    #[test]
    fn accepts_secrets_between_the_requests_of_a_session() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        let other = |random| {
            let mut asked = asked(random, 9, 1);
            asked.request.direction = Direction::ServerToClient;
            asked
        };
        assert!(requests.wait(asked(1, 9, 1), now, |_, _| Some(())).is_empty());
        assert_eq!(randoms(&mut requests, ANY, now), [1]);
        assert_eq!(requests.wait(other(1), now, |random, _| Some(random[0])), [200]);
        // It is that session's, and not the next one's.
        assert!(requests.wait(other(2), now, |_, _| Some(())).is_empty());
    }

    #[test]
    fn refuses_to_keep_many_requests_or_for_long() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        for number in 0..=MAX_WAITING {
            requests.wait(asked(number as u8, 9, 1), now, |_, _| Some(()));
        }
        let count = randoms(&mut requests, ANY, now);
        assert_eq!((count.len(), count[0]), (MAX_WAITING, 1));
        assert!(
            randoms(&mut requests, Known { client_random: &[99; 32], ..ANY }, now + WAITING)
                .is_empty()
        );
    }

    #[test]
    fn refuses_connections_that_are_private_and_no_others() {
        let now = Instant::now();
        let mut requests = EchRequests::default();
        let kinds = |messages: &[Message]| messages.iter().map(Message::kind).collect::<Vec<_>>();
        let of = flow(4000).unwrap();
        requests.wait(asked(1, 9, 4000), now, |_, _| Some(()));
        requests.wait(asked(1, 9, 4000), now, |_, _| Some(()));
        requests.wait(asked(2, 9, 4001), now, |_, _| Some(()));
        assert_eq!(kinds(&requests.refuse(of, now)), [4]);
        assert!(requests.refused(&asked(3, 9, 4000), now).is_some());
        assert!(requests.refused(&asked(3, 9, 4001), now).is_none());
        assert!(requests.refused(&asked(3, 9, 4000), now + WAITING).is_none());
        requests.refuse(of, now);
        requests.shares(of);
        assert!(requests.refused(&asked(3, 9, 4000), now).is_none());
        // A refusal is never a guess.
        let refusal = refusal([7; 32], of);
        assert!(renamed(&refusal, [1; 32], Match::Guess).is_none());
        assert!(renamed(&refusal, [1; 32], Match::Exact).is_some());
    }
}
