//! Who uses the network: agents with programs that share through them, which end and are followed by others, programs that
//! refuse, and programs that have no agent.
//!
//! Refuses to let a program end by itself or with an error, or to stay when it was told to stop.

use std::path::PathBuf;

use mmtls_testkit::segments::Seeded;
use mmtls_testkit::{Background, Mmtls, address};
use serde::Serialize;
use serde_json::json;

use super::stage::{KEYLESS, Stage, text};
use super::{SoakArgs, now};

/// Longer than the longest transfer.
const STOP_SECONDS: f64 = 240.0;

/// Programs that come and go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    /// An agent for less than a minute.
    Brief,
    /// An agent for minutes, with what lasts a minute.
    Lasting,
    /// Programs that keep everything, or a direction, private.
    Refusing,
    /// Programs without keys.
    Keyless,
}

const GROUPS: [Group; 5] =
    [Group::Brief, Group::Brief, Group::Lasting, Group::Refusing, Group::Keyless];

/// How a group ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    /// Programs end what they are at, then the agent ends.
    Gentle,
    /// The agent is killed, its programs go on a little without one.
    AgentFirst,
    /// All are killed at once.
    Abrupt,
}

/// How many there were.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    pub agents: u64,
    pub programs: u64,
    pub agents_killed: u64,
    pub programs_killed: u64,
}

struct Generation {
    agent: Option<Background>,
    programs: Vec<Background>,
    /// Programs look whether it is there.
    stop: PathBuf,
    until: f64,
    manner: Manner,
    told: Option<f64>,
}

/// All of them.
pub struct Population<'a> {
    stage: &'a Stage,
    args: &'a SoakArgs,
    random: Seeded,
    /// Of each group, the one at present; and those that still have something to finish.
    present: [Option<Generation>; GROUPS.len()],
    leaving: Vec<Generation>,
    number: u64,
    is_closed: bool,
    pub counts: Counts,
}

impl<'a> Population<'a> {
    /// Nobody yet.
    pub fn new(stage: &'a Stage, args: &'a SoakArgs) -> Self {
        Self {
            stage,
            args,
            random: Seeded::new(args.seed),
            present: Default::default(),
            leaving: Vec::new(),
            number: 0,
            is_closed: false,
            counts: Counts::default(),
        }
    }

    /// Ends whose time is over, and starts others, which find this monitor.
    pub fn tick(&mut self, mmtls: &Mmtls) -> Result<(), String> {
        let now = now();
        for (index, group) in GROUPS.into_iter().enumerate() {
            match &mut self.present[index] {
                Some(generation) if generation.until > now => generation.check()?,
                Some(_) => self.retire(index)?,
                None if self.is_closed => {}
                None => {
                    let generation = self.start(group, mmtls)?;
                    self.present[index] = Some(generation);
                }
            }
        }
        self.leave(now)
    }

    /// Nobody is to follow, and everybody may finish.
    pub fn retire_all(&mut self) {
        self.is_closed = true;
        for generation in self.present.iter_mut().flatten() {
            generation.until = 0.0;
            generation.manner = Manner::Gentle;
        }
    }

    /// Whether anybody is there.
    pub fn is_alive(&self) -> bool {
        !self.leaving.is_empty() || self.present.iter().any(Option::is_some)
    }

    fn retire(&mut self, index: usize) -> Result<(), String> {
        let Some(mut generation) = self.present[index].take() else { return Ok(()) };
        if generation.manner == Manner::Abrupt {
            for program in &mut generation.programs {
                program.stop();
                self.counts.programs_killed += 1;
            }
        }
        if generation.manner != Manner::Gentle
            && let Some(agent) = &mut generation.agent
        {
            agent.signal("KILL");
            self.counts.agents_killed += 1;
        }
        std::fs::write(&generation.stop, "")
            .map_err(|error| format!("{}: {error}", generation.stop.display()))?;
        generation.told = Some(now());
        self.leaving.push(generation);
        Ok(())
    }

    fn leave(&mut self, now: f64) -> Result<(), String> {
        for generation in &mut self.leaving {
            generation.let_go()?;
            if let Some(program) = generation.programs.first()
                && generation.told.is_some_and(|told| told + STOP_SECONDS < now)
            {
                return Err(format!("a client does not end: {}", program.stderr_text()));
            }
        }
        // The agent goes with the last of its programs.
        self.leaving.retain(|generation| !generation.programs.is_empty());
        Ok(())
    }

