//! ClientHello and ServerHello (RFC 8446, sections 4.1.2 and 4.1.3), what an observer needs.
//!
//! Refuses messages whose lengths contradict each other; unknown numbers and extensions pass.

use crate::{CipherSuite, ExtensionType, ProtocolVersion};

/// `ServerHello.random` of a HelloRetryRequest (RFC 8446, section 4.1.3).
const HELLO_RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Most ALPN names kept of one hello.
const MAX_ALPN: usize = 16;

/// A message's lengths contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// What is kept of a ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientHello {
    pub random: [u8; 32],
    pub session_id: Vec<u8>,
    pub server_name: Option<String>,
    pub alpn: Vec<Vec<u8>>,
    pub offers_psk: bool,
    pub offers_early_data: bool,
    /// It has an encrypted ClientHello in it, or what looks like one (RFC 9849, section 5 and 6.2): where the server opens
    /// that, the session's secrets are known by another random.
    pub offers_ech: bool,
}

/// What is kept of a ServerHello.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerHello {
    pub random: [u8; 32],
    pub session_id: Vec<u8>,
    pub version: ProtocolVersion,
    pub cipher_suite: CipherSuite,
    /// 0 is none.
    pub compression: u8,
    /// Which of the offered pre-shared keys it takes.
    pub selected_psk: Option<u16>,
    pub encrypt_then_mac: bool,
    /// The chosen protocol, in TLS 1.2.
    pub alpn: Option<Vec<u8>>,
}

/// What is kept of EncryptedExtensions (RFC 8446, section 4.3.1).
#[derive(Debug, PartialEq, Eq)]
pub struct EncryptedExtensions {
    pub alpn: Option<Vec<u8>>,
    pub accepts_early_data: bool,
}

impl ServerHello {
    /// Whether this is in truth a HelloRetryRequest.
    pub fn is_hello_retry(&self) -> bool {
        self.random == HELLO_RETRY_RANDOM
    }
}

impl ClientHello {
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        reader.u16()?;
        let mut hello = Self {
            random: reader.array()?,
            session_id: reader.vector8()?.0.to_vec(),
            server_name: None,
            alpn: Vec::new(),
            offers_psk: false,
            offers_early_data: false,
            offers_ech: false,
        };
        reader.vector16()?; // cipher_suites
        reader.vector8()?; // legacy_compression_methods
        let mut extensions = reader.optional_extensions()?;
        while let Some((kind, mut data)) = extensions.extension()? {
            match kind {
                ExtensionType::SERVER_NAME => hello.server_name = data.host_name()?,
                ExtensionType::ALPN => hello.alpn = data.protocol_names()?,
                ExtensionType::PRE_SHARED_KEY => hello.offers_psk = true,
                ExtensionType::EARLY_DATA => hello.offers_early_data = true,
                ExtensionType::ENCRYPTED_CLIENT_HELLO => {
                    hello.offers_ech = data.array().ok() == Some([0]);
                }
                _ => {}
            }
        }
        Ok(hello)
    }
}

impl ServerHello {
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let legacy_version = ProtocolVersion(reader.u16()?);
        let random = reader.array()?;
        let is_draft = is_early_draft(legacy_version);
        let session_id = if is_draft { Vec::new() } else { reader.vector8()?.0.to_vec() };
        let cipher_suite = CipherSuite(reader.u16()?);
        let [compression] = if is_draft { [0] } else { reader.array()? };
        let mut hello = Self {
            random,
            session_id,
            version: legacy_version,
            cipher_suite,
            compression,
            selected_psk: None,
            encrypt_then_mac: false,
            alpn: None,
        };
        let mut extensions = reader.optional_extensions()?;
        while let Some((kind, mut data)) = extensions.extension()? {
            match kind {
                ExtensionType::SUPPORTED_VERSIONS => hello.version = ProtocolVersion(data.u16()?),
                ExtensionType::PRE_SHARED_KEY => hello.selected_psk = Some(data.u16()?),
                ExtensionType::ALPN => hello.alpn = data.protocol_names()?.pop(),
                ExtensionType::ENCRYPT_THEN_MAC => hello.encrypt_then_mac = true,
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// Whether a ServerHello is of a draft of TLS 1.3 up to the 21st, which had neither session nor compression.
pub(crate) const fn is_early_draft(legacy_version: ProtocolVersion) -> bool {
    legacy_version.0 >> 8 == 0x7f
}

impl EncryptedExtensions {
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let mut extensions = reader.vector16()?;
        reader.end()?;
        let mut parsed = Self { alpn: None, accepts_early_data: false };
        while let Some((kind, mut data)) = extensions.extension()? {
            match kind {
                ExtensionType::ALPN => parsed.alpn = data.protocol_names()?.pop(),
                ExtensionType::EARLY_DATA => parsed.accepts_early_data = true,
                _ => {}
            }
        }
        Ok(parsed)
    }
}

/// A borrowing reader over length-prefixed fields.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What has not been read.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Refuses bytes that are left over.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn vector8(&mut self) -> Result<Self, Malformed> {
        let [len] = self.array()?;
        self.take(usize::from(len)).map(Self)
    }

