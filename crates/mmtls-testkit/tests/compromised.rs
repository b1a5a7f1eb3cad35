//! The compromised middlebox between two OpenSSL programs. With all five AEADs of TLS 1.3 nobody
//! notices; with the suites that have a private tag everybody does. What rustls endpoints make of
//! it is tested in `mmtls-endpoint`.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_record::{key_schedule, private_tag, suite};
use mmtls_testkit::compromised::{Attack, Compromised, FORGED, ORDER, RecordKey, relay};
use mmtls_testkit::{Pki, PrivateTagOpenssl, require_program};

const PATIENCE: Duration = Duration::from_secs(20);

/// Attempts with a private tag, of each kind and suite in each direction.
const ATTEMPTS: usize = 2;

/// What follows the order in a record of its own.
const LAST: &[u8] = b" That is all.\n";

/// A child that does not outlive its test.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(command: &mut Command, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        command.arg("-quiet").stdin(Stdio::piped());
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Self { child, log }
    }

    fn say(&mut self, text: &[u8]) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(text).unwrap();
        stdin.flush().unwrap();
    }
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

/// The first application traffic secret of a side, as soon as the key log has it.
fn secret(key_log: &str, upward: bool) -> Option<Vec<u8>> {
    let label = if upward { "CLIENT_TRAFFIC_SECRET_0 " } else { "SERVER_TRAFFIC_SECRET_0 " };
    let line = key_log.lines().find(|line| line.starts_with(label))?;
    base16ct::mixed::decode_vec(line.rsplit(' ').next()?).ok()
}

/// Two programs and the attacker between them.
struct Scene<'a> {
    pki: &'a Pki,
    /// `None` for OpenSSL as it is installed.
    openssl: Option<&'a PrivateTagOpenssl>,
    suite: u16,
    attack: Attack,
    upward: bool,
}

impl Scene<'_> {
    fn program(&self) -> Command {
        self.openssl.map_or_else(|| Command::new("openssl"), PrivateTagOpenssl::program)
    }

    /// The suite; newer releases want to be asked twice for short tags.
    fn suite_arguments(&self) -> [&'static str; 4] {
        let name = suite::name(self.suite).unwrap();
        ["-cipher", "DEFAULT:@SECLEVEL=0", "-ciphersuites", name]
    }

    /// What the receiver prints when the sender's user has written [`ORDER`], up to what `enough`
    /// finds; and what the sender prints, when the end of it is asked for.
    fn play(&self, enough: &str, heard: Option<&str>) -> (String, String) {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = |name: &str| self.pki.directory().join(format!("compromised{count}-{name}"));
        let (number, attack, upward) = (self.suite, self.attack, self.upward);
        let key_log = file("keys");
        // s_server says which port it took only when it is not quiet.
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let identity = &self.pki.server;
        let mut command = self.program();
        command.args(["s_server", "-naccept", "1", "-accept", &address.to_string()]);
        command.arg("-cert").arg(&identity.certificate).arg("-key").arg(&identity.key);
        // Tickets would be the first records of the server's keys.
        command.args(["-num_tickets", "0"]).args(self.suite_arguments());
        let mut server = Program::start(&mut command, file("server"));
        let end = Instant::now() + PATIENCE;
        while !listens(address.port()) {
            assert!(Instant::now() < end, "s_server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relayed = listener.local_addr().unwrap();
        let keys = key_log.clone();
        let middle = std::thread::spawn(move || {
            relay::carry(&listener, address, &|of| {
                let text = fs::read_to_string(&keys).unwrap_or_default();
                let record = key_schedule::traffic_keys(number, &secret(&text, upward)?).ok()?;
                let (key, iv) = (record.key().to_vec(), record.iv().to_vec());
                let stolen = RecordKey { suite: number, key, iv };
                if of == upward { Compromised::new(stolen, attack, 0) } else { None }
            })
        });
        let mut command = self.program();
        command.args(["s_client", "-verify_return_error", "-servername", "server.test"]);
        command.args(self.suite_arguments());
        command.arg("-CAfile").arg(&self.pki.ca).arg("-keylogfile").arg(&key_log);
        command.args(["-connect", &relayed.to_string()]);
        let mut client = Program::start(&mut command, file("client"));
        wait_for(&key_log, |text| secret(text, upward));
        let (sender, receiver) =
            if upward { (&mut client, &server) } else { (&mut server, &client) };
        sender.say(ORDER);
        if attack == Attack::Swap {
            // A record of its own, which the first one waits for.
            std::thread::sleep(Duration::from_millis(50));
            sender.say(LAST);
        }
        let got = wait_for(&receiver.log, |text| text.contains(enough).then(|| text.to_owned()));
        let said = heard
            .map(|end| wait_for(&sender.log, |text| text.contains(end).then(|| text.to_owned())));
        drop(client);
        drop(server);
        assert_eq!(middle.join().unwrap().unwrap(), [upward, !upward]);
        (got, said.unwrap_or_default())
    }
}

/// Whether somebody listens on a port of loopback, asked without connecting: the server takes one
/// connection only.
fn listens(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    table.contains(&format!("0100007F:{port:04X} 00000000:0000 0A"))
}

/// Every rewrite of ordinary records goes unnoticed.
fn succeeds(openssl: Option<&PrivateTagOpenssl>) {
    let pki = Pki::shared().unwrap();
    for suite in 0x1301..=0x1305 {
        for attack in [Attack::Rewrite, Attack::Collide] {
            let scene = Scene { pki: &pki, openssl, suite, attack, upward: true };
            let (got, _) = scene.play("*/", None);
            let forged = String::from_utf8_lossy(FORGED);
            assert!(got.starts_with(&*forged), "{suite:04x}, {attack:?}: {got}");
            assert!(got.contains("each...... */"), "{suite:04x}, {attack:?}: {got}");
            assert!(!got.to_lowercase().contains("error"), "{suite:04x}, {attack:?}: {got}");
        }
    }
}

#[test]
fn accepts_changed_records_between_stock_openssl_programs() {
    if require_program("openssl") {
        succeeds(None);
    }
}

#[test]
fn accepts_changed_records_where_openssl_has_private_tag_suites_and_they_are_off() {
    if let Some(openssl) = PrivateTagOpenssl::require() {
        succeeds(Some(&openssl));
    }
}

#[test]
fn refuses_changed_records_of_openssl_with_a_private_tag() {
    let Some(openssl) = PrivateTagOpenssl::require() else {
        return;
    };
    let pki = Pki::shared().unwrap();
    let mut count = 0;
    for attack in Attack::ALL {
        for suite in private_tag::SUITES {
            for upward in [true, false] {
                for _ in 0..ATTEMPTS {
                    let openssl = Some(&openssl);
                    let scene = Scene { pki: &pki, openssl, suite, attack, upward };
                    let alert = "alert bad record mac";
                    let (got, _) = scene.play("bad record mac", Some(alert));
                    let what = format!("{suite:04x}, {attack:?}, upward {upward}: {got}");
                    assert!(!got.contains(alert), "{what}");
                    // What is printed before the error is what was delivered.
                    let order = String::from_utf8_lossy(ORDER);
                    let genuine = if attack == Attack::Replay { 1 } else { 0 };
                    assert_eq!(got.matches("Transfer").count(), genuine, "{what}");
                    assert_eq!(got.matches(&*order).count(), genuine, "{what}");
                    assert!(!got.contains("That is all"), "{what}");
                    count += 1;
                }
            }
        }
    }
    println!("{count} attempts: bad_record_mac, nothing delivered");
}
