//! The text of a case ([`super::script`]): read and printed.
//!
//! What is printed reads as the same case again. Refuses what it does not know, and says which word.

use std::fmt;
use std::str::FromStr;

use base16ct::lower::encode_string as to_hex;

use super::script::{Case, Event, Kind, Part, Place, Send, Step, Token, Until};
use super::wire::{Oddity, flag};

fn hex(text: &str) -> Result<Vec<u8>, String> {
    base16ct::mixed::decode_vec(text).map_err(|_| format!("{text} is not hexadecimal"))
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number here"))
}

/// `NAME[A..B]` with or without the brackets.
fn range(text: &str) -> Result<(&str, usize, Option<usize>), String> {
    let Some((name, rest)) = text.split_once('[') else {
        return Ok((text, 0, None));
    };
    let inner = rest.strip_suffix(']').ok_or_else(|| format!("no ] in {text}"))?;
    let (from, to) = inner.split_once("..").ok_or_else(|| format!("no .. in {text}"))?;
    let from = if from.is_empty() { 0 } else { number(from)? };
    let to = if to.is_empty() { None } else { Some(number(to)?) };
    Ok((name, from, to))
}

fn write_range(f: &mut fmt::Formatter<'_>, from: usize, to: Option<usize>) -> fmt::Result {
    match (from, to) {
        (0, None) => Ok(()),
        (_, None) => write!(f, "[{from}..]"),
        (_, Some(to)) => write!(f, "[{from}..{to}]"),
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(raw) = text.strip_prefix("raw:") {
            return Ok(Self { kind: Kind::Raw(hex(raw)?), version: 0x0301, count: 1 });
        }
        let (rest, count) = match text.split_once('*') {
            Some((rest, count)) => (rest, number(count)?),
            None => (text, 1),
        };
        let (rest, from, to) = range(rest)?;
        let (name, version) = match rest.split_once(':') {
            Some((name, version)) => {
                let version = u16::from_str_radix(version, 16);
                (name, version.map_err(|_| format!("{text}: not a version"))?)
            }
            None => (rest, 0x0301),
        };
        let kind = match name {
            "hello" => Kind::Hello(from, to),
            "empty" => Kind::Empty,
            "ccs" => Kind::Ccs,
            "eccs" => Kind::EmptyCcs,
            "warn" => Kind::Warning,
            "ealert" => Kind::EmptyAlert,
            "app" => Kind::EmptyData,
            _ => return Err(format!("unknown record {text}")),
        };
        Ok(Self { kind, version, count })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.kind {
            Kind::Raw(bytes) => return write!(f, "raw:{}", to_hex(bytes)),
            Kind::Hello(..) => "hello",
            Kind::Empty => "empty",
            Kind::Ccs => "ccs",
            Kind::EmptyCcs => "eccs",
            Kind::Warning => "warn",
            Kind::EmptyAlert => "ealert",
            Kind::EmptyData => "app",
        };
        write!(f, "{name}:{:04x}", self.version)?;
        if let Kind::Hello(from, to) = self.kind {
            write_range(f, from, to)?;
        }
        if self.count == 1 { Ok(()) } else { write!(f, "*{}", self.count) }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(digits) = text.strip_prefix("hex:") {
            return Ok(Self::Hex(hex(digits)?));
        }
        if let Some((name, count)) = text.split_once('*') {
            return match name {
                "fill" => Ok(Self::Fill(number(count)?)),
                "zero" => Ok(Self::Zero(number(count)?)),
                _ => Err(format!("unknown data {text}")),
            };
        }
        match range(text)? {
            ("out", from, to) => Ok(Self::Out(from, to)),
            ("tls", from, to) => Ok(Self::Tls(from, to)),
            ("swap", from, to) => Ok(Self::Swap(from, to)),
            ("veil", from, to) => Ok(Self::Veil(from, to)),
            ("flip", from, to) => Ok(Self::Flip(from, to)),
            ("decoy", ..) => Ok(Self::Decoy),
            ("shello", ..) => Ok(Self::ServerHello),
            ("open", ..) => Ok(Self::Open),
            ("http", ..) => Ok(Self::Http),
            _ => Err(format!("unknown data {text}")),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Out(from, to) => {
                f.write_str("out")?;
                write_range(f, *from, *to)
            }
            Self::Tls(from, to) => {
                f.write_str("tls")?;
                write_range(f, *from, *to)
            }
            Self::Swap(from, to) => {
                f.write_str("swap")?;
                write_range(f, *from, *to)
            }
            Self::Veil(from, to) => {
                f.write_str("veil")?;
                write_range(f, *from, *to)
            }
            Self::Flip(from, to) => {
                f.write_str("flip")?;
                write_range(f, *from, *to)
            }
            Self::Fill(count) => write!(f, "fill*{count}"),
            Self::Zero(count) => write!(f, "zero*{count}"),
            Self::Decoy => f.write_str("decoy"),
            Self::ServerHello => f.write_str("shello"),
            Self::Open => f.write_str("open"),
            Self::Http => f.write_str("http"),
            Self::Hex(bytes) => write!(f, "hex:{}", to_hex(bytes)),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("tls") {
            let offset = if rest.is_empty() { 0 } else { number(rest.trim_start_matches('+'))? };
            return Ok(Self::Tls(offset));
        }
        match text.strip_prefix('@') {
            Some("") => Ok(Self::Next(0)),
            Some(rest) => Ok(Self::Next(number(rest.trim_start_matches('+'))?)),
            None => Ok(Self::At(number(text)?)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "{at}"),
            Self::Tls(0) => f.write_str("tls"),
            Self::Tls(offset) => write!(f, "tls{offset:+}"),
            Self::Next(0) => f.write_str("@"),
            Self::Next(offset) => write!(f, "@{offset:+}"),
        }
    }
}

const FLAGS: [(char, u8); 8] = [
    ('F', flag::FIN),
    ('S', flag::SYN),
    ('R', flag::RST),
    ('P', flag::PSH),
    ('A', flag::ACK),
    ('U', 32),
    ('E', 64),
    ('C', 128),
];

/// The names of oddities, and where each is kept.
type Field = fn(&mut Oddity) -> &mut bool;
pub const ODDITIES: [(&str, Field); 13] = [
    ("badsum", |it| &mut it.bad_checksum),
    ("badipsum", |it| &mut it.bad_ip_checksum),
    ("badoff", |it| &mut it.bad_offset),
    ("shortoff", |it| &mut it.short_offset),
    ("badlen", |it| &mut it.bad_length),
    ("lost", |it| &mut it.lost),
    ("ipopt", |it| &mut it.ip_option),
    ("badver", |it| &mut it.bad_version),
    ("frags", |it| &mut it.fragments),
    ("lose1", |it| &mut it.lose_first),
    ("lose2", |it| &mut it.lose_second),
    ("reserved", |it| &mut it.reserved),
    ("trailer", |it| &mut it.trailer),
];

impl FromStr for Send {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let mut send = Self { flags: 0, ..Self::default() };
        for letter in words.next().unwrap_or("-").chars().filter(|it| *it != '-') {
            let known = FLAGS.iter().find(|it| it.0 == letter);
            send.flags |= known.ok_or_else(|| format!("unknown flag {letter}"))?.1;
        }
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                let known = ODDITIES.iter().find(|it| it.0 == word);
                *known.ok_or_else(|| format!("unknown word {word}"))?.1(&mut send.oddity) = true;
                continue;
            };
            match name {
                "seq" => send.sequence = Some(value.parse()?),
                "ack" => send.acknowledgment = Some(value.parse()?),
                "data" => send.data = value.split('+').map(str::parse).collect::<Result<_, _>>()?,
                "win" => send.window = number(value)?,
                "urg" => send.urgent = number(value)?,
                "ttl" => send.ttl = number(value)?,
                "ts" => send.timestamp = Some(number(value)?),
                "opt" => send.options = hex(value)?,
                "times" => send.times = number(value)?,
                "as" if value == "peer" => send.as_peer = true,
                _ => return Err(format!("unknown word {word}")),
            }
        }
        Ok(send)
    }
}

