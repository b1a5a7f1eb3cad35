//! Whether a new connection to a middlebox would come from another address of this host than the one that is there. Keys count
//! for sessions of the address that they come from, and new sessions have the present one of several that change
//! (temporary addresses, RFC 8981), while a connection keeps that with which it began.
//!
//! Whoever sends keys from an old address has them refused; whoever gives them when asked is not asked there, and looks now and then.
//!
//! Refuses to look more than once a second, to say so more than once a minute, and to say it again where that has led back. Behind
//! address translation, and for sessions of other hosts, no address of this host is the right one, and none is another one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Between two looks: each takes some system calls.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Behind a change.
const CHANGE_PAUSE: Duration = Duration::from_secs(60);

/// What is known of the addresses of a link's connections.
#[derive(Default)]
pub(super) struct Source {
    /// Between two looks without a refusal, where there are any.
    pause: Option<Duration>,
    due: Option<Instant>,
    next_look: Option<Instant>,
    /// From which address it was to go to which, until it has gone elsewhere.
    latest: Option<[IpAddr; 2]>,
}

impl Source {
    /// Of a link that looks so often by itself.
    pub(super) fn new(pause: Option<Duration>) -> Self {
        Self { pause, ..Self::default() }
    }

    /// Whether to look although nothing was refused.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|at| now >= at);
        if is_due || self.due.is_none() {
            self.due = self.pause.map(|pause| now + pause);
        }
        is_due
    }

    /// How long until then.
    pub(super) fn until_due(&self, now: Instant) -> Option<Duration> {
        self.due.map(|at| at.saturating_duration_since(now))
    }

    /// Where the next connection has come from.
    pub(super) fn comes_from(&mut self, own: IpAddr) {
        self.latest = self.latest.filter(|it| it[0] == own);
    }

    /// Whether to connect again, of a connection from `own` whose keys were refused for its address, or that is due; `present` tells from where
    /// one to this peer would come now.
    pub(super) fn has_changed(
        &mut self,
        own: IpAddr,
        peer: SocketAddr,
        now: Instant,
        present: impl FnOnce(SocketAddr) -> io::Result<IpAddr>,
    ) -> bool {
        if self.next_look.is_some_and(|at| now < at) {
            return false;
        }
        let change = present(peer).ok().map(|next| [own, next]);
        let change = change.filter(|it| own != it[1] && self.latest != Some(*it));
        self.next_look = Some(now + if change.is_some() { CHANGE_PAUSE } else { LOOK_PAUSE });
        self.latest = change.or(self.latest);
        change.is_some()
    }
}

/// The address of this host that the system chooses for a connection to `peer`. Nothing is sent.
pub(super) fn present(peer: SocketAddr) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_another_address_once_a_minute_and_the_same_change_once() {
        let peer: SocketAddr = "[2001:db8::1]:4433".parse().unwrap();
        let address = |number: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, number]);
        let start = Instant::now();
        let mut source = Source::default();
        let mut looks = 0;
        let mut has_changed = |own, next: Option<u16>, seconds| {
            source.has_changed(address(own), peer, start + Duration::from_secs(seconds), |it| {
                looks += 1;
                assert_eq!(it, peer);
                next.map(address).ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
            })
        };
        assert!(!has_changed(1, Some(1), 0), "behind address translation");
        assert!(!has_changed(1, Some(2), 0), "not yet");
        assert!(!has_changed(1, None, 1), "no way");
        assert!(has_changed(1, Some(2), 2));
        assert!(!has_changed(1, Some(3), 61), "a minute");
        assert!(!has_changed(1, Some(2), 62), "it has led back");
        assert!(has_changed(1, Some(3), 63));
        assert_eq!(looks, 5);
        for (own, is_elsewhere) in [(1, false), (3, true)] {
            source.comes_from(address(own));
            let now = start + Duration::from_secs(1000 + u64::from(own));
            // The host was where it is now once before.
            let has_changed = source.has_changed(address(1), peer, now, |_| Ok(address(3)));
            assert_eq!(has_changed, is_elsewhere);
        }
    }

    #[test]
    fn accepts_looks_without_a_refusal_where_there_is_a_pause() {
        let start = Instant::now();
        let mut never = Source::default();
        assert!(!never.is_due(start) && !never.is_due(start + CHANGE_PAUSE));
        assert_eq!(never.until_due(start), None);
        let mut source = Source::new(Some(CHANGE_PAUSE));
        assert!(!source.is_due(start), "it has just connected");
        assert_eq!(source.until_due(start + LOOK_PAUSE), Some(CHANGE_PAUSE - LOOK_PAUSE));
        assert!(source.is_due(start + CHANGE_PAUSE));
        assert!(!source.is_due(start + CHANGE_PAUSE), "once");
        assert!(source.is_due(start + CHANGE_PAUSE * 3));
    }

    #[test]
    fn accepts_what_the_system_chooses() {
        for peer in ["127.0.0.1:9", "[::1]:9"].map(|it| it.parse::<SocketAddr>().unwrap()) {
            match present(peer) {
                Ok(address) => assert_eq!(address, peer.ip()),
                // A host without IPv6.
                Err(error) => assert!(peer.is_ipv6(), "{error}"),
            }
        }
    }
}
