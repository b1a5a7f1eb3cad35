//! What an operator can set: policies, limits, timeouts. Every cap has a default and a stated
//! consequence. Refuses nothing here; the binary checks what it reads from files.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::tls::{CipherSuite, ProtocolVersion};

/// What to do with a session that meets a certain condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Forward what is concerned and go on following as well as possible.
    Forward,
    /// Forward everything from now on and stop following.
    Bypass,
    /// Drop what is concerned and every later packet of the connection, silently.
    Drop,
    /// As `Drop`, and send a RST to both endpoints.
    Reset,
}

impl Policy {
    /// The name used in configuration files and printed at start.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Bypass => "bypass",
            Self::Drop => "drop",
            Self::Reset => "reset",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Forward, Self::Bypass, Self::Drop, Self::Reset]
            .into_iter()
            .find(|policy| policy.name() == name)
    }
}

/// One policy per condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Keys did not come within the stall limits. `Forward` means `Bypass` here: without keys
    /// there is nothing to follow. Also applied to early data (0-RTT) without their keys: there
    /// `Forward` lets them pass and follows the rest.
    pub missing_keys: Policy,
    /// The endpoint refused to share ("null keys").
    pub null_keys: Policy,
    /// The same, of a client that has refused `Limits::null_keys_per_minute` sessions in this minute.
    pub too_many_null_keys: Policy,
    /// What a client of TLS 1.3 sends as its handshake under keys that are not shared, beyond one record of Finished's length: its
    /// certificate, or content that nobody will be shown.
    pub unread_flight: Policy,
    /// A version or cipher suite that cannot be followed.
    pub unsupported: Policy,
    /// A session that was negotiated without the private tag (`docs/private-tag.md`), reported at the
    /// ServerHello, so that null keys make no exception. `Forward` asks for nothing.
    pub require_private_tag: Policy,
    /// A record whose tag does not verify, or keys that open nothing.
    pub integrity_failure: Policy,
    /// Malformed records or handshake messages, gaps, and full reassembly buffers.
    pub lost_synchronisation: Policy,
    /// A TCP connection whose SYN was not seen. During `Config::mid_stream_grace_ns`, and with
    /// `Forward` or `Bypass`, it passes, and is followed where a ClientHello begins in it. `Drop` and
    /// `Reset` keep no state for it.
    pub mid_stream: Policy,
    /// A connection to one of `Config::tls_ports` that does not begin as TLS does, or with the header
    /// of a load balancer (PROXY protocol) in front. `Bypass` means `Forward` here.
    pub not_tls: Policy,
    /// A connection that no longer fits in the flow table. `Reset` means `Drop` here.
    pub table_full: Policy,
    /// A session that has to make room, since `Limits::max_buffered_bytes` are taken.
    pub memory_cap: Policy,
    /// IP fragments that may carry TCP and cannot be put together: they overlap or contradict each
    /// other, their packet stays incomplete for 30 seconds, or there are too many. `Bypass` means
    /// `Forward` and `Reset` means `Drop` here.
    pub fragments: Policy,
    /// SYNs that ask for multipath TCP (RFC 8684), whose subflows are no streams of their own:
    /// `Drop` and `Reset` both drop them, and their senders fall back to plain TCP.
    pub multipath: Policy,
    /// DTLS and QUIC, which are not followed: `Drop` and `Reset` both drop the packets by which
    /// connections are opened, so that programs fall back to TCP.
    pub udp_tls: Policy,
    /// IP in a form that is not followed: in other packets (GRE, IP in IP, VXLAN and other tunnels
    /// over UDP), behind MPLS, PPPoE or LLC. `Bypass` means `Forward` and `Reset` means `Drop` here.
    pub encapsulated: Policy,
}

