//! Bodies of HTTP as files: how long they are, what they are called, and a hash of those that were seen whole.
//!
//! Refuses to keep a byte of them, and to hash what clients may read in several ways. One hash per body that is
//! under way.

use std::collections::HashMap;

use aws_lc_rs::digest;
use mmtls_engine::tls::Direction;
use mmtls_inspect::transaction::Transaction;
use mmtls_inspect::{Anomaly, Body, Event, Fields, Form, Side};

use super::finding::{Finding, direction, record};
use crate::eve::FileInfo;

/// Longest name that is kept, in bytes.
const MAX_NAME: usize = 512;

/// The bodies of a connection that are under way.
#[derive(Default)]
pub(super) struct Files {
    /// By who sends them, and the number of the transaction.
    open: HashMap<(Side, Option<u64>), File>,
    /// Sides of which some content coding could not be taken off, which is told once: from then on nobody knows
    /// of a body whether it was decoded to its end.
    faulty: [bool; 2],
}

struct File {
    /// What Content-Disposition calls it.
    name: Option<Box<str>>,
    coding: Coding,
    /// Bytes that were seen as they were sent, and without their content coding.
    sent: u64,
    decoded: u64,
    hash: Option<digest::Context>,
    gaps: bool,
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    None,
    /// There is one way to take it off.
    Plain,
    /// `deflate` is read in two ways.
    Twofold,
}

impl Files {
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        app_proto: &'static str,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        match event {
            Event::RequestHead { transaction, fields, .. } => {
                self.open.insert((Side::Client, transaction.id), File::new(None, *fields));
            }
            // Of what was reset, what there was by then is told.
            Event::ResponseHead(transaction, fields) if !transaction.is_reset => {
                let file = File::new(disposition(*fields), *fields);
                self.open.insert((Side::Server, transaction.id), file);
            }
            Event::Body(body) => self.body(body),
            Event::RequestEnd(Some(transaction)) => self.end(Side::Client, transaction),
            Event::ResponseEnd(Some(transaction)) => self.end(Side::Server, transaction),
            Event::Anomaly(
                side,
                Anomaly::ContentCodingUnknown
                | Anomaly::ContentCodingMalformed
                | Anomaly::ContentCodingTruncated
                | Anomaly::ContentCodingOverCap,
            ) => self.faulty[index(*side)] = true,
            Event::Complete(transaction) => {
                // Not earlier: behind a body's end may come that it was not decoded to its end.
                for side in [Side::Client, Side::Server] {
                    if let Some(file) = self.open.remove(&(side, transaction.id)) {
                        let faulty = self.faulty[index(side)];
                        file.report(direction(side), transaction, app_proto, faulty, out);
                    }
                }
            }
            _ => {}
        }
    }

    /// Bytes of a side are missing.
    pub(super) fn gap(&mut self, side: Side) {
        for ((of, _), file) in &mut self.open {
            file.gaps |= *of == side && !file.ended;
        }
    }

    fn body(&mut self, body: &Body<'_>) {
        let Some(transaction) = body.transaction else {
            return;
        };
        let Some(file) = self.open.get_mut(&(body.side, transaction.id)) else {
            return;
        };
        if file.gaps {
            // All that follows is taken as body, whatever it is.
            return;
        }
        let count = body.bytes.len() as u64;
        let hashed = match body.form {
            Form::AsSent => {
                file.sent += count;
                file.coding == Coding::None
            }
            Form::Decoded(0) => {
                file.decoded += count;
                file.coding == Coding::Plain
            }
            Form::Decoded(_) => false,
        };
        if hashed {
            let hash = file.hash.get_or_insert_with(|| digest::Context::new(&digest::SHA256));
            hash.update(body.bytes);
        }
    }

    fn end(&mut self, side: Side, transaction: &Transaction) {
        if let Some(file) = self.open.get_mut(&(side, transaction.id)) {
            file.ended = true;
        }
    }
}

