//! Attackers who forge packets in an honest client's or server's name, from their own side of the
//! middlebox: the honest connection comes about all the same.
//!
//! Refuses to blame mmTLS for what the endpoints themselves fall for: what fails over the bridge
//! does not count.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use mmtls_testkit::address;

use super::honest::{self, Clients, PLAIN_PORT, Plan};
use super::lane::Lane;
use super::script::{Case, Event, Step};
use super::station::Job;

/// A forgery, and the connection that it is aimed at.
#[derive(Clone, Debug)]
pub struct Forgery {
    pub case: Arc<Case>,
    pub tls: bool,
    pub v6: bool,
}

/// An honest connection may need its SYN twice more.
const LIMIT: Duration = Duration::from_secs(4);

/// Source ports of honest clients; each is used once.
static PORT: AtomicU16 = AtomicU16::new(20_000);

/// Runs forgeries with their connections, so many at a time; what became of each connection.
pub fn run(
    lane: &Lane,
    forgeries: &[Forgery],
    parallel: usize,
) -> Result<Vec<Result<(), String>>, String> {
    honest::each(lane, forgeries, parallel, |clients, forgery| one(lane, clients, forgery))
}

fn one(lane: &Lane, clients: &Clients, forgery: &Forgery) -> Result<(), String> {
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let own = if forgery.v6 { address::CLIENT_V6 } else { address::CLIENT_V4 };
    let own: std::net::IpAddr = own.parse().map_err(|error| format!("{own}: {error}"))?;
    let client = SocketAddr::from((own, port));
    let server = honest::echo_address(forgery.v6, if forgery.tls { 443 } else { PLAIN_PORT });
    let case = &forgery.case;
    let (local, remote) = if case.server { (server, client) } else { (client, server) };
    let job = Job {
        case: Arc::clone(case),
        name: "third".to_owned(),
        local,
        remote: Some(remote),
        iss: u32::from(port).wrapping_mul(0x0101_0003),
    };
    let station = if case.server { &lane.server_side } else { &lane.client_side };
    let outcome = station.submit(job)?;
    let waits = matches!(case.steps.first(), Some(Step::Wait(Event::Syn, _)));
    if waits {
        std::thread::sleep(Duration::from_millis(6));
    } else {
        outcome.recv_timeout(LIMIT).map_err(|_| "the forger does not end".to_owned())?;
    }
    let plan = Plan {
        tls: forgery.tls,
        v6: forgery.v6,
        port: Some(port),
        bytes: 20_000,
        seed: u64::from(port),
        limit: LIMIT,
    };
    clients.run(&plan)
}
