//! The certificates of one side as they stood in its Certificate message (RFC 8446, section
//! 4.4.2; RFC 5246, section 7.4.2; RFC 8879).
//!
//! Refuses to look inside them, to decompress, and to show more than [`MAX_CERTIFICATE_BYTES`].

use crate::tls::{Malformed, Reader};

/// Most bytes of certificates that are shown of one message, whole certificates only.
pub const MAX_CERTIFICATE_BYTES: usize = 64 << 10;

/// What one side said who it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificates<'a> {
    chain: Vec<&'a [u8]>,
    omitted: bool,
    compression: Option<u16>,
}

impl<'a> Certificates<'a> {
    /// The certificates as DER, that of the sender first. Empty when it has none, or when they
    /// are compressed. What is in them is unchecked.
    #[must_use]
    pub fn chain(&self) -> &[&'a [u8]] {
        &self.chain
    }

    /// Whether some were left out for their size.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.omitted
    }

    /// The number of the algorithm when they are compressed (RFC 8879, section 7.3).
    #[must_use]
    pub fn compression(&self) -> Option<u16> {
        self.compression
    }

    pub(crate) fn parse_tls13(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        reader.vector8()?; // certificate_request_context
        Self::parse_list(reader, true)
    }

    pub(crate) fn parse_tls12(body: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_list(Reader::new(body), false)
    }

    pub(crate) fn parse_compressed(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let algorithm = reader.u16()?;
        reader.array::<3>()?; // uncompressed_length
        reader.vector24()?;
        reader.end()?;
        Ok(Self { chain: Vec::new(), omitted: false, compression: Some(algorithm) })
    }

    fn parse_list(mut reader: Reader<'a>, with_extensions: bool) -> Result<Self, Malformed> {
        let mut list = reader.vector24()?;
        reader.end()?;
        let mut certificates = Self { chain: Vec::new(), omitted: false, compression: None };
        let mut room = MAX_CERTIFICATE_BYTES;
        while !list.is_empty() {
            let certificate = list.vector24()?.rest();
            if with_extensions {
                list.vector16()?;
            }
            match room.checked_sub(certificate.len()) {
                Some(left) if !certificates.omitted => {
                    room = left;
                    certificates.chain.push(certificate);
                }
                _ => certificates.omitted = true,
            }
        }
        Ok(certificates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector24(bytes: &[u8]) -> Vec<u8> {
        let [_, len @ ..] = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&len[..], bytes].concat()
    }

    #[test]
    fn accepts_chains_of_both_versions_and_none() {
        let entries = [vector24(b"one"), vector24(b"another")];
        let old = vector24(&entries.concat());
        assert_eq!(Certificates::parse_tls12(&old).unwrap().chain(), [&b"one"[..], b"another"]);
        let extended: Vec<u8> =
            entries.iter().flat_map(|entry| [entry, &[0, 2, 9, 9][..]].concat()).collect();
        let new = [&[2, 7, 7][..], &vector24(&extended)].concat();
        assert_eq!(Certificates::parse_tls13(&new).unwrap().chain(), [&b"one"[..], b"another"]);
        assert!(Certificates::parse_tls13(&[0, 0, 0, 0]).unwrap().chain().is_empty());
        for len in 0..new.len() {
            assert_eq!(Certificates::parse_tls13(&new[..len]), Err(Malformed), "{len}");
        }
        for len in 0..old.len() {
            assert_eq!(Certificates::parse_tls12(&old[..len]), Err(Malformed), "{len}");
        }
    }

    #[test]
    fn refuses_more_than_its_cap() {
        let entry = vector24(&[5; 30_000]);
        let body = vector24(&entry.repeat(4));
        let certificates = Certificates::parse_tls12(&body).unwrap();
        assert_eq!(certificates.chain().len(), 2);
        assert!(certificates.is_cut());
    }

    #[test]
    fn accepts_compressed_ones_unread() {
        let body = [&[0, 2, 0, 9, 9][..], &vector24(&[1, 2, 3])].concat();
        let certificates = Certificates::parse_compressed(&body).unwrap();
        assert_eq!((certificates.compression(), certificates.chain().len()), (Some(2), 0));
        assert_eq!(Certificates::parse_compressed(&body[..7]), Err(Malformed));
    }
}
