//! A session's hellos, and the keys that they make necessary.
//!
//! Policy `require_private_tag` is applied at the ServerHello, so null keys count after it: that an endpoint needs no private
//! tag stands nowhere in the ServerHello, and to wait would let bytes pass.
//!
//! Refuses hellos out of turn. Reads the handshake of TLS 1.3 up to the ServerHello, that of
//! TLS 1.2 up to the end, and again when it is renegotiated.

use core::mem;

use super::state::{Context, TlsSession, Turn};
use super::stream::{Read, Search};
use crate::config::Policy;
use crate::output::{KeysNeeded, Output};
use crate::session::{Resumption, SessionError};
use crate::tls::{ClientHello, Direction, HandshakeType, KeyEpoch, ProtocolVersion, ServerHello};

impl TlsSession {
    /// Takes the content of a handshake record, in the clear or opened.
    pub(super) fn handle_handshake_content(
        &mut self,
        direction: Direction,
        content: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let cap = ctx.config.limits.max_handshake_bytes;
        if self.streams[direction.index()].messages.push(content, cap).is_err() {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
        }
        self.handle_messages(direction, ctx);
    }

    /// Acts on the handshake messages that are complete.
    pub(super) fn handle_messages(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        let cap = ctx.config.limits.max_handshake_bytes;
        while self.following() {
            match self.streams[direction.index()].messages.pop(cap) {
                Ok(Some((kind, body))) => self.handle_message(direction, kind, &body, ctx),
                Ok(None) => return,
                Err(_) => self.fail(direction, SessionError::MalformedHandshake, ctx),
            }
        }
    }

