//! Atomic file writes and locks: a reader sees the old file or the new one, never a part.

mod atomic;
mod lock;

pub use atomic::{AtomicFile, write};
pub use lock::{Lock, update};

use std::path::{Path, PathBuf};

/// Result of a file operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A file operation that failed: what was tried, on which file, and the system's reason.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

impl Error {
    fn new(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Self { action, path: path.to_owned(), source: source.into() }
    }

    /// The file it was about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The system's reason.
    pub fn io_kind(&self) -> std::io::ErrorKind {
        self.source.kind()
    }
}

/// Makes a directory and its parents; `private` ones are for their owner alone (mode 0700).
pub fn create_dir(path: &Path, private: bool) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    if private {
        builder.mode(0o700);
    }
    builder.create(path).map_err(|e| Error::new("create the directory", path, e))
}

/// Reads a whole file; `None` when it does not exist.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::new("read", path, e)),
    }
}

/// Removes a file; one that is gone already is no error.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::new("remove", path, e)),
        _ => Ok(()),
    }
}
