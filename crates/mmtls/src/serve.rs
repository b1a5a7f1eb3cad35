//! Connections of a local service: a thread for each of a few, and a time by which each request must be there and each
//! answer taken.
//!
//! Refuses to let a slow or a greedy peer cost more than its own connection. Nothing here meets a packet's thread.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long is waited where no connection can be accepted: for descriptors, mostly.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Where connections come from.
pub(crate) trait Listener: Send + 'static {
    type Stream: Stream;

    fn accept(&self) -> io::Result<Self::Stream>;
}

/// One of them.
pub(crate) trait Stream: Read + Write + Send + 'static {
    /// For each single operation from now on.
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;

    /// Nothing more will be written.
    fn shut_writing(&self);
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<UnixStream> {
        self.accept().map(|(stream, _)| stream)
    }
}

impl Stream for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn shut_writing(&self) {
        // Fails only where the peer is gone.
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

impl Stream for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn shut_writing(&self) {
        // Fails only where the peer is gone.
        let _ = self.shutdown(std::net::Shutdown::Write);
    }
}

/// A stream that has until a certain time for everything, however many bytes come one by one.
pub(crate) struct Timed<S> {
    stream: S,
    deadline: Instant,
}

impl<S: Stream> Timed<S> {
    pub(crate) fn new(stream: S, time: Duration) -> Self {
        Self { stream, deadline: Instant::now() + time }
    }

    /// The next request or answer has so much time.
    pub(crate) fn allow(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    pub(crate) fn shut_writing(&self) {
        self.stream.shut_writing();
    }

    fn arm(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => self.stream.set_timeouts(left),
        }
    }
}

impl<S: Stream> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        self.stream.read(buffer)
    }
}

impl<S: Stream> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Accepts connections for the rest of the process, on a thread of its own. Of more than `most` at a time the last ones
/// get `busy` and are closed. `prepare` is the first that the thread does.
pub(crate) fn serve<L: Listener>(
    name: &'static str,
    listener: L,
    most: usize,
    busy: &'static [u8],
    prepare: impl FnOnce() + Send + 'static,
    handle: impl Fn(L::Stream) + Send + Sync + 'static,
) -> io::Result<()> {
    let (handle, open) = (Arc::new(handle), Arc::new(AtomicUsize::new(0)));
    let work = move || {
        prepare();
        loop {
            let Ok(mut stream) = listener.accept() else {
                std::thread::sleep(BACK_OFF);
                continue;
            };
            // Only this thread adds to it.
            if open.load(Ordering::Acquire) >= most {
                // Goes to the socket's buffer, which is empty.
                let _ = stream.write_all(busy);
                continue;
            }
            open.fetch_add(1, Ordering::AcqRel);
            let (handle, one) = (Arc::clone(&handle), OneOf(Arc::clone(&open)));
            let connection = std::thread::Builder::new().name(name.to_owned());
            // Without a thread it is closed, and counted no more.
            let _ = connection.spawn(move || {
                let _one = one;
                handle(stream);
            });
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// A connection that counts until it goes.
struct OneOf(Arc<AtomicUsize>);

impl Drop for OneOf {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
