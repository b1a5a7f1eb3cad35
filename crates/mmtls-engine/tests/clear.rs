//! TLS that begins late, behind what hides where a connection in the clear stands: segments that no receiver
//! takes, others in their place, urgent data. And what strangers who see nothing of it can do to such a
//! connection. Servers and everybody else are honest.

use crate::harness::attack::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

/// A connection that has said 18 KB in the clear in each direction.
struct Clear {
    t: T,
    at: [u64; 2],
}

impl Clear {
    fn new() -> Self {
        let mut t = T::with(Config { mid_stream_grace_ns: 0, ..T::config() });
        t.open();
        let mut it = Self { t, at: [0; 2] };
        for _ in 0..9 {
            it.say(C, &[b'x'; 2000]);
            it.say(S, &[b'y'; 2000]);
        }
        it.acknowledge();
        it
    }

    fn say(&mut self, d: Direction, bytes: &[u8]) -> Verdict {
        let verdict = self.send(d, 0, flag::ACK, bytes);
        self.at[side(d)] += bytes.len() as u64;
        verdict
    }

    /// A segment so far from where the stream is.
    fn send(&mut self, d: Direction, ahead: i64, flags: u8, bytes: &[u8]) -> Verdict {
        let (own, other) = (self.at[side(d)], self.at[1 - side(d)]);
        self.t.send(d, own as i64 + ahead, other, flags, bytes)
    }

    fn acknowledge(&mut self) {
        self.send(C, 0, flag::ACK, &[]);
    }

    /// The server's flight in two segments, as the client's window cuts it. None of its second one may pass.
    fn refuses_the_answer(&mut self, what: &str) {
        let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301));
        let flight = [answer, vec![20, 3, 3, 0, 1, 1], sealed(S, 0)].concat();
        let (head, tail) = flight.split_at(5);
        self.say(S, head);
        assert_eq!(self.say(S, tail), Verdict::Drop, "{what}");
        assert!(!self.t.started(), "{what}");
        assert_eq!(self.say(C, &sealed(C, 0)), Verdict::Drop, "{what}");
    }
}

#[test]
fn hello_in_the_place_of_what_died_must_not_pass_unseen() {
    // The control: nothing died.
    let mut it = Clear::new();
    it.say(C, b"STARTTLS\r\n");
    it.say(S, b"220 ready to start TLS\r\n");
    it.say(C, &hello());
    assert!(it.t.started());
    // A segment that every server drops for its time to live, or for its time stamp.
    let mut it = Clear::new();
    it.say(C, b"STARTTLS\r\n");
    let dead = vec![b'x'; hello().len()];
    assert_eq!(it.send(C, 0, flag::ACK, &dead), Verdict::Forward);
    it.say(S, b"220 ready to start TLS\r\n");
    it.say(C, &hello());
    it.refuses_the_answer("the whole hello");
    // One byte of it, the only one that says what it is.
    let mut it = Clear::new();
    assert_eq!(hello().iter().filter(|byte| **byte == 22).count(), 1);
    it.say(C, &[5, 1, 0]);
    it.say(C, &[5, 1, 0, 1, 10, 0, 0, 1, 1, 1]);
    it.send(C, 0, flag::ACK, b"x");
    it.say(C, &hello());
    it.say(S, &[5, 0]);
    it.say(S, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    it.refuses_the_answer("its first byte");
}

#[test]
fn answer_in_the_place_of_what_died_must_not_pass_where_the_server_seems_to_begin() {
    // What dies in the server's place goes on as a ClientHello would, so that the connection is read in order from there.
    let mut it = Clear::new();
    assert_eq!(it.send(C, 0, flag::ACK, &vec![b'x'; hello().len()]), Verdict::Forward);
    it.say(C, &hello());
    assert_eq!(it.send(S, 0, flag::ACK, &[b'y'; 3000]), Verdict::Forward);
    it.send(C, 0, flag::ACK, b"more");
    assert_eq!(it.send(S, 3000, flag::ACK, &[22, 3, 1, 0]), Verdict::Forward);
    it.refuses_the_answer("behind what died");
}

#[test]
fn answer_in_the_place_of_what_died_must_not_pass_where_tls_was_found() {
    for forged in [false, true] {
        let mut it = Clear::new();
        it.say(C, b"STARTTLS\r\n");
        it.say(S, b"220 ready to start TLS\r\n");
        assert_eq!(it.send(S, 0, flag::ACK, &[b'y'; 3000]), Verdict::Forward);
        if forged {
            // What dies goes on as a client would begin: nobody has answered that.
            it.send(C, 0, flag::ACK, b"more");
            assert_eq!(it.send(S, 3000, flag::ACK, &hello()), Verdict::Forward);
        } else {
            it.say(C, &hello());
        }
        assert!(it.t.started());
        let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301));
        let flight = [answer, sealed(S, 0)].concat();
        assert_eq!(it.send(S, 0, flag::ACK, &flight), Verdict::Drop, "{forged}");
        // What its receiver has acknowledged may come again.
        assert_eq!(it.send(S, -24, flag::ACK, b"220 ready to start TLS\r\n"), Verdict::Forward);
    }
}

