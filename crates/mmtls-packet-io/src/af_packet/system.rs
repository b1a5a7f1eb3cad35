//! The system calls of AF_PACKET, and the memory that the kernel writes into. What rustix covers goes by it, the rest by
//! libc. Nearly all unsafe code of this crate is here; the rest is the promise, in the modules beside, that buffers outlive the
//! headers that point at them.
//!
//! Nothing here decides anything: each function is one call, its errors are the kernel's.

use std::array::from_fn;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use libc::{c_int, c_void, iovec, mmsghdr, socklen_t};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name_inlined;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The 16 bytes of an interface name with its final zero.
pub(super) const INTERFACE_NAME_SIZE: usize = libc::IFNAMSIZ;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A raw packet socket bound to nothing: protocol 0 receives no frame until [`bind`].
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?)
}

/// A socket to ask about interfaces, which needs no capability.
pub(crate) fn inet_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Receives every protocol of one interface from now on.
pub(super) fn bind(socket: &OwnedFd, interface_index: i32) -> io::Result<()> {
    bind_protocol(socket, interface_index, libc::ETH_P_ALL as u16)
}

/// Sends to an interface from now on, and receives nothing.
pub(super) fn bind_to_send(socket: &OwnedFd, interface_index: i32) -> io::Result<()> {
    bind_protocol(socket, interface_index, 0)
}

fn bind_protocol(socket: &OwnedFd, interface_index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface_index;
    let length = size_of::<libc::sockaddr_ll>() as socklen_t;
    // SAFETY: the address lives through the call and its length is given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

/// Sets a socket option whose value is plain data.
pub(super) fn set_option<T: Copy>(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let value: *const T = value;
    let length = size_of::<T>() as socklen_t;
    // SAFETY: the value lives through the call and its length is given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), length) })?;
    Ok(())
}

/// Adds the socket to its interface's promiscuous listeners; undone when the socket closes.
pub(super) fn promiscuous(socket: &OwnedFd, interface_index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface_index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Lets the socket receive nothing, until [`accept_received`].
pub(super) fn refuse_all(socket: &OwnedFd) -> io::Result<()> {
    let ret = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &[ret])
}

/// Lets the socket receive what comes in by its interface, or, if it is bound to none, by these ones; in place of
/// [`refuse_all`]. What this host sends there would come back too: a group does not ignore it as its members do.
pub(super) fn accept_received(socket: &OwnedFd, interfaces: &[i32]) -> io::Result<()> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (refuse, accept) = (op(0x06, 0, 0, 0), op(0x06, 0, 0, u32::MAX));
    // SKF_AD_OFF + SKF_AD_PKTTYPE
    let mut program =
        vec![op(0x20, 0, 0, 0xffff_f004), op(0x15, 0, 1, libc::PACKET_OUTGOING.into()), refuse];
    if !interfaces.is_empty() {
        // SKF_AD_OFF + SKF_AD_IFINDEX
        program.push(op(0x20, 0, 0, 0xffff_f008));
        for &index in interfaces {
            program.extend([op(0x15, 0, 1, index.cast_unsigned()), accept]);
        }
        program.push(refuse);
    }
    program.push(accept);
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Joins a bound socket to a group that shares the interface's frames, or founds one; returns its number.
pub(super) fn join_group(socket: &OwnedFd, group: Option<u16>) -> io::Result<u16> {
    let (number, unique) = match group {
        Some(number) => (number, 0),
        None => (0, libc::PACKET_FANOUT_FLAG_UNIQUEID),
    };
    /// Linux 6.2; before it the sockets' filters do the same, with a copy of each frame.
    const IGNORE_OUTGOING: u32 = 0x4000;
    let join = |flags: u32| {
        let value = u32::from(number) | (libc::PACKET_FANOUT_CBPF | unique | flags) << 16;
        set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
    };
    join(IGNORE_OUTGOING).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => join(0),
        _ => Err(error),
    })?;
    if let Some(number) = group {
        return Ok(number);
    }
    let mut value: u32 = 0;
    let mut length = size_of::<u32>() as socklen_t;
    let to: *mut u32 = &raw mut value;
    let fd = socket.as_raw_fd();
    // SAFETY: value and length live through the call, length is the size of value.
    check(unsafe {
        let name = libc::PACKET_FANOUT;
        libc::getsockopt(fd, libc::SOL_PACKET, name, to.cast(), &raw mut length)
    })?;
    // The lower half is the number, the upper half what was asked for.
    Ok(value as u16)
}

