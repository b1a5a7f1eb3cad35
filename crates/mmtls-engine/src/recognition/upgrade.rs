//! How a client asks for TLS inside of another protocol, by what it has just sent.
//!
//! Refuses to judge the server's answer: a client that was refused goes on without TLS, and that
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

/// PostgreSQL's SSLRequest: length 8, and a number that is no version.
const POSTGRESQL_SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// MySQL's SSL request: length 32, packet number 1; then capabilities with CLIENT_SSL.
const MYSQL_HEADER: [u8; 4] = [32, 0, 0, 1];
const MYSQL_CLIENT_SSL: u8 = 0x08;
const MYSQL_SSL_REQUEST_LEN: usize = 36;

/// Longest message that is searched for a name in the middle of it.
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
        let head = sent.get(..MAX_SEARCHED).unwrap_or(sent);
        let tail = &sent[sent.len().saturating_sub(MAX_SEARCHED)..];
        if head.first() == Some(&0x30) && contains(head, LDAP_START_TLS) {
            return Some(Self::Ldap);
        }
        if tail.ends_with(b">") && contains(tail, b"<starttls") {
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

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
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
