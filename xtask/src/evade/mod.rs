//! `xtask evade`: attacks on the inspection, live, against real TLS stacks.
//!
//! Every attack runs twice: over a plain bridge, which says whether it works at all with this peer, and through
//! mmTLS, where it must fail. The oracle is the application: without shared keys and with
//! `--missing-keys reset`, no byte of a response may arrive.
//!
//! Refuses to count what proves nothing: an attack that fails over the bridge, and a run whose
//! controls (an ordinary session, which must be reset) did not hold.

mod attack;
mod cases;
mod lane;
mod peers;
mod script;
mod station;
mod tls;
mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use attack::Outcome;
use lane::Lane;
use script::Case;

/// `xtask evade`
#[derive(clap::Args)]
pub struct EvadeArgs {
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only these servers.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    servers: Vec<String>,
    /// IPv4 alone.
    #[arg(long, conflicts_with = "v6")]
    v4: bool,
    /// IPv6 alone.
    #[arg(long)]
    v6: bool,
    /// Attacks at a time.
    #[arg(long, default_value_t = 200)]
    parallel: usize,
    /// Print the named cases, and do nothing.
    #[arg(long)]
    list: bool,
    /// Where the servers' programs are built.
    #[arg(long, default_value = "out/interop/build", value_name = "DIR")]
    build: PathBuf,
}

/// One attack on one server.
struct Trial {
    name: String,
    case: Arc<Case>,
    server: &'static str,
    v6: bool,
}

/// Runs it.
pub fn run(args: &EvadeArgs) -> Result<(), String> {
    let start = Instant::now();
    let named = named(args)?;
    if args.list {
        for (name, case) in &named {
            println!("{name}: {case}");
        }
        return Ok(());
    }
    fs::create_dir_all(&args.build).map_err(|error| error.to_string())?;
    let build = args.build.canonicalize().map_err(|error| error.to_string())?;
    let wanted: Vec<&str> = peers::NAMES
        .iter()
        .map(|it| it.0)
        .filter(|it| args.servers.is_empty() || args.servers.iter().any(|name| name == it))
        .collect();
    let (programs, missing) = peers::build(&wanted, &build);
    for reason in &missing {
        println!("evade: SKIP: {reason}");
    }
    let binaries = crate::binaries()?;
    let configure = |_: &_, mut options: mmtls_testkit::MmtlsOptions| {
        options.config = Some("[policies]\nbypass = [\"10.78.0.1:4433\", \"[fd78::1]:4433\"]\n".to_owned());
        Ok(options)
    };
    let plain = Lane::start(&programs, None, &configure, 1)?;
    let guarded = Lane::start(&programs, Some(&binaries), &configure, 1)?;
    let mut trials = Vec::new();
    for v6 in [false, true] {
        if v6 && args.v4 || !v6 && args.v6 {
            continue;
        }
        for program in &programs {
            let control = Arc::new("stream".parse::<Case>()?);
            trials.push(Trial { name: "control".to_owned(), case: control, server: program.name, v6 });
            for (name, case) in &named {
                let (name, case) = (name.clone(), Arc::clone(case));
                trials.push(Trial { name, case, server: program.name, v6 });
            }
        }
    }
    let both = run_both(&plain, &guarded, &trials, args.parallel)?;
    let mut counts = BTreeMap::<&str, usize>::new();
    for (trial, (bridge, through)) in trials.iter().zip(&both) {
        let verdict = match (bridge.is_success(), through.is_success()) {
            (true, true) => "ESCAPED",
            (true, false) => "held",
            (false, false) => "refused",
            (false, true) => "ESCAPED (not over the bridge)",
        };
        *counts.entry(verdict).or_default() += 1;
        println!(
            "{verdict:8} {} {} {}: bridge {bridge:?}, mmtls {through:?}",
            trial.server,
            if trial.v6 { "v6" } else { "v4" },
            trial.name
        );
    }
    println!("evade: {} trials in {:.1} s: {counts:?}", trials.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn named(args: &EvadeArgs) -> Result<Vec<(String, Arc<Case>)>, String> {
    let all = cases::CLIENT.iter().copied().flatten();
    all.filter(|it| args.only.as_ref().is_none_or(|text| it.0.contains(text)))
        .map(|(name, script)| {
            let case = script.parse().map_err(|error| format!("{name}: {error}"))?;
            Ok(((*name).to_owned(), Arc::new(case)))
        })
        .collect()
}

fn run_both(
    plain: &Lane,
    guarded: &Lane,
    trials: &[Trial],
    parallel: usize,
) -> Result<Vec<(Outcome, Outcome)>, String> {
    let jobs = |lane: &Lane| {
        trials
            .iter()
            .enumerate()
            .map(|(at, it)| lane.job(&it.case, &at.to_string(), it.server, it.v6))
            .collect::<Vec<_>>()
    };
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| plain.attack(jobs(plain), parallel));
        let other = guarded.attack(jobs(guarded), parallel);
        (one.join(), other)
    });
    let one = one.map_err(|_| "a thread has panicked")??;
    Ok(one.into_iter().zip(other?).collect())
}
