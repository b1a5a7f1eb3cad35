//! Tests of who is answered, and with what; the page itself is tested in a browser.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use aws_lc_rs::digest;

use super::*;
use crate::http::HttpServer;

const TEXT_OF_NETWORK: &str = "</script><b>\u{9b}2J";

/// A server with a token and one question.
fn server() -> (SocketAddr, String) {
    let server = HttpServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, token) = (server.address().unwrap(), Token::random().unwrap());
    let text = token.text().to_owned();
    let answer = move |request: &http::Request| {
        let ask = |question: &str| match question {
            "status" => Some(Ok(json!({"query": request.query, "name": TEXT_OF_NETWORK}))),
            "session" => Some(Err("there is none".to_owned())),
            _ => None,
        };
        Some(guarded(request, &token, ask).with(FIELDS))
    };
    server.start("web", || (), answer).unwrap();
    (address, text)
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Of what is too long the server takes no more than it wants to.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(address: SocketAddr, path: &str, fields: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n"))
}

#[test]
fn refuses_questions_without_the_token() {
    let (address, token) = server();
    let other = Token::random().unwrap();
    for fields in [
        String::new(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: Bearer {}\r\n", other.text()),
        format!("Authorization: Basic {token}\r\n"),
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer {token}\r\n"),
        format!("Cookie: token={token}\r\n"),
    ] {
        for path in ["/api/status", "/api/none", "/api/"] {
            let answer = get(address, path, &fields);
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path} {fields}: {answer}");
        }
    }
    let query = format!("/api/status?token={token}");
    assert!(get(address, &query, "").starts_with("HTTP/1.1 401 "));
}

#[test]
fn answers_who_has_the_token() {
    let (address, token) = server();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let answer = get(address, "/api/status?a=b", &bearer);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with(r#"{"name":"</script><b>\u009b2J","query":"a=b"}"#), "{answer}");
    let answer = get(address, "/api/session?id=7", &bearer);
    assert!(answer.ends_with(r#"{"error":"there is none","ok":false}"#), "{answer}");
    for path in ["/api/none", "/api/", "/api", "/index.html", "//", "/page.css/", "/../page.css"] {
        let answer = get(address, path, &bearer);
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"] {
        let request = format!("{method} /api/status HTTP/1.1\r\nHost: {address}\r\n{bearer}\r\n");
        let answer = ask(address, &request);
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(!answer.contains("Access-Control"), "nobody else's script is let in");
    }
    let long = format!("X: {}\r\n", "x".repeat(100_000));
    assert!(get(address, "/", &long).starts_with("HTTP/1.1 431 "));
}

/// A page of an attacker whose name server says that its name is 127.0.0.1 asks by that name.
#[test]
fn refuses_every_name_but_its_own() {
    let (address, token) = server();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let by = |host: &str, path: &str| {
        ask(address, &format!("GET {path} HTTP/1.1\r\n{host}{bearer}\r\n"))
    };
    for host in [
        "127.0.0.1:9700",
        "127.0.0.1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:9700",
        "[::ffff:127.0.0.1]",
        "127.9.9.9:1",
    ] {
        let answer = by(&format!("Host: {host}\r\n"), "/api/status");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for host in [
        "",
        "Host: \r\n",
        "Host: attacker.test\r\n",
        "Host: attacker.test:9700\r\n",
        "Host: localhost.attacker.test\r\n",
        "Host: 127.0.0.1.attacker.test\r\n",
        "Host: 192.0.2.1\r\n",
        "Host: [::2]\r\n",
        "Host: localhost\r\nHost: localhost\r\n",
    ] {
        for path in ["/", "/api/status"] {
            let answer = by(host, path);
            assert!(answer.starts_with("HTTP/1.1 421 "), "{host}: {answer}");
        }
    }
}

#[test]
fn sends_everything_with_a_policy_for_the_browser() {
    let (address, _) = server();
    for path in ["/", "/page.js", "/uplot.js", "/icon.svg", "/api/status", "/nothing"] {
        let answer = get(address, path, "");
        for field in [
            "default-src 'none'; script-src 'self'; ",
            "require-trusted-types-for 'script'; ",
            "frame-ancestors 'none'; ",
            "\r\nX-Content-Type-Options: nosniff\r\n",
            "\r\nCache-Control: no-store\r\n",
            "\r\nReferrer-Policy: no-referrer\r\n",
        ] {
            assert!(answer.contains(field), "{path}: {field}: {answer:.600}");
        }
        assert!(!answer.contains("unsafe-"), "{path}");
    }
    let page = get(address, "/", "");
    assert!(page.contains("<title>mmTLS</title>"));
    for inline in ["<script>", " style=", " onclick=", "<style", "https://", "http://"] {
        assert!(!page.contains(inline), "{inline}");
    }
}

/// They are others' work, and are what the note beside them says.
#[test]
fn has_the_plot_library_unchanged() {
    let note = include_str!("assets/README.md");
    for (name, text) in [
        ("uplot.js", include_str!("assets/uplot.js")),
        ("uplot.css", include_str!("assets/uplot.css")),
    ] {
        let sum = digest::digest(&digest::SHA256, text.as_bytes());
        let line = format!("{}  {name}\n", base16ct::lower::encode_string(sum.as_ref()));
        assert!(note.contains(&line), "{line}");
    }
}

#[test]
fn reads_which_sessions_are_meant() {
    let query = sessions(
        "client=10.0.0.0/8&server=[::1]:443&name=*.test&keys=missing&sort=held&limit=5&all",
    )
    .unwrap();
    assert_eq!(query.client.as_deref(), Some("10.0.0.0/8"));
    assert_eq!(query.server.as_deref(), Some("[::1]:443"));
    assert_eq!(query.name.as_deref(), Some("*.test"));
    assert!(query.keys.is_some() && query.sort.is_some() && query.all);
    assert_eq!(query.limit, Some(5));
    assert!(sessions("").is_ok());
    for other in ["limit=x", "limit=-1", "keys=all", "sort=name", "clients=1", "=", "id=7"] {
        assert!(sessions(other).is_err(), "{other}");
    }
}
