//! What a test sets, on the command line and in its configuration, as far as it matters to rules on TCP.
//!
//! Refuses, by its name, a setting that could change which alerts there are and is not followed here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::yaml::{self, text};

/// Settings that are about other things: outputs, speed, memory, other protocols, other sources of packets.
const ELSEWHERE: [&str; 64] = [
    "advanced",
    "af-packet",
    "af-xdp",
    "asn1-max-frames",
    "autofp-scheduler",
    "capture",
    "classification-file",
    "coredump",
    "daemon-directory",
    "decoder",
    "default-log-dir",
    "default-packet-size",
    "default-rule-path",
    "defrag",
    "detect",
    "detect-engine",
    "dpdk",
    "engine-analysis",
    "flow",
    "flow-timeouts",
    "geoip-database",
    "heartbeat",
    "host",
    "host-mode",
    "host-os-policy",
    "ippair",
    "ipfw",
    "landlock",
    "legacy",
    "livedev",
    "logging",
    "luajit",
    "magic-file",
    "max-pending-packets",
    "mpm-algo",
    "multi-detect",
    "napatech",
    "netmap",
    "nflog",
    "nfq",
    "nfqueue",
    "outputs",
    "packet-alert-max",
    "pcap",
    "pcap-file",
    "pcre",
    "pid-file",
    "plugins",
    "profiling",
    "reference-config-file",
    "reputation-categories-file",
    "rule-files",
    "run-as",
    "runmode",
    "security",
    "sensor-name",
    "spm-algo",
    "stats",
    "suricata-version",
    "threading",
    "umask",
    "unix-command",
    "unix-runmode",
    "vlan",
];

/// Settings that are followed whatever their value is, or concern when Suricata looks, not at what.
const EITHER_WAY: [&str; 35] = [
    "app-layer.protocols.http.libhtp.default-config.compression-bomb-limit",
    "app-layer.protocols.http.libhtp.default-config.decompression-time-limit",
    "app-layer.protocols.http.libhtp.default-config.http-body-inline",
    "app-layer.protocols.http.libhtp.default-config.max-tx",
    "app-layer.protocols.http.libhtp.default-config.randomize-inspection-range",
    "app-layer.protocols.http.libhtp.default-config.randomize-inspection-sizes",
    "app-layer.protocols.http.libhtp.default-config.request-body-inspect-window",
    "app-layer.protocols.http.libhtp.default-config.request-body-minimal-inspect-size",
    // Here a fixed number of codings is removed, no less than any test asks for.
    "app-layer.protocols.http.libhtp.default-config.response-body-decompress-layer-limit",
    "app-layer.protocols.http.libhtp.default-config.response-body-inspect-window",
    "app-layer.protocols.http.libhtp.default-config.response-body-minimal-inspect-size",
    "app-layer.protocols.http.libhtp.default-config.swf-decompression.compress-depth",
    "app-layer.protocols.http.libhtp.default-config.swf-decompression.decompress-depth",
    "app-layer.protocols.http.libhtp.default-config.swf-decompression.type",
    "app-layer.protocols.http.byterange",
    "app-layer.protocols.http.memcap",
    "app-layer.protocols.http2.http1-rules",
    "app-layer.protocols.tls.detection-ports",
    // Suricata has no such key, and passes over it.
    "app-layer.protocols.tls.encrypt-handling",
    "app-layer.protocols.tls.ja3-fingerprints",
    "app-layer.protocols.tls.ja4-fingerprints",
    "datasets",
    "stream.async-oneside",
    "stream.check-overlap-different-data",
    "stream.checksum-validation",
    "stream.inline",
    "stream.max-sessions",
    "stream.memcap",
    "stream.midstream",
    "stream.prealloc-sessions",
    "stream.reassembly.memcap",
    "stream.reassembly.randomize-chunk-size",
    "stream.reassembly.segment-prealloc",
    "stream.reassembly.toclient-chunk-size",
    "stream.reassembly.toserver-chunk-size",
];

