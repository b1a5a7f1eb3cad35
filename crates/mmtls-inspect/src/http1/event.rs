//! What the observer tells. Refuses to own a byte of what it shows.

use core::fmt;

/// One end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// A request's start line and the fields that reports use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead<'a> {
    /// As sent; methods are case-sensitive.
    pub method: &'a str,
    /// The request target (RFC 9112, section 3.2).
    pub target: &'a str,
    /// The digit after `HTTP/1.`.
    pub version: u8,
    /// Host field.
    pub host: Option<&'a [u8]>,
    /// User-Agent field.
    pub user_agent: Option<&'a [u8]>,
    /// Content-Type field.
    pub content_type: Option<&'a [u8]>,
    /// Content-Length, unless faulty or overridden.
    pub content_length: Option<u64>,
}

/// A response's start line and the fields that reports use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseHead<'a> {
    /// Status code.
    pub status: u16,
    /// Reason phrase; may be empty.
    pub reason: &'a str,
    /// The digit after `HTTP/1.`.
    pub version: u8,
    /// Content-Type field.
    pub content_type: Option<&'a [u8]>,
    /// Content-Length, unless faulty or overridden.
    pub content_length: Option<u64>,
    /// Content-Encoding field; the last one where there are several.
    pub content_encoding: Option<&'a [u8]>,
    /// An interim (1xx) response: no body, no end, the final one follows.
    pub interim: bool,
    /// A request was waiting for it; the final response answers the oldest one.
    pub answers_request: bool,
}

/// What the bytes were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A request began.
    RequestHead(RequestHead<'a>),
    /// Bytes of the request's body, transfer coding removed. Never empty.
    RequestBody(&'a [u8]),
    /// The request is complete.
    RequestEnd,
    /// A response began.
    ResponseHead(ResponseHead<'a>),
    /// Bytes of the response's body, transfer coding removed. Never empty.
    ResponseBody(&'a [u8]),
    /// The response is complete.
    ResponseEnd,
    /// Both directions speak another protocol from here on (CONNECT, status 101).
    Upgraded,
    /// The connection does not carry HTTP/1 at all.
    NotHttp {
        /// It begins with the preface of HTTP/2.
        http2: bool,
    },
    /// Something that endpoints may read differently. Each kind is told once per side.
    Anomaly(Side, Anomaly),
}

/// What an observer and the endpoints may disagree about. The rule that is applied is stated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Anomaly {
    /// Not a legal head. The rest of the direction is taken as body.
    BadHead,
    /// A head over [`super::MAX_HEAD_LEN`]. The rest of the direction is taken as body.
    HeadTooLarge,
    /// Content-Length is not a number. The rest of the direction is taken as body.
    BadLength,
    /// Several different lengths. The rest of the direction is taken as body.
    ConflictingLengths,
    /// A length and a transfer coding: the coding wins (RFC 9112, section 6.3).
    LengthAndCoding,
    /// A transfer coding in HTTP/1.0. In a response `chunked` is decoded, as clients do; else the
    /// rest of the direction is taken as body.
    CodingInHttp10,
    /// The transfer codings do not end with `chunked`. As above.
    UnknownCoding,
    /// Not the chunked coding. The rest of the direction is taken as body, from that byte on.
    BadChunk,
    /// Something else than an extension between the size of a chunk and its line end. Passed over,
    /// as curl does.
    BadChunkSize,
    /// A bare LF behind the data of a chunk. Taken for a line end, as curl does.
    BadChunkEnd,
    /// Control bytes in a response head. Taken as spaces, as curl and wget do.
    ControlInHead,
    /// A bare LF elsewhere in the chunked coding. Taken for a line end, as all clients do.
    BareLineFeed,
    /// Bytes after CONNECT, before its refusal. Taken as opaque.
    BytesAfterConnect,
    /// Status 101 although no upgrade was asked for. Taken as a final response.
    UnexpectedUpgrade,
    /// Too many requests wait for responses. Responses are no longer matched to requests.
    PipelineTooDeep,
    /// The connection ended inside a message.
    Truncated,
    /// The caller said that bytes are missing. The rest of the direction is taken as body.
    Gap,
}

impl Anomaly {
    /// Whether some client may take another body than the one that events show: clients mend such
    /// messages in different ways, or refuse them.
    #[must_use]
    pub const fn hides_body(self) -> bool {
        matches!(
            self,
            Self::BadHead
                | Self::HeadTooLarge
                | Self::BadLength
                | Self::ConflictingLengths
                | Self::BadChunk
                | Self::BadChunkSize
                | Self::BadChunkEnd
                | Self::CodingInHttp10
                | Self::ControlInHead
        )
    }

    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadHead => "http_bad_head",
            Self::HeadTooLarge => "http_head_too_large",
            Self::BadLength => "http_bad_length",
            Self::ConflictingLengths => "http_conflicting_lengths",
            Self::LengthAndCoding => "http_length_and_coding",
            Self::CodingInHttp10 => "http_coding_in_http10",
            Self::UnknownCoding => "http_unknown_coding",
            Self::BadChunk => "http_bad_chunk",
            Self::BadChunkSize => "http_bad_chunk_size",
            Self::BadChunkEnd => "http_bad_chunk_end",
            Self::ControlInHead => "http_control_in_head",
            Self::BareLineFeed => "http_bare_line_feed",
            Self::BytesAfterConnect => "http_bytes_after_connect",
            Self::UnexpectedUpgrade => "http_unexpected_upgrade",
            Self::PipelineTooDeep => "http_pipeline_too_deep",
            Self::Truncated => "http_truncated",
            Self::Gap => "http_gap",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