impl Policies {
    /// The defaults around an explicit answer to missing keys: where sessions without keys must
    /// not pass, neither may those that are not followed for another reason.
    #[must_use]
    pub const fn new(missing_keys: Policy) -> Self {
        let unseen = match missing_keys {
            Policy::Forward | Policy::Bypass => Policy::Bypass,
            Policy::Drop => Policy::Drop,
            Policy::Reset => Policy::Reset,
        };
        Self {
            missing_keys,
            memory_cap: Policy::Reset,
            null_keys: Policy::Bypass,
            too_many_null_keys: Policy::Reset,
            unread_flight: Policy::Forward,
            unsupported: unseen,
            require_private_tag: Policy::Forward,
            integrity_failure: Policy::Reset,
            lost_synchronisation: Policy::Reset,
            mid_stream: unseen,
            not_tls: unseen,
            table_full: unseen,
            fragments: unseen,
            multipath: unseen,
            udp_tls: Policy::Forward,
            encapsulated: match missing_keys {
                Policy::Forward | Policy::Bypass => Policy::Forward,
                Policy::Drop | Policy::Reset => Policy::Drop,
            },
        }
    }

    /// Name and value of each policy, for printing at start.
    #[must_use]
    pub fn list(&self) -> [(&'static str, Policy); 16] {
        [
            ("missing_keys", self.missing_keys),
            ("null_keys", self.null_keys),
            ("too_many_null_keys", self.too_many_null_keys),
            ("unread_flight", self.unread_flight),
            ("unsupported", self.unsupported),
            ("require_private_tag", self.require_private_tag),
            ("integrity_failure", self.integrity_failure),
            ("lost_synchronisation", self.lost_synchronisation),
            ("mid_stream", self.mid_stream),
            ("not_tls", self.not_tls),
            ("table_full", self.table_full),
            ("memory_cap", self.memory_cap),
            ("fragments", self.fragments),
            ("multipath", self.multipath),
            ("udp_tls", self.udp_tls),
            ("encapsulated", self.encapsulated),
        ]
    }
}

/// Caps on memory and time. What all connections share is accounted by client address (IPv6: by
/// /64): where all of it is taken, who has the most makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Flows in the table. Beyond it the oldest one goes that only one side vouches for, of the
    /// client that has the most of those. Without any, or where these have less than an eighth of
    /// the table, first the one that has been over for the longest time, then a connection that has
    /// long been silent, of the client that has the most, for one that has fewer; else
    /// `Policies::table_full` decides. A client
    /// with more tombstones than are left for all others has to wait, too. About 1 KB each.
    pub max_flows: usize,
    /// Bytes kept per direction: out of order, and as much again forwarded and not acknowledged.
    /// A packet beyond it is dropped: its sender repeats it, and nothing passes unseen.
    pub max_reassembly_bytes: usize,
    /// Kept bytes of all flows together: out of order, not acknowledged, partial records, stalls,
    /// held frames. Of bytes that can be sent again, one client is given no more than is left for
    /// all others. Where seven eighths are taken, the connection that keeps the most, of the client
    /// that does, meets `Policies::memory_cap` (`Policies::mid_stream` if it is not known to carry
    /// TLS).
    pub max_buffered_bytes: usize,
    /// Bytes of plaintext handshake messages kept per direction.
    pub max_handshake_bytes: usize,
    /// Protected handshake bytes of the server kept, and tried, while its first application record
    /// is sought; half of that, in at most 8 records, for the client, or all of it where there may
    /// be early data that nothing opens. What comes beyond waits for keys that open it.
    pub max_search_bytes: usize,
    /// Held frames of all flows together. Beyond it the session that holds the most, of the client
    /// that does, meets the missing-key policy; among clients that hold few, the one that has
    /// waited longest.
    pub max_held_frames: usize,
    /// Held packets per flow until the missing-key policy is applied.
    pub stall_max_packets: usize,
    /// Held stream bytes per flow until the missing-key policy is applied.
    pub stall_max_bytes: usize,
    /// Nanoseconds a stall may last until the missing-key policy is applied.
    pub stall_timeout_ns: u64,
    /// The same, at most, where `Config::awaited` says that nobody is there to share keys.
    pub unshared_stall_timeout_ns: u64,
    /// Keys kept for sessions that have not been seen yet; the oldest go first. One sender may
    /// have a sixteenth of them.
    pub max_pending_keys: usize,
    /// Nanoseconds such a delivery is kept.
    pub pending_keys_timeout_ns: u64,
    /// Sessions of a client whose keys it may refuse in a minute, which begins with its first refusal: what it refuses
    /// beyond them meets `Policies::too_many_null_keys`. 0 is no limit.
    pub null_keys_per_minute: u32,
    /// Nanoseconds of silence until a connection attempt is forgotten, and what only one side vouches
    /// for. Anybody can make those in anybody's name.
    pub opening_timeout_ns: u64,
    /// Nanoseconds of silence until an open connection takes less memory, until something of it comes. One that goes on now and
    /// then is looked at after ten times as long.
    pub rest_after_ns: u64,
    /// Nanoseconds of silence until an established flow is forgotten. The default is longer than the
    /// two hours between keep-alives (RFC 9293, section 3.8.4; RFC 5382, REQ-5).
    pub idle_timeout_ns: u64,
    /// Nanoseconds a closed flow is remembered.
    pub closed_timeout_ns: u64,
    /// Nanoseconds of silence until the tombstone of a reset session is forgotten.
    pub tombstone_timeout_ns: u64,
}

