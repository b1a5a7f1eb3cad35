//! Content codings (RFC 9110, section 8.4.1) taken off bodies, as a stream.
//!
//! gzip, deflate, br and zstd, also stacked. Where clients read a coding in more than one way all
//! readings are followed: `deflate` with and without zlib's frame. Refuses to produce more than caps
//! allow, by size, by ratio and by memory over all connections, and to guess behind an error.

mod fault;
mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use fault::Fault;
use stage::Stage;
pub(crate) use stage::inflate;

/// Most codings of a body; curl's limit.
const MAX_CODINGS: usize = 5;
/// Most readings that are followed.
const MAX_READINGS: usize = 4;
/// Most bytes that come out of a body, in one reading.
const MAX_DECODED: u64 = 64 << 20;
/// So many bytes may come out whatever went in.
const FREE_DECODED: u64 = 4 << 20;
/// Beyond that, most bytes that come out for one that went in. Deflate cannot exceed 1032.
const MAX_RATIO: u64 = 1100;

/// Memory that decoders may use together, over all connections that share it.
#[derive(Clone, Debug)]
pub struct DecodeBudget(Arc<AtomicUsize>);

impl DecodeBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Default for DecodeBudget {
    /// 256 MiB.
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The decoder of one body.
pub(crate) struct Decoder {
    readings: Vec<Reading>,
    /// Bytes that went in.
    taken: u64,
    budget: DecodeBudget,
    /// Of the budget.
    charged: usize,
    /// What was reported already.
    reported: Vec<Fault>,
}

struct Reading {
    /// The coding that was applied last comes first.
    stages: Vec<Stage>,
    produced: u64,
}

impl Decoder {
    /// The decoder for the values of all Content-Encoding fields in their order; `None` when nothing
    /// is to be decoded.
    pub(crate) fn new<'a>(
        fields: impl Iterator<Item = &'a [u8]>,
        budget: &DecodeBudget,
    ) -> Result<Option<Self>, Fault> {
        let codings = codings(fields)?;
        if codings.is_empty() {
            return Ok(None);
        }
        let twofold = codings.iter().filter(|&&coding| coding == Coding::Deflate).count();
        let count = 1 << twofold;
        if count > MAX_READINGS {
            return Err(Fault::OverCap);
        }
        let readings = (0..count)
            .map(|which: usize| {
                let mut deflate = 0;
                let stages = codings.iter().rev().map(|coding| match coding {
                    Coding::Gzip => Stage::gzip(),
                    Coding::Brotli => Stage::brotli(),
                    Coding::Zstd => Stage::zstd(),
                    Coding::Deflate => {
                        let zlib = which >> deflate & 1 == 0;
                        deflate += 1;
                        Stage::inflate(zlib)
                    }
                });
                Reading { stages: stages.collect(), produced: 0 }
            })
            .collect();
        let mut decoder =
            Self { readings, taken: 0, budget: budget.clone(), charged: 0, reported: Vec::new() };
        if decoder.charge() { Ok(Some(decoder)) } else { Err(Fault::OverCap) }
    }

    /// Bytes that went in.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Decodes the next bytes. `out` gets what comes out and in which reading; `fault` is reported once of
    /// each. After an error of all readings nothing more comes out.
    pub(crate) fn data(
        &mut self,
        bytes: &[u8],
        out: &mut impl FnMut(u8, &[u8]),
        fault: &mut impl FnMut(Fault),
    ) {
        self.taken = self.taken.saturating_add(bytes.len() as u64);
        let limit = MAX_DECODED.min(FREE_DECODED.max(self.taken.saturating_mul(MAX_RATIO)));
        let mut failed = None;
        // What a reading that fails in these bytes had to tell before.
        let (mut trailing, mut several) = (false, false);
        for (number, reading) in (0..).zip(&mut self.readings) {
            if reading.stages.is_empty() {
                continue;
            }
            let Reading { stages, produced } = reading;
            let result = run(stages, bytes, &mut |piece| {
                *produced += piece.len() as u64;
                if *produced > limit {
                    return Err(Fault::OverCap);
                }
                out(number, piece);
                Ok(())
            });
            if let Err(why) = result {
                failed = Some(why);
                let stages = core::mem::take(&mut reading.stages);
                trailing |= stages.iter().any(Stage::has_trailing_bytes);
                several |= stages.iter().any(Stage::has_several_members);
            }
        }
        if !self.charge() {
            failed = Some(Fault::OverCap);
            self.readings.clear();
        }
        let live = self.readings.iter().any(|reading| !reading.stages.is_empty());
        // Where one reading goes on, the other was none.
        if let Some(why) = failed.filter(|why| *why == Fault::OverCap || !live) {
            self.report(why, fault);
        }
        for (is_so, what) in [
            (!live && trailing || self.all(Stage::has_trailing_bytes), Fault::TrailingBytes),
            (!live && several || self.all(Stage::has_several_members), Fault::SeveralMembers),
        ] {
            if is_so {
                self.report(what, fault);
            }
        }
    }

