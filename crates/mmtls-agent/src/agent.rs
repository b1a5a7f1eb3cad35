//! The agent's thread: datagrams of the programs in, key messages out.
//!
//! Each secret is a delivery of its own, since the keys of the two directions become known at different times (an
//! OpenSSL client logs its own only after its Finished was sent), and an endpoint may share one direction only.
//!
//! Refuses to hold a program up: it only reads, and the client's queue drops its oldest.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_keyshare::agent::socket::{AgentListener, AgentWaker, Users};
use mmtls_keyshare::client::Client;
use mmtls_keyshare::message::{MAX_KEYS, Message};

use crate::Error;
use crate::programs::Programs;

/// How long datagrams are taken that are there at the end: programs that never stop sending do not keep the agent.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Per middlebox that is not connected: its address and why.
pub type ConnectionErrors = Vec<(String, String)>;

/// A running agent.
pub struct Agent {
    client: Arc<Client>,
    stop: Arc<AtomicBool>,
    waker: AgentWaker,
    thread: JoinHandle<()>,
}

impl Agent {
    pub fn start(
        socket: &Path,
        users: Users,
        client: Arc<Client>,
        programs: &Programs,
    ) -> Result<Self, Error> {
        let listener = AgentListener::bind(socket, users).map_err(Error::file(socket))?;
        let waker = listener.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("mmtls-agent".to_owned())
            .spawn({
                let (client, stop) = (Arc::clone(&client), Arc::clone(&stop));
                let programs = programs.clone();
                move || serve(listener, &client, &programs, &stop)
            })
            .map_err(|error| Error::System { what: "starting a thread", error })?;
        Ok(Self { client, stop, waker, thread })
    }

    /// Waits for the middleboxes and returns those that are still not connected.
    pub fn wait_connected(&self, timeout: Duration) -> ConnectionErrors {
        if self.client.wait_connected(timeout) {
            Vec::new()
        } else {
            self.client.connection_errors()
        }
    }

    /// Takes what the programs sent before they ended, and stops.
    pub fn finish(self) -> (Arc<Client>, ConnectionErrors) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        // A panic of the thread was reported by itself; the client can still deliver.
        let _ = self.thread.join();
        let errors = self.client.connection_errors();
        (self.client, errors)
    }
}

fn serve(mut listener: AgentListener, client: &Client, programs: &Programs, stop: &AtomicBool) {
    let mut batch = Vec::new();
    let mut end = None;
    loop {
        let stopping = stop.load(Ordering::Acquire);
        if stopping && Instant::now() >= *end.get_or_insert_with(|| Instant::now() + LAST_PATIENCE)
        {
            return;
        }
        let timeout = if stopping { Duration::ZERO } else { Duration::from_secs(3600) };
        let received = listener.poll(timeout, |sender, bytes| {
            for message in programs.program_says(sender, bytes) {
                add(&mut batch, message);
            }
        });
        for message in batch.drain(..) {
            // A full queue is in the client's counters; our own messages keep to the limits.
            let _ = client.send(&message);
        }
        match received {
            // An accepted connection or a wake-up is no datagram, so look once more when stopping.
            Ok(0) if stopping => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Keys of one session that arrive together travel together.
fn add(batch: &mut Vec<Message>, message: Message) {
    match (batch.last_mut(), message) {
        (Some(Message::SessionKeys(last)), Message::SessionKeys(mut next))
            if last.client_random == next.client_random
                && last.server_random == next.server_random
                && last.keys.len() + next.keys.len() <= MAX_KEYS =>
        {
            last.keys.append(&mut next.keys);
        }
        (_, message) => batch.push(message),
    }
}
