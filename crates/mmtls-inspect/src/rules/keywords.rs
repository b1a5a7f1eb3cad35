//! The keywords: which ones there are, and what value each one takes.
//!
//! Refuses everything else by its name: a rule is never applied without one of its conditions.

use super::application::Http2Keyword;
use super::buffers::{Buffer, Transform};
use super::content::Modifier;

/// What a keyword means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Keyword {
    Message,
    Sid,
    Revision,
    Group,
    ClassType,
    Priority,
    Reference,
    Metadata,
    Target,
    NoAlert,
    Tag,
    Flow,
    FlowBits,
    XBits,
    Threshold,
    DetectionFilter,
    DataSize,
    UriLength,
    TlsVersion,
    Http2(Http2Keyword),
    /// Literal bytes in the buffer that is in force, or in this one.
    Content(Option<Buffer>),
    Modify(Modifier),
    /// The buffer of the content before.
    ContentBuffer(Buffer),
    /// The buffer of what follows.
    Sticky(Buffer),
    /// What follows is not in a buffer again.
    PacketData,
    Transform(Transform),
    Xor,
    Subslice,
    FromBase64,
    Absent,
    /// Only about speed.
    Prefilter,
    Pcre,
    DataAt,
    ByteTest,
    ByteJump,
    ByteExtract,
    BufferSize,
    Dataset,
}

/// What value a keyword takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Takes {
    /// None.
    Nothing,
    /// One or none.
    Optional,
    /// One, in quotes or not.
    Value,
    /// One in quotes.
    Quoted,
    /// One in quotes or not; what is in it is left as it is.
    Verbatim,
}

/// Finds a keyword; upper and lower case are alike.
pub(super) fn find(name: &str) -> Option<(Keyword, Takes)> {
    // Longer than every keyword.
    if name.len() > 32 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let keyword = general(&name).or_else(|| matching(&name)).or_else(|| buffer(&name));
    keyword.or_else(|| transform(&name).map(|transform| (transform, Takes::Nothing)))
}

fn general(name: &str) -> Option<(Keyword, Takes)> {
    let keyword = match name {
        "msg" => return Some((Keyword::Message, Takes::Quoted)),
        "noalert" => return Some((Keyword::NoAlert, Takes::Nothing)),
        "sid" => Keyword::Sid,
        "rev" => Keyword::Revision,
        "gid" => Keyword::Group,
        "classtype" => Keyword::ClassType,
        "priority" => Keyword::Priority,
        "reference" => Keyword::Reference,
        "metadata" => Keyword::Metadata,
        "target" => Keyword::Target,
        "tag" => Keyword::Tag,
        "flow" => Keyword::Flow,
        "flowbits" => Keyword::FlowBits,
        "xbits" => Keyword::XBits,
        "threshold" => Keyword::Threshold,
        "detection_filter" => Keyword::DetectionFilter,
        "dsize" => Keyword::DataSize,
        "urilen" => Keyword::UriLength,
        "tls.version" => Keyword::TlsVersion,
        "http2.frametype" => Keyword::Http2(Http2Keyword::FrameType),
        "http2.errorcode" => Keyword::Http2(Http2Keyword::ErrorCode),
        "http2.priority" => Keyword::Http2(Http2Keyword::Priority),
        "http2.window" => Keyword::Http2(Http2Keyword::Window),
        "http2.size_update" => Keyword::Http2(Http2Keyword::SizeUpdate),
        "http2.settings" => Keyword::Http2(Http2Keyword::Settings),
        _ => return None,
    };
    Some((keyword, Takes::Value))
}

