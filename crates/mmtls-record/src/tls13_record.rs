//! What a protected record of TLS 1.3 is made of (RFC 8446, section 5.2), for all that seal or open one.
//!
//! Refuses fragments without room for their tags, and inner plaintexts without a content type, with too much content, or
//! that no peer would take.

use mmtls_tls::{ContentType, OpenError, Opened};

use crate::KeyError;
use crate::aead::{AeadKey, Iv};
use crate::suite::{self, TLS13};

/// Longest content of one record in bytes (RFC 8446, section 5.1; RFC 5246, section 6.2.1).
pub(crate) const MAX_CONTENT_LEN: usize = 16384;

/// Ciphertext and tag of a fragment, whose private tag is left out.
pub(crate) fn split(fragment: &[u8], tag: usize, private_tag: usize) -> Option<(&[u8], &[u8])> {
    let protected = fragment.get(..fragment.len().checked_sub(private_tag)?)?;
    protected.split_at_checked(protected.len().checked_sub(tag)?)
}

/// What an authentic TLSInnerPlaintext holds: content, content type, zeros (RFC 8446, section
/// 5.2).
pub(crate) fn content(inner: &[u8]) -> Result<Opened, OpenError> {
    let type_at = inner.iter().rposition(|&byte| byte != 0).ok_or(OpenError::Malformed)?;
    if type_at > MAX_CONTENT_LEN {
        return Err(OpenError::Malformed);
    }
    let content_type = ContentType(inner[type_at]);
    // Section 5.1; of a heartbeat (RFC 6520) nobody would be told. Whoever makes records that open under other keys, too, has
    // noise under those: it must not pass for something that is shown to nobody.
    let is_legal = match content_type {
        ContentType::APPLICATION_DATA => true,
        ContentType::HANDSHAKE => type_at > 0,
        ContentType::ALERT => type_at == 2,
        _ => false,
    };
    if is_legal { Ok(Opened { content_type, len: type_at }) } else { Err(OpenError::Malformed) }
}

/// Record key and IV of a suite, set up.
pub(crate) fn aead_key(suite: u16, key: &[u8], iv: &[u8]) -> Result<(AeadKey, Iv), KeyError> {
    let suite = suite::find(TLS13, suite)?;
    suite.check(key, iv, &[])?;
    Ok((AeadKey::new(suite.cipher(), key)?, Iv::new(iv)?))
}
