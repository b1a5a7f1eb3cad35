//! The header of a rule: action, protocol, addresses, ports, direction.
//!
//! Refuses what is none of these, at its place in the text.

use std::sync::Arc;

use super::fault::{FaultKind, Refused};
use super::groups::{addresses, ports};
use super::ranges::{Addresses, Ports};
use super::variables::Variables;

/// What a match leads to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A report.
    Alert,
    /// A report, and nothing of the match goes on.
    Drop,
    /// As drop, and RSTs.
    Reject(RejectTo),
    /// No other rule is applied.
    Pass,
}

/// Who is sent a RST.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RejectTo {
    /// Who sent what matched (`reject`, `rejectsrc`).
    Sender,
    /// Who would have received it (`rejectdst`).
    Receiver,
    /// Both (`rejectboth`).
    Both,
}

impl Action {
    /// As in rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Drop => "drop",
            Self::Reject(RejectTo::Sender) => "reject",
            Self::Reject(RejectTo::Receiver) => "rejectdst",
            Self::Reject(RejectTo::Both) => "rejectboth",
            Self::Pass => "pass",
        }
    }

    /// Whether a word is the name of one.
    pub(super) fn is_name(word: &str) -> bool {
        Self::parse(word).is_some()
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "alert" => Self::Alert,
            "drop" => Self::Drop,
            "pass" => Self::Pass,
            "reject" | "rejectsrc" => Self::Reject(RejectTo::Sender),
            "rejectdst" => Self::Reject(RejectTo::Receiver),
            "rejectboth" => Self::Reject(RejectTo::Both),
            _ => return None,
        })
    }
}

/// What a rule is applied to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// Every connection.
    Ip,
    /// TCP, segments and stream.
    Tcp,
    /// TCP, segments only.
    TcpPacket,
    /// TCP, stream only.
    TcpStream,
    /// HTTP of any version.
    Http,
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
    /// TLS.
    Tls,
}

impl Protocol {
    const ALL: [Self; 8] = [
        Self::Ip,
        Self::Tcp,
        Self::TcpPacket,
        Self::TcpStream,
        Self::Http,
        Self::Http1,
        Self::Http2,
        Self::Tls,
    ];

    /// As in rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tcp => "tcp",
            Self::TcpPacket => "tcp-pkt",
            Self::TcpStream => "tcp-stream",
            Self::Http => "http",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Tls => "tls",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(text))
    }
}

/// The header of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What a match leads to.
    pub action: Action,
    /// What the rule is applied to.
    pub protocol: Protocol,
    /// Addresses left of the arrow.
    pub source: Arc<Addresses>,
    /// Ports left of the arrow.
    pub source_ports: Arc<Ports>,
    /// The rule is also applied with both ends exchanged (`<>`).
    pub both_ways: bool,
    /// Addresses right of the arrow.
    pub destination: Arc<Addresses>,
    /// Ports right of the arrow.
    pub destination_ports: Arc<Ports>,
}

/// Why there is no header.
#[derive(Debug)]
pub(super) enum HeaderRefused {
    /// The protocol is not inspected here.
    Protocol,
    /// Where, and what.
    Other(usize, Refused),
}

/// The parts of a header, not yet understood, each with its place.
#[derive(Debug)]
pub(super) struct RawHeader<'a> {
    parts: [(usize, &'a str); 7],
}

impl<'a> RawHeader<'a> {
    /// Takes what stands before the options apart.
    pub(super) fn new(text: &'a str) -> Result<Self, (usize, FaultKind)> {
        const NAMES: [&str; 7] = [
            "action",
            "protocol",
            "source address",
            "source port",
            "direction",
            "destination address",
            "destination port",
        ];
        let mut parts = [(0, ""); 7];
        let mut from = 0;
        for (part, name) in parts.iter_mut().zip(NAMES) {
            let rest = &text[from..];
            from += rest.len() - rest.trim_start().len();
            let len = part_len(&text[from..]);
            if len == 0 {
                return Err((from, FaultKind::Missing(name)));
            }
            *part = (from, &text[from..from + len]);
            from += len;
        }
        match text[from..].trim() {
            "" => Ok(Self { parts }),
            _ => Err((from, FaultKind::Missing("options"))),
        }
    }

    /// The protocol in lower case; cut if it is long.
    pub(super) fn protocol(&self) -> Box<str> {
        self.parts[1].1.chars().take(64).collect::<String>().to_ascii_lowercase().into()
    }

    /// Understands the parts.
    pub(super) fn parse(&self, sets: &mut Sets<'_>) -> Result<Header, HeaderRefused> {
        let at = |part: usize, refused: Refused| HeaderRefused::Other(self.parts[part].0, refused);
        let text = |part: usize| self.parts[part].1;
        let action = Action::parse(text(0)).ok_or_else(|| at(0, FaultKind::Action.into()))?;
        let both_ways = match text(4) {
            "->" => false,
            "<>" => true,
            "=>" => return Err(at(4, Refused::form("=>"))),
            _ => return Err(at(4, FaultKind::Direction.into())),
        };
        let protocol = Protocol::parse(text(1)).ok_or(HeaderRefused::Protocol)?;
        Ok(Header {
            action,
            protocol,
            source: sets.addresses(text(2)).map_err(|refused| at(2, refused))?,
            source_ports: sets.ports(text(3)).map_err(|refused| at(3, refused))?,
            both_ways,
            destination: sets.addresses(text(5)).map_err(|refused| at(5, refused))?,
            destination_ports: sets.ports(text(6)).map_err(|refused| at(6, refused))?,
        })
    }
}

/// Up to the next white space outside of brackets.
fn part_len(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            // `! 10.0.0.1` is one address.
            byte if byte.is_ascii_whitespace() && depth == 0 && !text[..at].ends_with('!') => {
                return at;
            }
            _ => {}
        }
    }
    text.len()
}

