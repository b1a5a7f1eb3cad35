//! Protected records of TLS 1.2: from ChangeCipherSpec on, Finished included, every record counts
//! (RFC 5246, sections 6.1 and 7.1), so sequence numbers are exact and nothing is searched for.
//!
//! A renegotiation is followed inside the session, under the new client random.
//!
//! Refuses application data without keys. Finished passes without them: it shows nothing, and
//! the endpoints verify it.

use super::state::Negotiation;
use super::state::{Context, Step, TlsSession};
use super::stream::Read;
use crate::session::{Resumption, SessionError};
use crate::tls::{ContentType, Direction, RecordHeader};

impl TlsSession {
    /// A ChangeCipherSpec in the clear or opened: the next record is number 0 of the new epoch.
    pub(super) fn change_cipher(&mut self, direction: Direction) {
        let Negotiation { number, in_full, .. } = self.negotiation;
        if direction == Direction::ServerToClient && number == 0 && !in_full {
            // Only this tells where a client offers a ticket without a session id (RFC 5077,
            // section 3.4).
            self.info.resumption = Resumption::Accepted;
        }
        let stream = &mut self.streams[direction.index()];
        let epoch = match stream.read {
            Read::Application { epoch, .. } => epoch.saturating_add(1),
            _ => 0,
        };
        let mut opener = stream.future_keys(epoch).take(0);
        if let Some(opener) = &mut opener
            && self.negotiation.encrypt_then_mac
        {
            opener.set_encrypt_then_mac();
        }
        stream.read = Read::Application { opener, epoch, sequence: 0 };
    }

    pub(super) fn handle_tls12_record(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_>,
    ) -> Step {
        let stream = &mut self.streams[direction.index()];
        let Read::Application { opener, sequence, .. } = &mut stream.read else {
            return Step::Done;
        };
        let finished = *sequence == 0;
        if finished && header.content_type != ContentType::HANDSHAKE {
            self.fail(direction, SessionError::MalformedRecord, ctx);
            return self.step();
        }
        match (opener.is_some(), finished) {
            (false, false) => return Step::NeedKeys,
            (false, true) => *sequence = 1,
            (true, _) => match header.content_type {
                ContentType::HANDSHAKE | ContentType::CHANGE_CIPHER_SPEC => {
                    self.handle_inner_record(direction, header, fragment, ctx);
                }
                _ => self.handle_application_record(direction, header, fragment, None, ctx),
            },
        }
        if finished {
            self.finished[direction.index()] = true;
            if self.finished == [true; 2] {
                self.end_handshake(ctx);
            }
        }
        self.step()
    }

    /// Handshake messages and ChangeCipherSpec under protection: the engine's own business.
    fn handle_inner_record(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_>,
    ) {
        let opened = self.with_record(direction, header, fragment, None, ctx, |_, _, record| {
            // What comes of it is looked at by the caller.
            let _ = record.open();
        });
        if !self.following() || !opened {
            return;
        }
        match header.content_type {
            ContentType::CHANGE_CIPHER_SPEC => self.change_cipher(direction),
            _ => self.handle_messages(direction, ctx),
        }
    }
}
