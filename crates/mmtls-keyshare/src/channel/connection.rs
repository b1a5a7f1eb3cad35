//! One endpoint's connection to the key server: TLS, then hello, then messages.
//!
//! Refuses: other application protocols, anything before the hello, messages that only a
//! middlebox sends, and peers that ask without reading the answers.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use rustls::ServerConnection;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;

use super::peer::Peer;
use super::tls::{Output, ReadError, export, read_messages};
use crate::message::{self, ALPN, Decoder, Greeting, Message, Relayed};
use crate::sealed::Secret;

/// Bytes that may wait for a peer that does not read.
const MAX_UNREAD_BYTES: usize = 64 * 1024;
/// Bytes of messages that are written together: each write is a system call.
const MAX_UNSENT_BYTES: usize = 16 * 1024;

/// What is to become of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// Nothing left to read for now.
    Keep,
    /// Input is left.
    Again,
    /// The peer closed it, or the network did.
    Gone,
    /// TLS failed, or the peer speaks another protocol.
    HandshakeFailed,
    /// The peer broke the specification.
    Malformed,
}

/// A socket that notes when it gave less than was asked for: then it is empty, and data that
/// come later are reported by the poll (epoll(7), question 9).
struct Input<'a> {
    stream: &'a mut TcpStream,
    exhausted: bool,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.exhausted = count < buffer.len();
        Ok(count)
    }
}

/// What a peer said.
pub(super) enum Said {
    /// The first message; a key server's datagrams are sealed with the secret.
    Hello(Option<Secret>),
    /// A later one.
    Message(Message),
}

/// What all connections have in common.
pub(super) struct Terms<'a> {
    /// The encoded answer to a hello.
    pub(super) welcome: &'a [u8],
    /// Who may speak for others.
    pub(super) key_servers: &'a [ServerName<'static>],
}

/// Whether it is of those that a key server passes on.
fn is_from_endpoint(message: &Message) -> bool {
    matches!(
        message,
        Message::SessionKeys(_) | Message::LiveKeys(_) | Message::NullKeys(_) | Message::Refused(_)
    )
}

