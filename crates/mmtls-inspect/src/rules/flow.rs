//! What a rule asks of the connection, what it remembers there, and how often it may report:
//! `flow`, `flowbits`, `xbits`, `threshold`, `detection_filter`, `tag`.

use super::fault::{FaultKind, Refused};
use super::options;
use crate::Side;

/// Most names in one condition on bits.
const MAX_NAMES: usize = 64;

/// What a rule asks of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flow {
    /// Who sends what is inspected.
    pub from: Option<Side>,
    /// Whether it must be established (`true`), or must not be (`false`).
    pub established: Option<bool>,
    /// Whether the stream is inspected (`true`), or segments are (`false`).
    pub stream: Option<bool>,
    /// Whether packets must have been fragments (`true`), or must not (`false`).
    pub fragments: Option<bool>,
    /// Whether the connection is established does not matter; written so.
    pub stateless: bool,
}

impl Flow {
    /// Adds what a `flow` option says.
    pub(super) fn add(&mut self, value: &str) -> Result<(), FaultKind> {
        fn set<T: PartialEq>(slot: &mut Option<T>, value: T) -> Result<(), FaultKind> {
            let before = slot.replace(value);
            if before.is_some() && before != *slot {
                return Err(FaultKind::Conflict("its opposite"));
            }
            Ok(())
        }
        for part in value.split(',') {
            match part.trim().to_ascii_lowercase().as_str() {
                "to_server" | "from_client" => set(&mut self.from, Side::Client)?,
                "to_client" | "from_server" => set(&mut self.from, Side::Server)?,
                "established" => set(&mut self.established, true)?,
                "not_established" => set(&mut self.established, false)?,
                "stateless" => self.stateless = true,
                "only_stream" => set(&mut self.stream, true)?,
                "no_stream" => set(&mut self.stream, false)?,
                "only_frag" => set(&mut self.fragments, true)?,
                "no_frag" => set(&mut self.fragments, false)?,
                _ => return Err(FaultKind::Value),
            }
        }
        if self.stateless && self.established.is_some() {
            return Err(FaultKind::Conflict("stateless"));
        }
        Ok(())
    }
}

/// What is done with bits, or asked of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BitAction {
    /// One of them is set: a condition.
    IsSet,
    /// One of them is not set: a condition.
    IsNotSet,
    /// Set when the rule has matched.
    Set,
    /// Cleared when the rule has matched.
    Unset,
    /// Changed when the rule has matched.
    Toggle,
}

impl BitAction {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "isset" => Self::IsSet,
            "isnotset" => Self::IsNotSet,
            "set" => Self::Set,
            "unset" => Self::Unset,
            "toggle" => Self::Toggle,
            _ => return None,
        })
    }

    const fn is_condition(self) -> bool {
        matches!(self, Self::IsSet | Self::IsNotSet)
    }
}

/// Bits of the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowBits {
    /// What is done with them.
    pub action: BitAction,
    /// Their names; several only in conditions.
    pub names: Vec<Box<str>>,
}

impl FlowBits {
    /// Absent for `noalert`.
    pub(super) fn parse(value: &str) -> Result<Option<Self>, Refused> {
        let Some((action, names)) = value.split_once(',') else {
            return if value == "noalert" { Ok(None) } else { Err(FaultKind::Value.into()) };
        };
        let action = BitAction::parse(action).ok_or(FaultKind::Value)?;
        let names = names.split('|').map(|name| options::name(name.trim()));
        let names = names.take(MAX_NAMES + 1).collect::<Result<Vec<_>, _>>()?;
        if names.len() > MAX_NAMES || names.len() > 1 && !action.is_condition() {
            return Err(FaultKind::TooMany.into());
        }
        Ok(Some(Self { action, names }))
    }
}

/// A bit of an address, or of a pair of addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct XBit {
    /// What is done with it.
    pub action: BitAction,
    /// Its name.
    pub name: Box<str>,
    /// Whose it is.
    pub track: XBitTrack,
    /// Seconds that it stays set.
    pub expire_seconds: Option<u32>,
}

/// Whose a bit is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum XBitTrack {
    /// That of the address that sends what matched.
    Source,
    /// That of the other one.
    Destination,
    /// That of both together.
    Pair,
}

impl XBit {
    /// Absent for `noalert`.
    pub(super) fn parse(value: &str) -> Result<Option<Self>, Refused> {
        if value == "noalert" {
            return Ok(None);
        }
        let mut parts = value.split(',').map(str::trim);
        let action = parts.next().and_then(BitAction::parse).ok_or(FaultKind::Value)?;
        let name = options::name(parts.next().ok_or(FaultKind::ValueMissing)?)?;
        let (mut track, mut expire_seconds) = (None, None);
        for part in parts {
            match options::words(part) {
                ("track", Some("ip_src")) if track.is_none() => track = Some(XBitTrack::Source),
                ("track", Some("ip_dst")) if track.is_none() => {
                    track = Some(XBitTrack::Destination)
                }
                ("track", Some("ip_pair")) if track.is_none() => track = Some(XBitTrack::Pair),
                ("track", Some("tx")) => return Err(Refused::form("track tx")),
                ("expire", Some(seconds)) if expire_seconds.is_none() => {
                    expire_seconds = Some(number(seconds)?);
                }
                _ => return Err(FaultKind::Value.into()),
            }
        }
        let track = track.ok_or(FaultKind::Missing("track"))?;
        Ok(Some(Self { action, name, track, expire_seconds }))
    }
}

