//! `content` and what modifies it: literal bytes, and where in a buffer they have to be.
//!
//! Refuses what Suricata refuses: combinations that contradict each other, and places that the
//! pattern does not fit into.

use super::fault::{FaultKind, Refused};
use super::options;

/// Longest pattern in bytes.
pub const MAX_CONTENT_LEN: usize = 8192;
/// Greatest offset or depth.
const MAX_OFFSET: u64 = u16::MAX as u64;
/// Greatest distance or within, either way.
const MAX_DISTANCE: i32 = 1 << 20;

/// A number of bytes in a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// That many.
    Number(i32),
    /// As many as the numbered `byte_extract` of the rule found.
    Extracted(u8),
}

/// Literal bytes in a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// The bytes. Never empty.
    pub bytes: Box<[u8]>,
    /// They must not be there.
    pub negated: bool,
    /// ASCII letters match in either case.
    pub nocase: bool,
    /// Where they may be.
    pub place: Place,
    /// They must be the last bytes of the buffer.
    pub at_end: bool,
    /// What a search for many rules at once should look for.
    pub fast_pattern: Option<FastPattern>,
}

/// Where a pattern may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Somewhere in the buffer; absent ends are those of the buffer.
    Absolute {
        /// The first byte where it may start.
        offset: Option<Amount>,
        /// It must end within that many bytes, counted from the offset.
        depth: Option<Amount>,
    },
    /// Behind the end of the previous match in the same buffer, or in the whole buffer if there
    /// is none.
    Relative {
        /// Bytes between that end and the first byte where it may start; may be negative.
        distance: Option<Amount>,
        /// It must end within that many bytes, counted from there.
        within: Option<Amount>,
    },
    /// At the start of the buffer.
    Start,
}

impl Place {
    /// Anywhere.
    pub const ANYWHERE: Self = Self::Absolute { offset: None, depth: None };
}

/// How much of a content is looked for in the search for many rules at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastPattern {
    /// All of it.
    Whole,
    /// All of it, and then it need not be looked for again.
    Only,
    /// A part; never empty, and within the content.
    Part {
        /// First byte.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
}

/// A keyword that modifies the content before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Modifier {
    NoCase,
    Offset,
    Depth,
    Distance,
    Within,
    StartsWith,
    EndsWith,
    FastPattern,
    RawBytes,
}

impl Content {
    pub(super) fn new(negated: bool, bytes: Box<[u8]>) -> Self {
        Self {
            bytes,
            negated,
            nocase: false,
            place: Place::ANYWHERE,
            at_end: false,
            fast_pattern: None,
        }
    }

    /// Reads what stands in quotes: bytes in hexadecimal between `|`, and a backslash before what
    /// would end the quotes or the option.
    pub(super) fn parse(negated: bool, text: &str) -> Result<Self, FaultKind> {
        let bytes = unescape(text)?;
        match bytes.len() {
            0 => Err(FaultKind::ValueMissing),
            1..=MAX_CONTENT_LEN => Ok(Self::new(negated, bytes.into())),
            _ => Err(FaultKind::TooLong),
        }
    }

    /// Applies a modifier; `name` finds a name of `byte_extract`.
    pub(super) fn modify(
        &mut self,
        modifier: Modifier,
        value: Option<&str>,
        name: impl Fn(&str) -> Option<u8>,
    ) -> Result<(), Refused> {
        let amount = |signed| amount(value.unwrap_or_default(), signed, &name);
        match modifier {
            Modifier::NoCase if self.nocase => return Err(FaultKind::Twice.into()),
            Modifier::NoCase => self.nocase = true,
            Modifier::Offset => self.put(modifier, amount(false)?)?,
            Modifier::Distance => self.put(modifier, amount(true)?)?,
            Modifier::Depth | Modifier::Within => {
                let most = amount(modifier == Modifier::Within)?;
                if let Amount::Number(most) = most
                    && usize::try_from(most).map_or(true, |most| most < self.bytes.len())
                {
                    return Err(FaultKind::NeverMatches("the content is longer").into());
                }
                self.put(modifier, most)?;
            }
            Modifier::StartsWith => match self.place {
                Place::Start => return Err(FaultKind::Twice.into()),
                Place::ANYWHERE => self.place = Place::Start,
                _ => return Err(FaultKind::Conflict("offset, depth, distance or within").into()),
            },
            Modifier::EndsWith => self.at_end = true,
            Modifier::FastPattern if self.fast_pattern.is_some() => {
                return Err(FaultKind::Twice.into());
            }
            Modifier::FastPattern => self.fast_pattern = Some(self.fast_pattern(value)?),
            // Without effect in Suricata.
            Modifier::RawBytes => {}
        }
        Ok(())
    }

