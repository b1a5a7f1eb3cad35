//! `--streams DIR`: what each side of a session sent, decrypted, in files of its own.
//!
//! `<client random in hex>.client` and `….server`, readable by their owner only. Both are created
//! when the first byte of the session comes. A name that exists already, from an earlier run or
//! from another session with the same random, is never touched: the session's files then are
//! `<random>-2.client` and so on. Refuses to keep more than a few files open, to follow symbolic
//! links, and to leave holes: after an error a stream ends there, and the error is kept to be told.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use rustix::fs::{Access, access};

use crate::eve::{create_private_dir, hex};

/// Most files that are open at a time.
const MAX_OPEN: usize = 128;
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
                let file = options().open(self.path(random, number, direction))?;
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
                Direction::BOTH.map(|direction| self.path(random, number, direction));
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

    fn path(&self, random: &[u8; 32], number: u32, direction: Direction) -> PathBuf {
        let side = match direction {
            Direction::ClientToServer => "client",
            Direction::ServerToClient => "server",
        };
        let random = hex(random);
        self.dir.join(match number {
            1 => format!("{random}.{side}"),
            _ => format!("{random}-{number}.{side}"),
        })
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
