//! Lines to a socket in the file system that somebody else listens at: as a stream, as datagrams, or to the system's log.
//!
//! Whoever reads slowly is waited for, by the output's own thread alone. Refuses to repeat to a new listener what the last
//! one has got.

use std::io::{self, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::again::Again;
use super::settings::{Facility, Level};
use crate::eve::out::{Taken, Target};

/// Lines with their ends, one behind the other.
pub(super) struct Stream {
    path: PathBuf,
    connection: Option<UnixStream>,
    again: Again,
    /// How much of the lines at hand this connection has got.
    sent: usize,
}

impl Stream {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: None, again: Again::default(), sent: 0 }
    }
}

impl Target for Stream {
    /// Takes all of them, or none as yet: those at hand come again.
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken> {
        let Self { path, connection, again, sent } = self;
        let stream = match connection {
            Some(stream) => stream,
            None => connection.insert(again.attempt(|| UnixStream::connect(&*path))?),
        };
        while let Some(left) = lines.get(*sent..).filter(|left| !left.is_empty()) {
            match stream.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The next one begins with a whole line.
                    let got = lines.get(..*sent).unwrap_or_default();
                    *sent = got.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                    *connection = None;
                    again.failed();
                    return Err(error);
                }
            }
        }
        *sent = 0;
        again.succeeded();
        Ok(lines.len())
    }
}

/// A line is a datagram.
pub(super) struct Datagrams {
    path: PathBuf,
    socket: Option<UnixDatagram>,
    again: Again,
    head: Option<SyslogHead>,
    datagram: Vec<u8>,
    too_long: u64,
}

impl Datagrams {
    pub(super) fn new(path: &Path, head: Option<SyslogHead>) -> Self {
        Self {
            path: path.to_owned(),
            socket: None,
            again: Again::default(),
            head,
            datagram: Vec::new(),
            too_long: 0,
        }
    }
}

impl Target for Datagrams {
    /// Takes the first one.
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken> {
        let Self { path, socket, again, head, datagram, too_long } = self;
        let connected = match socket {
            Some(socket) => socket,
            None => socket.insert(again.attempt(|| {
                let socket = UnixDatagram::unbound()?;
                socket.connect(&*path)?;
                Ok(socket)
            })?),
        };
        let line = lines.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
        let text = match head {
            None => line,
            Some(head) => {
                datagram.clear();
                head.write(datagram);
                datagram.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
                datagram.as_slice()
            }
        };
        match connected.send(text) {
            Ok(_) => again.succeeded(),
            Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {
                *too_long += 1;
            }
            Err(error) => {
                *socket = None;
                again.failed();
                return Err(error);
            }
        }
        Ok(line.len())
    }

    fn take_too_long(&mut self) -> u64 {
        core::mem::take(&mut self.too_long)
    }
}

/// What stands before a line in the system's log, as the C library's `syslog` writes it (RFC 3164, section 4.1).
pub(super) struct SyslogHead {
    priority: u8,
    identity: String,
}

impl SyslogHead {
    pub(super) fn new(facility: Facility, level: Level, identity: &str) -> Self {
        Self { priority: facility.0 * 8 + level.0, identity: identity.to_owned() }
    }