/// Settings that are only taken with these values, which are how things are done here or Suricata's own.
const ONLY: [(&str, &[&str]); 26] = [
    ("action-order.0", &["pass"]),
    ("action-order.1", &["drop"]),
    ("action-order.2", &["reject"]),
    ("action-order.3", &["alert"]),
    ("app-layer.error-policy", &["auto", "ignore"]),
    ("app-layer.protocols.http.enabled", &["yes"]),
    ("app-layer.protocols.http.libhtp.default-config.double-decode-path", &["no"]),
    ("app-layer.protocols.http.libhtp.default-config.double-decode-query", &["no"]),
    ("app-layer.protocols.http.libhtp.default-config.lzma-enabled", &["no"]),
    ("app-layer.protocols.http.libhtp.default-config.personality", &["IDS"]),
    (
        "app-layer.protocols.http.libhtp.default-config.request-body-limit",
        &["0", "100kb", "100 KiB", "102400"],
    ),
    (
        "app-layer.protocols.http.libhtp.default-config.response-body-limit",
        &["0", "100kb", "100 KiB", "102400"],
    ),
    ("app-layer.protocols.http.libhtp.default-config.swf-decompression.enabled", &["no"]),
    ("app-layer.protocols.http2.enabled", &["yes"]),
    ("app-layer.protocols.tls.enabled", &["yes"]),
    ("app-layer.protocols.tls.encryption-handling", &["default", "track-only", "full"]),
    ("app-layer.protocols.tls.encryption-handling", &["default", "track-only", "full"]),
    ("exception-policy", &["auto", "ignore"]),
    ("stream.bypass", &["no"]),
    ("stream.drop-invalid", &["yes"]),
    ("stream.memcap-policy", &["auto", "ignore"]),
    ("stream.midstream-policy", &["auto", "ignore"]),
    ("stream.reassembly.depth", &["0", "1mb", "1 MiB", "1048576"]),
    ("stream.reassembly.memcap-policy", &["auto", "ignore"]),
    ("stream.reassembly.raw", &["yes"]),
    ("stream.max-synack-queued", &["5"]),
];

/// The protocols whose settings matter; `app-layer.protocols` has those of others.
const FOLLOWED: [&str; 3] = ["http.", "http2.", "tls."];

/// What a test sets.
#[derive(Default, Debug)]
pub(super) struct Settings {
    values: BTreeMap<String, String>,
    /// `--simulate-ips`.
    pub(super) inline: bool,
    /// `-k none`.
    ignores_checksums: bool,
    /// `-r`.
    pub(super) capture: Option<PathBuf>,
}

impl Settings {
    /// Reads `suricata.yaml`, if the test has one, and the arguments over it. The error says what is not
    /// followed.
    pub(super) fn read(dir: &Path, args: &Value) -> Result<Self, String> {
        let mut settings = Self::default();
        let file = dir.join("suricata.yaml");
        if file.is_file() {
            let config = yaml::read(&file).map_err(|error| format!("suricata.yaml: {error}"))?;
            flatten("", &config, &mut settings.values);
        }
        let args = args.as_array().into_iter().flatten().filter_map(text);
        let args: Vec<_> = args.collect();
        let words = args.iter().flat_map(|line| line.split_ascii_whitespace());
        settings.arguments(words, dir)?;
        let faulty = settings.values.iter().find(|(key, value)| !is_followed(key, value));
        if let Some((key, _)) = faulty {
            return Err(format!("setting {key}"));
        }
        Ok(settings)
    }

    fn arguments<'a>(
        &mut self,
        mut words: impl Iterator<Item = &'a str>,
        dir: &Path,
    ) -> Result<(), String> {
        while let Some(word) = words.next() {
            match word {
                "-k" => self.ignores_checksums |= words.next() == Some("none"),
                "--set" => {
                    let pair = words.next().unwrap_or_default();
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    self.values.insert(key.to_owned(), word_of(value).to_owned());
                }
                "--simulate-ips" => self.inline = true,
                "--runmode" | "-l" | "--data-dir" => drop(words.next()),
                "-r" => {
                    let name = words.next().unwrap_or_default();
                    let name =
                        name.trim_start_matches("${TEST_DIR}").trim_start_matches("$TEST_DIR");
                    self.capture = Some(dir.join(name.trim_start_matches('/')));
                }
                "--no-random" | "--init-errors-fatal" => {}
                _ if word.starts_with("-v")
                    || word.starts_with("--runmode=")
                    || word.starts_with("--data-dir=") => {}
                _ => {
                    let name = word.split('=').next().unwrap_or(word);
                    return Err(format!("argument {name}"));
                }
            }
        }
        Ok(())
    }

    fn is_on(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| matches!(value.as_str(), "yes" | "true" | "1"))
    }

    fn is_off(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| matches!(value.as_str(), "no" | "false" | "0"))
    }

    /// Connections are followed whose beginning is not in the capture.
    pub(super) fn midstream(&self) -> bool {
        self.is_on("stream.midstream")
    }

    /// Connections are followed of which there is only one side.
    pub(super) fn one_sided(&self) -> bool {
        self.is_on("stream.async-oneside")
    }

    /// Segments with a wrong checksum count.
    pub(super) fn ignores_checksums(&self) -> bool {
        self.ignores_checksums
            || self.is_off("stream.checksum-validation")
            || self.is_off("pcap-file.checksum-checks")
    }

    /// Groups of addresses (`address-groups`) or of ports (`port-groups`), as pairs of name and group.
    pub(super) fn groups(&self, kind: &str) -> Vec<(String, String)> {
        let prefix = format!("vars.{kind}.");
        let own = self.values.iter().filter_map(|(key, value)| {
            Some((key.strip_prefix(&prefix)?.to_owned(), value.clone()))
        });
        own.collect()
    }

    /// The file with thresholds of single rules, if it says something.
    pub(super) fn has_thresholds(&self, dir: &Path) -> bool {
        let Some(file) = self.values.get("threshold-file") else {
            return false;
        };
        let name = file.replace("${TEST_DIR}", "").replace("$TEST_DIR", "");
        let name = name.trim_start_matches(['/', '.']);
        let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with('#'))
    }
}