/// Gives the socket's group the program whose result says which member gets a frame.
pub(super) fn steer_group(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    set_program(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)
}

fn set_program(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel copies the instructions, and does not write to them.
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    set_option(socket, level, name, &program)
}

/// The size of the receive buffer, in the kernel's accounting (twice what was asked for).
pub(super) fn receive_buffer_bytes(socket: &OwnedFd) -> io::Result<usize> {
    Ok(rustix::net::sockopt::socket_recv_buffer_size(socket)?)
}

/// What tells a socket's network namespace from all others since the machine was started.
pub(crate) fn netns_cookie(socket: &OwnedFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as socklen_t;
    let to: *mut u64 = &raw mut cookie;
    let fd = socket.as_raw_fd();
    // SAFETY: cookie and length live through the call, length is the size of the cookie.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, to.cast(), &raw mut length)
    })?;
    Ok(cookie)
}

/// `asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Frames dropped by the kernel because the receive buffer was full, since the last call.
pub(super) fn take_drops(socket: &OwnedFd) -> io::Result<u64> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as socklen_t;
    let to: *mut libc::tpacket_stats = &raw mut statistics;
    let fd = socket.as_raw_fd();
    // SAFETY: statistics and length live through the call, length is the size of statistics.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, to.cast(), &raw mut length)
    })?;
    Ok(u64::from(statistics.tp_drops))
}

/// `struct ifreq`, the union as plain bytes.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; INTERFACE_NAME_SIZE],
    value: [u8; 24],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// One of the SIOCGIF… requests that answer with plain data, for a zero-terminated name. The answer is the union of
/// `struct ifreq`.
pub(super) fn interface_request(
    socket: &OwnedFd,
    request: libc::Ioctl,
    name: [u8; INTERFACE_NAME_SIZE],
) -> io::Result<[u8; 24]> {
    let mut argument = InterfaceRequest { name, value: [0; 24] };
    // SAFETY: the argument is as large as struct ifreq and lives through the call; the requests used here store no
    // pointers in it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut argument) })?;
    Ok(argument.value)
}

/// The driver of an interface and the bus that its card is on, as ethtool(8) shows them; empty where they have none.
pub(super) fn driver(socket: &OwnedFd, name: [u8; INTERFACE_NAME_SIZE]) -> io::Result<[String; 2]> {
    /// `struct ethtool_drvinfo`.
    #[repr(C)]
    struct Information {
        command: u32,
        driver: [u8; 32],
        versions: [[u8; 32]; 2],
        bus: [u8; 32],
        rest: [u8; 64],
    }
    const ETHTOOL_GDRVINFO: u32 = 3;
    const _: () = assert!(size_of::<Information>() == 196);
    let mut information = Information {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        versions: [[0; 32]; 2],
        bus: [0; 32],
        rest: [0; 64],
    };
    let mut argument = InterfaceRequest { name, value: [0; 24] };
    let place = (&raw mut information).expose_provenance();
    argument.value[..size_of::<usize>()].copy_from_slice(&place.to_ne_bytes());
    // SAFETY: the argument is as large as struct ifreq, and points to a struct ethtool_drvinfo; both live through the call.
    check(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut argument)
    })?;
    let text = |bytes: &[u8; 32]| {
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Ok([text(&information.driver), text(&information.bus)])
}

