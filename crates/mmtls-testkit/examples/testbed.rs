//! A testbed to try things in by hand: `cargo run -p mmtls-testkit --example testbed -- bridge`.
//!
//! Makes `empty`, `bridge` or `routed`, starts nginx in it, prints how to enter, and takes
//! everything away when standard input ends or a line is entered.
#![forbid(unsafe_code)]

use std::io::BufRead;

use mmtls_testkit::{Middle, Nginx, NginxOptions, Testbed, TestbedError, files};

fn main() -> Result<(), TestbedError> {
    let middle = match std::env::args().nth(1).as_deref() {
        None | Some("empty") => Middle::Empty,
        Some("bridge") => Middle::KernelBridge,
        Some("routed") => Middle::Routed,
        Some(other) => {
            eprintln!("no such testbed: {other} (empty, bridge or routed)");
            std::process::exit(2);
        }
    };
    let bed = Testbed::new(middle)?;
    let server = Nginx::start(&bed, NginxOptions::default())?;
    files::pattern(&server.root().join("1m.txt"), 1 << 20, 1)?;
    for namespace in [&bed.client, &bed.middlebox, &bed.server] {
        println!("nsenter --net={}", namespace.path().display());
    }
    println!("receive packet steering: {}", bed.rps_active());
    println!(
        "curl --cacert {} {} https://server.test/1m.txt",
        bed.pki().ca.display(),
        bed.resolve_args().join(" ")
    );
    println!("Enter ends the testbed.");
    // Whether a line came or the input ended: both mean the end.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    Ok(())
}
