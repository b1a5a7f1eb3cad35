//! What is reported of a connection. Refuses to own a byte of what it shows.

use core::fmt;

use crate::protocol::AppProto;
use crate::transaction::Transaction;

/// One end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// The fields of a head, in the order in which they were sent.
#[derive(Clone, Copy)]
pub struct Fields<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Http1(&'a [httparse::Header<'a>], &'a [u8]),
    Http2(&'a [(Vec<u8>, Vec<u8>)]),
}

impl<'a> Fields<'a> {
    /// Of a head as it was sent, from its start line to its empty line.
    pub(crate) fn http1(headers: &'a [httparse::Header<'a>], head: &'a [u8]) -> Self {
        Self(Source::Http1(headers, head))
    }

    pub(crate) fn http2(fields: &'a [(Vec<u8>, Vec<u8>)]) -> Self {
        Self(Source::Http2(fields))
    }

    /// The whole head of HTTP/1 as it was sent, from its start line to its empty line, or its trailers, which have
    /// no start line; HTTP/2 has none.
    pub(crate) fn http1_head(&self) -> Option<&'a [u8]> {
        match self.0 {
            Source::Http1(_, head) => Some(head),
            Source::Http2(_) => None,
        }
    }

    /// Names as sent, and values. In HTTP/2 the pseudo-fields are among them.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (http1, http2) = match self.0 {
            Source::Http1(headers, _) => (headers, &[][..]),
            Source::Http2(fields) => (&[][..], fields),
        };
        let http1 = http1.iter().map(|header| (header.name.as_bytes(), header.value));
        http1.chain(http2.iter().map(|(name, value)| (&name[..], &value[..])))
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        if let Source::Http1([], head) = self.0 {
            return f.write_str(&text(head));
        }
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// What was done to the bytes of a body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// Nothing but the transfer coding is taken off. Every body is reported so: a client may not know the
    /// content coding.
    AsSent,
    /// The content coding is taken off too, in one of the ways in which clients read it.
    Decoded(u8),
}

/// Bytes of a message's body. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body<'a> {
    /// Who sent them.
    pub side: Side,
    /// Whose they are; absent where the message has no head, or the transaction had to be forgotten.
    pub transaction: Option<&'a Transaction>,
    /// What was done to them.
    pub form: Form,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A frame of HTTP/2: what it says besides fields and content.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Who sent it.
    pub side: Side,
    /// Its stream, of a PUSH_PROMISE the promised one; 0 is the connection.
    pub stream: u32,
    /// Whose it is: absent for the connection, and before and after the transaction.
    pub transaction: Option<&'a Transaction>,
    /// The transaction may still come.
    pub is_early: bool,
    /// Its type.
    pub kind: u8,
    /// The error code of RST_STREAM and GOAWAY.
    pub error_code: Option<u32>,
    /// The weight in PRIORITY or HEADERS, as it is sent.
    pub weight: Option<u8>,
    /// The increment in WINDOW_UPDATE.
    pub window: Option<u32>,
    /// The content of SETTINGS.
    pub settings: &'a [u8],
    /// The sizes that the header block that it ends sets for the dynamic table.
    pub table_sizes: &'a [u32],
}

impl Frame<'_> {
    /// Numbers and values of the settings, in their order.
    pub fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        self.settings.chunks_exact(6).filter_map(|setting| {
            let (number, value) = setting.split_first_chunk()?;
            Some((u16::from_be_bytes(*number), u32::from_be_bytes(value.try_into().ok()?)))
        })
    }
}

