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

/// What may be opened, as it comes together: each place is opened when it is named, with the rights that there are then.
#[derive(Default)]
pub struct Files {
    rights: Vec<(PathFd, Rights)>,
    ports: Vec<u16>,
    /// The first place that is not there.
    error: Option<SandboxError>,
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
        places(file).iter().for_each(|directory| self.allow(directory, READ));
    }

    /// A key log: a FIFO is opened for writing as well, so that it has no end.
    pub fn read_key_log(&mut self, file: &Path) {
        self.read(file);
        let kind = file.metadata().map(|it| it.file_type());
        if kind.as_ref().map_or(true, FileType::is_fifo) {
            places(file)
                .iter()
                .for_each(|directory| self.allow(directory, AccessFs::WriteFile.into()));
        }
    }

    /// Files come and go in this directory.
    pub fn write_in(&mut self, directory: &Path) {
        self.allow(directory, WRITE);
    }

    /// This file is written, and replaced by others.
    pub fn write(&mut self, file: &Path) {
        match file.metadata().map(|it| it.file_type()) {
            Ok(kind) if !kind.is_file() => self.allow(file, AccessFs::WriteFile.into()),
            _ => places(file).iter().for_each(|directory| self.allow(directory, WRITE)),
        }
    }

    /// This file is removed at the end.
    pub fn remove(&mut self, file: &Path) {
        self.allow(parent(file), REMOVE);
    }

    /// TCP connections are made to this port.
    pub fn connect(&mut self, port: u16) {
        self.ports.push(port);
    }

    /// A file, or everything in a directory, can be read.
    pub fn read_all(&mut self, path: &Path) {
        let all = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        self.allow(path, if path.is_dir() { all } else { READ });
    }

    fn allow(&mut self, path: &Path, rights: Rights) {
        match PathFd::new(path) {
            Ok(opened) => self.rights.push((opened, rights)),
            Err(error) => {
                let error = SandboxError::File(path.display().to_string(), error.to_string());
                self.error.get_or_insert(error);
            }
        }
    }

    /// From here on, and for the calling thread and those that it starts, nothing else is opened.
    pub fn confine(self) -> Result<Confined, SandboxError> {
        self.error.map_or(Ok(()), Err)?;
        let landlock = |error: landlock::RulesetError| SandboxError::Landlock(error.to_string());
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(TESTED))
            .and_then(|it| it.handle_access(AccessNet::from_all(TESTED)))
            .and_then(|it| it.scope(Scope::from_all(TESTED)))
            .and_then(Ruleset::create)
            .map_err(landlock)?;
        for (opened, rights) in self.rights {
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

/// The directory of a file that is named, which has to be there before the process is confined.
pub fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The directories in which a file, and what it links to, may be replaced.
fn places(file: &Path) -> Vec<PathBuf> {
    let named = parent(file).to_owned();
    let target = file.canonicalize().ok().map(|target| parent(&target).to_owned());
    let elsewhere = target.filter(|target| named.canonicalize().ok().as_ref() != Some(target));
    [Some(named), elsewhere].into_iter().flatten().collect()
}
