//! What a session's records mean: the handshake, the version that it agrees on, and the keys.
//!
//! ```text
//!  Undecided ──ServerHello──► Tls12 │ Tls13
//!   hellos, alerts, early data
//! ```
//!
//! Refuses to wait: a record that needs keys which are not there is given back.

use core::mem;
use std::sync::Arc;

use super::ahead::KeysAhead;
use super::context::{Context, RawRecord, Step};
use super::epoch::Epoch;
use super::negotiation::{FromClient, FromServer, Negotiation};
use super::reporter::Reporter;
use super::search::Located;
use super::tls12::{Handled, Tls12};
use super::tls13::{Early, Tls13};
use crate::config::{Config, ExemptNames, Policy};
use crate::keys::{KeySource, LiveKeys};
use crate::output::KeysNeeded;
use crate::session::{Certificates, KeyStatus, SessionError, SessionInfo};
use crate::tls::{
    ClientHello, ContentType, Direction, HandshakeType, Hellos, KeyEpoch, MessageBuffer,
    OpenRecord, ProtocolVersion, ServerHello,
};

/// By whom a session is exempt.
#[derive(Clone, Copy)]
pub(super) enum Exempt {
    /// The client refuses to share, or its server.
    Endpoint { of_client: bool },
    /// Its server name is one that is left alone.
    Name,
}

pub(super) struct Protocol {
    pub(super) reporter: Reporter,
    pub(super) negotiation: Negotiation,
    pub(super) version: Version,
    /// It is exempt, which counts once the ServerHello is known.
    pub(super) exempt: Option<Exempt>,
    /// Some keys are the client's, which could have refused.
    pub(super) client_shares: bool,
    /// What its endpoints' refusals come to, as soon as there is one.
    pub(super) refusal: Option<Refusal>,
    /// In the clear, and of TLS 1.2, by direction.
    pub(super) messages: [MessageBuffer; 2],
}

/// What a refusal to share comes to: decided once for a session.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    policy: Policy,
    /// The client refuses more than it may.
    is_one_too_many: bool,
}

/// How records are read.
pub(super) enum Version {
    /// Not known before the ServerHello, nor where that one's suite is not followed.
    Undecided(Ahead),
    Tls12(Tls12),
    Tls13(Tls13),
}

/// What may be there before the version is known.
#[derive(Default)]
pub(super) struct Ahead {
    /// Early data are those of TLS 1.3, whatever is agreed on later.
    early: Early,
    keys: [KeysAhead; 2],
    /// The first ClientHello where it has an encrypted one in it, for the questions for the first keys.
    ech_hello: Option<Arc<[u8]>>,
}

impl Version {
    /// Whether a record is protected, and may be where it stands.
    fn protects(&self, record: RawRecord<'_>) -> bool {
        match self {
            Self::Undecided(ahead) => {
                record.direction == Direction::ClientToServer
                    && record.is_application_data()
                    && ahead.early.is_open()
            }
            Self::Tls12(tls12) => tls12.is_protected(record.direction),
            Self::Tls13(_) => record.is_application_data(),
        }
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::Undecided(Ahead::default())
    }
}

/// What a handshake message was.
enum Heard {
    Legal,
    /// Malformed, or out of turn.
    Illegal,
    /// A HelloRetryRequest.
    Retry,
}

impl Protocol {
    pub(super) fn new(info: SessionInfo) -> Self {
        Self {
            reporter: Reporter::new(info),
            negotiation: Negotiation::new(),
            version: Version::default(),
            exempt: None,
            client_shares: false,
            refusal: None,
            messages: Default::default(),
        }
    }

