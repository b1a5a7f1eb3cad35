//! Handshake messages of TLS 1.3 behind the handshake (RFC 8446, section 4.6), in one direction: walked over without keeping
//! their bodies, to notice KeyUpdate.
//!
//! No application reads them, and inspection passes over them. Refuses what no peer takes, since it may be content under other keys than the
//! shared ones: of a client all but KeyUpdate and an answer to each CertificateRequest, of a server all but KeyUpdate,
//! tickets and those requests; records of another type between the pieces of a message (section 5.1), but alerts, which end all.

use crate::tls::{ContentType, Direction, HandshakeType};

/// Lengths of NewSessionTicket (section 4.6.1): two numbers, a nonce of at most 255 bytes, ticket and extensions. Some servers
/// send an empty ticket, and clients take it.
const TICKET_LEN: core::ops::RangeInclusive<u32> = 13..=(8 + 256 + 65_537 + 65_536);

/// Of Finished: hashes of 256 and 384 bits.
const HASH_LEN: [u32; 2] = [32, 48];

/// Longest CertificateVerify (section 4.4.3).
const MAX_VERIFY_LEN: u32 = 4 + 65_535;

/// After content was passed over the next handshake records may be the rest of a message: of a server at most so many, a
/// ticket of the longest kind. What clients send fits one record.
const MAX_UNPLACED: [u8; 2] = [1, 9];

/// Answers of a client to requests that may have been passed over: more of them are none.
const MAX_UNSEEN_REQUESTS: u8 = 4;

/// A message, or a record between the pieces of one, that no peer takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Illegal;

/// What a client has sent of its answer to a CertificateRequest (section 4.6.2).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Answer {
    #[default]
    None,
    Certificate,
    Verify,
}

#[derive(Default)]
pub(super) struct PostHandshake {
    header: [u8; 4],
    header_len: u8,
    body_left: u32,
    /// CertificateRequests: those that this server has sent, or that this client has not answered.
    requests: u8,
    answer: Answer,
    /// Requests that were not seen and have been answered.
    unseen_requests: u8,
    /// So many more handshake records need not begin where messages do.
    unplaced: u8,
}

impl PostHandshake {
    /// Content of this direction was passed over.
    pub(super) fn lose_place(&mut self, direction: Direction) {
        (self.header_len, self.body_left, self.answer) = (0, 0, Answer::None);
        self.unplaced = MAX_UNPLACED[direction.index()];
    }

    /// Whether nothing of a message is missing, and no message of several.
    pub(super) fn is_between(&self) -> bool {
        self.header_len == 0 && self.answer == Answer::None && self.requests == 0
    }

    /// How many certificates this server has asked for since the last call.
    pub(super) fn take_requests(&mut self) -> u8 {
        core::mem::take(&mut self.requests)
    }

    /// The server of this client asks for so many certificates.
    pub(super) fn add_requests(&mut self, requests: u8) {
        self.requests = self.requests.saturating_add(requests);
    }

