//! From key logs to the keys that an engine wants.

pub use mmtls_keylog::inner::InnerRandoms;
pub use mmtls_keylog::{KeyLog, KeyLogReport, MAX_EPOCH, follow};

use mmtls_engine::tls::CipherSuite;
use mmtls_engine::{KeysNeeded, SharedKeys};
use mmtls_record::keyring::SessionParameters;

/// A key log that is still being written, and what engines wait for.
///
/// A key log is trusted as local: its keys need no sender's address, and whoever may write the file is believed. It
/// holds traffic secrets, on the middlebox, and is a last resort where the middlebox and the programs have the same owner.
pub type LiveKeys = mmtls_keylog::live::LiveKeys<KeysNeeded, SharedKeys>;

/// An empty one.
#[must_use]
pub fn live_keys() -> LiveKeys {
    LiveKeys::new(shared_keys_of)
}

/// The keys that an engine wants, if their secret is in the log.
#[must_use]
pub fn shared_keys(log: &KeyLog, wanted: &KeysNeeded) -> Option<SharedKeys> {
    shared_keys_of(log, wanted.client_random, wanted)
}

/// The same where the log has it under this random: that of the hello inside, with Encrypted Client Hello.
#[must_use]
pub fn shared_keys_of(
    log: &KeyLog,
    client_random: [u8; 32],
    wanted: &KeysNeeded,
) -> Option<SharedKeys> {
    let &KeysNeeded { server_random, direction, epoch, .. } = wanted;
    let open = |cipher_suite| {
        let version = wanted.version.0;
        let parameters = SessionParameters { version, cipher_suite, client_random, server_random };
        let opener = log.keyring(parameters, direction, epoch)?.open_record(direction, epoch);
        Some((CipherSuite(cipher_suite), opener.ok()?))
    };
    // Nothing on the wire tells the suite of early data: each one that the secret fits is
    // offered, and the records tell.
    let openers: Vec<_> = match wanted.cipher_suite {
        Some(suite) => open(suite.0).into_iter().collect(),
        None => log.candidate_suites(&client_random, direction, epoch).filter_map(open).collect(),
    };
    Some(SharedKeys {
        sender: None,
        source: 0,
        client_random: wanted.client_random,
        server_random,
        cipher_suite: openers.first()?.0,
        keys: openers.into_iter().map(|(_, opener)| (direction, epoch, opener)).collect(),
    })
}
