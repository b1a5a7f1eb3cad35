//! `pcre`: a regular expression between slashes, its flags, and what it captures.
//!
//! Flags that name a buffer come from Snort 2. Refuses unknown flags; leaves it to the compiler of
//! expressions whether the expression itself is right.

use super::buffers::Buffer;
use super::fault::{FaultKind, Refused};
use super::options;

/// Most values that one expression captures.
pub const MAX_CAPTURES: usize = 8;

/// A regular expression, to be searched in a buffer.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Pcre {
    /// The expression as it is written, without the slashes around it.
    pub expression: Box<str>,
    /// It must not match.
    pub negated: bool,
    /// `i`: letters match in either case.
    pub caseless: bool,
    /// `m`: `^` and `$` match at line ends too.
    pub multi_line: bool,
    /// `s`: `.` matches line ends too.
    pub dot_all: bool,
    /// `x`: white space and comments are no part of the expression.
    pub extended: bool,
    /// `A`: it matches at the start only.
    pub anchored: bool,
    /// `E`: `$` matches at the end only, not before a last line end.
    pub dollar_end_only: bool,
    /// `G`: quantifiers take as little as they can.
    pub ungreedy: bool,
    /// `R`: the search starts behind the previous match in the same buffer.
    pub relative: bool,
    /// `O`: the configured limit of steps does not apply.
    pub overrides_limit: bool,
    /// What groups of the expression are kept as.
    pub captures: Vec<Capture>,
}

/// A variable that a group of the expression sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// How long it is kept.
    pub scope: Scope,
    /// Its name.
    pub name: Box<str>,
    /// The name of the group in the expression. Without one, the first capture is of the first
    /// group, and so on.
    pub group: Option<Box<str>>,
}

/// How long a captured value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// As long as the connection.
    Flow,
    /// For this inspection.
    Packet,
}

impl Pcre {
    /// Reads what stands in quotes; also returns the buffer that the flags name.
    pub(super) fn parse(negated: bool, text: &str) -> Result<(Self, Option<Buffer>), Refused> {
        let inner = text.strip_prefix('/').ok_or(FaultKind::Missing("/"))?;
        // The last slash, unless it is escaped: flags have none.
        let (expression, flags) = inner.rsplit_once('/').ok_or(FaultKind::Missing("/"))?;
        let backslashes = expression.bytes().rev().take_while(|byte| *byte == b'\\').count();
        if backslashes % 2 == 1 {
            return Err(FaultKind::Missing("/").into());
        }
        if expression.is_empty() {
            return Err(FaultKind::ValueMissing.into());
        }
        let mut pcre = Self { expression: expression.into(), negated, ..Self::default() };
        let mut parts = flags.split(',');
        let mut buffer = None;
        for flag in parts.next().unwrap_or_default().trim().chars() {
            if let Some(named) = buffer_of(flag) {
                match buffer.replace(named) {
                    Some(other) if other != named => {
                        return Err(FaultKind::Conflict("another buffer").into());
                    }
                    _ => continue,
                }
            }
            match flag {
                'i' => pcre.caseless = true,
                'm' => pcre.multi_line = true,
                's' => pcre.dot_all = true,
                'x' => pcre.extended = true,
                'A' => pcre.anchored = true,
                'E' => pcre.dollar_end_only = true,
                'G' => pcre.ungreedy = true,
                'R' => pcre.relative = true,
                'O' => pcre.overrides_limit = true,
                // Raw bytes: without effect in Suricata.
                'B' => {}
                _ => return Err(FaultKind::Value.into()),
            }
        }
        for part in parts {
            let (scope, name) = part.trim().split_once(':').ok_or(FaultKind::Value)?;
            pcre.capture(scope, name.trim(), None)?;
        }
        if pcre.captures.is_empty() {
            pcre.named_captures()?;
        }
        Ok((pcre, buffer))
    }

    fn capture(&mut self, scope: &str, name: &str, group: Option<String>) -> Result<(), Refused> {
        let scope = match scope {
            "flow" => Scope::Flow,
            "pkt" => Scope::Packet,
            "alert" => return Err(Refused::form("capture for the alert")),
            _ => return Err(FaultKind::Value.into()),
        };
        if self.captures.len() == MAX_CAPTURES {
            return Err(FaultKind::TooMany.into());
        }
        let group = group.map(String::into_boxed_str);
        self.captures.push(Capture { scope, name: options::name(name)?, group });
        Ok(())
    }

