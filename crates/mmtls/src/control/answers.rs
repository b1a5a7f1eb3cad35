//! The answer to each request.
//!
//! Refuses to look into workers: numbers come from snapshots, sessions from the desks.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mmtls_engine::{Bypass, ExemptNames, Policies};
use serde_json::{Value, json};

use super::desk::{Desks, Order, Outcome, keep_best};
use super::sessions::{Detail, Filter};
use super::why::{Reasons, why};
use super::{Of, Query, Request};
use crate::rules::Reloader;
use crate::stats::{Snapshots, counts};

/// How often a run that is being drained looks how many sessions are left.
const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// What a run goes by.
pub struct RunFacts {
    /// `inline` or `passive`.
    pub mode: &'static str,
    /// The interfaces.
    pub interfaces: Vec<String>,
    /// Where it takes keys and serves metrics and the page.
    pub listens: Vec<SocketAddr>,
    /// Whether the kernel forwards what nobody reads, or why not.
    pub kernel_forwarding: String,
    /// What becomes of traffic while the process does not move it: `open` or `closed`.
    pub when_down: &'static str,
    /// The policies.
    pub policies: Policies,
    /// What passes although a policy stops sessions without keys.
    pub exceptions: Vec<String>,
    /// What is left alone.
    pub bypass: Vec<Bypass>,
    /// Server names that are left alone.
    pub exempt_names: Option<ExemptNames>,
    /// It can reset sessions.
    pub can_reset: bool,
    /// How long keys are waited for, in milliseconds: with an agent of the client, and without one.
    pub stall_milliseconds: [u64; 2],
    /// A key log is followed.
    pub has_key_log: bool,
}

/// A run that is to end once its sessions have.
#[derive(Default)]
pub struct Drain {
    /// Some worker may drain.
    has_begun: AtomicBool,
    /// Somebody waits for the sessions' end.
    is_waited_for: AtomicBool,
}

/// What answers.
pub struct Controls {
    /// What the run was started with, or has taken over since.
    pub facts: Arc<Mutex<Arc<RunFacts>>>,
    /// What is counted.
    pub snapshots: Arc<Snapshots>,
    /// Where workers look.
    pub desks: Arc<Desks>,
    /// Reads everything again that can be; what came of it, or what of it failed.
    pub reload: Box<dyn Fn() -> Result<Vec<String>, Vec<String>> + Send + Sync>,
    /// Ends the run.
    pub stop: Arc<AtomicBool>,
    /// See there.
    pub drain: Arc<Drain>,
    /// What the kernel says of this process (`/proc/self/status`): open, since the sandbox lets nobody open it later.
    pub process: Option<File>,
    /// Tells the operator who reads the log of the process.
    pub say: fn(&str),
}

impl Controls {
    /// The answer to a request of a user with this number.
    pub(crate) fn answer(&self, request: &Request, uid: Option<u32>) -> Result<Value, String> {
        match request {
            Request::Status(_) => Ok(self.status()),
            Request::Sessions(query) => self.sessions(query),
            Request::Session(of) => self.session(*of),
            Request::SessionKill(of) if !self.facts().can_reset => Err(format!(
                "session {}: a passive monitor without passive.reset_interface can reset nothing",
                of.id
            )),
            Request::SessionKill(of) => self.decide(*of, Order::Kill(of.id, uid), "killed", uid),
            Request::SessionBypass(of) => {
                self.decide(*of, Order::Bypass(of.id, uid), "bypassed", uid)
            }
            Request::Policies(_) => Ok(self.policies()),
            Request::Keys(_) => Ok(self.keys()),
            Request::Rules(_) => Ok(self.rules()),
            Request::Reload(_) => {
                self.tell(uid, "reload");
                self.desks.ask(Order::Rotate)?;
                match (self.reload)() {
                    Ok(told) => Ok(json!({ "told": told })),
                    Err(told) => Err(told.join("; ")),
                }
            }
            Request::LogRotate(_) => {
                self.tell(uid, "log-rotate");
                self.desks.ask(Order::Rotate).map(|_| json!({}))
            }
            Request::Drain(time) => {
                self.tell(uid, "drain");
                self.drain(time.timeout_seconds.map(Duration::from_secs))
            }
        }
    }

