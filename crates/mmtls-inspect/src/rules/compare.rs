//! Comparisons of sizes and other numbers: `bsize`, `dsize`, `urilen`, and those of HTTP/2.

use super::fault::FaultKind;
use super::options;

/// What a number has to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Comparison {
    /// This one.
    Equal(u64),
    /// Another one.
    NotEqual(u64),
    /// Less.
    Less(u64),
    /// Less or equal.
    LessOrEqual(u64),
    /// Greater.
    Greater(u64),
    /// Greater or equal.
    GreaterOrEqual(u64),
    /// Greater than the first and less than the second one.
    Between(u64, u64),
    /// Not so.
    NotBetween(u64, u64),
}

impl Comparison {
    /// Whether a number is so.
    #[must_use]
    pub const fn holds(self, number: u64) -> bool {
        match self {
            Self::Equal(other) => number == other,
            Self::NotEqual(other) => number != other,
            Self::Less(other) => number < other,
            Self::LessOrEqual(other) => number <= other,
            Self::Greater(other) => number > other,
            Self::GreaterOrEqual(other) => number >= other,
            Self::Between(low, high) => low < number && number < high,
            Self::NotBetween(low, high) => number <= low || high <= number,
        }
    }

    /// Whether every number from `least` on is so.
    #[must_use]
    pub const fn holds_from(self, least: u64) -> bool {
        match self {
            Self::NotEqual(other) | Self::Greater(other) => least > other,
            Self::GreaterOrEqual(other) => least >= other,
            Self::NotBetween(_, high) => least >= high,
            Self::Equal(_) | Self::Less(_) | Self::LessOrEqual(_) | Self::Between(..) => false,
        }
    }

    /// Reads a comparison of numbers up to `most`.
    pub(super) fn parse(text: &str, most: u64) -> Result<Self, FaultKind> {
        let number = |text: &str| options::unsigned(text.trim(), most);
        let (negated, inner) = options::negation(text.trim());
        let range = inner.split_once("<>").or_else(|| inner.split_once('-'));
        if let Some((low, high)) = range {
            let (low, high) = (number(low)?, number(high)?);
            // Both ends are outside: there is something between them only from a gap of two on.
            if high.checked_sub(low).is_none_or(|gap| gap < 2) {
                return Err(FaultKind::NeverMatches("the range is empty"));
            }
            let range =
                if negated { Self::NotBetween(low, high) } else { Self::Between(low, high) };
            return Ok(range);
        }
        if negated {
            return number(inner.strip_prefix('=').unwrap_or(inner)).map(Self::NotEqual);
        }
        if let Some(rest) = inner.strip_prefix("<=") {
            return number(rest).map(Self::LessOrEqual);
        }
        if let Some(rest) = inner.strip_prefix(">=") {
            return number(rest).map(Self::GreaterOrEqual);
        }
        if let Some(rest) = inner.strip_prefix('<') {
            return number(rest).map(Self::Less);
        }
        if let Some(rest) = inner.strip_prefix('>') {
            return number(rest).map(Self::Greater);
        }
        number(inner.strip_prefix('=').unwrap_or(inner)).map(Self::Equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_comparison() {
        for (text, comparison) in [
            ("10", Comparison::Equal(10)),
            ("= 10", Comparison::Equal(10)),
            ("!10", Comparison::NotEqual(10)),
            ("!=10", Comparison::NotEqual(10)),
            ("<10", Comparison::Less(10)),
            ("<= 10", Comparison::LessOrEqual(10)),
            ("> 10", Comparison::Greater(10)),
            (">=10", Comparison::GreaterOrEqual(10)),
            ("8<>20", Comparison::Between(8, 20)),
            ("8 - 20", Comparison::Between(8, 20)),
            ("!8-20", Comparison::NotBetween(8, 20)),
        ] {
            assert_eq!(Comparison::parse(text, 100), Ok(comparison), "{text}");
        }
    }

    #[test]
    fn refuses_faulty_comparisons() {
        for faulty in ["", "x", "<", "101", "1<>101", "5<>5", "5<>6", "6<>5", "<>", "-1", "==1"] {
            assert!(Comparison::parse(faulty, 100).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_numbers_that_are_so() {
        for (text, holds) in [
            ("5", [false, true, false]),
            ("!5", [true, false, true]),
            ("<5", [true, false, false]),
            ("<=5", [true, true, false]),
            (">5", [false, false, true]),
            (">=5", [false, true, true]),
            ("4<>6", [false, true, false]),
            ("!4<>6", [true, false, true]),
        ] {
            let comparison = Comparison::parse(text, 100).unwrap();
            assert_eq!([4, 5, 6].map(|number| comparison.holds(number)), holds, "{text}");
        }
    }

    #[test]
    fn accepts_numbers_from_which_on_all_are_so() {
        for (text, from) in [
            ("5", None),
            ("!5", Some(6)),
            ("<5", None),
            ("<=5", None),
            (">5", Some(6)),
            (">=5", Some(5)),
            ("4<>6", None),
            ("!4<>6", Some(6)),
        ] {
            let comparison = Comparison::parse(text, 100).unwrap();
            for least in 0..9 {
                let expected = from.is_some_and(|from| least >= from);
                assert_eq!(comparison.holds_from(least), expected, "{text} {least}");
            }
        }
    }
}
