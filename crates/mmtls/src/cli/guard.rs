//! `mmtls guard`: installs, removes and shows what forwards between two interfaces for as long as no monitor does.
//!
//! Refuses to decide for a monitor: whether it leaves its traffic to a guard is `inline.when_down`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use mmtls_middlebox::Error;
use mmtls_packet_io::guard::{self, DEFAULT_LEASE, GuardFault, GuardStatus, MAX_LEASE, MIN_LEASE};
use nix::unistd::User;

#[derive(Args)]
pub struct GuardArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Forward between two interfaces from now on, whenever no monitor with inline.when_down = "open" does.
    Install {
        /// The two interfaces.
        #[arg(value_name = "IF", num_args = 2, required = true)]
        interfaces: Vec<String>,
        /// How long a monitor may be silent, 10 to 60000 milliseconds.
        #[arg(
            long,
            value_name = "N",
            default_value_t = DEFAULT_LEASE.as_millis() as u64,
            value_parser = clap::value_parser!(u64)
                .range(MIN_LEASE.as_millis() as u64..=MAX_LEASE.as_millis() as u64)
        )]
        lease_ms: u64,
        /// The user of the monitor, if that is not root.
        #[arg(long, value_name = "USER")]
        user: Option<String>,
    },
    /// Do so no more.
    Remove {
        /// The two interfaces.
        #[arg(value_name = "IF", num_args = 2, required_unless_present = "gone")]
        interfaces: Vec<String>,
        /// Also while a monitor relies on it.
        #[arg(long)]
        force: bool,
        /// Instead: all whose interfaces do not exist any more.
        #[arg(long, conflicts_with_all = ["interfaces", "force"])]
        gone: bool,
    },
    /// Say which guards there are, and who forwards.
    Status {
        /// Of these interfaces alone: without a guard, the exit status is 1.
        #[arg(value_name = "IF", num_args = 2)]
        interfaces: Vec<String>,
    },
}

impl GuardArgs {
    pub fn run(&self) -> Result<ExitCode, Error> {
        match &self.command {
            Command::Install { interfaces, lease_ms, user } => {
                let owner = user.as_deref().map(owner).transpose()?;
                let lease = Duration::from_millis(*lease_ms);
                guard::install(pair(interfaces)?, lease, owner).map_err(Error::Interface)?;
            }
            Command::Remove { gone: true, .. } => {
                for [left, right] in guard::remove_gone().map_err(Error::Interface)? {
                    let _ = writeln!(std::io::stdout(), "{left} and {right}: removed");
                }
            }
            Command::Remove { interfaces, force, gone: false } => {
                guard::remove(pair(interfaces)?, *force).map_err(Error::Interface)?;
            }
            Command::Status { interfaces } => {
                let is_asked_for = |it: &GuardStatus| {
                    let named = |name| it.interfaces.contains(name);
                    interfaces.is_empty() || (it.is_here && interfaces.iter().all(named))
                };
                let all = guard::list().map_err(Error::Interface)?;
                let found: Vec<_> = all.iter().filter(|it| is_asked_for(it)).collect();
                for one in &found {
                    // A closed standard output is no reason to fail.
                    let _ = writeln!(std::io::stdout(), "{}", line(one));
                }
                if found.iter().all(|it| it.fault.is_some()) && !interfaces.is_empty() {
                    let text = format!("no guard is installed for {}", interfaces.join(" and "));
                    return Err(Error::Usage(text));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn pair(interfaces: &[String]) -> Result<[&str; 2], Error> {
    match interfaces {
        [left, right] => Ok([left, right]),
        _ => Err(Error::Usage("two interfaces are needed: IF1 IF2".to_owned())),
    }
}

/// User and group of a name.
fn owner(name: &str) -> Result<(u32, u32), Error> {
    let known = User::from_name(name).ok().flatten();
    let owner = known.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
    owner.ok_or_else(|| Error::Usage(format!("there is no user {name:?}")))
}

fn line(of: &GuardStatus) -> String {
    let [left, right] = &of.interfaces;
    let place = match of.is_here {
        true => String::new(),
        false => format!(" of network namespace {}", of.netns),
    };
    if let Some(fault) = of.fault {
        return faulty(of, fault, &place);
    }
    let who = match of.workers {
        _ if of.is_gone => "an interface is gone (`mmtls guard remove --gone`)".to_owned(),
        Some(workers) if of.forwards => {
            format!("of the {workers} workers of a monitor one is silent: the kernel forwards")
        }
        Some(1) => "a monitor forwards".to_owned(),
        Some(workers) => format!("a monitor with {workers} workers forwards"),
        None => "no monitor is there: the kernel forwards".to_owned(),
    };
    let [frames_left, frames_right] = of.forwarded_frames;
    format!(
        "{left} and {right}{place}: {who}; lease {} ms; frames forwarded by the kernel so far: {frames_left} from {left}, \
         {frames_right} from {right}",
        of.lease.as_millis()
    )
}

/// What is no guard that a monitor can use.
fn faulty(of: &GuardStatus, fault: GuardFault, place: &str) -> String {
    let path = of.path.display();
    let [left, right] = &of.interfaces;
    if left.is_empty() {
        return format!("{path}: no guard of this version of mmtls");
    }
    let remove = match of.is_here {
        _ if of.is_gone => "`mmtls guard remove --gone`".to_owned(),
        true => format!("`mmtls guard remove {left} {right}`"),
        false => format!("in that namespace: `mmtls guard remove`, or remove the directory {path}"),
    };
    let what = match fault {
        GuardFault::Incomplete => {
            "not complete: its installation has been interrupted, or is under way. What is there may forward beside a monitor"
        }
        GuardFault::NotPermitted => {
            return format!("{left} and {right}{place}: not permitted to look at it");
        }
        _ => "of another version of mmtls. It may forward beside a monitor",
    };
    format!("{left} and {right}{place}: {what} ({remove})")
}
