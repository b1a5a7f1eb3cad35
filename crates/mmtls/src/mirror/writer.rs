//! What becomes of events: the conversations that are open, and the outputs that they go to.
//!
//! Refuses to go on with a conversation in an output that has lost a part of it: it ends there.

use core::fmt;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use mmtls_packet_io::af_packet::Sender;

use super::conversation::{Conversation, Ending};
use super::file::RotatingFile;
use super::frame::{Ends, Segment};
use super::settings::MirrorConfig;
use crate::behind;

/// How long a burst waits for an interface: the queue holds what comes meanwhile.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Something that is to be mirrored.
pub(super) enum Event {
    /// A session says something for the first time.
    Begin(Box<Beginning>),
    /// Bytes that one side said.
    Data { id: SessionId, now_ns: u64, from: Direction, bytes: Vec<u8> },
    /// It is over, or cannot be mirrored any further.
    End { id: SessionId, now_ns: u64, ending: Ending },
}

/// Which session begins.
pub(super) struct Beginning {
    pub(super) id: SessionId,
    pub(super) now_ns: u64,
    pub(super) ends: Ends,
    pub(super) initial: [u32; 2],
    pub(super) comment: Option<&'static str>,
}

/// Counters of a mirror, whoever counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) sessions: AtomicU64,
    pub(super) sessions_cut: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) bytes_lost: AtomicU64,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// Where conversations go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// `mirror.file`
    File,
    /// `mirror.interface`
    Interface,
}

/// An output has lost something.
#[derive(Debug)]
pub struct MirrorError {
    /// Which one.
    pub output: Output,
    /// Its name.
    pub name: String,
    /// Why.
    pub error: io::Error,
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, name, error } = self;
        match output {
            Output::File => write!(
                f,
                "writing the mirror's file {name}: {error} (sessions are cut in it until there is room)"
            ),
            Output::Interface => write!(f, "sending to the mirror's interface {name}: {error}"),
        }
    }
}

/// Writes conversations.
pub(super) struct Writer {
    open: HashMap<SessionId, Conversation>,
    /// Ends of open conversations: two servers' ports may have the same place in the mirror.
    ends: HashSet<Ends>,
    file: Option<RotatingFile>,
    interface: Option<Sender>,
    /// Of file and interface, for people.
    names: [String; 2],
    counters: Arc<Counters>,
    mtu: u16,
    frame: Vec<u8>,
    /// Bytes in what the file has yet to write, and sessions that ended there.
    gathered: (u64, u64),
    /// Frames that the interface has dropped so far.
    dropped: u64,
    /// Trouble that was not told yet.
    error: Option<MirrorError>,
    /// The file's trouble at hand was told, and that the interface drops frames.
    told: [bool; 2],
}

impl Writer {
    pub(super) fn new(
        file: Option<RotatingFile>,
        interface: Option<Sender>,
        config: &MirrorConfig,
        counters: Arc<Counters>,
    ) -> Self {
        let MirrorConfig { mtu, file: path, interface: name, .. } = config;
        let path = path.as_ref().map(|path| path.display().to_string());
        let most = interface.as_ref().map_or(u32::MAX, Sender::mtu);
        Self {
            open: HashMap::new(),
            ends: HashSet::new(),
            file,
            interface,
            names: [path, name.clone()].map(Option::unwrap_or_default),
            counters,
            mtu: u16::try_from(most).map_or(*mtu, |most| most.min(*mtu)),
            frame: Vec::new(),
            gathered: (0, 0),
            dropped: 0,
            error: None,
            told: [false; 2],
        }
    }

