//! What has been seen of a three-way handshake: SYNs, and the SYN-ACKs that answer them.
//!
//! Refuses to choose: anybody can send a SYN in anybody's name, and a server may answer twice with
//! other numbers (SYN cookies, load balancers). The acknowledgment of the side that sent the SYN chooses.

use crate::tls::Direction;

/// Most SYNs of a direction that are remembered: a client that tries again with another number,
/// and some that are forged.
const MAX_SYNS: usize = 4;

/// Most answers to them that are remembered.
const MAX_SYN_ACKS: usize = 4;

/// A SYN that was forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Syn {
    pub(crate) direction: Direction,
    pub(crate) sequence: u32,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) window_scale: Option<u8>,
}

impl Syn {
    /// The first sequence number of its sender's stream.
    pub(crate) fn initial(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }
}

/// A SYN-ACK that was forwarded, and the SYN whose number it acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynAck {
    pub(crate) syn: Syn,
    /// Of the direction opposite to that of the SYN.
    pub(crate) answer: Syn,
}

/// The SYNs and SYN-ACKs of a four-tuple that may still become a connection. An open connection has none, and no memory for them.
#[derive(Default)]
pub(crate) struct Opening(Option<Box<Seen>>);

#[derive(Default)]
struct Seen {
    syns: Vec<Syn>,
    syn_acks: Vec<SynAck>,
}

impl Opening {
    /// What goes on where another flow's opening was answered.
    pub(crate) fn answered(syn_ack: SynAck) -> Self {
        Self(Some(Box::new(Seen { syns: vec![syn_ack.syn], syn_acks: vec![syn_ack] })))
    }

    /// Whether there is nothing left that could become a connection.
    pub(crate) fn is_over(&self) -> bool {
        self.syns().is_empty()
    }

    fn syns(&self) -> &[Syn] {
        self.0.as_ref().map_or(&[], |seen| &seen.syns)
    }

    fn syn_acks(&self) -> &[SynAck] {
        self.0.as_ref().map_or(&[], |seen| &seen.syn_acks)
    }

    /// Remembers a SYN. Of too many the oldest one goes that was not answered: a flood of forged
    /// ones cannot take away what both sides have vouched for.
    pub(crate) fn push_syn(&mut self, syn: Syn) {
        let seen = self.0.get_or_insert_default();
        let same = |it: &&mut Syn| it.direction == syn.direction && it.sequence == syn.sequence;
        if let Some(known) = seen.syns.iter_mut().find(same) {
            // A copy. Some systems leave options out of later ones; a window that is taken for too
            // large does no harm, since bytes ahead are kept and compared.
            let scale = known.window_scale.max(syn.window_scale);
            *known = Syn { window_scale: scale, window: known.window.max(syn.window), ..syn };
            return;
        }
        let of_direction = seen.syns.iter().filter(|it| it.direction == syn.direction).count();
        if of_direction >= MAX_SYNS {
            let unanswered = |it: &Syn| {
                !seen.syn_acks.iter().any(|known| {
                    known.syn.direction == it.direction && known.syn.sequence == it.sequence
                })
            };
            let oldest = seen
                .syns
                .iter()
                .position(|it| it.direction == syn.direction && unanswered(it))
                .or_else(|| seen.syns.iter().position(|it| it.direction == syn.direction));
            if let Some(at) = oldest {
                let gone = seen.syns.remove(at);
                seen.forget_answers(&gone);
            }
        }
        // There is one, as a rule, and it waits as long as whoever sends it likes.
        seen.syns.reserve_exact(1);
        seen.syns.push(syn);
    }

    /// The SYN of the other direction that a SYN-ACK acknowledges, exactly: there are no data on SYNs,
    /// so no answer fits two.
    pub(crate) fn answered_by(&self, direction: Direction, acknowledgment: u32) -> Option<Syn> {
        self.syns()
            .iter()
            .find(|it| it.direction == direction.reverse() && it.initial() == acknowledgment)
            .copied()
    }

