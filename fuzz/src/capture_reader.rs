//! Capture files that somebody else wrote.
//!
//! Claims: a file is read to its end or to an error in bounded steps, whatever the pieces in which
//! it comes; no item is larger than its cap; an Ethernet packet that was read can be written, and
//! is then read again as it was. Memory is bounded by the runner's limit, far below what the
//! lengths in a file can claim.

use std::io::{self, Read};

use mmtls_packet_io::capture::{
    CaptureError, CaptureReader, Item, Link, MAX_BLOCK_BYTES, PcapngWriter,
};

use crate::input::Input;

/// Items of one file that are compared; a small gzipped file can hold millions.
const MAX_ITEMS: usize = 4096;
/// Uncompressed bytes of one file that are written again.
const MAX_COPY: usize = 1 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Input: how the file is read, then the file.
pub fn capture_reader(data: &[u8]) {
    let mut input = Input::new(data);
    let most = usize::from(input.u8());
    let file = input.all();

    let whole = read(file, usize::MAX);
    let items = match &whole {
        Ok(items) | Err((items, _)) => items,
    };
    if most > 0 {
        let pieces = read(file, most);
        match (&whole, &pieces) {
            (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
            (Err((whole, _)), Err((pieces, _))) if file.starts_with(&GZIP_MAGIC) => {
                // How much comes out in front of damage is the decompressor's choice.
                assert!(whole.starts_with(pieces) || pieces.starts_with(whole));
            }
            (Err(whole), Err(pieces)) => assert_eq!(whole, pieces),
            _ => panic!("read in pieces: {pieces:?}, whole: {whole:?}"),
        }
    }
    write_again(items);
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    /// `None` for secrets.
    link: Option<Link>,
    timestamp_ns: u64,
    original_len: usize,
    bytes: Vec<u8>,
}

type Outcome = Result<Vec<Kept>, (Vec<Kept>, String)>;

fn read(file: &[u8], most: usize) -> Outcome {
    let mut items = Vec::new();
    let fail = |items, error: CaptureError| Err((items, error.to_string()));
    let mut reader = match CaptureReader::new(Pieces { rest: file, most, interrupt: false }) {
        Ok(reader) => reader,
        Err(error) => return fail(items, error),
    };
    let mut bytes_kept = 0;
    loop {
        match reader.next() {
            Ok(Some(item)) if items.len() < MAX_ITEMS && bytes_kept < MAX_COPY => {
                let kept = keep(&item);
                bytes_kept += kept.bytes.len();
                items.push(kept);
            }
            Ok(Some(item)) => drop(keep(&item)),
            Ok(None) => break,
            Err(error) => {
                assert!(matches!(reader.next(), Ok(None)), "an error is told once");
                return fail(items, error);
            }
        }
    }
    let counters = reader.counters();
    assert!(counters.packets + counters.secrets >= items.len() as u64);
    for warning in reader.warnings() {
        assert!(!warning.to_string().is_empty());
    }
    Ok(items)
}

fn keep(item: &Item<'_>) -> Kept {
    match *item {
        Item::Packet { timestamp_ns, link, bytes, original_len } => {
            assert!(bytes.len() <= original_len && bytes.len() <= MAX_BLOCK_BYTES);
            if link == Link::Ip {
                assert!(matches!(bytes.first().map(|byte| byte >> 4), Some(4 | 6)));
            }
            Kept { link: Some(link), timestamp_ns, original_len, bytes: bytes.to_vec() }
        }
        Item::Secrets { bytes, .. } => {
            assert!(bytes.len() <= MAX_BLOCK_BYTES);
            Kept { link: None, timestamp_ns: 0, original_len: 0, bytes: bytes.to_vec() }
        }
    }
}

fn write_again(items: &[Kept]) {
    let ethernet: Vec<Kept> =
        items.iter().filter(|it| it.link == Some(Link::Ethernet)).cloned().collect();
    if ethernet.is_empty() {
        return;
    }
    let mut writer = PcapngWriter::new(Vec::new()).expect("memory does not fail");
    for item in &ethernet {
        writer
            .packet(item.timestamp_ns, &item.bytes, item.original_len)
            .expect("what was read can be written");
    }
    assert_eq!(read(&writer.into_inner(), usize::MAX), Ok(ethernet));
}

/// Gives a few bytes at a time, and is interrupted every other time.
struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
    interrupt: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.most != usize::MAX {
            self.interrupt = !self.interrupt;
            if self.interrupt {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        let len = self.most.min(out.len()).min(self.rest.len());
        let (now, rest) = self.rest.split_at(len);
        out[..len].copy_from_slice(now);
        self.rest = rest;
        Ok(len)
    }
}
