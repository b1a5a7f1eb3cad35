//! From recorded bytes and a key log to opened records, with the product's own room only.

use mmtls_record::key_schedule::{RecordKeys, tls12_keys, traffic_keys};
use mmtls_record::open_record;
use mmtls_record::suite::{TLS12, TLS13};
use mmtls_tls::{ContentType, OpenRecord};

use super::relay::Recorded;

/// Bytes of a record that are changed, one at a time; all of them when it is shorter.
const SAMPLES: usize = 48;

/// An opened session.
pub struct Session {
    pub suite: u16,
    encrypt_then_mac: bool,
    /// Protected records, all of them opened.
    pub records: usize,
    /// Changed records, all of them refused.
    pub tampered: usize,
    /// Application data: to the server, to the client.
    pub content: Recorded,
}

/// Opens every protected record of a session.
pub fn open_session(recorded: &Recorded, key_log: &str) -> Result<Session, String> {
    let records = [split(&recorded[0])?, split(&recorded[1])?];
    let hello = records[0].first().ok_or("no ClientHello")?;
    let client_random: [u8; 32] = part(hello.fragment, 6, 32)?.try_into().map_err(|_| "random")?;
    let server = ServerHello::read(records[1].first().ok_or("no ServerHello")?.fragment)?;
    let mut session = Session {
        suite: server.suite,
        encrypt_then_mac: server.encrypt_then_mac,
        records: 0,
        tampered: 0,
        content: Recorded::default(),
    };
    if server.version == TLS13 {
        let labels = [
            ["CLIENT_HANDSHAKE_TRAFFIC_SECRET", "CLIENT_TRAFFIC_SECRET_0"],
            ["SERVER_HANDSHAKE_TRAFFIC_SECRET", "SERVER_TRAFFIC_SECRET_0"],
        ];
        for (direction, labels) in labels.iter().enumerate() {
            let mut openers = Vec::new();
            for label in labels {
                let secret = find(key_log, label, &client_random)?;
                let keys = traffic_keys(server.suite, &secret).map_err(|e| e.to_string())?;
                openers.push(opener(TLS13, server.suite, &keys)?);
            }
            session.open_tls13(direction, &records[direction], &openers)?;
        }
    } else {
        let secret = find(key_log, "CLIENT_RANDOM", &client_random)?;
        let keys = tls12_keys(server.suite, &secret, &client_random, &server.random);
        for (direction, keys) in keys.map_err(|e| e.to_string())?.iter().enumerate() {
            let mut opener = opener(TLS12, server.suite, keys)?;
            if server.encrypt_then_mac {
                opener.set_encrypt_then_mac();
            }
            let records = &records[direction];
            let change = records.iter().position(|record| record.header[0] == 20);
            let protected = &records[change.ok_or("no ChangeCipherSpec")? + 1..];
            for (sequence, record) in (0..).zip(protected) {
                session.open(direction, opener.as_ref(), sequence, record)?;
            }
        }
    }
    Ok(session)
}

impl Session {
    /// Refuses a session whose hellos did not agree on this form of CBC.
    pub fn expect_form(self, encrypt_then_mac: bool) -> Result<Self, String> {
        let agreed = self.encrypt_then_mac == encrypt_then_mac;
        if agreed { Ok(self) } else { Err(format!("encrypt-then-MAC is not {encrypt_then_mac}")) }
    }