/// What matches are counted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Track {
    /// The address that sends what matched.
    Source,
    /// The address that receives it.
    Destination,
    /// Both addresses.
    Both,
    /// The rule alone.
    Rule,
    /// The connection.
    Flow,
}

impl Track {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "by_src" => Self::Source,
            "by_dst" => Self::Destination,
            "by_both" => Self::Both,
            "by_rule" => Self::Rule,
            "by_flow" => Self::Flow,
            _ => return None,
        })
    }
}

/// How many matches are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// Which of them.
    pub kind: ThresholdKind,
    /// What they are counted by.
    pub track: Track,
    /// How many; at least 1.
    pub count: u32,
    /// In how many seconds.
    pub seconds: u32,
}

/// Which matches are reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ThresholdKind {
    /// The first ones, up to the count.
    Limit,
    /// One each time when the count is reached.
    Threshold,
    /// One when the count is reached, and no more in that time.
    Both,
    /// All behind the count (`detection_filter`).
    Filter,
}

impl Threshold {
    /// Reads a `threshold`, or with `filter` a `detection_filter`.
    pub(super) fn parse(value: &str, filter: bool) -> Result<Self, Refused> {
        let (mut kind, mut track, mut count, mut seconds) = (None, None, None, None);
        for part in value.split(',') {
            let (word, value) = options::words(part);
            let value = value.ok_or(FaultKind::Value)?;
            let twice = match word {
                "type" if !filter => kind
                    .replace(match value {
                        "limit" => ThresholdKind::Limit,
                        "threshold" => ThresholdKind::Threshold,
                        "both" => ThresholdKind::Both,
                        "backoff" => return Err(Refused::form("type backoff")),
                        _ => return Err(FaultKind::Value.into()),
                    })
                    .is_some(),
                "track" => track.replace(Track::parse(value).ok_or(FaultKind::Value)?).is_some(),
                "count" => count.replace(number(value)?).is_some(),
                "seconds" => seconds.replace(number(value)?).is_some(),
                "multiplier" | "unique_on" => return Err(Refused::form(word)),
                _ => return Err(FaultKind::Value.into()),
            };
            if twice {
                return Err(FaultKind::Twice.into());
            }
        }
        let kind = if filter { Some(ThresholdKind::Filter) } else { kind };
        Ok(Self {
            kind: kind.ok_or(FaultKind::Missing("type"))?,
            track: track.ok_or(FaultKind::Missing("track"))?,
            count: count.filter(|count| *count > 0).ok_or(FaultKind::Missing("count"))?,
            seconds: seconds.filter(|it| *it > 0).ok_or(FaultKind::Missing("seconds"))?,
        })
    }
}

/// What is to be recorded behind a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Whose packets.
    pub of: Tagged,
    /// How many, and of what; without it, the configured number of packets.
    pub limit: Option<(u32, TagUnit)>,
}

/// Whose packets are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tagged {
    /// Those of the connection.
    Session,
    /// Those of the address that sends what matched.
    Source,
    /// Those of the other one.
    Destination,
}

/// What a tag counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TagUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Tag {
    pub(super) fn parse(value: &str) -> Result<Self, FaultKind> {
        let parts: Vec<&str> = value.splitn(5, ',').map(str::trim).collect();
        let (of, limit) = match *parts {
            [of] => (of, None),
            [of, count, unit] | [of, count, unit, _] => (of, Some((count, unit))),
            _ => return Err(FaultKind::Value),
        };
        let of = match (of, parts.get(3).copied()) {
            ("session", None) => Tagged::Session,
            ("host", None | Some("src")) => Tagged::Source,
            ("host", Some("dst")) => Tagged::Destination,
            _ => return Err(FaultKind::Value),
        };
        let limit = match limit {
            None => None,
            Some((count, "packets")) => Some((number(count)?, TagUnit::Packets)),
            Some((count, "bytes")) => Some((number(count)?, TagUnit::Bytes)),
            Some((count, "seconds")) => Some((number(count)?, TagUnit::Seconds)),
            Some(_) => return Err(FaultKind::Value),
        };
        Ok(Self { of, limit })
    }
}

