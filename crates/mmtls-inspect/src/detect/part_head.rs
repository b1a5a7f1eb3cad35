//! What the head of a part of multipart/form-data says, and the boundary between parts.
//!
//! Refuses to guess: what may be read in more than one way is faulty.

use crate::http1::loose;

/// Longest boundary. RFC 2046 allows 70 bytes; Suricata takes fewer than 200.
const MAX_BOUNDARY: usize = 199;

/// The boundary in a Content-Type field of multipart/form-data; absent where there is none, or more than
/// one for any server, or it is not one.
pub(crate) fn boundary_of(content_type: &[u8]) -> Option<Vec<u8>> {
    let (kind, parameters) = split_once(content_type, b';');
    if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    // Go and Django know `boundary*` (RFC 8187), Go `boundary*0` (RFC 2231); PHP takes what follows the first
    // mention, wherever that is, in small letters if there is one.
    let mentions = |text: &[u8]| loose::contains(text, b"boundary");
    let mut boundary = None;
    for parameter in (Parameters { rest: parameters }) {
        if parameter.name.eq_ignore_ascii_case(b"boundary") {
            let is_other = boundary.as_ref().is_some_and(|known| *known != parameter.value);
            let is_hidden = parameter.name != b"boundary" && mentions(&parameter.value);
            if parameter.is_faulty || parameter.has_blanks || is_other || is_hidden {
                return None;
            }
            boundary = Some(parameter.value);
        } else if parameter.is_faulty || mentions(parameter.name) || mentions(&parameter.value) {
            return None;
        }
    }
    // What is escaped is read in several ways, and so are letters beyond ASCII.
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    boundary.filter(|it| {
        let fits = (1..=MAX_BOUNDARY).contains(&it.len());
        fits && !it.ends_with(b" ") && it.iter().all(is_plain)
    })
}

/// What the head of a part says.
#[derive(Default)]
pub(super) struct PartHead {
    pub(super) name: Option<Vec<u8>>,
    /// That of `filename`, or as it is encoded in `filename*` (RFC 8187).
    pub(super) filename: Option<Vec<u8>>,
    /// Its type is another one than fields have.
    has_file_type: bool,
    /// It names a coding.
    pub(super) is_coded: bool,
    /// Malformed, or to be read in more than one way.
    pub(super) is_faulty: bool,
}

impl PartHead {
    /// Reads the lines of a head.
    pub(super) fn read(lines: &[u8]) -> Self {
        let mut head = Self::default();
        let mut seen = false;
        for field in unfolded(lines) {
            let (name, value) = split_once(&field, b':');
            let name_end = name.trim_ascii_end();
            head.is_faulty |= name_end.len() != name.len() || name.len() == field.len();
            if name_end.eq_ignore_ascii_case(b"content-disposition") {
                head.is_faulty |= core::mem::replace(&mut seen, true);
                head.disposition(value);
            } else if name_end.eq_ignore_ascii_case(b"content-transfer-encoding") {
                // Must not be used (RFC 7578, section 4.7): most servers do not decode it; Django takes base64 off,
                // Go quoted-printable.
                let value = value.trim_ascii();
                let is = |names: &[&[u8]]| names.iter().any(|it| value.eq_ignore_ascii_case(it));
                let is_plain = is(&[b"7bit", b"8bit", b"binary"]);
                head.is_faulty |= !is_plain;
                head.is_coded |= !is_plain && !is(&[b"", b"identity", b"none"]);
            } else if name_end.eq_ignore_ascii_case(b"content-type") {
                let kind = split_once(value, b';').0.trim_ascii();
                // The default of fields (RFC 7578, section 4.4). Of several types any may be the one that counts.
                head.has_file_type |= !kind.eq_ignore_ascii_case(b"text/plain");
                // Several files in one part (RFC 7578, section 4.3).
                head.is_faulty |=
                    kind.get(..10).is_some_and(|it| it.eq_ignore_ascii_case(b"multipart/"));
            }
        }
        head.is_faulty |= !seen;
        head
    }

    /// Whether a server may take the part for a file. A file needs no name (RFC 7578, section 4.2): some servers
    /// go by its type then (busboy: application/octet-stream; others can be told of images).
    pub(super) fn may_be_file(&self) -> bool {
        self.filename.is_some() || self.has_file_type
    }

