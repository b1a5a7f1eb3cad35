//! How a client asks for TLS inside of another protocol, by what it has just sent.
//!
//! Refuses to interpret the server's answer: a client that was refused goes on without TLS, and that
//! shows in its next bytes.

/// The protocol in which TLS began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Upgrade {
    /// STARTTLS (RFC 3207), LMTP included.
    Smtp,
    /// STARTTLS (RFC 3501, section 6.2.1).
    Imap,
    /// STLS (RFC 2595, section 4).
    Pop3,
    /// AUTH TLS (RFC 4217).
    Ftp,
    /// The extended request 1.3.6.1.4.1.1466.20037 (RFC 4511, section 4.14).
    Ldap,
    /// SSLRequest.
    Postgresql,
    /// The SSL request packet, also of MariaDB.
    Mysql,
    /// `<starttls/>` (RFC 6120, section 5).
    Xmpp,
    /// CONNECT to a proxy (RFC 9110, section 9.3.6).
    HttpConnect,
    /// A protocol that is not known: a ClientHello came where the client's turn was.
    Other,
}

/// The OID of LDAP's StartTLS, as it stands in the request.
const LDAP_START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

/// Tags of LDAP (RFC 4511, sections 4.1.1 and 4.12): a message, its number, the extended request,
/// the name of it.
const LDAP_MESSAGE: u8 = 0x30;
const LDAP_NUMBER: u8 = 0x02;
const LDAP_EXTENDED: u8 = 0x77;
const LDAP_NAME: u8 = 0x80;

/// Messages that a client may send without waiting for an answer before the one that is sought.
const MAX_LDAP_MESSAGES: usize = 128;

/// Tags from the end that are looked at for XMPP's.
const MAX_XML_TAGS: usize = 16;

/// PostgreSQL's SSLRequest: length 8, and a number that is no version.
const POSTGRESQL_SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// MySQL's SSL request: length 32, packet number 1; then capabilities with CLIENT_SSL.
const MYSQL_HEADER: [u8; 4] = [32, 0, 0, 1];
const MYSQL_CLIENT_SSL: u8 = 0x08;
const MYSQL_SSL_REQUEST_LEN: usize = 36;

/// How far from the end a line or a tag may begin.
const MAX_SEARCHED: usize = 1024;

impl Upgrade {
    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smtp => "smtp",
            Self::Imap => "imap",
            Self::Pop3 => "pop3",
            Self::Ftp => "ftp",
            Self::Ldap => "ldap",
            Self::Postgresql => "postgresql",
            Self::Mysql => "mysql",
            Self::Xmpp => "xmpp",
            Self::HttpConnect => "http_connect",
            Self::Other => "other",
        }
    }

    /// What the bytes that a client has sent since the server spoke last ask for.
    pub(crate) fn asked_by(sent: &[u8]) -> Option<Self> {
        if sent.starts_with(b"CONNECT ") {
            return Some(Self::HttpConnect);
        }
        if sent.ends_with(&POSTGRESQL_SSL_REQUEST) {
            return Some(Self::Postgresql);
        }
        if is_mysql_request(sent) {
            return Some(Self::Mysql);
        }
        let tail = &sent[sent.len().saturating_sub(MAX_SEARCHED)..];
        if ldap_operations(sent).any(is_ldap_start_tls) {
            return Some(Self::Ldap);
        }
        if tail.ends_with(b">") && xml_tags(tail).any(|tag| tag.starts_with(b"starttls")) {
            return Some(Self::Xmpp);
        }
        last_line(tail).and_then(Self::asked_by_line)
    }

    /// Whether a message of a client may end here, and TLS begin, without an answer.
    pub(crate) fn may_follow(sent: &[u8]) -> bool {
        sent.ends_with(b"\n")
            || sent.ends_with(b">")
            || sent.len() == MYSQL_SSL_REQUEST_LEN && is_mysql_request(sent)
            || sent.len().is_multiple_of(8) && sent.ends_with(&POSTGRESQL_SSL_REQUEST)
    }

    fn asked_by_line(line: &[u8]) -> Option<Self> {
        let mut words =
            line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let is = |word: Option<&[u8]>, name: &str| {
            word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
        };
        let (first, second) = (words.next(), words.next());
        if is(first, "STARTTLS") {
            Some(Self::Smtp)
        } else if is(first, "STLS") {
            Some(Self::Pop3)
        } else if is(first, "AUTH")
            && ["TLS", "SSL", "TLS-C", "TLS-P"].iter().any(|name| is(second, name))
        {
            Some(Self::Ftp)
        } else if is(second, "STARTTLS") {
            Some(Self::Imap)
        } else {
            None
        }
    }
}

fn is_mysql_request(sent: &[u8]) -> bool {
    sent.len() >= MYSQL_SSL_REQUEST_LEN
        && sent.starts_with(&MYSQL_HEADER)
        && sent[5] & MYSQL_CLIENT_SSL != 0
}

/// The last line, when the bytes end with one.
fn last_line(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes.strip_suffix(b"\n")?;
    let start = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Some(&line[start..])
}

