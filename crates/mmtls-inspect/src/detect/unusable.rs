//! Why a rule that was read cannot be applied. Refuses to be vague, as the causes of the reader.

use core::fmt;

/// Why a rule that was read cannot be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub(crate) enum Unusable {
    /// The regular expression does not compile: what PCRE2 says about it.
    Expression(Box<str>),
    /// Flag `E` of an expression that itself changes what `$` or `#` means.
    DollarEndOnly,
    /// The expression has fewer groups than values are to be captured.
    Groups {
        /// How many values.
        wanted: usize,
        /// How many groups.
        there: usize,
    },
    /// No list has this name.
    NoDataset(Box<str>),
    /// The list with this name is of another kind than the rule says.
    DatasetKind(Box<str>),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expression(message) => write!(f, "regular expression: {message}"),
            Self::DollarEndOnly => {
                f.write_str("regular expression: flag E together with options inside of it")
            }
            Self::Groups { wanted, there } => {
                write!(f, "regular expression: {wanted} captures, but groups: {there}")
            }
            Self::NoDataset(name) => write!(f, "no dataset {name}"),
            Self::DatasetKind(name) => write!(f, "dataset {name} is of another type"),
        }
    }
}

impl std::error::Error for Unusable {}