#[test]
fn answer_that_goes_on_behind_what_died_must_not_pass() {
    // However many of its first bytes have died before they came, what follows continues the stream.
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301));
    for died in 1..11 {
        for cut in died + 1..11 {
            let mut it = Clear::new();
            it.say(C, &[5, 1, 0]);
            it.send(C, 0, flag::ACK, b"x");
            it.say(C, &hello());
            assert_eq!(it.send(S, 0, flag::ACK, &vec![b'y'; died]), Verdict::Forward);
            it.say(S, &answer[..cut]);
            let passed = it.say(S, &answer[cut..]) == Verdict::Forward;
            assert!(!passed, "{died} bytes died, {cut} came first");
        }
    }
}

#[test]
fn segment_without_acknowledgment_must_not_pass() {
    let mut it = Clear::new();
    assert_eq!(it.send(C, 0, 0, b"no receiver takes it"), Verdict::Drop);
    assert_eq!(it.say(C, b"this one does"), Verdict::Forward);
}

#[test]
fn hello_far_behind_what_died_must_not_pass_unseen() {
    let mut it = Clear::new();
    it.say(C, b"STARTTLS\r\n");
    for number in 0..18 {
        it.send(C, number * 60_000, flag::ACK, &[b'x'; 60_000]);
    }
    it.say(S, b"220 ready to start TLS\r\n");
    it.say(C, &hello());
    it.refuses_the_answer("a megabyte");
}

#[test]
fn urgent_hello_must_not_pass_unseen() {
    for flags in [flag::ACK, flag::ACK | flag::URG] {
        let mut it = Clear::new();
        let bytes = [&[5, 1, 0, 1, 10, 0, 0, 1, 1, 1][..], &hello()].concat();
        it.send(C, 0, flags, &bytes);
        it.at[0] += bytes.len() as u64;
        it.say(S, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        it.refuses_the_answer("eager");
    }
}

#[test]
fn strangers_must_not_end_or_blind_it() {
    // They know the four-tuple, and one sequence number in thousands; acknowledgments are as many again.
    const ANY: u64 = 1_700_000_000;
    let mut it = Clear::new();
    for _ in 0..600 {
        it.say(S, &[b'y'; 2000]);
    }
    it.acknowledge();
    let alert = [21, 3, 3, 0, 2, 2, 40];
    let forged = it.t.send(S, it.at[1] as i64 - 700_000, ANY, flag::ACK, &alert);
    assert_eq!((forged, it.say(S, b"more")), (Verdict::Drop, Verdict::Forward));

    let mut it = Clear::new();
    it.say(C, b"EHLO x\r\n");
    let forged = it.t.send(C, it.at[0] as i64 + 30_000, ANY, flag::ACK, b"?");
    assert_eq!(forged, Verdict::Drop);
    it.say(S, b"250 ok\r\n");
    it.say(C, b"STARTTLS\r\n");
    it.say(S, b"220 ready to start TLS\r\n");
    it.say(C, &hello());
    assert!(it.t.started());
}

#[test]
fn opaque_turns_must_not_be_taken_for_tls() {
    // Three bytes like TLS's, in a protocol whose every byte is encrypted.
    let opaque = [&[22, 3, 0x9d, 0x71, 0xe4, 1][..], &[0x5b; 58]].concat();
    let mut long = Clear::new();
    let mut short = T::new();
    short.open();
    let at = short.say(&[(C, &b"SSH-2.0-x\r\n"[..]), (S, b"SSH-2.0-y\r\n")]);
    let mut short = Clear { t: short, at };
    for it in [&mut long, &mut short] {
        assert_eq!(it.say(C, &opaque), Verdict::Forward);
        assert_eq!(it.say(S, &[0xa7; 64]), Verdict::Forward);
        assert_eq!(it.say(C, &[0x33; 64]), Verdict::Forward);
        assert!(!it.t.started());
        // A whole head is.
        assert_eq!(it.say(S, b"?"), Verdict::Forward);
        it.say(C, &hello());
        assert!(it.t.started());
    }
}

#[test]
fn bytes_that_take_another_way_must_not_stop_it() {
    let mut it = Clear::new();
    for round in 0..100 {
        // The client has 20,000 bytes of the server that never came by here, and says so.
        it.at[1] += 20_000;
        assert_eq!(it.say(C, b"more"), Verdict::Forward, "{round}");
        assert_eq!(it.say(S, b"and these did"), Verdict::Forward, "{round}");
    }
}

#[test]
fn acknowledgments_of_what_was_not_said_must_not_hide_the_answer() {
    let mut it = Clear::new();
    it.say(C, &[5, 1, 0]);
    let ahead = it.at[1] + 30;
    it.t.send(C, it.at[0] as i64, ahead, flag::ACK, b"x");
    it.say(C, &hello());
    it.refuses_the_answer("ahead");
}

#[test]
fn hello_that_was_lost_before_the_monitor_must_show_in_the_answer_behind_other_bytes() {
    // It is the hello of the side that answered the SYN: nobody waits for what is missing of that one.
    for seen in [0, 40] {
        let mut it = Clear::new();
        it.at[1] += hello().len() as u64 - seen;
        if seen > 0 {
            assert_eq!(it.say(S, &vec![0; seen as usize]), Verdict::Forward);
        }
        let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0x1301));
        let (head, tail) = answer.split_at(7);
        it.say(C, &[b"200 what was asked for before\r\n", head].concat());
        assert_eq!(it.say(C, tail), Verdict::Drop, "{seen} bytes of it were seen");
        assert_eq!(it.say(S, &sealed(S, 0)), Verdict::Drop);
    }
}
