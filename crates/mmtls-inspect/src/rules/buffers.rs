//! The parts of traffic that rules look into, and what may be done to one before it is looked into.

use super::slices::{FromBase64, Slice, XorKey};

/// Most transformations of one buffer.
pub const MAX_TRANSFORMS: usize = 16;

/// A part of the traffic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Buffer {
    /// What no keyword names: the stream, or a segment, of one direction.
    Payload,
    /// Target of the request, normalised.
    HttpUri,
    /// Target of the request, as sent.
    HttpUriRaw,
    /// Method of the request.
    HttpMethod,
    /// First line of the request.
    HttpRequestLine,
    /// Body of the request.
    HttpRequestBody,
    /// Body of the response, content coding removed.
    HttpResponseBody,
    /// All fields of a head but cookies, normalised.
    HttpHeader,
    /// All fields of a head, as sent.
    HttpHeaderRaw,
    /// Cookie of a request, Set-Cookie of a response.
    HttpCookie,
    /// User-Agent of the request.
    HttpUserAgent,
    /// Host of the request, in lower case and without port.
    HttpHost,
    /// Host of the request, as sent.
    HttpHostRaw,
    /// Accept of the request.
    HttpAccept,
    /// Accept-Encoding of the request.
    HttpAcceptEncoding,
    /// Accept-Language of the request.
    HttpAcceptLanguage,
    /// Referer of the request.
    HttpReferer,
    /// Connection of a head.
    HttpConnection,
    /// Content-Type of a head.
    HttpContentType,
    /// Content-Length of a head.
    HttpContentLength,
    /// First line and fields of a head.
    HttpStart,
    /// Version in the first line of a head.
    HttpProtocol,
    /// Names of the fields of a head.
    HttpHeaderNames,
    /// Each field of the request by itself.
    HttpRequestHeader,
    /// Each field of the response by itself.
    HttpResponseHeader,
    /// Status code of the response.
    HttpStatCode,
    /// Reason phrase of the response.
    HttpStatMessage,
    /// First line of the response.
    HttpResponseLine,
    /// Server of the response.
    HttpServer,
    /// Location of the response.
    HttpLocation,
    /// Each file that is transferred, content coding removed.
    FileData,
    /// Name of each field of HTTP/2.
    Http2HeaderName,
    /// Server name of the ClientHello.
    TlsSni,
    /// Subject of the server's certificate.
    TlsCertSubject,
    /// Issuer of the server's certificate.
    TlsCertIssuer,
    /// Serial number of the server's certificate, in hexadecimal.
    TlsCertSerial,
    /// SHA-1 of the server's certificate, in hexadecimal.
    TlsCertFingerprint,
    /// Each certificate of the server.
    TlsCerts,
    /// Each protocol that ALPN offers or chooses.
    TlsAlpn,
    /// JA3 of the ClientHello, in lower-case hexadecimal.
    Ja3Hash,
    /// What that is made of.
    Ja3String,
    /// JA3S of the ServerHello, in lower-case hexadecimal.
    Ja3sHash,
    /// What that is made of.
    Ja3sString,
    /// JA4 of the ClientHello.
    Ja4Hash,
}

/// The application protocol that a buffer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Application {
    /// HTTP of any version.
    Http,
    /// TLS.
    Tls,
}

