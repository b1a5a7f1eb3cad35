//! OpenSSL with the private tag (`openssl/` at the top of the tree), as `make openssl` leaves it.
//!
//! Refuses to build it, which takes minutes: without it a test is skipped, loudly, or fails where
//! `MMTLS_REQUIRE_OPENSSL=1`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::testbed::skip::skip_unless;

/// Where the libraries and their program are.
#[derive(Clone, Debug)]
pub struct PrivateTagOpenssl {
    prefix: PathBuf,
}

impl PrivateTagOpenssl {
    /// Finds it; otherwise as [`crate::require_testbed`].
    ///
    /// # Panics
    /// When it is missing and `MMTLS_REQUIRE_OPENSSL` is `1`.
    #[must_use]
    #[track_caller]
    pub fn require() -> Option<Self> {
        let found = Self::find();
        if found.is_none() {
            let reason = "OpenSSL with the private tag is not built: run `make openssl`";
            skip_unless("MMTLS_REQUIRE_OPENSSL", reason);
        }
        found
    }

    /// Finds it, in silence.
    #[must_use]
    pub fn find() -> Option<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
        let prefix = workspace.join(target).join("openssl");
        // Written last.
        prefix.join("stamp").is_file().then_some(Self { prefix })
    }

    /// The directory for `LD_LIBRARY_PATH`.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// Lets a program use these libraries.
    pub fn lend<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_LIBRARY_PATH", self.libraries())
    }

    /// `openssl` itself.
    #[must_use]
    pub fn program(&self) -> Command {
        let mut command = Command::new(self.prefix.join("bin/openssl"));
        self.lend(&mut command);
        command
    }
}