fn matching(name: &str) -> Option<(Keyword, Takes)> {
    Some(match name {
        "content" => (Keyword::Content(None), Takes::Quoted),
        "uricontent" => (Keyword::Content(Some(Buffer::HttpUri)), Takes::Quoted),
        // Older forms that take the bytes themselves.
        "tls.subject" => (Keyword::Content(Some(Buffer::TlsCertSubject)), Takes::Quoted),
        "tls.issuerdn" => (Keyword::Content(Some(Buffer::TlsCertIssuer)), Takes::Quoted),
        "tls.fingerprint" => (Keyword::Content(Some(Buffer::TlsCertFingerprint)), Takes::Quoted),
        "nocase" => (Keyword::Modify(Modifier::NoCase), Takes::Nothing),
        "offset" => (Keyword::Modify(Modifier::Offset), Takes::Value),
        "depth" => (Keyword::Modify(Modifier::Depth), Takes::Value),
        "distance" => (Keyword::Modify(Modifier::Distance), Takes::Value),
        "within" => (Keyword::Modify(Modifier::Within), Takes::Value),
        "startswith" => (Keyword::Modify(Modifier::StartsWith), Takes::Nothing),
        "endswith" => (Keyword::Modify(Modifier::EndsWith), Takes::Nothing),
        "fast_pattern" => (Keyword::Modify(Modifier::FastPattern), Takes::Optional),
        "rawbytes" => (Keyword::Modify(Modifier::RawBytes), Takes::Nothing),
        "pcre" => (Keyword::Pcre, Takes::Verbatim),
        "isdataat" => (Keyword::DataAt, Takes::Value),
        "byte_test" => (Keyword::ByteTest, Takes::Value),
        "byte_jump" => (Keyword::ByteJump, Takes::Value),
        "byte_extract" => (Keyword::ByteExtract, Takes::Value),
        "bsize" => (Keyword::BufferSize, Takes::Value),
        "dataset" => (Keyword::Dataset, Takes::Value),
        "xor" => (Keyword::Xor, Takes::Value),
        "subslice" => (Keyword::Subslice, Takes::Value),
        "from_base64" => (Keyword::FromBase64, Takes::Optional),
        "absent" => (Keyword::Absent, Takes::Optional),
        "prefilter" => (Keyword::Prefilter, Takes::Nothing),
        "pkt_data" => (Keyword::PacketData, Takes::Nothing),
        _ => return None,
    })
}

fn transform(name: &str) -> Option<Keyword> {
    Some(Keyword::Transform(match name {
        "to_lowercase" => Transform::ToLowercase,
        "to_uppercase" => Transform::ToUppercase,
        "strip_whitespace" => Transform::StripWhitespace,
        "compress_whitespace" => Transform::CompressWhitespace,
        "url_decode" => Transform::UrlDecode,
        "to_md5" => Transform::ToMd5,
        "to_sha1" => Transform::ToSha1,
        "to_sha256" => Transform::ToSha256,
        "dotprefix" => Transform::DotPrefix,
        "header_lowercase" => Transform::HeaderLowercase,
        "strip_pseudo_headers" => Transform::StripPseudoHeaders,
        _ => return None,
    }))
}

fn buffer(name: &str) -> Option<(Keyword, Takes)> {
    let keyword = match content_buffer(name) {
        Some(buffer) => Keyword::ContentBuffer(buffer),
        None => Keyword::Sticky(http_buffer(name).or_else(|| other_buffer(name))?),
    };
    Some((keyword, Takes::Nothing))
}

/// Keywords that stand behind the content that they apply to.
fn content_buffer(name: &str) -> Option<Buffer> {
    Some(match name {
        "http_uri" => Buffer::HttpUri,
        "http_raw_uri" => Buffer::HttpUriRaw,
        "http_method" => Buffer::HttpMethod,
        "http_client_body" => Buffer::HttpRequestBody,
        "http_server_body" => Buffer::HttpResponseBody,
        "http_header" => Buffer::HttpHeader,
        "http_raw_header" => Buffer::HttpHeaderRaw,
        "http_cookie" => Buffer::HttpCookie,
        "http_user_agent" => Buffer::HttpUserAgent,
        "http_host" => Buffer::HttpHost,
        "http_raw_host" => Buffer::HttpHostRaw,
        "http_stat_code" => Buffer::HttpStatCode,
        "http_stat_msg" => Buffer::HttpStatMessage,
        _ => return None,
    })
}