/// The name of an interface in the socket's namespace.
pub(crate) fn interface_name(socket: &OwnedFd, index: u32) -> io::Result<String> {
    Ok(index_to_name_inlined(socket, index)?.as_str().to_owned())
}

/// True when an interface with this index still exists in the socket's namespace.
pub(super) fn interface_exists(socket: &OwnedFd, interface_index: i32) -> bool {
    index_to_name_inlined(socket, interface_index.cast_unsigned()).is_ok()
}

/// Waits for readability of up to three descriptors. `None` waits for ever. A signal ends the wait with nothing ready.
pub(crate) fn poll_readable<const N: usize>(
    descriptors: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let Some(any) = descriptors.iter().flatten().next().copied() else {
        poll(&mut [], timeout)?;
        return Ok([false; N]);
    };
    // Where there is none, another one is looked at twice, and the second answer is ignored.
    let mut set = descriptors.map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(any), PollFlags::IN));
    poll(&mut set, timeout)?;
    Ok(from_fn(|at| descriptors[at].is_some() && !set[at].revents().is_empty()))
}

/// Waits until the socket takes more to send, or the time is over.
pub(super) fn poll_writable(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(timeout))
}

fn poll(set: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    // One that is too long for the kernel is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(set, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A new non-blocking eventfd with count zero.
pub(crate) fn event_descriptor() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Zeroed anonymous memory at a fixed address, for buffers that the kernel fills. Access goes through raw pointers, so
/// that message headers may keep pointers into it.
pub(super) struct Region {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the region is plain memory owned by this value alone.
unsafe impl Send for Region {}

impl Region {
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, length })
    }

    /// Address of an offset, for the kernel. Panics when `length` bytes from there are not inside the region.
    pub(super) fn address(&self, offset: usize, length: usize) -> *mut c_void {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }

    /// Panics when the range is not inside the region.
    pub(super) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let start: *const u8 = self.address(offset, length).cast();
        // SAFETY: the range is mapped, initialised (zero at first), and no mutable reference exists: the only writer is
        // the kernel, during calls that need `&mut` of the owner of this region.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Message headers with one I/O vector each, at fixed addresses, for `recvmmsg`.
pub(super) struct ReceiveVector {
    headers: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
}

// SAFETY: the pointers inside lead to this value's own vectors and to memory that its owner keeps alive and owns too.
unsafe impl Send for ReceiveVector {}

impl ReceiveVector {
    pub(super) fn new(capacity: usize) -> Self {
        let mut vectors: Box<[iovec]> =
            vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; capacity].into();
        // SAFETY: all-zero is a valid mmsghdr: no name, no vectors, no control data.
        let empty: mmsghdr = unsafe { zeroed() };
        let mut headers = vec![empty; capacity].into_boxed_slice();
        for (header, vector) in headers.iter_mut().zip(vectors.iter_mut()) {
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        Self { headers, vectors }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Points entry `index` at the buffer to receive into.
    ///
    /// # Safety
    /// The memory must stay valid until the entry is set anew or never used again. During calls of [`Self::receive`]
    /// that cover this entry it must not be referred to elsewhere.
    pub(super) unsafe fn set_buffer(&mut self, index: usize, base: *mut c_void, length: usize) {
        self.vectors[index] = iovec { iov_base: base, iov_len: length };
    }

    /// Points entry `index` at room for control data.
    ///
    /// # Safety
    /// As for [`Self::set_buffer`].
    pub(super) unsafe fn set_control(&mut self, index: usize, base: *mut c_void, length: usize) {
        let header = &mut self.headers[index].msg_hdr;
        header.msg_control = base;
        header.msg_controllen = length as _;
        header.msg_flags = 0;
    }

    /// Bytes received into entry `index`, its control data's length, and whether more was there.
    pub(super) fn received(&self, index: usize) -> (usize, usize, bool) {
        let entry = &self.headers[index];
        let truncated = entry.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        // Its type depends on the C library.
        let control_length: usize = entry.msg_hdr.msg_controllen as _;
        (entry.msg_len as usize, control_length, truncated)
    }

    /// Receives into the first `count` entries without blocking. Each must have its buffer and control data set.
    pub(super) fn receive(&mut self, socket: &OwnedFd, count: usize) -> io::Result<usize> {
        let count = count.min(self.headers.len()) as _;
        let headers = self.headers.as_mut_ptr();
        let fd = socket.as_raw_fd();
        // SAFETY: `count` headers exist; whoever set their buffers promised that those are valid now.
        let received = check(unsafe {
            libc::recvmmsg(fd, headers, count, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
        })?;
        Ok(received as usize)
    }
}

/// Bytes somewhere in memory, to be sent.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    base: *const u8,
    length: usize,
}

// SAFETY: an address and a number; who reads what is there promises that it may be read.
unsafe impl Send for Memory {}

impl Memory {
    pub(super) const fn of(bytes: &[u8]) -> Self {
        Self { base: bytes.as_ptr(), length: bytes.len() }
    }

