//! Part (q): how long it takes to read a capture file: TLS 1.3 between nginx and curl in packets of MTU size, written by `mmtls run --capture` with
//! the secrets in it, read by `mmtls read`, which opens every record, follows HTTP and writes events, and by tshark, which is asked for the requests.
//! In turn, nothing else running.
//!
//! Refuses a run in which a program did not find every request.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mmtls_testkit::{
    Middle, Mmtls, MmtlsOptions, Nginx, NginxOptions, Options, Testbed, address, files, middlebox,
};
use serde::Serialize;

use super::lanes::Directory;
use super::monitor;
use super::report::{Samples, table};
use super::sessions::output;
use super::setup::PATIENT;
use crate::results::{Axis, Figure};

const SUITE: &str = "TLS_AES_256_GCM_SHA384";
/// Connections side by side, each for many requests, and the length of each response.
const CONNECTIONS: usize = 8;
const BODY: u64 = 1 << 20;

/// How often is looked at a program's memory, and whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Who reads.
const READERS: [&str; 2] = ["mmTLS", "tshark"];

struct Pass {
    seconds: f64,
    peak_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Reader {
    name: &'static str,
    s_per_gb: Samples,
    peak_mb: Samples,
}

/// Part (q).
#[derive(Debug, Serialize)]
pub struct ReadingResults {
    file_bytes: u64,
    requests: usize,
    readers: Vec<Reader>,
}

/// Measures both, `rounds` times.
pub fn measure(rounds: u32, requests: usize) -> Result<ReadingResults, String> {
    let place = Directory::create("reading")?;
    let capture = record(&place.0, requests)?;
    let file_bytes =
        capture.metadata().map_err(|error| format!("{}: {error}", capture.display()))?.len();

    let mut passes: [Vec<Pass>; READERS.len()] = Default::default();
    for _ in 0..rounds {
        for (name, passes) in READERS.iter().zip(&mut passes) {
            let pass = read(name, &capture, &place.0, requests)?;
            eprintln!(
                "  {name}: {:.2} s, {:.0} MB of memory for {:.0} MB",
                pass.seconds,
                pass.peak_bytes as f64 / 1e6,
                file_bytes as f64 / 1e6
            );
            passes.push(pass);
        }
    }
    let readers = READERS.iter().zip(&passes).map(|(name, passes)| {
        let of = |figure: &dyn Fn(&Pass) -> f64| Samples::new(passes.iter().map(figure).collect());
        Reader {
            name,
            s_per_gb: of(&|it| it.seconds * 1e9 / file_bytes as f64),
            peak_mb: of(&|it| it.peak_bytes as f64 / 1e6),
        }
    });
    Ok(ReadingResults { file_bytes, requests, readers: readers.collect() })
}

/// Has curl ask nginx for so many objects, through a monitor that keeps the packets and the secrets of curl's key log.
fn record(place: &Path, requests: usize) -> Result<PathBuf, String> {
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let (capture, keylog) = (place.join("capture.pcapng"), place.join("keys.log"));
    files::pattern(&place.join("object"), BODY, 1).map_err(|error| error.to_string())?;
    // Without offloads a frame is what a wire would carry.
    let options = Options { middle: Middle::Empty, gso: false, ..Options::default() };
    let bed = Testbed::with_options(&options).map_err(failed)?;
    let server = NginxOptions {
        ciphersuites: SUITE.to_owned(),
        root: Some(place.to_owned()),
        resumption: false,
        ..NginxOptions::default()
    };
    let _server = Nginx::start(&bed, server).map_err(failed)?;
    let options = MmtlsOptions {
        config: Some(format!("{PATIENT}[capture]\nsecrets = true\n")),
        keylog: Some(keylog.clone()),
        arguments: vec!["--capture".to_owned(), capture.display().to_string()],
        ..MmtlsOptions::new(crate::binaries()?)
    };
    let mmtls = Mmtls::start(&bed, &options).map_err(failed)?;
    let mut curl = bed.client.command("curl");
    curl.env("SSLKEYLOGFILE", &keylog);
    curl.args(["--no-progress-meter", "--fail", "--insecure", "--http1.1", "--max-time", "300"]);
    curl.args(["--parallel", "--parallel-max", &CONNECTIONS.to_string()]);
    curl.arg("--connect-to").arg(format!("::{}:443", address::SERVER_V4));
    curl.args(["--output", "/dev/null", "--write-out", "%{num_connects}\n"]);
    curl.arg(format!("https://{}/object?[1-{requests}]", address::SERVER_NAME));
    let text = output(curl).map_err(|error| format!("curl: {error}"))?;
    let sessions = text.lines().filter_map(|line| line.parse::<u64>().ok()).sum();
    monitor::stop(mmtls, sessions)?;
    Ok(capture)
}

/// Has a program read the file; it must find all requests.
fn read(name: &str, capture: &Path, place: &Path, requests: usize) -> Result<Pass, String> {
    let log = place.join("log");
    let said = place.join("said");
    let mut command = match name {
        "tshark" => {
            let mut command = Command::new("tshark");
            command.arg("-n").arg("-r").arg(capture);
            command.args(["-Y", "http.request", "-T", "fields", "-e", "http.request.uri"]);
            command
        }
        _ => {
            let mut command = Command::new(crate::binaries()?.join("mmtls"));
            command.arg("read").arg("-r").arg(capture).arg("-l").arg(&log);
            command
        }
    };
    let io = |error: std::io::Error| format!("{name}: {error}");
    // A pipe could make it wait for who reads it.
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(File::create(&said).map_err(io)?);
    let start = Instant::now();
    let mut child = command.env_remove("SSLKEYLOGFILE").spawn().map_err(io)?;
    let id = child.id().to_string();
    let mut peak_bytes = 0;
    let status = loop {
        // The most that it ever had; nothing once it has ended.
        peak_bytes = crate::soak::of_status(&id, "VmHWM:").unwrap_or(peak_bytes);
        match child.try_wait().map_err(io)? {
            Some(status) => break status,
            None => std::thread::sleep(LOOK),
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let mut text = String::new();
    File::open(&said).and_then(|mut file| file.read_to_string(&mut text)).map_err(io)?;
    let found = match name {
        "tshark" => text.lines().filter(|line| line.starts_with("/object")).count() as u64,
        _ => middlebox::summary(&text).get("HTTP requests").copied().unwrap_or(0),
    };
    let _ = std::fs::remove_dir_all(&log);
    match status.success() && found == requests as u64 {
        true => Ok(Pass { seconds, peak_bytes }),
        false => Err(format!("{name}: {status}, {found} of {requests} requests")),
    }
}

impl ReadingResults {
    /// Ours: time and memory.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("M7", panel, title, Axis::category("capture file"), y)
        };
        let mut time = figure(
            "time",
            "Reading a capture file with keys inside",
            Axis::linear("time", "s/GB"),
        )
        .note(format!(
            "{:.0} MB of {SUITE} between nginx and curl in packets of MTU size, {CONNECTIONS} connections at a time, {} requests for 1 MB, from the page cache. mmtls read \
             opens every record, follows HTTP and writes events; tshark prints the requests.",
            self.file_bytes as f64 / 1e6,
            self.requests
        ));
        let mut memory = figure(
            "memory",
            "Reading a capture file: the most memory that the program had",
            Axis::linear("resident memory", "MB"),
        );
        let x = format!("{} requests", self.requests);
        for it in &self.readers {
            time.add(it.name, x.clone(), &it.s_per_gb.samples);
            memory.add(it.name, x.clone(), &it.peak_mb.samples);
        }
        vec![time, memory]
    }

    pub fn print(&self) {
        let row = |it: &Reader| {
            vec![
                it.name.to_owned(),
                format!("{:.3}", it.s_per_gb.median),
                format!("{:.3}–{:.3}", it.s_per_gb.min, it.s_per_gb.max),
                format!("{:.0}", it.peak_mb.median),
            ]
        };
        let rows: Vec<Vec<String>> = self.readers.iter().map(row).collect();
        let title = format!("(q) reading {:.0} MB, medians", self.file_bytes as f64 / 1e6);
        table(&title, &["who", "s/GB", "range", "MB of memory"], &rows);
    }
}
