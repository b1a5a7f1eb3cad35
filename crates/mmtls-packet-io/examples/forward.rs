//! Bridges two interfaces and forwards everything: the baseline for measuring packet I/O.
//!
//! `forward LEFT RIGHT [--batch N] [--seconds S]`. Ends after S seconds (default 60) and prints counters and its own
//! CPU time.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Port, PortCounters};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forward: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut names = Vec::new();
    let mut batch = 32;
    let mut seconds = 60.0;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--batch" => batch = arguments.next().ok_or("--batch needs a number")?.parse()?,
            "--seconds" => seconds = arguments.next().ok_or("--seconds needs a number")?.parse()?,
            _ => names.push(argument),
        }
    }
    let [left, right]: [String; 2] =
        names.try_into().map_err(|_| "usage: forward LEFT RIGHT [--batch N] [--seconds S]")?;
    let mut bridge = Bridge::open(&BridgeConfig { batch, ..BridgeConfig::new(left, right) })?;
    for warning in bridge.warnings() {
        eprintln!("warning: {warning}");
    }
    println!("ready");
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let mut frames = 0;
        for port in Port::BOTH {
            frames += bridge.receive(port, |_| Action::Forward)?;
        }
        if frames == 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            bridge.wait(Some(left), None)?;
        }
    }
    let counters = bridge.counters();
    print("left", &counters.left);
    print("right", &counters.right);
    let cpu_seconds = cpu_seconds();
    let gigabytes = (counters.left.sent_bytes + counters.right.sent_bytes) as f64 / 1e9;
    println!(
        "cpu_s={cpu_seconds:.3} gb={gigabytes:.3} cpu_s_per_gb={:.4}",
        cpu_seconds / gigabytes
    );
    Ok(())
}

fn print(name: &str, port: &PortCounters) {
    println!("{name}: {port:?}");
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: f64 = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    // USER_HZ is 100 on every architecture that runs this.
    ticks / 100.0
}
