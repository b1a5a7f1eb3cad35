//! A background process of the testbed: output in files, readiness, processor time, a sure end.
//!
//! Refuses to reap a child before its processor time was read, and to leave one running: dropping
//! the handle ends the process and its descendants.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::cpu;
use super::error::TestbedError;
use super::namespace::{TERM_GRACE, end_all, signal, wait_until};

/// A process with its descendants, ended when dropped.
#[derive(Debug)]
pub struct Background {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Last reading; exact once the process has ended, because it is read before reaping.
    cpu_seconds: f64,
    status: Option<ExitStatus>,
}

/// A process that ran to its end.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Everything it wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything it wrote to standard error.
    pub stderr: String,
    /// User and system time of the process and its children.
    pub cpu_seconds: f64,
    /// Wall-clock time.
    pub elapsed: Duration,
}

impl Finished {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Background {
    /// Starts `command` with its output in files under `directory`.
    ///
    /// # Errors
    /// When the files cannot be made or the program cannot be started.
    pub fn spawn(name: &str, mut command: Command, directory: &Path) -> Result<Self, TestbedError> {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let stdout = directory.join(format!("{name}-{count}.out"));
        let stderr = directory.join(format!("{name}-{count}.err"));
        let out = File::create(&stdout).map_err(TestbedError::io(&stdout))?;
        let err = File::create(&stderr).map_err(TestbedError::io(&stderr))?;
        let child =
            command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|error| {
                TestbedError::Failed {
                    what: name.to_owned(),
                    detail: format!("cannot start: {error}"),
                }
            })?;
        Ok(Self { name: name.to_owned(), child, stdout, stderr, cpu_seconds: 0.0, status: None })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.poll().is_none()
    }

    /// What it wrote to standard output so far.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).unwrap_or_default()).into_owned()
    }

    /// What it wrote to standard error so far.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap_or_default()).into_owned()
    }

    /// The file that receives standard output.
    #[must_use]
    pub fn stdout_path(&self) -> &Path {
        &self.stdout
    }

    /// Waits until a complete line of standard output or error contains `pattern`; returns it.
    ///
    /// # Errors
    /// [`TestbedError::Timeout`], or [`TestbedError::Failed`] when the process ended without it.
    pub fn wait_for_line(
        &mut self,
        pattern: &str,
        timeout: Duration,
    ) -> Result<String, TestbedError> {
        let mut found = None;
        self.wait_for(&format!("a line with {pattern:?}"), timeout, |me| {
            let texts = [me.stdout_text(), me.stderr_text()];
            found = texts
                .iter()
                .flat_map(|text| text.split_inclusive('\n'))
                .filter(|line| line.ends_with('\n'))
                .find(|line| line.contains(pattern))
                .map(|line| line.trim_end().to_owned());
            found.is_some()
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Waits until something listens on TCP `port` in the process's network namespace.
    ///
    /// # Errors
    /// As [`Self::wait_for_line`].
    pub fn wait_for_listen(&mut self, port: u16, timeout: Duration) -> Result<(), TestbedError> {
        let pid = self.pid();
        self.wait_for(&format!("listening on port {port}"), timeout, |_| {
            ["tcp", "tcp6"].iter().any(|table| {
                fs::read_to_string(format!("/proc/{pid}/net/{table}"))
                    .is_ok_and(|text| listens(&text, port))
            })
        })
    }

    fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut happened: impl FnMut(&Self) -> bool,
    ) -> Result<(), TestbedError> {
        let mut result = false;
        let mut ended = false;
        wait_until(timeout, || {
            // In this order: what the process wrote before it ended still counts.
            ended = self.poll().is_some();
            result = happened(self);
            result || ended
        });
        if result {
            return Ok(());
        }
        if let (true, Some(status)) = (ended, self.status) {
            return Err(TestbedError::Failed {
                what: format!("{}: waiting for {what}", self.name),
                detail: format!("ended with {status}: {}", self.tail()),
            });
        }
        Err(TestbedError::Timeout {
            what: format!("{}: waiting for {what}", self.name),
            after: timeout,
            detail: self.tail(),
        })
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// [`TestbedError::Timeout`]; the process then still runs.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus, TestbedError> {
        wait_until(timeout, || self.poll().is_some());
        self.status.ok_or_else(|| TestbedError::Timeout {
            what: format!("{}: waiting for its end", self.name),
            after: timeout,
            detail: self.tail(),
        })
    }

    /// Waits for the end and collects the output.
    ///
    /// # Errors
    /// [`TestbedError::Timeout`]; the process is ended then.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished, TestbedError> {
        let start = Instant::now();
        let status = self.wait(timeout)?;
        Ok(Finished {
            status,
            stdout: fs::read(&self.stdout).map_err(TestbedError::io(&self.stdout))?,
            stderr: self.stderr_text(),
            cpu_seconds: self.cpu_seconds,
            elapsed: start.elapsed(),
        })
    }

    /// Sends a signal, by name without `SIG` ("HUP", "USR1", …), to this process alone.
    pub fn signal(&mut self, name: &str) {
        if self.is_running() {
            signal(&[self.pid()], name);
        }
    }

    /// Ends the process and its descendants: SIGTERM, after two seconds SIGKILL.
    ///
    /// Returns how the process ended; does nothing more when it had ended before.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        if self.poll().is_none() {
            let tree = cpu::process_tree(self.pid());
            // Children first hear it from their parent, as nginx's workers do.
            signal(&[self.pid()], "TERM");
            if !wait_until(TERM_GRACE, || self.poll().is_some()) {
                signal(&[self.pid()], "KILL");
                wait_until(TERM_GRACE, || self.poll().is_some());
            }
            let own = self.pid();
            let identities: Vec<(u32, Option<u64>)> = tree
                .into_iter()
                .filter(|&pid| pid != own)
                .map(|pid| (pid, cpu::stat(pid).map(|stat| stat.start)))
                .collect();
            // What is left of the tree after a grace has lost its parent: end it by id.
            end_all(|| {
                identities
                    .iter()
                    .filter(|(pid, start)| {
                        start.is_some()
                            && cpu::stat(*pid)
                                .is_some_and(|stat| stat.state != 'Z' && Some(stat.start) == *start)
                    })
                    .map(|(pid, _)| *pid)
                    .collect()
            });
        }
        self.status
    }

    /// User and system seconds of the process, its descendants and its reaped children.
    ///
    /// After the end: the last reading. Resolution 10 ms.
    pub fn cpu_seconds(&mut self) -> f64 {
        self.poll();
        self.cpu_seconds
    }

    /// Threads of the process and of its descendants.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        cpu::process_tree(self.pid()).into_iter().flat_map(cpu::threads).collect()
    }

    /// The thread of that name, of the process or of a descendant.
    #[must_use]
    pub fn thread(&self, name: &str) -> Option<u32> {
        self.threads().into_iter().find(|thread| {
            fs::read_to_string(format!("/proc/{thread}/comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        })
    }

    /// Resident memory in bytes of the process and its descendants; 0 after the end.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        cpu::process_tree(self.pid())
            .into_iter()
            .filter_map(|pid| {
                let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
                let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
                line.split_whitespace().nth(1)?.parse::<u64>().ok()
            })
            .sum::<u64>()
            * 1024
    }

    /// Reads the processor time, and reaps the child if it has ended.
    fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_some() {
            return self.status;
        }
        let pid = self.child.id();
        let ended = cpu::stat(pid).is_none_or(|stat| stat.state == 'Z');
        if let Some(seconds) = cpu::tree_cpu_seconds(pid) {
            self.cpu_seconds = self.cpu_seconds.max(seconds);
        }
        if ended {
            self.status = self.child.wait().ok();
        }
        self.status
    }

    fn tail(&self) -> String {
        let text = format!("{}{}", self.stdout_text(), self.stderr_text());
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(12)..].join(" | ")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a table in the format of `/proc/net/tcp` has a listener on `port`.
fn listens(table: &str, port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1).unwrap_or_default();
        let state = fields.nth(1).unwrap_or_default();
        local.ends_with(&wanted) && state == "0A"
    })
}

