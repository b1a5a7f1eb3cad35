//! A session that is idle, in a third of its memory.
//!
//! Only what a session in the middle of its application records has is kept; the rest is as it is made anew. What the flow
//! knows of it as well is left to the flow. Names, which are seldom asked for, are in one piece.
//!
//! Refuses sessions with anything under way: a record that is not complete, keys that have come for later, a handshake. So it
//! does those behind a renegotiation, which are few.

use super::epoch::Epoch;
use super::negotiation::Negotiation;
use super::protocol::{Protocol, Refusal, Version};
use super::reporter::Reporter;
use super::session::{End, TlsSession};
use super::stream::Stream;
use super::tls12::Tls12;
use super::tls13::Tls13;
use crate::recognition::Upgrade;
use crate::session::{Disposition, EarlyData, KeyStatus, Resumption, SessionInfo};
use crate::tls::{CipherSuite, Direction, MessageBuffer, OpenRecord, ProtocolVersion};

/// A session that is idle. Pairs are by direction, client to server first.
pub(crate) struct RestingSession {
    keys: [Box<dyn OpenRecord>; 2],
    epochs: [u32; 2],
    sequences: [u64; 2],
    positions: [u64; 2],
    /// What handlers have asked for of pauses, and what these have skipped; nothing where there are none.
    pauses: Option<Box<Pauses>>,
    names: Names,
    client_random: [u8; 32],
    server_random: Option<[u8; 32]>,
    records_opened: [u64; 2],
    records_seen: [u64; 2],
    plaintext_bytes: [u64; 2],
    version: ProtocolVersion,
    cipher_suite: Option<CipherSuite>,
    encrypt_then_mac: bool,
    in_full: bool,
    refusal: Option<Refusal>,
    client_shares: bool,
    offers_ech: bool,
    source: u64,
    starttls: Option<Upgrade>,
    bypassed_by_operator: bool,
    client_hello: bool,
    hello_retry: bool,
    resumption: Resumption,
    early_data: EarlyData,
    key_status: KeyStatus,
    is_mid_stream: bool,
    refused: [bool; 2],
}

#[derive(PartialEq, Eq, Default)]
struct Pauses {
    paused: [u64; 2],
    skipped: [u64; 2],
    /// Bytes of a record still to come whose content a pause skips.
    passing: [u16; 2],
}

/// Server name, chosen protocol, offered protocols, each behind its length.
#[derive(Default)]
struct Names(Box<[u8]>);

impl TlsSession {
    /// What is needed to go on; afterwards this is of no use. `None`, and nothing done, where that were not all. `flow`: what the
    /// flow says of the session.
    pub(crate) fn take_resting(&mut self, flow: &SessionInfo) -> Option<RestingSession> {
        if !self.may_rest(flow) {
            return None;
        }
        let Protocol { reporter, negotiation, version, client_shares, refusal, .. } =
            &mut self.protocol;
        let Reporter { info, control, skipped, offers_ech, source, .. } = reporter;
        let protocol_version = info.version?;
        let [client, server] = match version {
            Version::Tls13(tls13) => tls13.take_epochs()?,
            Version::Tls12(tls12) => tls12.take_epochs()?,
            Version::Undecided(_) => return None,
        };
        let (client, server) = (client.into_parts()?, server.into_parts()?);
        let passing = self.streams.each_ref().map(|stream| stream.passing);
        let pauses = Pauses { paused: control.paused, skipped: *skipped, passing };
        Some(RestingSession {
            epochs: [client.0, server.0],
            keys: [client.1, server.1],
            sequences: [client.2, server.2],
            positions: self.streams.each_ref().map(|stream| stream.position),
            pauses: (pauses != Pauses::default()).then(|| Box::new(pauses)),
            names: Names::of(info),
            client_random: info.client_random,
            server_random: info.server_random,
            records_opened: info.records_opened,
            records_seen: info.records_seen,
            plaintext_bytes: info.plaintext_bytes,
            version: protocol_version,
            cipher_suite: info.cipher_suite,
            encrypt_then_mac: negotiation.encrypts_then_macs(),
            in_full: negotiation.is_in_full(),
            refusal: *refusal,
            client_shares: *client_shares,
            offers_ech: *offers_ech,
            source: *source,
            starttls: info.starttls,
            bypassed_by_operator: info.bypassed_by_operator,
            client_hello: info.client_hello,
            hello_retry: info.hello_retry,
            resumption: info.resumption,
            early_data: info.early_data,
            key_status: info.key_status,
            is_mid_stream: info.is_mid_stream,
            refused: info.refused,
        })
    }

    /// Whether that would be all.
    fn may_rest(&self, flow: &SessionInfo) -> bool {
        let Self { protocol, streams, server_waits, order_is_lost, end } = self;
        let Protocol { reporter, negotiation, version, exempt, messages, .. } = protocol;
        let info = &reporter.info;
        let is_flows = info.id == flow.id
            && (info.client, info.server, info.place) == (flow.client, flow.server, flow.place)
            && info.link_addresses == flow.link_addresses
            && info.started_ns == flow.started_ns;
        let is_of_version = match version {
            Version::Tls13(_) => info.version == Some(ProtocolVersion::TLS_1_3),
            Version::Tls12(_) => info.version == Some(ProtocolVersion::TLS_1_2),
            Version::Undecided(_) => false,
        };
        is_flows
            && is_of_version
            && !(*server_waits || *order_is_lost)
            && *end == End::NotYet
            && exempt.is_none()
            && messages.iter().all(MessageBuffer::is_empty)
            && streams.iter().all(Stream::is_at_rest)
            && negotiation.is_settled_as(info.client_random, info.server_random)
            && reporter.may_rest()
            && Names::fit(info)
    }
}

