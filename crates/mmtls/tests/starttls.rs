//! TLS behind other protocols, with real clients: `openssl s_client -starttls` and curl through a
//! proxy. The server speaks just enough of each protocol to be left for TLS.

use std::process::Command;
use std::time::Duration;

use crate::common::{Stage, assert_all_decrypted, can_run, options, patient, sessions, stat};
use mmtls_testkit::{Background, Testbed, address};

/// One port per protocol, from this one on.
const FIRST_PORT: u16 = 2500;

/// What `eve.json` calls it, and what `openssl s_client` does; the last one is a proxy's.
const PROTOCOLS: [(&str, &str); 9] = [
    ("smtp", "smtp"),
    ("imap", "imap"),
    ("pop3", "pop3"),
    ("ftp", "ftp"),
    ("ldap", "ldap"),
    ("postgresql", "postgres"),
    ("mysql", "mysql"),
    ("xmpp", "xmpp"),
    ("http_connect", ""),
];

/// Arguments: first port, certificate, key. Waits for each message byte by byte, so that nothing
/// of the ClientHello is taken for it.
const SERVER: &str = r#"
import socket, ssl, sys, threading
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(sys.argv[2], sys.argv[3])
def until(peer, end):
    got = b''
    while not (end(got) if callable(end) else got.endswith(end)):
        byte = peer.recv(1)
        if not byte: raise EOFError(got)
        got += byte
line = b'\r\n'
greeting = bytes([10]) + b'8.0\0' + b'\1\0\0\0' + b'saltsalt\0' + b'\xff\xff' + b'\x2d' + b'\2\0' + b'\xff\xdf' + b'\x15' + bytes(10) + b'saltsaltsalt\0' + b'mysql_native_password\0'
stream = b"<?xml version='1.0'?><stream:stream from='server.test' id='1' xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' version='1.0'><stream:features><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls></stream:features>"
# What is said, and what is waited for.
dialogs = [
    [b'220 server.test ESMTP\r\n', line, b'250-server.test\r\n250 STARTTLS\r\n', line, b'220 go\r\n'],
    [b'* OK ready\r\n', line, b'* CAPABILITY IMAP4rev1 STARTTLS\r\n. OK done\r\n', line, b'. OK go\r\n'],
    [b'+OK ready\r\n', line, b'+OK go\r\n'],
    [b'220 ready\r\n', line, b'234 go\r\n'],
    [b'', lambda got: len(got) > 1 and len(got) == got[1] + 2, b'\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00'],
    [b'', lambda got: len(got) == 8, b'S'],
    [len(greeting).to_bytes(3, 'little') + b'\0' + greeting, lambda got: len(got) == 36, b''],
    [b'', b"version='1.0'>", stream, b'/>', b"<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>"],
    [b'', b'\r\n\r\n', b'HTTP/1.1 200 Connection established\r\n\r\n'],
]
def serve(peer, dialog):
    try:
        for at, step in enumerate(dialog):
            if at % 2 == 0: peer.sendall(step)
            else: until(peer, step)
        peer = tls.wrap_socket(peer, server_side=True)
        peer.recv(1000)
        peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npong\n')
        peer.unwrap()
    except (OSError, EOFError) as error: print(error, flush=True)
    peer.close()
def listen(port, dialog):
    listener = socket.create_server(('', port))
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=serve, args=(peer, dialog), daemon=True).start()
for at, dialog in enumerate(dialogs):
    threading.Thread(target=listen, args=(int(sys.argv[1]) + at, dialog)).start()
"#;

fn server(bed: &Testbed) -> Background {
    let identity = &bed.pki().server;
    let mut python = bed.server.command("python3");
    python.args(["-c", SERVER, &FIRST_PORT.to_string()]);
    python.arg(&identity.certificate).arg(&identity.key);
    let mut server = bed.background("dialogs", python).unwrap();
    for at in 0..PROTOCOLS.len() as u16 {
        server.wait_for_listen(FIRST_PORT + at, Duration::from_secs(10)).unwrap();
    }
    server
}

/// The client of a protocol; `command` runs a shell in the client's namespace.
fn client(stage: &Stage, mut command: Command, at: usize) -> Command {
    let (ca, port) = (stage.bed.pki().ca.display(), FIRST_PORT + at as u16);
    let (host, name) = (address::SERVER_V4, address::SERVER_NAME);
    let script = match PROTOCOLS[at].1 {
        "" => format!(
            "curl -sS --http1.1 --max-time 20 --cacert {ca} -x http://{host}:{port} https://{name}/"
        ),
        protocol => format!(
            "echo ping | openssl s_client -starttls {protocol} -name {name} \
             -connect {host}:{port} -servername {name} -verify_return_error -CAfile {ca} -quiet"
        ),
    };
    command.args(["-c", &script]);
    command
}

#[test]
fn accepts_sessions_behind_other_protocols() {
    if !can_run(&["openssl", "curl", "python3", "nginx"]) {
        return;
    }
    let stage = Stage::new();
    let mmtls = stage.mmtls(&patient());
    let _server = server(&stage.bed);
    for (at, (name, _)) in PROTOCOLS.iter().enumerate() {
        let sharing = mmtls.sharing(&stage.bed, false, &[], "sh");
        let done = stage.run(name, client(&stage, sharing, at));
        assert!(done.text().contains("pong"), "{name}: {}", done.text());
    }
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, PROTOCOLS.len() as u64);
    let found: Vec<&str> =
        sessions(&report).iter().map(|tls| tls["starttls"].as_str().unwrap_or("none")).collect();
    assert_eq!(found, PROTOCOLS.map(|(name, _)| name));
    assert!(report.events("anomaly").is_empty(), "{:?}", report.events("anomaly"));
}

#[test]
fn refuses_sessions_without_keys_behind_other_protocols() {
    if !can_run(&["openssl", "curl", "python3", "nginx"]) {
        return;
    }
    let stage = Stage::new();
    let mmtls = stage.mmtls(&options());
    let _server = server(&stage.bed);
    for (at, (name, _)) in PROTOCOLS.iter().enumerate() {
        let done = stage.run(name, client(&stage, stage.bed.client.command("sh"), at));
        assert!(!done.text().contains("pong"), "{name}: {}", done.text());
    }
    let report = mmtls.stop().unwrap();
    let sessions = PROTOCOLS.len() as u64;
    assert_eq!(report.count("missing key"), sessions, "{:#?}", report.summary);
    assert_eq!(report.count("resets"), sessions, "{:#?}", report.summary);
    assert_eq!(stat(&report, "engine", "records_opened"), 0);
}