impl Buffer {
    /// The keyword for it, as it stands before what it applies to; the stream has none.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::HttpUri => "http.uri",
            Self::HttpUriRaw => "http.uri.raw",
            Self::HttpMethod => "http.method",
            Self::HttpRequestLine => "http.request_line",
            Self::HttpRequestBody => "http.request_body",
            Self::HttpResponseBody => "http.response_body",
            Self::HttpHeader => "http.header",
            Self::HttpHeaderRaw => "http.header.raw",
            Self::HttpCookie => "http.cookie",
            Self::HttpUserAgent => "http.user_agent",
            Self::HttpHost => "http.host",
            Self::HttpHostRaw => "http.host.raw",
            Self::HttpAccept => "http.accept",
            Self::HttpAcceptEncoding => "http.accept_enc",
            Self::HttpAcceptLanguage => "http.accept_lang",
            Self::HttpReferer => "http.referer",
            Self::HttpConnection => "http.connection",
            Self::HttpContentType => "http.content_type",
            Self::HttpContentLength => "http.content_len",
            Self::HttpStart => "http.start",
            Self::HttpProtocol => "http.protocol",
            Self::HttpHeaderNames => "http.header_names",
            Self::HttpRequestHeader => "http.request_header",
            Self::HttpResponseHeader => "http.response_header",
            Self::HttpStatCode => "http.stat_code",
            Self::HttpStatMessage => "http.stat_msg",
            Self::HttpResponseLine => "http.response_line",
            Self::HttpServer => "http.server",
            Self::HttpLocation => "http.location",
            Self::FileData => "file.data",
            Self::Http2HeaderName => "http2.header_name",
            Self::TlsSni => "tls.sni",
            Self::TlsCertSubject => "tls.cert_subject",
            Self::TlsCertIssuer => "tls.cert_issuer",
            Self::TlsCertSerial => "tls.cert_serial",
            Self::TlsCertFingerprint => "tls.cert_fingerprint",
            Self::TlsCerts => "tls.certs",
            Self::TlsAlpn => "tls.alpn",
            Self::Ja3Hash => "ja3.hash",
            Self::Ja3String => "ja3.string",
            Self::Ja3sHash => "ja3s.hash",
            Self::Ja3sString => "ja3s.string",
            Self::Ja4Hash => "ja4.hash",
        }
    }

    /// Absent where it is known for several.
    #[must_use]
    pub const fn application(self) -> Option<Application> {
        match self {
            Self::Payload | Self::FileData => None,
            Self::TlsSni
            | Self::TlsCertSubject
            | Self::TlsCertIssuer
            | Self::TlsCertSerial
            | Self::TlsCertFingerprint
            | Self::TlsCerts
            | Self::TlsAlpn
            | Self::Ja3Hash
            | Self::Ja3String
            | Self::Ja3sHash
            | Self::Ja3sString
            | Self::Ja4Hash => Some(Application::Tls),
            _ => Some(Application::Http),
        }
    }

    /// Who sends it; absent where both can.
    #[must_use]
    pub const fn side(self) -> Option<crate::Side> {
        match self {
            Self::HttpUri
            | Self::HttpUriRaw
            | Self::HttpMethod
            | Self::HttpRequestLine
            | Self::HttpRequestBody
            | Self::HttpUserAgent
            | Self::HttpHost
            | Self::HttpHostRaw
            | Self::HttpAccept
            | Self::HttpAcceptEncoding
            | Self::HttpAcceptLanguage
            | Self::HttpReferer
            | Self::HttpRequestHeader
            | Self::TlsSni
            | Self::Ja3Hash
            | Self::Ja3String
            | Self::Ja4Hash => Some(crate::Side::Client),
            Self::HttpResponseBody
            | Self::HttpResponseHeader
            | Self::HttpStatCode
            | Self::HttpStatMessage
            | Self::HttpResponseLine
            | Self::HttpServer
            | Self::HttpLocation
            | Self::Ja3sHash
            | Self::Ja3sString => Some(crate::Side::Server),
            _ => None,
        }
    }

    /// There can be several in a transaction. A rule that names such a buffer twice may match in
    /// two different ones.
    #[must_use]
    pub const fn is_multiple(self) -> bool {
        matches!(
            self,
            Self::HttpRequestHeader
                | Self::HttpResponseHeader
                | Self::FileData
                | Self::Http2HeaderName
                | Self::TlsCerts
                | Self::TlsAlpn
        )
    }
}

/// What is done to a buffer before it is looked into.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Transform {
    /// ASCII letters become small ones.
    ToLowercase,
    /// ASCII letters become capital ones.
    ToUppercase,
    /// White space is taken out.
    StripWhitespace,
    /// White space becomes one space.
    CompressWhitespace,
    /// `%` and two hexadecimal digits become a byte, `+` a space.
    UrlDecode,
    /// The raw MD5 of it.
    ToMd5,
    /// The raw SHA-1 of it.
    ToSha1,
    /// The raw SHA-256 of it.
    ToSha256,
    /// A dot is put in front.
    DotPrefix,
    /// The names of fields become lower case.
    HeaderLowercase,
    /// The fields of HTTP/2 whose names start with a colon are taken out.
    StripPseudoHeaders,
    /// From a place on, each byte is combined with the next one of the key.
    Xor {
        /// The place.
        offset: u32,
        /// The key.
        key: XorKey,
    },
    /// A part of it.
    Subslice(Slice),
    /// What it stands for in base64.
    FromBase64(FromBase64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_sides_and_applications() {
        assert_eq!(Buffer::HttpUri.side(), Some(crate::Side::Client));
        assert_eq!(Buffer::HttpStatCode.side(), Some(crate::Side::Server));
        assert_eq!(Buffer::HttpHeader.side(), None);
        assert_eq!(Buffer::Ja3String.side(), Some(crate::Side::Client));
        assert_eq!(Buffer::Ja3sString.side(), Some(crate::Side::Server));
        assert_eq!(Buffer::Ja4Hash.application(), Some(Application::Tls));
        assert_eq!(Buffer::FileData.application(), None);
        assert_eq!(Buffer::Http2HeaderName.application(), Some(Application::Http));
        assert!(Buffer::FileData.is_multiple() && !Buffer::HttpHeader.is_multiple());
    }
}
