//! Tests of the key log on text.

use super::*;
use base16ct::lower::encode_string as hex;
use mmtls_record::key_schedule;
use mmtls_record::suite::TLS13;

/// TLS_AES_128_GCM_SHA256
const SUITE: u16 = 0x1301;
const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;

fn line(label: &str, random: u8, secret: &[u8]) -> String {
    format!("{label} {} {}\n", hex(&[random; 32]), hex(secret))
}

fn key(log: &KeyLog, random: u8, direction: Direction, epoch: KeyEpoch) -> Option<Vec<u8>> {
    let keys = log.record_keys(parameters(SUITE, [random; 32]), direction, epoch);
    keys.map(|keys| keys.key().to_vec())
}

fn parameters(cipher_suite: u16, client_random: [u8; 32]) -> SessionParameters {
    SessionParameters { version: TLS13, cipher_suite, client_random, server_random: None }
}

fn expected(secret: &[u8]) -> Option<Vec<u8>> {
    Some(key_schedule::traffic_keys(SUITE, secret).unwrap().key().to_vec())
}

#[test]
fn accepts_every_label_and_counts_what_it_does_not_use() {
    let mut text = String::new();
    for label in [
        "CLIENT_EARLY_TRAFFIC_SECRET",
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
        "CLIENT_TRAFFIC_SECRET_1",
        "EARLY_EXPORTER_SECRET",
        "EXPORTER_SECRET",
        "ECH_SECRET",
        "ECH_CONFIG",
        "CLIENT_TRAFFIC_SECRET_N",
    ] {
        text.push_str(&line(label, 1, &[7; 32]));
    }
    text.push_str(&line("CLIENT_RANDOM", 1, &[7; 48]));
    text.push_str(&format!("RSA {} {}\n", hex(&[1; 8]), hex(&[2; 48])));
    text.push_str(&format!("RSA {} {}\n", hex(&[1; 32]), hex(&[2; 48])));
    let log = KeyLog::load(text.as_bytes()).unwrap();
    let report = log.report();
    assert_eq!((report.secrets, report.ech, report.other_labels), (7, 2, 3));
    assert_eq!((report.rsa_premaster, report.malformed), (1, 1));
    for epoch in [KeyEpoch::EarlyData, KeyEpoch::Handshake, KeyEpoch::Application(0)] {
        assert_eq!(key(&log, 1, CLIENT, epoch), expected(&[7; 32]), "{epoch:?}");
    }
    assert_eq!(key(&log, 1, SERVER, KeyEpoch::EarlyData), None);
}

#[test]
fn accepts_comments_crlf_unknown_labels_and_repeated_lines() {
    let text = format!(
        "# comment\r\n\r\nFUTURE_LABEL 00 11\n{}{}{}CLIENT_RANDOM {} {}\n{}",
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]),
        line("SERVER_TRAFFIC_SECRET_0", 1, &[2; 32]).replace('\n', "\r\n"),
        line("EXPORTER_SECRET", 1, &[3; 32]),
        hex(&[9; 32]),
        hex(&[9; 48]),
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[4; 32]).trim_end(),
    );
    let log = KeyLog::load(text.as_bytes()).unwrap();
    assert_eq!(
        log.report(),
        KeyLogReport { lines: 8, secrets: 4, other_labels: 2, ..KeyLogReport::default() }
    );
    assert_eq!(log.sessions(), 2);
    assert!(log.knows(&[1; 32]) && log.knows(&[9; 32]));
    // TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    let keys = |random, direction| {
        let parameters = SessionParameters {
            version: TLS12,
            server_random: Some([8; 32]),
            ..parameters(0xc02f, [random; 32])
        };
        log.record_keys(parameters, direction, KeyEpoch::Application(0))
    };
    assert_eq!(keys(9, CLIENT).map(|keys| keys.key().len()), Some(16));
    assert!(keys(9, CLIENT).unwrap().key() != keys(9, SERVER).unwrap().key());
    assert!(keys(1, CLIENT).is_none());
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(0)), expected(&[4; 32]));
    assert_eq!(key(&log, 1, SERVER, KeyEpoch::Application(0)), expected(&[2; 32]));
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Handshake), None);
    assert_eq!(key(&log, 2, CLIENT, KeyEpoch::Application(0)), None);
    let mut same = KeyLog::new();
    same.add_text(text.as_bytes());
    assert_eq!(same.report(), log.report());
}

