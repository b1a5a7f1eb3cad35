//! What has happened lately, for who looks at a run: the last alerts and ended sessions, and how many sessions of each client
//! and program were decrypted.
//!
//! Each worker gathers for itself and puts it down at its ticks. Refuses to keep more than its caps, and to let a worker
//! wait for a reader: where the lock is taken, the next tick will do.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use lru::LruCache;
use mmtls_engine::session::{EndReason, SessionInfo};
use mmtls_engine::tls::Direction;
use serde::Serialize;
use serde_json::{Value, json};

use crate::eve::{Alert, FlowIds, FlowKey, Suite, Version, text_of};
use crate::summary::Outcome;

/// Rows of each list.
const MAX_ROWS: usize = 200;
/// Clients and programs whose sessions are counted: those seen last. A worker gathers no more between two ticks.
const MAX_COUNTED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Rows of them in an answer: those with the most sessions.
const MAX_TOLD: usize = 50;
/// Characters of a text that comes from the network or from rules.
const MAX_TEXT: usize = 256;

/// Bits of an IPv6 address that are a client's, as limits count them.
const V6_CLIENT_BITS: u32 = 64;

/// What became of sessions.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize)]
struct Tally {
    decrypted: u64,
    missing_key: u64,
    exempt: u64,
    failed: u64,
    nothing_opened: u64,
}

impl Tally {
    fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Decrypted => &mut self.decrypted,
            Outcome::MissingKey => &mut self.missing_key,
            Outcome::Exempt => &mut self.exempt,
            Outcome::Failed => &mut self.failed,
            Outcome::NothingOpened => &mut self.nothing_opened,
        } += 1;
    }

    fn add(&mut self, other: &Self) {
        self.decrypted += other.decrypted;
        self.missing_key += other.missing_key;
        self.exempt += other.exempt;
        self.failed += other.failed;
        self.nothing_opened += other.nothing_opened;
    }

    fn sessions(&self) -> u64 {
        let Self { decrypted, missing_key, exempt, failed, nothing_opened } = self;
        decrypted + missing_key + exempt + failed + nothing_opened
    }
}

/// An alert, with what there is to say of it in a list.
#[derive(Clone, Debug, Serialize)]
struct AlertRow {
    time_ms: u64,
    id: u64,
    client: String,
    server: String,
    direction: &'static str,
    signature: String,
    signature_id: u64,
    severity: u32,
    action: String,
    app_proto: String,
    host: Option<String>,
    url: Option<String>,
}

/// A session that is over.
#[derive(Clone, Debug, Serialize)]
struct EndedRow {
    time_ms: u64,
    id: u64,
    client: String,
    server: String,
    name: Option<String>,
    version: Option<String>,
    cipher_suite: Option<String>,
    outcome: &'static str,
    why: String,
    end_reason: &'static str,
    records_seen: u64,
    records_opened: u64,
    plaintext_bytes: u64,
    stall_us: Option<u32>,
}

/// The last rows of a list, and how many there were before those that are kept.
struct Rows<T>(VecDeque<T>, u64);

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self(VecDeque::new(), 0)
    }
}

impl<T> Rows<T> {
    fn push(&mut self, row: T) {
        if self.0.len() == MAX_ROWS {
            self.0.pop_front();
            self.1 += 1;
        }
        self.0.push_back(row);
    }

    fn take(&mut self, from: &mut Self) {
        self.1 += std::mem::take(&mut from.1);
        from.0.drain(..).for_each(|row| self.push(row));
    }
}

/// Counts by key of those seen last; of all others together.
struct Counts<K: Hash + Eq>(LruCache<K, Tally>, Tally);

impl<K: Hash + Eq> Counts<K> {
    fn new() -> Self {
        Self(LruCache::new(MAX_COUNTED), Tally::default())
    }

    fn add(&mut self, key: K, more: &Tally) {
        if let Some(tally) = self.0.get_mut(&key) {
            return tally.add(more);
        }
        if let Some((_, old)) = self.0.push(key, *more) {
            self.1.add(&old);
        }
    }

    /// Those with the most sessions, and the rest in one row.
    fn told(&self, name: impl Fn(&K) -> String) -> Value {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.sessions()));
        let mut others = self.1;
        all.iter().skip(MAX_TOLD).for_each(|(_, tally)| others.add(tally));
        let rows: Vec<_> = all
            .into_iter()
            .take(MAX_TOLD)
            .map(|(key, tally)| json!({"name": name(key), "sessions": tally}))
            .collect();
        json!({"rows": rows, "others": others})
    }
}

struct Kept {
    alerts: Rows<AlertRow>,
    ended: Rows<EndedRow>,
    clients: Counts<IpAddr>,
    /// By JA4; `None` where no ClientHello was seen.
    programs: Counts<Option<Box<str>>>,
}

/// What all workers have put down.
pub struct Recent(Mutex<Kept>);

impl Default for Recent {
    fn default() -> Self {
        let (clients, programs) = (Counts::new(), Counts::new());
        let (alerts, ended) = Default::default();
        Self(Mutex::new(Kept { alerts, ended, clients, programs }))
    }
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it, the last rows first.
    #[must_use]
    pub fn told(&self) -> Value {
        let kept = self.lock();
        let clients = kept.clients.told(|address| match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("{address}/{V6_CLIENT_BITS}"),
        });
        let unknown = || "unknown".to_owned();
        let programs = kept.programs.told(|ja4| ja4.as_deref().map_or_else(unknown, str::to_owned));
        json!({
            "alerts": kept.alerts.0.iter().rev().collect::<Vec<_>>(),
            "alerts_before": kept.alerts.1,
            "ended": kept.ended.0.iter().rev().collect::<Vec<_>>(),
            "ended_before": kept.ended.1,
            "clients": clients,
            "programs": programs,
        })
    }
}

