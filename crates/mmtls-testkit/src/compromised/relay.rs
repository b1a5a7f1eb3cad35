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

/// Carries one connection of `listener` to `server` and back until both sides have ended.
/// `attacker` tells, for each piece of the client-to-server stream (`true`) or of the other
/// (`false`), who handles it from now on; it is asked until it has answered for that direction.
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
    let (mut bytes, mut box_) = (vec![0; 65536], None);
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        box_ = box_.or_else(|| attacker(upward));
        let passed = match &mut box_ {
            Some(middlebox) => middlebox.pass(&bytes[..len]),
            None => bytes[..len].to_vec(),
        };
        if to.write_all(&passed).is_err() {
            break;
        }
        if let (Some(middlebox), Ok(mut attacked)) = (&box_, attacked.lock()) {
            attacked[usize::from(!upward)] |= middlebox.attacked();
        }
    }
    // The other direction may still have something to say.
    let _ = to.shutdown(std::net::Shutdown::Write);
}
