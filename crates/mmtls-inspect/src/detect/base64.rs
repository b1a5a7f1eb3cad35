//! What base64 in traffic stands for, read as loosely as a rule asks for.
//!
//! Refuses to guess digits: what is none ends it, is passed over, or makes nothing of all of it.

use crate::rules::slices::{Base64Mode, FromBase64};

/// Decodes the part of a buffer that a rule names; `None` where there is no such part, or nothing comes of
/// it: then the buffer stays as it is.
pub(super) fn decode_part(bytes: &[u8], wanted: &FromBase64) -> Option<Vec<u8>> {
    let part = bytes.get(wanted.offset as usize..).filter(|part| !part.is_empty())?;
    let part = match wanted.bytes as usize {
        0 => part,
        count if count < part.len() => &part[..count],
        _ => return None,
    };
    decode(part, wanted.mode).filter(|decoded| !decoded.is_empty())
}

fn decode(text: &[u8], mode: Base64Mode) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count, mut padding) = (0_u32, 0_u32, 0);
    for &byte in text {
        let Some(digit) = digit(byte) else {
            match (byte, mode) {
                (b'=', Base64Mode::Strict) => {
                    padding += 1;
                    continue;
                }
                (b'=', _) | (_, Base64Mode::Rfc4648) => break,
                (_, Base64Mode::Rfc2045) => continue,
                (_, Base64Mode::Strict) => return None,
            }
        };
        if padding > 0 {
            return None;
        }
        bits = bits << 6 | digit;
        count += 1;
        if count % 4 == 0 {
            decoded.extend_from_slice(&bits.to_be_bytes()[1..]);
            bits = 0;
        }
    }
    let left = count % 4;
    if mode == Base64Mode::Strict && (left + padding) % 4 != 0 {
        return None;
    }
    // Two digits are a byte, three are two.
    let rest = (bits << (6 * (4 - left)) & 0xff_ffff).to_be_bytes();
    decoded.extend_from_slice(&rest[1..][..left.saturating_sub(1) as usize]);
    Some(decoded)
}

fn digit(byte: u8) -> Option<u32> {
    Some(match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(input: &str, mode: Base64Mode) -> Option<String> {
        decode(input.as_bytes(), mode).map(|it| String::from_utf8(it).unwrap())
    }

    #[test]
    fn accepts_every_length_and_mode() {
        for mode in [Base64Mode::Strict, Base64Mode::Rfc4648, Base64Mode::Rfc2045] {
            for (input, output) in [("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("", "")] {
                assert_eq!(text(input, mode).as_deref(), Some(output), "{input} {mode:?}");
            }
        }
        assert_eq!(text("Zm 9v\r\nYm Fy", Base64Mode::Rfc2045).as_deref(), Some("foobar"));
        assert_eq!(text("Zm9v Ym Fy", Base64Mode::Rfc4648).as_deref(), Some("foo"));
        assert_eq!(text("Zm8", Base64Mode::Rfc4648).as_deref(), Some("fo"));
    }

    #[test]
    fn refuses_what_is_not_strict() {
        for input in ["Zm9v Ym Fy", "Zm8", "Z", "Zg=", "Zg==Zg=="] {
            assert_eq!(text(input, Base64Mode::Strict), None, "{input}");
        }
    }

    #[test]
    fn refuses_parts_that_are_not_there() {
        let part = |offset, bytes| {
            let wanted = FromBase64 { offset, bytes, mode: Base64Mode::Rfc4648 };
            decode_part(b"x=Zm9vYmFy", &wanted)
        };
        assert_eq!(part(2, 0).as_deref(), Some(&b"foobar"[..]));
        assert_eq!(part(2, 4).as_deref(), Some(&b"foo"[..]));
        assert_eq!((part(10, 0), part(2, 8), part(1, 0)), (None, None, None));
    }
}
