//! What is said before TLS, by protocol, as real clients and servers say it.
//!
//! Refuses to speak TLS: whoever uses a dialog appends it.

/// A conversation in the clear that ends where the client begins with TLS.
pub struct Dialog {
    /// The protocol's name, as `eve.json` has it.
    pub name: &'static str,
    /// The turns; whether the client speaks, and what is said.
    pub turns: Vec<(bool, Vec<u8>)>,
}

/// One dialog per protocol, and some with detours.
#[must_use]
pub fn dialogs() -> Vec<Dialog> {
    let ldap_request = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";
    let ldap_answer = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00";
    let mut mysql_greeting = b"\x4a\0\0\0\x0a8.0.36\0".to_vec();
    mysql_greeting.resize(78, 7);
    let mut mysql_request = vec![32, 0, 0, 1, 0x85, 0xae, 0xff, 0x19, 0, 0, 0, 1, 45];
    mysql_request.resize(36, 0);
    let xmpp = b"<?xml version='1.0'?><stream:stream to='a.test' xmlns='jabber:client' \
        xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>";
    let features = b"<stream:features><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'>\
        <required/></starttls></stream:features>";
    [
        (
            "smtp",
            vec![
                &b"<220 mail.test ESMTP\r\n"[..],
                b">EHLO a.test\r\n",
                b"<250-mail.test\r\n250-PIPELINING\r\n250 STARTTLS\r\n",
                b">STARTTLS\r\n",
                b"<220 2.0.0 Ready to start TLS\r\n",
            ],
        ),
        (
            "smtp",
            vec![
                &b"<220 mail.test ESMTP\r\n"[..],
                b">STARTTLS\r\n",
                b"<454 not now\r\n",
                b">NOOP\r\n",
                b"<250 ok\r\n",
                b">starttls \r\n",
                b"<220 go\r\n",
            ],
        ),
        (
            "imap",
            vec![
                &b"<* OK [CAPABILITY IMAP4rev1 STARTTLS] ready\r\n"[..],
                b">. CAPABILITY\r\n",
                b"<* CAPABILITY IMAP4rev1 STARTTLS\r\n. OK done\r\n",
                b">. STARTTLS\r\n",
                b"<. OK begin TLS\r\n",
            ],
        ),
        ("pop3", vec![&b"<+OK ready\r\n"[..], b">STLS\r\n", b"<+OK begin\r\n"]),
        ("ftp", vec![&b"<220 ready\r\n"[..], b">AUTH TLS\r\n", b"<234 proceed\r\n"]),
        (
            "ldap",
            vec![
                [b">", &ldap_request[..]].concat().leak(),
                [b"<", &ldap_answer[..]].concat().leak(),
            ],
        ),
        ("postgresql", vec![&b">\0\0\0\x08\x04\xd2\x16\x2f"[..], b"<S"]),
        (
            "postgresql",
            vec![&b">\0\0\0\x08\x04\xd2\x16\x30"[..], b"<N", b">\0\0\0\x08\x04\xd2\x16\x2f", b"<S"],
        ),
        (
            "mysql",
            vec![
                [b"<", &mysql_greeting[..]].concat().leak(),
                [b">", &mysql_request[..]].concat().leak(),
            ],
        ),
        (
            "xmpp",
            vec![
                [b">", &xmpp[..]].concat().leak(),
                [b"<", &xmpp[..], features].concat().leak(),
                b"><starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>",
                b"<<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>",
            ],
        ),
        (
            "http_connect",
            vec![
            &b">CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"[..],
            b"<HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            b">CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nProxy-Authorization: x\r\n\r\n",
            b"<HTTP/1.1 200 Connection established\r\n\r\n",
        ],
        ),
        // SOCKS 5, and ManageSieve's answer to STARTTLS is all that tells it from SMTP.
        (
            "other",
            vec![
                &b">\x05\x01\x00"[..],
                b"<\x05\x00",
                b">\x05\x01\x00\x03\x06a.test\x01\xbb",
                b"<\x05\x00\x00\x01\0\0\0\0\0\0",
            ],
        ),
    ]
    .into_iter()
    .map(|(name, turns)| Dialog {
        name,
        turns: turns
            .into_iter()
            .map(|turn| match turn.split_first() {
                Some((b'>', bytes)) => (true, bytes.to_vec()),
                Some((_, bytes)) => (false, bytes.to_vec()),
                None => (false, Vec::new()),
            })
            .collect(),
    })
    .collect()
}
