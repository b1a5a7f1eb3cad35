//! Of part (c): new connections with real ends, ab and nginx, where the scheduler puts everybody: the processor time of mmTLS's
//! process beside that of a program that only forwards. Of both, part is what the ends' kernels do with frames on veth.
//!
//! Refuses what [`super::setup`] refuses, and a run in which a request failed.

use std::path::Path;

use serde::Serialize;

use super::ab;
use super::lane::{self, Tls};
use super::report::{Samples, table};
use super::sessions::{AbRun, connect};
use super::setup::{Kind, Setup};
use super::synthetic;
use crate::results::{Axis, Figure};

/// Connections of the warm-up, and at least of each run.
const FEW: u32 = 500;

/// Each middle's, in the order of the table.
#[derive(Debug, Serialize)]
pub struct LiveSessions {
    middles: Vec<LiveMiddle>,
}

#[derive(Debug, Serialize)]
struct LiveMiddle {
    middle: &'static str,
    /// Microseconds of its process per connection.
    us: Samples,
    /// Of all cores.
    machine_us: Samples,
    runs: Vec<AbRun>,
}

/// A middle between ab and nginx.
struct Lane {
    setup: Setup,
    /// Connections per run.
    connections: u32,
    /// In all.
    opened: u32,
    runs: Vec<AbRun>,
}

impl Lane {
    fn start(kind: Kind, files: &Path, seconds: f64) -> Result<Self, String> {
        let setup = Setup::start(kind, lane::server_options(Tls::Gcm, files))?;
        let mut lane = Self { setup, connections: FEW, opened: 0, runs: Vec::new() };
        let warm = lane.run()?;
        lane.connections = FEW.max((warm.per_s() * seconds) as u32);
        Ok(lane)
    }

    fn run(&mut self) -> Result<AbRun, String> {
        let (name, client) = (self.setup.name, self.setup.client("ab"));
        let middle = self.setup.process().ok_or("no process in the middle")?;
        let run = connect(client, middle, self.connections)?;
        self.opened += self.connections;
        eprintln!("  {name}, live: {:.0} connections/s, {:.1} µs each", run.per_s(), run.us());
        Ok(run)
    }

    fn finish(self) -> Result<LiveMiddle, String> {
        let of = |us: fn(&AbRun) -> f64| Samples::new(self.runs.iter().map(us).collect());
        let (middle, us, machine_us) = (self.setup.name, of(AbRun::us), of(AbRun::machine_us));
        self.setup.finish(self.opened.into())?;
        Ok(LiveMiddle { middle, us, machine_us, runs: self.runs })
    }
}

/// Measures both in turn.
pub fn measure(repetitions: u32, seconds: f64, files: &Path) -> Result<LiveSessions, String> {
    let mut lanes = Vec::new();
    for kind in [Kind::Forward, Kind::Mmtls] {
        lanes.push(Lane::start(kind, files, seconds)?);
    }
    for repetition in 0..repetitions as usize {
        for turn in 0..lanes.len() {
            let at = (turn + repetition) % lanes.len();
            let run = lanes[at].run()?;
            lanes[at].runs.push(run);
        }
    }
    let middles = lanes.into_iter().map(Lane::finish).collect::<Result<_, _>>()?;
    Ok(LiveSessions { middles })
}

impl LiveSessions {
    /// A panel of figure 11.
    pub fn figure(&self) -> Figure {
        let mut figure = Figure::new(
            "11",
            "live",
            "New connections of ab, everybody where the scheduler puts them",
            Axis::category("object per connection"),
            Axis::linear("processor time per connection", "µs"),
        )
        .note(format!("{} at a time; time of the process in the middle.", ab::CONCURRENCY));
        for it in &self.middles {
            figure.add(it.middle, format!("{} B", synthetic::BODY), &it.us.samples);
        }
        figure
    }

    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .middles
            .iter()
            .map(|it| {
                let range = format!("{:.1}–{:.1}", it.us.min, it.us.max);
                let machine = format!("{:.0}", it.machine_us.median);
                vec![it.middle.to_owned(), format!("{:.1}", it.us.median), range, machine]
            })
            .collect();
        let columns = ["middle", "µs/connection", "range", "machine"];
        table("(c) new connections of ab, nobody placed", &columns, &rows);
    }
}
