//! Lines to a Redis server: pushed to a list, told to a channel, or added to a stream.
//!
//! The few commands that this takes are written here (RESP2): the client crates bring parsers of URLs with Unicode's tables,
//! some thirty crates, into a process that holds keys. Refuses replies that are none, or large. What a connection was lost
//! over is sent again: a line may come twice.

use core::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use zeroize::Zeroizing;

use super::again::Again;
use super::settings::{RedisMode, RedisSection, RedisServer};
use crate::eve::out::{Taken, Target};
use crate::secret_file;

/// How long the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest line of a reply, and most bytes of one.
const MAX_REPLY: u64 = 16 << 10;
/// Longest password.
const MAX_PASSWORD: usize = 4 << 10;

/// A server.
pub(super) struct Redis {
    section: RedisSection,
    password: Option<Zeroizing<String>>,
    connection: Option<BufReader<Box<dyn Connection>>>,
    again: Again,
    commands: Vec<u8>,
}

trait Connection: Read + Write + Send {}

impl<C: Read + Write + Send> Connection for C {}

/// The first line of a file.
///
/// # Errors
/// Why it cannot be read, or is none.
pub(super) fn password(file: &Path) -> io::Result<Zeroizing<String>> {
    let about =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let text = secret_file::read(file, MAX_PASSWORD).map_err(about)?;
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() {
        true => Err(about(io::Error::other("its first line is to be the password, and is empty"))),
        false => Ok(Zeroizing::new(line.to_owned())),
    }
}

impl Redis {
    /// Reads the password; connects to nobody.
    pub(super) fn open(section: &RedisSection) -> io::Result<Self> {
        Ok(Self {
            password: section.password_file.as_deref().map(password).transpose()?,
            section: section.clone(),
            connection: None,
            again: Again::default(),
            commands: Vec::new(),
        })
    }

    fn connect(&mut self) -> io::Result<()> {
        let Self { section, password, again, .. } = self;
        let connected = again.attempt(|| {
            let stream: Box<dyn Connection> = match &section.server {
                RedisServer::Address(address) => {
                    let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    Box::new(stream)
                }
                RedisServer::Socket(path) => {
                    let stream = UnixStream::connect(path)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    Box::new(stream)
                }
            };
            let mut stream = BufReader::new(stream);
            if let Some(password) = password {
                let name = section.username.as_deref().map(str::as_bytes);
                let mut words = vec![b"AUTH".as_slice()];
                words.extend(name);
                words.push(password.as_bytes());
                let mut auth = Zeroizing::new(Vec::with_capacity(2 * MAX_PASSWORD));
                command(&mut auth, &words);
                stream.get_mut().write_all(&auth)?;
                // A server that does not know the command repeats its arguments, and this goes to the log.
                let refused = |error: io::Error| match error.kind() {
                    io::ErrorKind::Other => io::Error::other("the server refuses the password"),
                    _ => error,
                };
                read_reply(&mut stream).map_err(refused)?;
            }
            Ok(stream)
        })?;
        self.connection = Some(connected);
        Ok(())
    }

