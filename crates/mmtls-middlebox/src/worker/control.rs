//! What an operator asks of a worker while it runs: at its tick, when it moves no frames.
//!
//! Refuses to look further than it is told to: a worker that looks through its table moves no frames meanwhile.

use std::ops::Range;
use std::time::Duration;

use mmtls_engine::session::{Handler, SessionId};
use mmtls_packet_io::{Outbox, Ports};

use super::Worker;
use crate::Settings;

/// Places of the table that may be looked at in one tick: some hundred microseconds.
pub const SLOTS_PER_TICK: usize = 4096;

/// Until the next tick ([`Worker::tick_again_after`]), where there is more to look at.
pub const TICK_PAUSE: Duration = Duration::from_millis(4);

impl<H: Handler, P: Ports> Worker<H, P> {
    /// Runs the next tick after this pause, and not when its time has come: for who has more to do than one tick allows.
    pub fn tick_again_after(&mut self, pause: Duration) {
        self.tick_again = Some(pause);
    }

    /// See [`mmtls_engine::Engine::reset_flow`]; what follows from it is carried out.
    pub fn reset_flow(&mut self, slot: usize, id: SessionId) -> bool {
        let now_ns = self.now_ns();
        let done = self.engine.reset_flow(now_ns, slot, id);
        self.act(now_ns);
        done
    }

    /// See [`mmtls_engine::Engine::bypass_flow`]; what follows from it is carried out.
    pub fn bypass_flow(&mut self, slot: usize, id: SessionId) -> bool {
        let now_ns = self.now_ns();
        let done = self.engine.bypass_flow(now_ns, slot, id);
        self.act(now_ns);
        done
    }

    /// See [`mmtls_engine::Engine::reconfigure`]: takes over what the settings of the whole middlebox say.
    pub fn reconfigure(&mut self, settings: &Settings) {
        let now_ns = self.now_ns();
        let gone = self.engine.reconfigure(now_ns, &settings.engine_of_worker());
        let networks: Vec<_> = gone.iter().map(|rule| (rule.address, rule.prefix_len)).collect();
        self.ports.outbox().show_again(&networks);
        self.act(now_ns);
    }

    /// See [`mmtls_engine::Engine::update_states`].
    pub fn update_states(
        &mut self,
        slots: Range<usize>,
        update: impl FnMut(&mut H, &mut H::State),
    ) {
        self.engine.update_states(slots, update);
    }

    /// See [`mmtls_engine::Engine::drain`].
    pub fn drain(&mut self) {
        self.engine.drain();
    }
}
