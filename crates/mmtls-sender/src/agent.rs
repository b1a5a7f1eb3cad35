//! The connection to the agent: one Unix SOCK_SEQPACKET socket, opened on first use.
//!
//! The host does not know of the socket, so it may close it or reuse its number at any time, and
//! it may fork. Before each use `fstat` tells whether the descriptor is still ours. (Another
//! thread closing it between that and the write, which takes a microsecond, remains possible.)
//! After a fork both processes write to the same socket; datagrams stay whole.
//! Signals wait while a thread has the lock. Refuses: to block, to keep more than [`MAX_WAITING`] datagrams, agents of other users.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::c_int;
use mmtls_keyshare::agent::{Datagram, MAX_DATAGRAM_BYTES};
use zeroize::{Zeroize, Zeroizing};

use crate::host::{Errno, SignalsHeld};
use crate::lock::ForkLock;

/// Datagrams that wait while the agent's socket is full.
pub const MAX_WAITING: usize = 64;
/// Pause after a connection failed, in milliseconds.
const RETRY_AFTER_MS: u64 = 100;
/// Numbers below this are left to the host: programs expect low ones, and `select` needs them.
const LOWEST_DESCRIPTOR: c_int = 512;

/// Where the agent listens, and as whom it may.
pub struct Address {
    /// As a C string fits it: no zero byte, not too long.
    path: Vec<u8>,
    /// The user when this was made; the host may become another one.
    user: libc::uid_t,
}

impl Address {
    /// Of a path; `None` where no socket can have it.
    #[must_use]
    pub fn new(path: &[u8]) -> Option<Self> {
        // One byte for the end, since a path that fills the array has none.
        let room = size_of::<libc::sockaddr_un>() - size_of::<libc::sa_family_t>() - 1;
        if path.is_empty() || path.len() > room || path.contains(&0) {
            return None;
        }
        // SAFETY: no preconditions.
        let user = unsafe { libc::getuid() };
        Some(Self { path: path.to_vec(), user })
    }
}

/// A connection that any thread may use.
pub struct Sender {
    connection: ForkLock<Connection>,
    open: Open,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The agent's socket has it.
    Sent,
    /// It waits for the next call.
    Waits,
    /// Neither: another thread kept the lock for too long.
    Lost,
    /// A field is too long for the format; nothing was sent.
    TooLong,
}

/// What the last holder of the lock left, for threads that need no lock: the kernel keeps
/// datagrams of several threads apart. The parts may be of different times; `fstat` tells.
struct Open {
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    waiting: AtomicU64,
}

struct Connection {
    /// -1 when there is none.
    descriptor: c_int,
    /// Device and inode of our socket.
    identity: (libc::dev_t, libc::ino_t),
    /// Monotonic time in milliseconds before which there is no point in connecting.
    retry_at_ms: u64,
    /// The socket was full at the last attempt: do not wait for it again.
    full: bool,
    waiting: Waiting,
}

/// A ring of datagrams.
struct Waiting {
    slots: [Slot; MAX_WAITING],
    first: usize,
    count: usize,
}

struct Slot {
    length: usize,
    bytes: [u8; MAX_DATAGRAM_BYTES],
}

enum Outcome {
    Sent,
    Full,
    Broken,
}

impl Sender {
    /// Not connected.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            connection: ForkLock::new(Connection::new()),
            open: Open {
                descriptor: AtomicI32::new(-1),
                device: AtomicU64::new(0),
                inode: AtomicU64::new(0),
                waiting: AtomicU64::new(0),
            },
        }
    }

    /// Sends a datagram now, or keeps it for the next call, or drops it.
    pub fn send(&self, agent: &Address, datagram: &Datagram<'_>) -> Delivery {
        let mut buffer = Zeroizing::new([0; MAX_DATAGRAM_BYTES]);
        let Some(bytes) = datagram.encode(&mut buffer).and_then(|length| buffer.get(..length))
        else {
            return Delivery::TooLong;
        };
        if self.open.waiting.load(Ordering::Relaxed) == 0 && self.open.write(bytes) {
            return Delivery::Sent;
        }
        let delivered = self.with_connection(|connection| {
            connection.waiting.push(bytes);
            connection.deliver(agent, &self.open, true);
            connection.waiting.count == 0
        });
        match delivered {
            Some(true) => Delivery::Sent,
            Some(false) => Delivery::Waits,
            // The holder has no processor at the moment. Out of order is better than lost.
            None if self.open.write(bytes) => Delivery::Sent,
            None => Delivery::Lost,
        }
    }

    /// Opens the connection ahead of time, while the host still has the rights to do so.
    pub fn connect_early(&self, agent: &Address) {
        if self.open.descriptor.load(Ordering::Relaxed) < 0 {
            self.with_connection(|connection| connection.ensure(agent));
        }
    }

    /// Connects where there is no connection, and sends what waits; whether the agent is there and nothing waits any more.
    pub fn connect(&self, agent: &Address) -> bool {
        let connected = self.with_connection(|connection| {
            if connection.descriptor >= 0 && is_hung_up(connection.descriptor) {
                connection.close(&self.open);
            }
            connection.deliver(agent, &self.open, true);
            connection.ensure(agent) && connection.waiting.count == 0
        });
        connected == Some(true)
    }

    /// The last attempt to send what waits.
    pub fn flush(&self, agent: &Address) {
        self.with_connection(|connection| {
            if connection.waiting.count > 0 {
                connection.deliver(agent, &self.open, false);
            }
            connection.waiting.clear();
        });
    }

    /// As [`Self::flush`], and closes the connection for good.
    pub fn end(&self, agent: &Address) {
        self.flush(agent);
        self.with_connection(|connection| {
            connection.close(&self.open);
            connection.retry_at_ms = u64::MAX;
        });
    }

    /// `None` when the lock cannot be had in time.
    fn with_connection<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> Option<T> {
        // Given back behind the lock.
        let _signals = SignalsHeld::new();
        let mut connection = self.connection.lock()?;
        if connection.interrupted {
            connection.reset();
        }
        let result = work(&mut connection);
        self.open.publish(&connection);
        Some(result)
    }
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Open {
    fn publish(&self, connection: &Connection) {
        let (device, inode) = connection.identity;
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
        self.waiting.store(connection.waiting.count as u64, Ordering::Relaxed);
        self.descriptor.store(connection.descriptor, Ordering::Release);
    }

    fn write(&self, bytes: &[u8]) -> bool {
        let descriptor = self.descriptor.load(Ordering::Acquire);
        let ours = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        descriptor >= 0
            && identity(descriptor) == Some(ours)
            && matches!(write(descriptor, bytes), Outcome::Sent)
    }
}

