//! `eve.json`: one JSON object per line, with the names that Suricata's users expect.
//!
//! `docs/eve.md` describes every record. Refuses to write plaintext beyond request and response
//! lines, and keys of any kind; refuses to fail: see [`EveWriter::take_error`]. Bytes from the
//! network that are not UTF-8 are replaced, control characters are escaped.

mod community_id;
mod escape;
mod flow_id;
mod line_file;
mod out;
pub mod outputs;
mod records;
mod time;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mmtls_engine::session::{FlowAnomaly, FlowEnd, FlowPlace, RefusedKeys, SessionInfo};
use mmtls_engine::tls::Direction;
use serde::Serialize;

use crate::fingerprint::Fingerprints;
use crate::rotation::Rotation;
use community_id::community_id;
pub(crate) use escape::Escaping;
pub(crate) use flow_id::FlowIds;
use line_file::LineFile;
pub(crate) use line_file::create_private_dir;
pub(crate) use out::open_at_once;
use outputs::Output;
use outputs::settings::OutputSection;
pub use records::{
    Alert, Anomaly, Certificates, Dropped, FileInfo, FlowFacts, Http2Stream, HttpTransaction, Late,
    Lossy, Metadata, SessionEnd,
};
use records::{ControlBody, FlowBody, KeysBody, SessionBody, TlsBody};
pub(crate) use records::{Suite, Version, text_of};
use time::Timestamps;

/// In place of a directory: standard output.
pub const STANDARD_OUTPUT: &str = "-";

/// Longest line that keeps its buffer for the next one.
const KEPT_LINE: usize = 64 << 10;

/// Flows whose identifiers are kept for their next record. A prime: with several workers, each
/// one's flow numbers have a step.
const KEPT_FLOWS: usize = 251;

/// The flow that a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowKey {
    /// The engine's number for the flow.
    pub id: u64,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the server.
    pub server: SocketAddr,
    /// Where the client is.
    pub place: FlowPlace,
}

impl From<&SessionInfo> for FlowKey {
    fn from(info: &SessionInfo) -> Self {
        Self { id: info.id.0, client: info.client, server: info.server, place: info.place }
    }
}

impl From<&FlowAnomaly> for FlowKey {
    fn from(found: &FlowAnomaly) -> Self {
        Self { id: found.id.0, client: found.client, server: found.server, place: found.place }
    }
}

impl From<&FlowEnd> for FlowKey {
    fn from(flow: &FlowEnd) -> Self {
        Self { id: flow.id.0, client: flow.client, server: flow.server, place: flow.place }
    }
}

/// Where records come from: what all lines of a run have in common.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Origin {
    /// Name of the machine.
    pub host: Option<String>,
    /// The interfaces, one or two: a flow's records name the one that its client is at.
    pub interfaces: Vec<String>,
    /// The capture that is read.
    pub pcap_filename: Option<String>,
}

/// Where lines go.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EveConfig {
    /// Directory of `eve.json`, or [`STANDARD_OUTPUT`].
    pub directory: Option<PathBuf>,
    /// When another file begins.
    pub rotation: Rotation,
    /// Who gets them beside.
    pub outputs: Vec<OutputSection>,
}

impl EveConfig {
    /// Whether anybody gets them.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.directory.is_some() || !self.outputs.is_empty()
    }
}

/// Why there is no log.
#[derive(Debug)]
pub enum OpenLogError {
    /// The log directory, or `eve.json` in it.
    Directory(PathBuf, io::Error),
    /// An output, by name.
    Output(Arc<str>, io::Error),
}

/// What outputs beside the file have got, and have not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OutputCounters {
    /// Lines that they took.
    pub lines: u64,
    /// Lines that they did not, or not yet while they fail.
    pub lost: u64,
    /// Of these, those that are too long for them.
    pub too_long: u64,
}

/// [`Origin`] as it stands in lines.
struct Common {
    origin: Origin,
    /// For each port of the engine.
    in_iface: [Vec<u8>; 2],
    /// At the end of every line.
    tail: Vec<u8>,
}

/// Writes `eve.json`. Times are nanoseconds since 1970.
pub struct EveWriter {
    file: Option<LineFile>,
    outputs: Vec<Output>,
    /// The record at hand is of this kind.
    event_type: &'static str,
    line: Vec<u8>,
    times: Timestamps,
    common: Arc<Common>,
    ids: FlowIds,
    /// Flows written about last, by number: the records of a flow come soon after another.
    known: Box<[Option<Known>; KEPT_FLOWS]>,
}

/// What records say of a flow, and what costs a hash.
struct Known {
    flow: FlowKey,
    id: u64,
    community: String,
}

