//! A pair of ports made of vectors, for tests and replay: what comes in is given beforehand, what goes out is kept.
//!
//! It behaves as [`af_packet::Bridge`](crate::af_packet::Bridge) does, order included, but has no offloads, loses
//! nothing and reads no clock: time is whatever the frames say.

use std::collections::VecDeque;

use crate::{Action, Frame, HeldFrame, Port, VnetHeader};

/// A frame with a time, and the port that it comes in by or goes out of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFrame {
    /// Nanoseconds on the test's own clock.
    pub at_ns: u64,
    /// Ingress port on the way in, egress port on the way out.
    pub port: Port,
    /// The Ethernet frame.
    pub bytes: Vec<u8>,
}

/// Two ports in memory.
#[derive(Debug, Default)]
pub struct MemoryPorts {
    input: VecDeque<TimedFrame>,
    output: Vec<TimedFrame>,
    now_ns: u64,
}

impl MemoryPorts {
    /// Ports that will receive these frames, in this order.
    #[must_use]
    pub fn new(input: impl IntoIterator<Item = TimedFrame>) -> Self {
        Self { input: input.into_iter().collect(), ..Self::default() }
    }

    /// Time of the frame received last, nanoseconds.
    #[must_use]
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Receives the next frame and forwards it if `decide` says so. Returns false when none is left.
    pub fn receive<F>(&mut self, decide: F) -> bool
    where
        F: FnOnce(&Frame<'_>, &mut MemoryOutbox<'_>) -> Action,
    {
        let Some(next) = self.input.pop_front() else { return false };
        self.now_ns = next.at_ns;
        let frame = Frame {
            bytes: &next.bytes,
            memory: None,
            vnet: VnetHeader::default(),
            ingress: next.port,
        };
        let mut outbox = MemoryOutbox { at_ns: next.at_ns, output: &mut self.output };
        if decide(&frame, &mut outbox) == Action::Forward {
            self.output.push(TimedFrame { port: next.port.other(), ..next });
        }
        true
    }

    /// Releases a held frame.
    pub fn send_held(&mut self, held: &HeldFrame) {
        self.outbox().send_held(held);
    }

    /// Sends a frame of the caller's making.
    pub fn inject(&mut self, egress: Port, ethernet: &[u8]) {
        self.outbox().inject(egress, ethernet);
    }

    /// All that was sent, with the time of the frame received before.
    #[must_use]
    pub fn output(&self) -> &[TimedFrame] {
        &self.output
    }

    fn outbox(&mut self) -> MemoryOutbox<'_> {
        MemoryOutbox { at_ns: self.now_ns, output: &mut self.output }
    }
}

/// Sends frames while another is being decided, ahead of that one.
pub struct MemoryOutbox<'a> {
    at_ns: u64,
    output: &'a mut Vec<TimedFrame>,
}

impl MemoryOutbox<'_> {
    /// Releases a held frame.
    pub fn send_held(&mut self, held: &HeldFrame) {
        self.inject(held.egress(), held.bytes());
    }

    /// Sends a frame of the caller's making.
    pub fn inject(&mut self, egress: Port, ethernet: &[u8]) {
        self.output.push(TimedFrame { at_ns: self.at_ns, port: egress, bytes: ethernet.to_vec() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(at_ns: u64, port: Port, byte: u8) -> TimedFrame {
        TimedFrame { at_ns, port, bytes: vec![byte; 60] }
    }

    #[test]
    fn accepts_forward_hold_release_inject_in_order() {
        let mut ports = MemoryPorts::new([
            frame(1, Port::Left, 1),
            frame(2, Port::Left, 2),
            frame(3, Port::Left, 3),
            frame(4, Port::Right, 4),
        ]);
        let mut held = Vec::new();
        while ports.receive(|frame, outbox| match frame.bytes.first() {
            Some(2) => {
                held.push(frame.hold());
                Action::Taken
            }
            Some(3) => {
                held.drain(..).for_each(|frame| outbox.send_held(&frame));
                outbox.inject(Port::Left, &[9; 60]);
                Action::Forward
            }
            Some(4) => Action::Drop,
            _ => Action::Forward,
        }) {}
        assert_eq!(
            ports.output(),
            [
                frame(1, Port::Right, 1),
                frame(3, Port::Right, 2),
                frame(3, Port::Left, 9),
                frame(3, Port::Right, 3),
            ]
        );
        assert_eq!(ports.now_ns(), 4);
    }
}
