//! Message heads: finding their end, and what they say (RFC 9112, sections 2 to 6).
//!
//! Syntax is left to the `httparse` crate; the rules for body lengths are here. Refuses heads
//! beyond [`MAX_HEAD_LEN`] and more than [`MAX_FIELDS`] fields.

use core::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Status};

use crate::budget::{Kept, MemoryBudget};
use crate::event::{Anomaly, Side};
use crate::transaction::{Request, Response, Version, text};

/// Longest message head in bytes, start line included.
pub const MAX_HEAD_LEN: usize = 64 << 10;
/// Most fields in a head.
pub const MAX_FIELDS: usize = 128;
/// So many bytes of a method are looked at to tell a request from another protocol. Methods have no
/// limit: a page chooses its own, and must not make its session no HTTP.
const METHOD_BYTES_CHECKED: usize = 32;
/// How HTTP/2 begins (RFC 9113, section 3.4).
const HTTP2_LINE: &[u8] = b"PRI * HTTP/2.0";
/// Most bytes of white space before the start line of a response, which lenient clients pass over.
const MAX_BLANKS: usize = 64;

/// A head that is not complete yet.
pub(super) struct HeadBuffer {
    kept: Kept,
    /// No line end that is the last one before this index ends the head.
    searched: usize,
    /// The first line is complete, and was looked at.
    has_line: bool,
}

/// What a step of collecting a head came to.
pub(super) enum Collected {
    /// All input was taken; the head goes on.
    More,
    /// The head is complete in the buffer.
    Buffered {
        /// So much of the input belonged to it.
        used: usize,
        /// Earlier input that does not, whose place was not known before: see [`find_end`].
        before: &'static [u8],
    },
    /// The head is complete at the start of the input, of this length.
    InPlace(usize),
    /// This is no head, or it is over the limit. The input was not taken.
    Refused(Refused),
}

/// Why bytes are no head.
pub(super) enum Refused {
    /// No head begins like this, or it is answered before it ends.
    Implausible {
        /// Its first line names HTTP all the same.
        http1: bool,
    },
    /// Or there is no room left for it.
    TooLarge {
        /// Its first line names HTTP, or has no end: no other protocol has a request line of that
        /// length.
        http1: bool,
    },
}

impl HeadBuffer {
    /// Long heads share memory with those of other connections.
    pub(super) fn new(budget: &MemoryBudget) -> Self {
        Self { kept: Kept::new(budget), searched: 0, has_line: false }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.kept.bytes()
    }

    /// Hands everything over.
    pub(super) fn take(&mut self) -> Self {
        let Self { searched, has_line, .. } = *self;
        (self.searched, self.has_line) = (0, false);
        Self { kept: self.kept.take(), searched, has_line }
    }

