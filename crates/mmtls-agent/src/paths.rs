//! Files that agents need: the preload library, and a private directory for a socket and a key log.
//!
//! Refuses: library paths that LD_PRELOAD cannot express, directories that others can look into, or write in.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use mmtls_keyshare::agent::socket::{Users, check_listens};
use rustix::process::geteuid;

use crate::Error;

const LIBRARY: &str = "libmmtls_preload.so";
/// Names the library where it is in no usual place.
const LIBRARY_VARIABLE: &str = "MMTLS_PRELOAD_LIBRARY";
/// Where users' programs keep their sockets (XDG Base Directory Specification).
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";
/// Where root's agent is, which may be all users'. Not /run/mmtls: that is the monitor's, whose unit gives it to the monitor's
/// user as it starts, and removes it with all that is in it as it stops.
const OF_ALL: &str = "/run/mmtls-agent";
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

/// A directory for this user only, where programs find an agent; removed when dropped, if it is this agent's.
pub struct AgentDirectory {
    path: PathBuf,
    owned: bool,
}

impl AgentDirectory {
    /// One that nobody else knows of, for one program.
    pub fn create() -> Result<Self, Error> {
        let runtime = env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
        let bases = runtime.into_iter().chain([env::temp_dir(), PathBuf::from("/tmp")]);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for base in bases.filter(|base| base.is_absolute()) {
            // The name need not be secret: creating fails when somebody else has it.
            let number = RandomState::new().hash_one(std::process::id());
            let path = base.join(format!("mmtls-{number:016x}"));
            if path.as_os_str().len() > MAX_DIRECTORY_BYTES {
                continue;
            }
            match make(&path) {
                Ok(()) => return Ok(Self { path, owned: true }),
                Err(error) => last = error,
            }
        }
        Err(Error::System { what: "creating a private directory", error: last })
    }

    /// One with a name that programs know. It may be there already, if only this user can look into it (where all users'
    /// programs come: write in it), and another agent's until [`Self::own`].
    pub fn named(path: &Path, users: Users) -> Result<Self, Error> {
        match make(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(Error::file(path))?,
        }
        let path = match users {
            Users::Own => private(path)?,
            Users::All => {
                let path = trusted(path)?;
                open_to_all(&path)?;
                path
            }
        };
        Ok(Self { path, owned: false })
    }

    /// What is in it is this agent's.
    pub fn own(&mut self) {
        self.owned = true;
    }

    /// Where an agent is: the directory that is named, or the usual one, or where that of all users is; its path is absolute.
    pub fn of(named: Option<&Path>) -> Result<PathBuf, Error> {
        let of_all = || Path::new(OF_ALL).is_dir().then(|| PathBuf::from(OF_ALL));
        let usual = || Self::usual().filter(|it| it.exists()).or_else(of_all).or_else(Self::usual);
        let path = named.map(Path::to_owned).or_else(usual).ok_or_else(|| {
            Error::Usage("no directory of an agent, and no XDG_RUNTIME_DIR".to_owned())
        })?;
        if let Err(error) = path.symlink_metadata() {
            let text = format!("no agent at {} (mmtls agent): {error}", path.display());
            return Err(Error::Usage(text));
        }
        // Another user's agent would get the secrets.
        trusted(&path)
    }

    /// As [`Self::of`], where an agent answers.
    pub fn running(named: Option<&Path>) -> Result<PathBuf, Error> {
        let directory = Self::of(named)?;
        // What an agent that was killed has left answers nobody.
        check_listens(&socket(&directory)).map_err(|error| {
            Error::Usage(format!("no agent at {} (mmtls agent): {error}", directory.display()))
        })?;
        Ok(directory)
    }

