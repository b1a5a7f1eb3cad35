//! Honest connections: whatever attackers and networks do, every byte arrives.
//!
//! A server that sends back what it gets, over TLS on port 443 and in the clear on another; clients
//! that share their keys. Refuses to be satisfied with lengths: contents are compared.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mmtls_endpoint::Sharing;
use mmtls_keyshare::client::ClientConfig as Channel;
use mmtls_keyshare::policy::ServerNames;
use mmtls_testkit::middlebox::KEYS_PORT;
use mmtls_testkit::{Testbed, address, files};
use rustix::net::{AddressFamily, SocketType};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use super::lane::Lane;
use super::tls::{self, Settings};
use crate::netns::enter;

/// Where what is in the clear goes.
pub const PLAIN_PORT: u16 = 7777;

/// The echo server's addresses.
pub fn echo_address(v6: bool, port: u16) -> SocketAddr {
    let text = if v6 { address::SERVER_V6 } else { address::SERVER_V4 };
    // Constants of the testbed.
    text.parse().map_or(([10, 77, 0, 3], port).into(), |ip: std::net::IpAddr| (ip, port).into())
}

/// A running echo server; ends when dropped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Starts it in the server's namespace.
    pub fn start(bed: &Testbed, settings: &Settings) -> Result<Self, String> {
        let mut echo = Self { stop: Arc::new(AtomicBool::new(false)), threads: vec![] };
        let families: &[bool] = if bed.has_ipv6() { &[false, true] } else { &[false] };
        for v6 in families {
            for port in [443, PLAIN_PORT] {
                let at = echo_address(*v6, port);
                let config = (port == 443).then(|| Arc::clone(&settings.server));
                let (namespace, stop) = (bed.server.path(), Arc::clone(&echo.stop));
                let (ready, started) = channel();
                echo.threads.push(std::thread::spawn(move || {
                    let listener = enter(&namespace).and_then(|()| {
                        let listener = TcpListener::bind(at).map_err(|error| error.to_string())?;
                        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
                        Ok(listener)
                    });
                    match listener {
                        Ok(listener) => {
                            let _ = ready.send(Ok(()));
                            accept(&listener, config.as_ref(), &stop);
                        }
                        Err(error) => drop(ready.send(Err(error))),
                    }
                }));
                started.recv().map_err(|_| "no echo server".to_owned())??;
            }
        }
        Ok(echo)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, config: Option<&Arc<ServerConfig>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        let config = config.cloned();
        std::thread::spawn(move || {
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_read_timeout(Some(LIMIT));
            match config.map(ServerConnection::new) {
                Some(Ok(session)) => send_back(StreamOwned::new(session, stream)),
                Some(Err(_)) => {}
                None => send_back(stream),
            }
        });
    }
}

fn send_back(mut stream: impl Read + Write) {
    let mut buffer = vec![0; 16_384];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

/// For everything but what is meant to fail.
const LIMIT: Duration = Duration::from_secs(60);

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// With TLS, and keys shared where there is somebody to share them with.
    pub tls: bool,
    pub v6: bool,
    /// The source port.
    pub port: Option<u16>,
    pub bytes: usize,
    pub seed: u64,
    pub limit: Duration,
}

/// Clients of a lane.
pub struct Clients {
    config: ClientConfig,
    sharing: [Option<Arc<Sharing>>; 2],
}

impl Clients {
    /// Connects to the middlebox of a lane, if it has one. Runs in the client's namespace, as every
    /// thread that calls [`Self::run`] must.
    pub fn start(lane: &Lane) -> Result<Self, String> {
        let config = tls::client_config(lane.bed.pki(), mmtls_endpoint::provider())?;
        let mut sharing = [None, None];
        if lane.mmtls.is_some() {
            for (at, keys) in [address::KEYS_V4.to_owned(), format!("[{}]", address::KEYS_V6)]
                .into_iter()
                .enumerate()
                .take(1 + usize::from(lane.bed.has_ipv6()))
            {
                let middlebox = format!("{}@{keys}:{KEYS_PORT}", address::MIDDLEBOX_NAME);
                let middlebox = middlebox.parse().map_err(|error| format!("{error}"))?;
                let channel = Channel::new(vec![middlebox], lane.bed.pki().ca.clone());
                let names = ServerNames::parse("").map_err(|error| error.to_string())?;
                let one = Sharing::start(channel, names).map_err(|error| error.to_string())?;
                if !one.wait_connected(Duration::from_secs(10)) {
                    return Err("the key channel is not there".to_owned());
                }
                sharing[at] = Some(one);
            }
        }
        Ok(Self { config, sharing })
    }

