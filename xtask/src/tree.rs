//! The gate on the tree: locks, test programs, file sizes. (Who may depend on whom is in `deny.toml`.)
//!
//! Job: fail when a safe crate could grow unsafe code, when a test file is in no test program and so
//! is never run, when a tracked file names a package registry's host, when a source file outgrows review, when
//! `docs/` outgrows its readers, and when the performance table of README.md is not that of the result file that it names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crates in which unsafe code is allowed. In the last one libFuzzer's macro declares functions.
const WITH_UNSAFE: &[&str] = &[
    "mmtls-packet-io",
    "mmtls-preload",
    "mmtls-sender",
    "mmtls-share",
    "mmtls-capi",
    "mmtls-hyperscan",
    "mmtls-fuzz",
];

/// Lines of a source file beyond which it needs splitting.
const MAX_LINES: usize = 800;

/// Bytes of prose in `docs/` beyond which something has to go.
const MAX_PROSE: usize = 90 << 10;

/// Checks everything and reports all that is wrong.
///
/// # Errors
/// One line per violation, or why the check could not run.
pub fn run() -> Result<(), String> {
    let metadata = cargo_metadata()?;
    let root = PathBuf::from(text(&metadata, "workspace_root")?);
    let packages = list(&metadata, "packages")?;
    let files = source_files(&root)?;

    let mut wrong = Vec::new();
    for package in packages {
        check_locks(package, &mut wrong)?;
    }
    check_test_programs(&root, &files, &mut wrong);
    check_files(&root, &files, &mut wrong);
    check_prose(&root, &files, &mut wrong);
    wrong.extend(crate::report::check_documents(&root));
    if wrong.is_empty() {
        println!("tree: {} crates, {} files: in order", packages.len(), files.len());
        return Ok(());
    }
    Err(format!("{} violations:\n  {}", wrong.len(), wrong.join("\n  ")))
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn output(command: &mut Command) -> Result<String, String> {
    let what = format!("{command:?}");
    let output = command.output().map_err(|error| format!("{what}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{what}: {error}"))
}

fn cargo_metadata() -> Result<Value, String> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"];
    serde_json::from_str(&output(cargo().args(arguments))?)
        .map_err(|error| format!("cargo metadata: {error}"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("cargo metadata: no {key}"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    value[key].as_array().map(Vec::as_slice).ok_or_else(|| format!("cargo metadata: no {key}"))
}

fn check_locks(package: &Value, wrong: &mut Vec<String>) -> Result<(), String> {
    let name = text(package, "name")?;
    if WITH_UNSAFE.contains(&name) {
        return Ok(());
    }
    for target in list(package, "targets")? {
        let kinds: Vec<&str> = list(target, "kind")?.iter().filter_map(Value::as_str).collect();
        let ships = |kind: &&str| matches!(*kind, "bin") || kind.ends_with("lib");
        if !kinds.iter().any(ships) {
            continue;
        }
        let path = text(target, "src_path")?;
        let source = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        if !source.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") {
            wrong.push(format!("{path}: lacks #![forbid(unsafe_code)]"));
        }
    }
    Ok(())
}

/// A crate with `tests/main.rs` has one test program, whose modules are the other files there.
fn check_test_programs(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) {
    for file in files {
        let Some(name) = file.file_stem().and_then(|name| name.to_str()) else {
            continue;
        };
        let main = file.with_file_name("main.rs");
        let in_tests = file.parent().is_some_and(|directory| directory.ends_with("tests"));
        if !in_tests || file.extension().is_none_or(|it| it != "rs") || *file == main {
            continue;
        }
        // Where there is none, every file is a program.
        let Ok(program) = fs::read_to_string(root.join(&main)) else {
            continue;
        };
        if !names_module(&program, name) {
            wrong.push(format!("{}: not a module of {}", file.display(), main.display()));
        }
    }
}

fn names_module(program: &str, name: &str) -> bool {
    program.lines().any(|line| line.trim() == format!("mod {name};"))
}

/// Tracked files and those about to be: ignored ones do not count.
fn source_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listing = output(Command::new("git").current_dir(root).args(arguments))?;
    Ok(listing
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        // Deleted but not yet committed.
        .filter(|name| root.join(name).is_file())
        .collect())
}

fn check_files(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) {
    let hosts = registry_hosts();
    for file in files {
        // Captures and other binary files have neither lines nor host names to click on.
        let Ok(source) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        for (number, line) in source.lines().enumerate() {
            for host in hosts.iter().filter(|host| names_host(line, host)) {
                wrong.push(format!("{}:{}: names {host}", file.display(), number + 1));
            }
        }
        let lines = source.lines().count();
        if is_source(file) && lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines, more than {MAX_LINES}", file.display()));
        }
    }
}

fn check_prose(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) {
    let is_page =
        |file: &&PathBuf| file.starts_with("docs") && file.extension().is_some_and(|it| it == "md");
    let pages = files.iter().filter(is_page);
    let texts = pages.filter_map(|file| fs::read_to_string(root.join(file)).ok());
    let bytes: usize = texts.map(|text| prose(&text)).sum();
    if bytes > MAX_PROSE {
        wrong.push(format!("docs: {bytes} bytes of prose, more than {MAX_PROSE}"));
    }
}

/// Bytes of a page's lines that are neither code nor rows of a table.
fn prose(page: &str) -> usize {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence && !line.starts_with('|')
    });
    lines.map(|line| line.len() + 1).sum()
}

fn is_source(file: &Path) -> bool {
    file.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| matches!(extension, "rs" | "c" | "h" | "py" | "sh"))
}

/// From parts, so that this file does not name them either.
fn registry_hosts() -> Vec<String> {
    [
        ["crates", "io"],
        ["pypi", "org"],
        ["pythonhosted", "org"],
        ["npmjs", "org"],
        ["npmjs", "com"],
        ["rubygems", "org"],
        ["proxy.golang", "org"],
        ["repo.maven.apache", "org"],
        ["deb.debian", "org"],
        ["archive.ubuntu", "com"],
    ]
    .iter()
    .map(|parts| parts.join("."))
    .collect()
}

/// Whether `line` names `host` or a host below it. The lock file names the registry's index, whose
/// name goes on with a hyphen; that is no host.
fn names_host(line: &str, host: &str) -> bool {
    let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'-');
    let bytes = line.as_bytes();
    line.match_indices(host).any(|(start, _)| {
        let before = start.checked_sub(1).and_then(|index| bytes.get(index));
        !is_word(before) && !is_word(bytes.get(start + host.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_test_files_that_are_part_of_the_program() {
        let program = "mod attacks;\nmod harness;\n";
        assert!(names_module(program, "attacks") && names_module(program, "harness"));
        assert!(!names_module(program, "attack") && !names_module("// mod attacks;", "attacks"));
    }

    #[test]
    fn accepts_code_and_tables_beside_prose() {
        assert_eq!(
            prose("One.\n\n| a | b |\n```c\nint main;\n```\nTwo.\n"),
            "One.\n\nTwo.\n".len()
        );
    }

    #[test]
    fn refuses_registry_hosts() {
        let host = registry_hosts().remove(0);
        assert!(names_host(&format!("https://{host}/x"), &host));
        assert!(names_host(&format!("index.{host}"), &host));
        assert!(!names_host(&format!("rust-lang/{host}-index"), &host));
        assert!(!names_host(&format!("my{host}"), &host));
    }
}
