//! Encoding and decoding of key messages. Refuses what `docs/key-sharing.md` does not allow.

use zeroize::{Zeroize, Zeroizing};

use super::{
    DecodeError, Direction, EchKeyRequest, EncodeError, EndpointOpened, Epoch, Greeting,
    HEADER_BYTES, KeyEntry, KeyRequest, MAX_CLIENT_HELLO_BYTES, MAX_KEYS, MAX_MESSAGE_BYTES,
    MAX_SOFTWARE_BYTES, Message, NullKeys, Reason, Refused, Relayed, SessionKeys, Steering,
    VERSION,
};
use crate::flow::{read_address, write_address};
use crate::wire::{Reader, Short, Writer};
use crate::{Flow, SecretBytes};

/// Encodes one message. The buffer is wiped when dropped.
///
/// # Errors
/// [`EncodeError`]: the message breaks a limit of the specification.
pub fn encode(message: &Message) -> Result<Zeroizing<Vec<u8>>, EncodeError> {
    let mut frame = [0; MAX_MESSAGE_BYTES];
    let length = encode_into(message, &mut frame).inspect_err(|_| frame.zeroize())?;
    let encoded = Zeroizing::new(frame[..length].to_vec());
    frame[..length].zeroize();
    Ok(encoded)
}

/// Encodes [`Message::Relayed`] of a message that is not given away.
///
/// # Errors
/// [`EncodeError`].
pub fn encode_relayed(endpoint: u32, message: &Message) -> Result<Zeroizing<Vec<u8>>, EncodeError> {
    if !message.is_relayable() {
        return Err(EncodeError::Relayed);
    }
    let inner = encode(message)?;
    let mut frame = Zeroizing::new(vec![0; HEADER_BYTES + 4 + inner.len()]);
    let mut out = Writer::new(&mut frame);
    out.bytes(&[VERSION, RELAYED]);
    out.vec16(|out| {
        out.u32(endpoint);
        out.bytes(&inner);
    });
    out.finish().ok_or(EncodeError::Keys)?;
    Ok(frame)
}

/// Encodes one message to the front of `out`, and returns its length. What was written to `out` is the caller's to wipe.
///
/// # Errors
/// [`EncodeError`]; of keys also where `out` is too small, below [`MAX_MESSAGE_BYTES`].
pub fn encode_into(message: &Message, out: &mut [u8]) -> Result<usize, EncodeError> {
    check(message)?;
    let mut writer = Writer::new(out);
    write_frame(message, &mut writer);
    // The limits keep every message far below 4 KiB; still no panic.
    writer.finish().ok_or(EncodeError::Keys)
}

fn check(message: &Message) -> Result<(), EncodeError> {
    match message {
        Message::Hello(greeting) | Message::Welcome(greeting) => {
            software_is_valid(&greeting.software).then_some(()).ok_or(EncodeError::Software)
        }
        Message::SessionKeys(session) | Message::LiveKeys(session) => {
            let count = session.keys.len();
            let empty = session.keys.iter().any(|k| k.key.as_bytes().is_empty());
            let valid = count > 0 && count <= MAX_KEYS && !empty;
            valid.then_some(()).ok_or(EncodeError::Keys)
        }
        Message::Relayed(Relayed { message, .. }) if message.is_relayable() => check(message),
        Message::Relayed(_) => Err(EncodeError::Relayed),
        Message::EchKeyRequest(asked) if asked.client_hello.len() > MAX_CLIENT_HELLO_BYTES => {
            Err(EncodeError::ClientHello)
        }
        _ => Ok(()),
    }
}

fn software_is_valid(software: &str) -> bool {
    software.len() <= MAX_SOFTWARE_BYTES && !software.chars().any(char::is_control)
}

fn write_frame(message: &Message, out: &mut Writer<'_>) {
    out.bytes(&[VERSION, message.kind()]);
    out.vec16(|out| write_body(message, out));
}

