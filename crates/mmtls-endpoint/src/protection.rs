//! Records with both tags, behind rustls' interfaces.
//!
//! rustls gives a record's fragment without its header, and the private tag covers the header
//! too, in front. So a record is put together in a buffer of its own, out of place on both ways:
//! one copy more than without the tag.
//!
//! Refuses to protect or accept anything when the private-tag key is not there.

use mmtls_record::private_tag::PRIVATE_TAG_LEN;
use mmtls_record::{PrivateTagOpener, PrivateTagSealer};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter,
    OutboundChunks, OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload,
    Tls13AeadAlgorithm, UnsupportedOperationError, make_tls13_aad,
};
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion};

use crate::hkdf;

/// Bytes of a record header.
const HEADER_LEN: usize = 5;

/// The AEAD of a suite with a private tag.
pub struct PrivateTagAead {
    pub suite: u16,
    pub key_len: usize,
}

impl Tls13AeadAlgorithm for PrivateTagAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        let private = hkdf::take_private_key(self.suite, key.as_ref());
        let sealer = private.and_then(|private| {
            PrivateTagSealer::new(self.suite, key.as_ref(), iv.as_ref(), &private).ok()
        });
        Box::new(Encrypter { sealer, record: Vec::new(), flat: Vec::new() })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        let private = hkdf::take_private_key(self.suite, key.as_ref());
        let opener = private.and_then(|private| {
            PrivateTagOpener::new(self.suite, key.as_ref(), iv.as_ref(), &private).ok()
        });
        Box::new(Decrypter { opener, record: Vec::new() })
    }

    fn key_len(&self) -> usize {
        self.key_len
    }

    fn extract_keys(
        &self,
        _key: AeadKey,
        _iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        // For kernels, which know nothing of a second tag.
        Err(UnsupportedOperationError)
    }
}

struct Encrypter {
    /// `None` when the private-tag key was not there, which rustls' order of calls rules out.
    sealer: Option<PrivateTagSealer>,
    record: Vec<u8>,
    flat: Vec<u8>,
}

impl MessageEncrypter for Encrypter {
    fn encrypt(
        &mut self,
        msg: OutboundPlainMessage<'_>,
        seq: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let sealer = self.sealer.as_ref().ok_or(Error::EncryptError)?;
        let content = match msg.payload {
            OutboundChunks::Single(content) => content,
            chunks @ OutboundChunks::Multiple { .. } => {
                self.flat.clear();
                chunks.copy_to_vec(&mut self.flat);
                &self.flat
            }
        };
        let kind = mmtls_record::ContentType(msg.typ.into());
        sealer.seal_into(seq, kind, content, 0, &mut self.record).ok_or(Error::EncryptError)?;
        let fragment = self.record.get(HEADER_LEN..).ok_or(Error::EncryptError)?;
        Ok(OutboundOpaqueMessage::new(
            ContentType::ApplicationData,
            // What every TLS 1.3 record says (RFC 8446, section 5.1).
            ProtocolVersion::TLSv1_2,
            PrefixedPayload::from(fragment),
        ))
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        match &self.sealer {
            Some(sealer) => sealer.fragment_len(payload_len),
            None => payload_len + 1 + 2 * PRIVATE_TAG_LEN,
        }
    }
}

struct Decrypter {
    opener: Option<PrivateTagOpener>,
    record: Vec<u8>,
}

impl MessageDecrypter for Decrypter {
    fn decrypt<'a>(
        &mut self,
        mut msg: InboundOpaqueMessage<'a>,
        seq: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let opener = self.opener.as_ref().ok_or(Error::DecryptError)?;
        // The tag covers the header, of which rustls takes others, too. All have this one (RFC 8446, section 5.2).
        if (msg.typ, msg.version) != (ContentType::ApplicationData, ProtocolVersion::TLSv1_2) {
            return Err(Error::DecryptError);
        }
        let fragment = &mut msg.payload;
        self.record.clear();
        self.record.extend_from_slice(&make_tls13_aad(fragment.len()));
        self.record.extend_from_slice(fragment);
        // rustls makes bad_record_mac of this error (RFC 8446, section 5.2).
        let len = opener.decrypt(seq, &self.record, fragment).map_err(|_| Error::DecryptError)?;
        fragment.truncate(len);
        msg.into_tls13_unpadded_message()
    }
}
