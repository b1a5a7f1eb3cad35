//! Who receives from interfaces by packet sockets, as the kernel tells (`linux/packet_diag.h`; `/proc/net/packet` where it was built
//! without that, which does not say how).
//!
//! Refuses nothing: what the kernel does not tell is nobody.

use std::fs;
use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Length of `struct nlmsghdr`, and of `struct packet_diag_msg` behind it.
const HEADER: usize = 16;
const BODY: usize = 16;
/// Larger than any part of an answer.
const MAX_ANSWER: usize = 64 << 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const PACKET_SHOW_INFO: u32 = 1;
/// `struct packet_diag_info`: interface, version, room, threshold, time stamps, flags.
const PACKET_DIAG_INFO: u16 = 0;
const FLAGS: usize = 20;
/// The socket has `PACKET_VNET_HDR`, and `PACKET_LOSS`.
const PDI_VNETHDR: u32 = 8;
const PDI_LOSS: u32 = 16;

/// What a passive monitor sets on its sockets, to be told from one that forwards.
pub(crate) const MARK: libc::c_int = libc::PACKET_LOSS;

/// A socket that gets all of an interface's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Receiver {
    pub(crate) interface: u32,
    /// It takes super-frames and unfinished checksums as they are, to send them again: a monitor between interfaces. Programs that
    /// only look (tcpdump, lldpd) do not ask for that, and a passive monitor has `PACKET_LOSS`, which is of no other use to it.
    pub(crate) forwards: bool,
    inode: u64,
}

/// All of the calling thread's network namespace.
pub(crate) fn receivers() -> Vec<Receiver> {
    asked().unwrap_or_else(|_| {
        // That namespace need not be the process's.
        listed(&fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default())
    })
}

/// The processes that have one of the sockets, as far as this user may see: "mmtls, process 7".
pub(crate) fn processes(sockets: &[Receiver]) -> String {
    let links: Vec<_> = sockets.iter().map(|it| format!("socket:[{}]", it.inode)).collect();
    let has_one = |process: &fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        files
            .filter_map(|it| fs::read_link(it.path()).ok())
            .any(|link| link.to_str().is_some_and(|link| links.iter().any(|of| of == link)))
    };
    let mut told = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten().filter(has_one) {
        let name = shown(&fs::read(process.path().join("comm")).unwrap_or_default());
        let number = process.file_name();
        told.push(format!("{name}, process {}", number.to_string_lossy()));
    }
    match told.is_empty() {
        true => "of a process that cannot be seen from here".to_owned(),
        false => told.join("; "),
    }
}

/// A process chooses its name, which is to move no cursor of root's terminal.
fn shown(comm: &[u8]) -> String {
    String::from_utf8_lossy(comm.trim_ascii_end()).escape_debug().to_string()
}

fn asked() -> io::Result<Vec<Receiver>> {
    let protocol = rustix::net::netlink::SOCK_DIAG;
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol))?;
    // Behind the header `struct packet_diag_req`: family, protocol, inode, what is to be shown, cookie.
    let mut request = [0; HEADER + 20];
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[HEADER] = libc::AF_PACKET as u8;
    request[HEADER + 8..HEADER + 12].copy_from_slice(&PACKET_SHOW_INFO.to_ne_bytes());
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let (mut all, mut answer) = (Vec::new(), vec![0; MAX_ANSWER]);
    loop {
        let (received, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if read(&answer[..received], &mut all)? {
            return Ok(all);
        }
    }
}

/// Reads a part of an answer; whether it was the last one.
fn read(mut answer: &[u8], all: &mut Vec<Receiver>) -> io::Result<bool> {
    while let Some(message) = word(answer, 0).and_then(|length| answer.get(..length as usize)) {
        if message.len() < HEADER {
            break;
        }
        let kind = half(message, 4).map(i32::from);
        match kind {
            Some(libc::NLMSG_DONE) => return Ok(true),
            Some(libc::NLMSG_ERROR) => return Err(io::ErrorKind::Unsupported.into()),
            _ => all.extend(receiver(message)),
        }
        answer = answer.get(message.len().next_multiple_of(4)..).unwrap_or_default();
    }
    // What cannot be read is not waited for.
    Ok(!answer.is_empty())
}

