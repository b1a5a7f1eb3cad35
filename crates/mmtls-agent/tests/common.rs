//! A place with certificates, a TLS server and a middlebox's key server over loopback, and agents as processes.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use mmtls_agent::{AgentFile, AgentOptions, Channel, ExecOptions, Rules, Users, run, serve};
use mmtls_keyshare::client::Identity;
use mmtls_keyshare::message::{Direction, Epoch, KeyRequest, Message, SessionKeys};
use mmtls_keyshare::server::{KeySink, Peer, Server, ServerConfig};

const PATIENCE: Duration = Duration::from_secs(10);

/// Not a test of its own: the others start this program again to be the process `mmtls exec`.
#[test]
#[ignore = "run by the other tests"]
fn the_exec_process() {
    if std::env::var_os("TEST_PROGRAM").is_none() {
        return;
    }
    let options = ExecOptions {
        channel: channel(),
        agent: std::env::var_os("TEST_DIRECTORY").map(Into::into),
        exempt: list("TEST_EXEMPT").split_whitespace().map(str::to_owned).collect(),
        preload_library: Some(list("TEST_LIBRARY").into()),
        guard: list("TEST_GUARD").lines().map(Into::into).collect(),
        report: true,
        program: list("TEST_PROGRAM").split('\n').map(Into::into).collect(),
        ..ExecOptions::default()
    };
    finish(run(&options));
}

/// The same for `mmtls agent`.
#[test]
#[ignore = "run by the other tests"]
fn the_agent_process() {
    if std::env::var_os("TEST_DIRECTORY").is_none() {
        return;
    }
    let options = AgentOptions {
        channel: channel(),
        directory: std::env::var_os("TEST_DIRECTORY").map(Into::into),
        audit_log: std::env::var_os("TEST_AUDIT").map(Into::into),
        guard: list("TEST_GUARD").lines().map(Into::into).collect(),
        users: if list("TEST_USERS") == "all" { Users::All } else { Users::Own },
        rules: std::env::var_os("TEST_RULES")
            .map_or_else(Rules::default, |file| AgentFile::load(file.as_ref()).unwrap().rules()),
        ..AgentOptions::default()
    };
    finish(serve(&options).map(|()| 0));
}

fn list(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn channel() -> Channel {
    let middleboxes = std::env::var("TEST_MIDDLEBOX").into_iter().collect();
    Channel { middleboxes, ca_file: list("TEST_CA").into(), ..Channel::default() }
}

fn finish(outcome: Result<i32, mmtls_agent::Error>) -> ! {
    match outcome {
        Ok(code) => std::process::exit(code),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(99);
        }
    }
}

/// As the others' agent, the guard of one.
#[test]
#[ignore = "run by the other tests"]
fn the_guard_process() {
    if std::env::var_os("TEST_GUARD").is_none() {
        return;
    }
    let arguments: Vec<String> = std::env::args().collect();
    let [.., agent, directory] = &arguments[..] else {
        panic!("no arguments");
    };
    mmtls_agent::guard(agent.parse().unwrap(), Path::new(directory)).unwrap();
}

pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("mmtls-exec-test-{}-{number}", std::process::id());
        let place = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&place.0).unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        place.openssl(&format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"));
        place.openssl(&format!("req {key} -subj /CN=localhost -keyout key.pem -out csr.pem"));
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
        std::fs::write(place.path("ext"), names).unwrap();
        place.openssl("x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem");
        place
    }

    pub fn openssl(&self, arguments: &str) {
        let output = self.command("openssl").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.0).stdin(Stdio::null());
        command
    }

    pub fn middlebox(&self) -> Middlebox {
        let identity =
            Identity { certificate_file: self.path("cert.pem"), key_file: self.path("key.pem") };
        let inbox = Inbox::default();
        let config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity);
        Middlebox { server: Server::start(config, inbox.clone()).unwrap(), inbox }
    }

    pub fn tls_server(&self, arguments: &str) -> TlsServer {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = self
            .command("openssl")
            .args(["s_server", "-cert", "cert.pem", "-key", "key.pem", "-accept"])
            .arg(format!("127.0.0.1:{port}"))
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        TlsServer { port, process }
    }

    /// `mmtls exec` with this program, and an agent of its own.
    pub fn exec(&self, middlebox: &str, program: &[&str]) -> Command {
        let mut command = self.process("the_exec_process");
        command.env("TEST_MIDDLEBOX", middlebox).env("TEST_PROGRAM", program.join("\n"));
        command
    }

    /// The same, through the agent with this directory.
    pub fn exec_through(&self, agent: &Path, program: &[&str]) -> Command {
        let mut command = self.process("the_exec_process");
        command.env("TEST_DIRECTORY", agent).env("TEST_PROGRAM", program.join("\n"));
        command
    }

    /// `mmtls agent` with this directory.
    pub fn agent(&self, middlebox: &str, directory: &Path) -> Command {
        let mut command = self.process("the_agent_process");
        command.env("TEST_MIDDLEBOX", middlebox).env("TEST_DIRECTORY", directory);
        command
    }

    fn process(&self, name: &str) -> Command {
        let mut command = self.command(test());
        command.args(["--exact", "--ignored", "--nocapture", &format!("common::{name}")]);
        let guard = [&test(), "--exact\n--ignored\n--nocapture\ncommon::the_guard_process"];
        command
            .env("TEST_CA", self.path("ca.pem"))
            .env("TEST_LIBRARY", library())
            .env("TEST_GUARD", guard.join("\n"))
            .env_remove("SSLKEYLOGFILE");
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct TlsServer {
    pub port: u16,
    process: Child,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Clone, Default)]
pub struct Inbox(pub Arc<Mutex<Vec<(Peer, Message)>>>, pub Arc<Mutex<Option<Peer>>>);

impl KeySink for Inbox {
    fn opened(&mut self, peer: &Peer) {
        *self.1.lock().unwrap() = Some(peer.clone());
    }

    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        self.0.lock().unwrap().push((peer.clone(), message));
        None
    }
}

pub struct Middlebox {
    pub server: Server,
    pub inbox: Inbox,
}

impl Middlebox {
    pub fn address(&self) -> String {
        self.server.local_addr().to_string()
    }

    /// Every key received: direction, epoch, key and IV.
    pub fn keys(&self) -> Vec<(Direction, Epoch, Vec<u8>, Vec<u8>)> {
        let each = |session: &SessionKeys| {
            let entry = |entry: &mmtls_keyshare::message::KeyEntry| {
                let (key, iv) = (entry.key.as_bytes().to_vec(), entry.iv.as_bytes().to_vec());
                (entry.direction, entry.epoch, key, iv)
            };
            session.keys.iter().map(entry).collect::<Vec<_>>()
        };
        let messages = self.inbox.0.lock().unwrap();
        let sessions = messages.iter().filter_map(|(_, message)| match message {
            Message::SessionKeys(session) => Some(each(session)),
            _ => None,
        });
        sessions.flatten().collect()
    }
}

/// This program.
pub fn test() -> String {
    std::env::current_exe().unwrap().into_os_string().into_string().unwrap()
}

/// What a middlebox asks for the server's first keys of a session with TLS_AES_128_GCM_SHA256.
pub fn request(client_random: [u8; 32]) -> KeyRequest {
    KeyRequest {
        client_random,
        server_random: [9; 32],
        version: 0x0304,
        cipher_suite: 0x1301,
        direction: Direction::ServerToClient,
        epoch: Epoch::APPLICATION,
    }
}

pub fn until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "nothing happened in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        // TARGET/PROFILE/deps/test
        let profile = test.parent().and_then(Path::parent).unwrap();
        let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "mmtls-preload"]);
        cargo.arg("--manifest-path").arg(workspace);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "cannot build libmmtls_preload.so");
        profile.join("libmmtls_preload.so")
    })
}

/// The secrets with this label in a key log.
pub fn secrets(log: &Path, label: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(log).unwrap();
    let secret =
        |line: &str| base16ct::mixed::decode_vec(line.rsplit(' ').next().unwrap()).unwrap();
    text.lines().filter(|line| line.starts_with(label)).map(secret).collect()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
