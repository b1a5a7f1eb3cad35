//! A key log that is still being written, for live use: secrets come after the sessions that want
//! them, or before.
//!
//! Refuses to grow without bound: of sessions, of pending requests and of hellos the older half goes when there are too
//! many. Nothing here waits or reads; [`follow`](super::follow) does.

use std::collections::HashMap;
use std::sync::Arc;

use crate::inner::InnerRandoms;
use crate::log::{Kept, KeyLog};

/// Sessions in one of two generations of secrets, and of pending requests.
const MAX_SESSIONS: usize = 1 << 16;

/// Pending requests for one session: a few epochs of both directions. Clients can repeat a random.
const MAX_PENDING: usize = 16;

/// Makes an answer to a request where the log has the secret, by the random that the log may have it under.
pub type Answer<W, A> = fn(&KeyLog, [u8; 32], &W) -> Option<A>;

/// What lines told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A secret of a session.
    Secret([u8; 32]),
    /// A session that was asked for by its random on the wire has its secrets under another one.
    Opened {
        /// On the wire.
        outer: [u8; 32],
        /// Of the secrets.
        inner: [u8; 32],
    },
}

/// Secrets, and requests `W` that wait for them; they are answered with `A`.
pub struct LiveKeys<W, A> {
    /// The newer and the older generation.
    logs: [KeyLog; 2],
    pending: [HashMap<[u8; 32], Vec<W>>; 2],
    randoms: InnerRandoms,
    max_sessions: usize,
    answer: Answer<W, A>,
}

impl<W, A> LiveKeys<W, A> {
    /// An empty one. `answer` makes an answer where the secret is there.
    #[must_use]
    pub fn new(answer: Answer<W, A>) -> Self {
        Self::with_capacity(answer, MAX_SESSIONS)
    }

    /// The same for so many sessions in each of two generations, of secrets and of requests.
    #[must_use]
    pub fn with_capacity(answer: Answer<W, A>, max_sessions: usize) -> Self {
        let randoms = InnerRandoms::new(max_sessions);
        Self {
            logs: Default::default(),
            pending: Default::default(),
            randoms,
            max_sessions,
            answer,
        }
    }

