//! `byte_test`, `byte_jump`, `byte_extract` and `isdataat`: numbers in a buffer, and its length.
//!
//! Refuses numbers that are not wholly known, and to jump behind what is known.

use super::memory::Memory;
use super::view::View;
use crate::rules::bytes::{
    ByteExtract, ByteJump, ByteTest, DataAt, Encoding, Field, JumpFrom, Operator, Value,
};

/// Most bytes of a binary number.
const MAX_BINARY: usize = 8;
/// Most bytes of a number in digits.
const MAX_DIGITS: usize = 23;

/// A number that was read.
struct Number {
    value: u64,
    /// Behind its last byte. What is not a digit any more does not belong to it.
    end: u64,
}

/// Whether a number compares as it must.
pub(super) fn test(check: &ByteTest, place: u64, view: View<'_>, memory: &Memory) -> bool {
    let value = match check.value {
        Value::Number(value) => Some(value),
        Value::Extracted(index) => memory.number(index),
    };
    let (Some(value), Some(number)) = (value, read(&check.field, place, true, view, memory)) else {
        return false;
    };
    let number = number.value;
    let holds = match check.operator {
        Operator::Less => number < value,
        Operator::LessOrEqual => number <= value,
        Operator::Equal => number == value,
        Operator::GreaterOrEqual => number >= value,
        Operator::Greater => number > value,
        Operator::And => number & value != 0,
        Operator::Xor => number ^ value != 0,
    };
    holds != check.negated
}

/// Where a jump ends. A jump to before the buffer ends at its start.
pub(super) fn jump(check: &ByteJump, place: u64, view: View<'_>, memory: &Memory) -> Option<u64> {
    let number = read(&check.field, place, false, view, memory)?;
    let from = match check.from {
        JumpFrom::Field => number.end,
        JumpFrom::Beginning => 0,
        JumpFrom::End if view.is_whole => view.end(),
        JumpFrom::End => return None,
    };
    // Suricata calculates in 64 bits, and takes what comes of it for a signed number.
    let scaled =
        round_up(number.value.wrapping_mul(check.multiplier.into()), multiple(check.align));
    let jump = scaled.wrapping_add(i64::from(check.post_offset) as u64) as i64;
    let to = from.saturating_add_signed(jump);
    (to <= view.end()).then_some(to)
}

fn multiple(align: bool) -> u64 {
    if align { 4 } else { 1 }
}

/// Keeps a number. Returns the place behind it.
pub(super) fn extract(
    check: &ByteExtract,
    place: u64,
    view: View<'_>,
    memory: &mut Memory,
) -> Option<u64> {
    let number = read(&check.field, place, true, view, memory)?;
    let scaled = number.value.wrapping_mul(check.multiplier.into());
    memory.keep(check.index, round_up(scaled, check.align.unwrap_or(1).into()));
    Some(number.end)
}

/// Whether there is, or is not, a byte.
pub(super) fn data_at(check: &DataAt, place: u64, view: View<'_>, memory: &Memory) -> bool {
    let Some(at) = memory.amount(check.at).and_then(|at| u64::try_from(at).ok()) else {
        return false;
    };
    let is_there =
        if check.relative { place.saturating_add(at) <= view.end() } else { at < view.end() };
    if check.negated { !is_there && view.is_whole } else { is_there }
}

fn round_up(number: u64, multiple: u64) -> u64 {
    match number.checked_rem(multiple) {
        None | Some(0) => number,
        Some(rest) => number.wrapping_add(multiple - rest),
    }
}

