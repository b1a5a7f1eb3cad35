//! A rule with everything that it asks for, typed.
//!
//! Refuses to hold anything that its reader did not understand.

use super::application::{Http2Check, TlsVersion};
use super::buffers::{Buffer, Transform};
use super::bytes::{ByteExtract, ByteJump, ByteTest, DataAt};
use super::classes;
use super::compare::Comparison;
use super::content::Content;
use super::dataset::Dataset;
use super::fault::{Cause, Skipped};
use super::flow::{Flow, FlowBits, Tag, Threshold, XBit};
use super::header::Header;
use super::pcre::Pcre;

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// In which text it stands, from 0.
    pub text: u16,
    /// The line in which it starts, from 1.
    pub line: u32,
    /// Action, protocol, addresses, ports, direction.
    pub header: Header,
    /// Which rule it is.
    pub id: Id,
    /// Its revision; 0 where none is given.
    pub revision: u32,
    /// What it reports.
    pub message: Box<str>,
    /// Class of what it finds.
    pub class_type: Option<Box<str>>,
    /// From 1, the most urgent, to 255; otherwise that of the class.
    pub priority: Option<u8>,
    /// Where to read more: kind, and place of that kind.
    pub references: Vec<(Box<str>, Box<str>)>,
    /// Keys and values.
    pub metadata: Vec<(Box<str>, Box<str>)>,
    /// Which end is attacked.
    pub target: Option<Target>,
    /// It is applied, but does not report.
    pub no_alert: bool,
    /// What it asks of the connection.
    pub flow: Flow,
    /// Bits of the connection, in their order.
    pub flow_bits: Vec<FlowBits>,
    /// Bits of addresses, in their order.
    pub xbits: Vec<XBit>,
    /// How many matches are reported (`threshold`).
    pub threshold: Option<Threshold>,
    /// How many matches there must be before (`detection_filter`).
    pub detection_filter: Option<Threshold>,
    /// Length of a record's, or a segment's, plaintext.
    pub data_size: Option<Comparison>,
    /// Versions of TLS; one after the other must be so.
    pub tls_versions: Vec<TlsVersion>,
    /// Frames of HTTP/2.
    pub http2: Vec<Http2Check>,
    /// What is recorded behind a match.
    pub tag: Option<Tag>,
    /// What is looked for, buffer by buffer. All of it must be found.
    pub buffers: Vec<BufferChecks>,
    /// How many numbers [`ByteExtract`] keeps.
    pub extracted: u8,
}

impl Rule {
    /// How urgent it is, 1 the most: what it says itself, or that of its class.
    #[must_use]
    pub fn severity(&self) -> u8 {
        self.priority.unwrap_or_else(|| classes::priority(self.class_type.as_deref()))
    }

    /// Leaves the rule out, for a cause.
    pub(crate) fn skipped(self, cause: Cause) -> Skipped {
        Skipped {
            text: self.text,
            line: self.line,
            protocol: Some(self.header.protocol.name().into()),
            sid: Some(self.id.sid),
            message: Some(self.message),
            cause,
        }
    }

    /// What its class is about; empty where that is not known.
    #[must_use]
    pub fn category(&self) -> &'static str {
        classes::description(self.class_type.as_deref())
    }
}

/// Which rule it is: no two rules of a set have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// Group; 1 where none is given.
    pub gid: u32,
    /// Number in the group, from 1.
    pub sid: u32,
}

/// Which end is attacked, seen from what matched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Who sent it.
    Source,
    /// Who receives it.
    Destination,
}

/// What is looked for in a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferChecks {
    /// The buffer.
    pub buffer: Buffer,
    /// What is done to it before, in this order.
    pub transforms: Box<[Transform]>,
    /// One after the other, each from where the one before has left off. Never empty.
    pub checks: Vec<Check>,
}

/// Something about a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Check {
    /// Literal bytes.
    Content(Content),
    /// A regular expression.
    Pcre(Box<Pcre>),
    /// There is a byte at a place.
    DataAt(DataAt),
    /// A number compares so.
    ByteTest(ByteTest),
    /// The place moves by a number.
    ByteJump(ByteJump),
    /// A number is kept.
    ByteExtract(ByteExtract),
    /// The length of the buffer.
    Size(Comparison),
    /// The buffer is in a list.
    Dataset(Dataset),
    /// There is no such buffer.
    Absent {
        /// If there is one, the other checks must hold; else the rule does not match then.
        or_else: bool,
    },
}
