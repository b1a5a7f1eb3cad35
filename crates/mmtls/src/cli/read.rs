//! `mmtls read`: capture files through the engine, one behind the other.
//!
//! Refuses nothing that was readable: what came before a damaged place is reported first. Keeps no
//! capabilities while it reads it.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mmtls::capture::CaptureConfig;
use mmtls::eve::{Origin, STANDARD_OUTPUT};
use mmtls::mirror::MirrorConfig;
use mmtls::monitor::{Inspect, Monitor, MonitorConfig, MonitorIoError, Stops};
use mmtls::patterns::PatternConfig;
use mmtls::rotation::Rotation;
use mmtls::rules::RulesConfig;
use mmtls::sandbox::SandboxSection;
use mmtls::stats::counts::engine_map;
use mmtls_engine::Cleartext;
use mmtls_middlebox::Error;
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};

use super::confine;
use super::progress::Progress;
use super::report::{
    ReportArgs, check_streams, describe_rules, host_name, print_profile, print_summary,
    rule_variables,
};
use super::say::say;

#[derive(Args)]
pub struct ReadArgs {
    /// Capture files, in the order of their time; `-` is standard input.
    #[arg(value_name = "CAPTURE", required_unless_present = "read")]
    captures: Vec<PathBuf>,
    /// A capture file, too (repeatable).
    #[arg(short, long, value_name = "CAPTURE")]
    read: Vec<PathBuf>,
    /// NSS key log (RFC 9850), as SSLKEYLOGFILE writes it; secrets inside a pcapng are used too.
    #[arg(long, value_name = "FILE", env = "SSLKEYLOGFILE")]
    keylog: Option<PathBuf>,
    /// Look into connections in the clear whose beginning is not in the capture, too.
    #[arg(long)]
    midstream: bool,
    /// A configuration file of `mmtls run`, whose inspect.address_groups and port_groups the rules may name; nothing else of it
    /// holds here.
    #[arg(long, value_name = "FILE")]
    rule_variables: Option<PathBuf>,
    /// Keep every file, connection and system call that this user has, for what is made of the capture.
    #[arg(long)]
    no_sandbox: bool,
    #[command(flatten)]
    report: ReportArgs,
}

fn rules(args: &ReadArgs) -> Result<Option<RulesConfig>, Error> {
    let ReportArgs { only_rules, rules, profile_rules, .. } = &args.report;
    let files = [&only_rules[..], rules].concat();
    if files.is_empty() {
        return match args.rule_variables {
            Some(_) => Err(Error::Usage("--rule-variables needs rules (-s, -S)".to_owned())),
            None => Ok(None),
        };
    }
    let variables = rule_variables(args.rule_variables.as_deref())?;
    Ok(Some(RulesConfig { files, counts_costs: *profile_rules, ..variables }))
}

/// Which connections without TLS are looked into.
fn cleartext(args: &ReadArgs, has_rules: bool) -> Result<Cleartext, Error> {
    match (args.report.plaintext.unwrap_or(has_rules), args.midstream) {
        (true, true) => Ok(Cleartext::Anywhere),
        (true, false) => Ok(Cleartext::FromBeginning),
        (false, true) => {
            let text = "--midstream needs --plaintext, or rules (-s, -S)";
            Err(Error::Usage(text.to_owned()))
        }
        (false, false) => Ok(Cleartext::Ignored),
    }
}

/// One file of all captures, which replaces one that is there, but none of them.
fn mirror(args: &ReadArgs, captures: &[Capture]) -> Result<Option<MirrorConfig>, Error> {
    let Some(path) = &args.report.write else {
        return Ok(None);
    };
    let there = std::fs::metadata(path).ok().as_ref().map(identity);
    if there.is_some() && captures.iter().any(|capture| capture.identity == there) {
        let path = path.display();
        return Err(Error::Usage(format!(
            "-w {path} is a capture that is read: name another file"
        )));
    }
    let file = Some(path.clone());
    let (max_files, max_file_bytes) = (1, u64::MAX);
    Ok(Some(MirrorConfig { file, max_files, max_file_bytes, ..MirrorConfig::default() }))
}