/// The socket of a message, if it gets all frames.
fn receiver(message: &[u8]) -> Option<Receiver> {
    let (kind, protocol) = (*message.get(HEADER + 1)?, half(message, HEADER + 2)?);
    if i32::from(kind) != libc::SOCK_RAW || i32::from(protocol) != libc::ETH_P_ALL {
        return None;
    }
    let inode = word(message, HEADER + 4)?.into();
    let mut rest = message.get(HEADER + BODY..)?;
    loop {
        let (length, kind) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        // None is shorter than its head, which would be read for ever.
        let value = rest.get(4..length)?;
        if kind == PACKET_DIAG_INFO {
            let forwards = word(value, FLAGS)? & (PDI_VNETHDR | PDI_LOSS) == PDI_VNETHDR;
            return Some(Receiver { interface: word(value, 0)?, forwards, inode });
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Those in the text of `/proc/net/packet`: sk, references, type, protocol, interface, running, memory, user, inode.
fn listed(table: &str) -> Vec<Receiver> {
    let receiver = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, "3", "0003", interface, _, _, _, inode] = fields[..] else {
            return None;
        };
        let (interface, inode) = (interface.parse().ok()?, inode.parse().ok()?);
        Some(Receiver { interface, forwards: false, inode })
    };
    table.lines().skip(1).filter_map(receiver).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_kernels_table_of_packet_sockets() {
        let table = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                     0000000000000000 3      3    0003   7     1 0      0      12345\n\
                     0000000000000000 3      3    0000   8     1 0      0      12346\n\
                     0000000000000000 3      2    0003   9     1 0      0      12347\n";
        assert_eq!(listed(table), [Receiver { interface: 7, forwards: false, inode: 12345 }]);
        assert!(listed("").is_empty() && listed("\n\n3 0003\n").is_empty());
    }

    /// As the kernel writes it: header, socket, an attribute of no interest, and flags.
    fn message(kind: u8, protocol: u16, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + BODY];
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes[HEADER + 1] = kind;
        bytes[HEADER + 2..HEADER + 4].copy_from_slice(&protocol.to_ne_bytes());
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&99u32.to_ne_bytes());
        for (kind, value) in [(3u16, [0; 6]), (PACKET_DIAG_INFO, [7, 0, 0, 0, 0, flags])] {
            bytes.extend(28u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.map(u32::to_ne_bytes).as_flattened());
        }
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn accepts_answers_as_far_as_they_go() {
        let found = |answer: &[u8]| {
            let mut all = Vec::new();
            let is_last = read(answer, &mut all).unwrap();
            (all, is_last)
        };
        let of = |forwards| Receiver { interface: 7, forwards, inode: 99 };
        let some = [15, 3, 31].map(|flags| message(3, 3, flags)).concat();
        let some = [some, message(2, 3, 15), message(3, 0, 15)].concat();
        assert_eq!(found(&some), (vec![of(true), of(false), of(false)], false));
        let whole = message(3, 3, 15);
        for end in 1..whole.len() {
            assert_eq!(found(&whole[..end]), (Vec::new(), true), "{end}");
        }
        // Lengths of nothing would be read for ever.
        let mut none = message(3, 3, 15);
        none[HEADER + BODY..HEADER + BODY + 2].fill(0);
        assert_eq!(found(&none), (Vec::new(), false));
        none[..4].fill(0);
        assert_eq!(found(&none), (Vec::new(), true));
    }

    #[test]
    fn shows_names_of_processes_without_what_moves_a_cursor() {
        assert_eq!(shown(b"mmtls\n"), "mmtls");
        assert_eq!(shown(b"a\x1b[2J\r\nb\xff\n"), "a\\u{1b}[2J\\r\\nb\u{fffd}");
    }

    #[test]
    fn accepts_what_this_kernel_tells() {
        // Whether there are any is not known; that it answers is.
        match asked() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                eprintln!("SKIPPED: this kernel has no packet_diag");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