    fn start(&mut self, group: Group, mmtls: &Mmtls) -> Result<Generation, String> {
        self.number += 1;
        let name = format!("soak{}", self.number);
        let bed = &self.stage.bed;
        let directory = bed.directory().join(&name);
        let random = &mut self.random;
        let seconds = match group {
            Group::Brief => 20 + random.below(21),
            Group::Lasting => 120 + random.below(80),
            Group::Refusing | Group::Keyless => 30 + random.below(31),
        };
        // What lasts must outlive reloads and kills, so nothing else ends it.
        let manner = match random.below(4) {
            0 if group != Group::Lasting => Manner::AgentFirst,
            1 if group != Group::Lasting => Manner::Abrupt,
            _ => Manner::Gentle,
        };
        let agent = match group {
            Group::Brief | Group::Lasting => {
                self.counts.agents += 1;
                Some(mmtls.agent(bed, false, &directory, None).map_err(text)?)
            }
            Group::Refusing | Group::Keyless => None,
        };
        let busy = self.args.load;
        let mut generation = Generation {
            agent,
            programs: Vec::new(),
            stop: bed.directory().join(format!("{name}.stop")),
            until: now() + seconds as f64,
            manner,
            told: None,
        };
        let kinds: &[(&str, u32)] = match group {
            Group::Brief => &[("short", 2 * busy), ("persistent", busy), ("http2", busy)],
            Group::Lasting => &[("long", 2), ("websocket", 2), ("persistent", 1)],
            Group::Refusing | Group::Keyless => &[("short", 1), ("persistent", 1)],
        };
        for (number, (kind, threads)) in kinds.iter().enumerate() {
            let mut command = match group {
                Group::Brief | Group::Lasting => {
                    mmtls.sharing_through(bed, &directory, &[], "python3")
                }
                Group::Refusing if number == 0 => {
                    mmtls.sharing(bed, false, &[address::SERVER_NAME], "python3")
                }
                Group::Refusing => {
                    mmtls.sharing_with(bed, false, &["--refuse", "toclient"], "python3")
                }
                Group::Keyless => bed.client.command("python3"),
            };
            let source = if group == Group::Keyless { KEYLESS } else { address::CLIENT_V4 };
            let settings = json!({
                "kind": kind,
                "threads": threads,
                "source": source,
                "server": address::SERVER_V4,
                "ca": bed.pki().ca,
                "stop": generation.stop,
                "results": self.stage.results(),
                "objects": self.stage.objects(),
                "pause": 0.3,
            });
            command.arg(self.stage.client()).arg(settings.to_string());
            let program = bed.background(&format!("{name}-{kind}"), command).map_err(text)?;
            generation.programs.push(program);
            self.counts.programs += 1;
        }
        Ok(generation)
    }
}

impl Generation {
    fn check(&mut self) -> Result<(), String> {
        for process in self.programs.iter_mut().chain(&mut self.agent) {
            if !process.is_running() {
                return Err(format!(
                    "a client or agent has ended by itself: {}",
                    process.stderr_text().trim()
                ));
            }
        }
        Ok(())
    }
    /// Of programs that have ended; only those that were killed may have ended with an error.
    fn let_go(&mut self) -> Result<(), String> {
        let is_killed = self.manner == Manner::Abrupt;
        let mut failures = Vec::new();
        self.programs.retain_mut(|program| {
            let is_running = program.is_running();
            if !is_running && !is_killed {
                failures.extend(failure(program));
            }
            is_running
        });
        failures.pop().map_or(Ok(()), Err)
    }
}

/// Of a program that has ended; `None` where it did as it should.
fn failure(program: &mut Background) -> Option<String> {
    // Tells how it has ended, and does no more.
    let status = program.stop()?;
    let said = program.stderr_text();
    (!status.success()).then(|| format!("a client has ended with {status}: {}", said.trim()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_program_that_ends_with_an_error_fails_the_run_unless_it_was_killed() {
        let place = tempfile::tempdir().unwrap();
        let ended = |script: &str, manner| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let mut program = Background::spawn("client", command, place.path()).unwrap();
            program.wait(Duration::from_secs(30)).unwrap();
            let stop = place.path().join("stop");
            let (agent, programs) = (None, vec![program]);
            let mut it = Generation { agent, programs, stop, until: 0.0, manner, told: Some(0.0) };
            let result = it.let_go();
            assert!(it.programs.is_empty());
            result
        };
        assert_eq!(ended("exit 0", Manner::Gentle), Ok(()));
        let said = ended("echo why >&2; exit 1", Manner::AgentFirst).unwrap_err();
        assert!(said.contains("exit status: 1: why"), "{said}");
        assert_eq!(ended("kill -TERM $$", Manner::Abrupt), Ok(()));
    }
}
