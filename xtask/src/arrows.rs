//! The gate on structure: dependency arrows, locks, file sizes.
//!
//! Job: fail when a crate depends on one it must not know, when the engine links cryptography or
//! the C library, when a safe crate could grow unsafe code, when a tracked file names a package
//! registry's host, and when a source file outgrows review. Refuses unknown crates: a new one
//! needs its rule here first.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What a workspace crate may depend on in what it ships.
struct Room {
    name: &'static str,
    may_use: &'static [&'static str],
    /// Whether unsafe code is allowed.
    unsafe_code: bool,
}

const fn room(name: &'static str, may_use: &'static [&'static str]) -> Room {
    Room { name, may_use, unsafe_code: false }
}

const EVERYTHING: &[&str] = &[
    "mmtls-tls",
    "mmtls-engine",
    "mmtls-record",
    "mmtls-packet-io",
    "mmtls-keyshare",
    "mmtls-inspect",
    "mmtls-endpoint",
    "mmtls-middlebox",
    "mmtls-agent",
];

const ROOMS: &[Room] = &[
    room("mmtls-tls", &[]),
    room("mmtls-engine", &["mmtls-tls"]),
    room("mmtls-record", &["mmtls-tls"]),
    Room { name: "mmtls-packet-io", may_use: &[], unsafe_code: true },
    room("mmtls-keyshare", &["mmtls-tls"]),
    room("mmtls-endpoint", &["mmtls-keyshare", "mmtls-record"]),
    Room { name: "mmtls-preload", may_use: &["mmtls-keyshare"], unsafe_code: true },
    room("mmtls-inspect", &[]),
    room(
        "mmtls-middlebox",
        &["mmtls-engine", "mmtls-inspect", "mmtls-keyshare", "mmtls-packet-io", "mmtls-record"],
    ),
    room("mmtls-agent", &["mmtls-keyshare", "mmtls-record"]),
    Room { name: "mmtls-capi", may_use: &["mmtls-middlebox"], unsafe_code: true },
    room("mmtls", EVERYTHING),
    room("mmtls-testkit", EVERYTHING),
    room("xtask", ANYTHING),
];

const ANYTHING: &[&str] = &["*"];

/// Development only: nothing that ships may depend on these.
const TESTKIT: &str = "mmtls-testkit";

/// Parts of package names that have no place under the engine.
const NOT_IN_ENGINE: &[&str] =
    &["aws-lc", "ring", "rustls", "openssl", "boring", "libc", "rustix", "nix", "mio", "socket2"];

/// Lines of a source file beyond which it needs splitting.
const MAX_LINES: usize = 800;

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
        check_arrows(package, &mut wrong)?;
        check_locks(package, &mut wrong)?;
    }
    check_engine(&root, &mut wrong)?;
    check_files(&root, &files, &mut wrong);
    if wrong.is_empty() {
        println!("arrows: {} crates, {} files: in order", packages.len(), files.len());
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

fn rule(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

fn check_arrows(package: &Value, wrong: &mut Vec<String>) -> Result<(), String> {
    let name = text(package, "name")?;
    if rule(name).is_none() {
        wrong.push(format!("{name}: no rule for this crate in xtask/src/arrows.rs"));
        return Ok(());
    }
    for dependency in list(package, "dependencies")? {
        // Crates of the workspace are given by path.
        if dependency["path"].is_null() {
            continue;
        }
        let target = text(dependency, "name")?;
        let for_tests = dependency["kind"].as_str() == Some("dev");
        if !is_allowed(name, target, for_tests) {
            let kind = if for_tests { " (dev)" } else { "" };
            wrong.push(format!("{name} must not depend on {target}{kind}"));
        }
    }
    Ok(())
}

fn is_allowed(from: &str, to: &str, for_tests: bool) -> bool {
    let Some(room) = rule(from) else {
        return false;
    };
    if room.may_use == ANYTHING || room.may_use.contains(&to) {
        return true;
    }
    // Tests may use the testkit, and a crate itself with other features.
    for_tests && (to == TESTKIT || to == from)
}

fn check_locks(package: &Value, wrong: &mut Vec<String>) -> Result<(), String> {
    let name = text(package, "name")?;
    if rule(name).is_none_or(|room| room.unsafe_code) {
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

/// What the engine links, build scripts excluded, with the features it asks for itself.
fn check_engine(root: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
    let tree = output(cargo().current_dir(root).args([
        "tree",
        "--package",
        "mmtls-engine",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--locked",
        "--offline",
    ]))?;
    let packages: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for package in packages {
        if not_in_engine(package) {
            wrong.push(format!("mmtls-engine must not link {package}"));
        }
    }
    Ok(())
}

fn not_in_engine(package: &str) -> bool {
    NOT_IN_ENGINE.iter().any(|&name| {
        package
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-') || name == "aws-lc")
    })
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
    fn accepts_the_arrows_of_the_architecture() {
        for (from, to) in [
            ("mmtls-record", "mmtls-tls"),
            ("mmtls-preload", "mmtls-keyshare"),
            ("mmtls", "mmtls-inspect"),
            ("xtask", "mmtls-testkit"),
        ] {
            assert!(is_allowed(from, to, false), "{from} -> {to}");
        }
        assert!(is_allowed("mmtls", "mmtls-testkit", true));
    }

    #[test]
    fn refuses_arrows_that_point_back() {
        for (from, to) in [
            ("mmtls-engine", "mmtls-record"),
            ("mmtls-record", "mmtls-engine"),
            ("mmtls-packet-io", "mmtls-engine"),
            ("mmtls-keyshare", "mmtls-engine"),
            ("mmtls-inspect", "mmtls-engine"),
            ("mmtls", "mmtls-testkit"),
            ("mmtls", "mmtls-preload"),
            ("mmtls-new", "mmtls-engine"),
        ] {
            assert!(!is_allowed(from, to, false), "{from} -> {to}");
        }
    }

    #[test]
    fn refuses_cryptography_in_the_engine() {
        for package in ["aws-lc-rs", "aws-lc-sys", "libc", "ring", "rustls-pki-types", "nix"] {
            assert!(not_in_engine(package), "{package}");
        }
        for package in ["ahash", "zerocopy", "once_cell", "nixie"] {
            assert!(!not_in_engine(package), "{package}");
        }
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
