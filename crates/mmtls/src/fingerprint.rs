//! What programs are known by: JA3 and JA4 of a ClientHello, JA3S of the answer to it.
//!
//! All are made as Suricata makes them, so that its rules and records mean the same here. From FoxIO's description JA4
//! differs, then, in what hardly any client sends: hashes of nothing are no zeros, `_` stands without signature algorithms,
//! too, the first version counts of those that are known, and so does the legacy one. Refuses to judge anybody by them.

use aws_lc_rs::digest;
use md5::{Digest as _, Md5};
use mmtls_engine::tls::{ClientOffer, ExtensionType, ServerChoice, is_grease};
use serde::Serialize;

/// Most that JA4 counts of anything.
const MAX_COUNT: usize = 99;
/// Hexadecimal digits that JA4 keeps of a hash.
const HASH_LEN: usize = 12;

/// A JA3 or a JA3S.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ja3 {
    /// MD5 of the string, in lower-case hexadecimal.
    pub hash: Box<str>,
    /// What it is made of, in decimal numbers.
    pub string: Box<str>,
}

/// What a session's first hellos say about the programs that sent them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Fingerprints {
    /// Of the client.
    pub ja3: Option<Ja3>,
    /// Of the client.
    pub ja4: Option<Box<str>>,
    /// Of the server, in answer to this client.
    pub ja3s: Option<Ja3>,
    /// They are made of a part of what was offered or chosen: that is beyond a cap.
    pub is_cut: bool,
}

impl Fingerprints {
    /// Those of a client.
    #[must_use]
    pub fn of_client(offer: &ClientOffer) -> Self {
        Self {
            ja3: Some(ja3(offer)),
            ja4: Some(ja4(offer).into()),
            ja3s: None,
            is_cut: offer.is_cut,
        }
    }

    /// Adds the server's.
    pub fn add_server(&mut self, choice: &ServerChoice) {
        self.ja3s = Some(ja3s(choice));
        self.is_cut |= choice.is_cut;
    }
}

impl Ja3 {
    fn of(string: String) -> Self {
        // MD5 is a part of the name; nothing relies on its strength.
        let hash = base16ct::lower::encode_string(&Md5::digest(&string));
        Self { hash: hash.into(), string: string.into() }
    }
}

fn ja3(offer: &ClientOffer) -> Ja3 {
    let mut text = String::with_capacity(256);
    push_decimal(&mut text, &[offer.legacy_version]);
    for numbers in [&offer.cipher_suites, &offer.extensions, &offer.groups] {
        text.push(',');
        push_decimal(&mut text, numbers);
    }
    text.push(',');
    push_decimal(&mut text, &offer.point_formats);
    Ja3::of(text)
}

fn ja3s(choice: &ServerChoice) -> Ja3 {
    let suite = Some(choice.cipher_suite.0).filter(|suite| !is_grease(*suite));
    let mut text = String::with_capacity(64);
    for numbers in [&[choice.legacy_version], suite.as_slice(), &choice.extensions] {
        push_decimal(&mut text, numbers);
        text.push(',');
    }
    text.pop();
    Ja3::of(text)
}

fn ja4(offer: &ClientOffer) -> String {
    let mut suites = offer.cipher_suites.clone();
    suites.sort_unstable();
    // These two say where it goes, not what it is.
    let apart = [ExtensionType::SERVER_NAME.0, ExtensionType::ALPN.0];
    let extensions = offer.extensions.iter().copied();
    let mut extensions: Vec<u16> = extensions.filter(|kind| !apart.contains(kind)).collect();
    extensions.sort_unstable();

    let mut text = String::from("t");
    text.push_str(version(offer));
    text.push(if offer.names_server { 'd' } else { 'i' });
    for count in [offer.cipher_suites.len(), offer.extensions.len()] {
        let count = count.min(MAX_COUNT);
        text.extend([count / 10, count % 10].map(|it| digit(it as u8)));
    }
    text.extend(protocol(offer.first_protocol.as_deref()));
    let mut list = String::with_capacity(256);
    push_hexadecimal(&mut list, &suites);
    push_hash(&mut text, &list);
    list.clear();
    push_hexadecimal(&mut list, &extensions);
    list.push('_');
    push_hexadecimal(&mut list, &offer.signature_algorithms);
    push_hash(&mut text, &list);
    text
}

