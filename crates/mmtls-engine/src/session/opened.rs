//! Handshake messages that would be hidden: opened with handshake keys that an endpoint shared
//! (TLS 1.3), or in the clear anyway (TLS 1.2).
//!
//! Behind Finished a client's record is application data or waits, and so is a server's once its application keys are
//! there; before that a server's records still pass, as without handshake keys. Keys that open nothing are ignored; once
//! they have opened a record, the next one that they do not open fails. So does content that they open.
//!
//! Refuses to parse certificates: their bytes go to the handler as they are. Tells where the
//! handshake ends, so that the switch to application keys need not be searched for.

use super::state::{Context, TlsSession};
use super::stream::Read;
use super::{Certificates, Handler, SessionError};
use crate::tls::{ContentType, Direction, EncryptedExtensions, HandshakeType, RecordHeader};

impl<S: Default> TlsSession<S> {
    /// Tries a record as the next one of the handshake, with the keys from number `from` on; true
    /// when that settled what it is.
    pub(super) fn try_handshake<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        from: usize,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let stream = &mut self.streams[direction.index()];
        let keys = &mut stream.handshake_keys;
        if keys.is_empty() {
            return false;
        }
        let Some(opened) = keys.open(from, header, fragment, ctx.plaintext, ctx.counters) else {
            if !keys.is_confirmed() {
                return false;
            }
            // From the first record up to Finished all are under these keys.
            stream.drop_handshake_keys();
            ctx.counters.records_failed += 1;
            self.fail(direction, SessionError::Integrity, ctx);
            return true;
        };
        ctx.counters.handshake_records_opened += 1;
        if direction == Direction::ClientToServer {
            self.client_flight_seen = true;
            self.early_data_was_not_ended(ctx);
        }
        match opened.content_type {
            ContentType::HANDSHAKE => {
                let cap = ctx.config.limits.max_handshake_bytes;
                let content = &ctx.plaintext[..opened.len];
                if self.streams[direction.index()].messages.push(content, cap).is_err() {
                    self.fail(direction, SessionError::MalformedHandshake, ctx);
                }
                self.handle_opened_messages(direction, ctx);
            }
            ContentType::ALERT => {}
            // Nobody sends content under these keys (RFC 8446, section 2): they are an application epoch's, and who
            // has delivered them as others would have it pass unshown.
            _ => self.fail(direction, SessionError::MalformedRecord, ctx),
        }
        true
    }

    fn handle_opened_messages<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        let cap = ctx.config.limits.max_handshake_bytes;
        while self.following() {
            let stream = &mut self.streams[direction.index()];
            let legal = match stream.messages.pop(cap) {
                Ok(None) => return,
                Err(_) => false,
                Ok(Some((HandshakeType::FINISHED, _))) => {
                    // Keys change behind it, so it ends its record (RFC 8446, section 5.1).
                    let last = stream.messages.is_empty();
                    stream.drop_handshake_keys();
                    if let Read::Searching(search) = &mut stream.read {
                        search.finished = true;
                    }
                    if direction == Direction::ClientToServer {
                        self.end_handshake(ctx);
                    }
                    last
                }
                Ok(Some((kind, body))) => self.handle_opened_message(direction, kind, &body, ctx),
            };
            if !legal {
                self.fail(direction, SessionError::MalformedHandshake, ctx);
                return;
            }
        }
    }

    /// A message of the handshake that certificates or extensions may be in; false when it
    /// contradicts itself.
    pub(super) fn handle_opened_message<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        kind: HandshakeType,
        body: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let tls12 = self.is_tls12();
        let certificates = match kind {
            HandshakeType::CERTIFICATE if tls12 => Certificates::parse_tls12(body),
            _ if tls12 => return true,
            HandshakeType::ENCRYPTED_EXTENSIONS if direction == Direction::ServerToClient => {
                let Ok(extensions) = EncryptedExtensions::parse(body) else {
                    return false;
                };
                self.info.alpn = extensions.alpn;
                self.settle_early_data(extensions.accepts_early_data, ctx);
                return true;
            }
            HandshakeType::CERTIFICATE => Certificates::parse_tls13(body),
            HandshakeType::COMPRESSED_CERTIFICATE => Certificates::parse_compressed(body),
            _ => return true,
        };
        let Ok(certificates) = certificates else {
            // Raw public keys (RFC 7250) look like this in TLS 1.2. The endpoints judge.
            ctx.counters.certificates_unreadable += 1;
            return true;
        };
        self.event(ctx, |handler, session, state| {
            handler.certificates(session, state, direction, &certificates);
        });
        true
    }
}
