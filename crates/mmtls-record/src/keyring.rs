//! The secrets of one session in, its record keys out, by direction and epoch (RFC 8446, section 7; RFC 5246, section 6.3).
//!
//! The only place where secrets become record keys: an agent on an endpoint keeps a keyring for each session, and
//! whoever reads a key log makes one for each question. Traffic secrets stay, so that keys of later epochs can be derived.
//!
//! Refuses epochs before the secrets that it has, and to derive more KeyUpdates at once than it was made for.

mod updates;

use mmtls_tls::{Direction, KeyEpoch, OpenRecord};

use self::updates::Updates;
use crate::KeyError;
use crate::key_schedule::{MASTER_SECRET_LEN, RecordKeys, Secret, tls12_keys, traffic_keys};
use crate::open::open_record;
use crate::suite::{self, Suite, TLS12, TLS13};

/// What the keys of a session depend on besides its secrets. None of it is secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionParameters {
    /// The negotiated one: [`suite::TLS12`] or [`suite::TLS13`].
    pub version: u16,
    /// The negotiated one, or for early data that of the pre-shared key.
    pub cipher_suite: u16,
    /// From the ClientHello.
    pub client_random: [u8; 32],
    /// From the ServerHello; only TLS 1.2 derives keys from it.
    pub server_random: Option<[u8; 32]>,
}

/// The secrets of a session, wiped when dropped. Not `Debug` and not `Clone`.
pub struct Keyring {
    parameters: SessionParameters,
    max_updates: u32,
    /// The master secret of TLS 1.2.
    master: Option<Secret>,
    early: Option<Secret>,
    /// By direction, client to server first.
    handshake: [Option<Secret>; 2],
    /// By direction, client to server first.
    application: [Option<Updates>; 2],
}

impl Keyring {
    /// An empty one. At most `max_updates` KeyUpdates are derived at once: each costs a hash, and some of those who
    /// ask are remote.
    ///
    /// # Errors
    /// [`KeyError::UnsupportedVersion`] and [`KeyError::UnsupportedSuite`].
    pub fn new(parameters: SessionParameters, max_updates: u32) -> Result<Self, KeyError> {
        suite::find(parameters.version, parameters.cipher_suite)?;
        Ok(Self {
            parameters,
            max_updates,
            master: None,
            early: None,
            handshake: [None, None],
            application: [None, None],
        })
    }

    /// Whose secrets these are.
    #[must_use]
    pub fn parameters(&self) -> &SessionParameters {
        &self.parameters
    }

    /// Whether there is an application traffic secret of this direction.
    #[must_use]
    pub fn has_application_secret(&self, direction: Direction) -> bool {
        self.application[direction.index()].is_some()
    }

    /// After how many KeyUpdates the latest application secret of a direction is that was reported; in TLS 1.2 there are
    /// none.
    #[must_use]
    pub fn present_updates(&self, direction: Direction) -> Option<u32> {
        let reported = self.application[direction.index()].as_ref().map(Updates::reported);
        reported.or(self.master.as_ref().map(|_| 0))
    }

    /// Takes a traffic secret of TLS 1.3, in place of the one that was there.
    ///
    /// # Errors
    /// [`KeyError::UnsupportedVersion`] where the session is one of TLS 1.2, [`KeyError::SecretLength`], and
    /// [`KeyError::NoSecret`] for early data of a server, which do not exist.
    pub fn insert_traffic_secret(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        secret: &[u8],
    ) -> Result<(), KeyError> {
        let SessionParameters { version, cipher_suite, .. } = self.parameters;
        if version != TLS13 {
            return Err(KeyError::UnsupportedVersion(version));
        }
        let secret = Secret::of_suite(cipher_suite, secret)?;
        match (epoch, direction) {
            (KeyEpoch::EarlyData, Direction::ClientToServer) => self.early = Some(secret),
            (KeyEpoch::EarlyData, Direction::ServerToClient) => return Err(KeyError::NoSecret),
            (KeyEpoch::Handshake, _) => self.handshake[direction.index()] = Some(secret),
            (KeyEpoch::Application(updates), _) => {
                self.application[direction.index()] =
                    Some(Updates::new(cipher_suite, updates, secret));
            }
        }
        Ok(())
    }

