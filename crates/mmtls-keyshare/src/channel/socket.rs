//! Options of the channel's TCP sockets. Refuses nothing: an option that fails is left out.

use std::os::fd::AsFd;
use std::time::Duration;

/// A peer that does not acknowledge for this long is gone.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Sends small messages at once and notices dead peers within about [`DEAD_AFTER`].
pub(super) fn tune(socket: &impl AsFd) {
    use rustix::net::sockopt;
    // Each option is an improvement, none is a need, so a failure is no reason to give up.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, DEAD_AFTER);
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    let millis = u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(socket, millis);
}
