//! Records under real ciphers: what an opener does with a record that a stranger sent or changed.
//!
//! Claims, for every suite: a sealed record opens to its content and to no other (in TLS 1.3 where peers take such); a changed one,
//! or one at another sequence number, does not open; no fragment is too short, too long or too
//! odd to be refused; content is no longer than announced. The opener is a
//! middlebox's, so the last bytes of a record with a private tag mean nothing to it: those
//! claims are for the endpoint's opener too, which has both keys.

use mmtls_engine::tls::{
    ContentType, OpenError, OpenRecord, Opened, ProtocolVersion, RECORD_HEADER_LEN,
};
use mmtls_record::private_tag::{self, PRIVATE_TAG_LEN};
use mmtls_record::{PrivateTagOpener, PrivateTagSealer, Sealer, open_record, suite};

use crate::input::Input;

/// Input: suite, settings, sequence number; then content and changes, or a fragment.
pub fn record_open(data: &[u8]) {
    let mut input = Input::new(data);
    let suites: Vec<_> = suite::all().collect();
    let suite = suites[usize::from(input.u8()) % suites.len()];
    let settings = input.u8();
    let sequence = u64::from(input.u32()) << (settings >> 4 & 3);
    let cipher = suite.cipher();
    let key = vec![0x11; cipher.key_len()];
    let iv = vec![0x22; suite.iv_len()];
    let mac_key = vec![0x33; cipher.mac_key_len()];
    let (version, number) = (suite.version(), suite.number());
    let mut opener = open_record(version, number, &key, &iv, &mac_key).expect("lengths that fit");
    let endpoint = private_tag::key_len(number).ok().map(|len| {
        let private_key = vec![0x44; len];
        let sealer = PrivateTagSealer::new(number, &key, &iv, &private_key);
        let opener = PrivateTagOpener::new(number, &key, &iv, &private_key);
        (sealer.expect("lengths that fit"), opener.expect("lengths that fit"))
    });
    if settings & 1 == 1 {
        opener.set_encrypt_then_mac();
    }
    wrong_lengths(version, number, input.u8().into(), [&key, &iv, &mac_key]);
    let kind = ContentType(20 + input.u8() % 4);
    if settings & 2 == 0 {
        let claimed = input.u16().to_be_bytes();
        let header = [kind.0, 3, input.u8() & 3, claimed[0], claimed[1]];
        // Nobody can forge a tag by chance; what counts is that nothing breaks.
        let _ = open(&*opener, sequence, header, input.all());
        return;
    }
    let padding = usize::from(input.u8());
    let changes = [(input.u16(), input.u8()), (input.u16(), input.u8())];
    let other_sequence = sequence ^ u64::from(input.u8());
    let cut = usize::from(input.u8());
    let content = input.all();
    let sealed = match &endpoint {
        Some((sealer, _)) => sealer.seal(sequence, kind, content, padding),
        None => {
            let sealer = Sealer::new(version, number, &key, &iv, &mac_key);
            let mut sealer = sealer.expect("lengths that fit");
            if settings & 1 == 1 {
                sealer.set_encrypt_then_mac();
            }
            sealer.seal(sequence, kind, content, padding)
        }
    };
    let Some(record) = sealed else {
        return;
    };
    let split = |record: &[u8]| -> ([u8; RECORD_HEADER_LEN], Vec<u8>) {
        let (header, fragment) = record.split_first_chunk().expect("a record has a header");
        (*header, fragment.to_vec())
    };
    let (header, fragment) = split(&record);
    let is_taken = match kind {
        ContentType::APPLICATION_DATA => true,
        ContentType::HANDSHAKE => !content.is_empty(),
        ContentType::ALERT => content.len() == 2,
        _ => false,
    };
    if version == ProtocolVersion::TLS_1_3.0 && !is_taken {
        assert!(open(&*opener, sequence, header, &fragment).is_err(), "no peer takes it");
        return;
    }
    let (opened, bytes) = open(&*opener, sequence, header, &fragment).expect("an honest record");
    assert_eq!((opened.content_type, &bytes[..]), (kind, content));
    if other_sequence != sequence {
        let outcome = open(&*opener, other_sequence, header, &fragment);
        // The nonces of GCM and CCM in TLS 1.2 are explicit, and still the number is bound.
        assert!(outcome.is_err(), "opened at another sequence number");
    }
    let mut changed = record.clone();
    for (at, change) in changes {
        let at = usize::from(at) % changed.len();
        // The length is the deframer's business: here a fragment is what it was told to be.
        if !(3..RECORD_HEADER_LEN).contains(&at) {
            changed[at] ^= change;
        }
    }
    let mut seen = record.len();
    if let Some((_, endpoint)) = &endpoint {
        seen -= PRIVATE_TAG_LEN;
        let mut plaintext = vec![0xee; record.len()];
        let again = endpoint.open(sequence, &record, &mut plaintext).expect("an honest record");
        assert_eq!((again, &plaintext[..again.len]), (opened, content));
        if changed != record {
            assert!(endpoint.open(sequence, &changed, &mut plaintext).is_err(), "changed");
        }
        let short = &record[..record.len().saturating_sub(cut.max(1))];
        assert!(endpoint.open(sequence, short, &mut plaintext).is_err(), "cut");
    }
    if changed[..seen] != record[..seen] {
        let (header, fragment) = split(&changed);
        assert!(open(&*opener, sequence, header, &fragment).is_err(), "a changed record opened");
    }
    if cut > 0 {
        let short = &fragment[..fragment.len().saturating_sub(cut)];
        assert!(open(&*opener, sequence, header, short).is_err(), "a cut record opened");
    }
}

fn open(
    opener: &dyn OpenRecord,
    sequence: u64,
    header: [u8; RECORD_HEADER_LEN],
    fragment: &[u8],
) -> Result<(Opened, Vec<u8>), OpenError> {
    let mut plaintext = vec![0xee; fragment.len()];
    let opened = opener.open(sequence, header, fragment, &mut plaintext)?;
    let announced = opener.content_len(fragment.len());
    assert!(opened.len <= announced, "longer than announced");
    assert!(opened.len == announced || !opener.content_len_is_exact(), "shorter than announced");
    plaintext.truncate(opened.len);
    Ok((opened, plaintext))
}

/// Keys of other lengths are refused, not used.
fn wrong_lengths(version: u16, suite: u16, change: usize, lengths: [&[u8]; 3]) {
    for wrong in 0..3 {
        let mut parts = lengths.map(<[u8]>::to_vec);
        parts[wrong].resize(lengths[wrong].len() ^ change, 0);
        let [key, iv, mac_key] = parts;
        let fits = change == 0;
        assert_eq!(open_record(version, suite, &key, &iv, &mac_key).is_ok(), fits);
    }
    assert!(open_record(version ^ 0x0107, suite, lengths[0], lengths[1], lengths[2]).is_err());
}
