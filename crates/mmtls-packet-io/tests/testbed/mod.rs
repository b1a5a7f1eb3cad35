//! Network namespaces in a row, client - middle - server, neighbours joined by a veth pair; threads enter them. For VLAN
//! tests two more stand left and right of the middle.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use mmtls_packet_io::af_packet::{
    Action, Bridge, BridgeConfig, Counters, Frame, Outbox, Port, WakeFd, Warning,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// Deletes its namespaces, and with them all interfaces, when dropped.
pub struct Testbed {
    pub client: String,
    pub middle: String,
    pub server: String,
    pub taggers: Vec<String>,
}

impl Testbed {
    /// Client `lc` 10.77.0.1, fd77::1 - `ml`, `mr` - `ls` 10.77.0.2, fd77::2 server. `None`, loudly, without the
    /// permission to create namespaces.
    pub fn create() -> Option<Self> {
        Self::build(&[])
    }

    /// As [`Self::create`], with `taggers` between: `lc` - `outer`, `inner` - `ml`, `mr` - `inner`, `outer` - `ls`.
    pub fn create_with_taggers() -> Option<Self> {
        Self::build(&["a", "b"])
    }

    fn build(taggers: &[&str]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("pio{}-{count}{what}", std::process::id());
        let taggers: Vec<_> = taggers.iter().map(|what| name(what)).collect();
        let bed = Self { client: name("c"), middle: name("m"), server: name("s"), taggers };
        for namespace in bed.namespaces() {
            if let Err(error) = try_ip(&format!("netns add {namespace}")) {
                eprintln!("SKIP: cannot create a network namespace: {error}");
                return None;
            }
        }
        let (c, m, s) = (&bed.client, &bed.middle, &bed.server);
        let pairs = match bed.taggers.as_slice() {
            [a, b] => vec![
                [c, "lc", a, "outer"],
                [a, "inner", m, "ml"],
                [m, "mr", b, "inner"],
                [b, "outer", s, "ls"],
            ],
            _ => vec![[c, "lc", m, "ml"], [m, "mr", s, "ls"]],
        };
        for [one, link, other, peer] in &pairs {
            ip(&format!("link add {link} netns {one} type veth peer name {peer} netns {other}"));
        }
        for namespace in std::iter::once(m).chain(&bed.taggers) {
            // Before the interfaces go up, so that they never get an address.
            in_namespace(namespace, || {
                for link in ["all", "default"] {
                    let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
                    if let Err(error) = std::fs::write(&path, "1") {
                        eprintln!("note: {path}: {error}");
                    }
                }
            });
        }
        for (namespace, link, host) in [(c, "lc", 1), (s, "ls", 2)] {
            ip(&format!("-n {namespace} addr add 10.77.0.{host}/24 dev {link}"));
            ip(&format!("-n {namespace} addr add fd77::{host}/64 dev {link} nodad"));
        }
        for [one, link, other, peer] in &pairs {
            ip(&format!("-n {one} link set {link} up"));
            ip(&format!("-n {other} link set {peer} up"));
        }
        Some(bed)
    }

    fn namespaces(&self) -> impl Iterator<Item = &String> {
        [&self.client, &self.middle, &self.server].into_iter().chain(&self.taggers)
    }

    pub fn config(&self) -> BridgeConfig {
        BridgeConfig::new("ml", "mr")
    }

