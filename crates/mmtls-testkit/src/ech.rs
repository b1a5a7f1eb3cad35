//! A ClientHello with another one sealed in it (RFC 9849), and what its client logs of it: made with Python's
//! `cryptography` from fixed keys, so that what opens it is checked against something else.
//!
//! X25519, HKDF-SHA256 and AES-128-GCM; the server is `public.test` outside and `server.test` inside.

/// The random on the wire.
pub const OUTER_RANDOM: [u8; 32] = [0x0a; 32];
/// The random inside.
pub const INNER_RANDOM: [u8; 32] = [0x1a; 32];
/// The value of `ECH_SECRET`, in hexadecimal.
pub const SECRET: &str = "9d6ce783a0d7d9abaddd52f4858a519dd802a0cec3b75ac6662d39575f5923ff";
/// The value of `ECH_CONFIG`.
pub const CONFIG: &str = "fe0d003a07002000207d34a4815fa6b982535e60af3bd9b49556816080f1641ff81d2b7c8ae8268a4400040001\
     0001200b7075626c69632e746573740000";
/// The body of the ClientHello.
pub const HELLO: &str = "03030a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0000021301010000b90000\
     0010000e00000b7075626c69632e74657374fe0d009a0000010001070020132c442be010fbd57e72603328aa76\
     e71fccc1503aae219327d14d9c9993f47200707b3769293e49acb28c080e368d3d9e26931164a4cd3b919394ec\
     3afc59b0c5c577fb24e6bea9618836d0135ef45fdf659fdbc4efa2b106c3988622ac52a83829a68203a609419d\
     30cbc7395c9ef44929562b0c386576370764a4d6910717d19f825bf013a99cce6f9269525154293a27002b0003\
     020304";

/// [`HELLO`].
#[must_use]
pub fn hello() -> Vec<u8> {
    let digit = |it: &u8| (*it as char).to_digit(16).unwrap_or(0) as u8;
    HELLO.as_bytes().chunks(2).map(|pair| digit(&pair[0]) << 4 | digit(&pair[1])).collect()
}

/// The two lines of a key log.
#[must_use]
pub fn lines() -> [String; 2] {
    let random = "0a".repeat(32);
    [format!("ECH_SECRET {random} {SECRET}\n"), format!("ECH_CONFIG {random} {CONFIG}\n")]
}