    /// Without a time stamp: it would have no year and no zone, daemons take the time at which they read a local message,
    /// and the line has its own.
    fn write(&self, out: &mut Vec<u8>) {
        let Self { priority, identity } = self;
        let process = std::process::id();
        // Memory takes everything.
        let _ = write!(out, "<{priority}>{identity}[{process}]: ");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::eve::line_file::LineFile;
    use crate::eve::tests::TempDir;

    fn place(name: &str) -> (TempDir, PathBuf) {
        let dir = TempDir::new(name);
        std::fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("s");
        (dir, path)
    }

    fn behind(target: impl Target + Send + 'static, most: usize) -> LineFile {
        let mut file = LineFile::consumer(target, most);
        file.write_behind().unwrap();
        file
    }

    /// Tries again until something holds.
    fn until(file: &mut LineFile, what: &str, mut holds: impl FnMut(&mut LineFile) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !holds(file) {
            assert!(Instant::now() < end, "{what}");
            file.flush();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn accepts_a_listener_that_goes_and_comes_back() {
        let (_dir, path) = place("output-stream");
        let mut file = behind(Stream::new(&path), 1 << 20);
        file.push(b"1\n");
        until(&mut file, "told", |file| file.take_error().is_some());
        assert_eq!(file.lost_lines(), 1, "as long as nobody listens");
        let listener = UnixListener::bind(&path).unwrap();
        until(&mut file, "recovered", LineFile::take_recovered);
        assert_eq!((file.lost_lines(), file.counts()), (0, (1, 0)));
        let (peer, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(peer).read_line(&mut line).unwrap();
        assert_eq!(line, "1\n");
        // The peer is gone now; what the kernel took before it says so may be.
        for number in 2..50 {
            file.push(format!("{number}\n").as_bytes());
            file.flush();
        }
        until(&mut file, "told again", |file| file.take_error().is_some());
        let (peer, _) = {
            until(&mut file, "connected again", LineFile::take_recovered);
            listener.accept().unwrap()
        };
        file.push(b"last\n");
        file.finish(Instant::now());
        drop(file);
        let lines: Vec<String> = BufReader::new(peer).lines().map(Result::unwrap).collect();
        assert_eq!(lines.last().unwrap(), "last");
        assert!(lines.iter().all(|line| line == "last" || line.parse::<u32>().is_ok()));
    }

    #[test]
    fn refuses_to_wait_for_a_listener_that_reads_nothing() {
        let (_dir, path) = place("output-slow");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut file = behind(Stream::new(&path), 1 << 20);
        let mut line = [b'x'; 100];
        line[99] = b'\n';
        let begun = Instant::now();
        for _ in 0..100_000 {
            file.push(&line);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        file.finish(Instant::now());
        let (written, too_long) = file.counts();
        assert!(file.lost_lines() > 0 && file.take_error().is_some());
        assert_eq!((written + file.lost_lines(), too_long), (100_000, 0));
    }

    #[test]
    fn refuses_to_begin_with_half_a_line_where_a_listener_went_within_one() {
        let (_dir, path) = place("output-half");
        let listener = UnixListener::bind(&path).unwrap();
        let mut line = [b'x'; 101];
        line[100] = b'\n';
        let lines = line.repeat(20_000);
        let reader = std::thread::spawn(move || {
            // It goes while a write waits: after what a socket holds, somewhere in a line.
            let (mut peer, _) = listener.accept().unwrap();
            io::Read::read_exact(&mut peer, &mut [0; 10]).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            drop(peer);
            let (peer, _) = listener.accept().unwrap();
            BufReader::new(peer).lines().map(|line| line.unwrap().len()).collect::<Vec<_>>()
        });
        let mut stream = Stream::new(&path);
        assert!(stream.put(&lines).is_err());
        assert!(stream.sent > 0 && stream.sent.is_multiple_of(101), "{}", stream.sent);
        let end = Instant::now() + Duration::from_secs(30);
        while stream.put(&lines).is_err() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(stream);
        let lens = reader.join().unwrap();
        assert!(lens.len() > 1000 && lens.iter().all(|len| *len == 100), "{}", lens.len());
    }

    #[test]
    fn names_datagrams_that_are_too_large() {
        let (_dir, path) = place("output-datagrams");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut file = behind(Datagrams::new(&path, None), 16 << 20);
        let mut large = vec![b'x'; 4 << 20];
        large.push(b'\n');
        for line in [b"1\n".as_slice(), &large, b"2\n"] {
            file.push(line);
        }
        file.finish(Instant::now());
        let mut buffer = [0; 100];
        for line in [b"1\n", b"2\n"] {
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], line);
        }
        assert_eq!((file.counts(), file.lost_lines()), ((2, 1), 1));
        assert!(file.take_error().unwrap().to_string().contains("long"));
    }

    #[test]
    fn accepts_the_form_of_the_system_log() {
        let (_dir, path) = place("output-syslog");
        let socket = UnixDatagram::bind(&path).unwrap();
        let head = SyslogHead::new(Facility(21), Level(6), "mmtls");
        let mut file = behind(Datagrams::new(&path, Some(head)), 1 << 20);
        file.push(b"{\"a\":1}\n");
        file.finish(Instant::now());
        let mut buffer = [0; 100];
        let len = socket.recv(&mut buffer).unwrap();
        let text = format!("<174>mmtls[{}]: {{\"a\":1}}", std::process::id());
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), text);
    }
}
