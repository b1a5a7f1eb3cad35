//! A datagram in each millisecond from client to server, which shows for how long nothing passed.
//!
//! Refuses to take time for traffic: who wants some to pass waits until it has.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use mmtls_testkit::{Background, address};
use serde_json::Value;

use super::{LIMIT, Stage, until};

/// Sends them with a number and the time, until a file is there.
const SENDER: &str = r#"
import os, socket, struct, sys, time
host, stop = sys.argv[1], sys.argv[2]
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
number, due = 0, time.monotonic()
while number % 64 or not os.path.exists(stop):
    try:
        out.sendto(struct.pack("!QQ", number, time.monotonic_ns()), (host, 9999))
    except OSError:
        pass
    if number % 100 == 0:
        print(number, "sent", flush=True)
    number += 1
    due = max(due + 0.001, time.monotonic() - 0.005)
    time.sleep(max(0, due - time.monotonic()))
"#;

/// Takes them, and says: when they were sent between which none arrived for longest, how long there was none, when the latest
/// one was sent, and how many came, were lost, came twice.
const RECEIVER: &str = r#"
import json, os, socket, struct, sys, time
stop = sys.argv[1]
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
into.bind(("", 9999))
into.settimeout(0.2)
print(0, "came", flush=True)
times, twice, silence, last = {}, 0, 0, None
while True:
    try:
        number, sent = struct.unpack("!QQ", into.recv(64))
    except TimeoutError:
        if os.path.exists(stop):
            break
        continue
    now = time.monotonic_ns()
    silence, last = max(silence, now - (last or now)), now
    twice += number in times
    times[number] = sent
    if len(times) % 100 == 0:
        print(len(times), "came", flush=True)
sent = [times[number] for number in sorted(times)]
gap = max((b - a for a, b in zip(sent, sent[1:])), default=0)
print(json.dumps({"gap_ms": gap / 1e6, "silence_ms": silence / 1e6, "latest": sent[-1] if sent else 0, "came": len(sent),
    "twice": twice, "lost": max(times, default=0) + 1 - len(sent)}), flush=True)
"#;

/// The traffic, while it goes on.
pub struct Probe {
    sender: Background,
    receiver: Background,
    stop: PathBuf,
}

/// What there was of it.
#[derive(Debug)]
pub struct Seen {
    /// The longest time of which nothing that was sent in it came.
    pub gap_ms: f64,
    /// The longest time in which nothing came: what was only held up counts, too.
    pub silence_ms: f64,
    /// When the latest one was sent that came.
    pub latest_ns: u64,
    pub came: u64,
    pub lost: u64,
    pub twice: u64,
}

impl Probe {
    pub fn start(stage: &Stage) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let stop = stage.bed.directory().join(format!("stop-{count}"));
        let mut receiver = stage.bed.server.command("python3");
        receiver.args(["-c", RECEIVER]).arg(&stop);
        let mut receiver = stage.bed.background("receiver", receiver).unwrap();
        receiver.wait_for_line("0 came", LIMIT).unwrap();
        let mut sender = stage.bed.client.command("python3");
        sender.args(["-c", SENDER, address::SERVER_V4]).arg(&stop);
        let mut sender = stage.bed.background("sender", sender).unwrap();
        sender.wait_for_line("0 sent", LIMIT).unwrap();
        Self { sender, receiver, stop }
    }

    /// Waits until so many more have come.
    #[track_caller]
    pub fn passes(&self, more: u64) {
        counts(&self.receiver, more, "passes nothing");
    }

    /// Waits until so many more were sent, whatever becomes of them.
    #[track_caller]
    pub fn sends(&self, more: u64) {
        counts(&self.sender, more, "sends nothing");
    }

    pub fn stop(mut self) -> Seen {
        std::fs::write(&self.stop, "").unwrap();
        assert!(self.sender.wait(LIMIT).unwrap().success(), "{}", self.sender.stderr_text());
        let line = self.receiver.wait_for_line("gap_ms", LIMIT).unwrap();
        let seen: Value = serde_json::from_str(&line).unwrap();
        let number = |name: &str| seen[name].as_u64().unwrap();
        Seen {
            gap_ms: seen["gap_ms"].as_f64().unwrap(),
            silence_ms: seen["silence_ms"].as_f64().unwrap(),
            latest_ns: number("latest"),
            came: number("came"),
            lost: number("lost"),
            twice: number("twice"),
        }
    }
}

/// Waits until a program has counted so many more.
#[track_caller]
fn counts(program: &Background, more: u64, otherwise: &str) {
    let counted = || {
        let text = program.stdout_text();
        let mut whole = text.lines().filter_map(|line| line.split_once(' '));
        whole.next_back().map_or(0, |(count, _)| count.parse::<u64>().unwrap())
    };
    // It tells of every hundredth: nearly as many may have come since the last one.
    let enough = counted() + 100 + more;
    until(otherwise, || counted() >= enough);
}
