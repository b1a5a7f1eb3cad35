//! What rules may ask of a TLS handshake, from the records of both sides as they stand on the wire.
//!
//! Refuses to decrypt, and to keep handshake messages over a cap.

use mmtls::certificate::CertificateFacts;
use mmtls_middlebox::inspect::Side;
use mmtls_middlebox::inspect::detect::Facts;
use mmtls_middlebox::inspect::rules::Buffer;
use mmtls_middlebox::tls::{
    ClientHello, ContentType, Deframed, HandshakeType, MessageBuffer, Reader, ServerHello, deframe,
};

/// Most bytes of handshake messages that are kept of a side.
const MAX_MESSAGES: usize = 1 << 20;

/// Whether a connection begins as TLS: with a record of the handshake.
pub(super) fn begins(bytes: &[u8]) -> bool {
    matches!(bytes, [22] | [22, 3, ..])
}

/// A step of a handshake, after which rules may have something new to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// What a side tells, so far.
    Something(Side),
    /// All that a side tells before its records are encrypted.
    Everything(Side),
}

/// A handshake as it is seen.
#[derive(Default)]
pub(super) struct Handshake {
    sides: [Records; 2],
    server_name: Option<String>,
    offered: Vec<Vec<u8>>,
    version: Option<u16>,
    chosen: Option<Vec<u8>>,
    chains: [Vec<Vec<u8>>; 2],
    certificates: [Option<CertificateFacts>; 2],
    is_told: [bool; 2],
}

#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
    messages: MessageBuffer,
    /// What follows is encrypted, or cannot be read.
    is_over: bool,
}

impl Handshake {
    /// The next bytes of a side; says what is new.
    pub(super) fn data(&mut self, side: Side, bytes: &[u8]) -> Vec<Known> {
        let records = &mut self.sides[index(side)];
        if records.is_over {
            return Vec::new();
        }
        records.bytes.extend_from_slice(bytes);
        let mut known = Vec::new();
        let mut messages = Vec::new();
        let mut ends = false;
        loop {
            match deframe(&records.bytes) {
                Deframed::Record { header, fragment }
                    if header.content_type == ContentType::HANDSHAKE =>
                {
                    ends |= records.messages.push(fragment, MAX_MESSAGES).is_err();
                    let used = header.bytes.len() + header.fragment_len;
                    records.bytes.drain(..used);
                    while let Ok(Some(message)) = records.messages.pop(MAX_MESSAGES) {
                        messages.push(message);
                    }
                }
                Deframed::NeedMore(_) => break,
                // Nothing is read behind a change of the cipher, an alert or application data.
                Deframed::Record { .. } | Deframed::Malformed => ends = true,
            }
            if ends {
                break;
            }
        }
        for (kind, body) in messages {
            self.message(side, kind, &body, &mut known);
        }
        if ends {
            self.over(side, &mut known);
        }
        known
    }

    /// Nothing more comes of a side.
    pub(super) fn end(&mut self, side: Side) -> Vec<Known> {
        let mut known = Vec::new();
        self.over(side, &mut known);
        known
    }

    fn over(&mut self, side: Side, known: &mut Vec<Known>) {
        self.sides[index(side)] = Records { is_over: true, ..Records::default() };
        let told = &mut self.is_told[index(side)];
        if self.version.is_some() && !core::mem::replace(told, true) {
            known.push(Known::Everything(side));
        }
    }

    fn message(&mut self, side: Side, kind: HandshakeType, body: &[u8], known: &mut Vec<Known>) {
        match (side, kind) {
            (Side::Client, HandshakeType::CLIENT_HELLO) => {
                if let Ok(hello) = ClientHello::parse(body) {
                    self.server_name = hello.server_name;
                    self.offered = hello.alpn;
                    known.push(Known::Something(Side::Client));
                }
            }
            (Side::Server, HandshakeType::SERVER_HELLO) => {
                if let Ok(hello) = ServerHello::parse(body)
                    && !hello.is_hello_retry()
                {
                    self.version = Some(hello.version.0);
                    self.chosen = hello.alpn;
                    // Its certificate may follow.
                    known.push(Known::Something(Side::Client));
                    known.push(Known::Something(Side::Server));
                }
            }
            (_, HandshakeType::CERTIFICATE) => {
                let at = index(side);
                self.chains[at] = chain(body).unwrap_or_default();
                self.certificates[at] =
                    self.chains[at].first().map(|der| CertificateFacts::of(der));
                if !self.chains[at].is_empty() && !core::mem::replace(&mut self.is_told[at], true) {
                    known.push(Known::Everything(side));
                }
            }
            _ => {}
        }
    }

