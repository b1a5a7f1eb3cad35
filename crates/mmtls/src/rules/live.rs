//! The rules in force, which may be exchanged while sessions are open.
//!
//! A session keeps its rules for the transactions that are under way. Refuses to wait for anybody: who
//! exchanges rules does not wait for sessions, and sessions look at a number to see whether it was done.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use mmtls_inspect::MemoryBudget;
use mmtls_inspect::detect::{Context, FlowState, Matcher, Scratch, Shared};
use mmtls_inspect::rules::{Buffer, Skipped};

use super::{LoadedRules, RulesConfig, RulesError};
use crate::eve::FlowKey;

/// The rules in force, as one worker has them.
pub struct LiveRules {
    common: Arc<Common>,
    /// What this worker has seen last.
    matcher: Arc<Matcher>,
    /// Some of them drop or reject.
    can_drop: bool,
    /// Some of them look into fingerprints.
    ask_fingerprints: bool,
    version: u64,
    scratch: Scratch,
}

/// What all workers have.
struct Common {
    config: Mutex<RulesConfig>,
    current: Mutex<Arc<Matcher>>,
    /// Those before it that sessions or workers may still go by. The last one to let go of them is here, and no worker: to
    /// free many rules takes a while, in which no packet moves.
    earlier: Mutex<Vec<Arc<Matcher>>>,
    /// How often the rules were exchanged.
    version: AtomicU64,
    shared: Shared,
    budget: MemoryBudget,
    /// Rules that were left out at start.
    skipped: Vec<Skipped>,
    lists: Vec<PathBuf>,
    in_force: Mutex<RulesInForce>,
}

/// How many rules are in force, and since when.
#[derive(Clone, Copy, Debug)]
pub struct RulesInForce {
    /// Those that are applied.
    pub active: usize,
    /// Those that were left out.
    pub skipped: usize,
    /// When they were read.
    pub loaded_at: SystemTime,
    /// How often they were to be read again and an error kept the last ones.
    pub failed_reloads: u64,
    /// Versions in memory: this one, and those that sessions still go by.
    pub versions: usize,
}

/// What rules know of a session, and which rules those are.
pub struct SessionRules {
    matcher: Arc<Matcher>,
    state: FlowState,
    /// Its client's share of the memory.
    budget: MemoryBudget,
}

impl LiveRules {
    /// Puts rules in force.
    #[must_use]
    pub fn new(config: RulesConfig, loaded: LoadedRules) -> Self {
        let matcher = Arc::new(loaded.matcher);
        let in_force = RulesInForce {
            active: matcher.len(),
            skipped: loaded.skipped.len(),
            loaded_at: SystemTime::now(),
            failed_reloads: 0,
            versions: 1,
        };
        let common = Common {
            in_force: Mutex::new(in_force),
            config: Mutex::new(config),
            current: Mutex::new(Arc::clone(&matcher)),
            earlier: Mutex::default(),
            version: AtomicU64::new(0),
            shared: Shared::default(),
            budget: MemoryBudget::default(),
            skipped: loaded.skipped,
            lists: loaded.lists,
        };
        Self {
            common: Arc::new(common),
            can_drop: matcher.can_drop(),
            ask_fingerprints: look_into_fingerprints(&matcher),
            matcher,
            version: 0,
            scratch: Scratch::default(),
        }
    }

    /// The same rules for another worker.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            common: Arc::clone(&self.common),
            matcher: Arc::clone(&self.matcher),
            can_drop: self.can_drop,
            ask_fingerprints: self.ask_fingerprints,
            version: self.version,
            scratch: Scratch::default(),
        }
    }

    /// The rules that this worker applies to new sessions.
    #[must_use]
    pub fn matcher(&self) -> &Matcher {
        &self.matcher
    }

    /// Whether rules that are in force by now drop or reject.
    pub fn can_drop(&mut self) -> bool {
        self.refresh();
        self.can_drop
    }

    /// Whether rules that are in force by now look into fingerprints of hellos.
    pub fn ask_fingerprints(&mut self) -> bool {
        self.refresh();
        self.ask_fingerprints
    }

    /// How often a regular expression met its limit since this was asked last.
    pub fn take_limits_hit(&mut self) -> u64 {
        self.scratch.take_limits_hit()
    }

    /// The rules that were left out at start.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.common.skipped
    }

    /// The files with lists that the rules named at start.
    #[must_use]
    pub fn lists(&self) -> &[PathBuf] {
        &self.common.lists
    }

    /// How rules are read again, from the files: to be called by a thread that may wait for them.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.common))
    }

    /// What rules know of a session that begins.
    #[must_use]
    pub fn session(&mut self, flow: FlowKey) -> SessionRules {
        self.refresh();
        let state = FlowState::new(flow.id, flow.client, flow.server);
        let budget = self.common.budget.for_client(flow.client.ip());
        SessionRules { matcher: Arc::clone(&self.matcher), state, budget }
    }

    /// Looks whether the rules were exchanged.
    fn refresh(&mut self) {
        let version = self.common.version.load(Ordering::Acquire);
        if version != self.version {
            let current = lock(&self.common.current);
            self.matcher = Arc::clone(&current);
            self.can_drop = self.matcher.can_drop();
            self.ask_fingerprints = look_into_fingerprints(&self.matcher);
            self.version = version;
        }
    }
}

