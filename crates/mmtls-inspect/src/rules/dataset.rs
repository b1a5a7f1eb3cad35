//! `dataset`: whether a whole buffer is, or is not, in a list that a file holds.
//!
//! Refuses to change a list: rules could fill memory and disk with what peers send.

use super::fault::{FaultKind, Refused};
use super::options;

/// A condition on a whole buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dataset {
    /// The buffer must not be in the list.
    pub negated: bool,
    /// The name of the list.
    pub name: Box<str>,
    /// What is in it. Without it, another rule or the configuration has to say.
    pub kind: Option<DatasetKind>,
    /// The file that holds it, as the rule names it. Without one, another rule or the configuration
    /// has to name it.
    pub load: Option<Box<str>>,
}

/// What is in a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DatasetKind {
    /// Strings, in base64.
    String,
    /// MD5 digests, in hexadecimal.
    Md5,
    /// SHA-256 digests, in hexadecimal.
    Sha256,
}

impl Dataset {
    pub(super) fn parse(value: &str) -> Result<Self, Refused> {
        let mut parts = value.split(',').map(str::trim);
        let negated = match parts.next() {
            Some("isset") => false,
            Some("isnotset") => true,
            Some(action @ ("set" | "unset")) => return Err(Refused::form(action)),
            _ => return Err(FaultKind::Value.into()),
        };
        let name = options::name(parts.next().ok_or(FaultKind::ValueMissing)?)?;
        let (mut kind, mut load) = (None, None);
        for part in parts {
            let (word, value) = options::words(part);
            match (word, value) {
                ("type", Some(value)) => {
                    let value = match value {
                        "string" => DatasetKind::String,
                        "md5" => DatasetKind::Md5,
                        "sha256" => DatasetKind::Sha256,
                        "ipv4" | "ip" => return Err(Refused::form(part)),
                        _ => return Err(FaultKind::Value.into()),
                    };
                    if kind.replace(value).is_some() {
                        return Err(FaultKind::Twice.into());
                    }
                }
                ("load", Some(file)) if load.is_none() => load = Some(file.into()),
                // How much memory Suricata sets aside.
                ("memcap" | "hashsize", Some(_)) => {}
                (
                    "context_key" | "state" | "save" | "format" | "enrichment_key" | "value_key"
                    | "array_key",
                    _,
                )
                | ("remove_key", None) => return Err(Refused::form(word)),
                _ => return Err(FaultKind::Value.into()),
            }
        }
        Ok(Self { negated, name, kind, load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_kind_of_list() {
        for (text, kind) in [
            ("string", DatasetKind::String),
            ("md5", DatasetKind::Md5),
            ("sha256", DatasetKind::Sha256),
        ] {
            let value = format!("isset, bad, type {text}, load bad.lst, memcap 10mb, hashsize 9");
            let dataset = Dataset::parse(&value).unwrap();
            assert_eq!((&*dataset.name, dataset.kind, dataset.negated), ("bad", Some(kind), false));
            assert_eq!(dataset.load.as_deref(), Some("bad.lst"));
        }
        assert!(Dataset::parse("isnotset,bad,type md5").unwrap().negated);
        assert_eq!(Dataset::parse("isset,bad").unwrap().kind, None);
    }

    #[test]
    fn refuses_lists_that_change_and_faulty_ones() {
        for form in [
            "set,a,type string",
            "unset,a,type string",
            "isset,a,type ip",
            "isset,a,type string,state x",
            "isset,a,type string,format json",
        ] {
            assert!(matches!(Dataset::parse(form), Err(Refused::Form(_))), "{form}");
        }
        for faulty in [
            "",
            "isset",
            "isset,a,type x",
            "isset,a,type md5,type md5",
            "has,a,type md5",
            "isset,a,type md5,load",
            "isset,a,type md5,x y",
            "isset,a b,type md5",
        ] {
            assert!(matches!(Dataset::parse(faulty), Err(Refused::Fault(_))), "{faulty}");
        }
    }
}