    /// Runs a bridge in the middle for as long as `body` takes.
    pub fn bridged<T>(
        &self,
        config: &BridgeConfig,
        decide: impl FnMut(&Frame<'_>, &mut Outbox) -> Action + Send,
        body: impl FnOnce() -> T,
    ) -> (T, Counters, Vec<Warning>) {
        self.bridged_in(&self.middle, config, decide, body)
    }

    /// Lets the endpoints' super-frames have 8 KB at most.
    pub fn make_super_frames_small(&self) {
        for (namespace, link) in [(&self.client, "lc"), (&self.server, "ls")] {
            ip(&format!("-n {namespace} link set {link} gso_max_size 8192"));
        }
    }

    /// Leaves segmentation and checksums of what the middle sends to its kernel. False, loudly, where that cannot be
    /// done.
    pub fn switch_offloads_off(&self) -> bool {
        for link in ["ml", "mr"] {
            let mut ethtool = Command::new("ip");
            ethtool.args(["netns", "exec", &self.middle, "ethtool", "-K", link, "tx", "off"]);
            if !ethtool.output().is_ok_and(|output| output.status.success()) {
                eprintln!("SKIP: cannot switch offloads off with ethtool");
                return false;
            }
        }
        true
    }

    /// Runs a bridge in any namespace for as long as `body` takes.
    pub fn bridged_in<T>(
        &self,
        namespace: &str,
        config: &BridgeConfig,
        mut decide: impl FnMut(&Frame<'_>, &mut Outbox) -> Action + Send,
        body: impl FnOnce() -> T,
    ) -> (T, Counters, Vec<Warning>) {
        let stop = WakeFd::new().expect("eventfd");
        let (opened, when_opened) = channel();
        thread::scope(|scope| {
            let stop = &stop;
            let worker = scope.spawn(move || {
                enter(namespace);
                stay_on_one_cpu();
                let mut bridge = Bridge::open(config).expect("bridge");
                opened.send(()).expect("main thread");
                loop {
                    let mut frames = 0;
                    for port in Port::BOTH {
                        frames += bridge.receive_with(port, &mut decide).expect("receive");
                    }
                    if frames == 0 {
                        let ready =
                            bridge.wait(None, Some(std::os::fd::AsFd::as_fd(stop))).expect("wait");
                        if ready.woken {
                            stop.drain();
                            return (bridge.counters(), bridge.warnings().to_vec());
                        }
                    }
                }
            });
            // A bridge that did not open has said why.
            let result = when_opened.recv().map(|()| body());
            stop.wake();
            let (counters, warnings) = worker.join().expect("bridge thread");
            (result.expect("bridge opened"), counters, warnings)
        })
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for namespace in self.namespaces() {
            let _ = try_ip(&format!("netns del {namespace}"));
        }
    }
}

pub fn try_ip(arguments: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().map_err(|e| e.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

pub fn ip(arguments: &str) {
    if let Err(error) = try_ip(arguments) {
        panic!("{error}");
    }
}

/// Moves the calling thread into a namespace, for good.
fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("namespace");
    // SAFETY: no pointers are passed; only the calling thread is moved.
    let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "setns: {}", std::io::Error::last_os_error());
}

/// Binds the calling thread to the processor it runs on, for good. A veth pair queues frames per sending processor: a
/// thread that is moved between two frames may see the second arrive first.
pub fn stay_on_one_cpu() {
    let mut set = CpuSet::new();
    set.set(sched_getcpu());
    sched_setaffinity(None, &set).expect("sched_setaffinity");
}

/// Runs something in a namespace, on a thread of its own.
pub fn in_namespace<T: Send>(namespace: &str, body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace);
            body()
        });
        thread.join().expect("thread in namespace")
    })
}

const CHUNK: usize = 1 << 16;

/// A chunk of a stream whose bytes depend on the direction and on their place.
fn fill(chunk: &mut [u8], seed: u64, start: u64) {
    for (bytes, at) in chunk.chunks_mut(8).zip((start / 8)..) {
        let value = (at ^ seed << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
    }
}

fn send(mut stream: &TcpStream, seed: u64, total: u64) {
    let mut chunk = vec![0; CHUNK];
    for start in (0..total).step_by(CHUNK) {
        fill(&mut chunk, seed, start);
        stream.write_all(&chunk).expect("send");
    }
    stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
}

fn receive(mut stream: &TcpStream, seed: u64, total: u64) {
    let (mut chunk, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    for start in (0..total).step_by(CHUNK) {
        stream.read_exact(&mut chunk).expect("receive");
        fill(&mut expected, seed, start);
        assert!(chunk == expected, "stream {seed} differs after byte {start}");
    }
    assert_eq!(stream.read(&mut chunk).expect("end of stream"), 0);
}

/// Sends so many bytes each way at once over one connection, and checks every one. A multiple of 64 KiB.
pub fn exchange(bed: &Testbed, server_address: &str, total: u64) {
    let address: SocketAddr = server_address.parse().expect("address");
    let (listening, when_listening) = channel();
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            enter(&bed.server);
            let listener = TcpListener::bind(address).expect("bind");
            listening.send(()).expect("client");
            let (stream, _) = listener.accept().expect("accept");
            both_ways(&stream, 2, 1, total);
        });
        let client = scope.spawn(move || {
            enter(&bed.client);
            when_listening.recv().expect("server");
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10));
            both_ways(&stream.expect("connect"), 1, 2, total);
        });
        client.join().expect("client");
        server.join().expect("server");
    });
}

fn both_ways(stream: &TcpStream, ours: u64, theirs: u64, total: u64) {
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("timeout");
    stream.set_write_timeout(limit).expect("timeout");
    thread::scope(|scope| {
        scope.spawn(|| send(stream, ours, total));
        receive(stream, theirs, total);
    });
}
