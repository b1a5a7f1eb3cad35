//! `xtask evade`: attacks on the inspection, live, against real TLS stacks.
//!
//! Every attack runs twice: over a plain bridge, which says whether it works at all with this peer, and through
//! mmTLS, where it must fail. The oracle is the application: without shared keys and with
//! `--missing-keys reset`, no byte of a response may arrive; with keys and a pattern, its record
//! never does.
//!
//! 1. [`cases`]: attacks with a name, by clients and by servers.
//! 2. [`generate`]: attacks from a seed.
//! 3. [`script`] says what an attack is, [`attack`] carries it out over [`station`]'s raw frames.
//! 4. [`crowd`]: honest connections beside many hostile ones that hold all that they may.
//! 5. [`trial`]: both runs, the verdict, and the shortest script that escapes.
//!
//! Refuses to count what proves nothing: an attack that fails over the bridge, and a run whose
//! controls (ordinary sessions, which must be reset) did not hold.

mod attack;
mod cases;
mod cases_answers;
mod cases_fronts;
mod crowd;
mod front;
mod generate;
mod hold;
mod honest;
mod lane;
mod midstream;
mod peers;
mod report;
mod script;
mod station;
mod text;
mod third;
mod tls;
mod tls12;
mod trial;
mod victims;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mmtls_testkit::{Mmtls, MmtlsOptions, Testbed};

use attack::Outcome;
use lane::Lane;
use report::Tally;
use script::Case;
use third::Forgery;
use tls::{PATTERN, Settings};
use trial::{Arena, Judged, Target, Trial, Verdict};
use victims::Victim;

use crate::impair::{Badness, Links};

/// `xtask evade`
#[derive(clap::Args)]
pub struct EvadeArgs {
    /// A short run for `make test`: the servers that `scripts/setup test` installs, each named case
    /// with one address family, generated ones until so many seconds have passed.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Generated cases; without it and --seconds there are none.
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    cases: Option<u64>,
    /// What generated cases come from.
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// So many honest connections over links that lose, reorder and repeat, with keys shared.
    #[arg(long, value_name = "N")]
    honest: Option<usize>,
    /// So many hostile connections that hold all that they may, and 1,000 honest ones before, beside and
    /// after them, timed; nothing else.
    #[arg(long, value_name = "N")]
    crowd: Option<u32>,
    /// So many honest connections beside hostile ones that make mmTLS hold as many frames as it may;
    /// nothing else.
    #[arg(long, value_name = "N")]
    hold: Option<usize>,
    /// Connections that began before mmTLS did, with `mid_stream` at `bypass` and at `reset`; nothing else.
    #[arg(long)]
    restart: bool,
    /// Only named cases whose name contains one of these, with commas between; `generated/S/N` is a generated one.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// This case, as it was printed.
    #[arg(long, value_name = "TEXT", conflicts_with = "only")]
    script: Option<String>,
    /// Only these servers.
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    servers: Vec<String>,
    /// IPv4 alone.
    #[arg(long, conflicts_with = "v6")]
    v4: bool,
    /// IPv6 alone.
    #[arg(long)]
    v6: bool,
    /// The cases that take most of a minute, too.
    #[arg(long)]
    slow: bool,
    /// Attacks at a time.
    #[arg(long, default_value_t = 600, value_name = "N")]
    parallel: usize,
    /// Print the named cases, and do nothing.
    #[arg(long)]
    list: bool,
    /// Seconds after its start in which mmTLS lets sessions pass that it has not seen begin: its
    /// default is 60, and attackers may use them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    grace: u32,
    /// The policy `mid_stream` of mmTLS, instead of its default.
    #[arg(long, value_name = "POLICY")]
    mid_stream: Option<String>,
    /// Let mmTLS write `eve.json`; with MMTLS_KEEP_TESTBED=1 the testbed's directory stays.
    #[arg(long)]
    log: bool,
    /// Print every trial with its outcomes.
    #[arg(long)]
    verbose: bool,
    /// Write the table of cases by targets here.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Where the servers' programs are built.
    #[arg(long, default_value = "out/interop/build", value_name = "DIR")]
    build: PathBuf,
}

impl EvadeArgs {
    fn is_wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|all| all.split(',').any(|text| name.contains(text)))
    }
}

