//! The application secrets of one direction, and what middleboxes may have of them.
//!
//! Several middleboxes ask for keys at their own pace, so a request takes nothing away from the
//! others: what the program reported last stays, and so do the last few
//! secrets that were asked for. Refuses epochs before
//! that, and to walk more than [`MAX_STEPS`] updates at once.

use std::collections::VecDeque;

use mmtls_keyshare::SecretBytes;
use mmtls_keyshare::message::{Direction, Epoch, KeyEntry, Reason};
use mmtls_record::key_schedule;

/// KeyUpdates (RFC 8446, section 7.2) to catch up with at once.
pub const MAX_STEPS: u32 = 8;
/// Later secrets that are kept after they were asked for.
const MAX_ASKED: usize = 8;

/// Not `Debug`, because it holds secrets.
pub struct Chain {
    suite: u16,
    direction: Direction,
    /// The latest that was reported.
    reported: Step,
    /// Later ones that a middlebox asked for, in order: where to start from next time.
    asked: VecDeque<Step>,
}

/// A traffic secret and the KeyUpdates before it.
struct Step {
    updates: u32,
    secret: SecretBytes<64>,
}

impl Step {
    fn next(&self, suite: u16) -> Option<Self> {
        let next = key_schedule::next_secret(suite, self.secret.as_bytes()).ok()?;
        let secret = SecretBytes::new(next.as_bytes())?;
        Some(Self { updates: self.updates.checked_add(1)?, secret })
    }

    fn keys(&self, suite: u16, direction: Direction) -> Option<KeyEntry> {
        let keys = key_schedule::traffic_keys(suite, self.secret.as_bytes()).ok()?;
        Some(KeyEntry {
            direction,
            epoch: Epoch::application(self.updates)?,
            key: SecretBytes::new(keys.key())?,
            iv: SecretBytes::new(keys.iv())?,
            mac_key: SecretBytes::empty(),
        })
    }
}

impl Chain {
    /// Starts with the first secret and returns its keys, too; `None` when the suite has no key
    /// schedule here.
    pub fn start(suite: u16, direction: Direction, secret: &[u8]) -> Option<(Self, KeyEntry)> {
        let reported = Step { updates: 0, secret: SecretBytes::new(secret)? };
        let keys = reported.keys(suite, direction)?;
        Some((Self { suite, direction, reported, asked: VecDeque::new() }, keys))
    }

    /// The keys after `updates` KeyUpdates, which a middlebox asked for.
    pub fn keys(&mut self, updates: u32) -> Result<KeyEntry, Reason> {
        let known = self.asked.iter().rev().find(|step| step.updates <= updates);
        let known = known.unwrap_or(&self.reported);
        // Older secrets are gone, and far future ones are nobody's business yet.
        let steps = updates.checked_sub(known.updates).ok_or(Reason::UNKNOWN_SESSION)?;
        if steps > MAX_STEPS {
            return Err(Reason::POLICY);
        }
        let mut last: Option<Step> = None;
        for _ in 0..steps {
            let next = last.as_ref().unwrap_or(known).next(self.suite);
            last = Some(next.ok_or(Reason::UNSUPPORTED)?);
        }
        let keys = last.as_ref().unwrap_or(known).keys(self.suite, self.direction);
        let keys = keys.ok_or(Reason::UNSUPPORTED)?;
        let is_latest = |step: &Step| self.asked.back().is_none_or(|b| b.updates < step.updates);
        if let Some(step) = last.filter(is_latest) {
            self.asked.push_back(step);
            if self.asked.len() > MAX_ASKED {
                self.asked.pop_front();
            }
        }
        Ok(keys)
    }

    /// Takes the secret that the program reported after a KeyUpdate. Updates are counted by
    /// following the key schedule, so that a lost datagram cannot shift the epochs. Returns the
    /// keys up to it, none when it is known; `None` when it does not follow.
    pub fn follow(&mut self, secret: &[u8]) -> Option<Vec<KeyEntry>> {
        let is_it = |step: &Step| step.secret.as_bytes() == secret;
        let mut keys = Vec::new();
        if is_it(&self.reported) {
            return Some(keys);
        }
        let mut step = self.reported.next(self.suite)?;
        for _ in 0..MAX_STEPS {
            // Also those that one middlebox asked for: the others did not.
            keys.push(step.keys(self.suite, self.direction)?);
            if is_it(&step) {
                self.asked.retain(|asked| asked.updates > step.updates);
                self.reported = step;
                return Some(keys);
            }
            step = step.next(self.suite)?;
        }
        None
    }
}