impl EveWriter {
    /// Opens `eve.json` in a directory, which is created if need be, and nothing else; records are appended.
    /// [`STANDARD_OUTPUT`] in place of a directory is what it says.
    ///
    /// # Errors
    /// When the directory or the file cannot be created.
    pub fn create(dir: &Path, origin: &Origin) -> io::Result<Self> {
        let file = create_file(dir, Rotation::default())?;
        Ok(Self::new(Some(file), Vec::new(), origin))
    }

    /// Opens `eve.json`, and what else there is.
    ///
    /// # Errors
    /// [`OpenLogError`].
    pub fn open(config: &EveConfig, origin: &Origin) -> Result<Self, OpenLogError> {
        // The outputs first: a mistake must leave no new file behind.
        let open = |section: &OutputSection| {
            Output::open(section)
                .map_err(|error| OpenLogError::Output(section.name().into(), error))
        };
        let outputs = config.outputs.iter().map(open).collect::<Result<_, _>>()?;
        let create = |dir: &PathBuf| {
            create_file(dir, config.rotation)
                .map_err(|error| OpenLogError::Directory(dir.clone(), error))
        };
        let file = config.directory.as_ref().map(create).transpose()?;
        Ok(Self::new(file, outputs, origin))
    }

    fn new(file: Option<LineFile>, outputs: Vec<Output>, origin: &Origin) -> Self {
        Self {
            file,
            outputs,
            event_type: "",
            line: Vec::with_capacity(2048),
            times: Timestamps::default(),
            common: Arc::new(Common::of(origin)),
            ids: FlowIds::default(),
            known: Box::new([const { None }; KEPT_FLOWS]),
        }
    }

    /// From now on records come from another capture.
    pub fn set_capture(&mut self, name: String) {
        let origin = Origin { pcap_filename: Some(name), ..self.common.origin.clone() };
        self.common = Arc::new(Common::of(&origin));
    }

    /// The numbers of flows in this log.
    pub(crate) fn ids(&self) -> FlowIds {
        self.ids.clone()
    }