/// HTTPS, and TLS from the first byte for SMTP, NNTP, LDAP, DNS, FTP, TELNET, IMAP, POP3, SIP, and
/// HTTPS again (the registry of service names and port numbers).
pub const TLS_PORTS: [u16; 12] = [443, 465, 563, 636, 853, 989, 990, 992, 993, 995, 5061, 8443];

const SECOND_NS: u64 = 1_000_000_000;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_flows: 1 << 20,
            max_reassembly_bytes: 8 << 20,
            max_buffered_bytes: 1 << 30,
            max_handshake_bytes: 128 << 10,
            max_search_bytes: 64 << 10,
            max_held_frames: 1 << 16,
            stall_max_packets: 1024,
            stall_max_bytes: 4 << 20,
            stall_timeout_ns: SECOND_NS / 2,
            unshared_stall_timeout_ns: SECOND_NS / 20,
            max_pending_keys: 1 << 16,
            pending_keys_timeout_ns: 5 * SECOND_NS,
            null_keys_per_minute: 0,
            opening_timeout_ns: 10 * SECOND_NS,
            rest_after_ns: 30 * SECOND_NS,
            idle_timeout_ns: 7500 * SECOND_NS,
            closed_timeout_ns: 30 * SECOND_NS,
            tombstone_timeout_ns: 180 * SECOND_NS,
        }
    }
}

/// An endpoint, or a network of them, whose connections are none of the monitor's business; with a
/// port, a server: only connections that others open to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bypass {
    /// The address, or any of the network.
    pub address: IpAddr,
    /// How many of its bits count.
    pub prefix_len: u8,
    /// Only connections that are opened to this port of it.
    pub port: Option<u16>,
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => write!(f, "{}/{}", self.address, self.prefix_len),
        }
    }
}

impl Bypass {
    /// Whether a connection between these ends is meant.
    pub(crate) fn meets(&self, one: SocketAddr, other: SocketAddr) -> bool {
        self.contains(one) || self.contains(other)
    }

    /// Whether this end of a connection is meant.
    #[must_use]
    pub fn contains(&self, end: SocketAddr) -> bool {
        let network = Network { address: self.address, prefix_len: self.prefix_len };
        network.contains(end.ip()) && self.port.is_none_or(|port| port == end.port())
    }
}

/// An address, or a network of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// The address, or any of the network.
    pub address: IpAddr,
    /// How many of its bits count.
    pub prefix_len: u8,
}

impl Network {
    /// Whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.prefix_len);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
            _ => false,
        }
    }
}

/// From which addresses keys are accepted for a session, and refusals. Those of this host (a key log) always are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeySenders {
    /// Its client's.
    pub client: bool,
    /// Its server's. What the client refuses stays refused.
    pub server: bool,
    /// Those of these networks, whose session it may be: of hosts behind address translation.
    pub networks: Vec<Network>,
    /// All.
    pub any: bool,
}

impl KeySenders {
    /// The client's address alone.
    pub const CLIENT: Self = Self { client: true, server: false, networks: Vec::new(), any: false };
    /// Any address.
    pub const ANY: Self = Self { client: true, server: true, networks: Vec::new(), any: true };

    /// Whether keys from this address count for any session.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.any || self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether keys may come from others than a session's own ends.
    #[must_use]
    pub fn has_trusted(&self) -> bool {
        self.any || !self.networks.is_empty()
    }

