//! Errors of a launch.

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// An operand or a size does not fit; nothing was started.
    Argument,
    /// The device or its driver failed.
    Device,
    /// No memory on the device.
    Memory,
}

/// A failed launch or load.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: ErrorKind,
    text: String,
    source: Option<Box<ns_sycl::Error>>,
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A launch refused because of `text`.
    #[must_use]
    pub fn argument(text: String) -> Self {
        Self { kind: ErrorKind::Argument, text, source: None }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<ns_sycl::Error> for Error {
    fn from(error: ns_sycl::Error) -> Self {
        let kind = if error.is_out_of_memory() {
            ErrorKind::Memory
        } else if error.kind() == ns_sycl::ErrorKind::Argument {
            ErrorKind::Argument
        } else {
            ErrorKind::Device
        };
        Self { kind, text: error.to_string(), source: Some(Box::new(error)) }
    }
}
