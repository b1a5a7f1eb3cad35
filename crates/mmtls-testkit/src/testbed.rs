//! The testbed: three network namespaces in a row, and a side channel for keys.
//!
//! ```text
//!  client                     middlebox                    server
//!   eth0 ───────────────── left │ right ───────────────── eth0
//!   10.77.0.2  fd77::2                        10.77.0.3  fd77::3
//!   keys0 ──────────────── keys0   keys1 ──────────────── keys1
//!   10.78.0.2  fd78::2     10.78.0.1   10.80.0.1          10.80.0.3
//!                          fd78::1
//! ```
//!
//! Client and server share one subnet: what stands between is a bridge, not a router. `left` and
//! `right` have no address and no IPv6, so nothing leaks past the program under test. Keys are
//! accepted from the flow's own ends only, hence the client talks to `10.78.0.1` and
//! `fd78::1` from `10.77.0.2` and `fd77::2`, and the server to `10.80.0.1` from `10.77.0.3`.
//!
//! Refuses to touch the namespace it was called from. Needs root, or `scripts/in-userns`.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Once};
use std::time::Duration;

use crate::pki::Pki;

pub mod capture;
pub mod cpu;
pub mod error;
pub mod namespace;
pub mod process;
pub mod skip;
pub mod sweep;

use error::TestbedError;
use namespace::{Namespace, unavailable};
use process::{Background, Finished};
use sweep::{ScratchDir, unique_name};

/// The addresses of the testbed.
pub mod address {
    /// Client.
    pub const CLIENT_V4: &str = "10.77.0.2";
    /// Client.
    pub const CLIENT_V6: &str = "fd77::2";
    /// Where clients find the server, in every kind of testbed.
    pub const SERVER_V4: &str = "10.77.0.3";
    /// Where clients find the server, in every kind of testbed.
    pub const SERVER_V6: &str = "fd77::3";
    /// The middlebox on the key channel.
    pub const KEYS_V4: &str = "10.78.0.1";
    /// The middlebox on the key channel.
    pub const KEYS_V6: &str = "fd78::1";
    /// The middlebox on the servers' key channel.
    pub const SERVER_KEYS_V4: &str = "10.80.0.1";
    /// A split proxy, as its server sees it ([`super::Middle::Routed`]).
    pub const PROXY_V4: &str = "10.79.0.1";
    /// The server behind a split proxy.
    pub const ORIGIN_V4: &str = "10.79.0.3";
    /// The server behind a split proxy.
    pub const ORIGIN_V6: &str = "fd79::3";
    /// The name in the server's certificate.
    pub const SERVER_NAME: &str = "server.test";
    /// The name in the middlebox's certificate.
    pub const MIDDLEBOX_NAME: &str = "middlebox.test";
}

/// What stands between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Middle {
    /// Nothing yet: the program under test forwards between `left` and `right`.
    #[default]
    Empty,
    /// A bridge of the kernel: the baseline.
    KernelBridge,
    /// For a proxy that ends connections: the middlebox owns the server's usual address on
    /// `left`, and the server has [`address::ORIGIN_V4`]. Nothing is forwarded by the kernel, and
    /// there is no route for keys.
    Routed,
    /// As [`Self::Empty`], with a second place behind the first: [`Testbed::second`]. What runs there has
    /// [`address::SERVER_KEYS_V4`], to which the client's way leads through both and the server.
    Chain,
}

/// How a testbed is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// What stands in the middle.
    pub middle: Middle,
    /// MTU in bytes of the data path; `None` leaves 1500.
    pub mtu: Option<u32>,
    /// Segmentation offload (GSO, TSO) on all data ports; the default is on. GRO is off on veth.
    pub gso: bool,
    /// Receive packet steering over all cores on the middlebox's ports: without it veth reorders
    /// (see the packet I/O notes). On by default; see [`Testbed::rps_active`].
    pub rps: bool,
    /// A place between middlebox and server, for a program that delays or loses frames: [`Testbed::line`].
    /// Not with [`Middle::Chain`].
    pub line: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { middle: Middle::default(), mtu: None, gso: true, rps: true, line: false }
    }
}

