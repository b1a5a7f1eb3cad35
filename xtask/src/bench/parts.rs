//! The parts of the benchmark, in the order in which they run, and the figures that come of each. A new figure is a
//! function here that measures and returns [`Measured`], and a line of [`PARTS`].
//!
//! Refuses to say nothing of a part that cannot run here: it is skipped with its reason.

use serde::Serialize;

use super::{
    callgrind, endtoend, floating, growth, holds, idle, inspection, keys, lane, live, loss, opening,
};
use super::{pages, profile, reading, response, rules, scaling, sessions, sites, tag, workers};
use crate::results::{Contender, Figure};

/// What is measured in one go.
pub struct Part {
    /// Its name on the command line.
    pub letter: char,
    pub what: &'static str,
    /// The numbers of its figures: the paper's, or ours.
    pub figures: &'static [&'static str],
    /// What it runs besides this program, whose versions are noted.
    pub programs: &'static [&'static str],
    /// About how long it takes on two cores, with 5 repetitions of 2 seconds.
    pub seconds: f64,
    pub measure: fn(&Extent) -> Result<Outcome, String>,
}

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Extent {
    pub repetitions: u32,
    pub seconds: f64,
    pub load: lane::Load,
    pub sessions: u32,
    pub window: u32,
    pub callgrind: bool,
    /// Only enough to see that it works.
    pub quick: bool,
}

impl Extent {
    /// Rounds of what is done soon: five at least.
    fn rounds(&self) -> u32 {
        if self.quick { self.repetitions } else { self.repetitions.max(5) }
    }

    fn new_connections(&self) -> sessions::Load {
        sessions::Load { sessions: self.sessions, window: self.window, seconds: self.seconds }
    }
}

/// What came of a part.
pub enum Outcome {
    Measured(Measured),
    /// Why it cannot run here.
    Skipped(String),
}

pub struct Measured {
    pub figures: Vec<Figure>,
    pub contenders: Vec<Contender>,
    /// What it noted besides, for who looks into one run.
    pub details: serde_json::Value,
}

pub const PARTS: [Part; 19] = [
    Part {
        letter: 'a',
        what: "the engine in memory",
        figures: &["M1", "M4"],
        programs: &[],
        seconds: 31.0,
        measure: engine,
    },
    Part {
        letter: 'b',
        what: "downloads over persistent connections",
        figures: &["10"],
        programs: &["nginx", "h2load", "openssl", "haproxy", "squid", "mitmdump"],
        seconds: 781.0,
        measure: live,
    },
    Part {
        letter: 'c',
        what: "new connections",
        figures: &["11"],
        programs: &["nginx", "ab", "openssl"],
        seconds: 99.0,
        measure: sessions,
    },
    Part {
        letter: 'd',
        what: "the private tag per record",
        figures: &["16"],
        programs: &[],
        seconds: 13.0,
        measure: tag,
    },
    Part {
        letter: 'e',
        what: "the private tag end to end",
        figures: &["17"],
        programs: &["nginx", "h2load", "openssl"],
        seconds: 144.0,
        measure: end_to_end,
    },
    Part {
        letter: 'f',
        what: "engines on two threads, and what a pause saves",
        figures: &["15", "M2"],
        programs: &[],
        seconds: 14.0,
        measure: scaling,
    },
    Part {
        letter: 'g',
        what: "rules in memory",
        figures: &["20"],
        programs: &[],
        seconds: 13.0,
        measure: rules,
    },
    Part {
        letter: 'h',
        what: "rules live",
        figures: &["20"],
        programs: &["nginx", "h2load", "openssl"],
        seconds: 331.0,
        measure: inspection,
    },
    Part {
        letter: 'i',
        what: "keys on their way",
        figures: &["12"],
        programs: &["nginx", "openssl"],
        seconds: 577.0,
        measure: keys,
    },
    Part {
        letter: 'j',
        what: "open sessions",
        figures: &["M3"],
        programs: &[],
        seconds: 157.0,
        measure: idle,
    },
    Part {
        letter: 'k',
        what: "proxy against end to end, and where its time goes",
        figures: &["2", "3", "Table 1"],
        programs: &["nginx", "h2load", "ab", "openssl", "perf"],
        seconds: 210.0,
        measure: profile,
    },
    Part {
        letter: 'l',
        what: "1,000 sites of the paper's mix of suites",
        figures: &["21"],
        programs: &["nginx", "curl", "openssl"],
        seconds: 114.0,
        measure: sites,
    },
    Part {
        letter: 'm',
        what: "page loads of Chromium",
        figures: &["19"],
        programs: &["nginx", "chromium"],
        seconds: 267.0,
        measure: pages,
    },
    Part {
        letter: 'n',
        what: "several workers live, and lost frames",
        figures: &["15", "M5"],
        programs: &["nginx", "h2load", "openssl", "ethtool"],
        seconds: 136.0,
        measure: workers_and_loss,
    },
    Part {
        letter: 'o',
        what: "response times",
        figures: &["13"],
        programs: &["nginx", "ab", "openssl"],
        seconds: 297.0,
        measure: response,
    },
    Part {
        letter: 'p',
        what: "new sessions beside open ones",
        figures: &["M6"],
        programs: &[],
        seconds: 130.0,
        measure: growth,
    },
    Part {
        letter: 'q',
        what: "reading a capture file",
        figures: &["M7"],
        programs: &["nginx", "curl", "tshark"],
        seconds: 60.0,
        measure: reading,
    },
    Part {
        letter: 'r',
        what: "downloads, everybody where the scheduler puts them",
        figures: &["10"],
        programs: &["nginx", "h2load", "openssl"],
        seconds: 128.0,
        measure: floating,
    },
    Part {
        letter: 's',
        what: "how long a frame is in the middle",
        figures: &["M8"],
        programs: &["nginx", "ab", "openssl", "tcpdump"],
        seconds: 90.0,
        measure: holds,
    },
];