    /// The body is complete.
    pub(crate) fn finish(&mut self, fault: &mut impl FnMut(Fault)) {
        let mut live = self.readings.iter().filter(|reading| !reading.stages.is_empty()).peekable();
        let complete = |reading: &Reading| reading.stages.iter().all(Stage::is_complete);
        if self.taken > 0 && live.peek().is_some() && !live.any(complete) {
            self.report(Fault::Truncated, fault);
        }
    }

    /// Whether some stage of every reading that goes on says so.
    fn all(&self, says: fn(&Stage) -> bool) -> bool {
        let mut live = self.readings.iter().filter(|reading| !reading.stages.is_empty()).peekable();
        live.peek().is_some() && live.all(|reading| reading.stages.iter().any(says))
    }

    fn report(&mut self, what: Fault, fault: &mut impl FnMut(Fault)) {
        if !self.reported.contains(&what) {
            self.reported.push(what);
            fault(what);
        }
    }

    /// Accounts for the memory that the stages use by now.
    fn charge(&mut self) -> bool {
        let stages = self.readings.iter().flat_map(|reading| &reading.stages);
        let cost = stages.map(Stage::memory).sum();
        let enough = cost <= self.charged || self.budget.take(cost - self.charged);
        if cost < self.charged {
            self.budget.give_back(self.charged - cost);
        }
        if enough {
            self.charged = cost;
        }
        enough
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.budget.give_back(self.charged);
    }
}

/// Puts bytes through the stages, one behind the other.
fn run(
    stages: &mut [Stage],
    bytes: &[u8],
    out: &mut dyn FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    match stages {
        [] if bytes.is_empty() => Ok(()),
        [] => out(bytes),
        [first, rest @ ..] => first.decode(bytes, &mut |piece| run(rest, piece, out)),
    }
}

/// Whether this is the name of a coding that can be taken off.
pub(crate) fn is_known(name: &[u8]) -> bool {
    coding(name).is_some()
}

fn coding(name: &[u8]) -> Option<Coding> {
    let is = |known: &[&str]| known.iter().any(|it| name.eq_ignore_ascii_case(it.as_bytes()));
    Some(match name {
        _ if is(&["gzip", "x-gzip"]) => Coding::Gzip,
        _ if is(&["deflate"]) => Coding::Deflate,
        _ if is(&["br"]) => Coding::Brotli,
        _ if is(&["zstd"]) => Coding::Zstd,
        _ => return None,
    })
}

/// What the fields name, in the order of application.
fn codings<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Coding>, Fault> {
    let mut codings = Vec::new();
    for name in fields.flat_map(|value| value.split(|&byte| byte == b',')) {
        let name = name.trim_ascii();
        if [&b""[..], b"identity", b"none"].iter().any(|it| name.eq_ignore_ascii_case(it)) {
            continue;
        }
        let coding = coding(name).ok_or(Fault::Unknown)?;
        if codings.len() == MAX_CODINGS {
            return Err(Fault::OverCap);
        }
        codings.push(coding);
    }
    Ok(codings)
}

#[cfg(test)]
mod tests;
