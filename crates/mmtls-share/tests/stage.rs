//! The library as `make install-share` puts it, and programs that are compiled with what its pkg-config file says.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::common::{build, installed};

/// Whether C programs can be compiled here; a loud skip where not.
pub fn can_compile() -> bool {
    ["cc", "c++", "make", "pkg-config"].iter().all(|program| installed(program))
}

/// Where the library is installed.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let profile = build("mmtls-share");
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mmtls-share");
        let _ = std::fs::remove_dir_all(&prefix);
        let mut make = Command::new("make");
        make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        make.args(["-s", "install-share", &format!("PREFIX={}", prefix.display())]);
        make.arg(format!("PROFILE={}", profile.file_name().unwrap().to_str().unwrap()));
        succeed(make.env("CARGO_TARGET_DIR", profile.parent().unwrap()));
        prefix
    })
}

/// What `mmtls-share.pc` says.
pub fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig")).args(arguments);
    let output = succeed(command.arg("mmtls-share"));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program of `tests/c` with the shared library, every warning an error, and these arguments behind it.
pub fn compile(source: &str, output: &Path, more: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"]);
    cc.arg(output).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source));
    cc.args(pkg_config(&["--cflags", "--libs"]));
    cc.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
    succeed(cc.args(more));
}

/// Runs a command that must succeed, and say nothing.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {output:?}\n{errors}");
    output
}
