//! The compromised middlebox between two real programs, over TCP on loopback: the kernel's own
//! stacks on both sides keep checksums and sequence numbers right.
//!
//! Refuses more than one connection, and to wait for anybody for more than ten seconds.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use super::Compromised;

/// Longest silence.
const PATIENCE: Duration = Duration::from_secs(10);

/// Carries one connection of `listener` to `server` and back until both sides have ended, and
/// says of each direction, client to server first, whether it was attacked.
///
/// `attacker` is asked for the attacker of a direction (`true`: client to server) whenever bytes
/// come, until there is one: a middlebox has keys only after a while. So that it can follow the
/// records, the first bytes that it gets must begin one.
///
/// # Errors
/// What accepting or connecting says. An end of a connection is none.
pub fn carry(
    listener: &TcpListener,
    server: SocketAddr,
    attacker: &(dyn Fn(bool) -> Option<Compromised> + Sync),
) -> io::Result<[bool; 2]> {
    let (client, _) = listener.accept()?;
    let server = TcpStream::connect_timeout(&server, PATIENCE)?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
    }
    let attacked = Mutex::new([false; 2]);
    std::thread::scope(|scope| {
        scope.spawn(|| pump(&client, &server, true, attacker, &attacked));
        pump(&server, &client, false, attacker, &attacked);
    });
    Ok(attacked.into_inner().unwrap_or([false; 2]))
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    upward: bool,
    attacker: &dyn Fn(bool) -> Option<Compromised>,
    attacked: &Mutex<[bool; 2]>,
) {
    let (mut bytes, mut middlebox) = (vec![0; 65536], None);
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        middlebox = middlebox.or_else(|| attacker(upward));
        let passed = match &mut middlebox {
            Some(middlebox) => middlebox.pass(&bytes[..len]),
            None => bytes[..len].to_vec(),
        };
        if to.write_all(&passed).is_err() {
            break;
        }
        if let (Some(middlebox), Ok(mut attacked)) = (&middlebox, attacked.lock()) {
            attacked[usize::from(!upward)] |= middlebox.attacked();
        }
    }
    // The other direction may still have something to say.
    let _ = to.shutdown(std::net::Shutdown::Write);
}