impl File {
    fn new(name: Option<Box<str>>, fields: Fields<'_>) -> Self {
        let is = |name: &[u8], known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let codings = fields.iter().filter(|(name, _)| is(name, "content-encoding"));
        let codings = codings.flat_map(|(_, value)| value.split(|&byte| byte == b','));
        let codings = codings.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty());
        let coding = codings.fold(Coding::None, |before, it| match before {
            _ if is(it, "identity") || is(it, "none") => before,
            Coding::Twofold => before,
            _ if is(it, "deflate") => Coding::Twofold,
            _ => Coding::Plain,
        });
        Self { name, coding, sent: 0, decoded: 0, hash: None, gaps: false, ended: false }
    }

    fn report(
        self,
        from: Direction,
        transaction: &Transaction,
        app_proto: &'static str,
        faulty: bool,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let Some(http) = record(transaction).filter(|_| self.sent > 0) else {
            return;
        };
        let length = match from {
            Direction::ClientToServer => http.request_length,
            Direction::ServerToClient => http.length,
        };
        // What lies beyond a limit was not looked at, and counts in the length all the same.
        let whole = self.ended && !self.gaps && self.sent == length;
        let is_decoded = self.coding != Coding::None && self.decoded > 0 && !faulty;
        let is_clear = self.coding == Coding::None || is_decoded;
        let sha256 = self.hash.filter(|_| whole && is_clear);
        let sha256 = sha256.map(|it| base16ct::lower::encode_string(it.finish().as_ref()));
        out(Finding::File {
            from,
            file: FileInfo {
                filename: self.name.as_deref().unwrap_or_else(|| path(http.url)),
                gaps: self.gaps,
                state: if whole { "CLOSED" } else { "TRUNCATED" },
                sha256: sha256.as_deref(),
                stored: false,
                size: if is_decoded { self.decoded } else { self.sent },
                tx_id: http.tx_id,
                app_proto,
                http,
            },
        });
    }
}

fn index(side: Side) -> usize {
    usize::from(side == Side::Server)
}

/// The path of a request target, which may have a scheme and a host before it, and a query behind.
fn path(target: &str) -> &str {
    let behind_host = || {
        let (_, rest) = target.split_once("://")?;
        Some(&rest[rest.find('/')?..])
    };
    let path = if target.starts_with('/') { target } else { behind_host().unwrap_or(target) };
    path.split(['?', '#']).next().unwrap_or(path)
}

