//! From the text of a rule to the rule: which option applies to what.
//!
//! An older keyword such as `http_uri` moves the content before it into a buffer; a newer one such
//! as `http.uri` is in force until the next one. What is looked for in the same buffer, after the
//! same transformations, is one list, wherever it stands in the rule.
//! Refuses a rule as a whole, with the first cause, in this order: the text cannot be taken apart,
//! the protocol, a keyword is not supported, the header, an option.

use super::application::{Http2Check, TlsVersion};
use super::buffers::{Application, Buffer, MAX_TRANSFORMS, Transform};
use super::bytes::{ByteExtract, ByteJump, ByteTest, DataAt};
use super::compare::Comparison;
use super::content::{Content, FastPattern, Place};
use super::dataset::Dataset;
use super::fault::{Cause, Fault, FaultKind, Refused};
use super::flow::{FlowBits, Tag, Threshold, XBit};
use super::header::{Header, HeaderRefused, Protocol, RawHeader, Sets};
use super::keywords::{self, Keyword, Takes};
use super::options::{self, RawOption};
use super::pcre::Pcre;
use super::rule::{BufferChecks, Check, Id, Rule, Target};
use super::slices::{FromBase64, Slice, XorKey};

/// Most numbers that a rule extracts.
pub const MAX_EXTRACTED: usize = 64;

/// A rule that was not understood, and what could be made out of it.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) protocol: Option<Box<str>>,
    pub(super) sid: Option<u32>,
    pub(super) message: Option<Box<str>>,
    pub(super) cause: Cause,
}

/// Reads a rule.
pub(super) fn read(text: &str, line: u32, sets: &mut Sets<'_>) -> Result<Rule, Box<Unread>> {
    let mut unread = Unread {
        protocol: None,
        sid: None,
        message: None,
        cause: Refused::from(FaultKind::Missing("options")).cause(text.len(), None),
    };
    read_into(text, line, sets, &mut unread).map_err(|cause| {
        unread.cause = cause;
        Box::new(unread)
    })
}

fn read_into(
    text: &str,
    line: u32,
    sets: &mut Sets<'_>,
    unread: &mut Unread,
) -> Result<Rule, Cause> {
    let fault = |(at, kind)| Cause::Fault(Fault { at, keyword: None, kind });
    let Some((head, body)) = text.split_once('(') else {
        RawHeader::new(text).map_err(fault)?;
        return Err(fault((text.len(), FaultKind::Missing("options"))));
    };
    let raw_header = RawHeader::new(head).map_err(fault)?;
    unread.protocol = Some(raw_header.protocol());
    let start = head.len() + 1;
    let inner = body.trim_end().strip_suffix(')');
    let inner = inner.ok_or_else(|| fault((text.len(), FaultKind::Missing(")"))))?;
    let raw_options = options::split(inner, start).map_err(fault)?;
    identify(&raw_options, unread);

    let header = raw_header.parse(sets);
    if let Err(HeaderRefused::Protocol) = header {
        return Err(Cause::UnsupportedProtocol(raw_header.protocol()));
    }
    let mut known = Vec::with_capacity(raw_options.len());
    for option in raw_options {
        let Some((keyword, takes)) = keywords::find(option.name) else {
            let name: String = option.name.chars().take(64).collect();
            return Err(Cause::UnsupportedKeyword(name.into()));
        };
        known.push((option, keyword, takes));
    }
    let header = match header {
        Ok(header) => header,
        Err(HeaderRefused::Protocol) => {
            return Err(Cause::UnsupportedProtocol(raw_header.protocol()));
        }
        Err(HeaderRefused::Other(at, refused)) => return Err(refused.cause(at, None)),
    };
    let mut reader = Reader::new(header, line);
    for (option, keyword, takes) in known {
        let refused = |refused: Refused| refused.cause(option.at, Some(option.name));
        let (negated, value) = value(&option, takes).map_err(|kind| refused(kind.into()))?;
        reader.option(keyword, negated, value).map_err(refused)?;
    }
    reader.finish().map_err(|kind| fault((start, kind)))
}

