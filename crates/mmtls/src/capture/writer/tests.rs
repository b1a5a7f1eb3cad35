//! Which connections stay known, for how long, and whose place others get.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::super::tests::{lines, told};
use super::*;
use crate::eve::tests::TempDir;

struct Stage {
    dir: TempDir,
    writer: Writer,
    counters: Arc<Counters>,
    now: Instant,
}

impl Stage {
    fn new(name: &str, secrets: bool) -> Self {
        let dir = TempDir::new(&format!("capture-{name}"));
        std::fs::create_dir_all(&dir.0).unwrap();
        let config = CaptureConfig { secrets, ..CaptureConfig::default() };
        let path = dir.0.join("c");
        let file = RotatingFile::create(&path, config.rotation()).unwrap();
        let counters = Arc::<Counters>::default();
        let writer = Writer::new(file, path, &config, Arc::clone(&counters));
        Self { dir, writer, counters, now: Instant::now() }
    }

    fn send(&mut self, number: u32, opens: bool, text: &str) {
        self.writer.frame(ends(number), 1, opens, text.as_bytes().into(), self.now);
    }

    fn begin(&mut self, number: u32, random: Random) {
        self.writer.session(ends(number), random, self.now);
    }

    fn end(&mut self, number: u32) {
        self.writer.end(&ends(number), self.now);
    }

    fn log(&mut self, random: Random) {
        self.writer.lines(lines(random).as_bytes(), self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.writer.expire(self.now);
    }

    fn told(&mut self) -> Vec<String> {
        self.writer.commit();
        told(&self.dir.0.join("c"))
    }

    fn sessions(&self) -> u64 {
        self.counters.sessions.load(Ordering::Relaxed)
    }

    /// What is known, and what memory it takes.
    fn known(&self) -> [usize; 3] {
        let Writer { flows, sessions, held_bytes, .. } = &self.writer;
        [flows.len_all(), sessions.len(), *held_bytes]
    }
}

fn ends(number: u32) -> Ends {
    let client = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | number));
    [SocketAddr::new(client, 1000), SocketAddr::from(([192, 0, 2, 1], 443))]
}

fn random(number: u32) -> Random {
    let mut random = [0xab; 32];
    random[..4].copy_from_slice(&number.to_be_bytes());
    random
}

const LONG: Duration = Duration::from_secs(7000);

#[test]
fn accepts_what_comes_after_hours_of_silence_until_the_session_ends() {
    for secrets in [false, true] {
        let mut stage = Stage::new(&format!("silent-{secrets}"), secrets);
        stage.send(1, true, "SYN");
        stage.begin(1, random(1));
        stage.send(1, false, "hello");
        for text in ["later", "FIN"] {
            stage.pass(LONG);
            stage.send(1, false, text);
        }
        stage.end(1);
        stage.pass(CLOSING / 2);
        stage.send(1, false, "ACK");
        stage.pass(LONG);
        assert_eq!(stage.known(), [0; 3], "forgotten");
        stage.send(1, false, "another");
        assert_eq!(stage.told(), ["SYN", "hello", "later", "FIN", "ACK"]);
        assert_eq!(stage.sessions(), 1);
    }
}

/// The engine may not have taken it: its checksum is wrong, say.
#[test]
fn refuses_to_end_a_session_for_a_syn() {
    let mut stage = Stage::new("syn", false);
    stage.begin(1, random(1));
    for (opens, text) in [(false, "hello"), (true, "SYN"), (false, "data")] {
        stage.send(1, opens, text);
    }
    assert_eq!(stage.told(), ["hello", "SYN", "data"]);
    // Then it is over, and the next one carries no TLS.
    stage.end(1);
    stage.send(1, true, "SYN");
    stage.send(1, false, "plain");
    assert_eq!(stage.told().len(), 3);
}

#[test]
fn accepts_sessions_that_are_told_before_their_first_frame_or_late() {
    let mut stage = Stage::new("first", true);
    stage.begin(1, random(1));
    stage.send(1, false, "hello");
    // It has not looked like TLS for long; and the secrets of another one are there before.
    stage.log(random(3));
    for number in [2, 3] {
        stage.send(number, true, "plain");
    }
    stage.pass(stage.writer.wait);
    stage.begin(2, random(2));
    stage.begin(3, random(3));
    stage.send(2, false, "second");
    stage.send(3, false, "third");
    stage.log(random(2));
    stage.send(2, false, "data");
    let secrets = [2, 3].map(|number| format!("[{}]", lines(random(number))));
    let expected = ["hello", &secrets[1], "third", &secrets[0], "second", "data"];
    assert_eq!(stage.told(), expected);
    assert_eq!(stage.counters.without_secrets.load(Ordering::Relaxed), 1);
}

/// A client resets a connection, and opens one from the same port while the first one's secrets are waited for.
#[test]
fn accepts_sessions_between_the_same_ends_without_keeping_the_earlier_ones() {
    let mut stage = Stage::new("same-ends", true);
    for number in 0..100 {
        stage.send(1, true, "SYN");
        stage.begin(1, random(number));
        stage.send(1, false, &format!("hello {number}"));
        stage.end(1);
    }
    assert_eq!(stage.known()[..2], [1, 1]);
    stage.log(random(99));
    let told = stage.told();
    assert_eq!(told[told.len() - 2..], [format!("[{}]", lines(random(99))), "hello 99".to_owned()]);
    assert_eq!((told.len(), stage.sessions()), (201, 100));
    assert_eq!(stage.counters.without_secrets.load(Ordering::Relaxed), 99);
    stage.pass(CLOSING);
    assert_eq!(stage.known(), [0; 3]);
}