/// What a client asks for in each of its messages, as far as they are there and in order: from the
/// operation's tag on. Their lengths say where the next one begins, so that nothing is searched
/// through.
fn ldap_operations(sent: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = sent;
    core::iter::from_fn(move || {
        let (content, len) = ber(rest, LDAP_MESSAGE)?;
        rest = content.get(len..).unwrap_or(&[]);
        let (number, len) = ber(content.get(..len).unwrap_or(content), LDAP_NUMBER)?;
        number.get(len..)
    })
    .take(MAX_LDAP_MESSAGES)
}

fn is_ldap_start_tls(operation: &[u8]) -> bool {
    ber(operation, LDAP_EXTENDED)
        .and_then(|(request, _)| ber(request, LDAP_NAME))
        .is_some_and(|(name, len)| name.get(..len) == Some(LDAP_START_TLS))
}

/// The bytes behind a tag and its length (X.690, section 8.1.3), and that length. Servers also take
/// lengths in more bytes than they need.
fn ber(bytes: &[u8], tag: u8) -> Option<(&[u8], usize)> {
    let rest = bytes.strip_prefix(&[tag])?;
    let (&first, rest) = rest.split_first()?;
    let more = match first {
        0..=0x7f => return Some((rest, first.into())),
        // No message of indefinite length is allowed (RFC 4511, section 5.1).
        0x81..=0x88 => usize::from(first & 0x7f),
        _ => return None,
    };
    let (len, rest) = rest.split_at_checked(more)?;
    let len = len
        .iter()
        .try_fold(0usize, |len, byte| Some(len.checked_mul(256)? + usize::from(*byte)))?;
    Some((rest, len))
}

/// The last tags of a piece of XML, without what begins them.
fn xml_tags(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.rsplit(|byte| *byte == b'<').take(MAX_XML_TAGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_clients_send() {
        let mut mysql = vec![32, 0, 0, 1, 0x85, 0xae, 0xff, 0x19, 0, 0, 0, 1, 45];
        mysql.resize(36, 0);
        let ldap = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";
        for (sent, upgrade) in [
            (&b"EHLO x\r\nstarttls\r\n"[..], Upgrade::Smtp),
            (b"a001 STARTTLS\r\n", Upgrade::Imap),
            (b"STLS\n", Upgrade::Pop3),
            (b"AUTH  ssl \r\n", Upgrade::Ftp),
            (ldap, Upgrade::Ldap),
            (&POSTGRESQL_SSL_REQUEST, Upgrade::Postgresql),
            (&mysql, Upgrade::Mysql),
            (b"<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>", Upgrade::Xmpp),
            (b"CONNECT a.test:443 HTTP/1.1\r\n\r\n", Upgrade::HttpConnect),
        ] {
            assert_eq!(Upgrade::asked_by(sent), Some(upgrade), "{}", upgrade.name());
        }
    }

    #[test]
    fn accepts_an_ldap_request_as_servers_take_it() {
        let name = LDAP_START_TLS;
        let request = |parts: &[&[u8]]| {
            assert_eq!(Upgrade::asked_by(&parts.concat()), Some(Upgrade::Ldap), "{parts:x?}");
        };
        // Lengths in more bytes than they need.
        request(&[b"\x30\x84\0\0\0\x25\x02\x02\0\x01\x77\x82\0\x1b\x80\x83\0\0\x16", name]);
        // Behind other messages, short and long ones.
        let abandon = b"\x30\x06\x02\x01\x01\x50\x01\x01";
        let start_tls = [&b"\x30\x1d\x02\x01\x01\x77\x18\x80\x16"[..], name].concat();
        request(&[&abandon.repeat(100), &start_tls]);
        let long = [&b"\x30\x82\x10\0\x02\x01\x01\x63"[..], &[b'x'; 4092]].concat();
        request(&[&long, &start_tls]);
        // Nothing else names it.
        for other in [&b"\x30\x80"[..], b"\x30\x1d\x03\x01\x01\x77\x18\x80\x16", b"\x30\x1d"] {
            assert_eq!(Upgrade::asked_by(&[other, name].concat()), None);
        }
    }

    #[test]
    fn refuses_to_search_what_looks_like_the_protocol() {
        let abandon = b"\x30\x06\x02\x01\x01\x50\x01\x01";
        for sent in [vec![0x30; 1 << 14], abandon.repeat(2000), b"\x30\0".repeat(8000)] {
            assert!(ldap_operations(&sent).count() <= MAX_LDAP_MESSAGES);
        }
        assert!(xml_tags(&[b'<'; 1 << 14]).count() <= MAX_XML_TAGS);
    }

    #[test]
    fn refuses_what_asks_for_nothing() {
        for sent in [
            &b""[..],
            b"\n",
            b"STARTTLS",
            b"AUTH PLAIN\r\n",
            b"GET /STARTTLS HTTP/1.1\r\n\r\n",
            b"AUTH TLS\r\nQUIT\r\n",
            b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\x00\x80\x00",
            &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30],
            &[0; 36],
        ] {
            assert_eq!(Upgrade::asked_by(sent), None, "{sent:?}");
        }
    }
}
