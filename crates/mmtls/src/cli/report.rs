//! What `run` and `read` have in common: where reports go, and what is printed at the end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use mmtls::config::{self, ActionName};
use mmtls::rules::RulesConfig;
use mmtls::summary::Summary;
use mmtls_engine::Counters;
use mmtls_inspect::detect::Matcher;
use mmtls_inspect::rules::Skipped;
use mmtls_middlebox::Error;

/// Where reports go and what is looked for; shared by `run` and `read`.
#[derive(Args, Clone)]
pub struct ReportArgs {
    /// Write eve.json into this directory. `mmtls read` takes `-`, too: lines of JSON to standard output, the summary to
    /// standard error.
    #[arg(short = 'l', long = "log-dir", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Report HTTP bodies as files in eve.json, with their SHA-256.
    #[arg(long)]
    pub fileinfo: bool,
    /// Write the decrypted streams of each session into this directory.
    #[arg(long, value_name = "DIR")]
    pub streams: Option<PathBuf>,
    /// Write decrypted sessions as TCP conversations in the clear into this pcapng file.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Search decrypted HTTP bodies, and what is not HTTP as one stream, for the literal patterns in this file.
    #[arg(long, value_name = "FILE")]
    pub patterns: Option<PathBuf>,
    /// What a match does.
    #[arg(long, value_name = "ACTION", requires = "patterns")]
    pub pattern_action: Option<ActionName>,
    /// Apply the rules in this file, too (repeatable): Suricata's language.
    #[arg(short = 's', long = "rules", value_name = "FILE")]
    pub rules: Vec<PathBuf>,
    /// Apply the rules in this file (repeatable), and no others.
    #[arg(short = 'S', long = "only-rules", value_name = "FILE", conflicts_with = "rules")]
    pub only_rules: Vec<PathBuf>,
    /// Look into TCP connections that do not carry TLS, too. Without this option: where there are rules.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub plaintext: Option<bool>,
    /// Count what each rule costs, and print the most costly ones at the end.
    #[arg(long)]
    pub profile_rules: bool,
}

/// The variables of rules, of a configuration file of `mmtls run` besides Suricata's own.
///
/// # Errors
/// [`Error::Usage`] with all mistakes in the file.
pub fn rule_variables(file: Option<&Path>) -> Result<RulesConfig, Error> {
    match file.map(config::load).transpose() {
        Ok(loaded) => Ok(loaded.map(|(file, _)| file.rule_variables()).unwrap_or_default()),
        Err(mistakes) => Err(Error::Usage(mistakes.join("; "))),
    }
}

/// Most rules in a profile that is printed.
const MAX_PROFILE: usize = 50;

/// Prints what the most costly rules cost.
pub fn print_profile(out: &mut (impl Write + ?Sized), matcher: &Matcher) {
    let mut profile: Vec<_> = matcher.profile().collect();
    profile.sort_by_key(|it| std::cmp::Reverse(it.time_ns));
    let Some(_) = profile.first() else {
        return;
    };
    // Where nobody reads it, nothing is lost.
    let _ = writeln!(
        out,
        "{:>10} {:>10} {:>10} {:>12}  message",
        "sid", "checks", "matches", "time, us"
    );
    for it in profile.iter().take(MAX_PROFILE) {
        let message: String = it.rule.message.chars().filter(|it| !it.is_control()).collect();
        let (sid, time) = (it.rule.id.sid, it.time_ns / 1000);
        let _ =
            writeln!(out, "{sid:>10} {:>10} {:>10} {time:>12}  {message}", it.checks, it.matches);
    }
}

/// Says how many rules are in force, and why others are not, a line for each cause.
pub fn describe_rules(active: usize, skipped: &[Skipped], say: &mut dyn FnMut(&str)) {
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for rule in skipped {
        *causes.entry(rule.cause.summary()).or_default() += 1;
    }
    let hint = if skipped.is_empty() { "" } else { ": `mmtls rules check FILE` names each" };
    say(&format!("rules: {active} active, {} skipped{hint}", skipped.len()));
    for (cause, count) in causes {
        let cause: String = cause.chars().filter(|it| !it.is_control()).collect();
        say(&format!("rules: {count} skipped: {cause}"));
    }
}

/// Whether streams can be written now that capabilities are gone: root has to own the directory
/// then, as everybody else.
pub fn check_streams(dir: Option<&Path>) -> Result<(), Error> {
    dir.map_or(Ok(()), mmtls::streams::check).map_err(|error| {
        let dir = dir.unwrap_or(Path::new("")).display();
        let hint = "files come into it after capabilities are given up: let this user own it";
        Error::Usage(format!("streams directory {dir}: {error} ({hint})"))
    })
}

/// Whether further files of a mirror or capture can be created now that capabilities are gone.
pub fn check_mirror(file: Option<&Path>) -> Result<(), Error> {
    file.map_or(Ok(()), mmtls::mirror::check_directory).map_err(|error| {
        let file = file.unwrap_or(Path::new("")).display();
        let hint = "further files come beside it after capabilities are given up: let this user own the directory";
        Error::Usage(format!("{file}: {error} ({hint})"))
    })
}

/// What the machine is called; `None` where the kernel does not say.
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Prints the summary and what the engine did to frames.
pub fn print_summary(out: &mut (impl Write + ?Sized), summary: &Summary, counters: &Counters) {
    // Where nobody reads it, nothing is lost.
    let _ = write!(out, "{summary}");
    let _ = writeln!(
        out,
        "frames: {} (forwarded {}, held {}, dropped {})",
        counters.frames, counters.forwarded, counters.held, counters.dropped
    );
}
