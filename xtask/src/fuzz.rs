//! Fuzzing with the stable toolchain: runs every target of `fuzz/` for a while, from the committed
//! seeds on, as many at a time as there are processors.
//!
//! Job: build as cargo-fuzz does, but without nightly and without AddressSanitizer (the fuzzed
//! crates forbid unsafe code; `--asan` adds it), and instrument the workspace's crates only, on top
//! of what tests have built; print what each target did; keep an input that fails under
//! `fuzz/artifacts` and say how to run it again. What libFuzzer learns goes to a
//! temporary directory: the tree changes only when something was found.
//! Refuses targets that have no source file, and source files that have no entry here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What `cargo xtask fuzz` can be told.
#[derive(clap::Args)]
pub struct FuzzArgs {
    /// Seconds for each target [default: a fixed number of inputs, which take about ten].
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Only this target.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// At most this many inputs per target.
    #[arg(long, value_name = "N")]
    runs: Option<u64>,
    /// What random choices start from. The inputs are much the same again, not quite: addresses, and in some targets hash
    /// tables, are random, too.
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// Start from this directory and keep there what is learned: one subdirectory per target.
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Build with AddressSanitizer, for the libraries beneath.
    #[arg(long)]
    asan: bool,
    /// Build for hours: optimised as what ships, and without the tracing of comparisons, which takes half of the time.
    #[arg(long, conflicts_with = "asan")]
    long: bool,
}

/// A target and what it may use.
struct Target {
    name: &'static str,
    /// Longest input in bytes: longer ones cost time and find nothing else.
    max_len: u32,
    /// Inputs that take about ten seconds: so many are run where no time is given, on every machine.
    runs: u64,
}

const fn target(name: &'static str, max_len: u32, runs: u64) -> Target {
    Target { name, max_len, runs }
}

const TARGETS: [Target; 19] = [
    target("packet_path", 4096, 15_000),
    target("openings", 512, 7_500),
    target("worker", 1024, 2_000),
    target("session", 4096, 3_500),
    target("tls_deframer", 8192, 5_000),
    target("recognition", 8192, 30_000),
    target("record_open", 4096, 250_000),
    target("http1", 8192, 60_000),
    target("http2", 8192, 100_000),
    target("websocket", 4096, 80_000),
    target("codings", 4096, 40_000),
    target("literal", 2048, 2_500),
    target("rules", 4096, 50_000),
    target("detect", 4096, 45_000),
    target("key_message", 8192, 250_000),
    target("agent_datagram", 1024, 2_000_000),
    target("capture_reader", 16384, 30_000),
    target("keylog", 8192, 9_000),
    target("keylog_line", 2048, 1_000_000),
];

/// Resident memory in MB, libFuzzer's own included: the bound on what an input can claim.
const RSS_LIMIT_MB: u32 = 512;
/// AddressSanitizer keeps freed memory for a while, and shadows all of it.
const ASAN_RSS_FACTOR: u32 = 6;
/// Seconds that one input may take.
const INPUT_TIMEOUT_SECONDS: u32 = 20;
/// Longest input that is printed, in bytes.
const MAX_PRINTED: usize = 4096;
/// How long a target may go on after its time: reading seeds, and one last input.
const PATIENCE: Duration = Duration::from_secs(120);
/// As long may a fixed number of inputs take, also beside other work.
const LONGEST: Duration = Duration::from_secs(900);

/// Builds the targets and runs them, a few at a time.
///
/// # Errors
/// What could not be built, or which targets failed, with the failing inputs and how to run them.
pub fn run(args: &FuzzArgs) -> Result<(), String> {
    let package = package()?;
    check_targets(&package)?;
    let chosen: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| args.target.as_deref().is_none_or(|name| name == target.name))
        .collect();
    if chosen.is_empty() {
        let names = TARGETS.map(|target| target.name).join(", ");
        return Err(format!("no such target; there are: {names}"));
    }
    let programs = build(&package, &chosen, args)?;

    let own = TemporaryDirectory::create()?;
    println!(
        "{:<16}{:>12}{:>10}{:>8}{:>10}{:>9}",
        "target", "inputs", "seconds", "blocks", "features", "corpus"
    );
    let waiting = Mutex::new(chosen.into_iter());
    let failures = Mutex::new(Vec::new());
    let work = || {
        while let Some(target) = next(&waiting) {
            let corpus = args.corpus.as_deref().unwrap_or(own.path()).join(target.name);
            fs::create_dir_all(&corpus)
                .map_err(|error| format!("{}: {error}", corpus.display()))?;
            let program = programs.join(target.name);
            let run = Run { package: &package, program: &program, corpus: &corpus };
            match run.fuzz(target, args)? {
                Outcome::Passed(line) => println!("{line}"),
                Outcome::Failed(report) => {
                    println!("{:<16}FAILED", target.name);
                    eprintln!("{report}");
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(target.name);
                }
            }
        }
        Ok(())
    };
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| -> Result<(), String> {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|_| Err("a worker panicked".to_owned()))?;
        }
        Ok(())
    })?;
    verdict(&failures.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The next one that waits.
fn next<T>(waiting: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
}

fn verdict(failures: &[&str]) -> Result<(), String> {
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("fuzzing failed: {}", failures.join(", ")))
    }
}