/// What a report about the rule needs, as far as it is there.
fn identify(raw_options: &[RawOption<'_>], unread: &mut Unread) {
    for option in raw_options {
        match (option.name, option.value) {
            ("sid", Some(value)) => unread.sid = value.parse().ok(),
            ("msg", Some(value)) => {
                let text = options::quoted(value).and_then(|(_, inner)| options::text(inner));
                unread.message = text.ok();
            }
            _ => {}
        }
    }
}

/// The value of an option, as its keyword takes it.
fn value<'a>(option: &RawOption<'a>, takes: Takes) -> Result<(bool, Option<&'a str>), FaultKind> {
    match (takes, option.value) {
        (Takes::Nothing, None) | (Takes::Optional, None) => Ok((false, None)),
        (Takes::Nothing, Some(_)) => Err(FaultKind::ValueUnexpected),
        (Takes::Value | Takes::Quoted | Takes::Verbatim, None) => Err(FaultKind::ValueMissing),
        (Takes::Verbatim, Some(value)) if !options::negation(value).1.starts_with('"') => {
            let (negated, value) = options::negation(value);
            Ok((negated, Some(value)))
        }
        (Takes::Quoted | Takes::Verbatim, Some(value)) => {
            options::quoted(value).map(|(negated, value)| (negated, Some(value)))
        }
        (Takes::Optional | Takes::Value, Some(value)) => {
            options::unquoted(value).map(|value| (false, Some(value)))
        }
    }
}

/// A sticky buffer in force.
struct Sticky {
    buffer: Buffer,
    transforms: Vec<Transform>,
    /// Where its checks go, once there is one.
    group: Option<usize>,
}

impl Sticky {
    /// Whether a buffer that a flag of `pcre` names is this one.
    fn is(&self, buffer: Buffer) -> bool {
        // Suricata has one buffer for both: the file in a response is its body.
        let file = self.buffer == Buffer::FileData && buffer == Buffer::HttpResponseBody;
        self.transforms.is_empty() && (self.buffer == buffer || file)
    }
}

/// A rule in the making.
struct Reader {
    rule: Rule,
    sid: Option<u32>,
    gid: Option<u32>,
    sticky: Option<Sticky>,
    /// Group and place of the content that modifiers apply to.
    content: Option<(usize, usize)>,
    /// The group of the last check.
    matched: Option<usize>,
    /// Names of extracted numbers; the place is the number.
    names: Vec<Box<str>>,
    given: Given,
}

/// What is given at most once, and has a value even where it is not given.
#[derive(Default)]
struct Given {
    message: bool,
    revision: bool,
}

impl Reader {
    fn new(header: Header, line: u32) -> Self {
        let rule = Rule {
            text: 0,
            line,
            header,
            id: Id { gid: 1, sid: 0 },
            revision: 0,
            message: Box::default(),
            class_type: None,
            priority: None,
            references: Vec::new(),
            metadata: Vec::new(),
            target: None,
            no_alert: false,
            flow: Default::default(),
            flow_bits: Vec::new(),
            xbits: Vec::new(),
            threshold: None,
            detection_filter: None,
            data_size: None,
            tls_versions: Vec::new(),
            http2: Vec::new(),
            tag: None,
            buffers: Vec::new(),
            extracted: 0,
        };
        Self {
            rule,
            sid: None,
            gid: None,
            sticky: None,
            content: None,
            matched: None,
            names: Vec::new(),
            given: Given::default(),
        }
    }

