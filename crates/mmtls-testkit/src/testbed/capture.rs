//! Packet capture of one interface with tcpdump.
//!
//! Refuses to start late: returns only once tcpdump listens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Testbed;
use super::error::TestbedError;
use super::namespace::Namespace;
use super::process::Background;
use super::skip::find_program;

/// A running capture, ended when dropped.
#[derive(Debug)]
pub struct Capture {
    process: Background,
    path: PathBuf,
}

impl Capture {
    /// Captures whole packets of `interface` in `namespace` to `path`; `filter` in pcap syntax,
    /// empty for everything.
    ///
    /// # Errors
    /// [`TestbedError::Unavailable`] without tcpdump; else what it said.
    pub fn start(
        bed: &Testbed,
        namespace: &Namespace,
        interface: &str,
        path: &Path,
        filter: &str,
    ) -> Result<Self, TestbedError> {
        if find_program("tcpdump").is_none() {
            return Err(TestbedError::Unavailable("tcpdump is not installed".to_owned()));
        }
        let mut command = namespace.command("tcpdump");
        // `-Z root` keeps the user: the directory is private, and a user namespace has no other.
        command.args(["-i", interface, "-n", "-s", "0", "-B", "65536", "-U", "-Z", "root"]);
        command.arg("-w").arg(path);
        if !filter.is_empty() {
            command.arg(filter);
        }
        let mut process = bed.background("tcpdump", command)?;
        process.wait_for_line("listening on", Duration::from_secs(10))?;
        Ok(Self { process, path: path.to_path_buf() })
    }

    /// Ends the capture and returns the file.
    ///
    /// # Errors
    /// [`TestbedError::Failed`] when the kernel dropped packets: such a capture proves nothing.
    pub fn stop(mut self) -> Result<PathBuf, TestbedError> {
        // The kernel hands over a block when it is full or tcpdump's second is over; what is not
        // handed over yet would be lost. (Immediate mode instead drops under load.)
        std::thread::sleep(Duration::from_millis(1300));
        self.process.stop();
        let said = self.process.stderr_text();
        match said.lines().find(|line| line.ends_with("packets dropped by kernel")) {
            Some(line) if !line.starts_with("0 ") => {
                Err(TestbedError::Failed { what: "tcpdump".to_owned(), detail: line.to_owned() })
            }
            _ => Ok(self.path),
        }
    }
}
