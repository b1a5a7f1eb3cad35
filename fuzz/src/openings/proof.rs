//! What the engine's table of openings promises, counted once more from outside: which numbers both
//! ends have proven, and that no data pass before.
//!
//! Refuses to forget: numbers that were proven once count for the whole input, so that what it says of
//! a first connection is exact, and of later ones not too strict.

use super::packet::{ACK, Packet, RST, SYN, before};

/// SYNs and answers that have passed, and the pairs of first numbers that were acknowledged exactly.
#[derive(Default)]
pub(super) struct Proofs {
    /// Side and first number of the stream.
    syns: Vec<(usize, u32)>,
    /// Side, first number of the stream, what it acknowledges.
    answers: Vec<(usize, u32, u32)>,
    /// First numbers of the streams of both sides.
    proven: Vec<[u32; 2]>,
    /// Something has ended a candidate, perhaps.
    disturbed: bool,
}

impl Proofs {
    /// Time has passed.
    pub(super) fn disturb(&mut self) {
        self.disturbed = true;
    }

    /// A segment has come to the engine. Whether it is an acknowledgment that must pass: the first that
    /// proves numbers, of candidates that nothing has ended.
    pub(super) fn see(&mut self, it: &Packet, port: usize) -> bool {
        self.disturbed |= it.has(RST);
        if it.has(SYN) || it.has(RST) || !it.has(ACK) || it.from != port {
            return false;
        }
        let first = self.proven.is_empty() && !self.disturbed;
        let answer = (1 - it.from, it.acknowledgment, it.sequence);
        if self.syns.contains(&(it.from, it.sequence)) && self.answers.contains(&answer) {
            let mut pair = [it.sequence; 2];
            pair[1 - it.from] = it.acknowledgment;
            if !self.proven.contains(&pair) {
                self.proven.push(pair);
            }
            return first && it.flags == ACK && it.data.is_empty();
        }
        false
    }

    /// A segment has passed the engine.
    pub(super) fn pass(&mut self, it: &Packet) {
        let first = it.sequence.wrapping_add(1);
        let (syn, answer) = ((it.from, first), (it.from, first, it.acknowledgment));
        match (it.has(SYN), it.has(ACK)) {
            (true, false) if !self.syns.contains(&syn) => self.syns.push(syn),
            (true, true) if !self.answers.contains(&answer) => self.answers.push(answer),
            _ => {}
        }
    }

    /// Whether a segment may pass: data, or the end of data, only where numbers are proven, and of what
    /// is followed no bytes from before the stream.
    pub(super) fn allows(&self, it: &Packet, followed: bool) -> bool {
        if it.data.is_empty() || it.has(RST) {
            return true;
        }
        // The byte before the stream may be a keep-alive.
        let least = |pair: &[u32; 2]| pair[it.from].wrapping_sub(1);
        self.proven.iter().any(|pair| !followed || !before(it.sequence, least(pair)))
    }
}