    /// Takes one option. `value` is there if the keyword takes one.
    fn option(
        &mut self,
        keyword: Keyword,
        negated: bool,
        value: Option<&str>,
    ) -> Result<(), Refused> {
        let text = value.unwrap_or_default();
        match keyword {
            Keyword::Content(buffer) => self.add_content(buffer, negated, text),
            Keyword::Pcre => self.add_pcre(negated, text),
            Keyword::Message if negated => Err(FaultKind::NotQuoted.into()),
            Keyword::Modify(modifier) => {
                let (group, place) = self.current_content()?;
                let names = &self.names;
                match &mut self.rule.buffers[group].checks[place] {
                    Check::Content(content) => {
                        content.modify(modifier, value, |name| index_of(names, name))
                    }
                    _ => Err(FaultKind::NoContent.into()),
                }
            }
            Keyword::ContentBuffer(buffer) => self.move_content(buffer),
            Keyword::Sticky(buffer) => self.set_sticky(Some(buffer)),
            Keyword::PacketData => self.set_sticky(None),
            Keyword::Transform(transform) => self.add_transform(transform),
            Keyword::Xor => {
                let (offset, key) = XorKey::parse(text)?;
                self.add_transform(Transform::Xor { offset, key })
            }
            Keyword::Subslice => self.add_transform(Transform::Subslice(Slice::parse(text)?)),
            Keyword::FromBase64 => {
                self.add_transform(Transform::FromBase64(FromBase64::parse(text)?))
            }
            Keyword::Absent => self.add_absence(value),
            Keyword::Prefilter => Ok(()),
            Keyword::DataAt => {
                let check = DataAt::parse(text, |name| self.index(name))?;
                // No byte behind the content: moves with it, where `http_uri` or such follows.
                if check.is_end()
                    && let Some(content) = self.last_check_content()
                {
                    content.at_end = true;
                    return Ok(());
                }
                self.add_relative(check.relative, Check::DataAt(check))
            }
            Keyword::ByteTest => {
                let check = ByteTest::parse(text, &|name| self.index(name))?;
                self.add_relative(check.field.relative, Check::ByteTest(check))
            }
            Keyword::ByteJump => {
                let check = ByteJump::parse(text, &|name| self.index(name))?;
                self.add_relative(check.field.relative, Check::ByteJump(check))
            }
            Keyword::ByteExtract => {
                let number = self.names.len();
                if number == MAX_EXTRACTED {
                    return Err(FaultKind::TooMany.into());
                }
                let (check, name) = ByteExtract::parse(text, number as u8)?;
                if self.index(&name).is_some() {
                    return Err(FaultKind::Twice.into());
                }
                self.names.push(name);
                self.add_relative(check.field.relative, Check::ByteExtract(check))
            }
            Keyword::BufferSize => {
                self.add_to_sticky(Check::Size(Comparison::parse(text, u64::MAX)?))
            }
            Keyword::Dataset => self.add_to_sticky(Check::Dataset(Dataset::parse(text)?)),
            Keyword::UriLength => self.add_uri_length(text),
            other => self.general(&other, text),
        }
    }

    /// Options that are not about a buffer.
    fn general(&mut self, keyword: &Keyword, text: &str) -> Result<(), Refused> {
        let rule = &mut self.rule;
        match keyword {
            Keyword::Message => {
                rule.message = options::text(text)?;
                first(!core::mem::replace(&mut self.given.message, true))
            }
            Keyword::Sid => once(&mut self.sid, positive(text)?),
            Keyword::Group => once(&mut self.gid, number(text)?),
            Keyword::Revision => {
                rule.revision = number(text)?;
                first(!core::mem::replace(&mut self.given.revision, true))
            }
            Keyword::ClassType => once(&mut rule.class_type, options::name(text)?),
            Keyword::Priority => {
                let priority = u8::try_from(positive(text)?).map_err(|_| FaultKind::Number)?;
                once(&mut rule.priority, priority)
            }
            Keyword::Reference => {
                let (kind, place) = text.split_once(',').ok_or(FaultKind::Value)?;
                rule.references.push((options::name(kind.trim())?, place.trim().into()));
                Ok(())
            }
            Keyword::Metadata => {
                rule.metadata.extend(text.split(',').map(|pair| {
                    let (key, value) = options::words(pair);
                    (key.into(), value.unwrap_or_default().into())
                }));
                Ok(())
            }
            // The last one counts, as in Suricata.
            Keyword::Target => {
                rule.target = Some(match text {
                    "src_ip" => Target::Source,
                    "dest_ip" => Target::Destination,
                    _ => return Err(FaultKind::Value.into()),
                });
                Ok(())
            }
            Keyword::NoAlert => {
                rule.no_alert = true;
                Ok(())
            }
            Keyword::Tag => once(&mut rule.tag, Tag::parse(text)?),
            Keyword::Flow => Ok(rule.flow.add(text)?),
            Keyword::FlowBits => {
                match FlowBits::parse(text)? {
                    Some(bits) => rule.flow_bits.push(bits),
                    None => rule.no_alert = true,
                }
                Ok(())
            }
            Keyword::XBits => {
                match XBit::parse(text)? {
                    Some(bit) => rule.xbits.push(bit),
                    None => rule.no_alert = true,
                }
                Ok(())
            }
            Keyword::Threshold => once(&mut rule.threshold, Threshold::parse(text, false)?),
            Keyword::DetectionFilter => {
                once(&mut rule.detection_filter, Threshold::parse(text, true)?)
            }
            Keyword::DataSize => {
                once(&mut rule.data_size, Comparison::parse(text, u64::from(u16::MAX))?)
            }
            Keyword::TlsVersion => {
                rule.tls_versions.push(TlsVersion::parse(text)?);
                Ok(())
            }
            // Which of several numbers is meant.
            Keyword::Http2(_) if text.contains(',') => Err(Refused::form(text)),
            Keyword::Http2(keyword) => {
                rule.http2.push(Http2Check::parse(*keyword, text)?);
                Ok(())
            }
            // Those that `option` takes.
            _ => Err(FaultKind::Value.into()),
        }
    }

