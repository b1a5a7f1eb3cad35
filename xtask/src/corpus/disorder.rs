//! The property of the main job over real sessions: whatever segments a connection is cut into,
//! however they are reordered and repeated on their way, the application sees the same; and where
//! some are lost, it sees less and is told so.

use mmtls_engine::tls::Direction;
use mmtls_testkit::segments::Seeded;

use super::recorder::Recorder;
use super::trace::{Piece, Trace, side};

/// Segments that may overtake each other.
const REACH: usize = 8;

/// Plays a trace over a network of its own; errors say what was different.
pub fn check(keys: &[u8], trace: &Trace, whole: &Recorder, seed: u64) -> Result<(), String> {
    let mut seeded = Seeded::new(seed);
    let pieces = disordered(trace, &mut seeded);
    let seen = Recorder::watch(keys, &trace.frames(&pieces, |_, _| {}));
    for (at, name) in ["client", "server"].into_iter().enumerate() {
        if seen.plaintext[at] != whole.plaintext[at] {
            return Err(format!("seed {seed}: other plaintext of the {name}"));
        }
        if seen.records[at] != whole.records[at] {
            return Err(format!("seed {seed}: other records of the {name}"));
        }
    }
    if seen.events != whole.events {
        return Err(format!("seed {seed}: {:?} instead of {:?}", seen.events, whole.events));
    }
    Ok(())
}

/// As [`check`], with one segment lost for good: no wrong byte may be seen, and missing ones must
/// be told of.
pub fn check_loss(keys: &[u8], trace: &Trace, whole: &Recorder, seed: u64) -> Result<(), String> {
    let mut seeded = Seeded::new(seed);
    let mut pieces = disordered(trace, &mut seeded);
    let lost = pieces.swap_remove(seeded.below(pieces.len()));
    pieces.retain(|piece| {
        piece.direction != lost.direction
            || piece.offset + piece.len <= lost.offset
            || piece.offset >= lost.offset + lost.len
    });
    let seen = Recorder::watch(keys, &trace.frames(&pieces, |_, _| {}));
    if !seen.agrees(whole) {
        return Err(format!("seed {seed}: a record that nobody sent, after a loss"));
    }
    let complete = seen.plaintext == whole.plaintext;
    // A session that was never recognised, or whose keys were never found, says so in its own way.
    let silent =
        !complete && !seen.has_error() && seen.records.iter().any(|records| !records.is_empty());
    if silent { Err(format!("seed {seed}: bytes are missing and nobody says so")) } else { Ok(()) }
}

/// Cuts every flight anew, lets segments overtake each other, and repeats some.
fn disordered(trace: &Trace, seeded: &mut Seeded) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = [0; 2];
    let largest = [1, 40, 600, 1448, 20_000][seeded.below(5)];
    for flight in flights(trace) {
        let (direction, mut left) = flight;
        let from = side(direction);
        let mut cut = Vec::new();
        while left > 0 {
            // A flight of many segments is cut finely at its start only.
            let most = if cut.len() < 200 { largest } else { 20_000 };
            let len = (1 + seeded.below(most)).min(left);
            cut.push(Piece { direction, offset: at[from], len, acknowledged: at[1 - from] });
            at[from] += len;
            left -= len;
        }
        for index in (0..cut.len()).rev() {
            let other = (index + seeded.below(REACH)).min(cut.len() - 1);
            if seeded.one_in(3) {
                cut.swap(index, other);
            }
            if seeded.one_in(6) {
                cut.insert(other, cut[index].clone());
            }
        }
        pieces.append(&mut cut);
    }
    pieces
}

/// Consecutive turns of one side together: no segment overtakes the answer to it.
fn flights(trace: &Trace) -> Vec<(Direction, usize)> {
    let mut flights: Vec<(Direction, usize)> = Vec::new();
    for &(direction, len) in &trace.turns {
        match flights.last_mut() {
            Some((last, sum)) if *last == direction => *sum += len,
            _ => flights.push((direction, len)),
        }
    }
    flights
}