    /// Sends lines, and returns how many the server took.
    fn send(&mut self, lines: &[&[u8]]) -> io::Result<usize> {
        if self.connection.is_none() {
            self.connect()?;
        }
        let Self { section, connection: Some(connection), commands, .. } = self else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        commands.clear();
        let replies = write_commands(commands, section, lines);
        connection.get_mut().write_all(commands)?;
        for at in 0..replies {
            match read_reply(connection) {
                Ok(()) => {}
                // Those before it are there: they do not come again.
                Err(_) if at > 0 => {
                    self.connection = None;
                    return Ok(at);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lines.len())
    }
}

impl Target for Redis {
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken> {
        let all = lines.split_inclusive(|&byte| byte == b'\n');
        let batch: Vec<&[u8]> = all.take(self.section.batch_size).collect();
        match self.send(&batch) {
            Ok(taken) => {
                self.again.succeeded();
                Ok(batch.iter().take(taken).map(|line| line.len()).sum())
            }
            Err(error) => {
                // Trying to connect has taken note itself.
                if self.connection.take().is_some() {
                    self.again.failed();
                }
                Err(match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")
                    }
                    _ => error,
                })
            }
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

/// Writes what is done with lines, and says how many replies come.
fn write_commands(out: &mut Vec<u8>, section: &RedisSection, lines: &[&[u8]]) -> usize {
    let key = section.key.as_bytes();
    let lines = lines.iter().map(|line| line.strip_suffix(b"\n").unwrap_or(line));
    let several = |out: &mut Vec<u8>, name: &'static [u8]| {
        let words: Vec<&[u8]> = [name, key].into_iter().chain(lines.clone()).collect();
        command(out, &words);
        1
    };
    match section.mode {
        // One command: all of them, or none.
        RedisMode::Lpush => several(out, b"LPUSH"),
        RedisMode::Rpush => several(out, b"RPUSH"),
        RedisMode::Publish => lines.map(|line| command(out, &[b"PUBLISH", key, line])).count(),
        RedisMode::Xadd => {
            let most = section.stream_maxlen.map(|most| most.to_string());
            let limit = most.iter().flat_map(|most| [b"MAXLEN".as_slice(), b"~", most.as_bytes()]);
            let head: Vec<&[u8]> = [b"XADD".as_slice(), key].into_iter().chain(limit).collect();
            let rest = |line| [b"*".as_slice(), b"eve", line];
            lines.map(|line| command(out, &[head.as_slice(), &rest(line)].concat())).count()
        }
    }
}

/// A command is an array of strings with their lengths.
fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    // Memory takes everything.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads a reply: a status, a number or a string, of which only the kind matters here.
///
/// # Errors
/// What the server says is wrong, or the connection.
fn read_reply(from: &mut impl BufRead) -> io::Result<()> {
    let odd =
        || io::Error::new(io::ErrorKind::InvalidData, "what answers there is no Redis server");
    let mut line = Vec::new();
    from.by_ref().take(MAX_REPLY).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = line.strip_suffix(b"\r\n").ok_or_else(odd)?;
    match text.split_first().ok_or_else(odd)? {
        (b'+' | b':', _) => Ok(()),
        (b'-', error) => {
            let error: String = String::from_utf8_lossy(error)
                .chars()
                .filter(|it| !it.is_control())
                .take(200)
                .collect();
            Err(io::Error::other(format!("the server refuses: {error}")))
        }
        (b'$', len) => {
            let len: i64 =
                str::from_utf8(len).ok().and_then(|it| it.parse().ok()).ok_or_else(odd)?;
            // Nothing has no end of its own.
            let Ok(len) = u64::try_from(len) else {
                return Ok(());
            };
            if len > MAX_REPLY {
                return Err(odd());
            }
            let read = io::copy(&mut from.by_ref().take(len + 2), &mut io::sink())?;
            if read == len + 2 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
        _ => Err(odd()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(section: RedisSection, lines: &[&[u8]]) -> (String, usize) {
        let mut out = Vec::new();
        let replies = write_commands(&mut out, &section, lines);
        (String::from_utf8(out).unwrap().replace("\r\n", " "), replies)
    }

    #[test]
    fn accepts_every_mode() {
        let of = |mode, stream_maxlen| RedisSection { mode, stream_maxlen, ..Default::default() };
        let lines: [&[u8]; 2] = [b"{1}\n", b"{2}\n"];
        assert_eq!(
            commands(of(RedisMode::Lpush, None), &lines),
            ("*4 $5 LPUSH $5 mmtls $3 {1} $3 {2} ".to_owned(), 1)
        );
        assert_eq!(
            commands(of(RedisMode::Rpush, None), &lines[..1]),
            ("*3 $5 RPUSH $5 mmtls $3 {1} ".to_owned(), 1)
        );
        assert_eq!(
            commands(of(RedisMode::Publish, None), &lines),
            ("*3 $7 PUBLISH $5 mmtls $3 {1} *3 $7 PUBLISH $5 mmtls $3 {2} ".to_owned(), 2)
        );
        assert_eq!(
            commands(of(RedisMode::Xadd, None), &lines[1..]),
            ("*5 $4 XADD $5 mmtls $1 * $3 eve $3 {2} ".to_owned(), 1)
        );
        assert_eq!(
            commands(of(RedisMode::Xadd, Some(9)), &lines[1..]),
            ("*8 $4 XADD $5 mmtls $6 MAXLEN $1 ~ $1 9 $1 * $3 eve $3 {2} ".to_owned(), 1)
        );
    }

    #[test]
    fn accepts_replies_and_refuses_what_is_none() {
        let reply = |text: &[u8]| {
            let mut text = text;
            read_reply(&mut text).map(|()| text.len()).map_err(|error| error.to_string())
        };
        for text in ["+OK\r\n", ":12\r\n", "$3\r\n1-1\r\n", "$0\r\n\r\n", "$-1\r\n"] {
            assert_eq!(reply(text.as_bytes()), Ok(0), "{text}");
        }
        assert_eq!(reply(b"+OK\r\n+OK\r\n"), Ok(5), "one at a time");
        let refused = reply(b"-NOAUTH Authentication required.\x1b[0m\r\n").unwrap_err();
        assert_eq!(refused, "the server refuses: NOAUTH Authentication required.[0m");
        for text in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"+OK\n",
            b"\r\n",
            b"+O",
            b"$999999999999\r\n",
            b"$18446744073709551615\r\n",
            b"$x\r\n",
            b"*1\r\n+OK\r\n",
            &[b'+'; 100_000],
        ] {
            assert!(reply(text).unwrap_err().contains("no Redis server"), "{text:?}");
        }
        for text in [&b""[..], b"$3\r\n1"] {
            assert!(reply(text).is_err());
        }
    }

    /// A server that does not know the command says back what it was told.
    #[test]
    fn tells_nobody_a_password_that_a_server_repeats() {
        let dir = crate::eve::tests::TempDir::new("redis-echo");
        std::fs::create_dir_all(&dir.0).unwrap();
        let [file, socket] = ["p", "s"].map(|name| dir.0.join(name));
        std::fs::write(&file, "correct-horse").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            let mut said = [0; 64];
            let len = client.read(&mut said).unwrap();
            assert!(said[..len].windows(13).any(|it| it == b"correct-horse"));
            client
                .write_all(b"-ERR unknown command 'AUTH', with args: 'correct-horse'\r\n")
                .unwrap();
        });
        let mut redis = Redis::open(&RedisSection {
            server: RedisServer::Socket(socket),
            password_file: Some(file),
            ..RedisSection::default()
        })
        .unwrap();
        let error = redis.put(b"{}\n").err().unwrap().to_string();
        assert_eq!(error, "the server refuses the password");
        server.join().unwrap();
    }

    #[test]
    fn names_the_file_without_a_password() {
        let dir = crate::eve::tests::TempDir::new("redis-password");
        std::fs::create_dir_all(&dir.0).unwrap();
        let file = dir.0.join("p");
        assert!(password(&file).unwrap_err().to_string().contains("/p: No such file"));
        std::fs::write(&file, "\nx").unwrap();
        assert!(password(&file).unwrap_err().to_string().contains("chmod 600"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
        assert!(password(&file).unwrap_err().to_string().contains("is empty"));
        std::fs::write(&file, "secret word\n").unwrap();
        assert_eq!(password(&file).unwrap().as_str(), "secret word");
    }
}
