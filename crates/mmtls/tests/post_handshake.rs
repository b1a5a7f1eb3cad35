//! Handshake messages behind the handshake, of real stacks.

use std::time::Duration;

use crate::common::{Family, LIMIT, assert_all_decrypted, can_run, patient, stat};
use mmtls_testkit::{Middle, Mmtls, Testbed, require_python};

const SERVER: &str = r#"
import socket, ssl, sys
certificate, key, ca = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
context.load_verify_locations(ca)
context.verify_mode = ssl.CERT_REQUIRED
context.post_handshake_auth = True
listener = socket.create_server(("", 443))
listener.settimeout(30)
connection = context.wrap_socket(listener.accept()[0], server_side=True)
for question in (b"first", b"second"):
    connection.recv(100)
    connection.verify_client_post_handshake()
    connection.sendall(question)
connection.recv(100)
connection.sendall(b"yes" if connection.getpeercert() else b"no")
connection.unwrap()
"#;

const CLIENT: &str = r#"
import socket, ssl, sys
address, certificate, key, ca = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.post_handshake_auth = True
context.load_cert_chain(certificate, key)
raw = socket.create_connection((address, 443), 30)
connection = context.wrap_socket(raw, server_hostname="server.test")
for _ in range(3):
    connection.sendall(b"know me?")
    answer = connection.recv(100)
print(answer.decode())
try:
    connection.unwrap()
except (OSError, ssl.SSLError):
    pass
"#;

/// RFC 8446, section 4.6.2.
#[test]
fn accepts_clients_that_are_asked_for_their_certificate_behind_the_handshake() {
    if !can_run(&["python3"]) || !require_python("ssl") {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let mmtls = Mmtls::start(&bed, &patient()).unwrap();
    let pki = bed.pki();
    let mut server = bed.server.command("python3");
    server.args(["-c", SERVER]).arg(&pki.server.certificate).arg(&pki.server.key).arg(&pki.ca);
    let mut server = bed.background("server", server).unwrap();
    server.wait_for_listen(443, Duration::from_secs(10)).unwrap();
    let mut client = mmtls.sharing(&bed, false, &[], "python3");
    client.args(["-c", CLIENT, &Family::V4.server().to_string()]);
    client.arg(&pki.client.certificate).arg(&pki.client.key).arg(&pki.ca);
    let done = bed.run("client", client, LIMIT).unwrap();
    assert_eq!(done.text().trim(), "yes", "{}", done.stderr);
    let report = mmtls.stop().unwrap();
    assert_all_decrypted(&report, 1);
    assert_eq!(stat(&report, "engine", "records_failed"), 0);
}
