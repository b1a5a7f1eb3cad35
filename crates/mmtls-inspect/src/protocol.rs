//! The protocols that are told apart, and how: by what the endpoints negotiated (ALPN) and by what
//! they say first.
//!
//! Content decides, since endpoints that work together may negotiate one thing and speak another;
//! ALPN names what content does not tell. Refuses to let the server alone decide.

use core::fmt;

/// What a connection carries, with Suricata's names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub enum AppProto {
    /// Not decided yet, or nothing that is known.
    #[default]
    Unknown,
    /// HTTP/1.0 and HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// SMTP.
    Smtp,
    /// IMAP.
    Imap,
    /// POP3.
    Pop3,
    /// The control connection of FTP.
    Ftp,
    /// DNS over TLS.
    Dns,
    /// WebSocket.
    WebSocket,
    /// TLS inside TLS.
    Tls,
    /// It was to be one protocol and turned out to be none.
    Failed,
}

impl AppProto {
    /// As in `app_proto` of `eve.json`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Smtp => "smtp",
            Self::Imap => "imap",
            Self::Pop3 => "pop3",
            Self::Ftp => "ftp",
            Self::Dns => "dns",
            Self::WebSocket => "websocket",
            Self::Tls => "tls",
            Self::Failed => "failed",
        }
    }

    /// What an ALPN protocol name stands for.
    #[must_use]
    pub fn from_alpn(name: &[u8]) -> Self {
        match name {
            b"http/1.1" | b"http/1.0" => Self::Http,
            b"h2" => Self::Http2,
            b"smtp" => Self::Smtp,
            b"imap" => Self::Imap,
            b"pop3" => Self::Pop3,
            b"ftp" => Self::Ftp,
            b"dot" => Self::Dns,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for AppProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How HTTP/2 begins, as far as no HTTP/1 request does (RFC 9113, section 3.4).
pub(crate) const HTTP2_REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";
/// Longest first line that is waited for.
pub(crate) const MAX_FIRST_LINE: usize = 512;
/// As much of the server's first bytes as detection looks at.
pub(crate) const SERVER_BYTES: usize = 4;

/// What the client's first bytes came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detected {
    /// More of the client's bytes are needed.
    NeedMore,
    /// This, or nothing else than HTTP/1 could be.
    Is(AppProto),
}

/// Judges the client's first bytes, beside the server's where it spoke first. Does not depend on
/// how much more there is than it needs.
pub(crate) fn detect(client: &[u8], greeting: &[u8], alpn: AppProto) -> Detected {
    if client.is_empty() {
        return Detected::NeedMore;
    }
    let shared = client.len().min(HTTP2_REQUEST.len());
    if client[..shared] == HTTP2_REQUEST[..shared] {
        return match shared == HTTP2_REQUEST.len() {
            true => Detected::Is(AppProto::Http2),
            false => Detected::NeedMore,
        };
    }
    // A handshake record that could hold a ClientHello.
    match client {
        [0x16] | [0x16, 3] => return Detected::NeedMore,
        [0x16, 3, 0..=4, ..] => return Detected::Is(AppProto::Tls),
        _ => {}
    }
    if let Some(detected) = greeted(client, greeting) {
        return detected;
    }
    if alpn == AppProto::Dns {
        return dns(client);
    }
    Detected::Is(AppProto::Http)
}

/// Protocols in which the server speaks first. Its greeting alone decides nothing: a server could
/// answer a request with it before that was sent.
fn greeted(client: &[u8], greeting: &[u8]) -> Option<Detected> {
    if ![&b"220"[..], b"+OK", b"* "].iter().any(|start| greeting.starts_with(start)) {
        return None;
    }
    let start = &client[..client.len().min(MAX_FIRST_LINE)];
    let Some(end) = start.iter().position(|&byte| byte == b'\n') else {
        return (start.len() < MAX_FIRST_LINE).then_some(Detected::NeedMore);
    };
    let line = start[..end].trim_ascii_end();
    if line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0") {
        return None;
    }
    let mut words = line.split(|&byte| byte == b' ');
    let first = words.next().unwrap_or_default();
    let is = |word: &[u8], names: &[&str]| {
        names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    let found = match greeting[0] {
        b'2' if is(first, &["EHLO", "HELO", "LHLO"]) => AppProto::Smtp,
        b'2' if is(first, &["USER", "AUTH", "FEAT", "SYST", "PBSZ", "HOST", "CLNT", "ADAT"]) => {
            AppProto::Ftp
        }
        b'+' if is(first, &["CAPA", "USER", "AUTH", "APOP", "STLS", "QUIT", "UTF8"]) => {
            AppProto::Pop3
        }
        b'*' if is(
            words.next().unwrap_or_default(),
            &["CAPABILITY", "LOGIN", "AUTHENTICATE", "ID", "NOOP", "LOGOUT", "STARTTLS", "ENABLE"],
        ) =>
        {
            AppProto::Imap
        }
        _ => return None,
    };
    Some(Detected::Is(found))
}

/// A query of one question in front of its length (RFC 1035, section 4.2.2).
fn dns(client: &[u8]) -> Detected {
    let Some(start) = client.get(..8) else {
        return Detected::NeedMore;
    };
    let length = u16::from_be_bytes([start[0], start[1]]);
    let is_query = start[4] & 0xf8 == 0 && start[6..8] == [0, 1];
    Detected::Is(if length >= 17 && is_query { AppProto::Dns } else { AppProto::Http })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(client: &[u8], greeting: &[u8], alpn: AppProto) -> AppProto {
        // What more bytes do not change is found with the fewest that decide.
        let results: Vec<_> =
            (0..=client.len()).map(|len| detect(&client[..len], greeting, alpn)).collect();
        let first = results.iter().position(|it| *it != Detected::NeedMore);
        let Some(first) = first else {
            return AppProto::Unknown;
        };
        assert!(results[first..].iter().all(|it| *it == results[first]), "{results:?}");
        match results[first] {
            Detected::Is(found) => found,
            Detected::NeedMore => unreachable!("it was looked for"),
        }
    }

    #[test]
    fn accepts_each_protocol_by_its_first_bytes() {
        let query = b"\0\x1d\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
        for (client, greeting, alpn, found) in [
            (&b"GET / HTTP/1.1\r\n"[..], &b""[..], AppProto::Unknown, AppProto::Http),
            (b"PRI * HTTP/2.0\r\n\r\nSM", b"", AppProto::Unknown, AppProto::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSM", b"\0\0\x12\x04", AppProto::Http, AppProto::Http2),
            (b"PRI * HTTP/1.1\r\n", b"", AppProto::Http2, AppProto::Http),
            (b"POST / HTTP/1.1\r\n", b"", AppProto::Http2, AppProto::Http),
            (b"EHLO client\r\n", b"220 ", AppProto::Unknown, AppProto::Smtp),
            (b"USER me\r\n", b"220-", AppProto::Unknown, AppProto::Ftp),
            (b"capa\r\n", b"+OK ", AppProto::Unknown, AppProto::Pop3),
            (b"a1 LOGIN me me\r\n", b"* OK", AppProto::Unknown, AppProto::Imap),
            (b"\x16\x03\x01\x02\0", b"", AppProto::Unknown, AppProto::Tls),
            (query, b"", AppProto::Dns, AppProto::Dns),
            (query, b"", AppProto::Unknown, AppProto::Http),
        ] {
            assert_eq!(detected(client, greeting, alpn), found, "{}", client.escape_ascii());
        }
    }

    #[test]
    fn refuses_to_take_a_greeting_for_the_protocol() {
        let get = b"GET / HTTP/1.1\r\n\r\n";
        for greeting in [b"220 ", b"+OK ", b"* OK"] {
            assert_eq!(detected(get, greeting, AppProto::Smtp), AppProto::Http);
        }
        let user = b"USER / HTTP/1.1\r\n\r\n";
        assert_eq!(detected(user, b"220 ", AppProto::Unknown), AppProto::Http);
        let endless = [b'x'; MAX_FIRST_LINE + 1];
        assert_eq!(detected(&endless, b"220 ", AppProto::Unknown), AppProto::Http);
        assert_eq!(detected(b"EHLO x", b"220 ", AppProto::Unknown), AppProto::Unknown);
    }

    #[test]
    fn accepts_names_as_suricata_writes_them() {
        assert_eq!(AppProto::from_alpn(b"h2").name(), "http2");
        assert_eq!(AppProto::from_alpn(b"http/1.1").to_string(), "http");
        assert_eq!(AppProto::from_alpn(b"dot"), AppProto::Dns);
        assert_eq!(AppProto::from_alpn(b"h3"), AppProto::Unknown);
    }
}
