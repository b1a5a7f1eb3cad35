//! The control socket: what a run is doing, and what an operator wants of it. `docs/control.md` describes each request.
//!
//! ```text
//!  mmtls ctl ─ socket ─► server ─► answers ─┬─► stats::Snapshots       numbers
//!                                          └─► desks ─► workers, at their ticks      sessions
//! ```
//! Refuses to decide who may ask, which is what the permissions of the socket's file are for, and to wait in a worker.

mod answers;
mod desk;
mod sessions;
mod socket;
mod why;

use serde::{Deserialize, Serialize};

pub use answers::{Controls, Drain, RunFacts};
pub use desk::Desks;
pub use socket::{ControlSocket, SocketError, SocketFile, SocketMode};

/// Where the socket is if nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/mmtls/control.sock";

/// Sessions in an answer, unless another number is asked for; and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 10_000;

/// What can be asked, as it stands in a line.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// What the run is, and what it has done.
    Status(Nothing),
    /// Live sessions.
    Sessions(Query),
    /// Everything about one, and why it is not decrypted.
    Session(Of),
    /// Resets one.
    SessionKill(Of),
    /// Lets one pass unread.
    SessionBypass(Of),
    /// The policies.
    Policies(Nothing),
    /// Who is connected to share keys.
    Keys(Nothing),
    /// The rules in force.
    Rules(Nothing),
    /// Reads configuration, rules, patterns and certificates again, and opens the log anew.
    Reload(Nothing),
    /// Opens the log anew.
    LogRotate(Nothing),
    /// Leaves new sessions alone, and ends the run once those that are there have ended.
    Drain(DrainTime),
}

/// No parameters.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A session.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Of {
    /// Its `flow_id` in `eve.json`.
    pub id: u64,
}

/// How long sessions are given to end.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DrainTime {
    /// In seconds; without it, as long as they need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// Which sessions, and in which order.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// Their client: an address, a network, or an address and a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Their server, the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Their server name: exact, or `*.example.org` for what is below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where their keys are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
    /// What comes first; without it, the youngest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
    /// How many at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Connections that are not known to carry TLS, too.
    pub all: bool,
}

/// Where the keys of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// None have come.
    Waiting,
    /// They are there.
    Shared,
    /// Its endpoint refuses, or its server name is one that is left alone.
    Exempt,
    /// They did not come in time.
    Missing,
    /// It cannot be followed.
    Unusable,
    /// An operator lets it pass.
    Bypassed,
    /// It is left alone: a rule for its server, or the run is being drained.
    LeftAlone,
    /// Its beginning was not seen, and its endpoints are asked for keys.
    MidStream,
    /// It is not known yet what it carries.
    Undecided,
    /// It carries no TLS.
    None,
}

impl Keys {
    /// All of them by name.
    pub const NAMES: [(&'static str, Self); 10] = [
        ("waiting", Self::Waiting),
        ("shared", Self::Shared),
        ("exempt", Self::Exempt),
        ("missing", Self::Missing),
        ("unusable", Self::Unusable),
        ("bypassed", Self::Bypassed),
        ("left_alone", Self::LeftAlone),
        ("mid_stream", Self::MidStream),
        ("undecided", Self::Undecided),
        ("none", Self::None),
    ];
}

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    /// Who has carried the most bytes.
    Bytes,
    /// The oldest.
    Age,
    /// Who has the most frames held.
    Held,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_requests_and_refuses_what_they_do_not_have() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        for text in [
            r#"{"command":"status"}"#,
            r#"{"command":"sessions"}"#,
            r#"{"command":"sessions","keys":"left_alone","sort":"held","limit":5,"all":true}"#,
            r#"{"command":"session-kill","id":7}"#,
            r#"{"command":"drain","timeout_seconds":5}"#,
        ] {
            let request = parse(text).unwrap();
            // The client's lines are the server's.
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(format!("{:?}", parse(&again).unwrap()), format!("{request:?}"));
        }
        for text in [
            "",
            "7",
            "[]",
            "{}",
            r#"{"command":"stop"}"#,
            r#"{"command":"session"}"#,
            r#"{"command":"session","id":"7"}"#,
            r#"{"command":"session","id":-1}"#,
            r#"{"command":"status","id":7}"#,
            r#"{"command":"sessions","clients":"10.0.0.1"}"#,
            r#"{"command":"sessions","sort":"name"}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for (name, keys) in Keys::NAMES {
            assert_eq!(serde_json::to_value(keys).unwrap(), name);
        }
    }
}