pub(super) struct Connection {
    stream: TcpStream,
    tls: ServerConnection,
    decoder: Decoder,
    peer: Peer,
    /// The hello was received.
    open: bool,
    opened: Instant,
    last_heard: Instant,
    /// A ping was sent since then.
    pinged: bool,
    skipped_before: u64,
    /// The socket failed, so there is nobody to say goodbye to.
    failed: bool,
    /// Bytes that a key server was sent since it had read all.
    unread: usize,
    /// Bytes of messages that were not written yet, and how many messages they are.
    unsent: usize,
    unsent_messages: u64,
    /// Messages that the network did not take.
    lost: u64,
    /// The last ping of this turn.
    ping: Option<u64>,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        config: Arc<rustls::ServerConfig>,
        peer: Peer,
        now: Instant,
    ) -> Option<Self> {
        let mut tls = ServerConnection::new(config).ok()?;
        tls.set_buffer_limit(Some(MAX_UNREAD_BYTES));
        Some(Self {
            stream,
            tls,
            decoder: Decoder::new(),
            peer,
            open: false,
            opened: now,
            last_heard: now,
            pinged: false,
            skipped_before: 0,
            failed: false,
            unread: 0,
            unsent: 0,
            unsent_messages: 0,
            lost: 0,
            ping: None,
        })
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Messages of unknown types since the last call.
    pub(super) fn take_skipped(&mut self) -> u64 {
        let total = self.decoder.skipped();
        total - std::mem::replace(&mut self.skipped_before, total)
    }

    /// Reads, delivers and writes, with at most so many `reads`, each of 4 KiB or more. `ending`: the poll saw that the peer
    /// sends no more, and will not say so again. `deliver` says whether more is wanted: without it the turn ends.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        ending: bool,
        reads: &mut usize,
        terms: &Terms<'_>,
        mut deliver: impl FnMut(&Peer, Said) -> bool,
    ) -> Disposition {
        let wanted = Cell::new(true);
        let mut deliver = |peer: &Peer, said: Said| {
            wanted.set(deliver(peer, said) && wanted.get());
        };
        while let Some(left) = reads.checked_sub(1) {
            *reads = left;
            let mut input = Input { stream: &mut self.stream, exhausted: false };
            let read = self.tls.read_tls(&mut input);
            let exhausted = input.exhausted;
            match read {
                Ok(0) if self.open => return Disposition::Gone,
                Ok(0) => return Disposition::HandshakeFailed,
                Ok(_) => (self.last_heard, self.pinged) = (now, false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.end_turn(Disposition::Keep);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.failed = true;
                    return if self.open {
                        Disposition::Gone
                    } else {
                        Disposition::HandshakeFailed
                    };
                }
            }
            let disposition = self.process(terms, &mut deliver);
            if disposition == Disposition::Keep && !wanted.get() {
                break;
            }
            if disposition != Disposition::Keep || exhausted && !ending {
                return self.end_turn(disposition);
            }
        }
        self.end_turn(Disposition::Again)
    }

    /// Answers and writes. Of pings that came together the last one is answered: each answer is a record, and any number of
    /// pings fits into a turn.
    fn end_turn(&mut self, disposition: Disposition) -> Disposition {
        let goes_on = matches!(disposition, Disposition::Keep | Disposition::Again);
        if let Some(number) = self.ping.take()
            && goes_on
            && let Ok(pong) = message::encode(&Message::Pong(number))
            && !self.queue(&pong)
        {
            return self.flush(Disposition::Malformed);
        }
        self.flush(disposition)
    }

    /// Whether its certificate, which an authority has signed, has one of these names.
    fn is_named(&self, names: &[ServerName<'static>]) -> bool {
        if names.is_empty() {
            return false;
        }
        let certificate = self.tls.peer_certificates().and_then(|chain| chain.first());
        let Some(Ok(certificate)) = certificate.map(ParsedCertificate::try_from) else {
            return false;
        };
        names.iter().any(|name| verify_server_name(&certificate, name).is_ok())
    }

    fn process(&mut self, terms: &Terms<'_>, deliver: &mut impl FnMut(&Peer, Said)) -> Disposition {
        let Terms { welcome, key_servers } = *terms;
        let broken = if self.open { Disposition::Malformed } else { Disposition::HandshakeFailed };
        if self.tls.process_new_packets().is_err() {
            return broken;
        }
        if self.tls.is_handshaking() {
            return Disposition::Keep;
        }
        if self.tls.alpn_protocol() != Some(ALPN) {
            return Disposition::HandshakeFailed;
        }
        self.peer.authenticated = self.tls.peer_certificates().is_some();
        // Looked at for the hello alone.
        let may_relay = !self.open && self.is_named(key_servers);
        let mut secret = may_relay.then(|| export(&self.tls).ok()).flatten();
        let mut is_welcome = false;
        let (peer, open, ping) = (&mut self.peer, &mut self.open, &mut self.ping);
        let mut allowed = true;
        let mut is_new_key_server = false;
        let read = read_messages(&mut self.tls, &mut self.decoder, |message| {
            // After a forbidden message nothing more is taken from this connection.
            match message {
                _ if !allowed => {}
                Message::Hello(ref hello) if !*open => {
                    *open = true;
                    peer.capabilities = hello.capabilities;
                    peer.is_key_server = hello.capabilities & Greeting::KEY_SERVER != 0;
                    let secret = secret.take().filter(|_| peer.is_key_server);
                    if peer.is_key_server && secret.is_none() {
                        allowed = false;
                        return;
                    }
                    is_new_key_server = peer.is_key_server;
                    // Before the peer can know that it is welcome.
                    deliver(peer, Said::Hello(secret));
                    is_welcome = true;
                }
                _ if !*open => allowed = false,
                Message::SessionKeys(_)
                | Message::LiveKeys(_)
                | Message::NullKeys(_)
                | Message::Refused(_) => deliver(peer, Said::Message(message)),
                Message::Ping(number) => *ping = Some(number),
                Message::Pong(_) => {}
                Message::EndpointOpened(_) | Message::EndpointClosed(_) if peer.is_key_server => {
                    deliver(peer, Said::Message(message));
                }
                Message::Relayed(Relayed { message: ref inner, .. })
                    if peer.is_key_server && is_from_endpoint(inner) =>
                {
                    deliver(peer, Said::Message(message));
                }
                Message::Hello(_)
                | Message::Welcome(_)
                | Message::KeyRequest(_)
                | Message::EchKeyRequest(_)
                | Message::LiveKeysRequest
                | Message::EndpointOpened(_)
                | Message::EndpointClosed(_)
                | Message::Relayed(_)
                | Message::Steering(_) => allowed = false,
            }
        });
        if is_new_key_server {
            // Short messages grow in TLS; what `send` lets wait must fit in any case.
            self.tls.set_buffer_limit(Some(8 * MAX_UNREAD_BYTES));
        }
        match read {
            Ok(()) if allowed => {}
            Ok(()) | Err(ReadError::Malformed(_)) => return Disposition::Malformed,
            Err(ReadError::Tls(_)) => return broken,
        }
        match !is_welcome || self.queue(welcome) {
            true => Disposition::Keep,
            false => Disposition::Malformed,
        }
    }

    /// Queues a whole message, or nothing when the peer has not read enough of the earlier ones.
    fn queue(&mut self, bytes: &[u8]) -> bool {
        // What does not fit is cut off by the TLS buffer, which makes the stream unusable; the
        // caller closes the connection then.
        self.tls.writer().write_all(bytes).is_ok()
    }

    /// Sends a message, at the latest with the next [`Self::send_rest`]; `false` when the peer does not read. A key server is
    /// not given up for that, which has messages for many: it misses some.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        if self.peer.is_key_server {
            let before = if self.tls.wants_write() { self.unread } else { 0 };
            self.unread = before + bytes.len();
            if self.unread > MAX_UNREAD_BYTES {
                self.unread -= bytes.len();
                return false;
            }
        }
        let queued = self.queue(bytes);
        if !queued {
            // A cut message is in the buffer: end it here, the poll reports the closed socket.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            return false;
        }
        self.unsent += bytes.len();
        self.unsent_messages += 1;
        if self.unsent >= MAX_UNSENT_BYTES {
            self.write_unsent();
        }
        true
    }

    /// Sends what was not written yet. Returns how many messages were lost since the last time, because the network has closed
    /// the connection, which the poll reports, too.
    pub(super) fn send_rest(&mut self) -> u64 {
        if self.unsent > 0 {
            self.write_unsent();
        }
        std::mem::take(&mut self.lost)
    }

    fn write_unsent(&mut self) {
        let messages = std::mem::take(&mut self.unsent_messages);
        if self.flush(Disposition::Keep) != Disposition::Keep {
            self.lost += messages;
        }
    }

    /// Asks a silent peer, once, whether it is still there.
    pub(super) fn ping(&mut self) {
        if !std::mem::replace(&mut self.pinged, true)
            && let Ok(ping) = message::encode(&Message::Ping(0))
        {
            // A peer that cannot take it is silent, too.
            self.send(&ping);
            self.send_rest();
        }
    }

    fn flush(&mut self, disposition: Disposition) -> Disposition {
        self.unsent = 0;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Output(&mut self.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if disposition == Disposition::Keep || disposition == Disposition::Again => {
                    return Disposition::Gone;
                }
                Err(_) => break,
            }
        }
        disposition
    }

    /// One attempt to say that the end is intended.
    pub(super) fn say_goodbye(&mut self) {
        if !self.failed {
            self.tls.send_close_notify();
            let _ = self.flush(Disposition::Gone);
        }
    }
}
