//! Numbers in a buffer: `byte_test`, `byte_jump`, `byte_extract`, and `isdataat`.
//!
//! Refuses the byte order of DCE/RPC, which is not inspected here.

use super::content::{Amount, amount};
use super::fault::{FaultKind, Refused};
use super::options;

/// Greatest offset behind a jump, either way.
const MAX_OFFSET: i32 = 65_535;
/// Most bytes of a binary number.
const MAX_BINARY: u64 = 8;
/// Most digits of a number in text: those of the greatest one in octal, and a bit.
const MAX_DIGITS: u64 = 23;

/// There is, or is not, a byte at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataAt {
    /// There must be none.
    pub negated: bool,
    /// The place. Relative to a match, the byte directly behind it is number 1 (as Suricata counts).
    pub at: Amount,
    /// The place is counted from the end of the previous match.
    pub relative: bool,
}

/// Where a number is in a buffer, and how it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Number of bytes. None at all (0) is the whole rest of the buffer, or nothing to be read in a
    /// jump.
    pub len: Amount,
    /// Where it starts.
    pub offset: Amount,
    /// The offset is counted from the end of the previous match.
    pub relative: bool,
    /// How it is written.
    pub encoding: Encoding,
    /// What of it counts; what remains is shifted down to the lowest bit of the mask. 0 makes it 0.
    pub mask: Option<u32>,
}

/// How a number is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// Binary, most significant byte first.
    BigEndian,
    /// Binary, least significant byte first.
    LittleEndian,
    /// In digits to this base: 8, 10 or 16.
    Digits(u8),
}

/// Compares a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteTest {
    /// Where it is.
    pub field: Field,
    /// The result of the comparison must be false.
    pub negated: bool,
    /// How to compare.
    pub operator: Operator,
    /// What with.
    pub value: Value,
}

/// A number to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// This one.
    Number(u64),
    /// What the numbered `byte_extract` of the rule found.
    Extracted(u8),
}

/// How to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// The number is less.
    Less,
    /// The number is less or equal.
    LessOrEqual,
    /// The number is equal.
    Equal,
    /// The number is greater or equal.
    GreaterOrEqual,
    /// The number is greater.
    Greater,
    /// They have a bit in common.
    And,
    /// They do not have all bits in common.
    Xor,
}

/// Moves the place from which the next match is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteJump {
    /// The number of bytes to go.
    pub field: Field,
    /// The number is multiplied by this.
    pub multiplier: u32,
    /// It is rounded up to a multiple of four.
    pub align: bool,
    /// Where the jump starts.
    pub from: JumpFrom,
    /// What is added at the end.
    pub post_offset: i32,
}

/// Where a jump starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JumpFrom {
    /// Behind the number.
    Field,
    /// At the start of the buffer.
    Beginning,
    /// At the end of the buffer.
    End,
}

/// Keeps a number for checks behind this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteExtract {
    /// Where it is.
    pub field: Field,
    /// The number is multiplied by this.
    pub multiplier: u32,
    /// It is rounded up to a multiple of this.
    pub align: Option<u8>,
    /// Its number in the rule.
    pub index: u8,
}

impl DataAt {
    /// Asks that the buffer ends behind the previous match.
    pub(super) fn is_end(&self) -> bool {
        self.negated && self.relative && self.at == Amount::Number(1)
    }

    pub(super) fn parse(value: &str, name: impl Fn(&str) -> Option<u8>) -> Result<Self, Refused> {
        let (negated, value) = options::negation(value);
        let mut parts = value.split(',').map(str::trim);
        let at = amount(parts.next().unwrap_or_default(), false, name)?;
        let mut relative = false;
        for part in parts {
            match part {
                "relative" => relative = true,
                "rawbytes" => {}
                _ => return Err(FaultKind::Value.into()),
            }
        }
        Ok(Self { negated, at, relative })
    }
}

/// The parts of a value that the three keywords about numbers have in common.
struct Parts {
    big_endian: Option<bool>,
    text: bool,
    base: Option<u8>,
    relative: bool,
    mask: Option<u32>,
}

