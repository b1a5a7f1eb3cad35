//! `xtask instructions`: what the same work costs in instructions, against a committed baseline. `make test` fails with it
//! where a case takes more than 3 % more; [`cases`] says what is counted, [`baseline`] how it is compared.
//!
//! The figures are those of the development profile, which `make test` builds anyway: not what mmTLS costs, but
//! whether that has changed. They do not depend on the machine, as far as it has AVX2 ([`callgrind`]), nor on what
//! else it does; they do depend on the compiler.
//!
//! Refuses a release build; skips, loudly, without valgrind or such a processor, and with another compiler than the
//! baseline's: a failure where `MMTLS_REQUIRE_INSTRUCTIONS=1`.

mod baseline;
mod cases;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use mmtls_testkit::skip_unless;

use super::callgrind;
use super::facts::said;
use super::report::table;
use baseline::{Baseline, Counts, Made, UPDATE, percent};
use cases::CASES;

#[derive(clap::Args)]
pub struct InstructionsArgs {
    /// Make what is counted now the baseline.
    #[arg(long)]
    update: bool,
    /// Do one case's work: what is started to be counted.
    #[arg(long, value_name = "CASE", hide = true)]
    case: Option<String>,
}

/// A skip for want of a machine or a compiler is a failure where this is `1`.
const REQUIRE: &str = "MMTLS_REQUIRE_INSTRUCTIONS";

/// The profile that `make test` builds.
const PROFILE: &str = "dev";

pub fn run(args: &InstructionsArgs) -> Result<(), String> {
    if let Some(name) = &args.case {
        return case(name);
    }
    if !cfg!(debug_assertions) {
        return Err(format!(
            "this is a release build, and counts are of profile `{PROFILE}`, which `make test` builds: cargo xtask instructions"
        ));
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        skip_unless(REQUIRE, "valgrind is not installed");
        return Ok(());
    }
    let path = baseline::path();
    let old = Baseline::read(&path);
    if !args.update {
        // Before minutes are spent.
        old.as_ref().map_err(Clone::clone)?;
    }
    let (counts, processor) = count()?;
    let made = Made {
        profile: PROFILE.to_owned(),
        rustc: said("rustc", &["--version"]),
        processor,
        libc: said("ldd", &["--version"]),
        valgrind: said("valgrind", &["--version"]),
    };
    print(&counts, old.as_ref().ok());
    if args.update {
        Baseline { made, instructions: counts }.write(&path)?;
        println!("written: bench/instructions.json");
        return Ok(());
    }
    let old = old?;
    if let Some(reason) = old.differs(&made) {
        skip_unless(REQUIRE, &reason);
        return Ok(());
    }
    let findings = old.compare(&counts);
    for line in &findings.better {
        println!("{line}");
    }
    if findings.worse.is_empty() {
        return Ok(());
    }
    if old.made != made {
        println!("baseline: {:?}\nhere:     {made:?}", old.made);
    }
    println!("which functions: callgrind_annotate {}/CASE", profiles()?.display());
    Err(format!(
        "{} of {} cases:\n  {}",
        findings.worse.len(),
        counts.len(),
        findings.worse.join("\n  ")
    ))
}

/// One case's work, and the processor that it saw.
fn case(name: &str) -> Result<(), String> {
    let (_, replay) =
        CASES.iter().find(|(case, _)| *case == name).ok_or_else(|| format!("no case {name}"))?;
    replay()?;
    println!("{}", processor());
    Ok(())
}

/// Counts every case, as many at a time as there are processors.
fn count() -> Result<(Counts, String), String> {
    let profiles = profiles()?;
    std::fs::create_dir_all(&profiles)
        .map_err(|error| format!("{}: {error}", profiles.display()))?;
    let waiting = Mutex::new(CASES.iter().map(|(case, _)| *case).collect::<VecDeque<_>>());
    let next = || waiting.lock().ok()?.pop_front();
    let worker = || {
        let mut counted = Vec::new();
        while let Some(case) = next() {
            let one = callgrind::run(&["instructions", "--case", case], &profiles.join(case));
            counted.push((case, one.map_err(|error| format!("{case}: {error}"))?));
        }
        Ok::<_, String>(counted)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(CASES.len())).map(|_| scope.spawn(worker)).collect();
        let joined = workers.into_iter().map(|it| it.join().map_err(|_| "a panic".to_owned())?);
        joined.collect::<Result<Vec<_>, String>>()
    })?;
    let (mut counts, mut processor) = (Counts::new(), String::new());
    for (case, (instructions, printed)) in all.into_iter().flatten() {
        counts.insert(case.to_owned(), instructions);
        processor = printed.trim().to_owned();
    }
    Ok((counts, processor))
}

/// Where callgrind leaves which function took what.
fn profiles() -> Result<PathBuf, String> {
    let binaries = crate::binaries()?;
    Ok(binaries.parent().unwrap_or(Path::new(".")).join("instructions"))
}

/// Which features are there of those that any library of ours asks for.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! features {
            ($($name:tt)*) => { [$(($name, std::arch::is_x86_feature_detected!($name))),*] };
        }
        let features = features!(
            "ssse3" "sse4.1" "sse4.2" "popcnt" "aes" "pclmulqdq" "avx" "fma" "movbe" "lzcnt" "bmi1" "bmi2" "avx2" "adx"
            "sha" "gfni" "vaes" "vpclmulqdq" "avx512f" "avx512bw" "avx512vl"
        );
        let present: Vec<_> = features.iter().filter(|it| it.1).map(|it| it.0).collect();
        present.join(" ")
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}

fn print(counts: &Counts, old: Option<&Baseline>) {
    let rows: Vec<_> = counts
        .iter()
        .map(|(case, &now)| {
            let before = old.and_then(|old| old.instructions.get(case));
            let [before, change] = before.map_or_else(Default::default, |&before| {
                [before.to_string(), format!("{:+.2} %", percent(before, now))]
            });
            vec![case.clone(), before, now.to_string(), change]
        })
        .collect();
    table(
        &format!("instructions ({UPDATE} makes them the baseline)"),
        &["case", "baseline", "now", "change"],
        &rows,
    );
}
