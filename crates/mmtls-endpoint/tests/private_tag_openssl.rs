//! rustls with OpenSSL that has the private tag: every suite, either side as server, through
//! KeyUpdates and a lot of data. More of their features are in `xtask interop --private-tag`.
//!
//! Without `make openssl` these are loud skips.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::DerefMut;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{client_config, name, only, pki, server_config};
use mmtls_endpoint::{PRIVATE_TAG_SUITES, has_private_tag, provider};
use mmtls_record::suite;
use mmtls_testkit::files::pattern_bytes;
use mmtls_testkit::{Pki, PrivateTagOpenssl};
use rustls::{AlertDescription, ClientConnection, ConnectionCommon, ServerConnection, SideData};

const PATIENCE: Duration = Duration::from_secs(30);

/// What is sent at a time; between two pieces rustls updates its keys now and then.
const PIECE: usize = 1 << 20;

/// A child that does not outlive its test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `s_client` or `s_server` between its standard streams and the wire.
fn start(command: &mut Command, suite: Option<u16>) -> Program {
    if let Some(number) = suite {
        command.args(["-ciphersuites", suite::name(number).unwrap()]);
    }
    command.arg("-quiet").stdin(Stdio::piped()).stdout(Stdio::piped());
    Program(command.spawn().unwrap())
}

/// A piece that differs from the others.
fn piece(number: usize) -> Vec<u8> {
    pattern_bytes(PIECE, number as u64)
}

/// Sends so many pieces up and as many down, which must arrive, while rustls updates its keys.
fn exchange<C, S>(connection: &mut C, stream: &mut TcpStream, program: &mut Program, pieces: usize)
where
    C: DerefMut<Target = ConnectionCommon<S>>,
    S: SideData,
{
    let mut printed = program.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; PIECE];
        for number in 0..pieces {
            printed.read_exact(&mut got).unwrap();
            assert!(got == piece(number), "piece {number} upwards");
        }
        printed
    });
    for number in 0..pieces {
        rustls::Stream::new(connection, stream).write_all(&piece(number)).unwrap();
        // Not more: rustls refuses a peer that answers too many and says nothing else.
        if number % pieces.div_ceil(4) == 0 {
            connection.refresh_traffic_keys().unwrap();
        }
    }
    while connection.wants_write() {
        connection.write_tls(stream).unwrap();
    }
    let mut stdin = program.0.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for number in 0..pieces {
            stdin.write_all(&piece(pieces + number)).unwrap();
        }
        stdin
    });
    let mut got = vec![0; PIECE];
    for number in 0..pieces {
        rustls::Stream::new(connection, stream).read_exact(&mut got).unwrap();
        assert!(got == piece(pieces + number), "piece {number} downwards");
    }
    // Their ends keep the program alive until everything has been compared.
    drop((reader.join().unwrap(), writer.join().unwrap()));
}

fn connect(port: u16) -> TcpStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn handshake<C, S>(connection: &mut C, stream: &mut TcpStream) -> u16
where
    C: DerefMut<Target = ConnectionCommon<S>>,
    S: SideData,
{
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(stream).unwrap();
    }
    let suite = connection.negotiated_cipher_suite().unwrap();
    assert!(has_private_tag(suite));
    suite.suite().into()
}

/// rustls as client; OpenSSL is left one suite, or its default.
fn with_server(pki: &Pki, openssl: &PrivateTagOpenssl, suite: Option<u16>, pieces: usize) -> u16 {
    // s_server says which port it took only when it is not quiet.
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let mut command = openssl.program();
    command.args(["s_server", "-accept", &format!("127.0.0.1:{port}")]);
    command.arg("-cert").arg(&pki.server.certificate).arg("-key").arg(&pki.server.key);
    let mut program = start(&mut command, suite);
    let config = Arc::new(client_config(pki, provider()));
    let mut connection = ClientConnection::new(config, name()).unwrap();
    let mut stream = connect(port);
    let suite = handshake(&mut connection, &mut stream);
    exchange(&mut connection, &mut stream, &mut program, pieces);
    suite
}

/// rustls as server.
fn with_client(pki: &Pki, openssl: &PrivateTagOpenssl, suite: Option<u16>, pieces: usize) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut command = openssl.program();
    command.args(["s_client", "-nocommands", "-verify_return_error", "-servername", "server.test"]);
    command.arg("-CAfile").arg(&pki.ca).args(["-connect", &address.to_string()]);
    let mut program = start(&mut command, suite);
    let (mut stream, _) = listener.accept().unwrap();
    let config = Arc::new(server_config(pki, provider()));
    let mut connection = ServerConnection::new(config).unwrap();
    let suite = handshake(&mut connection, &mut stream);
    exchange(&mut connection, &mut stream, &mut program, pieces);
    suite
}

/// OpenSSL's servers get a port that was free a moment ago: no other test may take it meanwhile.
static PORTS: Mutex<()> = Mutex::new(());

#[test]
fn accepts_openssl_with_a_private_tag_on_every_suite_both_ways() {
    let _alone = PORTS.lock();
    let (Some(openssl), Some(pki)) = (PrivateTagOpenssl::require(), pki()) else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        let number = Some(suite.suite().into());
        assert_eq!(Some(with_server(&pki, &openssl, number, 8)), number);
        assert_eq!(Some(with_client(&pki, &openssl, number, 8)), number);
    }
    // Left to themselves they take one, too.
    assert_eq!(with_server(&pki, &openssl, None, 1), 0xff32);
    assert_eq!(with_client(&pki, &openssl, None, 1), 0xff32);
}