/// Trials that are judged together.
const BATCH: u64 = 2500;
/// And where the time is short.
const SHORT_BATCH: u64 = 600;
/// Of a generated run's escapes so many are made small: each takes seconds.
const MINIMISED: usize = 8;
/// And where the time is short.
const SHORT_MINIMISED: usize = 2;

/// Runs it.
pub fn run(args: &EvadeArgs) -> Result<(), String> {
    let start = Instant::now();
    let named = named(args)?;
    if !args.list && !mmtls_testkit::require_testbed() {
        return Ok(());
    }
    if args.list {
        for (name, case) in &named {
            println!("{name}: {case}");
        }
        return Ok(());
    }
    fs::create_dir_all(&args.build).map_err(|error| error.to_string())?;
    let build = args.build.canonicalize().map_err(|error| error.to_string())?;
    let quick = args.seconds.is_some();
    let asked = |name: &str| args.servers.is_empty() || args.servers.iter().any(|it| it == name);
    let wanted: Vec<&str> = peers::PEERS
        .iter()
        .map(|it| it.name)
        .filter(|name| asked(name) && peers::versions(name, quick).next().is_some())
        .collect();
    let (programs, missing) = peers::build(&wanted, &build);
    for (count, reason) in missing.iter().enumerate() {
        println!("evade: SKIP: {reason} (skip {} of this run)", count + 1);
    }
    let of = |name| peers::versions(name, quick).map(move |tls12| Target::Server(name, tls12));
    let targets: Vec<Target> = programs.iter().flat_map(|it| of(it.name)).collect();
    let binaries = crate::binaries()?;
    if args.restart {
        let mut bad = 0;
        for program in &programs {
            let findings = midstream::run(program, &binaries, args.seed)?;
            for one in findings.escapes.iter().chain(&findings.harm) {
                println!("evade: ESCAPED OR HARMED: {one}");
            }
            bad += findings.escapes.len() + findings.harm.len();
        }
        return if bad == 0 {
            Ok(())
        } else {
            Err(format!("{bad} did not fare as mid_stream says"))
        };
    }
    if let Some(count) = args.hold {
        let program = programs.first().ok_or("no server")?;
        return none_harmed(&hold::run(program, &binaries, count, args.seed)?);
    }
    let plain = Lane::start(&programs, None, &mut guard, (args.seed, quick))?;
    let mut guard_and_log = |bed: &Testbed, mut options: MmtlsOptions| {
        options.log = args.log;
        let mut options = guard(bed, options)?;
        if let (Some(policy), Some(config)) = (&args.mid_stream, &mut options.config) {
            config.push_str(&format!("mid_stream = \"{policy}\"\n"));
        }
        if let Some(config) = &mut options.config {
            config.push_str(&format!("[limits]\nmid_stream_grace_seconds = {}\n", args.grace));
            if args.crowd.is_some() {
                // So little that they take all of it.
                config.push_str("max_buffered_bytes = 67108864\n");
            }
        }
        Ok(options)
    };
    let guarded = Lane::start(&programs, Some(&binaries), &mut guard_and_log, (args.seed, quick))?;
    let settings = Settings::new(plain.bed.pki())?;
    if let Some(count) = args.crowd {
        return none_harmed(&crowd::run(&guarded, count, 1000, args.seed)?);
    }
    let arena =
        Arena { plain: &plain, guarded: &guarded, settings: &settings, parallel: args.parallel };
    let families: Vec<bool> = [false, true]
        .into_iter()
        .filter(|v6| if *v6 { !args.v4 && plain.bed.has_ipv6() } else { !args.v6 })
        .collect();
    let mut clients = CLIENTS.to_vec();
    if !quick {
        clients.push(Target::Client(Victim::Curl, true));
        clients.push(Target::Client(Victim::SharingCurl, true));
        let others = programs.iter().filter(|it| !["openssl", "rustls"].contains(&it.name));
        clients.extend(others.flat_map(|it| {
            let victim = Victim::Stack(it.name);
            peers::versions(it.name, false)
                // It refuses the attacker's ServerHello ("Invalid Renegotiation Error").
                .filter(move |tls12| !tls12 || it.name != "wolfssl")
                .map(move |tls12| Target::Client(victim, tls12))
        }));
    }
    let mut run = Run { args, arena, targets, clients, families, tally: Tally::default() };
    run.warm_up()?;
    run.control()?;
    let prepared = start.elapsed();
    run.named(&named)?;
    run.third()?;
    let after_named = start.elapsed();
    run.generated(start)?;
    let generated = run.tally.trials();
    run.control()?;
    if let Some(count) = args.honest {
        run.honest(count, &binaries)?;
    }

    if let Some(path) = &args.table {
        fs::write(path, run.tally.table()).map_err(|error| error.to_string())?;
    }
    let tally = run.tally;
    println!(
        "evade: seed {}: {generated} trials, {} held, {} refused by their peer, {} escaped; {} stacks missing; {} honest connections unharmed, {} harmed",
        args.seed,
        tally.count(Verdict::Held),
        tally.count(Verdict::Refused),
        tally.count(Verdict::Escaped),
        missing.len(),
        tally.unharmed,
        tally.harm.len(),
    );
    println!(
        "evade: {:.1} s: {:.1} to prepare, {:.1} for named cases, {:.1} for generated ones",
        start.elapsed().as_secs_f64(),
        prepared.as_secs_f64(),
        (after_named - prepared).as_secs_f64(),
        (start.elapsed() - after_named).as_secs_f64(),
    );
    if tally.escapes.is_empty() && tally.harm.is_empty() {
        return Ok(());
    }
    Err(format!("{} escapes, {} honest connections harmed", tally.escapes.len(), tally.harm.len()))
}

