//! The Internet checksum (RFC 1071). Refuses nothing.

use core::net::IpAddr;

/// Sums 16-bit words, carries folded lazily: exact for anything below 2^32 bytes.
fn sum(bytes: &[u8], mut total: u64) -> u64 {
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    total + u64::from(u32::from_be_bytes(rest))
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // Folded above to 16 bits.
    #[allow(clippy::cast_possible_truncation)]
    {
        total as u16
    }
}

fn pseudo_header(source: IpAddr, destination: IpAddr, segment_len: usize) -> u64 {
    let mut total = segment_len as u64 + 6;
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
    internet(header)
}
