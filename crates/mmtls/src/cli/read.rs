//! `mmtls read`: a capture file through the engine.
//!
//! Refuses nothing that was readable: what came before a damaged place is reported first. Keeps no
//! capabilities while it reads it.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use mmtls::eve::Origin;
use mmtls::mirror::MirrorConfig;
use mmtls::monitor::{Inspect, Monitor, MonitorConfig, Stops};
use mmtls::patterns::PatternConfig;
use mmtls::rules::RulesConfig;
use mmtls::sandbox::SandboxSection;
use mmtls::stats::counts::engine_map;
use mmtls::summary::Summary;
use mmtls_engine::Cleartext;
use mmtls_middlebox::Error;
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};

use super::confine;
use super::report::{
    ReportArgs, check_streams, describe_rules, host_name, print_profile, print_summary,
};
use super::say::say;

#[derive(Args)]
pub struct ReadArgs {
    /// The capture file.
    #[arg(short = 'r', long = "read", value_name = "CAPTURE")]
    capture: PathBuf,
    /// NSS key log (RFC 9850), as SSLKEYLOGFILE writes it; secrets inside a pcapng are used too.
    #[arg(long, value_name = "FILE", env = "SSLKEYLOGFILE")]
    keylog: Option<PathBuf>,
    /// Look into connections in the clear whose beginning is not in the capture, too.
    #[arg(long)]
    midstream: bool,
    /// Keep every file, connection and system call that this user has, for what is made of the capture.
    #[arg(long)]
    no_sandbox: bool,
    #[command(flatten)]
    report: ReportArgs,
}

fn rules(args: &ReportArgs) -> Option<RulesConfig> {
    let files = [&args.only_rules[..], &args.rules].concat();
    (!files.is_empty()).then(|| RulesConfig {
        files,
        counts_costs: args.profile_rules,
        ..RulesConfig::default()
    })
}

/// Which connections without TLS are looked into.
fn cleartext(args: &ReadArgs) -> Result<Cleartext, Error> {
    let has_rules = rules(&args.report).is_some();
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

/// One file, which replaces one that is there, but not the capture.
fn mirror(args: &ReadArgs) -> Result<Option<MirrorConfig>, Error> {
    let Some(path) = &args.report.write else {
        return Ok(None);
    };
    let identity = |path| std::fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    if identity(path).is_some_and(|it| Some(it) == identity(&args.capture)) {
        return Err(Error::Usage(format!("-w {} is the capture that is read", path.display())));
    }
    let file = Some(path.clone());
    let (max_files, max_file_bytes) = (1, u64::MAX);
    Ok(Some(MirrorConfig { file, max_files, max_file_bytes, ..MirrorConfig::default() }))
}

pub fn run(args: &ReadArgs) -> Result<ExitCode, Error> {
    let cleartext = cleartext(args)?;
    mmtls_middlebox::harden::forbid_dumps()?;
    let keys = match &args.keylog {
        Some(path) => offline::load_keylog(path)?,
        None => KeyLog::new(),
    };
    let report = keys.report();
    if let Some((line, error)) = report.first_malformed {
        if report.secrets + report.ech + report.other_labels + report.rsa_premaster == 0 {
            return Err(Error::Usage(format!("not a key log: line {line} is malformed: {error}")));
        }
        eprintln!(
            "mmtls: key log: {} malformed lines ignored, the first is line {line}: {error}",
            report.malformed
        );
    }
    if report.rsa_premaster > 0 {
        eprintln!(
            "mmtls: key log: {} RSA lines are not used: a premaster secret alone opens nothing; \
             CLIENT_RANDOM lines do",
            report.rsa_premaster
        );
    }
    let monitor_config = MonitorConfig {
        eve_dir: args.report.log_dir.clone(),
        origin: Origin {
            host: host_name(),
            interfaces: Vec::new(),
            pcap_filename: Some(args.capture.to_string_lossy().into_owned()),
        },
        // What a capture shows has passed.
        stops: Stops::Nothing,
        fileinfo: args.report.fileinfo,
        fingerprints: true,
        empty_flows_per_second: None,
        streams_dir: args.report.streams.clone(),
        mirror: mirror(args)?,
        patterns: args.report.patterns.clone().map(|file| PatternConfig {
            file,
            action: args.report.pattern_action.unwrap_or_default().into(),
        }),
        rules: rules(&args.report),
        inspect: Inspect::Http,
        inspect_limit_bytes: None,
        limit_trusts_padding: false,
        uninspected_resets: BTreeSet::new(),
        uninspected_resets_beside_rules: BTreeSet::new(),
    };
    let monitor = Monitor::new(&monitor_config).map_err(|error| Error::Usage(error.to_string()))?;

    if let Some(rules) = monitor.rules() {
        let say = &mut |text: &str| eprintln!("mmtls: {text}");
        describe_rules(rules.matcher().len(), rules.skipped(), say);
    }
    let capture = File::open(&args.capture)
        .map_err(|error| Error::File { path: args.capture.clone(), error });
    // A capture is what an attacker sent: everything that needs privileges is open by now.
    mmtls_middlebox::harden::drop_capabilities()?;
    let section = SandboxSection { enabled: !args.no_sandbox, ..SandboxSection::default() };
    let told = confine::of_read(section, &monitor_config).enter().map_err(confine::usage)?;
    told.iter().for_each(|text| say(text));
    check_streams(args.report.streams.as_deref())?;
    let mut config = offline::config();
    config.cleartext = cleartext;
    config.tell_hellos = monitor_config.wants_hellos();
    let mut replay = Replay::new(config, keys, monitor);
    let outcome =
        capture.and_then(|file| replay.run_file(&args.capture, file, &AtomicBool::new(false)));
    replay.end();
    let counters = *replay.engine().counters();
    let mut monitor = replay.finish();
    let mut lost = monitor.finish();
    let summary = monitor.summary().clone();
    monitor.write_stats(Duration::ZERO, &summary, &engine_map(&counters), &[]);
    lost.extend(monitor.finish());
    print_summary(&mut std::io::stdout(), monitor.summary(), &counters);
    if let Some(rules) = monitor.rules() {
        print_profile(&mut std::io::stdout(), rules.matcher());
    }
    for warning in outcome? {
        eprintln!("mmtls: {}: {warning}", args.capture.display());
    }
    for error in &lost {
        eprintln!("mmtls: {error}");
    }
    let summary = monitor.summary();
    let Summary { lost_log_lines, failed_streams, mirror_sessions_cut, .. } = summary;
    let complete = lost.is_empty() && lost_log_lines + failed_streams + mirror_sessions_cut == 0;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
