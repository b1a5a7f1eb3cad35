//! A middlebox that was taken over, against rustls: with a private tag every attempt ends in
//! `bad_record_mac` and not one byte of the changed record is delivered; without, every attempt
//! goes unnoticed. So the test can fail.

use std::io::Write;
use std::sync::Arc;

use crate::common::{Pair, Secrets, client_config, only, pki, plain, read, server_config};
use mmtls_endpoint::{PRIVATE_TAG_SUITES, has_private_tag, provider};
use mmtls_record::key_schedule;
use mmtls_testkit::compromised::{Attack, Compromised, FORGED, GARBAGE, ORDER, RecordKey};
use rustls::{AlertDescription, ClientConfig, Error, ServerConfig, SupportedCipherSuite};

/// Attempts of each kind. They cost a handshake each.
const ATTEMPTS: usize = 10_000;

/// What goes before the order, and behind it.
const FIRST: &[u8] = b"Good morning. ";
const LAST: &[u8] = b" That is all.";

struct Ends {
    suite: SupportedCipherSuite,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    secrets: Arc<Secrets>,
}

impl Ends {
    fn new(pki: &mmtls_testkit::Pki, suite: SupportedCipherSuite) -> Self {
        let secrets = Arc::new(Secrets::default());
        let mut client = client_config(pki, only(suite));
        client.key_log = secrets.clone();
        Self {
            suite,
            client: Arc::new(client),
            server: Arc::new(server_config(pki, provider())),
            secrets,
        }
    }

    /// What a middlebox is given: key and IV.
    fn shared_keys(&self, label: &str) -> RecordKey {
        let suite = self.suite.suite().into();
        let secret = self.secrets.get(label).unwrap();
        let keys = key_schedule::traffic_keys(suite, &secret).unwrap();
        RecordKey { suite, key: keys.key().to_vec(), iv: keys.iv().to_vec() }
    }
}

/// How one attempt ended.
struct Outcome {
    /// What the receiver's program got.
    delivered: Vec<u8>,
    error: Option<Error>,
    /// What the sender heard of it.
    alert: Option<Error>,
}

/// Sends three records, upwards or downwards, and attacks the second.
fn attempt(ends: &Ends, attack: Attack, upward: bool) -> Outcome {
    let mut pair = Pair::new(&ends.client, &ends.server);
    let mut handshake = Vec::new();
    let wire = &mut |from_client, bytes: Vec<u8>| {
        if from_client == upward {
            handshake.extend_from_slice(&bytes);
        }
        bytes
    };
    pair.exchange_over(wire).unwrap();
    assert_eq!(pair.suite(), ends.suite);
    let label = if upward { "CLIENT_TRAFFIC_SECRET_0" } else { "SERVER_TRAFFIC_SECRET_0" };
    let mut middlebox = Compromised::new(ends.shared_keys(label), attack, 1).unwrap();
    // It has seen the handshake go by, and tickets, which are the first records of its keys.
    assert_eq!(middlebox.pass(&handshake), handshake);
    for content in [FIRST, ORDER, LAST] {
        if upward {
            pair.client.writer().write_all(content).unwrap();
        } else {
            pair.server.writer().write_all(content).unwrap();
        }
    }
    let wire = &mut |from_client, bytes: Vec<u8>| {
        if from_client == upward { middlebox.pass(&bytes) } else { bytes }
    };
    let error = pair.exchange_over(wire).err();
    assert!(middlebox.attacked(), "{attack:?}, {:?}, {error:?}", ends.suite);
    let delivered = if upward { read(&mut pair.server) } else { read(&mut pair.client) };
    // The alert goes back.
    let alert = pair.exchange().err();
    Outcome { delivered, error, alert }
}

#[test]
fn refuses_every_attempt_when_there_is_a_private_tag() {
    let Some(pki) = pki() else {
        return;
    };
    std::thread::scope(|scope| {
        for half in 0..2 {
            // Each has its own: the secrets that the middlebox is given are those of the last handshake.
            let ends = PRIVATE_TAG_SUITES.map(|suite| Ends::new(&pki, suite));
            scope.spawn(move || {
                for attack in Attack::ALL {
                    for number in (half..ATTEMPTS).step_by(2) {
                        refuse(&ends[number / 2 % ends.len()], attack, number);
                    }
                }
            });
        }
    });
    println!("{} attempts of each kind: bad_record_mac, nothing delivered", ATTEMPTS);
}