    /// Takes the master secret of TLS 1.2, in place of the one that was there.
    ///
    /// # Errors
    /// [`KeyError::UnsupportedVersion`] where the session is not one of TLS 1.2, and [`KeyError::SecretLength`].
    pub fn insert_master_secret(&mut self, secret: &[u8]) -> Result<(), KeyError> {
        if self.parameters.version != TLS12 {
            return Err(KeyError::UnsupportedVersion(self.parameters.version));
        }
        if secret.len() != MASTER_SECRET_LEN {
            let actual = secret.len();
            return Err(KeyError::SecretLength { expected: MASTER_SECRET_LEN, actual });
        }
        self.master = Some(Secret::new(secret));
        Ok(())
    }

    /// The record keys of a direction and epoch. Keys after KeyUpdates are derived from the secrets before them, and
    /// the last few that were asked for are kept, so that several may ask at their own pace.
    ///
    /// # Errors
    /// [`KeyError::NoSecret`], [`KeyError::PastEpoch`] and [`KeyError::FutureEpoch`].
    pub fn record_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
    ) -> Result<RecordKeys, KeyError> {
        let SessionParameters { version, cipher_suite, client_random, server_random } =
            self.parameters;
        if version == TLS12 {
            // One epoch for each handshake (RFC 5246, section 6.1).
            let (Some(master), Some(server_random), KeyEpoch::Application(0)) =
                (&self.master, server_random, epoch)
            else {
                return Err(KeyError::NoSecret);
            };
            let [client, server] =
                tls12_keys(cipher_suite, master.as_bytes(), &client_random, &server_random)?;
            return Ok(match direction {
                Direction::ClientToServer => client,
                Direction::ServerToClient => server,
            });
        }
        let secret = match (epoch, direction) {
            (KeyEpoch::Application(updates), _) => {
                let known = self.application[direction.index()].as_mut();
                return known.ok_or(KeyError::NoSecret)?.keys(updates, self.max_updates);
            }
            (KeyEpoch::EarlyData, Direction::ClientToServer) => self.early.as_ref(),
            (KeyEpoch::EarlyData, Direction::ServerToClient) => None,
            (KeyEpoch::Handshake, _) => self.handshake[direction.index()].as_ref(),
        };
        traffic_keys(cipher_suite, secret.ok_or(KeyError::NoSecret)?.as_bytes())
    }

    /// What opens the records of a direction and epoch.
    ///
    /// # Errors
    /// As [`Self::record_keys`].
    pub fn open_record(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
    ) -> Result<Box<dyn OpenRecord>, KeyError> {
        let keys = self.record_keys(direction, epoch)?;
        let SessionParameters { version, cipher_suite, .. } = self.parameters;
        open_record(version, cipher_suite, keys.key(), keys.iv(), keys.mac_key())
    }

    /// Takes an application traffic secret that was reported after a KeyUpdate without its number. Updates are counted
    /// by following the key schedule, so that a report that was lost cannot shift the epochs. Returns the keys up to it
    /// with their epochs, none when it is known.
    ///
    /// # Errors
    /// [`KeyError::NoSecret`] where there is none before it, [`KeyError::FutureEpoch`] where it does not follow.
    pub fn follow_update(
        &mut self,
        direction: Direction,
        secret: &[u8],
    ) -> Result<Vec<(KeyEpoch, RecordKeys)>, KeyError> {
        let known = self.application[direction.index()].as_mut().ok_or(KeyError::NoSecret)?;
        known.follow(secret, self.max_updates)
    }
}

/// The suites of TLS 1.3 that a traffic secret of this length may belong to. Nothing on the wire says which suite early
/// data have: each one is tried, and the records tell.
pub fn candidate_suites(secret_len: usize) -> impl Iterator<Item = &'static Suite> {
    suite::all().filter(move |it| it.version() == TLS13 && it.hash().output_len() == secret_len)
}

#[cfg(test)]
mod tests;
