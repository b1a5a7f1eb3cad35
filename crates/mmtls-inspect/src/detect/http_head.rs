//! What rules may look into of a message's head: the buffers of HTTP as Suricata 7 fills them.
//!
//! HTTP/1 is read again from the head as it was sent. HTTP/2 has no text of its own: its fields are shown
//! as `name: value`, pseudo-fields among them. Its path is shown as it is, as in Suricata 7, and normalised
//! besides where that is something else: servers decode it whatever the version.
//!
//! Differs from Suricata on purpose: a path with dot segments is shown decoded with them, too, since some servers
//! leave them; several cookies are joined as servers join them (RFC 9113, section 8.2.3); the host is in lower case also where the Host field names a port, a
//! field of HTTP/2 is joined with those of its name however HPACK encoded it, a field without a name does
//! not hide the names behind it, a host field of HTTP/2 stands for an authority that is missing, and what
//! HPACK says about its own table is no field. Refuses bodies, and to keep more than [`MAX_HEAD`].

use std::borrow::Cow;

use super::uri;
use crate::event::{Fields, Side};
use crate::http1::fields::{Http1Fields, Lines, is_space};
use crate::rules::Buffer;

/// Most bytes of a head's lines that are kept; fields beyond are passed over. A head of HTTP/1 is far
/// smaller, and of one of HTTP/2 no more is decompressed.
pub(crate) const MAX_HEAD: usize = 256 << 10;
/// No buffer of a head is larger than this.
#[cfg(test)]
pub(crate) const MAX_BUFFER: usize = MAX_HEAD + 64;

const LINE_END: &[u8] = b"\r\n";
const COLON: &[u8] = b": ";

/// The head of a message, as long as rules may look into it.
pub(crate) struct Head {
    /// What all places point into. First the lines, with `: ` between name and value and CRLF at their ends.
    bytes: Vec<u8>,
    fields: Vec<Field>,
    kind: Kind,
    side: Side,
    /// Fields beyond a cap were passed over.
    is_cut: bool,
}

/// A place in [`Head::bytes`].
#[derive(Clone, Copy)]
struct Place {
    start: u32,
    end: u32,
}

/// A line `name: value`. The value goes up to the end of the line.
#[derive(Clone, Copy)]
struct Field {
    line: Place,
    name_len: u32,
}

enum Kind {
    Http1(Http1),
    Http2 {
        /// The path, normalised, where it is not so already.
        uri: Option<Box<[u8]>>,
        /// It, decoded with its dot segments, if it has any.
        with_dots: Option<Box<[u8]>>,
    },
}

struct Http1 {
    /// Without line end.
    line: Place,
    /// The start line with its fields, and an empty line if there are any.
    start: Place,
    /// The fields as they were sent, with the empty line.
    raw: Place,
    /// Method, target and protocol of a request; protocol, status and reason of a response.
    words: [Option<Place>; 3],
    /// The target, normalised.
    uri: Option<Place>,
    /// It, decoded with its dot segments, if it has any.
    with_dots: Option<Place>,
    /// The host that the target or the Host field names, normalised.
    host: Option<Place>,
    /// The host that the target names.
    target_host: Option<Place>,
}

impl Head {
    /// Of a request.
    pub(crate) fn request(fields: Fields<'_>) -> Self {
        Self::new(Side::Client, fields)
    }

    /// Of a response.
    pub(crate) fn response(fields: Fields<'_>) -> Self {
        Self::new(Side::Server, fields)
    }

    fn new(side: Side, fields: Fields<'_>) -> Self {
        let mut head = Self::empty(side);
        if let Some(sent) = fields.http1_head() {
            let mut lines = Lines(&sent[..sent.len().min(MAX_HEAD / 2)]);
            let is_blank = |line: &&[u8]| line.iter().all(|&byte| is_space(byte) || byte == 0);
            let line = lines.find(|line| !is_blank(line)).unwrap_or_default();
            head.kind = Kind::Http1(head.read_http1(line, lines.0));
        }
        head.add_http2(fields);
        head
    }

    /// With trailers: once they have come, these are further fields behind those of the head, as far as that is
    /// known.
    pub(crate) fn with_trailers(head: Option<&Self>, side: Side, trailers: Fields<'_>) -> Self {
        let mut whole = Self::empty(side);
        whole.is_cut = head.is_some_and(|head| head.is_cut);
        if let Some(sent) = trailers.http1_head() {
            let (mut line, mut fields) = (&b""[..], &b""[..]);
            if let Some((head, Kind::Http1(http1))) = head.map(|head| (head, &head.kind)) {
                (line, fields) = (head.at(http1.line), head.at(http1.raw));
            }
            // The empty line between them is none here.
            let is_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            let fields = &fields[..fields.len() - fields.iter().rev().take_while(is_end).count()];
            let line_end = if fields.is_empty() { &b""[..] } else { LINE_END };
            let fields = [fields, line_end, sent].concat();
            whole.kind = Kind::Http1(whole.read_http1(line, &fields));
        } else if let Some(head) = head {
            whole.bytes.clone_from(&head.bytes);
            whole.fields.clone_from(&head.fields);
        }
        whole.add_http2(trailers);
        whole
    }

