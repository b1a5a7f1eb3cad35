//! The library's configuration file: `[section]`, `key = value`, and comments, one a line.
//!
//! It is the part of TOML that a configuration needs, so that one file serves `mmtls run` and a C
//! program, without a parser of everything TOML can be in the library. Refuses, with its line, whatever
//! is not that, also TOML's other spellings: escapes, lists over several lines, dotted keys.

use std::fmt;

use mmtls_middlebox::config::Configuration;
use serde::Deserialize;
use serde::de::value::SeqDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor,
};

/// Sections that are for `mmtls run`: what is in them is not looked at.
const OF_THE_APPLICATION: [&str; 8] =
    ["capture", "control", "inspect", "log", "metrics", "mirror", "sandbox", "web"];

/// Reads a configuration and checks its values.
///
/// # Errors
/// One line that names the file's line or the key.
pub(crate) fn parse(text: &str) -> Result<Configuration, String> {
    let mut sections: Vec<(usize, String, Entries<Value>)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        let line = without_comment(line).trim();
        let at = |text: &str| format!("line {number}: {text}");
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim().to_owned();
            if sections.iter().any(|(_, known, _)| *known == name) {
                return Err(at(&format!("section [{name}] stands twice")));
            }
            sections.push((number, name, Entries { entries: Vec::new() }));
            continue;
        }
        if sections.last().is_some_and(|(_, name, _)| OF_THE_APPLICATION.contains(&name.as_str())) {
            continue;
        }
        let (key, value) =
            line.split_once('=').ok_or_else(|| at("neither key = value nor [section]"))?;
        let value = Value::parse(value.trim()).ok_or_else(|| {
            at("a value is \"text\", a whole number, true, false, or a list of them in [ ] on one line")
        })?;
        let key = key.trim().to_owned();
        let (_, _, Entries { entries }) =
            sections.last_mut().ok_or_else(|| at("a key before any [section]"))?;
        if entries.iter().any(|(_, known, _)| *known == key) {
            return Err(at(&format!("{key} stands twice in its section")));
        }
        entries.push((number, key, value));
    }
    sections.retain(|(_, name, _)| !OF_THE_APPLICATION.contains(&name.as_str()));
    let configuration = Configuration::deserialize(Entries { entries: sections })
        .map_err(|fault| fault.to_string())?;
    configuration.check()?;
    Ok(configuration)
}

/// A line up to its `#`, if that is not inside a text.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let end = line.find(|character| {
        quoted ^= character == '"';
        character == '#' && !quoted
    });
    end.and_then(|end| line.get(..end)).unwrap_or(line)
}

#[derive(Clone, PartialEq, Debug)]
enum Value {
    Text(String),
    Number(u64),
    Flag(bool),
    List(Vec<Self>),
}

impl Value {
    /// One value and nothing behind it. Lists are of values that are not lists.
    fn parse(text: &str) -> Option<Self> {
        if let Some(items) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let mut list = Vec::new();
            let mut rest = items.trim();
            while !rest.is_empty() {
                let (item, behind) = Self::split_first(rest);
                list.push(Self::parse_one(item.trim())?);
                rest = behind.trim();
            }
            return Some(Self::List(list));
        }
        Self::parse_one(text)
    }

    /// The first item of a list, and what is behind its comma.
    fn split_first(items: &str) -> (&str, &str) {
        let mut quoted = false;
        let comma = items.find(|character| {
            quoted ^= character == '"';
            character == ',' && !quoted
        });
        comma
            .and_then(|comma| Some((items.get(..comma)?, items.get(comma + 1..)?)))
            .unwrap_or((items, ""))
    }

    fn parse_one(text: &str) -> Option<Self> {
        if let Some(text) = text.strip_prefix('"') {
            let text = text.strip_suffix('"')?;
            return (!text.contains(['"', '\\'])).then(|| Self::Text(text.to_owned()));
        }
        match text {
            "true" => Some(Self::Flag(true)),
            "false" => Some(Self::Flag(false)),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().map(Self::Number)
            }
            _ => None,
        }
    }
}

/// Names with their lines, and what they stand for: sections of keys, keys of values.
struct Entries<V> {
    entries: Vec<(usize, String, V)>,
}

/// What is wrong, and where.
#[derive(Debug)]
struct Fault {
    line: Option<usize>,
    text: String,
}

impl Fault {
    fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self { line: None, text: text.to_string() }
    }
}