    /// One connection, there and back.
    pub fn run(&self, plan: &Plan) -> Result<(), String> {
        let to = echo_address(plan.v6, if plan.tls { 443 } else { PLAIN_PORT });
        let stream = connect(plan, to)?;
        let text = |error: std::io::Error| error.to_string();
        stream.set_read_timeout(Some(plan.limit)).map_err(text)?;
        stream.set_write_timeout(Some(plan.limit)).map_err(text)?;
        if !plan.tls {
            return there_and_back(stream, plan);
        }
        let name = ServerName::try_from(address::SERVER_NAME).map_err(|error| error.to_string())?;
        let config = match &self.sharing[usize::from(plan.v6)] {
            Some(sharing) => sharing.client_config(&self.config, &name),
            None => Arc::new(self.config.clone()),
        };
        let session = ClientConnection::new(config, name).map_err(|error| error.to_string())?;
        there_and_back(StreamOwned::new(session, stream), plan)
    }
}

fn connect(plan: &Plan, to: SocketAddr) -> Result<TcpStream, String> {
    let text = |error: &dyn std::fmt::Display| format!("connect: {error}");
    let Some(port) = plan.port else {
        return TcpStream::connect_timeout(&to, plan.limit).map_err(|error| text(&error));
    };
    let own = if plan.v6 { address::CLIENT_V6 } else { address::CLIENT_V4 };
    let own: std::net::IpAddr = own.parse().map_err(|error| text(&error))?;
    let family = if plan.v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket =
        rustix::net::socket(family, SocketType::STREAM, None).map_err(|error| text(&error))?;
    rustix::net::bind(&socket, &SocketAddr::from((own, port))).map_err(|error| text(&error))?;
    // Also the time that connecting may take.
    let limit = Some(plan.limit);
    let which = rustix::net::sockopt::Timeout::Send;
    rustix::net::sockopt::set_socket_timeout(&socket, which, limit).map_err(|e| text(&e))?;
    rustix::net::connect(&socket, &to).map_err(|error| text(&error))?;
    Ok(TcpStream::from(socket))
}

fn there_and_back(mut stream: impl Read + Write, plan: &Plan) -> Result<(), String> {
    let sent = files::pattern_bytes(plan.bytes, plan.seed);
    let mut received = vec![0; sent.len()];
    let mut at = 0;
    for piece in sent.chunks(16_384) {
        stream.write_all(piece).map_err(|error| format!("at {at}: write: {error}"))?;
        stream.flush().map_err(|error| format!("at {at}: flush: {error}"))?;
        let back = &mut received[at..at + piece.len()];
        stream.read_exact(back).map_err(|error| format!("at {at}: read: {error}"))?;
        at += piece.len();
    }
    if received == sent { Ok(()) } else { Err("other bytes came back".to_owned()) }
}

/// Runs plans, so many at a time; what became of each.
pub fn run(
    lane: &Lane,
    plans: &[Plan],
    parallel: usize,
) -> Result<Vec<Result<(), String>>, String> {
    each(lane, plans, parallel, |clients, plan| clients.run(plan))
}

/// Does something with clients in their namespace, for every item, so many at a time.
pub fn each<T: Sync>(
    lane: &Lane,
    items: &[T],
    parallel: usize,
    work: impl Fn(&Clients, &T) -> Result<(), String> + Sync,
) -> Result<Vec<Result<(), String>>, String> {
    let namespace = lane.bed.client.path();
    let results = Mutex::new(vec![Err("not begun".to_owned()); items.len()]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // The channel's threads begin where the thread is that starts them.
        let starter = scope.spawn(|| {
            enter(&namespace)?;
            Clients::start(lane)
        });
        let made = starter.join().unwrap_or_else(|_| Err("a thread has panicked".to_owned()))?;
        let clients = Arc::new(made);
        for _ in 0..parallel.min(items.len()) {
            let clients = Arc::clone(&clients);
            let (next, results, namespace, work) = (&next, &results, &namespace, &work);
            scope.spawn(move || {
                let entered = enter(namespace);
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = entered.clone().and_then(|()| work(&clients, item));
                    results.lock().unwrap_or_else(PoisonError::into_inner)[at] = result;
                }
            });
        }
        Ok::<(), String>(())
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}
