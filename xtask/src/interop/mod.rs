//! `xtask interop`: real TLS stacks talk to each other, and mmTLS must follow.
//!
//! 1. [`stack`]: build the endpoints in `xtask/interop`.
//! 2. [`drive`]: run the cases of [`matrix`] one by one in a testbed, under one capture.
//! 3. [`split`]: cut the capture into one per case.
//! 4. [`judge`]: `mmtls read` each, compare with what the programs sent.
//! 5. [`report`]: sums, JSON, and the manifest of the corpus.
//! 6. [`document`]: the page and the matrix.
//!
//! The endpoints are programs of ours, one per library and all with the same arguments (`xtask/interop`), not the stacks' own
//! tools: those differ in how they take input, renegotiate and resume, few update keys, and what they sent is not always
//! known to the byte. All cases run under one capture: one for each would take ten times as long.
//!
//! Refuses to pass when a case failed, or did not come about: an untested case proves nothing.

mod browser;
mod case;
mod document;
mod drive;
mod judge;
mod matrix;
mod report;
mod split;
pub mod stack;
pub mod stacks;
mod suite;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mmtls_testkit::{Capture, Middle, Options, Testbed, TestbedError};

use crate::bench::facts::{commit, said};
use crate::progress::Progress;

use case::Case;
use drive::{Built, Driven, FIRST_PORT, NotDriven};
use matrix::Set;
use report::{CorpusEntry, Outcome, Report, StackFacts, Totals, Verdict};
use stacks::STACKS;

/// `xtask interop`
#[derive(clap::Args)]
pub struct InteropArgs {
    /// A subset of the stacks and cases, for `make test`. Does not write the document.
    #[arg(long)]
    quick: bool,
    /// The cases in which a side has the private tag (see `make openssl`). Does not write the
    /// document.
    #[arg(long, conflicts_with = "quick")]
    private_tag: bool,
    /// Build the endpoints, and no more: this may need the network, which a testbed has not.
    #[arg(long)]
    build: bool,
    /// Only cases whose name contains this. Does not write the document.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where programs, captures and key logs go.
    #[arg(long, default_value = "out/interop", value_name = "DIR")]
    out: PathBuf,
    /// Document that the full run writes, with the matrix as CSV beside it.
    #[arg(long, default_value = "docs/interoperability.md", value_name = "FILE")]
    document: PathBuf,
}

/// Runs it.
pub fn run(args: &InteropArgs) -> Result<(), String> {
    let start = Instant::now();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop");
    let io = |error: std::io::Error| format!("{}: {error}", args.out.display());
    fs::create_dir_all(args.out.join("build")).map_err(io)?;
    let out = args.out.canonicalize().map_err(io)?;
    let set = match (args.quick, args.private_tag) {
        (true, _) => Set::Quick,
        (_, true) => Set::PrivateTag,
        _ => Set::Full,
    };
    let mut cases: Vec<(String, Case)> =
        matrix::cases(set).into_iter().map(|case| (name(&case), case)).collect();
    if let Some(text) = &args.only {
        cases.retain(|(name, _)| name.contains(text));
    }
    let used =
        |index: usize| cases.iter().any(|(_, case)| case.client == index || case.server == index);
    let (built, facts) = build(&source, &out.join("build"), used);
    let unfit = facts.iter().filter_map(|it| it.missing.as_ref().map(|reason| (it.name, reason)));
    let unfit: Vec<String> = unfit
        .filter(|(name, reason)| !may_be_missing(set, name, reason))
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    if !unfit.is_empty() {
        return Err(format!("endpoints that there must be: {}", unfit.join("; ")));
    }
    if args.build {
        return Ok(());
    }
    let corpus = out.join("corpus");
    let _ = fs::remove_dir_all(&corpus);
    fs::create_dir_all(&corpus).map_err(io)?;
    let bed = match Testbed::with_options(&Options {
        middle: Middle::KernelBridge,
        ..Options::default()
    }) {
        Ok(bed) => bed,
        Err(TestbedError::Unavailable(reason)) => {
            return Err(format!("cannot make network namespaces here: {reason}"));
        }
        Err(error) => return Err(error.to_string()),
    };
    let (driven, capture) = drive_all(&bed, &built, &facts, &cases, &corpus)?;
    drop(bed);
    let (outcomes, entries) = judge_all(&cases, driven, &capture, &corpus)?;
    let _ = fs::remove_file(&capture);

    let totals = Totals::of(&outcomes);
    let report = Report {
        date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        commit: commit(),
        seconds: start.elapsed().as_secs(),
        quick: args.quick,
        totals,
        stacks: &facts,
        outcomes: &outcomes,
    };
    report::write_json(&out.join("interop.json"), &report)?;
    report::write_json(&out.join("corpus.json"), &entries)?;
    if set == Set::Full && args.only.is_none() {
        for path in document::write(&report, &args.document)? {
            println!("interop: {} written", path.display());
        }
    }
    println!(
        "interop: {} cases: {} ok, {} failed, {} not driven, {} skipped; {} sessions, \
         {} decrypted; {} records opened, {} failed; {} bytes; {} s",
        totals.cases,
        totals.ok,
        totals.failed,
        totals.not_driven,
        totals.skipped,
        totals.sessions,
        totals.decrypted,
        totals.records_opened,
        totals.records_failed,
        totals.bytes,
        report.seconds
    );
    match totals.failed + totals.not_driven {
        _ if totals.ok == 0 => Err("no case was ok".to_owned()),
        0 => Ok(()),
        count => Err(format!("{count} cases are not as they must be")),
    }
}

