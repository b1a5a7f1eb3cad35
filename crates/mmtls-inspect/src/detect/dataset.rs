//! `dataset`: lists of strings and digests, and whether a buffer is in one.
//!
//! Refuses to open files, lists over the caps, and a list with a faulty line as a whole.

use core::fmt;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base64ct::{Base64, Base64Unpadded, Encoding};

use super::unusable::Unusable;
use super::view::View;
use crate::rules::dataset::{Dataset, DatasetKind};

/// Most entries of all lists together.
pub(crate) const MAX_ENTRIES: usize = 1 << 22;
/// Most bytes of all entries together.
pub(crate) const MAX_ENTRY_BYTES: usize = 256 << 20;
/// Longest entry as it is written, in bytes; that of Suricata is 1022.
const MAX_LINE_LEN: usize = 16 << 10;

/// Lists by their names.
#[derive(Clone, Default, Debug)]
pub struct Datasets {
    lists: HashMap<Box<str>, List>,
    entries: usize,
    bytes: usize,
}

/// A list.
#[derive(Clone, Debug)]
struct List {
    kind: DatasetKind,
    entries: Arc<HashSet<Box<[u8]>>>,
}

/// Why a list was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatasetFault {
    /// The line, from 1; 0 where it is about the list as a whole.
    pub line: u32,
    /// What is wrong.
    pub kind: DatasetFaultKind,
}

/// What can be wrong with a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatasetFaultKind {
    /// There is a list with this name.
    Twice,
    /// Not base64.
    Base64,
    /// Not as many hexadecimal digits as a digest has.
    Digest,
    /// What stands behind a comma, which Suricata takes for a reputation, is no number up to 65535.
    Reputation,
    /// A line is over 16 KiB.
    TooLong,
    /// Over the caps on entries and on their bytes.
    TooMany,
}

impl Datasets {
    /// Adds a list: an entry a line, strings in base64, digests in hexadecimal. Empty lines are left
    /// out, and so is what stands behind a comma.
    ///
    /// # Errors
    /// [`DatasetFault`] with the line; nothing was added then.
    pub fn add(&mut self, name: &str, kind: DatasetKind, text: &[u8]) -> Result<(), DatasetFault> {
        let fault = |line, kind| DatasetFault { line, kind };
        if self.lists.contains_key(name) {
            return Err(fault(0, DatasetFaultKind::Twice));
        }
        let (mut entries, mut bytes) = (HashSet::new(), self.bytes);
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let entry = entry(kind, line).map_err(|kind| fault(number, kind))?;
            bytes = bytes.saturating_add(entry.len());
            entries.insert(entry);
            let count = self.entries.saturating_add(entries.len());
            if count > MAX_ENTRIES || bytes > MAX_ENTRY_BYTES {
                return Err(fault(number, DatasetFaultKind::TooMany));
            }
        }
        self.entries = self.entries.saturating_add(entries.len());
        self.bytes = bytes;
        self.lists.insert(name.into(), List { kind, entries: Arc::new(entries) });
        Ok(())
    }
}

fn entry(kind: DatasetKind, line: &[u8]) -> Result<Box<[u8]>, DatasetFaultKind> {
    if line.len() > MAX_LINE_LEN {
        return Err(DatasetFaultKind::TooLong);
    }
    let mut parts = line.splitn(2, |byte| *byte == b',');
    let value = parts.next().unwrap_or_default().trim_ascii();
    if let Some(reputation) = parts.next() {
        let text = core::str::from_utf8(reputation.trim_ascii()).unwrap_or_default();
        text.parse::<u16>().map_err(|_| DatasetFaultKind::Reputation)?;
    }
    let digest = |len: usize| {
        let mut digest = vec![0; len];
        match base16ct::mixed::decode(value, &mut digest) {
            Ok(written) if written.len() == len => Ok(digest.into_boxed_slice()),
            _ => Err(DatasetFaultKind::Digest),
        }
    };
    match kind {
        DatasetKind::Md5 => digest(16),
        DatasetKind::Sha256 => digest(32),
        DatasetKind::String => {
            let text = core::str::from_utf8(value).map_err(|_| DatasetFaultKind::Base64)?;
            let decoded = Base64::decode_vec(text).or_else(|_| Base64Unpadded::decode_vec(text));
            decoded.map(Vec::into_boxed_slice).map_err(|_| DatasetFaultKind::Base64)
        }
    }
}

