//! Who receives from interfaces by packet sockets, as the kernel tells (`/proc/net/packet`).
//!
//! Refuses nothing: what the kernel does not tell is nobody.

use std::fs;

/// A socket that gets all of an interface's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Receiver {
    pub(crate) interface: u32,
    pub(crate) uid: u32,
    inode: u64,
}

/// All of the calling thread's network namespace, which need not be the process's.
pub(crate) fn receivers() -> Vec<Receiver> {
    listed(&fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default())
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

/// Those in the text of `/proc/net/packet`: sk, references, type, protocol, interface, running, memory, user, inode.
fn listed(table: &str) -> Vec<Receiver> {
    let receiver = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, "3", "0003", interface, _, _, uid, inode] = fields[..] else {
            return None;
        };
        let (interface, uid) = (interface.parse().ok()?, uid.parse().ok()?);
        Some(Receiver { interface, uid, inode: inode.parse().ok()? })
    };
    table.lines().skip(1).filter_map(receiver).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_kernels_table_of_packet_sockets() {
        let table = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                     0000000000000000 3      3    0003   7     1 0      998    12345\n\
                     0000000000000000 3      3    0000   8     1 0      998    12346\n\
                     0000000000000000 3      2    0003   9     1 0      998    12347\n";
        assert_eq!(listed(table), [Receiver { interface: 7, uid: 998, inode: 12345 }]);
        assert!(listed("").is_empty() && listed("\n\n3 3 3 0003\n").is_empty());
    }

    #[test]
    fn shows_names_of_processes_without_what_moves_a_cursor() {
        assert_eq!(shown(b"mmtls\n"), "mmtls");
        assert_eq!(shown(b"a\x1b[2J\r\nb\xff\n"), "a\\u{1b}[2J\\r\\nb\u{fffd}");
    }
}