fn write_body(message: &Message, out: &mut Writer<'_>) {
    match message {
        Message::Hello(greeting) | Message::Welcome(greeting) => {
            out.u32(greeting.capabilities);
            out.vec8(greeting.software.as_bytes());
        }
        Message::SessionKeys(session) | Message::LiveKeys(session) => write_session(session, out),
        Message::NullKeys(null) => {
            out.bytes(&null.client_random);
            out.u8(null.direction.map_or(BOTH_DIRECTIONS, direction_number));
            Flow::write(null.flow.as_ref(), out);
        }
        Message::KeyRequest(request) => write_request(request, out),
        Message::EchKeyRequest(EchKeyRequest { request, flow, client_hello }) => {
            write_request(request, out);
            Flow::write(flow.as_ref(), out);
            out.vec16(|out| out.bytes(client_hello));
        }
        Message::Refused(refused) => {
            out.bytes(&refused.client_random);
            out.u16(refused.reason.0);
        }
        Message::Ping(number) | Message::Pong(number) => out.u64(*number),
        Message::LiveKeysRequest => {}
        Message::EndpointOpened(opened) => {
            out.u32(opened.endpoint);
            write_address(opened.address, out);
            out.u32(opened.capabilities);
            out.u8(u8::from(opened.authenticated));
        }
        Message::EndpointClosed(endpoint) => out.u32(*endpoint),
        Message::Steering(Steering { workers, seed }) => {
            out.u32(*workers);
            out.u32(*seed);
        }
        Message::Relayed(relayed) => {
            out.u32(relayed.endpoint);
            write_frame(&relayed.message, out);
        }
    }
}

fn write_request(request: &KeyRequest, out: &mut Writer<'_>) {
    out.bytes(&request.client_random);
    out.bytes(&request.server_random);
    out.u16(request.version);
    out.u16(request.cipher_suite);
    out.u8(direction_number(request.direction));
    out.u32(request.epoch.0);
}

fn write_session(session: &SessionKeys, out: &mut Writer<'_>) {
    out.bytes(&session.client_random);
    out.u16(session.version);
    out.u16(session.cipher_suite);
    match &session.server_random {
        Some(random) => out.vec8(random),
        None => out.u8(0),
    }
    Flow::write(session.flow.as_ref(), out);
    out.u8(u8::try_from(session.keys.len()).unwrap_or(u8::MAX));
    for entry in &session.keys {
        out.u8(direction_number(entry.direction));
        out.u32(entry.epoch.0);
        out.vec8(entry.key.as_bytes());
        out.vec8(entry.iv.as_bytes());
        out.vec8(entry.mac_key.as_bytes());
    }
}

/// The type of [`Message::Relayed`].
const RELAYED: u8 = 13;

/// Stands for both of them in NullKeys.
const BOTH_DIRECTIONS: u8 = 2;

fn direction_number(direction: Direction) -> u8 {
    match direction {
        Direction::ClientToServer => 0,
        Direction::ServerToClient => 1,
    }
}

/// What the front of a buffer holds.
pub enum Decoded {
    /// The message is not complete: at least this many bytes are needed, header included.
    NeedMore {
        /// Total length, never above [`MAX_MESSAGE_BYTES`].
        bytes: usize,
    },
    /// A message of an unknown type, to be skipped.
    Unknown {
        /// Its type.
        kind: u8,
        /// Its length, header included.
        consumed: usize,
    },
    /// A message.
    Message {
        /// The message.
        message: Message,
        /// Its length, header included.
        consumed: usize,
    },
}

/// Decodes the message at the front of `input`.
///
/// # Errors
/// [`DecodeError`]: no further byte can make this a message.
pub fn decode(input: &[u8]) -> Result<Decoded, DecodeError> {
    if let Some(&version) = input.first()
        && version != VERSION
    {
        return Err(DecodeError::Version(version));
    }
    let Some((&[_, kind, high, low], rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(Decoded::NeedMore { bytes: HEADER_BYTES });
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let consumed = HEADER_BYTES + length;
    if consumed > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong { bytes: consumed });
    }
    let Some(body) = rest.get(..length) else {
        return Ok(Decoded::NeedMore { bytes: consumed });
    };
    let mut body = Reader::new(body);
    let read = Body { kind }.read(&mut body)?;
    Ok(match read {
        Some(_) if !body.is_empty() => return Err(DecodeError::Trailing(kind)),
        Some(message) => Decoded::Message { message, consumed },
        None => Decoded::Unknown { kind, consumed },
    })
}

