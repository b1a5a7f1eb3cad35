//! Live sessions as an operator sees them: which are meant, in which order, and what is told of each.
//!
//! Refuses to tell anything that `eve.json` does not.

use std::net::IpAddr;

use mmtls_engine::session::{EarlyData, KeyStatus, SessionInfo};
use mmtls_engine::tls::Direction;
use mmtls_engine::{Bypass, Carries, FlowView};
use mmtls_middlebox::config::{BypassRule, NameRules};
use serde::Serialize;

use super::{DEFAULT_LIMIT, Keys, MAX_LIMIT, Query, Sort};
use crate::eve::{FlowKey, Lossy, Suite, Version, text_of};
use crate::monitor::{Monitor, MonitorState};

/// A flow of a monitor.
pub(super) type View<'a> = FlowView<'a, MonitorState>;

/// A [`Query`] that was understood.
pub(super) struct Filter {
    client: Option<Bypass>,
    server: Option<Bypass>,
    name: Option<NameRules>,
    keys: Option<Keys>,
    sort: Option<Sort>,
    pub(super) limit: usize,
    all: bool,
}

/// A line of a listing.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) id: u64,
    worker: usize,
    pub(super) client: String,
    pub(super) server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cipher_suite: Option<String>,
    pub(super) keys: Keys,
    /// Records of it are opened.
    pub(super) decrypted: bool,
    bytes_toserver: u64,
    bytes_toclient: u64,
    held_frames: usize,
    /// How long records have waited for keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waits_milliseconds: Option<u64>,
    age_seconds: u64,
    /// The kernel forwards it, and bytes are those from before.
    kernel_forwards: bool,
}

/// Everything about one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Detail {
    #[serde(flatten)]
    pub(super) row: Row,
    idle_seconds: u64,
    packets_toserver: u64,
    packets_toclient: u64,
    kept_bytes: usize,
    vlans: Vec<u16>,
    /// How it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end_reason: Option<&'static str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<TlsDetail>,
}

/// What there is to say of TLS.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TlsDetail {
    client_random: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    alpn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starttls: Option<&'static str>,
    pub(super) mid_stream: bool,
    early_data: bool,
    records_seen_toserver: u64,
    records_seen_toclient: u64,
    records_opened_toserver: u64,
    records_opened_toclient: u64,
    plaintext_toserver: u64,
    plaintext_toclient: u64,
    /// A direction that its endpoint keeps private.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused_direction: Option<&'static str>,
    /// Errors so far.
    pub(super) errors: Vec<&'static str>,
    /// The last keys that were not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys_refused: Option<RefusedBecause>,
    /// Its records are looked at.
    followed: bool,
    #[serde(skip)]
    pub(super) client_address: IpAddr,
    #[serde(skip)]
    pub(super) server_address: IpAddr,
}

/// Why keys were not taken.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RefusedBecause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sender: Option<IpAddr>,
    pub(super) reason: &'static str,
}

impl Filter {
    /// What a query means.
    ///
    /// # Errors
    /// Names what cannot be understood.
    pub(super) fn new(query: &Query) -> Result<Self, String> {
        let end = |text: &Option<String>| {
            let end = text.clone().map(BypassRule::try_from).transpose();
            end.map(|end| end.map(|BypassRule(end)| end))
        };
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(format!("limit must be 1 to {MAX_LIMIT}"));
        }
        Ok(Self {
            client: end(&query.client)?,
            server: end(&query.server)?,
            name: query.name.clone().map(|name| NameRules::try_from(vec![name])).transpose()?,
            keys: query.keys,
            sort: query.sort,
            limit,
            all: query.all,
        })
    }

    /// Whether a flow is meant.
    pub(super) fn accepts(&self, view: &View<'_>) -> bool {
        if view.ended.is_some() {
            return false;
        }
        let keys = keys(view);
        let of_keys = match self.keys {
            Some(wanted) => wanted == keys,
            None => self.all || !matches!(keys, Keys::Undecided | Keys::None),
        };
        let of_end = |wanted: &Option<Bypass>, end| wanted.is_none_or(|it| it.contains(end));
        let of_name = self.name.as_ref().is_none_or(|NameRules(names)| {
            let name = info(view).and_then(|info| info.server_name.as_deref());
            name.is_some_and(|name| names.matches(name.as_bytes()))
        });
        of_keys && of_end(&self.client, view.client) && of_end(&self.server, view.server) && of_name
    }

    /// What a flow is ordered by: the largest first.
    pub(super) fn key(&self, view: &View<'_>) -> u64 {
        match self.sort {
            None => view.started_ns,
            Some(Sort::Age) => u64::MAX - view.started_ns,
            Some(Sort::Bytes) => view.bytes[0].saturating_add(view.bytes[1]),
            Some(Sort::Held) => view.held_frames as u64,
        }
    }
}

