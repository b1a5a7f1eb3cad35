//! Sessions whose beginning was not seen: a monitor that has started again goes on with them, with the keys that their
//! endpoints have.

use std::sync::Arc;

use crate::harness::attack::*;
use crate::harness::{RANDOM, keys};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

/// A monitor that has just started, in the middle of a connection.
struct Late {
    t: T,
    at: [i64; 2],
    numbers: [u64; 2],
}

const DAY_NS: u64 = 86_400_000_000_000;

fn config() -> Config {
    Config { asks_for_live_keys: true, mid_stream_grace_ns: DAY_NS, ..T::config() }
}

impl Late {
    fn with(config: Config) -> Self {
        Self { t: T::with(config), at: [70_000, 9_000_000], numbers: [31, 5000] }
    }

    fn new() -> Self {
        Self::with(config())
    }

    fn record(&mut self, d: Direction, content: &[u8]) -> Vec<u8> {
        let number = &mut self.numbers[side(d)];
        *number += 1;
        keys(d, KeyEpoch::Application(0)).seal(*number, ContentType::APPLICATION_DATA, content, 0)
    }

    /// Bytes that go on in the stream.
    fn say(&mut self, d: Direction, bytes: &[u8]) -> Verdict {
        let (own, other) = (self.at[side(d)], self.at[1 - side(d)]);
        self.at[side(d)] += bytes.len() as i64;
        self.t.send(d, own, other as u64, flag::ACK, bytes)
    }

    /// The rest of a record that began before the monitor did.
    fn begin(&mut self) {
        assert_eq!(self.say(S, &[b'x'; 1000]), Verdict::Forward);
        // One side alone may be anybody.
        assert_eq!(self.say(S, &[b'x'; 500]), Verdict::Forward);
        assert!(self.t.out.is_empty());
        assert_eq!(self.say(C, b""), Verdict::Forward);
        assert_eq!(self.say(S, &[b'x'; 500]), Verdict::Forward);
        assert_eq!(self.say(C, b""), Verdict::Forward);
        let ends = [self.t.ep.server, self.t.ep.client];
        let asked = |it: &Output| {
            matches!(it, Output::LiveKeysNeeded(LiveKeysNeeded { ends: of })
                if *of == ends || *of == [ends[1], ends[0]])
        };
        assert_eq!(self.t.out.iter().filter(|it| asked(it)).count(), 1);
    }

    fn live_keys(&self) -> LiveKeys {
        let key = |direction| LiveKey {
            direction,
            updates: 0,
            opener: Box::new(keys(direction, KeyEpoch::Application(0))),
            locator: Arc::new(keys(direction, KeyEpoch::Application(0))),
        };
        LiveKeys {
            sender: Some(self.t.ep.client.ip()),
            client_random: RANDOM,
            server_random: None,
            version: ProtocolVersion::TLS_1_3,
            cipher_suite: CipherSuite(0x1301),
            keys: vec![key(C), key(S)],
        }
    }

    fn share(&mut self) {
        let keys = self.live_keys();
        self.t.engine.handle_live_keys(self.t.now, keys).unwrap();
    }

    fn content(&self, d: Direction) -> Vec<u8> {
        let records = self.t.engine.handler().records(d);
        records.into_iter().flat_map(|(_, content)| content).collect()
    }
}

#[test]
fn accepts_a_session_from_its_next_record_on() {
    // However the records stand in the segments.
    for cut in [1, 7, 100, 1000, 1448, 5000] {
        let mut it = Late::new();
        it.begin();
        it.share();
        let contents: Vec<_> = (0..8u8).map(|at| vec![at; 700 + usize::from(at)]).collect();
        let mut stream = vec![b'y'; 333];
        for content in &contents {
            let record = it.record(S, content);
            stream.extend_from_slice(&record);
        }
        for piece in stream.chunks(cut) {
            assert_eq!(it.say(S, piece), Verdict::Forward);
        }
        assert!(it.content(S) == contents.concat(), "{cut}");
        // The other direction has said nothing yet.
        let request = it.record(C, b"GET");
        assert_eq!(it.say(C, &request), Verdict::Forward);
        assert_eq!(it.content(C), b"GET", "{cut}");
        let counters = it.t.engine.counters();
        assert_eq!((counters.sessions, counters.mid_stream_followed), (1, 1));
        assert_eq!((counters.records_failed, counters.trials_failed), (0, 0));
    }
}