/// In two VLANs, say. And whoever repeats a random does not keep its secrets from another.
#[test]
fn accepts_a_session_that_is_seen_twice_and_a_random_that_two_have() {
    let mut stage = Stage::new("twice", true);
    for _ in 0..2 {
        stage.begin(1, random(1));
        stage.send(1, false, "hello");
    }
    stage.end(1);
    stage.begin(2, random(1));
    stage.send(2, false, "other");
    stage.begin(1, random(3));
    stage.log(random(1));
    assert_eq!(stage.told(), ["hello", "hello", &format!("[{}]", lines(random(1))), "other"]);
    stage.end(1);
    stage.end(1);
    stage.end(2);
    stage.pass(LONG);
    stage.pass(LONG);
    assert_eq!(stage.known(), [0; 3]);
}

#[test]
fn accepts_sessions_while_others_fill_the_table_and_forgets_those() {
    let mut stage = Stage::new("scan", false);
    let most = MAX_OTHERS as u32;
    let (alive, ended) = (5_000_000, 5_000_001);
    for number in [alive, ended] {
        stage.begin(number, random(number));
        stage.send(number, false, "hello");
    }
    // A scan: of what does not look like TLS yet, and then of what does not any more.
    for begun in [1, 1_000_000] {
        for number in begun..begun + most + 100 {
            stage.send(number, true, "SYN");
        }
        let number = 6_000_000 + begun;
        stage.send(number, true, "SYN");
        stage.begin(number, random(number));
        stage.send(number, false, "hello");
        stage.pass(stage.writer.wait);
    }
    stage.end(ended);
    for number in 3_000_000..3_000_000 + most / 2 {
        stage.send(number, true, "SYN");
    }
    stage.send(ended, false, "ACK");
    // Sessions that are short.
    for number in 4_000_000..4_000_000 + most {
        stage.send(number, true, "SYN");
        stage.begin(number, random(number));
        stage.end(number);
    }
    stage.send(alive, false, "data");
    let told = stage.told();
    assert_eq!(told[..7], ["hello", "hello", "SYN", "hello", "SYN", "hello", "ACK"]);
    assert_eq!((told.len(), told.last().unwrap().as_str()), (8 + MAX_OTHERS, "data"));
    assert_eq!(stage.sessions(), 4 + u64::from(most));
    assert_eq!(stage.counters.frames_lost.load(Ordering::Relaxed), 0);
    assert_eq!(stage.known()[0], MAX_OTHERS + 3);
    for _ in 0..2 {
        stage.pass(LONG);
    }
    assert_eq!(stage.known(), [3, 0, 0]);
    for number in [alive, 6_000_001, 7_000_000] {
        stage.end(number);
    }
    stage.pass(LONG);
    assert_eq!(stage.known(), [0; 3]);
}

#[test]
fn accepts_what_follows_an_end_during_a_scan_and_a_beginning_among_many_ends() {
    let mut stage = Stage::new("scan-ends", false);
    let many = 10..MAX_OTHERS as u32 + 100;
    stage.begin(1, random(1));
    stage.end(1);
    for number in many.clone() {
        stage.send(number, true, "SYN");
    }
    stage.send(1, false, "ACK");
    assert_eq!(stage.told(), ["ACK"]);
    let mut stage = Stage::new("ends", false);
    stage.send(1, true, "SYN");
    for number in many {
        stage.begin(number, random(number));
        stage.end(number);
    }
    stage.begin(1, random(1));
    assert_eq!(stage.told(), ["SYN"]);
}

#[test]
fn accepts_more_live_sessions_than_others() {
    let mut stage = Stage::new("live", true);
    let all = 0..MAX_OTHERS as u32 + 1000;
    for number in all.clone() {
        stage.begin(number, random(number));
    }
    stage.pass(LONG);
    assert_eq!(stage.known()[0], all.len());
    for number in all {
        stage.send(number, false, "data");
        stage.end(number);
    }
    assert_eq!(stage.sessions(), MAX_OTHERS as u64 + 1000);
    assert_eq!(stage.known()[0], MAX_OTHERS, "each waits for its end");
    stage.pass(LONG);
    assert_eq!(stage.known(), [0; 3]);
}

/// Secrets are waited for, of sessions that are over.
#[test]
fn refuses_more_sessions_that_are_over_than_there_are_places() {
    let mut stage = Stage::new("over", true);
    for number in 0..MAX_OTHERS as u32 + 1000 {
        stage.begin(number, random(number));
        stage.end(number);
    }
    assert_eq!(stage.known()[..2], [MAX_OTHERS; 2]);
}

#[test]
fn accepts_connections_without_tls_that_go_on_and_forgets_them_when_they_are_silent() {
    let mut stage = Stage::new("plain", false);
    stage.send(1, true, "plain");
    stage.pass(stage.writer.wait);
    assert_eq!(stage.known(), [1, 0, 0]);
    for _ in 0..4 {
        stage.pass(FORGET / 2);
        stage.send(1, false, "plain");
        assert_eq!(stage.known(), [1, 0, 0], "not held back again");
    }
    stage.pass(FORGET);
    assert_eq!((stage.known(), stage.told().len()), ([0; 3], 0));
}