    fn index(&self, name: &str) -> Option<u8> {
        index_of(&self.names, name)
    }

    /// The group of a buffer, which is made if there is none. Where a buffer can be there several
    /// times, each mention of it may mean another one.
    fn group(&mut self, buffer: Buffer, transforms: &[Transform]) -> usize {
        let groups = &mut self.rule.buffers;
        let known = groups
            .iter()
            .position(|group| group.buffer == buffer && *group.transforms == *transforms)
            .filter(|_| !buffer.is_multiple());
        known.unwrap_or_else(|| {
            groups.push(BufferChecks { buffer, transforms: transforms.into(), checks: Vec::new() });
            groups.len() - 1
        })
    }

    /// The group of what names no buffer itself.
    fn current_group(&mut self) -> usize {
        let Some(mut sticky) = self.sticky.take() else {
            return self.group(Buffer::Payload, &[]);
        };
        let group = match sticky.group {
            Some(group) => group,
            None => self.group(sticky.buffer, &sticky.transforms),
        };
        sticky.group = Some(group);
        self.sticky = Some(sticky);
        group
    }

    fn push(&mut self, group: usize, check: Check) {
        self.rule.buffers[group].checks.push(check);
    }

    fn push_content(&mut self, group: usize, content: Content) {
        self.content = Some((group, self.rule.buffers[group].checks.len()));
        self.matched = Some(group);
        self.push(group, Check::Content(content));
    }

    fn add_content(
        &mut self,
        buffer: Option<Buffer>,
        negated: bool,
        text: &str,
    ) -> Result<(), Refused> {
        let content = Content::parse(negated, text)?;
        let group = match buffer {
            Some(_) if self.sticky.is_some() => return Err(FaultKind::StickyBuffer.into()),
            Some(buffer) => self.group(buffer, &[]),
            None => self.current_group(),
        };
        self.push_content(group, content);
        Ok(())
    }

    /// The content that a modifier applies to: the last one, in the buffer in force if there is one.
    fn current_content(&self) -> Result<(usize, usize), FaultKind> {
        let content = self.content.ok_or(FaultKind::NoContent)?;
        match &self.sticky {
            Some(sticky) if sticky.group != Some(content.0) => Err(FaultKind::NoContent),
            _ => Ok(content),
        }
    }

    /// The last check, if it is a content and the next check would be in the same buffer.
    fn last_check_content(&mut self) -> Option<&mut Content> {
        let (group, place) = self.current_content().ok()?;
        let checks = &mut self.rule.buffers[group].checks;
        match checks.get_mut(place..)? {
            [Check::Content(content)] if self.matched == Some(group) => Some(content),
            _ => None,
        }
    }

    fn move_content(&mut self, buffer: Buffer) -> Result<(), Refused> {
        if self.sticky.is_some() {
            return Err(FaultKind::StickyBuffer.into());
        }
        let (from, place) = self.current_content()?;
        if self.rule.buffers[from].buffer != Buffer::Payload {
            return Err(FaultKind::Twice.into());
        }
        let group = self.group(buffer, &[]);
        match self.rule.buffers[from].checks.remove(place) {
            Check::Content(content) => self.push_content(group, content),
            other => self.rule.buffers[from].checks.insert(place, other),
        }
        Ok(())
    }

