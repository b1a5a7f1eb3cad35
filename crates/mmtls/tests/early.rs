//! Early data (0-RTT) and shared handshake keys with real programs: OpenSSL's client, nginx, and
//! the middlebox between them, which resets sessions that it cannot read.

use crate::common::{LIMIT, can_run, find, patient, sessions};
use mmtls_testkit::{
    Middle, Mmtls, MmtlsOptions, MmtlsReport, Nginx, NginxOptions, Testbed, address,
};
use serde_json::Value;

/// What the server does with early data that come with a ticket of the first server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Accepting,
    /// Takes the ticket, not the early data.
    Refusing,
    /// Does not know the ticket.
    Forgetful,
    /// Wants another key share.
    Retrying,
}

impl Server {
    fn start(self, bed: &Testbed) -> Nginx {
        let key = bed.directory().join(match self {
            Self::Forgetful => "other.key",
            _ => "ticket.key",
        });
        std::fs::write(&key, [self as u8 & 2; 80]).unwrap();
        let early = if self == Self::Refusing { "off" } else { "on" };
        let options = NginxOptions {
            groups: if self == Self::Retrying { "secp384r1".into() } else { String::new() },
            extra: format!("ssl_early_data {early};\nssl_session_ticket_key {};\n", key.display()),
            ..NginxOptions::default()
        };
        let nginx = Nginx::start(bed, options).unwrap();
        for name in ["first", "early", "again"] {
            std::fs::write(nginx.root().join(name), format!("content of {name}")).unwrap();
        }
        nginx
    }
}

fn request(bed: &Testbed, name: &str) -> String {
    let path = bed.directory().join(format!("request-{name}"));
    let head = format!("GET /{name} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n");
    std::fs::write(&path, head).unwrap();
    path.display().to_string()
}

/// `openssl s_client` that shares its keys; returns what the server answered and what is said.
fn client(bed: &Testbed, mmtls: &Mmtls, sharing: &[&str], arguments: &str, input: &str) -> String {
    let script = format!(
        "exec openssl s_client -connect {}:443 -servername {} -CAfile {} -tls1_3 -ign_eof \
         -groups X25519:P-384 {arguments} < {input}",
        address::SERVER_V4,
        address::SERVER_NAME,
        bed.pki().ca.display(),
    );
    let mut command = mmtls.sharing_with(bed, false, sharing, "sh");
    command.args(["-c", &script]);
    let finished = bed.run("s_client", command, LIMIT).unwrap();
    format!("{}\n{}", finished.text(), finished.stderr)
}

struct Outcome {
    said: String,
    report: MmtlsReport,
    streams: Vec<u8>,
}

impl Outcome {
    /// What was written of the session with early data.
    fn session(&self) -> &Value {
        let sessions = sessions(&self.report);
        assert_eq!(sessions.len(), 2, "{}\n{}", self.said, self.report.stderr);
        sessions[1]
    }

    /// The URLs of the transactions that have a response.
    fn answered(&self) -> Vec<&str> {
        let http = self.report.events("http").into_iter().map(|record| &record["http"]);
        http.filter(|it| it["status"] == 200).filter_map(|it| it["url"].as_str()).collect()
    }
}

/// A session for its ticket, then one with early data.
fn run(server: Server, sharing: &[&str]) -> Outcome {
    let bed = Testbed::new(Middle::Empty).unwrap();
    let options = MmtlsOptions { streams: true, ..patient() };
    let mmtls = Mmtls::start(&bed, &options).unwrap();
    let ticket = bed.directory().join("session.pem").display().to_string();
    let first = Server::Accepting.start(&bed);
    let said =
        client(&bed, &mmtls, sharing, &format!("-sess_out {ticket}"), &request(&bed, "first"));
    assert!(said.contains("content of first"), "{said}");
    drop(first);
    let nginx = server.start(&bed);
    let arguments = format!("-sess_in {ticket} -early_data {}", request(&bed, "early"));
    let input = match server {
        Server::Accepting => "/dev/null".to_owned(),
        _ => request(&bed, "again"),
    };
    let said = client(&bed, &mmtls, sharing, &arguments, &input);
    drop(nginx);
    let directory = mmtls.directory().join("streams");
    let report = mmtls.stop().unwrap();
    let mut streams = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "client") {
            streams.extend(std::fs::read(path).unwrap());
        }
    }
    Outcome { said, report, streams }
}

#[test]
fn accepts_early_data_that_the_server_takes() {
    if !can_run(&["nginx", "openssl"]) {
        return;
    }
    for sharing in [&[][..], &["--share-handshake"]] {
        let outcome = run(Server::Accepting, sharing);
        assert!(outcome.said.contains("Early data was accepted"), "{}", outcome.said);
        assert!(outcome.said.contains("content of early"), "{}", outcome.said);
        let session = outcome.session();
        assert_eq!(session["early_data"], "accepted", "{session}");
        assert_eq!(session["outcome"], "decrypted", "{session}");
        assert_eq!(
            outcome.answered(),
            ["/first", "/early"],
            "{:#?} {:#?}",
            outcome.report.eve,
            outcome.report.summary
        );
        assert!(find(&outcome.streams, b"GET /early").is_some());
        assert_eq!(outcome.report.count("resets"), 0);
        assert_eq!(outcome.report.count("records failed"), 0);
    }
}

