//! `cargo xtask suricata-verify`: the tests of Suricata's own verification suite that are about rules on HTTP
//! and TLS over TCP, or on fingerprints of TLS, run against mmTLS.
//!
//! The suite is not part of this repository: its directory is an argument. A test is the same when every check
//! of alerts and fingerprints counts as many as it expects and no rule was taken for faulty. Refuses to leave a test out without saying why.

mod checks;
mod drive;
mod requires;
mod select;
mod settings;
mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use self::requires::Version;
use self::select::Reason;

/// Protocols that tests must be about.
const FOLLOWED: [&str; 3] = ["http", "http2", "tls"];
/// Directories in directories, below that of the suite.
const MAX_DEPTH: usize = 6;

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// Directory of the suite, or of some of its tests.
    directory: PathBuf,
    /// Fail unless so many per cent of the tests that are run are the same.
    #[arg(long, default_value_t = 90)]
    least: u32,
    /// Only tests with this in their names.
    #[arg(long)]
    only: Option<String>,
    /// Say which tests would be run, and why the others would not.
    #[arg(long)]
    list: bool,
    /// The version of Suricata that the tests are taken for.
    #[arg(long, default_value = "9.0.0")]
    suricata: String,
}

/// What came of a test.
enum Verdict {
    Same,
    Different(Vec<String>),
    Skipped(Reason),
}

pub(crate) fn run(args: &VerifyArgs) -> Result<(), String> {
    let version = Version::parse(&args.suricata)
        .ok_or_else(|| format!("{}: not a version", args.suricata))?;
    let mut tests = Vec::new();
    find(&args.directory, MAX_DEPTH, &mut tests);
    tests.sort();
    let (mut same, mut different) = (0_u32, 0_u32);
    let mut reasons: BTreeMap<String, u32> = BTreeMap::new();
    for test in &tests {
        let name = test.strip_prefix(&args.directory).unwrap_or(test).display().to_string();
        if args.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        match verdict(test, version, args.list) {
            Verdict::Same if args.list => println!("runs       {name}"),
            Verdict::Same => {
                same += 1;
                println!("same       {name}");
            }
            Verdict::Different(differences) => {
                different += 1;
                println!("different  {name}: {}", differences.join("; "));
            }
            Verdict::Skipped(reason) => {
                println!("skipped    {name}: {reason}");
                *reasons.entry(reason.to_string()).or_default() += 1;
            }
        }
    }
    summarise(same, different, &reasons);
    if args.list {
        return Ok(());
    }
    let ran = same + different;
    if ran == 0 {
        return Err("no test was run".to_owned());
    }
    match same * 100 >= args.least * ran {
        true => Ok(()),
        false => Err(format!("fewer than {} % of the tests are the same", args.least)),
    }
}

fn summarise(same: u32, different: u32, reasons: &BTreeMap<String, u32>) {
    println!();
    let mut sorted: Vec<_> = reasons.iter().collect();
    sorted.sort_by_key(|(_, count)| core::cmp::Reverse(**count));
    for (reason, count) in sorted {
        println!("{count:>6}  skipped: {reason}");
    }
    println!("{:>6}  skipped in all", reasons.values().sum::<u32>());
    let ran = same + different;
    if ran > 0 {
        let share = f64::from(same) * 100.0 / f64::from(ran);
        println!("{same:>6}  the same of {ran} that were run ({share:.1} %)");
    }
}

/// Runs a test, unless it is only asked whether it would be.
fn verdict(test: &Path, version: Version, list: bool) -> Verdict {
    let case = match select::prepare(test, version) {
        Ok(case) => case,
        Err(reason) => return Verdict::Skipped(reason),
    };
    let outcome = match drive::run(&case.capture, &case.rules, case.manner) {
        Ok(outcome) => outcome,
        Err(error) => return Verdict::Skipped(Reason::Capture(error)),
    };
    // Alerts that cannot come: those of packets that are not TCP, or not whole.
    if outcome.fragments > 0 {
        return Verdict::Skipped(Reason::NotTcp("fragments of IP"));
    }
    if case.has_ip && outcome.others > 0 {
        return Verdict::Skipped(Reason::NotTcp("packets that are not TCP"));
    }
    if !outcome.protocols.iter().any(|it| FOLLOWED.contains(&it.as_str())) {
        let found: Vec<_> = outcome.protocols.into_iter().collect();
        let found = if found.is_empty() { "no connection".to_owned() } else { found.join(", ") };
        return Verdict::Skipped(Reason::Protocol(found));
    }
    let Some(judged) = checks::judge(&case.checks, &outcome.records) else {
        return Verdict::Skipped(Reason::NoAlertChecks);
    };
    if list {
        return Verdict::Same;
    }
    let wrong = judged.into_iter().filter(|it| it.expected != it.got);
    let mut differences: Vec<_> =
        wrong.map(|it| format!("{}: expected {}, got {}", it.what, it.expected, it.got)).collect();
    // Suricata has loaded them: that a rule does not match here because it was refused is no agreement.
    differences.extend(case.faulty.into_iter().map(|it| format!("refused rule in {it}")));
    if !differences.is_empty() && outcome.over_cap {
        differences.push("over a cap".to_owned());
    }
    if differences.is_empty() { Verdict::Same } else { Verdict::Different(differences) }
}

/// The directories with a description of a test.
fn find(dir: &Path, depth: usize, tests: &mut Vec<PathBuf>) {
    if dir.join("test.yaml").is_file() {
        tests.push(dir.to_path_buf());
    }
    if depth == 0 {
        return;
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // Links could lead round in a circle.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), depth - 1, tests);
        }
    }
}
