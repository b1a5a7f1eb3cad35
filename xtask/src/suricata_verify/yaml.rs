//! YAML as JSON values, which checks are compared with.
//!
//! Refuses anchors that lead nowhere, and keys that are no scalars.

use std::path::Path;

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// Reads the first document of a file; an empty one is null.
pub(super) fn read(path: &Path) -> Result<Value, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(text: &str) -> Result<Value, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    documents.first().map_or(Ok(Value::Null), value)
}

fn value(yaml: &Yaml<'_>) -> Result<Value, String> {
    Ok(match yaml {
        Yaml::Value(scalar) => scalar_value(scalar),
        Yaml::Representation(text, ..) => Value::String(text.to_string()),
        Yaml::Sequence(items) => Value::Array(items.iter().map(value).collect::<Result<_, _>>()?),
        Yaml::Mapping(pairs) => {
            let mut map = Map::new();
            for (key, it) in pairs {
                map.insert(text(&value(key)?).ok_or("a key is no scalar")?, value(it)?);
            }
            Value::Object(map)
        }
        Yaml::Tagged(_, inner) => value(inner)?,
        Yaml::Alias(_) => return Err("an alias".to_owned()),
        Yaml::BadValue => return Err("a bad value".to_owned()),
    })
}

fn scalar_value(scalar: &Scalar<'_>) -> Value {
    match scalar {
        Scalar::Null => Value::Null,
        Scalar::Boolean(it) => Value::Bool(*it),
        Scalar::Integer(it) => Value::Number((*it).into()),
        Scalar::FloatingPoint(it) => Number::from_f64(it.0).map_or(Value::Null, Value::Number),
        // Configurations of Suricata are YAML 1.1, where these words are truth values.
        Scalar::String(text) => match text.as_ref() {
            "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
            "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
            text => Value::String(text.to_owned()),
        },
    }
}

/// A scalar as text; `None` for lists and maps.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Bool(true) => Some("yes".to_owned()),
        Value::Bool(false) => Some("no".to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_maps_lists_and_words_of_yaml_1_1() {
        let text = "a: 1\nb: [yes, \"x\", 2.5]\nc:\n  d.e: no\n  8: ~\n";
        let expected = serde_json::json!({
            "a": 1, "b": [true, "x", 2.5], "c": { "d.e": false, "8": null }
        });
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse(""), Ok(Value::Null));
    }

    #[test]
    fn refuses_what_is_no_yaml() {
        assert!(parse("a: [1").is_err());
        assert!(parse("[1]: a\n").is_err());
    }
}
