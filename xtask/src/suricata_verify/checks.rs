//! What a test expects of alerts and of fingerprints, and whether it is so.
//!
//! Checks of other records are not looked at. A check that asks for a field which is not compared is taken
//! without it, and its count for those of all checks that are alike then.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::Value;

use super::requires::{Version, unmet};

/// Fields that are compared.
const COMPARED: [&str; 27] = [
    "alert",
    "alert.action",
    "alert.category",
    "alert.gid",
    "alert.rev",
    "alert.severity",
    "alert.signature",
    "alert.signature_id",
    "app_proto",
    "dest_ip",
    "dest_port",
    "direction",
    "event_type",
    "http.hostname",
    "http.http_method",
    "http.http_user_agent",
    "ip_v",
    "proto",
    "src_ip",
    "src_port",
    "tls.ja3.hash",
    "tls.ja3.string",
    "tls.ja3s.hash",
    "tls.ja3s.string",
    "tls.ja4",
    "tls.sni",
    "tx_id",
];
const HAS: &str = "has-key";
const HAS_NOT: &str = "not-has-key";

/// A check of records.
#[derive(Debug)]
pub(super) struct Check {
    count: u64,
    /// Field or comparison, and value.
    fields: Vec<(String, Value)>,
    /// Those that are not compared.
    others: Vec<(String, Value)>,
}

/// The checks of a test that are about alerts, or fingerprints in records of handshakes, and apply to a version.
pub(super) fn read(config: &Value, version: Version) -> Vec<Check> {
    let checks = config["checks"].as_array().into_iter().flatten();
    let filters = checks.map(|check| &check["filter"]);
    let filters = filters.filter(|it| is_about(&it["match"]));
    let filters = filters.filter(|it| unmet(&it["requires"], version).is_none());
    // Other files hold other records.
    let filters = filters.filter(|it| it["filename"].is_null());
    filters
        .filter_map(|filter| {
            let mut check =
                Check { count: filter["count"].as_u64()?, fields: Vec::new(), others: Vec::new() };
            for (key, value) in filter["match"].as_object()? {
                let place = match is_compared(key, value) {
                    true => &mut check.fields,
                    false => &mut check.others,
                };
                place.push((key.clone(), value.clone()));
            }
            check.fields.sort_by(|a, b| a.0.cmp(&b.0));
            Some(check)
        })
        .collect()
}

/// Whether some check is about what only rules bring about.
pub(super) fn need_rules(checks: &[Check]) -> bool {
    let is_alert = |(key, value): &(String, Value)| key == "event_type" && *value == "alert";
    checks.iter().any(|check| check.fields.iter().any(is_alert))
}

fn is_about(wanted: &Value) -> bool {
    let mut keys = wanted.as_object().into_iter().flatten().map(|(key, _)| key);
    match wanted["event_type"].as_str() {
        Some("alert") => true,
        Some("tls") => keys.any(|key| key.starts_with("tls.ja")),
        _ => false,
    }
}

/// What came of a group of checks that ask for the same.
pub(super) struct Judged {
    /// What they ask for.
    pub(super) what: String,
    pub(super) expected: u64,
    pub(super) got: u64,
}

/// Compares; `None` where no check can be judged.
pub(super) fn judge(checks: &[Check], records: &[Value]) -> Option<Vec<Judged>> {
    let mut groups: BTreeMap<String, Vec<&Check>> = BTreeMap::new();
    for check in checks {
        groups.entry(shown(&check.fields)).or_default().push(check);
    }
    let judged = groups.into_iter().filter_map(|(what, group)| {
        let (fields, got) = (&group.first()?.fields, |fields: &[(String, Value)]| {
            records.iter().filter(|record| is_match(fields, record)).count() as u64
        });
        let expected = expected(&group)?;
        Some(Judged { what, expected, got: got(fields) })
    });
    let judged: Vec<_> = judged.collect();
    (!judged.is_empty()).then_some(judged)
}

/// How many records checks with the same compared fields expect together.
fn expected(group: &[&Check]) -> Option<u64> {
    if let Some(exact) = group.iter().find(|check| check.others.is_empty()) {
        return Some(exact.count);
    }
    // Those that give one field different values speak of different records.
    let mut by_field: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for check in group {
        for (key, value) in &check.others {
            match by_field.entry(key).or_default().entry(value.to_string()) {
                Entry::Vacant(it) => drop(it.insert(check.count)),
                Entry::Occupied(mut it) => *it.get_mut() = (*it.get()).max(check.count),
            }
        }
    }
    // That there is none with such a field says nothing of the others.
    by_field.values().map(|counts| counts.values().sum::<u64>()).max().filter(|most| *most > 0)
}

fn shown(fields: &[(String, Value)]) -> String {
    let shown: Vec<_> = fields
        .iter()
        .filter(|(key, _)| key != "event_type")
        .map(|(key, value)| format!("{} {value}", key.strip_prefix("alert.").unwrap_or(key)))
        .collect();
    if shown.is_empty() { "alerts".to_owned() } else { shown.join(", ") }
}

fn names(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map_or(core::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Value::as_str)
}

/// Whether records have what a check asks for.
fn is_compared(key: &str, value: &Value) -> bool {
    let known = |name: &str| COMPARED.contains(&name);
    match key {
        HAS | HAS_NOT => names(value).all(known),
        _ => known(key.split_once(".__").map_or(key, |(field, _)| field)),
    }
}

