//! What heads say to the loosest receiver: fields that strict parsers pass over, and start lines that they
//! refuse.
//!
//! Only for what is looked at besides what a strict reading shows. Refuses to say where a message ends.

use std::borrow::Cow;

use super::fields::{Http1Fields, Lines, is_space};
use crate::event::{Fields, Side};
use crate::transaction::{Request, Response, Version, text};

/// The values of all fields of a name, given in lower case: those of the strict reading, and where the head
/// is not clean those that only others see.
pub(crate) fn values<'a>(side: Side, fields: Fields<'a>, name: &[u8]) -> Vec<Cow<'a, [u8]>> {
    let strict = fields.iter().filter(|(it, _)| it.eq_ignore_ascii_case(name));
    let mut values: Vec<_> = strict.map(|(_, value)| Cow::Borrowed(value)).collect();
    if let Some(head) = fields.http1_head()
        && side == Side::Server
        && !is_clean(head, fields.iter().count())
    {
        let loose = read_values(side, head, name);
        let is_among = |value: &[u8], others: &[Cow<'a, [u8]>]| {
            others.iter().any(|other| words(other).eq(words(value)))
        };
        // Where the two do not differ, each value is meant once.
        if loose.iter().any(|value| !is_among(value, &values)) {
            values.retain(|value| !is_among(value, &loose));
            values.extend(loose);
        }
    }
    values
}

/// The parts of a value that do not depend on how it is folded.
fn words(value: &[u8]) -> impl Iterator<Item = &u8> {
    value.iter().filter(|byte| !is_space(**byte))
}

/// Whether the body has the chunked coding for a client that takes any mention of it for that, where it was
/// not taken off.
pub(crate) fn may_be_chunked(side: Side, fields: Fields<'_>) -> bool {
    const NAME: &[u8] = b"transfer-encoding";
    let is_chunked = |name: &[u8]| name.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let strict = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(NAME));
    let mut names = strict.flat_map(|(_, value)| value.split(|&byte| byte == b','));
    side == Side::Server
        && fields.http1_head().is_some()
        && !names.any(is_chunked)
        && values(side, fields, NAME).iter().any(|value| contains(value, b"chunked"))
}

/// Whether text holds a word, given in lower case, wherever NULs stand in it.
pub(crate) fn contains(text: &[u8], word: &[u8]) -> bool {
    let text: Vec<u8> =
        text.iter().filter(|&&byte| byte != 0).map(u8::to_ascii_lowercase).collect();
    text.windows(word.len()).any(|part| part == word)
}

/// A response whose head strict parsers refuse; `None` where it is an interim one, or not even begins as HTTP.
pub(super) fn response(head: &[u8]) -> Option<Response> {
    let line = start_line(&mut Lines(head));
    if !line.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/")) {
        return None;
    }
    let mut words = line.split(|&byte| is_space(byte)).filter(|word| !word.is_empty());
    let version = match words.next() {
        Some(word) if word.eq_ignore_ascii_case(b"HTTP/1.0") => Version::Http10,
        _ => Version::Http11,
    };
    let status = words.next().and_then(|word| core::str::from_utf8(word).ok()?.parse().ok());
    let status = status.filter(|status| (100..1000).contains(status)).unwrap_or(0);
    if (100..200).contains(&status) {
        return None;
    }
    let mut response = Response::new(status, "", version);
    let values = |name: &[u8]| read_values(Side::Server, head, name);
    response.content_type = values(b"content-type").first().map(|it| text(it));
    response.content_encoding = values(b"content-encoding").last().map(|it| text(it));
    Some(response)
}

/// A request whose head strict parsers refuse, although its first line names HTTP/1.
pub(super) struct LooseRequest {
    pub(super) message: Request,
    pub(super) method: String,
    pub(super) target: String,
}

/// A request whose head strict parsers refuse; `None` where there is no target, or a tunnel is asked for.
pub(super) fn request(head: &[u8]) -> Option<LooseRequest> {
    let line = start_line(&mut Lines(head)).trim_ascii_end();
    let is_blank = |byte: &u8| is_space(*byte);
    let (method, rest) = line.split_at(line.iter().position(is_blank)?);
    let (target, protocol) = rest.split_at(rest.iter().rposition(is_blank)?);
    let version = match protocol.trim_ascii() {
        b"HTTP/1.0" => Version::Http10,
        b"HTTP/1.1" => Version::Http11,
        _ => return None,
    };
    let method = String::from_utf8_lossy(method).into_owned();
    let target = String::from_utf8_lossy(target.trim_ascii()).into_owned();
    if target.is_empty() || method == "CONNECT" {
        return None;
    }
    let value = |name: &[u8]| read_values(Side::Client, head, name).first().map(|it| text(it));
    let mut message = Request::new(&method, &target, version);
    message.host = value(b"host");
    message.user_agent = value(b"user-agent");
    message.content_type = value(b"content-type");
    Some(LooseRequest { message, method, target })
}

