//! The settings of who is compared, as a reader of results must be able to judge them: the command line and the
//! configuration file of the process itself, so that nobody writes them down by hand.
//!
//! Refuses nothing: what cannot be read is "unknown".

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mmtls_testkit::Background;

use crate::results::Contender;

/// Those of a running process.
pub fn of_process(name: &str, process: &Background) -> Contender {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    // nginx rewrites its own, with spaces.
    let text = String::from_utf8_lossy(&line).replace('\0', " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let file = words.iter().position(|word| *word == "-c").and_then(|at| words.get(at + 1));
    let file = file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let line = if words.is_empty() { "unknown".to_owned() } else { words.join(" ") };
    of_text(name, &[line, file].join("\n"))
}

/// Those of a command that is to run.
pub fn of_command(name: &str, command: &Command) -> Contender {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    of_text(name, &words.join(" "))
}

/// Those of a client that is run with as many requests (`-n`) as fill its time.
pub fn of_client(name: &str, command: &Command) -> Contender {
    let client = of_command(name, command);
    let settings = client.settings.replace("-n 0", "-n AS_MANY_AS_FILL_THE_TIME");
    Contender { settings, ..client }
}

/// Those of who is no process.
pub fn of_text(name: &str, settings: &str) -> Contender {
    // The part is known to who runs it.
    Contender { part: '-', name: name.to_owned(), settings: without_places(settings.trim()) }
}

/// Those of the kernel's bridge, which is no process either.
pub fn of_bridge(name: &str) -> Contender {
    let settings =
        "The kernel's bridge between two veth pairs (MTU 1500), nothing else in the middle.";
    of_text(name, settings)
}

/// Where this tree, its programs and temporary files are says nothing of a contender, differs from machine to machine,
/// and from run to run.
fn without_places(text: &str) -> String {
    let programs = env::current_exe().ok().and_then(|it| it.parent().map(PathBuf::from));
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from);
    let mut text = text.to_owned();
    for place in [programs, tree].into_iter().flatten() {
        text = text.replace(&format!("{}/", place.display()), "");
    }
    let temporary = format!("{}/", env::temp_dir().display());
    let mut portable = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once(&temporary) {
        // The directory of one process or test bed.
        let end = after.find(|it: char| it == '/' || it.is_whitespace() || "\"';,".contains(it));
        portable.push_str(before);
        portable.push_str("DIRECTORY");
        rest = &after[end.unwrap_or(after.len())..];
    }
    portable + rest
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
        let told = || of_process("it", &process).settings;
        let is = "sh DIRECTORY/program -c DIRECTORY/settings\nworkers = 1";
        // Until it is the shell, it is a copy of this program.
        let came = mmtls_testkit::wait_until(std::time::Duration::from_secs(30), || told() == is);
        assert!(came, "{}", told());
    }

    #[test]
    fn settings_name_no_place_of_this_machine() {
        let temporary = env::temp_dir();
        let programs = env::current_exe().unwrap();
        let (programs, temporary) = (programs.parent().unwrap().display(), temporary.display());
        let text = format!(
            "{programs}/mmtls run -c {temporary}/one/two.toml;\nroot \"{temporary}/three\";"
        );
        let told = of_text("it", &text).settings;
        assert_eq!(told, "mmtls run -c DIRECTORY/two.toml;\nroot \"DIRECTORY\";");
    }
}
