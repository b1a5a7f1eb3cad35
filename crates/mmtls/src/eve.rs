//! `eve.json`: one JSON object per line, with the names that Suricata's users expect.
//!
//! `docs/eve.md` describes every record. Refuses to write plaintext beyond request and response
//! lines, and keys of any kind; refuses to fail: see [`EveWriter::take_error`]. Bytes from the
//! network that are not UTF-8 are replaced, control characters are escaped.

mod community_id;
mod escape;
mod line_file;
mod out;
mod records;
mod time;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use mmtls_engine::session::{FlowAnomaly, FlowEnd, SessionInfo};
use mmtls_engine::tls::Direction;
use serde::Serialize;

use community_id::community_id;
use escape::Escaping;
use line_file::LineFile;
pub(crate) use line_file::create_private_dir;
pub use records::{Alert, Anomaly, Http2Stream, HttpTransaction, Lossy, TlsEnd};
use records::{FlowBody, TlsBody};
use time::Timestamps;

/// Longest line that keeps its buffer for the next one.
const KEPT_LINE: usize = 64 << 10;

/// Flows whose Community ID is kept for their next record. A prime: with several workers, each
/// one's flow numbers have a step.
const KEPT_COMMUNITIES: usize = 251;

/// The flow that a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowKey {
    /// The engine's number for the flow.
    pub id: u64,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the server.
    pub server: SocketAddr,
}

impl From<&SessionInfo> for FlowKey {
    fn from(info: &SessionInfo) -> Self {
        Self { id: info.id.0, client: info.client, server: info.server }
    }
}

impl From<&FlowAnomaly> for FlowKey {
    fn from(found: &FlowAnomaly) -> Self {
        Self { id: found.id.0, client: found.client, server: found.server }
    }
}

impl From<&FlowEnd> for FlowKey {
    fn from(flow: &FlowEnd) -> Self {
        Self { id: flow.id.0, client: flow.client, server: flow.server }
    }
}

/// Writes `eve.json`. Times are nanoseconds since 1970.
pub struct EveWriter {
    file: LineFile,
    line: Vec<u8>,
    times: Timestamps,
    /// Flows written about last, by number: the records of a flow come soon after another.
    communities: Box<[Option<(FlowKey, String)>; KEPT_COMMUNITIES]>,
}

impl EveWriter {
    /// Opens `eve.json` in a directory, which is created if need be; records are appended.
    ///
    /// # Errors
    /// When the directory or the file cannot be created.
    pub fn create(dir: &Path) -> io::Result<Self> {
        create_private_dir(dir)?;
        Ok(Self {
            file: LineFile::open(&dir.join("eve.json"))?,
            line: Vec::with_capacity(2048),
            times: Timestamps::default(),
            communities: Box::new([const { None }; KEPT_COMMUNITIES]),
        })
    }

