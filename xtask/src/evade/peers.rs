//! The servers under attack: one of every TLS stack, each on an address of its own, port 443.
//!
//! The endpoints are those of `xtask interop`; rustls runs in this process. Refuses to leave a stack
//! out silently: what cannot be started is told and counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mmtls_testkit::{Background, Testbed};

use super::tls::Settings;
use crate::interop::stack::Stack;
use crate::interop::stacks::STACKS;
use crate::netns::enter;

/// What every server answers.
pub const RESPONSE: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 21\r\nConnection: close\r\n\r\nmmtls-evade-response\n";

/// A stack, and whether it is there at TLS 1.2 and at 1.3, and in the short run of `make test`.
pub struct Peer {
    pub name: &'static str,
    pub versions: [bool; 2],
    pub quick: [bool; 2],
}

/// Every server.
pub const PEERS: [Peer; 8] = [
    Peer { name: "openssl", versions: [true, true], quick: [true, true] },
    Peer { name: "gnutls", versions: [true, true], quick: [false, true] },
    Peer { name: "go", versions: [true, true], quick: [false, true] },
    // Its TLS 1.2 is a feature that the build of a workspace would give to what ships.
    Peer { name: "rustls", versions: [false, true], quick: [false, true] },
    Peer { name: "java", versions: [true, true], quick: [false, false] },
    Peer { name: "nss", versions: [true, true], quick: [false, false] },
    Peer { name: "wolfssl", versions: [true, true], quick: [false, false] },
    // 2.28: TLS 1.3 came with version 3.
    Peer { name: "mbedtls", versions: [true, false], quick: [false, false] },
];

/// The versions of a stack that are wanted; `true` is TLS 1.2.
pub fn versions(name: &str, quick: bool) -> impl Iterator<Item = bool> {
    let peer = PEERS.iter().find(|it| it.name == name);
    let [old, new] = peer.map_or([false; 2], |it| if quick { it.quick } else { it.versions });
    [(true, old), (false, new)].into_iter().filter(|it| it.1).map(|it| it.0)
}

/// A stack that can be started.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    /// Empty for rustls.
    pub command: Vec<PathBuf>,
}

/// Builds what is asked for; what is missing comes back with the reason.
pub fn build(wanted: &[&str], target: &Path) -> (Vec<Program>, Vec<String>) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let mut missing = Vec::new();
    let mut programs = Vec::new();
    for name in PEERS.iter().map(|it| it.name).filter(|it| wanted.contains(it)) {
        let stack: Option<&Stack> = STACKS.iter().find(|it| it.name == name);
        let command = match stack {
            _ if name == "rustls" => Ok(vec![]),
            Some(stack) => stack.build(&source, target),
            None => Err("no such stack".to_owned()),
        };
        match command {
            Ok(command) => programs.push(Program { name, command }),
            Err(reason) => missing.push(format!("{name}: {reason}")),
        }
    }
    (programs, missing)
}

/// A server's address: by its place in [`PEERS`].
pub fn address(name: &str, tls12: bool, v6: bool) -> SocketAddr {
    let at = PEERS.iter().position(|it| it.name == name).unwrap_or(PEERS.len());
    // There are few stacks.
    let number = 100 + at as u16 + if tls12 { 20 } else { 0 };
    if v6 {
        ([0xfd77, 0, 0, 0, 0, 0, 0, 0x100 + number], 443).into()
    } else {
        ([10, 77, 0, number as u8], 443).into()
    }
}

