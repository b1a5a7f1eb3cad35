//! A captured connection as two streams of bytes and the order in which they came: what is left of
//! a capture once packets do not matter any more.
//!
//! Refuses captures in which bytes are missing: the corpus is made on a path that loses nothing.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use mmtls_engine::tls::Direction;
use mmtls_packet_io::capture::{CaptureReader, Item, Link};
use mmtls_testkit::segments::{Endpoints, flag};

/// One TCP connection.
pub struct Trace {
    /// Its place among the connections of the capture.
    pub number: usize,
    /// Addresses and initial sequence numbers.
    pub endpoints: Endpoints,
    /// Everything that was sent, client first.
    pub bytes: [Vec<u8>; 2],
    /// Who sent how many bytes next.
    pub turns: Vec<(Direction, usize)>,
}

/// A piece of a stream in a segment of its own.
#[derive(Clone)]
pub struct Piece {
    pub direction: Direction,
    pub offset: usize,
    pub len: usize,
    /// Bytes of the other stream that its sender had when it sent it.
    pub acknowledged: usize,
}

/// Which of a connection's two sides.
pub fn side(direction: Direction) -> usize {
    match direction {
        Direction::ClientToServer => 0,
        Direction::ServerToClient => 1,
    }
}

struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    syn: bool,
    ack: bool,
    payload: &'a [u8],
}

fn segment(link: Link, bytes: &[u8]) -> Option<Segment<'_>> {
    let packet = match link {
        Link::Ethernet => SlicedPacket::from_ethernet(bytes),
        Link::Ip => SlicedPacket::from_ip(bytes),
    };
    let packet = packet.ok()?;
    let (source, destination): (IpAddr, IpAddr) = match packet.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        _ => return None,
    };
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
        return None;
    };
    Some(Segment {
        from: SocketAddr::new(source, tcp.source_port()),
        to: SocketAddr::new(destination, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        syn: tcp.syn(),
        ack: tcp.ack(),
        payload: tcp.payload(),
    })
}

impl Trace {
    /// The connections of a capture, in the order of their SYNs.
    pub fn load(path: &Path) -> Result<Vec<Self>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
        let mut reader = CaptureReader::new(file).map_err(|error| failed(&error))?;
        let mut traces: Vec<Self> = Vec::new();
        let mut known: HashMap<(SocketAddr, SocketAddr), usize> = HashMap::new();
        while let Some(item) = reader.next().map_err(|error| failed(&error))? {
            let Item::Packet { link, bytes, .. } = item else {
                continue;
            };
            let Some(segment) = segment(link, bytes) else {
                continue;
            };
            if segment.syn && !segment.ack {
                known.insert((segment.from, segment.to), traces.len());
                traces.push(Self {
                    number: traces.len(),
                    endpoints: Endpoints {
                        client: segment.from,
                        server: segment.to,
                        initial: [segment.sequence, 0],
                    },
                    bytes: Default::default(),
                    turns: Vec::new(),
                });
                continue;
            }
            let (direction, number) = match (
                known.get(&(segment.from, segment.to)),
                known.get(&(segment.to, segment.from)),
            ) {
                (Some(&number), _) => (Direction::ClientToServer, number),
                (_, Some(&number)) => (Direction::ServerToClient, number),
                _ => continue,
            };
            traces[number].add(direction, &segment).map_err(|error| failed(&error))?;
        }
        traces.retain(|trace| !trace.turns.is_empty());
        Ok(traces)
    }

    fn add(&mut self, direction: Direction, segment: &Segment<'_>) -> Result<(), String> {
        let at = side(direction);
        if segment.syn {
            self.endpoints.initial[at] = segment.sequence;
            return Ok(());
        }
        let first = self.endpoints.initial[at].wrapping_add(1);
        // Captures of the corpus are far shorter than the sequence space.
        let offset = segment.sequence.wrapping_sub(first) as i32;
        let stream = &mut self.bytes[at];
        let end = i64::from(offset) + segment.payload.len() as i64;
        if segment.payload.is_empty() || end <= stream.len() as i64 {
            return Ok(());
        }
        let known = usize::try_from(stream.len() as i64 - i64::from(offset));
        let Some(new) = known.ok().and_then(|known| segment.payload.get(known..)) else {
            return Err(format!("a segment is missing before byte {offset}"));
        };
        stream.extend_from_slice(new);
        self.turns.push((direction, new.len()));
        Ok(())
    }

    /// The random of the ClientHello that it begins with, in hex.
    pub fn client_random(&self) -> String {
        // Behind the record header, the handshake header and the version (RFC 8446, section 4.1.2).
        let random = self.bytes[0].get(11..43).unwrap_or_default();
        base16ct::lower::encode_string(random)
    }

    /// The pieces as they came.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut at = [0; 2];
        let mut pieces = Vec::new();
        for &(direction, len) in &self.turns {
            let from = side(direction);
            pieces.push(Piece { direction, offset: at[from], len, acknowledged: at[1 - from] });
            at[from] += len;
        }
        pieces
    }

    /// The connection in these pieces, from SYN to FIN. `change` may edit a piece's bytes.
    pub fn frames(
        &self,
        pieces: &[Piece],
        mut change: impl FnMut(&Piece, &mut Vec<u8>),
    ) -> Vec<Vec<u8>> {
        use Direction::{ClientToServer as Up, ServerToClient as Down};
        let control = |direction, offset, acknowledged, flags| {
            self.endpoints.frame(direction, offset, acknowledged, flags, &[])
        };
        let mut frames = vec![
            control(Up, -1, 0, flag::SYN),
            control(Down, -1, 0, flag::SYN | flag::ACK),
            control(Up, 0, 0, flag::ACK),
        ];
        for piece in pieces {
            let mut bytes =
                self.bytes[side(piece.direction)][piece.offset..piece.offset + piece.len].to_vec();
            change(piece, &mut bytes);
            frames.push(self.endpoints.frame(
                piece.direction,
                piece.offset as i64,
                piece.acknowledged as u64,
                flag::ACK,
                &bytes,
            ));
        }
        let [up, down] = [0, 1].map(|at| self.bytes[at].len());
        let end = flag::FIN | flag::ACK;
        frames.push(control(Up, up as i64, down as u64, end));
        frames.push(control(Down, down as i64, up as u64 + 1, end));
        frames.push(control(Up, up as i64 + 1, down as u64 + 1, flag::ACK));
        frames
    }
}