    fn disposition(&mut self, value: &[u8]) {
        let (kind, parameters) = split_once(value, b';');
        self.is_faulty |= !kind.trim_ascii().eq_ignore_ascii_case(b"form-data");
        let mut extended = None;
        for parameter in (Parameters { rest: parameters }) {
            self.is_faulty |= parameter.is_faulty;
            let known = match parameter.name.to_ascii_lowercase().as_slice() {
                b"name" => &mut self.name,
                b"filename" => &mut self.filename,
                b"filename*" => &mut extended,
                _ => continue,
            };
            match known {
                // The first one counts.
                Some(_) => self.is_faulty = true,
                None => *known = Some(parameter.value),
            }
        }
        if let Some(extended) = extended {
            // Must not be used (RFC 7578, section 4.2): not all servers know it.
            self.is_faulty = true;
            self.filename.get_or_insert(extended);
        }
    }
}

/// The fields of a head, each with its continuation lines.
fn unfolded(lines: &[u8]) -> Vec<Vec<u8>> {
    let mut fields: Vec<Vec<u8>> = Vec::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match (line, fields.last_mut()) {
            ([], _) => {}
            ([b' ' | b'\t', ..], Some(field)) => field.extend_from_slice(line),
            _ => fields.push(line.to_vec()),
        }
    }
    fields
}

/// A parameter of a field.
struct Parameter<'a> {
    name: &'a [u8],
    value: Vec<u8>,
    /// No value, a quote without end, something behind the quotes, or what should be in quotes.
    is_faulty: bool,
    /// Blanks around the equals sign, or behind what is not quoted, which not all servers take away.
    has_blanks: bool,
}

/// The parameters behind the first semicolon of a field.
struct Parameters<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Parameter<'a>;

    fn next(&mut self) -> Option<Parameter<'a>> {
        loop {
            self.rest = self.rest.trim_ascii_start();
            match self.rest {
                [] => return None,
                [b';', behind @ ..] => self.rest = behind,
                _ => break,
            }
        }
        let end = self.rest.iter().position(|byte| matches!(byte, b'=' | b';'));
        let (sent, behind) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let name = sent.trim_ascii_end();
        let Some(value) = behind.strip_prefix(b"=") else {
            self.rest = behind;
            return Some(Parameter { name, value: Vec::new(), is_faulty: true, has_blanks: false });
        };
        let is_blank = |byte: &u8| byte.is_ascii_whitespace();
        let has_blanks = name.len() < sent.len() || value.first().is_some_and(is_blank);
        let value = value.trim_ascii_start();
        let Some(quoted) = value.strip_prefix(b"\"") else {
            let (value, rest) = split_once(value, b';');
            self.rest = rest;
            let has_blanks = has_blanks || value.last().is_some_and(is_blank);
            let value = value.trim_ascii_end();
            // Servers cut it where there is a blank or a comma.
            let is_odd = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b',');
            let is_faulty = value.is_empty() || value.iter().any(is_odd);
            return Some(Parameter { name, value: value.to_vec(), is_faulty, has_blanks });
        };
        let (value, behind) = unquote(quoted);
        let (padding, rest) = split_once(behind.unwrap_or_default(), b';');
        self.rest = rest;
        let is_faulty = behind.is_none() || !padding.trim_ascii().is_empty();
        Some(Parameter { name, value, is_faulty, has_blanks })
    }
}

/// What is quoted, and what follows the quotes. Only quotes and backslashes can be escaped: a name may be a
/// path of Windows.
fn unquote(quoted: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let mut value = Vec::new();
    let mut rest = quoted;
    loop {
        (value, rest) = match rest {
            [] => return (value, None),
            [b'"', behind @ ..] => return (value, Some(behind)),
            [b'\\', byte @ (b'"' | b'\\'), behind @ ..] | [byte, behind @ ..] => {
                value.push(*byte);
                (value, behind)
            }
        };
    }
}

/// Up to a byte, and behind it; all of it, and nothing, where there is none.
fn split_once(bytes: &[u8], at: u8) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&byte| byte == at) {
        Some(place) => (&bytes[..place], &bytes[place + 1..]),
        None => (bytes, &[]),
    }
}
