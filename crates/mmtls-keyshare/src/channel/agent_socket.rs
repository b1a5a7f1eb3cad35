//! The agent's end of the local socket: a Unix SOCK_SEQPACKET listener.
//!
//! One thread polls it (level-triggered epoll).
//! Which program and user a connection is of is looked up when it begins, by the process that has opened it.
//! Refuses: peers of another user (SO_PEERCRED) unless all may come, more than [`MAX_CONNECTIONS`] connections, of which
//! another user gets a part only, datagrams longer than the format allows.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind,
    connect, listen, recv, socket_with, sockopt,
};
use rustix::process::Uid;
use zeroize::{Zeroize, Zeroizing};

use crate::agent::datagram::MAX_DATAGRAM_BYTES;

/// Most programs connected at one time; every process of a program counts.
pub const MAX_CONNECTIONS: usize = 4096;
/// Most of them of each other user.
const MAX_OF_ANOTHER: usize = MAX_CONNECTIONS / 16;
/// Datagrams taken from one connection before the others get their turn.
const TURN: usize = 64;
/// Connections accepted before those that are there get their turn: whoever connects again and again must not have all of them.
const ACCEPT_TURN: usize = 64;
/// Pause when there is no descriptor for a connection that waits.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(5);
const LISTENER: u64 = 0;
const WAKE: u64 = 1;

/// What happened to the listener so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused: another user, or too many.
    pub refused: u64,
    /// Datagrams handed out.
    pub datagrams: u64,
    /// Datagrams longer than the format allows, dropped.
    pub oversized: u64,
}

/// Whose programs may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// This user's.
    Own,
    /// Everybody's on this host.
    All,
}

/// Who has sent a datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sender {
    /// The program's file; not known of a process that has ended.
    pub program: Option<PathBuf>,
    /// The user whose process has connected.
    pub user: u32,
}

/// Receives datagrams from programs.
pub struct AgentListener {
    users: Users,
    epoll: OwnedFd,
    listener: OwnedFd,
    wake: Arc<OwnedFd>,
    connections: HashMap<u64, Connection>,
    next: u64,
    counters: AgentCounters,
}

struct Connection {
    socket: OwnedFd,
    sender: Sender,
}

/// Ends a wait of [`AgentListener::poll`] from another thread.
#[derive(Clone)]
pub struct AgentWaker(Arc<OwnedFd>);

impl AgentWaker {
    /// Wakes the listener.
    pub fn wake(&self) {
        // It fails only when the counter is full, and then the listener wakes anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// Whether an agent listens at `path`.
///
/// # Errors
/// Why none does.
pub fn check_listens(path: &Path) -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)
}

impl AgentListener {
    /// Listens at `path`, which must not exist; keep it in a directory in which only this user can write.
    ///
    /// # Errors
    /// What the system says; `InvalidInput` for a path of more than 107 bytes.
    pub fn bind(path: &Path, users: Users) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        if users == Users::All {
            // Whoever may write may connect.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        }
        listen(&listener, 1024)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        watch(&epoll, &listener, LISTENER)?;
        watch(&epoll, &wake, WAKE)?;
        Ok(Self {
            users,
            epoll,
            listener,
            wake: Arc::new(wake),
            connections: HashMap::new(),
            next: WAKE + 1,
            counters: AgentCounters::default(),
        })
    }

    /// A handle that ends a wait.
    #[must_use]
    pub fn waker(&self) -> AgentWaker {
        AgentWaker(Arc::clone(&self.wake))
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Waits up to `timeout` for datagrams and hands each to `each`, with who has sent it; returns how many there were.
    ///
    /// # Errors
    /// What the system says about the wait itself; a connection's fault only closes it.
    pub fn poll(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(&Sender, &[u8]),
    ) -> io::Result<usize> {
        let mut ready = Vec::with_capacity(64);
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
        let mut count = 0;
        for event in ready {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => {
                    let mut number = [0; 8];
                    let _ = rustix::io::read(&*self.wake, &mut number);
                }
                id => count += self.receive(id, &mut each),
            }
        }
        self.counters.datagrams += count as u64;
        Ok(count)
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Epoll reports the rest again.
        for _ in 0..ACCEPT_TURN {
            let peer = match acceptfrom_with(&self.listener, flags) {
                Ok((peer, _)) => peer,
                // Epoll reports it again and again while somebody waits, so time has to pass.
                Err(Errno::MFILE | Errno::NFILE) => return std::thread::sleep(NO_DESCRIPTOR_PAUSE),
                // Nobody waits, or the peer is gone.
                Err(_) => return,
            };
            let admitted = sockopt::socket_peercred(&peer).ok().filter(|it| self.admits(it.uid));
            let Some(credentials) = admitted else {
                self.counters.refused += 1;
                continue;
            };
            if watch(&self.epoll, &peer, self.next).is_err() {
                self.counters.refused += 1;
                continue;
            }
            self.counters.accepted += 1;
            let pid = credentials.pid.as_raw_nonzero();
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
            let sender = Sender { program, user: credentials.uid.as_raw() };
            self.connections.insert(self.next, Connection { socket: peer, sender });
            self.next += 1;
        }
    }

