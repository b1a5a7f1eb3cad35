//! `--streams DIR`: what each side of a session sent, decrypted, in files of its own.
//!
//! `<client random in hex>.client` and `….server`, readable by their owner only. Both are created
//! when the first byte of the session comes. A name that exists already, from an earlier run or
//! from another session with the same random, is never touched: the session's files then are
//! `<random>-2.client` and so on. Where bytes are missing in the middle or at the end of one, a line of
//! `<random>.holes` says so: `client 1234 integrity_failure`, by file, offset and reason.
//!
//! Workers copy what was decrypted into a queue of bounded bytes; a thread of its own writes. Where the queue is full, a
//! session's streams end there, with a hole of the reason `queue_full`. Refuses to
//! keep more than a few files open, to follow symbolic links, and to leave holes of its own: after an
//! error a stream ends there, and the error is kept to be told.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use rustix::fs::{Access, access};

use base16ct::lower::encode_string as hex;

use crate::behind::{Behind, Writer};
use crate::eve::create_private_dir;

/// Most bytes that wait to be written.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Most files that are open at a time.
const MAX_OPEN: usize = 128;
/// Most bytes of a file of holes: a peer can make one with each record.
const MAX_HOLES_BYTES: u64 = 64 << 10;
/// Most sessions with the same client random that get files.
const MAX_COPIES: u32 = 1000;
/// Why a stream ends where the queue was full.
const QUEUE_FULL: &str = "queue_full";

/// What a worker knows of a session's streams; part of the session's state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamState {
    /// No byte has come yet.
    #[default]
    None,
    /// There is something in the queue, or behind it.
    Begun,
    /// The queue was full; nothing more is written.
    Cut,
    /// It was full from the first byte on, and nothing is queued.
    Refused,
}

/// A session, and what its files are named after.
#[derive(Clone, Copy)]
struct Named {
    id: SessionId,
    random: [u8; 32],
}

/// What is to be written.
enum Item {
    Data {
        of: Named,
        direction: Direction,
        bytes: Vec<u8>,
    },
    Hole {
        of: Named,
        direction: Direction,
        reason: &'static str,
    },
    HoleAhead {
        of: Named,
        reason: &'static str,
    },
    /// The queue was full.
    Cut(SessionId),
    Close(SessionId),
}