    fn facts(&self) -> Arc<RunFacts> {
        Arc::clone(&self.facts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, uid: Option<u32>, what: &str) {
        let who = uid.map_or_else(String::new, |uid| format!(" by uid {uid}"));
        (self.say)(&format!("control: {what}{who}"));
    }

    fn status(&self) -> Value {
        let facts = self.facts();
        let (status, summary) = self.snapshots.sum();
        let (engine, limits, keys) =
            (&status.engine, self.snapshots.limits(), self.snapshots.keys());
        let workers: Vec<_> = self
            .snapshots
            .each()
            .iter()
            .map(|(status, _)| {
                json!({
                    "frames": status.engine.frames,
                    "flows": status.flows,
                    "held_frames": status.held_frames,
                    "buffered_bytes": status.buffered_bytes,
                })
            })
            .collect();
        let forwarded = |of: &dyn Fn(&mmtls_packet_io::PortCounters) -> u64| {
            of(&status.bridge.left) + of(&status.bridge.right)
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": self.snapshots.uptime().as_secs(),
            "mode": facts.mode,
            "interfaces": facts.interfaces,
            "listens": facts.listens.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "draining": self.drain.has_begun.load(Ordering::Relaxed),
            "workers": workers,
            "frames": {
                "handled": engine.frames,
                "dropped": engine.dropped,
                "held_now": status.held_frames,
                "lost_by_kernel": counts::kernel_drops(&status),
            },
            "sessions": {
                "begun": summary.tls_sessions,
                "live": summary.live_sessions(),
                "decrypted": summary.decrypted,
                "missing_key": summary.missing_key,
                "exempt": summary.exempt,
                "failed": summary.failed,
                "nothing_opened": summary.nothing_opened,
                "resets": summary.resets,
                "alerts": summary.alerts,
            },
            "memory": {
                "flows": status.flows,
                "max_flows": limits.max_flows,
                "buffered_bytes": status.buffered_bytes,
                "max_buffered_bytes": limits.max_buffered_bytes,
                "resident_bytes": resident_bytes(self.process.as_ref()),
            },
            "keys": {
                "connections": keys.server.open,
                "accepted": engine.keys_accepted,
                "refused": engine.keys_refused,
                "expired": engine.keys_expired,
            },
            "failure": {
                "when_down": facts.when_down,
                "guard_leases_lost": status.leases_lost,
                "guard_frames": forwarded(&|port| port.guard_forwarded_frames),
                "guard_bytes": forwarded(&|port| port.guard_forwarded_bytes),
            },
            "kernel_forwarding": {
                "state": facts.kernel_forwarding,
                "frames": forwarded(&|port| port.offloaded_frames),
                "bytes": forwarded(&|port| port.offloaded_bytes),
            },
        })
    }

    fn sessions(&self, query: &Query) -> Result<Value, String> {
        let filter = Filter::new(query)?;
        let limit = filter.limit;
        let (mut all, mut total) = (Vec::new(), 0);
        for outcome in self.desks.ask(Order::List(filter))? {
            if let Outcome::Rows(rows, count) = outcome {
                all.extend(rows);
                total += count;
            }
        }
        keep_best(&mut all, limit);
        let more = total.saturating_sub(all.len());
        let rows: Vec<_> = all.into_iter().map(|(_, row)| row).collect();
        Ok(json!({"sessions": rows, "total": total, "more": more}))
    }

    fn session(&self, Of { id }: Of) -> Result<Value, String> {
        for outcome in self.desks.ask(Order::Show(id))? {
            if let Outcome::Detail(detail) = outcome {
                let mut answer = json!({"session": *detail});
                answer["why"] = self.why(&detail).into();
                return Ok(answer);
            }
        }
        Err(unknown(id))
    }

    fn why(&self, detail: &Detail) -> String {
        let agents: Vec<IpAddr> = self
            .snapshots
            .key_meter()
            .agents()
            .into_iter()
            .map(|agent| agent.address.ip())
            .collect();
        let facts = self.facts();
        let ends =
            [&detail.row.client, &detail.row.server].map(|end| end.parse::<SocketAddr>().ok());
        let is_meant = |rule: &&Bypass| match rule.port {
            Some(_) => ends[1].is_some_and(|server| rule.contains(server)),
            None => ends.into_iter().flatten().any(|end| rule.contains(end)),
        };
        let name = detail.row.name.as_deref().unwrap_or_default();
        why(
            detail,
            &Reasons {
                rule: facts.bypass.iter().find(is_meant).map(Bypass::to_string),
                is_draining: self.drain.has_begun.load(Ordering::Relaxed),
                is_exempt_name: facts
                    .exempt_names
                    .as_ref()
                    .is_some_and(|ExemptNames(is_exempt)| is_exempt(name.as_bytes())),
                stall_milliseconds: facts.stall_milliseconds,
                has_agent: &|address| agents.contains(&address),
                has_key_log: facts.has_key_log,
            },
        )
    }

    fn decide(
        &self,
        Of { id }: Of,
        order: Order,
        done: &str,
        uid: Option<u32>,
    ) -> Result<Value, String> {
        for outcome in self.desks.ask(order)? {
            match outcome {
                Outcome::Done(true) => {
                    self.tell(uid, &format!("session {id} {done}"));
                    return Ok(json!({ "id": id }));
                }
                Outcome::Done(false) => {
                    let why = match done {
                        "killed" => "it is over",
                        _ => "it is over, or not followed any more",
                    };
                    return Err(format!("session {id}: {why}"));
                }
                Outcome::Rows(..) | Outcome::Detail(_) | Outcome::Unknown | Outcome::Count(_) => {}
            }
        }
        Err(unknown(id))
    }

