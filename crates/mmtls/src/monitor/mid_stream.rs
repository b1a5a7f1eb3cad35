//! Sessions that are under way when the monitor starts.
//!
//! Refuses to guess what came before: HTTP messages are not told apart behind a gap.

use mmtls_engine::session::SessionInfo;
use mmtls_engine::tls::Direction;

use super::{Inspect, Monitor, MonitorState};

impl Monitor {
    /// A session whose beginning was not seen: nothing more will be known of its handshake, and the first bytes of both
    /// directions are missing. Whether it is to be reset.
    pub(super) fn goes_on(&mut self, info: &SessionInfo, state: &mut MonitorState) -> bool {
        self.reports.handshake(info, &mut state.known);
        if self.inspect == Inspect::Nothing {
            return false;
        }
        self.copies.begin_mid_stream(info, &mut state.copies);
        let mut reset = false;
        for direction in Direction::BOTH {
            reset |= self.inspected(info, state, |inspection, look, out| {
                inspection.gap(direction, look, out);
            });
        }
        reset
    }
}