/// Adds numbers in decimal, with dashes between them.
fn push_decimal<T: itoa::Integer + Copy>(text: &mut String, numbers: &[T]) {
    for (at, number) in numbers.iter().enumerate() {
        if at > 0 {
            text.push('-');
        }
        text.push_str(itoa::Buffer::new().format(*number));
    }
}

/// Adds numbers as four hexadecimal digits each, with commas between them.
fn push_hexadecimal(text: &mut String, numbers: &[u16]) {
    for (at, number) in numbers.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        number.to_be_bytes().into_iter().for_each(|byte| push_byte(text, byte));
    }
}

/// Adds `_` and the start of a text's SHA-256.
fn push_hash(text: &mut String, hashed: &str) {
    let hash = digest::digest(&digest::SHA256, hashed.as_bytes());
    text.push('_');
    hash.as_ref().iter().take(HASH_LEN / 2).for_each(|byte| push_byte(text, *byte));
}

fn push_byte(text: &mut String, byte: u8) {
    text.push(digit(byte >> 4));
    text.push(digit(byte));
}

/// The lower half of a byte.
fn digit(byte: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(byte & 0x0f)])
}

/// Two characters for the version that a client wants.
fn version(offer: &ClientOffer) -> &'static str {
    let wanted = offer.supported_versions.iter().copied().find(|it| is_known(*it));
    let legacy = Some(offer.legacy_version).filter(|it| !is_grease(*it));
    match wanted.max(legacy) {
        Some(0x0304) => "13",
        Some(0x0303) => "12",
        Some(0x0302) => "11",
        Some(0x0301) => "10",
        Some(0x0300) => "s3",
        _ => "00",
    }
}

/// Versions that Suricata knows: SSL 3.0, TLS, drafts of TLS 1.3 and Facebook's own drafts.
fn is_known(version: u16) -> bool {
    matches!(version, 0x0300..=0x0304 | 0x7f01 | 0x7f10..=0x7f1c | 0xfb14..=0xfb17 | 0xfb1a)
}

/// Two characters for the protocol that a client would like best.
fn protocol(name: Option<&[u8]>) -> [char; 2] {
    let (first, last) = match name {
        None | Some([]) => return ['0'; 2],
        Some([first, last]) if is_grease(u16::from_be_bytes([*first, *last])) => return ['0'; 2],
        Some([only]) => (*only, *only),
        Some([first, .., last]) => (*first, *last),
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first.into(), last.into()];
    }
    [digit(first >> 4), digit(last)]
}

#[cfg(test)]
mod tests {
    use mmtls_engine::tls::CipherSuite;

    use super::*;

    /// The example of FoxIO's description.
    fn example() -> ClientOffer {
        ClientOffer {
            legacy_version: 0x0303,
            supported_versions: vec![0x0304, 0x0303],
            cipher_suites: vec![
                0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013,
                0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
            ],
            extensions: vec![
                0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023,
                0x0012, 0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
            ],
            groups: vec![29, 23, 24],
            point_formats: vec![0],
            signature_algorithms: vec![
                0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601,
            ],
            first_protocol: Some(b"h2".to_vec()),
            names_server: true,
            is_cut: false,
        }
    }

    #[test]
    fn accepts_the_example_of_ja4() {
        assert_eq!(ja4(&example()), "t13d1516h2_8daaf6152771_e5627efa2ab1");
    }

