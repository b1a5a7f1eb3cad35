//! `--streams DIR`: what each side of a session sent, decrypted, in files of its own.
//!
//! `<client random in hex>.client` and `….server`, readable by their owner only. Both are created
//! when the first byte of the session comes. A name that exists already, from an earlier run or
//! from another session with the same random, is never touched: the session's files then are
//! `<random>-2.client` and so on. Where bytes are missing in the middle or at the end of one, a line of
//! `<random>.holes` says so: `client 1234 integrity_failure`, by file, offset and reason. Refuses to
//! keep more than a few files open, to follow symbolic links, and to leave holes of its own: after an
//! error a stream ends there, and the error is kept to be told.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use rustix::fs::{Access, access};

use base16ct::lower::encode_string as hex;

use crate::eve::create_private_dir;

/// Most files that are open at a time.
const MAX_OPEN: usize = 128;
/// Most bytes of a file of holes: a peer can make one with each record.
const MAX_HOLES_BYTES: u64 = 64 << 10;
/// Most sessions with the same client random that get files.
const MAX_COPIES: u32 = 1000;

/// Where a session's streams go; part of the session's state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamFiles {
    /// No byte has come yet.
    #[default]
    None,
    /// The files are those of the n-th session with this random.
    Numbered(u32),
    /// Writing failed; nothing more is written.
    Broken,
}