    /// Remembers an answer; false when there are too many.
    pub(crate) fn push_syn_ack(&mut self, syn_ack: SynAck) -> bool {
        let same = |known: &&mut SynAck| {
            known.answer.sequence == syn_ack.answer.sequence
                && known.syn.sequence == syn_ack.syn.sequence
                && known.syn.direction == syn_ack.syn.direction
        };
        let syn_acks = &mut self.0.get_or_insert_default().syn_acks;
        if let Some(known) = syn_acks.iter_mut().find(same) {
            *known = syn_ack;
            return true;
        }
        let room = syn_acks.len() < MAX_SYN_ACKS;
        if room {
            syn_acks.reserve_exact(1);
            syn_acks.push(syn_ack);
        }
        room
    }

    /// The answers to SYNs of a direction.
    pub(crate) fn answers_to(&self, direction: Direction) -> impl Iterator<Item = &SynAck> {
        self.syn_acks().iter().filter(move |it| it.syn.direction == direction)
    }

    /// The sender of a direction, or the side that answers it, has reset what begins at this number.
    /// Returns whether there was such a SYN.
    pub(crate) fn reset(&mut self, direction: Direction, initial: u32) -> bool {
        let found = |it: &Syn| it.direction == direction && it.initial() == initial;
        let Some(seen) = &mut self.0 else {
            return false;
        };
        let Some(at) = seen.syns.iter().position(found) else {
            return false;
        };
        let gone = seen.syns.remove(at);
        seen.forget_answers(&gone);
        true
    }
}

impl Seen {
    fn forget_answers(&mut self, syn: &Syn) {
        self.syn_acks
            .retain(|it| it.syn.direction != syn.direction || it.syn.sequence != syn.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Direction = Direction::ClientToServer;
    const S: Direction = Direction::ServerToClient;

    fn syn(direction: Direction, sequence: u32) -> Syn {
        Syn { direction, sequence, window: 1000, window_scale: None }
    }

    #[test]
    fn accepts_exact_answers_only() {
        let mut opening = Opening::default();
        opening.push_syn(syn(C, 10));
        opening.push_syn(syn(S, 20));
        assert_eq!(opening.answered_by(S, 11), Some(syn(C, 10)));
        assert_eq!(opening.answered_by(C, 21), Some(syn(S, 20)));
        for (direction, acknowledgment) in [(S, 10), (S, 12), (S, 21), (C, 11)] {
            assert_eq!(opening.answered_by(direction, acknowledgment), None);
        }
    }

    #[test]
    fn refuses_to_forget_what_was_answered_for_what_was_not() {
        let mut opening = Opening::default();
        opening.push_syn(syn(C, 10));
        assert!(opening.push_syn_ack(SynAck { syn: syn(C, 10), answer: syn(S, 50) }));
        for forged in 100..200 {
            opening.push_syn(syn(C, forged));
            opening.push_syn(syn(S, forged));
        }
        assert_eq!(opening.syns().len(), 2 * MAX_SYNS);
        assert_eq!(opening.answers_to(C).count(), 1);
        assert_eq!(opening.answered_by(S, 11), Some(syn(C, 10)));
        for forged in 60..70 {
            let room = opening.push_syn_ack(SynAck { syn: syn(C, 10), answer: syn(S, forged) });
            assert_eq!(room, forged < 63);
        }
        assert!(opening.push_syn_ack(SynAck { syn: syn(C, 10), answer: syn(S, 50) }), "a copy");
        assert!(
            opening.reset(C, 11) && opening.answers_to(C).count() == 0 && !opening.reset(C, 11)
        );
    }

    #[test]
    fn accepts_copies_with_fewer_options() {
        let mut opening = Opening::default();
        opening.push_syn(Syn { window_scale: Some(7), ..syn(C, 10) });
        opening.push_syn(syn(C, 10));
        assert_eq!(opening.answered_by(S, 11).and_then(|it| it.window_scale), Some(7));
    }
}
