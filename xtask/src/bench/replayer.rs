//! Both ends of the path for part (c): plays synthetic sessions into the box's two interfaces and
//! swallows what comes through. It stands for client and server at once, at a fraction of their
//! cost, so that the box is what is measured.
//!
//! Sessions keep their order: a turn is sent when the box has let all of the turn before through,
//! and a client's keys leave for the box, over the real channel, when a real client would have
//! them: together with its Finished and its request, which therefore often wait for them.
//!
//! Where sessions are to be open beside them, those are played first, up to the last byte of their responses; then it
//! says so, and waits for a line.
//!
//! Refuses to repeat anything: a frame that does not come through is a failure.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mmtls_engine::tls::Direction;
use mmtls_keyshare::SecretBytes;
use mmtls_keyshare::client::{Client, ClientConfig};
use mmtls_keyshare::message::{Epoch, KeyEntry, Message, SessionKeys};
use mmtls_packet_io::af_packet::{
    Action, Bridge, BridgeConfig, HeldFrame, Outbox, Port, VnetHeader,
};
use mmtls_testkit::{files, machine_cpu};
use serde::{Deserialize, Serialize};

use super::synthetic::{self, Keys};

/// Arguments of the hidden subcommand.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// Interface on the clients' side of the box.
    #[arg(long)]
    client: String,
    /// Interface on the servers' side of the box.
    #[arg(long)]
    server: String,
    /// Where the box takes keys; without it, none are sent.
    #[arg(long, requires = "ca")]
    middlebox: Option<String>,
    /// Who certified the box.
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Sessions to play.
    #[arg(long)]
    sessions: u32,
    /// Sessions that are open at a time.
    #[arg(long)]
    window: u32,
    /// Sessions that are opened before, and stay open and silent.
    #[arg(long, default_value_t = 0)]
    open: u32,
}

/// What is said when these are open.
pub const OPEN: &str = "open";

/// What a replay was, printed as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// Sessions played to their end.
    pub sessions: u32,
    /// Frames sent, and come through.
    pub frames: u64,
    /// From the first frame to the last.
    pub seconds: f64,
    /// Busy seconds of all cores in that time.
    pub machine_cpu_s: f64,
    /// This process's own in that time.
    pub own_cpu_s: f64,
}

/// Silence after which the replay has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A session being played: the turns still to come, last one first.
struct Player {
    turns: Vec<Vec<HeldFrame>>,
    /// Turns begun.
    begun: usize,
    /// Frames of the current turn that have not come through.
    missing: usize,
}

struct Replay {
    /// Those that stay open first.
    sessions: Vec<Player>,
    stay_open: u32,
    client: Option<Client>,
    next: usize,
    open: usize,
    done: u32,
    frames: u64,
    failure: Option<String>,
}

/// Plays the sessions.
pub fn run(args: &ReplayArgs) -> Result<(), String> {
    let body = files::pattern_bytes(synthetic::BODY, 1);
    let open = (0..args.open).map(|nth| prepare(synthetic::OTHER_CLIENT + nth, &body, true));
    let sessions = (0..args.sessions).map(|number| prepare(number, &body, false));
    let sessions = open.chain(sessions).collect::<Result<_, String>>()?;
    let keys = args.middlebox.as_deref().zip(args.ca.as_deref());
    let client = keys.map(|(middlebox, ca)| connected(middlebox, ca)).transpose()?;
    let config = BridgeConfig::new(args.client.as_str(), args.server.as_str());
    let mut bridge = Bridge::open(&config).map_err(|error| error.to_string())?;
    let stay_open = args.open;
    let mut replay =
        Replay { sessions, stay_open, client, next: 0, open: 0, done: 0, frames: 0, failure: None };
    if stay_open > 0 {
        replay.play(&mut bridge, stay_open, args.window)?;
        println!("{OPEN}");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map_err(|error| error.to_string())?;
        (replay.done, replay.frames) = (0, 0);
    }

    let (start, machine, own) = (Instant::now(), machine_cpu(), own_cpu());
    replay.play(&mut bridge, args.sessions, args.window)?;
    let replayed = Replayed {
        sessions: replay.done,
        frames: replay.frames,
        seconds: start.elapsed().as_secs_f64(),
        machine_cpu_s: machine_cpu() - machine,
        own_cpu_s: own_cpu() - own,
    };
    println!("{}", serde_json::to_string(&replayed).map_err(|error| error.to_string())?);
    Ok(())
}

