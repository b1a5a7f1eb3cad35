//! A key's way in one process: the endpoint's thread, the server that takes keys, and the worker's.
//!
//! The worker only takes what comes; it asks no engine. Times are of one clock.
//!
//! Refuses to count keys that did not arrive: then there is no figure.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mmtls_engine::Share;
use mmtls_keyshare::client::{Client, ClientConfig, Middlebox};
use mmtls_keyshare::message::{self, Epoch, Greeting, KeyEntry, Message, SessionKeys, Steering};
use mmtls_keyshare::server::{Identity, Server, ServerConfig, ServerName};
use mmtls_keyshare::{Flow, SecretBytes};
use mmtls_middlebox::harden::bind_to_cpu;
use mmtls_middlebox::keys::sealed::SealedInput;
use mmtls_middlebox::keys::{self, KeyDelivery, KeyReceiver, WorkerSink};
use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Port};
use mmtls_record::Direction;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use serde::{Deserialize, Serialize};

use super::NAME;
use crate::bench::report::quantile;

/// Arguments of the hidden subcommand.
#[derive(clap::Args)]
pub struct DeliveryArgs {
    /// As many keys a second as can be, instead of one at a time.
    #[arg(long)]
    rate: bool,
    /// Through a key server and the interfaces keys8 and keys9; a rate always is.
    #[arg(long)]
    sealed: bool,
    /// How many keys.
    #[arg(long)]
    keys: u32,
    #[arg(long)]
    ca: PathBuf,
    #[arg(long)]
    certificate: PathBuf,
    #[arg(long)]
    key: PathBuf,
    #[arg(long)]
    server_certificate: PathBuf,
    #[arg(long)]
    server_key: PathBuf,
}

/// What a key server does on one processor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Messages that reached the worker, per second from the first to the last.
    pub per_s: f64,
    /// Processor time of the thread that takes and seals, per message, in microseconds.
    pub cpu_us: f64,
    /// Messages that were sent, and that arrived.
    pub sent: u32,
    pub arrived: u32,
}

/// From the endpoint's call to the worker's taking, in microseconds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Latency {
    pub median_us: f64,
    pub p99_us: f64,
}

/// Keys that are under way at most while the rate is measured: what the sockets hold.
const WINDOW: u64 = 16_384;
/// Connections of endpoints.
const ENDPOINTS: usize = 4;
/// Pause between two keys whose latency is measured.
const PAUSE: Duration = Duration::from_micros(200);
const PATIENCE: Duration = Duration::from_secs(5);

/// What the threads share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    arrived: AtomicU64,
    /// When the last one did.
    latest: Mutex<Option<Instant>>,
}