/// The namespaces, a directory for logs and files, and a PKI. All of it goes with this value.
#[derive(Debug)]
pub struct Testbed {
    /// Where clients run: `eth0` and `keys0`.
    pub client: Namespace,
    /// Where the program under test runs: `left`, `right` and `keys0`.
    pub middlebox: Namespace,
    /// Where servers run: `eth0`.
    pub server: Namespace,
    /// A second place for a program under test ([`Middle::Chain`]): `left`, `right` and `keys1`.
    pub second: Option<Namespace>,
    /// Where frames between middlebox and server pass ([`Options::line`]): `left` and `right`, which nothing joins yet.
    pub line: Option<Namespace>,
    middle: Middle,
    ipv6: bool,
    rps_active: bool,
    cubic: bool,
    pki: Arc<Pki>,
    directory: ScratchDir,
}

impl Testbed {
    /// A testbed with default [`Options`].
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] when this machine or user cannot; else what failed.
    pub fn new(middle: Middle) -> Result<Self, TestbedError> {
        Self::with_options(&Options { middle, ..Options::default() })
    }

    /// A testbed of the given kind.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_options(options: &Options) -> Result<Self, TestbedError> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(|| {
            sweep::sweep();
        });
        if options.line && options.middle == Middle::Chain {
            return Err(TestbedError::Failed {
                what: "testbed".to_owned(),
                detail: "no line behind a chain".to_owned(),
            });
        }
        let directory = ScratchDir::create("dir")?;
        let pki = Pki::shared()?;
        let mut bed = Self {
            client: Namespace::create(unique_name("client"))?,
            middlebox: Namespace::create(unique_name("middlebox"))?,
            server: Namespace::create(unique_name("server"))?,
            second: match options.middle {
                Middle::Chain => Some(Namespace::create(unique_name("second"))?),
                _ => None,
            },
            line: match options.line {
                true => Some(Namespace::create(unique_name("line"))?),
                false => None,
            },
            middle: options.middle,
            ipv6: Path::new("/proc/sys/net/ipv6").exists(),
            rps_active: false,
            cubic: false,
            pki,
            directory,
        };
        bed.set_kernel_options()?;
        unavailable(bed.connect())?;
        bed.configure_data_path(options)?;
        bed.assign_addresses()?;
        if options.middle == Middle::KernelBridge {
            unavailable(bed.bridge())?;
        }
        bed.cubic = bed.use_cubic().is_ok();
        if options.rps {
            bed.rps_active = bed.steer_receive().is_ok();
        }
        Ok(bed)
    }

    /// What stands in the middle.
    #[must_use]
    pub fn middle(&self) -> Middle {
        self.middle
    }

    /// Whether the kernel has IPv6.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Whether receive packet steering could be switched on: containers may hide `/sys`.
    #[must_use]
    pub fn rps_active(&self) -> bool {
        self.rps_active
    }

    /// Whether IPv4 connections over the data path use CUBIC, Linux's own default, as they should:
    /// it is missing where the kernel was built without it.
    #[must_use]
    pub fn uses_cubic(&self) -> bool {
        self.cubic
    }

    /// Certificates and keys, shared by the testbeds of this process.
    #[must_use]
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// A private directory, removed with the testbed unless `MMTLS_KEEP_TESTBED=1`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Arguments that make curl find `server.test` on port 443 at the server's IPv4 address.
    #[must_use]
    pub fn resolve_args(&self) -> [String; 2] {
        resolve(address::SERVER_V4)
    }

    /// As [`Self::resolve_args`], IPv6.
    #[must_use]
    pub fn resolve_args_v6(&self) -> [String; 2] {
        resolve(&format!("[{}]", address::SERVER_V6))
    }

    /// Starts a command of this testbed with its output in files of [`Self::directory`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn background(&self, name: &str, command: Command) -> Result<Background, TestbedError> {
        Background::spawn(name, command, self.directory())
    }

    /// Runs a command to its end, but not longer than `timeout`. A failure status is no error.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time (it is ended then).
    pub fn run(
        &self,
        name: &str,
        command: Command,
        timeout: Duration,
    ) -> Result<Finished, TestbedError> {
        self.background(name, command)?.finish(timeout)
    }

    fn set_kernel_options(&self) -> Result<(), TestbedError> {
        // rp_filter: the key channel is asymmetric by design. accept_dad: addresses count at once.
        // arp_ignore: the middlebox must not answer on `left` for its address on `keys0`.
        let v4 = "cd /proc/sys/net/ipv4; for c in all default; do \
                  echo 0 >conf/$c/rp_filter; echo 1 >conf/$c/arp_ignore; done; echo 0 >ip_forward";
        let v6 = "cd /proc/sys/net/ipv6/conf; for c in all default; do \
                  echo 0 >$c/accept_dad; echo 0 >$c/accept_ra; done; echo 0 >all/forwarding";
        let all = [&self.client, &self.middlebox, &self.server].into_iter();
        for namespace in all.chain(&self.second).chain(&self.line) {
            namespace.shell(v4)?;
            if self.ipv6 {
                namespace.shell(v6)?;
            }
        }
        if self.ipv6 {
            let bridged = (self.middle != Middle::Routed).then_some(&self.middlebox);
            for namespace in bridged.into_iter().chain(&self.second).chain(&self.line) {
                namespace.shell("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")?;
            }
        }
        Ok(())
    }

    /// Where the middlebox is that servers reach on a link of their own.
    fn last(&self) -> &Namespace {
        self.second.as_ref().unwrap_or(&self.middlebox)
    }

    fn connect(&self) -> Result<(), TestbedError> {
        let client = self.client.name();
        let server = self.server.name();
        if let Some(behind) = self.second.as_ref().or(self.line.as_ref()) {
            behind.ip(&format!(
                "link add left type veth peer name right netns {}\n\
                 link add right type veth peer name eth0 netns {server}\n",
                self.middlebox.name()
            ))?;
        } else {
            self.middlebox
                .ip(&format!("link add right type veth peer name eth0 netns {server}\n"))?;
        }
        self.last().ip(&format!("link add keys1 type veth peer name keys1 netns {server}\n"))?;
        self.middlebox.ip(&format!(
            "link add left type veth peer name eth0 netns {client}\n\
             link add keys0 type veth peer name keys0 netns {client}\n"
        ))
    }

    fn configure_data_path(&self, options: &Options) -> Result<(), TestbedError> {
        let ports = [
            (&self.client, "eth0"),
            (&self.middlebox, "left"),
            (&self.middlebox, "right"),
            (&self.server, "eth0"),
        ];
        let line = self.line.iter().flat_map(|line| [(line, "left"), (line, "right")]);
        for (namespace, port) in ports.into_iter().chain(line) {
            if let Some(mtu) = options.mtu {
                namespace.ip(&format!("link set {port} mtu {mtu}\n"))?;
            }
            if !options.gso {
                let mut command = namespace.command("ethtool");
                command.args(["-K", port, "tso", "off", "gso", "off", "gro", "off"]);
                unavailable(namespace::check(command))?;
            }
        }
        Ok(())
    }

    fn assign_addresses(&self) -> Result<(), TestbedError> {
        let routed = self.middle == Middle::Routed;
        let (server_v4, server_v6) = if routed {
            (address::ORIGIN_V4, address::ORIGIN_V6)
        } else {
            (address::SERVER_V4, address::SERVER_V6)
        };
        if self.ipv6 {
            self.middlebox.shell("echo 0 >/proc/sys/net/ipv6/conf/keys0/disable_ipv6")?;
        }
        self.client.ip(&format!(
            "addr add {}/24 dev eth0\naddr add 10.78.0.2/24 dev keys0\n\
             link set eth0 up\nlink set keys0 up\n",
            address::CLIENT_V4
        ))?;
        self.middlebox.ip(&format!(
            "addr add {}/24 dev keys0\nlink set left up\nlink set right up\nlink set keys0 up\n",
            address::KEYS_V4
        ))?;
        for behind in self.second.iter().chain(&self.line) {
            behind.ip("link set left up\nlink set right up\n")?;
        }
        self.last().ip(&format!(
            "addr add {}/24 dev keys1\nlink set keys1 up\n",
            address::SERVER_KEYS_V4
        ))?;
        self.server.ip(&format!(
            "addr add {server_v4}/24 dev eth0\naddr add 10.80.0.3/24 dev keys1\n\
             link set eth0 up\nlink set keys1 up\n"
        ))?;
        if self.ipv6 {
            let six = |namespace: &Namespace, address: &str, port: &str| {
                namespace.ip(&format!("addr add {address}/64 dev {port} nodad\n"))
            };
            six(&self.client, address::CLIENT_V6, "eth0")?;
            six(&self.client, "fd78::2", "keys0")?;
            six(&self.middlebox, address::KEYS_V6, "keys0")?;
            six(&self.server, server_v6, "eth0")?;
        }
        if routed { self.address_the_proxy() } else { self.route_the_key_channel() }
    }

    fn address_the_proxy(&self) -> Result<(), TestbedError> {
        self.middlebox.ip(&format!(
            "addr add {}/24 dev left\naddr add {}/24 dev right\n",
            address::SERVER_V4,
            address::PROXY_V4
        ))?;
        if self.ipv6 {
            self.middlebox.ip(&format!(
                "addr add {}/64 dev left nodad\naddr add fd79::1/64 dev right nodad\n",
                address::SERVER_V6
            ))?;
        }
        Ok(())
    }

    fn route_the_key_channel(&self) -> Result<(), TestbedError> {
        self.client.ip(&format!(
            "route add {}/32 dev keys0 src {}\n",
            address::KEYS_V4,
            address::CLIENT_V4
        ))?;
        // With a next hop: the client answers neither ARP (arp_ignore) nor neighbour
        // solicitations on `keys0` for an address of its `eth0`.
        self.middlebox
            .ip(&format!("route add {}/32 via 10.78.0.2 dev keys0\n", address::CLIENT_V4))?;
        self.server.ip(&format!(
            "route add {}/32 dev keys1 src {}\n",
            address::SERVER_KEYS_V4,
            address::SERVER_V4
        ))?;
        let last = self.last();
        last.ip(&format!("route add {}/32 via 10.80.0.3 dev keys1\n", address::SERVER_V4))?;
        if self.second.is_some() {
            // The client's way to the second one leads through both, and the server is a router.
            let (keys, client) = (address::SERVER_KEYS_V4, address::CLIENT_V4);
            let server = address::SERVER_V4;
            self.client.ip(&format!("route add {keys}/32 via {server} dev eth0\n"))?;
            last.ip(&format!("route add {client}/32 via 10.80.0.3 dev keys1\n"))?;
            self.server.shell("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
        }
        if self.ipv6 {
            self.client.ip(&format!(
                "route add {}/128 dev keys0 src {}\n",
                address::KEYS_V6,
                address::CLIENT_V6
            ))?;
            self.middlebox
                .ip(&format!("route add {}/128 via fd78::2 dev keys0\n", address::CLIENT_V6))?;
        }
        Ok(())
    }

    fn bridge(&self) -> Result<(), TestbedError> {
        self.middlebox.ip("link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set left master br0\nlink set right master br0\nlink set br0 up\n")
    }

    /// Some kernels come with BBR as default: its pacing sends by timers, and in small pieces. By
    /// route, since a namespace may not choose an algorithm that the machine does not allow everybody.
    fn use_cubic(&self) -> Result<(), TestbedError> {
        let net = |namespace: &Namespace, port: &str, own: &str| {
            let (net, _) = own.rsplit_once('.').unwrap_or_default();
            namespace.ip(&format!(
                "route replace {net}.0/24 dev {port} proto kernel scope link src {own} congctl cubic\n"
            ))
        };
        net(&self.client, "eth0", address::CLIENT_V4)?;
        if self.middle == Middle::Routed {
            net(&self.middlebox, "left", address::SERVER_V4)?;
            net(&self.middlebox, "right", address::PROXY_V4)?;
            return net(&self.server, "eth0", address::ORIGIN_V4);
        }
        net(&self.server, "eth0", address::SERVER_V4)
    }

    fn steer_receive(&self) -> Result<(), TestbedError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mask = (1u64 << cores.min(32)) - 1;
        for place in [&self.middlebox].into_iter().chain(&self.line) {
            place.shell_with_sysfs(&format!(
                "for port in left right; do \
                 echo {mask:x} >/sys/class/net/$port/queues/rx-0/rps_cpus; done"
            ))?;
        }
        Ok(())
    }
}

fn resolve(server: &str) -> [String; 2] {
    ["--resolve".to_owned(), format!("{}:443:{server}", address::SERVER_NAME)]
}
