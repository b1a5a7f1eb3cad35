//! The counters of a run, as text for people and as an object for `eve.json`.
//!
//! Names are stable. Refuses to count a session twice: every TLS session has one [`Outcome`].

use core::fmt;
use std::collections::BTreeMap;

use mmtls_engine::session::{KeyStatus, SessionError, SessionInfo};
use mmtls_inspect::Uninspected;
use serde::Serialize;

use crate::capture::CaptureCounters;
use crate::eve::OutputCounters;
use crate::mirror::MirrorCounters;

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
                | SessionError::UnreadFlight
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

macro_rules! summary {
    (
        // Added up of several workers.
        { $($(#[doc = $text:literal])+ $name:ident,)* }
        // Counted by all workers together.
        { $($(#[doc = $shared_text:literal])+ $shared:ident,)* }
    ) => {
        /// Counters of a run. Serialized as they are named.
        #[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
        pub struct Summary {
            $($(#[doc = $text])+ pub $name: u64,)*
            /// Longest wait of packets for keys in microseconds.
            pub longest_stall_us: u64,
            $($(#[doc = $shared_text])+ pub $shared: u64,)*
            /// Directions of sessions of which something passed uninspected, by cause.
            pub uninspected: BTreeMap<&'static str, u64>,
            /// Anomalies by name.
            pub anomalies: BTreeMap<&'static str, u64>,
        }

        impl Summary {
            /// What is counted: name, what it counts, value.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
                [
                    $((stringify!($name), concat!($($text),+), self.$name),)*
                    $((stringify!($shared), concat!($($shared_text),+), self.$shared),)*
                ]
                .into_iter()
            }

            fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                $(self.$shared = self.$shared.max(other.$shared);)*
            }
        }
    };
}

summary! {
    {
        /// TCP flows that ended.
        flows,
        /// Of these, those that carried nothing or were attempts, and were too many for the log (`log.empty_flows_per_second`).
        flows_not_logged,
        /// TLS sessions that began.
        tls_sessions,
        /// TCP connections that were looked at in the clear, see `inspect.plaintext`.
        cleartext_sessions,
        /// Bytes of them.
        cleartext_bytes,
        /// Ended sessions whose negotiated suite has a private tag.
        private_tag,
        /// Ended sessions whose negotiated suite has none.
        no_private_tag,
        /// Ended sessions of which application records were opened.
        decrypted,
        /// Ended sessions whose records passed and whose keys did not come.
        missing_key,
        /// Ended sessions whose endpoint refused to share them.
        exempt,
        /// Ended sessions that could not be followed, or of which some record could not be opened.
        failed,
        /// Ended sessions with nothing to decrypt, or where nobody asked for it.
        nothing_opened,
        /// Records of application epochs that were opened.
        records_opened,
        /// Records that were asked for and did not open.
        records_failed,
        /// Application bytes in opened records.
        plaintext_bytes,
        /// HTTP requests.
        http_requests,
        /// Final HTTP responses that were seen to their end.
        http_responses,
        /// Sessions that carried something else than HTTP.
        not_http,
        /// Patterns found, and alerts of rules.
        alerts,
        /// Sessions that the monitor reset.
        resets,
        /// Times that packets waited for keys.
        stalls,
        /// Keys of a direction and epoch that arrived.
        keys,
        /// Searches for a regular expression of a rule that were given up at its limit: each is no match.
        expression_limits,
    }
    {
        /// Sessions whose streams could not be written to their end.
        failed_streams,
        /// Log lines that could not be written.
        lost_log_lines,
        /// Lines that the outputs beside the log file took (`log.outputs`).
        output_lines,
        /// Lines that they did not take: they do not keep up, or are gone.
        lost_output_lines,
        /// Of these, lines that are longer than they take.
        too_long_output_lines,
        /// Sessions in the decrypted mirror.
        mirror_sessions,
        /// Sessions that its queue or an output had no room for, or not to their end.
        mirror_sessions_cut,
        /// Sessions that end there where records were not opened.
        mirror_gaps,
        /// Bytes in it.
        mirror_bytes,
        /// Decrypted bytes that are not.
        mirror_bytes_lost,
        /// Sessions in the capture of original packets.
        capture_sessions,
        /// Sessions that are not in it: there was no room when they began.
        capture_sessions_lost,
        /// Of those that are, sessions whose secrets did not come in time, where they were asked for.
        capture_sessions_without_secrets,
        /// Frames in it.
        capture_frames,
        /// Frames that there was no room for, or that could not be written.
        capture_frames_lost,
    }
}

impl Summary {
    /// Sessions that have begun and not ended.
    #[must_use]
    pub fn live_sessions(&self) -> u64 {
        let Self { decrypted, missing_key, exempt, failed, nothing_opened, .. } = self;
        let ended = decrypted + missing_key + exempt + failed + nothing_opened;
        self.tls_sessions.saturating_sub(ended)
    }

    pub(crate) fn count_outcome(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Exempt => &mut self.exempt,
            Outcome::Failed => &mut self.failed,
            Outcome::Decrypted => &mut self.decrypted,
            Outcome::MissingKey => &mut self.missing_key,
            Outcome::NothingOpened => &mut self.nothing_opened,
        } += 1;
    }

    /// What outputs lack: where it is not 0, a run has not done all that it was for.
    #[must_use]
    pub fn losses(&self) -> u64 {
        let of_capture = self.capture_sessions_lost + self.capture_frames_lost;
        let of_copies = self.failed_streams + self.mirror_sessions_cut + of_capture;
        self.lost_log_lines + self.lost_output_lines + of_copies
    }

    pub(crate) fn set_outputs(&mut self, outputs: &OutputCounters) {
        self.output_lines = outputs.lines;
        self.lost_output_lines = outputs.lost;
        self.too_long_output_lines = outputs.too_long;
    }

    pub(crate) fn set_mirror(&mut self, mirror: &MirrorCounters) {
        self.mirror_sessions = mirror.sessions;
        self.mirror_sessions_cut = mirror.sessions_cut;
        self.mirror_gaps = mirror.gaps;
        self.mirror_bytes = mirror.bytes;
        self.mirror_bytes_lost = mirror.bytes_lost;
    }

    pub(crate) fn set_capture(&mut self, capture: &CaptureCounters) {
        self.capture_sessions = capture.sessions;
        self.capture_sessions_lost = capture.sessions_lost;
        self.capture_sessions_without_secrets = capture.without_secrets;
        self.capture_frames = capture.frames;
        self.capture_frames_lost = capture.frames_lost;
    }

    pub(crate) fn count_uninspected(&mut self, cause: Uninspected) {
        *self.uninspected.entry(cause.name()).or_default() += 1;
    }

    pub(crate) fn count_anomaly(&mut self, name: &'static str) {
        *self.anomalies.entry(name).or_default() += 1;
    }
}

impl core::ops::AddAssign<&Self> for Summary {
    /// That of another worker. What is written is written by all together.
    fn add_assign(&mut self, other: &Self) {
        self.add(other);
        self.longest_stall_us = self.longest_stall_us.max(other.longest_stall_us);
        for (sum, more) in
            [(&mut self.uninspected, &other.uninspected), (&mut self.anomalies, &other.anomalies)]
        {
            for (name, count) in more {
                *sum.entry(name).or_default() += count;
            }
        }
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
            ("with private tag", self.private_tag),
            ("without private tag", self.no_private_tag),
            ("nothing to open", self.nothing_opened),
            ("sessions in the clear", self.cleartext_sessions),
            ("bytes in the clear", self.cleartext_bytes),
            ("records failed", self.records_failed),
            ("not HTTP", self.not_http),
            ("stalls", self.stalls),
            ("longest stall in us", self.longest_stall_us),
            ("expressions given up", self.expression_limits),
            ("log lines lost", self.lost_log_lines),
            ("lines to outputs", self.output_lines),
            ("lines to outputs lost", self.lost_output_lines),
            ("lines too long for outputs", self.too_long_output_lines),
            ("flows not logged", self.flows_not_logged),
            ("streams incomplete", self.failed_streams),
            ("sessions mirrored", self.mirror_sessions),
            ("mirrored sessions cut", self.mirror_sessions_cut),
            ("mirrored sessions with gaps", self.mirror_gaps),
            ("bytes mirrored", self.mirror_bytes),
            ("bytes not mirrored", self.mirror_bytes_lost),
            ("sessions captured", self.capture_sessions),
            ("sessions not captured", self.capture_sessions_lost),
            ("captured without secrets", self.capture_sessions_without_secrets),
            ("frames captured", self.capture_frames),
            ("frames not captured", self.capture_frames_lost),
        ] {
            if value > 0 {
                writeln!(f, "{name}: {value}")?;
            }
        }
        for (cause, value) in &self.uninspected {
            writeln!(f, "uninspected {cause}: {value}")?;
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
    fn accepts_the_sum_of_every_counter() {
        // No `..`: a new counter has to be thought of here and in the sum.
        let one = Summary {
            flows: 3,
            flows_not_logged: 3,
            tls_sessions: 3,
            cleartext_sessions: 3,
            cleartext_bytes: 3,
            decrypted: 3,
            missing_key: 3,
            exempt: 3,
            failed: 3,
            nothing_opened: 3,
            records_opened: 3,
            records_failed: 3,
            plaintext_bytes: 3,
            http_requests: 3,
            http_responses: 3,
            not_http: 3,
            alerts: 3,
            resets: 3,
            stalls: 3,
            longest_stall_us: 3,
            keys: 3,
            expression_limits: 3,
            lost_log_lines: 3,
            output_lines: 3,
            lost_output_lines: 3,
            too_long_output_lines: 3,
            failed_streams: 3,
            mirror_sessions: 3,
            mirror_sessions_cut: 3,
            mirror_gaps: 3,
            mirror_bytes: 3,
            mirror_bytes_lost: 3,
            capture_sessions: 3,
            capture_sessions_lost: 3,
            capture_sessions_without_secrets: 3,
            capture_frames: 3,
            capture_frames_lost: 3,
            private_tag: 3,
            no_private_tag: 3,
            uninspected: [("gap", 3)].into(),
            anomalies: [("early_fin", 3)].into(),
        };
        let mut sum = one.clone();
        sum += &one;
        let sum = serde_json::to_value(&sum).unwrap();
        for (name, value) in sum.as_object().unwrap() {
            let expected = match name.as_str() {
                "longest_stall_us" | "lost_log_lines" | "failed_streams" => serde_json::json!(3),
                name if name.contains("output_lines") => serde_json::json!(3),
                name if name.starts_with("mirror_") || name.starts_with("capture_") => {
                    serde_json::json!(3)
                }
                "uninspected" => serde_json::json!({"gap": 6}),
                "anomalies" => serde_json::json!({"early_fin": 6}),
                _ => serde_json::json!(6),
            };
            assert_eq!(*value, expected, "{name}");
        }
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
