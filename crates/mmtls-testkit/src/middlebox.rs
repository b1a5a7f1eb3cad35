//! mmTLS itself in the testbed: the inline monitor in the middlebox's namespace, and programs
//! that share their keys with it in the client's.
//!
//! Refuses to guess where the binaries are: the caller says.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::servers::START_LIMIT;
use crate::testbed::address;
use crate::testbed::namespace::Namespace;
use crate::{Background, Testbed, TestbedError};

/// Where the monitor takes keys, inside the testbed.
pub const KEYS_PORT: u16 = 4433;

/// How to start the monitor.
#[derive(Clone, Debug)]
pub struct MmtlsOptions {
    /// Directory of `mmtls` and `libmmtls_preload.so`.
    pub binaries: PathBuf,
    /// `--missing-keys`; empty where the configuration file says.
    pub missing_keys: String,
    /// Write `eve.json`.
    pub log: bool,
    /// Write streams.
    pub streams: bool,
    /// `--patterns FILE --pattern-action ACTION`.
    pub patterns: Option<(PathBuf, String)>,
    /// A configuration file's text.
    pub config: Option<String>,
    /// `--keylog FILE`.
    pub keylog: Option<PathBuf>,
    /// The file of its certificate, for a test that changes it: the testbed's is that of other tests, too.
    pub certificate: Option<PathBuf>,
    /// Interfaces for `--passive`, in place of `--inline` and `--missing-keys`.
    pub passive: Option<String>,
    /// More options of `mmtls run`.
    pub arguments: Vec<String>,
    /// Looks at each record of `eve.json` at the end, and panics where one is not as it should be.
    pub check: Option<fn(&Value)>,
}

impl MmtlsOptions {
    /// The defaults: missing keys are reset, logs are written, streams are not.
    #[must_use]
    pub fn new(binaries: impl Into<PathBuf>) -> Self {
        Self {
            binaries: binaries.into(),
            missing_keys: "reset".to_owned(),
            log: true,
            streams: false,
            patterns: None,
            config: None,
            keylog: None,
            certificate: None,
            passive: None,
            arguments: Vec::new(),
            check: None,
        }
    }
}

/// A running `mmtls run`.
pub struct Mmtls {
    /// The process.
    pub process: Background,
    binaries: PathBuf,
    directory: PathBuf,
    ca: PathBuf,
    check: Option<fn(&Value)>,
}

/// What `mmtls run` left behind.
#[derive(Debug)]
pub struct MmtlsReport {
    /// The summary's lines by name.
    pub summary: BTreeMap<String, u64>,
    /// The records of `eve.json`.
    pub eve: Vec<Value>,
    /// What it says of each TLS session, see [`sessions`].
    pub sessions: Vec<Value>,
    /// Whether it ended with status 0.
    pub success: bool,
    /// What it printed on stderr.
    pub stderr: String,
}

impl Mmtls {
    /// Starts it on the middlebox's two ports and waits until it bridges them, or watches them.
    ///
    /// # Errors
    /// [`TestbedError`], with its output when it ends early.
    pub fn start(bed: &Testbed, options: &MmtlsOptions) -> Result<Self, TestbedError> {
        Self::start_at(bed, &bed.middlebox, &format!("[::]:{KEYS_PORT}"), options)
    }

