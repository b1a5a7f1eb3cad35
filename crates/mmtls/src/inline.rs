//! The inline worker: one thread, two interfaces, one engine.
//!
//! Refuses to look into packets; it moves them as the engine says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mmtls_engine::session::Handler;
use mmtls_engine::{Engine, FrameInput, HoldId, Link, Output, PortId, Verdict};
use mmtls_keyshare::server::ServerHandle;
use mmtls_packet_io::af_packet::{
    Action, Bridge, Frame, HeldFrame, Outbox, Port, VnetHeader, WakeFd,
};

use crate::Error;
use crate::harden;
use crate::keylog::live::LiveKeys;
use crate::keys::{self, Delivery, KeyDesk};

/// Longest sleep: how late a stop or a periodic task can be.
const TICK: Duration = Duration::from_millis(250);

/// Frames per [`SLOT`] from which on the worker pauses between two looks: below that it would
/// only delay them.
const BUSY_FRAMES: usize = 32;

/// How long frames are counted for [`BUSY_FRAMES`]: 32 of them are 32,000 a second.
const SLOT: Duration = Duration::from_millis(1);

/// Deliveries taken between two looks at the interfaces.
const KEYS_PER_TURN: usize = 1024;

/// The key channel as the worker sees it.
pub struct KeyInput {
    /// Deliveries.
    pub queue: Receiver<Delivery>,
    /// Fires when there are some.
    pub wake: Arc<WakeFd>,
    /// Who sits where.
    pub desk: Arc<KeyDesk>,
    /// The way back to the endpoints; set once the server runs.
    pub server: Option<ServerHandle>,
    /// A key log that is followed.
    pub log: Option<LiveKeys>,
}

/// How a worker moves frames.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Frames per system call.
    pub batch: usize,
    /// How long to let frames gather where many come; zero never waits.
    pub moderation: Duration,
}

/// One inline worker.
pub struct Worker<H: Handler> {
    bridge: Bridge,
    engine: Engine<H>,
    held: HashMap<HoldId, HeldFrame>,
    keys: KeyInput,
    clock: Clock,
    moderation: Moderation,
    batch: usize,
}

/// Interrupt moderation, as network cards have it: where many frames come one by one, waking up
/// for each costs more than the frame. A short pause lets them gather into batches.
struct Moderation {
    pause: Duration,
    slot_end: Instant,
    /// Frames in this slot and in the one before.
    frames: [usize; 2],
}

impl Moderation {
    fn new(pause: Duration) -> Self {
        Self { pause, slot_end: Instant::now() + SLOT, frames: [0; 2] }
    }

    /// Takes note of a turn's frames and pauses when many come in small turns.
    fn turn(&mut self, frames: usize, batch: usize) {
        if self.pause.is_zero() || frames == 0 {
            return;
        }
        let now = Instant::now();
        if now >= self.slot_end {
            let skipped = now - self.slot_end >= SLOT;
            self.frames = [0, if skipped { 0 } else { self.frames[0] }];
            self.slot_end = now + SLOT;
        }
        self.frames[0] += frames;
        let busy = self.frames.iter().any(|&frames| frames >= BUSY_FRAMES);
        if busy && frames < batch {
            std::thread::sleep(self.pause);
        }
    }
}

/// Wall-clock nanoseconds that never go back, whatever is done to the system's clock.
struct Clock {
    base_ns: u64,
    start: Instant,
}

