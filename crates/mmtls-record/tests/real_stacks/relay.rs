//! A TCP relay that records one connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use super::command::PATIENCE;

/// The bytes of one connection: to the server, to the client.
pub type Recorded = [Vec<u8>; 2];

pub struct Relay {
    pub port: u16,
    thread: JoinHandle<Recorded>,
}

impl Relay {
    /// Listens for one connection and passes it on to `server`.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        Self { port, thread: spawn(move || relay(&listener, server)) }
    }

    /// What was recorded, once both sides have closed.
    pub fn finish(self) -> Recorded {
        self.thread.join().unwrap_or_default()
    }
}

fn relay(listener: &TcpListener, server: u16) -> Recorded {
    let Some(client) = accept(listener) else { return Recorded::default() };
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
        return Recorded::default();
    };
    let (Ok(client_again), Ok(server_again)) = (client.try_clone(), server.try_clone()) else {
        return Recorded::default();
    };
    let to_server = spawn(move || pump(client, server));
    let to_client = pump(server_again, client_again);
    [to_server.join().unwrap_or_default(), to_client]
}

fn accept(listener: &TcpListener) -> Option<TcpStream> {
    listener.set_nonblocking(true).ok()?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).ok()?;
                return Some(stream);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return None,
            Err(_) if start.elapsed() > PATIENCE => return None,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Copies until the end, or a reset, or nothing came for too long.
fn pump(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let mut recorded = Vec::new();
    let mut buffer = [0; 16384];
    let _ = from.set_read_timeout(Some(PATIENCE));
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        recorded.extend_from_slice(&buffer[..len]);
        // The receiver may have gone; what was sent to it is still worth opening.
        let _ = to.write_all(&buffer[..len]);
    }
    let _ = to.shutdown(Shutdown::Write);
    recorded
}
