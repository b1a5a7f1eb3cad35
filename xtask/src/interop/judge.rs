//! Asks `mmtls read` what was in a capture, and compares it with what the programs know.
//!
//! Refuses to be content with less than: every session there, version and suite as asked, the
//! feature seen where mmTLS reports it, every record opened, no anomaly, and both streams byte
//! for byte what the programs sent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::case::{Case, Feature};
use super::drive::{Driven, Plaintext};

/// What mmTLS made of a case.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Seen {
    /// TLS sessions.
    pub sessions: u64,
    /// Connections that a browser opened and did not use.
    pub idle: u64,
    /// Sessions with outcome `decrypted`.
    pub decrypted: u64,
    /// Protected records that passed.
    pub records: u64,
    /// Records opened.
    pub opened: u64,
    /// Bytes of application content.
    pub bytes: u64,
    /// Records that failed to open.
    pub failed: u64,
    /// Suites that were negotiated.
    pub suites: Vec<String>,
    /// Client randoms in the order of the connections.
    pub client_randoms: Vec<String>,
}

/// Reads one capture. The second value says everything that is not as it must be.
pub fn judge(
    mmtls: &Path,
    case: &Case,
    driven: &Driven,
    capture: &Path,
    directory: &Path,
) -> Result<(Seen, Vec<String>), String> {
    let out = directory.join("mmtls");
    let _ = fs::remove_dir_all(&out);
    let streams = out.join("streams");
    let output = Command::new(mmtls)
        .arg("read")
        .arg("-r")
        .arg(capture)
        .arg("--keylog")
        .arg(&driven.keylog)
        .arg("-l")
        .arg(&out)
        .arg("--streams")
        .arg(&streams)
        .env_remove("SSLKEYLOGFILE")
        .output()
        .map_err(|error| format!("mmtls: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("mmtls read: {}: {text}", output.status));
    }
    let eve = fs::read_to_string(out.join("eve.json")).map_err(|error| error.to_string())?;
    let mut events = Vec::new();
    for line in eve.lines() {
        events.push(serde_json::from_str::<Value>(line).map_err(|error| error.to_string())?);
    }
    let mut sessions = sessions_in_order(&events);

    let idle = set_idle_aside(case, &mut sessions);
    let mut faults = Vec::new();
    let mut seen = Seen { sessions: sessions.len() as u64, idle, ..Seen::default() };
    let anomalies = events.iter().filter(|it| it["event_type"] == "anomaly");
    // What the programs say to each other is no HTTP, and only looks like it at times.
    for anomaly in anomalies.filter(|it| it["anomaly"]["type"] != "applayer") {
        let name = anomaly["anomaly"]["event"].as_str().unwrap_or("?");
        faults.push(format!("anomaly {name} {}", anomaly["direction"].as_str().unwrap_or("")));
    }
    if let Some(stats) = events.iter().rfind(|it| it["event_type"] == "stats") {
        seen.failed = stats["stats"]["monitor"]["records_failed"].as_u64().unwrap_or(0);
        if seen.failed > 0 {
            faults.push(format!("{} records failed to open", seen.failed));
        }
    } else {
        faults.push("no statistics".to_owned());
    }
    for (number, tls) in sessions.iter().enumerate() {
        let outcome = tls["outcome"].as_str().unwrap_or("none");
        seen.decrypted += u64::from(outcome == "decrypted");
        let sum = |names: [&str; 2]| -> u64 {
            names.iter().filter_map(|name| tls["decrypted"][name].as_u64()).sum()
        };
        let records = sum(["seen_toserver", "seen_toclient"]);
        let opened = sum(["records_toserver", "records_toclient"]);
        if opened != records {
            faults.push(format!("session {number}: {opened} records opened of {records}"));
        }
        seen.records += records;
        seen.opened += opened;
        seen.bytes += sum(["bytes_toserver", "bytes_toclient"]);
        let suite = tls["cipher_suite"].as_str().unwrap_or("none").to_owned();
        if !seen.suites.contains(&suite) {
            seen.suites.push(suite);
        }
        let random = tls["client_random"].as_str().unwrap_or_default().to_owned();
        if outcome != "decrypted" {
            faults.push(format!("session {number}: {outcome}"));
        }
        for fault in compare_facts(case, number, tls) {
            faults.push(format!("session {number}: {fault}"));
        }
        if let Some(plaintext) = driven.sessions.get(number) {
            for fault in compare_streams(plaintext, &streams, &random) {
                faults.push(format!("session {number}: {fault}"));
            }
        }
        seen.client_randoms.push(random);
    }
    if sessions.len() != driven.sessions.len() {
        faults.push(format!("{} sessions of {}", sessions.len(), driven.sessions.len()));
    }
    // The streams are the bytes of the files beside them; nobody needs them twice.
    if faults.is_empty() {
        let _ = fs::remove_dir_all(&out);
    }
    Ok((seen, faults))
}

/// What `eve.json` says of each session, in the order of their flows' first packets.
fn sessions_in_order(events: &[Value]) -> Vec<Value> {
    let of_type = |name: &'static str| events.iter().filter(move |it| it["event_type"] == name);
    let starts: BTreeMap<_, _> =
        of_type("flow").map(|it| (it["flow_id"].as_u64(), it["flow"]["start"].as_str())).collect();
    // Both lists are in the order in which the sessions ended.
    let flows = of_type("mmtls").map(|it| starts.get(&it["flow_id"].as_u64()).copied().flatten());
    let sessions = mmtls_testkit::middlebox::sessions(events);
    let mut ordered: Vec<_> = flows.zip(sessions).collect();
    ordered.sort_by_key(|(start, _)| *start);
    ordered.into_iter().map(|(_, session)| session).collect()
}

/// A browser opens more connections than it uses. Those that were cut off before the handshake
/// was over, or without a byte of content, are counted apart.
fn set_idle_aside(case: &Case, sessions: &mut Vec<Value>) -> u64 {
    if case.feature != Feature::Http {
        return 0;
    }
    let all = sessions.len();
    sessions.retain(|tls| {
        let unused = tls["decrypted"]["bytes_toserver"] == 0;
        let harmless = matches!(tls["outcome"].as_str(), Some("decrypted" | "nothing_opened"));
        !(unused && harmless)
    });
    (all - sessions.len()) as u64
}

/// What mmTLS reports about the handshake.
fn compare_facts(case: &Case, number: usize, tls: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expect = |name: &str, expected: Value| {
        if tls[name] != expected {
            faults.push(format!("{name} is {}, not {expected}", tls[name]));
        }
    };
    expect("version", case.version.to_string().into());
    if let Some(suite) = case.suite {
        expect("cipher_suite", suite.iana().into());
    }
    expect("private_tag", case.has_private_tag().into());
    // Elsewhere the groups are the stacks' own business. A private tag must not cost a retry.
    if case.feature == Feature::HelloRetry {
        expect("hello_retry", true.into());
    } else if case.knows_private_tag() && case.feature == Feature::Full {
        expect("hello_retry", false.into());
    }
    let resumed = match case.feature {
        Feature::Psk => true,
        feature => feature.resumes() && number > 0,
    };
    // A browser resumes as it likes.
    if case.feature != Feature::Http {
        expect("session_resumed", resumed.into());
    }
    let early = case.feature == Feature::EarlyData && number > 0;
    expect("early_data", if early { "accepted".into() } else { Value::Null });
    faults
}

fn compare_streams(plaintext: &Plaintext, streams: &Path, random: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (side, expected) in [("client", &plaintext.client), ("server", &plaintext.server)] {
        let expected = fs::read(expected).unwrap_or_default();
        let found = fs::read(streams.join(format!("{random}.{side}"))).unwrap_or_default();
        if expected == found {
            continue;
        }
        let same = expected.iter().zip(&found).take_while(|(left, right)| left == right).count();
        faults.push(format!(
            "stream of the {side}: {} bytes instead of {}, alike up to byte {same}",
            found.len(),
            expected.len()
        ));
    }
    faults
}
