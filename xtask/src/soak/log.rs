//! What `eve.json` says, of one monitor after another: whose sessions were cut and why, and what became of the others.
//!
//! Refuses to keep it: a file that a reload has put aside is read to its end and removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mmtls_testkit::address;
use serde::Serialize;
use serde_json::Value;

use super::now;
use super::tail::Tail;

/// Lines come within a second; then a file that was put aside is complete.
const COMPLETE_SECONDS: f64 = 10.0;
const EXAMPLES: usize = 10;
/// Of `stats`.
const GROUPS: [&str; 2] = ["engine", "monitor"];

/// A session or connection that the monitor has cut.
#[derive(Clone, Debug, Serialize)]
pub struct Cut {
    /// Seconds since 1970, of the line.
    pub at: f64,
    pub client: String,
    /// What the line says of the cause.
    pub cause: String,
}

/// What was read.
#[derive(Default, Serialize)]
pub struct Log {
    #[serde(skip)]
    current: Option<Tail>,
    /// Until when they are read.
    #[serde(skip)]
    aside: Vec<(f64, Tail)>,
    #[serde(skip)]
    rotations: u64,
    /// Of those that share keys, and of those that have none, by what the end says of them.
    pub outcomes: BTreeMap<String, u64>,
    end_reasons: BTreeMap<String, u64>,
    /// Sessions that were found in their middle, after a restart.
    mid_stream: u64,
    pub cuts: Vec<Cut>,
    /// By cause.
    cut_by: BTreeMap<String, u64>,
    anomalies: BTreeMap<String, u64>,
    /// The first lines of each.
    examples: BTreeMap<String, Vec<Value>>,
    /// Matches of the rule that both versions have, by version.
    pub alerts: BTreeMap<String, u64>,
    records: u64,
    bad_lines: u64,
    /// Sums over lives of what the last `stats` of each says.
    counters: BTreeMap<String, u64>,
    #[serde(skip)]
    last_stats: Option<Value>,
}

impl Log {
    /// Goes on with the log of a monitor that has just started.
    pub fn follow(&mut self, directory: &Path) -> Result<(), String> {
        self.read()?;
        self.close();
        self.aside.extend(self.current.take().map(|tail| (now() + COMPLETE_SECONDS, tail)));
        self.current = Some(Tail::new(&directory.join("eve.json")));
        Ok(())
    }

    /// Puts the log at hand aside, before the monitor is told to open another one.
    pub fn rotate(&mut self) -> Result<(), String> {
        let Some(mut tail) = self.current.take() else { return Ok(()) };
        let path: PathBuf = tail.path().to_owned();
        self.rotations += 1;
        tail.rename(&path.with_extension(format!("json.{}", self.rotations)))?;
        self.aside.push((now() + COMPLETE_SECONDS, tail));
        self.current = Some(Tail::new(&path));
        Ok(())
    }

    /// Takes what has come since.
    pub fn read(&mut self) -> Result<(), String> {
        let (mut aside, mut current) =
            (std::mem::take(&mut self.aside), std::mem::take(&mut self.current));
        for tail in aside.iter_mut().map(|(_, tail)| tail).chain(&mut current) {
            tail.read(|line| self.take(line))?;
        }
        let now = now();
        for (until, tail) in aside {
            if now < until {
                self.aside.push((until, tail));
            } else {
                let _ = std::fs::remove_file(tail.path());
            }
        }
        self.current = current;
        Ok(())
    }