fn none_harmed(harm: &[String]) -> Result<(), String> {
    match harm.first() {
        None => Ok(()),
        Some(first) => Err(format!("{} honest connections harmed: {first}", harm.len())),
    }
}

/// The key channel's address is bypassed, as it is where it has one; patterns are reset.
fn guard(bed: &Testbed, mut options: MmtlsOptions) -> Result<MmtlsOptions, String> {
    let patterns = bed.directory().join("patterns.txt");
    fs::write(&patterns, format!("{PATTERN}\n")).map_err(|error| error.to_string())?;
    let bypass = "[policies]\nbypass = [\"10.78.0.1:4433\", \"[fd78::1]:4433\"]\n";
    options.config = Some(bypass.to_owned());
    options.patterns = Some((patterns, "reset".to_owned()));
    Ok(options)
}

fn named(args: &EvadeArgs) -> Result<Vec<(String, Arc<Case>)>, String> {
    if let Some(text) = &args.script {
        return Ok(vec![("script".to_owned(), Arc::new(text.parse()?))]);
    }
    if let Some(place) = args.only.as_ref().and_then(|it| it.strip_prefix("generated/")) {
        let numbers: Option<Vec<u64>> = place.split('/').map(|it| it.parse().ok()).collect();
        let Some(&[seed, number]) = numbers.as_deref() else {
            return Err(format!("{place} is not SEED/NUMBER"));
        };
        let case = generate::case(seed, number, generate::is_server(number));
        return Ok(vec![(format!("generated/{place}"), Arc::new(case))]);
    }
    use cases_answers::{ACTIVE, COOKIES, PIECES};
    let own = cases::ALL.iter().copied().chain([PIECES, ACTIVE, COOKIES]).flatten();
    let own = own.chain(cases::SLOW).chain(cases_answers::SLOW);
    let own = own.map(|(name, script)| ((*name).to_owned(), (*script).to_owned()));
    let published = cases::PUBLISHED.lines().filter(|line| !line.starts_with('#'));
    let published = published.filter_map(|line| line.split_once(": "));
    let published =
        published.map(|(name, script)| (format!("published/{name}"), script.to_owned()));
    own.chain(cases_fronts::all())
        .chain(published)
        .filter(|it| args.is_wanted(&it.0))
        .map(|(name, script)| {
            let case: Case = script.parse().map_err(|error| format!("{name}: {error}"))?;
            Ok((name, Arc::new(case)))
        })
        .filter(|it| args.slow || args.list || it.as_ref().map_or(true, |it| !it.1.is_slow()))
        .collect()
}

