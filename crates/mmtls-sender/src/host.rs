//! The host's `errno`, its thread's cancelability, and the ends of its connections. Refuses to
//! leave anything changed, and to let a panic out.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mmtls_keyshare::Flow;

unsafe extern "C" {
    /// POSIX; missing in the libc crate.
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: libc::c_int = 1;

/// Runs our own work: nothing of it may reach the host, neither `errno` nor a panic, and nothing
/// that the host sends may end it halfway.
pub fn guarded<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    let errno = Errno::save();
    let cancelability = Cancelability::suspend();
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(fallback);
    cancelability.restore();
    errno.restore();
    result
}

/// Keeps `pthread_cancel` away from this thread until it is put back: our system calls are
/// cancellation points that the host does not expect, and unwinding by force through our frames
/// would abort the host.
struct Cancelability(libc::c_int);

impl Cancelability {
    /// Switches cancellation off.
    fn suspend() -> Self {
        let mut old = CANCEL_DISABLE;
        // SAFETY: a live integer; it fails only for states that do not exist.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut old) };
        Self(old)
    }

    /// As it was. No cancellation point itself.
    fn restore(self) {
        let mut old = 0;
        // SAFETY: as above, with a state that was given to us.
        unsafe { pthread_setcancelstate(self.0, &mut old) };
    }
}

/// Keeps signals away from this thread until it is dropped: a handler may jump out of what it has interrupted
/// (`siglongjmp`), which would then stay as it was, or come back into it. Not those that the thread itself causes: programs
/// emulate system calls by such (SIGSYS), and end where they find them blocked.
pub(crate) struct SignalsHeld(libc::sigset_t);

impl SignalsHeld {
    const OWN: [libc::c_int; 6] =
        [libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

    pub(crate) fn new() -> Self {
        let mut held = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set lives, and is filled.
        unsafe { libc::sigfillset(held.as_mut_ptr()) };
        for signal in Self::OWN {
            // SAFETY: as above, and the signals exist.
            unsafe { libc::sigdelset(held.as_mut_ptr(), signal) };
        }
        let (held, before_at) = (held.as_ptr(), before.as_mut_ptr());
        // SAFETY: both sets live; it fails only for ways of changing that do not exist.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, held, before_at) };
        // SAFETY: it was zeroed, and every bit pattern is valid for a set.
        Self(unsafe { before.assume_init() })
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the set lives, and is what was there.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The host's `errno`, to be put back.
pub(crate) struct Errno(libc::c_int);

impl Errno {
    /// The current value.
    fn save() -> Self {
        Self(Self::current())
    }

    /// The current value, as a number.
    pub(crate) fn current() -> libc::c_int {
        // SAFETY: no preconditions; it returns the address of this thread's errno.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: valid and aligned for as long as the thread lives.
        unsafe { location.read() }
    }

    /// Puts the value back.
    fn restore(self) {
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
    let raw: *const libc::sockaddr = storage.as_ptr().cast();
    // SAFETY: the storage lives, was zeroed, and is larger than and aligned for every socket address.
    unsafe { socket_address(raw) }
}

/// The address in a structure of the C library; `None` where it is neither IPv4's nor IPv6's.
///
/// # Safety
/// `raw` points to the structure that belongs to its `sa_family`, not necessarily aligned.
pub unsafe fn socket_address(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family on Linux.
    let family = unsafe { raw.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: by its family it is this structure.
            let address = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
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
    fn refuses_to_let_a_panic_out_or_to_change_errno() {
        let before = Errno::current();
        let work = || {
            // SAFETY: an unused number; it fails and sets errno.
            unsafe { libc::close(-1) };
            panic!("on purpose")
        };
        assert_eq!(guarded(7, work), 7);
        assert_eq!(Errno::current(), before);
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