    /// The name where none is given.
    pub fn usual() -> Option<PathBuf> {
        let runtime = env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
        let runtime = runtime.filter(|it| it.is_absolute());
        let system = || geteuid().is_root().then(|| PathBuf::from(OF_ALL));
        runtime.map(|it| it.join("mmtls")).or_else(system)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The absolute path of a directory of this user alone, so that programs find it from everywhere.
fn private(path: &Path) -> Result<PathBuf, Error> {
    admitted(path, "not a directory of this user alone (mode 700)", |it| {
        it.uid() == geteuid().as_raw() && it.mode() & 0o077 == 0
    })
}

/// Makes it one to be gone through, not to be read; but not that of an agent that is for its user alone.
fn open_to_all(path: &Path) -> Result<(), Error> {
    const MODE: u32 = 0o711;
    if path.metadata().map_err(Error::file(path))?.mode() & 0o7777 == MODE {
        return Ok(());
    }
    if check_listens(&socket(path)).is_ok() {
        return Err(Error::Usage(format!("{}: another agent is there", path.display())));
    }
    std::fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(Error::file(path))
}

/// The same of one in which only this user or root can write.
fn trusted(path: &Path) -> Result<PathBuf, Error> {
    admitted(path, "not a directory in which only this user or root can write", |it| {
        [0, geteuid().as_raw()].contains(&it.uid()) && it.mode() & 0o022 == 0
    })
}

fn admitted(
    path: &Path,
    else_it_is: &str,
    admits: impl Fn(&Metadata) -> bool,
) -> Result<PathBuf, Error> {
    let found = path.canonicalize().map_err(Error::file(path))?;
    if found.as_os_str().len() > MAX_DIRECTORY_BYTES {
        let text = format!("{}: longer than {MAX_DIRECTORY_BYTES} bytes", found.display());
        return Err(Error::Usage(text));
    }
    let metadata = path.symlink_metadata().map_err(Error::file(path))?;
    match metadata.is_dir() && admits(&metadata) {
        true => Ok(found),
        false => Err(Error::Usage(format!("{}: {else_it_is}", path.display()))),
    }
}

/// Where programs connect that have the preload library.
pub fn socket(directory: &Path) -> PathBuf {
    directory.join("agent")
}

/// Where other programs write their secrets.
pub fn key_log(directory: &Path) -> PathBuf {
    directory.join("keylog")
}

/// What the agent has done so far.
pub fn status(directory: &Path) -> PathBuf {
    directory.join("status.json")
}

/// Its next content, while it is written.
pub fn new_status(status: &Path) -> PathBuf {
    status.with_extension("new")
}

fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(directory)
}

/// Removes what an agent has made in its directory, and the directory where there is nothing else in it: it may be
/// any directory that somebody has named.
pub fn clean(directory: &Path) {
    let status = status(directory);
    for path in [socket(directory), key_log(directory), new_status(&status), status] {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_dir(directory);
}

impl Drop for AgentDirectory {
    fn drop(&mut self) {
        if self.owned {
            clean(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use mmtls_keyshare::agent::socket::AgentListener;

    use super::*;

    #[test]
    fn accepts_only_this_user_in_its_directory() {
        let directory = AgentDirectory::create().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for file in [socket(&path), key_log(&path), status(&path)] {
            std::fs::write(file, "").unwrap();
        }
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn refuses_to_remove_what_is_not_its_own() {
        let directory = AgentDirectory::create().unwrap();
        let other = directory.path().join("other");
        std::fs::write(&other, "").unwrap();
        clean(directory.path());
        assert!(other.exists(), "a directory that somebody has named by mistake");
        std::fs::remove_file(&other).unwrap();
    }

    #[test]
    fn accepts_a_directory_that_is_there_and_private() {
        let directory = AgentDirectory::create().unwrap();
        let path = directory.path().join("named");
        let named = |users| AgentDirectory::named(&path, users);
        drop(named(Users::Own).unwrap());
        assert!(path.exists(), "it may be another agent's");
        let mut own = named(Users::Own).unwrap();
        own.own();
        drop(own);
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        let set_mode =
            |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let mode = || path.metadata().unwrap().mode() & 0o777;
        set_mode(0o770);
        for users in [Users::Own, Users::All] {
            assert!(matches!(named(users), Err(Error::Usage(_))), "a group's");
        }
        assert!(AgentDirectory::of(Some(&path)).is_err(), "secrets would go to whoever made it");
        set_mode(0o750);
        assert!(named(Users::Own).is_err(), "a group looks into it");
        assert!(AgentDirectory::of(Some(&path)).is_ok());
        assert!(named(Users::All).is_ok());
        assert_eq!(mode(), 0o711);
        set_mode(0o700);
        assert!(named(Users::Own).is_ok());
        assert_eq!(mode(), 0o700);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(named(Users::Own).is_err(), "a file");
        assert!(AgentDirectory::of(Some(&directory.path().join("missing"))).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn refuses_to_open_the_directory_of_another_agent() {
        let directory = AgentDirectory::create().unwrap();
        let path = directory.path();
        let mode = || path.metadata().unwrap().mode() & 0o777;
        let agent = AgentListener::bind(&socket(path), Users::Own).unwrap();
        assert!(AgentDirectory::named(path, Users::All).is_err());
        assert_eq!(mode(), 0o700);
        // Its socket is left.
        drop(agent);
        assert!(AgentDirectory::named(path, Users::All).is_ok());
        assert_eq!(mode(), 0o711);
        // That of all users may be on its way out.
        let _agent = AgentListener::bind(&path.join("other"), Users::All).unwrap();
        std::fs::rename(path.join("other"), socket(path)).unwrap();
        assert!(AgentDirectory::named(path, Users::All).is_ok());
        std::fs::remove_file(socket(path)).unwrap();
    }

    /// Of the system's unit, whose runtime directory comes and goes with the service; the user's unit has none.
    #[test]
    fn refuses_to_be_where_a_service_removes_it() {
        let unit = |name: &str| {
            let path = format!("{}/../../packaging/systemd/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).unwrap()
        };
        let directories = |text: &str| -> Vec<PathBuf> {
            let lists = text.lines().filter_map(|line| line.strip_prefix("RuntimeDirectory="));
            lists.flat_map(str::split_whitespace).map(|it| Path::new("/run").join(it)).collect()
        };
        let of_monitor = directories(&unit("mmtls.service"));
        assert!(!of_monitor.is_empty());
        assert!(!of_monitor.iter().any(|it| Path::new(OF_ALL).starts_with(it)), "{of_monitor:?}");
        assert!(directories(&unit("user/mmtls-agent.service")).is_empty());
    }

    #[test]
    fn refuses_missing_libraries() {
        assert!(matches!(
            find_library(Some(Path::new("/nonexistent/library.so"))),
            Err(Error::File { .. })
        ));
    }
}