/// Running servers.
pub struct Servers {
    processes: Vec<Background>,
    /// The first lines of what rustls was asked.
    asked: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts them in the server's namespace and waits until they listen.
    pub fn start(
        bed: &Testbed,
        programs: &[Program],
        settings: &Settings,
        quick: bool,
    ) -> Result<Self, String> {
        let directory = bed.directory();
        let payload = directory.join("response");
        std::fs::write(directory.join("response.0"), RESPONSE).map_err(|e| e.to_string())?;
        let mut servers = Self {
            processes: vec![],
            asked: Arc::default(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: vec![],
        };
        for program in programs {
            let both = versions(program.name, quick).flat_map(|it| [(it, false), (it, true)]);
            for (tls12, v6) in both {
                let own = address(program.name, tls12, v6);
                let bits = if v6 { "64 nodad" } else { "24" };
                bed.server
                    .ip(&format!("addr replace {}/{bits} dev eth0\n", own.ip()))
                    .map_err(|error| error.to_string())?;
                let Some(executable) = program.command.first() else {
                    servers.serve_rustls(bed, own, settings)?;
                    continue;
                };
                let mut command = bed.server.command(executable);
                command.env_remove("SSLKEYLOGFILE").env("NSS_STRICT_NOFORK", "DISABLED");
                command.args(&program.command[1..]).arg("server");
                command.arg(format!("host={}", own.ip())).arg("port=443").arg("forever=1");
                command.arg(format!("send={}", payload.display()));
                let sink = directory.join(format!("{}-received", program.name));
                command.arg(format!("received={}", sink.display())).arg("expect=http");
                let pki = bed.pki();
                command.arg(format!("ca={}", pki.ca.display()));
                command.arg(format!("cert={}", pki.server.certificate.display()));
                command.arg(format!("key={}", pki.server.key.display()));
                command.arg(version_argument(program.name, tls12));
                let process = bed.background(program.name, command);
                servers.processes.push(process.map_err(|error| error.to_string())?);
            }
        }
        for process in &mut servers.processes {
            let started = process.wait_for_line("ready", Duration::from_secs(20));
            started.map_err(|error| error.to_string())?;
        }
        Ok(servers)
    }

    /// What the applications were asked: the first lines of requests.
    pub fn requests(&self) -> Vec<String> {
        let lines = |it: &Background| {
            let text = it.stdout_text();
            let lines = text.lines().filter_map(|it| it.strip_prefix("request "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.processes.iter().flat_map(lines).chain(asked).collect()
    }

    fn serve_rustls(
        &mut self,
        bed: &Testbed,
        own: SocketAddr,
        settings: &Settings,
    ) -> Result<(), String> {
        let (ready, started) = channel();
        let (namespace, stop) = (bed.server.path(), Arc::clone(&self.stop));
        let (config, asked) = (Arc::clone(&settings.server), Arc::clone(&self.asked));
        self.threads.push(std::thread::spawn(move || {
            let listener = enter(&namespace)
                .and_then(|()| TcpListener::bind(own).map_err(|error| error.to_string()))
                .and_then(|it| {
                    it.set_nonblocking(true).map_err(|error| error.to_string())?;
                    Ok(it)
                });
            let listener = match listener {
                Ok(listener) => {
                    let _ = ready.send(Ok(()));
                    listener
                }
                Err(error) => return drop(ready.send(Err(error))),
            };
            while !stop.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                let (config, asked) = (Arc::clone(&config), Arc::clone(&asked));
                std::thread::spawn(move || drop(answer(stream, config, &asked)));
            }
        }));
        started.recv().unwrap_or_else(|_| Err("rustls: no thread".to_owned()))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The argument of an endpoint that says which version of TLS it speaks.
pub fn version_argument(name: &str, tls12: bool) -> String {
    let version = if tls12 { "1.2" } else { "1.3" };
    match name {
        "gnutls" => format!("priority=NORMAL:-VERS-ALL:+VERS-TLS{version}"),
        _ => format!("version={version}"),
    }
}

fn answer(
    mut stream: TcpStream,
    config: Arc<rustls::ServerConfig>,
    asked: &Mutex<Vec<String>>,
) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    stream.set_nonblocking(false).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_secs(90))).map_err(text)?;
    let mut session = rustls::ServerConnection::new(config).map_err(|error| error.to_string())?;
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    let mut buffer = [0; 4096];
    let count = tls.read(&mut buffer).map_err(text)?;
    let line = String::from_utf8_lossy(&buffer[..count]).lines().next().map(str::to_owned);
    asked.lock().unwrap_or_else(PoisonError::into_inner).extend(line);
    tls.write_all(RESPONSE.as_bytes()).map_err(text)?;
    session.send_close_notify();
    session.write_tls(&mut stream).map_err(text)?;
    Ok(())
}