    /// Sets an end of the place.
    fn put(&mut self, modifier: Modifier, amount: Amount) -> Result<(), FaultKind> {
        let relative = matches!(modifier, Modifier::Distance | Modifier::Within);
        if relative && self.place == Place::ANYWHERE {
            self.place = Place::Relative { distance: None, within: None };
        }
        let end = match (&mut self.place, modifier) {
            (Place::Absolute { offset, .. }, Modifier::Offset) => offset,
            (Place::Absolute { depth, .. }, Modifier::Depth) => depth,
            (Place::Relative { distance, .. }, Modifier::Distance) => distance,
            (Place::Relative { within, .. }, Modifier::Within) => within,
            (Place::Start, _) => return Err(FaultKind::Conflict("startswith")),
            (Place::Absolute { .. }, _) => return Err(FaultKind::Conflict("offset or depth")),
            (Place::Relative { .. }, _) => return Err(FaultKind::Conflict("distance or within")),
        };
        if end.is_some() {
            return Err(FaultKind::Twice);
        }
        *end = Some(amount);
        Ok(())
    }

    fn fast_pattern(&self, value: Option<&str>) -> Result<FastPattern, FaultKind> {
        let Some(value) = value else {
            return Ok(FastPattern::Whole);
        };
        if value == "only" {
            return Ok(FastPattern::Only);
        }
        let (offset, len) = value.split_once(',').ok_or(FaultKind::Value)?;
        let number = |text: &str| options::unsigned(text.trim(), MAX_CONTENT_LEN as u64);
        let (offset, len) = (number(offset)? as usize, number(len)? as usize);
        if len == 0 || offset + len > self.bytes.len() {
            return Err(FaultKind::Number);
        }
        Ok(FastPattern::Part { offset, len })
    }

    /// What only shows when all modifiers are known.
    pub(super) fn check(&self) -> Result<(), FaultKind> {
        match self.fast_pattern {
            Some(FastPattern::Only) if self.negated || self.place != Place::ANYWHERE => {
                Err(FaultKind::Conflict("fast_pattern:only"))
            }
            Some(_) if self.negated && self.place != Place::ANYWHERE => {
                Err(FaultKind::Conflict("fast_pattern of a negated content"))
            }
            _ => Ok(()),
        }
    }
}

/// A number, or a name of `byte_extract`.
pub(super) fn amount(
    text: &str,
    signed: bool,
    name: impl Fn(&str) -> Option<u8>,
) -> Result<Amount, FaultKind> {
    let text = text.trim();
    if text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
        return name(text).map(Amount::Extracted).ok_or(FaultKind::UndefinedName);
    }
    let number = if signed {
        options::signed(text, MAX_DISTANCE)?
    } else {
        options::unsigned(text, MAX_OFFSET)? as i32
    };
    Ok(Amount::Number(number))
}

fn unescape(text: &str) -> Result<Vec<u8>, FaultKind> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'|' => hex(&mut rest, &mut bytes)?,
            b'\\' => match rest.next() {
                Some(escaped @ (b';' | b':' | b'"' | b'\\')) => bytes.push(escaped),
                _ => return Err(FaultKind::Escape),
            },
            b'"' => return Err(FaultKind::Quote),
            _ => bytes.push(byte),
        }
    }
    Ok(bytes)
}

