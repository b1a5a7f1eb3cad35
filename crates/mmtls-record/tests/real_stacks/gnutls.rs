//! GnuTLS as server, and as client where its client survives: an encoder of its own for CCM, ChaCha20-Poly1305 and both forms of CBC.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use mmtls_record::suite::{self, Suite, TLS13};

use super::command::{Directory, Server, output, request, run, start, wait_for};
use super::relay::Relay;
use super::transcript::{Session, open_session};
use super::{Tally, openssl, write_body};

const PSK: &str = "000102030405060708090a0b0c0d0e0f";

/// What the server offers: with all key exchanges at once, this GnuTLS refuses TLS 1.3.
const SERVERS: [&str; 2] = [
    "NORMAL:-VERS-ALL:+VERS-TLS1.2:+CIPHER-ALL:+AES-128-CCM:+AES-256-CCM:+AES-128-CCM-8:\
     +AES-256-CCM-8:+MAC-ALL:+SHA256:+SHA384:+RSA:+DHE-RSA:+PSK:+DHE-PSK:+RSA-PSK:+ECDHE-PSK:\
     +ANON-DH:+ANON-ECDH",
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+CIPHER-ALL:+AES-128-CCM:+AES-128-CCM-8",
];

/// The suites that GnuTLS lists and this crate supports.
fn listed() -> Option<Vec<&'static Suite>> {
    let text = output("gnutls-cli", &["-l"])?;
    let read = |line: &str| {
        let number = line.split('\t').nth(1)?.replace("0x", "").replace(", ", "");
        let number = u16::from_str_radix(number.trim(), 16).ok()?;
        suite::all().find(|suite| suite.number() == number)
    };
    Some(text.lines().filter_map(read).collect())
}

/// The priority string that leaves only this suite; `None` for DSS keys and SRP passwords, which
/// this test's server does not have.
fn priority(suite: &Suite) -> Option<String> {
    let rest = suite.name().strip_prefix("TLS_")?;
    if suite.version() == TLS13 {
        return Some(format!("NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+{}", cipher(rest)?));
    }
    let (exchange, rest) = rest.split_once("_WITH_")?;
    let exchange = match exchange {
        "DH_anon" => "ANON-DH".to_owned(),
        "ECDH_anon" => "ANON-ECDH".to_owned(),
        "PSK_DHE" => "DHE-PSK".to_owned(),
        other if other.contains("DSS") || other.contains("SRP") => return None,
        other => other.replace('_', "-"),
    };
    let mac = match suite.cipher().mac_key_len() {
        0 => "AEAD",
        20 => "SHA1",
        32 => "SHA256",
        _ => "SHA384",
    };
    let cipher = cipher(rest)?;
    Some(format!(
        "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+{exchange}:-CIPHER-ALL:+{cipher}:-MAC-ALL:+{mac}"
    ))
}

/// `AES_128_CBC_SHA256` as GnuTLS calls it, without the hash.
fn cipher(name: &str) -> Option<String> {
    let name = name.strip_suffix("_SHA").unwrap_or(name);
    let name = name.strip_suffix("_SHA256").or(name.strip_suffix("_SHA384")).unwrap_or(name);
    Some(name.replace('_', "-"))
}

fn certificates(directory: &Path) {
    let new = |kind: &str, certificate: &str, key: &str| {
        let fixed = ["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey"];
        let curve = ["-pkeyopt", "ec_paramgen_curve:P-256"];
        let curve: &[&str] = if kind == "ec" { &curve } else { &[] };
        let files = ["-keyout", key, "-out", certificate];
        run(directory, "openssl", &[&fixed[..], &[kind], curve, &files].concat());
    };
    new("rsa:2048", "rsa.crt", "rsa.key");
    new("ec", "ec.crt", "ec.key");
    fs::write(directory.join("psk"), format!("user:{PSK}\n")).expect("the test's own directory");
}

fn server(directory: &Path, log: &str, priority: &str) -> Server {
    // This server cannot choose a free port itself.
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = probe.local_addr().expect("bound").port();
    drop(probe);
    let port_text = port.to_string();
    let mut arguments = vec!["-q", "--http", "--httpdata", "big", "--priority", priority];
    arguments.extend(["-p", &port_text, "--pskpasswd", "psk"]);
    arguments.extend(["--x509certfile", "rsa.crt", "--x509keyfile", "rsa.key"]);
    arguments.extend(["--x509certfile", "ec.crt", "--x509keyfile", "ec.key"]);
    let server = Server::new(start(directory, log, "gnutls-serv", arguments), port);
    wait_for(&directory.join(log), |text| text.contains("done").then_some(()));
    server
}

fn session(directory: &Path, server: &Server, priority: &str) -> Result<Session, String> {
    let relay = Relay::start(server.port);
    let key_log = directory.join("keys");
    let _ = fs::remove_file(&key_log);
    let mut client = Command::new("gnutls-cli");
    client.args(["127.0.0.1", "--insecure", "--pskusername", "user", "--pskkey", PSK]);
    client.args(["-p", &relay.port.to_string(), "--priority", priority]);
    let asked = request(client.env("SSLKEYLOGFILE", &key_log));
    let recorded = relay.finish();
    asked?;
    open_session(&recorded, &fs::read_to_string(&key_log).unwrap_or_default())
}

#[test]
fn accepts_gnutls() {
    let (Some(listed), Some(_)) = (listed(), output("openssl", &["version"])) else {
        eprintln!("SKIPPED: gnutls-bin or openssl is not installed; no GnuTLS records were opened");
        return;
    };
    let directory = Directory::new("gnutls");
    let path = directory.path();
    let body = write_body(path);
    certificates(path);
    let tls12 = server(path, "tls12", SERVERS[0]);
    let tls13 = server(path, "tls13", SERVERS[1]);
    let names = openssl::listed().unwrap_or_default();
    let mut tally = Tally::default();
    for suite in listed {
        let Some(priority) = priority(suite) else { continue };
        let server = if suite.version() == TLS13 { &tls13 } else { &tls12 };
        // gnutls-cli 3.7 dies of a segmentation fault when it prints these exchanges.
        let dies = ["DHE_PSK", "PSK_DHE"].iter().any(|exchange| suite.name().contains(exchange));
        let forms: &[bool] = if suite.cipher().is_cbc() { &[true, false] } else { &[false] };
        for &encrypt_then_mac in forms {
            let other_form = suite.cipher().is_cbc() && !encrypt_then_mac;
            let met = if dies {
                let listed = names.iter().find(|listed| listed.number == suite.number());
                let Some(listed) = listed else { continue };
                let cipher = format!("{}:@SECLEVEL=0", listed.name);
                let mut arguments = vec!["-tls1_2", "-psk_identity", "user", "-psk", PSK];
                arguments.extend(["-cipher", &cipher]);
                arguments.extend(other_form.then_some("-no_etm"));
                openssl::session(path, server.port, &arguments)
            } else {
                let form = if other_form { ":%NO_ETM" } else { "" };
                session(path, server, &format!("{priority}{form}"))
            };
            let met = met.and_then(|session| session.expect_form(encrypt_then_mac));
            tally.add(suite.name(), suite.number(), &body, met);
        }
    }
    tally.finish("GnuTLS, TLS 1.2 and 1.3", 100);
}
