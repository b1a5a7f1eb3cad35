//! What a client offers and what a server makes of it, number by number: by this programs can be told apart.
//!
//! GREASE (RFC 8701) is left out, since its sender draws it by lot. Refuses messages whose lengths contradict each
//! other, and to keep more than [`MAX_LISTED`] numbers of a kind.

use crate::hello::is_early_draft;
use crate::{CipherSuite, ExtensionType, Malformed, ProtocolVersion, Reader};

/// Most numbers of a kind that are kept of one hello. OpenSSL 3.0 with all that it has offers 158 suites.
pub const MAX_LISTED: usize = 256;

/// The first hellos of a session. Where a server answers with a HelloRetryRequest, that is its first one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hellos {
    pub offer: ClientOffer,
    /// Absent before the server has answered.
    pub choice: Option<ServerChoice>,
}

impl Hellos {
    /// Bytes that it takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let ClientOffer { supported_versions, cipher_suites, extensions, groups, .. } = &self.offer;
        let numbers = [supported_versions, cipher_suites, extensions, groups];
        let others = [&self.offer.signature_algorithms].into_iter();
        let chosen = self.choice.as_ref().map(|choice| &choice.extensions);
        let lists = numbers.into_iter().chain(others).chain(chosen);
        let protocol = self.offer.first_protocol.as_ref().map_or(0, Vec::capacity);
        let formats = self.offer.point_formats.capacity();
        size_of::<Self>() + lists.map(|it| it.capacity() * 2).sum::<usize>() + protocol + formats
    }
}

/// What a ClientHello offers, in its order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClientOffer {
    /// That of the message, not of `supported_versions`.
    pub legacy_version: u16,
    pub supported_versions: Vec<u16>,
    pub cipher_suites: Vec<u16>,
    /// Types of the extensions.
    pub extensions: Vec<u16>,
    pub groups: Vec<u16>,
    pub point_formats: Vec<u8>,
    pub signature_algorithms: Vec<u16>,
    /// The first protocol of ALPN that has a name.
    pub first_protocol: Option<Vec<u8>>,
    /// Whether it names a server.
    pub names_server: bool,
    /// Whether something was left out because of [`MAX_LISTED`].
    pub is_cut: bool,
}

/// What a ServerHello chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerChoice {
    /// That of the message, not of `supported_versions`.
    pub legacy_version: u16,
    pub cipher_suite: CipherSuite,
    /// Types of the extensions, in their order.
    pub extensions: Vec<u16>,
    /// Whether something was left out because of [`MAX_LISTED`].
    pub is_cut: bool,
}

/// Whether a number is one of those that mean nothing (RFC 8701, section 2).
#[must_use]
pub const fn is_grease(number: u16) -> bool {
    number & 0x0f0f == 0x0a0a && number >> 8 == number & 0xff
}

