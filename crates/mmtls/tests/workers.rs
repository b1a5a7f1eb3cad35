//! Several workers: every connection belongs to one of them, no key is lost on the way to it, and
//! the counters add up.

use crate::common::{
    Family, Stage, assert_decrypted_but_aborted, can_run, options, patient, sessions,
};
use mmtls_testkit::{Mmtls, MmtlsOptions, MmtlsReport, NginxOptions, files};
use serde_json::Value;

/// Connections of each load.
const CONNECTIONS: u64 = 10_000;

fn workers(count: u32) -> MmtlsOptions {
    MmtlsOptions { config: Some(format!("[workers]\ncount = {count}\n")), ..patient() }
}

fn last_stats(report: &MmtlsReport) -> &Value {
    let stats = report.eve.iter().rev().find(|it| it["event_type"] == "stats");
    &stats.expect("stats are written at the end")["stats"]
}

fn counter(stats: &Value, name: &str) -> u64 {
    stats[name].as_u64().unwrap_or_else(|| panic!("{name} in {stats}"))
}

/// What must hold however many workers there are: the parts add up, nothing went to the wrong one.
fn assert_adds_up(report: &MmtlsReport, count: u32) {
    let stats = last_stats(report);
    assert_eq!(counter(&stats["engine"], "misplaced"), 0);
    assert_eq!(counter(&stats["engine"], "key_queue_full"), 0);
    let Some(each) = stats["workers"].as_array() else {
        assert_eq!(count, 1, "{stats}");
        return;
    };
    assert_eq!(each.len(), count as usize);
    for name in ["frames", "forwarded", "flows", "sessions", "records_opened", "keys_accepted"] {
        let sum: u64 = each.iter().map(|worker| counter(worker, name)).sum();
        assert_eq!(sum, counter(&stats["engine"], name), "{name}");
    }
    // Every worker had its share: flows are spread by a hash.
    let flows = counter(&stats["engine"], "flows");
    for worker in each {
        let own = counter(worker, "flows");
        assert!(own * u64::from(count) * 2 > flows, "{own} of {flows} flows");
    }
    // A flow that two workers had seen would be there twice.
    let mut flows: Vec<_> = report
        .eve
        .iter()
        .filter(|it| it["event_type"] == "flow")
        .map(|flow| (flow["src_ip"].as_str(), flow["src_port"].as_u64(), &flow["flow"]["start"]))
        .collect();
    let ids = report.eve.iter().filter(|it| it["event_type"] == "flow").map(|it| &it["flow_id"]);
    let ids: std::collections::BTreeSet<_> = ids.filter_map(Value::as_u64).collect();
    assert_eq!(ids.len(), flows.len(), "every flow has a number of its own");
    flows.sort_by_key(|(address, port, start)| (*address, *port, start.as_str()));
    flows.dedup();
    assert_eq!(flows.len(), ids.len(), "every flow was seen by one worker");
}

fn many_connections(count: u32) {
    if !can_run(&["nginx", "ab"]) {
        return;
    }
    let stage = Stage::with(NginxOptions { resumption: false, ..NginxOptions::default() });
    stage.serve("file", &files::pattern_bytes(1000, 1));
    for family in [Family::V4, Family::V6] {
        if family.is_v6() && !stage.bed.has_ipv6() {
            continue;
        }
        let requests = CONNECTIONS / 2;
        let mmtls = stage.mmtls(&workers(count));
        let mut command = mmtls.sharing(&stage.bed, family.is_v6(), &[], "ab");
        command
            .args(["-q", "-n", &requests.to_string(), "-c", "128"])
            .arg(format!("https://{}/file", family.server()));
        let done = stage.run("ab", command);
        let text = format!("{}{}", done.text(), done.stderr);
        assert!(done.status.success(), "{text}");
        assert!(text.contains(&format!("Complete requests:      {requests}")), "{text}");
        assert!(text.contains("Failed requests:        0"), "{text}");
        let report = mmtls.stop().unwrap();
        eprintln!(
            "{count} workers {family:?}: {} sessions in {:.1} s",
            report.count("TLS sessions"),
            done.elapsed.as_secs_f64(),
        );
        // ab opens more connections than it uses.
        assert_decrypted_but_aborted(&report, requests);
        assert_eq!(report.count("HTTP requests"), requests);
        assert_eq!(sessions(&report).len() as u64, report.count("TLS sessions"));
        assert_adds_up(&report, count);
    }
}

#[test]
fn accepts_ten_thousand_connections_with_one_worker() {
    many_connections(1);
}

#[test]
fn accepts_ten_thousand_connections_with_two_workers() {
    many_connections(2);
}

#[test]
fn accepts_ten_thousand_connections_with_four_workers() {
    many_connections(4);
}

#[test]
fn refuses_processors_that_are_not_there() {
    if !can_run(&["nginx"]) {
        return;
    }
    let stage = Stage::with(NginxOptions::default());
    let config = "[workers]\ncount = 2\ncpus = [0, 4000]\n".to_owned();
    let options = MmtlsOptions { config: Some(config), ..options() };
    let error = Mmtls::start(&stage.bed, &options).err().expect("it starts with no such processor");
    let said = error.to_string();
    assert!(said.contains("line 3: workers.cpus: ") && said.contains("processor 4000"), "{said}");
}
