//! Files that `mmtls exec` needs: the preload library and a private directory for its socket and its key log.
//!
//! Refuses: library paths that LD_PRELOAD cannot express, directories that exist already.

use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::Error;

const LIBRARY: &str = "libmmtls_preload.so";
/// Names the library where it is in no usual place.
const LIBRARY_VARIABLE: &str = "MMTLS_PRELOAD_LIBRARY";
/// Room for "/agent" below the 107 bytes of a Unix socket's path.
const MAX_DIRECTORY_BYTES: usize = 100;

/// The library: as asked for, else as the environment says, else next to this program or in the
/// lib directory beside its own.
pub fn find_library(asked: Option<&Path>) -> Result<PathBuf, Error> {
    let named = asked.map(Path::to_owned).or_else(|| env::var_os(LIBRARY_VARIABLE).map(Into::into));
    let candidates = match named {
        Some(path) => vec![path],
        None => {
            let program = env::current_exe()
                .map_err(|error| Error::System { what: "finding this program", error })?;
            let directory = program.parent().unwrap_or(Path::new("/")).to_owned();
            let beside = directory.parent().unwrap_or(Path::new("/"));
            vec![
                directory.join(LIBRARY),
                beside.join("lib").join(LIBRARY),
                beside.join("lib/mmtls").join(LIBRARY),
            ]
        }
    };
    let first = candidates.first().cloned().unwrap_or_default();
    let found = candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let error = io::Error::new(
            io::ErrorKind::NotFound,
            "the preload library is not here (--preload-library or MMTLS_PRELOAD_LIBRARY names it)",
        );
        Error::File { path: first, error }
    })?;
    let found = found.canonicalize().map_err(Error::file(&found))?;
    if found.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte)) {
        return Err(Error::Usage(format!(
            "{}: LD_PRELOAD allows no space, colon or dollar sign in a path",
            found.display()
        )));
    }
    Ok(found)
}

/// The value of LD_PRELOAD: our library before those that were there.
pub fn preload_list(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// A directory for this user only; removed with its content when dropped.
pub struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    pub fn create() -> Result<Self, Error> {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let bases = runtime.into_iter().chain([env::temp_dir(), PathBuf::from("/tmp")]);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for base in bases.filter(|base| base.is_absolute()) {
            // The name need not be secret: creating fails when somebody else has it.
            let number = RandomState::new().hash_one(std::process::id());
            let path = base.join(format!("mmtls-{number:016x}"));
            if path.as_os_str().len() > MAX_DIRECTORY_BYTES {
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = error,
            }
        }
        Err(Error::System { what: "creating a private directory", error: last })
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where programs connect that have the preload library.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent")
    }

    /// Where other programs write their secrets.
    pub fn key_log(&self) -> PathBuf {
        self.0.join("keylog")
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn accepts_only_this_user_in_its_directory() {
        let directory = PrivateDirectory::create().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(path.join("file"), "").unwrap();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn refuses_missing_libraries() {
        assert!(matches!(
            find_library(Some(Path::new("/nonexistent/library.so"))),
            Err(Error::File { .. })
        ));
    }
}
