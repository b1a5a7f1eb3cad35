//! Runs the two programs of a case in the testbed and keeps what they sent and received.
//!
//! Refuses to call a case driven when a program failed, or received other bytes than were sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{Testbed, address, files};

use super::browser;
use super::case::{Case, Feature};
use super::stack::{Build, KeyLogBy, Role, Stack};
use super::stacks::STACKS;

/// A whole case must be over by then.
const PATIENCE: Duration = Duration::from_secs(40);
/// Ports of the cases start here, so that the capture can be cut by port.
pub const FIRST_PORT: u16 = 10_000;

/// What a case left behind.
#[derive(Debug)]
pub struct Driven {
    /// What the client received on each connection is what the server sent, and the reverse.
    pub sessions: Vec<Plaintext>,
    /// The key log to use.
    pub keylog: PathBuf,
    /// Which side wrote it.
    pub keylog_of: Role,
}

/// The files with what one connection carried.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Plaintext {
    /// Client to server.
    pub client: PathBuf,
    /// Server to client.
    pub server: PathBuf,
}

/// Why there is nothing to judge.
#[derive(Debug)]
pub enum NotDriven {
    /// No side can write a key log.
    NoKeyLog,
    /// A program failed or sent something else.
    Failed(String),
}

/// A stack whose endpoint is there.
pub struct Built {
    /// What it is.
    pub stack: &'static Stack,
    /// How its endpoint is started.
    pub command: Vec<PathBuf>,
}

/// Runs a case whose files go to `directory`.
pub fn drive(
    bed: &Testbed,
    built: &[Option<Built>],
    case: &Case,
    port: u16,
    directory: &Path,
) -> Result<Driven, NotDriven> {
    let failed = |error: String| NotDriven::Failed(error);
    let find = |index: usize| {
        built[index].as_ref().ok_or_else(|| failed(format!("no {}", STACKS[index].name)))
    };
    let (client, server) = (find(case.client)?, find(case.server)?);
    let logs = |role: Role, built: &Built| (built.stack.logs_keys)(role, case);
    if !logs(Role::Client, client) && !logs(Role::Server, server) {
        return Err(NotDriven::NoKeyLog);
    }
    let io = |error: std::io::Error| failed(error.to_string());
    fs::create_dir_all(directory).map_err(io)?;
    write_payloads(case, port, directory).map_err(io)?;

    let start = |built: &Built, role: Role| command(bed, built, role, case, port, directory);
    let mut serving = bed
        .background(server.stack.name, start(server, Role::Server))
        .map_err(|error| failed(error.to_string()))?;
    serving.wait_for_listen(port, PATIENCE).map_err(|error| failed(error.to_string()))?;
    let finished = bed.run(client.stack.name, start(client, Role::Client), PATIENCE);
    let is_http = case.feature == Feature::Http;
    let ended = if is_http {
        // Only the browser knows when it has enough.
        serving.stop()
    } else if finished.as_ref().is_ok_and(|it| it.status.success()) {
        serving.wait(PATIENCE).ok()
    } else {
        // What the server says of a failed handshake is of interest, but it may wait for ever.
        serving.wait(Duration::from_millis(500)).ok()
    };
    let said = serving.stderr_text();
    drop(serving);
    let finished = finished.map_err(|error| failed(format!("{error}; server: {}", last(&said))))?;
    if !finished.status.success() {
        let client = last(&finished.stderr);
        return Err(failed(format!("client: {client}; server: {}", last(&said))));
    }
    if !is_http && !ended.is_some_and(|status| status.success()) {
        return Err(failed(format!("server: {}", last(&said))));
    }
    let sessions = if is_http {
        browser::sessions(case, u64::from(port), &finished.text(), directory)
    } else {
        compare_payloads(case, directory)
    };
    let sessions = sessions.map_err(failed)?;
    let (keylog_of, keylog) = choose_keylog([client.stack, server.stack], case, port, directory)
        .ok_or_else(|| failed("no side wrote a key log".to_owned()))?;
    Ok(Driven { sessions, keylog, keylog_of })
}

fn last(text: &str) -> &str {
    text.trim().lines().last().unwrap_or("said nothing")
}

/// Every connection has bytes of its own, so that none can be taken for another.
fn write_payloads(case: &Case, port: u16, directory: &Path) -> std::io::Result<()> {
    if case.feature == Feature::Http {
        return browser::write_responses(case, u64::from(port), directory);
    }
    for (role, size) in [Role::Client, Role::Server].into_iter().zip(case.feature.sizes()) {
        for connection in 0..case.feature.connections() {
            let seed =
                u64::from(port) * 16 + connection as u64 * 2 + u64::from(role == Role::Server);
            let path = directory.join(format!("{}-sent.{connection}", role.name()));
            fs::write(path, files::pattern_bytes(size, seed))?;
        }
    }
    Ok(())
}

