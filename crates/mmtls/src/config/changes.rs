//! What differs between the configuration of a run and the one that its file has by now.
//!
//! Refuses every difference but those that are known to be taken over while sessions are open: a setting that is new here is
//! refused until somebody has said otherwise.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{File, Places};

/// Settings that a run takes over, or all below them.
const TAKEN_OVER: [&str; 25] = [
    "policies",
    "keys.certificate_file",
    "keys.key_file",
    "keys.client_ca_file",
    "limits.stall_timeout_milliseconds",
    "limits.unshared_stall_timeout_milliseconds",
    "limits.pending_keys_timeout_seconds",
    "limits.null_keys_per_minute",
    "limits.opening_timeout_seconds",
    "limits.idle_timeout_seconds",
    "limits.closed_timeout_seconds",
    "limits.tombstone_timeout_seconds",
    "limits.mid_stream_grace_seconds",
    "inspect.patterns_file",
    "inspect.pattern_action",
    "inspect.rules_files",
    "inspect.address_groups",
    "inspect.port_groups",
    "inspect.limit_bytes",
    "inspect.limit_trusts_padding",
    "inspect.uninspected",
    "log.stats_interval_seconds",
    "log.empty_flows_per_second",
    "log.fileinfo",
    "log.fingerprints",
];

/// Caps that may grow: what is taken under a smaller one would have to go, and sessions with it.
const MAY_GROW: [&str; 9] = [
    "limits.max_flows",
    "limits.max_reassembly_bytes",
    "limits.max_buffered_bytes",
    "limits.max_handshake_bytes",
    "limits.max_search_bytes",
    "limits.max_held_frames",
    "limits.stall_max_packets",
    "limits.stall_max_bytes",
    "limits.max_pending_keys",
];

/// The names of settings that are to change.
///
/// # Errors
/// A line for each of those that cannot change while the monitor runs.
pub fn changes(running: &File, new: &File, places: &Places) -> Result<Vec<String>, Vec<String>> {
    let (before, after) = (settings(running)?, settings(new)?);
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let (mut changed, mut refused) = (Vec::new(), Vec::new());
    for key in keys {
        let [was, is] = [&before, &after].map(|it| it.get(key).unwrap_or(&Value::Null));
        if was == is {
            continue;
        }
        match why_not(key, was, is) {
            None => changed.push(key.clone()),
            Some(why) => refused.push(places.locate(&format!("{key} {why}"))),
        }
    }
    if refused.is_empty() { Ok(changed) } else { Err(refused) }
}

/// Why a difference is refused.
fn why_not(key: &str, was: &Value, is: &Value) -> Option<&'static str> {
    let is_at =
        |name: &str| key.strip_prefix(name).is_some_and(|it| it.is_empty() || it.starts_with('.'));
    let is_empty = |it: &Value| it.as_array().is_none_or(Vec::is_empty);
    if key == "inspect.rules_files" && is_empty(was) != is_empty(is) {
        return Some(
            "cannot change between some and none while running: restart (an empty file does for none)",
        );
    }
    if MAY_GROW.contains(&key) {
        return (is.as_u64() < was.as_u64()).then_some("can only grow while running: restart");
    }
    let is_taken_over = TAKEN_OVER.iter().any(|name| is_at(name));
    (!is_taken_over).then_some("cannot change while running: restart")
}

/// All settings, by key with its section; those that are not set are not there.
fn settings(file: &File) -> Result<BTreeMap<String, Value>, Vec<String>> {
    let mut found = BTreeMap::new();
    let all = serde_json::to_value(file).map_err(|error| vec![error.to_string()])?;
    flatten("", all, &mut found);
    Ok(found)
}

fn flatten(section: &str, value: Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Null => {}
        Value::Object(all) => {
            for (key, value) in all {
                let dot = if section.is_empty() { "" } else { "." };
                flatten(&format!("{section}{dot}{key}"), value, found);
            }
        }
        value => {
            found.insert(section.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read;
    use super::*;

    fn told(before: &str, after: &str) -> Result<Vec<String>, Vec<String>> {
        let [(before, _), (after, places)] =
            [before, after].map(|text| read(Path::new("m.toml"), text).unwrap());
        changes(&before, &after, &places)
    }

    #[test]
    fn accepts_what_can_change_and_no_difference_in_writing() {
        assert_eq!(told("", "[workers]\ncount = 1\n[policies]\nbypass = []\n"), Ok(vec![]));
        let after = "[policies]\nmissing_keys = \"reset\"\nbypass = [\"10.0.0.1:443\"]\nexempt_names = [\"a.test\"]\n\
                     [limits]\nmax_flows = 2000000\nstall_timeout_milliseconds = 1\n\
                     [inspect]\nuninspected.gap = \"reset\"\naddress_groups.HOME_NET = \"[10.0.0.0/8]\"\n\
                     [log]\nfileinfo = true\n[keys]\ncertificate_file = \"new.pem\"\n";
        let all = [
            "inspect.address_groups.HOME_NET",
            "inspect.uninspected.gap",
            "keys.certificate_file",
            "limits.max_flows",
            "limits.stall_timeout_milliseconds",
            "log.fileinfo",
            "policies.bypass",
            "policies.exempt_names",
            "policies.missing_keys",
        ];
        assert_eq!(told("", after), Ok(all.map(str::to_owned).to_vec()));
        let rules = |files: &str| format!("[inspect]\nrules_files = [{files}]\n");
        assert_eq!(
            told(&rules("\"a\""), &rules("\"a\", \"b\"")),
            Ok(vec!["inspect.rules_files".to_owned()])
        );
    }

    #[test]
    fn refuses_each_of_the_others_by_name_and_line() {
        let after = "[inline]\ninterfaces = [\"a\", \"b\"]\n[keys]\nlisten = \"192.0.2.1:4433\"\n\
                     accept_from = [\"10.0.0.0/8\", \"server\"]\n[limits]\nmax_flows = 5\n[policies]\nnull_keys = \"reset\"\n";
        let lines = told("", after).unwrap_err();
        assert_eq!(
            lines,
            [
                "m.toml: line 2: inline.interfaces cannot change while running: restart",
                "m.toml: line 5: keys.accept_from cannot change while running: restart",
                "m.toml: line 4: keys.listen cannot change while running: restart",
                "m.toml: line 7: limits.max_flows can only grow while running: restart",
            ]
        );
        let gone = told("[control]\nsocket = \"/run/x\"\n", "").unwrap_err();
        assert_eq!(gone, ["control.socket cannot change while running: restart"]);
        let rules = told("", "[inspect]\nrules_files = [\"a\"]\n").unwrap_err();
        assert!(rules[0].contains("between some and none"), "{rules:?}");
    }

    /// A name that is written wrongly here would be refused for ever.
    #[test]
    fn accepts_settings_that_there_are() {
        let sample = include_str!("../../mmtls.toml");
        for name in TAKEN_OVER.iter().chain(&MAY_GROW) {
            let (section, key) = name.split_once('.').unwrap_or((name, ""));
            let after = sample.split(&format!("[{section}]\n")).nth(1).unwrap();
            let own: Vec<&str> = after.lines().take_while(|line| !line.starts_with('[')).collect();
            let is_key = |line: &&str| line.trim_start_matches("# ").starts_with(key);
            assert!(own.iter().any(is_key), "{name}");
        }
    }
}