impl ClientOffer {
    /// Reads the body of a ClientHello. What does not keep to its form inside of an extension ends the extensions, as
    /// for Suricata.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let mut offer = Self { legacy_version: reader.u16()?, ..Self::default() };
        reader.array::<32>()?; // random
        reader.vector8()?; // legacy_session_id
        list_all(&mut offer.cipher_suites, reader.vector16()?, &mut offer.is_cut)?;
        reader.vector8()?; // legacy_compression_methods
        let mut extensions = reader.optional_extensions()?;
        while let Some((kind, data)) = extensions.extension()? {
            if offer.extension(kind, data).is_err() {
                break;
            }
            list(&mut offer.extensions, kind.0, &mut offer.is_cut);
        }
        Ok(offer)
    }

    fn extension(&mut self, kind: ExtensionType, mut data: Reader<'_>) -> Result<(), Malformed> {
        self.names_server |= kind == ExtensionType::SERVER_NAME;
        if data.is_empty() {
            return Ok(());
        }
        let cut = &mut self.is_cut;
        match kind {
            ExtensionType::SUPPORTED_VERSIONS => {
                list_all(&mut self.supported_versions, data.vector8()?, cut)?;
            }
            ExtensionType::SUPPORTED_GROUPS => list_all(&mut self.groups, data.vector16()?, cut)?,
            ExtensionType::EC_POINT_FORMATS => {
                let formats = data.vector8()?.rest();
                let room = MAX_LISTED.saturating_sub(self.point_formats.len());
                *cut |= formats.len() > room;
                self.point_formats.extend(formats.iter().take(room));
            }
            ExtensionType::SIGNATURE_ALGORITHMS => {
                list_all(&mut self.signature_algorithms, data.vector16()?, cut)?;
            }
            ExtensionType::ALPN => {
                let mut names = data.vector16()?;
                while self.first_protocol.is_none() && !names.is_empty() {
                    let name = names.vector8()?.rest();
                    self.first_protocol = (!name.is_empty()).then(|| name.to_vec());
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl ServerChoice {
    /// Reads the body of a ServerHello.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let legacy_version = reader.u16()?;
        let is_draft = is_early_draft(ProtocolVersion(legacy_version));
        reader.array::<32>()?; // random
        if !is_draft {
            reader.vector8()?; // legacy_session_id_echo
        }
        let cipher_suite = CipherSuite(reader.u16()?);
        if !is_draft {
            reader.array::<1>()?; // legacy_compression_method
        }
        let mut choice =
            Self { legacy_version, cipher_suite, extensions: Vec::new(), is_cut: false };
        let mut extensions = reader.optional_extensions()?;
        while let Some((kind, _)) = extensions.extension()? {
            list(&mut choice.extensions, kind.0, &mut choice.is_cut);
        }
        Ok(choice)
    }
}

/// Adds a number that means something, as long as there is room.
fn list(numbers: &mut Vec<u16>, number: u16, is_cut: &mut bool) {
    match numbers.len() < MAX_LISTED {
        _ if is_grease(number) => {}
        true => numbers.push(number),
        false => *is_cut = true,
    }
}

fn list_all(
    numbers: &mut Vec<u16>,
    mut from: Reader<'_>,
    is_cut: &mut bool,
) -> Result<(), Malformed> {
    while !from.is_empty() {
        list(numbers, from.u16()?, is_cut);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector8(bytes: &[u8]) -> Vec<u8> {
        [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn vector16(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn numbers(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(data)].concat()
    }

    fn hello(suites: &[u16], extensions: &[Vec<u8>]) -> Vec<u8> {
        let head = [&[3, 3][..], &[7; 32], &[0]].concat();
        let suites = vector16(&numbers(suites));
        [head, suites, vec![1, 0], vector16(&extensions.concat())].concat()
    }

    #[test]
    fn accepts_all_that_is_offered_but_grease() {
        let offered = [
            extension(0x0a0a, &[]),
            extension(0, &vector16(&[0, 0, 1, b'a'])),
            extension(10, &vector16(&numbers(&[0x1a1a, 29, 23]))),
            extension(11, &vector8(&[0, 1])),
            extension(13, &vector16(&numbers(&[0x0403, 0xfafa, 0x0804]))),
            extension(16, &vector16(&[&vector8(b"")[..], &vector8(b"h2")].concat())),
            extension(43, &vector8(&numbers(&[0x2a2a, 0x0304, 0x0303]))),
            extension(0xff01, &[0]),
        ];
        let body = hello(&[0x3a3a, 0x1301, 0x00ff], &offered);
        let offer = ClientOffer::parse(&body).unwrap();
        let expected = ClientOffer {
            legacy_version: 0x0303,
            supported_versions: vec![0x0304, 0x0303],
            cipher_suites: vec![0x1301, 0x00ff],
            extensions: vec![0, 10, 11, 13, 16, 43, 0xff01],
            groups: vec![29, 23],
            point_formats: vec![0, 1],
            signature_algorithms: vec![0x0403, 0x0804],
            first_protocol: Some(b"h2".to_vec()),
            names_server: true,
            is_cut: false,
        };
        assert_eq!(offer, expected);
        let without_extensions = body.len() - 2 - offered.concat().len();
        for len in 0..body.len() {
            let parsed = ClientOffer::parse(&body[..len]);
            assert_eq!(parsed.is_err(), len != without_extensions, "{len}");
        }
    }

    #[test]
    fn accepts_extensions_up_to_one_that_is_malformed() {
        for (kind, data) in [
            (10, &[0, 3, 0, 29, 0][..]),
            (11, &[2, 0]),
            (13, &[0, 3, 4, 3, 8]),
            (16, &[0, 3, 0, 5, b'h']),
            (43, &[3, 3, 4, 3]),
        ] {
            let offered = [extension(23, &[]), extension(kind, data), extension(35, &[])];
            let offer = ClientOffer::parse(&hello(&[1], &offered)).unwrap();
            assert_eq!(offer.extensions, [23], "{kind}");
        }
        let empty = [10, 11, 13, 16, 43].map(|kind| extension(kind, &[]));
        let offer = ClientOffer::parse(&hello(&[1], &empty)).unwrap();
        assert_eq!(offer.extensions, [10, 11, 13, 16, 43]);
    }

    #[test]
    fn accepts_what_a_server_chooses() {
        let random = [9; 32];
        let extensions = [extension(43, &[3, 4]), extension(0x4a4a, &[]), extension(51, &[0, 29])];
        let extensions = vector16(&extensions.concat());
        let body = [&[3, 3][..], &random, &[0, 0x13, 1, 0], &extensions].concat();
        let choice = ServerChoice::parse(&body).unwrap();
        assert_eq!((choice.legacy_version, choice.cipher_suite.0), (0x0303, 0x1301));
        assert_eq!((choice.extensions, choice.is_cut), (vec![43, 51], false));
        for len in 0..body.len() {
            assert_eq!(ServerChoice::parse(&body[..len]).is_err(), len != 38, "{len}");
        }
        let draft = [&[0x7f, 0x12][..], &random, &[0x13, 1], &extensions].concat();
        let choice = ServerChoice::parse(&draft).unwrap();
        assert_eq!((choice.cipher_suite.0, choice.extensions), (0x1301, vec![43, 51]));
    }

    #[test]
    fn refuses_to_keep_endless_lists() {
        let many: Vec<u16> = (0x1000..0x1000 + 1100).filter(|it| !is_grease(*it)).collect();
        let extensions: Vec<_> = many.iter().map(|kind| extension(*kind, &[])).collect();
        let offer = ClientOffer::parse(&hello(&many, &extensions)).unwrap();
        assert!(offer.is_cut);
        assert_eq!(offer.cipher_suites, many[..MAX_LISTED]);
        assert_eq!(offer.extensions, many[..MAX_LISTED]);
        let formats = vec![extension(11, &vector8(&[0; 255])); 3];
        let offer = ClientOffer::parse(&hello(&[1], &formats)).unwrap();
        assert_eq!((offer.point_formats.len(), offer.is_cut), (MAX_LISTED, true));
        let exact = ClientOffer::parse(&hello(&many[..MAX_LISTED], &[])).unwrap();
        assert!(!exact.is_cut);
        let body = [&[3, 3][..], &[9; 32], &[0, 0, 1, 0], &vector16(&extensions.concat())].concat();
        let choice = ServerChoice::parse(&body).unwrap();
        assert_eq!((choice.extensions.len(), choice.is_cut), (MAX_LISTED, true));
    }

    #[test]
    fn accepts_the_sixteen_numbers_of_grease() {
        let grease: Vec<u16> = (0..=u16::MAX).filter(|it| is_grease(*it)).collect();
        let expected: Vec<u16> = (0..16).map(|it| it << 12 | 0x0a00 | it << 4 | 0x0a).collect();
        assert_eq!(grease, expected);
    }
}