/// Reads bodies of one type, so that every error can name it.
struct Body {
    kind: u8,
}

impl Body {
    fn read(&self, body: &mut Reader<'_>) -> Result<Option<Message>, DecodeError> {
        Ok(Some(match self.kind {
            1 => Message::Hello(self.greeting(body)?),
            2 => Message::Welcome(self.greeting(body)?),
            3 => Message::SessionKeys(self.session(body)?),
            4 => Message::NullKeys(NullKeys {
                client_random: self.got(body.array())?,
                direction: self.directions(body)?,
                flow: self.flow(body)?,
            }),
            5 => Message::KeyRequest(self.request(body)?),
            6 => Message::Refused(Refused {
                client_random: self.got(body.array())?,
                reason: Reason(self.got(body.u16())?),
            }),
            7 => Message::Ping(self.got(body.u64())?),
            8 => Message::Pong(self.got(body.u64())?),
            9 => Message::LiveKeysRequest,
            10 => Message::LiveKeys(self.session(body)?),
            11 => Message::EndpointOpened(EndpointOpened {
                endpoint: self.got(body.u32())?,
                address: self.got(read_address(body))?.ok_or(self.bad("address"))?,
                capabilities: self.got(body.u32())?,
                authenticated: match self.got(body.u8())? {
                    0 => false,
                    1 => true,
                    _ => return Err(self.bad("authenticated")),
                },
            }),
            12 => Message::EndpointClosed(self.got(body.u32())?),
            RELAYED => {
                let endpoint = self.got(body.u32())?;
                // One in another is not even looked into: they could be stacked hundreds deep.
                if body.rest().get(1) == Some(&RELAYED) {
                    return Err(self.bad("message"));
                }
                match decode(body.rest()) {
                    Ok(Decoded::Message { message, consumed }) if message.is_relayable() => {
                        self.got(body.take(consumed))?;
                        Message::Relayed(Relayed { endpoint, message: Box::new(message) })
                    }
                    _ => return Err(self.bad("message")),
                }
            }
            14 => Message::EchKeyRequest(EchKeyRequest {
                request: self.request(body)?,
                flow: self.flow(body)?,
                client_hello: match self.got(body.vec16())? {
                    hello if hello.len() > MAX_CLIENT_HELLO_BYTES => {
                        return Err(self.bad("client_hello"));
                    }
                    hello => hello.into(),
                },
            }),
            15 => Message::Steering(Steering {
                workers: Some(self.got(body.u32())?)
                    .filter(|it| *it > 0)
                    .ok_or(self.bad("workers"))?,
                seed: self.got(body.u32())?,
            }),
            _ => return Ok(None),
        }))
    }

    fn request(&self, body: &mut Reader<'_>) -> Result<KeyRequest, DecodeError> {
        Ok(KeyRequest {
            client_random: self.got(body.array())?,
            server_random: self.got(body.array())?,
            version: self.got(body.u16())?,
            cipher_suite: self.got(body.u16())?,
            direction: self.direction(body)?,
            epoch: Epoch(self.got(body.u32())?),
        })
    }

    fn greeting(&self, body: &mut Reader<'_>) -> Result<Greeting, DecodeError> {
        let capabilities = self.got(body.u32())?;
        let software = std::str::from_utf8(self.got(body.vec8())?)
            .ok()
            .filter(|text| software_is_valid(text))
            .ok_or(self.bad("software"))?;
        Ok(Greeting { software: software.to_owned(), capabilities })
    }

