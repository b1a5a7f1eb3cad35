//! Tests of the keyring against the key schedule.

use super::*;
use crate::key_schedule::next_secret;

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;

fn keyring(version: u16, cipher_suite: u16, server_random: Option<[u8; 32]>) -> Keyring {
    let client_random = [1; 32];
    let parameters = SessionParameters { version, cipher_suite, client_random, server_random };
    Keyring::new(parameters, 8).unwrap()
}

fn key(keys: Result<RecordKeys, KeyError>) -> Result<Vec<u8>, KeyError> {
    keys.map(|keys| keys.key().to_vec())
}

fn expected(secret: &[u8]) -> Result<Vec<u8>, KeyError> {
    key(traffic_keys(0x1301, secret))
}

#[test]
fn accepts_secrets_of_every_epoch_of_tls13() {
    let mut keyring = keyring(TLS13, 0x1301, None);
    for (number, (direction, epoch)) in [
        (CLIENT, KeyEpoch::EarlyData),
        (CLIENT, KeyEpoch::Handshake),
        (SERVER, KeyEpoch::Handshake),
        (CLIENT, KeyEpoch::Application(0)),
        (SERVER, KeyEpoch::Application(2)),
    ]
    .into_iter()
    .enumerate()
    {
        let secret = [number as u8; 32];
        assert_eq!(key(keyring.record_keys(direction, epoch)), Err(KeyError::NoSecret));
        keyring.insert_traffic_secret(direction, epoch, &secret).unwrap();
        assert_eq!(key(keyring.record_keys(direction, epoch)), expected(&secret), "{epoch:?}");
        assert!(keyring.open_record(direction, epoch).is_ok());
    }
    assert!(keyring.has_application_secret(CLIENT) && keyring.has_application_secret(SERVER));
    let next = next_secret(0x1301, &[4; 32]).unwrap();
    let mut at = |epoch| key(keyring.record_keys(SERVER, KeyEpoch::Application(epoch)));
    assert_eq!(at(3), expected(next.as_bytes()));
    assert_eq!(at(1), Err(KeyError::PastEpoch));
    assert_eq!(at(2 + 9 + 1), Err(KeyError::FutureEpoch));
}

#[test]
fn accepts_the_master_secret_of_tls12_in_both_directions() {
    let mut keyring = keyring(TLS12, 0xc02f, Some([2; 32]));
    keyring.insert_master_secret(&[3; 48]).unwrap();
    let keys = tls12_keys(0xc02f, &[3; 48], &[1; 32], &[2; 32]).unwrap();
    let epoch = KeyEpoch::Application(0);
    for (direction, keys) in Direction::BOTH.into_iter().zip(keys) {
        assert_eq!(key(keyring.record_keys(direction, epoch)), Ok(keys.key().to_vec()));
        assert!(keyring.open_record(direction, epoch).is_ok());
        for other in [KeyEpoch::Handshake, KeyEpoch::Application(1)] {
            assert_eq!(key(keyring.record_keys(direction, other)), Err(KeyError::NoSecret));
        }
    }
}

#[test]
fn accepts_the_suites_whose_hash_fits_as_candidates() {
    let numbers = |len| candidate_suites(len).map(Suite::number).collect::<Vec<_>>();
    assert_eq!(numbers(32), [0x1301, 0x1303, 0x1304, 0x1305, 0xff31, 0xff33, 0xff34, 0xff35]);
    assert_eq!(numbers(48), [0x1302, 0xff32]);
    assert_eq!(numbers(20), []);
}

#[test]
fn refuses_secrets_of_another_version_direction_or_length() {
    let parameters = *keyring(TLS13, 0x1301, None).parameters();
    let other = SessionParameters { version: 0x0302, ..parameters };
    assert_eq!(Keyring::new(other, 8).err(), Some(KeyError::UnsupportedVersion(0x0302)));
    let other = SessionParameters { cipher_suite: 0xc02f, ..parameters };
    assert_eq!(Keyring::new(other, 8).err(), Some(KeyError::UnsupportedSuite(0xc02f)));

    let mut tls13 = keyring(TLS13, 0x1301, None);
    let wrong = KeyError::SecretLength { expected: 32, actual: 48 };
    let epoch = KeyEpoch::Application(0);
    assert_eq!(tls13.insert_traffic_secret(CLIENT, epoch, &[7; 48]), Err(wrong));
    let early = tls13.insert_traffic_secret(SERVER, KeyEpoch::EarlyData, &[7; 32]);
    assert_eq!(early, Err(KeyError::NoSecret));
    assert_eq!(tls13.insert_master_secret(&[7; 48]), Err(KeyError::UnsupportedVersion(TLS13)));
    assert!(tls13.follow_update(CLIENT, &[7; 32]).is_err());

    let mut tls12 = keyring(TLS12, 0xc02f, None);
    let wrong = KeyError::SecretLength { expected: 48, actual: 32 };
    assert_eq!(tls12.insert_master_secret(&[7; 32]), Err(wrong));
    let traffic = tls12.insert_traffic_secret(CLIENT, epoch, &[7; 32]);
    assert_eq!(traffic, Err(KeyError::UnsupportedVersion(TLS12)));
    // Without the server's random there are no keys.
    tls12.insert_master_secret(&[7; 48]).unwrap();
    assert_eq!(key(tls12.record_keys(CLIENT, epoch)), Err(KeyError::NoSecret));
}
