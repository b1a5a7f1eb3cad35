//! The Internet checksum (RFC 1071). Refuses nothing.

use core::net::IpAddr;

/// Sums 16-bit words in the machine's byte order, which swaps the bytes of the sum and nothing else
/// (section 2). Payload are folded lazily: exact for anything below 2^32 bytes.
fn sum(bytes: &[u8], mut total: u64) -> u64 {
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    total + u64::from(u32::from_ne_bytes(rest))
}

/// The sum as a number.
fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // Folded above to 16 bits.
    #[allow(clippy::cast_possible_truncation)]
    {
        u16::from_be(total as u16)
    }
}

fn pseudo_header(source: IpAddr, destination: IpAddr, segment_len: usize) -> u64 {
    // Length and protocol number.
    let mut total = sum(&(segment_len as u64 + 6).to_be_bytes(), 0);
    for address in [source, destination] {
        total = match address {
            IpAddr::V4(v4) => sum(&v4.octets(), total),
            IpAddr::V6(v6) => sum(&v6.octets(), total),
        };
    }
    total
}

/// Whether a TCP segment's checksum is right.
pub(super) fn tcp_ok(source: IpAddr, destination: IpAddr, segment: &[u8]) -> bool {
    fold(sum(segment, pseudo_header(source, destination, segment.len()))) == 0xffff
}

/// The checksum for a TCP segment whose checksum field is zero.
pub(super) fn tcp(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    !fold(sum(segment, pseudo_header(source, destination, segment.len())))
}

/// The checksum over these bytes alone.
pub(super) fn internet(bytes: &[u8]) -> u16 {
    !fold(sum(bytes, 0))
}

/// The checksum for an IPv4 header whose checksum field is zero.
pub(super) fn ipv4_header(header: &[u8]) -> u16 {
    // Nearly all have no options: a length that the compiler knows.
    match <&[u8; 20]>::try_from(header) {
        Ok(header) => !fold(sum(header, 0)),
        Err(_) => internet(header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_words_of_any_number() {
        // RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(!internet(&bytes), 0xddf2);
        assert_eq!(!internet(&bytes[..7]), 0xdcfb);
        assert_eq!(!internet(&bytes[..5]), 0xe605);
        assert_eq!(!internet(&[]), 0);
        assert_eq!(!internet(&[0xff; 64]), 0xffff);
    }

    #[test]
    fn names_the_checksum_of_a_header() {
        let mut header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(ipv4_header(&header), 0xb861);
        assert_eq!(internet(&header), 0xb861);
        header[10..12].copy_from_slice(&0xb861_u16.to_be_bytes());
        assert_eq!(ipv4_header(&header), 0);
    }

    #[test]
    fn accepts_a_segment_with_its_own_checksum() {
        let [source, destination] = ["10.0.0.1", "192.168.7.9"].map(|it| it.parse().unwrap());
        let mut segment = vec![0x5a; 33];
        segment[16..18].fill(0);
        // 0x0a00 + 0x0001 + 0xc0a8 + 0x0709 + 6 + 33 + 15 * 0x5a5a + 0x5a00, carries added.
        let by_hand = {
            let mut total = 0x0a00 + 0x0001 + 0xc0a8 + 0x0709 + 6 + 33 + 15 * 0x5a5a + 0x5a00_u32;
            while total > 0xffff {
                total = (total & 0xffff) + (total >> 16);
            }
            !(total as u16)
        };
        let sum = tcp(source, destination, &segment);
        assert_eq!(sum, by_hand);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        assert!(tcp_ok(source, destination, &segment));
        segment[32] ^= 1;
        assert!(!tcp_ok(source, destination, &segment));
    }
}