/// Whether this process may create files in a directory.
///
/// # Errors
/// Why it may not.
pub fn check(dir: &Path) -> io::Result<()> {
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// The way to the streams of all sessions; clones lead to the same ones.
#[derive(Clone)]
pub struct Streams {
    behind: Behind<Files>,
    failed: Arc<AtomicU64>,
}

impl Streams {
    /// Prepares a directory, which is created if need be.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(dir: &Path) -> io::Result<Self> {
        Self::with_room(dir, MAX_BUFFERED_BYTES)
    }

    fn with_room(dir: &Path, max_bytes: usize) -> io::Result<Self> {
        create_private_dir(dir)?;
        let failed = Arc::<AtomicU64>::default();
        let files = Files {
            dir: dir.to_owned(),
            sessions: HashMap::new(),
            open: Vec::new(),
            failed: Arc::clone(&failed),
            error: None,
        };
        Ok(Self { behind: Behind::new(files, max_bytes), failed })
    }

    /// Has a thread write from here on, with the privileges of the calling one: for all clones. Without it, whoever has
    /// something writes, and waits for the disk.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn write_behind(&mut self) -> io::Result<()> {
        self.behind.start("streams")
    }

    /// Waits until what was decrypted is written: see [`Behind::finish`].
    pub(crate) fn finish(&self, begun: Instant) {
        self.behind.finish(begun);
    }

    /// Appends decrypted bytes of one direction. `state` belongs to the session and is the same
    /// for both directions.
    pub fn append(
        &self,
        id: SessionId,
        random: &[u8; 32],
        state: &mut StreamState,
        direction: Direction,
        bytes: &[u8],
    ) {
        if bytes.is_empty() {
            return;
        }
        let of = Named { id, random: *random };
        let item = || Item::Data { of, direction, bytes: bytes.to_vec() };
        self.push(id, state, bytes.len(), item);
    }

    /// Notes that behind what was appended bytes are missing, and why. Nothing where no byte has come:
    /// then there are no files.
    pub fn hole(
        &self,
        id: SessionId,
        random: &[u8; 32],
        state: &mut StreamState,
        direction: Direction,
        reason: &'static str,
    ) {
        if *state == StreamState::Begun {
            let of = Named { id, random: *random };
            self.push(id, state, 0, || Item::Hole { of, direction, reason });
        }
    }

    /// As [`Self::hole`], of bytes of the client before the first ones that will be appended.
    pub fn hole_ahead(
        &self,
        id: SessionId,
        random: &[u8; 32],
        state: &mut StreamState,
        reason: &'static str,
    ) {
        let of = Named { id, random: *random };
        self.push(id, state, 0, || Item::HoleAhead { of, reason });
    }

    /// The session ended: its files are closed.
    pub fn close(&self, id: SessionId, state: &mut StreamState) {
        if let StreamState::Begun | StreamState::Cut = std::mem::take(state) {
            self.behind.push_end(Item::Close(id));
        }
    }

    fn push(
        &self,
        id: SessionId,
        state: &mut StreamState,
        bytes: usize,
        item: impl FnOnce() -> Item,
    ) {
        if let StreamState::Cut | StreamState::Refused = *state {
            return;
        }
        if self.behind.push(bytes, item) {
            *state = StreamState::Begun;
        } else if *state == StreamState::Begun {
            *state = StreamState::Cut;
            self.behind.push_end(Item::Cut(id));
        } else {
            // Not even this is queued: sessions come for as long as a disk hangs.
            *state = StreamState::Refused;
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.behind.tell(full());
        }
    }

    /// Sessions whose streams could not be written completely.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The latest first error that was not taken yet.
    #[must_use]
    pub fn take_error(&self) -> Option<io::Error> {
        self.behind.take_error()
    }
}

/// What the files of a session are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionFiles {
    /// Those of the n-th session with this random.
    Numbered([u8; 32], u32),
    /// Writing failed; nothing more is written.
    Broken,
}

/// Writes the streams of all sessions.
struct Files {
    dir: PathBuf,
    /// Those that have files.
    sessions: HashMap<SessionId, SessionFiles>,
    /// The file used last is the last one.
    open: Vec<OpenFile>,
    failed: Arc<AtomicU64>,
    error: Option<io::Error>,
}

struct OpenFile {
    session: SessionId,
    direction: Direction,
    file: File,
}

impl Writer for Files {
    type Item = Item;
    type Error = io::Error;

    fn bytes(item: &Item) -> usize {
        match item {
            Item::Data { bytes, .. } => bytes.len(),
            Item::Hole { .. } | Item::HoleAhead { .. } | Item::Cut(_) | Item::Close(_) => 0,
        }
    }

    fn handle(&mut self, item: Item) {
        let (id, outcome) = match item {
            Item::Data { of, direction, bytes } => (of.id, self.append(of, direction, &bytes)),
            Item::Hole { of, direction, reason } => (of.id, self.hole(of.id, direction, reason)),
            Item::HoleAhead { of, reason } => {
                let outcome = self.number(of).map(|_| ());
                let hole = |()| self.hole(of.id, Direction::ClientToServer, reason);
                (of.id, outcome.and_then(hole))
            }
            Item::Cut(id) => {
                let hole = |direction| self.hole(id, direction, QUEUE_FULL);
                let outcome = Direction::BOTH.into_iter().try_for_each(hole);
                (id, outcome.and(Err(full())))
            }
            Item::Close(id) => {
                self.close(id);
                self.sessions.remove(&id);
                return;
            }
        };
        if let Err(error) = outcome {
            self.close(id);
            if self.sessions.insert(id, SessionFiles::Broken) != Some(SessionFiles::Broken) {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            self.error.get_or_insert(error);
        }
    }

    fn flush(&mut self) {}

    fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }
}