    /// Handshake keys, then application keys from the first record that needs them.
    fn open_tls13(
        &mut self,
        direction: usize,
        records: &[Record<'_>],
        openers: &[Box<dyn OpenRecord>],
    ) -> Result<(), String> {
        let (mut epoch, mut sequence) = (0, 0);
        for record in records.iter().filter(|record| record.header[0] == 23) {
            let mut opened = self.open(direction, openers[epoch].as_ref(), sequence, record);
            if opened.is_err() && epoch == 0 {
                (epoch, sequence) = (1, 0);
                opened = self.open(direction, openers[epoch].as_ref(), sequence, record);
            }
            opened?;
            sequence += 1;
        }
        if epoch == 1 { Ok(()) } else { Err("no application keys used".to_owned()) }
    }

    fn open(
        &mut self,
        direction: usize,
        opener: &dyn OpenRecord,
        sequence: u64,
        record: &Record<'_>,
    ) -> Result<(), String> {
        let mut out = vec![0; record.fragment.len()];
        let opened = opener
            .open(sequence, record.header, record.fragment, &mut out)
            .map_err(|error| format!("direction {direction}, record {sequence}: {error:?}"))?;
        self.records += 1;
        if opened.content_type == ContentType::APPLICATION_DATA {
            self.content[direction].extend_from_slice(&out[..opened.len]);
        }
        let whole = [&record.header[..], record.fragment].concat();
        let step = (whole.len() / SAMPLES).max(1);
        // The ends always, for the header and the tag are there.
        for at in (0..5).chain((5..whole.len()).step_by(step)).chain([whole.len() - 1]) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            let (header, fragment) = changed.split_first_chunk().ok_or("short record")?;
            if opener.open(sequence, *header, fragment, &mut out).is_ok() {
                return Err(format!("direction {direction}, record {sequence}: {at} changed"));
            }
            self.tampered += 1;
        }
        if opener.open(sequence + 1, record.header, record.fragment, &mut out).is_ok() {
            return Err(format!("direction {direction}, record {sequence}: opened as the next"));
        }
        Ok(())
    }
}

struct Record<'a> {
    header: [u8; 5],
    fragment: &'a [u8],
}

fn split(mut bytes: &[u8]) -> Result<Vec<Record<'_>>, String> {
    let mut records = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<5>() {
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let (fragment, rest) = rest.split_at_checked(len).ok_or("a record without its end")?;
        records.push(Record { header: *header, fragment });
        bytes = rest;
    }
    Ok(records)
}

struct ServerHello {
    version: u16,
    random: [u8; 32],
    suite: u16,
    encrypt_then_mac: bool,
}

impl ServerHello {
    fn read(message: &[u8]) -> Result<Self, String> {
        if part(message, 0, 1)? != [2] {
            return Err("the server did not answer with a ServerHello".to_owned());
        }
        let session_id = usize::from(part(message, 38, 1)?[0]);
        let mut hello = Self {
            version: number(message, 4)?,
            random: part(message, 6, 32)?.try_into().map_err(|_| "random")?,
            suite: number(message, 39 + session_id)?,
            encrypt_then_mac: false,
        };
        let mut at = 39 + session_id + 5;
        let end = at + usize::from(number(message, at - 2).unwrap_or(0));
        while at < end {
            let len = usize::from(number(message, at + 2)?);
            match number(message, at)? {
                22 => hello.encrypt_then_mac = true,
                43 => hello.version = number(message, at + 4)?,
                _ => {}
            }
            at += 4 + len;
        }
        Ok(hello)
    }
}

fn part(bytes: &[u8], at: usize, len: usize) -> Result<&[u8], String> {
    bytes.get(at..at + len).ok_or_else(|| "a short hello".to_owned())
}

fn number(bytes: &[u8], at: usize) -> Result<u16, String> {
    part(bytes, at, 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn opener(version: u16, suite: u16, keys: &RecordKeys) -> Result<Box<dyn OpenRecord>, String> {
    open_record(version, suite, keys.key(), keys.iv(), keys.mac_key()).map_err(|e| e.to_string())
}

/// The secret of a key log line (the format of NSS).
fn find(key_log: &str, label: &str, client_random: &[u8]) -> Result<Vec<u8>, String> {
    let random = base16ct::lower::encode_string(client_random);
    key_log
        .lines()
        .filter_map(|line| line.strip_prefix(label)?.trim().split_once(' '))
        .find(|(of, _)| of.eq_ignore_ascii_case(&random))
        .and_then(|(_, secret)| base16ct::mixed::decode_vec(secret).ok())
        .ok_or_else(|| format!("no {label} in the key log"))
}