    /// Another writer of the same file, for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            file: self.file.as_ref().map(LineFile::share),
            outputs: self.outputs.iter().map(Output::share).collect(),
            event_type: "",
            line: Vec::with_capacity(2048),
            times: Timestamps::default(),
            common: Arc::clone(&self.common),
            ids: self.ids.clone(),
            known: Box::new([const { None }; KEPT_FLOWS]),
        }
    }

    /// What the handshake of a session has shown: once per session.
    pub fn tls(
        &mut self,
        now_ns: u64,
        info: &SessionInfo,
        certificates: Certificates<'_>,
        fingerprints: Option<&Fingerprints>,
    ) {
        self.begin(now_ns, "tls", Some((info.into(), Direction::ClientToServer)));
        self.end("tls", &TlsBody::new(info, certificates, fingerprints));
    }

    /// A session ended: what became of it.
    pub fn session(&mut self, now_ns: u64, info: &SessionInfo, end: &SessionEnd<'_>) {
        self.begin(now_ns, "mmtls", Some((info.into(), Direction::ClientToServer)));
        self.end("mmtls", &SessionBody::new(info, end));
    }

    /// An HTTP request and its response, as far as they were seen.
    pub fn http(&mut self, now_ns: u64, flow: FlowKey, http: &HttpTransaction<'_>) {
        self.begin(now_ns, "http", Some((flow, Direction::ClientToServer)));
        self.number("tx_id", http.tx_id);
        self.end("http", http);
    }

    /// A body that `from` sent is over.
    pub fn fileinfo(&mut self, now_ns: u64, flow: FlowKey, from: Direction, file: &FileInfo<'_>) {
        self.begin(now_ns, "fileinfo", Some((flow, from)));
        self.text("app_proto", file.app_proto);
        if self.object("http", &file.http) {
            self.end("fileinfo", file);
        }
    }

    /// A TCP flow ended.
    pub fn flow(&mut self, now_ns: u64, flow: &FlowEnd, facts: FlowFacts) {
        let start = self.times.text(flow.started_ns);
        let end = self.times.text(flow.last_ns);
        self.begin(now_ns, "flow", Some((flow.into(), Direction::ClientToServer)));
        if flow.tls {
            self.text("app_proto", "tls");
            if let Some(before) = facts.app_proto {
                self.text("app_proto_orig", before);
            }
        } else if let Some(app_proto) = facts.app_proto {
            self.text("app_proto", app_proto);
        }
        self.end("flow", &FlowBody::new(flow, facts, &start, &end));
    }

    /// Keys were delivered that the session does not take.
    pub fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        let flow = refused.session.into();
        self.begin(refused.now_ns, "keys", Some((flow, Direction::ClientToServer)));
        let (reason, sender) = (refused.why.name(), refused.sender);
        self.end("keys", &KeysBody { action: "refused", reason, sender });
    }

    /// An operator decides about a flow.
    pub fn control(&mut self, now_ns: u64, flow: FlowKey, action: &'static str, uid: Option<u32>) {
        self.begin(now_ns, "control", Some((flow, Direction::ClientToServer)));
        self.end("control", &ControlBody { action, uid });
    }

    /// Something that should not be.
    pub fn anomaly(&mut self, now_ns: u64, flow: FlowKey, from: Direction, anomaly: &Anomaly<'_>) {
        self.begin(now_ns, "anomaly", Some((flow, from)));
        self.direction(from);
        self.end("anomaly", anomaly);
    }

    /// A rule has matched, or a pattern was found, in what `from` sent.
    pub fn alert(&mut self, now_ns: u64, flow: FlowKey, from: Direction, alert: &Alert<'_>) {
        self.begin(now_ns, "alert", Some((flow, from)));
        self.direction(from);
        if let Some(number) = alert.tx_id {
            self.number("tx_id", number);
        }
        self.text("app_proto", alert.app_proto);
        if alert.http.as_ref().is_none_or(|http| self.object("http", http)) {
            self.end("alert", alert);
        }
    }

    /// The application resets a session for what `from` sent.
    pub fn dropped(&mut self, now_ns: u64, flow: FlowKey, from: Direction, dropped: &Dropped) {
        self.begin(now_ns, "drop", Some((flow, from)));
        self.direction(from);
        self.end("drop", dropped);
    }

    /// Counters; whatever serializes to a JSON object.
    pub fn stats(&mut self, now_ns: u64, counters: &impl Serialize) {
        self.begin(now_ns, "stats", None);
        self.end("stats", counters);
    }

    /// Has threads write from here on, for this writer and those that share its outputs: a disk that
    /// hangs then stops nobody. They have the privileges of the calling one.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn write_behind(&mut self) -> io::Result<()> {
        self.all().try_for_each(LineFile::write_behind)
    }

    /// Writes what is buffered: about once a second, and at the end (dropping does it too).
    pub fn flush(&mut self) {
        self.all().for_each(LineFile::flush);
    }

    /// As [`Self::flush`], and waits for threads that write, but not for a disk that does nothing for
    /// five seconds.
    pub fn finish(&mut self) {
        // All of them have the same time.
        self.flush();
        let begun = Instant::now();
        self.all().for_each(|lines| lines.finish(begun));
    }

    /// Writes what is buffered and opens the file again, for tools that rotate logs.
    pub fn reopen(&mut self) {
        self.all().for_each(LineFile::reopen);
    }

    /// Why the file could not be opened again, or be kept under another name, once; the old one stays in use then.
    pub fn take_reopen_error(&mut self) -> Option<io::Error> {
        self.file.as_mut().and_then(LineFile::take_reopen_error)
    }

    /// The first error of writing, once until something could be written again. Afterwards
    /// writing is still tried at every flush, and lines that are not written are counted.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.file.as_mut().and_then(LineFile::take_error)
    }

    /// The same of the outputs beside the file: which one, and why, or that it takes lines again.
    pub fn take_output_changes(&mut self) -> Vec<(Arc<str>, Option<io::Error>)> {
        let mut changes = Vec::new();
        for Output { name, lines, .. } in &mut self.outputs {
            if lines.take_recovered() {
                changes.push((Arc::clone(name), None));
            }
            changes.extend(lines.take_error().map(|error| (Arc::clone(name), Some(error))));
        }
        changes
    }

    /// What the outputs beside the file have got.
    #[must_use]
    pub fn output_counters(&self) -> OutputCounters {
        let mut sum = OutputCounters::default();
        for Output { lines, .. } in &self.outputs {
            let (written, too_long) = lines.counts();
            sum.lines += written;
            sum.lost += lines.lost_lines();
            sum.too_long += too_long;
        }
        sum
    }

    /// Lines that are not in the file because writing failed. Those that are still kept, and come
    /// into it when it works again, count as long as it fails.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        self.file.as_ref().map_or(0, LineFile::lost_lines)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut LineFile> {
        self.file.iter_mut().chain(self.outputs.iter_mut().map(|output| &mut output.lines))
    }

    /// Everything up to the record's own object. `flow` names the sender's direction too.
    fn begin(&mut self, now_ns: u64, event_type: &'static str, flow: Option<(FlowKey, Direction)>) {
        self.event_type = event_type;
        self.line.clear();
        self.line.extend_from_slice(b"{\"timestamp\":\"");
        self.times.write(&mut self.line, now_ns);
        self.line.push(b'"');
        let known = flow.map(|(flow, _)| self.take_known(flow));
        if let Some(known) = &known {
            self.number("flow_id", known.id);
        }
        if let Some((FlowKey { place, .. }, _)) = flow {
            self.line.extend_from_slice(&self.common.in_iface[usize::from(place.port.0 & 1)]);
            self.vlans(place.vlans);
        }
        self.text("event_type", event_type);
        if let (Some((flow, from)), Some(known)) = (flow, known) {
            let (source, destination) = match from {
                Direction::ClientToServer => (flow.client, flow.server),
                Direction::ServerToClient => (flow.server, flow.client),
            };
            self.address("src_ip", source.ip());
            self.number("src_port", source.port().into());
            self.address("dest_ip", destination.ip());
            self.number("dest_port", destination.port().into());
            self.text("proto", "TCP");
            self.text("community_id", &known.community);
            self.known[place(flow)] = Some(known);
        }
    }

    fn take_known(&mut self, flow: FlowKey) -> Known {
        match self.known[place(flow)].take() {
            Some(known) if known.flow == flow => known,
            _ => {
                let community = community_id(flow.client, flow.server);
                Known { flow, id: self.ids.of(flow.id), community }
            }
        }
    }

    /// The outer one first; untagged traffic has no such member.
    fn vlans(&mut self, vlans: [u16; 2]) {
        let mut vlans = vlans.into_iter().filter(|id| *id != 0);
        if let Some(first) = vlans.next() {
            self.name("vlan");
            for (before, id) in [(b'[', Some(first)), (b',', vlans.next())] {
                if let Some(id) = id {
                    self.line.push(before);
                    self.line.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
                }
            }
            self.line.push(b']');
        }
    }

    /// Appends a member's name, which needs no escaping.
    fn name(&mut self, name: &str) {
        for part in [",\"", name, "\":"] {
            self.line.extend_from_slice(part.as_bytes());
        }
    }

    /// Appends a member whose text needs no escaping.
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        for part in ["\"", text, "\""] {
            self.line.extend_from_slice(part.as_bytes());
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn address(&mut self, name: &str, address: IpAddr) {
        self.name(name);
        self.line.push(b'"');
        match address {
            IpAddr::V4(address) => {
                for (at, octet) in address.octets().into_iter().enumerate() {
                    if at > 0 {
                        self.line.push(b'.');
                    }
                    self.line.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
                }
            }
            IpAddr::V6(address) => {
                let _ = write!(self.line, "{address}");
            }
        }
        self.line.push(b'"');
    }

    fn direction(&mut self, from: Direction) {
        // What Suricata calls it; `Direction` is displayed the same way.
        self.text("direction", &from.to_string());
    }

    /// Appends a member; false when it could not be. Only the caller's own counters could fail here: a map
    /// whose keys are not text.
    fn object(&mut self, name: &str, body: &impl Serialize) -> bool {
        self.name(name);
        let mut json = serde_json::Serializer::with_formatter(&mut self.line, Escaping);
        body.serialize(&mut json).is_ok()
    }

    fn end(&mut self, name: &str, body: &impl Serialize) {
        if self.object(name, body) {
            self.line.extend_from_slice(&self.common.tail);
            self.line.extend_from_slice(b"}\n");
            if let Some(file) = &mut self.file {
                file.push(&self.line);
            }
            self.outputs.iter_mut().for_each(|it| it.push(self.event_type, &self.line));
        }
        if self.line.capacity() > KEPT_LINE {
            self.line = Vec::with_capacity(2048);
        }
    }
}