    /// Somebody wants keys of a session: those, or they are given when their line comes. Where its first ClientHello is
    /// there, they may be those of the hello inside.
    pub fn want(
        &mut self,
        client_random: [u8; 32],
        client_hello: Option<&Arc<[u8]>>,
        wanted: W,
    ) -> Option<A> {
        let mut found = self.find(client_random, &wanted);
        if found.is_none()
            && let Some(hello) = client_hello
        {
            self.randoms.open(&self.logs, client_random, hello);
            found = self.find(client_random, &wanted);
        }
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

    /// As [`Self::add`]; `each` is told of what the lines told.
    pub fn add_and_tell(&mut self, text: &[u8], mut each: impl FnMut(News)) -> Vec<A> {
        let [newer, _] = &self.logs;
        if newer.sessions().max(newer.ech_hellos()) >= self.max_sessions {
            self.logs[1] = core::mem::take(&mut self.logs[0]);
        }
        let mut lines = Vec::new();
        self.logs[0].add_lines(text, |of| lines.push(of));
        let mut found = Vec::new();
        for line in lines {
            match line {
                Kept::Secret(random) => {
                    each(News::Secret(random));
                    if self.answer_pending(random, &mut found) {
                        self.randoms.forget(&random);
                    }
                    if let Some(outer) = self.randoms.outer(&random) {
                        self.answer_pending(outer, &mut found);
                    }
                }
                Kept::Ech(outer) => {
                    if let Some(inner) = self.randoms.open_waiting(&self.logs, outer) {
                        each(News::Opened { outer, inner });
                        self.answer_pending(outer, &mut found);
                    }
                }
            }
        }
        found
    }

    /// Answers what waits for a session's secrets, as far as they are there; whether there was anything.
    fn answer_pending(&mut self, random: [u8; 32], found: &mut Vec<A>) -> bool {
        let before = found.len();
        for generation in 0..self.pending.len() {
            let Some(pending) = self.pending[generation].remove(&random) else {
                continue;
            };
            let mut open = Vec::new();
            for wanted in pending {
                match self.find(random, &wanted) {
                    Some(keys) => found.push(keys),
                    None => open.push(wanted),
                }
            }
            if !open.is_empty() {
                self.pending[generation].insert(random, open);
            }
        }
        found.len() > before
    }

    /// What is wanted of a session, if its secret is there.
    #[must_use]
    pub fn find(&self, client_random: [u8; 32], wanted: &W) -> Option<A> {
        // Where the server does not open the hello inside, the secrets are those of the one outside.
        [Some(client_random), self.inner(&client_random)]
            .into_iter()
            .flatten()
            .find_map(|random| self.logs.iter().find_map(|log| (self.answer)(log, random, wanted)))
    }

    /// The random that the secrets of a session have which was asked for by another one.
    #[must_use]
    pub fn inner(&self, client_random: &[u8; 32]) -> Option<[u8; 32]> {
        self.randoms.inner(client_random)
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
    fn answer(log: &KeyLog, client_random: [u8; 32], &(_, epoch): &Request) -> Option<Vec<u16>> {
        let direction = Direction::ClientToServer;
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
        live.want([random; 32], None, (random, epoch)).is_some()
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

    /// The random on the wire, and the one inside, are those of the example.
    const OUTER: u8 = 0x0a;
    const INNER: u8 = 0x1a;

    fn hello() -> Arc<[u8]> {
        mmtls_testkit::ech::hello().into()
    }

    /// Lines, and the request for the keys of the session on the wire.
    #[test]
    fn accepts_lines_of_the_hello_inside_in_any_order() {
        let [secret, config] = mmtls_testkit::ech::lines();
        let keys = line("CLIENT_TRAFFIC_SECRET_0", INNER);
        let steps: [Option<&[u8]>; 4] =
            [Some(secret.as_bytes()), Some(config.as_bytes()), Some(&keys), None];
        let (application, hello) = (KeyEpoch::Application(0), hello());
        for order in 0..256 {
            let order = [order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6];
            if (0..4).any(|it| !order.contains(&it)) {
                continue;
            }
            let mut live = LiveKeys::new(answer);
            let (mut found, mut news) = (Vec::new(), Vec::new());
            for at in order {
                assert!(found.is_empty());
                match steps[at] {
                    Some(text) => found.extend(live.add_and_tell(text, |it| news.push(it))),
                    None => {
                        found.extend(live.want([OUTER; 32], Some(&hello), (OUTER, application)))
                    }
                }
            }
            assert_eq!(found, [[0x1301]], "{order:?}");
            assert_eq!(live.inner(&[OUTER; 32]), Some([INNER; 32]));
            // Told where the lines came behind the request.
            let opened = News::Opened { outer: [OUTER; 32], inner: [INNER; 32] };
            let is_late =
                order.iter().rposition(|it| *it < 2) > order.iter().position(|it| *it == 3);
            assert_eq!(news.contains(&opened), is_late, "{order:?}");
            assert!(news.contains(&News::Secret([INNER; 32])) && news.len() < 3);
            // Later keys are asked for without the hello.
            assert!(want(&mut live, OUTER, KeyEpoch::Application(3)));
            assert!(!want(&mut live, OUTER, KeyEpoch::Handshake));
            let later = live.add(&line("CLIENT_HANDSHAKE_TRAFFIC_SECRET", INNER));
            assert_eq!(later, [[0x1301]]);
        }
    }

    #[test]
    fn accepts_lines_of_the_hello_outside_where_the_server_takes_that() {
        let mut live = LiveKeys::new(answer);
        let wanted = (OUTER, KeyEpoch::Application(0));
        assert!(live.want([OUTER; 32], Some(&hello()), wanted).is_none());
        live.add(mmtls_testkit::ech::lines().concat().as_bytes());
        assert_eq!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", OUTER)).len(), 1);
        assert!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", INNER)).is_empty(), "given once");
    }

    #[test]
    fn refuses_lines_of_other_hellos() {
        let mut live = LiveKeys::new(answer);
        let lines = mmtls_testkit::ech::lines();
        let [secret, config] = &lines;
        // One half, another configuration, another secret, another hello's.
        for (lines, cut) in [
            (secret.clone(), 0),
            (lines.concat().replace("7075626c6963", "7075626c6964"), 0),
            (lines.concat().replace("9d6ce783", "9d6ce784"), 0),
            (lines.concat(), 1),
            (secret.replace(&"0a".repeat(32), &"0b".repeat(32)) + config, 0),
        ] {
            live.add(lines.as_bytes());
            live.add(&line("CLIENT_TRAFFIC_SECRET_0", INNER));
            let hello = hello()[cut..].into();
            let wanted = (OUTER, KeyEpoch::Application(0));
            assert!(live.want([OUTER; 32], Some(&hello), wanted).is_none(), "{lines}");
            live = LiveKeys::new(answer);
        }
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut live = LiveKeys::with_capacity(answer, 4);
        for random in 0..200 {
            assert!(!want(&mut live, random, KeyEpoch::Handshake));
            live.add(&line("CLIENT_TRAFFIC_SECRET_0", random));
            assert!(live.logs.iter().all(|log| log.sessions() <= 4));
            assert!(live.pending.iter().all(|pending| pending.len() <= 4));
            let ech = format!("ECH_SECRET {} {}", hex(&[random; 32]), "07".repeat(32));
            live.add(ech.as_bytes());
            assert!(live.logs.iter().all(|log| log.ech_hellos() <= 4));
        }
        assert!(want(&mut live, 199, KeyEpoch::Application(0)));
        assert!(!want(&mut live, 3, KeyEpoch::Application(0)));
    }
}
