//! TLS over UDP by content: DTLS (RFC 6347, RFC 9147) and QUIC (RFC 9000).
//!
//! Refuses to follow either: they are counted, and forwarded or dropped as configured. Only packets
//! that can be told by themselves count, which is enough to keep a connection from being opened:
//! records with a full header, and QUIC packets with a long one.

/// What a datagram carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Datagram {
    /// A DTLS record.
    Dtls,
    /// A QUIC packet with a long header.
    Quic,
    /// Something else.
    Other,
}

/// Longest connection identifier (RFC 9000, section 17.2).
const MAX_CONNECTION_ID: u8 = 20;

/// Bytes that [`classify`] may look at; behind them only the length counts.
pub(crate) const MAX_DATAGRAM_FRONT: usize = 7 + MAX_CONNECTION_ID as usize;

/// Looks at a datagram's payload.
pub(crate) fn classify(payload: &[u8]) -> Datagram {
    match *payload {
        [20..=26, 0xfe, 0xff | 0xfd | 0xfc, ref rest @ ..] => match *rest {
            // Epoch, sequence number, length.
            [_, _, _, _, _, _, _, _, high, low, ref fragment @ ..]
                if usize::from(u16::from_be_bytes([high, low])) <= fragment.len() =>
            {
                Datagram::Dtls
            }
            _ => Datagram::Other,
        },
        // The fixed bit may be anything where that was negotiated (RFC 9287), not at first.
        [0xc0..=0xff, a, b, c, d, destination, ref rest @ ..] => {
            let source = rest.get(usize::from(destination));
            let ids = destination <= MAX_CONNECTION_ID
                && source.is_some_and(|source| *source <= MAX_CONNECTION_ID);
            if ids && is_quic_version([a, b, c, d]) { Datagram::Quic } else { Datagram::Other }
        }
        _ => Datagram::Other,
    }
}

/// Versions 1 and 2 (RFC 9369), drafts, version negotiation and its exercise (section 15), and
/// Google's.
fn is_quic_version(version: [u8; 4]) -> bool {
    match version {
        [0, 0, 0, 0 | 1] | [0x6b, 0x33, 0x43, 0xcf] | [0xff, 0, 0, _] => true,
        [b'Q' | b'T', b'0', b'0'..=b'9', b'0'..=b'9'] => true,
        _ => version.iter().all(|byte| byte & 0x0f == 0x0a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_dtls_and_quic() {
        let mut dtls = vec![22, 0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3];
        assert_eq!(classify(&dtls), Datagram::Dtls);
        dtls.pop();
        assert_eq!(classify(&dtls), Datagram::Other);
        let quic = |version: u32| {
            let mut packet = vec![0xc3];
            packet.extend_from_slice(&version.to_be_bytes());
            packet.extend_from_slice(&[8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
            packet
        };
        for version in [1, 0x6b33_43cf, 0xff00_001d, 0, 0x1a2a_3a4a, 0x5130_3530] {
            assert_eq!(classify(&quic(version)), Datagram::Quic, "{version:#x}");
        }
        assert_eq!(classify(&quic(7)), Datagram::Other);
    }

    #[test]
    fn refuses_other_datagrams() {
        // DNS, RTP, WireGuard, short ones.
        for other in [
            &b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01"[..],
            &[0x80, 0x60, 0, 1, 0, 0, 0, 1, 9, 9, 9, 9, 0, 0],
            &[1, 0, 0, 0, 9, 9, 9, 9],
            &[0xc0, 0, 0, 0, 1, 21],
            &[0xc0, 0, 0, 0, 1, 2, 1],
            &[0xc0],
            &[],
        ] {
            assert_eq!(classify(other), Datagram::Other, "{other:?}");
        }
    }
}