fn create_file(dir: &Path, rotation: Rotation) -> io::Result<LineFile> {
    if dir == Path::new(STANDARD_OUTPUT) {
        return LineFile::standard_output();
    }
    create_private_dir(dir)?;
    LineFile::open(&dir.join("eve.json"), rotation)
}

impl Common {
    fn of(origin: &Origin) -> Self {
        let member = |name: &str, text: Option<&String>| {
            let mut out = Vec::new();
            if let Some(text) = text {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                let mut json = serde_json::Serializer::with_formatter(&mut out, Escaping);
                // A vector takes everything, and text is always written.
                let _ = text.serialize(&mut json);
            }
            out
        };
        let Origin { host, interfaces, pcap_filename } = origin;
        let tail = [member("host", host.as_ref()), member("pcap_filename", pcap_filename.as_ref())];
        let [left, right] = [interfaces.first(), interfaces.last()];
        let in_iface = [left, right].map(|name| member("in_iface", name));
        Self { origin: origin.clone(), in_iface, tail: tail.concat() }
    }
}

/// Where a flow's identifiers are kept.
fn place(flow: FlowKey) -> usize {
    // Within usize: below 251.
    (flow.id % KEPT_FLOWS as u64) as usize
}

#[cfg(test)]
pub(crate) mod tests;