fn is_match(fields: &[(String, Value)], record: &Value) -> bool {
    fields.iter().all(|(key, expected)| match key.as_str() {
        HAS => names(expected).all(|name| find(record, name).is_some()),
        HAS_NOT => names(expected).all(|name| find(record, name).is_none()),
        _ => compares(key, expected, record),
    })
}

fn is_address(field: &str) -> bool {
    matches!(field, "src_ip" | "dest_ip")
}

fn compares(key: &str, expected: &Value, record: &Value) -> bool {
    let (field, operator) = match key.rsplit_once(".__") {
        Some((field, operator)) => (field, operator),
        None => (key, ""),
    };
    let found = find(record, field);
    let texts = || Some((found?.as_str()?, expected.as_str()?));
    let numbers = || Some((found?.as_f64()?, expected.as_f64()?));
    match operator {
        "" if is_address(field) => texts().is_some_and(|(a, b)| {
            // However the same address is written.
            a == b || a.parse::<IpAddr>().is_ok_and(|it| Ok(it) == b.parse())
        }),
        "" => found.unwrap_or(&Value::Null) == expected,
        "find" => texts().is_some_and(|(text, part)| text.contains(part)),
        "startswith" => texts().is_some_and(|(text, part)| text.starts_with(part)),
        "endswith" => texts().is_some_and(|(text, part)| text.ends_with(part)),
        "contains" => match found {
            Some(Value::Array(items)) => items.contains(expected),
            _ => texts().is_some_and(|(text, part)| text.contains(part)),
        },
        "len" => {
            let len = match found {
                Some(Value::Array(items)) => Some(items.len()),
                Some(Value::Object(map)) => Some(map.len()),
                Some(Value::String(text)) => Some(text.len()),
                _ => None,
            };
            len.is_some_and(|len| expected.as_u64() == Some(len as u64))
        }
        "gt" => numbers().is_some_and(|(a, b)| a > b),
        "gte" => numbers().is_some_and(|(a, b)| a >= b),
        "lt" => numbers().is_some_and(|(a, b)| a < b),
        "lte" => numbers().is_some_and(|(a, b)| a <= b),
        _ => false,
    }
}

/// A field by its name with dots; one that is null is not there.
fn find<'a>(record: &'a Value, name: &str) -> Option<&'a Value> {
    let found = name.split('.').try_fold(record, |at, part| at.get(part));
    found.filter(|it| !it.is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(checks: Value, alerts: &[Value]) -> Option<Vec<(String, u64, u64)>> {
        let checks = read(&json!({ "checks": checks }), Version::parse("8").unwrap());
        let judged = judge(&checks, alerts)?;
        Some(judged.into_iter().map(|it| (it.what, it.expected, it.got)).collect())
    }

    fn alert(sid: u64) -> Value {
        json!({ "event_type": "alert", "src_port": 80, "alert": { "signature_id": sid } })
    }

    fn filter(count: u64, extra: Value) -> Value {
        let mut matched = json!({ "event_type": "alert" });
        matched.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({ "filter": { "count": count, "match": matched } })
    }

    #[test]
    fn accepts_counts_and_comparisons() {
        let alerts = [alert(1), alert(1), alert(2)];
        let checks = json!([
            filter(2, json!({ "alert.signature_id": 1 })),
            filter(0, json!({ "alert.signature_id": 2, "src_port.__gt": 80 })),
            filter(3, json!({})),
            { "filter": { "count": 9, "match": { "event_type": "http" } } },
            { "shell": { "args": "true" } },
        ]);
        let expected = [
            ("alerts".to_owned(), 3, 3),
            ("signature_id 1".to_owned(), 2, 2),
            ("signature_id 2, src_port.__gt 80".to_owned(), 0, 0),
        ];
        assert_eq!(run(checks, &alerts).unwrap(), expected);
    }

    #[test]
    fn accepts_checks_of_fingerprints_and_of_no_other_handshakes() {
        let tls = |value: Value| json!({ "filter": { "count": 1, "match": value } });
        let records = [json!({ "event_type": "tls", "tls": { "ja4": "t13" } }), alert(1)];
        let checks = json!([
            tls(json!({ "event_type": "tls", "tls.ja4": "t13" })),
            tls(json!({ "event_type": "tls", "tls.version": "TLS 1.3" })),
            tls(json!({ "event_type": "quic", "quic.ja4": "q13" })),
        ]);
        assert_eq!(run(checks, &records).unwrap(), [("tls.ja4 \"t13\"".to_owned(), 1, 1)]);
    }

    #[test]
    fn accepts_checks_without_the_fields_that_are_not_compared() {
        let of =
            |count, packet| filter(count, json!({ "alert.signature_id": 1, "pcap_cnt": packet }));
        let judged = run(json!([of(1, 4), of(1, 9)]), &[alert(1), alert(1)]).unwrap();
        assert_eq!(judged, [("signature_id 1".to_owned(), 2, 2)]);
        let exact = filter(3, json!({ "alert.signature_id": 1 }));
        let judged = run(json!([of(1, 4), exact]), &[alert(1)]).unwrap();
        assert_eq!(judged, [("signature_id 1".to_owned(), 3, 1)]);
    }

    #[test]
    fn refuses_to_judge_the_absence_of_what_is_not_compared() {
        let absent = filter(0, json!({ "alert.signature_id": 1, "pcap_cnt": 4 }));
        assert_eq!(run(json!([absent]), &[alert(1)]), None);
        let later = json!([{ "filter": {
            "requires": { "min-version": 9 }, "count": 1, "match": { "event_type": "alert" } } }]);
        assert_eq!(run(later, &[]), None);
    }
}
