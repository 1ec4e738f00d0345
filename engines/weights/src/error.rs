//! The error of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file cannot be opened or mapped.
    Io,
    /// The file ends before its content does.
    Truncated,
    /// The content breaks the format's rules.
    Invalid,
    /// The content is well-formed but uses something this reader does not know.
    Unsupported,
    /// A key or tensor that was asked for is not there, or has another type.
    Missing,
}

/// A refused file: its path, and what in it is at fault.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    message: String,
    source: Option<std::io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &Path, message: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), message: message.into(), source: None }
    }

    pub(crate) fn io(path: &Path, what: &str, source: std::io::Error) -> Self {
        Self { kind: ErrorKind::Io, path: path.to_owned(), message: what.to_owned(), source: Some(source) }
    }

    /// What kind of fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file at fault.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// A fault within a file, before the file's path is known to it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub kind: ErrorKind,
    pub message: String,
}

impl Fault {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Invalid, message: message.into() }
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unsupported, message: message.into() }
    }

    /// The content is cut: `what` needs `missing` bytes more than there are.
    pub fn truncated(what: &str, missing: u64) -> Self {
        Self { kind: ErrorKind::Truncated, message: format!("{what}: the file is cut short, {missing} bytes missing") }
    }

    pub fn of(self, path: &Path) -> Error {
        Error::new(self.kind, path, self.message)
    }
}
