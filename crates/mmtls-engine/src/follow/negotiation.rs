//! The hellos of a handshake, and what they agree on: whatever the version is.
//!
//! Refuses hellos out of turn, and a renegotiation of anything but TLS 1.2.

use crate::session::{Resumption, SessionInfo};
use crate::tls::{ClientHello, ProtocolVersion, ServerHello};

/// Which hello may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The first ClientHello of a handshake.
    ClientHello,
    /// The answer to it, which may be a HelloRetryRequest.
    ServerHello,
    /// The ClientHello after a HelloRetryRequest.
    SecondClientHello,
    /// The answer to that.
    FinalServerHello,
    /// None; in TLS 1.2 a renegotiation may begin.
    Settled,
}

/// What a ClientHello was.
pub(super) enum FromClient {
    /// The session's first one.
    First { offers_early_data: bool },
    /// The one after a HelloRetryRequest.
    Second,
    /// That of a further handshake of TLS 1.2.
    Renegotiation,
}

/// What a ServerHello was.
pub(super) enum FromServer {
    /// A HelloRetryRequest.
    Retry,
    /// The end of what is negotiated.
    Answer,
}

/// What the handshake at hand has shown, where a renegotiation makes it differ from the session's
/// first one.
pub(super) struct Negotiation {
    turn: Turn,
    number: u32,
    client_random: [u8; 32],
    server_random: Option<[u8; 32]>,
    encrypt_then_mac: bool,
    in_full: bool,
    /// As the client offers it, until the server has answered.
    session_id: Vec<u8>,
}

impl Negotiation {
    pub(super) fn new() -> Self {
        Self {
            turn: Turn::ClientHello,
            number: 0,
            client_random: [0; 32],
            server_random: None,
            encrypt_then_mac: false,
            in_full: false,
            session_id: Vec::new(),
        }
    }

    /// Behind a handshake that was not seen.
    pub(super) fn settled(client_random: [u8; 32], server_random: Option<[u8; 32]>) -> Self {
        Self { turn: Turn::Settled, client_random, server_random, ..Self::new() }
    }

    /// With what TLS 1.2 has agreed on.
    pub(super) fn behind_tls12(self, encrypt_then_mac: bool, in_full: bool) -> Self {
        Self { encrypt_then_mac, in_full, ..self }
    }

    /// Whether [`Self::settled`] and [`Self::behind_tls12`] make the same one.
    pub(super) fn is_settled_as(
        &self,
        client_random: [u8; 32],
        server_random: Option<[u8; 32]>,
    ) -> bool {
        self.turn == Turn::Settled
            && self.number == 0
            && self.session_id.is_empty()
            && (self.client_random, self.server_random) == (client_random, server_random)
    }

    /// 0 for the session's first handshake; its keys are those of this epoch (TLS 1.2).
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn client_random(&self) -> [u8; 32] {
        self.client_random
    }

    pub(super) fn server_random(&self) -> Option<[u8; 32]> {
        self.server_random
    }

    /// Whether both sides encrypt then authenticate (RFC 7366).
    pub(super) fn encrypts_then_macs(&self) -> bool {
        self.encrypt_then_mac
    }

    /// Whether ServerHelloDone was seen: a session is not being resumed (RFC 5246, section 7.3).
    pub(super) fn is_in_full(&self) -> bool {
        self.in_full
    }

    /// ServerHelloDone was seen.
    pub(super) fn server_hello_done(&mut self) {
        self.in_full = true;
    }

    /// Takes a ClientHello into account; `None` when it is out of turn.
    pub(super) fn client_hello(
        &mut self,
        hello: ClientHello,
        info: &mut SessionInfo,
    ) -> Option<FromClient> {
        let kind = match self.turn {
            Turn::ClientHello => {
                self.turn = Turn::ServerHello;
                FromClient::First { offers_early_data: hello.offers_early_data }
            }
            // It must repeat random and name (RFC 8446, section 4.1.2).
            Turn::SecondClientHello
                if hello.random == self.client_random && hello.server_name == info.server_name =>
            {
                self.turn = Turn::FinalServerHello;
                FromClient::Second
            }
            Turn::Settled if info.version == Some(ProtocolVersion::TLS_1_2) => {
                self.turn = Turn::ServerHello;
                self.number = self.number.saturating_add(1);
                FromClient::Renegotiation
            }
            _ => return None,
        };
        self.client_random = hello.random;
        self.server_random = None;
        self.session_id = hello.session_id;
        if self.number == 0 {
            info.client_random = hello.random;
            info.client_hello = true;
            info.server_name = hello.server_name;
            info.alpn_offered = hello.alpn;
            info.resumption = if hello.offers_psk { Resumption::Offered } else { Resumption::None };
        }
        Some(kind)
    }

    /// Takes a ServerHello into account; `None` when it is out of turn, or changes the version.
    pub(super) fn server_hello(
        &mut self,
        hello: &ServerHello,
        info: &mut SessionInfo,
    ) -> Option<FromServer> {
        match self.turn {
            Turn::ServerHello if hello.is_hello_retry() && self.number == 0 => {
                self.turn = Turn::SecondClientHello;
                info.version = Some(hello.version);
                info.cipher_suite = Some(hello.cipher_suite);
                info.hello_retry = true;
                return Some(FromServer::Retry);
            }
            Turn::ServerHello => {}
            Turn::FinalServerHello if !hello.is_hello_retry() => {}
            _ => return None,
        }
        self.turn = Turn::Settled;
        self.server_random = Some(hello.random);
        self.encrypt_then_mac = hello.encrypt_then_mac;
        self.in_full = false;
        info.cipher_suite = Some(hello.cipher_suite);
        if self.number > 0 {
            // A renegotiation keeps the version (RFC 5246, section 7.4.1.3 leaves no other use).
            return (info.version == Some(hello.version)).then_some(FromServer::Answer);
        }
        info.version = Some(hello.version);
        info.server_random = Some(hello.random);
        let session_id = core::mem::take(&mut self.session_id);
        let offered_session = !session_id.is_empty();
        let same_session = offered_session && session_id == hello.session_id;
        info.resumption = match hello.version {
            ProtocolVersion::TLS_1_3 if hello.selected_psk.is_some() => Resumption::Accepted,
            ProtocolVersion::TLS_1_3 => info.resumption,
            _ if same_session => Resumption::Accepted,
            _ if offered_session => Resumption::Offered,
            _ => Resumption::None,
        };
        info.alpn.clone_from(&hello.alpn);
        Some(FromServer::Answer)
    }
}
