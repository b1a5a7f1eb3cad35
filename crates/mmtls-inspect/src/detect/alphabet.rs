//! Which bytes a part of a regular expression can take, as its text shows it.
//!
//! Refuses to leave a byte out that might be taken: what is not surely simple takes every byte.

use core::iter::Peekable;
use core::str::Chars;

/// A set of bytes. Letters are in it in both cases, or in none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alphabet([u64; 4]);

/// One item of a class.
enum Item {
    Byte(u8),
    Set(Alphabet),
    /// It takes who knows what.
    Unknown,
}

impl Alphabet {
    pub(super) const NOTHING: Self = Self([0; 4]);
    pub(super) const EVERYTHING: Self = Self([u64::MAX; 4]);

    pub(super) fn holds(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// Also takes what another one takes.
    pub(super) fn add(&mut self, other: Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own |= other;
        }
    }

    /// Also takes the bytes of a character.
    pub(super) fn add_char(&mut self, char: char) {
        for byte in char.encode_utf8(&mut [0; 4]).bytes() {
            self.insert(byte.to_ascii_lowercase());
            self.insert(byte.to_ascii_uppercase());
        }
    }

    /// What `.` takes.
    pub(super) fn any(dot_all: bool) -> Self {
        if dot_all { Self::EVERYTHING } else { Self::of(|byte| byte != b'\n') }
    }

    fn of(holds: impl Fn(u8) -> bool) -> Self {
        let mut set = Self::NOTHING;
        (0..=u8::MAX).filter(|byte| holds(*byte)).for_each(|byte| set.insert(byte));
        set
    }

    /// What an escape takes, of which the letter and what follows are given.
    pub(super) fn escape(letter: char, rest: &str) -> Self {
        match Item::escape(letter, &mut rest.chars().peekable()) {
            Item::Byte(byte) => {
                let mut set = Self::NOTHING;
                set.insert(byte.to_ascii_lowercase());
                set.insert(byte.to_ascii_uppercase());
                set
            }
            Item::Set(set) => set,
            Item::Unknown => Self::EVERYTHING,
        }
    }

    /// What a class takes, from its bracket on.
    pub(super) fn class(text: &str) -> Self {
        let mut rest = text.strip_prefix('[').unwrap_or(text).chars().peekable();
        let is_negated = rest.next_if_eq(&'^').is_some();
        let mut listed = Self::NOTHING;
        let mut is_first = true;
        while let Some(next) = rest.next() {
            if next == ']' && !is_first {
                let holds = |byte: u8| listed.holds(byte) != is_negated;
                // Where case is not told apart, either of a letter is taken.
                return Self::of(|byte| {
                    holds(byte.to_ascii_lowercase()) || holds(byte.to_ascii_uppercase())
                });
            }
            is_first = false;
            match Item::of(next, &mut rest) {
                Item::Unknown => return Self::EVERYTHING,
                Item::Set(set) => listed.add(set),
                Item::Byte(first) => {
                    let mut ahead = rest.clone();
                    let last = match (ahead.next(), ahead.next()) {
                        (Some('-'), Some(end)) if end != ']' => {
                            let Item::Byte(last) = Item::of(end, &mut ahead) else {
                                return Self::EVERYTHING;
                            };
                            rest = ahead;
                            last
                        }
                        _ => first,
                    };
                    (first..=last).for_each(|byte| listed.insert(byte));
                }
            }
        }
        Self::EVERYTHING
    }
}

impl Item {
    fn of(next: char, rest: &mut Peekable<Chars<'_>>) -> Self {
        match next {
            '\\' => rest.next().map_or(Self::Unknown, |letter| Self::escape(letter, rest)),
            // Perhaps `[:alpha:]`.
            '[' => Self::Unknown,
            _ if next.is_ascii() => Self::Byte(next as u8),
            _ => Self::Unknown,
        }
    }

    fn escape(letter: char, rest: &mut Peekable<Chars<'_>>) -> Self {
        let set = |holds: fn(u8) -> bool| Self::Set(Alphabet::of(holds));
        match letter {
            'd' => set(|byte| byte.is_ascii_digit()),
            'w' => set(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
            's' => set(|byte| matches!(byte, b'\t'..=b'\r' | b' ')),
            'n' => Self::Byte(b'\n'),
            'r' => Self::Byte(b'\r'),
            't' => Self::Byte(b'\t'),
            'x' => {
                let mut value = 0;
                for _ in 0..2 {
                    let Some(digit) = rest.next_if(char::is_ascii_hexdigit) else {
                        return Self::Unknown;
                    };
                    value = value << 4 | digit.to_digit(16).unwrap_or(0);
                }
                u8::try_from(value).map_or(Self::Unknown, Self::Byte)
            }
            _ if letter.is_ascii_punctuation() => Self::Byte(letter as u8),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(set: Alphabet) -> String {
        let bytes = (0..=u8::MAX).filter(|byte| set.holds(*byte));
        bytes.map(|byte| byte.escape_ascii().to_string()).collect()
    }

    #[test]
    fn accepts_classes_that_are_simple() {
        for (class, set) in [
            ("[abc]", "ABCabc"),
            ("[a-c-]", "-ABCabc"),
            (r"[]\d_\x41]", r"0123456789A\]_a"),
            (r"[\]\-x]", "-X]x"),
            (r"[\t-\n]", r"\t\n"),
            ("[c-a]", ""),
        ] {
            assert_eq!(taken(Alphabet::class(class)), set.replace(r"\]", "]"), "{class}");
        }
        for (class, missing) in [("[^&]", "&"), (r"[^\r\n]", r"\n\r"), ("[^aB]", "")] {
            let set = Alphabet::class(class);
            assert_eq!(taken(Alphabet::of(|byte| !set.holds(byte))), missing, "{class}");
        }
        assert_eq!(taken(Alphabet::escape('x', "4a}")), "Jj");
        assert_eq!(taken(Alphabet::escape('.', "")), ".");
    }

    #[test]
    fn refuses_to_leave_out_what_is_not_simple() {
        for class in [
            "[[:alpha:]]",
            r"[\W]",
            r"[^\S]",
            r"[a-\d]",
            "[\u{e9}]",
            "[abc",
            r"[\x{41}]",
            r"[\101]",
        ] {
            assert_eq!(Alphabet::class(class), Alphabet::EVERYTHING, "{class}");
        }
        for letter in ['D', 'R', 'X', 'p', '1', 'b', 'e'] {
            assert_eq!(Alphabet::escape(letter, ""), Alphabet::EVERYTHING, "{letter}");
        }
    }
}
