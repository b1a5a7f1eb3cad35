//! The names of what is counted beside the engine and the monitor: in `stats` of `eve.json`, and in metrics. Refuses to
//! read a counter itself.

use std::collections::BTreeMap;

use mmtls_middlebox::{Counters, KeyCounters, Status};
use mmtls_packet_io::PortCounters;

/// A name, what it counts, and the value.
pub type Count = (&'static str, &'static str, u64);

/// What a worker keeps at the moment.
#[must_use]
pub fn kept(status: &Status) -> [Count; 3] {
    [
        ("flows_now", "Flows in the table, those that were reset included.", status.flows),
        (
            "buffered_bytes_now",
            "Bytes kept for reassembly, stalls and searches.",
            status.buffered_bytes,
        ),
        ("held_frames_now", "Frames that wait for their verdict.", status.held_frames),
    ]
}

/// What a worker counts beside its engine.
#[must_use]
pub fn faults(status: &Status) -> [Count; 3] {
    [
        (
            "offloads_refused",
            "Frames dropped because finishing their checksum would have changed their content, or because the kernel cannot cut them (in tunnels).",
            status.refused_offloads,
        ),
        (
            "guard_leases_lost",
            "How often a worker was silent, or waited for one that was, while the guard forwarded.",
            status.leases_lost,
        ),
        (
            "interface_downs",
            "How often an interface went down or lost its carrier.",
            status.interface_downs,
        ),
    ]
}

/// Of both ports, whether it can be used.
#[must_use]
pub fn links(status: &Status) -> [Count; 2] {
    let help = "1 where the interface is up and has a carrier, otherwise 0.";
    let [left, right] = status.ports_down.map(|is_down| u64::from(!is_down));
    [("left_up", help, left), ("right_up", help, right)]
}

/// What the guard has passed by in place of a monitor: also while none ran, which no other count of a run has.
#[must_use]
pub fn guard(of: &PortCounters) -> [Count; 2] {
    [
        (
            "guard_passed_frames",
            "Frames that came in here and that the guard has forwarded since it was installed, also before this run.",
            of.guard_passed_frames,
        ),
        ("guard_passed_bytes", "Their bytes.", of.guard_passed_bytes),
    ]
}

/// How many of [`port`] are in `stats` of `eve.json`, too.
const IN_STATS: usize = 8;

/// What a port counts.
#[must_use]
pub fn port(of: &PortCounters) -> [Count; IN_STATS + 5] {
    [
        (
            "kernel_drops",
            "Frames that the kernel lost because they were not read in time.",
            of.kernel_dropped,
        ),
        (
            "bad_length",
            "Frames dropped because they are too long or too short.",
            of.truncated + of.runts,
        ),
        (
            "bad_offload",
            "Frames lost for their kind of segmentation offload.",
            of.unsupported_offload,
        ),
        ("send_errors", "Frames that could not be sent.", of.send_errors.total()),
        (
            "kernel_forwarded",
            "Frames that came in here and that the kernel forwarded by itself.",
            of.offloaded_frames,
        ),
        ("kernel_forwarded_bytes", "Their bytes.", of.offloaded_bytes),
        (
            "guard_forwarded",
            "Frames that came in here and that the guard forwarded, since no monitor did.",
            of.guard_forwarded_frames,
        ),
        (
            "guard_discarded",
            "Frames received and discarded, since the guard may have forwarded them.",
            of.guard_discarded_frames,
        ),
        (
            "guard_forwarded_bytes",
            "Bytes of the frames that the guard forwarded.",
            of.guard_forwarded_bytes,
        ),
        ("received_frames", "Frames received; a super-frame is one.", of.received_frames),
        ("received_bytes", "Their bytes.", of.received_bytes),
        ("sent_frames", "Frames sent.", of.sent_frames),
        ("sent_bytes", "Their bytes.", of.sent_bytes),
    ]
}