    /// What rules may ask of a side.
    pub(super) fn facts(&self, side: Side) -> SideFacts<'_> {
        SideFacts { handshake: self, side }
    }
}

fn index(side: Side) -> usize {
    usize::from(side == Side::Server)
}

/// The certificates of a message of TLS 1.2 or before (RFC 5246, section 7.4.2).
fn chain(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut list = Reader::new(body).vector24().ok()?;
    let mut chain = Vec::new();
    while !list.is_empty() {
        chain.push(list.vector24().ok()?.rest().to_vec());
    }
    Some(chain)
}

/// One side's part of a handshake.
pub(super) struct SideFacts<'a> {
    handshake: &'a Handshake,
    side: Side,
}

impl Facts for SideFacts<'_> {
    fn version(&self) -> Option<u16> {
        self.handshake.version
    }

    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        let it = self.handshake;
        let certificate = |text: fn(&CertificateFacts) -> Option<&str>| {
            it.certificates[index(self.side)].as_ref().and_then(text).map(str::as_bytes)
        };
        let single = match (buffer, self.side) {
            (Buffer::TlsSni, Side::Client) => it.server_name.as_deref().map(str::as_bytes),
            (Buffer::TlsAlpn, Side::Client) => {
                return it.offered.iter().for_each(|name| show(name));
            }
            (Buffer::TlsAlpn, Side::Server) => it.chosen.as_deref(),
            (Buffer::TlsCertSubject, _) => certificate(|it| it.subject.as_deref()),
            (Buffer::TlsCertIssuer, _) => certificate(|it| it.issuer.as_deref()),
            (Buffer::TlsCertSerial, _) => certificate(|it| it.serial.as_deref()),
            (Buffer::TlsCertFingerprint, _) => certificate(|it| it.fingerprint.as_deref()),
            (Buffer::TlsCerts, _) => {
                return it.chains[index(self.side)].iter().for_each(|der| show(der));
            }
            _ => None,
        };
        if let Some(single) = single {
            show(single);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        let message = [&[kind, 0, 0, body.len() as u8], body].concat();
        [&[22, 3, 3, 0, message.len() as u8], &message[..]].concat()
    }

    #[test]
    fn accepts_hellos_and_certificates_however_cut() {
        let name = b"\0\0\0\x06\0\x04\0\0\x01a";
        let mut hello = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
        hello.extend([&[0, name.len() as u8], &name[..]].concat());
        let server_hello = [&[3, 3][..], &[7; 32], &[0, 0xc0, 0x2f, 0]].concat();
        let certificate = [0, 0, 5, 0, 0, 2, 9, 9];
        let client = record(1, &hello);
        let server = [record(2, &server_hello), record(11, &certificate)].concat();
        let mut handshake = Handshake::default();
        let mut known = Vec::new();
        for (side, bytes) in [(Side::Client, client), (Side::Server, server)] {
            for byte in bytes {
                known.extend(handshake.data(side, &[byte]));
            }
        }
        known.extend(handshake.data(Side::Server, &[20, 3, 3, 0, 1, 1]));
        let expected = [
            Known::Something(Side::Client),
            Known::Something(Side::Client),
            Known::Something(Side::Server),
            Known::Everything(Side::Server),
        ];
        assert_eq!(known, expected);
        assert_eq!(handshake.end(Side::Client), [Known::Everything(Side::Client)]);
        let mut shown = Vec::new();
        let facts = handshake.facts(Side::Client);
        facts.each(Buffer::TlsSni, &mut |it| shown.push(it.to_vec()));
        handshake.facts(Side::Server).each(Buffer::TlsCerts, &mut |it| shown.push(it.to_vec()));
        assert_eq!((shown, facts.version()), (vec![b"a".to_vec(), vec![9, 9]], Some(0x0303)));
    }

    #[test]
    fn refuses_what_is_no_handshake() {
        assert!(!begins(b"GET") && !begins(b"\x16\x02") && begins(b"\x16\x03"));
        let mut handshake = Handshake::default();
        assert!(handshake.data(Side::Client, b"GET / HTTP/1.1").is_empty());
        assert!(handshake.end(Side::Server).is_empty());
    }
}