/// Two digits a byte up to the closing `|`; spaces may stand anywhere.
fn hex(rest: &mut core::str::Bytes<'_>, bytes: &mut Vec<u8>) -> Result<(), FaultKind> {
    let mut high = None;
    for byte in rest {
        let digit = match byte {
            b'|' if high.is_none() => return Ok(()),
            b' ' => continue,
            _ => char::from(byte).to_digit(16).ok_or(FaultKind::Hex)? as u8,
        };
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    Err(FaultKind::Hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<Box<[u8]>, FaultKind> {
        Content::parse(false, text).map(|content| content.bytes)
    }

    fn modified(modifiers: &[(Modifier, &str)]) -> Result<Content, Refused> {
        let mut content = Content::parse(false, "abcd")?;
        for (modifier, value) in modifiers {
            let value = Some(*value).filter(|value| !value.is_empty());
            content.modify(*modifier, value, |name| (name == "len").then_some(3))?;
        }
        content.check()?;
        Ok(content)
    }

    #[test]
    fn accepts_hexadecimal_and_escapes() {
        assert_eq!(&*bytes(r#"a|20 0D0a|b|7c|\;\:\"\\"#).unwrap(), b"a \r\nb|;:\"\\");
        assert_eq!(&*bytes("|a B|é").unwrap(), b"\xab\xc3\xa9");
    }

    #[test]
    fn refuses_faulty_bytes() {
        for faulty in ["|4|", "|41", "|4g|", "|41\t|", "|é|"] {
            assert_eq!(bytes(faulty), Err(FaultKind::Hex), "{faulty}");
        }
        assert_eq!(bytes(r"a\n"), Err(FaultKind::Escape));
        assert_eq!(bytes(r"\|41|"), Err(FaultKind::Escape));
        assert_eq!(bytes("a\\"), Err(FaultKind::Escape));
        assert_eq!(bytes("a\"b"), Err(FaultKind::Quote));
        assert_eq!(bytes("||"), Err(FaultKind::ValueMissing));
        assert!(bytes(&"x".repeat(MAX_CONTENT_LEN)).is_ok());
        assert_eq!(bytes(&"x".repeat(MAX_CONTENT_LEN + 1)), Err(FaultKind::TooLong));
    }

    #[test]
    fn accepts_places() {
        use Modifier::{Depth, Distance, EndsWith, NoCase, Offset, RawBytes, StartsWith, Within};
        let number = |number| Some(Amount::Number(number));
        let content = modified(&[(NoCase, ""), (Depth, "4"), (Offset, "0"), (RawBytes, "")]);
        let content = content.unwrap();
        assert_eq!(content.place, Place::Absolute { offset: number(0), depth: number(4) });
        assert!(content.nocase && !content.at_end);
        let content = modified(&[(Distance, "-10"), (Within, "len")]).unwrap();
        let within = Some(Amount::Extracted(3));
        assert_eq!(content.place, Place::Relative { distance: number(-10), within });
        let content = modified(&[(StartsWith, ""), (EndsWith, "")]).unwrap();
        assert!(content.place == Place::Start && content.at_end);
    }

    #[test]
    fn refuses_contradictory_places() {
        use Modifier::{Depth, Distance, NoCase, Offset, StartsWith, Within};
        for faulty in [
            &[(Depth, "3")][..],
            &[(Within, "3")],
            &[(Within, "-1")],
            &[(Within, "0")],
            &[(Offset, "65536")],
            &[(Offset, "-1")],
            &[(Offset, "other")],
            &[(Distance, "1048577")],
            &[(Distance, "")],
            &[(Depth, "4"), (Depth, "4")],
            &[(Depth, "4"), (Distance, "0")],
            &[(Within, "4"), (Offset, "0")],
            &[(StartsWith, ""), (Depth, "4")],
            &[(Distance, "4"), (StartsWith, "")],
            &[(StartsWith, ""), (StartsWith, "")],
            &[(NoCase, ""), (NoCase, "")],
        ] {
            assert!(matches!(modified(faulty), Err(Refused::Fault(_))), "{faulty:?}");
        }
    }

    #[test]
    fn accepts_and_refuses_fast_patterns() {
        use Modifier::{Distance, FastPattern as Fast};
        let fast = |value| modified(&[(Fast, value)]).map(|content| content.fast_pattern);
        assert_eq!(fast(""), Ok(Some(FastPattern::Whole)));
        assert_eq!(fast("only"), Ok(Some(FastPattern::Only)));
        assert_eq!(fast("1, 3"), Ok(Some(FastPattern::Part { offset: 1, len: 3 })));
        for faulty in ["1,4", "0,0", "1", "all", "1,-1"] {
            assert!(fast(faulty).is_err(), "{faulty}");
        }
        assert!(modified(&[(Fast, ""), (Fast, "")]).is_err());
        assert!(modified(&[(Fast, "only"), (Distance, "1")]).is_err());
        let mut negated = Content::parse(true, "a").unwrap();
        negated.modify(Fast, None, |_| None).unwrap();
        assert!(negated.check().is_ok());
        negated.modify(Distance, Some("1"), |_| None).unwrap();
        assert!(negated.check().is_err());
    }
}
