//! A session's hellos, and the keys that they make necessary.
//!
//! Refuses to read what is encrypted.

use core::mem;

use super::follow::{Context, TlsSession};
use super::stream::Read;
use super::{Handler, Resumption, SessionError};
use crate::output::{KeysNeeded, Output};
use crate::tls::{ClientHello, Direction, HandshakeType, KeyEpoch, ProtocolVersion, ServerHello};

impl<S: Default> TlsSession<S> {
    pub(super) fn handle_hello_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let cap = ctx.config.limits.max_handshake_bytes;
        if self.streams[direction.index()].messages.push(fragment, cap).is_err() {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
            return;
        }
        while self.following() {
            match self.streams[direction.index()].messages.pop(cap) {
                Ok(Some((kind, body))) => self.handle_message(direction, kind, &body, ctx),
                Ok(None) => return,
                Err(_) => self.fail(direction, SessionError::MalformedHandshake, ctx),
            }
        }
    }

    fn handle_message<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        kind: HandshakeType,
        body: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let malformed = match (direction, kind) {
            (Direction::ClientToServer, HandshakeType::CLIENT_HELLO) => {
                match ClientHello::parse(body) {
                    Ok(hello) => {
                        self.handle_client_hello(hello, ctx);
                        false
                    }
                    Err(_) => true,
                }
            }
            (Direction::ServerToClient, HandshakeType::SERVER_HELLO) => {
                match ServerHello::parse(body) {
                    Ok(hello) => {
                        self.handle_server_hello(&hello, ctx);
                        false
                    }
                    Err(_) => true,
                }
            }
            // Before protection, TLS 1.3 sends nothing but hellos.
            _ => true,
        };
        if malformed {
            self.fail(direction, SessionError::MalformedHandshake, ctx);
        }
    }

    fn handle_client_hello<H: Handler<State = S>>(
        &mut self,
        hello: ClientHello,
        ctx: &mut Context<'_, H>,
    ) {
        let info = &mut self.info;
        info.client_random = hello.random;
        info.server_name = hello.server_name;
        info.alpn_offered = hello.alpn;
        info.resumption = if hello.offers_psk { Resumption::Offered } else { Resumption::None };
        // After a HelloRetryRequest no early data may follow (RFC 8446, section 4.2.10).
        info.early_data_offered = hello.offers_early_data;
        if !mem::replace(&mut self.handshake_started, true) {
            self.event(ctx, |handler, session, state| handler.handshake_start(session, state));
        }
    }

    fn handle_server_hello<H: Handler<State = S>>(
        &mut self,
        hello: &ServerHello,
        ctx: &mut Context<'_, H>,
    ) {
        if !self.handshake_started {
            self.fail(Direction::ServerToClient, SessionError::MalformedHandshake, ctx);
            return;
        }
        let info = &mut self.info;
        info.version = Some(hello.version);
        info.cipher_suite = Some(hello.cipher_suite);
        if hello.is_hello_retry() && hello.version == ProtocolVersion::TLS_1_3 {
            info.hello_retry = true;
            return;
        }
        info.server_random = Some(hello.random);
        if hello.selects_psk {
            info.resumption = Resumption::Accepted;
        }
        if hello.version != ProtocolVersion::TLS_1_3 {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedVersion, ctx);
        } else if !(ctx.config.supports)(hello.version, hello.cipher_suite) {
            self.fail(Direction::ServerToClient, SessionError::UnsupportedCipherSuite, ctx);
        } else {
            for direction in Direction::BOTH {
                let stream = &mut self.streams[direction.index()];
                stream.messages.clear();
                let opener = stream.future_keys(0);
                let wanted = opener.is_none();
                stream.read = Read::Searching { opener, backlog: Vec::new(), searched: 0 };
                if wanted {
                    self.want_keys(direction, 0, ctx);
                }
            }
        }
    }

    /// 0-RTT records pass before the ServerHello; their keys are not handled yet.
    pub(super) fn handle_early_data<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        if direction == Direction::ClientToServer && self.info.early_data_offered {
            if !mem::replace(&mut self.early_data_reported, true) {
                self.fail(direction, SessionError::EarlyDataNotInspected, ctx);
            }
        } else {
            self.fail(direction, SessionError::MalformedRecord, ctx);
        }
    }

    pub(super) fn want_keys<H: Handler<State = S>>(
        &self,
        direction: Direction,
        epoch: u32,
        ctx: &mut Context<'_, H>,
    ) {
        if let (Some(version), Some(cipher_suite), Some(server_random)) =
            (self.info.version, self.info.cipher_suite, self.info.server_random)
        {
            ctx.outputs.push_back(Output::KeysNeeded(KeysNeeded {
                client: self.info.client,
                client_random: self.info.client_random,
                server_random,
                version,
                cipher_suite,
                direction,
                epoch: KeyEpoch::Application(epoch),
            }));
        }
    }
}