#[cfg(test)]
mod tests {
    use super::super::sweep::ScratchDir;
    use super::*;

    fn shell(script: &str, directory: &ScratchDir) -> Background {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Background::spawn("sh", command, directory.path()).unwrap()
    }

    #[test]
    fn accepts_lines_of_both_outputs() {
        let directory = ScratchDir::create("process").unwrap();
        let mut process = shell("echo one; echo two >&2; exec sleep 20", &directory);
        let limit = Duration::from_secs(5);
        assert_eq!(process.wait_for_line("tw", limit).unwrap(), "two");
        assert_eq!(process.wait_for_line("one", limit).unwrap(), "one");
        assert!(process.is_running());
        assert!(process.stop().is_some());
        assert!(!process.is_running());
    }

    #[test]
    fn accepts_the_processor_time_of_an_ended_process() {
        let directory = ScratchDir::create("process").unwrap();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3";
        let done = shell(script, &directory).finish(Duration::from_secs(20)).unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert!(done.cpu_seconds > 0.0);
    }

    #[test]
    fn refuses_to_leave_descendants() {
        let directory = ScratchDir::create("process").unwrap();
        let mut process = shell("sleep 20 & echo ready; wait", &directory);
        process.wait_for_line("ready", Duration::from_secs(5)).unwrap();
        let tree = cpu::process_tree(process.pid());
        assert_eq!(tree.len(), 2);
        process.stop();
        assert!(tree.iter().all(|&pid| cpu::stat(pid).is_none_or(|s| s.state == 'Z')));
    }

    #[test]
    fn refuses_to_wait_for_the_dead() {
        let directory = ScratchDir::create("process").unwrap();
        let mut process = shell("echo broken >&2; exit 1", &directory);
        let error = process.wait_for_line("ready", Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }

    #[test]
    fn accepts_only_listening_sockets() {
        let table = "  sl  local_address rem_address   st\n\
            0: 00000000:01BB 00000000:0000 0A 0\n   1: 0100007F:1F90 0100007F:0001 01 0\n";
        assert!(listens(table, 443));
        assert!(!listens(table, 8080));
    }
}
