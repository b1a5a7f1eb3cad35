//! The application secrets of one direction over KeyUpdates (RFC 8446, section 7.2), for several who ask at their own pace.
//!
//! A request takes nothing away from the others: the secret that was reported last stays, and so do
//! the last few that were asked for. Refuses epochs before that, and to walk further at once than it is allowed to.

use std::collections::VecDeque;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use mmtls_tls::KeyEpoch;

use crate::KeyError;
use crate::key_schedule::{RecordKeys, Secret, next_secret, traffic_keys};

/// Later secrets that are kept after they were asked for.
const MAX_ASKED: usize = 8;

/// Not `Debug`, because it holds secrets.
pub(super) struct Updates {
    suite: u16,
    /// The latest that was reported.
    reported: Step,
    /// Later ones that were asked for, in order: where to start from next time.
    asked: VecDeque<Step>,
}

/// A traffic secret and the KeyUpdates before it.
struct Step {
    updates: u32,
    secret: Secret,
}

impl Updates {
    /// Starts with the secret after so many KeyUpdates.
    pub(super) fn new(suite: u16, updates: u32, secret: Secret) -> Self {
        Self { suite, reported: Step { updates, secret }, asked: VecDeque::new() }
    }

    /// KeyUpdates before the latest secret that was reported.
    pub(super) fn reported(&self) -> u32 {
        self.reported.updates
    }

    /// The keys after so many KeyUpdates, which somebody asked for: at most `max_steps` are derived for it.
    pub(super) fn keys(&mut self, updates: u32, max_steps: u32) -> Result<RecordKeys, KeyError> {
        let known = self.asked.iter().rev().find(|step| step.updates <= updates);
        let known = known.unwrap_or(&self.reported);
        let steps = updates.checked_sub(known.updates).ok_or(KeyError::PastEpoch)?;
        if steps > max_steps {
            return Err(KeyError::FutureEpoch);
        }
        let mut last: Option<Step> = None;
        for _ in 0..steps {
            last = Some(self.next(last.as_ref().unwrap_or(known))?);
        }
        let keys = traffic_keys(self.suite, last.as_ref().unwrap_or(known).secret.as_bytes())?;
        let is_latest = |step: &Step| self.asked.back().is_none_or(|b| b.updates < step.updates);
        if let Some(step) = last.filter(is_latest) {
            self.asked.push_back(step);
            if self.asked.len() > MAX_ASKED {
                self.asked.pop_front();
            }
        }
        Ok(keys)
    }

    /// Takes a secret that was reported after at most `max_steps` KeyUpdates, and returns the keys up to it.
    pub(super) fn follow(
        &mut self,
        secret: &[u8],
        max_steps: u32,
    ) -> Result<Vec<(KeyEpoch, RecordKeys)>, KeyError> {
        let is_it = |step: &Step| verify_slices_are_equal(step.secret.as_bytes(), secret).is_ok();
        let mut keys = Vec::new();
        if is_it(&self.reported) {
            return Ok(keys);
        }
        let mut step = self.next(&self.reported)?;
        for _ in 0..max_steps {
            // Also those that were asked for: others did not ask.
            let epoch = KeyEpoch::Application(step.updates);
            keys.push((epoch, traffic_keys(self.suite, step.secret.as_bytes())?));
            if is_it(&step) {
                self.asked.retain(|asked| asked.updates > step.updates);
                self.reported = step;
                return Ok(keys);
            }
            step = self.next(&step)?;
        }
        Err(KeyError::FutureEpoch)
    }

    fn next(&self, step: &Step) -> Result<Step, KeyError> {
        let secret = next_secret(self.suite, step.secret.as_bytes())?;
        let updates = step.updates.checked_add(1).ok_or(KeyError::FutureEpoch)?;
        Ok(Step { updates, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TLS_AES_128_GCM_SHA256
    const SUITE: u16 = 0x1301;
    const MAX_STEPS: u32 = 8;

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

    fn asked_for(updates: &mut Updates, at: u32) -> Result<Vec<u8>, KeyError> {
        updates.keys(at, MAX_STEPS).map(|keys| keys.key().to_vec())
    }

    fn from(secret: &[u8]) -> Updates {
        Updates::new(SUITE, 0, Secret::new(secret))
    }

    #[test]
    fn accepts_askers_at_their_own_pace() {
        let secrets = secrets(40);
        let mut updates = from(&secrets[0]);
        // One runs ahead, within what may be caught up with; the others still get everything near.
        for at in [0, 3, 1, 8, 2, 16, 24, 8, 0, 25] {
            let key = asked_for(&mut updates, at);
            assert_eq!(key, Ok(key_of(&secrets[at as usize])), "{at}");
        }
        assert_eq!(asked_for(&mut updates, 25 + MAX_STEPS + 1), Err(KeyError::FutureEpoch));
        assert_eq!(asked_for(&mut updates, u32::MAX), Err(KeyError::FutureEpoch));
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
        let mut updates = from(&secrets[0]);
        assert!(updates.follow(&secrets[0], MAX_STEPS).is_ok_and(|keys| keys.is_empty()));
        asked_for(&mut updates, 2).unwrap();
        asked_for(&mut updates, 7).unwrap();
        let keys = updates.follow(&secrets[5], MAX_STEPS).unwrap();
        let keys: Vec<_> = keys.iter().map(|(at, keys)| (*at, keys.key().to_vec())).collect();
        let expected: Vec<_> =
            (1..=5).map(|at| (KeyEpoch::Application(at as u32), key_of(&secrets[at]))).collect();
        assert_eq!(keys, expected);
        // What is over is gone; what was asked for ahead of the report stays.
        assert_eq!(asked_for(&mut updates, 4), Err(KeyError::PastEpoch));
        assert_eq!(updates.asked.len(), 1);
        assert_eq!(asked_for(&mut updates, 5 + MAX_STEPS), Ok(key_of(&secrets[13])));
    }

    #[test]
    fn refuses_reports_that_do_not_follow() {
        let secrets = secrets(20);
        let mut updates = from(&secrets[3]);
        assert!(updates.follow(&secrets[2], MAX_STEPS).is_err(), "an earlier one");
        assert!(updates.follow(&[9; 32], MAX_STEPS).is_err(), "another connection's");
        assert!(
            updates.follow(&secrets[3 + MAX_STEPS as usize + 1], MAX_STEPS).is_err(),
            "too far"
        );
        assert_eq!(asked_for(&mut updates, 0), Ok(key_of(&secrets[3])));
        assert!(updates.follow(&secrets[3 + MAX_STEPS as usize], MAX_STEPS).is_ok());
    }
}
