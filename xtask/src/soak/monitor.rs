//! mmTLS under the soak: one life after another, each ended by SIGKILL but the last one.
//!
//! Job: start, reload, kill, and sample it. Refuses to take an end that nobody asked for as one of these.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions};
use serde::Serialize;
use serde_json::Value;

use super::log::Log;
use super::stage::{Stage, text};
use super::{SoakArgs, now};

/// What was done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Start,
    Reload,
    Kill,
    Stop,
}

/// When that was.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Event {
    /// Seconds since 1970.
    pub at: f64,
    pub kind: Kind,
}

/// What the kernel, and the monitor itself, say of it at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub at: f64,
    /// Of these the anonymous ones are `RssAnon`.
    pub resident_bytes: u64,
    pub anonymous_bytes: u64,
    pub threads: u64,
    pub files: u64,
    /// `mmtls ctl status`: `null` where it did not answer.
    pub flows: Value,
    pub buffered_bytes: Value,
    pub agents: Value,
}

/// From a start to an end.
#[derive(Debug, Serialize)]
pub struct Life {
    pub begun: f64,
    pub ended: Option<f64>,
    pub reloads: u64,
    /// Those of which it said that rules were read again, and certificates.
    pub reloads_told: [usize; 2],
    pub samples: Vec<Sample>,
}

/// The monitor.
pub struct Monitor<'a> {
    stage: &'a Stage,
    args: &'a SoakArgs,
    mmtls: Option<Mmtls>,
    socket: PathBuf,
    version: usize,
    pub events: Vec<Event>,
    pub lives: Vec<Life>,
}

impl<'a> Monitor<'a> {
    /// Not yet started.
    pub fn new(stage: &'a Stage, args: &'a SoakArgs) -> Self {
        let socket = stage.bed.directory().join("control.sock");
        let (events, lives) = (Vec::new(), Vec::new());
        Self { stage, args, mmtls: None, socket, version: 0, events, lives }
    }

    /// The one that runs.
    pub fn mmtls(&self) -> Result<&Mmtls, String> {
        self.mmtls.as_ref().ok_or_else(|| "the monitor is down".to_owned())
    }

    /// Whether it was killed and is not back.
    pub fn is_down(&self) -> bool {
        self.mmtls.is_none()
    }

    /// How often it was killed.
    pub fn kills(&self) -> usize {
        self.count(Kind::Kill)
    }

    /// How often it was told to read everything again.
    pub fn reloads(&self) -> usize {
        self.count(Kind::Reload)
    }

    fn count(&self, kind: Kind) -> usize {
        self.events.iter().filter(|event| event.kind == kind).count()
    }

    /// Of the last sample.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.mmtls.as_ref()?;
        Some(self.lives.last()?.samples.last()?.resident_bytes)
    }

    fn note(&mut self, kind: Kind) {
        self.events.push(Event { at: now(), kind });
    }

    /// Starts it, once it was away for as long as it should.
    pub fn start_when_due(&mut self, log: &mut Log) -> Result<(), String> {
        let killed = self.events.last().map_or(0.0, |event| event.at);
        if now() < killed + self.args.down_seconds { Ok(()) } else { self.start(log) }
    }

    /// Starts it.
    pub fn start(&mut self, log: &mut Log) -> Result<(), String> {
        let options = MmtlsOptions {
            missing_keys: "forward".to_owned(),
            config: Some(self.stage.config(self.version)),
            arguments: [
                "--control",
                &self.socket.display().to_string(),
                "--workers",
                &self.args.workers.to_string(),
            ]
            .map(str::to_owned)
            .to_vec(),
            ..MmtlsOptions::new(&self.stage.binaries)
        };
        let begun = now();
        let mmtls = Mmtls::start(&self.stage.bed, &options).map_err(text)?;
        self.note(Kind::Start);
        let followed = log.follow(mmtls.directory());
        self.mmtls = Some(mmtls);
        let (samples, ended) = (Vec::new(), None);
        self.lives.push(Life { begun, ended, reloads: 0, reloads_told: [0; 2], samples });
        followed
    }

    /// Refuses where it has ended.
    pub fn check(&mut self) -> Result<(), String> {
        let Some(mmtls) = &mut self.mmtls else { return Ok(()) };
        if mmtls.process.is_running() {
            return Ok(());
        }
        let said = mmtls.process.stderr_text();
        let last: Vec<&str> = said.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Err(format!("the monitor has ended by itself: {}", last.join(" | ")))
    }

    /// Has it read the other version of everything, and open another log.
    pub fn reload(&mut self, log: &mut Log) -> Result<(), String> {
        self.version += 1;
        self.stage.choose(self.version)?;
        let config = self.stage.config(self.version);
        let Some(mmtls) = &mut self.mmtls else { return Ok(()) };
        let path = mmtls.directory().join("mmtls.toml");
        std::fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
        log.rotate()?;
        mmtls.process.signal("HUP");
        self.note(Kind::Reload);
        if let Some(life) = self.lives.last_mut() {
            life.reloads += 1;
        }
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> Result<(), String> {
        self.sample();
        let Some(mut mmtls) = self.mmtls.take() else { return Ok(()) };
        self.note(Kind::Kill);
        mmtls.process.signal("KILL");
        mmtls.process.wait(Duration::from_secs(20)).map_err(text)?;
        self.ended(&mmtls);
        Ok(())
    }

    /// Ends it as an operator does; it must end with status 0.
    pub fn stop(&mut self) -> Result<(), String> {
        // Not sampled: nobody has used it since the load ended.
        let Some(mut mmtls) = self.mmtls.take() else { return Ok(()) };
        self.note(Kind::Stop);
        mmtls.process.signal("TERM");
        let status = mmtls.process.wait(Duration::from_secs(30)).map_err(text)?;
        self.ended(&mmtls);
        if status.success() {
            return Ok(());
        }
        Err(format!("the monitor ended with {status}: {}", mmtls.process.stderr_text()))
    }

    fn ended(&mut self, mmtls: &Mmtls) {
        let said = mmtls.process.stderr_text();
        let told = ["rules: read again", "certificates: in force"]
            .map(|what| said.lines().filter(|line| line.contains(what)).count());
        if let Some(life) = self.lives.last_mut() {
            life.ended = Some(now());
            life.reloads_told = told;
        }
    }

    /// Looks at it.
    pub fn sample(&mut self) {
        let Some(mmtls) = &self.mmtls else { return };
        let pid = mmtls.process.pid().to_string();
        let resident_bytes = mmtls.process.resident_bytes();
        if resident_bytes == 0 {
            // It has just ended.
            return;
        }
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let answer = self.ask();
        let sample = Sample {
            at: now(),
            resident_bytes,
            anonymous_bytes: of_status(&pid, "RssAnon:").unwrap_or(0),
            threads: mmtls.process.threads().len() as u64,
            files: files as u64,
            flows: answer["memory"]["flows"].clone(),
            buffered_bytes: answer["memory"]["buffered_bytes"].clone(),
            agents: answer["keys"]["connections"].clone(),
        };
        if let Some(life) = self.lives.last_mut() {
            life.samples.push(sample);
        }
    }

    fn ask(&self) -> Value {
        let answer = || {
            let mut stream = UnixStream::connect(&self.socket).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            stream.write_all(b"{\"command\":\"status\"}\n").ok()?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).ok()?;
            serde_json::from_str(&line).ok()
        };
        answer().unwrap_or(Value::Null)
    }
}

/// Bytes of a line of `/proc/<process>/status` that tells kilobytes.
pub fn of_status(process: &str, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
