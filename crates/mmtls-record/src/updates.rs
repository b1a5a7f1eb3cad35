//! The application secrets of one direction over KeyUpdates (RFC 8446, section 7.2), and what may
//! be handed out of them: for endpoints' agents, which several middleboxes ask at their own pace.
//!
//! A request takes nothing away from the others: the secret that was reported last stays, and so do
//! the last few that were asked for. Refuses epochs before that, and to walk more than
//! [`MAX_STEPS`] updates at once.

use std::collections::VecDeque;

use crate::KeyError;
use crate::key_schedule::{Secret, TrafficKeys, next_secret, traffic_keys};

/// KeyUpdates to catch up with at once.
pub const MAX_STEPS: u32 = 8;
/// Later secrets that are kept after they were asked for.
const MAX_ASKED: usize = 8;

/// Not `Debug`, because it holds secrets.
pub struct Updates {
    suite: u16,
    /// The latest that was reported.
    reported: Step,
    /// Later ones that were asked for, in order: where to start from next time.
    asked: VecDeque<Step>,
}

/// Why there are no keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// The epoch is over; its secret is gone.
    Past,
    /// More than [`MAX_STEPS`] updates ahead of what is known.
    TooFar,
}

/// A traffic secret and the KeyUpdates before it.
struct Step {
    updates: u32,
    secret: Secret,
}

impl Updates {
    /// Starts with the first application secret of a direction.
    ///
    /// # Errors
    /// As [`traffic_keys`].
    pub fn new(suite: u16, secret: &[u8]) -> Result<Self, KeyError> {
        let secret = Secret::of_suite(suite, secret)?;
        Ok(Self { suite, reported: Step { updates: 0, secret }, asked: VecDeque::new() })
    }

    /// The keys after so many KeyUpdates, which somebody asked for.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn keys(&mut self, updates: u32) -> Result<TrafficKeys, Unavailable> {
        let known = self.asked.iter().rev().find(|step| step.updates <= updates);
        let known = known.unwrap_or(&self.reported);
        let steps = updates.checked_sub(known.updates).ok_or(Unavailable::Past)?;
        // Far future ones are nobody's business yet.
        if steps > MAX_STEPS {
            return Err(Unavailable::TooFar);
        }
        let mut last: Option<Step> = None;
        for _ in 0..steps {
            last = Some(self.next(last.as_ref().unwrap_or(known)).ok_or(Unavailable::TooFar)?);
        }
        let keys = traffic_keys(self.suite, last.as_ref().unwrap_or(known).secret.as_bytes());
        let keys = keys.map_err(|_| Unavailable::TooFar)?;
        let is_latest = |step: &Step| self.asked.back().is_none_or(|b| b.updates < step.updates);
        if let Some(step) = last.filter(is_latest) {
            self.asked.push_back(step);
            if self.asked.len() > MAX_ASKED {
                self.asked.pop_front();
            }
        }
        Ok(keys)
    }

    /// Takes a secret that was reported after a KeyUpdate. Updates are counted by following the key
    /// schedule, so that a report that was lost cannot shift the epochs. Returns the keys up to it
    /// and the updates before each, none when it is known; `None` when it does not follow.
    pub fn follow(&mut self, secret: &[u8]) -> Option<Vec<(u32, TrafficKeys)>> {
        let is_it = |step: &Step| step.secret.as_bytes() == secret;
        let mut keys = Vec::new();
        if is_it(&self.reported) {
            return Some(keys);
        }
        let mut step = self.next(&self.reported)?;
        for _ in 0..MAX_STEPS {
            // Also those that were asked for: others did not ask.
            keys.push((step.updates, traffic_keys(self.suite, step.secret.as_bytes()).ok()?));
            if is_it(&step) {
                self.asked.retain(|asked| asked.updates > step.updates);
                self.reported = step;
                return Some(keys);
            }
            step = self.next(&step)?;
        }
        None
    }

    fn next(&self, step: &Step) -> Option<Step> {
        let secret = next_secret(self.suite, step.secret.as_bytes()).ok()?;
        Some(Step { updates: step.updates.checked_add(1)?, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TLS_AES_128_GCM_SHA256
    const SUITE: u16 = 0x1301;

    /// The secrets of the first epochs, derived one by one.
    fn secrets(count: usize) -> Vec<Vec<u8>> {
        let mut all = vec![vec![7; 32]];
        while all.len() < count {
            all.push(next_secret(SUITE, &all[all.len() - 1]).unwrap().as_bytes().to_vec());
        }
        all
    }

    fn key_of(secret: &[u8]) -> Vec<u8> {
        traffic_keys(SUITE, secret).unwrap().key().to_vec()
    }

    fn asked_for(updates: &mut Updates, at: u32) -> Result<Vec<u8>, Unavailable> {
        updates.keys(at).map(|keys| keys.key().to_vec())
    }

    #[test]
    fn accepts_askers_at_their_own_pace() {
        let secrets = secrets(40);
        let mut updates = Updates::new(SUITE, &secrets[0]).unwrap();
        // One runs ahead, within what may be caught up with; the others still get everything near.
        for at in [0, 3, 1, 8, 2, 16, 24, 8, 0, 25] {
            let key = asked_for(&mut updates, at);
            assert_eq!(key, Ok(key_of(&secrets[at as usize])), "{at}");
        }
        assert_eq!(asked_for(&mut updates, 25 + MAX_STEPS + 1), Err(Unavailable::TooFar));
        assert_eq!(asked_for(&mut updates, u32::MAX), Err(Unavailable::TooFar));
        // What is known does not grow without end.
        for at in 26..40 {
            asked_for(&mut updates, at).unwrap();
        }
        assert_eq!(updates.asked.len(), MAX_ASKED);
        assert_eq!(asked_for(&mut updates, 1), Ok(key_of(&secrets[1])));
    }

    #[test]
    fn accepts_reports_of_which_some_were_lost() {
        let secrets = secrets(40);
        let mut updates = Updates::new(SUITE, &secrets[0]).unwrap();
        assert!(updates.follow(&secrets[0]).is_some_and(|keys| keys.is_empty()));
        asked_for(&mut updates, 2).unwrap();
        asked_for(&mut updates, 7).unwrap();
        let keys = updates.follow(&secrets[5]).unwrap();
        let keys: Vec<_> = keys.iter().map(|(at, keys)| (*at, keys.key().to_vec())).collect();
        let expected: Vec<_> = (1..=5).map(|at| (at as u32, key_of(&secrets[at]))).collect();
        assert_eq!(keys, expected);
        // What is over is gone; what was asked for ahead of the report stays.
        assert_eq!(asked_for(&mut updates, 4), Err(Unavailable::Past));
        assert_eq!(updates.asked.len(), 1);
        assert_eq!(asked_for(&mut updates, 5 + MAX_STEPS), Ok(key_of(&secrets[13])));
    }

    #[test]
    fn refuses_reports_that_do_not_follow() {
        let secrets = secrets(20);
        let mut updates = Updates::new(SUITE, &secrets[3]).unwrap();
        assert!(updates.follow(&secrets[2]).is_none(), "an earlier one");
        assert!(updates.follow(&[9; 32]).is_none(), "another connection's");
        assert!(updates.follow(&secrets[3 + MAX_STEPS as usize + 1]).is_none(), "too far");
        assert_eq!(asked_for(&mut updates, 0), Ok(key_of(&secrets[3])));
        assert!(updates.follow(&secrets[3 + MAX_STEPS as usize]).is_some());
    }
}