    fn begin(&mut self, beginning: &Beginning) {
        let Beginning { id, now_ns, ends, initial, comment } = *beginning;
        let mut conversation = Conversation::new(ends, initial);
        let ready = self.file.as_ref().filter(|file| file.is_ready());
        conversation.file = ready.map(RotatingFile::generation);
        conversation.is_on_interface = self.interface.is_some();
        let has_place = conversation.file.is_some() || conversation.is_on_interface;
        if !has_place || !self.ends.insert(ends.without_link()) {
            count(&self.counters.sessions_cut, 1);
            return;
        }
        count(&self.counters.sessions, 1);
        let mut outputs = self.outputs(&conversation);
        conversation.open(now_ns, comment, &mut |time, segment, comment| {
            outputs.send(&ends, time, segment, comment);
        });
        self.open.insert(id, conversation);
    }

    fn say(&mut self, id: SessionId, now_ns: u64, from: Direction, bytes: &[u8]) {
        let Some(mut conversation) = self.open.remove(&id) else {
            count(&self.counters.bytes_lost, bytes.len() as u64);
            return;
        };
        self.go_on(&mut conversation, now_ns);
        let (ends, mtu) = (conversation.ends, self.mtu);
        let mut outputs = self.outputs(&conversation);
        conversation.say(now_ns, from, bytes, mtu, &mut |time, segment, comment| {
            outputs.send(&ends, time, segment, comment);
        });
        count(&self.counters.bytes, bytes.len() as u64);
        if conversation.file.is_some() {
            self.gathered.0 += bytes.len() as u64;
        }
        self.open.insert(id, conversation);
    }

    fn end(&mut self, id: SessionId, now_ns: u64, ending: Ending) {
        let Some(mut conversation) = self.open.remove(&id) else {
            return;
        };
        self.ends.remove(&conversation.ends.without_link());
        self.go_on(&mut conversation, now_ns);
        let ends = conversation.ends;
        let mut outputs = self.outputs(&conversation);
        conversation.end(now_ns, ending, &mut |time, segment, comment| {
            outputs.send(&ends, time, segment, comment);
        });
        self.gathered.1 += u64::from(conversation.file.is_some() && !conversation.is_cut);
    }

    /// Opens a conversation again in a file that has not got its beginning: tools read each file alone.
    fn go_on(&mut self, conversation: &mut Conversation, now_ns: u64) {
        let Some(file) = self.file.as_ref().filter(|_| conversation.file.is_some()) else {
            return;
        };
        let now_in = Some(file.generation());
        if conversation.file == now_in {
            return;
        }
        conversation.file = now_in;
        let ends = conversation.ends;
        let mut outputs = self.outputs(conversation);
        outputs.interface = None;
        let comment = Some("goes on from the file before");
        conversation.open(now_ns, comment, &mut |time, segment, comment| {
            outputs.send(&ends, time, segment, comment);
        });
    }

