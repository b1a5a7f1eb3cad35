//! The variables of headers: groups of addresses and of ports that have a name.
//!
//! They may name one another, in any order. Refuses cycles, undefined names, and groups that
//! match nothing.

use core::fmt;
use std::collections::HashMap;

use super::fault::{FaultKind, Refused};
use super::groups;
use super::ranges::{Addresses, Ports, Ranges};

/// Most variables of each kind.
pub const MAX_VARIABLES: usize = 1024;

const ADDRESSES: [(&str, &str); 14] = [
    ("HOME_NET", "[192.168.0.0/16,10.0.0.0/8,172.16.0.0/12]"),
    ("EXTERNAL_NET", "!$HOME_NET"),
    ("HTTP_SERVERS", "$HOME_NET"),
    ("SMTP_SERVERS", "$HOME_NET"),
    ("SQL_SERVERS", "$HOME_NET"),
    ("DNS_SERVERS", "$HOME_NET"),
    ("TELNET_SERVERS", "$HOME_NET"),
    ("AIM_SERVERS", "$EXTERNAL_NET"),
    ("DC_SERVERS", "$HOME_NET"),
    ("DNP3_SERVER", "$HOME_NET"),
    ("DNP3_CLIENT", "$HOME_NET"),
    ("MODBUS_CLIENT", "$HOME_NET"),
    ("MODBUS_SERVER", "$HOME_NET"),
    ("ENIP_SERVER", "$HOME_NET"),
];
const PORTS: [(&str, &str); 11] = [
    ("HTTP_PORTS", "80"),
    ("SHELLCODE_PORTS", "!80"),
    ("ORACLE_PORTS", "1521"),
    ("SSH_PORTS", "22"),
    ("DNP3_PORTS", "20000"),
    ("MODBUS_PORTS", "502"),
    ("FILE_DATA_PORTS", "[$HTTP_PORTS,110,143]"),
    ("FTP_PORTS", "21"),
    ("GENEVE_PORTS", "6081"),
    ("VXLAN_PORTS", "4789"),
    ("TEREDO_PORTS", "3544"),
];

/// Variables with what they stand for.
#[derive(Clone, Default, Debug)]
pub struct Variables {
    addresses: HashMap<Box<str>, Addresses>,
    ports: HashMap<Box<str>, Ports>,
}

impl Variables {
    /// Reads the definitions, as in the `vars` of Suricata's configuration: pairs of a name without
    /// `$` and a group.
    ///
    /// # Errors
    /// [`VariableError`] with the name of the variable.
    pub fn new<'a>(
        addresses: impl IntoIterator<Item = (&'a str, &'a str)>,
        ports: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, VariableError> {
        Ok(Self {
            addresses: resolve(addresses, |text, known| {
                groups::addresses(text, &|name| known.get(name))
            })?,
            ports: resolve(ports, |text, known| groups::ports(text, &|name| known.get(name)))?,
        })
    }

    /// What Suricata's own configuration defines: rule sets rely on these names. The networks at
    /// home are the private ones (RFC 1918).
    #[must_use]
    pub fn suricata() -> Self {
        // A test reads them all.
        Self::new(ADDRESSES, PORTS).unwrap_or_default()
    }

    /// As [`Self::suricata`], with definitions of one's own besides, or instead of those with the same name.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn over_suricata<'a>(
        addresses: impl IntoIterator<Item = (&'a str, &'a str)>,
        ports: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, VariableError> {
        Self::new(over(&ADDRESSES, addresses), over(&PORTS, ports))
    }

    pub(super) fn addresses(&self, name: &str) -> Option<&Addresses> {
        self.addresses.get(name)
    }

    pub(super) fn ports(&self, name: &str) -> Option<&Ports> {
        self.ports.get(name)
    }
}

/// Definitions over those that are there by default.
fn over<'a>(
    defaults: &[(&'a str, &'a str)],
    own: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(&'a str, &'a str)> {
    let own: Vec<_> = own.into_iter().collect();
    let is_own = |name: &str| own.iter().any(|(known, _)| *known == name);
    let kept = defaults.iter().filter(|(name, _)| !is_own(name));
    let kept: Vec<_> = kept.copied().collect();
    kept.into_iter().chain(own).collect()
}

type Resolved<T> = HashMap<Box<str>, Ranges<T>>;

