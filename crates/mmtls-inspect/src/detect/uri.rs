//! Targets and hosts of requests as rules see them: what Suricata 7 makes of them with the settings that
//! it is shipped with (libhtp's personality IDS, no double decoding, `+` left as it is).
//!
//! The path is decoded once (`%41`, and `%u0041` with the best fit in one byte), backslashes become
//! slashes, runs of slashes one, UTF-8 its best fit whether it is overlong or not, and dot segments are
//! removed. Query and fragment are only decoded. Letters keep their case. Scheme and authority are left
//! out. Refuses nothing: what cannot be decoded stays as it is.

use std::borrow::Cow;

use super::bestfit;
use crate::http1::fields::is_space;

/// What a target comes to.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Target<'a> {
    /// Path, query and fragment, normalised.
    pub(super) uri: Cow<'a, [u8]>,
    /// The same with the dot segments of the path, where there are any: not all servers remove them.
    pub(super) with_dots: Option<Vec<u8>>,
    /// The host that it names, normalised.
    pub(super) host: Option<Vec<u8>>,
}

/// Takes the target of a request apart, and normalises it.
pub(super) fn normalise<'a>(method: &[u8], target: &'a [u8]) -> Target<'a> {
    if method == b"CONNECT" {
        // The target is an authority: there is no path.
        let host = host_and_port(target).filter(|host| !host.starts_with(b"/"));
        let host = host.map(normalise_host);
        return Target { uri: Cow::Borrowed(b""), with_dots: None, host };
    }
    if target.starts_with(b"/") && is_plain(target) {
        return Target { uri: Cow::Borrowed(target), with_dots: None, host: None };
    }
    let parts = Parts::of(target);
    let decoded = decode_path(parts.path);
    let path = utf8_to_bytes(&decoded);
    let mut uri = remove_dot_segments(&path);
    let mut behind = Vec::new();
    if let Some(query) = parts.query {
        behind.push(b'?');
        decode(query, false, &mut behind);
    }
    if let Some(fragment) = parts.fragment {
        behind.push(b'#');
        decode(fragment, true, &mut behind);
    }
    let with_dots = (path[..] != uri[..]).then(|| [&path[..], &behind].concat());
    uri.extend(behind);
    Target { uri: Cow::Owned(uri), with_dots, host: parts.host.map(normalise_host) }
}

/// The host that a Host field of HTTP/1 names. Always in lower case: libhtp leaves the case in front of a
/// port, against Suricata's documentation, and a pattern with capitals is refused.
pub(super) fn host_of_field(value: &[u8]) -> Option<Vec<u8>> {
    host_and_port(value).map(<[u8]>::to_ascii_lowercase)
}

/// The host that `:authority` of HTTP/2 names: up to the first colon, even inside brackets.
pub(super) fn host_of_authority(value: &[u8]) -> Vec<u8> {
    let start = value.iter().position(|&byte| byte == b'@').map_or(0, |at| at + 1);
    let host = value[start..].split(|&byte| byte == b':').next().unwrap_or_default();
    host.to_ascii_lowercase()
}

/// Nothing in it would be changed.
fn is_plain(target: &[u8]) -> bool {
    !target.iter().any(|&byte| byte == b'%' || byte == b'\\' || !byte.is_ascii())
        && !target.windows(2).any(|two| two == b"//" || two == b"/.")
}

/// A target, not decoded.
struct Parts<'a> {
    host: Option<&'a [u8]>,
    path: &'a [u8],
    query: Option<&'a [u8]>,
    fragment: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn of(target: &'a [u8]) -> Self {
        let trailing = target.iter().rev().take_while(|&&byte| byte == b' ').count();
        let mut rest = &target[..target.len() - trailing];
        let mut host = None;
        // What has a colon anywhere and does not start with a slash has a scheme, however odd.
        if !rest.starts_with(b"/")
            && let Some(colon) = rest.iter().position(|&byte| byte == b':')
        {
            rest = &rest[colon + 1..];
            if let [b'/', b'/', behind @ ..] = rest
                && !matches!(behind, [] | [b'/', ..])
            {
                let (authority, path) = split_before(behind, |byte| b"?/#".contains(&byte));
                host = Some(host_of_target(authority));
                rest = path;
            }
        }
        let (path, behind) = split_before(rest, |byte| b"?#".contains(&byte));
        let (query, behind) = match behind {
            [b'?', query @ ..] => {
                let (query, behind) = split_before(query, |byte| byte == b'#');
                (Some(query), behind)
            }
            _ => (None, behind),
        };
        Self { host, path, query, fragment: behind.strip_prefix(b"#") }
    }
}

/// An authority without user and port.
fn host_of_target(authority: &[u8]) -> &[u8] {
    let start = authority.iter().position(|&byte| byte == b'@').map_or(0, |at| at + 1);
    let host = &authority[start..];
    if host.starts_with(b"[") {
        let end = host.iter().position(|&byte| byte == b']');
        return end.map_or(host, |end| &host[..=end]);
    }
    split_before(host, |byte| byte == b':').0
}

