//! What can go wrong, with the words of the runtime.

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The SYCL runtime or a driver failed.
    Driver,
    /// A wrong argument of a call or of a kernel.
    Argument,
    /// No device fits the selector.
    NoDevice,
    /// It does not fit into memory.
    OutOfMemory,
    /// A file is missing, unreadable or damaged.
    File,
    /// The module has no kernel of that name.
    UnknownKernel,
    /// This device or this build cannot do it.
    Unsupported,
    /// A library of ours, or of the SYCL runtime, could not be opened.
    Library,
}

impl ErrorKind {
    pub(crate) fn of_status(status: i32) -> Self {
        match status {
            2 => Self::Argument,
            3 => Self::NoDevice,
            4 => Self::OutOfMemory,
            5 => Self::File,
            6 => Self::UnknownKernel,
            7 => Self::Unsupported,
            _ => Self::Driver,
        }
    }
}

/// A failure of the runtime: its kind, and a text that names the device, kernel, argument or file.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Memory was asked that the device does not have.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == ErrorKind::OutOfMemory
    }

    /// There is no such device.
    #[must_use]
    pub fn is_no_device(&self) -> bool {
        self.kind == ErrorKind::NoDevice
    }

    /// The device or the build lacks something, and another way may exist.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self.kind, ErrorKind::Unsupported | ErrorKind::Library)
    }
}