/// Reads what depends on nothing, then what depends on that, and so on: no recursion, and what is
/// left over depends on itself.
fn resolve<'a, T>(
    definitions: impl IntoIterator<Item = (&'a str, &'a str)>,
    read: impl Fn(&str, &Resolved<T>) -> Result<Ranges<T>, Refused>,
) -> Result<Resolved<T>, VariableError> {
    let error = |name: &str, fault| VariableError { name: name.into(), fault };
    let mut waiting = HashMap::new();
    for (name, text) in definitions {
        if waiting.len() == MAX_VARIABLES {
            return Err(error(name, VariableFault::TooMany));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if name.is_empty() || !name.bytes().all(allowed) {
            return Err(error(name, VariableFault::Name));
        }
        if waiting.insert(name, text).is_some() {
            return Err(error(name, VariableFault::Twice));
        }
    }
    let mut resolved = Resolved::new();
    while !waiting.is_empty() {
        let mut names: Vec<&str> = waiting.keys().copied().collect();
        // So that it is always the same variable that is blamed.
        names.sort_unstable();
        let before = waiting.len();
        for name in &names {
            let set = match read(waiting[name], &resolved) {
                Ok(set) => set,
                Err(Refused::Variable(unknown)) => {
                    if !waiting.contains_key(unknown.trim_start_matches('$')) {
                        return Err(error(name, VariableFault::Undefined(unknown)));
                    }
                    continue;
                }
                Err(Refused::Fault(kind)) => return Err(error(name, VariableFault::Faulty(kind))),
                Err(Refused::Form(_)) => return Err(error(name, VariableFault::Name)),
            };
            resolved.insert((*name).into(), set);
            waiting.remove(name);
        }
        if waiting.len() == before {
            return Err(error(names[0], VariableFault::Cycle));
        }
    }
    Ok(resolved)
}

/// A variable that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariableError {
    /// Its name.
    pub name: Box<str>,
    /// What is wrong.
    pub fault: VariableFault,
}

/// What can be wrong with a variable.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VariableFault {
    /// Other characters than letters, digits, `_`, `-` and `.` in the name.
    Name,
    /// Defined twice.
    Twice,
    /// Over [`MAX_VARIABLES`].
    TooMany,
    /// It stands for itself, directly or by way of others.
    Cycle,
    /// It stands for another one that is not defined.
    Undefined(Box<str>),
    /// What it stands for is no group.
    Faulty(FaultKind),
}

impl fmt::Display for VariableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variable {}: ", self.name)?;
        match &self.fault {
            VariableFault::Name => f.write_str("not a name"),
            VariableFault::Twice => f.write_str("defined twice"),
            VariableFault::TooMany => f.write_str("too many variables"),
            VariableFault::Cycle => f.write_str("defined by itself"),
            VariableFault::Undefined(name) => write!(f, "undefined variable {name}"),
            VariableFault::Faulty(kind) => kind.fmt(f),
        }
    }
}

impl std::error::Error for VariableError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(definitions: &[(&str, &str)]) -> Result<Variables, VariableFault> {
        let none: [(&str, &str); 0] = [];
        Variables::new(none, definitions.iter().copied()).map_err(|error| error.fault)
    }

    #[test]
    fn accepts_what_suricata_defines() {
        let variables = Variables::suricata();
        assert_eq!((variables.addresses.len(), variables.ports.len()), (14, 11));
        let home = "10.1.2.3".parse().unwrap();
        assert!(variables.addresses("HOME_NET").unwrap().contains_address(home));
        assert!(!variables.addresses("AIM_SERVERS").unwrap().contains_address(home));
        assert_eq!(variables.ports("FILE_DATA_PORTS").unwrap().as_slice().len(), 3);
    }

    #[test]
    fn accepts_definitions_in_any_order() {
        let variables = ports(&[("A", "[$B,!$C]"), ("B", "[$C,80:90]"), ("C", "85")]).unwrap();
        assert_eq!(variables.ports("A").unwrap().as_slice(), [(80, 84), (86, 90)]);
    }

    #[test]
    fn refuses_cycles_and_other_faults() {
        assert_eq!(ports(&[("A", "$A")]).unwrap_err(), VariableFault::Cycle);
        assert_eq!(ports(&[("A", "[80,$B]"), ("B", "!$A")]).unwrap_err(), VariableFault::Cycle);
        assert_eq!(ports(&[("A", "$B")]).unwrap_err(), VariableFault::Undefined("$B".into()));
        assert_eq!(ports(&[("A", "1"), ("A", "2")]).unwrap_err(), VariableFault::Twice);
        assert_eq!(ports(&[("A B", "1")]).unwrap_err(), VariableFault::Name);
        assert_eq!(ports(&[("A", "x")]).unwrap_err(), VariableFault::Faulty(FaultKind::Port));
        let empty = VariableFault::Faulty(FaultKind::MatchesNothing);
        assert_eq!(ports(&[("A", "any"), ("B", "!$A")]).unwrap_err(), empty);
        let names: Vec<String> = (0..=MAX_VARIABLES).map(|at| format!("V{at}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        assert_eq!(ports(&many).unwrap_err(), VariableFault::TooMany);
    }

    #[test]
    fn refuses_growth_without_bound() {
        // Each one names the one before twice: only what comes of it counts.
        let names: Vec<String> = (0..100).map(|at| format!("V{at:03}")).collect();
        let mut definitions = vec![("V000".to_owned(), "[1,3,5]".to_owned())];
        for at in 1..100 {
            definitions.push((names[at].clone(), format!("[${0},${0}]", names[at - 1])));
        }
        let pairs: Vec<_> = definitions.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(ports(&pairs).unwrap().ports("V099").unwrap().as_slice().len(), 3);
    }
}