impl Connection {
    const fn new() -> Self {
        const EMPTY: Slot = Slot { length: 0, bytes: [0; MAX_DATAGRAM_BYTES] };
        Self {
            descriptor: -1,
            identity: (0, 0),
            retry_at_ms: 0,
            full: false,
            waiting: Waiting { slots: [EMPTY; MAX_WAITING], first: 0, count: 0 },
        }
    }

    /// After a fork in the middle of a change: what waits belongs to the parent.
    fn reset(&mut self) {
        self.waiting.clear();
        self.descriptor = -1;
        self.retry_at_ms = 0;
        self.full = false;
    }

    fn deliver(&mut self, agent: &Address, open: &Open, may_wait: bool) {
        let mut reconnects = 0;
        while self.waiting.count > 0 && self.ensure(agent) {
            let Some(bytes) = self.waiting.front() else {
                return;
            };
            let outcome = write(self.descriptor, bytes);
            match outcome {
                Outcome::Sent => {
                    self.full = false;
                    self.waiting.pop();
                }
                Outcome::Full if may_wait && !self.full => {
                    // One short wait, then none until something could be sent again.
                    self.full = true;
                    wait_for_room(self.descriptor);
                }
                Outcome::Full => return,
                Outcome::Broken => {
                    self.close(open);
                    reconnects += 1;
                    if reconnects > 1 {
                        return;
                    }
                }
            }
        }
    }

    /// Whether there is a connection that is ours, possibly a new one.
    fn ensure(&mut self, agent: &Address) -> bool {
        if self.descriptor >= 0 && identity(self.descriptor) == Some(self.identity) {
            return true;
        }
        // Not ours any more: whoever has the number now must keep it.
        self.descriptor = -1;
        let now = now_ms();
        if now < self.retry_at_ms {
            return false;
        }
        match open(agent).and_then(|fd| Some((fd, identity(fd)?))) {
            Some((descriptor, identity)) => {
                self.descriptor = descriptor;
                self.identity = identity;
                self.full = false;
                true
            }
            None => {
                self.retry_at_ms = now + RETRY_AFTER_MS;
                false
            }
        }
    }

    /// The others are told first: the number may be the host's at once.
    fn close(&mut self, open: &Open) {
        open.descriptor.store(-1, Ordering::Release);
        if self.descriptor >= 0 && identity(self.descriptor) == Some(self.identity) {
            close(self.descriptor);
        }
        self.descriptor = -1;
    }
}

impl Waiting {
    /// Adds a datagram; when there is no room the oldest gives way.
    fn push(&mut self, bytes: &[u8]) {
        if self.count == MAX_WAITING {
            self.pop();
        }
        let index = (self.first + self.count) % MAX_WAITING;
        let slot = &mut self.slots[index];
        let length = bytes.len().min(slot.bytes.len());
        slot.bytes[..length].copy_from_slice(&bytes[..length]);
        slot.length = length;
        self.count += 1;
    }

    fn front(&self) -> Option<&[u8]> {
        let slot = &self.slots[self.first % MAX_WAITING];
        (self.count > 0).then(|| slot.bytes.get(..slot.length).unwrap_or_default())
    }

    fn pop(&mut self) {
        if self.count > 0 {
            let slot = &mut self.slots[self.first % MAX_WAITING];
            slot.bytes.zeroize();
            slot.length = 0;
            self.first = (self.first + 1) % MAX_WAITING;
            self.count -= 1;
        }
    }