/// Reads [`Entries`], and says of what is wrong in which line it is.
struct Reader<V> {
    entries: std::vec::IntoIter<(usize, String, V)>,
    value: Option<(usize, V)>,
}

impl<'de, V: IntoDeserializer<'de, Fault>> MapAccess<'de> for Reader<V> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let Some((line, name, value)) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some((line, value));
        seed.deserialize(name.into_deserializer()).map(Some).map_err(|fault: Fault| fault.at(line))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let (line, value) = self.value.take().ok_or_else(|| Fault::custom("no value"))?;
        seed.deserialize(value.into_deserializer()).map_err(|fault| fault.at(line))
    }
}

impl<'de, T: IntoDeserializer<'de, Fault>> Deserializer<'de> for Entries<T> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_map(Reader { entries: self.entries.into_iter(), value: None })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self {
            Self::Text(text) => visitor.visit_string(text),
            Self::Number(number) => visitor.visit_u64(number),
            Self::Flag(flag) => visitor.visit_bool(flag),
            Self::List(items) => {
                let mut items = SeqDeserializer::new(items.into_iter());
                let list = visitor.visit_seq(&mut items)?;
                items.end().map(|()| list)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: IntoDeserializer<'de, Fault>> IntoDeserializer<'de, Fault> for Entries<V> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl IntoDeserializer<'_, Fault> for Value {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../mmtls/mmtls.toml");

    /// What a reader of all of TOML makes of it.
    fn as_toml(text: &str) -> String {
        let mut table: toml::Table = toml::from_str(text).unwrap();
        for name in OF_THE_APPLICATION {
            table.remove(name);
        }
        format!("{:?}", Configuration::deserialize(table).unwrap())
    }

    #[test]
    fn accepts_what_toml_means_by_it() {
        assert_eq!(format!("{:?}", parse(SAMPLE).unwrap()), as_toml(SAMPLE));
        for text in [
            "",
            "[inline]\ninterfaces = [\"left\", \"right\"] # both\ncoalesce = false\n",
            " [ policies ] \nmissing_keys=\"reset\"\nbypass = [ \"10.0.0.0/8\" , \"[::1]:443\", ]\n",
            "[keys]\nlisten = \"[::]:1\"\nkey_file = \"a#b, c\"\r\n[workers]\ncpus = [1,2]\ncount = 2\n",
            "[policies]\ntls_ports = []\n[log]\nanything = \"at all\"\n",
            "[log]\noutputs = [\n  { type = \"file\", n.x = 1.5 },\n]\n[keys]\nlisten = \"[::]:1\"\n",
        ] {
            assert_eq!(format!("{:?}", parse(text).unwrap()), as_toml(text), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else_with_its_line() {
        for (text, words) in [
            ("x = 1", "line 1: a key before any [section]"),
            ("\n[inline]\nwords", "line 3: neither"),
            ("[limits]\n\nmax_flow = 1", "line 3: unknown field `max_flow`"),
            ("[limit]\n", "line 1: unknown field `limit`"),
            ("[limits]\nmax_flows = \"1\"", "line 2: invalid type: string \"1\""),
            ("[limits]\nmax_flows = -1", "line 2: a value is"),
            ("[limits]\nmax_flows = 1 2", "line 2: a value is"),
            ("[limits]\nmax_flows =", "line 2: "),
            ("[limits]\nmax_flows = 99999999999999999999", "line 2: a value is"),
            ("[limits]\nmax_flows = 1\nmax_flows = 2", "line 3: max_flows stands twice"),
            ("[limits]\n[limits]", "line 2: section [limits] stands twice"),
            ("[limits]\nmax_flows = 0", "limits.max_flows must not be 0"),
            ("[inline]\ninterfaces = [\"a\", \"b\", \"c\"]", "line 2: invalid length 3"),
            ("[inline]\ninterfaces = [\"a\"]", "line 2: invalid length 1"),
            ("[inline]\ninterfaces = [\"a\",\n\"b\"]", "line 2: a value is"),
            ("[keys]\nkey_file = \"a\\\\b\"", "line 2: a value is"),
            ("[keys]\nkey_file = \"a", "line 2: a value is"),
            ("[keys]\nlisten = \"nowhere\"", "line 2: \"nowhere\" is not ADDRESS:PORT"),
            ("[policies]\nmissing_keys = \"ignore\"", "line 2: unknown policy \"ignore\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(words) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
