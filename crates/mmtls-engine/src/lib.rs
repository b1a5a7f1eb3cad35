//! The sans-I/O engine of mmTLS: bytes and timestamps in, events and verdicts out.
//!
//! ```text
//! frame → wire → tcp → recognition → follow → handler
//!          │      │                     │         │
//!          └──────┴───── driver ────────┴─────────┘
//!                          │
//!            Forward | Hold(n) | Drop, Release(n), Discard(n), Inject
//! ```
//!
//! Refuses to read a clock, open anything, spawn, use unsafe, link crypto, or buffer without a cap.
//!
//! # Modules
//!
//! | Module | Does | Refuses |
//! |---|---|---|
//! | `wire` | parses a frame once, builds RSTs | to keep anything |
//! | `tcp` | connections: table, order of bytes, which are not acknowledged, which frames are held, who takes how much | to know what a connection carries |
//! | `recognition` | whether TLS begins, in the first bytes or behind STARTTLS | to follow it |
//! | `follow` | one session: records, handshake, keys, early data, stalls; `tls12` and `tls13` have a state each | to know packets or the application: it talks through a `SessionSink` and answers a `Disposition` |
//! | `keys` | keys before their use: deliveries without a session, several for one thing | to open anything |
//! | `driver` | hands each frame to `tcp` and what becomes contiguous to `follow`; binds the handler to its state of a session; makes the verdicts | to let a held frame of a connection go anywhere but in `conclude` |
//! | [`session`] | what applications see and ask for | to show packets, keys, or bytes that are not authenticated |
//!
//! `tcp` and `follow` do not name each other: both are seen by `driver` alone.
//!
//! # Where to look
//!
//! * A segment's verdict is made after the handler has seen the records that it completes (`driver/segment.rs`; `new_record`
//!   in `follow/epoch.rs`): with keys nothing waits.
//! * A frame is held by `verdict_for` (`driver/conclude.rs`) while a record that it completes waits for keys, and goes by
//!   `release` there once the session's `barrier` is behind it. Fragments are held and let go in `driver/fragments.rs`;
//!   frames of no connection get their verdict where they are parsed. The frames themselves lie in `HeldFrames` of
//!   `mmtls-middlebox` (`worker/held.rs`).
//! * A record waits (`Step::NeedKeys`) in `follow/tls13/mod.rs` and, of early data, `follow/tls13/early.rs`; of TLS 1.2
//!   (`Handled::NeedKeys`) in `follow/tls12.rs`; the stall that follows is in `follow/session.rs`, its limits in `driver/stalls.rs`.
//! * The private tag is asked for at the ServerHello, before anything behind it: `require_private_tag` in
//!   `follow/reporter.rs`, called by `follow/protocol.rs`, or, of a session that is found in its middle, by
//!   `follow/session.rs`. That of a record is checked by endpoints (`PrivateTagOpener` in `mmtls-record`): no monitor has
//!   its key.
//! * Policies of errors in a session are applied by `fail` in `follow/reporter.rs`, `null_keys` by `handle_null_keys` in
//!   `follow/session.rs`; those of connections that are not (known to be) TLS by `refuse` in `driver/opening.rs`, called by
//!   `give_up` in `driver/acknowledgment.rs` and, for `not_tls`, by `driver/feed.rs`; `mid_stream` by
//!   `apply_mid_stream_policy` and `table_full` by `refuse_flow` in `driver/new_flow.rs`; those of frames where the frame
//!   is looked at.
//!   What becomes of content that is not inspected is the application's (`mmtls/src/monitor/reports.rs`).
//! * Connections whose beginning was not seen wait in `driver/live.rs`; the keys of their sessions in `keys/live.rs`; the first
//!   record of a direction is found by `follow/search.rs`.
//! * TLS is recognised by `Recogniser::handle_bytes`, called by `feed` in `driver/feed.rs`; later turns by
//!   `Watch::handle_segment`, called in `driver/reassemble.rs`.
//! * A handler's reset counts from `apply_control` on, and stops everything that has not been inspected: `conclude`.
#![forbid(unsafe_code)]

mod buffer_pool;
mod config;
mod counters;
mod driver;
mod follow;
mod histogram;
mod keys;
mod output;
mod port;
mod recognition;
pub mod session;
mod tcp;
mod wire;

/// TLS as it stands on the wire: what sessions, keys and records are made of.
pub use mmtls_tls as tls;

pub use config::{
    Awaited, Bypass, Cleartext, Config, ExemptNames, IsExempt, KeySenders, Limits, Network,
    Policies, Policy, Share, TLS_PORTS,
};
pub use counters::Counters;
pub use driver::{Carries, Engine, FlowView};
pub use histogram::Histogram;
pub use keys::{LiveKey, LiveKeys, SharedKeys};
pub use output::{
    Exit, ForwardedElsewhere, FrameInput, HoldId, KeysNeeded, KeysOpenNothing, LiveKeysNeeded,
    OffloadedFlow, OffloadedRecords, Output, RecordsElsewhere, Verdict,
};
pub use port::PortId;
pub use session::KeyRefusal;
pub use wire::{Link, cuts_in_place, finishes_in_place, udp_payload};