const LEFT: [&str; IN_STATS] = [
    "left_kernel_drops",
    "left_bad_length",
    "left_bad_offload",
    "left_send_errors",
    "left_kernel_forwarded",
    "left_kernel_forwarded_bytes",
    "left_guard_forwarded",
    "left_guard_discarded",
];
const RIGHT: [&str; IN_STATS] = [
    "right_kernel_drops",
    "right_bad_length",
    "right_bad_offload",
    "right_send_errors",
    "right_kernel_forwarded",
    "right_kernel_forwarded_bytes",
    "right_guard_forwarded",
    "right_guard_discarded",
];

const LEFT_GUARD: [&str; 2] = ["left_guard_passed_frames", "left_guard_passed_bytes"];
const RIGHT_GUARD: [&str; 2] = ["right_guard_passed_frames", "right_guard_passed_bytes"];

/// What all workers' key channel counts.
#[must_use]
pub fn keys(keys: &KeyCounters) -> [Count; 15] {
    let (server, sealed) = (&keys.server, &keys.sealed);
    [
        ("key_connections_now", "Connections of the key channel that are open.", server.open),
        (
            "key_connections_refused",
            "Connections of the key channel closed because of a limit.",
            server.over_limit,
        ),
        ("key_messages_skipped", "Key messages of unknown types or endpoints.", server.skipped),
        (
            "key_messages_undelivered",
            "Messages to endpoints that are gone or do not read.",
            server.undelivered,
        ),
        ("key_connections", "Connections of the key channel accepted.", server.accepted),
        ("key_messages", "Key messages received.", server.messages),
        (
            "key_messages_malformed",
            "Connections closed because of a malformed or forbidden message.",
            server.malformed,
        ),
        (
            "key_handshakes_failed",
            "Connections that did not get to a hello.",
            server.failed_handshakes,
        ),
        (
            "key_queue_full",
            "Deliveries dropped because a worker's queue was full.",
            keys.queue_full,
        ),
        ("keys_unusable", "Deliveries whose keys fit no supported suite.", keys.unusable),
        ("keys_sealed", "Packets of key servers accepted.", sealed.accepted),
        ("sealed_unknown", "Packets of key servers that are not known.", sealed.unknown),
        ("sealed_forged", "Packets of key servers that do not verify.", sealed.forged),
        ("sealed_replayed", "Packets of key servers that came again.", sealed.replayed),
        ("sealed_malformed", "Packets of key servers that cannot be read.", sealed.malformed),
    ]
}

/// An engine's counters by name.
#[must_use]
pub fn engine_map(counters: &Counters) -> BTreeMap<&'static str, u64> {
    counters.list().collect()
}

/// What `stats` says of a worker, or of all together.
#[must_use]
pub fn status_map(status: &Status) -> BTreeMap<&'static str, u64> {
    let mut all = engine_map(&status.engine);
    all.extend(
        kept(status)
            .into_iter()
            .chain(faults(status))
            .chain(links(status))
            .map(|(name, _, value)| (name, value)),
    );
    for (names, of) in [(LEFT, &status.bridge.left), (RIGHT, &status.bridge.right)] {
        all.extend(names.into_iter().zip(port(of).map(|(.., value)| value)));
    }
    for (names, of) in [(LEFT_GUARD, &status.bridge.left), (RIGHT_GUARD, &status.bridge.right)] {
        all.extend(names.into_iter().zip(guard(of).map(|(.., value)| value)));
    }
    all
}

/// Frames that the kernel lost on both sides.
#[must_use]
pub fn kernel_drops(status: &Status) -> u64 {
    status.bridge.left.kernel_dropped + status.bridge.right.kernel_dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_same_names_in_stats_as_in_metrics() {
        for (name, at) in [(LEFT, "left"), (RIGHT, "right")] {
            for (in_stats, (name, ..)) in name.iter().zip(port(&PortCounters::default())) {
                assert_eq!(*in_stats, format!("{at}_{name}"));
            }
        }
        for (name, at) in [(LEFT_GUARD, "left"), (RIGHT_GUARD, "right")] {
            for (in_stats, (name, ..)) in name.iter().zip(guard(&PortCounters::default())) {
                assert_eq!(*in_stats, format!("{at}_{name}"));
            }
        }
    }
}
