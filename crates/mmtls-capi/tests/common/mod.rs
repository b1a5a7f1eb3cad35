//! What the tests of the C library share: the installed library, compilers, captures.
//!
//! Refuses to test an older library than the sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use mmtls_testkit::captures::{self, Conversation};
use mmtls_testkit::{files, require_program};

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A directory for the files of the test that asks: tests run side by side.
pub fn directory() -> PathBuf {
    let test = std::thread::current();
    let path = shared_directory().join(test.name().unwrap().replace("::", "-"));
    fs::create_dir_all(&path).unwrap();
    path
}

/// A directory for what all tests of this program use.
fn shared_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let program = std::env::current_exe().unwrap();
        // Without the hash, so that builds do not pile up.
        let name = program.file_stem().unwrap().to_str().unwrap().rsplit_once('-').unwrap().0;
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    })
}

/// Whether C and C++ can be compiled here; a loud skip where not.
#[track_caller]
pub fn can_compile() -> bool {
    ["cc", "c++", "make", "pkg-config"].iter().all(|program| require_program(program))
}

/// Where `make install` has put the library, in a clean place.
pub fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = shared_directory().join("prefix");
        install(&[&format!("PREFIX={}", prefix.display())]);
        prefix
    })
}

/// `make install` of what was built together with this test.
pub fn install(variables: &[&str]) {
    let built = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let profile = built.file_name().unwrap().to_str().unwrap();
    let flag = if profile == "debug" { "" } else { " --release" };
    let packages = "-p mmtls-capi -p mmtls -p mmtls-preload -p mmtls-share";
    let hint = format!("run `cargo build{flag} {packages}` first");
    let library = built.join("libmmtls_capi.so");
    let built_at = fs::metadata(&library).and_then(|file| file.modified());
    let Ok(built_at) = built_at else { panic!("{} is missing: {hint}", library.display()) };
    for source in fs::read_dir(root().join("crates/mmtls-capi/src")).unwrap() {
        let source = source.unwrap();
        let changed = source.metadata().unwrap().modified().unwrap();
        assert!(changed <= built_at, "{:?} is newer than the library: {hint}", source.path());
    }
    let mut make = Command::new("make");
    make.current_dir(root()).args(["-s", "install"]).args(variables);
    make.arg(format!("PROFILE={profile}"));
    succeed(make.env("CARGO_TARGET_DIR", built.parent().unwrap()));
}

/// Runs a command that must succeed.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    output
}

/// Compiles a program against the installed library, as C and as C++. Returns both.
#[track_caller]
pub fn compile(source: &Path) -> [PathBuf; 2] {
    [compile_as("c", source), compile_as("c++", source)]
}

/// Compiles a program as C11 ("c") or C++17 ("c++"), every warning an error.
#[track_caller]
pub fn compile_as(language: &str, source: &Path) -> PathBuf {
    let (compiler, standard) = match language {
        "c" => ("cc", "-std=c11"),
        _ => ("c++", "-std=c++17"),
    };
    let name = source.file_stem().unwrap().to_str().unwrap();
    let output = directory().join(format!("{name}-{language}"));
    let mut command = Command::new(compiler);
    command.args(["-x", language, standard, "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg("-o").arg(&output).arg(source).args(["-x", "none"]).args(pkg_config());
    succeed(&mut command);
    output
}

/// What the installed `mmtls.pc` says, and where to find the library at run time.
pub fn pkg_config() -> Vec<String> {
    let library = installed().join("lib");
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", library.join("pkgconfig"));
    let output = succeed(command.args(["--cflags", "--libs", "mmtls"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let rpath = format!("-Wl,-rpath,{}", library.display());
    text.split_whitespace().map(str::to_owned).chain([rpath]).collect()
}

/// Writes a capture and a configuration that replays it; returns the configuration's path.
pub fn replayed(name: &str, conversations: &[Conversation]) -> PathBuf {
    let capture = directory().join(format!("{name}.pcapng"));
    captures::write(&capture, conversations).unwrap();
    let config = directory().join(format!("{name}.toml"));
    let text = format!("[offline]\ncapture_file = {:?}\n", capture.to_str().unwrap());
    fs::write(&config, text).unwrap();
    config
}

/// What a program printed.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A body with a word in it.
pub fn body_with(word: &[u8], at: usize, len: usize) -> Vec<u8> {
    let mut body = files::pattern_bytes(len, 5);
    body[at..at + word.len()].copy_from_slice(word);
    body
}

/// What IPS examples look for.
pub const WORD: &[u8] = b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE";

/// The number behind `name: ` in what was printed.
pub fn number(printed: &str, name: &str) -> u64 {
    let line = printed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {printed}")).parse().unwrap()
}