pub fn run(args: &DeliveryArgs) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let share = Share { own: 0, engines: 1, seed: 0, owner: |_, _, _, _| 0 };
    let (sink, mut receivers, _router) = keys::queues(share).map_err(|error| text(&error))?;
    let sink = sink.steered(Steering { workers: 1, seed: 0 });
    let receiver = receivers.pop().ok_or("no worker")?;
    let sealed = args.sealed || args.rate;
    let shared = Arc::new(Shared::default());
    let bridge = match sealed {
        true => {
            let mut config = BridgeConfig::new("keys9", "");
            (config.right, config.passive) = (None, true);
            Some(Bridge::open(&config).map_err(|error| text(&error))?)
        }
        false => None,
    };
    let worker = worker(receiver, bridge, sink.clone(), Arc::clone(&shared));

    let identity = |certificate: &PathBuf, key: &PathBuf| Identity {
        certificate_file: certificate.clone(),
        key_file: key.clone(),
    };
    let loopback = ([127, 0, 0, 1], 0).into();
    let mut config = ServerConfig::new(loopback, identity(&args.certificate, &args.key));
    if sealed {
        config.client_ca_file = Some(args.ca.clone());
        config.key_servers = vec![ServerName::try_from(NAME).map_err(|error| text(&error))?];
    }
    let middlebox = Server::start(config, sink).map_err(|error| text(&error))?;
    let own = identity(&args.server_certificate, &args.server_key);
    let key_server_thread = Arc::new(AtomicU64::new(0));
    let key_server = match sealed {
        true => {
            let to: Middlebox =
                middlebox.local_addr().to_string().parse().map_err(|error| text(&error))?;
            let mut client = ClientConfig::new(vec![to], args.ca.clone());
            client.identity = Some(own.clone());
            let settings = mmtls_key_server::Settings {
                server: ServerConfig::new(loopback, own),
                client,
                interface: Some("keys8".to_owned()),
                destination: mmtls_key_server::DESTINATION,
            };
            let thread = Arc::clone(&key_server_thread);
            let bound = mmtls_key_server::KeyServer::bind(settings);
            let server = bound.and_then(|bound| {
                bound.start(move || {
                    let id = rustix::thread::gettid().as_raw_nonzero().get();
                    thread.store(id as u64, Ordering::Relaxed);
                    // With one processor everything shares it.
                    let _ = bind_to_cpu(0);
                })
            });
            let server = server.map_err(|error| text(&error))?;
            wait(|| server.connection_error().is_none())?;
            Some(server)
        }
        false => None,
    };
    let (to, name) = match &key_server {
        Some(server) => (server.local_addr(), NAME),
        None => (middlebox.local_addr(), "127.0.0.1"),
    };
    let line = match args.rate {
        true => {
            let _ = bind_to_cpu(1);
            let thread = key_server_thread.load(Ordering::Relaxed);
            let endpoints = (0..ENDPOINTS).map(|_| endpoint(to, name, &args.ca));
            let endpoints = endpoints.collect::<Result<Vec<_>, _>>();
            let endpoints = endpoints.map_err(|error| text(&error))?;
            serde_json::to_string(&rate(endpoints, &shared, args.keys, thread)?)
        }
        false => {
            let to = format!("{name}@{to}").parse().map_err(|error| text(&error))?;
            let config = ClientConfig::new(vec![to], args.ca.clone());
            let client = Client::start(config, Box::new(|_| Vec::new()));
            let client = client.map_err(|error| text(&error))?;
            if !client.wait_connected(PATIENCE) {
                return Err(format!("{:?}", client.connection_errors()));
            }
            serde_json::to_string(&latency(&client, &shared, args.keys)?)
        }
    };
    println!("{}", line.map_err(|error| text(&error))?);
    shared.stop.store(true, Ordering::Relaxed);
    worker.join().map_err(|_| "the worker's thread panicked")?
}

/// Takes keys as a worker does: from the packets, from the queue, and sleeps where neither has any.
fn worker(
    mut receiver: KeyReceiver,
    mut bridge: Option<Bridge>,
    sink: WorkerSink,
    shared: Arc<Shared>,
) -> std::thread::JoinHandle<Result<(), String>> {
    std::thread::spawn(move || {
        let _ = bind_to_cpu(1);
        let mut sealed = SealedInput::new(0, sink);
        while !shared.stop.load(Ordering::Relaxed) {
            let mut took = take(&mut receiver, &shared);
            if let Some(bridge) = &mut bridge {
                let received = bridge.receive(Port::Left, |frame| {
                    sealed.take(frame.bytes, None);
                    Action::Drop
                });
                took += received.map_err(|error| error.to_string())?;
                if sealed.has_come() {
                    took += take(&mut receiver, &shared);
                }
            }
            if took > 0 {
                continue;
            }
            receiver.announce_sleep();
            if take(&mut receiver, &shared) > 0 {
                continue;
            }
            let tick = Some(Duration::from_millis(50));
            match &mut bridge {
                Some(bridge) => {
                    let ready = bridge.wait(tick, Some(receiver.wake_fd()));
                    if ready.map_err(|error| error.to_string())?.woken {
                        receiver.woken();
                    }
                }
                None => {
                    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                        receiver.wake_fd(),
                        rustix::event::PollFlags::IN,
                    )];
                    let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                    if rustix::event::poll(&mut fds, Some(&tick)).is_ok_and(|ready| ready > 0) {
                        receiver.woken();
                    }
                }
            }
        }
        Ok(())
    })
}

fn take(receiver: &mut KeyReceiver, shared: &Shared) -> usize {
    let mut count = 0;
    let mut left = 1024;
    while let Some(delivery) = receiver.take(&mut left, |_, _| true) {
        if matches!(delivery, KeyDelivery::Keys(_)) {
            count += 1;
        }
    }
    if count > 0 {
        *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        shared.arrived.fetch_add(count, Ordering::Release);
    }
    count as usize
}