/// The host in front of a port; absent where there is nothing, or a bracket is not closed.
fn host_and_port(value: &[u8]) -> Option<&[u8]> {
    let value = trim_end(value);
    let value = &value[value.iter().take_while(|&&byte| is_space(byte)).count()..];
    match value {
        [] => None,
        [b'[', ..] => {
            let end = value.iter().position(|&byte| byte == b']')?;
            Some(&value[..=end])
        }
        _ => {
            let (host, port) = split_before(value, |byte| byte == b':');
            Some(if port.is_empty() { host } else { trim_end(host) })
        }
    }
}

/// A host in a target may be encoded, and end with dots.
fn normalise_host(host: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(host.len());
    decode(host, true, &mut decoded);
    while decoded.ends_with(b".") {
        decoded.pop();
    }
    decoded.make_ascii_lowercase();
    decoded
}

/// The byte at the start, decoded, and how many bytes it takes.
fn decoded(input: &[u8], unicode: bool) -> Option<(u8, usize)> {
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0, |number, &digit| {
            char::from(digit).to_digit(16).map(|digit| number << 4 | digit)
        })
    };
    Some(match *input {
        [b'%', b'u' | b'U', ref digits @ ..] if unicode => match digits.get(..4).and_then(number) {
            Some(character) => (bestfit::byte(character), 6),
            None => (b'%', 1),
        },
        [b'%', high, low, ..] => {
            match number(&[high, low]).and_then(|byte| u8::try_from(byte).ok()) {
                Some(byte) => (byte, 3),
                None => (b'%', 1),
            }
        }
        [byte, ..] => (byte, 1),
        [] => return None,
    })
}

fn decode(mut input: &[u8], unicode: bool, out: &mut Vec<u8>) {
    while let Some((byte, len)) = decoded(input, unicode) {
        out.push(byte);
        input = &input[len..];
    }
}

/// Decodes a path; slashes become one.
fn decode_path(mut input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut behind_slash = false;
    while let Some((byte, len)) = decoded(input, true) {
        let byte = if byte == b'\\' { b'/' } else { byte };
        if byte != b'/' || !behind_slash {
            out.push(byte);
        }
        behind_slash = byte == b'/';
        input = &input[len..];
    }
    out
}

/// One byte for each character. Overlong forms count as what they stand for; what is no UTF-8 becomes
/// [`bestfit::REPLACEMENT`], and a character that the end cuts off is left out.
fn utf8_to_bytes(path: &[u8]) -> Cow<'_, [u8]> {
    if path.is_ascii() {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        rest = behind;
        let (more, bits) = match *first {
            0..0x80 => (0, *first),
            0xc0..0xe0 => (1, *first & 0x1f),
            0xe0..0xf0 => (2, *first & 0x0f),
            0xf0..0xf5 => (3, *first & 0x07),
            _ => {
                out.push(bestfit::REPLACEMENT);
                continue;
            }
        };
        let mut character = u32::from(bits);
        let mut taken = 0;
        while taken < more && !rest.is_empty() {
            let next = rest[0];
            // Surrogates, and what is beyond Unicode.
            let is_legal = matches!(next, 0x80..0xc0)
                && match (*first, taken) {
                    (0xed, 0) => next < 0xa0,
                    (0xf4, 0) => next < 0x90,
                    _ => true,
                };
            if !is_legal {
                break;
            }
            character = character << 6 | u32::from(next & 0x3f);
            rest = &rest[1..];
            taken += 1;
        }
        if taken == more {
            out.push(bestfit::byte(character));
        } else if !rest.is_empty() {
            out.push(bestfit::REPLACEMENT);
        }
    }
    Cow::Owned(out)
}

/// RFC 3986, section 5.2.4, but that a dot segment at the end takes the slash in front of it away too.
fn remove_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    // The next byte is a slash that is left of a segment, not one of `rest`.
    let mut slash = false;
    while let [first, behind @ ..] = rest {
        let (byte, behind) = if slash { (b'/', rest) } else { (*first, behind) };
        slash = false;
        match (byte, behind) {
            (b'.', [b'.', b'/', tail @ ..] | [b'/', tail @ ..]) => rest = tail,
            (b'.', [] | [b'.']) => break,
            (b'/', [b'.', b'/', tail @ ..]) => (rest, slash) = (tail, true),
            (b'/', [b'.']) => break,
            (b'/', [b'.', b'.', b'/', tail @ ..]) => {
                remove_last_segment(&mut out);
                (rest, slash) = (tail, true);
            }
            (b'/', [b'.', b'.']) => {
                remove_last_segment(&mut out);
                break;
            }
            _ => {
                let (segment, tail) = split_before(behind, |byte| byte == b'/');
                out.push(byte);
                out.extend_from_slice(segment);
                rest = tail;
            }
        }
    }
    out
}

fn remove_last_segment(out: &mut Vec<u8>) {
    out.truncate(out.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
}

fn split_before(bytes: &[u8], ends: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().position(|&byte| ends(byte)).unwrap_or(bytes.len()))
}

fn trim_end(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - bytes.iter().rev().take_while(|&&byte| is_space(byte)).count()]
}
