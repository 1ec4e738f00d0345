//! What can go wrong in an engine.

use std::fmt;

/// Result with an engine's error.
pub type Result<T> = std::result::Result<T, Error>;

/// An engine's error: what failed, on what, and the cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What a caller can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// More tokens than the session holds.
    ContextFull,
    /// A token id outside the vocabulary.
    Token,
    /// No such session, or no room for another.
    Session,
    /// A checkpoint that does not belong to this model or cache form.
    Checkpoint,
    /// An option that is unknown, malformed or given at the wrong moment.
    Option,
    /// A model file that cannot be read or has features this engine lacks.
    Model,
    /// Not enough memory.
    Memory,
    /// The device, the runtime or a kernel failed.
    Device,
    /// The call does not fit the state: no logits yet, nothing to roll back, too many rows.
    Usage,
}

impl Error {
    /// An error without a cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error with its cause.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether more context would help.
    pub fn is_context_full(&self) -> bool {
        self.kind == ErrorKind::ContextFull
    }

    /// Whether the engine can go on after it: everything but a device failure.
    pub fn is_recoverable(&self) -> bool {
        self.kind != ErrorKind::Device
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}
