//! Key logs: files that programs write, and secrets blocks of capture files.
//!
//! Claims: however the text is cut, and by either way in, the same lines are counted and the same
//! secrets are found; every line is counted once. Whatever a ClientHello holds, the random inside is found or not.

use std::io::{self, Read};

use mmtls_engine::tls::{Direction, KeyEpoch};
use mmtls_middlebox::keylog::{InnerRandoms, KeyLog, MAX_EPOCH};
use mmtls_record::SessionParameters;

use crate::input::Input;

/// Input: the length of pieces, what to look up, then the text. A ClientHello may begin in it.
pub fn keylog(data: &[u8]) {
    let mut input = Input::new(data);
    let most = usize::from(input.u8()) * 17 + 1;
    let epoch = u32::from(input.u8()) % (MAX_EPOCH + 2);
    let text = input.all();

    let whole = KeyLog::load(text).expect("memory does not fail");
    let cut = KeyLog::load(Pieces { rest: text, most }).expect("memory does not fail");
    let mut added = KeyLog::new();
    added.add_text(text);
    let report = whole.report();
    assert_eq!(report, cut.report(), "in pieces of {most}");
    assert_eq!(report, added.report(), "as a block");
    assert!(report.secrets + report.ech + report.other_labels + report.malformed <= report.lines);
    assert_eq!(report.malformed > 0, report.first_malformed.is_some());

    let hello = text.windows(2).position(|it| it == [3, 3]).map(|at| text[at..].into());
    let mut inner = InnerRandoms::new(1);
    let mut found = 0;
    for random in randoms(text) {
        let logs = [&whole, &cut, &added];
        assert!(logs.iter().all(|log| log.knows(&random) == whole.knows(&random)));
        found += usize::from(whole.knows(&random));
        if let Some(hello) = &hello {
            inner.open(std::slice::from_ref(&whole), random, hello);
        }
        for direction in Direction::BOTH {
            for epoch in [KeyEpoch::Handshake, KeyEpoch::Application(epoch)] {
                for suite in [0x1301, 0x1302, 0x1303, 0xaaaa] {
                    let keys = logs.map(|log| {
                        let parameters = SessionParameters {
                            version: 0x0304,
                            cipher_suite: suite,
                            client_random: random,
                            server_random: None,
                        };
                        let keys = log.record_keys(parameters, direction, epoch)?;
                        Some((keys.key().to_vec(), keys.iv().to_vec()))
                    });
                    assert!(keys[0] == keys[1] && keys[0] == keys[2], "the same keys");
                }
            }
        }
    }
    assert!(found <= whole.sessions());
}

/// The first few things in the text that may be client randoms.
fn randoms(text: &[u8]) -> Vec<[u8; 32]> {
    let mut randoms: Vec<[u8; 32]> = text
        .split(u8::is_ascii_whitespace)
        .filter(|word| word.len() == 64)
        .filter_map(|word| {
            let mut random = [0; 32];
            base16ct::mixed::decode(word, &mut random).ok()?;
            Some(random)
        })
        .take(8)
        .collect();
    randoms.sort_unstable();
    randoms.dedup();
    randoms
}

struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.most.min(out.len()).min(self.rest.len());
        let (now, rest) = self.rest.split_at(len);
        out[..len].copy_from_slice(now);
        self.rest = rest;
        Ok(len)
    }
}
