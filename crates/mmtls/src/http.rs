//! A small server of HTTP/1.1 for monitoring: `GET` and `HEAD` of a few paths, one request for each connection.
//!
//! Refuses bodies, everything but those methods, requests beyond 8 KiB, and peers that take longer than a few seconds.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::serve::{Timed, serve};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;

const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_FIELDS: usize = 64;

/// For the request, and again for its answer.
const TIME: Duration = Duration::from_secs(5);

/// What is read and thrown away so that the peer sees an answer to a request that was too long, in bytes and time.
const MAX_REST_BYTES: u64 = 1 << 20;
const REST_TIME: Duration = Duration::from_secs(1);

const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A request, without a `Debug` that would show what it authorizes itself with.
pub struct Request {
    /// The path.
    pub path: String,
    /// What stands behind `?`, as it came.
    pub query: String,
    /// The field `Host`; `None` where there is none, or more than one.
    pub host: Option<String>,
    /// The field `Authorization`, the same.
    pub authorization: Option<Zeroizing<String>>,
    is_head: bool,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    status: &'static str,
    content_type: &'static str,
    /// Further lines of its head.
    fields: &'static str,
    body: Cow<'static, str>,
}

impl Answer {
    /// What was asked for.
    #[must_use]
    pub fn ok(content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self { status: "200 OK", content_type, fields: "", body: body.into() }
    }

    /// Another status than that.
    #[must_use]
    pub fn error(status: &'static str) -> Self {
        let body = format!("{status}\n").into();
        Self { status, content_type: "text/plain; charset=utf-8", fields: "", body }
    }

    /// The same with these lines in its head, each with its end.
    #[must_use]
    pub fn with(self, fields: &'static str) -> Self {
        Self { fields, ..self }
    }
}

/// A server that listens and answers nobody yet.
pub struct HttpServer(TcpListener);

impl HttpServer {
    /// Listens, while there are still privileges for that.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Self)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers from here on, on threads of this name that have the privileges of the calling one. `None` of `answer` is a
    /// path that does not exist. `prepare` is the first that they do.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        self,
        name: &'static str,
        prepare: impl FnOnce() + Send + 'static,
        answer: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static,
    ) -> io::Result<()> {
        serve(name, self.0, MAX_CONNECTIONS, BUSY, prepare, move |stream| {
            // The peer is gone, or too slow.
            let _ = converse(stream, &answer);
        })
    }
}

fn converse(stream: TcpStream, answer: impl Fn(&Request) -> Option<Answer>) -> io::Result<()> {
    let mut stream = Timed::new(stream, TIME);
    let (answer, is_head) = match read_request(&mut stream)? {
        Ok(request) => {
            let answer = answer(&request).unwrap_or_else(|| Answer::error("404 Not Found"));
            (answer, request.is_head)
        }
        Err(status) => (Answer::error(status), false),
    };
    let Answer { status, content_type, fields, body } = &answer;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}{fields}\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.allow(TIME);
    stream.write_all(head.as_bytes())?;
    if !is_head {
        stream.write_all(body.as_bytes())?;
    }
    // Closed with bytes unread, the kernel would reset the connection, and the answer might be lost.
    stream.shut_writing();
    stream.allow(REST_TIME);
    io::copy(&mut stream.take(MAX_REST_BYTES), &mut io::sink()).map(drop)
}

/// The request, or the status that refuses it.
fn read_request(stream: &mut impl Read) -> io::Result<Result<Request, &'static str>> {
    let mut bytes = Zeroizing::new([0; MAX_HEAD_BYTES]);
    let mut len = 0;
    loop {
        let read = match stream.read(&mut bytes[len..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        len += read;
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&bytes[..len]) {
            Ok(httparse::Status::Complete(_)) => return Ok(judge(&request)),
            Ok(httparse::Status::Partial) if len < bytes.len() => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Err("431 Request Header Fields Too Large"));
            }
            Err(_) => return Ok(Err("400 Bad Request")),
        }
    }
}

fn judge(request: &httparse::Request<'_, '_>) -> Result<Request, &'static str> {
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err("405 Method Not Allowed"),
    };
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Request {
        path: path.to_owned(),
        query: query.to_owned(),
        host: only(request, "Host").map(str::to_owned),
        authorization: only(request, "Authorization").map(|it| Zeroizing::new(it.to_owned())),
        is_head,
    })
}

/// The value of a field that is there once.
fn only<'a>(request: &httparse::Request<'_, 'a>, name: &str) -> Option<&'a str> {
    let mut found = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    let value = std::str::from_utf8(found.next()?.value).ok()?;
    found.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn server() -> SocketAddr {
        let server = HttpServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.address().unwrap();
        let answer =
            |asked: &Request| (asked.path == "/here").then(|| Answer::ok("text/plain", "it\n"));
        server.start("http", || (), answer).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(4 * TIME)).unwrap();
        // Of what is too long the server takes no more than it wants to.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn accepts_gets_of_what_is_there() {
        let address = server();
        let answer = ask(address, b"GET /here?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nit\n"));
        let answer = ask(address, b"HEAD /here HTTP/1.0\r\n\r\n");
        assert!(answer.contains("Content-Length: 3\r\n") && answer.ends_with("\r\n\r\n"));
    }

    #[test]
    fn refuses_everything_else_with_its_status() {
        let address = server();
        let long = format!("GET /here HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(200_000));
        let many = format!("GET /here HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MAX_FIELDS + 1));
        for (request, status) in [
            ("GET /there HTTP/1.1\r\n\r\n", "404 "),
            ("GET /here/../here HTTP/1.1\r\n\r\n", "404 "),
            ("POST /here HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 "),
            ("DELETE /here HTTP/1.1\r\n\r\n", "405 "),
            ("\x16\x03\x01\x02\r\n\r\n", "400 "),
            (&*long, "431 "),
            (&*many, "431 "),
        ] {
            let answer = ask(address, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer:?}");
        }
    }

    #[test]
    fn refuses_to_wait_for_slow_peers() {
        let address = server();
        let begun = Instant::now();
        let mut slow: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        // A byte now and then does not help.
        while begun.elapsed() < TIME / 2 {
            for stream in &mut slow {
                stream.write_all(b"G").unwrap();
            }
            std::thread::sleep(TIME / 20);
        }
        let request = b"GET /here HTTP/1.1\r\n\r\n";
        assert!(ask(address, request).starts_with("HTTP/1.1 503 "), "all are taken");
        let limit = Instant::now() + 4 * TIME;
        while !ask(address, request).starts_with("HTTP/1.1 200 ") {
            assert!(Instant::now() < limit, "slow peers keep their places");
            std::thread::sleep(TIME / 20);
        }
    }
}
