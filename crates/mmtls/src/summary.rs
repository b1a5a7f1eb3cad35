//! The counters of a run, as text for people and as an object for `eve.json`.
//!
//! Names are stable. Refuses to count a session twice: every TLS session has one [`Outcome`].

use core::fmt;
use std::collections::BTreeMap;

use mmtls_engine::session::{KeyStatus, SessionError, SessionInfo};
use serde::Serialize;

/// What became of a TLS session. The first that applies, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// An endpoint refused by null keys: bypassed.
    Exempt,
    /// It could not be followed, or some record could not be opened.
    Failed,
    /// Application records were opened.
    Decrypted,
    /// Application records passed and no keys came.
    MissingKey,
    /// There was nothing to decrypt, or nobody asked for it.
    NothingOpened,
}

impl Outcome {
    /// Judges a session that ended; `failed` when it raised an error that means failure,
    /// `stalled` when records ever waited for keys.
    #[must_use]
    pub fn of(info: &SessionInfo, failed: bool, stalled: bool) -> Self {
        let seen = info.records_seen[0] + info.records_seen[1] > 0;
        let opened = info.records_opened[0] + info.records_opened[1] > 0;
        match info.key_status {
            KeyStatus::Exempt => Self::Exempt,
            KeyStatus::Unusable => Self::Failed,
            _ if failed => Self::Failed,
            _ if opened => Self::Decrypted,
            KeyStatus::Missing => Self::MissingKey,
            KeyStatus::Waiting if seen || stalled => Self::MissingKey,
            KeyStatus::Waiting | KeyStatus::Shared => Self::NothingOpened,
        }
    }

    /// Whether an error makes its session count as failed.
    #[must_use]
    pub fn is_failure(error: SessionError) -> bool {
        !matches!(
            error,
            SessionError::MissingKeys
                | SessionError::EarlyFin
                // Also raised for sessions that nobody used.
                | SessionError::NothingOpened
                | SessionError::EarlyDataNotInspected
                // It was decrypted, if late.
                | SessionError::JudgedLate
        )
    }

    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::Failed => "failed",
            Self::Decrypted => "decrypted",
            Self::MissingKey => "missing_key",
            Self::NothingOpened => "nothing_opened",
        }
    }
}

/// Counters of a run. Serialized as they are named.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Summary {
    /// TCP flows that ended.
    pub flows: u64,
    /// TLS sessions that began.
    pub tls_sessions: u64,
    /// Ended sessions by [`Outcome`].
    pub decrypted: u64,
    /// See [`Outcome::MissingKey`].
    pub missing_key: u64,
    /// See [`Outcome::Exempt`].
    pub exempt: u64,
    /// See [`Outcome::Failed`].
    pub failed: u64,
    /// See [`Outcome::NothingOpened`].
    pub nothing_opened: u64,
    /// Records of application epochs that were opened.
    pub records_opened: u64,
    /// Records that were asked for and did not open.
    pub records_failed: u64,
    /// Application bytes in opened records.
    pub plaintext_bytes: u64,
    /// HTTP/1 requests.
    pub http_requests: u64,
    /// Final HTTP/1 responses that were seen to their end.
    pub http_responses: u64,
    /// Sessions that carried something else than HTTP/1.
    pub not_http: u64,
    /// Response bodies that were not searched because they have a content coding.
    pub encoded_bodies: u64,
    /// Patterns found.
    pub alerts: u64,
    /// Sessions that the monitor reset.
    pub resets: u64,
    /// Times that packets waited for keys.
    pub stalls: u64,
    /// Longest such wait in microseconds.
    pub longest_stall_us: u64,
    /// Keys of a direction and epoch that arrived.
    pub keys: u64,
    /// Log lines that could not be written.
    pub lost_log_lines: u64,
    /// Sessions whose streams could not be written.
    pub failed_streams: u64,
    /// Anomalies by name.
    pub anomalies: BTreeMap<&'static str, u64>,
}

