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
        out.u8(family(flow.client));
        write_end(flow.client, out);
        write_end(flow.server, out);
    }

    /// `Ok(Err(()))` is a family that does not exist or an address that is not canonical.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Result<Option<Self>, ()>, Short> {
        let family = input.u8()?;
        if family == 0 {
            return Ok(Ok(None));
        }
        let Some(client) = read_end(family, input)? else {
            return Ok(Err(()));
        };
        let Some(server) = read_end(family, input)? else {
            return Ok(Err(()));
        };
        Ok(Ok(Some(Self { client, server })))
    }
}

fn family(end: SocketAddr) -> u8 {
    if end.is_ipv4() { 4 } else { 6 }
}

fn write_end(end: SocketAddr, out: &mut Writer<'_>) {
    match end.ip() {
        IpAddr::V4(address) => out.bytes(&address.octets()),
        IpAddr::V6(address) => out.bytes(&address.octets()),
    }
    out.u16(end.port());
}

/// `None` is a family that does not exist or an address that is not canonical: one end has one encoding, and a mapped
/// address would be a second one.
fn read_end(family: u8, input: &mut Reader<'_>) -> Result<Option<SocketAddr>, Short> {
    let address = match family {
        4 => IpAddr::from(input.array::<4>()?),
        6 => IpAddr::from(input.array::<16>()?),
        _ => return Ok(None),
    };
    let end = SocketAddr::new(address, input.u16()?);
    Ok((end.is_ipv4() || end.ip().to_canonical().is_ipv6()).then_some(end))
}

/// One end alone, with its family before it. IPv4-mapped addresses become IPv4.
pub(crate) fn write_address(end: SocketAddr, out: &mut Writer<'_>) {
    let end = SocketAddr::new(end.ip().to_canonical(), end.port());
    out.u8(family(end));
    write_end(end, out);
}

/// See [`write_address`] and [`read_end`].
pub(crate) fn read_address(input: &mut Reader<'_>) -> Result<Option<SocketAddr>, Short> {
    let family = input.u8()?;
    read_end(family, input)
}
