//! What the clients tell: transfers that were whole, and errors.
//!
//! Refuses to keep more than the errors: of an hour's transfers sums are enough.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::tail::Tail;

/// A transfer, as `xtask/soak/client.py` tells it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Transfer {
    /// Of the client: `short`, `persistent`, …
    pub kind: String,
    /// Seconds since 1970, also of the connection, which may have been idle since.
    pub connected: f64,
    pub begun: f64,
    pub ended: f64,
    /// The client's address and port; port 0 where it had none yet.
    pub local: String,
    /// What was fetched or sent.
    pub what: String,
    /// What came of it.
    pub bytes: u64,
    /// Of TLS, or of HTTP where curl tells.
    #[serde(default)]
    pub version: Option<String>,
    pub error: Option<String>,
}

/// Sums of a kind of client.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sum {
    pub transfers: u64,
    pub bytes: u64,
    /// The longest one in seconds.
    pub longest: f64,
}

/// All that was told.
#[derive(Serialize)]
pub struct Transfers {
    #[serde(skip)]
    tail: Tail,
    pub kinds: BTreeMap<String, Sum>,
    pub versions: BTreeMap<String, u64>,
    pub errors: Vec<Transfer>,
    /// Lines that are not what a client writes.
    pub bad_lines: u64,
}

impl Transfers {
    /// Of a file that clients append to.
    pub fn new(path: &Path) -> Self {
        Self {
            tail: Tail::new(path),
            kinds: BTreeMap::new(),
            versions: BTreeMap::new(),
            errors: Vec::new(),
            bad_lines: 0,
        }
    }

    /// Takes what has come since.
    pub fn read(&mut self) -> Result<(), String> {
        let Self { tail, kinds, versions, errors, bad_lines } = self;
        tail.read(|line| {
            let Ok(transfer) = serde_json::from_slice::<Transfer>(line) else {
                *bad_lines += 1;
                return;
            };
            if transfer.error.is_some() {
                errors.push(transfer);
                return;
            }
            let sum = kinds.entry(transfer.kind).or_default();
            sum.transfers += 1;
            sum.bytes += transfer.bytes;
            sum.longest = sum.longest.max(transfer.ended - transfer.begun);
            *versions.entry(transfer.version.unwrap_or_default()).or_default() += 1;
        })
    }

    /// Whole ones.
    pub fn count(&self) -> u64 {
        self.kinds.values().map(|sum| sum.transfers).sum()
    }

    /// Of whole ones.
    pub fn bytes(&self) -> u64 {
        self.kinds.values().map(|sum| sum.bytes).sum()
    }
}