impl RestingSession {
    /// What has been decided about its packets.
    pub(crate) const DISPOSITION: Disposition = Disposition::Follow;

    /// The client random by which keys are found: that of its only handshake.
    pub(crate) fn key_random(&self) -> Option<[u8; 32]> {
        self.client_hello.then_some(self.client_random)
    }

    /// What is known of it, with what its flow says of it.
    pub(crate) fn info(&self, flow: SessionInfo) -> SessionInfo {
        let (server_name, alpn, alpn_offered) = self.names.unpack();
        let SessionInfo { id, client, server, place, link_addresses, started_ns, .. } = flow;
        SessionInfo {
            id,
            client,
            server,
            place,
            link_addresses,
            started_ns,
            bypassed_by_operator: self.bypassed_by_operator,
            client_random: self.client_random,
            client_hello: self.client_hello,
            server_random: self.server_random,
            server_name,
            alpn_offered,
            alpn,
            starttls: self.starttls,
            version: Some(self.version),
            cipher_suite: self.cipher_suite,
            hello_retry: self.hello_retry,
            hellos: None,
            resumption: self.resumption,
            early_data: self.early_data,
            key_status: self.key_status,
            is_mid_stream: self.is_mid_stream,
            refused: self.refused,
            records_opened: self.records_opened,
            records_seen: self.records_seen,
            plaintext_bytes: self.plaintext_bytes,
        }
    }

    /// The session as it was.
    pub(crate) fn wake(self, flow: SessionInfo) -> TlsSession {
        let info = self.info(flow);
        let numbers = self.epochs.into_iter().zip(self.sequences);
        let epochs = self.keys.into_iter().zip(numbers);
        let epochs = epochs.map(|(key, (number, sequence))| Epoch::at(number, key, sequence));
        let epochs = Direction::BOTH.into_iter().zip(epochs);
        let version = match self.version {
            ProtocolVersion::TLS_1_3 => {
                let mut tls13 = Tls13::go_on();
                epochs.for_each(|(direction, epoch)| tls13.begin_at(direction, epoch));
                Version::Tls13(tls13)
            }
            _ => {
                let mut tls12 = Tls12::go_on();
                epochs.for_each(|(direction, epoch)| tls12.begin_at(direction, epoch));
                Version::Tls12(tls12)
            }
        };
        let negotiation = Negotiation::settled(self.client_random, self.server_random)
            .behind_tls12(self.encrypt_then_mac, self.in_full);
        let mut reporter = Reporter::behind_handshake(info);
        (reporter.offers_ech, reporter.source) = (self.offers_ech, self.source);
        let mut streams = self.positions.map(Stream::new);
        if let Some(pauses) = self.pauses {
            (reporter.control.paused, reporter.skipped) = (pauses.paused, pauses.skipped);
            for (stream, passing) in streams.iter_mut().zip(pauses.passing) {
                stream.passing = passing;
            }
        }
        TlsSession {
            protocol: Protocol {
                reporter,
                negotiation,
                version,
                exempt: None,
                client_shares: self.client_shares,
                refusal: self.refusal,
                messages: Default::default(),
            },
            streams,
            server_waits: false,
            order_is_lost: false,
            end: End::NotYet,
        }
    }
}

impl Names {
    /// Instead of a length: there is no such name.
    const NONE: u16 = u16::MAX;

    fn fit(info: &SessionInfo) -> bool {
        let name = info.server_name.as_ref().map(String::len);
        let lens = name.into_iter().chain(info.alpn.iter().chain(&info.alpn_offered).map(Vec::len));
        lens.max().is_none_or(|longest| longest < Self::NONE.into())
    }

    /// Those of a session where they [fit](Self::fit).
    fn of(info: &SessionInfo) -> Self {
        if info.server_name.is_none() && info.alpn.is_none() && info.alpn_offered.is_empty() {
            return Self::default();
        }
        let mut bytes = Vec::new();
        let mut add = |name: Option<&[u8]>| {
            // Checked before.
            let len = name.map_or(Self::NONE, |name| name.len() as u16);
            bytes.extend_from_slice(&len.to_ne_bytes());
            bytes.extend_from_slice(name.unwrap_or_default());
        };
        add(info.server_name.as_deref().map(str::as_bytes));
        add(info.alpn.as_deref());
        info.alpn_offered.iter().for_each(|name| add(Some(name)));
        Self(bytes.into_boxed_slice())
    }

    fn unpack(&self) -> (Option<String>, Option<Vec<u8>>, Vec<Vec<u8>>) {
        let mut rest = &self.0[..];
        let mut next = || {
            let (len, behind) = rest.split_first_chunk()?;
            let len = u16::from_ne_bytes(*len);
            let (name, behind) =
                behind.split_at_checked(if len == Self::NONE { 0 } else { len.into() })?;
            rest = behind;
            Some((len != Self::NONE).then(|| name.to_vec()))
        };
        let server_name = next().flatten().and_then(|name| String::from_utf8(name).ok());
        let alpn = next().flatten();
        (server_name, alpn, core::iter::from_fn(next).flatten().collect())
    }
}