    /// Takes input until the head is complete. Cost is linear, however small the pieces.
    pub(super) fn collect(&mut self, side: Side, input: &[u8]) -> Collected {
        if self.bytes().is_empty() {
            self.has_line = false;
            if Self::names_no_version(&mut self.has_line, side, input, 0) {
                return Collected::Refused(Refused::implausible(input));
            }
            return match Self::judge(side, input, 0) {
                Ok(Some(end)) => Collected::InPlace(end),
                Ok(None) if self.kept.extend(input) => {
                    self.searched = input.len().saturating_sub(5);
                    Collected::More
                }
                Ok(None) => Collected::Refused(Refused::no_room(input)),
                Err(why) => Collected::Refused(why),
            };
        }
        let before = self.bytes().len();
        let room = (MAX_HEAD_LEN + 1).saturating_sub(before).min(input.len());
        if !self.kept.extend(&input[..room]) {
            return Collected::Refused(Refused::no_room(self.bytes()));
        }
        if Self::names_no_version(&mut self.has_line, side, self.kept.bytes(), before) {
            let why = Refused::implausible(self.bytes());
            self.kept.truncate(before);
            return Collected::Refused(why);
        }
        match Self::judge(side, self.bytes(), self.searched) {
            Ok(Some(end)) => {
                let earlier: &[u8] = if end < before { b"\r" } else { b"" };
                debug_assert_eq!(self.bytes().get(end..before).unwrap_or_default(), earlier);
                self.kept.truncate(end);
                Collected::Buffered { used: end.saturating_sub(before), before: earlier }
            }
            Ok(None) => {
                self.searched = self.bytes().len().saturating_sub(5);
                Collected::More
            }
            Err(why) => {
                self.kept.truncate(before);
                Collected::Refused(why)
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.searched = 0;
        self.has_line = false;
        self.kept.clear();
    }

    /// Whether the first line of a request is complete and names no version, or HTTP/0.9: servers answer it at
    /// once, or it is another protocol. Looks at each byte once; those from `from` on are new.
    fn names_no_version(has_line: &mut bool, side: Side, bytes: &[u8], from: usize) -> bool {
        let within = &bytes[..bytes.len().min(MAX_HEAD_LEN)];
        let new = within.get(from..).unwrap_or_default();
        let Some(end) = new.iter().position(|&byte| byte == b'\n').filter(|_| !*has_line) else {
            return false;
        };
        *has_line = true;
        let line = &within[..from + end];
        let is_whole = line.trim_ascii_end() == HTTP2_LINE
            || names_http1(line) && last_word(line) != b"HTTP/0.9";
        side == Side::Client && !is_whole
    }

    fn judge(side: Side, bytes: &[u8], searched: usize) -> Result<Option<usize>, Refused> {
        if !plausible(side, bytes) {
            return Err(Refused::Implausible { http1: false });
        }
        let within = &bytes[..bytes.len().min(MAX_HEAD_LEN)];
        match find_end(side, within, searched) {
            None if bytes.len() > MAX_HEAD_LEN => Err(Refused::no_room(within)),
            end => Ok(end),
        }
    }
}

impl Refused {
    fn implausible(start: &[u8]) -> Self {
        Self::Implausible { http1: names_http1(start) }
    }

    fn no_room(start: &[u8]) -> Self {
        Self::TooLarge { http1: !start.contains(&b'\n') || names_http1(start) }
    }
}

/// Whether bytes can be the start of a head. False stays false when more bytes come.
fn plausible(side: Side, bytes: &[u8]) -> bool {
    match side {
        Side::Client => {
            let start = &bytes[..bytes.len().min(METHOD_BYTES_CHECKED)];
            let shown = start.split(|&byte| byte == b' ').next().unwrap_or_default();
            (!shown.is_empty() || bytes.is_empty())
                && shown
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
        }
        Side::Server => {
            let is_blank = |byte: &u8| matches!(byte, 0 | b' ' | b'\t'..=b'\r');
            let blanks = bytes.iter().take_while(|byte| is_blank(byte)).count();
            blanks <= MAX_BLANKS
                && bytes[blanks..].iter().zip(b"HTTP/").all(|(a, b)| a.eq_ignore_ascii_case(b))
        }
    }
}

/// Where the head ends: after an empty line, whatever the line ends are. To clients LF CR is a line end, too,
/// so that CR LF behind it is an empty line, unless there is one right behind that: a CR there may belong to the
/// head, or be the first byte behind it.
fn find_end(side: Side, bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == b'\n')? + 1;
        match bytes.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            [b'\r', b'\r', b'\n', rest @ ..]
                if side == Side::Server && bytes.get(at.wrapping_sub(2)) != Some(&b'\r') =>
            {
                return match rest {
                    [] | [b'\r'] => None,
                    [b'\n', ..] => Some(at + 4),
                    [b'\r', b'\n', ..] => Some(at + 5),
                    _ => Some(at + 3),
                };
            }
            _ => {}
        }
    }
}

/// How long a body is, as far as its head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    /// Neither a length nor a transfer coding.
    Unstated,
    Length(u64),
    Chunked,
    /// To be read until the connection closes: another transfer coding, or faulty.
    UntilClose,
}

/// What the Transfer-Encoding fields name, over all of them.
#[derive(Clone, Copy, Default)]
struct Codings {
    chunked: bool,
    last_is_chunked: bool,
    /// Something else than `identity` stands in front of `chunked`: curl decodes gzip there.
    more: bool,
}

/// What the fields of a head say.
pub(super) struct Meaning<'a> {
    pub(super) framing: Framing,
    pub(super) anomaly: Option<Anomaly>,
    pub(super) has_length_and_coding: bool,
    pub(super) upgrade: bool,
    host: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    content_encoding: Option<&'a [u8]>,
    content_length: Option<u64>,
}

/// Where the fields of a head are put.
pub(super) type Headers<'b> = [MaybeUninit<Header<'b>>; MAX_FIELDS];