/// The fuzz package: below the working directory or one of its parents, else where xtask was built.
fn package() -> Result<PathBuf, String> {
    let here = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    here.ancestors()
        .chain([built.as_path()])
        .map(|root| root.join("fuzz"))
        .find(|package| package.join("fuzz_targets").is_dir())
        .and_then(|package| package.canonicalize().ok())
        .ok_or_else(|| "no fuzz/fuzz_targets above the working directory".to_owned())
}

/// A target that nobody runs is worse than none.
fn check_targets(package: &Path) -> Result<(), String> {
    let directory = package.join("fuzz_targets");
    let entries =
        fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let sources: BTreeSet<String> = entries
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    let listed: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    match sources.symmetric_difference(&listed).next() {
        None => Ok(()),
        Some(name) => Err(format!("{name}: in fuzz_targets or in xtask/src/fuzz.rs, not in both")),
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{what}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{what}: {status}"))
}

/// Builds the chosen targets; returns where they are. With AddressSanitizer, everything is built
/// anew, with its flags.
fn build(package: &Path, chosen: &[&Target], args: &FuzzArgs) -> Result<PathBuf, String> {
    let wrapper = package.join("../scripts/fuzz-rustc");
    let mut command = cargo();
    command.args(["build", "--quiet", "--locked", "--package", "mmtls-fuzz"]);
    command.args(["--features", "libfuzzer", "--manifest-path"]).arg(package.join("Cargo.toml"));
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    for target in chosen {
        command.args(["--bin", target.name]);
    }
    let mut target_dir = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| package.join("../target"), PathBuf::from);
    if args.long {
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "3").env("CARGO_PROFILE_DEV_CODEGEN_UNITS", "1");
        command.env("CARGO_INCREMENTAL", "0").env("MMTLS_FUZZ_COMPARES", "0");
        target_dir = package.join("target/long");
    }
    if args.asan {
        // With --target, build scripts and macros are built without the flags.
        let host = host()?;
        command.args(["--target", &host]);
        // The only flag that the stable compiler does not take otherwise.
        command.env("RUSTC_BOOTSTRAP", "1");
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", "-Zsanitizer=address");
        command.arg("--target-dir").arg(package.join("target/asan"));
        target_dir = package.join("target/asan").join(host);
    } else {
        command.arg("--target-dir").arg(&target_dir);
    }
    succeed(&mut command, "building the fuzz targets (needs a C++ compiler)")?;
    Ok(target_dir.join("debug"))
}

fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}

enum Outcome {
    Passed(String),
    Failed(String),
}

struct Run<'a> {
    package: &'a Path,
    program: &'a Path,
    corpus: &'a Path,
}

