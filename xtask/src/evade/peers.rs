//! The servers under attack: one of every TLS stack, each on an address of its own, port 443.
//!
//! The endpoints are those of `xtask interop`; rustls runs in this process. Refuses to leave a stack
//! out silently: what cannot be started is told and counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use mmtls_testkit::{Background, Testbed};

use super::station::enter;
use super::tls::Settings;
use crate::interop::stack::Stack;
use crate::interop::stacks::STACKS;

/// What every server answers.
pub const RESPONSE: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 21\r\nConnection: close\r\n\r\nmmtls-evade-response\n";

/// Servers of TLS 1.3, those of `make test` first. mbedTLS 2.28 speaks TLS 1.2 alone.
pub const NAMES: &[(&str, bool)] = &[
    ("openssl", true),
    ("gnutls", true),
    ("go", true),
    ("rustls", true),
    ("java", false),
    ("nss", false),
    ("wolfssl", false),
];

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
    for (name, _) in NAMES.iter().filter(|it| wanted.contains(&it.0)) {
        let stack: Option<&Stack> = STACKS.iter().find(|it| it.name == *name);
        let command = match stack {
            _ if *name == "rustls" => Ok(vec![]),
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

/// A server's address: by its place in [`NAMES`].
pub fn address(name: &str, v6: bool) -> SocketAddr {
    let at = NAMES.iter().position(|it| it.0 == name).unwrap_or(NAMES.len());
    // There are few stacks.
    let number = 100 + at as u16;
    if v6 {
        ([0xfd77, 0, 0, 0, 0, 0, 0, 0x100 + number], 443).into()
    } else {
        ([10, 77, 0, number as u8], 443).into()
    }
}

/// Running servers.
pub struct Servers {
    processes: Vec<Background>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Starts them in the server's namespace and waits until they listen.
    pub fn start(bed: &Testbed, programs: &[Program], settings: &Settings) -> Result<Self, String> {
        let directory = bed.directory();
        let payload = directory.join("response");
        std::fs::write(directory.join("response.0"), RESPONSE).map_err(|e| e.to_string())?;
        let mut servers =
            Self { processes: vec![], stop: Arc::new(AtomicBool::new(false)), threads: vec![] };
        for program in programs {
            for v6 in [false, true] {
                let own = address(program.name, v6);
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
                if program.name == "gnutls" {
                    command.arg("priority=NORMAL:-VERS-ALL:+VERS-TLS1.3");
                } else {
                    command.arg("version=1.3");
                }
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

    fn serve_rustls(
        &mut self,
        bed: &Testbed,
        own: SocketAddr,
        settings: &Settings,
    ) -> Result<(), String> {
        let (ready, started) = channel();
        let (namespace, stop) = (bed.server.path(), Arc::clone(&self.stop));
        let config = Arc::clone(&settings.server);
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
                let config = Arc::clone(&config);
                std::thread::spawn(move || drop(answer(stream, config)));
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

fn answer(mut stream: TcpStream, config: Arc<rustls::ServerConfig>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    stream.set_nonblocking(false).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_secs(90))).map_err(text)?;
    let mut session = rustls::ServerConnection::new(config).map_err(|error| error.to_string())?;
    let mut tls = rustls::Stream::new(&mut session, &mut stream);
    let mut buffer = [0; 4096];
    tls.read(&mut buffer).map_err(text)?;
    tls.write_all(RESPONSE.as_bytes()).map_err(text)?;
    session.send_close_notify();
    session.write_tls(&mut stream).map_err(text)?;
    Ok(())
}
