//! What the engine counts. Refuses to print.

use crate::histogram::Histogram;

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)*) => {
        /// Monotonic counters of one engine.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)*
            /// How long stalls were, whatever has ended them.
            pub stall_times: Histogram,
        }

        impl Counters {
            /// Every counter by name, in declaration order.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// What each of them counts, in the same order.
            pub fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$((stringify!($name), concat!($($text),+)),)*].into_iter()
            }
        }

        impl core::ops::AddAssign for Counters {
            /// Those of another engine.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.stall_times += other.stall_times;
            }
        }
    };
}

counters! {
    /// Frames handled.
    frames,
    /// Frames whose verdict was to forward at once.
    forwarded,
    /// Frames held for keys.
    held,
    /// Held frames that were released after inspection or by policy.
    released,
    /// Frames dropped, held ones included.
    dropped,
    /// RST frames injected.
    resets_injected,
    /// Frames that were not TCP over IP.
    not_tcp,
    /// Datagrams with DTLS records.
    dtls_packets,
    /// QUIC packets with a long header: those that open connections.
    quic_packets,
    /// Frames that claimed to be TCP and were not.
    malformed_frames,
    /// Segments from or to endpoints that are left alone; not those that the I/O layer forwards by a rule of its own.
    bypassed,
    /// Connections left alone since the engine drains: it is about to end.
    drained,
    /// Connections forgotten because frames had passed that were not shown: the I/O layer had failed open.
    failed_open,
    /// Segments dropped because their connection is another engine's.
    misplaced,
    /// IP fragments that may carry TCP.
    fragments,
    /// Those of them that were put together.
    fragments_joined,
    /// Frames that carry IP in a form that is not followed: tunnels, other frame formats.
    encapsulated,
    /// SYNs that ask for multipath TCP.
    multipath,
    /// SYNs and SYN-ACKs dropped because they carry data, FIN or RST: senders repeat them without.
    syn_data,
    /// Connections to TLS ports that carry something else.
    not_tls,
    /// Segments ignored for a wrong checksum.
    bad_checksums,
    /// Flows created.
    flows,
    /// Segments of connections whose beginning was not seen.
    mid_stream,
    /// Sessions whose beginning was not seen and that are followed with keys of their endpoint.
    mid_stream_followed,
    /// Segments dropped because they came from the other side than their sender's.
    wrong_side,
    /// Segments with urgent data dropped: receivers take it out of the stream.
    urgent,
    /// Attempts, connections that are over, and silent ones of clients with the most of them, forgotten early because the table was full.
    evicted,
    /// Packets dropped because their flow was gone while they were handled: never, unless by a fault.
    lost_flows,
    /// Packets of flows that did not fit in the table.
    table_full,
    /// Flows on which TLS was recognised.
    sessions,
    /// Out-of-order segments buffered.
    out_of_order,
    /// Segments whose bytes had all been seen.
    retransmissions,
    /// Segments dropped because their bytes contradict buffered ones.
    conflicting_overlaps,
    /// Segments dropped because a buffer was full.
    buffer_full,
    /// RST, SYN and empty segments that did not fit the connection: without effect.
    stray_control,
    /// Segments dropped: data behind a FIN, a RST, or far outside the window; old numbers that a SYN cookie may fit.
    out_of_window,
    /// Protected records of application epochs that were complete.
    records_seen,
    /// Records opened.
    records_opened,
    /// Records skipped by a pause.
    records_paused,
    /// Records whose tag did not verify after the switch to application keys.
    records_failed,
    /// Openings with keys that did not fit: of encrypted handshake records, or with others than those in use.
    trials_failed,
    /// Records of the encrypted handshake opened with shared keys.
    handshake_records_opened,
    /// Certificate messages that are not in the format of X.509 chains.
    certificates_unreadable,
    /// Records of early data that passed without being shown: rejected by the server, or by policy
    /// without keys. Those behind the ServerHello that nothing opens are not told apart.
    early_records_passed,
    /// KeyUpdate messages followed.
    key_updates,
    /// Handshakes of TLS 1.2 that were begun inside a session.
    renegotiations,
    /// Stalls begun.
    stalls,
    /// Stalls ended by keys.
    stalls_ended_by_keys,
    /// Stalls ended by a limit.
    stalls_ended_by_limit,
    /// Nanoseconds between the start of a stall and the keys, summed.
    stall_ns,
    /// Key deliveries accepted (per direction and epoch).
    keys_accepted,
    /// Key deliveries for sessions not seen yet.
    keys_pending,
    /// Pending deliveries that expired or were displaced.
    keys_expired,
    /// Key deliveries refused, whatever the cause.
    keys_refused,
    /// Of these, those whose sender is not the session's client.
    keys_wrong_sender,
    /// Of these, those for another server random or suite.
    keys_mismatch,
    /// Of these, those that opened no record of their session.
    keys_open_nothing,
    /// Of these, those for sessions not seen yet, of senders who have their share of what is kept.
    keys_over_quota,
    /// Key deliveries that came again, or to a session that is over or not followed: no fault of anybody.
    keys_not_needed,
    /// Null keys accepted: sessions that are exempt.
    null_keys,
    /// Sessions of clients that have refused too many (`Limits::null_keys_per_minute`).
    too_many_null_keys,
    /// Directions of sessions whose endpoint refuses to share them; the other one is followed.
    directions_refused,
    /// Protected records that passed in such directions.
    records_unread,
    /// Sessions that are exempt by their server name (`Config::exempt_names`).
    exempt_names,
}