    /// Whether another connection of a user is taken.
    fn admits(&self, user: Uid) -> bool {
        if self.connections.len() >= MAX_CONNECTIONS {
            return false;
        }
        if user == rustix::process::geteuid() {
            return true;
        }
        let of_user = |it: &&Connection| it.sender.user == user.as_raw();
        self.users == Users::All
            && self.connections.values().filter(of_user).count() < MAX_OF_ANOTHER
    }

    fn receive(&mut self, id: u64, each: &mut impl FnMut(&Sender, &[u8])) -> usize {
        let Some(Connection { socket: peer, sender }) = self.connections.get(&id) else {
            return 0;
        };
        let mut buffer = Zeroizing::new([0; MAX_DATAGRAM_BYTES]);
        for count in 0..TURN {
            match recv(peer, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, length)) if length > MAX_DATAGRAM_BYTES => self.counters.oversized += 1,
                // An empty datagram is never sent, so this is the end.
                Ok((0, _)) => {
                    self.connections.remove(&id);
                    return count;
                }
                Ok((length, _)) => {
                    each(sender, &buffer[..length]);
                    buffer[..length].zeroize();
                }
                Err(Errno::AGAIN) => return count,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.connections.remove(&id);
                    return count;
                }
            }
        }
        TURN
    }
}

fn watch(epoll: &OwnedFd, source: &impl AsFd, id: u64) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(id);
    epoll::add(epoll, source, data, epoll::EventFlags::IN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send};

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn connect_to(path: &Path) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn accepts_other_users_where_all_may_come_and_a_part_of_the_room_of_each() {
        let directory = directory("users");
        let own = rustix::process::geteuid();
        let (one, two) = (Uid::from_raw(own.as_raw() + 1), Uid::from_raw(own.as_raw() + 2));
        for (users, name) in [(Users::Own, "own"), (Users::All, "all")] {
            let mut listener = AgentListener::bind(&directory.join(name), users).unwrap();
            assert!(listener.admits(own));
            assert_eq!(listener.admits(one), users == Users::All);
            for id in 0..MAX_OF_ANOTHER as u64 {
                let socket = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
                let sender = Sender { program: None, user: one.as_raw() };
                listener.connections.insert(id, Connection { socket, sender });
            }
            assert!(!listener.admits(one), "no more of this one");
            assert_eq!(listener.admits(two), users == Users::All);
            assert!(listener.admits(own));
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Those that are there have their turn while somebody connects without an end.
    #[test]
    fn refuses_to_accept_for_as_long_as_others_connect() {
        let directory = directory("accept");
        let path = directory.join("a");
        let mut listener = AgentListener::bind(&path, Users::Own).unwrap();
        let peers: Vec<OwnedFd> = (0..=ACCEPT_TURN).map(|_| connect_to(&path)).collect();
        for peer in &peers {
            send(peer, b"one", SendFlags::empty()).unwrap();
        }
        assert_eq!(listener.poll(Duration::from_secs(10), |_, _| ()).unwrap(), 0);
        assert_eq!(listener.counters().accepted, ACCEPT_TURN as u64);
        let mut received = 0;
        while received < peers.len() {
            received += listener.poll(Duration::from_secs(10), |_, _| ()).unwrap();
        }
        assert_eq!(listener.counters().accepted, peers.len() as u64);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn accepts_datagrams_and_keeps_them_whole() {
        let directory = directory("agent");
        let path = directory.join("a");
        let mut listener = AgentListener::bind(&path, Users::Own).unwrap();
        let (first, second) = (connect_to(&path), connect_to(&path));
        for _ in 0..100 {
            send(&first, b"one", SendFlags::empty()).unwrap();
            send(&second, b"second", SendFlags::empty()).unwrap();
        }
        send(&first, &[0; MAX_DATAGRAM_BYTES + 1], SendFlags::empty()).unwrap();
        let mut got = Vec::new();
        for _ in 0..8 {
            let each = |sender: &Sender, datagram: &[u8]| {
                assert_eq!(sender.program, std::env::current_exe().ok());
                assert_eq!(sender.user, rustix::process::geteuid().as_raw());
                got.push(datagram.len());
            };
            let _ = listener.poll(Duration::from_millis(20), each).unwrap();
        }
        assert_eq!(got.iter().filter(|&&length| length == 3).count(), 100);
        assert_eq!(got.iter().filter(|&&length| length == 6).count(), 100);
        assert_eq!(listener.counters().oversized, 1);
        drop(first);
        listener.poll(Duration::from_millis(20), |_, _| ()).unwrap();
        assert_eq!(listener.connections.len(), 1);
        let waker = listener.waker();
        waker.wake();
        // Waits for the hour that nobody has when it is not woken.
        listener.poll(Duration::from_secs(3600), |_, _| ()).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