impl fmt::Display for Send {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters: String =
            FLAGS.iter().filter(|it| self.flags & it.1 != 0).map(|it| it.0).collect();
        f.write_str(if letters.is_empty() { "-" } else { &letters })?;
        if let Some(place) = self.sequence {
            write!(f, " seq={place}")?;
        }
        if let Some(place) = self.acknowledgment {
            write!(f, " ack={place}")?;
        }
        for (at, part) in self.data.iter().enumerate() {
            write!(f, "{}{part}", if at == 0 { " data=" } else { "+" })?;
        }
        let usual = Self::default();
        if self.window != usual.window {
            write!(f, " win={}", self.window)?;
        }
        if self.urgent != 0 {
            write!(f, " urg={}", self.urgent)?;
        }
        if self.ttl != usual.ttl {
            write!(f, " ttl={}", self.ttl)?;
        }
        if let Some(value) = self.timestamp {
            write!(f, " ts={value}")?;
        }
        if !self.options.is_empty() {
            write!(f, " opt={}", to_hex(&self.options))?;
        }
        if self.times != 1 {
            write!(f, " times={}", self.times)?;
        }
        if self.as_peer {
            f.write_str(" as=peer")?;
        }
        let mut odd = self.oddity;
        for (name, field) in ODDITIES {
            if *field(&mut odd) {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

const EVENTS: [(&str, Event); 6] = [
    ("syn", Event::Syn),
    ("synack", Event::SynAck),
    ("ack", Event::Ack),
    ("data", Event::Data),
    ("rst", Event::Rst),
    ("end", Event::End),
];

/// Longest wait for an event, in milliseconds, unless the script says otherwise. A busy machine's SYN-ACK
/// is waited for: what a script sends without it is another attack.
fn patience(event: Event) -> u64 {
    match event {
        Event::Syn | Event::SynAck => 1500,
        _ => 400,
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut case = Self::default();
        for line in text.split(['\n', ';']) {
            let line = line.trim();
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match word {
                "" => {}
                _ if word.starts_with('#') => {}
                "server" => case.server = true,
                "deaf" => case.deaf = true,
                "active" => case.active = true,
                "eager" => case.eager = true,
                "cookies" => case.cookies = true,
                "front" => {
                    super::front::find(rest)?;
                    case.front = Some(rest.to_owned());
                }
                "window" => case.window = Some(number(rest)?),
                "choose" => case.steps.push(Step::Choose(number(rest)?)),
                "skip" => {
                    let (peers, own) = rest.split_once(' ').unwrap_or((rest, "0"));
                    case.steps.push(Step::Skip(number(peers)?, number(own)?));
                }
                "third" => case.third = true,
                "source" => case.source = Some(rest.to_owned()),
                "big" => case.big = number(rest)?,
                "lead" => case.lead = hex(rest)?,
                "flight" => {
                    case.flight =
                        rest.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
                }
                "send" => case.steps.push(Step::Send(rest.parse()?)),
                "wait" => {
                    let mut words = rest.split_whitespace();
                    let name = words.next().unwrap_or_default();
                    let known = EVENTS.iter().find(|it| it.0 == name);
                    let event = known.ok_or_else(|| format!("unknown event {name}"))?.1;
                    let limit = words.next().map_or(Ok(patience(event)), number)?;
                    case.steps.push(Step::Wait(event, limit));
                }
                "pause" => case.steps.push(Step::Pause(number(rest)?)),
                "stream" => case.steps.push(Step::Stream(match rest {
                    "" => Until::End,
                    "connected" => Until::Connected,
                    "dialog" => Until::Dialog,
                    "handshake" => Until::Handshake,
                    _ => return Err(format!("unknown end {rest}")),
                })),
                "again" => case.steps.push(Step::Again),
                "reopen" => case.steps.push(Step::Reopen),
                _ => return Err(format!("unknown statement {line}")),
            }
        }
        Ok(case)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        if self.server {
            lines.push("server".to_owned());
        }
        if self.third {
            lines.push("third".to_owned());
        }
        let words = [(self.active, "active"), (self.eager, "eager"), (self.cookies, "cookies")];
        lines.extend(words.iter().filter(|it| it.0).map(|it| it.1.to_owned()));
        if let Some(front) = &self.front {
            lines.push(format!("front {front}"));
        }
        if let Some(window) = self.window {
            lines.push(format!("window {window}"));
        }
        if self.deaf {
            lines.push("deaf".to_owned());
        }
        if let Some(source) = &self.source {
            lines.push(format!("source {source}"));
        }
        if self.big > 0 {
            lines.push(format!("big {}", self.big));
        }
        if !self.lead.is_empty() {
            lines.push(format!("lead {}", to_hex(&self.lead)));
        }
        if !self.flight.is_empty() {
            let tokens: Vec<_> = self.flight.iter().map(Token::to_string).collect();
            lines.push(format!("flight {}", tokens.join(" ")));
        }
        for step in &self.steps {
            lines.push(match step {
                Step::Send(send) => format!("send {send}"),
                Step::Wait(event, limit) => {
                    let name = EVENTS.iter().find(|it| it.1 == *event).map_or("end", |it| it.0);
                    if *limit == patience(*event) {
                        format!("wait {name}")
                    } else {
                        format!("wait {name} {limit}")
                    }
                }
                Step::Pause(time) => format!("pause {time}"),
                Step::Stream(Until::End) => "stream".to_owned(),
                Step::Stream(Until::Dialog) => "stream dialog".to_owned(),
                Step::Choose(number) => format!("choose {number}"),
                Step::Skip(peers, 0) => format!("skip {peers}"),
                Step::Skip(peers, own) => format!("skip {peers} {own}"),
                Step::Stream(Until::Connected) => "stream connected".to_owned(),
                Step::Stream(Until::Handshake) => "stream handshake".to_owned(),
                Step::Again => "again".to_owned(),
                Step::Reopen => "reopen".to_owned(),
            });
        }
        f.write_str(&lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_it_prints() {
        for text in [
            "send S; wait synack; send S seq=-101 data=fill*100; pause 10; stream",
            "server; third; deaf; lead 160303; wait syn; send SA; wait data 900; stream handshake; again",
            "big 17000; flight empty:0301*40 eccs:0303 hello:0900[0..100] hello:0900[100..] raw:00ff; stream",
            "send PA seq=@-5 ack=@+7 data=out[3..9]+open+hex:0102 win=0 urg=3 ttl=1 ts=9 opt=0101 as=peer badsum lost",
            "source 10.78.0.1:4433; send -",
            "active; eager; cookies; front smtp; window 5; skip 1; skip -2 7; choose 1; stream dialog",
            "send PA seq=tls+20 data=tls[20..]+swap[0..4] times=3 frags lose1; send A seq=tls frags lose2",
        ] {
            let case: Case = text.parse().unwrap();
            assert_eq!(case.to_string(), text);
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in [
            "sned S",
            "send X",
            "send S seq=a",
            "send S data=ou",
            "wait for",
            "flight hullo",
            "lead 123",
            "lead zz",
            "flight hello:0301[4",
            "stream on",
            "send S odd",
        ] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
    }
}
