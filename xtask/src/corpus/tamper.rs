//! A monitor that is shown changed bytes: no application may see one of them, and a change of a
//! record that can be opened must be told of.

use mmtls_engine::tls::Direction;
use mmtls_testkit::segments::Seeded;

use super::recorder::Recorder;
use super::trace::{Trace, side};

/// What became of changed bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tampered {
    /// Changes in all.
    pub cases: u64,
    /// Of those, in records of application keys.
    pub in_records: u64,
    /// Changes that raised an error.
    pub errors: u64,
    /// Changes of the handshake after which the session was not decrypted, or not seen as TLS.
    pub not_decrypted: u64,
    /// Changes of the handshake that the endpoints would notice and the monitor cannot: it has no
    /// keys for those records.
    pub beyond_the_keys: u64,
}

/// Changes one byte.
pub fn check(
    keys: &[u8],
    trace: &Trace,
    whole: &Recorder,
    seed: u64,
    tally: &mut Tampered,
) -> Result<(), String> {
    let mut seeded = Seeded::new(seed);
    let direction = Direction::BOTH[seeded.below(2)];
    let at = side(direction);
    // Early data that do not open may be what a server refuses, and so need not be an error; and
    // the end of the handshake stands behind them.
    let protected = match whole.has_early_data && direction == Direction::ClientToServer {
        true => None,
        false => protected_from(&trace.bytes[at], whole.records[at].len()),
    };
    // Nine in ten where the keys reach.
    let (from, to) = match protected {
        Some(from) if !seeded.one_in(10) => (from, trace.bytes[at].len()),
        _ => (0, trace.bytes[at].len()),
    };
    if from >= to {
        return Ok(());
    }
    let target = from + seeded.below(to - from);
    let change = 1 + seeded.below(255) as u8;
    let frames = trace.frames(&trace.pieces(), |piece, bytes| {
        if piece.direction == direction
            && let Some(index) = target.checked_sub(piece.offset)
            && let Some(byte) = bytes.get_mut(index)
        {
            *byte ^= change;
        }
    });
    let seen = Recorder::watch(keys, &frames);
    let place = || format!("seed {seed}: byte {target} of {direction:?} xor {change:#04x}");
    // With the policy of captures what follows a changed record is opened all the same.
    if !seen.agrees(whole) {
        return Err(format!("{}: a handler saw a record that nobody sent", place()));
    }
    tally.cases += 1;
    let inside = protected.is_some_and(|from| target >= from);
    tally.in_records += u64::from(inside);
    if seen.has_error() {
        tally.errors += 1;
    } else if inside {
        return Err(format!("{}: a changed record, and no error: {:?}", place(), seen.events));
    } else if seen.plaintext != whole.plaintext {
        tally.not_decrypted += 1;
    } else {
        tally.beyond_the_keys += 1;
    }
    Ok(())
}

/// Where the last `count` records of a stream begin: those that were delivered.
fn protected_from(stream: &[u8], count: usize) -> Option<usize> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(header) = stream.get(at..at + 5) {
        starts.push(at);
        at += 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
    }
    (count > 0 && at == stream.len()).then(|| starts.len().checked_sub(count))?.map(|n| starts[n])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_whole_streams_only() {
        let stream = [22, 3, 3, 0, 1, 9, 23, 3, 3, 0, 0, 23, 3, 3, 0, 2, 7, 7];
        assert_eq!(protected_from(&stream, 1), Some(11));
        assert_eq!(protected_from(&stream, 2), Some(6));
        assert_eq!(protected_from(&stream, 0), None);
        assert_eq!(protected_from(&stream, 4), None);
        assert_eq!(protected_from(&stream[..17], 1), None);
    }
}
