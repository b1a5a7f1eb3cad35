//! The TLS stacks: how their endpoints are built and started, and what they can.
//!
//! Refuses to guess: what a stack cannot do is left out here, with the reason beside it, and so a
//! case that fails to come about is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use mmtls_testkit::PrivateTagOpenssl;

use super::case::{Case, Feature};
use super::suite::{self, Suite, Version};

/// Which side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Connects.
    Client,
    /// Listens.
    Server,
}

impl Role {
    /// As the programs are told.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// How a stack writes its key log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyLogBy {
    /// It is told with `keylog=`.
    Argument,
    /// The library reads SSLKEYLOGFILE.
    Environment,
    /// Not at all: the other side's is used.
    Nothing,
}

/// How a stack spells suites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// The registered names.
    Iana,
    /// OpenSSL's names.
    OpenSsl,
    /// mbedTLS's names.
    MbedTls,
    /// A priority string, for versions and groups too.
    GnuTls,
}

/// How an endpoint is made from its source in `xtask/interop`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// A C file and what it is linked with.
    C(&'static str, &'static [&'static str]),
    /// A C file and the libraries that pkg-config knows.
    PkgConfig(&'static str, &'static [&'static str]),
    /// A module of Go.
    Go,
    /// A class of Java.
    Java,
    /// A crate of its own.
    Rust,
    /// An interpreter with a file.
    Script(&'static str, &'static str),
    /// Nothing to build: the browser itself, as a client of HTTP servers.
    Chromium,
}

/// A TLS stack with an endpoint of ours.
#[derive(Debug)]
pub struct Stack {
    /// In tables and names of files.
    pub name: &'static str,
    /// How its endpoint is made.
    pub build: Build,
    /// Part of the quick run.
    pub quick: bool,
    /// Has the suites with a private tag, in front: the same library, with ours in it. Part of no
    /// run but `--private-tag`.
    pub private_tag: bool,
    /// How it spells suites.
    pub spelling: Spelling,
    /// How it logs keys.
    pub keylog: KeyLogBy,
    /// Whether its key log opens a case.
    pub logs_keys: fn(Role, &Case) -> bool,
    /// Versions it speaks.
    pub versions: &'static [Version],
    /// Whether its suites of TLS 1.3 can be chosen.
    pub chooses_13: bool,
    /// Its ciphers of TLS 1.3.
    pub ciphers_13: &'static [&'static str],
    /// Its key exchanges of TLS 1.2.
    pub exchanges: &'static [&'static str],
    /// Whether it has a cipher of TLS 1.2.
    pub has_cipher_12: fn(&Suite) -> bool,
    /// What it can as client and as server.
    pub features: [&'static [Feature]; 2],
    /// Of those, what it follows but does not start: the other side must.
    pub passive: &'static [Feature],
}

impl Stack {
    /// Whether it can play a role in a case.
    pub fn can(&self, role: Role, case: &Case) -> bool {
        let features = self.features[usize::from(role == Role::Server)];
        let suite_fits = |suite: Suite| match case.version {
            Version::V13 if suite.has_private_tag() => self.private_tag,
            Version::V13 => self.ciphers_13.contains(&suite.cipher),
            Version::V12 => {
                self.exchanges.contains(&suite.exchange) && (self.has_cipher_12)(&suite)
            }
        };
        self.versions.contains(&case.version)
            && features.contains(&case.feature)
            && case.suite.is_none_or(suite_fits)
    }

    /// The suite in this stack's spelling.
    pub fn spell(&self, suite: Suite) -> String {
        match self.spelling {
            Spelling::OpenSsl => suite.openssl(),
            Spelling::MbedTls => suite.mbedtls(),
            Spelling::Iana | Spelling::GnuTls => suite.iana(),
        }
    }

    /// Arguments for version, suite and groups.
    pub fn parameters(&self, role: Role, case: &Case) -> Vec<String> {
        let retry = case.feature == Feature::HelloRetry;
        if self.spelling == Spelling::GnuTls {
            let groups = match (retry, role) {
                (false, _) => "+GROUP-ALL",
                (true, Role::Client) => "+GROUP-SECP256R1:+GROUP-SECP384R1",
                (true, Role::Server) => "+GROUP-SECP384R1",
            };
            let mut priority = suite::gnutls_priority(case.version, case.suite, groups);
            match case.feature {
                Feature::Psk => priority.push_str(":+ECDHE-PSK:+DHE-PSK:+PSK"),
                Feature::NoExtendedMasterSecret => priority.push_str(":%NO_SESSION_HASH"),
                Feature::MacThenEncrypt => priority.push_str(":%NO_ETM"),
                Feature::Renegotiation => priority.push_str(":%SAFE_RENEGOTIATION"),
                _ => {}
            }
            return vec![format!("priority={priority}")];
        }
        let mut arguments = vec![format!("version={}", case.version.number())];
        if self.private_tag && self.build == Build::Rust {
            arguments.push("private-tag=1".to_owned());
        }
        if let Some(suite) = case.suite
            && (case.version == Version::V12 || self.chooses_13)
        {
            arguments.push(format!("suite={}", self.spell(suite)));
        }
        if retry {
            arguments.push(match role {
                Role::Client => "groups=P-256:P-384".to_owned(),
                Role::Server => "groups=P-384".to_owned(),
            });
        }
        arguments
    }

    /// Gives a stack with the private tag what makes it one.
    pub fn equip(&self, command: &mut Command) {
        if self.private_tag
            && let Build::C(..) = self.build
            && let Some(openssl) = PrivateTagOpenssl::find()
        {
            openssl.lend(command);
        }
    }

    /// Builds the endpoint, and returns the start of its command line.
    pub fn build(&self, source: &Path, target: &Path) -> Result<Vec<PathBuf>, String> {
        if self.private_tag && matches!(self.build, Build::C(..)) {
            PrivateTagOpenssl::find().ok_or("not built: run `make openssl`")?;
        }
        let program = target.join(self.name);
        // Put into its place whole: another run may build or start it at the same time.
        let made = target.join(format!("{}.{}", self.name, std::process::id()));
        let place = |made: &Path| {
            std::fs::rename(made, &program)
                .map_err(|error| format!("{}: {error}", program.display()))
        };
        match self.build {
            Build::C(file, libraries) => {
                let mut compiler = Command::new("gcc");
                compiler.args(["-O1", "-Wall", "-o"]).arg(&made);
                run(compiler.arg(source.join("c").join(file)).args(libraries))?;
                place(&made)?;
                Ok(vec![program])
            }
            Build::PkgConfig(file, libraries) => {
                let flags = output(
                    Command::new("pkg-config").args(["--cflags", "--libs"]).args(libraries),
                )?;
                let mut compiler = Command::new("gcc");
                compiler.args(["-O1", "-Wall", "-o"]).arg(&made);
                compiler.arg(source.join("c").join(file));
                run(compiler.args(flags.split_whitespace()))?;
                place(&made)?;
                Ok(vec![program])
            }
            Build::Go => {
                let mut compiler = Command::new("go");
                compiler.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local");
                compiler.current_dir(source.join("go")).args(["build", "-o"]).arg(&made);
                run(compiler.arg("."))?;
                place(&made)?;
                Ok(vec![program])
            }
            Build::Java => {
                let classes = target.join("java-classes");
                let mut compiler = Command::new("javac");
                run(compiler.arg("-d").arg(&classes).arg(source.join("java/Endpoint.java")))?;
                // Many short runs: the simpler compiler alone starts faster.
                let options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"];
                let mut command: Vec<PathBuf> = vec![program_path("java")?];
                command.extend(options.map(PathBuf::from));
                command.extend([classes, "Endpoint".into()]);
                Ok(command)
            }
            Build::Rust => {
                let directory = target.join("rustls-target");
                let mut compiler = Command::new("cargo");
                compiler.args(["build", "--release", "--locked", "--manifest-path"]);
                compiler.arg(source.join("rustls/Cargo.toml"));
                run(compiler.arg("--target-dir").arg(&directory))?;
                Ok(vec![directory.join("release/interop-rustls")])
            }
            Build::Script(interpreter, file) => {
                Ok(vec![program_path(interpreter)?, source.join(file)])
            }
            Build::Chromium => Ok(vec![program_path("chromium")?]),
        }
    }
}

/// Whether an endpoint could not be made because the machine lacks its stack, or has one that is too
/// old, rather than because our source is wrong.
pub fn is_absent(reason: &str) -> bool {
    [
        "is not installed",
        "not built: run",
        "No such file or directory",
        "cannot find -l",
        "pkg-config",
    ]
    .iter()
    .any(|known| reason.contains(known))
        || is_too_old(reason)
}

/// Whether it has one that is too old: that of a Linux distribution may be.
pub fn is_too_old(reason: &str) -> bool {
    reason.contains("requires go")
}

/// Where a program is: what runs in the testbed is started by its path.
fn program_path(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| format!("{name} is not installed"))
}

/// What an endpoint says about the version of its stack.
pub fn version(stack: &Stack, command: &[PathBuf]) -> Result<String, String> {
    let browser = stack.build == Build::Chromium;
    let mut program = Command::new(&command[0]);
    stack.equip(&mut program);
    let output = program
        .args(&command[1..])
        .arg(if browser { "--version" } else { "version" })
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().to_owned()),
        _ => Err(format!("does not start: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Runs a compiler; what it says is the error.
fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// Runs a program; what it prints is the result, or the error.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // An old Go stumbles over a source first, and names the reason last.
    let telling = ["requires go", "error"];
    let telling = telling.iter().find_map(|it| text.lines().find(|line| line.contains(it)));
    let first = telling.or(text.lines().next());
    Err(format!("{program}: {}", first.unwrap_or("failed")))
}