#[test]
fn accepts_keys_that_come_before_the_connection_is_seen_and_those_of_others_beside() {
    let mut it = Late::new();
    it.share();
    for number in 0..100u8 {
        let mut other = it.live_keys();
        other.client_random = [number; 32];
        for key in &mut other.keys {
            key.opener = Box::new(NullKeys(u64::from(number)));
            key.locator = Arc::new(NullKeys(u64::from(number)));
        }
        it.t.engine.handle_live_keys(it.t.now, other).unwrap();
    }
    for d in [S, C, S] {
        it.say(d, &[b'x'; 100]);
    }
    let record = it.record(S, b"content");
    it.say(S, &record);
    assert_eq!(it.content(S), b"content");
}

#[test]
fn refuses_what_the_handler_resets_from_the_first_record_on() {
    let mut it = Late::new();
    it.begin();
    it.share();
    it.t.engine.handler_mut().reset_at = Some(1);
    let record = it.record(S, &[7; 3000]);
    let (first, rest) = record.split_at(1448);
    assert_eq!(it.say(S, first), Verdict::Forward);
    // What completes it at the receiver.
    let resets =
        |it: &Late| it.t.out.iter().filter(|it| matches!(it, Output::Inject { .. })).count();
    assert_eq!(resets(&it), 0);
    assert_eq!(it.say(S, rest), Verdict::Drop);
    assert!(resets(&it) >= 2 && !it.t.alive());
}

#[test]
fn accepts_what_is_sent_again_and_out_of_order() {
    let mut it = Late::new();
    it.begin();
    it.share();
    let records: Vec<_> = (0..6u8).map(|at| it.record(S, &[at; 900])).collect();
    let stream = records.concat();
    let base = it.at[1];
    let ack = it.at[0] as u64;
    let send = |it: &mut Late, from: usize, to: usize| {
        it.t.send(S, base + from as i64, ack, flag::ACK, &stream[from..to])
    };
    assert_eq!(send(&mut it, 0, 500), Verdict::Forward);
    // The next one is late: what comes behind it begins nothing before it is known where.
    assert_eq!(send(&mut it, 1000, 1500), Verdict::Forward);
    assert_eq!(send(&mut it, 500, 1000), Verdict::Forward, "nobody has read it");
    assert_eq!(send(&mut it, 1500, 4000), Verdict::Forward);
    assert!(it.content(S) == [[2; 900], [3; 900]].concat());
    // Bytes in front of the first record may have died behind the monitor, also those before it has started.
    assert_eq!(send(&mut it, 0, 500), Verdict::Forward);
    for (from, to) in [(-5000, -3552), (-2500, -1500), (-3000, -1)] {
        let bytes = vec![b'x'; (to - from) as usize];
        assert_eq!(it.t.send(S, base + from, ack, flag::ACK, &bytes), Verdict::Forward, "{from}");
    }
    // From then on order counts.
    assert_eq!(send(&mut it, 4500, stream.len()), Verdict::Forward);
    assert_eq!(it.content(S).len(), 1800);
    assert_eq!(send(&mut it, 4000, 4500), Verdict::Forward);
    assert_eq!(it.content(S).len(), 4 * 900);
    assert!(it.t.alive());
}

/// The first record is the rest of a message (RFC 8446, section 4.6.1).
#[test]
fn accepts_a_session_within_a_ticket() {
    let mut it = Late::new();
    it.begin();
    it.share();
    it.numbers[1] += 1;
    let keys = keys(S, KeyEpoch::Application(0));
    let rest = keys.seal(it.numbers[1], ContentType::HANDSHAKE, &[200; 300], 0);
    assert_eq!(it.say(S, &rest), Verdict::Forward);
    let record = it.record(S, b"content");
    assert_eq!(it.say(S, &record), Verdict::Forward);
    assert_eq!(it.content(S).len(), 300 + 7);
    assert!(it.t.alive());
}

#[test]
fn refuses_to_read_a_direction_that_is_not_shared() {
    let mut it = Late::new();
    it.begin();
    let mut keys = it.live_keys();
    keys.keys.remove(0);
    it.t.engine.handle_live_keys(it.t.now, keys).unwrap();
    for _ in 0..3 {
        let (request, answer) = (it.record(C, b"secret"), it.record(S, b"answer"));
        assert_eq!(it.say(C, &request), Verdict::Forward);
        assert_eq!(it.say(S, &answer), Verdict::Forward);
    }
    assert_eq!(it.content(S), b"answer".repeat(3));
    assert!(it.content(C).is_empty());
}