    /// Whose keys these are: the address for whose sessions they count, or with `None`, for any.
    #[must_use]
    pub fn identity(&self, sender: Option<IpAddr>) -> Option<IpAddr> {
        sender.filter(|address| !self.trusts(*address))
    }

    /// Whether whoever has this identity may share the keys of a session between these addresses.
    #[must_use]
    pub fn accepts(&self, identity: Option<IpAddr>, client: IpAddr, server: IpAddr) -> bool {
        identity.is_none_or(|it| self.ends(client, server).any(|end| end == it))
    }

    /// Which ends of a session may share its keys, client first.
    pub fn ends(&self, client: IpAddr, server: IpAddr) -> impl Iterator<Item = IpAddr> {
        let client = self.client.then_some(client);
        client.into_iter().chain(self.server.then_some(server))
    }
}

/// Which connections are an engine's own, where several engines share the interfaces.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// This engine's number, from 0.
    pub own: u32,
    /// Says whose a connection is: of the engine that has this number. Its ends come in either
    /// order; the seed is the one given here.
    pub owner: fn(engines: u32, seed: u32, one: SocketAddr, other: SocketAddr) -> u32,
    /// How many engines there are.
    pub engines: u32,
    /// Something that senders cannot know.
    pub seed: u32,
}

impl Share {
    /// One engine, which gets everything.
    pub const ALL: Self = Self { own: 0, owner: |_, _, _, _| 0, engines: 1, seed: 0 };

    /// Whether a connection is this engine's.
    #[must_use]
    pub fn contains(&self, one: SocketAddr, other: SocketAddr) -> bool {
        (self.owner)(self.engines, self.seed, one, other) == self.own
    }
}

/// Says whether somebody is there who may share the keys of a session between a client and a server at these addresses.
#[derive(Clone)]
pub struct Awaited(pub Arc<dyn Fn(IpAddr, IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Awaited")
    }
}

/// Says whether sessions with this server name, as it stands in the ClientHello, are left alone.
#[derive(Clone)]
pub struct ExemptNames(pub Arc<IsExempt>);

/// Whether a name is one of those.
pub type IsExempt = dyn Fn(&[u8]) -> bool + Send + Sync;

impl fmt::Debug for ExemptNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExemptNames")
    }
}

/// Which connections that do not carry TLS are shown, by [`Handler::cleartext`]. They are then followed as
/// TLS is: in order, and a copy with other bytes does not pass.
///
/// [`Handler::cleartext`]: crate::session::Handler::cleartext
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Cleartext {
    /// None.
    #[default]
    Ignored,
    /// Those whose beginning was seen.
    FromBeginning,
    /// Those that were picked up behind it, too, unless `Config::inline`: what a record of TLS begins
    /// with is still left alone.
    Anywhere,
}

