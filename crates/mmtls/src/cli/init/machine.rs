//! What this machine has that answers could be.
//!
//! Refuses to change anything, and to send a packet.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;

/// An interface, and what is known of it.
pub struct Interface {
    pub name: String,
    /// As it is shown.
    pub about: String,
    /// It could be one of two that are bridged: nobody else's, and not the way to this machine.
    pub is_free: bool,
}

/// Those of this network namespace.
pub fn interfaces() -> Vec<Interface> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let routed = default_routes(&read("/proc/net/route"));
    let mut found: Vec<_> = names(&read("/proc/net/dev"))
        .into_iter()
        .map(|name| describe(&Path::new("/sys/class/net").join(&name), name, &routed))
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// The names in a table as `/proc/net/dev`.
fn names(table: &str) -> Vec<String> {
    let name = |line: &str| {
        let (name, _) = line.rsplit_once(':')?;
        let name = name.trim();
        (name != "lo" && !name.is_empty() && name.bytes().all(|it| it.is_ascii_graphic()))
            .then(|| name.to_owned())
    };
    table.lines().skip(2).filter_map(name).collect()
}

/// Interfaces that a table as `/proc/net/route` sends everything else to.
fn default_routes(table: &str) -> Vec<String> {
    let route = |line: &str| {
        let mut fields = line.split_whitespace();
        let (name, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then(|| name.to_owned())
    };
    table.lines().skip(1).filter_map(route).collect()
}

fn describe(place: &Path, name: String, routed: &[String]) -> Interface {
    let read = |file: &str| {
        let text = fs::read_to_string(place.join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let is_routed = routed.contains(&name);
    let is_used = place.join("master").exists();
    let is_ethernet = read("type").is_none_or(|kind| kind == "1");
    let mut about: Vec<String> = Vec::new();
    about.extend(read("operstate"));
    about.extend(read("mtu").map(|mtu| format!("MTU {mtu}")));
    about.extend(place.join("device").exists().then(|| "card".to_owned()));
    about.extend((!is_ethernet).then(|| "not Ethernet".to_owned()));
    about.extend(is_used.then(|| "part of a bridge or bond".to_owned()));
    about.extend(is_routed.then(|| "default route".to_owned()));
    let is_free = is_ethernet && !is_used && !is_routed;
    Interface { name, about: about.join(", "), is_free }
}

/// The address by which this machine reaches others.
pub fn own_address() -> Option<IpAddr> {
    // Connecting sends nothing: the kernel looks up a route to addresses for documentation (RFC 5737, RFC 3849).
    let towards = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().as_ref().map(SocketAddr::ip)
    };
    towards("0.0.0.0:0", "192.0.2.1:9").or_else(|| towards("[::]:0", "[2001:db8::1]:9"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_kernels_tables() {
        let table =
            "Inter-|   Receive\n face |bytes\n    lo: 1 2\n  eth1: 3 4\nwlan0:5 6\n  a:b: 1\n";
        assert_eq!(names(table), ["eth1", "wlan0", "a:b"]);
        assert!(names("").is_empty());
        let routes =
            "Iface\tDestination\tGateway\nwlan0\t00000000\t0101A8C0\neth1\t0001A8C0\t0\n\n";
        assert_eq!(default_routes(routes), ["wlan0"]);
    }

    #[test]
    fn refuses_to_offer_what_is_used_already() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(place.path().join(name), text).unwrap();
        write("type", "1\n");
        write("operstate", "up\n");
        write("mtu", "1500\n");
        let of = |routed: &[String]| describe(place.path(), "eth1".to_owned(), routed);
        assert_eq!((of(&[]).about.as_str(), of(&[]).is_free), ("up, MTU 1500", true));
        let routed = of(&["eth1".to_owned()]);
        assert_eq!((routed.about.as_str(), routed.is_free), ("up, MTU 1500, default route", false));
        write("master", "");
        assert!(!of(&[]).is_free);
        write("type", "772\n");
        assert!(of(&[]).about.contains("not Ethernet"));
    }
}
