//! Whether files can be made in a directory that may not be there yet.
//!
//! Refuses to make any, to find out.

use std::io;
use std::path::Path;

use rustix::fs::{Access, access};

/// Whether this process could make files in a directory, which it makes itself where it is not there.
///
/// # Errors
/// Why it could not, with the part of the path that is in the way.
pub(super) fn check(dir: &Path) -> io::Result<()> {
    let there = |path: &&Path| path.symlink_metadata().is_ok();
    let whole = if dir.is_absolute() { dir } else { &Path::new(".").join(dir) };
    let Some(nearest) = whole.ancestors().find(there) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let about = |error: io::Error| match nearest == whole {
        true => error,
        false => io::Error::new(error.kind(), format!("{}: {error}", nearest.display())),
    };
    if !nearest.metadata().map_err(about)?.is_dir() {
        return Err(about(io::ErrorKind::NotADirectory.into()));
    }
    access(nearest, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| about(error.into()))
}

/// Whether this process could append to a file, if it is there.
///
/// # Errors
/// Why it could not.
pub(super) fn check_file(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        let name = path.file_name().unwrap_or_default().display();
        io::Error::new(error.kind(), format!("{name}: {error}"))
    };
    match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(named(error)),
        Ok(metadata) if metadata.is_dir() => Err(named(io::ErrorKind::IsADirectory.into())),
        Ok(_) => access(path, Access::WRITE_OK).map_err(|error| named(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_directories_that_cannot_be_made_and_makes_none() {
        let place = tempfile::tempdir().unwrap();
        let [file, new] = ["file", "new"].map(|name| place.path().join(name));
        std::fs::write(&file, "").unwrap();
        check(&new.join("below")).unwrap();
        assert!(!new.exists());
        check(place.path()).unwrap();
        check(Path::new("target/never/made")).unwrap();
        let error = check(&file.join("logs")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
        assert_eq!(check(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        check_file(&file).unwrap();
        check_file(&new).unwrap();
        let error = check_file(place.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        std::os::unix::fs::symlink("/nonexistent/x", &new).unwrap();
        assert!(check(&new.join("below")).is_err());
    }
}