/// A head that could be read.
pub(super) struct Parsed<'h, 'b, M> {
    pub(super) message: M,
    /// Method and target, or the reason phrase and nothing: as long as they are.
    pub(super) line: [&'b str; 2],
    pub(super) meaning: Meaning<'b>,
    pub(super) headers: &'h [Header<'b>],
}

/// Whether the first line ends with a version of HTTP that is sent so, however wrong the rest may be: servers take
/// more of HTTP/1 than there are, and Node 0.9 and 2.0, too.
pub(super) fn names_http1(start: &[u8]) -> bool {
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let last = last_word(line);
    last.len() < line.len()
        && (last.starts_with(b"HTTP/1.") || matches!(last, b"HTTP/0.9" | b"HTTP/2.0"))
        && line != HTTP2_LINE
}

fn last_word(line: &[u8]) -> &[u8] {
    line.trim_ascii_end().rsplit(|&byte| byte == b' ').next().unwrap_or_default()
}

/// Whether a field that says how the body is to be read is folded, stands in the fold of another one, or has a blank
/// behind its name: clients that know no folds, or compare the name with its colon, read another body.
pub(super) fn hides_framing(head: &[u8]) -> bool {
    const NAMES: [&[u8]; 3] = [b"transfer-encoding", b"content-length", b"content-encoding"];
    let is_odd = |pair: &[u8]| matches!(pair, [b'\n', b' ' | b'\t'] | [b' ' | b'\t', b':']);
    let mut is_open = false;
    head.windows(2).any(is_odd)
        && head.split(|&byte| byte == b'\n').any(|line| {
            let name = line.split(|&byte| byte == b':').next().unwrap_or_default();
            let is_framing = NAMES.iter().any(|it| name.trim_ascii().eq_ignore_ascii_case(it));
            let is_fold = matches!(line, [b' ' | b'\t', ..]);
            is_open = is_framing || is_fold && is_open;
            is_open && is_fold || is_framing && matches!(name, [.., b' ' | b'\t'])
        })
}

/// The head with a space for each control byte that has no business in one; `None` when there are
/// none. Clients pass over some of them around `chunked`, where a parser refuses the field.
pub(super) fn without_control_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let bad = |at: usize| match bytes[at] {
        b'\t' | b'\n' => false,
        b'\r' => bytes.get(at + 1) != Some(&b'\n'),
        byte => byte < b' ' || byte == 0x7f,
    };
    (0..bytes.len())
        .any(bad)
        .then(|| (0..bytes.len()).map(|at| if bad(at) { b' ' } else { bytes[at] }).collect())
}

pub(super) fn parse_request<'h, 'b>(
    bytes: &'b [u8],
    headers: &'h mut Headers<'b>,
) -> Option<Parsed<'h, 'b, Request>> {
    let mut request = httparse::Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, headers);
    if !matches!(parsed, Ok(Status::Complete(_))) {
        return None;
    }
    let version = request.version?;
    let meaning = meaning(Side::Client, request.headers, version);
    let line = [request.method?, request.path?];
    let mut message = Request::new(line[0], line[1], Version::http1(version));
    message.host = meaning.host.map(text);
    message.user_agent = meaning.user_agent.map(text);
    message.content_type = meaning.content_type.map(text);
    message.content_length = meaning.content_length;
    Some(Parsed { message, line, meaning, headers: request.headers })
}

pub(super) fn parse_response<'h, 'b>(
    bytes: &'b [u8],
    headers: &'h mut Headers<'b>,
) -> Option<Parsed<'h, 'b, Response>> {
    let mut response = httparse::Response::new(&mut []);
    // Clients accept folded fields from servers and pass over lines that are no fields, so the
    // observer has to.
    let parsed = ParserConfig::default()
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .ignore_invalid_headers_in_responses(true)
        .parse_response_with_uninit_headers(&mut response, bytes, headers);
    if !matches!(parsed, Ok(Status::Complete(_))) {
        return None;
    }
    let version = response.version?;
    let meaning = meaning(Side::Server, response.headers, version);
    let reason = response.reason.unwrap_or_default();
    let mut message = Response::new(response.code?, reason, Version::http1(version));
    message.content_type = meaning.content_type.map(text);
    message.content_encoding = meaning.content_encoding.map(text);
    message.content_length = meaning.content_length;
    Some(Parsed { message, line: [reason, ""], meaning, headers: response.headers })
}

