//! Packet capture of one interface, with tcpdump or (in a user namespace) dumpcap.
//!
//! Refuses to start late: returns only once the program listens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Testbed;
use super::error::TestbedError;
use super::namespace::{self, Namespace};
use super::process::Background;
use super::skip::find_program;

/// A running capture, ended when dropped.
#[derive(Debug)]
pub struct Capture {
    process: Background,
    path: PathBuf,
}

impl Capture {
    /// Captures whole packets of `interface` in `place` to `path`; `filter` in pcap syntax,
    /// empty for everything.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] without the program; else what it said.
    pub fn start(
        bed: &Testbed,
        place: &Namespace,
        interface: &str,
        path: &Path,
        filter: &str,
    ) -> Result<Self, TestbedError> {
        // tcpdump gives up root's rights and fails where it cannot; dumpcap (part of Wireshark)
        // does not try. The default buffers are too small for testbed speeds.
        let dumpcap = namespace::groups_are_denied();
        let program = if dumpcap { "dumpcap" } else { "tcpdump" };
        if find_program(program).is_none() {
            return Err(TestbedError::Unavailable(format!("{program} is not installed")));
        }
        let mut command = place.command(program);
        command.args(["-i", interface]).arg("-w").arg(path);
        let ready = if dumpcap {
            command.args(["-P", "-q", "-s", "0", "-B", "64", "-f", filter]);
            "File: "
        } else {
            // The user stays root, because the directory is private.
            command.args(["-n", "-s", "0", "-B", "65536", "--nano", "-U", "-Z", "root"]).args(
                // An empty expression would be a syntax error.
                Some(filter).filter(|text| !text.is_empty()),
            );
            "listening on"
        };
        let mut process = bed.background(program, command)?;
        process.wait_for_line(ready, Duration::from_secs(10))?;
        Ok(Self { process, path: path.to_path_buf() })
    }

    /// Ends the capture and returns the file.
    ///
    /// # Errors
    /// [`TestbedError::Failed`] when the kernel dropped packets: such a capture proves nothing.
    pub fn stop(mut self) -> Result<PathBuf, TestbedError> {
        // The kernel hands over a block when it is full or its second is over; what is not
        // handed over yet would be lost. (Immediate mode instead drops under load.)
        std::thread::sleep(Duration::from_millis(1300));
        self.process.stop();
        let said = self.process.stderr_text();
        match said.lines().find(|line| tells_of_drops(line)) {
            Some(line) => Err(TestbedError::Failed {
                what: "packet capture".to_owned(),
                detail: line.to_owned(),
            }),
            None => Ok(self.path),
        }
    }
}

/// Reads the last words of tcpdump and dumpcap.
fn tells_of_drops(line: &str) -> bool {
    if line.ends_with("dropped by kernel") {
        return !line.starts_with("0 ");
    }
    // Packets received/dropped on interface 'left': 48/0 (pcap:0/dumpcap:0/…) (100.0%)
    line.strip_prefix("Packets received/dropped on interface ")
        .and_then(|rest| rest.split_once("': "))
        .and_then(|(_, counts)| counts.split_once('/'))
        .is_some_and(|(_, dropped)| !dropped.starts_with("0 "))
}

#[cfg(test)]
mod tests {
    use super::tells_of_drops;

    #[test]
    fn accepts_complete_captures() {
        for line in [
            "120 packets captured",
            "0 packets dropped by kernel",
            "Packets received/dropped on interface 'left': 48/0 (pcap:0/dumpcap:0) (100.0%)",
        ] {
            assert!(!tells_of_drops(line), "{line}");
        }
    }

    #[test]
    fn refuses_captures_with_holes() {
        for line in [
            "7 packets dropped by kernel",
            "Packets received/dropped on interface 'left': 48/3 (pcap:3/dumpcap:0) (94.0%)",
        ] {
            assert!(tells_of_drops(line), "{line}");
        }
    }
}
