//! A testbed with everything in it that attacks need, and mmTLS or a plain bridge in the middle.
//!
//! The attacker has addresses that no kernel owns, on either side; the kernels know them as static
//! neighbours. Refuses to reuse an address and port within a run.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mmtls_testkit::{Middle, Mmtls, MmtlsOptions, Options, Testbed, TestbedError};

use super::front::{self, Fronts};
use super::honest::Echo;
use super::peers::{Program, Servers};
use super::script::Case;
use super::station::{ATTACKERS, Job, Station};
use super::tls::Settings;

/// The kernels' Ethernet addresses, so that nobody has to ask.
pub const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 3];

/// The attacker's addresses as a client: so many from 10.77.0.10 and fd77::a on.
pub const CLIENTS: usize = 16;
/// And as a server, from 10.77.0.200 and fd77::c8 on.
const FIRST_SERVER: u16 = 200;
const LISTENERS: usize = 8;
const PORTS: usize = 60_000;

/// Names of stations as `ip` writes them.
fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The address of a station.
pub fn host(number: u16, v6: bool) -> IpAddr {
    if v6 { [0xfd77, 0, 0, 0, 0, 0, 0, number].into() } else { [10, 77, 0, number as u8].into() }
}

/// See the module.
pub struct Lane {
    // In this order: what is inside ends before the testbed.
    pub client_side: Station,
    pub server_side: Station,
    servers: Servers,
    pub fronts: Fronts,
    _echo: Echo,
    pub mmtls: Option<Mmtls>,
    pub bed: Testbed,
    pub programs: Vec<Program>,
    used: AtomicUsize,
    seed: u64,
}

impl Lane {
    /// Builds one; with mmTLS where options are given, else with a bridge of the kernel.
    pub fn start(
        programs: &[Program],
        binaries: Option<&Path>,
        configure: &mut dyn FnMut(&Testbed, MmtlsOptions) -> Result<MmtlsOptions, String>,
        (seed, quick): (u64, bool),
    ) -> Result<Self, String> {
        let failed = |error: TestbedError| error.to_string();
        let middle = if binaries.is_some() { Middle::Empty } else { Middle::KernelBridge };
        let options = Options { middle, ..Options::default() };
        let bed = Testbed::with_options(&options).map_err(failed)?;
        prepare(&bed).map_err(failed)?;
        let settings = Settings::new(bed.pki())?;
        let mmtls = match binaries {
            Some(binaries) => {
                let mut options = MmtlsOptions::new(binaries);
                options.log = false;
                let options = configure(&bed, options)?;
                Some(Mmtls::start(&bed, &options).map_err(failed)?)
            }
            None => None,
        };
        let servers = Servers::start(&bed, programs, &settings, quick)?;
        let fronts = Fronts::start(&bed)?;
        let echo = Echo::start(&bed, &settings)?;
        let client_side =
            Station::start(bed.client.path(), settings.clone(), (ATTACKERS[0], SERVER))?;
        let server_side = Station::start(bed.server.path(), settings, (ATTACKERS[1], CLIENT))?;
        let used = AtomicUsize::new(0);
        Ok(Self {
            client_side,
            server_side,
            servers,
            fronts,
            _echo: echo,
            mmtls,
            bed,
            programs: programs.to_vec(),
            used,
            seed,
        })
    }

    /// A job against one of the servers; one that waits for it to connect where the case is such.
    pub fn job(&self, case: &Arc<Case>, server: SocketAddr) -> Result<Job, String> {
        let port = match &case.front {
            Some(front) => front::find(front)?.port,
            None => server.port(),
        };
        let local = self.local(case, server.is_ipv6());
        Ok(Job {
            case: Arc::clone(case),
            name: self.name(),
            local,
            remote: (!case.listens()).then_some((server.ip(), port).into()),
            iss: self.iss(),
        })
    }

    /// Nobody else's in this lane.
    fn name(&self) -> String {
        self.used.fetch_add(1, Ordering::Relaxed).to_string()
    }