    fn set_sticky(&mut self, buffer: Option<Buffer>) -> Result<(), Refused> {
        if self.sticky.as_ref().is_some_and(|before| before.group.is_none()) {
            return Err(FaultKind::UnusedBuffer.into());
        }
        self.sticky = buffer.map(|buffer| Sticky { buffer, transforms: Vec::new(), group: None });
        Ok(())
    }

    /// Adds a transformation for the checks that follow; those before it are of the buffer as it was.
    fn add_transform(&mut self, transform: Transform) -> Result<(), Refused> {
        match &mut self.sticky {
            Some(sticky) => {
                sticky.group = None;
                if sticky.transforms.len() == MAX_TRANSFORMS {
                    return Err(FaultKind::TooMany.into());
                }
                sticky.transforms.push(transform);
                Ok(())
            }
            None => Err(FaultKind::NoBuffer.into()),
        }
    }

    fn add_pcre(&mut self, negated: bool, text: &str) -> Result<(), Refused> {
        let (pcre, buffer) = Pcre::parse(negated, text)?;
        let group = match (buffer, &self.sticky) {
            (Some(buffer), Some(sticky)) if !sticky.is(buffer) => {
                return Err(FaultKind::StickyBuffer.into());
            }
            (Some(buffer), None) => self.group(buffer, &[]),
            (_, Some(_)) | (None, None) => self.current_group(),
        };
        self.matched = Some(group);
        self.push(group, Check::Pcre(Box::new(pcre)));
        Ok(())
    }

    /// Adds a check that, if it is relative, goes where the match before it is.
    fn add_relative(&mut self, relative: bool, check: Check) -> Result<(), Refused> {
        let group = match self.matched {
            Some(group) if relative && self.sticky.is_none() => group,
            _ => self.current_group(),
        };
        self.matched = Some(group);
        self.push(group, check);
        Ok(())
    }

    /// Adds a check of a whole buffer.
    fn add_to_sticky(&mut self, check: Check) -> Result<(), Refused> {
        if self.sticky.is_none() {
            return Err(FaultKind::NoBuffer.into());
        }
        let group = self.current_group();
        self.push(group, check);
        Ok(())
    }

    /// Adds the absence of a buffer, which stands directly behind it.
    fn add_absence(&mut self, value: Option<&str>) -> Result<(), Refused> {
        let or_else = match value {
            None => false,
            Some("or_else") => true,
            Some(_) => return Err(FaultKind::Value.into()),
        };
        match &self.sticky {
            Some(Sticky { group: None, buffer, .. }) => match buffer {
                // Whether there will be one shows late, or never.
                Buffer::HttpRequestBody | Buffer::HttpResponseBody | Buffer::FileData => {
                    Err(Refused::form("a body"))
                }
                _ => self.add_to_sticky(Check::Absent { or_else }),
            },
            _ => Err(FaultKind::NoBuffer.into()),
        }
    }

    fn add_uri_length(&mut self, text: &str) -> Result<(), Refused> {
        let (comparison, buffer) = match text.split_once(',') {
            None => (text, Buffer::HttpUri),
            Some((comparison, form)) => match form.trim() {
                "norm" => (comparison, Buffer::HttpUri),
                "raw" => (comparison, Buffer::HttpUriRaw),
                _ => return Err(FaultKind::Value.into()),
            },
        };
        let comparison = Comparison::parse(comparison, u64::from(u16::MAX))?;
        let group = self.group(buffer, &[]);
        self.push(group, Check::Size(comparison));
        Ok(())
    }

    /// What only shows when all options are known.
    fn finish(mut self) -> Result<Rule, FaultKind> {
        if self.sticky.as_ref().is_some_and(|sticky| sticky.group.is_none()) {
            return Err(FaultKind::UnusedBuffer);
        }
        self.rule.id =
            Id { gid: self.gid.unwrap_or(1), sid: self.sid.ok_or(FaultKind::Missing("sid"))? };
        self.rule.extracted = self.names.len() as u8;
        // All contents of a group may have moved on.
        self.rule.buffers.retain(|group| !group.checks.is_empty());
        ignore_case_of_digits(&mut self.rule);
        check_contents(&self.rule)?;
        check_buffers(&self.rule)?;
        Ok(self.rule)
    }
}