pub fn run(args: &ReadArgs) -> Result<ExitCode, Error> {
    let rules = rules(args)?;
    let cleartext = cleartext(args, rules.is_some())?;
    mmtls_middlebox::harden::forbid_dumps()?;
    let keys = keys(args)?;
    let captures = args.read.iter().chain(&args.captures).map(|path| Capture::open(path));
    let captures = captures.collect::<Result<Vec<_>, _>>()?;
    let monitor_config = monitor_config(args, rules, mirror(args, &captures)?);
    let monitor = Monitor::new(&monitor_config).map_err(|error| Error::Usage(error.to_string()))?;
    if let Some(rules) = monitor.rules() {
        describe_rules(rules.matcher().len(), rules.skipped(), &mut say);
    }
    // A capture is what an attacker sent: everything that needs privileges is open by now.
    let section = SandboxSection { enabled: !args.no_sandbox, ..SandboxSection::default() };
    let sandbox = confine::of_read(section, &monitor_config);
    mmtls_middlebox::harden::drop_capabilities()?;
    let told = sandbox.enter().map_err(confine::usage)?;
    told.iter().for_each(|text| say(text));
    check_streams(args.report.streams.as_deref())?;
    let mut config = offline::config();
    config.cleartext = cleartext;
    config.tell_hellos = monitor_config.wants_hellos();
    let mut replay = Replay::new(config, keys, monitor);
    let mut reading = Reading::new(&captures, &args.report);
    for capture in captures {
        reading.read(capture, &mut replay);
        if reading.nobody_listens {
            return Ok(ExitCode::SUCCESS);
        }
    }
    replay.end();
    let counters = *replay.engine().counters();
    let mut monitor = replay.finish();
    // What the outputs took is counted before it is told.
    reading.sort(monitor.finish());
    let summary = monitor.summary().clone();
    monitor.write_stats(Duration::ZERO, &summary, &engine_map(&counters), &[]);
    reading.sort(monitor.finish());
    if reading.nobody_listens {
        return Ok(ExitCode::SUCCESS);
    }
    let Reading { errors, lost, mut progress, .. } = reading;
    progress.clear();
    // What there is to say of nothing has been said by the error.
    if counters.frames > 0 || errors.is_empty() {
        let records_are_there = args.report.log_dir.as_deref() == Some(Path::new(STANDARD_OUTPUT));
        let out: &mut dyn Write =
            if records_are_there { &mut io::stderr() } else { &mut io::stdout() };
        print_summary(out, monitor.summary(), &counters);
        if let Some(rules) = monitor.rules() {
            print_profile(out, rules.matcher());
        }
    }
    errors.iter().for_each(|error| say(&error.to_string()));
    lost.iter().for_each(|error| say(&error.to_string()));
    let complete = lost.is_empty() && monitor.summary().losses() == 0;
    Ok(if complete && errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A capture that was opened.
struct Capture {
    /// As it was given.
    name: String,
    /// What errors call it.
    path: PathBuf,
    input: Box<dyn Read>,
    /// Of a file.
    bytes: Option<u64>,
    /// Which file it is, whatever its name.
    identity: Option<Identity>,
}

/// Device, and number there.
type Identity = (u64, u64);

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino())
}

impl Capture {
    fn open(path: &Path) -> Result<Self, Error> {
        let name = path.to_string_lossy().into_owned();
        let about = |error| Error::File { path: path.to_owned(), error };
        if name == "-" {
            let path = PathBuf::from("standard input");
            let input = io::stdin();
            let file = File::from(input.as_fd().try_clone_to_owned().map_err(about)?);
            let identity = file.metadata().ok().as_ref().map(identity);
            return Ok(Self { name, path, input: Box::new(input), bytes: None, identity });
        }
        let file = File::open(path).map_err(about)?;
        let metadata = file.metadata().ok();
        let bytes = metadata.as_ref().filter(|it| it.is_file()).map(Metadata::len);
        let identity = metadata.as_ref().map(identity);
        Ok(Self { name, path: path.to_owned(), input: Box::new(file), bytes, identity })
    }
}