    /// What servers were asked, by the names of the attacks.
    pub fn asked(&self) -> HashSet<String> {
        let name = |line: String| Some(line.split("/c/").nth(1)?.split(' ').next()?.to_owned());
        self.servers.requests().into_iter().filter_map(name).collect()
    }

    /// Whether the server's kernel answers every SYN with a cookie.
    pub fn set_cookies(&self, on: bool) -> Result<(), String> {
        let value = if on { 2 } else { 0 };
        let command = format!("echo {value} >/proc/sys/net/ipv4/tcp_syncookies");
        self.bed.server.shell(&command).map(drop).map_err(|error| error.to_string())
    }

    /// A job of a server: it listens at its address, or connects there.
    pub fn listener(&self, case: &Arc<Case>, client: Option<SocketAddr>, v6: bool) -> Job {
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        let port = 1024 + (number / LISTENERS % PORTS) as u16;
        let address = host(FIRST_SERVER + (number % LISTENERS) as u16, v6);
        Job {
            case: Arc::clone(case),
            name: number.to_string(),
            local: (address, port).into(),
            remote: client,
            iss: self.iss(),
        }
    }

    fn local(&self, case: &Case, v6: bool) -> SocketAddr {
        let own = case.source.as_ref().and_then(|it| it.parse::<SocketAddr>().ok());
        if let Some(own) = own {
            return if v6 { ([0xfd78, 0, 0, 0, 0, 0, 0, 1], own.port()).into() } else { own };
        }
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        let port = 1024 + (number / CLIENTS % PORTS) as u16;
        (host(10 + (number % CLIENTS) as u16, v6), port).into()
    }

    /// Differs from case to case; now and then it is about to wrap.
    fn iss(&self) -> u32 {
        let number = self.used.load(Ordering::Relaxed) as u64;
        let mixed = (number ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if number % 16 == 3 { 0xffff_ffff - (mixed as u32 & 0x1ff) } else { mixed as u32 }
    }
}

/// Interfaces, addresses and neighbours.
fn prepare(bed: &Testbed) -> Result<(), TestbedError> {
    let [attacker, listener] = ATTACKERS.map(text);
    for (namespace, own) in [(&bed.client, CLIENT), (&bed.server, SERVER)] {
        namespace.ip(&format!(
            "link set eth0 address {}\nlink add nowhere0 type veth peer name nowhere1\n\
             link set nowhere0 up\nlink set nowhere1 up\n",
            text(own)
        ))?;
    }
    // Before anybody asks for the others: the change above made the old answers wrong.
    let neighbour = |address: IpAddr, mac: &str| {
        format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent\n")
    };
    let mut at_server = String::new();
    let mut at_client = String::new();
    let families: &[bool] = if bed.has_ipv6() { &[false, true] } else { &[false] };
    for v6 in families {
        for number in 0..CLIENTS as u16 {
            at_server += &neighbour(host(10 + number, *v6), &attacker);
        }
        for number in 0..LISTENERS as u16 {
            at_client += &neighbour(host(FIRST_SERVER + number, *v6), &listener);
        }
        at_server += &neighbour(host(2, *v6), &text(CLIENT));
        at_client += &neighbour(host(3, *v6), &text(SERVER));
        // The key channel's address, should the attacker take it for its own.
        let (keys, bits) = if *v6 { ("fd78::1", 128) } else { ("10.78.0.1", 32) };
        at_server += &format!("route add {keys}/{bits} dev eth0\n");
        at_server += &format!("neigh replace {keys} lladdr {attacker} dev eth0 nud permanent\n");
    }
    bed.server.ip(&at_server)?;
    bed.client.ip(&at_client)?;
    // Many half-open connections at a time are the attacker's daily work.
    for setting in [
        "ipv4/tcp_max_syn_backlog=8192",
        "core/somaxconn=8192",
        "ipv4/tcp_syncookies=0",
        "ipv4/tcp_synack_retries=3",
    ] {
        let (name, value) = setting.split_once('=').unwrap_or_default();
        // A user namespace may not have them all.
        bed.server.shell(&format!("echo {value} >/proc/sys/net/{name} || true"))?;
    }
    Ok(())
}