fn keylog_path(role: Role, directory: &Path) -> PathBuf {
    directory.join(format!("{}.keys", role.name()))
}

fn command(
    bed: &Testbed,
    built: &Built,
    role: Role,
    case: &Case,
    port: u16,
    directory: &Path,
) -> Command {
    let namespace = if role == Role::Client { &bed.client } else { &bed.server };
    let mut command = namespace.command(&built.command[0]);
    let keylog = keylog_path(role, directory);
    command.env_remove("SSLKEYLOGFILE");
    built.stack.equip(&mut command);
    if built.stack.build == Build::Chromium {
        browser::arguments(&mut command, case, port, &keylog, directory);
        return command;
    }
    command.args(&built.command[1..]).arg(role.name());
    command.arg(format!("host={}", address::SERVER_V4)).arg(format!("port={port}"));
    let file = |name: &str| directory.join(format!("{}-{name}", role.name())).display().to_string();
    command.arg(format!("send={}", file("sent"))).arg(format!("received={}", file("received")));
    let [to_server, to_client] = case.feature.sizes();
    let expected = if role == Role::Client { to_client } else { to_server };
    command.arg(match case.feature {
        Feature::Http => "expect=http".to_owned(),
        _ => format!("expect={expected}"),
    });
    command.arg(format!("connections={}", case.feature.connections()));
    command.args(built.stack.parameters(role, case)).args(case.feature.arguments());
    if role == Role::Server {
        command.args(case.feature.server_arguments());
    }
    if case.feature == Feature::KeyUpdate {
        // Some stacks refuse a request that crosses their own: one side asks, the other only does.
        let client_asks = !STACKS[case.client].passive.contains(&Feature::KeyUpdate);
        let asks = client_asks == (role == Role::Client);
        command.arg(if asks { "keyupdate=request" } else { "keyupdate=plain" });
    }
    if case.has_psk() && case.feature != Feature::Psk {
        command.args(Feature::Psk.arguments());
    }
    let pki = bed.pki();
    command.arg(format!("ca={}", pki.ca.display()));
    let identity = match (role, case.suite.is_some_and(|suite| suite.is_ecdsa())) {
        (Role::Client, _) => needs_client_certificate(case).then_some(&pki.client),
        (Role::Server, true) => Some(&pki.server),
        // TLS 1.3 has no suites with RSA in their name: both kinds of certificate come up.
        (Role::Server, false) if case.suite.is_none() && port % 2 == 1 => Some(&pki.server),
        (Role::Server, false) => Some(&pki.server_rsa),
    };
    if let Some(identity) = identity {
        command.arg(format!("cert={}", identity.certificate.display()));
        command.arg(format!("key={}", identity.key.display()));
    }
    match built.stack.keylog {
        KeyLogBy::Argument => command.arg(format!("keylog={}", keylog.display())),
        KeyLogBy::Environment => command.env("SSLKEYLOGFILE", keylog),
        KeyLogBy::Nothing => &mut command,
    };
    command
}

fn needs_client_certificate(case: &Case) -> bool {
    matches!(case.feature, Feature::ClientCertificate | Feature::PostHandshakeAuth)
}

/// The programs must agree on what went over, before mmTLS is asked.
fn compare_payloads(case: &Case, directory: &Path) -> Result<Vec<Plaintext>, String> {
    let mut sessions = Vec::new();
    for connection in 0..case.feature.connections() {
        for (sender, receiver) in [("client", "server"), ("server", "client")] {
            let sent = fs::read(directory.join(format!("{sender}-sent.{connection}")));
            let received = fs::read(directory.join(format!("{receiver}-received.{connection}")));
            match (sent, received) {
                (Ok(sent), Ok(received)) if sent == received => {}
                _ => return Err(format!("the {receiver} did not receive what the {sender} sent")),
            }
        }
        let sent = |role: Role| directory.join(format!("{}-sent.{connection}", role.name()));
        sessions.push(Plaintext { client: sent(Role::Client), server: sent(Role::Server) });
        // The same bytes again.
        for role in [Role::Client, Role::Server] {
            let _ =
                fs::remove_file(directory.join(format!("{}-received.{connection}", role.name())));
        }
    }
    Ok(sessions)
}

/// Where both sides wrote one, every other case uses the server's.
fn choose_keylog(
    [client, server]: [&Stack; 2],
    case: &Case,
    port: u16,
    directory: &Path,
) -> Option<(Role, PathBuf)> {
    let mut roles = vec![];
    for (role, stack) in [(Role::Client, client), (Role::Server, server)] {
        let path = keylog_path(role, directory);
        let has_keys = fs::metadata(&path).is_ok_and(|it| it.len() > 0);
        if (stack.logs_keys)(role, case) && has_keys {
            roles.push((role, path));
        }
    }
    if port % 4 >= 2 {
        roles.reverse();
    }
    roles.into_iter().next()
}