    fn clear(&mut self) {
        for slot in &mut self.slots {
            if slot.length > 0 {
                slot.bytes.zeroize();
                slot.length = 0;
            }
        }
        self.first = 0;
        self.count = 0;
    }
}

fn identity(descriptor: c_int) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: any descriptor is allowed, and the kernel fills the structure.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: it was zeroed, and every bit pattern is valid for this plain C structure.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

fn write(descriptor: c_int, bytes: &[u8]) -> Outcome {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    loop {
        // SAFETY: the pointer and the length are those of a live slice.
        let sent = unsafe { libc::send(descriptor, bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent >= 0 {
            return Outcome::Sent;
        }
        match Errno::current() {
            libc::EINTR => {}
            libc::EAGAIN | libc::ENOBUFS => return Outcome::Full,
            _ => return Outcome::Broken,
        }
    }
}

fn wait_for_room(descriptor: c_int) {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live structure, and a count that says so.
    unsafe { libc::poll(&mut poll, 1, 1) };
}

/// Whether the agent has closed its end.
fn is_hung_up(descriptor: c_int) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
    // SAFETY: one live structure, and a count that says so.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

fn close(descriptor: c_int) {
    // SAFETY: the caller owns this descriptor.
    unsafe { libc::close(descriptor) };
}

fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure and a clock that always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// A connected socket with a high number, closed on exec.
fn open(agent: &Address) -> Option<c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no preconditions.
    let first = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if first < 0 {
        return None;
    }
    let descriptor = move_up(first);
    if connect(descriptor, &agent.path) && peer_is_trusted(descriptor, agent.user) {
        widen(descriptor);
        Some(descriptor)
    } else {
        close(descriptor);
        None
    }
}

fn move_up(descriptor: c_int) -> c_int {
    // SAFETY: duplicating a descriptor that we own.
    let high = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) };
    if high < 0 {
        // The host may use few descriptors only; the low number has to do.
        return descriptor;
    }
    close(descriptor);
    high
}

fn connect(descriptor: c_int, path: &[u8]) -> bool {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a live address structure with its length; the path ends with a zero byte, because
    // `Address` admits none that fills the array.
    unsafe { libc::connect(descriptor, (&raw const address).cast(), length) == 0 }
}

/// The agent must be this user's or root's: the path may outlive the agent, and then anybody may
/// listen there.
fn peer_is_trusted(descriptor: c_int, user: libc::uid_t) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the structure.
    let status = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    // SAFETY: no preconditions.
    let current = unsafe { libc::geteuid() };
    status == 0 && [0, user, current].contains(&peer.uid)
}

/// Makes room for the secrets of some hundred simultaneous handshakes, as far as allowed.
fn widen(descriptor: c_int) {
    let size: c_int = 1 << 20;
    // SAFETY: a live integer with its length. Failure leaves the default size.
    unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const size).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_datagrams_in_order_and_drops_the_oldest() {
        let mut connection = Box::new(Connection::new());
        let waiting = &mut connection.waiting;
        for number in 0..MAX_WAITING + 3 {
            waiting.push(&[u8::try_from(number).unwrap(); 3]);
        }
        assert_eq!(waiting.count, MAX_WAITING);
        for number in 3..MAX_WAITING + 3 {
            assert_eq!(waiting.front(), Some(&[u8::try_from(number).unwrap(); 3][..]));
            waiting.pop();
        }
        assert_eq!(waiting.front(), None);
        assert!(waiting.slots.iter().all(|slot| slot.bytes.iter().all(|&byte| byte == 0)));
    }

    #[test]
    fn refuses_to_be_interrupted_while_it_has_the_lock() {
        static CAME: AtomicU64 = AtomicU64::new(0);
        extern "C" fn come(_: c_int) {
            CAME.fetch_add(1, Ordering::Relaxed);
        }
        let handler = come as extern "C" fn(c_int) as *const () as libc::sighandler_t;
        // SAFETY: the handler does what handlers may.
        unsafe { libc::signal(libc::SIGUSR1, handler) };
        let came = || {
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGUSR1) };
            CAME.load(Ordering::Relaxed)
        };
        let sender = Box::new(Sender::new());
        assert_eq!(sender.with_connection(|_| came()), Some(0));
        assert_eq!(CAME.load(Ordering::Relaxed), 1, "it was lost");
        assert_eq!(came(), 2, "it is still held");
    }

    #[test]
    fn refuses_paths_that_no_socket_has() {
        assert!(Address::new(&[b'x'; 107]).is_some());
        for path in [&b""[..], b"a\0b", &[b'x'; 108]] {
            assert!(Address::new(path).is_none(), "{path:?}");
        }
    }

    #[test]
    fn refuses_a_descriptor_that_is_not_its_own() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        let mut connection = Box::new(Connection::new());
        connection.descriptor = descriptor;
        connection.identity = (0, 0);
        connection.close(&Sender::new().open);
        assert_eq!(connection.descriptor, -1);
        assert!(file.metadata().is_ok(), "the host's file was closed");
    }
}