/// Keywords that stand before what they apply to.
fn http_buffer(name: &str) -> Option<Buffer> {
    Some(match name {
        "http.uri" => Buffer::HttpUri,
        "http.uri.raw" => Buffer::HttpUriRaw,
        "http.method" => Buffer::HttpMethod,
        "http.request_line" | "http_request_line" => Buffer::HttpRequestLine,
        "http.request_body" => Buffer::HttpRequestBody,
        "http.response_body" => Buffer::HttpResponseBody,
        "http.header" => Buffer::HttpHeader,
        "http.header.raw" => Buffer::HttpHeaderRaw,
        "http.cookie" => Buffer::HttpCookie,
        "http.user_agent" => Buffer::HttpUserAgent,
        "http.host" => Buffer::HttpHost,
        "http.host.raw" => Buffer::HttpHostRaw,
        "http.accept" | "http_accept" => Buffer::HttpAccept,
        "http.accept_enc" | "http_accept_enc" => Buffer::HttpAcceptEncoding,
        "http.accept_lang" | "http_accept_lang" => Buffer::HttpAcceptLanguage,
        "http.referer" | "http_referer" => Buffer::HttpReferer,
        "http.connection" | "http_connection" => Buffer::HttpConnection,
        "http.content_type" | "http_content_type" => Buffer::HttpContentType,
        "http.content_len" | "http_content_len" => Buffer::HttpContentLength,
        "http.start" | "http_start" => Buffer::HttpStart,
        "http.protocol" | "http_protocol" => Buffer::HttpProtocol,
        "http.header_names" | "http_header_names" => Buffer::HttpHeaderNames,
        "http.request_header" | "http_request_header" => Buffer::HttpRequestHeader,
        "http.response_header" | "http_response_header" => Buffer::HttpResponseHeader,
        "http.stat_code" => Buffer::HttpStatCode,
        "http.stat_msg" => Buffer::HttpStatMessage,
        "http.response_line" | "http_response_line" => Buffer::HttpResponseLine,
        "http.server" => Buffer::HttpServer,
        "http.location" => Buffer::HttpLocation,
        "http2.header_name" => Buffer::Http2HeaderName,
        _ => return None,
    })
}

fn other_buffer(name: &str) -> Option<Buffer> {
    Some(match name {
        "file.data" | "file_data" => Buffer::FileData,
        "tls.sni" | "tls_sni" => Buffer::TlsSni,
        "tls.cert_subject" | "tls_cert_subject" => Buffer::TlsCertSubject,
        "tls.cert_issuer" | "tls_cert_issuer" => Buffer::TlsCertIssuer,
        "tls.cert_serial" | "tls_cert_serial" => Buffer::TlsCertSerial,
        "tls.cert_fingerprint" | "tls_cert_fingerprint" => Buffer::TlsCertFingerprint,
        "tls.certs" => Buffer::TlsCerts,
        "tls.alpn" => Buffer::TlsAlpn,
        "ja3.hash" | "ja3_hash" => Buffer::Ja3Hash,
        "ja3.string" | "ja3_string" => Buffer::Ja3String,
        "ja3s.hash" => Buffer::Ja3sHash,
        "ja3s.string" => Buffer::Ja3sString,
        "ja4.hash" | "ja4_hash" => Buffer::Ja4Hash,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_keywords_in_either_case() {
        assert_eq!(find("Content"), Some((Keyword::Content(None), Takes::Quoted)));
        let buffer = |name| find(name).unwrap().0;
        assert_eq!(buffer("http.uri"), Keyword::Sticky(Buffer::HttpUri));
        assert_eq!(buffer("HTTP_URI"), Keyword::ContentBuffer(Buffer::HttpUri));
        assert_eq!(buffer("tls_sni"), buffer("tls.sni"));
        assert_eq!(buffer("to_md5"), Keyword::Transform(Transform::ToMd5));
    }

    #[test]
    fn refuses_other_names() {
        for name in ["", "dns.query", "contents", "lua", "http", "é", &"x".repeat(9999)] {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
