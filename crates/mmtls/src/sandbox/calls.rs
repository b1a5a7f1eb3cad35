//! The system calls that the program makes once it has started, who makes them, and why.
//!
//! Refuses all that is not in the table. A call is here because it was seen under the live tests (`strace -f`), or because
//! the C library makes it where the kernel or memory is short; what opens ways out (`execve`, `ptrace`, `socket`,
//! `kill`, `mount`, `setuid`, loading of eBPF programs) is not.

/// Threads by what they do: bits of a set.
pub type Jobs = u16;

/// `mmtls run`: workers, and the threads for logs, streams, the mirror, key logs, reloads and the control socket.
pub const MONITOR: Jobs = 1;
/// The thread that takes keys from endpoints, of `run` and of `key-server`.
pub const KEY_CHANNEL: Jobs = 1 << 1;
/// The threads that serve metrics and the page.
pub const METRICS: Jobs = 1 << 2;
/// `mmtls read`.
pub const READ: Jobs = 1 << 3;
/// `mmtls key-server` but for its key channel.
pub const KEY_SERVER: Jobs = 1 << 4;
/// Rules have regular expressions, which are compiled to machine code.
pub const EXPRESSIONS: Jobs = 1 << 5;
/// The middlebox of a key server is known by name, and the C library asks for its address.
pub const NAMES: Jobs = 1 << 6;

/// The key channel of a key server, which sends packets itself.
pub const KEY_SENDER: Jobs = 1 << 7;

/// Events go to sockets in the file system.
pub const UNIX_OUTPUTS: Jobs = 1 << 8;
/// Events go to a server by TCP.
pub const TCP_OUTPUTS: Jobs = 1 << 9;

const ALL: Jobs = MONITOR | KEY_CHANNEL | METRICS | READ | KEY_SERVER;
const FILES: Jobs = MONITOR | READ | KEY_SERVER;
const SERVERS: Jobs = MONITOR | KEY_CHANNEL | METRICS | KEY_SERVER;

/// A system call that is allowed.
pub struct Call {
    /// Its number on this architecture.
    pub number: libc::c_long,
    /// Its name, for people.
    pub name: &'static str,
    /// Who makes it.
    pub jobs: Jobs,
    /// With which arguments: one of these alternatives must hold. None: any.
    pub only: &'static [&'static [Argument]],
    /// What for.
    pub why: &'static str,
}

/// What an argument, by its position, must be.
#[derive(Clone, Copy)]
pub struct Argument(pub u8, pub Is);

/// A test of the lower half of an argument: what is tested are `int`s and flags.
#[derive(Clone, Copy)]
pub enum Is {
    /// This value.
    Exactly(u32),
    /// These bits, of those of a mask.
    Bits {
        /// Those that are looked at.
        mask: u32,
        /// Those of them that are set.
        set: u32,
    },
    /// A null pointer, in both halves.
    Null,
    /// This process's identifier.
    OwnProcess,
}

const fn exactly(position: u8, value: libc::c_int) -> Argument {
    Argument(position, Is::Exactly(value.cast_unsigned()))
}

const fn without(position: u8, bits: libc::c_int) -> Argument {
    Argument(position, Is::Bits { mask: bits.cast_unsigned(), set: 0 })
}

/// Numbers of system calls: the crate `libc` has not all of every architecture.
mod numbers {
    pub use libc::*;

    #[cfg(target_arch = "aarch64")]
    #[allow(non_upper_case_globals, reason = "the name is the kernel's")]
    pub const SYS_renameat: c_long = 38;
}