    fn empty(side: Side) -> Self {
        let (bytes, fields) = (Vec::new(), Vec::new());
        Self {
            bytes,
            fields,
            kind: Kind::Http2 { uri: None, with_dots: None },
            side,
            is_cut: false,
        }
    }

    /// Adds fields of HTTP/2, if they are such.
    fn add_http2(&mut self, fields: Fields<'_>) {
        if fields.http1_head().is_none() {
            for (name, value) in fields.iter() {
                self.add_field(name, core::iter::once(value));
            }
        }
        if let (Side::Client, Kind::Http2 { .. }) = (self.side, &self.kind)
            && let Some(path) = self.first_value(b":path")
        {
            // A CONNECT with a path asks for that (RFC 8441).
            let target = uri::normalise(b"", path);
            let (uri, with_dots) = (target.uri, target.with_dots.filter(|it| it != path));
            let uri = (uri != path && !uri.is_empty()).then(|| uri.into());
            self.kind = Kind::Http2 { uri, with_dots: with_dots.map(Into::into) };
        }
        self.bytes.shrink_to_fit();
        self.fields.shrink_to_fit();
    }

    /// Whether rules do not see all of its fields.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Bytes of memory that it takes.
    pub(crate) fn size(&self) -> usize {
        let uri = match &self.kind {
            Kind::Http2 { uri, with_dots } => {
                [uri, with_dots].into_iter().flatten().map(|it| it.len()).sum()
            }
            Kind::Http1(_) => 0,
        };
        let fields = self.fields.capacity() * size_of::<Field>();
        size_of::<Self>() + self.bytes.capacity() + fields + uri
    }