    /// A session whose handshake was not seen.
    pub(super) fn go_on(mut info: SessionInfo, keys: &LiveKeys) -> Self {
        info.is_mid_stream = true;
        info.client_random = keys.client_random;
        info.client_hello = true;
        info.server_random = keys.server_random;
        info.version = Some(keys.version);
        info.cipher_suite = Some(keys.cipher_suite);
        info.key_status = KeyStatus::Shared;
        let version = match keys.version {
            ProtocolVersion::TLS_1_3 => {
                let mut tls13 = Tls13::go_on();
                tls13.lose_place();
                Version::Tls13(tls13)
            }
            _ => Version::Tls12(Tls12::go_on()),
        };
        Self {
            reporter: Reporter::behind_handshake(info),
            negotiation: Negotiation::settled(keys.client_random, keys.server_random),
            version,
            exempt: None,
            client_shares: false,
            refusal: None,
            messages: Default::default(),
        }
    }

    /// Of such a session, the keys and the number of a direction's next record have been found.
    pub(super) fn begin_at(&mut self, direction: Direction, Located { key, number }: Located) {
        let epoch = Epoch::at(key.updates, key.opener, number);
        match &mut self.version {
            Version::Tls13(tls13) => tls13.begin_at(direction, epoch),
            Version::Tls12(tls12) => tls12.begin_at(direction, epoch),
            Version::Undecided(_) => {}
        }
    }

    // Getters.

    /// The client random by which keys are found: that of the latest handshake.
    pub(super) fn key_random(&self) -> Option<[u8; 32]> {
        self.reporter.info.client_hello.then_some(self.negotiation.client_random())
    }

    /// The server random of the latest handshake, once it is known.
    pub(super) fn key_server_random(&self) -> Option<[u8; 32]> {
        self.negotiation.server_random()
    }

    /// The session is idle: gives back what can be made again.
    pub(super) fn rest(&mut self) {
        match &mut self.version {
            Version::Tls13(tls13) => tls13.rest(),
            Version::Tls12(tls12) => tls12.rest(),
            Version::Undecided(_) => {}
        }
    }

    /// Bytes kept of a direction: handshake messages, and records that have passed unopened.
    pub(super) fn kept_bytes(&self, direction: Direction) -> usize {
        let kept = match &self.version {
            Version::Tls13(tls13) => tls13.kept_bytes(direction),
            Version::Undecided(ahead) if direction == Direction::ClientToServer => {
                ahead.ech_hello.as_ref().map_or(0, |hello| hello.len())
            }
            Version::Undecided(_) | Version::Tls12(_) => 0,
        };
        let hellos = match direction {
            Direction::ClientToServer => self.reporter.info.hellos.as_deref(),
            Direction::ServerToClient => None,
        };
        self.messages[direction.index()].capacity() + kept + hellos.map_or(0, Hellos::memory)
    }

    /// Whether the server's next records may be application data in answer to the client's.
    pub(super) fn server_may_answer(&self) -> bool {
        match &self.version {
            Version::Tls13(tls13) => tls13.client_flight_seen(),
            Version::Undecided(_) | Version::Tls12(_) => self.reporter.handshake_ended(),
        }
    }

    /// Whether records of the server have passed that its keys would show to be content, which may still come.
    pub(super) fn passed_unjudged(&self) -> bool {
        let is_refused = self.reporter.info.refused[Direction::ServerToClient.index()];
        matches!(&self.version, Version::Tls13(tls13) if !is_refused && tls13.passed_unjudged())
    }

    /// Whether protected records of a direction were seen and nothing opened although keys were there.
    pub(super) fn opened_nothing(&self, direction: Direction, is_stalled: bool) -> bool {
        match &self.version {
            Version::Tls13(tls13) => tls13.opened_nothing(direction, is_stalled),
            Version::Undecided(_) | Version::Tls12(_) => false,
        }
    }

    /// Tells that nothing opened although keys were there.
    pub(super) fn tell_nothing_opened(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        if let Version::Tls13(tls13) = &self.version {
            tls13.refuse_keys(direction, &self.reporter, ctx);
        }
        self.reporter.raise(direction, SessionError::NothingOpened, ctx);
    }

    // Keys.

