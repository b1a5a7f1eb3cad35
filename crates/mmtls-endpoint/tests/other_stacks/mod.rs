//! Fallback with TLS stacks as they come: OpenSSL, GnuTLS and Go on either side of a rustls
//! program that has the suites. They must get an ordinary suite, and no retry.
//!
//! A stack that is not installed is a loud skip.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{client_config, name, pki, server_config};
use mmtls_endpoint::{has_private_tag, provider};
use mmtls_testkit::{Pki, require_program};
use rustls::{ClientConnection, HandshakeKind, ServerConnection, Stream};

const PATIENCE: Duration = Duration::from_secs(30);

/// A child that does not outlive its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file for what a program prints: a pipe could fill up.
struct Log(PathBuf);

impl Log {
    fn new(pki: &Pki, name: &str) -> Self {
        Self(pki.directory().join(name))
    }

    fn start(&self, command: &mut Command) -> Program {
        let log = std::fs::File::create(&self.0).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Program(command.spawn().unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.0).unwrap_or_default()).into_owned()
    }

    fn wait_for<T>(&self, find: impl Fn(&str) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find(&self.text()) {
                return found;
            }
            assert!(Instant::now() < end, "{} says {:?}", self.0.display(), self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn connect(port: u16) -> TcpStream {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Speaks to their server, with our suites and without: `ping` must come back, turned round or
/// not, over the same suite after the same handshake.
fn check_server(pki: &Pki, port: u16, answer: &str) {
    let met = [provider(), crate::common::plain()].map(|provider| {
        let config = Arc::new(client_config(pki, provider));
        let mut connection = ClientConnection::new(config, name()).unwrap();
        let mut stream = connect(port);
        let mut tls = Stream::new(&mut connection, &mut stream);
        tls.write_all(b"ping\n").unwrap();
        let mut got = vec![0; answer.len()];
        tls.read_exact(&mut got).unwrap();
        assert_eq!(got, answer.as_bytes());
        connection.send_close_notify();
        let _ = connection.complete_io(&mut stream);
        (connection.negotiated_cipher_suite().unwrap(), connection.handshake_kind())
    });
    assert!(!has_private_tag(met[0].0));
    assert_eq!(met[0], met[1]);
}

/// Lets their client speak to ours: it says `ping` and prints what comes.
fn check_client(pki: &Pki, log: &Log, start: impl FnOnce(u16, &mut dyn FnMut(&mut Command))) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::new(server_config(pki, provider()));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = ServerConnection::new(config).unwrap();
        let mut tls = Stream::new(&mut connection, &mut stream);
        let mut got = [0; 5];
        tls.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping\n");
        tls.write_all(b"pong from rustls\n").unwrap();
        connection.send_close_notify();
        let _ = connection.complete_io(&mut stream);
        // The client ends first, so that its last words are not answered with a reset.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        (connection.negotiated_cipher_suite().unwrap(), connection.handshake_kind())
    });
    let mut program = None;
    start(port, &mut |command| {
        command.stdin(Stdio::piped());
        let mut started = log.start(command);
        if let Some(stdin) = &mut started.0.stdin {
            stdin.write_all(b"ping\n").unwrap();
        }
        program = Some(started);
    });
    log.wait_for(|text| text.contains("pong from rustls").then_some(()));
    drop(program);
    let (suite, kind) = server.join().unwrap();
    assert!(!has_private_tag(suite));
    assert_eq!(kind, Some(HandshakeKind::Full));
}

fn certificate_arguments<'a>(pki: &'a Pki, flags: [&'a str; 2]) -> [&'a Path; 4] {
    [Path::new(flags[0]), &pki.server.certificate, Path::new(flags[1]), &pki.server.key]
}

#[test]
fn accepts_openssl_as_it_comes() {
    let Some(pki) = pki() else {
        return;
    };
    let log = Log::new(&pki, "s_server.log");
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-rev"]);
    command.args(certificate_arguments(&pki, ["-cert", "-key"])).stdin(Stdio::null());
    let server = log.start(&mut command);
    let port = log.wait_for(|text| {
        let (_, rest) = text.split_once("ACCEPT 127.0.0.1:")?;
        rest.lines().next()?.trim().parse().ok()
    });
    check_server(&pki, port, "gnip\n");
    drop(server);
    check_client(&pki, &Log::new(&pki, "s_client.log"), |port, run| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-servername", "server.test"]);
        command.arg("-CAfile").arg(&pki.ca).arg("-connect").arg(format!("127.0.0.1:{port}"));
        run(&mut command);
    });
}

#[test]
fn accepts_gnutls_as_it_comes() {
    let Some(pki) = pki() else {
        return;
    };
    if !require_program("gnutls-serv") || !require_program("gnutls-cli") {
        return;
    }
    // This server cannot choose a free port itself.
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let log = Log::new(&pki, "gnutls-serv.log");
    let mut command = Command::new("gnutls-serv");
    command.args(["--echo", "-p", &port.to_string()]).stdin(Stdio::null());
    command.args(certificate_arguments(&pki, ["--x509certfile", "--x509keyfile"]));
    let server = log.start(&mut command);
    check_server(&pki, port, "ping\n");
    drop(server);
    check_client(&pki, &Log::new(&pki, "gnutls-cli.log"), |port, run| {
        let mut command = Command::new("gnutls-cli");
        command.arg("--x509cafile").arg(&pki.ca).args(["-p", &port.to_string()]);
        command.args(["--sni-hostname", "server.test", "--verify-hostname", "server.test"]);
        command.arg("127.0.0.1");
        run(&mut command);
    });
}

/// A line back and forth, with Go's own TLS.
const GO: &str = r#"package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "server" {
		pair, err := tls.LoadX509KeyPair(os.Args[2], os.Args[3])
		must(err)
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
		must(err)
		fmt.Println("listening", listener.Addr())
		for {
			connection, err := listener.Accept()
			must(err)
			io.Copy(connection, connection)
			connection.Close()
		}
	}
	pem, err := os.ReadFile(os.Args[2])
	must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: roots, ServerName: "server.test"}
	connection, err := tls.Dial("tcp", os.Args[3], config)
	must(err)
	connection.Write([]byte("ping\n"))
	io.Copy(os.Stdout, connection)
	connection.Close()
}
"#;

#[test]
fn accepts_go_as_it_comes() {
    let Some(pki) = pki() else {
        return;
    };
    if !require_program("go") {
        return;
    }
    let (source, program) = (pki.directory().join("line.go"), pki.directory().join("line"));
    std::fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source);
    let built = build.current_dir(pki.directory()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let log = Log::new(&pki, "go-server.log");
    let mut command = Command::new(&program);
    command.arg("server").arg(&pki.server.certificate).arg(&pki.server.key);
    let server = log.start(&mut command);
    let port = log
        .wait_for(|text| text.split_once("listening 127.0.0.1:")?.1.lines().next()?.parse().ok());
    check_server(&pki, port, "ping\n");
    drop(server);
    check_client(&pki, &Log::new(&pki, "go-client.log"), |port, run| {
        let mut command = Command::new(&program);
        command.arg("client").arg(&pki.ca).arg(format!("127.0.0.1:{port}"));
        run(&mut command);
    });
}
