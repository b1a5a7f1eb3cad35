//! The settings of who is compared, as a reader of results must be able to judge them: the command line and the
//! configuration file of the process itself, so that nobody writes them down by hand.
//!
//! Refuses nothing: what cannot be read is "unknown".

use std::fs;
use std::path::Path;

use mmtls_testkit::Background;

use crate::results::Contender;

/// Those of a process whose files are in a directory of its own.
pub fn of_process(name: &str, process: &Background, directory: &Path) -> Contender {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    // nginx rewrites its own, with spaces.
    let text = String::from_utf8_lossy(&line).replace('\0', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let file = words.iter().position(|word| *word == "-c").and_then(|at| words.get(at + 1));
    let file = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let line = if words.is_empty() { "unknown".to_owned() } else { words.join(" ") };
    // Where temporary files are says nothing, and differs from run to run.
    let settings = [line, file].join("\n").replace(&directory.display().to_string(), "DIRECTORY");
    of_text(name, &settings)
}

/// Those of who is no process.
pub fn of_text(name: &str, settings: &str) -> Contender {
    // The part is known to who runs it.
    Contender { part: '-', name: name.to_owned(), settings: settings.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_a_process_was_started_with() {
        let place = tempfile::tempdir().unwrap();
        let (program, settings) = (place.path().join("program"), place.path().join("settings"));
        fs::write(&program, "sleep 60\n").unwrap();
        fs::write(&settings, "workers = 1\n").unwrap();
        let mut command = std::process::Command::new("sh");
        command.arg(&program).arg("-c").arg(&settings);
        let process = Background::spawn("program", command, place.path()).unwrap();
        let told = || of_process("it", &process, place.path()).settings;
        let is = "sh DIRECTORY/program -c DIRECTORY/settings\nworkers = 1";
        // Until it is the shell, it is a copy of this program.
        let came = mmtls_testkit::wait_until(std::time::Duration::from_secs(30), || told() == is);
        assert!(came, "{}", told());
    }
}