/// What a client refuses of sessions that were under way does not count against what it may refuse in a minute.
#[test]
fn accepts_directions_that_are_not_shared_beyond_the_limit_of_refusals() {
    let limits = Limits { null_keys_per_minute: 1, ..Limits::default() };
    let mut it = Late::with(Config { limits, ..config() });
    it.t.engine.handler_mut().any_hellos = true;
    let client = it.t.ep.client;
    it.t.ep.client.set_port(40_001);
    it.t.open();
    it.t.send(C, 0, 0, flag::ACK, &hello());
    let refused = it.t.engine.handle_null_keys(it.t.now, Some(client.ip()), RANDOM, None);
    assert_eq!(refused, Ok(true));
    it.t.ep.client = client;
    it.t.out.clear();
    it.begin();
    let mut keys = it.live_keys();
    keys.client_random = [9; 32];
    keys.keys.remove(0);
    it.t.engine.handle_live_keys(it.t.now, keys).unwrap();
    let answer = it.record(S, b"answer");
    assert_eq!(it.say(S, &answer), Verdict::Forward);
    assert_eq!(it.content(S), b"answer");
    let counters = it.t.engine.counters();
    assert_eq!((counters.directions_refused, counters.too_many_null_keys), (1, 0));
}

#[test]
fn refuses_keys_of_strangers_and_where_names_are_exempt() {
    let stranger = "10.0.0.66".parse().ok();
    let exempt = || mmtls_engine::ExemptNames(std::sync::Arc::new(|_: &[u8]| false));
    let followed = |config: Config, sender| {
        let asks = config.asks_for_live_keys
            && config.exempt_names.is_none()
            && config.key_senders == KeySenders::CLIENT;
        let mut it = Late::with(config);
        for d in [S, C, S] {
            assert_eq!(it.say(d, &[b'x'; 1000]), Verdict::Forward);
        }
        let asked = it.t.out.iter().any(|it| matches!(it, Output::LiveKeysNeeded(_)));
        assert_eq!(asked, asks);
        let keys = LiveKeys { sender, ..it.live_keys() };
        it.t.engine.handle_live_keys(it.t.now, keys).unwrap();
        let record = it.record(S, b"content");
        it.say(S, &record);
        !it.content(S).is_empty()
    };
    assert!(!followed(config(), stranger));
    // Others than clients do not know what clients have refused.
    let server = KeySenders { server: true, ..KeySenders::CLIENT };
    for senders in [KeySenders::ANY, server] {
        assert!(!followed(Config { key_senders: senders, ..config() }, "10.0.0.2".parse().ok()));
    }
    let own = "10.0.0.2".parse().ok();
    assert!(followed(config(), own));
    assert!(!followed(Config { exempt_names: Some(exempt()), ..config() }, own));
    assert!(!followed(Config { asks_for_live_keys: false, ..config() }, own));
}

#[test]
fn refuses_more_keys_than_it_keeps_and_to_keep_them_for_ever() {
    let mut it = Late::new();
    let mut refused = 0;
    for number in 0..9000u32 {
        let mut keys = it.live_keys();
        keys.client_random[..4].copy_from_slice(&number.to_be_bytes());
        refused += usize::from(it.t.engine.handle_live_keys(it.t.now, keys).is_err());
    }
    assert_eq!(refused, 9000 - 8192);
    assert_eq!(it.t.engine.counters().keys_over_quota, 9000 - 8192);
    let due = it.t.engine.next_timeout().unwrap();
    it.t.engine.handle_timeout(due);
    it.t.now = due;
    it.begin();
    let record = it.record(S, b"content");
    it.say(S, &record);
    assert!(it.content(S).is_empty());
    it.share();
    let record = it.record(S, b"content");
    it.say(S, &record);
    assert_eq!(it.content(S), b"content");
}

#[test]
fn asks_for_the_next_keys_of_a_session_behind_its_beginning() {
    let mut it = Late::new();
    it.begin();
    it.share();
    let update = [24, 0, 0, 1, 0];
    let number = &mut it.numbers[1];
    *number += 1;
    let sealer = keys(S, KeyEpoch::Application(0));
    let record = sealer.seal(*number, ContentType::HANDSHAKE, &update, 0);
    assert_eq!(it.say(S, &record), Verdict::Forward);
    let next = keys(S, KeyEpoch::Application(1)).seal(0, ContentType::APPLICATION_DATA, b"next", 0);
    assert!(matches!(it.say(S, &next), Verdict::Hold(_)));
    assert!(it.t.keys(S, 1).is_ok_and(|found| found));
    assert!(it.content(S).ends_with(b"next"));
}

#[test]
fn refuses_servers_that_are_left_alone() {
    for port in [443, 444] {
        let rule =
            Bypass { address: "10.0.0.3".parse().unwrap(), prefix_len: 32, port: Some(port) };
        let mut it = Late::with(Config { bypass: vec![rule], ..config() });
        it.share();
        for d in [S, C, S] {
            assert_eq!(it.say(d, &[b'x'; 100]), Verdict::Forward);
        }
        let record = it.record(S, b"content");
        assert_eq!(it.say(S, &record), Verdict::Forward);
        assert_eq!(it.content(S).is_empty(), port == 443);
    }
}

