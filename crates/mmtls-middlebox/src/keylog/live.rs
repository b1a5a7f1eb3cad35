//! A key log that is still being written, for live use: secrets come after the sessions that want
//! them, or before.
//!
//! A key log is trusted as local: its keys need no sender's address, and whoever may write the file is believed. It
//! holds traffic secrets, on the middlebox, and is a last resort where the middlebox and the programs have the same owner.
//!
//! Refuses to grow without bound: of sessions and of pending requests the older half goes when there are too
//! many. Nothing here waits or reads; [`follow`](super::follow) does.

use std::collections::HashMap;

use mmtls_engine::{KeysNeeded, SharedKeys};

use super::{KeyLog, line_random};

/// Sessions in one of two generations of secrets, and of pending requests.
const MAX_SESSIONS: usize = 1 << 16;

/// Pending requests for one session: a few epochs of both directions. Clients can repeat a random.
const MAX_PENDING_REQUESTS: usize = 16;

/// Secrets and who waits for them.
pub struct LiveKeys {
    /// The newer and the older generation.
    logs: [KeyLog; 2],
    pending_requests: [HashMap<[u8; 32], Vec<KeysNeeded>>; 2],
    max_sessions: usize,
}

impl Default for LiveKeys {
    fn default() -> Self {
        Self::with_capacity(MAX_SESSIONS)
    }
}

impl LiveKeys {
    fn with_capacity(max_sessions: usize) -> Self {
        Self { logs: Default::default(), pending_requests: Default::default(), max_sessions }
    }

    /// The engine wants keys: those, or they are given when their line comes.
    pub fn want(&mut self, wanted: KeysNeeded) -> Option<SharedKeys> {
        let found = self.find(&wanted);
        if found.is_none() {
            if self.pending_requests[0].len() >= self.max_sessions {
                self.pending_requests[1] = core::mem::take(&mut self.pending_requests[0]);
            }
            let requests = self.pending_requests[0].entry(wanted.client_random).or_default();
            if requests.len() >= MAX_PENDING_REQUESTS {
                requests.remove(0);
            }
            requests.push(wanted);
        }
        found
    }

    /// Takes in whole lines; the keys that were wanted and can be made now.
    pub fn add(&mut self, text: &[u8]) -> Vec<SharedKeys> {
        if self.logs[0].sessions() >= self.max_sessions {
            self.logs[1] = core::mem::take(&mut self.logs[0]);
        }
        self.logs[0].add_text(text);
        let mut found = Vec::new();
        for random in text.split(|&byte| byte == b'\n').filter_map(line_random) {
            for generation in 0..self.pending_requests.len() {
                let Some(requests) = self.pending_requests[generation].remove(&random) else {
                    continue;
                };
                let mut open = Vec::new();
                for wanted in requests {
                    match self.find(&wanted) {
                        Some(keys) => found.push(keys),
                        None => open.push(wanted),
                    }
                }
                if !open.is_empty() {
                    self.pending_requests[generation].insert(random, open);
                }
            }
        }
        found
    }

    fn find(&self, wanted: &KeysNeeded) -> Option<SharedKeys> {
        self.logs.iter().find_map(|log| log.shared_keys(wanted))
    }
}

#[cfg(test)]
mod tests {
    use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};

    use super::*;
    use base16ct::lower::encode_string as hex;

    fn line(label: &str, random: u8) -> Vec<u8> {
        format!("{label} {} {}\n", hex(&[random; 32]), hex(&[7; 32])).into_bytes()
    }

    fn request(random: u8, epoch: KeyEpoch) -> KeysNeeded {
        let early = epoch == KeyEpoch::EarlyData;
        KeysNeeded {
            client: ([192, 0, 2, 1], 40000).into(),
            client_random: [random; 32],
            server_random: (!early).then_some([9; 32]),
            version: ProtocolVersion::TLS_1_3,
            cipher_suite: (!early).then_some(CipherSuite::TLS_AES_128_GCM_SHA256),
            direction: Direction::ClientToServer,
            epoch,
        }
    }

    #[test]
    fn accepts_lines_before_and_behind_the_request() {
        let mut live = LiveKeys::default();
        assert!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 1)).is_empty());
        assert!(live.want(request(1, KeyEpoch::Application(0))).is_some());
        assert!(live.want(request(2, KeyEpoch::EarlyData)).is_none());
        assert!(live.want(request(2, KeyEpoch::Application(0))).is_none());
        let found = live.add(&line("CLIENT_EARLY_TRAFFIC_SECRET", 2));
        // One opener for each suite that the secret fits.
        assert_eq!(found.iter().map(|keys| keys.keys.len()).collect::<Vec<_>>(), [8]);
        assert_eq!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 2)).len(), 1);
        assert!(live.add(&line("CLIENT_TRAFFIC_SECRET_0", 2)).is_empty(), "given once");
        // A KeyUpdate needs no line of its own.
        assert!(live.want(request(2, KeyEpoch::Application(3))).is_some());
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut live = LiveKeys::with_capacity(4);
        for random in 0..200 {
            assert!(live.want(request(random, KeyEpoch::Handshake)).is_none());
            live.add(&line("CLIENT_TRAFFIC_SECRET_0", random));
            assert!(live.logs.iter().all(|log| log.sessions() <= 4));
            assert!(live.pending_requests.iter().all(|requests| requests.len() <= 4));
        }
        assert!(live.want(request(199, KeyEpoch::Application(0))).is_some());
        assert!(live.want(request(3, KeyEpoch::Application(0))).is_none());
    }
}