    fn policies(&self) -> Value {
        let facts = self.facts();
        let policies: serde_json::Map<_, _> = facts
            .policies
            .list()
            .into_iter()
            .map(|(name, policy)| (name.to_owned(), policy.name().into()))
            .collect();
        let bypass: Vec<_> = facts.bypass.iter().map(Bypass::to_string).collect();
        json!({
            "policies": policies,
            "bypass": bypass,
            "has_exempt_names": facts.exempt_names.is_some(),
            "exceptions": facts.exceptions,
        })
    }

    fn keys(&self) -> Value {
        let keys = self.snapshots.keys();
        let mut agents = self.snapshots.key_meter().agents();
        agents.sort_by_key(|agent| agent.since);
        let total = agents.len();
        agents.truncate(super::MAX_LIMIT);
        let agents: Vec<_> = agents
            .iter()
            .map(|agent| {
                json!({
                    "address": agent.address.to_string(),
                    "since": seconds(agent.since),
                    "authenticated": agent.authenticated,
                    "messages": agent.messages,
                })
            })
            .collect();
        let counters: serde_json::Map<_, _> = counts::keys(&keys)
            .into_iter()
            .map(|(name, _, value)| (name.to_owned(), value.into()))
            .collect();
        json!({"agents": agents, "more": total - agents.len(), "counters": counters})
    }

    fn rules(&self) -> Value {
        let Some(rules) = self.snapshots.rules() else {
            return json!({"files": [], "active": 0, "skipped": 0});
        };
        let now = Reloader::in_force(rules);
        json!({
            "files": rules.files(),
            "active": now.active,
            "skipped": now.skipped,
            "loaded": seconds(now.loaded_at),
            "failed_reloads": now.failed_reloads,
            "versions": now.versions,
        })
    }

    fn drain(&self, timeout: Option<Duration>) -> Result<Value, String> {
        let end = match timeout.map(|timeout| Instant::now().checked_add(timeout)) {
            Some(None) => return Err("timeout_seconds is too long".to_owned()),
            Some(end) => end,
            None => None,
        };
        if self.drain.is_waited_for.swap(true, Ordering::AcqRel) {
            return Err("the run is being drained already".to_owned());
        }
        // From the first order on; it stays so whatever becomes of the others, and can be asked for again.
        self.drain.has_begun.store(true, Ordering::Release);
        let begun = self.desks.ask(Order::Drain).and_then(|_| live(&self.desks));
        let begun = begun.and_then(|left| self.wait_for_sessions(left, end).map(|()| left));
        let left =
            begun.inspect_err(|_| self.drain.is_waited_for.store(false, Ordering::Release))?;
        Ok(json!({"sessions": left, "timeout_seconds": timeout.map(|it| it.as_secs())}))
    }

    /// Has a thread end the run once its sessions have ended, or their time.
    fn wait_for_sessions(&self, mut left: usize, end: Option<Instant>) -> Result<(), String> {
        let (desks, stop, say) = (Arc::clone(&self.desks), Arc::clone(&self.stop), self.say);
        let work = move || {
            while left > 0
                && end.is_none_or(|end| Instant::now() < end)
                && !stop.load(Ordering::Relaxed)
            {
                std::thread::sleep(DRAIN_PAUSE);
                // A worker that is busy is asked again.
                left = live(&desks).unwrap_or(left);
            }
            match left {
                0 => say("drained: no session is left"),
                _ => say(&format!("drained: {left} sessions are left and will be cut")),
            }
            stop.store(true, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("drain".to_owned()).spawn(work);
        thread.map(drop).map_err(|error| format!("no thread to wait for sessions: {error}"))
    }
}

/// Sessions that are followed.
fn live(desks: &Desks) -> Result<usize, String> {
    let counts = desks.ask(Order::Count)?.into_iter().map(|outcome| match outcome {
        Outcome::Count(count) => count,
        Outcome::Rows(..) | Outcome::Detail(_) | Outcome::Done(_) | Outcome::Unknown => 0,
    });
    Ok(counts.sum())
}

fn unknown(id: u64) -> String {
    format!("session {id}: there is none, or it is over; `sessions` lists them")
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Memory of the process that this file is about (`/proc/PID/status`); 0 where the kernel does not say.
fn resident_bytes(process: Option<&File>) -> u64 {
    let mut text = [0; 4096];
    let len = process.and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
    let status = String::from_utf8_lossy(&text[..len]);
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}
