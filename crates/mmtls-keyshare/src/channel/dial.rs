//! The way to the first of a name's addresses that answers, and how long to wait for another attempt. Refuses to wait for one of them alone.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connects to the first address that answers. Each gets an equal part of the time that is left:
/// a name often has one in a network that leads nowhere.
pub(super) fn connect_any(
    addresses: &[SocketAddr],
    deadline: Instant,
    stopped: impl Fn() -> bool,
) -> io::Result<std::net::TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        // One part more than there are addresses: TLS has to follow.
        let parts = u32::try_from(addresses.len() - tried + 1).unwrap_or(u32::MAX);
        let part = left / parts;
        if part.is_zero() || stopped() {
            break;
        }
        match std::net::TcpStream::connect_timeout(address, part) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Spreads reconnects of many endpoints; not a secret.
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(address: &str) -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(RandomState::new().hash_one(address) | 1)
    }

    /// Between half and all of `pause`.
    pub(super) fn of(&mut self, pause: Duration) -> Duration {
        // Xorshift is enough for that.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let half = pause / 2;
        half + half * u32::from((self.0 >> 32) as u16) / u32::from(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

    use super::*;

    #[test]
    fn accepts_the_second_address_where_the_first_leads_nowhere() {
        // Nobody accepts, and one connection fills the queue: further SYNs get no answer.
        let silent = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&silent, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        listen(&silent, 0).unwrap();
        let nowhere = SocketAddr::try_from(getsockname(&silent).unwrap()).unwrap();
        let _filler = std::net::TcpStream::connect(nowhere).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let somewhere = listener.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(2);
        let stream = connect_any(&[nowhere, somewhere], deadline, || false).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), somewhere);
        assert!(
            connect_any(&[nowhere], Instant::now() + Duration::from_millis(50), || false).is_err()
        );
    }
}