impl Parts {
    const NONE: Self =
        Self { big_endian: None, text: false, base: None, relative: false, mask: None };

    /// Takes a part that all three know; the others are left to the caller.
    fn take(&mut self, word: &str, value: Option<&str>) -> Result<bool, Refused> {
        let mask = value.unwrap_or_default();
        match (word, value) {
            ("relative", None) => self.relative = true,
            ("big", None) => once(&mut self.big_endian, true)?,
            ("little", None) => once(&mut self.big_endian, false)?,
            ("string", None) => self.text = true,
            ("hex", None) => once(&mut self.base, 16)?,
            ("dec", None) => once(&mut self.base, 10)?,
            ("oct", None) => once(&mut self.base, 8)?,
            ("bitmask", Some(_)) => once(&mut self.mask, number32(mask)?)?,
            ("dce", None) => return Err(Refused::form("dce")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn field(&self, len: Amount, offset: Amount, empty: bool) -> Result<Field, FaultKind> {
        let encoding = match (self.text, self.base, self.big_endian) {
            // Digits have no byte order; rule sets give one all the same.
            (true, base, _) => Encoding::Digits(base.unwrap_or(10)),
            (false, None, Some(false)) => Encoding::LittleEndian,
            (false, None, _) => Encoding::BigEndian,
            _ => return Err(FaultKind::Conflict("string")),
        };
        let most = if self.text { MAX_DIGITS } else { MAX_BINARY };
        if let Amount::Number(len) = len {
            let fits = u64::try_from(len).is_ok_and(|len| len <= most);
            if !fits || len == 0 && !self.text && !empty {
                return Err(FaultKind::Number);
            }
        }
        Ok(Field { len, offset, relative: self.relative, encoding, mask: self.mask })
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), FaultKind> {
    match slot.replace(value) {
        Some(_) => Err(FaultKind::Twice),
        None => Ok(()),
    }
}

fn number32(text: &str) -> Result<u32, FaultKind> {
    let number = options::unsigned(text, u64::from(u32::MAX))?;
    u32::try_from(number).map_err(|_| FaultKind::Number)
}

/// A place that may lie before the previous match. Suricata has no limit for that of `byte_test`; no buffer
/// reaches so far.
fn far_offset(text: &str, name: &dyn Fn(&str) -> Option<u8>) -> Result<Amount, FaultKind> {
    match options::signed(text.trim(), i32::MAX) {
        Ok(number) => Ok(Amount::Number(number)),
        Err(_) => amount(text, true, name),
    }
}

/// A place that may lie before the previous match.
fn offset(text: &str, name: &dyn Fn(&str) -> Option<u8>) -> Result<Amount, FaultKind> {
    match amount(text, true, name)? {
        Amount::Number(number) if number.abs() > MAX_OFFSET => Err(FaultKind::Number),
        offset => Ok(offset),
    }
}

/// The parts that must be there, and the others.
fn parts<const N: usize>(
    value: &str,
) -> Result<([&str; N], core::str::Split<'_, char>), FaultKind> {
    let mut all = value.split(',');
    let mut needed = [""; N];
    for part in &mut needed {
        *part = all
            .next()
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .ok_or(FaultKind::ValueMissing)?;
    }
    Ok((needed, all))
}

impl ByteTest {
    pub(super) fn parse(value: &str, name: &dyn Fn(&str) -> Option<u8>) -> Result<Self, Refused> {
        let ([len, operator, with, at], rest) = parts(value)?;
        let (negated, operator) = options::negation(operator);
        let operator = match operator {
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            "=" => Operator::Equal,
            ">=" => Operator::GreaterOrEqual,
            ">" => Operator::Greater,
            "&" => Operator::And,
            "^" => Operator::Xor,
            // Nothing but a negation.
            "" if negated => Operator::Equal,
            _ => return Err(FaultKind::Value.into()),
        };
        let value = match name(with) {
            Some(index) => Value::Extracted(index),
            None if with.starts_with(|first: char| first.is_ascii_digit()) => {
                Value::Number(options::unsigned(with, u64::MAX)?)
            }
            None => return Err(FaultKind::UndefinedName.into()),
        };
        let mut known = Parts::NONE;
        for part in rest {
            let (word, value) = options::words(part);
            if !known.take(word, value)? {
                return Err(FaultKind::Value.into());
            }
        }
        let field = known.field(amount(len, false, name)?, far_offset(at, name)?, false)?;
        Ok(Self { field, negated, operator, value })
    }
}

impl ByteJump {
    pub(super) fn parse(value: &str, name: &dyn Fn(&str) -> Option<u8>) -> Result<Self, Refused> {
        let ([len, at], rest) = parts(value)?;
        let (mut known, mut multiplier, mut from, mut post) = (Parts::NONE, None, None, None);
        let mut align = false;
        for part in rest {
            let (word, value) = options::words(part);
            let number = value.unwrap_or_default();
            match (word, value) {
                ("multiplier", Some(_)) => once(&mut multiplier, multiplied(number)?)?,
                ("align", None) => align = true,
                ("from_beginning", None) => once(&mut from, JumpFrom::Beginning)?,
                ("from_end", None) => once(&mut from, JumpFrom::End)?,
                ("post_offset", Some(_)) => once(&mut post, options::signed(number, MAX_OFFSET)?)?,
                _ if known.take(word, value)? => {}
                _ => return Err(FaultKind::Value.into()),
            }
        }
        Ok(Self {
            field: known.field(amount(len, false, name)?, offset(at, name)?, true)?,
            multiplier: multiplier.unwrap_or(1),
            align,
            from: from.unwrap_or(JumpFrom::Field),
            post_offset: post.unwrap_or(0),
        })
    }
}

impl ByteExtract {
    /// Also returns the name; `index` is the number that it gets.
    pub(super) fn parse(value: &str, index: u8) -> Result<(Self, Box<str>), Refused> {
        let ([len, at, name], rest) = parts(value)?;
        if !name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
            return Err(FaultKind::Value.into());
        }
        let (mut known, mut multiplier, mut align) = (Parts::NONE, None, None);
        for part in rest {
            let (word, value) = options::words(part);
            match (word, value) {
                ("multiplier", Some(value)) => once(&mut multiplier, multiplied(value)?)?,
                ("align", Some("2")) => once(&mut align, 2)?,
                ("align", Some("4")) => once(&mut align, 4)?,
                _ if known.take(word, value)? => {}
                _ => return Err(FaultKind::Value.into()),
            }
        }
        // A length or a place from another extraction is not known to Suricata.
        let field = known.field(amount(len, false, |_| None)?, offset(at, &|_| None)?, false)?;
        let multiplier = multiplier.unwrap_or(1);
        Ok((Self { field, multiplier, align, index }, options::name(name)?))
    }
}

fn multiplied(text: &str) -> Result<u32, FaultKind> {
    let number = options::unsigned(text, 65_535)?;
    u32::try_from(number).ok().filter(|number| *number > 0).ok_or(FaultKind::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Option<u8> {
        (name == "len").then_some(0)
    }

    #[test]
    fn accepts_every_form_of_isdataat() {
        let parse = |value| DataAt::parse(value, names).unwrap();
        let at = |negated, at, relative| DataAt { negated, at, relative };
        assert_eq!(parse("512"), at(false, Amount::Number(512), false));
        assert_eq!(parse("!1, relative"), at(true, Amount::Number(1), true));
        assert_eq!(parse("len,relative,rawbytes"), at(false, Amount::Extracted(0), true));
    }

    #[test]
    fn refuses_faulty_isdataat() {
        for faulty in ["", "-1", "other", "1,relativ", "65536", "!"] {
            assert!(DataAt::parse(faulty, names).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_every_form_of_byte_test() {
        let test = ByteTest::parse("2,!=,0x01,-4,relative,little,bitmask 0xf0", &names).unwrap();
        assert!(test.negated && test.operator == Operator::Equal && test.value == Value::Number(1));
        assert!(test.field.relative && test.field.encoding == Encoding::LittleEndian);
        assert_eq!((test.field.offset, test.field.mask), (Amount::Number(-4), Some(0xf0)));
        let test = ByteTest::parse("0, >=, 8079, 0, big, string, dec", &names).unwrap();
        assert_eq!(test.field.encoding, Encoding::Digits(10));
        let test = ByteTest::parse("len,!&,len,len", &names).unwrap();
        assert_eq!((test.value, test.field.len), (Value::Extracted(0), Amount::Extracted(0)));
        for operator in ["<", "<=", "=", ">=", ">", "&", "^", "!", "!<"] {
            assert!(ByteTest::parse(&format!("1,{operator},1,1,big"), &names).is_ok());
        }
    }

    #[test]
    fn refuses_faulty_byte_tests() {
        for faulty in [
            "",
            "1,=,1",
            "9,=,1,0",
            "0,=,1,0",
            "24,=,1,0,string,dec",
            "1,==,1,0",
            "1,=,other,0",
            "1,=,-1,0",
            "1,=,1,other",
            "1,=,1,0,big,little",
            "1,=,1,0,hex",
            "1,=,1,0,string,big,little",
            "1,=,1,0,bitmask",
            "1,=,1,0,align",
            "1,=,1,2147483648",
            "1,,1,0",
        ] {
            assert!(matches!(ByteTest::parse(faulty, &names), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(matches!(ByteTest::parse("1,=,1,0,dce", &names), Err(Refused::Form(_))));
    }

    #[test]
    fn accepts_every_form_of_byte_jump() {
        let value = "4,0,relative,multiplier 2,little,align,from_beginning,post_offset -8";
        let jump = ByteJump::parse(value, &names).unwrap();
        assert!(jump.align && jump.multiplier == 2 && jump.post_offset == -8);
        assert!(jump.from == JumpFrom::Beginning && jump.field.relative);
        let jump = ByteJump::parse("0,0, from_end, post_offset 3", &names).unwrap();
        assert_eq!((jump.from, jump.multiplier), (JumpFrom::End, 1));
        assert!(ByteJump::parse("3,len,string,oct,bitmask 0x0f", &names).is_ok());
    }

    #[test]
    fn refuses_faulty_byte_jumps() {
        for faulty in [
            "",
            "1",
            "9,0",
            "1,0,multiplier 0",
            "1,0,multiplier",
            "1,0,from_end,from_beginning",
            "1,0,post_offset",
            "1,0,post_offset 65536",
            "1,0,align 4",
            "1,0,x",
            "x,0",
        ] {
            assert!(matches!(ByteJump::parse(faulty, &names), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(matches!(ByteJump::parse("1,0,dce", &names), Err(Refused::Form(_))));
    }

    #[test]
    fn accepts_every_form_of_byte_extract() {
        let (extract, name) = ByteExtract::parse("2, 0, size", 3).unwrap();
        assert_eq!((&*name, extract.index, extract.align), ("size", 3, None));
        let value = "3,-1,size,relative,multiplier 4,string,hex,align 4,bitmask 0xff";
        let (extract, _) = ByteExtract::parse(value, 0).unwrap();
        assert_eq!((extract.multiplier, extract.align), (4, Some(4)));
        assert_eq!(extract.field.encoding, Encoding::Digits(16));
    }

    #[test]
    fn refuses_faulty_byte_extracts() {
        for faulty in [
            "",
            "1,0",
            "1,0,1",
            "0,0,x",
            "1,0,x,align 3",
            "1,0,x,align",
            "1,0,x,multiplier 70000",
            "1,x,y",
            "1,0,a b",
            "1,0,x,post_offset 1",
        ] {
            assert!(matches!(ByteExtract::parse(faulty, 0), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(matches!(ByteExtract::parse("1,0,x,dce", 0), Err(Refused::Form(_))));
    }
}
