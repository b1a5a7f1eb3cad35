//! The original packets with the secrets that open them, read by tshark, which has nothing else.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mmtls_testkit::{Mmtls, MmtlsOptions, files};

use crate::common::{Family, Stage, can_run, find, patient, tshark, url};

fn place(stage: &Stage, name: &str) -> PathBuf {
    stage.bed.directory().join(name)
}

fn capturing(stage: &Stage, secrets: bool) -> MmtlsOptions {
    let options = patient();
    let config = options.config.unwrap_or_default();
    let config = format!("{config}\n[capture]\nsecrets = {secrets}\n");
    let file = place(stage, "packets").display().to_string();
    let arguments = vec!["--capture".to_owned(), file];
    let keylog = Some(place(stage, "keylog"));
    MmtlsOptions { config: Some(config), keylog, arguments, ..options }
}

/// What tshark finds in these fields; it has no key log but the file's own.
fn found(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-Y", filter];
    if !fields.is_empty() {
        arguments.extend(["-T", "fields"]);
        arguments.extend(fields.iter().flat_map(|it| ["-e", it]));
    }
    tshark(file, &arguments).lines().map(str::to_owned).collect()
}

/// Each connection's frames are in the order of time, and none is there twice: what is sent again has another time stamp.
fn assert_as_they_came(file: &Path) {
    let mut latest = BTreeMap::new();
    for line in found(file, "tcp", &["tcp.stream", "frame.time_epoch"]) {
        let (stream, time) = line.split_once('\t').unwrap();
        // Seconds and nanoseconds, both of a fixed length.
        let before = latest.insert(stream.to_owned(), time.to_owned());
        assert!(before.as_deref().is_none_or(|before| before <= time), "{line}");
    }
    assert!(!latest.is_empty());
    let sender = ["tcp.stream", "tcp.srcport", "ip.id"];
    let content = ["tcp.seq_raw", "tcp.len", "tcp.options.timestamp.tsval"];
    let mut frames = found(file, "tcp.len > 0", &[sender, content].concat());
    frames.sort();
    let twice: Vec<_> = frames.windows(2).filter(|two| two[0] == two[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// curl that shares its keys by nothing but its key log.
fn logging_curl(stage: &Stage, family: Family, arguments: &[&str]) {
    let mut curl = stage.plain_curl(family);
    curl.env("SSLKEYLOGFILE", place(stage, "keylog")).args(arguments);
    let page = stage.run("curl", curl);
    assert!(page.status.success(), "{}", page.stderr);
}

fn sharing_curl(stage: &Stage, mmtls: &Mmtls) {
    let mut curl = stage.sharing_curl(mmtls, Family::V4, &[]);
    curl.env_remove("SSLKEYLOGFILE").arg(url("shared"));
    assert_eq!(stage.run("curl", curl).text(), "shared");
}

#[test]
fn tshark_reads_sessions_by_the_secrets_in_the_file() {
    if !can_run(&["nginx", "curl", "tshark"]) {
        return;
    }
    let stage = Stage::new();
    let body = files::pattern_bytes(300_000, 7);
    for (name, content) in [("one", b"one".as_slice()), ("large", &body), ("shared", b"shared")] {
        stage.serve(name, content);
    }
    let mmtls = stage.mmtls(&capturing(&stage, true));
    for family in Family::all(&stage.bed) {
        logging_curl(&stage, family, &["--tlsv1.3", &url("one"), &url("large"), "-o", "/dev/null"]);
        logging_curl(&stage, family, &["--tls-max", "1.2", &url("one")]);
    }
    // Of an agent come record keys, which stand in no file.
    sharing_curl(&stage, &mmtls);
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert!(report.stderr.contains("warning: capture.secrets: "), "{}", report.stderr);
    let logged = 2 * Family::all(&stage.bed).len() as u64;
    assert_eq!(report.count("decrypted"), logged + 1, "{:#?}", report.summary);
    assert_eq!(report.count("sessions captured"), logged + 1);
    assert_eq!(report.count("captured without secrets"), 1);
    assert_eq!(report.count("frames not captured"), 0);

    let file = place(&stage, "packets");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut requests = found(&file, "http.request", &["http.request.uri"]);
    requests.sort();
    let mut expected: Vec<String> = Vec::new();
    for _ in Family::all(&stage.bed) {
        expected.extend(["/large", "/one", "/one"].map(str::to_owned));
    }
    expected.sort();
    assert_eq!(requests, expected);
    let fields = ["http.response.code", "http.content_length"];
    let mut responses = found(&file, "http.response", &fields);
    responses.sort();
    let mut expected: Vec<String> = Vec::new();
    for _ in Family::all(&stage.bed) {
        expected.extend(["200\t3", "200\t3", "200\t300000"].map(str::to_owned));
    }
    expected.sort();
    assert_eq!(responses, expected);
    for filter in [
        "_ws.malformed",
        "tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment",
        // Warnings and errors, but for what endpoints on a busy machine do: they send again what is long in coming.
        "_ws.expert.severity >= 6291456 && !tcp.flags.reset && !tcp.analysis.flags",
    ] {
        assert_eq!(found(&file, filter, &[]), [""; 0], "{filter}");
    }
    assert_as_they_came(&file);
    // Exporters open no packets.
    let bytes = std::fs::read(&file).unwrap();
    assert!(find(&bytes, b"CLIENT_TRAFFIC_SECRET_0 ").is_some());
    assert!(find(&bytes, b"EXPORTER_SECRET").is_none());
}

#[test]
fn no_secret_is_in_the_file_where_nobody_asks_for_it() {
    if !can_run(&["nginx", "curl", "tshark"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("one", b"one");
    let mmtls = stage.mmtls(&capturing(&stage, false));
    logging_curl(&stage, Family::V4, &[&url("one")]);
    let report = mmtls.stop().unwrap();
    assert!(report.success, "{}", report.stderr);
    assert!(!report.stderr.contains("capture.secrets"), "{}", report.stderr);
    assert_eq!((report.count("decrypted"), report.count("sessions captured")), (1, 1));
    let file = place(&stage, "packets");
    assert_eq!(found(&file, "tls.handshake.type == 1", &[]).len(), 1);
    assert_eq!(found(&file, "http", &[]), [""; 0]);
    let bytes = std::fs::read(&file).unwrap();
    let log = std::fs::read_to_string(place(&stage, "keylog")).unwrap();
    for secret in log.lines().filter_map(|line| line.split(' ').nth(2)) {
        assert!(find(&bytes, secret.as_bytes()).is_none());
    }
}