impl Summary {
    pub(crate) fn count_outcome(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Exempt => &mut self.exempt,
            Outcome::Failed => &mut self.failed,
            Outcome::Decrypted => &mut self.decrypted,
            Outcome::MissingKey => &mut self.missing_key,
            Outcome::NothingOpened => &mut self.nothing_opened,
        } += 1;
    }

    pub(crate) fn count_anomaly(&mut self, name: &'static str) {
        *self.anomalies.entry(name).or_default() += 1;
    }
}

/// `key: value`, one per line. The first lines are always there; those below only when not zero.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in [
            ("flows seen", self.flows),
            ("TLS sessions", self.tls_sessions),
            ("decrypted", self.decrypted),
            ("missing key", self.missing_key),
            ("exempt", self.exempt),
            ("failed", self.failed),
            ("records opened", self.records_opened),
            ("plaintext bytes", self.plaintext_bytes),
            ("HTTP requests", self.http_requests),
            ("alerts", self.alerts),
            ("resets", self.resets),
        ] {
            writeln!(f, "{name}: {value}")?;
        }
        for (name, value) in [
            ("nothing to open", self.nothing_opened),
            ("records failed", self.records_failed),
            ("not HTTP/1", self.not_http),
            ("encoded bodies not searched", self.encoded_bodies),
            ("stalls", self.stalls),
            ("longest stall in us", self.longest_stall_us),
            ("log lines lost", self.lost_log_lines),
            ("streams incomplete", self.failed_streams),
        ] {
            if value > 0 {
                writeln!(f, "{name}: {value}")?;
            }
        }
        for (name, value) in &self.anomalies {
            writeln!(f, "anomaly {name}: {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_stable_lines() {
        let mut summary = Summary { flows: 3, decrypted: 2, stalls: 1, ..Summary::default() };
        summary.count_outcome(Outcome::Exempt);
        summary.count_anomaly("early_fin");
        let text = summary.to_string();
        assert!(text.starts_with("flows seen: 3\nTLS sessions: 0\ndecrypted: 2\n"));
        assert!(text.contains("\nmissing key: 0\nexempt: 1\nfailed: 0\n"));
        assert!(text.ends_with("stalls: 1\nanomaly early_fin: 1\n"));
        assert!(!text.contains("records failed"));
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!(json["anomalies"]["early_fin"], 1);
        assert_eq!(json["exempt"], 1);
    }

    #[test]
    fn accepts_one_outcome_per_session() {
        let info = crate::eve::tests::session();
        assert_eq!(Outcome::of(&info, false, true), Outcome::Decrypted);
        assert_eq!(Outcome::of(&info, true, true), Outcome::Failed);
        let with = |key_status, records_seen| SessionInfo {
            key_status,
            records_seen,
            records_opened: [0, 0],
            ..info.clone()
        };
        for (status, seen, outcome) in [
            (KeyStatus::Exempt, [5, 5], Outcome::Exempt),
            (KeyStatus::Missing, [5, 5], Outcome::MissingKey),
            (KeyStatus::Waiting, [1, 0], Outcome::MissingKey),
            (KeyStatus::Waiting, [0, 0], Outcome::NothingOpened),
            (KeyStatus::Shared, [1, 1], Outcome::NothingOpened),
            (KeyStatus::Unusable, [0, 0], Outcome::Failed),
        ] {
            assert_eq!(Outcome::of(&with(status, seen), false, false), outcome, "{status:?}");
        }
        let waited = Outcome::of(&with(KeyStatus::Waiting, [0, 0]), false, true);
        assert_eq!(waited, Outcome::MissingKey);
    }

    #[test]
    fn refuses_to_call_a_short_session_failed() {
        assert!(!Outcome::is_failure(SessionError::EarlyFin));
        assert!(Outcome::is_failure(SessionError::Integrity));
    }
}