/// Whether this process may create files in a directory.
///
/// # Errors
/// Why it may not.
pub fn check(dir: &Path) -> io::Result<()> {
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Writes the streams of all sessions.
pub struct Streams {
    dir: PathBuf,
    /// The file used last is the last one.
    open: Vec<OpenFile>,
    failed: u64,
    error: Option<io::Error>,
}

struct OpenFile {
    session: SessionId,
    direction: Direction,
    file: File,
}

impl Streams {
    /// Prepares a directory, which is created if need be.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(dir: &Path) -> io::Result<Self> {
        create_private_dir(dir)?;
        Ok(Self { dir: dir.to_owned(), open: Vec::new(), failed: 0, error: None })
    }

    /// Appends decrypted bytes of one direction. `files` belongs to the session and is the same
    /// for both directions.
    pub fn append(
        &mut self,
        session: SessionId,
        client_random: &[u8; 32],
        files: &mut StreamFiles,
        direction: Direction,
        bytes: &[u8],
    ) {
        if *files == StreamFiles::Broken || bytes.is_empty() {
            return;
        }
        if let Err(error) = self.try_append(session, client_random, files, direction, bytes) {
            *files = StreamFiles::Broken;
            self.close(session);
            self.failed += 1;
            self.error.get_or_insert(error);
        }
    }

    /// Notes that behind what was appended bytes are missing, and why. Nothing where no byte has come:
    /// then there are no files.
    pub fn hole(
        &mut self,
        client_random: &[u8; 32],
        files: &mut StreamFiles,
        direction: Direction,
        reason: &str,
    ) {
        let StreamFiles::Numbered(number) = *files else {
            return;
        };
        if let Err(error) = self.try_hole(client_random, number, direction, reason) {
            *files = StreamFiles::Broken;
            self.failed += 1;
            self.error.get_or_insert(error);
        }
    }

    /// As [`Self::hole`], of bytes of the client before the first ones that will be appended.
    pub fn hole_ahead(
        &mut self,
        session: SessionId,
        client_random: &[u8; 32],
        files: &mut StreamFiles,
        reason: &str,
    ) {
        if *files == StreamFiles::None {
            match self.claim(session, client_random) {
                Ok(number) => *files = StreamFiles::Numbered(number),
                // Appending will fail as well, and say so.
                Err(_) => return,
            }
        }
        self.hole(client_random, files, Direction::ClientToServer, reason);
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

    /// The session ended: its files are closed.
    pub fn close(&mut self, session: SessionId) {
        self.open.retain(|open| open.session != session);
    }

    /// Sessions whose streams could not be written completely.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// The latest first error that was not taken yet.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn try_append(
        &mut self,
        session: SessionId,
        random: &[u8; 32],
        files: &mut StreamFiles,
        direction: Direction,
        bytes: &[u8],
    ) -> io::Result<()> {
        let number = match *files {
            StreamFiles::Numbered(number) => number,
            StreamFiles::None | StreamFiles::Broken => {
                let number = self.claim(session, random)?;
                *files = StreamFiles::Numbered(number);
                number
            }
        };
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
                let file = options().open(self.path(random, number, side(direction)))?;
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
        let mut streams = Streams::create(&dir.0).unwrap();
        let mut files = StreamFiles::default();
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
        let mut streams = Streams::create(&dir.0).unwrap();
        let (mut one, mut two) = (StreamFiles::default(), StreamFiles::default());
        streams.append(SessionId(1), &[1; 32], &mut one, CLIENT, b"one");
        streams.append(SessionId(2), &[1; 32], &mut two, SERVER, b"two");
        streams.append(SessionId(1), &[1; 32], &mut one, SERVER, b"ONE");
        assert_eq!(read(&dir, &format!("{name}.client")), "one");
        assert_eq!(read(&dir, &format!("{name}.server")), "ONE");
        assert_eq!(read(&dir, &format!("{name}-2.server")), "two");
        // What an earlier run wrote stays as it is.
        let mut again = Streams::create(&dir.0).unwrap();
        let mut three = StreamFiles::default();
        again.append(SessionId(1), &[1; 32], &mut three, CLIENT, b"three");
        assert_eq!(read(&dir, &format!("{name}.client")), "one");
        assert_eq!(read(&dir, &format!("{name}-3.client")), "three");
    }

    #[test]
    fn accepts_more_sessions_than_open_files() {
        let dir = TempDir::new("streams-many");
        let mut streams = Streams::create(&dir.0).unwrap();
        let count = 200u8;
        let mut files = vec![StreamFiles::default(); usize::from(count)];
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
            assert!(streams.open.len() <= MAX_OPEN);
        }
        for number in 0..count {
            let name = hex(&[number; 32]);
            assert_eq!(read(&dir, &format!("{name}.client")), "02");
            assert_eq!(read(&dir, &format!("{name}.server")), "1");
            streams.close(SessionId(u64::from(number)));
        }
        assert!(streams.open.is_empty());
    }

    #[test]
    fn names_what_is_missing() {
        let dir = TempDir::new("streams-holes");
        let mut streams = Streams::create(&dir.0).unwrap();
        let mut files = StreamFiles::default();
        streams.hole(&[5; 32], &mut files, SERVER, "integrity_failure");
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);
        for (direction, text) in [(SERVER, "12345"), (CLIENT, "1"), (SERVER, "678")] {
            streams.append(SessionId(1), &[5; 32], &mut files, direction, text.as_bytes());
            streams.hole(&[5; 32], &mut files, direction, "integrity_failure");
        }
        let name = "05".repeat(32);
        let expected = "server 5 integrity_failure\nclient 1 integrity_failure\n\
                        server 8 integrity_failure\n";
        assert_eq!(read(&dir, &format!("{name}.holes")), expected);
        for _ in 0..10_000 {
            streams.hole(&[5; 32], &mut files, CLIENT, "integrity_failure");
        }
        let len = read(&dir, &format!("{name}.holes")).len() as u64;
        assert!((MAX_HOLES_BYTES..MAX_HOLES_BYTES + 100).contains(&len), "{len} bytes");
        assert_eq!(streams.failed(), 0);
    }

    #[test]
    fn refuses_to_go_on_after_an_error() {
        let dir = TempDir::new("streams-error");
        let mut streams = Streams::create(&dir.0).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join(format!("{}.client", hex(&[2; 32]))))
            .unwrap();
        let mut files = StreamFiles::default();
        streams.append(SessionId(1), &[2; 32], &mut files, CLIENT, b"x");
        assert_eq!(files, StreamFiles::Numbered(2), "the link is not followed");
        std::fs::remove_dir_all(&dir.0).unwrap();
        let mut files = StreamFiles::default();
        streams.append(SessionId(2), &[3; 32], &mut files, CLIENT, b"x");
        streams.append(SessionId(2), &[3; 32], &mut files, CLIENT, b"y");
        assert_eq!(files, StreamFiles::Broken);
        assert_eq!(streams.failed(), 1);
        assert!(streams.take_error().is_some());
        assert!(streams.take_error().is_none());
    }
}
