//! Cuts the capture of a whole run into one capture per case, by the server's port.
//!
//! Refuses nothing: packets of other ports, as of ARP and name resolution, are left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use mmtls_packet_io::capture::{CaptureReader, Item, Link, PcapngWriter};

/// Writes one file per port, and returns the number of packets in each.
pub fn split(
    capture: &Path,
    targets: &BTreeMap<u16, PathBuf>,
) -> Result<BTreeMap<u16, u64>, String> {
    let mut reader = CaptureReader::open(capture).map_err(|error| error.to_string())?;
    let mut packets = BTreeMap::new();
    // Cases run one after the other: only the newest few files need to be open.
    let mut open: Vec<(u16, PcapngWriter<BufWriter<File>>)> = Vec::new();
    while let Some(item) = reader.next().map_err(|error| error.to_string())? {
        let Item::Packet { timestamp_ns, link: Link::Ethernet, bytes, original_len } = item else {
            continue;
        };
        let Some(port) = ports(bytes)
            .and_then(|ports| ports.into_iter().find(|port| targets.contains_key(port)))
        else {
            continue;
        };
        let at = match open.iter().position(|(opened, _)| *opened == port) {
            Some(at) => at,
            None => {
                if packets.contains_key(&port) {
                    // A straggler of a case that is long over, as a last RST.
                    continue;
                }
                if open.len() == 8 {
                    open.remove(0).1.flush().map_err(|error| error.to_string())?;
                }
                let file = File::create(&targets[&port]).map_err(|error| error.to_string())?;
                let writer =
                    PcapngWriter::new(BufWriter::new(file)).map_err(|error| error.to_string())?;
                open.push((port, writer));
                open.len() - 1
            }
        };
        *packets.entry(port).or_default() += 1;
        open[at].1.packet(timestamp_ns, bytes, original_len).map_err(|error| error.to_string())?;
    }
    for (_, mut writer) in open {
        writer.flush().map_err(|error| error.to_string())?;
    }
    Ok(packets)
}

/// Both ports of a TCP segment in IPv4.
fn ports(frame: &[u8]) -> Option<[u16; 2]> {
    let packet = frame.get(14..)?;
    if frame.get(12..14)? != [0x08, 0x00] || *packet.get(9)? != 6 {
        return None;
    }
    let header = usize::from(packet.first()? & 15) * 4;
    let ports = packet.get(header..header + 4)?;
    Some([u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])])
}

#[cfg(test)]
mod tests {
    use super::ports;

    #[test]
    fn accepts_tcp_over_ipv4_alone() {
        let mut frame = vec![0; 14 + 20 + 20];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[14 + 9] = 6;
        frame[34..38].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(ports(&frame), Some([0x0102, 0x0304]));
        assert_eq!(ports(&frame[..36]), None);
        frame[14 + 9] = 17;
        assert_eq!(ports(&frame), None);
    }
}