impl Clock {
    fn new() -> Self {
        let base = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base_ns: nanos(base), start: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.base_ns.saturating_add(nanos(self.start.elapsed()))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<H: Handler> Worker<H> {
    /// A worker that will move frames between the bridge's ports.
    #[must_use]
    pub fn new(bridge: Bridge, engine: Engine<H>, keys: KeyInput, settings: Settings) -> Self {
        Self {
            bridge,
            engine,
            held: HashMap::new(),
            keys,
            clock: Clock::new(),
            moderation: Moderation::new(settings.moderation),
            batch: settings.batch,
        }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine<H> {
        &self.engine
    }

    /// The bridge.
    #[must_use]
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// The application.
    pub fn handler_mut(&mut self) -> &mut H {
        self.engine.handler_mut()
    }

    /// The key server's counters.
    #[must_use]
    pub fn desk(&self) -> &KeyDesk {
        &self.keys.desk
    }

    /// The worker's time: nanoseconds since 1970.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Frames held at the moment.
    #[must_use]
    pub fn held_frames(&self) -> usize {
        self.held.len()
    }

    /// Moves frames until `stop` is set. `each_tick` runs several times a second, also under
    /// load.
    ///
    /// # Errors
    /// [`Error::Interface`] when an interface goes down or vanishes.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut each_tick: impl FnMut(&mut Self),
    ) -> Result<(), Error> {
        // Pauses are shorter than the timer slack that threads start with.
        harden::precise_timers()?;
        let mut next_tick = Instant::now() + TICK;
        while !stop.load(Ordering::Relaxed) {
            let ready = self
                .bridge
                .wait(Some(self.sleep(next_tick)), Some(self.keys.wake_fd()))
                .map_err(Error::Interface)?;
            if ready.woken {
                self.keys.wake.drain();
                self.take_keys();
            }
            let mut frames = 0;
            for port in [Port::Left, Port::Right] {
                if ready.port(port) {
                    frames += self.receive(port)?;
                }
            }
            let now_ns = self.clock.now_ns();
            if self.engine.next_timeout().is_some_and(|due| due <= now_ns) {
                self.engine.handle_timeout(now_ns);
                self.act();
            }
            self.moderation.turn(frames, self.batch);
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                each_tick(self);
            }
        }
        Ok(())
    }

    /// Lets go of everything: held frames are dropped, sessions end.
    pub fn finish(&mut self) {
        self.engine.finish();
        self.act();
        self.held.clear();
    }

    /// Gives the handler back.
    #[must_use]
    pub fn into_handler(self) -> H {
        self.engine.into_handler()
    }

    fn sleep(&self, next_tick: Instant) -> Duration {
        let tick = next_tick.saturating_duration_since(Instant::now());
        match self.engine.next_timeout() {
            Some(due) => tick.min(Duration::from_nanos(due.saturating_sub(self.clock.now_ns()))),
            None => tick,
        }
    }

    fn receive(&mut self, port: Port) -> Result<usize, Error> {
        let Self { bridge, engine, held, keys, clock, .. } = self;
        let now_ns = clock.now_ns();
        bridge
            .receive_with(port, |frame, outbox| {
                let input = FrameInput {
                    port: port_id(port),
                    link: Link::Ethernet,
                    bytes: frame.bytes,
                    checksum_trusted: checksum_trusted(frame),
                };
                let action = match engine.handle_frame(now_ns, &input) {
                    Verdict::Forward => Action::Forward,
                    Verdict::Drop => Action::Drop,
                    Verdict::Hold(id) => {
                        held.insert(id, frame.hold());
                        Action::Taken
                    }
                };
                drain(now_ns, engine, held, keys, outbox);
                action
            })
            .map_err(Error::Interface)
    }

    fn take_keys(&mut self) {
        let now_ns = self.clock.now_ns();
        for taken in 0.. {
            let Ok(delivery) = self.keys.queue.try_recv() else {
                break;
            };
            // The engine counts refusals.
            match delivery {
                Delivery::Keys(keys) => {
                    let _ = self.engine.handle_keys(now_ns, keys);
                }
                Delivery::Null { sender, client_random } => {
                    let _ = self.engine.handle_null_keys(now_ns, Some(sender), client_random);
                }
                Delivery::Lines(lines) => {
                    for keys in self.keys.log.iter_mut().flat_map(|log| log.add(&lines)) {
                        let _ = self.engine.handle_keys(now_ns, keys);
                    }
                }
            }
            self.act();
            if taken == KEYS_PER_TURN {
                // Packets wait too; come back for the rest at once.
                self.keys.wake.wake();
                break;
            }
        }
    }

    /// Acts on outputs that no frame caused.
    fn act(&mut self) {
        let now_ns = self.clock.now_ns();
        let mut direct = Direct(&mut self.bridge);
        drain(now_ns, &mut self.engine, &mut self.held, &mut self.keys, &mut direct);
    }
}

impl KeyInput {
    fn wake_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.wake.as_fd()
    }
}

/// Somewhere frames can be sent.
trait Send {
    fn send_held(&mut self, held: HeldFrame);
    fn inject(&mut self, egress: Port, frame: &[u8]);
}

impl Send for Outbox<'_> {
    fn send_held(&mut self, held: HeldFrame) {
        Outbox::send_held(self, held);
    }

    fn inject(&mut self, egress: Port, frame: &[u8]) {
        // The engine's frames have a header and a legal length.
        let _ = Outbox::inject(self, egress, frame);
    }
}

struct Direct<'a>(&'a mut Bridge);

impl Send for Direct<'_> {
    fn send_held(&mut self, held: HeldFrame) {
        self.0.send_held(held);
    }

    fn inject(&mut self, egress: Port, frame: &[u8]) {
        let _ = self.0.inject(egress, frame);
    }
}

fn drain<H: Handler>(
    now_ns: u64,
    engine: &mut Engine<H>,
    held: &mut HashMap<HoldId, HeldFrame>,
    keys: &mut KeyInput,
    out: &mut impl Send,
) {
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Release(id) => {
                if let Some(frame) = held.remove(&id) {
                    out.send_held(frame);
                }
            }
            Output::Discard(id) => {
                held.remove(&id);
            }
            Output::Inject { port, frame } => {
                let ingress = if port == port_id(Port::Left) { Port::Left } else { Port::Right };
                out.inject(ingress.other(), &frame);
            }
            Output::KeysNeeded(wanted) => {
                if let Some(found) = keys.log.as_mut().and_then(|log| log.want(wanted)) {
                    // What comes of it is taken up by the next turn of this loop.
                    let _ = engine.handle_keys(now_ns, found);
                } else if let (Some(server), Some(message), Some(connection)) = (
                    &keys.server,
                    keys::request(&wanted),
                    keys.desk.connection_of(wanted.client.ip()),
                ) {
                    // A full queue means that the endpoint is slow; its keys come unasked too.
                    let _ = server.send_to(connection, &message);
                }
            }
        }
    }
}

fn port_id(port: Port) -> PortId {
    match port {
        Port::Left => PortId(0),
        Port::Right => PortId(1),
    }
}

/// Unfinished checksums must not be verified, verified ones need not be.
fn checksum_trusted(frame: &Frame<'_>) -> bool {
    frame.vnet.flags & (VnetHeader::NEEDS_CHECKSUM | VnetHeader::DATA_VALID) != 0
}