struct Run<'a> {
    args: &'a EvadeArgs,
    arena: Arena<'a>,
    /// Servers, and clients.
    targets: Vec<Target>,
    clients: Vec<Target>,
    families: Vec<bool>,
    tally: Tally,
}

/// Clients of hostile servers that are always there; the first is also that of generated cases.
const CLIENTS: [Target; 3] = [
    Target::Client(Victim::Rustls, false),
    Target::Client(Victim::Curl, false),
    Target::Client(Victim::SharingCurl, false),
];

impl Run<'_> {
    fn ordinary(&self, name: &str, target: Target, v6: bool) -> Trial {
        let server = matches!(target, Target::Client(..));
        let steps = vec![script::Step::Stream(script::Until::End)];
        let case = Arc::new(Case { server, steps, ..Case::default() });
        Trial { name: name.to_owned(), case, target, v6 }
    }

    /// A cold Java answers later than an attack waits.
    fn warm_up(&self) -> Result<(), String> {
        for java in [false, true].map(|tls12| Target::Server("java", tls12)) {
            if !self.targets.contains(&java) {
                continue;
            }
            let one = self.ordinary("warm-up", java, false);
            for _ in 0..15 {
                self.arena.judge(&vec![one.clone(); 10])?;
            }
        }
        Ok(())
    }

    /// The ordinary session works over the bridge, and not through mmTLS.
    fn control(&self) -> Result<(), String> {
        let mut trials = vec![];
        for v6 in &self.families {
            for target in self.targets.iter().chain(&self.clients) {
                trials.push(self.ordinary("control", *target, *v6));
            }
        }
        let mut failure = String::new();
        for _ in 0..4 {
            let results = self.arena.judge(&trials)?;
            let mut rest = vec![];
            for (trial, result) in trials.into_iter().zip(results) {
                if result.verdict == Verdict::Held {
                    continue;
                }
                let (bridge, through) = (result.bridge, result.through);
                let name = trial.target.name();
                failure = format!("{name}: bridge {bridge:?}, mmTLS {through:?}");
                rest.push(trial);
            }
            // A busy machine may fail one of them; what is wrong stays wrong.
            if rest.is_empty() {
                return Ok(());
            }
            trials = rest;
        }
        Err(format!("void: a control is not held: {failure}"))
    }

    fn named(&mut self, named: &[(String, Arc<Case>)]) -> Result<(), String> {
        let mut trials = vec![];
        for (number, (name, case)) in named.iter().enumerate() {
            let targets = if case.server { &self.clients } else { &self.targets };
            // Where the time is short, what others have published goes to one server each, and to
            // the client that costs least and one more.
            let short = self.args.seconds.is_some();
            let once =
                ["published/", "front/", "bare/", "cookies/", "active", "answer/", "fragments/"];
            let published = short && once.iter().any(|it| name.starts_with(it));
            let spared = |at: usize| match case.server {
                true => short && at != 0 && (published || at != 1 + number % 2),
                false => published && at != number % targets.len(),
            };
            for (at, target) in targets.iter().enumerate().filter(|(at, _)| !spared(*at)) {
                for v6 in &self.families {
                    let other_half = (number + at) % 2 == usize::from(*v6);
                    // What is in front is the same in both families.
                    let both = self.args.seconds.is_none() && !name.starts_with("front/");
                    if both || self.families.len() == 1 || other_half {
                        let (name, case) = (name.clone(), Arc::clone(case));
                        trials.push(Trial { name, case, target: *target, v6: *v6 });
                    }
                }
            }
        }
        // The kernel's setting is everybody's.
        trials.sort_by_key(|trial| trial.case.cookies);
        let (plain, cookies) = trials.split_at(trials.partition_point(|it| !it.case.cookies));
        let mut results = self.judge_calmly(plain)?;
        if !cookies.is_empty() {
            self.set_cookies(true)?;
            results.extend(self.judge_calmly(cookies)?);
        }
        self.tally.add(&trials, &results, true);
        for (trial, result) in trials.iter().zip(&results) {
            let family = if trial.v6 { "IPv6" } else { "IPv4" };
            let line = format!(
                "{}: {} {family} {}: bridge {:?}, mmTLS {:?}{}",
                result.verdict.name(),
                trial.target.name(),
                trial.name,
                result.bridge,
                result.through,
                result.local.map(|it| format!(" ({it})")).unwrap_or_default()
            );
            let line = if result.asked { format!("{line}, the server was asked") } else { line };
            if result.verdict == Verdict::Escaped {
                println!("evade: {line}: {}", trial.case);
                self.tally.escapes.push(line);
                if self.args.script.is_some() || trial.name.starts_with("generated/") {
                    println!("evade: made small: {}", self.arena.minimise(trial)?);
                }
            } else if self.args.verbose {
                println!("evade: {line}");
            }
        }
        self.set_cookies(false)
    }

    fn set_cookies(&self, on: bool) -> Result<(), String> {
        self.arena.plain.set_cookies(on)?;
        self.arena.guarded.set_cookies(on)
    }

    /// A busy machine looks like a silent peer: those are tried again.
    fn judge_calmly(&self, trials: &[Trial]) -> Result<Vec<Judged>, String> {
        let mut results = self.arena.judge(trials)?;
        let silent = |it: &Judged| it.bridge == Outcome::Silent && it.verdict == Verdict::Refused;
        let again: Vec<usize> = (0..trials.len()).filter(|at| silent(&results[*at])).collect();
        let repeated: Vec<Trial> = again.iter().map(|at| trials[*at].clone()).collect();
        if self.args.verbose {
            println!(
                "evade: {} of {} trials again, with less at a time",
                again.len(),
                trials.len()
            );
        }
        let calm = Arena { parallel: 100, ..self.arena };
        for (at, result) in again.into_iter().zip(calm.judge(&repeated)?) {
            results[at] = result;
        }
        Ok(results)
    }

    fn generated(&mut self, start: Instant) -> Result<(), String> {
        let limit = match (self.args.seconds, self.args.cases) {
            (Some(_), _) => u64::MAX,
            (None, Some(count)) => count,
            (None, None) => 0,
        };
        let end = self.args.seconds.map(|it| start + Duration::from_secs(it));
        let mut minimised: Vec<String> = vec![];
        let mut number = 0;
        while number < limit && end.is_none_or(|end| Instant::now() < end) {
            let size = if end.is_some() { SHORT_BATCH } else { BATCH };
            let batch = number..(number + size).min(limit);
            let trials: Vec<Trial> = batch.clone().map(|number| self.generate(number)).collect();
            number = batch.end;
            let results = self.arena.judge(&trials)?;
            self.tally.add(&trials, &results, false);
            for (trial, result) in trials.iter().zip(&results) {
                if self.args.verbose {
                    let (bridge, through) = (&result.bridge, &result.through);
                    println!(
                        "{}: bridge {bridge:?}, mmTLS {through:?}: {}",
                        trial.name, trial.case
                    );
                }
                if result.verdict != Verdict::Escaped {
                    continue;
                }
                let (name, target) = (&trial.name, trial.target.name());
                self.tally.escapes.push(format!("{name}: {target}"));
                let most = if end.is_some() { SHORT_MINIMISED } else { MINIMISED };
                if minimised.len() < most {
                    let small = self.arena.minimise(trial)?.to_string();
                    if !minimised.contains(&small) {
                        println!("evade: ESCAPED: {target} {name}: {small}");
                        minimised.push(small);
                    }
                } else {
                    println!("evade: ESCAPED: {target} {name}: {}", trial.case);
                }
            }
        }
        Ok(())
    }

    /// Forgeries in the name of others harm nobody.
    fn third(&mut self) -> Result<(), String> {
        let mut names = vec![];
        let mut forgeries = vec![];
        for (number, (name, script)) in cases::THIRD.iter().enumerate() {
            if self.args.script.is_some() || !self.args.is_wanted(name) {
                continue;
            }
            let case =
                Arc::new(script.parse::<Case>().map_err(|error| format!("{name}: {error}"))?);
            for tls in [false, true] {
                for v6 in &self.families {
                    let other_half = (number + usize::from(tls)) % 2 == usize::from(*v6);
                    if self.args.seconds.is_none() || self.families.len() == 1 || other_half {
                        names.push(*name);
                        forgeries.push(third::Forgery { case: Arc::clone(&case), tls, v6: *v6 });
                    }
                }
            }
        }
        let (plain, guarded) = (self.arena.plain, self.arena.guarded);
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| third::run(plain, &forgeries, 60));
            let other = third::run(guarded, &forgeries, 60);
            (one.join(), other)
        });
        let one = one.map_err(|_| "a thread has panicked")??;
        for (at, (bridge, through)) in one.into_iter().zip(other?).enumerate() {
            let Forgery { case, tls, v6 } = &forgeries[at];
            let kind = if *tls { "TLS with keys" } else { "plain" };
            let family = if *v6 { "IPv6" } else { "IPv4" };
            let what = format!("{} {kind} {family}", names[at]);
            match (bridge, through) {
                (Ok(()), Ok(())) => self.tally.unharmed += 1,
                (Ok(()), Err(error)) => {
                    println!("evade: HARMED: {what}: {error}: {case}");
                    self.tally.harm.push(what);
                }
                (Err(error), _) if self.args.verbose => {
                    println!("evade: harmed without mmTLS too: {what}: {error}");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Honest connections over bad links.
    fn honest(&mut self, count: usize, binaries: &Path) -> Result<(), String> {
        let mut links = None;
        let longest = Duration::from_millis(20);
        let badness = Badness { lost: 25, late: 25, twice: 15, longest };
        let seed = self.args.seed;
        let mut configure = |bed: &Testbed, mut options: MmtlsOptions| {
            links = Some(Links::install(bed, badness, seed)?);
            // Keys travel on another way, but the machine may be busy.
            let patience = "[limits]\nstall_timeout_milliseconds = 20000\n\
                            unshared_stall_timeout_milliseconds = 20000\n";
            options.config = Some(patience.to_owned());
            Ok(options)
        };
        let mut lane = Lane::start(&[], Some(binaries), &mut configure, (seed, false))?;
        let plan = |number: usize| honest::Plan {
            tls: number % 10 != 9,
            v6: self.families[number % self.families.len()],
            port: None,
            bytes: [100, 3000, 20_000, 60_000][number / 2 % 4],
            seed: seed ^ number as u64,
            limit: Duration::from_secs(60),
        };
        let plans: Vec<_> = (0..count).map(plan).collect();
        let start = Instant::now();
        let results = honest::run(&lane, &plans, 100)?;
        let mut harmed = 0;
        for (plan, result) in plans.iter().zip(results) {
            match result {
                Ok(()) => self.tally.unharmed += 1,
                Err(error) => {
                    harmed += 1;
                    println!("evade: HARMED: honest connection {plan:?}: {error}");
                    self.tally.harm.push(error);
                }
            }
        }
        if let Some(links) = &links {
            let counts = &links.counts;
            println!(
                "evade: {count} honest connections over bad links in {:.1} s: {harmed} harmed; {} frames lost, \
                 {} late, {} twice",
                start.elapsed().as_secs_f64(),
                counts.lost.load(Ordering::Relaxed),
                counts.late.load(Ordering::Relaxed),
                counts.twice.load(Ordering::Relaxed),
            );
        }
        let encrypted = plans.iter().filter(|plan| plan.tls).count() as u64;
        let report = lane.mmtls.take().map(Mmtls::stop).transpose();
        let report = report.map_err(|error| error.to_string())?.ok_or("no mmTLS")?;
        // A client whose SYN-ACK came too late for it connects again, so there may be more.
        if report.count("decrypted") < encrypted || report.count("failed") > 0 {
            let summary = &report.summary;
            self.tally.harm.push(format!("{encrypted} sessions, not all decrypted: {summary:?}"));
            println!("evade: HARMED: {encrypted} sessions, not all decrypted: {summary:?}");
        }
        // Before the interfaces that they are bound to.
        drop(links);
        drop(lane);
        Ok(())
    }

    fn generate(&self, number: u64) -> Trial {
        let server = generate::is_server(number);
        let case = generate::case(self.args.seed, number, server);
        let at = number as usize;
        let target = match self.targets.get(at % self.targets.len().max(1)) {
            Some(target) if !server => *target,
            _ => CLIENTS[0],
        };
        let v6 = self.families[at / 7 % self.families.len()];
        let name = format!("generated/{}/{number}", self.args.seed);
        Trial { name, case: Arc::new(case), target, v6 }
    }
}
