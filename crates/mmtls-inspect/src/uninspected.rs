//! What can keep bytes from being inspected as their receiver reads them.
//!
//! Refuses to decide what that leads to: a policy of the operator does.

use core::fmt;

use crate::event::Anomaly;

/// A cause for which something passes that was not inspected, or not as its receiver reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Uninspected {
    /// A protocol that is not followed. Its bytes are only shown as they are.
    UnknownProtocol,
    /// A coding of a body that is not known. The body is shown coded.
    UnknownCoding,
    /// What endpoints read in different ways, or refuse.
    Malformed,
    /// More than is kept or decoded.
    OverCap,
    /// A regular expression of a rule met its limit of steps, and counts as no match.
    ExpressionLimit,
    /// The rest of a body that is beyond the limit of the caller.
    BodyLimit,
    /// Bytes that the caller does not have.
    Gap,
}

impl Uninspected {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::UnknownProtocol,
        Self::UnknownCoding,
        Self::Malformed,
        Self::OverCap,
        Self::ExpressionLimit,
        Self::BodyLimit,
        Self::Gap,
    ];

    /// A stable name for settings and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownProtocol => "unknown_protocol",
            Self::UnknownCoding => "unknown_coding",
            Self::Malformed => "malformed",
            Self::OverCap => "over_cap",
            Self::ExpressionLimit => "expression_limit",
            Self::BodyLimit => "body_limit",
            Self::Gap => "gap",
        }
    }
}

impl fmt::Display for Uninspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Anomaly {
    /// What an anomaly means for the inspection; `None` where all clients that take the message take
    /// what events show.
    #[must_use]
    pub const fn uninspected(self) -> Option<Uninspected> {
        Some(match self {
            Self::BadHead
            | Self::BadLength
            | Self::ConflictingLengths
            | Self::LengthAndCodingInRequest
            | Self::AmbiguousHost
            | Self::BadChunk
            | Self::BadChunkSize
            | Self::BadChunkEnd
            | Self::CodingInHttp10
            | Self::ControlInHead
            | Self::ContentCodingMalformed
            | Self::Http2Malformed
            | Self::WebSocketMalformed
            | Self::Http2BadHead => Uninspected::Malformed,
            Self::HeadTooLarge
            | Self::PipelineTooDeep
            | Self::ContentCodingOverCap
            | Self::Http2HeadersTooLarge
            | Self::Http2TooManyStreams => Uninspected::OverCap,
            Self::UnknownCoding
            | Self::ContentCodingUnknown
            | Self::GrpcMessageCoding
            | Self::WebSocketUnknownExtension => Uninspected::UnknownCoding,
            Self::Gap => Uninspected::Gap,
            Self::LengthAndCoding
            | Self::BareLineFeed
            | Self::BytesAfterConnect
            | Self::UnexpectedUpgrade
            | Self::Truncated
            | Self::ContentCodingTruncated
            | Self::ContentCodingTrailingBytes
            | Self::ContentCodingSeveralMembers
            | Self::Http2RapidReset => return None,
        })
    }
}