    /// Another writer of the same file, for another thread.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            file: self.file.share(),
            line: Vec::with_capacity(2048),
            times: Timestamps::default(),
            communities: Box::new([const { None }; KEPT_COMMUNITIES]),
        }
    }

    /// A session ended.
    pub fn tls(&mut self, now_ns: u64, info: &SessionInfo, end: &TlsEnd<'_>) {
        self.begin(now_ns, "tls", Some((info.into(), Direction::ClientToServer)));
        self.end("tls", &TlsBody::new(info, end));
    }

    /// An HTTP request and its response, as far as they were seen.
    pub fn http(&mut self, now_ns: u64, flow: FlowKey, http: &HttpTransaction<'_>) {
        self.begin(now_ns, "http", Some((flow, Direction::ClientToServer)));
        self.number("tx_id", http.tx_id);
        self.end("http", http);
    }

    /// A TCP flow ended.
    pub fn flow(&mut self, now_ns: u64, flow: &FlowEnd) {
        let start = self.times.text(flow.started_ns);
        let end = self.times.text(flow.last_ns);
        self.begin(now_ns, "flow", Some((flow.into(), Direction::ClientToServer)));
        if flow.tls {
            self.text("app_proto", "tls");
        }
        self.end("flow", &FlowBody::new(flow, &start, &end));
    }

    /// Something that should not be.
    pub fn anomaly(&mut self, now_ns: u64, flow: FlowKey, from: Direction, anomaly: &Anomaly<'_>) {
        self.begin(now_ns, "anomaly", Some((flow, from)));
        self.direction(from);
        self.end("anomaly", anomaly);
    }

    /// A pattern was found in what `from` sent.
    pub fn alert(&mut self, now_ns: u64, flow: FlowKey, from: Direction, alert: &Alert<'_>) {
        self.begin(now_ns, "alert", Some((flow, from)));
        self.direction(from);
        self.number("tx_id", alert.tx_id);
        self.text("app_proto", alert.app_proto);
        self.end("alert", alert);
    }

    /// Counters; whatever serializes to a JSON object.
    pub fn stats(&mut self, now_ns: u64, counters: &impl Serialize) {
        self.begin(now_ns, "stats", None);
        self.end("stats", counters);
    }

    /// Has a thread write from here on, for this writer and those that share its file: a disk that
    /// hangs then stops nobody. The thread has the privileges of the calling one.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn write_behind(&mut self) -> io::Result<()> {
        self.file.write_behind()
    }

    /// Writes what is buffered: about once a second, and at the end (dropping does it too).
    pub fn flush(&mut self) {
        self.file.flush();
    }

    /// As [`Self::flush`], and waits for a thread that writes, but not for a disk that does nothing for
    /// five seconds.
    pub fn finish(&mut self) {
        self.file.finish();
    }

    /// Writes what is buffered and opens the file again, for tools that rotate logs.
    pub fn reopen(&mut self) {
        self.file.reopen();
    }

    /// Why the file could not be opened again, once; the old one stays in use then.
    pub fn take_reopen_error(&mut self) -> Option<io::Error> {
        self.file.take_reopen_error()
    }

    /// The first error of writing, once until something could be written again. Afterwards
    /// writing is still tried at every flush, and lines that are not written are counted.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.file.take_error()
    }

    /// Lines that are not in the file because writing failed. Those that are still kept, and come
    /// into it when it works again, count as long as it fails.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        self.file.lost_lines()
    }

    /// Everything up to the record's own object. `flow` names the sender's direction too.
    fn begin(&mut self, now_ns: u64, event_type: &str, flow: Option<(FlowKey, Direction)>) {
        self.line.clear();
        self.line.extend_from_slice(b"{\"timestamp\":\"");
        self.times.write(&mut self.line, now_ns);
        self.line.push(b'"');
        if let Some((flow, _)) = flow {
            self.number("flow_id", flow.id);
        }
        self.text("event_type", event_type);
        if let Some((flow, from)) = flow {
            let (source, destination) = match from {
                Direction::ClientToServer => (flow.client, flow.server),
                Direction::ServerToClient => (flow.server, flow.client),
            };
            self.address("src_ip", source.ip());
            self.number("src_port", source.port().into());
            self.address("dest_ip", destination.ip());
            self.number("dest_port", destination.port().into());
            self.text("proto", "TCP");
            // Within usize: below 251.
            let kept = (flow.id % KEPT_COMMUNITIES as u64) as usize;
            let (_, community) = match self.communities[kept].take() {
                Some(known) if known.0 == flow => known,
                _ => (flow, community_id(flow.client, flow.server)),
            };
            self.text("community_id", &community);
            self.communities[kept] = Some((flow, community));
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

    fn end(&mut self, name: &str, body: &impl Serialize) {
        self.name(name);
        // Only the caller's own counters could fail here: a map whose keys are not text.
        let mut json = serde_json::Serializer::with_formatter(&mut self.line, Escaping);
        if body.serialize(&mut json).is_ok() {
            self.line.extend_from_slice(b"}\n");
            self.file.push(&self.line);
        }
        if self.line.capacity() > KEPT_LINE {
            self.line = Vec::with_capacity(2048);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