/// What the bytes were.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// What the connection carries is known now.
    Protocol(AppProto),
    /// A request began.
    RequestHead {
        /// Which one.
        transaction: &'a Transaction,
        /// The whole method, however long.
        method: &'a str,
        /// The whole target, however long.
        target: &'a str,
        /// Its fields.
        fields: Fields<'a>,
    },
    /// Bytes of a body.
    Body(Body<'a>),
    /// A frame of HTTP/2, told behind the head that it completes, and before the content or the end that it
    /// brings.
    Frame(Frame<'a>),
    /// Fields behind a body, or such as belong to no transaction. Those of HTTP/1 are shown to rules only.
    Trailers(Side, Option<&'a Transaction>, Fields<'a>),
    /// The request is complete.
    RequestEnd(Option<&'a Transaction>),
    /// An interim (1xx) response: no body, no end, the final one follows.
    Interim(Option<&'a Transaction>, u16, Fields<'a>),
    /// A final response began.
    ResponseHead(&'a Transaction, Fields<'a>),
    /// The response is complete.
    ResponseEnd(Option<&'a Transaction>),
    /// Both directions speak another protocol from here on (CONNECT, status 101).
    Upgraded(&'a Transaction),
    /// The transaction is over, or nothing more will be known of it. Each one ends so, once; but its response may go on
    /// where [`Transaction::is_reset`].
    Complete(&'a Transaction),
    /// That is over, too, or not followed any more.
    ResetOver(&'a Transaction),
    /// The next bytes of a protocol that is not followed, or of what WebSocket's messages say.
    Data(Side, &'a [u8]),
    /// Something that endpoints may read differently. Each kind is reported once per side. What it means
    /// for the inspection: [`Anomaly::uninspected`].
    Anomaly(Side, Anomaly),
    /// The rest of a body is beyond [`crate::AppLayer::limit_response_bodies`], and is not shown.
    BodyLimit(Side),
}

/// What an observer and the endpoints may disagree about. The rule that is applied is stated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Anomaly {
    /// Not a legal head. It is shown as body, and so is the rest of the direction; what lenient receivers make
    /// of the head is told as well.
    BadHead,
    /// A head over [`crate::http1::MAX_HEAD_LEN`], or without room in what all heads share. The rest of the direction
    /// is taken as body. Or trailers over half of that, of which the rest is passed over.
    HeadTooLarge,
    /// Content-Length is not a number. The rest of the direction is taken as body.
    BadLength,
    /// Several different lengths. The rest of the direction is taken as body. Or content behind a status that has none
    /// for some clients: it is taken as the others do. Or HEAD or CONNECT behind a response that nobody had asked for,
    /// which may be the answer to the client, and without content.
    ConflictingLengths,
    /// A length and a transfer coding: the coding wins (RFC 9112, section 6.3).
    LengthAndCoding,
    /// The same in a request, where some servers go by the length, and find other requests.
    LengthAndCodingInRequest,
    /// Host fields that differ, or that differ from the target's host or from `:authority`. The host in the
    /// target wins.
    AmbiguousHost,
    /// A transfer coding in HTTP/1.0. In a response `chunked` is decoded, as clients do; else the
    /// rest of the direction is taken as body.
    CodingInHttp10,
    /// The transfer codings do not end with `chunked`: as above. Or others stand in front of it, which not all
    /// clients take off.
    UnknownCoding,
    /// Not the chunked coding. The rest of the direction is taken as body, from that byte on.
    BadChunk,
    /// Something else than an extension between the size of a chunk and its line end, or white space before it:
    /// passed over, as curl or browsers do; or a bare LF in an extension, which is taken for its end.
    BadChunkSize,
    /// A bare LF behind the data of a chunk. Taken for a line end, as curl does.
    BadChunkEnd,
    /// Control bytes in a response head. Taken as spaces, as curl and wget do. Or a fold around a field that
    /// says how the body is to be read, or a blank behind its name, which some clients do not know.
    ControlInHead,
    /// A bare LF elsewhere in the chunked coding. Taken for a line end, as all clients do.
    BareLineFeed,
    /// Bytes after CONNECT, before its refusal. Taken as opaque.
    BytesAfterConnect,
    /// Status 101 although no upgrade was asked for. Taken as a final response.
    UnexpectedUpgrade,
    /// Too many requests wait for responses. Responses are no longer matched to requests; or the body of a
    /// request that is not kept belongs to none, and is not decoded.
    PipelineTooDeep,
    /// The connection ended inside a message.
    Truncated,
    /// The caller said that bytes are missing. The rest of the direction is taken as body.
    Gap,
    /// A content coding that is not known. The body is shown as it is.
    ContentCodingUnknown,
    /// Not what the content coding allows. From there on the body is only shown as it is.
    ContentCodingMalformed,
    /// The message ended inside the content coding.
    ContentCodingTruncated,
    /// More comes out of a content coding than a cap allows. As if malformed.
    ContentCodingOverCap,
    /// Bytes behind the end of the content coding. Passed over, as clients do.
    ContentCodingTrailingBytes,
    /// gzip of several members, or zstd of several frames. All are decoded.
    ContentCodingSeveralMembers,
    /// What endpoints of HTTP/2 answer with an error of the connection. Everything behind it in this
    /// direction is taken as body.
    Http2Malformed,
    /// A head of HTTP/2 beyond a cap, in bytes, in frames or by what its table makes of few bytes; or settings. As above,
    /// unless it is only long when it is decompressed: then the rest of its fields is not looked at.
    Http2HeadersTooLarge,
    /// A head of HTTP/2 that endpoints refuse. It is followed, unless it is one more of a stream that was reset. Or a
    /// response that came before its request, which a client that sends the request meanwhile takes: its body is not
    /// decoded.
    Http2BadHead,
    /// More streams at a time than are followed, whose bodies belong to no transaction; or a request with a
    /// body whose text is not kept. Those bodies are not decoded.
    Http2TooManyStreams,
    /// A client that keeps resetting its requests before they are answered.
    Http2RapidReset,
    /// gRPC with messages that are compressed one by one. They are shown as they are.
    GrpcMessageCoding,
    /// What endpoints of WebSocket close the connection for. What follows is shown as it is sent, or not at
    /// all where it was compressed. Or an answer that switches to it and to HTTP/2, which is followed as WebSocket.
    WebSocketMalformed,
    /// WebSocket with an extension that is not known. Messages are shown as if without it.
    WebSocketUnknownExtension,
}

impl Anomaly {
    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadHead => "http_bad_head",
            Self::HeadTooLarge => "http_head_too_large",
            Self::BadLength => "http_bad_length",
            Self::ConflictingLengths => "http_conflicting_lengths",
            Self::LengthAndCoding => "http_length_and_coding",
            Self::LengthAndCodingInRequest => "http_length_and_coding_in_request",
            Self::AmbiguousHost => "http_ambiguous_host",
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
            Self::ContentCodingUnknown => "http_content_coding_unknown",
            Self::ContentCodingMalformed => "http_content_coding_malformed",
            Self::ContentCodingTruncated => "http_content_coding_truncated",
            Self::ContentCodingOverCap => "http_content_coding_over_cap",
            Self::ContentCodingTrailingBytes => "http_content_coding_trailing_bytes",
            Self::ContentCodingSeveralMembers => "http_content_coding_several_members",
            Self::Http2Malformed => "http2_malformed",
            Self::Http2HeadersTooLarge => "http2_headers_too_large",
            Self::Http2BadHead => "http2_bad_head",
            Self::Http2TooManyStreams => "http2_too_many_streams",
            Self::Http2RapidReset => "http2_rapid_reset",
            Self::GrpcMessageCoding => "grpc_message_coding",
            Self::WebSocketMalformed => "websocket_malformed",
            Self::WebSocketUnknownExtension => "websocket_unknown_extension",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