fn measured(
    figures: Vec<Figure>,
    contenders: Vec<Contender>,
    details: &impl Serialize,
) -> Result<Outcome, String> {
    let details = serde_json::to_value(details).map_err(|error| error.to_string())?;
    Ok(Outcome::Measured(Measured { figures, contenders, details }))
}

/// Why there is no testbed, if so; where one should be, it is a panic that says why.
fn no_testbed(programs: &[&str]) -> Option<Outcome> {
    let skipped = |why: &str| Some(Outcome::Skipped(why.to_owned()));
    if !mmtls_testkit::require_testbed() {
        return skipped("no network namespaces can be made here");
    }
    match programs.iter().find(|program| !mmtls_testkit::require_program(program)) {
        Some(program) => skipped(&format!("{program} is not installed")),
        None => None,
    }
}

fn engine(extent: &Extent) -> Result<Outcome, String> {
    let results = opening::measure(extent.rounds(), extent.seconds / 10.0)?;
    results.print();
    let mut figures = results.figures();
    let mut counted = None;
    if extent.callgrind {
        let instructions = callgrind::count()?;
        instructions.print();
        figures.push(instructions.figure());
        counted = Some(instructions);
    }
    measured(figures, Vec::new(), &(results, counted))
}

fn live(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load"]) {
        return Ok(skipped);
    }
    let results = live::measure(extent.repetitions, extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn floating(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load"]) {
        return Ok(skipped);
    }
    let rounds = if extent.quick { extent.repetitions } else { extent.repetitions.max(8) };
    let results = floating::measure(rounds, extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn holds(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "ab", "tcpdump"]) {
        return Ok(skipped);
    }
    let results = holds::measure(extent.rounds(), extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn sessions(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "ab", "taskset"]) {
        return Ok(skipped);
    }
    let results = sessions::measure(extent.repetitions, extent.new_connections())?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn tag(extent: &Extent) -> Result<Outcome, String> {
    // Seven kinds of work on five sizes in three suites: a hundredth makes half a minute.
    let results = tag::measure(extent.rounds(), extent.seconds / 100.0)?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn end_to_end(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load"]) {
        return Ok(skipped);
    }
    let Some(results) = endtoend::measure(extent.rounds(), extent.load)? else {
        return Ok(Outcome::Skipped(
            "OpenSSL with the private tag is not built (`make openssl`)".to_owned(),
        ));
    };
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn scaling(extent: &Extent) -> Result<Outcome, String> {
    let results = scaling::measure(extent.rounds(), extent.seconds / 10.0)?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn rules(extent: &Extent) -> Result<Outcome, String> {
    let results = rules::measure(extent.rounds(), extent.seconds / 10.0)?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn inspection(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load"]) {
        return Ok(skipped);
    }
    let results = inspection::measure(extent.repetitions, extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn keys(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx"]) {
        return Ok(skipped);
    }
    let results = keys::measure(extent.repetitions, extent.sessions)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn workers_and_loss(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load", "ethtool"]) {
        return Ok(skipped);
    }
    let workers = workers::measure(extent.rounds(), extent.load)?;
    workers.print();
    let loss = loss::measure(extent.rounds(), extent.load)?;
    loss.print();
    let figures = workers.figures().into_iter().chain(loss.figures()).collect();
    let mut contenders = workers.contenders.clone();
    contenders.extend(
        loss.contenders
            .iter()
            .map(|it| Contender { name: format!("{}, lost frames", it.name), ..it.clone() }),
    );
    measured(figures, contenders, &(workers, loss))
}

fn response(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "ab"]) {
        return Ok(skipped);
    }
    let results = response::measure(extent.rounds(), extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn idle(extent: &Extent) -> Result<Outcome, String> {
    // A million sessions take minutes.
    let open = if extent.quick { &idle::OPEN[..2] } else { &idle::OPEN[..] };
    let results = idle::measure(extent.repetitions.min(3), open)?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn growth(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["taskset"]) {
        return Ok(skipped);
    }
    // A hundred thousand sessions take half a minute.
    let cases = if extent.quick { &growth::CASES[..2] } else { &growth::CASES[..] };
    let results = growth::measure(extent.repetitions.min(3), extent.new_connections(), cases)?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn reading(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "curl", "tshark"]) {
        return Ok(skipped);
    }
    let results = reading::measure(extent.repetitions, if extent.quick { 16 } else { 256 })?;
    results.print();
    measured(results.figures(), Vec::new(), &results)
}

fn profile(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "h2load", "ab"]) {
        return Ok(skipped);
    }
    if let Some(reason) = profile::no_perf() {
        return Ok(Outcome::Skipped(reason));
    }
    let results = profile::measure(extent.repetitions, extent.load)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn sites(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx", "curl"]) {
        return Ok(skipped);
    }
    let results = sites::measure(extent.repetitions)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

fn pages(extent: &Extent) -> Result<Outcome, String> {
    if let Some(skipped) = no_testbed(&["nginx"]) {
        return Ok(skipped);
    }
    if !mmtls_testkit::require_browser("chromium") {
        return Ok(Outcome::Skipped("chromium is not installed".to_owned()));
    }
    let results = pages::measure(extent.repetitions)?;
    results.print();
    measured(results.figures(), results.contenders.clone(), &results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_letters_of_their_own() {
        let mut letters: Vec<char> = PARTS.iter().map(|part| part.letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), PARTS.len());
    }
}
