//! The compromised middlebox between two stock OpenSSL programs: all five AEADs of TLS 1.3, and
//! nobody notices. What mmTLS's own endpoints make of it is tested in `mmtls-endpoint`.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_record::{key_schedule, suite};
use mmtls_testkit::compromised::{Attack, Compromised, FORGED, ORDER, RecordKey, relay};
use mmtls_testkit::{Pki, require_program};

const PATIENCE: Duration = Duration::from_secs(20);

/// A child that does not outlive its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command, log: &Path) -> Program {
    let log = File::create(log).unwrap();
    command.arg("-quiet").stdin(Stdio::piped());
    Program(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
}

fn wait_for<T>(path: &Path, find: impl Fn(&str) -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        if let Some(found) = find(&text) {
            return found;
        }
        assert!(Instant::now() < end, "{} says {text:?}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The client's first application traffic secret, as soon as its key log has it.
fn secret(key_log: &str) -> Option<Vec<u8>> {
    let line = key_log.lines().find(|line| line.starts_with("CLIENT_TRAFFIC_SECRET_0 "))?;
    let digits: Option<Vec<u8>> = line
        .rsplit(' ')
        .next()?
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect())
}

/// What the server's user reads when the client's wrote [`ORDER`].
fn received(pki: &Pki, number: u16, attack: Attack) -> String {
    let file = |name: &str| pki.directory().join(format!("{number:04x}-{attack:?}-{name}"));
    let (server_log, client_log, key_log) = (file("server"), file("client"), file("keys"));
    // s_server says which port it took only when it is not quiet.
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let mut command = Command::new("openssl");
    command.args(["s_server", "-naccept", "1", "-accept", &address.to_string()]);
    command.arg("-cert").arg(&pki.server.certificate).arg("-key").arg(&pki.server.key);
    command.args(["-ciphersuites", suite::name(number).unwrap()]);
    let server = start(&mut command, &server_log);
    let end = Instant::now() + PATIENCE;
    while !listens(address.port()) {
        assert!(Instant::now() < end, "s_server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let relayed = listener.local_addr().unwrap();
    let keys = key_log.clone();
    let middle = std::thread::spawn(move || {
        relay::carry(&listener, address, &|upward| {
            let text = fs::read_to_string(&keys).unwrap_or_default();
            let record = key_schedule::traffic_keys(number, &secret(&text)?).ok()?;
            let (key, iv) = (record.key().to_vec(), record.iv().to_vec());
            let stolen = RecordKey { suite: number, key, iv };
            if upward { Compromised::new(stolen, attack, 0) } else { None }
        })
    });
    let mut command = Command::new("openssl");
    command.args(["s_client", "-verify_return_error", "-servername", "server.test"]);
    command.args(["-ciphersuites", suite::name(number).unwrap()]);
    command.arg("-CAfile").arg(&pki.ca).arg("-keylogfile").arg(&key_log);
    command.args(["-connect", &relayed.to_string()]);
    let mut client = start(&mut command, &client_log);
    wait_for(&key_log, secret);
    let stdin = client.0.stdin.as_mut().unwrap();
    stdin.write_all(ORDER).unwrap();
    stdin.flush().unwrap();
    let got = wait_for(&server_log, |text| text.contains("*/").then(|| text.to_owned()));
    drop(client);
    drop(server);
    let attacked = middle.join().unwrap().unwrap();
    assert_eq!(attacked, [true, false]);
    got
}

/// Whether somebody listens on a port of loopback, asked without connecting: the server takes one
/// connection only.
fn listens(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.contains(&format!("0100007F:{port:04X} 00000000:0000 0A"))
}

#[test]
fn accepts_changed_records_between_stock_openssl_programs() {
    if !require_program("openssl") {
        return;
    }
    let pki = Pki::shared().unwrap();
    for number in 0x1301..=0x1305 {
        for attack in [Attack::Rewrite, Attack::Collide] {
            let got = received(&pki, number, attack);
            let forged = String::from_utf8_lossy(FORGED);
            assert!(got.starts_with(&*forged), "{number:04x}, {attack:?}: {got}");
            assert!(got.contains("each...... */"), "{number:04x}, {attack:?}: {got}");
            assert!(!got.to_lowercase().contains("error"), "{number:04x}, {attack:?}: {got}");
        }
    }
}