/// The name in `attachment; filename="report.pdf"`.
fn disposition(fields: Fields<'_>) -> Option<Box<str>> {
    let is_it = |name: &[u8]| name.eq_ignore_ascii_case(b"content-disposition");
    let (_, value) = fields.iter().find(|(name, _)| is_it(name))?;
    let mut quoted = false;
    let parameters = value.split(|&byte| {
        quoted ^= byte == b'"';
        byte == b';' && !quoted
    });
    for parameter in parameters {
        let Some(at) = parameter.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (parameter[..at].trim_ascii(), parameter[at + 1..].trim_ascii());
        let inner = value.strip_prefix(b"\"").and_then(|it| it.strip_suffix(b"\""));
        let value = inner.unwrap_or(value);
        if name.eq_ignore_ascii_case(b"filename") && !value.is_empty() {
            return Some(String::from_utf8_lossy(&value[..value.len().min(MAX_NAME)]).into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::monitor::{Inspection, Look};

    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;
    const GET: &[u8] = b"GET http://example.org/a/b.txt?c HTTP/1.1\r\n\r\n";
    /// SHA-256 of `content`.
    const CONTENT: &str = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";

    fn show(finding: &Finding<'_>) -> Option<String> {
        let Finding::File { from, file } = finding else {
            return None;
        };
        let FileInfo { filename, gaps, state, size, tx_id, sha256, .. } = file;
        let sha256 = sha256.unwrap_or("-");
        let gaps = if *gaps { " gaps" } else { "" };
        Some(format!("{tx_id} {from} {filename} {size} {state}{gaps} {sha256}"))
    }

    fn run(limit: Option<u64>, parts: &[(Direction, &[u8])]) -> Vec<String> {
        let mut inspection = Inspection::default();
        inspection.report_files();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        for (direction, bytes) in parts {
            inspection.limit(limit);
            match *bytes {
                b"gap" => inspection.gap(*direction, &mut Look::default(), &mut out),
                bytes => inspection.bytes(*direction, bytes, &mut Look::default(), &mut out),
            }
        }
        inspection.end(true, &mut Look::default(), &mut out);
        log
    }

    fn response(fields: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn accepts_whole_bodies_of_both_sides_with_their_names() {
        let put = b"PUT /up HTTP/1.1\r\nContent-Length: 7\r\n\r\ncontent";
        let named = "Content-Disposition: attachment; filename=\"r;1.pdf\"; filename*=x\r\n";
        let lines = run(
            None,
            &[
                (CLIENT, GET),
                (CLIENT, put),
                (CLIENT, b"GET /none HTTP/1.1\r\n\r\n"),
                (SERVER, &response("", b"content")),
                (SERVER, &response(named, b"content")),
                (SERVER, &response("", b"")),
            ],
        );
        let expected = [
            format!("0 to_client /a/b.txt 7 CLOSED {CONTENT}"),
            format!("1 to_server /up 7 CLOSED {CONTENT}"),
            format!("1 to_client r;1.pdf 7 CLOSED {CONTENT}"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn accepts_decoded_bodies_and_refuses_to_hash_doubtful_ones() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(b"content").unwrap();
        let gzip = gzip.finish().unwrap();
        let coded = "Content-Encoding: gzip\r\n";
        let len = gzip.len();
        let one = |fields: &str, body: &[u8]| {
            run(None, &[(CLIENT, GET), (SERVER, &response(fields, body))])
        };
        assert_eq!(one(coded, &gzip), [format!("0 to_client /a/b.txt 7 CLOSED {CONTENT}")]);
        let cut = &gzip[..len - 2];
        assert_eq!(one(coded, cut), [format!("0 to_client /a/b.txt {} CLOSED -", len - 2)]);
        assert_eq!(one(coded, b"content"), ["0 to_client /a/b.txt 7 CLOSED -"]);
        assert_eq!(one("Content-Encoding: x\r\n", b"content"), ["0 to_client /a/b.txt 7 CLOSED -"]);
        let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        raw.write_all(b"content").unwrap();
        let lines = one("Content-Encoding: deflate\r\n", &raw.finish().unwrap());
        assert!(lines[0].ends_with("CLOSED -"), "{lines:?}");
        // What could not be decoded once is doubtful afterwards.
        let (bad, good) = (response(coded, b"content"), response(coded, &gzip));
        let lines = run(None, &[(CLIENT, GET), (CLIENT, GET), (SERVER, &bad), (SERVER, &good)]);
        assert_eq!(lines[1], format!("1 to_client /a/b.txt {len} CLOSED -"));
    }

    #[test]
    fn refuses_to_call_a_part_the_whole() {
        let all = response("", b"content");
        let part = &all[..all.len() - 3];
        assert_eq!(
            run(None, &[(CLIENT, GET), (SERVER, part)]),
            ["0 to_client /a/b.txt 4 TRUNCATED -"]
        );
        assert_eq!(
            run(None, &[(CLIENT, GET), (SERVER, part), (SERVER, b"gap"), (SERVER, b"ent")]),
            ["0 to_client /a/b.txt 4 TRUNCATED gaps -"]
        );
        let lines = run(Some(4), &[(CLIENT, GET), (SERVER, &all)]);
        assert!(lines[0].contains(" TRUNCATED "), "{lines:?}");
    }

    #[test]
    fn accepts_targets_of_every_form() {
        for (target, expected) in [
            ("/a/b?c=/d#e", "/a/b"),
            ("https://example.org/x?y", "/x"),
            ("https://example.org", "https://example.org"),
            ("*", "*"),
            ("example.org:443", "example.org:443"),
        ] {
            assert_eq!(path(target), expected);
        }
    }
}
