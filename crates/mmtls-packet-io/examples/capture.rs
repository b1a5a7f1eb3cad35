//! Lists a capture file: `capture FILE`, one line per packet with its time, link, lengths and a sum of its bytes.

use std::process::ExitCode;

use mmtls_packet_io::capture::{CaptureError, CaptureReader, Item};

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: capture FILE");
        return ExitCode::FAILURE;
    };
    match list(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list(path: &str) -> Result<(), CaptureError> {
    let mut reader = CaptureReader::open(path)?;
    while let Some(item) = reader.next()? {
        match item {
            Item::Packet { timestamp_ns, link, bytes, original_len } => {
                let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
                let (seconds, rest) = (timestamp_ns / 1_000_000_000, timestamp_ns % 1_000_000_000);
                println!("{seconds}.{rest:09} {link:?} {} {original_len} {sum}", bytes.len());
            }
            Item::Secrets { kind, bytes } => println!("secrets {:#x} {}", kind.0, bytes.len()),
        }
    }
    for warning in reader.warnings() {
        println!("warning: {warning}");
    }
    println!("{:?}", reader.counters());
    Ok(())
}