/// A word as YAML has it.
fn word_of(value: &str) -> &str {
    match value {
        "true" => "yes",
        "false" => "no",
        other => other.trim_matches('"'),
    }
}

/// Writes all scalars under names with dots.
fn flatten(prefix: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    let name = |key: &str| match prefix {
        "" => key.to_owned(),
        _ => format!("{prefix}.{key}"),
    };
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, it)| flatten(&name(key), it, out));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, it)| flatten(&name(&at.to_string()), it, out));
        }
        scalar => drop(out.insert(prefix.to_owned(), text(scalar).unwrap_or_default())),
    }
}

/// Whether a setting changes nothing, or is followed.
fn is_followed(key: &str, value: &str) -> bool {
    let top = key.split('.').next().unwrap_or(key);
    let is_under = |of: &&str| {
        key.strip_prefix(*of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if let Some((_, values)) = ONLY.iter().find(|(name, _)| *name == key) {
        return value.is_empty() || values.iter().any(|it| it.eq_ignore_ascii_case(value));
    }
    if let Some(protocol) = key.strip_prefix("app-layer.protocols.")
        && !FOLLOWED.iter().any(|it| protocol.starts_with(it))
    {
        return true;
    }
    if key.ends_with(".xff.mode") {
        // It exchanges the addresses of alerts.
        return value != "overwrite";
    }
    matches!(top, "vars" | "threshold-file" | "%YAML" | "include")
        || ELSEWHERE.contains(&top)
        || EITHER_WAY.iter().any(is_under)
        || value.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(args: &[&str]) -> Result<Settings, String> {
        Settings::read(Path::new("/nonexistent"), &json!(args))
    }

    #[test]
    fn accepts_what_is_followed() {
        let settings = read(&[
            "-k none --set stream.midstream=true",
            "--simulate-ips",
            "--set vars.address-groups.EXTERNAL_NET=any",
            "--set outputs.1.eve-log.enabled=yes --runmode single -vvv",
        ]);
        let settings = settings.unwrap();
        assert!(settings.midstream() && settings.inline && settings.ignores_checksums());
        assert!(!settings.one_sided());
        let groups = settings.groups("address-groups");
        assert_eq!(groups, [("EXTERNAL_NET".to_owned(), "any".to_owned())]);
    }

    #[test]
    fn refuses_by_name_what_is_not() {
        let refused = |args: &str| read(&[args]).unwrap_err();
        assert_eq!(refused("--set stream.reassembly.depth=50"), "setting stream.reassembly.depth");
        assert_eq!(refused("--simulate-packet-loss=1"), "argument --simulate-packet-loss");
        assert_eq!(refused("port 22"), "argument port");
        assert_eq!(refused("--set stream.new=1"), "setting stream.new");
    }

    #[test]
    fn accepts_nested_configurations() {
        let mut values = BTreeMap::new();
        flatten("", &json!({ "a": { "b": [1, { "c": true }] }, "d": null }), &mut values);
        let pairs: Vec<_> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(pairs, ["a.b.0=1", "a.b.1.c=yes", "d="]);
    }
}
