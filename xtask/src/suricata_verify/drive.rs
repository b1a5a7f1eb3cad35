//! A capture through the same engine and the same monitor as `mmtls read`: what comes out, as records.
//!
//! Refuses to follow anything itself.

use std::collections::BTreeSet;
use std::path::Path;

use mmtls::monitor::{Monitor, MonitorConfig, Stops};
use mmtls::rules::RulesConfig;
use mmtls_engine::Cleartext;
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};
use serde_json::Value;

/// How a capture is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// What drops a connection ends it.
    pub(super) inline: bool,
    /// Connections whose beginning is not in it are looked into.
    pub(super) midstream: bool,
    /// Segments with a wrong checksum count.
    pub(super) ignores_checksums: bool,
}

/// What came out.
#[derive(Default)]
pub(super) struct Outcome {
    /// Records of alerts and of handshakes.
    pub(super) records: Vec<Value>,
    /// What connections carried.
    pub(super) protocols: BTreeSet<String>,
    /// Something was beyond a cap.
    pub(super) over_cap: bool,
    /// Packets that are not TCP.
    pub(super) others: u64,
    /// Packets that are fragments.
    pub(super) fragments: u64,
}

/// Applies rules to a capture.
pub(super) fn run(capture: &Path, rules: &RulesConfig, manner: Manner) -> Result<Outcome, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let monitor = Monitor::new(&MonitorConfig {
        eve_dir: Some(dir.path().to_owned()),
        stops: if manner.inline { Stops::Everything } else { Stops::Nothing },
        fingerprints: true,
        rules: Some(rules.clone()),
        ..MonitorConfig::default()
    })
    .map_err(|error| error.to_string())?;
    let mut config = offline::config();
    config.cleartext = match manner.midstream {
        true => Cleartext::Anywhere,
        false => Cleartext::FromBeginning,
    };
    config.tell_hellos = true;
    config.verify_checksums = !manner.ignores_checksums;
    let mut replay = Replay::new(config, KeyLog::new(), monitor);
    // What came before the damage counts, as for Suricata.
    let read = replay.run(capture);
    replay.end();
    let counters = *replay.engine().counters();
    if let (0, Err(error)) = (counters.frames, read) {
        return Err(error.to_string());
    }
    let mut monitor = replay.finish();
    if let Some(error) = monitor.flush().first() {
        return Err(error.to_string());
    }
    let text = std::fs::read_to_string(dir.path().join("eve.json"));
    let mut outcome = Outcome {
        over_cap: monitor.summary().uninspected.contains_key("over_cap"),
        others: counters.not_tcp,
        fragments: counters.fragments,
        ..Outcome::default()
    };
    for line in text.map_err(|error| error.to_string())?.lines() {
        let mut record: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        match record["event_type"].as_str() {
            Some("flow") => {
                let protocol = record["app_proto"].as_str().unwrap_or("unknown");
                outcome.protocols.insert(protocol.to_owned());
            }
            Some("alert") => {
                let is_v6 = record["src_ip"].as_str().is_some_and(|it| it.contains(':'));
                record["ip_v"] = if is_v6 { 6 } else { 4 }.into();
                outcome.records.push(record);
            }
            Some("tls") => outcome.records.push(record),
            _ => {}
        }
    }
    Ok(outcome)
}