/// What `s_client` says of a connection that offers a ticket and early data, on some suite; the
/// ticket that it gets goes to `ticket`.
fn resume(
    pki: &Pki,
    openssl: &PrivateTagOpenssl,
    (server, port): (&mut Program, u16),
    suite: u16,
    ticket: &Path,
    early: Option<&Path>,
) -> String {
    let mut command = openssl.program();
    command.args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-servername"]);
    command.args(["server.test", "-ciphersuites", suite::name(suite).unwrap()]);
    command.arg("-CAfile").arg(&pki.ca);
    match early {
        Some(early) => command.arg("-sess_in").arg(ticket).arg("-early_data").arg(early),
        None => command.arg("-sess_out").arg(ticket),
    };
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Once this is here, so are the tickets, which were sent before.
    server.0.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
    let stdin = child.stdin.take();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.by_ref() {
        let line = line.unwrap();
        said += &format!("{line}\n");
        if line == "ready" {
            break;
        }
    }
    drop(stdin);
    let _ = child.wait();
    for line in lines {
        said += &format!("{}\n", line.unwrap());
    }
    said
}

/// OpenSSL's server, which takes early data, and its port.
fn early_data_server(openssl: &PrivateTagOpenssl, pki: &Pki) -> (u16, Program) {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let mut command = openssl.program();
    command.args(["s_server", "-accept", &format!("127.0.0.1:{port}"), "-early_data", "-quiet"]);
    command.arg("-cert").arg(&pki.server.certificate).arg("-key").arg(&pki.server.key);
    let server = Program(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    (port, server)
}

/// Any ticket of the same hash resumes; early data only in the very same suite.
#[test]
fn accepts_resumption_by_hash_and_early_data_by_suite_with_openssl_private_tag() {
    let _alone = PORTS.lock();
    let (Some(openssl), Some(pki)) = (PrivateTagOpenssl::require(), pki()) else {
        return;
    };
    let (port, mut server) = early_data_server(&openssl, &pki);
    drop(connect(port));
    let file = |name: &str| pki.directory().join(format!("resume-{name}"));
    std::fs::write(file("early"), b"early\n").unwrap();
    for (first, second, resumed, accepted) in [
        (0xff32, 0xff32, true, true),
        (0x1302, 0x1302, true, true),
        (0x1302, 0xff32, true, false),
        (0xff32, 0x1302, true, false),
        (0xff31, 0xff33, true, false),
        (0x1301, 0xff32, false, false),
    ] {
        let ticket = file(&format!("{first:04x}-{second:04x}"));
        let said = resume(&pki, &openssl, (&mut server, port), first, &ticket, None);
        assert!(said.contains(&format!("Cipher is {}", suite::name(first).unwrap())), "{said}");
        let early = file("early");
        let said = resume(&pki, &openssl, (&mut server, port), second, &ticket, Some(&early));
        let kind = if resumed { "Reused" } else { "New" };
        let name = suite::name(second).unwrap();
        assert!(said.contains(&format!("{kind}, TLSv1.3, Cipher is {name}")), "{said}");
        let verdict = if accepted { "accepted" } else { "rejected" };
        assert!(said.contains(&format!("Early data was {verdict}")), "{first:04x}: {said}");
    }
}

/// An alert that nobody has protected would end early data where whoever inserts it likes.
#[test]
fn refuses_an_open_alert_behind_early_data_with_openssl_private_tag() {
    let _alone = PORTS.lock();
    let (Some(openssl), Some(pki)) = (PrivateTagOpenssl::require(), pki()) else {
        return;
    };
    let (port, mut server) = early_data_server(&openssl, &pki);
    for suite in PRIVATE_TAG_SUITES {
        let mut config = client_config(&pki, only(suite));
        config.enable_early_data = true;
        let config = Arc::new(config);
        let mut first = ClientConnection::new(Arc::clone(&config), name()).unwrap();
        let mut stream = connect(port);
        handshake(&mut first, &mut stream);
        // Once this is here, so are the tickets.
        server.0.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
        rustls::Stream::new(&mut first, &mut stream).read_exact(&mut [0; 6]).unwrap();
        // The server forgets sessions that end otherwise.
        first.send_close_notify();
        first.write_tls(&mut stream).unwrap();
        drop(stream);
        let mut second = ClientConnection::new(config, name()).unwrap();
        let mut stream = connect(port);
        second.early_data().unwrap().write_all(b"early").unwrap();
        while second.wants_write() {
            second.write_tls(&mut stream).unwrap();
        }
        // close_notify.
        stream.write_all(&[21, 3, 3, 0, 2, 1, 0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answer = loop {
            match second.read_tls(&mut stream) {
                Ok(0) => break Ok(second.is_early_data_accepted()),
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
            if let Err(error) = second.process_new_packets() {
                break Err(error);
            }
        };
        let refused = rustls::Error::AlertReceived(AlertDescription::UnexpectedMessage);
        assert_eq!(answer, Err(refused), "{:?}", suite.suite());
        assert!(second.is_early_data_accepted());
    }
}

#[test]
#[ignore = "moves 8 GB; part of `make private-tag`"]
fn accepts_1_gb_each_way_with_openssl() {
    let _alone = PORTS.lock();
    let (Some(openssl), Some(pki)) = (PrivateTagOpenssl::require(), pki()) else {
        return;
    };
    for suite in [0xff32, 0xff33] {
        let start = Instant::now();
        with_server(&pki, &openssl, Some(suite), 1024);
        with_client(&pki, &openssl, Some(suite), 1024);
        println!("{suite:04x}: 1 GB each way, either side as server: {:?}", start.elapsed());
    }
}