impl Files {
    fn close(&mut self, session: SessionId) {
        self.open.retain(|open| open.session != session);
    }

    /// Which files are a session's, that may have none yet; `None` where nothing more is written.
    fn number(&mut self, of: Named) -> io::Result<Option<u32>> {
        match self.sessions.get(&of.id) {
            Some(SessionFiles::Numbered(_, number)) => Ok(Some(*number)),
            Some(SessionFiles::Broken) => Ok(None),
            None => {
                let number = self.claim(of.id, &of.random)?;
                self.sessions.insert(of.id, SessionFiles::Numbered(of.random, number));
                Ok(Some(number))
            }
        }
    }

    fn hole(&self, id: SessionId, direction: Direction, reason: &str) -> io::Result<()> {
        match self.sessions.get(&id) {
            Some(SessionFiles::Numbered(random, number)) => {
                self.try_hole(random, *number, direction, reason)
            }
            Some(SessionFiles::Broken) | None => Ok(()),
        }
    }

    fn try_hole(
        &self,
        random: &[u8; 32],
        number: u32,
        direction: Direction,
        reason: &str,
    ) -> io::Result<()> {
        let offset = std::fs::symlink_metadata(self.path(random, number, side(direction)))?.len();
        let path = self.path(random, number, "holes");
        let mut file = options().create(true).open(path)?;
        if file.metadata()?.len() < MAX_HOLES_BYTES {
            // One call, so that a line is whole or not there.
            file.write_all(format!("{} {offset} {reason}\n", side(direction)).as_bytes())?;
        }
        Ok(())
    }

    fn append(&mut self, of: Named, direction: Direction, bytes: &[u8]) -> io::Result<()> {
        let Some(number) = self.number(of)? else {
            return Ok(());
        };
        let Named { id: session, random } = of;
        let known = self
            .open
            .iter()
            .rposition(|open| open.session == session && open.direction == direction);
        let file = match known {
            Some(at) => {
                self.open[at..].rotate_left(1);
                self.open.last_mut()
            }
            None => {
                let file = options().open(self.path(&random, number, side(direction)))?;
                self.keep_open(session, direction, file);
                self.open.last_mut()
            }
        };
        match file {
            Some(open) => open.file.write_all(bytes),
            None => Ok(()),
        }
    }

