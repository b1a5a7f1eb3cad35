//! Logs that are slow, that nobody reads, or that somebody removes: the monitor starts with a clear error or
//! goes on, and ends when it is told to.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Family, Stage, can_run, patient};
use mmtls_testkit::{Mmtls, MmtlsOptions};

/// A directory for logs with a FIFO in place of the file.
fn fifo(stage: &Stage, name: &str) -> (PathBuf, PathBuf) {
    let directory = stage.bed.directory().join(name);
    fs::create_dir(&directory).unwrap();
    let file = directory.join("eve.json");
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    (directory, file)
}

fn logging_to(directory: &Path) -> MmtlsOptions {
    let arguments = vec!["-l".to_owned(), directory.display().to_string()];
    MmtlsOptions { log: false, check: None, arguments, ..patient() }
}

/// So many requests, each of which is a line.
fn requests(stage: &Stage, mmtls: &Mmtls, count: &str) {
    let mut load = mmtls.sharing(&stage.bed, false, &[], "h2load");
    load.args(["--h1", "-t", "1", "-c", "8", "-n", count]);
    load.arg(format!("https://{}/small", Family::V4.server()));
    let done = stage.run("h2load", load);
    assert!(done.text().contains(&format!("{count} succeeded")), "{}", done.text());
}

#[test]
fn ends_in_time_with_a_reader_that_is_slow() {
    if !can_run(&["nginx", "h2load", "mkfifo"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let (directory, file) = fifo(&stage, "slow");
    let mut reader = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let reading = std::thread::spawn(move || {
        // 80 KB/s, as long as there is something.
        let mut buffer = [0; 4096];
        while !stop.load(Ordering::Relaxed) {
            let _ = reader.read(&mut buffer);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mmtls = stage.mmtls(&logging_to(&directory));
    requests(&stage, &mmtls, "20000");
    let begun = Instant::now();
    let report = mmtls.stop().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // It says what is not there, and its status does.
    assert!(report.count("log lines lost") > 1000, "{:#?}", report.summary);
    assert!(!report.success && report.stderr.contains("eve.json"), "{}", report.stderr);
    over.store(true, Ordering::Relaxed);
    // Nobody writes any more: one last line for a reader that waits.
    drop(fs::write(&file, b"\n"));
    reading.join().unwrap();
}

#[test]
fn refuses_a_fifo_that_nobody_reads() {
    if !can_run(&["nginx", "mkfifo"]) {
        return;
    }
    let stage = Stage::new();
    let (directory, file) = fifo(&stage, "unread");
    let begun = Instant::now();
    let error = Mmtls::start(&stage.bed, &logging_to(&directory)).err().unwrap().to_string();
    assert!(error.contains("nobody reads this FIFO"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // With a reader it is a log like any other.
    let reader = OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mmtls = stage.mmtls(&logging_to(&directory));
    assert!(mmtls.stop().unwrap().success);
    drop(reader);
}

#[test]
fn goes_on_in_a_new_file_where_somebody_removes_the_log() {
    if !can_run(&["nginx", "h2load"]) {
        return;
    }
    let stage = Stage::new();
    stage.serve("small", b"small");
    let directory = stage.bed.directory().join("removed");
    let mmtls = stage.mmtls(&logging_to(&directory));
    let file = directory.join("eve.json");
    requests(&stage, &mmtls, "100");
    fs::remove_file(&file).unwrap();
    requests(&stage, &mmtls, "100");
    let end = Instant::now() + Duration::from_secs(10);
    while File::open(&file).is_err() {
        assert!(Instant::now() < end, "no new file");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_dir_all(&directory).unwrap();
    requests(&stage, &mmtls, "100");
    let report = mmtls.stop().unwrap();
    assert!(report.count("log lines lost") >= 100, "{:#?}", report.summary);
    assert!(!report.success && report.stderr.contains("eve.json"), "{}", report.stderr);
}