    /// The outputs that have all of a conversation.
    fn outputs(&mut self, conversation: &Conversation) -> Outputs<'_> {
        Outputs {
            file: self.file.as_mut().filter(|_| conversation.file.is_some()),
            interface: self.interface.as_mut().filter(|_| conversation.is_on_interface),
            frame: &mut self.frame,
            mtu: self.mtu,
        }
    }

    fn rotate(&mut self) {
        if !self.file.as_mut().is_some_and(|file| file.is_ready() && file.is_full()) {
            return;
        }
        self.commit();
        if let Some(file) = self.file.as_mut().filter(|file| file.is_ready())
            && let Err(error) = file.rotate()
        {
            self.file_lost(error);
        }
    }

    fn commit(&mut self) {
        let Some(file) = self.file.as_mut().filter(|file| file.is_ready()) else {
            return;
        };
        match file.commit() {
            Ok(()) => (self.gathered, self.told[Output::File as usize]) = ((0, 0), false),
            Err(error) => self.file_lost(error),
        }
    }

    /// The file has lost something of every conversation that is open, perhaps.
    fn file_lost(&mut self, error: io::Error) {
        let (bytes, ended) = std::mem::take(&mut self.gathered);
        count(&self.counters.bytes_lost, bytes);
        count(&self.counters.sessions_cut, ended);
        self.tell(Output::File, error);
        self.cut(|conversation| conversation.file = None);
    }

    /// Sends what waits for the interface. Where it has dropped frames, none of its conversations is whole any more.
    fn flush_interface(&mut self) {
        let Some(sender) = &mut self.interface else {
            return;
        };
        let flushed = sender.flush();
        let dropped = sender.counters().send_errors.total();
        if dropped == self.dropped {
            return;
        }
        // Where they are heard, tools know that nothing more comes.
        let why = Ending::Reset(Direction::ClientToServer, "frames were lost");
        for conversation in self.open.values_mut().filter(|it| it.is_on_interface) {
            let ends = conversation.ends;
            let (frame, mtu) = (&mut self.frame, self.mtu);
            let mut outputs = Outputs { file: None, interface: Some(&mut *sender), frame, mtu };
            conversation.end(0, why, &mut |time, segment, comment| {
                outputs.send(&ends, time, segment, comment);
            });
        }
        // What it would say is known.
        let _ = sender.flush();
        self.dropped = sender.counters().send_errors.total();
        let error = flushed.map_or_else(
            |error| error.to_string(),
            |()| "it does not take what comes, and sessions are cut".to_owned(),
        );
        self.tell(Output::Interface, io::Error::other(error));
        self.cut(|conversation| conversation.is_on_interface = false);
    }

    /// Takes an output from all conversations, and forgets those that have none left.
    fn cut(&mut self, take: impl Fn(&mut Conversation)) {
        let (ends, counters) = (&mut self.ends, &self.counters);
        self.open.retain(|_, conversation| {
            let had = (conversation.file.is_some(), conversation.is_on_interface);
            take(conversation);
            let has = (conversation.file.is_some(), conversation.is_on_interface);
            if had != has && !std::mem::replace(&mut conversation.is_cut, true) {
                count(&counters.sessions_cut, 1);
            }
            let stays = has != (false, false);
            if !stays {
                ends.remove(&conversation.ends.without_link());
            }
            stays
        });
    }

    fn tell(&mut self, output: Output, error: io::Error) {
        let at = output as usize;
        if !std::mem::replace(&mut self.told[at], true) {
            self.error = Some(MirrorError { output, name: self.names[at].clone(), error });
        }
    }
}

impl behind::Writer for Writer {
    type Item = Event;
    type Error = MirrorError;

    fn bytes(event: &Event) -> usize {
        match event {
            Event::Data { bytes, .. } => bytes.len(),
            Event::Begin(_) | Event::End { .. } => 0,
        }
    }

    fn handle(&mut self, event: Event) {
        self.rotate();
        match event {
            Event::Begin(beginning) => self.begin(&beginning),
            Event::Data { id, now_ns, from, bytes } => self.say(id, now_ns, from, &bytes),
            Event::End { id, now_ns, ending } => self.end(id, now_ns, ending),
        }
        if self.file.as_mut().is_some_and(RotatingFile::is_due) {
            self.commit();
        }
    }

    /// Hands everything over, and looks whether it arrived.
    fn flush(&mut self) {
        self.rotate();
        self.commit();
        self.flush_interface();
    }

    fn take_error(&mut self) -> Option<MirrorError> {
        self.error.take()
    }
}

/// Where segments of a conversation go.
struct Outputs<'a> {
    file: Option<&'a mut RotatingFile>,
    interface: Option<&'a mut Sender>,
    frame: &'a mut Vec<u8>,
    mtu: u16,
}

impl Outputs<'_> {
    fn send(&mut self, ends: &Ends, time_ns: u64, segment: &Segment<'_>, comment: Option<&str>) {
        ends.write(self.frame, segment, self.mtu);
        if let Some(file) = &mut self.file {
            file.push(time_ns, self.frame, comment);
        }
        if let Some(interface) = &mut self.interface {
            interface.push(self.frame);
        }
    }
}