impl Run<'_> {
    /// One that was cut short has another go.
    fn fuzz(&self, target: &Target, args: &FuzzArgs) -> Result<Outcome, String> {
        let (outcome, cut_short) = self.attempt(target, args)?;
        if !cut_short {
            return Ok(outcome);
        }
        Ok(match self.attempt(target, args)? {
            (Outcome::Passed(line), true) => {
                Outcome::Passed(format!("{line}  cut short twice: the machine is too busy"))
            }
            (outcome, _) => outcome,
        })
    }

    /// Also says whether it ended before its time, since the machine was too busy for one input,
    /// which is quick alone.
    fn attempt(&self, target: &Target, args: &FuzzArgs) -> Result<(Outcome, bool), String> {
        let artifacts = self.package.join("artifacts").join(target.name);
        fs::create_dir_all(&artifacts)
            .map_err(|error| format!("{}: {error}", artifacts.display()))?;
        let before = files(&artifacts);
        let rss_limit_mb = RSS_LIMIT_MB * if args.asan { ASAN_RSS_FACTOR } else { 1 };
        let mut prefix = OsString::from("-artifact_prefix=");
        prefix.push(artifacts.join(""));
        let log = self.corpus.with_extension("log");
        let stderr = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(self.program);
        let runs = args.runs.or(args.seconds.is_none().then_some(target.runs));
        command
            .args(args.seconds.map(|seconds| format!("-max_total_time={seconds}")))
            .arg(format!("-max_len={}", target.max_len))
            .arg(format!("-rss_limit_mb={rss_limit_mb}"))
            .arg(format!("-timeout={INPUT_TIMEOUT_SECONDS}"))
            .arg("-print_final_stats=1")
            .arg(prefix)
            .args(runs.map(|runs| format!("-runs={runs}")))
            .args(args.seed.map(|seed| format!("-seed={seed}")))
            .arg(self.corpus)
            .arg(self.package.join("seeds").join(target.name))
            .args(Some(self.package.join("regressions").join(target.name)).filter(|it| it.is_dir()))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let started = Instant::now();
        let patience = args.seconds.map_or(LONGEST, Duration::from_secs) + PATIENCE;
        let passed = wait(&mut command, self.program, patience)?;
        let text = read(&log);
        let found: Vec<PathBuf> = files(&artifacts).difference(&before).cloned().collect();
        if passed && found.is_empty() {
            return Ok((Outcome::Passed(summary(target.name, started.elapsed(), &text)), false));
        }
        if !found.is_empty() && self.are_quick(&found)? {
            let line = summary(target.name, started.elapsed(), &text);
            return Ok((Outcome::Passed(line), !passed));
        }
        Ok((Outcome::Failed(self.report(&text, &found)), false))
    }

    /// Whether all that was found are inputs that took too long, and do not when they run alone:
    /// the clock goes on while others have the processor. Such inputs are removed.
    fn are_quick(&self, found: &[PathBuf]) -> Result<bool, String> {
        let slow = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("timeout-") || name.starts_with("slow-unit-"))
        };
        if !found.iter().all(slow) {
            return Ok(false);
        }
        let mut command = Command::new(self.program);
        command.arg(format!("-timeout={INPUT_TIMEOUT_SECONDS}")).args(found);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Not among the artifacts: what is written there has been found.
        command.current_dir(self.corpus);
        let quick = wait(&mut command, self.program, PATIENCE)?;
        if quick {
            for path in found {
                fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(quick)
    }

    fn report(&self, log: &str, found: &[PathBuf]) -> String {
        // From the panic on; libFuzzer's own words follow it.
        let lines: Vec<&str> = log.lines().collect();
        let from = lines
            .iter()
            .position(|line| line.contains("panicked at") || line.contains("ERROR: "))
            .unwrap_or(lines.len().saturating_sub(30));
        let mut report: Vec<String> =
            lines[from..].iter().take(40).map(|line| format!("  {line}")).collect();
        if found.is_empty() {
            report.push("no failing input was kept".to_owned());
        }
        for path in found {
            report.push(format!("failing input: {}", path.display()));
            // Where nothing but what was printed is left of a run; `xxd -r -p` turns it back.
            if let Ok(bytes) = fs::read(path)
                && bytes.len() <= MAX_PRINTED
            {
                report.push(format!("its bytes:     {}", base16ct::lower::encode_string(&bytes)));
            }
            report.push(format!("run again:     {} {}", self.program.display(), path.display()));
            report.push(format!(
                "minimise:      {} -minimize_crash=1 -max_total_time=60 {}",
                self.program.display(),
                path.display()
            ));
        }
        report.push("once it is fixed, move the input to fuzz/regressions/TARGET/".to_owned());
        report.join("\n")
    }
}

/// Whether the command ends well; it is killed when it does not end.
fn wait(command: &mut Command, program: &Path, patience: Duration) -> Result<bool, String> {
    let failed = |error| format!("{}: {error}", program.display());
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status.success());
        }
        if Instant::now() > deadline {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Err(format!("{}: did not end and was killed", program.display()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is missing from a report, no more.
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn files(directory: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// One line of the table, from libFuzzer's last words.
fn summary(name: &str, elapsed: Duration, log: &str) -> String {
    let last = log.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or("");
    let field = |key: &str| {
        let mut words = last.split_whitespace().skip_while(|word| *word != key);
        words.nth(1).unwrap_or("?").to_owned()
    };
    let inputs = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("?", str::trim);
    let corpus = field("corp:");
    let corpus = corpus.split('/').next().unwrap_or("?");
    format!(
        "{name:<16}{inputs:>12}{:>10.1}{:>8}{:>10}{corpus:>9}",
        elapsed.as_secs_f64(),
        field("cov:"),
        field("ft:"),
    )
}

/// Removed with everything in it when dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn create() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("mmtls-fuzz-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // A leftover in the temporary directory is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_last_words_of_libfuzzer() {
        let log = "#9\tNEW    cov: 5 ft: 6 corp: 2/9b\n\
                   #4705\tDONE   cov: 1072 ft: 2941 corp: 311/325Kb lim: 4096 exec/s: 5949 rss: 29Mb\n\
                   stat::number_of_executed_units: 65444\n";
        let line = summary("session", Duration::from_millis(10_020), log);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["session", "65444", "10.0", "1072", "2941", "311"]);
        assert!(summary("session", Duration::ZERO, "").contains('?'));
    }

    #[test]
    fn accepts_the_targets_of_this_tree() {
        check_targets(&package().unwrap()).unwrap();
    }

    #[test]
    fn refuses_nothing_to_say_about_a_failure() {
        let path = PathBuf::from("/x/artifacts/session/crash-1");
        let run = Run {
            package: Path::new("/x"),
            program: Path::new("/x/session"),
            corpus: Path::new("/y"),
        };
        let log = "noise\nthread panicked at src/session.rs:1:2:\nbroken\n";
        let report = run.report(log, &[path]);
        assert!(report.starts_with("  thread panicked at") && report.contains("  broken"));
        assert!(report.contains("run again:     /x/session /x/artifacts/session/crash-1"));
        assert!(run.report(log, &[]).contains("no failing input was kept"));
    }
}
