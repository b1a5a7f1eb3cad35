//! The guard's program as it was compiled, loaded into the kernel, and pinned. Refuses to leave one of its two links alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use aya::maps::Map;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use super::error::{GuardError, at, system_error};
use super::lease::PROGRAM;

/// Whether there is a program.
pub(super) fn is_built() -> Result<(), GuardError> {
    Ok(())
}

/// What is loaded. What of it is not pinned is unloaded when this goes.
pub(super) struct Loaded(Ebpf);

impl Loaded {
    pub(super) fn load(interfaces: &[u32; 2]) -> Result<Self, GuardError> {
        let ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("LEFT", &interfaces[0], true)
            .override_global("RIGHT", &interfaces[1], true)
            .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/guard.o")))
            .map_err(|error| unsupported(&error))?;
        let mut loaded = Self(ebpf);
        loaded.program()?.load().map_err(|error| unsupported(&error))?;
        // Its map is there, too, for whoever asks for it now.
        loaded.array()?;
        Ok(loaded)
    }

    fn program(&mut self) -> Result<&mut SchedClassifier, GuardError> {
        let program = self.0.program_mut(PROGRAM).map(<&mut SchedClassifier>::try_from);
        program.and_then(Result::ok).ok_or_else(missing)
    }

    fn array(&self) -> Result<&Map, GuardError> {
        self.0.map("leases").ok_or_else(missing)
    }

    pub(super) fn pin_map(&self, file: &Path) -> Result<(), GuardError> {
        self.array()?.pin(file).map_err(|error| at(file)(system_error(&error)))
    }

    pub(super) fn map(&self) -> Result<BorrowedFd<'_>, GuardError> {
        match self.array()? {
            Map::Array(map) => Ok(map.fd().as_fd()),
            _ => Err(missing()),
        }
    }

    /// Attaches the program behind all others, and pins the links.
    pub(super) fn attach(
        &mut self,
        names: &[String; 2],
        files: &[PathBuf; 2],
    ) -> Result<(), GuardError> {
        let program = self.program()?;
        let mut links = Vec::new();
        for (name, file) in names.iter().zip(files) {
            let order = TcAttachOptions::TcxOrder(LinkOrder::last());
            let link = program
                .attach_with_options(name, TcAttachType::Ingress, order)
                .and_then(|id| program.take_link(id))
                .map_err(|error| unsupported(&error))?;
            let link = FdLink::try_from(link).map_err(|error| unsupported(&error))?;
            links.push((link, file));
        }
        for (link, file) in links {
            link.pin(file).map_err(|error| at(file)(system_error(&error)))?;
        }
        Ok(())
    }
}

fn missing() -> GuardError {
    unsupported(&io::Error::from(io::ErrorKind::NotFound))
}

/// What the kernel, or the loader, says: its first line, since a verifier's log has many.
fn unsupported(error: &(dyn std::error::Error + 'static)) -> GuardError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    GuardError::Unsupported { reason: text.lines().next().unwrap_or_default().to_owned() }
}