fn refuse(ends: &Ends, attack: Attack, number: usize) {
    assert!(has_private_tag(ends.suite));
    let outcome = attempt(ends, attack, (number / 10).is_multiple_of(2));
    let what = format!("{attack:?}, {:?}, attempt {number}", ends.suite);
    assert_eq!(outcome.error, Some(Error::DecryptError), "{what}");
    // A replayed record is genuine the first time.
    let genuine = match attack {
        Attack::Replay => [FIRST, ORDER].concat(),
        _ => FIRST.to_vec(),
    };
    assert!(outcome.delivered == genuine, "{what}: {:?}", outcome.delivered);
    let alert = Error::AlertReceived(AlertDescription::BadRecordMac);
    assert_eq!(outcome.alert, Some(alert), "{what}");
}

#[test]
fn accepts_every_attempt_when_there_is_none() {
    let Some(pki) = pki() else {
        return;
    };
    let tls13 = plain().cipher_suites.into_iter().filter(|suite| suite.tls13().is_some());
    for suite in tls13 {
        let ends = Ends::new(&pki, suite);
        for attack in Attack::ALL {
            for upward in [true, false] {
                for _ in 0..20 {
                    let outcome = attempt(&ends, attack, upward);
                    assert_eq!((outcome.error, outcome.alert), (None, None), "{attack:?}");
                    let mut wanted = ORDER.to_vec();
                    let got = outcome.delivered;
                    match attack {
                        Attack::Rewrite => wanted[..FORGED.len()].copy_from_slice(FORGED),
                        Attack::Collide => {
                            wanted[..FORGED.len()].copy_from_slice(FORGED);
                            let garbage = GARBAGE..GARBAGE + 32;
                            let from = &got[FIRST.len()..][garbage.clone()];
                            wanted[garbage].copy_from_slice(from);
                        }
                        Attack::Swap => {
                            assert_eq!(got, [FIRST, LAST, ORDER].concat());
                            continue;
                        }
                        Attack::Replay => wanted.extend_from_slice(ORDER),
                        Attack::Truncate => wanted.truncate(ORDER.len() / 2),
                    }
                    assert_eq!(got, [FIRST, &wanted, LAST].concat(), "{attack:?}");
                }
            }
        }
    }
}

/// Sends one record, upwards or downwards, with another byte in its header; what arrives, and how that ends.
fn with_header(ends: &Ends, upward: bool, at: usize, value: u8) -> (Vec<u8>, Option<Error>) {
    let mut pair = Pair::connected(&ends.client, &ends.server);
    if upward {
        pair.client.writer().write_all(ORDER).unwrap();
    } else {
        pair.server.writer().write_all(ORDER).unwrap();
    }
    let mut is_changed = false;
    let wire = &mut |from_client, mut bytes: Vec<u8>| {
        if from_client == upward && !std::mem::replace(&mut is_changed, true) {
            assert_ne!(std::mem::replace(&mut bytes[at], value), value);
        }
        bytes
    };
    let error = pair.exchange_over(wire).err();
    assert!(is_changed);
    (if upward { read(&mut pair.server) } else { read(&mut pair.client) }, error)
}

/// It changes nothing that is read, but a monitor must not leave its mark either.
#[test]
fn refuses_other_headers_and_accepts_them_without_a_private_tag() {
    let Some(pki) = pki() else {
        return;
    };
    let tls13 = plain().cipher_suites.into_iter().filter(|suite| suite.tls13().is_some());
    for suite in PRIVATE_TAG_SUITES.into_iter().chain(tls13) {
        let ends = Ends::new(&pki, suite);
        // Content types, and versions.
        for (at, value) in [(0, 21), (0, 22), (0, 24), (2, 1), (2, 4)] {
            for upward in [true, false] {
                let outcome = with_header(&ends, upward, at, value);
                let expected = match has_private_tag(suite) {
                    true => (Vec::new(), Some(Error::DecryptError)),
                    false => (ORDER.to_vec(), None),
                };
                assert!(outcome == expected, "{suite:?} {at} {value}: {outcome:?}");
            }
        }
    }
}