    /// Adds keys; false when they are not needed (any more).
    pub(super) fn add_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Self { reporter, negotiation, version, .. } = self;
        if reporter.info.refused[direction.index()] {
            return false;
        }
        if let Version::Tls13(tls13) = version
            && tls13.uses_for_another_epoch(direction, epoch, &*opener)
        {
            reporter.fail(direction, SessionError::Integrity, ctx);
            return false;
        }
        let taken = match version {
            Version::Undecided(ahead) => ahead.add_keys(direction, epoch, source, opener),
            Version::Tls12(tls12) => {
                tls12.add_keys(direction, epoch, source, opener, negotiation, reporter)
            }
            Version::Tls13(tls13) => {
                tls13.add_keys(direction, epoch, source, opener, reporter, ctx)
            }
        };
        ctx.counters.keys_accepted += u64::from(taken);
        if taken && matches!(epoch, KeyEpoch::Application(_)) {
            reporter.info.key_status = KeyStatus::Shared;
        }
        taken
    }

    /// Searches what has passed already, with keys that were added just now.
    pub(super) fn search_backlog(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        ctx: &mut Context<'_>,
    ) {
        if let Version::Tls13(tls13) = &mut self.version {
            tls13.search_backlog(direction, epoch, &mut self.reporter, ctx);
        }
    }

    /// No keys will come, or what the server shares is not to be used. Whether that is news.
    pub(super) fn exempt(&mut self, by: Exempt, ctx: &mut Context<'_>) -> bool {
        let overrules = matches!(by, Exempt::Name)
            || self.overrules(matches!(by, Exempt::Endpoint { of_client: true }));
        let reporter = &mut self.reporter;
        let is_unread = match reporter.info.key_status {
            KeyStatus::Waiting => true,
            // Keys that have opened nothing may be a guess of another endpoint at this address (EchKeyRequest).
            KeyStatus::Shared => {
                let of_client = matches!(by, Exempt::Endpoint { of_client: true });
                of_client && reporter.info.records_opened == [0; 2]
            }
            KeyStatus::Exempt | KeyStatus::Missing | KeyStatus::Unusable => false,
        };
        if !reporter.following() || !(overrules || is_unread) {
            return false;
        }
        // Counted when it comes, whatever waits for the ServerHello.
        let policy = match by {
            Exempt::Endpoint { of_client } => self.refusal_policy(of_client, ctx),
            Exempt::Name => Policy::Bypass,
        };
        let reporter = &mut self.reporter;
        let is_early = reporter.info.server_random.is_none();
        if is_early && ctx.config.policies.require_private_tag != Policy::Forward {
            // Only the ServerHello says whether there is a private tag. A server's refusal is the weakest reason.
            let is_weak = matches!(by, Exempt::Endpoint { of_client: false });
            if self.exempt.is_none() || !is_weak {
                self.exempt = Some(by);
            }
            return true;
        }
        match by {
            Exempt::Endpoint { .. } => ctx.counters.null_keys += 1,
            Exempt::Name => ctx.counters.exempt_names += 1,
        }
        reporter.info.key_status = KeyStatus::Exempt;
        reporter.apply(policy, SessionError::MissingKeys);
        true
    }

    /// No keys of a direction will come, and whatever comes all the same is not used: what is sent that way passes
    /// unread. Whether that is news. A direction that is read already goes on being read, whoever says so.
    pub(super) fn refuse(
        &mut self,
        direction: Direction,
        of_client: bool,
        ctx: &mut Context<'_>,
    ) -> bool {
        let overrules = self.overrules(of_client);
        let reporter = &mut self.reporter;
        let side = direction.index();
        let is_read = reporter.info.records_opened[side] > 0 && !overrules;
        if !reporter.following() || reporter.info.refused[side] || is_read {
            return false;
        }
        if reporter.info.refused[direction.reverse().index()] {
            return self.exempt(Exempt::Endpoint { of_client }, ctx);
        }
        reporter.info.refused[side] = true;
        ctx.counters.directions_refused += 1;
        match self.refusal_policy(of_client, ctx) {
            // The other direction is followed.
            Policy::Forward | Policy::Bypass => {}
            policy @ (Policy::Drop | Policy::Reset) => {
                self.reporter.apply(policy, SessionError::MissingKeys);
            }
        }
        true
    }

    fn refusal_policy(&mut self, of_client: bool, ctx: &mut Context<'_>) -> Policy {
        let decide = || {
            let SessionInfo { client, server_name, is_mid_stream, .. } = &self.reporter.info;
            let Config { policies, limits, private_names, .. } = ctx.config;
            let limit = limits.null_keys_per_minute;
            let may_refuse = |name: &[u8]| private_names.as_ref().is_some_and(|it| it.0(name));
            if server_name.as_ref().is_some_and(|name| may_refuse(name.as_bytes())) {
                return Refusal { policy: Policy::Bypass, is_one_too_many: false };
            }
            // What was under way when the monitor began comes all at once, and was counted before.
            let counts = of_client && !is_mid_stream;
            if counts && ctx.refusals.is_one_too_many(client.ip(), ctx.now_ns, limit) {
                ctx.counters.too_many_null_keys += 1;
                return Refusal { policy: policies.too_many_null_keys, is_one_too_many: true };
            }
            Refusal { policy: policies.null_keys, is_one_too_many: false }
        };
        self.refusal.get_or_insert_with(decide).policy
    }

    /// Whether its client has refused to share, and more than it may.
    pub(super) fn is_one_too_many(&self) -> bool {
        self.refusal.is_some_and(|refusal| refusal.is_one_too_many)
    }

    /// Whether a refusal counts although keys are in use: the client's, where they are its server's alone.
    fn overrules(&self, of_client: bool) -> bool {
        of_client && !self.client_shares && self.reporter.info.key_status == KeyStatus::Shared
    }

    /// The keys that a direction waits for will not come; true when its records go on all the same.
    pub(super) fn handle_missing_keys(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Self { reporter, version, .. } = self;
        if let Version::Undecided(ahead) = version
            && ahead.early.handle_missing_keys(direction, reporter, ctx)
        {
            return true;
        }
        if reporter.info.key_status == KeyStatus::Waiting {
            reporter.info.key_status = KeyStatus::Missing;
        }
        let error = match version {
            Version::Tls13(tls13) if tls13.keys_do_not_fit(direction) => {
                tls13.refuse_keys(direction, reporter, ctx);
                SessionError::KeysDoNotFit
            }
            _ => SessionError::MissingKeys,
        };
        reporter.fail(direction, error, ctx);
        false
    }

    /// Lets go of keys and records: the session is not followed any more.
    pub(super) fn forget(&mut self) {
        self.version = Version::default();
        self.messages = Default::default();
        self.reporter.info.hellos = None;
    }

    /// The client speaks a version that shows in its first bytes, and is not followed.
    pub(super) fn refuse_version(&mut self, version: ProtocolVersion, ctx: &mut Context<'_>) {
        let reporter = &mut self.reporter;
        reporter.info.version = Some(version);
        reporter.require_private_tag(Direction::ClientToServer, ctx);
        if reporter.following() {
            reporter.fail(Direction::ClientToServer, SessionError::UnsupportedVersion, ctx);
        }
        reporter.bypass();
    }

    // Records.

    /// Handles the next record of a stream.
    pub(super) fn handle_record(&mut self, record: RawRecord<'_>, ctx: &mut Context<'_>) -> Step {
        let direction = record.direction;
        let Self { reporter, negotiation, version, messages, .. } = self;
        if !reporter.has_legal_version(record) {
            reporter.fail(direction, SessionError::MalformedRecord, ctx);
            return Step::Stop;
        }
        match version {
            _ if reporter.info.refused[direction.index()] && version.protects(record) => {
                return self.pass_unread(record, ctx);
            }
            Version::Tls13(tls13) => return tls13.handle_record(record, reporter, ctx),
            Version::Tls12(tls12) if tls12.is_protected(direction) => {
                return self.handle_tls12_record(record, ctx);
            }
            Version::Undecided(_) | Version::Tls12(_) => {}
        }
        match (record.header.content_type, version) {
            (ContentType::HANDSHAKE, _) => {
                let cap = ctx.config.limits.max_handshake_bytes;
                if messages[direction.index()].push(record.fragment, cap).is_err() {
                    reporter.fail(direction, SessionError::MalformedHandshake, ctx);
                }
                return self.handle_messages(direction, ctx);
            }
            (ContentType::APPLICATION_DATA, Version::Undecided(Ahead { early, keys, .. }))
                if direction == Direction::ClientToServer =>
            {
                let late = keys[direction.index()].has(0);
                return early.handle_record(record, late, reporter, ctx);
            }
            (ContentType::APPLICATION_DATA, _) => {
                reporter.fail(direction, SessionError::MalformedRecord, ctx);
            }
            (ContentType::CHANGE_CIPHER_SPEC, Version::Tls12(tls12)) => {
                tls12.change_cipher(direction, negotiation, reporter);
            }
            // change_cipher_spec of TLS 1.3 for old middleboxes, and alerts.
            _ => {}
        }
        self.reporter.step()
    }

    /// How many bytes of content the handler has paused of a direction; `u64::MAX`: all that come.
    pub(super) fn paused(&self, direction: Direction) -> u64 {
        self.reporter.paused(direction)
    }

    /// How many bytes of a fragment are not content, if the next records may be skipped unseen.
    pub(super) fn overhead(&self, direction: Direction) -> Option<u16> {
        const FRAGMENT: usize = 1 << 14;
        let content = self.content_len(direction, FRAGMENT)?;
        u16::try_from(FRAGMENT as u64 - content).ok()
    }

    /// How much content at most is in the next record, with a fragment of this length and a header as all content of TLS 1.3
    /// has, if a pause skips it and nothing in it matters.
    pub(super) fn skips(&self, direction: Direction, fragment_len: usize) -> Option<u64> {
        let content = self.content_len(direction, fragment_len)?;
        self.reporter.may_skip(direction, content).then_some(content)
    }

    /// At most so many bytes of content are in the next record, if it is one whose content may be skipped unseen.
    fn content_len(&self, direction: Direction, fragment_len: usize) -> Option<u64> {
        match &self.version {
            _ if self.reporter.info.refused[direction.index()] => None,
            Version::Undecided(_) => None,
            Version::Tls12(tls12) => tls12.content_len(direction, fragment_len),
            Version::Tls13(tls13) => tls13.content_len(direction, fragment_len),
        }
    }

    /// Skips so many records for which [`Self::skips`], with at most so much content.
    pub(super) fn skip(
        &mut self,
        direction: Direction,
        records: u64,
        content: u64,
        ctx: &mut Context<'_>,
    ) {
        let Self { reporter, version, .. } = self;
        match version {
            Version::Undecided(_) => {}
            Version::Tls12(tls12) => tls12.skip(direction, records, content, reporter, ctx),
            Version::Tls13(tls13) => tls13.skip(direction, records, content, reporter, ctx),
        }
    }

    /// A protected record whose keys are refused.
    fn pass_unread(&mut self, record: RawRecord<'_>, ctx: &mut Context<'_>) -> Step {
        let Self { reporter, version, .. } = self;
        ctx.counters.records_unread += 1;
        match version {
            // Early data.
            Version::Undecided(_) => {}
            Version::Tls12(tls12) => tls12.pass_unread(record, reporter, ctx),
            Version::Tls13(tls13) => tls13.pass_unread(record, reporter, ctx),
        }
        reporter.step()
    }

    /// A protected record of TLS 1.2, and the handshake messages in it.
    fn handle_tls12_record(&mut self, record: RawRecord<'_>, ctx: &mut Context<'_>) -> Step {
        let direction = record.direction;
        let Self { reporter, negotiation, version, messages, .. } = self;
        let Version::Tls12(tls12) = version else {
            return reporter.step();
        };
        let is_finished = tls12.is_finished_next(direction);
        let messages = &mut messages[direction.index()];
        match tls12.handle_record(record, negotiation, messages, reporter, ctx) {
            Handled::Done => {}
            Handled::NeedKeys => return Step::NeedKeys,
            Handled::Refused => return reporter.step(),
            // No HelloRetryRequest: that is of the session's first handshake.
            Handled::Messages => {
                self.handle_messages(direction, ctx);
            }
        }
        if is_finished && let Version::Tls12(tls12) = &mut self.version {
            tls12.finish(direction, &mut self.reporter, ctx);
        }
        self.reporter.step()
    }

    // The handshake in the clear, and that of TLS 1.2 under protection.

    /// Goes on behind a HelloRetryRequest.
    pub(super) fn handle_retry(&mut self, direction: Direction, ctx: &mut Context<'_>) -> Step {
        if self.reporter.info.version != Some(ProtocolVersion::TLS_1_3) {
            self.reporter.fail(direction, SessionError::MalformedHandshake, ctx);
        }
        self.handle_messages(direction, ctx)
    }

    /// Acts on the handshake messages that are complete.
    fn handle_messages(&mut self, direction: Direction, ctx: &mut Context<'_>) -> Step {
        let cap = ctx.config.limits.max_handshake_bytes;
        while self.reporter.following() {
            let heard = match self.messages[direction.index()].pop(cap) {
                Ok(Some((kind, body))) => self.handle_message(direction, kind, &body, ctx),
                Ok(None) => break,
                Err(_) => Heard::Illegal,
            };
            match heard {
                Heard::Legal => {}
                Heard::Illegal => {
                    self.reporter.fail(direction, SessionError::MalformedHandshake, ctx);
                }
                Heard::Retry => return Step::Retry,
            }
        }
        self.reporter.step()
    }

    /// Acts on a handshake message.
    fn handle_message(
        &mut self,
        direction: Direction,
        kind: HandshakeType,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) -> Heard {
        match (direction, kind) {
            (Direction::ClientToServer, HandshakeType::CLIENT_HELLO) => {
                let hello = ClientHello::parse(body);
                hello.map_or(Heard::Illegal, |hello| self.handle_client_hello(hello, body, ctx))
            }
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO) => {
                let hello = ServerHello::parse(body);
                hello.map_or(Heard::Illegal, |hello| self.handle_server_hello(&hello, body, ctx))
            }
            (Direction::ServerToClient, HandshakeType::HELLO_REQUEST) => Heard::Legal,
            // TLS 1.2 goes on in the clear; TLS 1.3 shows nothing but hellos.
            _ if !self.reporter.is_tls12() => Heard::Illegal,
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO_DONE) => {
                self.negotiation.server_hello_done();
                Heard::Legal
            }
            (_, HandshakeType::CERTIFICATE) => {
                let certificates = Certificates::parse_tls12(body);
                self.reporter.show_certificates(direction, certificates, ctx);
                Heard::Legal
            }
            _ => Heard::Legal,
        }
    }

    fn handle_client_hello(
        &mut self,
        hello: ClientHello,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) -> Heard {
        let Self { reporter, negotiation, version, .. } = self;
        let offers_ech = hello.offers_ech;
        let kind = negotiation.client_hello(hello, &mut reporter.info);
        let is_first = matches!(kind, Some(FromClient::First { .. }));
        if is_first {
            reporter.offers_ech = offers_ech;
            reporter.tell_offer(body, ctx);
        }
        let early = match version {
            Version::Undecided(ahead) => {
                if is_first && offers_ech && body.len() <= KeysNeeded::MAX_CLIENT_HELLO_BYTES {
                    ahead.ech_hello = Some(Arc::from(body));
                }
                Some((&mut ahead.early, ahead.ech_hello.as_ref()))
            }
            Version::Tls12(_) | Version::Tls13(_) => None,
        };
        match (kind, early) {
            (None, _) => return Heard::Illegal,
            (Some(FromClient::Renegotiation), _) => {
                ctx.counters.renegotiations += 1;
                return Heard::Legal;
            }
            // After a HelloRetryRequest no early data may follow (RFC 8446, section 4.2.10).
            (Some(FromClient::Second), Some((early, _))) => early.end(),
            (Some(FromClient::First { offers_early_data: true }), Some((early, hello))) => {
                early.begin(hello, reporter, ctx);
            }
            (Some(FromClient::Second | FromClient::First { .. }), _) => {}
        }
        reporter.start_handshake(ctx);
        if is_first
            && let Some(ExemptNames(is_exempt)) = &ctx.config.exempt_names
            && let Some(name) = &self.reporter.info.server_name
            && is_exempt(name.as_bytes())
        {
            self.exempt(Exempt::Name, ctx);
        }
        Heard::Legal
    }

    fn handle_server_hello(
        &mut self,
        hello: &ServerHello,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) -> Heard {
        let direction = Direction::ServerToClient;
        let is_tls13 = hello.version == ProtocolVersion::TLS_1_3;
        let Some(kind) = self.negotiation.server_hello(hello, &mut self.reporter.info) else {
            return Heard::Illegal;
        };
        self.reporter.answer_handshake(body, ctx);
        if !self.reporter.following() {
            return Heard::Legal;
        }
        if let FromServer::Retry = kind {
            self.reporter.answer_early_data(false, ctx);
            return Heard::Retry;
        }
        let reporter = &mut self.reporter;
        if is_tls13 && hello.selected_psk != Some(0) {
            // Early data go with the first pre-shared key (RFC 8446, section 4.2.10).
            reporter.answer_early_data(false, ctx);
        } else if let (false, Version::Undecided(ahead)) = (is_tls13, &mut self.version) {
            ahead.early.end();
            if reporter.is_tls12() {
                self.version = Version::Tls12(Tls12::new(mem::take(&mut ahead.keys)));
            }
        }
        reporter.require_private_tag(direction, ctx);
        if self.reporter.following()
            && let Some(by) = self.exempt.take()
        {
            self.exempt(by, ctx);
        }
        if !self.reporter.following() {
            return Heard::Legal;
        }
        let reporter = &mut self.reporter;
        if !is_tls13 && !reporter.is_tls12() {
            reporter.fail(direction, SessionError::UnsupportedVersion, ctx);
        } else if hello.compression != 0 {
            reporter.fail(direction, SessionError::UnsupportedCompression, ctx);
        } else if !(ctx.config.supports)(hello.version, hello.cipher_suite) {
            reporter.fail(direction, SessionError::UnsupportedCipherSuite, ctx);
        } else {
            self.begin_version(ctx);
        }
        Heard::Legal
    }

    /// Version and suite are agreed on and followed: from here on keys are needed.
    fn begin_version(&mut self, ctx: &mut Context<'_>) {
        let Self { reporter, negotiation, version, messages, .. } = self;
        match version {
            Version::Undecided(ahead) => {
                // An incomplete message that the ServerHello cut off is of no use.
                *messages = Default::default();
                let Ahead { early, keys, ech_hello } = mem::take(ahead);
                let tls13 = Tls13::begin(early, keys, ech_hello.as_ref(), reporter, ctx);
                *version = Version::Tls13(tls13);
            }
            Version::Tls12(tls12) => {
                let randoms = (negotiation.client_random(), negotiation.server_random());
                for direction in Direction::BOTH {
                    if !tls12.has_keys_ahead(direction, negotiation.number()) {
                        // Each handshake has its own randoms, so epochs are not numbered.
                        reporter.want_of(randoms, direction, KeyEpoch::Application(0), None, ctx);
                    }
                }
            }
            Version::Tls13(_) => {}
        }
    }
}

impl Ahead {
    /// Adds keys; false when they are too many.
    fn add_keys(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        let keys = &mut self.keys[direction.index()];
        match epoch {
            KeyEpoch::EarlyData => self.early.add_keys(direction, source, opener),
            KeyEpoch::Handshake => keys.handshake.add(source, opener),
            KeyEpoch::Application(number) => keys.add(number, source, opener),
        }
    }
}