#[test]
fn accepts_sessions_whose_early_data_are_refused() {
    if !can_run(&["nginx", "openssl"]) {
        return;
    }
    for server in [Server::Refusing, Server::Forgetful, Server::Retrying] {
        for sharing in [&[][..], &["--share-handshake"]] {
            let outcome = run(server, sharing);
            assert!(outcome.said.contains("Early data was rejected"), "{}", outcome.said);
            assert!(outcome.said.contains("content of again"), "{}", outcome.said);
            let session = outcome.session();
            assert_eq!(session["early_data"], "rejected", "{server:?} {session}");
            assert_eq!(session["outcome"], "decrypted", "{server:?} {session}");
            assert_eq!(session["hello_retry"], server == Server::Retrying, "{session}");
            assert_eq!(outcome.answered(), ["/first", "/again"], "{server:?}");
            assert_eq!(outcome.report.count("resets"), 0, "{server:?}");
            assert_eq!(outcome.report.count("records failed"), 0, "{server:?}");
        }
    }
}

#[test]
fn accepts_certificates_only_where_handshake_keys_are_shared() {
    if !can_run(&["nginx", "openssl"]) {
        return;
    }
    let outcome = run(Server::Accepting, &["--share-handshake"]);
    let all = sessions(&outcome.report);
    let (full, resumed) = (all[0], all[1]);
    assert_eq!(full["subject"], format!("CN={}", address::SERVER_NAME), "{full}");
    assert!(full["issuerdn"].as_str().unwrap().starts_with("CN="), "{full}");
    assert_eq!(full["fingerprint"].as_str().unwrap().split(':').count(), 20);
    assert_eq!(full["fingerprint_sha256"].as_str().unwrap().len(), 64);
    let first = &outcome.report.events("tls")[0]["tls"];
    assert_eq!(first["subject"], full["subject"], "not later: {first}");
    let names = full["subjectaltname"].as_array().unwrap();
    assert!(names.iter().any(|name| name == address::SERVER_NAME), "{full}");
    assert_eq!(full["notafter"].as_str().unwrap().len(), "2024-01-31T23:59:59".len(), "{full}");
    // A resumed session shows no certificate.
    assert_eq!(resumed["subject"], Value::Null, "{resumed}");

    let outcome = run(Server::Accepting, &[]);
    for session in sessions(&outcome.report) {
        assert_eq!(session["subject"], Value::Null, "{session}");
    }
}

/// A program that only writes a key log is followed live, without the preload library.
#[test]
fn accepts_sessions_whose_keys_stand_in_a_growing_key_log() {
    if !can_run(&["nginx", "openssl"]) {
        return;
    }
    let bed = Testbed::new(Middle::Empty).unwrap();
    let keylog = bed.directory().join("keys.log");
    let options = MmtlsOptions { keylog: Some(keylog.clone()), ..patient() };
    let mmtls = Mmtls::start(&bed, &options).unwrap();
    let ticket = bed.directory().join("session.pem").display().to_string();
    let nginx = Server::Accepting.start(&bed);
    for (arguments, input, content) in [
        (format!("-sess_out {ticket}"), request(&bed, "first"), "content of first"),
        (
            format!("-sess_in {ticket} -early_data {}", request(&bed, "early")),
            "/dev/null".to_owned(),
            "content of early",
        ),
    ] {
        let script = format!(
            "exec openssl s_client -connect {}:443 -servername {} -CAfile {} -tls1_3 -ign_eof \
             -keylogfile {} {arguments} < {input}",
            address::SERVER_V4,
            address::SERVER_NAME,
            bed.pki().ca.display(),
            keylog.display(),
        );
        let mut command = bed.client.command("sh");
        command.args(["-c", &script]);
        let finished = bed.run("s_client", command, LIMIT).unwrap();
        assert!(finished.text().contains(content), "{}\n{}", finished.text(), finished.stderr);
    }
    drop(nginx);
    let report = mmtls.stop().unwrap();
    let sessions = sessions(&report);
    assert_eq!(sessions.len(), 2, "{}", report.stderr);
    for session in &sessions {
        assert_eq!(session["outcome"], "decrypted", "{session}");
    }
    // A key log has handshake secrets as well.
    let first = &report.events("tls")[0]["tls"];
    assert_eq!(first["subject"], format!("CN={}", address::SERVER_NAME));
    assert_eq!(sessions[1]["early_data"], "accepted");
    assert_eq!(report.count("resets"), 0);
}