/// Digits in hexadecimal are the same in either case.
fn ignore_case_of_digits(rule: &mut Rule) {
    let is_in_digits = |buffer| {
        matches!(
            buffer,
            Buffer::TlsCertFingerprint | Buffer::TlsCertSerial | Buffer::Ja3Hash | Buffer::Ja3sHash
        )
    };
    for group in rule.buffers.iter_mut().filter(|group| is_in_digits(group.buffer)) {
        for check in &mut group.checks {
            if let Check::Content(content) = check {
                content.nocase = true;
            }
        }
    }
}

fn check_contents(rule: &Rule) -> Result<(), FaultKind> {
    let mut fast_patterns = 0;
    for group in &rule.buffers {
        let mut before_is_only = false;
        for check in &group.checks {
            let Check::Content(content) = check else {
                continue;
            };
            content.check()?;
            // Such a content is not searched for again, so there is no place to go on from.
            if before_is_only && matches!(content.place, Place::Relative { .. }) {
                return Err(FaultKind::Conflict("fast_pattern:only before"));
            }
            before_is_only = content.fast_pattern == Some(FastPattern::Only);
            fast_patterns += usize::from(content.fast_pattern.is_some());
            let is_lower = group.buffer == Buffer::HttpHost && group.transforms.is_empty();
            if is_lower
                && !content.nocase
                && !content.negated
                && content.bytes.iter().any(u8::is_ascii_uppercase)
            {
                return Err(FaultKind::NeverMatches("hosts are in lower case"));
            }
            let is_md5 = matches!(group.buffer, Buffer::Ja3Hash | Buffer::Ja3sHash);
            if is_md5
                && group.transforms.is_empty()
                && !content.negated
                && (content.bytes.len() > 32 || !content.bytes.iter().all(u8::is_ascii_hexdigit))
            {
                return Err(FaultKind::NeverMatches("an MD5 has 32 hexadecimal digits"));
            }
        }
    }
    if fast_patterns > 1 { Err(FaultKind::Conflict("another fast_pattern")) } else { Ok(()) }
}

/// Buffers of two protocols, or of the wrong one, and of both directions at once.
fn check_buffers(rule: &Rule) -> Result<(), FaultKind> {
    let mut application = match rule.header.protocol {
        Protocol::Http | Protocol::Http1 | Protocol::Http2 => Some(Application::Http),
        Protocol::Tls => Some(Application::Tls),
        Protocol::Ip | Protocol::Tcp | Protocol::TcpPacket | Protocol::TcpStream => None,
    };
    let mut side = rule.flow.from;
    let tls = (!rule.tls_versions.is_empty()).then_some(Application::Tls);
    let http = (!rule.http2.is_empty()).then_some(Application::Http);
    let own = rule.buffers.iter().filter_map(|group| group.buffer.application());
    for needed in own.chain(tls).chain(http) {
        if application.replace(needed).is_some_and(|before| before != needed) {
            return Err(FaultKind::Conflict("another protocol"));
        }
    }
    let is_of_http2 = !rule.http2.is_empty()
        || rule.buffers.iter().any(|group| group.buffer == Buffer::Http2HeaderName);
    if rule.header.protocol == Protocol::Http1 && is_of_http2 {
        return Err(FaultKind::Conflict("http1"));
    }
    for needed in rule.buffers.iter().filter_map(|group| group.buffer.side()) {
        if side.replace(needed).is_some_and(|before| before != needed) {
            return Err(FaultKind::Conflict("the other direction"));
        }
    }
    Ok(())
}

fn index_of(names: &[Box<str>], name: &str) -> Option<u8> {
    names.iter().position(|known| **known == *name).map(|place| place as u8)
}

fn first(is_first: bool) -> Result<(), Refused> {
    if is_first { Ok(()) } else { Err(FaultKind::Twice.into()) }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), Refused> {
    first(slot.replace(value).is_none())
}

fn number(text: &str) -> Result<u32, FaultKind> {
    let number = options::unsigned(text, u64::from(u32::MAX))?;
    u32::try_from(number).map_err(|_| FaultKind::Number)
}

fn positive(text: &str) -> Result<u32, FaultKind> {
    number(text).and_then(|number| if number > 0 { Ok(number) } else { Err(FaultKind::Number) })
}