    /// Without its first bytes.
    pub(super) fn skip(self, bytes: usize) -> Self {
        let skipped = bytes.min(self.length);
        Self { base: self.base.wrapping_add(skipped), length: self.length - skipped }
    }
}

/// Messages for `sendmmsg`, each gathered from several places.
#[derive(Default)]
pub(super) struct SendVector {
    headers: Vec<mmsghdr>,
    vectors: Vec<iovec>,
}

// SAFETY: the pointers inside lead to this value's own vectors and to memory of which `send`'s caller promises that it
// may be read.
unsafe impl Send for SendVector {}

impl SendVector {
    pub(super) fn clear(&mut self) {
        self.headers.clear();
        self.vectors.clear();
    }

    /// Adds a message.
    pub(super) fn push(&mut self, places: impl Iterator<Item = Memory>) {
        let before = self.vectors.len();
        // The kernel only reads what it sends.
        self.vectors.extend(
            places.map(|it| iovec { iov_base: it.base.cast_mut().cast(), iov_len: it.length }),
        );
        // SAFETY: all-zero is a valid mmsghdr: no name, no vectors, no control data.
        let mut header: mmsghdr = unsafe { zeroed() };
        header.msg_hdr.msg_iovlen = (self.vectors.len() - before) as _;
        self.headers.push(header);
    }

    /// Bytes of a message that was sent: all of it, since packets go whole or not at all.
    pub(super) fn sent_bytes(&self, message: usize) -> usize {
        self.headers[message].msg_len as usize
    }

    /// Sends the messages from `from` on without blocking, and returns how many went. An error is that of `from`.
    ///
    /// # Safety
    /// All places of all messages must be readable, and not be written to meanwhile.
    pub(super) unsafe fn send(&mut self, socket: &OwnedFd, from: usize) -> io::Result<usize> {
        let mut rest = self.vectors.as_mut_slice();
        for header in &mut self.headers {
            // Its type depends on the C library.
            let places: usize = header.msg_hdr.msg_iovlen as _;
            let (own, others) = rest.split_at_mut(places);
            header.msg_hdr.msg_iov = own.as_mut_ptr();
            rest = others;
        }
        let entries = &mut self.headers[from..];
        let count = entries.len() as _;
        let headers = entries.as_mut_ptr();
        let fd = socket.as_raw_fd();
        // SAFETY: `count` headers exist, each with its vectors; for what those lead to, see above.
        let sent = check(unsafe { libc::sendmmsg(fd, headers, count, libc::MSG_DONTWAIT as _) })?;
        Ok(sent as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ranges_inside_a_region() -> io::Result<()> {
        let region = Region::new(10_000)?;
        assert_eq!(region.bytes(9_995, 5), [0; 5]);
        Ok(())
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn refuses_ranges_outside_a_region() {
        if let Ok(region) = Region::new(4096) {
            let _ = region.bytes(4000, 97);
        }
    }
}