/// Reads a number. `needs_byte`: where it is counted from a match, there must be a byte even if it has
/// none.
fn read(
    field: &Field,
    place: u64,
    needs_byte: bool,
    view: View<'_>,
    memory: &Memory,
) -> Option<Number> {
    let base = if field.relative { place } else { 0 };
    let at = base.checked_add_signed(memory.amount(field.offset)?)?;
    let len = usize::try_from(memory.amount(field.len)?).ok()?;
    let known = view.tail(at).filter(|_| view.end() > 0)?;
    if field.relative && known.is_empty() && (needs_byte || len > 0) {
        return None;
    }
    let (value, used) = match field.encoding {
        Encoding::Digits(base) => {
            // No length at all: up to what is no digit.
            let is_open = len == 0 && !view.is_whole;
            let text = if len == 0 { known } else { known.get(..len)? };
            if len > MAX_DIGITS {
                return None;
            }
            digits(text, base, is_open)?
        }
        Encoding::BigEndian if len <= MAX_BINARY => (binary(known.get(..len)?.iter()), len),
        Encoding::LittleEndian if len <= MAX_BINARY => {
            (binary(known.get(..len)?.iter().rev()), len)
        }
        Encoding::BigEndian | Encoding::LittleEndian => return None,
    };
    let value = match field.mask {
        None => value,
        Some(mask) => (value & u64::from(mask)).checked_shr(mask.trailing_zeros()).unwrap_or(0),
    };
    Some(Number { value, end: at.saturating_add(used as u64) })
}

fn binary<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A number in digits, and how many bytes it has, as `strtoull` of C reads it: behind white space, a
/// sign and, to the base of 16, `0x`. Absent where there is none, where it does not fit into 64 bits,
/// and where more bytes could belong to it although the text `is_open`.
fn digits(text: &[u8], base: u8, is_open: bool) -> Option<(u64, usize)> {
    let base = u32::from(base);
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(base));
    let mut at = text.iter().take_while(|byte| is_space(byte)).count();
    let is_negative = text.get(at) == Some(&b'-');
    if let Some(b'+' | b'-') = text.get(at) {
        at += 1;
    }
    if base == 16 && text.get(at) == Some(&b'0') && matches!(text.get(at + 1), Some(b'x' | b'X')) {
        if digit(at + 2).is_some() {
            at += 2;
        } else if is_open && at + 2 == text.len() {
            return None;
        }
    }
    let first = at;
    let mut number = 0_u64;
    while let Some(digit) = digit(at) {
        number = number.checked_mul(base.into())?.checked_add(digit.into())?;
        at += 1;
    }
    if at == first || is_open && at == text.len() {
        return None;
    }
    Some((if is_negative { number.wrapping_neg() } else { number }, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_digits_as_strtoull_does() {
        for (text, base, expected) in [
            ("123", 10, Some((123, 3))),
            ("12a", 10, Some((12, 2))),
            (" \t\u{b}+7x", 10, Some((7, 5))),
            ("-1", 10, Some((u64::MAX, 2))),
            ("0x1F", 16, Some((31, 4))),
            ("0x", 16, Some((0, 1))),
            ("0xg", 16, Some((0, 1))),
            ("fF", 16, Some((255, 2))),
            ("0x1", 10, Some((0, 1))),
            ("0178", 8, Some((15, 3))),
            ("8", 8, None),
            ("", 10, None),
            ("  ", 10, None),
            ("-", 10, None),
            ("18446744073709551615", 10, Some((u64::MAX, 20))),
            ("18446744073709551616", 10, None),
        ] {
            assert_eq!(digits(text.as_bytes(), base, false), expected, "{text}");
        }
    }

    #[test]
    fn refuses_digits_that_may_go_on() {
        for (text, base) in [("12", 10), ("0x", 16), ("0", 16), ("0x1", 16), ("", 10), (" -", 10)] {
            assert_eq!(digits(text.as_bytes(), base, true), None, "{text}");
        }
        assert_eq!(digits(b"12;", 10, true), Some((12, 2)));
        assert_eq!(digits(b"0xg", 16, true), Some((0, 1)));
    }

    #[test]
    fn accepts_rounding() {
        assert_eq!([0, 1, 4, 5].map(|number| round_up(number, 4)), [0, 4, 4, 8]);
        assert_eq!((round_up(5, 1), round_up(5, 0), round_up(u64::MAX, 4)), (5, 5, 0));
    }
}