/// Where a head that has no empty line ends for a client to which a line of blanks is one.
pub(super) fn blank_line_end(head: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = head.get(from..)?.iter().position(|&byte| byte == b'\n') {
        from += at + 1;
        let blanks = head[from..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        match &head[from + blanks..] {
            _ if blanks == 0 => {}
            [b'\n', ..] => return Some(from + blanks + 1),
            [b'\r', b'\n', ..] => return Some(from + blanks + 2),
            _ => {}
        }
    }
    None
}

/// No line of it is folded, faulty or ended otherwise than with LF or CR LF: then all readings are the same.
fn is_clean(head: &[u8], fields: usize) -> bool {
    let mut lines = 0;
    for (at, &byte) in head.iter().enumerate() {
        match byte {
            b'\n' => lines += 1,
            b'\r' if head.get(at + 1) == Some(&b'\n') => {}
            b'\r' | 0 => return false,
            _ => {}
        }
    }
    // The start line, and the empty one.
    lines == fields + 2
}

fn start_line<'a>(lines: &mut Lines<'a>) -> &'a [u8] {
    let is_blank = |line: &&[u8]| line.iter().all(|&byte| is_space(byte) || byte == 0);
    let line = lines.find(|line| !is_blank(line)).unwrap_or_default();
    let blanks = line.iter().take_while(|&&byte| is_space(byte) || byte == 0).count();
    &line[blanks..]
}

fn read_values(side: Side, head: &[u8], name: &[u8]) -> Vec<Cow<'static, [u8]>> {
    let mut lines = Lines(head);
    let is_http11 = start_line(&mut lines).starts_with(b"HTTP/1.1");
    let fields = Http1Fields::read(side, is_http11, lines);
    let is_name = |it: &[u8]| {
        let shown = it.iter().filter(|&&byte| byte != 0).map(u8::to_ascii_lowercase);
        shown.eq(name.iter().copied())
    };
    let of_name = fields.iter().filter(|(it, _)| is_name(it));
    of_name.flat_map(|(_, values)| values.map(|it| Cow::Owned(it.to_vec()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunked(head: &str) -> bool {
        may_be_chunked(Side::Server, Fields::http1(&[], head.as_bytes()))
    }

    #[test]
    fn accepts_codings_that_strict_parsers_do_not_see() {
        for line in [
            "Transfer-Encoding: xchunked",
            "X: y\r\n Transfer-Encoding: chunked",
            "X: y\rTransfer-Encoding: chunked",
            "Transfer-Encoding:: chunked",
            "Transfer-Encoding:chu\0nked",
            "Transfer\0-Encoding: chunked",
            "Transfer-Encoding\r\n : chunked",
        ] {
            assert!(chunked(&format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n")), "{line}");
        }
        assert!(chunked("HTTP/1.1\rTransfer-Encoding: chunked\r\n\r\n"));
        assert!(!chunked("HTTP/1.1 200 OK\r\nX: chunked\r\n\r\n"));
    }

    #[test]
    fn accepts_what_there_is_of_a_start_line() {
        let status =
            |line: &str| response(format!("{line}\r\n\r\n").as_bytes()).map(|it| it.status);
        assert_eq!(status("HTTP/1.2 200 ok"), Some(200));
        assert_eq!(status(" \0HTTP/1.1 404"), Some(404));
        assert_eq!(status("HTTP/1.1 2\x0000"), Some(0));
        assert_eq!(status("HTTP/1.1foo"), Some(0));
        assert_eq!((status("HTTP/2.0 100 x"), status(" HTT"), status("")), (None, None, None));
    }

    #[test]
    fn accepts_requests_with_blanks_where_none_belong() {
        let read = |line: &str| {
            let request = request(format!("{line}\r\nHost: h\r\n\r\n").as_bytes())?;
            assert_eq!(request.message.host.as_deref(), Some("h"));
            Some((request.method, request.target))
        };
        let pair = |method: &str, target: &str| Some((method.to_owned(), target.to_owned()));
        assert_eq!(read("POST  /  HTTP/1.0"), pair("POST", "/"));
        assert_eq!(read("GET /a b HTTP/1.1"), pair("GET", "/a b"));
        assert_eq!(read("GET /a b"), None);
        assert_eq!(read("GET  HTTP/1.1"), None);
        assert_eq!(read("CONNECT  a HTTP/1.1"), None);
    }

    #[test]
    fn accepts_lines_of_blanks_as_ends() {
        assert_eq!(blank_line_end(b"a\nb\n \nc"), Some(6));
        assert_eq!(blank_line_end(b"a\r\n\t \r\nc"), Some(7));
        assert_eq!(blank_line_end(b"a\n b\n"), None);
        assert_eq!(blank_line_end(b""), None);
    }
}