#[test]
fn refuses_malformed_lines_by_number() {
    let text = format!(
        "\nCLIENT_TRAFFIC_SECRET_0 00\n{}{}{}{}CLIENT_TRAFFIC_SECRET_0 {} {}\n",
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 31]),
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 64]),
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]).replace("01", "0x"),
        line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]).replace('\n', " extra\n"),
        "0".repeat(63),
        hex(&[1; 32]),
    );
    let log = KeyLog::load(text.as_bytes()).unwrap();
    let report = log.report();
    assert_eq!((report.malformed, report.first_malformed), (6, Some((2, LineError::Fields))));
    assert_eq!((report.lines, report.secrets), (7, 0));
}

#[test]
fn accepts_lines_behind_an_endless_one() {
    let good = line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]);
    for len in [4095, 4096, 4097, 65_535, 65_536, 300_000] {
        let text = format!("{}\n{good}", "x".repeat(len));
        let log = KeyLog::load(text.as_bytes()).unwrap();
        assert_eq!(log.report().malformed, 1, "{len}");
        assert_eq!(log.report().lines, 2, "{len}");
        assert_eq!(log.report().secrets, 1, "{len}");
    }
}

/// A reader that gives out a few bytes at a time.
struct Trickle<'a>(&'a [u8], usize);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.0.len().min(self.1).min(out.len());
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

#[test]
fn accepts_any_piecewise_reading() {
    let text: String =
        (0..50).map(|n| line("SERVER_HANDSHAKE_TRAFFIC_SECRET", n, &[n; 32])).collect();
    for size in [1, 7, 4096] {
        let log = KeyLog::load(Trickle(text.as_bytes(), size)).unwrap();
        assert_eq!(log.sessions(), 50);
        assert_eq!(key(&log, 49, SERVER, KeyEpoch::Handshake), expected(&[49; 32]));
    }
}

#[test]
fn accepts_later_epochs_derived_and_explicit() {
    let mut log = KeyLog::new();
    log.add_text(line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]).as_bytes());
    let mut secrets = vec![vec![1u8; 32]];
    for n in 0..64 {
        let next = key_schedule::next_secret(SUITE, &secrets[n]).unwrap();
        secrets.push(next.as_bytes().to_vec());
    }
    for n in [0u32, 1, 2, 63, 64] {
        assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(n)), expected(&secrets[n as usize]));
    }
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(65)), None);
    log.add_text(line("CLIENT_TRAFFIC_SECRET_2", 1, &[7; 32]).as_bytes());
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(1)), expected(&secrets[1]));
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(2)), expected(&[7; 32]));
    let third = key_schedule::next_secret(SUITE, &[7; 32]).unwrap();
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(3)), expected(third.as_bytes()));
}

#[test]
fn refuses_secrets_of_another_suite_and_odd_epochs() {
    let mut log = KeyLog::new();
    log.add_text(line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 48]).as_bytes());
    assert_eq!(key(&log, 1, CLIENT, KeyEpoch::Application(0)), None);
    // A later line of the right length takes its place.
    log.add_text(line("CLIENT_TRAFFIC_SECRET_0", 1, &[1; 32]).as_bytes());
    assert!(key(&log, 1, CLIENT, KeyEpoch::Application(0)).is_some());
    for label in [
        "SERVER_TRAFFIC_SECRET_65",
        "SERVER_TRAFFIC_SECRET_100",
        "SERVER_TRAFFIC_SECRET_4294967295",
    ] {
        let before = log.report();
        log.add_text(line(label, 1, &[1; 32]).as_bytes());
        assert_eq!(log.report().other_labels, before.other_labels + 1, "{label}");
        assert_eq!(log.report().secrets, before.secrets, "{label}");
    }
    assert_eq!(key(&log, 1, SERVER, KeyEpoch::EarlyData), None);
}

#[test]
fn accepts_many_sessions_compactly() {
    let mut log = KeyLog::new();
    for number in 0u32..20_000 {
        let mut random = [0; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        for label in ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"] {
            let secret = [number as u8; 48];
            log.add_text(format!("{label} {} {}", hex(&random), hex(&secret)).as_bytes());
        }
    }
    assert_eq!(log.sessions(), 20_000);
    let mut random = [0; 32];
    random[..4].copy_from_slice(&19_999u32.to_be_bytes());
    let parameters = parameters(0x1302, random);
    assert!(log.record_keys(parameters, SERVER, KeyEpoch::Application(0)).is_some());
}
