//! The TLS stacks: how their endpoints are built and started, and what they can.
//!
//! Refuses to guess: what a stack cannot do is left out here, with the reason beside it, and so a
//! case that fails to come about is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

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
}

/// A TLS stack with an endpoint of ours.
#[derive(Debug)]
pub struct Stack {
    /// In tables and names of files.
    pub name: &'static str,
    /// How its endpoint is made.
    pub build: Build,
    /// Prints the version.
    pub version_command: &'static [&'static str],
    /// Part of the quick run.
    pub quick: bool,
    /// How it spells suites.
    pub spelling: Spelling,
    /// How it logs keys.
    pub keylog: KeyLogBy,
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
}

impl Stack {
    /// Whether it can play a role in a case.
    pub fn can(&self, role: Role, case: &Case) -> bool {
        let features = self.features[usize::from(role == Role::Server)];
        let suite_fits = |suite: Suite| match case.version {
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
                // Two key shares would be sent otherwise, one per kind of group.
                (true, Role::Client) => "+GROUP-SECP521R1:+GROUP-SECP256R1:%SINGLE_KEY_SHARE",
                (true, Role::Server) => "+GROUP-SECP256R1",
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
        if let Some(suite) = case.suite
            && (case.version == Version::V12 || self.chooses_13)
        {
            arguments.push(format!("suite={}", self.spell(suite)));
        }
        if retry {
            arguments.push(match role {
                Role::Client => "groups=P-521:P-256".to_owned(),
                Role::Server => "groups=P-256".to_owned(),
            });
        }
        arguments
    }

    /// Builds the endpoint, and returns the start of its command line.
    pub fn build(&self, source: &Path, target: &Path) -> Result<Vec<PathBuf>, String> {
        match self.build {
            Build::C(file, libraries) => {
                let program = target.join(self.name);
                let mut compiler = Command::new("gcc");
                compiler.args(["-O1", "-Wall", "-o"]).arg(&program);
                compiler.arg(source.join("c").join(file)).args(libraries);
                run(compiler)?;
                Ok(vec![program])
            }
        }
    }

    /// What the stack says about its version.
    pub fn version(&self) -> String {
        let Some((program, arguments)) = self.version_command.split_first() else {
            return String::new();
        };
        let output = Command::new(program).args(arguments).output();
        let text = output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        );
        text.lines().next().unwrap_or("unknown").trim().to_owned()
    }
}

/// Runs a compiler; what it says is the error.
fn run(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = text.lines().find(|line| line.contains("error")).unwrap_or("failed");
    Err(format!("{program}: {first}"))
}