    fn session(&self, body: &mut Reader<'_>) -> Result<SessionKeys, DecodeError> {
        let client_random = self.got(body.array())?;
        let version = self.got(body.u16())?;
        let cipher_suite = self.got(body.u16())?;
        let server_random = match self.got(body.vec8())? {
            [] => None,
            bytes => Some(bytes.try_into().map_err(|_| self.bad("server_random"))?),
        };
        let flow = self.flow(body)?;
        let count = usize::from(self.got(body.u8())?);
        if count == 0 || count > MAX_KEYS {
            return Err(self.bad("key_count"));
        }
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = KeyEntry {
                direction: self.direction(body)?,
                epoch: Epoch(self.got(body.u32())?),
                key: self.secret(body, "key")?,
                iv: self.secret(body, "iv")?,
                mac_key: self.secret(body, "mac_key")?,
            };
            if entry.key.as_bytes().is_empty() {
                return Err(self.bad("key"));
            }
            keys.push(entry);
        }
        Ok(SessionKeys { client_random, server_random, version, cipher_suite, flow, keys })
    }

    fn flow(&self, body: &mut Reader<'_>) -> Result<Option<Flow>, DecodeError> {
        self.got(Flow::read(body))?.map_err(|()| self.bad("flow"))
    }

    fn directions(&self, body: &mut Reader<'_>) -> Result<Option<Direction>, DecodeError> {
        match self.got(body.u8())? {
            0 => Ok(Some(Direction::ClientToServer)),
            1 => Ok(Some(Direction::ServerToClient)),
            BOTH_DIRECTIONS => Ok(None),
            _ => Err(self.bad("directions")),
        }
    }

    fn direction(&self, body: &mut Reader<'_>) -> Result<Direction, DecodeError> {
        match self.got(body.u8())? {
            0 => Ok(Direction::ClientToServer),
            1 => Ok(Direction::ServerToClient),
            _ => Err(self.bad("direction")),
        }
    }

    fn secret<const MAX: usize>(
        &self,
        body: &mut Reader<'_>,
        field: &'static str,
    ) -> Result<SecretBytes<MAX>, DecodeError> {
        SecretBytes::new(self.got(body.vec8())?).ok_or(self.bad(field))
    }

    fn got<T>(&self, read: Result<T, Short>) -> Result<T, DecodeError> {
        read.map_err(|Short| DecodeError::Truncated(self.kind))
    }

    fn bad(&self, field: &'static str) -> DecodeError {
        DecodeError::Value { kind: self.kind, field }
    }
}

/// Cuts a byte stream into messages; keeps at most one incomplete message, wiped when dropped.
pub struct Decoder {
    partial: Zeroizing<Vec<u8>>,
    skipped: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// An empty decoder.
    #[must_use]
    pub fn new() -> Self {
        Self { partial: Zeroizing::new(Vec::new()), skipped: 0 }
    }

    /// How many messages of unknown types were skipped.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Takes the next bytes of the stream and hands every message they complete to `each`.
    ///
    /// # Errors
    /// [`DecodeError`]; messages before the fault were delivered, the decoder is of no more use.
    pub fn feed(
        &mut self,
        mut input: &[u8],
        mut each: impl FnMut(Message),
    ) -> Result<(), DecodeError> {
        while !self.partial.is_empty() {
            let wanted = match decode(&self.partial)? {
                Decoded::NeedMore { bytes } => bytes,
                complete => {
                    self.deliver(complete, &mut each);
                    self.partial.zeroize();
                    break;
                }
            };
            let missing = wanted.saturating_sub(self.partial.len()).max(1);
            let Some((taken, rest)) = input.split_at_checked(missing) else {
                self.partial.extend_from_slice(input);
                return Ok(());
            };
            self.partial.extend_from_slice(taken);
            input = rest;
        }
        while !input.is_empty() {
            match decode(input)? {
                Decoded::NeedMore { .. } => {
                    if self.partial.capacity() == 0 {
                        // Reserved once: growing would leave copies of keys in freed memory.
                        self.partial.reserve_exact(MAX_MESSAGE_BYTES);
                    }
                    self.partial.extend_from_slice(input);
                    return Ok(());
                }
                complete => {
                    let consumed = self.deliver(complete, &mut each);
                    input = input.get(consumed..).unwrap_or_default();
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self, decoded: Decoded, each: &mut impl FnMut(Message)) -> usize {
        match decoded {
            Decoded::NeedMore { .. } => 0,
            Decoded::Unknown { consumed, .. } => {
                self.skipped += 1;
                consumed
            }
            Decoded::Message { message, consumed } => {
                each(message);
                consumed
            }
        }
    }
}
