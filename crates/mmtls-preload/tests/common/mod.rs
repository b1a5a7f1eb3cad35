//! An agent, a TLS server of the openssl command, and programs that run preloaded. The tests of `libmmtls-share` use it, too.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_keyshare::Flow;
use mmtls_keyshare::agent::socket::{AgentListener, AgentWaker, Sender, Users};
use mmtls_keyshare::agent::{Datagram, Role, SecretKind};

pub const PATIENCE: Duration = Duration::from_secs(10);

/// One datagram, owned.
#[derive(Clone, Debug)]
pub enum Got {
    Secret {
        kind: SecretKind,
        role: Role,
        client_random: String,
        version: u16,
        cipher_suite: u16,
        secret: String,
        server_name: String,
        flow: Option<Flow>,
    },
    Exempt {
        client_random: String,
    },
}

impl Got {
    pub fn kind(&self) -> Option<SecretKind> {
        match self {
            Self::Secret { kind, .. } => Some(*kind),
            Self::Exempt { .. } => None,
        }
    }

    pub fn client_random(&self) -> &str {
        match self {
            Self::Secret { client_random, .. } | Self::Exempt { client_random } => client_random,
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Collects datagrams until it is dropped.
pub struct Agent {
    path: PathBuf,
    got: Arc<Mutex<Vec<Got>>>,
    stop: Arc<AtomicBool>,
    waker: AgentWaker,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub fn new(path: PathBuf) -> Self {
        let mut listener = AgentListener::bind(&path, Users::Own).unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let waker = listener.waker();
        let thread = std::thread::spawn({
            let (got, stop) = (Arc::clone(&got), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Acquire) {
                    let each = |_: &Sender, datagram: &[u8]| {
                        let datagram = Datagram::decode(datagram).unwrap();
                        got.lock().unwrap().push(owned(&datagram));
                    };
                    listener.poll(Duration::from_secs(1), each).unwrap();
                }
            }
        });
        Self { path, got, stop, waker, thread: Some(thread) }
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Waits for `count` datagrams, and a little longer for those that should not come.
    pub fn wait(&self, count: usize) -> Vec<Got> {
        let deadline = Instant::now() + PATIENCE;
        while self.got.lock().unwrap().len() < count {
            assert!(Instant::now() < deadline, "{count} datagrams expected: {:?}", self.got());
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(30));
        self.got()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn owned(datagram: &Datagram<'_>) -> Got {
    match datagram {
        Datagram::TrafficSecret(secret) => Got::Secret {
            kind: secret.kind,
            role: secret.role,
            client_random: hex(secret.client_random),
            version: secret.version,
            cipher_suite: secret.cipher_suite,
            secret: hex(secret.secret),
            server_name: String::from_utf8_lossy(secret.server_name).into_owned(),
            flow: secret.flow,
        },
        Datagram::Exempt(exempt) => Got::Exempt { client_random: hex(exempt.client_random) },
    }
}

/// A directory with a certificate, removed at the end.
pub struct Place {
    directory: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("mmtls-preload-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let place = Self { directory };
        let output = Command::new("openssl")
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '))
            .args("-subj /CN=localhost -addext subjectAltName=DNS:localhost".split(' '))
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(&place.directory)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn agent(&self) -> Agent {
        Agent::new(self.path("agent"))
    }

    /// A program that runs with the library.
    pub fn preloaded(&self, program: &str) -> Command {
        let mut command = self.plain(program);
        command.env("LD_PRELOAD", library()).env("MMTLS_AGENT", self.path("agent"));
        command
    }

    /// A program that runs without it.
    pub fn plain(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory).stdin(Stdio::null());
        for name in ["LD_PRELOAD", "MMTLS_AGENT", "MMTLS_EXEMPT", "SSLKEYLOGFILE"] {
            command.env_remove(name);
        }
        command
    }

    /// `openssl s_server -www`, with more arguments.
    pub fn server(&self, arguments: &str) -> TlsServer {
        self.server_of(self.plain("openssl"), arguments)
    }

    pub fn server_of(&self, mut command: Command, arguments: &str) -> TlsServer {
        // The port is free again for a moment; nothing else on a test machine asks for it then.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = command
            .args(["s_server", "-cert", "cert.pem", "-key", "key.pem", "-accept"])
            .arg(format!("127.0.0.1:{port}"))
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "s_server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        TlsServer { port, process }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub struct TlsServer {
    pub port: u16,
    process: Child,
}

impl TlsServer {
    /// Lets the server send a line to its client.
    pub fn say(&mut self, line: &str) {
        self.process.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}/", self.port)
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The library as it is shipped.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build("mmtls-preload").join("libmmtls_preload.so"))
}

/// Builds a package whose library is shipped, since cargo builds no cdylib for tests; returns the profile's directory.
pub fn build(package: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // TARGET/PROFILE/deps/test
    let profile = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--package", package]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "cannot build {package}");
    profile.to_owned()
}

/// What a key log says: "LABEL client-random secret", in lower case but for the label.
pub fn key_log(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .filter(|line| line.contains("_TRAFFIC_SECRET_") && !line.contains("HANDSHAKE"))
        .map(str::to_owned)
        .collect()
}

/// The same from the datagrams.
pub fn as_key_log(got: &[Got]) -> BTreeSet<String> {
    got.iter()
        .filter_map(|got| match got {
            Got::Secret { kind, client_random, secret, .. } => {
                let label = match kind {
                    SecretKind::ClientTraffic0 => "CLIENT_TRAFFIC_SECRET_0",
                    SecretKind::ServerTraffic0 => "SERVER_TRAFFIC_SECRET_0",
                    SecretKind::ClientTrafficN => "CLIENT_TRAFFIC_SECRET_N",
                    SecretKind::ServerTrafficN => "SERVER_TRAFFIC_SECRET_N",
                    SecretKind::ClientHandshake => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
                    SecretKind::ServerHandshake => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
                    SecretKind::ClientEarly => "CLIENT_EARLY_TRAFFIC_SECRET",
                    SecretKind::Tls12Master => "CLIENT_RANDOM",
                };
                Some(format!("{label} {client_random} {secret}"))
            }
            Got::Exempt { .. } => None,
        })
        .collect()
}

pub fn installed(program: &str) -> bool {
    let there = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED: {program} is not installed");
    }
    there
}