    pub fn vector16(&mut self) -> Result<Self, Malformed> {
        let len = self.u16()?;
        self.take(usize::from(len)).map(Self)
    }

    pub fn vector24(&mut self) -> Result<Self, Malformed> {
        let [a, b, c] = self.array()?;
        self.take(u32::from_be_bytes([0, a, b, c]) as usize).map(Self)
    }

    /// The extension block; TLS 1.2 hellos may end before it.
    pub(crate) fn optional_extensions(&mut self) -> Result<Self, Malformed> {
        if self.0.is_empty() {
            return Ok(Self(&[]));
        }
        let extensions = self.vector16()?;
        self.end()?;
        Ok(extensions)
    }

    pub(crate) fn extension(&mut self) -> Result<Option<(ExtensionType, Self)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let kind = ExtensionType(self.u16()?);
        Ok(Some((kind, self.vector16()?)))
    }

    /// The host_name entry of a server_name extension (RFC 6066, section 3).
    fn host_name(&mut self) -> Result<Option<String>, Malformed> {
        let mut list = self.vector16()?;
        while !list.0.is_empty() {
            let [kind] = list.array()?;
            let name = list.vector16()?.0;
            let legal = (1..=253).contains(&name.len())
                && name.iter().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(b));
            if kind == 0 && legal {
                return Ok(core::str::from_utf8(name).ok().map(str::to_ascii_lowercase));
            }
        }
        Ok(None)
    }

    fn protocol_names(&mut self) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut list = self.vector16()?;
        let mut names = Vec::new();
        while !list.0.is_empty() {
            let name = list.vector8()?.0;
            if names.len() < MAX_ALPN {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_hello() -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 2, 1, 0]);
        let mut extensions = vec![0, 0, 0, 16, 0, 14, 0, 0, 11];
        extensions.extend_from_slice(b"Server.TEST");
        extensions.extend_from_slice(&[0, 16, 0, 5, 0, 3, 2, b'h', b'2', 0, 42, 0, 0]);
        body.extend_from_slice(&u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend_from_slice(&extensions);
        body
    }

    #[test]
    fn accepts_a_client_hello() {
        let hello = ClientHello::parse(&client_hello()).unwrap();
        assert_eq!(hello.random, [7; 32]);
        assert_eq!(hello.server_name.as_deref(), Some("server.test"));
        assert_eq!(hello.alpn, [b"h2"]);
        assert!(hello.offers_early_data && !hello.offers_psk);
    }

    #[test]
    fn refuses_every_truncation() {
        let body = client_hello();
        for len in 0..body.len() {
            // A cut right before the extension block is a legal TLS 1.2 hello.
            assert_eq!(ClientHello::parse(&body[..len]).is_err(), len != 41, "{len}");
        }
    }

    #[test]
    fn accepts_a_hello_retry_request() {
        let mut body = vec![3, 3];
        body.extend_from_slice(&HELLO_RETRY_RANDOM);
        body.extend_from_slice(&[0, 0x13, 1, 0, 0, 6, 0, 43, 0, 2, 3, 4]);
        let hello = ServerHello::parse(&body).unwrap();
        assert!(hello.is_hello_retry());
        assert_eq!(hello.version, ProtocolVersion::TLS_1_3);
        for len in 0..body.len() {
            assert_eq!(ServerHello::parse(&body[..len]).is_err(), len != 38, "{len}");
        }
    }
}
