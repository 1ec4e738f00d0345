//! The error of this crate.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint was not made or an expectation not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A table is not JSON of the expected form.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A table says something impossible.
    #[error("{0}")]
    Table(String),
    /// A name that is not in the list.
    #[error("unknown {what} `{name}`; known: {known}")]
    Unknown {
        /// What was named.
        what: &'static str,
        /// The name.
        name: String,
        /// What could have been named.
        known: String,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}