fn number(text: &str) -> Result<u32, FaultKind> {
    let number = options::unsigned(text, u64::from(u32::MAX))?;
    u32::try_from(number).map_err(|_| FaultKind::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(value: &str) -> Result<Flow, FaultKind> {
        let mut flow = Flow::default();
        flow.add(value).map(|()| flow)
    }

    #[test]
    fn accepts_every_word_of_flow() {
        let all = flow("to_server, established,only_stream,no_frag").unwrap();
        assert_eq!((all.from, all.established), (Some(Side::Client), Some(true)));
        assert_eq!((all.stream, all.fragments), (Some(true), Some(false)));
        let all = flow("from_server,not_established,no_stream,only_frag").unwrap();
        assert_eq!((all.from, all.established), (Some(Side::Server), Some(false)));
        assert_eq!((all.stream, all.fragments), (Some(false), Some(true)));
        assert!(flow("stateless,from_client,to_server").unwrap().stateless);
    }

    #[test]
    fn refuses_faulty_flow() {
        for faulty in ["", "up", "to_server,to_client", "established,stateless", "to_server,"] {
            assert!(flow(faulty).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_every_form_of_flowbits() {
        for (text, action) in [
            ("isset", BitAction::IsSet),
            ("isnotset", BitAction::IsNotSet),
            ("set", BitAction::Set),
            ("unset", BitAction::Unset),
            ("toggle", BitAction::Toggle),
        ] {
            let bits = FlowBits::parse(&format!("{text}, ET.x")).unwrap().unwrap();
            assert_eq!((bits.action, &*bits.names), (action, &["ET.x".into()][..]));
        }
        assert_eq!(FlowBits::parse("isset,a | b").unwrap().unwrap().names.len(), 2);
        assert_eq!(FlowBits::parse("noalert"), Ok(None));
    }

    #[test]
    fn refuses_faulty_flowbits() {
        let many = format!("isset,{}", vec!["a"; MAX_NAMES + 1].join("|"));
        for faulty in ["", "set", "clear,a", "set,", "set,a|b", "isset,a|", "noalert,a", &many] {
            assert!(FlowBits::parse(faulty).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_every_form_of_xbits() {
        let bit = XBit::parse("set,bad, track ip_src, expire 3600").unwrap().unwrap();
        assert_eq!((bit.action, bit.track), (BitAction::Set, XBitTrack::Source));
        assert_eq!((&*bit.name, bit.expire_seconds), ("bad", Some(3600)));
        assert!(XBit::parse("isset,bad,track ip_dst").is_ok());
        assert!(XBit::parse("toggle,bad,track ip_pair").is_ok());
        assert_eq!(XBit::parse("noalert"), Ok(None));
    }

    #[test]
    fn refuses_faulty_xbits() {
        for faulty in ["", "set", "set,a", "set,a,track x", "set,a,track ip_src,expire x", "set,,x"]
        {
            assert!(matches!(XBit::parse(faulty), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(matches!(XBit::parse("set,a,track tx"), Err(Refused::Form(_))));
    }

    #[test]
    fn accepts_every_form_of_threshold() {
        for (text, kind) in [
            ("limit", ThresholdKind::Limit),
            ("threshold", ThresholdKind::Threshold),
            ("both", ThresholdKind::Both),
        ] {
            let value = format!("type {text}, track by_src, seconds 60, count 5");
            let (track, count, seconds) = (Track::Source, 5, 60);
            let expected = Threshold { kind, track, count, seconds };
            assert_eq!(Threshold::parse(&value, false), Ok(expected));
        }
        for track in ["by_src", "by_dst", "by_both", "by_rule", "by_flow"] {
            let filter = Threshold::parse(&format!("track {track},count 15,seconds 2"), true);
            assert_eq!(filter.unwrap().kind, ThresholdKind::Filter);
        }
    }

    #[test]
    fn refuses_faulty_thresholds() {
        let (track, rest) = ("track by_src", "count 1, seconds 1");
        for faulty in [
            format!("{track},{rest}"),
            format!("type limit,{rest}"),
            format!("type limit,{track},{rest},{rest}"),
            format!("type x,{track},{rest}"),
            "type limit,track x,count 1,seconds 1".to_owned(),
            "type limit,track by_src,count 0,seconds 1".to_owned(),
            "type limit,track by_src,count 1".to_owned(),
            "type limit,track by_src,count".to_owned(),
            String::new(),
        ] {
            assert!(matches!(Threshold::parse(&faulty, false), Err(Refused::Fault(_))), "{faulty}");
        }
        assert!(Threshold::parse(&format!("type limit,{track},{rest}"), true).is_err());
        let backoff = format!("type backoff,{track},{rest}");
        assert!(matches!(Threshold::parse(&backoff, false), Err(Refused::Form(_))));
        let unique = format!("{track},{rest},unique_on dst_port");
        assert!(matches!(Threshold::parse(&unique, true), Err(Refused::Form(_))));
    }

    #[test]
    fn accepts_and_refuses_tags() {
        let tag = |value| Tag::parse(value).unwrap();
        assert_eq!(tag("session"), Tag { of: Tagged::Session, limit: None });
        assert_eq!(tag("session, 5, packets").limit, Some((5, TagUnit::Packets)));
        assert_eq!(tag("host,600,seconds,src").of, Tagged::Source);
        let limit = Some((1, TagUnit::Bytes));
        assert_eq!(tag("host,1,bytes,dst"), Tag { of: Tagged::Destination, limit });
        for faulty in ["", "x", "session,5", "session,x,packets", "session,5,x", "host,5,bytes,x,y"]
        {
            assert!(Tag::parse(faulty).is_err(), "{faulty}");
        }
    }
}