/// Whether a run may go on without a stack: one that this machine does not have, and not one whose
/// endpoint is broken, that the run is about, or that `scripts/setup test` has installed.
fn may_be_missing(set: Set, name: &str, reason: &str) -> bool {
    match set {
        Set::Quick => stack::is_too_old(reason),
        Set::PrivateTag if STACKS.iter().any(|it| it.name == name && it.private_tag) => false,
        _ => stack::is_absent(reason),
    }
}

/// `openssl-gnutls-1.3-TLS_AES_128_GCM_SHA256-full`
fn name(case: &Case) -> String {
    let suite = case.suite.map(|suite| format!("-{}", suite.iana())).unwrap_or_default();
    format!(
        "{}-{}-{}{suite}-{}",
        STACKS[case.client].name,
        STACKS[case.server].name,
        case.version.number(),
        case.feature.name()
    )
}

fn build(
    source: &Path,
    target: &Path,
    used: impl Fn(usize) -> bool,
) -> (Vec<Option<Built>>, Vec<StackFacts>) {
    let mut built = Vec::new();
    let mut facts = Vec::new();
    for (index, stack) in STACKS.iter().enumerate() {
        if !used(index) {
            built.push(None);
            continue;
        }
        let result = stack.build(source, target).and_then(|command| {
            let version = stack::version(stack, &command)?;
            Ok((command, version))
        });
        let version = result.as_ref().map(|it| it.1.clone()).unwrap_or_default();
        match &result {
            Ok(_) => println!("interop: {}: {version}", stack.name),
            Err(reason) => println!("interop: SKIP: {}: {reason}", stack.name),
        }
        facts.push(StackFacts {
            name: stack.name,
            version,
            missing: result.as_ref().err().cloned(),
        });
        built.push(result.ok().map(|(command, _)| Built { stack, command }));
    }
    (built, facts)
}

type AllDriven = Vec<Result<Driven, (Verdict, String)>>;

/// Runs all cases under one capture: starting one for each would take most of the time.
fn drive_all(
    bed: &Testbed,
    built: &[Option<Built>],
    facts: &[StackFacts],
    cases: &[(String, Case)],
    corpus: &Path,
) -> Result<(AllDriven, PathBuf), String> {
    let text = |error: TestbedError| error.to_string();
    let whole = corpus.join("all.pcap");
    let capture = Capture::start(bed, &bed.middlebox, "left", &whole, "tcp").map_err(text)?;
    let mut all = Vec::new();
    let mut progress = Progress::new("cases driven", cases.len());
    for (number, (name, case)) in cases.iter().enumerate() {
        progress.step();
        let missing = [case.client, case.server].into_iter().find(|index| built[*index].is_none());
        if let Some(index) = missing {
            let stack = STACKS[index].name;
            let reason = facts.iter().find(|it| it.name == stack).and_then(|it| it.missing.clone());
            all.push(Err((Verdict::Skipped, format!("{stack}: {}", reason.unwrap_or_default()))));
            continue;
        }
        if let Some(reason) = stacks::incompatible(case) {
            all.push(Err((Verdict::Skipped, reason.to_owned())));
            continue;
        }
        let port = port(number)?;
        let result = drive::drive(bed, built, case, port, &corpus.join(name));
        all.push(result.map_err(|reason| match reason {
            NotDriven::NoKeyLog => {
                (Verdict::Skipped, "neither side writes a key log of such sessions".to_owned())
            }
            NotDriven::Failed(reason) => {
                println!("interop: NOT DRIVEN: {name}: {reason}");
                (Verdict::NotDriven, reason)
            }
        }));
    }
    capture.stop().map_err(text)?;
    Ok((all, whole))
}

fn port(number: usize) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .and_then(|number| FIRST_PORT.checked_add(number))
        .filter(|port| *port < 32_768)
        .ok_or_else(|| "more cases than ports below the ephemeral ones".to_owned())
}

fn judge_all(
    cases: &[(String, Case)],
    driven: AllDriven,
    whole: &Path,
    corpus: &Path,
) -> Result<(Vec<Outcome>, Vec<CorpusEntry>), String> {
    let mmtls = crate::binaries()?.join("mmtls");
    let mut targets = BTreeMap::new();
    for (number, (name, _)) in cases.iter().enumerate() {
        if driven[number].is_ok() {
            targets.insert(port(number)?, corpus.join(name).join("capture.pcapng"));
        }
    }
    split::split(whole, &targets)?;
    let mut outcomes = Vec::new();
    let mut entries = Vec::new();
    let mut progress = Progress::new("cases judged", cases.len());
    for (number, ((name, case), driven)) in cases.iter().zip(driven).enumerate() {
        progress.step();
        let driven = match driven {
            Ok(driven) => driven,
            Err((verdict, reason)) => {
                outcomes.push(Outcome::new(name.clone(), *case, verdict, Some(reason)));
                continue;
            }
        };
        let capture = targets[&port(number)?].clone();
        let judged = judge::judge(&mmtls, case, &driven, &capture, &corpus.join(name));
        let mut outcome = Outcome::new(name.clone(), *case, Verdict::Ok, None);
        match judged {
            Ok((seen, faults)) => {
                outcome.seen = Some(seen);
                outcome.reasons = faults;
            }
            Err(reason) => outcome.reasons.push(reason),
        }
        if !outcome.reasons.is_empty() {
            outcome.verdict = Verdict::Failed;
            println!("interop: FAILED: {name}: {}", outcome.reasons.join("; "));
        }
        entries.push(CorpusEntry::new(&outcome, driven, capture));
        outcomes.push(outcome);
    }
    Ok((outcomes, entries))
}