fn message(number: u32) -> Message {
    let entry = |direction| KeyEntry {
        direction,
        epoch: Epoch::APPLICATION,
        key: SecretBytes::new(&[7; 32]).unwrap_or(SecretBytes::empty()),
        iv: SecretBytes::new(&[8; 12]).unwrap_or(SecretBytes::empty()),
        mac_key: SecretBytes::empty(),
    };
    let mut client_random = [0; 32];
    client_random[..4].copy_from_slice(&number.to_be_bytes());
    let [client, server] = [([10, 77, 0, 2], number as u16), ([10, 77, 0, 3], 443)];
    Message::SessionKeys(SessionKeys {
        client_random,
        server_random: Some([9; 32]),
        version: 0x0304,
        cipher_suite: 0x1302,
        flow: Flow::new(client.into(), server.into()),
        keys: Direction::BOTH.map(entry).into(),
    })
}

fn wait(done: impl Fn() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            return Err("keys do not arrive".to_owned());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn latency(client: &Client, shared: &Shared, keys: u32) -> Result<Latency, String> {
    let mut waited = Vec::with_capacity(keys as usize);
    for number in 0..keys {
        let message = message(number);
        let before = Instant::now();
        client.send(&message).map_err(|error| error.to_string())?;
        std::thread::sleep(PAUSE);
        wait(|| shared.arrived.load(Ordering::Acquire) > u64::from(number))?;
        let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = latest.ok_or("no key has arrived")?;
        waited.push(arrived.saturating_duration_since(before).as_nanos() as f64 / 1e3);
    }
    waited.sort_by(f64::total_cmp);
    let at = |share| quantile(&waited, share).unwrap_or(0.0);
    Ok(Latency { median_us: at(0.5), p99_us: at(0.99) })
}

/// Nanoseconds that a thread of this process has run.
fn thread_ns(thread: u64) -> Result<u64, String> {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let first = text.split(' ').next().and_then(|it| it.parse().ok());
    first.ok_or_else(|| format!("{path}: {text:?}"))
}

type Endpoint = StreamOwned<ClientConnection, TcpStream>;

/// An endpoint that costs as little as may be: it shares a processor with the worker.
fn endpoint(to: SocketAddr, name: &str, ca: &Path) -> Result<Endpoint, Box<dyn std::error::Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![message::ALPN.to_vec()];
    let name = ServerName::try_from(name.to_owned())?;
    let tls = ClientConnection::new(Arc::new(config), name)?;
    let mut endpoint = StreamOwned::new(tls, TcpStream::connect(to)?);
    let hello = Message::Hello(Greeting { software: "xtask".to_owned(), capabilities: 0 });
    endpoint.write_all(&message::encode(&hello)?)?;
    let mut welcome = [0; message::HEADER_BYTES];
    endpoint.read_exact(&mut welcome)?;
    Ok(endpoint)
}

/// Keys that are written together: as many as fit one record of TLS.
const TOGETHER: u32 = 64;

fn rate(
    mut endpoints: Vec<Endpoint>,
    shared: &Shared,
    keys: u32,
    thread: u64,
) -> Result<Rate, String> {
    // Made before: the same ones each time.
    let mut bundles = Vec::new();
    for bundle in 0..64 {
        let mut bytes = Vec::new();
        for number in 0..TOGETHER {
            let encoded = message::encode(&message(bundle * TOGETHER + number));
            bytes.extend_from_slice(&encoded.map_err(|error| error.to_string())?);
        }
        bundles.push(bytes);
    }
    let (start, cpu) = (Instant::now(), thread_ns(thread)?);
    let arrived = || shared.arrived.load(Ordering::Acquire);
    let count = keys / TOGETHER;
    for number in 0..count {
        wait(|| arrived() + WINDOW > u64::from(number * TOGETHER))?;
        let at = number as usize % endpoints.len();
        let bytes = &bundles[number as usize % bundles.len()];
        endpoints[at].write_all(bytes).map_err(|error| error.to_string())?;
    }
    let keys = count * TOGETHER;
    wait(|| arrived() >= u64::from(keys))?;
    let cpu = thread_ns(thread)? - cpu;
    let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = latest.map_or(f64::MAX, |it| it.saturating_duration_since(start).as_secs_f64());
    Ok(Rate {
        per_s: f64::from(keys) / seconds,
        cpu_us: cpu as f64 / 1e3 / f64::from(keys),
        sent: keys,
        arrived: arrived() as u32,
    })
}