    /// Creates both files under the first number that is free for both.
    fn claim(&mut self, session: SessionId, random: &[u8; 32]) -> io::Result<u32> {
        for number in 1..=MAX_COPIES {
            let [client, server] =
                Direction::BOTH.map(|direction| self.path(random, number, side(direction)));
            let client_file = match options().create_new(true).open(&client) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            match options().create_new(true).open(&server) {
                Ok(server_file) => {
                    self.keep_open(session, Direction::ClientToServer, client_file);
                    self.keep_open(session, Direction::ServerToClient, server_file);
                    return Ok(number);
                }
                Err(error) => {
                    std::fs::remove_file(&client)?;
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn keep_open(&mut self, session: SessionId, direction: Direction, file: File) {
        if self.open.len() >= MAX_OPEN {
            self.open.remove(0);
        }
        self.open.push(OpenFile { session, direction, file });
    }

    fn path(&self, random: &[u8; 32], number: u32, what: &str) -> PathBuf {
        let random = hex(random);
        self.dir.join(match number {
            1 => format!("{random}.{what}"),
            _ => format!("{random}-{number}.{what}"),
        })
    }
}

fn full() -> io::Error {
    io::Error::other("the disk does not keep up, and streams end early")
}

fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::ClientToServer => "client",
        Direction::ServerToClient => "server",
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::eve::tests::TempDir;

    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;

    fn read(dir: &TempDir, name: &str) -> String {
        std::fs::read_to_string(dir.0.join(name)).unwrap()
    }

    #[test]
    fn accepts_both_directions_in_private_files() {
        let dir = TempDir::new("streams");
        let streams = Streams::create(&dir.0).unwrap();
        let mut files = StreamState::default();
        for (direction, text) in [(CLIENT, "GET "), (SERVER, "200"), (CLIENT, "/"), (SERVER, "")] {
            streams.append(SessionId(1), &[0xab; 32], &mut files, direction, text.as_bytes());
        }
        let name = "ab".repeat(32);
        assert_eq!(read(&dir, &format!("{name}.client")), "GET /");
        assert_eq!(read(&dir, &format!("{name}.server")), "200");
        let mode = std::fs::metadata(dir.0.join(format!("{name}.server"))).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        assert_eq!(streams.failed(), 0);
    }

    #[test]
    fn accepts_another_session_with_the_same_random() {
        let dir = TempDir::new("streams-same");
        let name = "01".repeat(32);
        let streams = Streams::create(&dir.0).unwrap();
        let (mut one, mut two) = (StreamState::default(), StreamState::default());
        streams.append(SessionId(1), &[1; 32], &mut one, CLIENT, b"one");
        streams.append(SessionId(2), &[1; 32], &mut two, SERVER, b"two");
        streams.append(SessionId(1), &[1; 32], &mut one, SERVER, b"ONE");
        assert_eq!(read(&dir, &format!("{name}.client")), "one");
        assert_eq!(read(&dir, &format!("{name}.server")), "ONE");
        assert_eq!(read(&dir, &format!("{name}-2.server")), "two");
        // What an earlier run wrote stays as it is.
        let again = Streams::create(&dir.0).unwrap();
        let mut three = StreamState::default();
        again.append(SessionId(1), &[1; 32], &mut three, CLIENT, b"three");
        assert_eq!(read(&dir, &format!("{name}.client")), "one");
        assert_eq!(read(&dir, &format!("{name}-3.client")), "three");
    }

    #[test]
    fn accepts_more_sessions_than_open_files() {
        let dir = TempDir::new("streams-many");
        let streams = Streams::create(&dir.0).unwrap();
        let count = 200u8;
        let mut files = vec![StreamState::default(); usize::from(count)];
        for round in 0..3 {
            for number in 0..count {
                streams.append(
                    SessionId(u64::from(number)),
                    &[number; 32],
                    &mut files[usize::from(number)],
                    if round == 1 { SERVER } else { CLIENT },
                    &[b'0' + round],
                );
            }
        }
        for number in 0..count {
            let name = hex(&[number; 32]);
            assert_eq!(read(&dir, &format!("{name}.client")), "02");
            assert_eq!(read(&dir, &format!("{name}.server")), "1");
            streams.close(SessionId(u64::from(number)), &mut files[usize::from(number)]);
        }
    }

    #[test]
    fn names_what_is_missing() {
        let dir = TempDir::new("streams-holes");
        let streams = Streams::create(&dir.0).unwrap();
        let mut files = StreamState::default();
        streams.hole(SessionId(1), &[5; 32], &mut files, SERVER, "integrity_failure");
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
        for (direction, text) in [(SERVER, "12345"), (CLIENT, "1"), (SERVER, "678")] {
            streams.append(SessionId(1), &[5; 32], &mut files, direction, text.as_bytes());
            streams.hole(SessionId(1), &[5; 32], &mut files, direction, "integrity_failure");
        }
        let name = "05".repeat(32);
        let expected = "server 5 integrity_failure\nclient 1 integrity_failure\n\
                        server 8 integrity_failure\n";
        assert_eq!(read(&dir, &format!("{name}.holes")), expected);
        for _ in 0..10_000 {
            streams.hole(SessionId(1), &[5; 32], &mut files, CLIENT, "integrity_failure");
        }
        let len = read(&dir, &format!("{name}.holes")).len() as u64;
        assert!((MAX_HOLES_BYTES..MAX_HOLES_BYTES + 100).contains(&len), "{len} bytes");
        assert_eq!(streams.failed(), 0);
    }

    #[test]
    fn refuses_to_go_on_after_an_error() {
        let dir = TempDir::new("streams-error");
        let streams = Streams::create(&dir.0).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join(format!("{}.client", hex(&[2; 32]))))
            .unwrap();
        let mut files = StreamState::default();
        streams.append(SessionId(1), &[2; 32], &mut files, CLIENT, b"x");
        let second = dir.0.join(format!("{}-2.client", hex(&[2; 32])));
        assert_eq!(std::fs::read(second).unwrap(), b"x", "the link is not followed");
        std::fs::remove_dir_all(&dir.0).unwrap();
        let mut files = StreamState::default();
        streams.append(SessionId(2), &[3; 32], &mut files, CLIENT, b"x");
        streams.append(SessionId(2), &[3; 32], &mut files, CLIENT, b"y");
        assert_eq!(streams.failed(), 1);
        assert!(streams.take_error().is_some());
        assert!(streams.take_error().is_none());
    }

    /// What comes faster than it is written: each stream is whole, or ends where a hole says so.
    #[test]
    fn refuses_what_the_queue_has_no_room_for_and_marks_it() {
        let dir = TempDir::new("streams-full");
        let mut streams = Streams::with_room(&dir.0, 1 << 16).unwrap();
        streams.write_behind().unwrap();
        let mut lost = 0;
        for number in 1..=200u8 {
            let (id, mut files) = (SessionId(number.into()), StreamState::default());
            for _ in 0..10 {
                streams.append(id, &[number; 32], &mut files, CLIENT, &[b'x'; 4000]);
            }
            lost += u64::from(files != StreamState::Begun);
            streams.close(id, &mut files);
        }
        streams.finish(Instant::now());
        assert!(lost > 0, "the queue is small");
        assert_eq!(streams.failed(), lost);
        assert!(streams.take_error().unwrap().to_string().contains("does not keep up"));
        let mut marked = 0;
        for number in 1..=200u8 {
            let path = dir.0.join(hex(&[number; 32]));
            let len = |name| std::fs::metadata(path.with_extension(name)).map_or(0, |it| it.len());
            let holes = std::fs::read_to_string(path.with_extension("holes")).unwrap_or_default();
            if holes.is_empty() {
                assert!([0, 40_000].contains(&len("client")), "{}", len("client"));
                marked += u64::from(len("client") == 0);
                continue;
            }
            marked += 1;
            assert_eq!(
                holes,
                format!("client {} queue_full\nserver 0 queue_full\n", len("client"))
            );
        }
        assert_eq!(marked, lost);
    }

    /// Sessions come for as long as a disk hangs: beyond its bound, the queue has the ends of those alone that it has taken.
    #[test]
    fn refuses_to_queue_anything_of_sessions_that_begin_while_the_disk_hangs() {
        let dir = TempDir::new("streams-hang");
        let max_bytes = 1 << 12;
        let mut streams = Streams::with_room(&dir.0, max_bytes).unwrap();
        streams.write_behind().unwrap();
        // Opening it to write waits for a reader.
        let holes = dir.0.join(format!("{}.holes", hex(&[1; 32])));
        assert!(std::process::Command::new("mkfifo").arg(&holes).status().unwrap().success());
        let mut files = StreamState::default();
        streams.append(SessionId(0), &[1; 32], &mut files, CLIENT, b"x");
        streams.hole(SessionId(0), &[1; 32], &mut files, CLIENT, "integrity_failure");
        let mut lost = 0;
        for number in 1..=2000u16 {
            let (id, random) = (SessionId(number.into()), [number.to_be_bytes(); 16].concat());
            let (random, mut files) = (random.try_into().unwrap(), StreamState::default());
            for direction in Direction::BOTH {
                streams.append(id, &random, &mut files, direction, b"x");
            }
            lost += u64::from(files != StreamState::Begun);
            streams.close(id, &mut files);
        }
        let waiting = streams.behind.waiting();
        assert!(waiting <= 3 * max_bytes, "{waiting} bytes wait");
        let _reader = File::open(&holes).unwrap();
        streams.finish(Instant::now());
        assert!(lost > 1900, "{lost}");
        assert_eq!(streams.failed(), lost);
        assert!(streams.take_error().unwrap().to_string().contains("does not keep up"));
    }
}
