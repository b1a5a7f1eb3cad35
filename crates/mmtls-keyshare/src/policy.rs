//! Which sessions stay private: lists of server names, exact or `*.example.org`.
//!
//! Runs inside other people's programs, so it allocates when it is built and never after.
//! Refuses nothing at run time; a name that cannot match anything is an error when parsed.

use std::fmt;

/// Names are separated by `:` or `,` in one string, as in the variable `MMTLS_EXEMPT`.
const SEPARATORS: [char; 2] = [':', ','];

/// A list of server names (RFC 6066, section 3). Matching ignores ASCII case and a final dot.
#[derive(Clone, Debug, Default)]
pub struct ServerNames {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
enum Rule {
    Exact(String),
    /// Everything below this name, kept with its leading dot. The name itself does not match.
    Below(String),
}

/// A rule that can never match: empty, or with a `*` anywhere but as its whole first label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName(pub String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a server name or a wildcard like *.example.org", self.0)
    }
}

impl std::error::Error for BadName {}

impl ServerNames {
    /// Reads a list; empty parts between separators are skipped.
    ///
    /// # Errors
    /// [`BadName`] with the first rule that can never match.
    pub fn parse(list: &str) -> Result<Self, BadName> {
        let mut names = Self::default();
        names.extend(list)?;
        Ok(names)
    }

    /// Adds a list, as [`Self::parse`] reads it.
    ///
    /// # Errors
    /// [`BadName`] with the first rule that can never match; those before it were added.
    pub fn extend(&mut self, list: &str) -> Result<(), BadName> {
        let parts = list.split(SEPARATORS).map(str::trim);
        parts.filter(|part| !part.is_empty()).try_for_each(|part| self.add(part))
    }

    /// Adds one rule.
    ///
    /// # Errors
    /// [`BadName`] when it can never match.
    pub fn add(&mut self, rule: &str) -> Result<(), BadName> {
        let bad = || BadName(rule.to_owned());
        let name = rule.strip_suffix('.').unwrap_or(rule);
        let (wild, plain) = match name.strip_prefix('*') {
            Some(below) if below.starts_with('.') => (true, &below[1..]),
            Some(_) => return Err(bad()),
            None => (false, name),
        };
        let visible = |byte: u8| byte.is_ascii_graphic() && byte != b'*' && byte != b':';
        if plain.is_empty() || !plain.bytes().all(visible) || plain.starts_with('.') {
            return Err(bad());
        }
        self.rules.push(if wild {
            Rule::Below(format!(".{plain}"))
        } else {
            Rule::Exact(plain.to_owned())
        });
        Ok(())
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `name`, as it stands in a ClientHello, is on the list.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let name = name.strip_suffix(b".").unwrap_or(name);
        self.rules.iter().any(|rule| match rule {
            Rule::Exact(exact) => name.eq_ignore_ascii_case(exact.as_bytes()),
            Rule::Below(suffix) => {
                name.len() > suffix.len()
                    && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
            }
        })
    }
}

impl fmt::Display for ServerNames {
    /// The list as `parse` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match rule {
                Rule::Exact(name) => write!(f, "{comma}{name}")?,
                Rule::Below(suffix) => write!(f, "{comma}*{suffix}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_exact_and_wildcard_names() {
        let names = ServerNames::parse("Bank.example,*.Clinic.example:one.test.").unwrap();
        for name in ["bank.example", "BANK.EXAMPLE.", "a.clinic.example", "one.test"] {
            assert!(names.matches(name.as_bytes()), "{name}");
        }
        assert!(names.matches(b"a.b.clinic.example"));
        assert_eq!(names.to_string(), "Bank.example,*.Clinic.example,one.test");
    }

    #[test]
    fn refuses_neighbours() {
        let names = ServerNames::parse("bank.example,*.clinic.example").unwrap();
        for name in ["", "a.bank.example", "clinic.example", "xclinic.example", ".", "bank.exampl"]
        {
            assert!(!names.matches(name.as_bytes()), "{name}");
        }
        assert!(!ServerNames::default().matches(b""));
    }

    #[test]
    fn refuses_rules_that_never_match() {
        for rule in ["*", "*.", "a.*.b", "*a.b", "..", "a b"] {
            let parsed = ServerNames::parse(rule);
            assert!(parsed.is_err(), "{rule}");
        }
        assert!(ServerNames::parse(",, :").unwrap().is_empty());
    }
}