/// Everything an engine is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// What to do when.
    pub policies: Policies,
    /// Caps on memory and time.
    pub limits: Limits,
    /// The engine's verdicts are carried out: a dropped packet does not arrive. So the receiver cannot
    /// acknowledge what was not seen, and a full buffer costs a retransmission. Off where packets
    /// have arrived already, in captures and for a passive monitor: those of the two directions may
    /// be out of order, some may be missing, a full buffer is a loss, and nothing is held or sent.
    pub inline: bool,
    /// Without [`Config::inline`]: a reset is sent to both endpoints all the same. What led to it has been
    /// delivered, and more may have been before it arrives.
    pub resets_beside: bool,
    /// Ignore TCP segments with a wrong checksum (their receiver does). Off for captures, where
    /// checksums are often wrong because of offloading.
    pub verify_checksums: bool,
    /// Nanoseconds after the first frame during which connections that were there before are
    /// bypassed, so that starting the monitor disturbs no connection.
    pub mid_stream_grace_ns: u64,
    /// Connections with one of these ends, or to one of these servers, are forwarded and not looked
    /// at. IP fragments have no
    /// ports and are not looked up here.
    pub bypass: Vec<Bypass>,
    /// The I/O layer can forward connections by itself: it is told of those that nobody reads
    /// ([`Output::Offload`](crate::Output::Offload)).
    pub offload: bool,
    /// Which connections are this engine's; all without it. Segments of others are dropped: state
    /// for them would be half of what another engine has.
    pub share: Option<Share>,
    /// Ports on which nothing but TLS is expected; see `Policies::not_tls`.
    pub tls_ports: Vec<u16>,
    /// Which TCP connections that do not carry TLS are shown.
    pub cleartext: Cleartext,
    /// Tell what the first hellos of a session offer and choose, number by number: `SessionInfo::hellos`.
    pub tell_hellos: bool,
    /// Whose keys count for a session.
    pub key_senders: KeySenders,
    /// Ask for the keys of sessions that are under way when a connection is picked up whose beginning was not seen, and go on
    /// with it at the next record. Not where names are exempt: nothing tells those of such a session.
    pub asks_for_live_keys: bool,
    /// Asked when packets of a client begin to wait for keys; without it, any client may share.
    pub awaited: Option<Awaited>,
    /// Asked with the name in each session's first ClientHello: sessions that are exempt pass unread. A client can name
    /// whatever it likes.
    pub exempt_names: Option<ExemptNames>,
    /// The same for names whose keys endpoints may refuse: such sessions pass unread, whatever `Policies::null_keys` says,
    /// and do not count against `Limits::null_keys_per_minute`.
    pub private_names: Option<ExemptNames>,
    /// Which versions and suites can be opened: the knowledge of record protection, not of the
    /// engine. Everything else meets `Policies::unsupported`.
    pub supports: fn(ProtocolVersion, CipherSuite) -> bool,
    /// Keys of the hash tables; random for a live engine, fixed for a reproducible one.
    pub hash_seed: [u64; 4],
}

impl Config {
    /// Whether a connection between these ends meets a policy if it does not carry TLS.
    pub(crate) fn meets_not_tls(&self, client: SocketAddr, server: SocketAddr) -> bool {
        self.inline
            && matches!(self.policies.not_tls, Policy::Drop | Policy::Reset)
            && [client.port(), server.port()].iter().any(|port| self.tls_ports.contains(port))
    }

    /// The defaults around an explicit answer to missing keys.
    #[must_use]
    pub fn new(missing_keys: Policy) -> Self {
        Self {
            policies: Policies::new(missing_keys),
            limits: Limits::default(),
            inline: true,
            resets_beside: false,
            mid_stream_grace_ns: 60 * SECOND_NS,
            verify_checksums: true,
            bypass: Vec::new(),
            offload: false,
            share: None,
            tls_ports: TLS_PORTS.to_vec(),
            cleartext: Cleartext::Ignored,
            tell_hellos: false,
            key_senders: KeySenders::CLIENT,
            asks_for_live_keys: false,
            awaited: None,
            exempt_names: None,
            private_names: None,
            supports: |version, suite| {
                version == ProtocolVersion::TLS_1_3
                    && matches!(
                        suite,
                        CipherSuite::TLS_AES_128_GCM_SHA256
                            | CipherSuite::TLS_AES_256_GCM_SHA384
                            | CipherSuite::TLS_CHACHA20_POLY1305_SHA256
                    )
            },
            hash_seed: [0; 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ends_that_are_bypassed_and_refuses_others() {
        let rule = |address: &str, prefix_len, port| Bypass {
            address: address.parse().unwrap(),
            prefix_len,
            port,
        };
        for (rule, inside, outside) in [
            (rule("192.0.2.1", 32, Some(4433)), "192.0.2.1:4433", "192.0.2.1:4434"),
            (rule("192.0.2.1", 32, Some(4433)), "192.0.2.1:4433", "192.0.2.2:4433"),
            (rule("10.1.0.0", 16, None), "10.1.255.9:1", "10.2.0.0:1"),
            (rule("0.0.0.0", 0, Some(22)), "255.1.2.3:22", "[2001:db8::1]:22"),
            (rule("2001:db8::", 32, None), "[2001:db8:ffff::]:1", "[2001:db9::]:1"),
            (rule("2001:db8::1", 128, None), "[2001:db8::1]:1", "[2001:db8::2]:1"),
        ] {
            assert!(rule.contains(inside.parse().unwrap()), "{rule:?}");
            assert!(!rule.contains(outside.parse().unwrap()), "{rule:?}");
        }
    }
}