impl Replay {
    /// Plays the next so many sessions, some of them at a time.
    fn play(&mut self, bridge: &mut Bridge, count: u32, window: u32) -> Result<(), String> {
        let failed = |error: mmtls_packet_io::af_packet::Error| error.to_string();
        let end = self.next + count as usize;
        let mut last = Instant::now();
        while self.done < count {
            while self.open < window as usize && self.next < end {
                self.begin(&mut |frame| bridge.send_held(frame));
            }
            let mut received = 0;
            for (port, way) in
                [(Port::Left, Direction::ServerToClient), (Port::Right, Direction::ClientToServer)]
            {
                received += bridge
                    .receive_with(port, |frame, outbox| {
                        if let Some(number) = synthetic::session_of(frame.bytes, way) {
                            self.came_through(number, outbox);
                        }
                        Action::Drop
                    })
                    .map_err(failed)?;
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if received > 0 {
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                return Err(format!(
                    "nothing comes through any more: {} sessions done, {} open",
                    self.done, self.open
                ));
            } else {
                // Not asleep: waking the sink up would be billed to the box.
                bridge.flush().map_err(failed)?;
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Begins the next session.
    fn begin(&mut self, send: &mut dyn FnMut(HeldFrame)) {
        self.next += 1;
        self.open += 1;
        self.turn(self.next - 1, send);
    }

    /// Sends the next turn of one of the sessions, or ends it.
    fn turn(&mut self, at: usize, send: &mut dyn FnMut(HeldFrame)) {
        let session = &mut self.sessions[at];
        let Some(frames) = session.turns.pop() else {
            self.done += 1;
            self.open -= 1;
            return;
        };
        session.missing = frames.len();
        session.begun += 1;
        if session.begun == synthetic::KEYS_BEFORE_TURN + 1
            && let Some(client) = &self.client
            && let Err(error) = share(client, number_of(at, self.stay_open))
        {
            self.failure = Some(error);
        }
        self.frames += frames.len() as u64;
        for frame in frames {
            send(frame);
        }
    }

    /// The box let a frame through.
    fn came_through(&mut self, number: u32, outbox: &mut Outbox) {
        let at = match number.checked_sub(synthetic::OTHER_CLIENT) {
            Some(nth) => nth as usize,
            None => (self.stay_open + number) as usize,
        };
        let Some(session) = self.sessions.get_mut(at) else {
            return;
        };
        let Some(missing) = session.missing.checked_sub(1) else {
            self.failure = Some(format!("session {number}: more came out than went in"));
            return;
        };
        session.missing = missing;
        if missing == 0 {
            self.turn(at, &mut |frame| outbox.send_held(frame));
        }
    }
}

/// The number of a session by its place.
fn number_of(at: usize, stay_open: u32) -> u32 {
    // There are fewer of them than numbers.
    let at = at as u32;
    at.checked_sub(stay_open).unwrap_or(synthetic::OTHER_CLIENT + at)
}

/// A session's frames as a local TCP would send them: with the checksum left to the hardware.
fn prepare(number: u32, body: &[u8], stays_open: bool) -> Result<Player, String> {
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CHECKSUM,
        // Behind Ethernet and IPv4; TCP's checksum is 16 bytes into its header.
        checksum_start: 34,
        checksum_offset: 16,
        ..VnetHeader::default()
    };
    let held = |(way, frame): (Direction, Vec<u8>)| {
        let egress = match way {
            Direction::ClientToServer => Port::Left,
            Direction::ServerToClient => Port::Right,
        };
        HeldFrame::new(egress, vnet, &frame)
    };
    let mut turns = synthetic::session(number, body)?;
    if stays_open {
        turns.truncate(synthetic::TURNS_BEFORE_END);
    }
    let turns = turns.into_iter().rev().map(|turn| turn.into_iter().map(held).collect()).collect();
    Ok(Player { turns, begun: 0, missing: 0 })
}

/// A connection to where keys go.
fn connected(middlebox: &str, ca: &Path) -> Result<Client, String> {
    let middlebox = middlebox.parse().map_err(|error| format!("{error}"))?;
    let config = ClientConfig::new(vec![middlebox], ca.to_owned());
    let client = Client::start(config, Box::new(|_| Vec::new()))
        .map_err(|error| format!("keys: {error}"))?;
    match client.wait_connected(PATIENCE) {
        true => Ok(client),
        false => Err(format!("keys: {:?}", client.connection_errors())),
    }
}

/// Sends a session's keys, as the agent of `mmtls exec` does.
fn share(client: &Client, session: u32) -> Result<(), String> {
    let entry = |direction| {
        let Keys { key, iv } = Keys::of(session, direction, Some(0));
        Some(KeyEntry {
            direction,
            epoch: Epoch::APPLICATION,
            key: SecretBytes::new(&key)?,
            iv: SecretBytes::new(&iv)?,
            mac_key: SecretBytes::empty(),
        })
    };
    let keys = Direction::BOTH.map(entry);
    let message = Message::SessionKeys(SessionKeys {
        client_random: synthetic::client_random(session),
        server_random: Some(synthetic::SERVER_RANDOM),
        version: 0x0304,
        cipher_suite: synthetic::SUITE,
        flow: None,
        keys: keys.into_iter().flatten().collect(),
    });
    client.send(&message).map_err(|error| error.to_string())
}

/// User and system seconds of this process, all threads.
fn own_cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