#[test]
fn refuses_a_record_whose_receiver_may_have_it() {
    // The first segment that is seen is repeated; its receiver has what comes behind it.
    let mut it = Late::new();
    it.share();
    assert_eq!(it.say(C, b"x"), Verdict::Forward);
    let (record, ack) = (it.record(S, &[7; 1000]), it.at[0] as u64);
    assert_eq!(it.t.send(S, it.at[1], ack, flag::ACK, &record), Verdict::Forward);
    it.at[1] += 20_000;
    assert_eq!(it.say(C, b""), Verdict::Forward);
    assert!(it.content(S).is_empty() && it.t.alive());
    for content in [[8; 900], [9; 900]] {
        let record = it.record(S, &content);
        assert_eq!(it.say(S, &record), Verdict::Forward);
        assert_eq!(it.say(C, b""), Verdict::Forward);
    }
    assert!(it.content(S) == [9; 900]);
}

#[test]
fn refuses_wrong_keys_of_a_direction_in_the_end() {
    let mut it = Late::new();
    it.begin();
    let mut live = it.live_keys();
    live.keys[0].locator = Arc::new(NullKeys(77));
    it.t.engine.handle_live_keys(it.t.now, live).unwrap();
    let record = it.record(S, b"content");
    it.say(S, &record);
    assert_eq!(it.content(S), b"content");
    let mut passed = 0;
    loop {
        let record = it.record(C, &[7; 16_000]);
        if it.say(C, &record) != Verdict::Forward {
            break;
        }
        it.say(S, b"");
        passed += record.len();
        assert!(passed < 20 << 20, "for ever");
    }
    let errors = it.t.engine.handler().errors();
    assert!(errors.contains(&(C, session::SessionError::KeysDoNotFit)), "{errors:?}");
}

/// However a stream is made to look like records, and whoever has how many keys.
#[test]
fn refuses_to_hash_more_than_so_much() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static HASHED: AtomicUsize = AtomicUsize::new(0);
    struct Costly;
    impl LocateRecord for Costly {
        fn locate(&self, _: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64> {
            HASHED.fetch_add(fragment.len().max(512), Ordering::Relaxed);
            None
        }
    }
    let mut it = Late::new();
    it.begin();
    for number in 0..4096u32 {
        let mut other = it.live_keys();
        other.client_random[..4].copy_from_slice(&number.to_be_bytes());
        other.keys.iter_mut().for_each(|key| key.locator = Arc::new(Costly));
        it.t.engine.handle_live_keys(it.t.now, other).unwrap();
    }
    // A header every five bytes, each of a long record.
    let headers = [23, 3, 3, 0x40, 0].repeat(12_000);
    let mut most = 0;
    for _ in 0..40 {
        let before = HASHED.load(Ordering::Relaxed);
        assert_eq!(it.say(S, &headers), Verdict::Forward);
        most = most.max(HASHED.load(Ordering::Relaxed) - before);
    }
    assert!(most > 0 && most <= 16 << 20, "{most} for a packet");
    let all = HASHED.load(Ordering::Relaxed);
    assert!(all <= 32 << 20, "{all} of a connection");
    assert!(it.t.engine.buffered_bytes() < 1 << 20);
}

/// The direction in which nothing was found: its receiver has more than was seen of it.
#[test]
fn accepts_acknowledgments_of_what_was_there_before_in_the_other_direction() {
    let mut it = Late::new();
    it.share();
    // A repetition is the first segment that is seen; its receiver has 20,000 bytes behind it.
    assert_eq!(it.say(S, &[b'x'; 1000]), Verdict::Forward);
    it.at[1] += 20_000;
    for _ in 0..2 {
        assert_eq!(it.say(C, &[b'y'; 500]), Verdict::Forward);
        let (at, ack) = (it.at[1] - 20_000, it.at[0] as u64);
        assert_eq!(it.t.send(S, at, ack, flag::ACK, b""), Verdict::Forward);
    }
    let request = it.record(C, b"request");
    assert_eq!(it.say(C, &request), Verdict::Forward);
    assert_eq!(it.content(C), b"request");
    let more = it.record(C, b"more");
    assert_eq!(it.say(C, &more), Verdict::Forward);
    let answer = it.record(S, b"answer");
    assert_eq!(it.say(S, &answer), Verdict::Forward);
    assert!(it.t.alive() && it.content(S) == b"answer");
}
