//! The two ends of a monitored connection, client first, as the middlebox sees them on the wire.
//!
//! Refuses ends of different address families. Encoding: family (0, 4 or 6), then the client's
//! address and port, then the server's.

use std::net::{IpAddr, SocketAddr};

use crate::wire::{Reader, Short, Writer};

/// Addresses and ports of the client and the server, both IPv4 or both IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    client: SocketAddr,
    server: SocketAddr,
}

impl Flow {
    /// IPv4-mapped IPv6 addresses become IPv4, because that is what goes over the wire.
    /// `None` when the two families differ.
    #[must_use]
    pub fn new(client: SocketAddr, server: SocketAddr) -> Option<Self> {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let server = SocketAddr::new(server.ip().to_canonical(), server.port());
        (client.is_ipv4() == server.is_ipv4()).then_some(Self { client, server })
    }

    /// The end that opened the connection.
    #[must_use]
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The end that accepted the connection.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    pub(crate) fn write(flow: Option<&Self>, out: &mut Writer<'_>) {
        let Some(flow) = flow else {
            return out.u8(0);
        };
        out.u8(if flow.client.is_ipv4() { 4 } else { 6 });
        for end in [flow.client, flow.server] {
            match end.ip() {
                IpAddr::V4(address) => out.bytes(&address.octets()),
                IpAddr::V6(address) => out.bytes(&address.octets()),
            }
            out.u16(end.port());
        }
    }

    /// `Ok(Err(()))` is a family that does not exist or an address that is not canonical.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Result<Option<Self>, ()>, Short> {
        let mut ends = [SocketAddr::from(([0, 0, 0, 0], 0)); 2];
        let family = input.u8()?;
        for end in &mut ends {
            let address = match family {
                0 => return Ok(Ok(None)),
                4 => IpAddr::from(input.array::<4>()?),
                6 => IpAddr::from(input.array::<16>()?),
                _ => return Ok(Err(())),
            };
            *end = SocketAddr::new(address, input.u16()?);
        }
        // One flow has one encoding; a mapped address would be a second one.
        if family == 6 && ends.iter().any(|end| end.ip().to_canonical().is_ipv4()) {
            return Ok(Err(()));
        }
        let [client, server] = ends;
        Ok(Ok(Some(Self { client, server })))
    }
}