    /// Shows each instance of a buffer: several only where [`Buffer::is_multiple`], or the forms of a path, none where the message
    /// has no such thing. One that is there may be empty.
    pub(crate) fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        if buffer.side().is_some_and(|side| side != self.side) {
            return;
        }
        match buffer {
            Buffer::HttpRequestHeader | Buffer::HttpResponseHeader => {
                self.fields.iter().for_each(|field| show(self.at(field.line)));
            }
            Buffer::Http2HeaderName => {
                if let Kind::Http2 { .. } = self.kind {
                    let names = self.fields.iter().map(|field| self.name(field));
                    names.filter(|name| !name.is_empty()).for_each(show);
                }
            }
            _ => {
                let single = match &self.kind {
                    Kind::Http1(http1) => self.http1(http1, buffer),
                    Kind::Http2 { .. } => self.http2(buffer),
                };
                if let Some(single) = single {
                    show(&single);
                }
                if buffer == Buffer::HttpUri {
                    match &self.kind {
                        Kind::Http1(http1) => {
                            http1.with_dots.iter().for_each(|place| show(self.at(*place)));
                        }
                        Kind::Http2 { uri, with_dots } => {
                            [uri, with_dots].into_iter().flatten().for_each(|it| show(it));
                        }
                    }
                }
            }
        }
    }

    fn http1(&self, http1: &Http1, buffer: Buffer) -> Option<Cow<'_, [u8]>> {
        let [first, second, third] = http1.words;
        let (protocol, status, reason) = match self.side {
            Side::Client => (third, None, None),
            Side::Server => (first, second, third),
        };
        let place = match buffer {
            Buffer::HttpMethod => first,
            Buffer::HttpUriRaw => second,
            Buffer::HttpUri => http1.uri,
            Buffer::HttpHost => http1.host,
            Buffer::HttpHostRaw if http1.target_host.is_some() => http1.target_host,
            Buffer::HttpRequestLine | Buffer::HttpResponseLine => Some(http1.line),
            Buffer::HttpProtocol => protocol,
            Buffer::HttpStatCode => status,
            Buffer::HttpStatMessage => reason,
            Buffer::HttpStart => Some(http1.start),
            Buffer::HttpHeaderRaw => Some(http1.raw).filter(|raw| !raw.is_empty()),
            Buffer::HttpHeader => return self.lines_without_cookies(),
            Buffer::HttpHeaderNames => return self.names(),
            _ => return self.named(field_name(buffer, self.side)?).map(Cow::Borrowed),
        };
        place.map(|place| Cow::Borrowed(self.at(place)))
    }

    fn http2(&self, buffer: Buffer) -> Option<Cow<'_, [u8]>> {
        let shown = match buffer {
            Buffer::HttpMethod => Cow::Borrowed(self.first_value(b":method")?),
            Buffer::HttpUri | Buffer::HttpUriRaw => Cow::Borrowed(self.first_value(b":path")?),
            Buffer::HttpStatCode => Cow::Borrowed(self.first_value(b":status")?),
            // There is none in HTTP/2: an empty one can be asked for.
            Buffer::HttpStatMessage => return Some(Cow::Borrowed(b"")),
            Buffer::HttpProtocol => Cow::Borrowed(&b"HTTP/2"[..]),
            Buffer::HttpRequestLine => {
                let method = self.first_value(b":method").unwrap_or_default();
                let path = self.first_value(b":path").unwrap_or_default();
                Cow::Owned([method, b" ", path, b" HTTP/2\r\n"].concat())
            }
            Buffer::HttpResponseLine => {
                let status = self.first_value(b":status").unwrap_or_default();
                Cow::Owned([b"HTTP/2 ", status, LINE_END].concat())
            }
            Buffer::HttpHost => Cow::Owned(uri::host_of_authority(&self.authority()?)),
            Buffer::HttpHostRaw => self.authority()?,
            Buffer::HttpHeader => self.lines_without_cookies()?,
            Buffer::HttpHeaderRaw => Cow::Borrowed(&self.bytes[..]),
            Buffer::HttpHeaderNames => self.names()?,
            _ => self.joined(field_name(buffer, self.side)?)?,
        };
        Some(shown).filter(|shown| !shown.is_empty())
    }

    /// The lines of all fields but cookies. Values of HTTP/2 may start and end with blanks, which are not
    /// shown here.
    fn lines_without_cookies(&self) -> Option<Cow<'_, [u8]>> {
        let cookie = cookie_name(self.side);
        let is_cookie = |field: &&Field| self.name(field).eq_ignore_ascii_case(cookie);
        let shown = |field| match self.kind {
            Kind::Http1(_) => self.value(field),
            Kind::Http2 { .. } => trim_blanks(self.value(field)),
        };
        let (first, last) = (self.fields.first()?, self.fields.last()?);
        if self.fields.iter().all(|it| !is_cookie(&it) && shown(it).len() == self.value(it).len()) {
            let (start, end) = (first.line.start as usize, last.line.end as usize);
            return Some(Cow::Borrowed(&self.bytes[start..end + LINE_END.len()]));
        }
        let mut lines = Vec::new();
        for field in self.fields.iter().filter(|field| !is_cookie(field)) {
            for part in [self.name(field), COLON, shown(field), LINE_END] {
                lines.extend_from_slice(part);
            }
        }
        (!lines.is_empty()).then_some(Cow::Owned(lines))
    }

    fn names(&self) -> Option<Cow<'_, [u8]>> {
        let mut names = LINE_END.to_vec();
        for field in &self.fields {
            names.extend_from_slice(self.name(field));
            names.extend_from_slice(LINE_END);
        }
        names.extend_from_slice(LINE_END);
        (!self.fields.is_empty()).then_some(Cow::Owned(names))
    }

    /// The value of a field of HTTP/1.
    fn named(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.iter().find(|it| is_name(self.name(it), name)).map(|it| self.value(it))
    }

    fn first_value(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.iter().find(|it| self.name(it) == name).map(|it| self.value(it))
    }

    /// What names the host of HTTP/2.
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        self.joined(b":authority").or_else(|| self.joined(b"host"))
    }

    /// The values of all fields of a name.
    fn joined(&self, name: &[u8]) -> Option<Cow<'_, [u8]>> {
        let mut values =
            self.fields.iter().filter(|it| self.name(it) == name).map(|it| self.value(it));
        let mut joined = Cow::Borrowed(values.next()?);
        for value in values {
            let joined = joined.to_mut();
            joined.extend_from_slice(separator(name));
            joined.extend_from_slice(value);
        }
        Some(joined)
    }

    fn at(&self, place: Place) -> &[u8] {
        &self.bytes[place.range()]
    }

    fn name(&self, field: &Field) -> &[u8] {
        &self.at(field.line)[..field.name_len as usize]
    }

    fn value(&self, field: &Field) -> &[u8] {
        &self.at(field.line)[field.name_len as usize + COLON.len()..]
    }

    fn read_http1(&mut self, line: &[u8], sent_lines: &[u8]) -> Http1 {
        let words = match self.side {
            Side::Client => request_words(line),
            Side::Server => words(line),
        };
        let word = |nth: usize| words[nth].map_or(&[][..], |place| &line[place.range()]);
        let (first, second) = (word(0), word(1));
        let line_place = self.keep(line);
        self.keep(LINE_END);
        let fields_start = self.bytes.len();
        let fields = Http1Fields::read(self.side, first == b"HTTP/1.1", Lines(sent_lines));
        self.is_cut = fields.is_cut;
        for (name, values) in fields.iter() {
            self.add_field(name, values);
        }
        if !self.fields.is_empty() {
            self.keep(LINE_END);
        }
        let start = Place::new(0, self.bytes.len());
        // They were mostly sent as they are kept.
        let raw = if self.bytes[fields_start..] == *sent_lines {
            Place::new(fields_start, self.bytes.len())
        } else {
            self.keep(sent_lines)
        };
        let (mut uri, mut with_dots, mut host, mut target_host) = (None, None, None, None);
        if self.side == Side::Client {
            let target = uri::normalise(first, second);
            uri = if target.uri == second { words[1] } else { Some(self.keep(&target.uri)) };
            with_dots = target.with_dots.map(|it| self.keep(&it));
            target_host = target.host.map(|host| self.keep(&host));
            host = target_host.or_else(|| {
                let field = self.named(b"host").and_then(uri::host_of_field);
                field.map(|host| self.keep(&host))
            });
        }
        Http1 { line: line_place, start, raw, words, uri, with_dots, host, target_host }
    }

    /// Adds a line with the values of a field, unless that is too much.
    fn add_field<'a>(&mut self, name: &[u8], values: impl Iterator<Item = &'a [u8]>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        for (nth, value) in values.enumerate() {
            self.bytes.extend_from_slice(if nth == 0 { COLON } else { separator(name) });
            self.bytes.extend_from_slice(value);
        }
        let line = Place::new(start, self.bytes.len());
        self.bytes.extend_from_slice(LINE_END);
        match u32::try_from(name.len()) {
            Ok(name_len) if self.bytes.len() <= MAX_HEAD => {
                self.fields.push(Field { line, name_len });
            }
            _ => {
                self.bytes.truncate(start);
                self.is_cut = true;
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Place {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Place::new(start, self.bytes.len())
    }
}

impl Place {
    /// Caps keep all places far below the limit.
    fn new(start: usize, end: usize) -> Self {
        let place = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self { start: place(start), end: place(end) }
    }

    fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// The two words at the start of a line, and the rest of it; absent where there is nothing.
fn words(line: &[u8]) -> [Option<Place>; 3] {
    let mut at = 0;
    core::array::from_fn(|nth| {
        at += line[at..].iter().take_while(|&&byte| is_space(byte)).count();
        let is_part = |&&byte: &&u8| nth == 2 || !is_space(byte);
        let start = at;
        at += line[at..].iter().take_while(is_part).count();
        (at > start).then(|| Place::new(start, at))
    })
}

/// The words of a request line, whose target may hold blanks.
fn request_words(line: &[u8]) -> [Option<Place>; 3] {
    let [method, target, mut protocol] = words(line);
    let (Some(first), Some(rest)) = (target, protocol) else {
        return [method, target, protocol];
    };
    let end = line.iter().rposition(|&byte| !is_space(byte)).map_or(0, |at| at + 1);
    let last = line[..end].iter().rposition(|&byte| is_space(byte)).map_or(0, |at| at + 1);
    if last <= rest.start as usize {
        return [method, target, protocol];
    }
    let target_end = line[..last].iter().rposition(|&byte| !is_space(byte)).map_or(0, |at| at + 1);
    protocol = Some(Place::new(last, end));
    [method, Some(Place::new(first.start as usize, target_end)), protocol]
}

/// What stands between the values of several fields.
fn separator(name: &[u8]) -> &'static [u8] {
    if is_name(name, b"cookie") { b"; " } else { b", " }
}

fn cookie_name(side: Side) -> &'static [u8] {
    match side {
        Side::Client => b"cookie",
        Side::Server => b"set-cookie",
    }
}

/// The name of the field whose value a buffer is, in lower case.
fn field_name(buffer: Buffer, side: Side) -> Option<&'static [u8]> {
    Some(match buffer {
        Buffer::HttpCookie => cookie_name(side),
        Buffer::HttpUserAgent => b"user-agent",
        Buffer::HttpHostRaw => b"host",
        Buffer::HttpAccept => b"accept",
        Buffer::HttpAcceptEncoding => b"accept-encoding",
        Buffer::HttpAcceptLanguage => b"accept-language",
        Buffer::HttpReferer => b"referer",
        Buffer::HttpConnection => b"connection",
        Buffer::HttpContentType => b"content-type",
        Buffer::HttpContentLength => b"content-length",
        Buffer::HttpServer => b"server",
        Buffer::HttpLocation => b"location",
        _ => return None,
    })
}

/// Whether a name is this one in lower case, but for NULs, which servers may send inside.
fn is_name(name: &[u8], expected: &[u8]) -> bool {
    let name = name.iter().filter(|&&byte| byte != 0);
    name.map(u8::to_ascii_lowercase).eq(expected.iter().copied())
}

fn trim_blanks(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_blank(byte)).map_or(start, |at| at + 1);
    &value[start..end]
}