/// Reading several captures, and what went wrong.
struct Reading {
    progress: Progress,
    /// Of captures.
    errors: Vec<Error>,
    /// Outputs that could not be written.
    lost: Vec<MonitorIoError>,
    /// Nothing is written but records.
    writes_records_only: bool,
    /// Whoever read the records has enough.
    nobody_listens: bool,
}

impl Reading {
    fn new(captures: &[Capture], report: &ReportArgs) -> Self {
        let total = captures.iter().map(|capture| capture.bytes).sum();
        Self {
            progress: Progress::new(total),
            errors: Vec::new(),
            lost: Vec::new(),
            writes_records_only: report.streams.is_none() && report.write.is_none(),
            nobody_listens: false,
        }
    }

    /// Reads one to its end, or as far as it goes.
    fn read(&mut self, capture: Capture, replay: &mut Replay<Monitor>) {
        let Capture { name, path, input, .. } = capture;
        replay.handler_mut().set_capture(name);
        let input = self.progress.count(input);
        let outcome = replay.run_file(&path, input, |engine| {
            if self.progress.packet() {
                let monitor = engine.handler_mut();
                self.sort(monitor.flush());
                self.progress.show(monitor.summary().tls_sessions);
            }
            !self.nobody_listens
        });
        match outcome {
            Ok(warnings) => {
                for warning in warnings {
                    self.progress.clear();
                    say(&format!("{}: {warning}", path.display()));
                }
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// Tells what went wrong with an output from a reader that has enough: then other outputs are made all the same.
    fn sort(&mut self, errors: Vec<MonitorIoError>) {
        for error in errors {
            match error {
                MonitorIoError::Log(error)
                    if error.kind() == io::ErrorKind::BrokenPipe && self.writes_records_only =>
                {
                    self.nobody_listens = true;
                }
                error => self.lost.push(error),
            }
        }
    }
}

/// The key log's keys.
fn keys(args: &ReadArgs) -> Result<KeyLog, Error> {
    let Some(path) = &args.keylog else {
        return Ok(KeyLog::new());
    };
    let keys = offline::load_keylog(path)?;
    let report = keys.report();
    if let Some((line, error)) = report.first_malformed {
        if report.secrets + report.ech + report.other_labels + report.rsa_premaster == 0 {
            let text =
                format!("{}: not a key log: line {line} is malformed: {error}", path.display());
            return Err(Error::Usage(text));
        }
        say(&format!(
            "key log: {} malformed lines ignored, the first is line {line}: {error}",
            report.malformed
        ));
    }
    if report.rsa_premaster > 0 {
        say(&format!(
            "key log: {} RSA lines are not used: a premaster secret alone opens nothing; \
             CLIENT_RANDOM lines do",
            report.rsa_premaster
        ));
    }
    Ok(keys)
}

fn monitor_config(
    args: &ReadArgs,
    rules: Option<RulesConfig>,
    mirror: Option<MirrorConfig>,
) -> MonitorConfig {
    MonitorConfig {
        eve_dir: args.report.log_dir.clone(),
        eve_rotation: Rotation::default(),
        eve_outputs: Vec::new(),
        // The capture comes when it is read.
        origin: Origin { host: host_name(), ..Origin::default() },
        // What a capture shows has passed.
        stops: Stops::Nothing,
        fileinfo: args.report.fileinfo,
        fingerprints: true,
        keeps_recent: false,
        empty_flows_per_second: None,
        streams_dir: args.report.streams.clone(),
        mirror,
        capture: CaptureConfig::default(),
        patterns: args.report.patterns.clone().map(|file| PatternConfig {
            file,
            action: args.report.pattern_action.unwrap_or_default().into(),
        }),
        rules,
        inspect: Inspect::Http,
        inspect_limit_bytes: None,
        limit_trusts_padding: false,
        uninspected_resets: BTreeSet::new(),
        uninspected_resets_beside_rules: BTreeSet::new(),
    }
}
