//! OpenSSL on both sides.

use std::fs;
use std::path::Path;
use std::process::Command;

use mmtls_record::suite::{self, TLS12, TLS13};

use super::command::{Directory, Server, output, request, run, start, wait_for};
use super::relay::Relay;
use super::transcript::{Session, open_session};
use super::{Tally, write_body};

const PSK: &str = "000102030405060708090a0b0c0d0e0f";

/// A suite as OpenSSL lists it.
pub struct Listed {
    pub number: u16,
    standard_name: String,
    pub name: String,
}

/// Every suite that OpenSSL can speak in TLS 1.2.
pub fn listed() -> Option<Vec<Listed>> {
    let all = "ALL:COMPLEMENTOFALL:@SECLEVEL=0";
    let text = output("openssl", &["ciphers", "-s", "-V", "-stdname", "-tls1_2", "-psk", all])?;
    let read = |line: &str| {
        let (number, names) = line.trim().split_once(" - ")?;
        let (standard_name, rest) = names.split_once(" - ")?;
        let digits = number.replace("0x", "").replace(',', "");
        Some(Listed {
            number: u16::from_str_radix(&digits, 16).ok()?,
            standard_name: standard_name.trim().to_owned(),
            name: rest.split_whitespace().next()?.to_owned(),
        })
    };
    Some(text.lines().filter_map(read).collect())
}

fn certificates(directory: &Path) {
    let new = |key: &[&str], name: &str| {
        let (key_file, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let mut arguments = vec!["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
        arguments.extend(key);
        arguments.extend(["-keyout", &key_file, "-out", &certificate]);
        run(directory, "openssl", &arguments);
    };
    new(&["-newkey", "rsa:2048"], "rsa");
    new(&["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "ec");
    run(directory, "openssl", &["dsaparam", "-genkey", "-noout", "-out", "dsa.pem", "1024"]);
    new(&["-key", "dsa.pem", "-sha256"], "dsa");
}

fn server(directory: &Path, name: &str, arguments: &[&str]) -> Server {
    let log = format!("{name}.log");
    let fixed = ["s_server", "-accept", "127.0.0.1:0", "-WWW"];
    let child = start(directory, &log, "openssl", fixed.iter().chain(arguments));
    let port = wait_for(&directory.join(&log), |text| {
        let (_, rest) = text.split_once("ACCEPT 127.0.0.1:")?;
        rest.lines().next()?.trim().parse().ok()
    });
    Server::new(child, port)
}

pub fn session(directory: &Path, port: u16, arguments: &[&str]) -> Result<Session, String> {
    let relay = Relay::start(port);
    let key_log = directory.join("keys");
    let _ = fs::remove_file(&key_log);
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-ign_eof", "-connect"]);
    client.arg(format!("127.0.0.1:{}", relay.port)).arg("-keylogfile").arg(&key_log);
    let asked = request(client.args(arguments));
    let recorded = relay.finish();
    asked?;
    open_session(&recorded, &fs::read_to_string(&key_log).unwrap_or_default())
}

#[test]
fn accepts_openssl_tls12() {
    let Some(listed) = listed() else {
        eprintln!("SKIPPED: openssl is not installed; its TLS 1.2 records were not opened");
        return;
    };
    let directory = Directory::new("openssl12");
    let path = directory.path();
    let body = write_body(path);
    certificates(path);
    let common = ["-tls1_2", "-cipher", "ALL:COMPLEMENTOFALL:@SECLEVEL=0", "-psk", PSK];
    let usual = ["-cert", "rsa.crt", "-key", "rsa.key", "-dcert", "ec.crt", "-dkey", "ec.key"];
    let usual = server(path, "usual", &[&common[..], &usual].concat());
    let dsa = ["-cert", "dsa.crt", "-key", "dsa.pem"];
    let dsa = server(path, "dsa", &[&common[..], &dsa].concat());

    let mut tally = Tally::default();
    for listed in &listed {
        let Ok(found) = suite::find(TLS12, listed.number) else { continue };
        let cipher = format!("{}:@SECLEVEL=0", listed.name);
        let port = if listed.name.contains("DSS") { dsa.port } else { usual.port };
        let arguments = ["-tls1_2", "-cipher", &cipher, "-psk", PSK];
        let met = session(path, port, &arguments)
            .and_then(|session| session.expect_form(found.cipher().is_cbc()));
        tally.add(&listed.name, listed.number, &body, met);
        if found.cipher().is_cbc() {
            let met = session(path, port, &[&arguments[..], &["-no_etm"]].concat())
                .and_then(|session| session.expect_form(false));
            tally.add(&format!("{} -no_etm", listed.name), listed.number, &body, met);
        }
    }
    tally.finish("OpenSSL, TLS 1.2", 60);
}

#[test]
fn accepts_openssl_tls13() {
    if output("openssl", &["version"]).is_none() {
        eprintln!("SKIPPED: openssl is not installed; its TLS 1.3 records were not opened");
        return;
    }
    let directory = Directory::new("openssl13");
    let path = directory.path();
    let body = write_body(path);
    certificates(path);
    let ours = |suite: &&suite::Suite| suite.has_private_tag();
    let all = suite::all().filter(|suite| suite.version() == TLS13 && !ours(suite));
    let all: Vec<_> = all.collect();
    let names: Vec<_> = all.iter().map(|suite| suite.name()).collect();
    let names = names.join(":");
    let common = ["-tls1_3", "-ciphersuites", &names, "-cert", "rsa.crt", "-key", "rsa.key"];
    let mut tally = Tally::default();
    for padding in ["0", "1000"] {
        let arguments = [&common[..], &["-record_padding", padding]].concat();
        let server = server(path, &format!("padding{padding}"), &arguments);
        for suite in &all {
            let met = session(path, server.port, &["-tls1_3", "-ciphersuites", suite.name()]);
            tally.add(suite.name(), suite.number(), &body, met);
        }
    }
    tally.finish("OpenSSL, TLS 1.3", 10);
}

/// What OpenSSL calls the suites, and that none of its AES and ChaCha20 suites is missing.
#[test]
fn accepts_every_suite_that_openssl_lists_with_these_ciphers() {
    let Some(listed) = listed() else {
        eprintln!("SKIPPED: openssl is not installed; suite names were not compared");
        return;
    };
    for listed in listed {
        match suite::name(listed.number) {
            Some(name) => assert_eq!(name, listed.standard_name),
            None => {
                let name = &listed.standard_name;
                assert!(!name.contains("_AES_") && !name.contains("CHACHA20"), "{name}");
            }
        }
    }
}