    /// The older way: the expression names the one group that it keeps.
    fn named_captures(&mut self) -> Result<(), Refused> {
        for (prefix, scope) in [("(?P<flow_", "flow"), ("(?P<pkt_", "pkt")] {
            let expression = self.expression.clone();
            if let Some((_, rest)) = expression.split_once(prefix) {
                let (name, _) = rest.split_once('>').ok_or(FaultKind::Missing(">"))?;
                self.capture(scope, name, Some(format!("{scope}_{name}")))?;
            }
        }
        Ok(())
    }
}

/// The buffer that a flag stands for.
fn buffer_of(flag: char) -> Option<Buffer> {
    Some(match flag {
        'U' => Buffer::HttpUri,
        'I' => Buffer::HttpUriRaw,
        'P' => Buffer::HttpRequestBody,
        'Q' => Buffer::HttpResponseBody,
        'H' => Buffer::HttpHeader,
        'D' => Buffer::HttpHeaderRaw,
        'M' => Buffer::HttpMethod,
        // Snort's raw cookie (K) too: cookies are not normalised here.
        'C' | 'K' => Buffer::HttpCookie,
        'S' => Buffer::HttpStatCode,
        'Y' => Buffer::HttpStatMessage,
        'V' => Buffer::HttpUserAgent,
        'W' => Buffer::HttpHost,
        'Z' => Buffer::HttpHostRaw,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Pcre, Option<Buffer>), Refused> {
        Pcre::parse(false, text)
    }

    #[test]
    fn accepts_every_flag() {
        let (pcre, buffer) = parse(r"/^a\/b[/]\x22$/imsxAEGROBU").unwrap();
        assert_eq!(&*pcre.expression, r"^a\/b[/]\x22$");
        assert_eq!(buffer, Some(Buffer::HttpUri));
        assert!(pcre.caseless && pcre.multi_line && pcre.dot_all && pcre.extended);
        assert!(pcre.anchored && pcre.dollar_end_only && pcre.ungreedy && pcre.relative);
        assert!(pcre.overrides_limit && pcre.captures.is_empty() && !pcre.negated);
        for (flag, buffer) in [
            ('I', Buffer::HttpUriRaw),
            ('P', Buffer::HttpRequestBody),
            ('Q', Buffer::HttpResponseBody),
            ('H', Buffer::HttpHeader),
            ('D', Buffer::HttpHeaderRaw),
            ('M', Buffer::HttpMethod),
            ('C', Buffer::HttpCookie),
            ('K', Buffer::HttpCookie),
            ('S', Buffer::HttpStatCode),
            ('Y', Buffer::HttpStatMessage),
            ('V', Buffer::HttpUserAgent),
            ('W', Buffer::HttpHost),
            ('Z', Buffer::HttpHostRaw),
        ] {
            assert_eq!(parse(&format!("/a/{flag}")).unwrap().1, Some(buffer));
        }
        assert_eq!(&*parse(r"/a\\/").unwrap().0.expression, r"a\\");
    }

    #[test]
    fn accepts_captures() {
        let pcre = parse("/(a)(b)/i, flow:x,pkt:y").unwrap().0;
        let capture = |scope, name: &str| Capture { scope, name: name.into(), group: None };
        assert_eq!(pcre.captures, [capture(Scope::Flow, "x"), capture(Scope::Packet, "y")]);
        let pcre = parse("/(?P<flow_host>a)/").unwrap().0;
        let named = Capture { group: Some("flow_host".into()), ..capture(Scope::Flow, "host") };
        assert_eq!(pcre.captures, [named]);
    }

    #[test]
    fn refuses_faulty_expressions() {
        for faulty in [
            "a",
            "/a",
            r"/a\/",
            "//",
            "/",
            "/a/7",
            "/a/UH",
            "/a/i,flow",
            "/a/i,host:x",
            "/a/,flow:",
            "/(?P<flow_a/",
        ] {
            assert!(matches!(parse(faulty), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(matches!(parse("/(a)/,alert:x"), Err(Refused::Form(_))));
        let many = format!("/a/{}", ",pkt:x".repeat(MAX_CAPTURES + 1));
        assert_eq!(parse(&many), Err(FaultKind::TooMany.into()));
    }
}
