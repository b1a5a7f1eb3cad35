//! Transformations that take a part of a buffer: `subslice`, `from_base64`, and `xor` with what stands in the
//! buffer itself.
//!
//! Refuses numbers out of range, and parts that are no part.

use super::fault::{FaultKind, Refused};
use super::options;

/// Greatest place, either way.
const MAX_PLACE: i32 = i32::MAX;

/// `subslice`: a part of the buffer, or nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slice {
    /// Where it starts; counted from the end where it is negative.
    pub offset: i32,
    /// How long it is; up to so many bytes before the end where it is negative.
    pub len: Option<i32>,
    /// What is beyond the buffer is cut off; else there is nothing then.
    pub truncates: bool,
}

/// How strictly base64 is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Base64Mode {
    /// All of it must be so.
    Strict,
    /// Up to what is not.
    Rfc4648,
    /// What is not is passed over.
    Rfc2045,
}

/// `from_base64`: what a part of the buffer stands for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FromBase64 {
    /// Where it starts.
    pub offset: u32,
    /// How many bytes are read; all where that is 0.
    pub bytes: u32,
    /// What is read over.
    pub mode: Base64Mode,
}

/// The key of `xor`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum XorKey {
    /// Never empty.
    Given(Box<[u8]>),
    /// Bytes of the buffer.
    Extracted {
        /// Where they are.
        offset: u16,
        /// How many there are; not 0.
        len: u8,
    },
}

impl Slice {
    /// Reads the value of `subslice`.
    pub(super) fn parse(text: &str) -> Result<Self, Refused> {
        let mut parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let truncates = parts.last().is_some_and(|it| it.eq_ignore_ascii_case("truncate"));
        if truncates {
            parts.pop();
        }
        let number = |text: &str| options::signed(text, MAX_PLACE);
        let (offset, len) = match parts[..] {
            [offset] => (number(offset)?, None),
            [offset, len] => (number(offset)?, Some(number(len)?)),
            _ => return Err(FaultKind::Value.into()),
        };
        if len == Some(0) {
            return Err(FaultKind::Number.into());
        }
        Ok(Self { offset, len, truncates })
    }
}

impl FromBase64 {
    /// Reads the value of `from_base64`, which may be empty.
    pub(super) fn parse(text: &str) -> Result<Self, Refused> {
        let (mut offset, mut bytes, mut mode) = (None, None, None);
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        for part in parts {
            let (word, value) = options::words(part);
            let value = value.ok_or(FaultKind::ValueMissing)?;
            let number = |most: u64| -> Result<u32, FaultKind> {
                let number = options::unsigned(value, most)?;
                u32::try_from(number).map_err(|_| FaultKind::Number)
            };
            let is_again = match word {
                "offset" => offset.replace(number(65_535)?).is_some(),
                "bytes" => bytes.replace(number(u32::MAX.into())?).is_some(),
                "mode" => {
                    let known = match value {
                        "strict" => Base64Mode::Strict,
                        "rfc4648" => Base64Mode::Rfc4648,
                        "rfc2045" => Base64Mode::Rfc2045,
                        _ => return Err(FaultKind::Value.into()),
                    };
                    mode.replace(known).is_some()
                }
                _ => return Err(FaultKind::Value.into()),
            };
            if is_again {
                return Err(FaultKind::Twice.into());
            }
        }
        Ok(Self {
            offset: offset.unwrap_or(0),
            bytes: bytes.unwrap_or(0),
            mode: mode.unwrap_or(Base64Mode::Rfc4648),
        })
    }
}

impl XorKey {
    /// Reads the value of `xor`: from where on, and the key.
    pub(super) fn parse(text: &str) -> Result<(u32, Self), Refused> {
        let (offset, key) = match behind_word(text, "offset") {
            Some(rest) => {
                let (offset, key) = rest.split_once(',').ok_or(FaultKind::Value)?;
                let offset = options::unsigned(offset.trim(), u32::MAX.into())?;
                (u32::try_from(offset).map_err(|_| FaultKind::Number)?, key.trim())
            }
            None => (0, text),
        };
        let key = match behind_word(key, "extract") {
            Some(rest) => {
                let (len, place) = options::words(rest);
                let place = place.ok_or(FaultKind::ValueMissing)?;
                let len = options::unsigned(len, u8::MAX.into())?;
                let place = options::unsigned(place, u16::MAX.into())?;
                let (Ok(len), Ok(offset)) = (u8::try_from(len), u16::try_from(place)) else {
                    return Err(FaultKind::Number.into());
                };
                if len == 0 {
                    return Err(FaultKind::Number.into());
                }
                Self::Extracted { offset, len }
            }
            None => Self::Given(hexadecimal(key)?),
        };
        Ok((offset, key))
    }
}

/// Longest key of `xor`.
const MAX_XOR_KEY: usize = 255;

fn behind_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(word)?;
    rest.starts_with(|char: char| char.is_ascii_whitespace()).then(|| rest.trim_start())
}

fn hexadecimal(key: &str) -> Result<Box<[u8]>, FaultKind> {
    let key = options::unquoted(key)?;
    let digits: Vec<u8> = key
        .chars()
        .map(|char| char.to_digit(16).map(|digit| digit as u8))
        .collect::<Option<_>>()
        .ok_or(FaultKind::Hex)?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.is_empty() || pairs.len() > MAX_XOR_KEY || !rest.is_empty() {
        return Err(FaultKind::Hex);
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses_keys_of_xor() {
        let given = |offset, key: &[u8]| Ok((offset, XorKey::Given(key.into())));
        assert_eq!(XorKey::parse("0d0A"), given(0, &[13, 10]));
        assert_eq!(XorKey::parse("offset  2, \"0d\""), given(2, &[13]));
        let key = XorKey::Extracted { offset: 7, len: 4 };
        assert_eq!(XorKey::parse("offset 1,extract 4  7"), Ok((1, key)));
        let long = "00".repeat(MAX_XOR_KEY + 1);
        for faulty in
            ["", "0", "0g", "é", &long, "extract 0 0", "extract 1", "offset 1", "offset a,00"]
        {
            assert!(matches!(XorKey::parse(faulty), Err(Refused::Fault(_))), "{faulty}");
        }
    }

    #[test]
    fn accepts_and_refuses_slices() {
        let slice = |offset, len, truncates| Ok(Slice { offset, len, truncates });
        assert_eq!(Slice::parse("2"), slice(2, None, false));
        assert_eq!(Slice::parse(" -6 , 30,truncate"), slice(-6, Some(30), true));
        assert_eq!(Slice::parse("-6,Truncate"), slice(-6, None, true));
        for faulty in ["", "a", "1,0", "1,2,3", "1,2,3,truncate", "truncate"] {
            assert!(Slice::parse(faulty).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_and_refuses_base64() {
        let read = |offset, bytes, mode| Ok(FromBase64 { offset, bytes, mode });
        assert_eq!(FromBase64::parse(""), read(0, 0, Base64Mode::Rfc4648));
        let text = "bytes 6, offset 5 , mode rfc2045";
        assert_eq!(FromBase64::parse(text), read(5, 6, Base64Mode::Rfc2045));
        for faulty in ["offset", "offset 65536", "mode other", "x 1", "bytes 1,bytes 2"] {
            assert!(FromBase64::parse(faulty).is_err(), "{faulty}");
        }
    }
}
