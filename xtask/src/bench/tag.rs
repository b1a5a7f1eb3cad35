//! Part (d): what the private tag costs per record, in memory, like figure 16 of the paper.
//!
//! Contenders, each a record of one size over and over in a warm cache, processor time of one
//! thread, interleaved in every round:
//!
//! * at the sender: the AEAD alone; with the paper's tag over header and tag; with ours over
//!   header, ciphertext and tag; with GMAC over the same, where ours is AEGIS; and encrypting twice
//!   with two keys ("double tags" there);
//! * at the receiver: the AEAD alone; ours, both tags verified, which is what we ship; and ours
//!   with the private tag alone and bare counter mode, which we do not ship
//!   (`docs/private-tag.md`, section 5).
//!
//! The paper's construction is unsound and exists here only to be compared with.
//!
//! Refuses figures of a record that did not verify.

use std::hint::black_box;
use std::time::Duration;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::cipher::{AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use mmtls_record::private_tag::{self, PRIVATE_TAG_LEN, PrivateTagKey};
use serde::Serialize;

use super::engine::{repeat, thread_time};
use super::report::{Samples, table};
use crate::results::{Axis, Figure};

/// Bytes of a record header.
const HEADER: usize = 5;

/// Bytes of the AEAD's tag.
const TAG: usize = 16;

/// Name, AEAD, and the suite with a private tag.
const SUITES: [(&str, &Algorithm, u16); 3] = [
    ("AES-256-GCM", &AES_256_GCM, 0xff32),
    ("AES-128-GCM", &AES_128_GCM, 0xff31),
    ("ChaCha20-Poly1305", &CHACHA20_POLY1305, 0xff33),
];

const SIZES: [usize; 5] = [1024, 2048, 4096, 8192, 16384];

/// What is done with a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Seal,
    SealPaper,
    SealOurs,
    SealGmac,
    SealTwice,
    Open,
    OpenOurs,
    OpenPrivateTagOnly,
}

impl Work {
    const ALL: [Self; 8] = [
        Self::Seal,
        Self::SealPaper,
        Self::SealOurs,
        Self::SealGmac,
        Self::SealTwice,
        Self::Open,
        Self::OpenOurs,
        Self::OpenPrivateTagOnly,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Seal => "sender: AEAD",
            Self::SealPaper => "sender: paper's tag",
            Self::SealOurs => "sender: private tag",
            Self::SealGmac => "sender: GMAC in its place",
            Self::SealTwice => "sender: double encryption",
            Self::Open => "receiver: AEAD",
            Self::OpenOurs => "receiver: both tags",
            Self::OpenPrivateTagOnly => "receiver: private tag only",
        }
    }

    /// What it is compared with.
    fn original(self) -> Self {
        match self {
            Self::Open | Self::OpenOurs | Self::OpenPrivateTagOnly => Self::Open,
            _ => Self::Seal,
        }
    }
}

/// One record and the keys for it.
struct Bench {
    aead: LessSafeKey,
    private: PrivateTagKey,
    /// An AEAD's key: for the paper's tag, GMAC, and encrypting twice.
    other: LessSafeKey,
    counter: Option<DecryptingKey>,
    /// Header, inner plaintext (encrypted over and over), tag.
    record: Vec<u8>,
    /// For encrypting twice.
    second: Vec<u8>,
    /// A sealed record and its private tag.
    sealed: Vec<u8>,
    private_tag: [u8; PRIVATE_TAG_LEN],
    plaintext: Vec<u8>,
}

fn nonce_bytes(sequence: u64) -> [u8; 12] {
    let mut nonce = [0x5a; 12];
    nonce[4..].copy_from_slice(&sequence.to_be_bytes());
    nonce
}

fn nonce(sequence: u64) -> Nonce {
    Nonce::assume_unique_for_key(nonce_bytes(sequence))
}

fn refused<E>(_: E) -> String {
    "the crypto library refused".to_owned()
}

impl Bench {
    fn new(algorithm: &'static Algorithm, suite: u16, size: usize) -> Result<Self, String> {
        let key = |byte| UnboundKey::new(algorithm, &vec![byte; algorithm.key_len()]);
        let mut bench = Self {
            aead: LessSafeKey::new(key(1).map_err(refused)?),
            private: private_tag::key_len(suite)
                .and_then(|len| PrivateTagKey::new(suite, &vec![2; len]))
                .map_err(refused)?,
            other: LessSafeKey::new(key(2).map_err(refused)?),
            counter: None,
            record: vec![7; HEADER + size + 1 + TAG],
            second: vec![7; size + 1],
            sealed: Vec::new(),
            private_tag: [0; PRIVATE_TAG_LEN],
            plaintext: vec![0; size + 1],
        };
        if algorithm == &AES_256_GCM {
            let key = UnboundCipherKey::new(&AES_256, &[1; 32]).map_err(refused)?;
            bench.counter = Some(DecryptingKey::ctr(key).map_err(refused)?);
        }
        bench.seal(0)?;
        bench.private_tag = bench.tag(0)?;
        bench.sealed = bench.record.clone();
        Ok(bench)
    }

