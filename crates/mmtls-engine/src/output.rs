//! What the engine asks the I/O layer to do, besides the verdict on each frame.
//!
//! Refuses to own buffers: held frames stay with the I/O layer, known by number, and memory of
//! frames is kept only where it is offered.

use core::net::SocketAddr;
use std::sync::Arc;

use crate::port::PortId;
use crate::session::SessionId;
use crate::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};
use crate::wire::Link;

/// Names a held frame; never reused by an engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HoldId(pub u64);

/// A frame as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct FrameInput<'a> {
    /// Where it came in.
    pub port: PortId,
    /// What its bytes begin with.
    pub link: Link,
    /// The whole frame; GSO super-frames are welcome.
    pub bytes: &'a [u8],
    /// The memory that `bytes` are in, when the engine may keep it until they are acknowledged,
    /// instead of copying a large frame. It is charged for all of it ([`Limits`](crate::Limits)).
    pub memory: Option<&'a Arc<[u8]>>,
    /// The TCP checksum needs no check: filled in later by hardware, or checked by it already.
    pub checksum_trusted: bool,
}

/// The answer to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send it on unchanged.
    Forward,
    /// Keep it under this number until [`Output::Release`] or [`Output::Discard`] names it.
    Hold(HoldId),
    /// Throw it away.
    Drop,
    /// Act on the outputs, which take its connection back ([`Output::TakeBack`]), then hand it in once more.
    Again,
}

/// Where an injected frame leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Where a frame that arrived on this port is forwarded to.
    AwayFrom(PortId),
    /// This port: the other one is not known, since nothing has come from there.
    Through(PortId),
}

/// What else is to be done, in this order.
#[derive(PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a held frame on.
    Release(HoldId),
    /// Throw a held frame away.
    Discard(HoldId),
    /// Send a frame that no endpoint has sent.
    Inject {
        /// Where to.
        exit: Exit,
        /// The whole frame, ready to be sent.
        frame: Vec<u8>,
    },
    /// Nothing of a connection is looked at, or not of some records: its plain segments may be forwarded without being shown to
    /// the engine, from here on. SYN, FIN, RST, urgent data, fragments and segments with anything unusual are to be shown. A hint, and it
    /// may come again with later positions; never without [`Config::offload`](crate::Config::offload).
    Offload(Box<OffloadedFlow>),
    /// Such a connection is to be shown again. What was forwarded until then is to be told with
    /// [`Engine::handle_taken_back`](crate::Engine::handle_taken_back), at once.
    TakeBack(Box<OffloadedFlow>),
    /// Keys are wanted: a hint for key logs and for asking an endpoint.
    KeysNeeded(KeysNeeded),
    /// A connection was there before the monitor: its endpoint may have the keys of its session.
    LiveKeysNeeded(LiveKeysNeeded),
    /// Keys open no record of their session: a hint for telling their sender.
    KeysOpenNothing(KeysOpenNothing),
}

/// A connection that is left to the I/O layer. Of each pair the client's comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffloadedFlow {
    /// Names it.
    pub id: SessionId,
    /// Its ends.
    pub ends: [SocketAddr; 2],
    /// Where their segments come in.
    pub ports: [PortId; 2],
    /// Sequence numbers of their stream offset 0.
    pub initial: [u32; 2],
    /// Stream offsets up to which everything has been seen. Segments behind that may wait where the engine was not yet asked
    /// about them: others must not overtake them.
    pub positions: [u64; 2],
    /// Where not all of it may go.
    pub records: Option<OffloadedRecords>,
}

/// Records of a direction that nobody reads. Besides segments without payload, only those may go that stand exactly at the
/// direction's position, which is moved behind them, and in which only whole headers of such records begin: of application
/// data, version 3.3, and fragments of more than 64 and at most 2^14 + 256 bytes. Of the other direction only segments without
/// payload may. None may whose sequence and acknowledgment number are as far from `initial`, within 3: with those a receiver that has
/// lost the connection begins another one by a SYN cookie, and that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffloadedRecords {
    /// Which direction.
    pub direction: Direction,
    /// Stream offset of the next one's header.
    pub next: u64,
    /// Bytes of content that may go; `u64::MAX`: all that come.
    pub content: u64,
    /// How many bytes of a fragment are not content, at least: not more than 128.
    pub overhead: u16,
}

/// What the I/O layer has forwarded of a direction without showing it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ForwardedElsewhere {
    /// Frames.
    pub packets: u64,
    /// Bytes of TCP payload in them.
    pub bytes: u64,
    /// Stream offset behind the last of them; where there was none 0, or what was offered.
    pub position: u64,
    /// Of the direction across from [`OffloadedRecords::direction`]: the latest acknowledgment number.
    pub acknowledgment: Option<u32>,
    /// Of that direction.
    pub records: RecordsElsewhere,
}

/// Records that the I/O layer has forwarded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordsElsewhere {
    /// How many.
    pub count: u64,
    /// Bytes of content in them, as [`OffloadedRecords::content`] counts.
    pub content: u64,
    /// Stream offset behind the last one, of which the rest may still have to come.
    pub next: u64,
    /// Lengths of the latest ones' fragments, in order; of as many as can be in flight.
    pub fragment_lens: Vec<u16>,
}

/// Which connection's beginning was not seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveKeysNeeded {
    /// Its ends. Which of them is the client is not known.
    pub ends: [SocketAddr; 2],
}

/// Whose keys open nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeysOpenNothing {
    /// The session's client.
    pub client: SocketAddr,
    /// `ClientHello.random`.
    pub client_random: [u8; 32],
    /// The connection that they came over, as [`SharedKeys::source`](crate::SharedKeys::source) has it.
    pub source: u64,
}

/// Which keys are wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeysNeeded {
    /// The session's client.
    pub client: SocketAddr,
    /// Its server.
    pub server: SocketAddr,
    /// `ClientHello.random`.
    pub client_random: [u8; 32],
    /// `ServerHello.random`; `None` for early data.
    pub server_random: Option<[u8; 32]>,
    /// The negotiated version.
    pub version: ProtocolVersion,
    /// The negotiated suite; `None` for early data, whose suite is that of the pre-shared key
    /// (RFC 8446, section 4.2.11).
    pub cipher_suite: Option<CipherSuite>,
    /// Which direction.
    pub direction: Direction,
    /// Which epoch of it.
    pub epoch: KeyEpoch,
    /// The connection that keys of the session came over last which are in use, as [`SharedKeys::source`](crate::SharedKeys::source)
    /// has it: its endpoint knows the session. 0 where there are none yet, and where it is not known.
    pub source: u64,
    /// The ClientHello has an encrypted one in it, so that the endpoint may know the session by another random.
    pub offers_ech: bool,
    /// The body of that ClientHello: with what its client knows, the random inside can be found. Only with the first
    /// request of each epoch before any KeyUpdate, and not where it is longer than [`Self::MAX_CLIENT_HELLO_BYTES`].
    pub client_hello: Option<Arc<[u8]>>,
}

impl KeysNeeded {
    /// Longest [`Self::client_hello`]: one that fits into a question to an endpoint.
    pub const MAX_CLIENT_HELLO_BYTES: usize = 3968;
}
