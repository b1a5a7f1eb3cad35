//! `mmtls read`: several captures, standard input and output, a reader that has enough, and what a terminal is shown.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::cli::{Place, empty_capture, fails, mmtls};
use crate::common::{can_run, mmtls_program, read_eve};

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/download.pcapng");

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn accepts_several_captures_and_says_which_a_record_is_of() {
    let place = Place::new("several");
    let empty = place.write("empty.pcap", empty_capture());
    let copy = place.path("copy.pcapng");
    fs::copy(CAPTURE, &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let logs = place.path("logs");
    let mut command = mmtls(&["read", &empty, CAPTURE, copy, "-l", logs.to_str().unwrap()]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(said.contains("TLS sessions: 2\n"), "one summary of all: {said}");
    let of = |name: &str, kind: &str| {
        let records = read_eve(&logs).into_iter();
        records.filter(|it| it["pcap_filename"] == name && it["event_type"] == kind).count()
    };
    assert_eq!((of(CAPTURE, "tls"), of(copy, "tls"), of(&empty, "tls")), (1, 1, 0));
    // As it was before.
    let output = mmtls(&["read", "-r", CAPTURE, "-r", &empty]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("TLS sessions: 1\n"), "{output:?}");
}

#[test]
fn accepts_standard_input_and_writes_records_to_standard_output() {
    let expected = mmtls(&["read", CAPTURE, "-l", "-"]).output().unwrap();
    assert!(expected.status.success(), "{expected:?}");
    let summary = String::from_utf8_lossy(&expected.stderr).into_owned();
    assert!(summary.contains("TLS sessions: 1\n"), "the summary is not among records: {summary}");
    let records = lines(&expected);
    assert!(records.iter().any(|it| it["event_type"] == "http"), "{records:?}");
    assert!(records.iter().all(|it| it["pcap_filename"] == CAPTURE));

    let mut command = mmtls(&["read", "-", "-l", "-"]);
    command.stdin(fs::File::open(CAPTURE).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let piped = lines(&output);
    assert_eq!(piped.len(), records.len());
    assert!(piped.iter().all(|it| it["pcap_filename"] == "-"));

    // A file of somebody else is only appended to, behind what he has written.
    let place = Place::new("stdout");
    let file = place.path("out");
    let script = format!(
        "{{ echo first; exec '{}' read '{CAPTURE}' -l -; }} > '{}'",
        mmtls_program().display(),
        file.display()
    );
    let status = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
    assert!(status.success());
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("first\n{"), "{text}");
    assert_eq!(text.lines().count(), records.len() + 1);
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn accepts_a_reader_that_has_enough() {
    let place = Place::new("pipe");
    // Enough for several buffers of a pipe.
    let copies = vec![CAPTURE; 200];
    let mut command = mmtls(&[&["read", "-l", "-"], &copies[..]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() && said.is_empty(), "{status} {said}");
    drop(place);
}

#[test]
fn refuses_to_sum_up_what_was_not_read() {
    let place = Place::new("nothing");
    let text = place.write("text", "this is no capture at all, but longer than a header");
    let logs = place.path("logs");
    let output = fails(mmtls(&["read", &text]), &[&text]);
    assert_eq!(output.stdout, b"", "no summary of zeros");
    // Nothing is begun where one cannot be opened.
    let output = fails(
        mmtls(&["read", CAPTURE, "/nonexistent", "-l", logs.to_str().unwrap()]),
        &["/nonexistent"],
    );
    assert!(output.stdout.is_empty() && !logs.exists());
    // The others are read, whatever is wrong with one.
    let output = fails(mmtls(&["read", &text, CAPTURE]), &[&text]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("TLS sessions: 1\n"), "{output:?}");
    let mut command = mmtls(&["read", "-"]);
    command.stdin(fs::File::open(&text).unwrap());
    fails(command, &["standard input: "]);
}

#[test]
fn shows_progress_on_a_terminal_only() {
    if !can_run(&["script", "mkfifo"]) {
        return;
    }
    let place = Place::new("progress");
    let shown = |redirection: &str| {
        // A capture that takes its time: most of it comes after a pause.
        let script = format!(
            "{{ head -c 100000 '{CAPTURE}'; sleep 0.5; tail -c +100001 '{CAPTURE}'; }} | '{}' read - {redirection}",
            mmtls_program().display()
        );
        let mut command = Command::new("script");
        command.args(["-qec", &script]).arg(place.path("typescript")).stdin(Stdio::null());
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    };
    let terminal = shown("");
    assert!(terminal.contains(" TLS sessions\u{1b}[K"), "{terminal:?}");
    assert!(
        terminal.contains("\r\u{1b}[K") && terminal.contains("TLS sessions: 1\r\n"),
        "{terminal:?}"
    );
    // What was read before the pause.
    let mut lines = terminal.split('\r');
    assert!(lines.any(|it| it.starts_with("mmtls: 0.1 MB, ")), "{terminal:?}");
    let none = shown(&format!("2> '{}'", place.path("errors").display()));
    assert!(!none.contains("MB/s"), "{none:?}");
    assert_eq!(fs::read_to_string(place.path("errors")).unwrap(), "");
}
