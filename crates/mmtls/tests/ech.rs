//! Encrypted Client Hello: the wire shows one random, and the endpoint's secrets have another one. The server is Go's; clients
//! are Go's, rustls, and NSS as Firefox has it, which logs what opens the hello inside. The controls are a client without an
//! agent, and NSS's log without those lines.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding};

use crate::common::{Stage, can_run, mmtls_program, read_eve, sessions, stat};
use crate::keys::{PATTERN, resetting, with_pattern};
use mmtls_endpoint::Sharing;
use mmtls_keyshare::Flow;
use mmtls_keyshare::client::ClientConfig as Channel;
use mmtls_keyshare::policy::ServerNames;
use mmtls_testkit::{
    Background, Capture, MmtlsOptions, MmtlsReport, NginxOptions, address, require_file,
    require_program,
};
use rustls::client::{EchConfig, EchMode};
use rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const GO: &str = r#"
package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Println("ech: failed:", err)
		os.Exit(1)
	}
}

// An ECHConfig of one X25519 key, HKDF-SHA256 and AES-128-GCM (RFC 9849, section 4).
func config(public []byte, name string) []byte {
	body := []byte{7, 0, 0x20}
	body = binary.BigEndian.AppendUint16(body, uint16(len(public)))
	body = append(body, public...)
	body = append(body, 0, 4, 0, 1, 0, 1, 32, byte(len(name)))
	body = append(body, name...)
	body = append(body, 0, 0)
	whole := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(body)))
	return append(whole, body...)
}

func serve(address, certificate, key, file, content string) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	check(err)
	one := config(private.PublicKey().Bytes(), "public.test")
	pair, err := tls.LoadX509KeyPair(certificate, key)
	check(err)
	keys := []tls.EncryptedClientHelloKey{{Config: one, PrivateKey: private.Bytes(), SendAsRetry: true}}
	listener, err := tls.Listen("tcp", address, &tls.Config{
		Certificates: []tls.Certificate{pair}, EncryptedClientHelloKeys: keys, NextProtos: []string{"http/1.1"}})
	check(err)
	check(os.WriteFile(file, append(binary.BigEndian.AppendUint16(nil, uint16(len(one))), one...), 0o600))
	fmt.Println("ech: serving")
	check(http.Serve(listener, http.FileServer(http.Dir(content))))
}

func fetch(address, file, log, paths string) {
	list, err := os.ReadFile(file)
	check(err)
	settings := &tls.Config{InsecureSkipVerify: true, ServerName: "server.test", EncryptedClientHelloConfigList: list}
	if log != "" {
		writer, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
		check(err)
		settings.KeyLogWriter = writer
	}
	for _, path := range strings.Split(paths, ",") {
		connection, err := tls.Dial("tcp", address, settings)
		check(err)
		fmt.Println("ech: accepted", connection.ConnectionState().ECHAccepted)
		_, err = fmt.Fprintf(connection, "GET /%s HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n", path)
		check(err)
		got, err := io.ReadAll(connection)
		check(err)
		fmt.Println("ech: got", len(got), strings.Contains(string(got), os.Getenv("PATTERN")))
		connection.Close()
	}
}

