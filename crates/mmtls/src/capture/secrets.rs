//! Secrets of a key log, by session, until its packets come.
//!
//! Refuses lines that open no packets (exporters, Encrypted Client Hello), more sessions than a few thousand, and to leave a
//! secret in freed memory.

use std::collections::{HashMap, VecDeque};

use mmtls_engine::tls::{Direction, KeyEpoch};
use mmtls_keyshare::keylog::{Label, Line, MAX_SECRET_BYTES, parse};
use zeroize::Zeroizing;

/// Most sessions whose secrets are kept.
const MAX_SESSIONS: usize = 16_384;
/// Most bytes of a session's lines: five secrets of TLS 1.3 are below.
const MAX_SESSION_BYTES: usize = 2048;

/// A session's client random.
pub(super) type Random = [u8; 32];

/// What the log has said of a session.
#[derive(Default)]
pub(super) struct Secrets {
    /// Whole lines, as they came.
    pub(super) lines: Zeroizing<Vec<u8>>,
    /// The secret of all of TLS 1.2, or the first ones of application data, by sender.
    opens: [bool; 2],
}

impl Secrets {
    /// Whether both directions can be opened.
    pub(super) fn is_complete(&self) -> bool {
        self.opens == [true; 2]
    }
}

/// Those of all sessions.
#[derive(Default)]
pub(super) struct Log {
    sessions: HashMap<Random, Secrets>,
    /// In the order in which they came.
    order: VecDeque<Random>,
}

impl Log {
    /// Takes lines; returns the sessions whose secrets are complete by them.
    pub(super) fn add(&mut self, lines: &[u8]) -> Vec<Random> {
        let mut complete = Vec::new();
        let mut memory = Zeroizing::new([0; MAX_SECRET_BYTES]);
        for line in lines.split(|&byte| byte == b'\n') {
            let Ok(Line::Secret { label, client_random, .. }) = parse(line, &mut memory) else {
                continue;
            };
            let opens = match label {
                Label::Master => [true; 2],
                Label::Traffic(Direction::ClientToServer, KeyEpoch::Application(0)) => {
                    [true, false]
                }
                Label::Traffic(Direction::ServerToClient, KeyEpoch::Application(0)) => {
                    [false, true]
                }
                Label::Traffic(_, KeyEpoch::Handshake | KeyEpoch::EarlyData) => [false; 2],
                // Whoever reads the capture derives those after a KeyUpdate.
                Label::Traffic(..) | Label::NextTraffic(_) => continue,
            };
            let random: Random = client_random;
            let secrets = self.of(random);
            let was_complete = secrets.is_complete();
            if secrets.lines.len() + line.len() < MAX_SESSION_BYTES {
                // Grown at once: the old memory would keep what is in it.
                if secrets.lines.capacity() == 0 {
                    secrets.lines.reserve_exact(MAX_SESSION_BYTES);
                }
                secrets.lines.extend_from_slice(line.trim_ascii());
                secrets.lines.push(b'\n');
                for (has, opens) in secrets.opens.iter_mut().zip(opens) {
                    *has |= opens;
                }
            }
            if secrets.is_complete() && !was_complete {
                complete.push(random);
            }
        }
        complete
    }

    fn of(&mut self, random: Random) -> &mut Secrets {
        if !self.sessions.contains_key(&random) {
            while self.order.len() >= MAX_SESSIONS {
                if let Some(oldest) = self.order.pop_front() {
                    self.sessions.remove(&oldest);
                }
            }
            self.order.push_back(random);
        }
        self.sessions.entry(random).or_default()
    }

    /// What there is of a session.
    pub(super) fn get(&self, random: &Random) -> Option<&Secrets> {
        self.sessions.get(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, random: u8) -> String {
        let [random, secret] = [random, 7].map(|byte| format!("{byte:02x}").repeat(32));
        format!("{label} {random} {secret}\n")
    }

    #[test]
    fn accepts_what_opens_packets_alone() {
        let mut log = Log::default();
        let handshake = line("CLIENT_HANDSHAKE_TRAFFIC_SECRET", 1);
        let client = line("CLIENT_TRAFFIC_SECRET_0", 1);
        let server = line("SERVER_TRAFFIC_SECRET_0", 1);
        let others = format!(
            "# comment\nno line\n{}{}{}",
            line("EXPORTER_SECRET", 1),
            line("CLIENT_TRAFFIC_SECRET_1", 1),
            line("CLIENT_TRAFFIC_SECRET_0", 3)
        );
        assert!(log.add(format!("{handshake}{client}{others}").as_bytes()).is_empty());
        assert_eq!(log.add(server.as_bytes()), [[1; 32]]);
        assert!(log.add(server.as_bytes()).is_empty(), "told once");
        let lines = &log.get(&[1; 32]).unwrap().lines;
        let expected = format!("{handshake}{client}{server}{server}");
        assert_eq!(String::from_utf8_lossy(lines), expected);
        assert_eq!(log.add(line("CLIENT_RANDOM", 2).replace("07", "0707").as_bytes()).len(), 0);
        let master = format!("CLIENT_RANDOM {} {}\n", "02".repeat(32), "07".repeat(48));
        assert_eq!(log.add(master.as_bytes()), [[2; 32]]);
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut log = Log::default();
        for _ in 0..100 {
            log.add(line("CLIENT_TRAFFIC_SECRET_0", 1).as_bytes());
        }
        assert!(log.get(&[1; 32]).unwrap().lines.len() <= MAX_SESSION_BYTES);
        for number in 0..MAX_SESSIONS as u32 + 10 {
            let random: String = format!("{number:08x}").repeat(8);
            log.add(format!("SERVER_TRAFFIC_SECRET_0 {random} {}\n", "07".repeat(32)).as_bytes());
        }
        assert_eq!((log.sessions.len(), log.order.len()), (MAX_SESSIONS, MAX_SESSIONS));
    }
}