/// What `eve.json` names a flow by.
pub(super) fn flow_key(view: &View<'_>) -> FlowKey {
    FlowKey { id: view.id.0, client: view.client, server: view.server, place: view.place }
}

fn info<'a>(view: &'a View<'_>) -> Option<&'a SessionInfo> {
    match &view.carries {
        Carries::Session { info, .. } => Some(info),
        Carries::Undecided | Carries::Other { .. } => None,
    }
}

fn keys(view: &View<'_>) -> Keys {
    match &view.carries {
        _ if view.is_left_alone => Keys::LeftAlone,
        _ if view.is_bypassed_by_operator() => Keys::Bypassed,
        Carries::Session { info, .. } => match info.key_status {
            KeyStatus::Waiting => Keys::Waiting,
            KeyStatus::Shared => Keys::Shared,
            KeyStatus::Exempt => Keys::Exempt,
            KeyStatus::Missing => Keys::Missing,
            KeyStatus::Unusable => Keys::Unusable,
        },
        Carries::Undecided => Keys::Undecided,
        Carries::Other { waits: true } => Keys::MidStream,
        Carries::Other { waits: false } => Keys::None,
    }
}

/// A line about a flow.
pub(super) fn row(view: &View<'_>, monitor: &Monitor, worker: usize, now_ns: u64) -> Row {
    let info = info(view);
    let since = match view.carries {
        Carries::Session { stalled_since_ns, .. } => stalled_since_ns.into_iter().flatten().min(),
        Carries::Undecided | Carries::Other { .. } => None,
    };
    Row {
        id: monitor.operated.flow_id(view.id),
        worker,
        client: view.client.to_string(),
        server: view.server.to_string(),
        name: info.and_then(|info| info.server_name.clone()),
        version: info.and_then(|info| text_of(&Version(info.version?))),
        cipher_suite: info.and_then(|info| text_of(&Suite(info.cipher_suite?))),
        keys: keys(view),
        decrypted: info.is_some_and(|info| info.records_opened != [0; 2]),
        bytes_toserver: view.bytes[0],
        bytes_toclient: view.bytes[1],
        held_frames: view.held_frames,
        waits_milliseconds: since.map(|since| now_ns.saturating_sub(since) / 1_000_000),
        age_seconds: seconds_since(view.started_ns, now_ns),
        kernel_forwards: view.is_offloaded,
    }
}

/// Everything about a flow.
pub(super) fn detail(view: &View<'_>, monitor: &Monitor, worker: usize, now_ns: u64) -> Detail {
    let tls = match &view.carries {
        Carries::Session { info, state, is_followed, .. } => {
            Some(tls_detail(info, state, *is_followed, monitor))
        }
        Carries::Undecided | Carries::Other { .. } => None,
    };
    Detail {
        row: row(view, monitor, worker, now_ns),
        idle_seconds: seconds_since(view.last_ns, now_ns),
        packets_toserver: view.packets[0],
        packets_toclient: view.packets[1],
        kept_bytes: view.kept_bytes,
        vlans: view.place.vlans.into_iter().filter(|id| *id != 0).collect(),
        end_reason: view.ended.map(mmtls_engine::session::EndReason::name),
        tls,
    }
}

fn tls_detail(
    info: &SessionInfo,
    state: &MonitorState,
    is_followed: bool,
    monitor: &Monitor,
) -> TlsDetail {
    let refused = monitor.operated.last_refused(info.id);
    let mut errors: Vec<_> = state.reported.iter().map(|(error, _)| error.name()).collect();
    errors.dedup();
    TlsDetail {
        client_random: base16ct::lower::encode_string(&info.client_random),
        alpn: info.alpn.as_deref().and_then(|alpn| text_of(&Lossy(alpn))),
        starttls: info.starttls.map(mmtls_engine::session::Upgrade::name),
        mid_stream: info.is_mid_stream,
        early_data: info.early_data != EarlyData::None,
        records_seen_toserver: info.records_seen[0],
        records_seen_toclient: info.records_seen[1],
        records_opened_toserver: info.records_opened[0],
        records_opened_toclient: info.records_opened[1],
        plaintext_toserver: info.plaintext_bytes[0],
        plaintext_toclient: info.plaintext_bytes[1],
        refused_direction: Direction::BOTH
            .into_iter()
            .find(|direction| info.refused[direction.index()])
            .map(|direction| match direction {
                Direction::ClientToServer => "toserver",
                Direction::ServerToClient => "toclient",
            }),
        errors,
        keys_refused: refused.map(|(sender, why)| RefusedBecause { sender, reason: why.name() }),
        followed: is_followed,
        client_address: info.client.ip(),
        server_address: info.server.ip(),
    }
}

fn seconds_since(since_ns: u64, now_ns: u64) -> u64 {
    now_ns.saturating_sub(since_ns) / 1_000_000_000
}