impl fmt::Display for DatasetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(match self.kind {
            DatasetFaultKind::Twice => "another dataset has this name",
            DatasetFaultKind::Base64 => "not base64",
            DatasetFaultKind::Digest => "not a digest in hexadecimal",
            DatasetFaultKind::Reputation => "not a number behind the comma",
            DatasetFaultKind::TooLong => "too long",
            DatasetFaultKind::TooMany => "too many entries",
        })
    }
}

impl std::error::Error for DatasetFault {}

/// A condition on a whole buffer, the list looked up.
#[derive(Debug)]
pub(super) struct Membership {
    negated: bool,
    entries: Arc<HashSet<Box<[u8]>>>,
}

impl Membership {
    /// Whether it asks for what is not in the list.
    pub(super) fn is_negated(&self) -> bool {
        self.negated
    }

    pub(super) fn new(dataset: &Dataset, datasets: &Datasets) -> Result<Self, Unusable> {
        let name = &dataset.name;
        let list = datasets.lists.get(name).ok_or_else(|| Unusable::NoDataset(name.clone()))?;
        if dataset.kind.is_some_and(|kind| kind != list.kind) {
            return Err(Unusable::DatasetKind(name.clone()));
        }
        Ok(Self { negated: dataset.negated, entries: Arc::clone(&list.entries) })
    }

    /// An empty buffer is in no list, and not outside of one either, as in Suricata.
    pub(super) fn holds(&self, view: View<'_>) -> bool {
        let is_known = view.is_whole && view.start == 0 && !view.bytes.is_empty();
        is_known && self.entries.contains(view.bytes) != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_faulty_lists() {
        use DatasetFaultKind::{Base64, Digest, Reputation, TooLong, Twice};
        use DatasetKind::{Md5, Sha256, String};
        let mut datasets = Datasets::default();
        datasets.add("a", String, b"YQ==\n").unwrap();
        let long = vec![b'A'; MAX_LINE_LEN + 1];
        for (name, kind, text, line, fault) in [
            ("a", String, &b""[..], 0, Twice),
            ("b", String, b"YQ==\n\n*", 3, Base64),
            ("b", String, b"\xff", 1, Base64),
            ("b", Md5, b"00", 1, Digest),
            ("b", Md5, b"0123456789abcdef0123456789abcdeg", 1, Digest),
            ("b", Sha256, b"0123456789abcdef0123456789abcdef", 1, Digest),
            ("b", String, b"YQ==,x", 1, Reputation),
            ("b", String, b"YQ==,65536", 1, Reputation),
            ("b", String, &long, 1, TooLong),
        ] {
            assert_eq!(datasets.add(name, kind, text), Err(DatasetFault { line, kind: fault }));
        }
        assert_eq!((datasets.entries, datasets.bytes, datasets.lists.len()), (1, 1, 1));
        let fault = datasets.add("b", Md5, b"\n0").unwrap_err();
        assert_eq!(fault.to_string(), "line 2: not a digest in hexadecimal");
    }

    #[test]
    fn accepts_lists_of_every_kind() {
        let mut datasets = Datasets::default();
        datasets.add("a", DatasetKind::String, b"YQ==\r\nYQ\nYWI=,5\n\nYQ==").unwrap();
        assert_eq!(datasets.entries, 2);
        let digest = b"00112233445566778899aabbccddeeFF\n";
        datasets.add("b", DatasetKind::Md5, digest).unwrap();
        let digest = &digest[..32];
        datasets.add("c", DatasetKind::Sha256, &[digest, digest].concat()).unwrap();
        assert_eq!((datasets.entries, datasets.bytes), (4, 1 + 1 + 2 + 1 + 16 + 32));
    }
}
