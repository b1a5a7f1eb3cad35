//! Content codings (RFC 9110, section 8.4.1) taken off bodies, as a stream.
//!
//! gzip, deflate, br and zstd, also stacked. Where clients read a coding in more than one way all
//! readings are followed: `deflate` with and without zlib's frame; of several codings, each alone, since
//! servers name what they did not do; and the chunked coding where only some see it. Refuses to produce
//! more than caps allow, by size, by ratio and by memory over all connections, and to guess behind an error.

mod codings;
mod fault;
mod stage;

use crate::budget::{Charge, MemoryBudget};
use codings::{Coding, MAX_CODINGS};
pub(crate) use codings::{Codings, is_coding};
pub(crate) use fault::Fault;
use stage::Stage;
pub(crate) use stage::{Out, inflate};

/// Most readings of what is named.
const MAX_READINGS: usize = 4;
/// Most readings that are followed, with those of a part of what is named.
const MAX_ALL_READINGS: usize = 12;
/// Most bytes that come out of a body, in one reading, or out of one of its codings.
const MAX_DECODED: u64 = 64 << 20;
/// So many bytes may come out whatever went in.
const FREE_DECODED: u64 = 4 << 20;
/// Beyond that, most bytes that come out for one that went in. Deflate cannot exceed 1032.
const MAX_RATIO: u64 = 1100;

/// The decoder of one body.
pub(crate) struct Decoder {
    readings: Vec<Reading>,
    /// Bytes that went in.
    taken: u64,
    charge: Charge,
    /// What was reported already.
    reported: Vec<Fault>,
    /// Another coding is named that is not known, which says enough of a body that is not what the known ones allow. Not of
    /// one that some clients read in another format: they pass over such names.
    is_doubtful: bool,
}

struct Reading {
    /// The coding that was applied last comes first.
    stages: Vec<Stage>,
    /// It takes all that is named as it is named: only what is wrong with such a reading is told.
    is_whole: bool,
}

impl Decoder {
    /// The decoder for codings; `None` when nothing is to be decoded.
    pub(crate) fn new(codings: &Codings, budget: &MemoryBudget) -> Result<Option<Self>, Fault> {
        let names = &codings.names[..];
        if names.len() > MAX_CODINGS {
            return Err(Fault::OverCap);
        }
        let mut readings = Vec::new();
        stack(names, codings.may_be_chunked, &mut readings);
        if readings.len() > MAX_READINGS {
            return Err(Fault::OverCap);
        }
        if codings.may_be_chunked {
            stack(names, false, &mut readings);
        }
        let whole = readings.len();
        let with = |which: bool| codings.may_be_chunked || !which;
        for is_chunked in [true, false].into_iter().filter(|&which| with(which)) {
            for (at, name) in names.iter().enumerate() {
                if names.len() > 1 && !names[..at].contains(name) {
                    stack(&[*name], is_chunked, &mut readings);
                }
            }
        }
        for reading in readings.iter_mut().skip(whole) {
            reading.is_whole = false;
        }
        readings.retain(|reading| !reading.stages.is_empty());
        readings.truncate(MAX_ALL_READINGS);
        if readings.is_empty() {
            return Ok(None);
        }
        let (charge, is_doubtful) = (budget.charge(), codings.fault().is_some());
        let mut decoder = Self { readings, taken: 0, charge, reported: Vec::new(), is_doubtful };
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
        let (mut trailing, mut several, mut broke_off) = (false, false, false);
        for (number, reading) in (0..).zip(&mut self.readings) {
            if reading.stages.is_empty() {
                continue;
            }
            let Reading { stages, is_whole } = reading;
            let is_whole = *is_whole;
            let result = run(stages, bytes, limit, &mut |piece| {
                out(number, piece);
                Ok(())
            });
            if let Err(why) = result {
                if is_whole || why == Fault::OverCap {
                    failed = Some(why);
                }
                let stages = core::mem::take(&mut reading.stages);
                if !is_whole {
                    continue;
                }
                trailing |= stages.iter().any(Stage::has_trailing_bytes);
                several |= stages.iter().any(Stage::has_several_members);
                broke_off |= stages.iter().any(Stage::broke_off);
            }
        }
        if !self.charge() {
            failed = Some(Fault::OverCap);
            self.readings.clear();
        }
        let live = self.live().next().is_some();
        // Where one reading goes on, the other was none, unless it had begun: some clients change over in the middle.
        let tells = !live && !self.is_doubtful || broke_off;
        if let Some(why) = failed.filter(|why| *why == Fault::OverCap || tells) {
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
        let is_complete = |reading: &Reading| reading.stages.iter().all(Stage::is_complete);
        let is_cut = self.live().next().is_some() && !self.live().any(is_complete);
        if self.taken > 0 && is_cut && !self.is_doubtful {
            self.report(Fault::Truncated, fault);
        }
    }

    /// The readings of all that is named that go on.
    fn live(&self) -> impl Iterator<Item = &Reading> {
        self.readings.iter().filter(|reading| reading.is_whole && !reading.stages.is_empty())
    }

    /// Whether some stage of every reading that goes on says so.
    fn all(&self, says: fn(&Stage) -> bool) -> bool {
        let mut live = self.live().peekable();
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
        self.charge.set(stages.map(Stage::memory).sum())
    }
}

/// Puts bytes through the stages, one behind the other. None may produce more than `limit`: what comes between two is work,
/// too, also where nothing comes out of the last one.
fn run(
    stages: &mut [Stage],
    bytes: &[u8],
    limit: u64,
    out: &mut dyn FnMut(&[u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    match stages {
        [] if bytes.is_empty() => Ok(()),
        [] => out(bytes),
        [first, rest @ ..] => first.decode(bytes, limit, &mut |piece| run(rest, piece, limit, out)),
    }
}

/// Adds all readings of a stack of codings, the first of which was applied first, under the chunked coding.
fn stack(names: &[Coding], is_chunked: bool, readings: &mut Vec<Reading>) {
    let twofold = names.iter().filter(|&&name| name == Coding::Deflate).count();
    for which in 0..1_usize << twofold {
        let mut deflate = 0;
        let stages = names.iter().rev().map(|name| match name {
            Coding::Gzip => Stage::gzip(),
            Coding::Brotli => Stage::brotli(),
            Coding::Zstd => Stage::zstd(),
            Coding::Deflate => {
                let zlib = which >> deflate & 1 == 0;
                deflate += 1;
                Stage::inflate(zlib)
            }
        });
        let chunked = is_chunked.then(Stage::chunked);
        let stages = chunked.into_iter().chain(stages).collect();
        readings.push(Reading { stages, is_whole: true });
    }
}

#[cfg(test)]
mod tests;
