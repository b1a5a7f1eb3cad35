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

/// What XMPP's request begins with.
const XMPP_START_TLS: &[u8] = b"<starttls";

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
        UpgradeSearch::default().asked_by(sent)
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

/// What a client's turn asks for in front of several places in it, each behind the last. Its sender decides how many
/// places look like a hello, so each byte is looked at a few times, however many are asked about.
#[derive(Default)]
pub(super) struct UpgradeSearch {
    /// Where LDAP's next message begins that has not been looked at whole, and how many are in front of it.
    ldap_at: usize,
    ldap_messages: usize,
    ldap_found: bool,
    /// How far XMPP's request was sought, and where the last one begins.
    xmpp_at: usize,
    xmpp_found: Option<usize>,
}

impl UpgradeSearch {
    /// What the turn asks for that begins with these bytes, at least as many as the last time.
    pub(super) fn asked_by(&mut self, sent: &[u8]) -> Option<Upgrade> {
        if sent.starts_with(b"CONNECT ") {
            return Some(Upgrade::HttpConnect);
        }
        if sent.ends_with(&POSTGRESQL_SSL_REQUEST) {
            return Some(Upgrade::Postgresql);
        }
        if is_mysql_request(sent) {
            return Some(Upgrade::Mysql);
        }
        if self.is_ldap(sent) {
            return Some(Upgrade::Ldap);
        }
        if sent.ends_with(b">") && self.is_xmpp(sent) {
            return Some(Upgrade::Xmpp);
        }
        // Lines do not overlap.
        let tail = &sent[sent.len().saturating_sub(MAX_SEARCHED)..];
        last_line(tail).and_then(Upgrade::asked_by_line)
    }

    /// Whether one of the messages so far is the request. Their lengths say where the next one begins, so that
    /// nothing is searched through.
    fn is_ldap(&mut self, sent: &[u8]) -> bool {
        while !self.ldap_found && self.ldap_messages < MAX_LDAP_MESSAGES {
            let Some((content, len)) = ber(&sent[self.ldap_at..], LDAP_MESSAGE) else {
                return false;
            };
            let message = content.get(..len);
            let number = ber(message.unwrap_or(content), LDAP_NUMBER);
            let Some(operation) = number.and_then(|(number, len)| number.get(len..)) else {
                return false;
            };
            self.ldap_found = is_ldap_start_tls(operation);
            if message.is_none() {
                break;
            }
            self.ldap_at = sent.len() - (content.len() - len);
            self.ldap_messages += 1;
        }
        self.ldap_found
    }

    fn is_xmpp(&mut self, sent: &[u8]) -> bool {
        let from = self.xmpp_at;
        let found = sent[from..].windows(XMPP_START_TLS.len()).rposition(|it| it == XMPP_START_TLS);
        self.xmpp_found = found.map_or(self.xmpp_found, |at| Some(from + at));
        // The next one may have begun.
        self.xmpp_at = from.max((sent.len() + 1).saturating_sub(XMPP_START_TLS.len()));
        self.xmpp_found.is_some_and(|at| sent.len() - at <= MAX_SEARCHED)
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
    fn accepts_the_same_in_front_of_each_place_however_many_are_asked_about() {
        let ldap = [
            &b"\x30\x06\x02\x01\x01\x50\x01\x01".repeat(3),
            &b"\x30\x1d\x02\x01\x01\x77\x18\x80\x16"[..],
            LDAP_START_TLS,
        ];
        let stream = b"<stream xmlns='a'><starttls xmlns='b'/><presence/>";
        let far = [&stream[..], &[b' '; MAX_SEARCHED], b">", stream, b">"].concat();
        for sent in [
            &ldap.concat()[..],
            &far,
            b"EHLO x\r\nSTARTTLS\r\nQUIT\r\nAUTH TLS\r\n\0\0\0\x08\x04\xd2\x16\x2fa STARTTLS\n",
        ] {
            for step in 1..sent.len() {
                let mut search = UpgradeSearch::default();
                for end in (0..=sent.len()).step_by(step) {
                    let asked = search.asked_by(&sent[..end]);
                    assert_eq!(asked, Upgrade::asked_by(&sent[..end]), "{end} in steps of {step}");
                }
            }
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