    /// Sessions that ended.
    pub fn sessions(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// Of these, decrypted ones.
    pub fn decrypted(&self) -> u64 {
        let named = self.outcomes.iter().filter(|(name, _)| name.ends_with(": decrypted"));
        named.map(|(_, count)| count).sum()
    }

    /// Sessions of programs that share keys and do not refuse, and how many of these were decrypted.
    pub fn sharing(&self) -> [u64; 2] {
        let of =
            |outcome: &str| self.outcomes.get(&format!("sharing: {outcome}")).copied().unwrap_or(0);
        let all = self.outcomes.iter().filter(|(name, _)| name.starts_with("sharing: "));
        let all: u64 = all.map(|(_, count)| count).sum();
        [all - of("exempt"), of("decrypted")]
    }

    /// Connections that the monitor has cut.
    pub fn cut(&self) -> u64 {
        self.cut_by.values().sum()
    }

    /// A counter of engine or monitor, over all lives; at a kill up to the last `stats`.
    pub fn counter(&self, name: &str) -> u64 {
        let last = self.last_stats.as_ref();
        let last: u64 =
            last.map_or(0, |it| GROUPS.iter().map(|group| number(&it[group][name])).sum());
        self.counters.get(name).copied().unwrap_or(0) + last
    }

    /// Tells the operator.
    pub fn print(&self) {
        println!("eve.json: {} records, {} that cannot be read", self.records, self.bad_lines);
        let groups: [(&str, &BTreeMap<String, u64>); 5] = [
            ("sessions", &self.outcomes),
            ("ended", &self.end_reasons),
            ("cut", &self.cut_by),
            ("anomalies", &self.anomalies),
            ("alerts by version of the rules", &self.alerts),
        ];
        for (what, counts) in groups {
            let all: Vec<_> =
                counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            println!(
                "  {what}: {}",
                if all.is_empty() { "none".to_owned() } else { all.join(", ") }
            );
        }
        println!("  found in their middle after a restart: {}", self.mid_stream);
        let counters = [
            "out_of_order",
            "retransmissions",
            "stalls",
            "stalls_ended_by_keys",
            "stalls_ended_by_limit",
            "mid_stream",
            "mid_stream_followed",
            "evicted",
            "buffer_full",
            "keys_expired",
            "lost_flows",
        ];
        let all = counters.map(|name| format!("{name} {}", self.counter(name)));
        println!("  counters: {}", all.join(", "));
    }

    fn take(&mut self, line: &[u8]) {
        let Ok(record) = serde_json::from_slice::<Value>(line) else {
            self.bad_lines += 1;
            return;
        };
        self.records += 1;
        let name = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        match record["event_type"].as_str().unwrap_or_default() {
            "mmtls" => {
                let keyless = record["src_ip"] == super::stage::KEYLESS;
                let who = if keyless { "without keys" } else { "sharing" };
                let outcome = format!("{who}: {}", name(&record["mmtls"]["outcome"]));
                *self.outcomes.entry(outcome).or_default() += 1;
                let reason = name(&record["mmtls"]["end_reason"]);
                *self.end_reasons.entry(reason).or_default() += 1;
            }
            "tls" => self.mid_stream += u64::from(record["tls"]["mid_stream"] == true),
            "flow" => {
                let flow = &record["flow"];
                let reason = name(&flow["end_reason"]);
                let by_monitor = ["reset_by_policy", "reset_by_application", "reset_by_operator"];
                if by_monitor.contains(&reason.as_str()) || flow["action"] == "drop" {
                    let cause = match flow["error"].as_str() {
                        Some(error) => format!("{reason}: {error}"),
                        None => reason,
                    };
                    *self.cut_by.entry(cause.clone()).or_default() += 1;
                    self.cut_at(&record, cause);
                }
            }
            "drop" => self.cut_at(&record, format!("drop: {}", name(&record["drop"]["reason"]))),
            "anomaly" => {
                let anomaly = &record["anomaly"];
                let mut what = name(&anomaly["event"]);
                if let Some(code) = anomaly["code"].as_str() {
                    what += &format!(" ({code})");
                }
                let lines = self.examples.entry(what.clone()).or_default();
                if lines.len() < EXAMPLES {
                    lines.push(record.clone());
                }
                *self.anomalies.entry(what).or_default() += 1;
            }
            "alert" if record["alert"]["signature_id"] == 1 => {
                *self.alerts.entry(record["alert"]["rev"].to_string()).or_default() += 1;
            }
            "stats" => self.last_stats = Some(record["stats"].clone()),
            _ => {}
        }
    }

    fn cut_at(&mut self, record: &Value, cause: String) {
        // Of some lines the sender is the server.
        let end = |side: &str| {
            let ip = record[&format!("{side}_ip")].as_str()?;
            Some(format!("{ip}:{}", record[&format!("{side}_port")]))
        };
        let ends = [end("src"), end("dest")].into_iter().flatten();
        let client = ends.into_iter().find(|it| !it.starts_with(address::SERVER_V4));
        let at = record["timestamp"].as_str().and_then(seconds).unwrap_or_else(now);
        self.cuts.push(Cut { at, client: client.unwrap_or_default(), cause });
    }

    /// Lines that could not be read, or that the monitor says it has lost.
    pub fn missing_lines(&self) -> u64 {
        self.bad_lines + self.counter("lost_log_lines")
    }

    /// Adds what a life has said, when all is read: counters begin anew with each.
    pub fn close(&mut self) {
        let last = self.last_stats.take().unwrap_or_default();
        let groups = GROUPS.iter().filter_map(|group| last[group].as_object());
        for (name, value) in groups.flatten() {
            *self.counters.entry(name.clone()).or_default() += number(value);
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// `2024-01-31T23:59:59.123456+0000` as seconds since 1970.
fn seconds(text: &str) -> Option<f64> {
    let time: jiff::Timestamp = jiff::fmt::strtime::parse("%Y-%m-%dT%H:%M:%S%.f%z", text)
        .and_then(|it| it.to_timestamp())
        .ok()?;
    Some(time.as_microsecond() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_cut_tells_when_whose_and_why() {
        let mut log = Log::default();
        log.take(
            br#"{"timestamp":"1970-01-02T00:00:01.500000+0000","event_type":"flow","src_ip":"10.77.0.2","src_port":4000,
            "dest_ip":"10.77.0.3","dest_port":443,"flow":{"end_reason":"reset_by_policy","error":"memory_cap"}}"#,
        );
        let [cut] = &log.cuts[..] else { panic!("{:?}", log.cuts) };
        assert_eq!(
            (cut.at, &*cut.client, &*cut.cause),
            (86_401.5, "10.77.0.2:4000", "reset_by_policy: memory_cap")
        );
        assert_eq!(log.cut(), 1);
    }

    #[test]
    fn counters_of_lives_add_up() {
        let mut log = Log::default();
        for lives in [[1, 7], [2, 3]] {
            log.close();
            for count in lives {
                let engine = format!("{{\"frames\":{count}}}");
                let line =
                    format!("{{\"event_type\":\"stats\",\"stats\":{{\"engine\":{engine}}}}}");
                log.take(line.as_bytes());
            }
        }
        assert_eq!(log.counter("frames"), 10);
        log.close();
        assert_eq!(log.counter("frames"), 10);
    }
}
