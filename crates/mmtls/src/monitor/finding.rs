//! What comes out of a session's bytes, as reports need it. Refuses to own a byte of it.

use mmtls_engine::tls::Direction;
use mmtls_inspect::rules::Rule;
use mmtls_inspect::transaction::Transaction;
use mmtls_inspect::{Anomaly, Side, Uninspected};

use crate::eve::{FileInfo, Http2Stream, HttpTransaction};

/// What came out of some bytes.
#[derive(Debug)]
pub enum Finding<'a> {
    /// A request line was seen.
    Request,
    /// A transaction ended, or nothing more will be known of it.
    Http(HttpTransaction<'a>),
    /// A pattern was found.
    Match {
        /// Who sent it.
        from: Direction,
        /// Where.
        place: &'static str,
        /// What the session carries.
        app_proto: &'static str,
        /// Index of the pattern.
        pattern: usize,
        /// Bytes of the body up to the end of the match.
        offset: u64,
        /// Which transaction, from 0.
        tx_id: u64,
        /// The transaction as far as it is known; absent where its request is not.
        http: Option<HttpTransaction<'a>>,
    },
    /// A rule has matched.
    Rule {
        /// Who sent it.
        from: Direction,
        /// The rule; its action is to be taken.
        rule: &'a Rule,
        /// Whether it is reported.
        is_reported: bool,
        /// What the session carries.
        app_proto: &'static str,
        /// Which transaction, from 0.
        tx_id: Option<u64>,
        /// The transaction as far as it is known; absent where its request is not.
        http: Option<HttpTransaction<'a>>,
    },
    /// A body is over, in one way or another.
    File {
        /// Who sent it.
        from: Direction,
        /// What is known of it.
        file: FileInfo<'a>,
    },
    /// The session does not carry HTTP.
    NotHttp,
    /// Endpoints may read this differently.
    Anomaly {
        /// Who sent it.
        from: Direction,
        /// What is wrong.
        anomaly: Anomaly,
    },
    /// Something passes that is not searched as its receiver reads it. Once per direction and cause.
    Uninspected {
        /// Who sent it.
        from: Direction,
        /// Why.
        cause: Uninspected,
    },
}

/// Who sends in a direction.
pub(super) fn side(direction: Direction) -> Side {
    match direction {
        Direction::ClientToServer => Side::Client,
        Direction::ServerToClient => Side::Server,
    }
}

/// The direction in which a side sends.
pub(super) fn direction(side: Side) -> Direction {
    match side {
        Side::Client => Direction::ClientToServer,
        Side::Server => Direction::ServerToClient,
    }
}

/// What is reported of a transaction whose request is known.
pub(super) fn record(transaction: &Transaction) -> Option<HttpTransaction<'_>> {
    let request = transaction.request.as_ref()?;
    let response = transaction.response.as_ref();
    Some(HttpTransaction {
        tx_id: transaction.id.unwrap_or(0),
        hostname: request.host.as_deref(),
        url: &request.target,
        http_user_agent: request.user_agent.as_deref(),
        http_content_type: response.and_then(|response| response.content_type.as_deref()),
        http_method: &request.method,
        protocol: request.version.name(),
        request_length: request.body_bytes,
        status: response.map(|response| response.status),
        reason: response.map(|response| &*response.reason).filter(|reason| !reason.is_empty()),
        response_protocol: response.map(|response| response.version.name()),
        length: response.map_or(0, |response| response.body_bytes),
        version: transaction.stream_id.map(|_| "2"),
        http2: transaction.stream_id.map(Http2Stream::new),
        complete: response.is_some_and(|response| response.complete),
    })
}
