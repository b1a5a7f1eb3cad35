//! The files that a confined process may still open (Landlock).
//!
//! Refuses everything that is not named: other files, TCP connections, signals to others. Rights are those of directories,
//! since files are replaced by others of the same name; what is a device or a FIFO is named itself.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

use super::settings::SandboxError;

/// The newest one that the live tests have run under. What newer kernels could restrict beyond it is not asked for.
const TESTED: ABI = ABI::V7;

/// What is done with the files in a directory, and those below.
type Rights = BitFlags<AccessFs>;

const READ: Rights = make_bitflags!(AccessFs::ReadFile);
/// Appended to, begun anew, cut, and renamed.
const WRITE: Rights = make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | RemoveFile});
const REMOVE: Rights = make_bitflags!(AccessFs::RemoveFile);

/// What may be opened, as it comes together.
#[derive(Default)]
pub struct Files {
    rights: Vec<(PathBuf, Rights)>,
    ports: Vec<u16>,
}

/// How far the kernel goes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confined {
    /// All that was asked for.
    Fully,
    /// Its Landlock is an older one.
    Partly,
    /// It has none.
    Not,
}

impl Files {
    /// This file is read again, and what replaces it: a link's target, too.
    pub fn read(&mut self, file: &Path) {
        for directory in places(file) {
            self.rights.push((directory, READ));
        }
    }

    /// A key log: a FIFO is opened for writing as well, so that it has no end.
    pub fn read_key_log(&mut self, file: &Path) {
        self.read(file);
        let kind = file.metadata().map(|it| it.file_type());
        if kind.as_ref().map_or(true, FileType::is_fifo) {
            let write = AccessFs::WriteFile.into();
            self.rights.extend(places(file).into_iter().map(|directory| (directory, write)));
        }
    }

    /// Files come and go in this directory.
    pub fn write_in(&mut self, directory: &Path) {
        self.rights.push((directory.to_owned(), WRITE));
    }

    /// This file is written, and replaced by others.
    pub fn write(&mut self, file: &Path) {
        match file.metadata().map(|it| it.file_type()) {
            Ok(kind) if !kind.is_file() => {
                self.rights.push((file.to_owned(), AccessFs::WriteFile.into()));
            }
            _ => self.rights.extend(places(file).into_iter().map(|directory| (directory, WRITE))),
        }
    }

    /// This file is removed at the end.
    pub fn remove(&mut self, file: &Path) {
        self.rights.push((parent(file).to_owned(), REMOVE));
    }

    /// TCP connections are made to this port.
    pub fn connect(&mut self, port: u16) {
        self.ports.push(port);
    }

    /// Everything can be read.
    pub fn read_all(&mut self, directory: &Path) {
        self.rights.push((directory.to_owned(), make_bitflags!(AccessFs::{ReadFile | ReadDir})));
    }

    /// From here on, and for the calling thread and those that it starts, nothing else is opened.
    pub fn confine(self) -> Result<Confined, SandboxError> {
        let landlock = |error: landlock::RulesetError| SandboxError::Landlock(error.to_string());
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(TESTED))
            .and_then(|it| it.handle_access(AccessNet::from_all(TESTED)))
            .and_then(|it| it.scope(Scope::from_all(TESTED)))
            .and_then(Ruleset::create)
            .map_err(landlock)?;
        for (path, rights) in self.rights {
            let opened = PathFd::new(&path).map_err(|error| {
                SandboxError::File(path.display().to_string(), error.to_string())
            })?;
            ruleset = ruleset.add_rule(PathBeneath::new(opened, rights)).map_err(landlock)?;
        }
        for port in self.ports {
            let rule = NetPort::new(port, AccessNet::ConnectTcp);
            ruleset = ruleset.add_rule(rule).map_err(landlock)?;
        }
        Ok(match ruleset.restrict_self().map_err(landlock)?.ruleset {
            RulesetStatus::FullyEnforced => Confined::Fully,
            RulesetStatus::PartiallyEnforced => Confined::Partly,
            RulesetStatus::NotEnforced => Confined::Not,
        })
    }
}

fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The directories in which a file, and what it links to, may be replaced. Of one that is not there yet, the nearest that is.
fn places(file: &Path) -> Vec<PathBuf> {
    let exists = parent(file).ancestors().find(|it| it.exists());
    let named = exists.filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut places = vec![named.to_owned()];
    if let Ok(target) = file.canonicalize() {
        let target = parent(&target).to_owned();
        if named.canonicalize().ok().as_ref() != Some(&target) {
            places.push(target);
        }
    }
    places
}
