//! What a test or a check requires: versions of Suricata, systems, features.
//!
//! Refuses to run scripts, and to claim features that are not here.

use serde_json::Value;

use super::yaml::text;

/// What a build of Suricata may lack. RSTs (`LIBNET1.1`) are a matter of the packet engine; their rules are applied.
const FEATURES: [&str; 3] = ["LIBNET1.1", "HAVE_JA3", "HAVE_JA4"];

/// A version; parts that are not given are absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    major: u32,
    minor: Option<u32>,
    patch: Option<u32>,
}

impl Version {
    /// Reads numbers with dots between them; what follows them is passed over.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('.').map(|part| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            part[..digits].parse().ok()
        });
        let major = parts.next()??;
        let minor = parts.next().flatten();
        Some(Self { major, minor, patch: minor.and(parts.next().flatten()) })
    }

    fn numbers(self) -> (u32, u32, u32) {
        (self.major, self.minor.unwrap_or(0), self.patch.unwrap_or(0))
    }

    /// Whether this is `other`, as far as that says.
    fn is(self, other: Self) -> bool {
        let (_, minor, patch) = self.numbers();
        self.major == other.major
            && other.minor.is_none_or(|it| it == minor)
            && other.patch.is_none_or(|it| it == patch)
    }
}

/// What is not fulfilled, if anything.
pub(super) fn unmet(requires: &Value, version: Version) -> Option<String> {
    let requires = requires.as_object()?;
    requires.iter().find_map(|(key, value)| {
        let wanted = text(value).unwrap_or_default();
        let other = Version::parse(&wanted);
        let compares = |holds: fn(Version, Version) -> bool| {
            (!other.is_some_and(|other| holds(version, other))).then(|| format!("{key} {wanted}"))
        };
        match key.as_str() {
            "min-version" => compares(|own, other| own.numbers() >= other.numbers()),
            "lt-version" => compares(|own, other| own.numbers() < other.numbers()),
            "gt-version" => compares(|own, other| own.numbers() > other.numbers()),
            "version" => compares(Version::is),
            "os" => (!"linux".starts_with(&wanted.to_lowercase())).then(|| format!("os {wanted}")),
            "features" => {
                let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                names
                    .into_iter()
                    .find(|it| !FEATURES.contains(it))
                    .map(|it| format!("feature {it}"))
            }
            "pcap" | "arch" => None,
            other => Some(other.to_owned()),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_met(requires: &Value) -> bool {
        unmet(requires, Version::parse("8.0.5").unwrap()).is_none()
    }

    #[test]
    fn accepts_what_fits() {
        for requires in [
            json!({}),
            json!({ "min-version": 8 }),
            json!({ "min-version": "7.0.11", "lt-version": "8.1" }),
            json!({ "version": 8 }),
            json!({ "version": "8.0.5", "os": "linux", "features": ["LIBNET1.1"] }),
            json!({ "gt-version": "8.0.4", "pcap": false }),
        ] {
            assert!(is_met(&requires), "{requires}");
        }
    }

    #[test]
    fn refuses_what_does_not() {
        for requires in [
            json!({ "min-version": 9 }),
            json!({ "min-version": "8.0.6" }),
            json!({ "lt-version": 8 }),
            json!({ "lt-version": "8.0.5" }),
            json!({ "version": "8.0.4" }),
            json!({ "features": ["HAVE_LUA"] }),
            json!({ "script": ["true"] }),
            json!({ "os": "windows" }),
            json!({ "min-version": "next" }),
        ] {
            assert!(!is_met(&requires), "{requires}");
        }
    }
}
