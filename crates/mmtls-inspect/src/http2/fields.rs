//! What the fields of a decompressed head say (RFC 9113, section 8.3).
//!
//! Refuses to keep more than [`MAX_LIST`] bytes of them.

use crate::http1::is_same_host;
use crate::transaction::{Request, Response, Version, text};

/// Most bytes of names and values that are kept of a head. A table lets a few bytes stand for many.
const MAX_LIST: usize = 256 << 10;

/// Names and values in their order.
#[derive(Default)]
pub(super) struct List {
    pub(super) fields: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    /// There were more than were kept.
    pub(super) cut: bool,
}

impl List {
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes = self.bytes.saturating_add(name.len() + value.len() + 32);
        if self.bytes > MAX_LIST {
            self.cut = true;
        } else {
            self.fields.push((name.to_vec(), value.to_vec()));
        }
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        fields.find(|(it, _)| it == name.as_bytes()).map(|(_, value)| &value[..])
    }

    /// Whether endpoints refuse the head: names with capitals, pseudo-fields that do not come first,
    /// come twice or are not known; or a transfer coding, which means something where they are passed on as HTTP/1
    /// (section 8.2.2).
    pub(super) fn is_malformed(&self, known: &[&str]) -> bool {
        let pseudo = self.fields.iter().take_while(|(name, _)| name.starts_with(b":")).count();
        let (first, rest) = self.fields.split_at(pseudo);
        let twice = |at: usize| first[..at].iter().any(|(name, _)| *name == first[at].0);
        let is_known = |name: &[u8]| known.iter().any(|it| it.as_bytes() == name);
        (0..pseudo).any(|at| twice(at) || !is_known(&first[at].0))
            || rest.iter().any(|(name, _)| {
                name.is_empty()
                    || name.starts_with(b":")
                    || name.iter().any(u8::is_ascii_uppercase)
                    || name == b"transfer-encoding"
            })
    }

    /// Whether a host field differs from the authority (section 8.3.1).
    pub(super) fn names_two_hosts(&self) -> bool {
        let fields =
            self.fields.iter().filter(|(name, _)| name == b"host" || name == b":authority");
        let mut hosts = fields.map(|(_, value)| value);
        let first = hosts.next();
        first.is_some_and(|first| hosts.any(|other| !is_same_host(first, other)))
    }

    /// The method and the target, as long as they are.
    pub(super) fn line(&self) -> (String, String) {
        let lossy = |name| String::from_utf8_lossy(self.get(name).unwrap_or_default()).into_owned();
        (lossy(":method"), lossy(":path"))
    }

    pub(super) fn request(&self, method: &str, target: &str) -> Request {
        let mut request = Request::new(method, target, Version::Http2);
        request.host = self.get(":authority").or(self.get("host")).map(text);
        request.user_agent = self.get("user-agent").map(text);
        request.content_type = self.get("content-type").map(text);
        request.content_length = self.length();
        request
    }

    /// The status, if there is one.
    pub(super) fn status(&self) -> Option<u16> {
        let digits = self.get(":status")?;
        core::str::from_utf8(digits).ok()?.parse().ok().filter(|_| digits.len() == 3)
    }

    pub(super) fn response(&self, status: u16) -> Response {
        let mut response = Response::new(status, "", Version::Http2);
        response.content_type = self.get("content-type").map(text);
        response.content_encoding = self.get("content-encoding").map(text);
        response.content_length = self.length();
        response
    }

    fn length(&self) -> Option<u64> {
        core::str::from_utf8(self.get("content-length")?).ok()?.parse().ok()
    }

    /// Whether messages inside are compressed one by one (gRPC).
    pub(super) fn compresses_messages(&self) -> bool {
        let is_grpc =
            self.get("content-type").is_some_and(|it| it.starts_with(b"application/grpc"));
        is_grpc && self.get("grpc-encoding").is_some_and(|it| it != b"identity")
    }
}