    /// The same of a place of the testbed, and where it takes keys.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_at(
        bed: &Testbed,
        place: &Namespace,
        keys_listen: &str,
        options: &MmtlsOptions,
    ) -> Result<Self, TestbedError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = bed.directory().join(format!("mmtls{count}"));
        std::fs::create_dir_all(&directory).map_err(TestbedError::io(&directory))?;
        let mut command = place.command(options.binaries.join("mmtls"));
        let ready = match &options.passive {
            Some(interfaces) => {
                command.args(["run", "--passive", interfaces]);
                "mmtls: watching"
            }
            None => {
                command.args(["run", "--inline", "left:right"]);
                if !options.missing_keys.is_empty() {
                    command.args(["--missing-keys", &options.missing_keys]);
                }
                "mmtls: bridging"
            }
        };
        command.args(["--keys-listen", keys_listen]);
        let certificate = options.certificate.as_ref().unwrap_or(&bed.pki().middlebox.certificate);
        command.arg("--key-cert").arg(certificate);
        command.arg("--key-key").arg(&bed.pki().middlebox.key);
        if options.log {
            command.arg("-l").arg(&directory);
        }
        if options.streams {
            command.arg("--streams").arg(directory.join("streams"));
        }
        if let Some(path) = &options.keylog {
            command.arg("--keylog").arg(path);
        }
        if let Some((file, action)) = &options.patterns {
            command.arg("--patterns").arg(file).args(["--pattern-action", action]);
        }
        if let Some(text) = &options.config {
            let path = directory.join("mmtls.toml");
            std::fs::write(&path, text).map_err(TestbedError::io(&path))?;
            command.arg("-c").arg(path);
        }
        command.args(&options.arguments);
        let mut process = bed.background(&format!("mmtls{count}"), command)?;
        process.wait_for_line(ready, START_LIMIT)?;
        Ok(Self {
            process,
            binaries: options.binaries.clone(),
            directory,
            ca: bed.pki().ca.clone(),
            check: options.check,
        })
    }

    /// A program in the client's namespace that shares its keys; `exempt` names stay private.
    /// Keys count for sessions of the sender's own address: over IPv6 for `v6` ones.
    #[must_use]
    pub fn sharing(
        &self,
        bed: &Testbed,
        v6: bool,
        exempt: &[&str],
        program: impl AsRef<OsStr>,
    ) -> Command {
        let options: Vec<&str> = exempt.iter().flat_map(|name| ["--exempt", name]).collect();
        self.sharing_with(bed, v6, &options, program)
    }

    /// As [`Self::sharing`], with any options of `mmtls exec`.
    #[must_use]
    pub fn sharing_with(
        &self,
        bed: &Testbed,
        v6: bool,
        options: &[&str],
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = self.endpoint(bed, v6, "exec");
        command.args(options).arg("--").arg(program);
        command
    }

    /// `mmtls agent` in the client's namespace, once it is connected: it shares the keys of programs that find it in this
    /// directory, which it makes, or write to another key log.
    ///
    /// # Errors
    /// [`TestbedError`], with its output when it ends early.
    pub fn agent(
        &self,
        bed: &Testbed,
        v6: bool,
        directory: &Path,
        key_log: Option<&Path>,
    ) -> Result<Background, TestbedError> {
        let mut command = self.endpoint(bed, v6, "agent");
        command.arg("--directory").arg(directory);
        if let Some(key_log) = key_log {
            command.arg("--keylog").arg(key_log);
        }
        let mut agent = bed.background("agent", command)?;
        agent.wait_for_line("connected to", START_LIMIT)?;
        Ok(agent)
    }

    /// A program in the client's namespace, run by `mmtls exec` with these options, that shares through the agent with
    /// this directory.
    #[must_use]
    pub fn sharing_through(
        &self,
        bed: &Testbed,
        directory: &Path,
        options: &[&str],
        program: impl AsRef<OsStr>,
    ) -> Command {
        let mut command = bed.client.command(self.binaries.join("mmtls"));
        command.arg("exec").arg("--agent").arg(directory).args(options).arg("--").arg(program);
        command
    }

    /// What starts a server whose keys are shared, as a part of a command: `mmtls exec` and its options.
    #[must_use]
    pub fn sharing_server(&self, options: &[&str]) -> Vec<OsString> {
        let middlebox =
            format!("{}@{}:{KEYS_PORT}", address::MIDDLEBOX_NAME, address::SERVER_KEYS_V4);
        let mut command = vec![self.binaries.join("mmtls").into_os_string()];
        command.extend(["exec", "--share-server", "--middlebox", &middlebox].map(OsString::from));
        command.extend([OsString::from("--ca"), self.ca.clone().into_os_string()]);
        command.extend(options.iter().map(OsString::from));
        command.push(OsString::from("--"));
        command
    }

    /// A command of mmtls that shares keys.
    fn endpoint(&self, bed: &Testbed, v6: bool, name: &str) -> Command {
        let mut command = bed.client.command(self.binaries.join("mmtls"));
        let middlebox = match v6 {
            false => format!("{}@{}:{KEYS_PORT}", address::MIDDLEBOX_NAME, address::KEYS_V4),
            true => format!("{}@[{}]:{KEYS_PORT}", address::MIDDLEBOX_NAME, address::KEYS_V6),
        };
        command.args([name, "--middlebox", &middlebox, "--ca"]).arg(&self.ca);
        command
    }

    /// Directory of its logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The records of `eve.json` so far; lines that are not complete yet are left out.
    #[must_use]
    pub fn eve(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.join("eve.json")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until `eve.json` holds what is looked for.
    ///
    /// # Errors
    /// [`TestbedError`] when it does not in time.
    pub fn wait_for_eve(
        &self,
        what: &str,
        timeout: Duration,
        found: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>, TestbedError> {
        let end = Instant::now() + timeout;
        loop {
            let records = self.eve();
            if found(&records) {
                return Ok(records);
            }
            if Instant::now() >= end {
                return Err(TestbedError::Timeout {
                    what: format!("{what} in eve.json"),
                    after: timeout,
                    detail: format!("{} records", records.len()),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end and collects what it says.
    ///
    /// # Errors
    /// [`TestbedError`] when it does not end.
    pub fn stop(mut self) -> Result<MmtlsReport, TestbedError> {
        self.process.signal("TERM");
        let status = self.process.wait(Duration::from_secs(20))?;
        let eve = self.eve();
        if let Some(check) = self.check {
            eve.iter().for_each(check);
        }
        Ok(MmtlsReport {
            summary: summary(&self.process.stdout_text()),
            sessions: sessions(&eve),
            eve,
            success: status.success(),
            stderr: self.process.stderr_text(),
        })
    }
}

/// The `name: number` lines of a summary.
#[must_use]
pub fn summary(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.split(' ').next()?.parse().ok()?))
        })
        .collect()
}

/// What `eve.json` says of each TLS session, in the order in which they ended: the `tls` object, and that of
/// the `mmtls` record of the same flow.
#[must_use]
pub fn sessions(eve: &[Value]) -> Vec<Value> {
    let of_type = |name: &'static str| eve.iter().filter(move |it| it["event_type"] == name);
    let begun: BTreeMap<_, _> =
        of_type("tls").map(|it| (it["flow_id"].as_u64(), &it["tls"])).collect();
    let whole = |end: &Value| {
        let mut session = begun.get(&end["flow_id"].as_u64()).map(|it| (*it).clone())?;
        session.as_object_mut()?.extend(end["mmtls"].as_object()?.clone());
        Some(session)
    };
    of_type("mmtls").filter_map(whole).collect()
}

impl MmtlsReport {
    /// A number of the summary; 0 when the line is not there.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.summary.get(name).copied().unwrap_or(0)
    }

    /// The `eve.json` records of a type.
    #[must_use]
    pub fn events(&self, event_type: &str) -> Vec<&Value> {
        self.eve.iter().filter(|record| record["event_type"] == event_type).collect()
    }
}