    /// The private tag of the record.
    fn tag(&self, sequence: u64) -> Result<[u8; PRIVATE_TAG_LEN], String> {
        self.private.tag(nonce_bytes(sequence), &self.record).ok_or_else(|| refused(()))
    }

    /// The tag of an AEAD without plaintext.
    fn aead_tag(&self, sequence: u64, text: &[u8]) -> Result<(), String> {
        let (nonce, aad) = (nonce(sequence), Aad::from(text));
        let tag = self.other.seal_in_place_separate_tag(nonce, aad, &mut []).map_err(refused)?;
        black_box(tag.as_ref());
        Ok(())
    }

    fn seal(&mut self, sequence: u64) -> Result<(), String> {
        let (header, rest) = self.record.split_at_mut(HEADER);
        let (inner, tag) = rest.split_at_mut(rest.len() - TAG);
        let aad = Aad::from(&*header);
        let made = self.aead.seal_in_place_separate_tag(nonce(sequence), aad, inner);
        tag.copy_from_slice(made.map_err(refused)?.as_ref());
        Ok(())
    }

    fn verify(&self) -> Result<(), String> {
        if self.private.verify(nonce_bytes(0), &self.sealed, &self.private_tag) {
            Ok(())
        } else {
            Err("the private tag does not match".to_owned())
        }
    }

    fn open(&mut self) -> Result<(), String> {
        let (header, rest) = self.sealed.split_at(HEADER);
        let (ciphertext, tag) = rest.split_at(rest.len() - TAG);
        self.aead
            .open_separate_gather(nonce(0), Aad::from(header), ciphertext, tag, &mut self.plaintext)
            .map_err(|_| "the tag does not match".to_owned())
    }

    /// Does the work once. `false` when this algorithm cannot.
    fn work(&mut self, work: Work, sequence: u64) -> Result<bool, String> {
        match work {
            Work::Seal => self.seal(sequence)?,
            Work::SealPaper => {
                self.seal(sequence)?;
                // Header and tag, which are not neighbours.
                let end = self.record.len() - TAG;
                let mut short = [0; HEADER + TAG];
                short[..HEADER].copy_from_slice(&self.record[..HEADER]);
                short[HEADER..].copy_from_slice(&self.record[end..]);
                self.aead_tag(sequence, &short)?;
            }
            Work::SealOurs => {
                self.seal(sequence)?;
                black_box(self.tag(sequence)?);
            }
            // ChaCha20-Poly1305 takes itself: that is ours.
            Work::SealGmac if self.aead.algorithm() == &CHACHA20_POLY1305 => return Ok(false),
            Work::SealGmac => {
                self.seal(sequence)?;
                self.aead_tag(sequence, &self.record)?;
            }
            Work::SealTwice => {
                self.seal(sequence)?;
                let tag = self.other.seal_in_place_separate_tag(
                    nonce(sequence),
                    Aad::from(&self.record[..HEADER]),
                    &mut self.second,
                );
                let _ = black_box(tag.map_err(refused)?);
            }
            Work::Open => self.open()?,
            Work::OpenOurs => {
                self.verify()?;
                self.open()?;
            }
            Work::OpenPrivateTagOnly => {
                self.verify()?;
                let Some(counter) = &self.counter else {
                    return Ok(false);
                };
                // GCM's first block of the keystream (NIST SP 800-38D, section 7.2).
                let mut block = [0; 16];
                block[..12].copy_from_slice(nonce(0).as_ref());
                block[15] = 2;
                // In place is all it has; the copy is part of what it costs there.
                self.plaintext.copy_from_slice(&self.sealed[HEADER..self.sealed.len() - TAG]);
                let context = DecryptionContext::Iv128(FixedLength::from(block));
                counter.decrypt(&mut self.plaintext, context).map_err(refused)?;
            }
        }
        black_box(&self.plaintext);
        Ok(true)
    }
}

/// One kind of work on one size.
#[derive(Debug, Serialize)]
struct Measurement {
    suite: &'static str,
    content_bytes: usize,
    work: &'static str,
    /// Time per record.
    ns: Samples,
    /// More than the AEAD alone takes on the same side, round by round, in percent of it.
    extra_percent: Samples,
}

/// Part (d).
#[derive(Debug, Serialize)]
pub struct TagResults {
    rounds: u32,
    measurements: Vec<Measurement>,
}