/// What a worker has gathered since its last tick.
pub(crate) struct Recorder {
    shared: Arc<Recent>,
    ids: FlowIds,
    alerts: Rows<AlertRow>,
    ended: Rows<EndedRow>,
    clients: HashMap<IpAddr, Tally>,
    programs: HashMap<Option<Box<str>>, Tally>,
    /// Those of clients and programs beyond the cap.
    others: [Tally; 2],
}

impl Recorder {
    /// One that puts down what it gathers in `shared`, with these numbers of flows.
    pub(crate) fn new(shared: Arc<Recent>, ids: FlowIds) -> Self {
        let (alerts, ended, clients, programs, others) = Default::default();
        Self { shared, ids, alerts, ended, clients, programs, others }
    }

    /// That of another worker.
    pub(crate) fn share(&self) -> Self {
        Self::new(Arc::clone(&self.shared), self.ids.clone())
    }

    /// Where it puts down what it gathers.
    pub(crate) fn shared(&self) -> &Arc<Recent> {
        &self.shared
    }

    /// A rule has matched, or a pattern was found.
    pub(crate) fn alert(&mut self, now_ns: u64, flow: FlowKey, from: Direction, alert: &Alert<'_>) {
        self.alerts.push(AlertRow {
            time_ms: now_ns / 1_000_000,
            id: self.ids.of(flow.id),
            client: flow.client.to_string(),
            server: flow.server.to_string(),
            direction: match from {
                Direction::ClientToServer => "to_server",
                Direction::ServerToClient => "to_client",
            },
            signature: cut(alert.signature),
            signature_id: alert.signature_id,
            severity: alert.severity,
            action: alert.action.to_owned(),
            app_proto: cut(alert.app_proto),
            host: alert.http.and_then(|http| http.hostname).map(cut),
            url: alert.http.map(|http| cut(http.url)),
        });
    }

    /// A session is over. `error` is the last that was wrong with it.
    pub(crate) fn ended(
        &mut self,
        now_ns: u64,
        info: &SessionInfo,
        ja4: Option<&str>,
        reason: EndReason,
        (outcome, error, stall_us): (Outcome, Option<&'static str>, Option<u32>),
    ) {
        let client = match info.client.ip().to_canonical() {
            IpAddr::V6(address) => {
                let bits = address.to_bits() >> V6_CLIENT_BITS << V6_CLIENT_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(bits))
            }
            address => address,
        };
        count(&mut self.clients, client, outcome, &mut self.others[0]);
        count(&mut self.programs, ja4.map(Box::from), outcome, &mut self.others[1]);
        self.ended.push(EndedRow {
            time_ms: now_ns / 1_000_000,
            id: self.ids.of(info.id.0),
            client: info.client.to_string(),
            server: info.server.to_string(),
            name: info.server_name.as_deref().map(cut),
            version: info.version.and_then(|it| text_of(&Version(it))),
            cipher_suite: info.cipher_suite.and_then(|it| text_of(&Suite(it))),
            outcome: outcome.name(),
            why: why(outcome, error),
            end_reason: reason.name(),
            records_seen: info.records_seen[0] + info.records_seen[1],
            records_opened: info.records_opened[0] + info.records_opened[1],
            plaintext_bytes: info.plaintext_bytes[0] + info.plaintext_bytes[1],
            stall_us,
        });
    }

    /// Puts down what was gathered, unless somebody has the lock: then at the next tick.
    pub(crate) fn publish(&mut self) {
        if self.alerts.0.is_empty() && self.ended.0.is_empty() {
            return;
        }
        let mut kept = match self.shared.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        kept.alerts.take(&mut self.alerts);
        kept.ended.take(&mut self.ended);
        self.clients.drain().for_each(|(client, tally)| kept.clients.add(client, &tally));
        self.programs.drain().for_each(|(program, tally)| kept.programs.add(program, &tally));
        let [clients, programs] = std::mem::take(&mut self.others);
        kept.clients.1.add(&clients);
        kept.programs.1.add(&programs);
    }
}

fn count<K: Hash + Eq>(
    counts: &mut HashMap<K, Tally>,
    key: K,
    outcome: Outcome,
    others: &mut Tally,
) {
    if counts.len() < MAX_COUNTED.get() || counts.contains_key(&key) {
        counts.entry(key).or_default().count(outcome);
    } else {
        others.count(outcome);
    }
}

/// Why a session that is over was not decrypted, or that it was.
fn why(outcome: Outcome, error: Option<&'static str>) -> String {
    match (outcome, error) {
        (Outcome::Decrypted, _) => "It was decrypted.".to_owned(),
        (Outcome::MissingKey, _) => "Records passed, and no keys came in time.".to_owned(),
        (Outcome::Exempt, _) => {
            "Its endpoint refused to share its keys (null keys), or its server name is exempt."
                .to_owned()
        }
        (Outcome::Failed, Some(error)) => format!("It could not be followed to its end: {error}."),
        (Outcome::Failed, None) => "It could not be followed to its end.".to_owned(),
        (Outcome::NothingOpened, _) => "There was nothing to decrypt.".to_owned(),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests;