fn look_into_fingerprints(matcher: &Matcher) -> bool {
    const MADE_OF_HELLOS: [Buffer; 5] =
        [Buffer::Ja3Hash, Buffer::Ja3String, Buffer::Ja3sHash, Buffer::Ja3sString, Buffer::Ja4Hash];
    MADE_OF_HELLOS.iter().any(|buffer| matcher.looks_into(*buffer))
}

impl SessionRules {
    /// This is TLS behind the clear of the same connection.
    pub fn inherit(&mut self, before: &Self) {
        self.state.inherit(&self.matcher, &before.state, &before.matcher);
    }

    /// Goes by the rules in force, unless something is under way that others have looked at in part.
    pub fn take_over(&mut self, live: &mut LiveRules) {
        live.refresh();
        if !Arc::ptr_eq(&self.matcher, &live.matcher) && self.state.is_idle() {
            self.state.exchange(&self.matcher, &live.matcher);
            self.matcher = Arc::clone(&live.matcher);
        }
    }

    /// Applies the rules of the session; between transactions it takes over those in force.
    pub fn apply(
        &mut self,
        live: &mut LiveRules,
        now_ns: u64,
        work: impl FnOnce(&mut FlowState, &mut Context<'_>),
    ) {
        self.take_over(live);
        let mut context = Context {
            matcher: &self.matcher,
            shared: &live.common.shared,
            budget: &self.budget,
            scratch: &mut live.scratch,
            now_ns,
        };
        work(&mut self.state, &mut context);
        // It may be silent from here on, and would keep a version in memory.
        self.take_over(live);
    }
}

/// Only [`Common::earlier`] has it.
fn is_unused(matcher: &Arc<Matcher>) -> bool {
    Arc::strong_count(matcher) == 1
}

/// Reads rules again.
#[derive(Clone)]
pub struct Reloader(Arc<Common>);

impl Reloader {
    /// Reads rules that may come in force.
    ///
    /// # Errors
    /// [`RulesError`], which is counted.
    pub fn read(&self, config: &RulesConfig) -> Result<LoadedRules, RulesError> {
        // What is in force is better than a file with an error.
        let config = RulesConfig { refuses_faulty: true, ..config.clone() };
        LoadedRules::load(&config).inspect_err(|_| self.numbers().failed_reloads += 1)
    }

    /// Puts rules in force that were read so.
    pub fn exchange(&self, config: RulesConfig, loaded: LoadedRules) -> RulesInForce {
        let Self(common) = self;
        let (active, skipped) = (loaded.matcher.len(), loaded.skipped.len());
        let matcher = Arc::new(loaded.matcher);
        *lock(&common.config) = config;
        let before = std::mem::replace(&mut *lock(&common.current), matcher);
        lock(&common.earlier).push(before);
        common.version.fetch_add(1, Ordering::Release);
        {
            let mut numbers = self.numbers();
            *numbers = RulesInForce { active, skipped, loaded_at: SystemTime::now(), ..*numbers };
        }
        self.in_force()
    }

    /// Whether there is something to free.
    #[must_use]
    pub fn has_unused(&self) -> bool {
        lock(&self.0.earlier).iter().any(is_unused)
    }

    /// Frees the versions that nobody goes by any more: to be called by a thread that may take its time.
    pub fn free_unused(&self) {
        let mut earlier = lock(&self.0.earlier);
        let (unused, used) = earlier.drain(..).partition(is_unused);
        *earlier = used;
        drop(earlier);
        drop::<Vec<_>>(unused);
    }

    /// Whether some of those in force drop or reject.
    #[must_use]
    pub fn can_drop(&self) -> bool {
        lock(&self.0.current).can_drop()
    }

    /// The rules in force.
    #[must_use]
    pub fn in_force(&self) -> RulesInForce {
        let versions = 1 + lock(&self.0.earlier).iter().filter(|it| !is_unused(it)).count();
        RulesInForce { versions, ..*self.numbers() }
    }

    /// The files that they are read from.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        lock(&self.0.config).files.clone()
    }

    fn numbers(&self) -> MutexGuard<'_, RulesInForce> {
        lock(&self.0.in_force)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
