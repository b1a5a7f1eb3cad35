//! Measures the literal search on one core: `cargo run --release -p mmtls-inspect --example literal_speed`.

use std::hint::black_box;
use std::time::Instant;

use mmtls_inspect::literal::{PatternSet, Scanner};

const RECORD_LEN: usize = 16384;
const RECORDS: usize = 64;

fn main() {
    // Printable pseudo-random text, in cache like a record that was just decrypted.
    let mut seed = 1u32;
    let data: Vec<u8> = (0..RECORD_LEN * RECORDS)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b' ' + ((seed >> 24) % 95) as u8
        })
        .collect();
    for count in [1, 5, 20, 100, 1000] {
        let lines: String =
            (0..count).map(|n| format!("forbidden-{n:04x}-content\nx{n}y-marker\n")).collect();
        let Ok(set) = PatternSet::from_lines(&lines) else {
            return;
        };
        for chunk_len in [RECORD_LEN, 1400] {
            let mut scanner = Scanner::new();
            let mut bytes = 0u64;
            let start = Instant::now();
            while start.elapsed().as_millis() < 300 {
                for chunk in data.chunks(chunk_len) {
                    black_box(set.scan(&mut scanner, black_box(chunk)));
                    bytes += chunk.len() as u64;
                }
            }
            let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("{:5} patterns, {chunk_len:5}-byte chunks: {rate:6.2} GB/s", set.len());
        }
    }
}
