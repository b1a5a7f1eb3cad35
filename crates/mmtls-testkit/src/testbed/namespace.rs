//! One network namespace: its making, commands inside it, its end.
//!
//! Everything goes through `ip` and `nsenter`, so this crate needs no unsafe code. Refuses to
//! delete a namespace while processes live in it: those are ended first.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::cpu;
use super::error::TestbedError;
use super::skip::find_program;

/// Where `ip netns` keeps its handles.
pub(crate) const NETNS_DIR: &str = "/run/netns";

/// How long processes get between SIGTERM and SIGKILL.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(2);

/// A network namespace that ends with this value, together with every process inside it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn create(name: String) -> Result<Self, TestbedError> {
        // The first `ip netns add` of a machine remounts the directory: one at a time.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut add = ip();
        add.args(["netns", "add", &name]);
        unavailable(check(add))?;
        let namespace = Self { name };
        unavailable(namespace.ip("link set lo up\n"))?;
        Ok(namespace)
    }

    /// The name under `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The handle, for `setns` and `nsenter`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// `program`, to be run inside this namespace; add arguments as usual.
    ///
    /// `nsenter` replaces itself by the program, so the child's PID is the program's. Only the
    /// network is switched: `/sys/class/net` still shows the caller's interfaces.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let program = program.as_ref();
        let mut command = Command::new(tool("nsenter"));
        command.arg(format!("--net={}", self.path().display()));
        command.arg("--").arg(
            program
                .to_str()
                .filter(|name| !name.contains('/'))
                .and_then(find_program)
                .map_or_else(|| program.to_os_string(), PathBuf::into_os_string),
        );
        command
    }

    /// Runs `ip` commands inside the namespace, one a line; stops at the first failure.
    ///
    /// # Errors
    /// [`TestbedError::Failed`] with what `ip` said.
    pub fn ip(&self, batch: &str) -> Result<(), TestbedError> {
        let mut command = ip();
        command.args(["-n", &self.name, "-batch", "-"]);
        check_with_input(command, batch).map(drop)
    }

    /// Runs a shell script inside the namespace (with `set -eu`) and returns its output.
    ///
    /// # Errors
    /// [`TestbedError::Failed`] with what the script said.
    pub fn shell(&self, script: &str) -> Result<Output, TestbedError> {
        let mut command = self.command("sh");
        command.args(["-euc", script]);
        check(command)
    }

    /// As [`Self::shell`], with `/sys` showing this namespace.
    ///
    /// # Errors
    /// [`TestbedError::Failed`] with what the script said.
    pub fn shell_with_sysfs(&self, script: &str) -> Result<Output, TestbedError> {
        let mut command = ip();
        command.args(["netns", "exec", &self.name, "sh", "-euc", script]);
        check(command)
    }

    /// The processes inside the namespace at this moment.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        pids_in(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Ends every process of a namespace, then deletes it. Failure leaves it to the next sweep.
pub(crate) fn remove(name: &str) {
    end_all(|| pids_in(name));
    let mut delete = ip();
    delete.args(["netns", "delete", name]);
    let _ = check(delete);
}

fn pids_in(name: &str) -> Vec<u32> {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let Some(wanted) = identity(&Path::new(NETNS_DIR).join(name)) else {
        return Vec::new();
    };
    cpu::all_pids()
        .into_iter()
        .filter(|pid| identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(wanted))
        .collect()
}

/// SIGTERM, a grace, SIGKILL, for the processes that `list` names until it names none.
pub(crate) fn end_all(list: impl Fn() -> Vec<u32>) {
    let pids = list();
    if pids.is_empty() {
        return;
    }
    signal(&pids, "TERM");
    if wait_until(TERM_GRACE, || list().is_empty()) {
        return;
    }
    signal(&list(), "KILL");
    wait_until(TERM_GRACE, || list().is_empty());
}

/// Polls until `done`; false after `limit`.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Sends a signal to processes by id. Processes that are gone are no error.
pub(crate) fn signal(pids: &[u32], name: &str) {
    if pids.is_empty() {
        return;
    }
    // The shell's own `kill`: the program of that name is not installed everywhere.
    let _ = Command::new("sh")
        .args(["-c", "kill -s \"$@\"", "sh", name])
        .args(pids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Whether a namespace with a veth pair can be made here.
pub(crate) fn probe() -> Result<(), TestbedError> {
    for program in ["ip", "nsenter"] {
        if find_program(program).is_none() {
            return Err(TestbedError::Unavailable(format!("{program} is not installed")));
        }
    }
    let namespace = Namespace::create(super::sweep::unique_name("probe"))?;
    unavailable(namespace.ip("link add probe0 type veth peer name probe1\n"))?;
    unavailable(namespace.shell("true").map(drop))
}

/// Whether this is a user namespace that forbids `setgroups`: programs that give up root's rights
/// fail there.
pub(crate) fn groups_are_denied() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

/// Turns a failure into "this machine cannot".
pub(crate) fn unavailable<T>(result: Result<T, TestbedError>) -> Result<T, TestbedError> {
    result.map_err(|error| match error {
        TestbedError::Failed { what, detail } => {
            TestbedError::Unavailable(format!("{what}: {detail}"))
        }
        other => other,
    })
}

pub(crate) fn ip() -> Command {
    Command::new(tool("ip"))
}

fn tool(name: &str) -> PathBuf {
    find_program(name).unwrap_or_else(|| PathBuf::from(name))
}

/// Runs a command to its end; a failure status is an error that carries its output.
pub(crate) fn check(command: Command) -> Result<Output, TestbedError> {
    check_with_input(command, "")
}

fn check_with_input(mut command: Command, input: &str) -> Result<Output, TestbedError> {
    let what = format!("{command:?}").replace('"', "");
    let failed = |detail: String| TestbedError::Failed { what: what.clone(), detail };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that ends without reading closes the pipe: its status tells more than EPIPE.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("{}: {}", output.status, said.trim())))
}
