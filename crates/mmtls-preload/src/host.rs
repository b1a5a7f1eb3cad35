//! The host's `errno`, its thread's cancelability, and the ends of its connections. Refuses to
//! leave anything changed.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mmtls_keyshare::Flow;

unsafe extern "C" {
    /// POSIX; missing in the libc crate.
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: libc::c_int = 1;

/// Keeps `pthread_cancel` away from this thread until it is put back: our system calls are
/// cancellation points that the host does not expect, and unwinding by force through our frames
/// would abort the host.
pub struct Cancelability(libc::c_int);

impl Cancelability {
    /// Switches cancellation off.
    pub fn suspend() -> Self {
        let mut old = CANCEL_DISABLE;
        // SAFETY: a live integer; it fails only for states that do not exist.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut old) };
        Self(old)
    }

    /// As it was. No cancellation point itself.
    pub fn restore(self) {
        let mut old = 0;
        // SAFETY: as above, with a state that was given to us.
        unsafe { pthread_setcancelstate(self.0, &mut old) };
    }
}

/// The host's `errno`, to be put back.
pub struct Errno(libc::c_int);

impl Errno {
    /// The current value.
    pub fn save() -> Self {
        Self(Self::current())
    }

    /// The current value, as a number.
    pub fn current() -> libc::c_int {
        // SAFETY: no preconditions; it returns the address of this thread's errno.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: valid and aligned for as long as the thread lives.
        unsafe { location.read() }
    }

    /// Puts the value back.
    pub fn restore(self) {
        // SAFETY: no preconditions; it returns the address of this thread's errno.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: valid and aligned for as long as the thread lives, and used by it alone.
        unsafe { location.write(self.0) }
    }
}

/// The ends of the host's connection, when `fd` is a TCP socket.
pub fn flow(fd: libc::c_int, host_is_client: bool) -> Option<Flow> {
    let own = address(fd, libc::getsockname)?;
    let peer = address(fd, libc::getpeername)?;
    if host_is_client { Flow::new(own, peer) } else { Flow::new(peer, own) }
}

/// Whether `fd` is a socket of another kind than TCP's; `false` when that is not known.
pub fn is_no_stream(fd: libc::c_int) -> bool {
    if fd < 0 {
        return false;
    }
    let mut kind: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the integer; any `fd` is allowed.
    let status = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut length)
    };
    status == 0 && kind != libc::SOCK_STREAM
}

type AddressCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(fd: libc::c_int, call: AddressCall) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the storage; any `fd` is allowed.
    let status = unsafe { call(fd, storage.as_mut_ptr().cast(), &mut length) };
    if status != 0 {
        return None;
    }
    // SAFETY: it was zeroed, and every bit pattern is valid for this plain C structure.
    let storage = unsafe { storage.assume_init() };
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            let raw: *const libc::sockaddr_in = (&raw const storage).cast();
            // SAFETY: sockaddr_storage is larger than and aligned for every socket address.
            let address = unsafe { raw.read() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            let raw: *const libc::sockaddr_in6 = (&raw const storage).cast();
            // SAFETY: as above.
            let address = unsafe { raw.read() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin6_port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn accepts_tcp_sockets_of_both_families() {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(listen) else {
                eprintln!("skipped: no {listen} here");
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            assert_eq!(flow(stream.as_raw_fd(), true), Flow::new(own, peer));
            assert_eq!(flow(stream.as_raw_fd(), false), Flow::new(peer, own));
            assert!(!is_no_stream(stream.as_raw_fd()));
        }
    }

    #[test]
    fn refuses_other_descriptors() {
        assert_eq!(flow(-1, true), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(flow(file.as_raw_fd(), true), None);
        assert!(!is_no_stream(-1) && !is_no_stream(file.as_raw_fd()));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is_no_stream(socket.as_raw_fd()));
    }
}