    /// Whether content of applications changes nothing here.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.header_len == 0 && self.answer == Answer::None && self.unplaced == 0
    }

    /// Looks at a record's content. Whether a KeyUpdate ended with it. `may_answer`: the client may have been asked for
    /// certificates where that was not seen; `cap`: longest message with certificates.
    pub(super) fn handle_content(
        &mut self,
        direction: Direction,
        content_type: ContentType,
        content: &[u8],
        may_answer: bool,
        cap: usize,
    ) -> Result<bool, Illegal> {
        match content_type {
            ContentType::HANDSHAKE => {
                let walked = self.walk(direction, content, may_answer, cap);
                if self.unplaced == 0 {
                    return walked;
                }
                self.unplaced = match (&walked, self.header_len) {
                    (Ok(_), 0) => 0,
                    _ => self.unplaced - 1,
                };
                if walked.is_err() {
                    (self.header_len, self.answer) = (0, Answer::None);
                }
                Ok(walked.unwrap_or(false))
            }
            ContentType::ALERT => Ok(false),
            _ if self.unplaced > 0 => {
                (self.header_len, self.answer, self.unplaced) = (0, Answer::None, 0);
                Ok(false)
            }
            _ if self.header_len > 0 || self.answer != Answer::None => Err(Illegal),
            _ => Ok(false),
        }
    }

    fn walk(
        &mut self,
        direction: Direction,
        mut content: &[u8],
        may_answer: bool,
        cap: usize,
    ) -> Result<bool, Illegal> {
        let mut updated = false;
        while let Some((&first, rest)) = content.split_first() {
            // Keys change behind it, so it ends its record (section 5.1).
            if updated {
                return Err(Illegal);
            }
            if let Some(byte) = self.header.get_mut(usize::from(self.header_len)) {
                *byte = first;
                self.header_len += 1;
                content = rest;
                if usize::from(self.header_len) == self.header.len() {
                    self.begin(direction, may_answer, cap)?;
                }
                continue;
            }
            let is_update = self.header[0] == HandshakeType::KEY_UPDATE.0;
            // update_requested or not (section 4.6.3).
            if is_update && first > 1 {
                return Err(Illegal);
            }
            let take = content.len().min(self.body_left as usize);
            content = &content[take..];
            self.body_left -= take as u32;
            if self.body_left == 0 {
                updated = is_update;
                self.header_len = 0;
            }
        }
        Ok(updated)
    }

    /// One more answer begins. Whether it was asked for, or may have been.
    fn take_request(&mut self, may_answer: bool) -> bool {
        if let Some(left) = self.requests.checked_sub(1) {
            self.requests = left;
            return true;
        }
        let is_left = may_answer && self.unseen_requests < MAX_UNSEEN_REQUESTS;
        self.unseen_requests += u8::from(is_left);
        is_left
    }

    /// A message's header is complete. All that are legal have a body.
    fn begin(&mut self, direction: Direction, may_answer: bool, cap: usize) -> Result<(), Illegal> {
        let [kind, a, b, c] = self.header;
        let len = u32::from_be_bytes([0, a, b, c]);
        self.body_left = len;
        let with_certificates = len >= 3 && len as usize <= cap;
        let legal = match (direction, HandshakeType(kind)) {
            (_, HandshakeType::KEY_UPDATE) => self.answer == Answer::None && len == 1,
            (Direction::ServerToClient, HandshakeType::NEW_SESSION_TICKET) => {
                TICKET_LEN.contains(&len)
            }
            (Direction::ServerToClient, HandshakeType::CERTIFICATE_REQUEST) => {
                self.add_requests(1);
                with_certificates
            }
            (
                Direction::ClientToServer,
                HandshakeType::CERTIFICATE | HandshakeType::COMPRESSED_CERTIFICATE,
            ) => {
                let is_first = self.answer == Answer::None;
                self.answer = Answer::Certificate;
                is_first && self.take_request(may_answer) && with_certificates
            }
            (Direction::ClientToServer, HandshakeType::CERTIFICATE_VERIFY) => {
                let is_next = self.answer == Answer::Certificate;
                self.answer = Answer::Verify;
                is_next && (4..=MAX_VERIFY_LEN).contains(&len)
            }
            (Direction::ClientToServer, HandshakeType::FINISHED) => {
                core::mem::take(&mut self.answer) != Answer::None && HASH_LEN.contains(&len)
            }
            _ => false,
        };
        if legal { Ok(()) } else { Err(Illegal) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: Direction = Direction::ClientToServer;
    const S: Direction = Direction::ServerToClient;

    fn message(kind: u8, len: usize) -> Vec<u8> {
        let mut message = vec![kind];
        message.extend_from_slice(&(len as u32).to_be_bytes()[1..]);
        message.resize(4 + len, 0);
        message
    }

    fn update() -> Vec<u8> {
        message(24, 1)
    }

    fn handshake(it: &mut PostHandshake, of: Direction, content: &[u8]) -> Result<bool, Illegal> {
        it.handle_content(of, ContentType::HANDSHAKE, content, false, 5000)
    }

    fn data(it: &mut PostHandshake) -> Result<bool, Illegal> {
        it.handle_content(C, ContentType::APPLICATION_DATA, b"GET", false, 5000)
    }

    #[test]
    fn notices_key_update_in_any_split() {
        let bytes = [message(4, 14), update()].concat();
        for split in 1..bytes.len() {
            let mut walker = PostHandshake::default();
            assert_eq!(handshake(&mut walker, S, &bytes[..split]), Ok(false), "{split}");
            assert_eq!(handshake(&mut walker, S, &bytes[split..]), Ok(true), "{split}");
            assert!(walker.is_between());
        }
    }

    #[test]
    fn refuses_what_no_peer_takes() {
        let two = [update(), update()].concat();
        let value = [24, 0, 0, 1, 2];
        for (of, content) in [
            (C, message(4, 14)),
            (C, message(11, 100)),
            (C, message(25, 100)),
            (C, message(15, 100)),
            (C, message(20, 32)),
            (C, message(1, 100)),
            (C, message(13, 10)),
            (C, message(5, 0)),
            (C, message(24, 2)),
            (C, message(24, 0)),
            (C, value.to_vec()),
            (C, two),
            (S, message(4, 12)),
            (S, message(4, 140_000)),
            (S, message(11, 100)),
            (S, message(13, 6000)),
            (S, message(254, 100)),
        ] {
            let mut walker = PostHandshake::default();
            assert_eq!(handshake(&mut walker, of, &content), Err(Illegal), "{of:?} {content:?}");
        }
    }

    #[test]
    fn accepts_certificates_that_were_asked_for_and_no_more() {
        let answer = [message(11, 900), message(15, 100), message(20, 48)];
        let mut server = PostHandshake::default();
        let mut client = PostHandshake::default();
        assert_eq!(handshake(&mut server, S, &message(13, 40)), Ok(false));
        assert!(!server.is_between());
        client.add_requests(server.take_requests());
        assert!(server.is_between() && !client.is_between());
        for message in &answer {
            assert_eq!(handshake(&mut client, C, message), Ok(false));
        }
        assert!(client.is_between());
        assert_eq!(data(&mut client), Ok(false));
        assert_eq!(handshake(&mut client, C, &answer[0]), Err(Illegal));
        // An empty one has no signature; and nothing comes between.
        let mut client = PostHandshake { requests: 2, ..PostHandshake::default() };
        for kind in [11, 20, 11] {
            let len = if kind == 20 { 32 } else { 4 };
            assert_eq!(handshake(&mut client, C, &message(kind, len)), Ok(false));
        }
        assert_eq!(data(&mut client), Err(Illegal));
    }

    #[test]
    fn refuses_records_between_the_pieces_of_a_message() {
        let ticket = message(4, 300);
        let mut walker = PostHandshake::default();
        assert_eq!(handshake(&mut walker, S, &ticket[..3]), Ok(false));
        let alert = ContentType::ALERT;
        assert_eq!(walker.handle_content(S, alert, &[2, 0], false, 5000), Ok(false));
        assert_eq!(data(&mut walker), Err(Illegal));
    }

    #[test]
    fn accepts_anything_for_a_while_where_content_was_passed_over() {
        let mut walker = PostHandshake::default();
        walker.lose_place(S);
        assert_eq!(handshake(&mut walker, S, &[200; 300]), Ok(false));
        assert_eq!(handshake(&mut walker, S, &message(4, 300)), Ok(false));
        // In place again.
        assert_eq!(handshake(&mut walker, S, &[200; 300]), Err(Illegal));
        walker.lose_place(S);
        assert_eq!(data(&mut walker), Ok(false));
        assert_eq!(handshake(&mut walker, S, &[200; 300]), Err(Illegal));
        walker.lose_place(S);
        for _ in 0..MAX_UNPLACED[1] {
            assert_eq!(handshake(&mut walker, S, &[200; 300]), Ok(false));
        }
        assert_eq!(handshake(&mut walker, S, &[200; 300]), Err(Illegal));
        // What was asked meanwhile is not known.
        let answer = [message(11, 100), message(20, 32)].concat();
        let mut client = PostHandshake::default();
        let mut answered = || client.handle_content(C, ContentType::HANDSHAKE, &answer, true, 5000);
        for _ in 0..MAX_UNSEEN_REQUESTS {
            assert_eq!(answered(), Ok(false));
        }
        assert_eq!(answered(), Err(Illegal));
    }
}