    fn handle_message(
        &mut self,
        direction: Direction,
        kind: HandshakeType,
        body: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let legal = match (direction, kind) {
            (Direction::ClientToServer, HandshakeType::CLIENT_HELLO) => {
                ClientHello::parse(body).is_ok_and(|hello| self.handle_client_hello(hello, ctx))
            }
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO) => {
                ServerHello::parse(body).is_ok_and(|hello| self.handle_server_hello(&hello, ctx))
            }
            // TLS 1.2 goes on in the clear; TLS 1.3 shows nothing but hellos.
            (Direction::ServerToClient, HandshakeType::HELLO_REQUEST) => true,
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO_DONE) if self.is_tls12() => {
                self.negotiation.in_full = true;
                true
            }
            _ if self.is_tls12() => self.handle_opened_message(direction, kind, body, ctx),
            _ => false,
        };
        if !legal {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
        }
    }

    /// Whether TLS 1.2 was negotiated.
    pub(super) fn is_tls12(&self) -> bool {
        self.info.version == Some(ProtocolVersion::TLS_1_2)
    }

    fn handle_client_hello(&mut self, hello: ClientHello, ctx: &mut Context<'_>) -> bool {
        let negotiation = &mut self.negotiation;
        match negotiation.turn {
            Turn::ClientHello => negotiation.turn = Turn::ServerHello,
            // It must repeat random and name (RFC 8446, section 4.1.2).
            Turn::SecondClientHello
                if hello.random == negotiation.client_random
                    && hello.server_name == self.info.server_name =>
            {
                negotiation.turn = Turn::FinalServerHello;
            }
            Turn::Settled if self.info.version == Some(ProtocolVersion::TLS_1_2) => {
                negotiation.turn = Turn::ServerHello;
                negotiation.number = negotiation.number.saturating_add(1);
                ctx.counters.renegotiations += 1;
            }
            _ => return false,
        }
        negotiation.client_random = hello.random;
        negotiation.server_random = None;
        negotiation.session_id = hello.session_id;
        if negotiation.number > 0 {
            return true;
        }
        let info = &mut self.info;
        info.client_random = hello.random;
        info.client_hello = true;
        info.server_name = hello.server_name;
        info.alpn_offered = hello.alpn;
        info.resumption = if hello.offers_psk { Resumption::Offered } else { Resumption::None };
        if negotiation.turn == Turn::FinalServerHello {
            // After a HelloRetryRequest no early data may follow (RFC 8446, section 4.2.10).
            self.end_early_data();
        } else if hello.offers_early_data {
            self.begin_early_data();
            self.want_early_keys(ctx);
        }
        if !mem::replace(&mut self.handshake_started, true) {
            self.event(ctx, |sink, session| sink.handshake_start(session));
        }
        true
    }

    fn handle_server_hello(&mut self, hello: &ServerHello, ctx: &mut Context<'_>) -> bool {
        let negotiation = &mut self.negotiation;
        let info = &mut self.info;
        match negotiation.turn {
            Turn::ServerHello if hello.is_hello_retry() && negotiation.number == 0 => {
                negotiation.turn = Turn::SecondClientHello;
                info.version = Some(hello.version);
                info.cipher_suite = Some(hello.cipher_suite);
                info.hello_retry = true;
                self.settle_early_data(false, ctx);
                // What waited for their keys waits for nothing now.
                self.resume(Direction::ClientToServer, None, ctx);
                return hello.version == ProtocolVersion::TLS_1_3;
            }
            Turn::ServerHello => {}
            Turn::FinalServerHello if !hello.is_hello_retry() => {}
            _ => return false,
        }
        negotiation.turn = Turn::Settled;
        negotiation.server_random = Some(hello.random);
        negotiation.encrypt_then_mac = hello.encrypt_then_mac;
        negotiation.in_full = false;
        info.cipher_suite = Some(hello.cipher_suite);
        if negotiation.number == 0 {
            info.version = Some(hello.version);
            info.server_random = Some(hello.random);
            let offered_session = !negotiation.session_id.is_empty();
            let same_session = offered_session && negotiation.session_id == hello.session_id;
            info.resumption = match hello.version {
                ProtocolVersion::TLS_1_3 if hello.selected_psk.is_some() => Resumption::Accepted,
                ProtocolVersion::TLS_1_3 => info.resumption,
                _ if same_session => Resumption::Accepted,
                _ if offered_session => Resumption::Offered,
                _ => Resumption::None,
            };
            info.alpn.clone_from(&hello.alpn);
            if hello.version != ProtocolVersion::TLS_1_3 {
                self.end_early_data();
            } else if hello.selected_psk != Some(0) {
                // Early data go with the first pre-shared key (RFC 8446, section 4.2.10).
                self.settle_early_data(false, ctx);
            }
        } else if info.version != Some(hello.version) {
            // A renegotiation keeps the version (RFC 5246, section 7.4.1.3 leaves no other use).
            return false;
        }
        self.require_private_tag(Direction::ServerToClient, ctx);
        if !self.following() {
            return true;
        }
        if core::mem::take(&mut self.refused) {
            self.handle_null_keys(ctx);
            if !self.following() {
                return true;
            }
        }
        let followed = matches!(hello.version, ProtocolVersion::TLS_1_2 | ProtocolVersion::TLS_1_3);
        if !followed {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedVersion, ctx);
        } else if hello.compression != 0 {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedCompression, ctx);
        } else if !(ctx.config.supports)(hello.version, hello.cipher_suite) {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedCipherSuite, ctx);
        } else if hello.version == ProtocolVersion::TLS_1_3 {
            self.begin_search(ctx);
        } else {
            let number = self.negotiation.number;
            for direction in Direction::BOTH {
                if !self.streams[direction.index()].has_future_keys(number) {
                    self.want_keys(direction, number, ctx);
                }
            }
        }
        true
    }

    /// Applies the policy for sessions without a private tag, as far as there is one.
    pub(super) fn require_private_tag(&mut self, direction: Direction, ctx: &mut Context<'_>) {
        if self.info.private_tag() != Some(true)
            && ctx.config.policies.require_private_tag != Policy::Forward
        {
            self.fail(direction, SessionError::NoPrivateTag, ctx);
        }
    }

    /// From the ServerHello of TLS 1.3 on, both directions are protected.
    fn begin_search(&mut self, ctx: &mut Context<'_>) {
        for direction in Direction::BOTH {
            let stream = &mut self.streams[direction.index()];
            stream.messages.clear();
            let candidates = stream.future_keys(0);
            let wanted = candidates.is_empty();
            stream.read = Read::Searching(Search { candidates, ..Search::default() });
            let without = stream.handshake_keys.is_empty();
            if without {
                self.want(direction, KeyEpoch::Handshake, ctx);
            }
            if wanted {
                self.want_keys(direction, 0, ctx);
            }
        }
    }

    fn want_early_keys(&self, ctx: &mut Context<'_>) {
        ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
            client: self.info.client,
            client_random: self.negotiation.client_random,
            server_random: None,
            version: ProtocolVersion::TLS_1_3,
            cipher_suite: None,
            direction: Direction::ClientToServer,
            epoch: KeyEpoch::EarlyData,
        }));
    }

    pub(super) fn want_keys(&self, direction: Direction, epoch: u32, ctx: &mut Context<'_>) {
        let epoch = if self.is_tls12() { 0 } else { epoch };
        self.want(direction, KeyEpoch::Application(epoch), ctx);
    }

    fn want(&self, direction: Direction, epoch: KeyEpoch, ctx: &mut Context<'_>) {
        if let Some(version) = self.info.version {
            ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
                client: self.info.client,
                client_random: self.negotiation.client_random,
                server_random: self.negotiation.server_random,
                version,
                cipher_suite: self.info.cipher_suite,
                direction,
                epoch,
            }));
        }
    }
}