/// Measures every suite, size and kind of work in turn, `rounds` times, about `seconds` each.
pub fn measure(rounds: u32, seconds: f64) -> Result<TagResults, String> {
    /// Records between two looks at the clock.
    const BATCH: u64 = 200;
    let mut measurements = Vec::new();
    for (suite, algorithm, number) in SUITES {
        for size in SIZES {
            let mut bench = Bench::new(algorithm, number, size)?;
            let mut times = vec![Vec::new(); Work::ALL.len()];
            let mut sequence = 1;
            // Round 0 warms up.
            for round in 0..=rounds {
                for (work, times) in Work::ALL.into_iter().zip(&mut times) {
                    if !bench.work(work, 0)? {
                        continue;
                    }
                    let time = repeat(seconds, || {
                        let start = thread_time();
                        for _ in 0..BATCH {
                            bench.work(work, sequence)?;
                            sequence += 1;
                        }
                        Ok::<Duration, String>(thread_time().saturating_sub(start))
                    })?;
                    if round > 0 {
                        times.push(time / BATCH as f64 * 1e9);
                    }
                }
            }
            for (work, ns) in Work::ALL.into_iter().zip(&times).filter(|(_, ns)| !ns.is_empty()) {
                let original =
                    Work::ALL.iter().position(|&w| w == work.original()).map(|at| &times[at]);
                let extra = |(with, alone): (&f64, &f64)| (with / alone - 1.0) * 100.0;
                let extra = ns.iter().zip(original.into_iter().flatten()).map(extra).collect();
                measurements.push(Measurement {
                    suite,
                    content_bytes: size,
                    work: work.name(),
                    ns: Samples::new(ns.clone()),
                    extra_percent: Samples::new(extra),
                });
            }
        }
    }
    Ok(TagResults { rounds, measurements })
}

impl TagResults {
    /// Figure 16, a panel for each suite, and the times behind it.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (suite, ..) in SUITES {
            let panel = suite.to_lowercase();
            let sizes = || Axis::log("plaintext of a record", "B");
            let mut extra = Figure::new(
                "16",
                &panel,
                &format!("What the private tag costs per record, {suite}"),
                sizes(),
                Axis::linear("more than the AEAD alone", "%"),
            )
            .note("Against the AEAD alone on the same side, round by round; one thread's processor time, in a warm cache.")
            .note("The paper's tag is unsound and is only compared with.");
            let mut time = Figure::new(
                "16",
                &format!("time-{panel}"),
                &format!("Time per record, {suite}"),
                sizes(),
                Axis::log("processor time per record", "ns"),
            );
            for it in self.measurements.iter().filter(|it| it.suite == suite) {
                let x = it.content_bytes as u64;
                time.add(it.work, x, &it.ns.samples);
                if !it.work.ends_with(": AEAD") {
                    extra.add(it.work, x, &it.extra_percent.samples);
                }
            }
            figures.extend([extra, time]);
        }
        figures
    }

    /// Prints the medians, a table per suite: time per record, and extra time in percent.
    pub fn print(&self) {
        for (suite, ..) in SUITES {
            let rows: Vec<Vec<String>> = Work::ALL
                .iter()
                .map(|work| {
                    let mut row = vec![work.name().to_owned()];
                    row.extend(SIZES.iter().map(|&size| {
                        let found = self.measurements.iter().find(|figure| {
                            (figure.suite, figure.content_bytes, figure.work)
                                == (suite, size, work.name())
                        });
                        found.map_or_else(
                            || "-".to_owned(),
                            |figure| {
                                let (ns, extra) = (figure.ns.median, figure.extra_percent.median);
                                if *work == work.original() {
                                    format!("{ns:.0} ns")
                                } else {
                                    format!("{ns:.0} ns {extra:+.0} %")
                                }
                            },
                        )
                    }));
                    row
                })
                .collect();
            table(
                &format!(
                    "(d) private tag, {suite}: time per record and more than the AEAD, medians of \
                     {} rounds",
                    self.rounds
                ),
                &["", "1 KB", "2 KB", "4 KB", "8 KB", "16 KB"],
                &rows,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aes_256() -> Bench {
        Bench::new(&AES_256_GCM, 0xff32, 1024).unwrap()
    }

    #[test]
    fn accepts_its_own_records() {
        for (_, algorithm, suite) in SUITES {
            let mut bench = Bench::new(algorithm, suite, 1024).unwrap();
            for work in Work::ALL {
                let able = match work {
                    Work::OpenPrivateTagOnly => algorithm == &AES_256_GCM,
                    Work::SealGmac => algorithm != &CHACHA20_POLY1305,
                    _ => true,
                };
                assert_eq!(bench.work(work, 1).unwrap(), able);
            }
        }
    }

    #[test]
    fn accepts_counter_mode_as_decryption() {
        let mut bench = aes_256();
        bench.open().unwrap();
        let opened = std::mem::take(&mut bench.plaintext);
        bench.plaintext = vec![0; opened.len()];
        assert!(bench.work(Work::OpenPrivateTagOnly, 0).unwrap());
        assert_eq!(bench.plaintext, opened);
    }

    #[test]
    fn refuses_changed_records() {
        let mut bench = aes_256();
        bench.sealed[100] ^= 1;
        assert!(bench.work(Work::Open, 0).is_err());
        assert!(bench.work(Work::OpenPrivateTagOnly, 0).is_err());
    }
}
