//! Community ID, version 1: the same short text for a flow in every tool that computes it.
//!
//! Refuses other protocols than TCP and other seeds than 0.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::digest;
use base64ct::{Base64, Encoding};

const SEED: [u8; 2] = [0, 0];
const TCP: u8 = 6;

/// The Community ID of a TCP flow; the same whichever end comes first.
pub(super) fn community_id(one: SocketAddr, other: SocketAddr) -> String {
    let (low, high) = if (one.ip(), one.port()) <= (other.ip(), other.port()) {
        (one, other)
    } else {
        (other, one)
    };
    // SHA-1 names flows here; nothing relies on its strength.
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(&SEED);
    for end in [low, high] {
        match end.ip() {
            IpAddr::V4(ip) => hash.update(&ip.octets()),
            IpAddr::V6(ip) => hash.update(&ip.octets()),
        }
    }
    hash.update(&[TCP, 0]);
    hash.update(&low.port().to_be_bytes());
    hash.update(&high.port().to_be_bytes());
    let mut text = String::with_capacity(30);
    text.push_str("1:");
    text.push_str(&Base64::encode_string(hash.finish().as_ref()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The example of the specification, and values computed with Python's hashlib.
    #[test]
    fn accepts_known_flows_in_either_direction() {
        for (one, other, expected) in [
            ("128.232.110.120:34855", "66.35.250.204:80", "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
            ("[2001:db8::1]:50000", "[2001:db8::2]:443", "1:YXqXufkGr4i6TbJJYF83fvyDLZ8="),
            ("10.0.0.1:443", "10.0.0.1:40000", "1:gIyhpNOMnzpVuu+jN7qkN5atzK8="),
        ] {
            assert_eq!(community_id(address(one), address(other)), expected);
            assert_eq!(community_id(address(other), address(one)), expected);
        }
    }
}