    /// Of the description of JA3 by its authors, with the hashes that they give.
    #[test]
    fn accepts_the_examples_of_ja3() {
        let full = ClientOffer {
            legacy_version: 769,
            cipher_suites: vec![47, 53, 5, 10, 49161, 49162, 49171, 49172, 50, 56, 19, 4],
            extensions: vec![0, 10, 11],
            groups: vec![23, 24, 25],
            point_formats: vec![0],
            ..ClientOffer::default()
        };
        let full = ja3(&full);
        let string = "769,47-53-5-10-49161-49162-49171-49172-50-56-19-4,0-10-11,23-24-25,0";
        assert_eq!((&*full.string, &*full.hash), (string, "ada70206e40642a3e4461f35503241d5"));
        let bare = ClientOffer {
            legacy_version: 769,
            cipher_suites: vec![4, 5, 10, 9, 100, 98, 3, 6, 19, 18, 99],
            ..ClientOffer::default()
        };
        let bare = ja3(&bare);
        let string = "769,4-5-10-9-100-98-3-6-19-18-99,,,";
        assert_eq!((&*bare.string, &*bare.hash), (string, "de350869b8c85de67a350c8d186f11e6"));
    }

    /// Of Suricata's own tests.
    #[test]
    fn accepts_the_answers_of_servers() {
        let mut choice = ServerChoice {
            legacy_version: 771,
            cipher_suite: CipherSuite(49199),
            extensions: vec![65281, 0, 11, 16, 23],
            is_cut: true,
        };
        let mut fingerprints = Fingerprints::of_client(&example());
        assert!(!fingerprints.is_cut);
        fingerprints.add_server(&choice);
        assert!(fingerprints.is_cut);
        let ja3s = fingerprints.ja3s.unwrap();
        assert_eq!(&*ja3s.string, "771,49199,65281-0-11-16-23");
        assert_eq!(&*ja3s.hash, "5d79edf64e03689ff559a54e9d9487bc");
        choice.cipher_suite = CipherSuite(0x0a0a);
        choice.extensions.clear();
        assert_eq!(&*super::ja3s(&choice).string, "771,,");
    }

    /// Of Suricata's own tests.
    #[test]
    fn accepts_offers_of_nothing_and_of_too_much() {
        let mut offer = ClientOffer::default();
        assert_eq!(ja4(&offer), "t00i000000_e3b0c44298fc_d2e2adf7177b");
        offer.legacy_version = 0x0303;
        offer.names_server = true;
        offer.extensions = vec![0, 16];
        offer.first_protocol = Some(b"h3-16".to_vec());
        assert_eq!(ja4(&offer), "t12d0002h6_e3b0c44298fc_d2e2adf7177b");
        offer.cipher_suites = vec![0x1111, 0x0a20, 0xbada];
        offer.extensions.extend([0xface, 0x0121, 0x1234]);
        offer.signature_algorithms = vec![0x6666];
        assert_eq!(ja4(&offer), "t12d0305h6_f500716053f9_2debc8880bae");
        offer.cipher_suites = (1..200).collect();
        offer.extensions = (1..200).collect();
        assert_eq!(&ja4(&offer)[..10], "t12d9999h6");
    }

    #[test]
    fn accepts_versions_as_suricata_counts_them() {
        for (legacy_version, supported_versions, expected) in [
            (0x0303, vec![], "12"),
            (0x0301, vec![], "10"),
            (0x0300, vec![], "s3"),
            (0x0a0a, vec![], "00"),
            (0x0303, vec![0x0304, 0x7f1c], "13"),
            (0x0303, vec![0x0666, 0x0303, 0x0304], "12"),
            (0x0303, vec![0x0302], "12"),
            (0x0303, vec![0x7f1c, 0x0304], "00"),
        ] {
            let offer = ClientOffer { legacy_version, supported_versions, ..example() };
            assert_eq!(version(&offer), expected, "{offer:x?}");
        }
    }

    /// The first ones are of FoxIO's description.
    #[test]
    fn accepts_protocols_of_any_name() {
        for (name, expected) in [
            (&b"\xab"[..], "ab"),
            (b" ", "20"),
            (b"\xab\xcd", "ad"),
            (b" a", "21"),
            (b"0\xab", "3b"),
            (b"a ", "60"),
            (b"01\xab\xcd", "3d"),
            (b"0\xab\xcd1", "01"),
            (b"http/1.1", "h1"),
            (b"b", "bb"),
            (b"\x2a\x2a", "00"),
            (b"", "00"),
        ] {
            assert_eq!(protocol(Some(name)).iter().collect::<String>(), expected, "{name:?}");
        }
        assert_eq!(protocol(None), ['0'; 2]);
    }
}