/// `SYS_NAME for JOBS[, ALTERNATIVES] => WHY;`
macro_rules! calls {
    ($($(#[$cfg:meta])* $name:ident for $jobs:expr $(, $only:expr)? => $why:literal;)*) => {
        &[$($(#[$cfg])* Call {
            number: numbers::$name,
            name: stringify!($name),
            jobs: $jobs,
            only: calls!(@only $($only)?),
            why: $why,
        },)*]
    };
    (@only) => { &[] };
    (@only $only:expr) => { $only };
}

/// All of them.
pub const CALLS: &[Call] = calls! {
    // Memory.
    SYS_brk for ALL => "the heap grows";
    SYS_mmap for ALL, &[&[without(2, libc::PROT_EXEC)]] => "memory for buffers, and threads' stacks; none that can be executed";
    SYS_mmap for EXPRESSIONS | NAMES => "machine code of expressions; libraries that look names up";
    SYS_mprotect for ALL, &[&[without(2, libc::PROT_EXEC)]] => "threads' stacks and the heaps of threads";
    SYS_mprotect for EXPRESSIONS | NAMES => "machine code of expressions; libraries that look names up";
    SYS_munmap for ALL => "memory goes back";
    SYS_mremap for ALL => "large buffers grow";
    SYS_madvise for ALL => "memory goes back, and none of the generator of random numbers in a child";

    // Threads.
    SYS_clone for ALL, &[&[Argument(0, Is::Bits { mask: CLONE_MASK, set: CLONE_THREAD })]] => "threads: no processes, no namespaces";
    SYS_clone3 for ALL => "answered with ENOSYS by a filter of its own: its flags cannot be looked at, and the C library takes clone";
    SYS_set_robust_list for ALL => "a thread starts";
    SYS_rseq for ALL => "a thread starts";
    SYS_sigaltstack for ALL => "a thread's stack for a stack overflow";
    SYS_rt_sigprocmask for ALL => "a thread starts";
    SYS_rt_sigaction for ALL => "a stack overflow, and an abort, take their own handler away";
    SYS_rt_sigreturn for ALL => "back from a signal's handler";
    SYS_futex for ALL => "locks";
    SYS_sched_yield for ALL => "a lock that is nearly free";
    SYS_sched_getaffinity for ALL => "how many heaps the C library makes";
    SYS_sched_setaffinity for MONITOR | KEY_CHANNEL | KEY_SERVER => "workers.cpus, keys.cpu";
    SYS_prctl for ALL, PRCTL => "names of threads and of memory, precise timers";
    SYS_seccomp for ALL, &[&[exactly(0, SECCOMP_SET_MODE_FILTER)]] => "a thread allows itself less";
    SYS_gettid for ALL => "locks, an abort";
    SYS_getpid for ALL => "an abort";
    SYS_tgkill for ALL, &[&[Argument(0, Is::OwnProcess)]] => "an abort";
    SYS_exit for ALL => "a thread ends";
    SYS_exit_group for ALL => "the end";
    SYS_prlimit64 for ALL, &[&[Argument(2, Is::Null)]] => "how large a thread's stack is; limits are not set";

    // Time and chance.
    SYS_clock_gettime for ALL => "where the clock cannot be read without a call";
    SYS_gettimeofday for ALL => "where the clock cannot be read without a call";
    SYS_clock_nanosleep for ALL => "waiting";
    SYS_nanosleep for ALL => "waiting";
    SYS_restart_syscall for ALL => "waiting, after a process was stopped";
    SYS_getrandom for ALL => "keys of the key channel, seeds of hash tables";

    // What is open.
    SYS_read for ALL => "what is open";
    SYS_readv for ALL => "the key channel";
    SYS_pread64 for MONITOR | METRICS => "the memory in use, for the control socket and the page";
    SYS_write for ALL => "what is open";
    SYS_writev for ALL => "the key channel, messages of the program";
    SYS_close for ALL => "what is open";
    SYS_lseek for FILES => "a key log that is followed, a capture";
    SYS_fcntl for ALL, FCNTL => "what is open does not wait, or is duplicated";
    SYS_ioctl for ALL, IOCTL => "what is open does not wait; how long an answer of a name server is; whether standard output is a terminal";
    SYS_ioctl for MONITOR | KEY_SENDER, INTERFACE => "whether the interfaces are up, and what they offload";
    SYS_fstat for ALL => "what is open";
    SYS_ppoll for ALL => "waiting for packets and a key log";

    // Files: Landlock says which.
    SYS_openat for FILES => "logs, streams, the mirror's next file, rules and certificates read again";
    SYS_newfstatat for ALL => "whether a file was replaced";
    SYS_statx for ALL => "whether a file was replaced";
    SYS_faccessat for FILES => "whether directories can be written to";
    SYS_faccessat2 for FILES => "whether directories can be written to";
    SYS_readlinkat for ALL => "whether a file was replaced, and the program's name in the backtrace of a panic";
    SYS_getcwd for ALL => "the backtrace of a panic";
    SYS_ftruncate for FILES => "a torn line is cut off";
    SYS_unlinkat for FILES => "the mirror's oldest file, the control socket's file";
    SYS_renameat2 for FILES => "the mirror's files get their next numbers";
    SYS_renameat for FILES => "the mirror's files get their next numbers";

    // Sockets: packets of the bridge, connections that came in.
    SYS_recvfrom for SERVERS => "packets, connections";
    SYS_sendto for SERVERS => "packets, connections";
    SYS_recvmsg for SERVERS => "packets, connections";
    SYS_sendmsg for SERVERS => "packets, connections";
    SYS_recvmmsg for MONITOR => "packets, many at a time";
    SYS_sendmmsg for MONITOR | KEY_SENDER | NAMES => "packets, many at a time; names";
    SYS_accept4 for SERVERS => "key channel, metrics, page, control socket";
    SYS_shutdown for SERVERS => "the end of a connection";
    SYS_getsockname for SERVERS => "where the key channel is";
    SYS_getpeername for SERVERS => "who is connected";
    SYS_getsockopt for SERVERS => "what the kernel dropped, who is connected";
    SYS_setsockopt for SERVERS, SETSOCKOPT => "time limits of connections; no filters, no other interface";
    SYS_epoll_ctl for KEY_CHANNEL | KEY_SERVER | MONITOR => "the key channel";
    SYS_epoll_pwait for KEY_CHANNEL | KEY_SERVER | MONITOR => "the key channel";
    SYS_socket for KEY_SERVER, SOCKET => "to the middlebox, and to who knows its address: no packet sockets";
    SYS_socket for UNIX_OUTPUTS, UNIX_SOCKET => "to who takes events, as often as it goes and comes back";
    SYS_socket for TCP_OUTPUTS, TCP_SOCKET => "to who takes events";
    SYS_connect for UNIX_OUTPUTS | TCP_OUTPUTS => "to who takes events; Landlock says by which port";
    SYS_connect for KEY_SERVER => "to the middlebox; Landlock says by which port";
    SYS_bind for NAMES => "names";
    SYS_uname for NAMES => "names";
    SYS_epoll_create1 for KEY_SERVER => "a connection to the middlebox";
    SYS_eventfd2 for KEY_SERVER => "a connection to the middlebox";

    // Connections that the kernel forwards.
    SYS_bpf for MONITOR, BPF => "entries of its maps: no programs, no maps, no links";

    // The same on x86-64, as other C libraries have it.
    #[cfg(target_arch = "x86_64")]
    SYS_open for FILES => "as openat";
    #[cfg(target_arch = "x86_64")]
    SYS_stat for FILES => "as newfstatat";
    #[cfg(target_arch = "x86_64")]
    SYS_lstat for FILES => "as newfstatat";
    #[cfg(target_arch = "x86_64")]
    SYS_access for FILES => "as faccessat";
    #[cfg(target_arch = "x86_64")]
    SYS_readlink for ALL => "as readlinkat";
    #[cfg(target_arch = "x86_64")]
    SYS_unlink for FILES => "as unlinkat";
    #[cfg(target_arch = "x86_64")]
    SYS_rename for FILES => "as renameat";
    #[cfg(target_arch = "x86_64")]
    SYS_poll for ALL => "as ppoll";
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait for KEY_CHANNEL | KEY_SERVER | MONITOR => "as epoll_pwait";
};

/// What the C library asks for files of the kernel when it shares out memory (`/sys/devices/system/cpu/online`): it copes
/// without. A thread without files is told that it may not, whatever becomes of other calls.
pub const OPEN: &[libc::c_long] = &[
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
];

const CLONE_THREAD: u32 =
    (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND).cast_unsigned();
const CLONE_MASK: u32 = CLONE_THREAD
    | (libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET)
        .cast_unsigned();

const SECCOMP_SET_MODE_FILTER: libc::c_int = 1;

const IOCTL: &[&[Argument]] =
    &[&[request(libc::FIONBIO)], &[request(libc::FIONREAD)], &[request(libc::TCGETS)]];

const INTERFACE: &[&[Argument]] = &[
    &[request(libc::SIOCGIFFLAGS)],
    &[request(libc::SIOCGIFHWADDR)],
    &[request(libc::SIOCGIFINDEX)],
    &[request(libc::SIOCGIFMTU)],
    &[request(libc::SIOCGIFNAME)],
    // What it could set needs a capability.
    &[request(libc::SIOCETHTOOL)],
];

/// Of `ioctl`. They are positive, and have 32 bits.
const fn request(request: libc::Ioctl) -> Argument {
    Argument(1, Is::Exactly(request as u32))
}

const PRCTL: &[&[Argument]] = &[
    &[exactly(0, libc::PR_SET_NAME)],
    &[exactly(0, libc::PR_SET_TIMERSLACK)],
    &[exactly(0, libc::PR_SET_VMA)],
    // What it asks for is there already.
    &[exactly(0, libc::PR_SET_NO_NEW_PRIVS)],
];

const FCNTL: &[&[Argument]] = &[
    &[exactly(1, libc::F_GETFD)],
    &[exactly(1, libc::F_SETFD)],
    &[exactly(1, libc::F_GETFL)],
    &[exactly(1, libc::F_SETFL)],
    &[exactly(1, libc::F_DUPFD_CLOEXEC)],
];

const SETSOCKOPT: &[&[Argument]] = &[
    &[exactly(1, libc::SOL_SOCKET), exactly(2, libc::SO_RCVTIMEO)],
    &[exactly(1, libc::SOL_SOCKET), exactly(2, libc::SO_SNDTIMEO)],
    &[exactly(1, libc::SOL_SOCKET), exactly(2, libc::SO_KEEPALIVE)],
    &[exactly(1, libc::IPPROTO_TCP)],
    &[exactly(1, libc::IPPROTO_IP), exactly(2, libc::IP_RECVERR)],
    &[exactly(1, libc::IPPROTO_IPV6), exactly(2, libc::IPV6_RECVERR)],
];

const SOCKET: &[&[Argument]] = &[
    &[exactly(0, libc::AF_INET), SOCKET_KIND_STREAM],
    &[exactly(0, libc::AF_INET6), SOCKET_KIND_STREAM],
    &[exactly(0, libc::AF_INET), SOCKET_KIND_DATAGRAM],
    &[exactly(0, libc::AF_INET6), SOCKET_KIND_DATAGRAM],
    &[exactly(0, libc::AF_UNIX), SOCKET_KIND_STREAM],
    &[exactly(0, libc::AF_NETLINK), exactly(2, libc::NETLINK_ROUTE)],
];

const UNIX_SOCKET: &[&[Argument]] = &[
    &[exactly(0, libc::AF_UNIX), SOCKET_KIND_STREAM],
    &[exactly(0, libc::AF_UNIX), SOCKET_KIND_DATAGRAM],
];

/// And no other protocol that has streams (MPTCP, SCTP): Landlock knows the ports of TCP alone.
const TCP_SOCKET: &[&[Argument]] = &[
    &[exactly(0, libc::AF_INET), SOCKET_KIND_STREAM, exactly(2, 0)],
    &[exactly(0, libc::AF_INET6), SOCKET_KIND_STREAM, exactly(2, 0)],
];

/// Beside the flags that it may be asked for with.
const fn kind(kind: libc::c_int) -> Argument {
    Argument(1, Is::Bits { mask: 0xf, set: kind.cast_unsigned() })
}

const SOCKET_KIND_STREAM: Argument = kind(libc::SOCK_STREAM);
const SOCKET_KIND_DATAGRAM: Argument = kind(libc::SOCK_DGRAM);

/// BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM.
const BPF: &[&[Argument]] = &[&[exactly(0, 1)], &[exactly(0, 2)], &[exactly(0, 3)]];
