//! A program that forwards frames between the same sockets as mmTLS and does nothing else: what packet input and output cost.
//!
//! Refuses to look into a frame.

use std::time::Duration;

use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Port};
use mmtls_testkit::{Background, Testbed};

/// What it says when it forwards.
const READY: &str = "forwarding";

/// Starts it in the middlebox's namespace.
pub fn start(bed: &Testbed) -> Result<Background, String> {
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = bed.middlebox.command(me);
    command.args(["bench", "forwarder"]);
    let mut process = bed.background("forwarder", command).map_err(|error| error.to_string())?;
    process.wait_for_line(READY, Duration::from_secs(10)).map_err(|error| error.to_string())?;
    Ok(process)
}

/// Forwards until it is ended.
pub fn run() -> Result<(), String> {
    let failed = |error: mmtls_packet_io::Error| error.to_string();
    let config = BridgeConfig::new("left".to_owned(), "right".to_owned());
    let mut bridge = Bridge::open(&config).map_err(failed)?;
    println!("{READY}");
    loop {
        let mut frames = 0;
        for port in Port::BOTH {
            frames += bridge.receive(port, |_| Action::Forward).map_err(failed)?;
        }
        if frames == 0 {
            bridge.wait(None, None).map_err(failed)?;
        }
    }
}
