//! What stands in front of a TLS server: proxies and protocols with a dialog before TLS.
//!
//! A front listens on a port of its own at every server's address, says its part of the dialog, and
//! passes on what follows to the server on port 443 of the same address, within the namespace: the TLS
//! peer is the real one. It also opens connections to whoever is told, as an active FTP server does.
//! Refuses to judge what it is told: of the client's part it takes as many bytes as there should be.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mmtls_testkit::Testbed;
use mmtls_testkit::dialogs::dialogs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::netns::enter;

/// What one side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub client: bool,
    pub bytes: Vec<u8>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Front {
    pub name: String,
    pub port: u16,
    pub turns: Vec<Turn>,
}

/// Ports of the testkit's dialogs by protocol.
const PORTS: [(&str, u16); 10] = [
    ("smtp", 587),
    ("imap", 143),
    ("pop3", 110),
    ("ftp", 21),
    ("ldap", 389),
    ("postgresql", 5432),
    ("mysql", 3306),
    ("xmpp", 5222),
    ("http_connect", 3128),
    ("other", 1080),
];

/// Every front: `bare` says nothing.
pub fn all() -> Vec<Front> {
    let mut fronts: Vec<Front> = vec![];
    let mut add = |name: &str, port: u16, turns: Vec<(bool, Vec<u8>)>| {
        let same = fronts.iter().filter(|it| it.name.split('-').next() == Some(name)).count();
        let turns = turns.into_iter().map(|(client, bytes)| Turn { client, bytes }).collect();
        // The second dialog of a protocol is beside its port.
        let (name, port) = match same {
            0 => (name.to_owned(), port),
            _ => (format!("{name}-{}", same + 1), port + 10_000),
        };
        fronts.push(Front { name, port, turns });
    };
    add("bare", 9443, vec![]);
    for dialog in dialogs() {
        let port = PORTS.iter().find(|it| it.0 == dialog.name).map_or(9000, |it| it.1);
        let name = if dialog.name == "other" { "socks5" } else { dialog.name };
        add(name, port, dialog.turns);
    }
    let client = |bytes: &[u8]| (true, bytes.to_vec());
    let server = |bytes: &[u8]| (false, bytes.to_vec());
    add(
        "socks5_password",
        1081,
        vec![
            client(b"\x05\x02\x00\x02"),
            server(b"\x05\x02"),
            client(b"\x01\x04user\x06secret"),
            server(b"\x01\x00"),
            client(b"\x05\x01\x00\x01\x0a\x4d\x00\x64\x01\xbb"),
            server(b"\x05\x00\x00\x01\0\0\0\0\0\0"),
        ],
    );
    add(
        "socks4",
        1082,
        vec![client(b"\x04\x01\x01\xbb\x0a\x4d\x00\x64me\0"), server(b"\0\x5a\0\0\0\0\0\0")],
    );
    let proxy = client(b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n");
    add("proxy_header", 9444, vec![proxy]);
    let signature =
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x13\x88\x01\xbb";
    add("proxy_header_2", 9445, vec![client(signature)]);
    // Protocols of nobody: the server's TLS begins where the client's does.
    add("junk", 9446, vec![client(b"what nobody knows")]);
    add("junk_answered", 9447, vec![client(b"what nobody knows"), server(b"fine")]);
    let long = (0..9).flat_map(|_| [client(&[b'x'; 2000]), server(b"250 ok, ok, ok\r\n")]);
    let long = long.chain([client(b"STARTTLS\r\n"), server(b"220 Ready to start TLS\r\n")]);
    add("long", 9448, long.collect());
    add(
        "long_junk",
        9449,
        vec![client(&[7; 20_000]), server(&[9; 20_000]), client(b"what nobody knows")],
    );
    let [question, answer] = [b"a question ", b"the answer "].map(|it| it.repeat(2000));
    add(EITHER, 9450, vec![client(&question), server(&answer)]);
    fronts
}

/// Here whoever begins with TLS is understood, too: a client that has another connection with the same numbers.
const EITHER: &str = "long_dialog";

/// The front of this name.
pub fn find(name: &str) -> Result<Front, String> {
    all().into_iter().find(|it| it.name == name).ok_or_else(|| format!("no front {name}"))
}

/// Nothing for so long is the end.
const PATIENCE: Duration = Duration::from_secs(40);

/// Somebody to connect to, and the server whose bytes it gets.
type Call = (SocketAddr, SocketAddr);

/// Running fronts; end when dropped.
pub struct Fronts {
    calls: Option<Sender<Call>>,
    threads: Vec<JoinHandle<()>>,
    /// Its end is the end of the thread that accepts.
    _stop: Sender<()>,
}

impl Fronts {
    /// Starts them in the server's namespace.
    pub fn start(bed: &Testbed) -> Result<Self, String> {
        let (calls, inbox) = channel();
        let (stop, stopped) = channel();
        let (ready, started) = channel();
        let (namespace, v6) = (bed.server.path(), bed.has_ipv6());
        let accepting = std::thread::spawn(move || match listen(namespace, v6) {
            Ok(listeners) => {
                drop(ready.send(Ok(())));
                accept(&listeners, &stopped);
            }
            Err(error) => drop(ready.send(Err(error))),
        });
        let namespace = bed.server.path();
        let calling = std::thread::spawn(move || {
            if let Err(error) = enter(&namespace) {
                return eprintln!("evade: front: {error}");
            }
            call(&inbox);
        });
        started.recv().map_err(|_| "no fronts".to_owned())??;
        Ok(Self { calls: Some(calls), threads: vec![accepting, calling], _stop: stop })
    }

    /// Connects there, and passes bytes on to and from a server.
    pub fn call(&self, to: SocketAddr, server: SocketAddr) {
        if let Some(calls) = &self.calls {
            // Without it the attack ends silently.
            let _ = calls.send((to, server));
        }
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        self.calls = None;
        self._stop = channel().0;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(namespace: PathBuf, v6: bool) -> Result<Vec<(TcpListener, Front)>, String> {
    enter(&namespace)?;
    let mut listeners = vec![];
    for front in all() {
        // One for both families where there are two.
        let any: IpAddr =
            if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let listener = TcpListener::bind((any, front.port))
            .and_then(|it| it.set_nonblocking(true).map(|()| it))
            .map_err(|error| format!("front {}: {error}", front.name))?;
        listeners.push((listener, front));
    }
    Ok(listeners)
}

fn accept(listeners: &[(TcpListener, Front)], stopped: &Receiver<()>) {
    while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
        let mut all: Vec<_> =
            listeners.iter().map(|it| PollFd::new(&it.0, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if poll(&mut all, Some(&limit)).is_err() {
            continue;
        }
        for (listener, front) in listeners {
            while let Ok((stream, _)) = listener.accept() {
                let front = front.clone();
                std::thread::spawn(move || serve(stream, &front));
            }
        }
    }
}

fn call(inbox: &Receiver<Call>) {
    while let Ok((to, server)) = inbox.recv() {
        std::thread::spawn(move || {
            if let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_secs(4)) {
                splice(stream, server);
            }
        });
    }
}

fn serve(mut stream: TcpStream, front: &Front) {
    let Ok(own) = stream.local_addr() else { return };
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut first = [0];
    let is_tls =
        front.name == EITHER && matches!(stream.peek(&mut first), Ok(1)) && first == [0x16];
    for turn in front.turns.iter().filter(|_| !is_tls) {
        let done = match turn.client {
            true => stream.read_exact(&mut vec![0; turn.bytes.len()]),
            false => stream.write_all(&turn.bytes),
        };
        if done.is_err() {
            return;
        }
    }
    let own = own.ip().to_canonical();
    splice(stream, (own, 443).into());
}

fn splice(outside: TcpStream, server: SocketAddr) {
    let Ok(inside) = TcpStream::connect_timeout(&server, PATIENCE) else { return };
    for stream in [&outside, &inside] {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_nodelay(true);
    }
    let (Ok(from), Ok(to)) = (outside.try_clone(), inside.try_clone()) else { return };
    let back = std::thread::spawn(move || pass(&inside, &outside));
    pass(&from, &to);
    let _ = back.join();
}

fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = [0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_each_front_by_a_name_and_port_of_its_own() {
        let fronts = all();
        for (at, front) in fronts.iter().enumerate() {
            assert_eq!(find(&front.name).unwrap().port, front.port);
            assert!(fronts[..at].iter().all(|it| it.port != front.port), "{}", front.name);
        }
        assert!(find("nobody").is_err());
    }
}