func main() {
	arguments := os.Args[2:]
	if os.Args[1] == "serve" {
		serve(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
	} else {
		fetch(arguments[0], arguments[1], arguments[2], arguments[3])
	}
}
"#;

struct Ech {
    stage: Stage,
    program: PathBuf,
    list: PathBuf,
    _server: Background,
}

const ADDRESS: &str = "10.77.0.3:8443";
/// Where its NSS is, which logs what opens the hello inside (3.115 and newer); Debian's own does not.
const FIREFOX: &str = "/usr/lib/firefox-esr";

impl Ech {
    fn start() -> Self {
        let stage = Stage::with(NginxOptions::default());
        let place = stage.bed.directory().join("go");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("main.go"), GO).unwrap();
        let (program, list) = (place.join("ech"), place.join("list"));
        let mut build = Command::new("go");
        build.current_dir(&place).args(["build", "-o"]).arg(&program).arg("main.go");
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        assert!(ADDRESS.starts_with(address::SERVER_V4));
        let mut server = stage.bed.server.command(&program);
        let identity = &stage.bed.pki().server;
        server.args(["serve", ADDRESS]).arg(&identity.certificate).arg(&identity.key);
        server.arg(&list).arg(stage.nginx.root());
        let mut server = stage.bed.background("ech-server", server).unwrap();
        server.wait_for_line("ech: serving", Duration::from_secs(10)).unwrap();
        Self { stage, program, list, _server: server }
    }

    /// NSS fetches a file, and logs; its lines, or what is wrong.
    fn fetch_by_nss(&self, key_log: &Path, file: &str) -> String {
        let directory = self.stage.bed.directory();
        let question =
            format!("GET /{file} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n");
        std::fs::write(directory.join("question"), question).unwrap();
        let (host, port) = ADDRESS.split_once(':').unwrap();
        let mut client = self.stage.bed.client.command("tstclnt");
        client.env("LD_LIBRARY_PATH", FIREFOX).env("SSLKEYLOGFILE", key_log);
        client.args([
            "-h",
            host,
            "-p",
            port,
            "-a",
            "server.test",
            "-V",
            "tls1.3:tls1.3",
            "-D",
            "-o",
        ]);
        client.arg("-A").arg(directory.join("question")).arg("-N");
        client.arg(Base64::encode_string(&std::fs::read(&self.list).unwrap()));
        let done = self.stage.run("nss-client", client);
        format!("{}{}", String::from_utf8_lossy(&done.stdout), done.stderr)
    }

    /// What the client says of these files, one connection each.
    fn fetch(&self, key_log: Option<&PathBuf>, files: &str) -> String {
        let mut client = self.stage.bed.client.command(&self.program);
        client.env("PATTERN", String::from_utf8_lossy(PATTERN).as_ref());
        client.args(["fetch", ADDRESS]).arg(&self.list);
        client.arg(key_log.map_or("", |it| it.to_str().unwrap())).arg(files);
        let done = self.stage.run("ech-client", client);
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

/// Not a test of its own: the other one starts this program again, on the client's host, as a rustls client that knows of
/// neither the server's random nor (the first time) the connection when it shares its keys.
#[test]
#[ignore = "run by the other test"]
fn the_rustls_client() {
    let Ok(middlebox) = std::env::var("ECH_MIDDLEBOX") else {
        return;
    };
    let text = |name| std::env::var(name).unwrap();
    let channel = Channel::new(vec![middlebox.parse().unwrap()], text("ECH_CA").into());
    let [sharing, private] = ["", "server.test"].map(|exempt| {
        let sharing = Sharing::start(channel.clone(), ServerNames::parse(exempt).unwrap()).unwrap();
        assert!(sharing.wait_connected(Duration::from_secs(20)));
        sharing
    });
    let list = std::fs::read(text("ECH_LIST")).unwrap();
    let ech = EchConfig::new(list.into(), ALL_SUPPORTED_SUITES).unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(text("ECH_CA")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(mmtls_endpoint::provider()))
        .with_ech(EchMode::Enable(ech))
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    for (sharing, knows_flow) in
        [(&sharing, false), (&sharing, true), (&sharing, false), (&private, true)]
    {
        let name = ServerName::try_from("server.test").unwrap();
        let socket = TcpStream::connect(ADDRESS).unwrap();
        let flow = Flow::new(socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let config = match flow.filter(|_| knows_flow) {
            Some(flow) => sharing.client_config_of(&config, &name, flow),
            None => sharing.client_config(&config, &name),
        };
        let tls = ClientConnection::new(config, name).unwrap();
        let mut tls = StreamOwned::new(tls, socket);
        write!(tls, "GET /plain HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut got = Vec::new();
        tls.read_to_end(&mut got).unwrap();
        println!("ech: rustls {:?} {}", tls.conn.ech_status(), got.len() > 40_000);
    }
}

#[test]
fn accepts_rustls_sessions_that_the_endpoint_knows_by_another_random() {
    if !can_run(&["nginx"]) || !require_program("go") {
        return;
    }
    let ech = Ech::start();
    ech.stage.serve("plain", &[7; 40_000]);
    let mmtls = ech.stage.mmtls(&resetting(&ech.stage));
    let mut client = ech.stage.bed.client.command(std::env::current_exe().unwrap());
    client.args(["--exact", "ech::the_rustls_client", "--ignored", "--nocapture"]);
    client.env("ECH_MIDDLEBOX", crate::common::Family::V4.keys());
    client.env("ECH_CA", &ech.stage.bed.pki().ca).env("ECH_LIST", &ech.list);
    let done = ech.stage.run("rustls", client);
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(said.matches("ech: rustls Accepted true").count(), 4, "{said}{}", done.stderr);
    let report = mmtls.stop().unwrap();
    // The last one is private, which only the connection tells.
    let all = ["decrypted", "decrypted", "decrypted", "exempt"];
    assert_eq!(outcomes(&report), all, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "records_failed"), 0);
}

fn outcomes(report: &MmtlsReport) -> Vec<String> {
    sessions(report).iter().map(|it| it["outcome"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn accepts_sessions_that_the_endpoint_knows_by_another_random() {
    if !can_run(&["nginx"]) || !require_program("go") {
        return;
    }
    let ech = Ech::start();
    ech.stage.serve("plain", &[7; 40_000]);
    ech.stage.serve("marked", &with_pattern(200_000, 150_000));
    let mmtls = ech.stage.mmtls(&resetting(&ech.stage));
    let directory = ech.stage.bed.directory().join("agent");
    let agent = mmtls.agent(&ech.stage.bed, false, &directory, None).unwrap();
    let key_log = directory.join("keylog");
    // More than are tried for one request.
    const COUNT: usize = 12;
    let files = ["plain"; COUNT - 1].join(",") + ",marked";
    let said = ech.fetch(Some(&key_log), &files);
    assert_eq!(said.matches("ech: accepted true").count(), COUNT, "{said}");
    assert_eq!(said.matches("ech: got").count(), COUNT - 1, "the marked one is reset: {said}");
    assert!(!said.contains("true\nech: got true"), "{said}");
    drop(agent);
    let report = mmtls.stop().unwrap();
    assert_eq!(outcomes(&report), ["decrypted"; COUNT], "{:#?}", report.summary);
    assert_eq!(report.count("alerts"), 1, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "records_failed"), 0);
    for session in sessions(&report) {
        assert_eq!(session["sni"], "public.test", "{session}");
    }

    // The control: nobody shares.
    let mmtls = ech.stage.mmtls(&resetting(&ech.stage));
    let said = ech.fetch(None, "plain");
    assert!(!said.contains("ech: got"), "{said}");
    assert_eq!(outcomes(&mmtls.stop().unwrap()), ["missing_key"]);
}

fn can_run_nss() -> bool {
    can_run(&["nginx", "tcpdump"])
        && require_program("go")
        && require_program("tstclnt")
        && require_file(&format!("{FIREFOX}/libssl3.so"))
}

/// The monitor follows the log, and `mmtls read` has a copy of it, whole or changed.
#[test]
fn accepts_sessions_of_nss_by_the_lines_that_open_the_hello() {
    if !can_run_nss() {
        return;
    }
    const COUNT: usize = 3;
    let ech = Ech::start();
    ech.stage.serve("plain", &[b'a'; 40_000]);
    let directory = ech.stage.bed.directory();
    let (key_log, path) = (directory.join("keys"), directory.join("ech.pcap"));
    let capture =
        Capture::start(&ech.stage.bed, &ech.stage.bed.middlebox, "right", &path, "tcp port 8443");
    let capture = capture.unwrap();
    let options = MmtlsOptions { keylog: Some(key_log.clone()), ..resetting(&ech.stage) };
    let mmtls = ech.stage.mmtls(&options);
    for _ in 0..COUNT {
        let said = ech.fetch_by_nss(&key_log, "plain");
        assert!(said.contains(&"a".repeat(40_000)), "{said}");
    }
    let report = mmtls.stop().unwrap();
    assert_eq!(outcomes(&report), ["decrypted"; COUNT], "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "records_failed"), 0);
    let capture = capture.stop().unwrap();
    let lines = std::fs::read_to_string(&key_log).unwrap();
    let without = |label: &str| {
        let others = lines.lines().filter(|line| !line.starts_with(label));
        others.map(|line| format!("{line}\n")).collect::<String>()
    };
    // Of another session, whose configuration is the same.
    let mut secrets = lines.lines().filter(|line| line.starts_with("ECH_SECRET"));
    let secrets: Vec<_> = secrets.by_ref().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(secrets.len(), COUNT, "{lines}");
    let exchanged = lines.replace(secrets[0], secrets[1]);
    let (all, none) = (["decrypted"; COUNT], ["missing_key"; COUNT]);
    let one = [&all[1..], &none[..1]].concat();
    for (lines, expected) in [
        (lines.clone(), &all[..]),
        (without("ECH_"), &none),
        (without("ECH_SECRET"), &none),
        (without("ECH_CONFIG"), &none),
        (lines.replace("7075626c69632e74657374", "7075626c69632e74657375"), &none),
        (exchanged, &one),
    ] {
        let (copy, log) = (directory.join("copy"), directory.join("log"));
        std::fs::write(&copy, lines).unwrap();
        let mut read = Command::new(mmtls_program());
        read.arg("read").arg("-r").arg(&capture).arg("-l").arg(&log).arg("--keylog").arg(&copy);
        let done = read.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let found = mmtls_testkit::middlebox::sessions(&read_eve(&log));
        let mut found: Vec<_> = found.iter().map(|it| it["outcome"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        std::fs::remove_file(log.join("eve.json")).unwrap();
    }
}

/// What the agent answers is of the session itself: a direction that is kept private is told of, which is never a guess. The
/// control is Go's log.
#[test]
fn accepts_sessions_of_nss_that_an_agent_shares() {
    if !can_run_nss() {
        return;
    }
    const COUNT: usize = 3;
    let ech = Ech::start();
    ech.stage.serve("plain", &[b'a'; 40_000]);
    for refused in [&[][..], &["--refuse", "toserver"]] {
        let mmtls = ech.stage.mmtls(&resetting(&ech.stage));
        let directory = ech.stage.bed.directory().join(format!("agent{}", refused.len()));
        let mut agent = ech.stage.bed.client.command(mmtls_program());
        agent.args(["agent", "--middlebox", &crate::common::Family::V4.keys()]).args(refused);
        agent.arg("--ca").arg(&ech.stage.bed.pki().ca).arg("--directory").arg(&directory);
        let mut agent = ech.stage.bed.background("agent", agent).unwrap();
        agent.wait_for_line("connected to", Duration::from_secs(10)).unwrap();
        let key_log = directory.join("keylog");
        for _ in 0..COUNT {
            let said = ech.fetch_by_nss(&key_log, "plain");
            assert!(said.contains(&"a".repeat(40_000)), "{said}");
        }
        if !refused.is_empty() {
            let said = ech.fetch(Some(&key_log), "plain");
            assert!(!said.contains("ech: got"), "{said}");
        }
        drop(agent);
        let report = mmtls.stop().unwrap();
        let outcomes = outcomes(&report);
        let decrypted = outcomes.iter().filter(|it| *it == "decrypted").count();
        let others = usize::from(!refused.is_empty());
        assert_eq!((decrypted, outcomes.len()), (COUNT, COUNT + others), "{:#?}", report.summary);
        assert_eq!(stat(&report, "engine", "records_failed"), 0);
        let count = if refused.is_empty() { 0 } else { COUNT as u64 };
        assert_eq!(stat(&report, "engine", "directions_refused"), count);
    }
}
