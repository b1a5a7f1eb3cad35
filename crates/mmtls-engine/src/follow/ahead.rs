//! Keys of one direction that came before their use, or for an epoch that has some.
//!
//! Refuses more than [`Candidates`] take.

use super::context::{Context, RawRecord};
use super::epoch::Epoch;
use super::key_candidates::KeyCandidates;
use crate::keys::Candidates;
use crate::tls::{OpenRecord, Opened};

#[derive(Default)]
pub(super) struct KeysAhead {
    /// Keys of the encrypted handshake (TLS 1.3), where an endpoint shares them.
    pub(super) handshake: KeyCandidates,
    /// Keys of application epochs that have not begun, and others of the present one.
    application: Candidates<(u32, Box<dyn OpenRecord>)>,
}

impl KeysAhead {
    /// Keeps keys for an application epoch that has not begun, or that has some; false when there are too many already.
    pub(super) fn add(&mut self, epoch: u32, source: u64, opener: Box<dyn OpenRecord>) -> bool {
        self.application.add(source, (epoch, opener)).is_ok()
    }

    /// Whether no keys have come.
    pub(super) fn is_unused(&self) -> bool {
        self.handshake.is_unused() && self.application.is_unused()
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

    /// Whether other keys that came for an epoch open its last record, too, and to something else: nobody can tell then what
    /// the peer reads. Neither AEADs nor a MAC beside a cipher commit to a key, so that whoever knows two can make records
    /// that are authentic under both. One record tells, since the right keys open all of them. Of too many keys the rest is
    /// forgotten.
    pub(super) fn contradict(
        &mut self,
        epoch: &mut Epoch,
        record: RawRecord<'_>,
        opened: Opened,
        ctx: &mut Context<'_>,
    ) -> bool {
        if !self.has(epoch.number()) {
            return false;
        }
        let others = self.take(epoch.number());
        let (sequence, header) = (epoch.sequence().wrapping_sub(1), record.header.bytes);
        let mut content = vec![0; record.fragment.len()];
        let mut contradicts = false;
        for other in others.iter().take_while(|_| epoch.may_compare()) {
            match other.open(sequence, header, record.fragment, &mut content) {
                Ok(again) => {
                    contradicts |= again.content_type != opened.content_type
                        || content.get(..again.len) != ctx.plaintext.get(..opened.len);
                }
                // Of whom they are, nobody knows.
                Err(_) => ctx.counters.trials_failed += 1,
            }
        }
        contradicts
    }

    /// The handshake is over, or its keys are of no use.
    pub(super) fn drop_handshake_keys(&mut self) {
        self.handshake = KeyCandidates::default();
    }
}