/// Whether Host fields of a request name several hosts, or another one than the target does (RFC 9112, section 3.2).
pub(super) fn names_two_hosts(target: &[u8], headers: &[Header<'_>]) -> bool {
    let fields = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let mut fields = fields.map(|header| header.value);
    let Some(first) = fields.next() else {
        return false;
    };
    let scheme = target.windows(3).position(|it| it == b"://").filter(|_| target[0] != b'/');
    let named = scheme.map(|at| {
        let behind = &target[at + 3..];
        behind.split(|byte| b"/?#".contains(byte)).next().unwrap_or_default()
    });
    fields.chain(named).any(|other| !is_same_host(first, other))
}

/// Whether two authorities name the same host. Users and ports do not count.
pub(crate) fn is_same_host(one: &[u8], other: &[u8]) -> bool {
    fn host(authority: &[u8]) -> &[u8] {
        let host = authority.rsplit(|&byte| byte == b'@').next().unwrap_or_default().trim_ascii();
        let port = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        host[..host.len() - port].strip_suffix(b":").unwrap_or(host)
    }
    host(one).eq_ignore_ascii_case(host(other))
}

fn meaning<'a>(side: Side, headers: &[Header<'a>], version: u8) -> Meaning<'a> {
    let mut out = Meaning {
        framing: Framing::Unstated,
        anomaly: None,
        has_length_and_coding: false,
        upgrade: false,
        host: None,
        user_agent: None,
        content_type: None,
        content_encoding: None,
        content_length: None,
    };
    let mut coding = None;
    for header in headers {
        let name = header.name;
        let value = header.value.trim_ascii();
        // Fields have many names: look at the length before comparing.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => out.host = Some(value),
            7 if name.eq_ignore_ascii_case("upgrade") => out.upgrade = true,
            10 if name.eq_ignore_ascii_case("user-agent") => out.user_agent = Some(value),
            12 if name.eq_ignore_ascii_case("content-type") => out.content_type = Some(value),
            14 if name.eq_ignore_ascii_case("content-length") => add_length(&mut out, value),
            16 if name.eq_ignore_ascii_case("content-encoding") => {
                out.content_encoding = Some(value);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let codings = coding.get_or_insert(Codings::default());
                for name in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    codings.last_is_chunked = name.eq_ignore_ascii_case(b"chunked");
                    // `identity` or nothing too: some clients compare the whole value.
                    codings.more |= codings.chunked || !codings.last_is_chunked;
                    codings.chunked |= codings.last_is_chunked;
                }
            }
            _ => {}
        }
    }
    let Some(coding) = coding else {
        return out;
    };
    // RFC 9112, section 6.3: a transfer coding overrides a length.
    if out.framing != Framing::Unstated {
        out.has_length_and_coding = true;
        out.anomaly = (side == Side::Server).then_some(Anomaly::LengthAndCoding);
    }
    if !coding.last_is_chunked || coding.more {
        out.anomaly = Some(Anomaly::UnknownCoding);
    }
    if version == 0 {
        out.anomaly = Some(Anomaly::CodingInHttp10);
    }
    out.content_length = None;
    // The specification has it that only a final `chunked` counts, and only from 1.1 on. Clients
    // (curl, wget) decode wherever they see the word, so response bodies are read as they do.
    let chunked = match side {
        Side::Client => coding.last_is_chunked && version > 0,
        Side::Server => coding.chunked,
    };
    out.framing = if chunked { Framing::Chunked } else { Framing::UntilClose };
    out
}

/// Takes in one Content-Length field, which may be a list of equal numbers (RFC 9110, section 8.6).
fn add_length(fields: &mut Meaning<'_>, value: &[u8]) {
    for number in value.split(|&byte| byte == b',') {
        let number = decimal(number.trim_ascii());
        match (fields.framing, number) {
            (Framing::Unstated, Some(length)) => {
                fields.framing = Framing::Length(length);
                fields.content_length = Some(length);
            }
            (Framing::Length(known), Some(length)) if known == length => {}
            (framing, _) => {
                fields.anomaly = Some(match (framing, number) {
                    (_, None) => Anomaly::BadLength,
                    _ => fields.anomaly.unwrap_or(Anomaly::ConflictingLengths),
                });
                fields.framing = Framing::UntilClose;
                fields.content_length = None;
            }
        }
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
