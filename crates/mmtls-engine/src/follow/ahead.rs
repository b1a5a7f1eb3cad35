//! Keys of one direction that came before their use, or for an epoch that has some.
//!
//! Refuses more than [`Candidates`] take.

use super::epoch::Epoch;
use super::key_candidates::KeyCandidates;
use crate::keys::{Candidates, KeySource};
use crate::tls::OpenRecord;

#[derive(Default)]
pub(super) struct KeysAhead {
    /// Keys of the encrypted handshake (TLS 1.3), where an endpoint shares them.
    pub(super) handshake: KeyCandidates,
    /// Keys of application epochs that have not begun, and others of the present one.
    application: Candidates<(u32, Box<dyn OpenRecord>)>,
}

impl KeysAhead {
    /// Keeps keys for an application epoch that has not begun, or that has some; false when there are too many already.
    pub(super) fn add(
        &mut self,
        epoch: u32,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        self.application.add(source, (epoch, opener)).is_ok()
    }

    /// Whether no keys have come.
    pub(super) fn is_unused(&self) -> bool {
        self.handshake.is_unused() && self.application.is_unused()
    }

    /// Whether keys of application epochs are here.
    #[inline]
    pub(super) fn has_application_keys(&self) -> bool {
        !self.application.is_unused()
    }

    /// Whether keys of this application epoch came ahead of it.
    pub(super) fn has(&self, epoch: u32) -> bool {
        self.application.iter().any(|(of, _)| *of == epoch)
    }

    /// Takes the keys of an application epoch that came ahead of it; those of earlier ones are forgotten.
    pub(super) fn take(&mut self, epoch: u32) -> Candidates<Box<dyn OpenRecord>> {
        let mut now = Candidates::default();
        for (source, (of, opener)) in core::mem::take(&mut self.application).into_items() {
            // As many as there were: each of them fits.
            if of == epoch {
                let _ = now.add(source, opener);
            } else if of > epoch {
                let _ = self.application.add(source, (of, opener));
            }
        }
        now
    }

    /// Whether some came for another epoch than this one, which is under them.
    pub(super) fn has_of_another(&self, present: &Epoch) -> bool {
        let is_other = |epoch: u32| epoch != present.number();
        self.application.iter().any(|(of, keys)| is_other(*of) && present.is_under(&**keys))
    }

    /// Takes the keys that came for an application epoch, which has some, if there are any.
    pub(super) fn take_others(&mut self, epoch: u32) -> Vec<(KeySource, Box<dyn OpenRecord>)> {
        if self.has(epoch) { self.take(epoch).into_items() } else { Vec::new() }
    }

    /// The handshake is over, or its keys are of no use.
    pub(super) fn drop_handshake_keys(&mut self) {
        self.handshake = KeyCandidates::default();
    }
}