/// The sets that rules name. The same text gives the same set, in memory too: thousands of rules
/// share a few, and whether one holds an address need not be found out twice.
pub(super) struct Sets<'a> {
    variables: &'a Variables,
    addresses: std::collections::HashMap<Box<str>, Arc<Addresses>>,
    ports: std::collections::HashMap<Box<str>, Arc<Ports>>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(variables: &'a Variables) -> Self {
        Self { variables, addresses: Default::default(), ports: Default::default() }
    }

    fn addresses(&mut self, text: &str) -> Result<Arc<Addresses>, Refused> {
        if let Some(known) = self.addresses.get(text) {
            return Ok(Arc::clone(known));
        }
        let set = Arc::new(addresses(text, &|name| self.variables.addresses(name))?);
        self.addresses.insert(text.into(), Arc::clone(&set));
        Ok(set)
    }

    fn ports(&mut self, text: &str) -> Result<Arc<Ports>, Refused> {
        if let Some(known) = self.ports.get(text) {
            return Ok(Arc::clone(known));
        }
        let set = Arc::new(ports(text, &|name| self.variables.ports(name))?);
        self.ports.insert(text.into(), Arc::clone(&set));
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::{MAX_GROUP_DEPTH, MAX_RANGES};
    use super::*;

    fn parse(text: &str) -> Result<Header, HeaderRefused> {
        let variables = Variables::suricata();
        let raw =
            RawHeader::new(text).map_err(|(at, kind)| HeaderRefused::Other(at, kind.into()))?;
        raw.parse(&mut Sets::new(&variables))
    }

    fn fault(text: &str) -> (usize, Refused) {
        match parse(text) {
            Err(HeaderRefused::Other(at, refused)) => (at, refused),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn ports_of(text: &str) -> Result<Ports, Refused> {
        ports(text, &|_| None)
    }

    fn holds(text: &str, address: &str) -> bool {
        addresses(text, &|_| None).unwrap().contains_address(address.parse().unwrap())
    }

    #[test]
    fn accepts_every_action_protocol_and_direction() {
        for (text, action) in [
            ("alert", Action::Alert),
            ("DROP", Action::Drop),
            ("pass", Action::Pass),
            ("reject", Action::Reject(RejectTo::Sender)),
            ("rejectsrc", Action::Reject(RejectTo::Sender)),
            ("rejectdst", Action::Reject(RejectTo::Receiver)),
            ("rejectboth", Action::Reject(RejectTo::Both)),
        ] {
            assert_eq!(parse(&format!("{text} ip any any -> any any")).unwrap().action, action);
        }
        for (text, protocol) in [
            ("ip", Protocol::Ip),
            ("tcp", Protocol::Tcp),
            ("tcp-pkt", Protocol::TcpPacket),
            ("tcp-stream", Protocol::TcpStream),
            ("HTTP", Protocol::Http),
            ("http1", Protocol::Http1),
            ("http2", Protocol::Http2),
            ("tls", Protocol::Tls),
        ] {
            let header = parse(&format!("alert {text} any any <> any any")).unwrap();
            assert!(header.protocol == protocol && header.both_ways);
        }
        let header = parse(" alert\ttls [ 10.0.0.0/8, 1.2.3.4 ] any ->  ! 1.1.1.1 [80, 443 ] ");
        let header = header.unwrap();
        assert!(!header.both_ways && header.source_ports.is_all());
        assert!(header.source.contains_address("1.2.3.4".parse().unwrap()));
        assert!(!header.destination.contains_address("1.1.1.1".parse().unwrap()));
        assert_eq!(header.destination_ports.as_slice(), [(80, 80), (443, 443)]);
    }

    #[test]
    fn refuses_faulty_headers_at_their_place() {
        assert_eq!(fault("log tcp any any -> any any"), (0, FaultKind::Action.into()));
        assert_eq!(fault("alert tcp any any <- any any").0, 18);
        assert_eq!(fault("alert tcp any any => any any"), (18, Refused::form("=>")));
        assert_eq!(
            fault("alert tcp any any -> any"),
            (24, FaultKind::Missing("destination port").into())
        );
        assert_eq!(fault("alert tcp any any -> any 80 x").1, FaultKind::Missing("options").into());
        assert_eq!(fault("alert tcp 1.2.3 any -> any 80"), (10, FaultKind::Address.into()));
        assert_eq!(fault("alert tcp any http -> any 80"), (14, FaultKind::Port.into()));
        assert_eq!(fault("alert tcp $X any -> any 80"), (10, Refused::Variable("$X".into())));
        for protocol in ["udp", "dns", "icmp", "http1:request_body", "é"] {
            let text = format!("alert {protocol} any any -> any any");
            assert!(matches!(parse(&text), Err(HeaderRefused::Protocol)), "{protocol}");
        }
    }

    #[test]
    fn accepts_addresses_networks_and_ranges() {
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("10.1.2.3/255.255.0.0", "10.1.9.9") && !holds("10.1.2.3/16", "10.2.0.0"));
        assert!(holds("1.1.1.1 - 1.1.1.9", "1.1.1.5") && !holds("1.1.1.1-1.1.1.9", "1.1.1.10"));
        assert!(holds("2001:db8::/32", "2001:db8:1::") && !holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("::1", "::1") && holds("::/0", "::1") && !holds("::/0", "1.2.3.4"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("any", "1.2.3.4") && holds("1.2.3.4/32", "1.2.3.4"));
    }

    #[test]
    fn refuses_what_is_no_address() {
        for faulty in [
            "",
            "1",
            "1.2.3.4.5",
            "10.0.0.0/33",
            "::/129",
            "::/255.0.0.0",
            "10.0.0.0/255.0.255.0",
            "1.1.1.9-1.1.1.1",
            "1.1.1.1-::1",
            "10.0.0.0/-1",
            "[1.2.3.4",
            "[]",
            "[1.2.3.4,]",
            "1.2.3.4]",
            "1.2.3.4/4294967295",
        ] {
            assert!(addresses(faulty, &|_| None).is_err(), "{faulty}");
        }
    }

    #[test]
    fn accepts_groups_with_negated_members() {
        let set = "[10.0.0.0/8, !10.1.0.0/16, [192.168.0.1, ![10.9.9.9]]]";
        assert!(holds(set, "10.2.0.1") && !holds(set, "10.1.0.1") && holds(set, "192.168.0.1"));
        assert!(
            holds("![1.1.1.1, 1.1.1.2]", "1.1.1.3") && !holds("![1.1.1.1, 1.1.1.2]", "1.1.1.2")
        );
        assert!(holds("[!1.1.1.1, !2.2.2.2]", "3.3.3.3") && !holds("[!1.1.1.1]", "1.1.1.1"));
        assert_eq!(ports_of("[1:80,![2,4]]").unwrap().as_slice(), [(1, 1), (3, 3), (5, 80)]);
    }

    #[test]
    fn accepts_and_refuses_ports() {
        assert_eq!(ports_of("80").unwrap().as_slice(), [(80, 80)]);
        assert_eq!(ports_of("[80: 82]").unwrap().as_slice(), [(80, 82)]);
        assert_eq!(ports_of("1024:").unwrap().as_slice(), [(1024, u16::MAX)]);
        assert_eq!(ports_of("!:1023").unwrap().as_slice(), [(1024, u16::MAX)]);
        assert_eq!(ports_of("80,81,!81").unwrap().as_slice(), [(80, 80)]);
        for faulty in ["65536", "-1", "90:80", "http", "80,", ""] {
            assert_eq!(ports_of(faulty), Err(FaultKind::Port.into()), "{faulty}");
        }
    }

    #[test]
    fn refuses_groups_that_match_nothing_and_those_over_the_caps() {
        assert_eq!(ports_of("!any"), Err(FaultKind::MatchesNothing.into()));
        assert_eq!(ports_of("[80,!80]"), Err(FaultKind::MatchesNothing.into()));
        let nested = |depth| format!("{}80{}", "[".repeat(depth), "]".repeat(depth));
        assert!(ports_of(&nested(MAX_GROUP_DEPTH)).is_ok());
        assert_eq!(ports_of(&nested(MAX_GROUP_DEPTH + 1)), Err(FaultKind::TooDeep.into()));
        assert_eq!(ports_of(&nested(100_000)), Err(FaultKind::TooDeep.into()));
        let many = format!("[{}]", vec!["80"; MAX_RANGES + 1].join(","));
        assert_eq!(ports_of(&many), Err(FaultKind::TooMany.into()));
    }
}
