//! Encrypted Client Hello as it is on the wire (RFC 9849): the sealed hello in another one, and the configuration that
//! both sides have of the server.
//!
//! Refuses messages whose lengths contradict each other. What is sealed is opened elsewhere.

use core::ops::Range;

use crate::ExtensionType;
use crate::hello::{Malformed, Reader};

/// The extension in the hello on the wire (RFC 9849, section 5), or what looks like it: its type is `outer`.
#[derive(Debug, PartialEq, Eq)]
pub struct SealedHello {
    /// How the key is derived (RFC 9180, section 7.2).
    pub kdf: u16,
    /// What it is sealed with (RFC 9180, section 7.3).
    pub aead: u16,
    /// Which of the server's configurations it is for.
    pub config_id: u8,
    /// Where in the message's body the sealed bytes are.
    pub payload: Range<usize>,
}

impl SealedHello {
    /// Finds it in the body of a ClientHello.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn find(body: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader::new(body);
        reader.u16()?;
        reader.array::<32>()?;
        reader.vector8()?; // legacy_session_id
        reader.vector16()?; // cipher_suites
        reader.vector8()?; // legacy_compression_methods
        let mut extensions = reader.optional_extensions()?;
        while let Some((kind, mut data)) = extensions.extension()? {
            if kind == ExtensionType::ENCRYPTED_CLIENT_HELLO {
                // The extensions are the end of the body, and the payload is the end of this one.
                let end = body.len() - extensions.rest().len();
                let [0] = data.array()? else {
                    return Ok(None);
                };
                let (kdf, aead, [config_id]) = (data.u16()?, data.u16()?, data.array()?);
                data.vector16()?; // enc
                let payload = data.vector16()?.rest();
                data.end()?;
                return Ok(Some(Self { kdf, aead, config_id, payload: end - payload.len()..end }));
            }
        }
        Ok(None)
    }
}

/// What is needed of an `ECHConfig` (RFC 9849, section 4).
#[derive(Debug, PartialEq, Eq)]
pub struct EchConfig {
    /// Its number at the server.
    pub id: u8,
    /// Which kind of key it has (RFC 9180, section 7.1).
    pub kem: u16,
}

impl EchConfig {
    /// Reads a single one, with version and length.
    ///
    /// # Errors
    /// [`Malformed`], also of other versions.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.u16()? != ExtensionType::ENCRYPTED_CLIENT_HELLO.0 {
            return Err(Malformed);
        }
        let mut contents = reader.vector16()?;
        reader.end()?;
        let ([id], kem) = (contents.array()?, contents.u16()?);
        contents.vector16()?; // public_key
        contents.vector16()?; // cipher_suites
        Ok(Self { id, kem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello with this extension between two others.
    fn hello(extension: &[u8]) -> Vec<u8> {
        let vector = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes(), bytes].concat();
        let extension = [&[0xfe, 0x0d][..], &vector(extension)].concat();
        let extensions = [&[0, 23, 0, 0][..], &extension, &[0, 43, 0, 3, 2, 3, 4]].concat();
        [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &vector(&extensions)].concat()
    }

    #[test]
    fn accepts_a_sealed_hello_and_tells_where_it_is() {
        let body = hello(&[0, 0, 1, 0, 3, 5, 0, 2, 8, 8, 0, 3, 9, 9, 9]);
        let sealed = SealedHello::find(&body).unwrap().unwrap();
        assert_eq!((sealed.kdf, sealed.aead, sealed.config_id), (1, 3, 5));
        assert_eq!(body[sealed.payload.clone()], [9; 3]);
        assert_eq!(sealed.payload.end, body.len() - 7);
        // A sealed hello says so of itself; and none is no fault.
        assert_eq!(SealedHello::find(&hello(&[1])), Ok(None));
        assert_eq!(SealedHello::find(&body[..41]), Ok(None));
    }

    #[test]
    fn refuses_lengths_that_contradict_each_other() {
        let body = hello(&[0, 0, 1, 0, 3, 5, 0, 2, 8, 8, 0, 3, 9, 9, 9]);
        for len in 0..body.len() {
            assert_eq!(SealedHello::find(&body[..len]).is_err(), len != 41, "{len}");
        }
        for extension in [&[][..], &[0, 0, 1], &[0, 0, 1, 0, 1, 5, 0, 0, 0, 2, 9], &[0; 12]] {
            assert_eq!(SealedHello::find(&hello(extension)), Err(Malformed), "{extension:?}");
        }
    }

    #[test]
    fn accepts_one_configuration_of_this_version() {
        let config = [0xfe, 0x0d, 0, 13, 7, 0, 0x20, 0, 2, 1, 1, 0, 4, 0, 1, 0, 1];
        assert_eq!(EchConfig::parse(&config), Ok(EchConfig { id: 7, kem: 0x20 }));
        for len in 0..config.len() {
            assert_eq!(EchConfig::parse(&config[..len]), Err(Malformed), "{len}");
        }
        assert_eq!(EchConfig::parse(&[&config[..], &[0]].concat()), Err(Malformed));
        assert_eq!(EchConfig::parse(&[&[0xfe, 0x0c], &config[2..]].concat()), Err(Malformed));
    }
}
