//! Programs of the system, ended when the test ends, and a directory for their files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes a second on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A directory that is removed when the test ends.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mmtls-record-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that is killed when the test ends.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    pub fn new(child: Child, port: u16) -> Self {
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of a short program, `None` when it is not installed.
pub fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that must succeed.
pub fn run(directory: &Path, program: &str, arguments: &[&str]) {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{program} {arguments:?}");
}

/// Starts a server whose output goes to the file `log`.
pub fn start<A: AsRef<OsStr>>(
    directory: &Path,
    log: &str,
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Child {
    let log = File::create(directory.join(log)).expect("the test's own directory");
    Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("a second handle"))
        .stdout(log)
        .spawn()
        .expect("found before")
}

/// Asks the file `path` until `find` finds something in it.
pub fn wait_for<T>(path: &Path, find: impl Fn(&str) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if let Some(found) = find(&text) {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{} says {text:?}", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a client that asks for `/big`; an error says what it printed last.
pub fn request(command: &mut Command) -> Result<(), String> {
    let spawned =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(b"GET /big HTTP/1.0\r\n\r\n");
    }
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => break,
            _ if start.elapsed() > PATIENCE => {
                let _ = child.kill();
                break;
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().rev().take(4).collect::<Vec<_>>().join(" | "))
}
