//! One way to an opener for every version and suite. Refuses what [`suite`] does not list.

use mmtls_tls::OpenRecord;

use crate::suite::{self, TLS13};
use crate::tls12::{AeadOpener, cbc::CbcOpener};
use crate::{KeyError, Tls13Opener};

/// Sets up the read keys of one direction and epoch: key, IV and MAC key as they come out of the
/// key schedule ([`crate::key_schedule::RecordKeys`]), so `mac_key` is empty but for CBC suites
/// and `iv` is empty for those.
///
/// `version` is the negotiated one, [`suite::TLS12`] or [`suite::TLS13`].
///
/// # Errors
/// [`KeyError`] when version or suite is not supported or a length is wrong.
pub fn open_record(
    version: u16,
    suite: u16,
    key: &[u8],
    iv: &[u8],
    mac_key: &[u8],
) -> Result<Box<dyn OpenRecord>, KeyError> {
    let found = suite::find(version, suite)?;
    found.check(key, iv, mac_key)?;
    Ok(if version == TLS13 {
        Box::new(Tls13Opener::new(suite, key, iv)?)
    } else if found.cipher().is_cbc() {
        Box::new(CbcOpener::new(found, key, mac_key)?)
    } else {
        Box::new(AeadOpener::new(found, key, iv)?)
    })
}
