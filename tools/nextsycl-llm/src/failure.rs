//! What a command ends with when it does not succeed.

use std::process::ExitCode;

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// A message for the user and the exit code it means.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Something went wrong (1).
    pub fn error(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The command line is wrong (2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// The server is not running (3).
    pub fn not_running() -> Self {
        Self { code: 3, message: "the server is not running: nextsycl-llm start".to_owned() }
    }

    /// A model or request does not exist (4).
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }

    /// Refused because something is busy (5).
    pub fn busy(message: impl Into<String>) -> Self {
        Self { code: 5, message: message.into() }
    }

    /// The device has no room now (75, the code of passing failures in sysexits.h): starting again at once does not help.
    pub fn no_room(message: impl Into<String>) -> Self {
        Self { code: 75, message: message.into() }
    }

    /// Ends quietly: whoever read the output is gone.
    pub fn reader_gone() -> Self {
        Self { code: 0, message: String::new() }
    }

    /// The user interrupted it (130, as shells say).
    pub fn interrupted() -> Self {
        Self { code: 130, message: String::new() }
    }

    /// Ends with a code after everything was said.
    pub fn said(code: u8) -> Self {
        Self { code, message: String::new() }
    }

    /// Tells the user and gives the exit code.
    pub fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            crate::out::talk(&format!("nextsycl-llm: {}", self.message));
        }
        ExitCode::from(self.code)
    }

    /// Whether it is no failure to the outside: there is nothing to say.
    pub fn is_quiet(&self) -> bool {
        self.message.is_empty()
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<ns_llm::Error> for Failure {
    fn from(error: ns_llm::Error) -> Self {
        match error.kind() {
            ns_llm::ErrorKind::Option => Self::usage(error.to_string()),
            ns_llm::ErrorKind::Memory => Self::no_room(error.to_string()),
            ns_llm::ErrorKind::Device if is_in_use(&error.to_string()) => Self::no_room(error.to_string()),
            _ => Self::error(error.to_string()),
        }
    }
}

/// Whether a driver's message says that another program has the device for itself.
fn is_in_use(message: &str) -> bool {
    // CL_DEVICE_NOT_AVAILABLE and Level Zero's ZE_RESULT_ERROR_NOT_AVAILABLE ("resource already in use"), as the runtime names them.
    message.contains("UR_RESULT_ERROR_DEVICE_NOT_AVAILABLE") || message.contains("UR_RESULT_ERROR_NOT_AVAILABLE")
}

impl From<ns_registry::Error> for Failure {
    fn from(error: ns_registry::Error) -> Self {
        if error.is_not_found() { Self::not_found(error.to_string()) } else { Self::error(error.to_string()) }
    }
}

impl From<ns_files::Error> for Failure {
    fn from(error: ns_files::Error) -> Self {
        Self::error(error.to_string())
    }
}

impl From<ns_http::client::ClientError> for Failure {
    fn from(error: ns_http::client::ClientError) -> Self {
        match error {
            ns_http::client::ClientError::NotRunning(_) => Self::not_running(),
            other => Self::error(other.to_string()),
        }
    }
}

impl From<ns_http::ListenError> for Failure {
    fn from(error: ns_http::ListenError) -> Self {
        Self::error(error.to_string())
    }
}

impl From<ns_systemd::PassedError> for Failure {
    fn from(error: ns_systemd::PassedError) -> Self {
        Self::error(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ns_llm::{Error, ErrorKind};

    /// What a service manager must not answer by starting again at once has a code of its own.
    #[test]
    fn no_room_is_told_apart() {
        let code = |kind, text: &str| Failure::from(Error::new(kind, text)).code;
        assert_eq!(code(ErrorKind::Memory, "the model does not fit"), 75);
        let used = "level_zero backend failed with error: 2 (UR_RESULT_ERROR_DEVICE_NOT_AVAILABLE)";
        assert_eq!(code(ErrorKind::Device, used), 75);
        assert_eq!(code(ErrorKind::Device, "UR_RESULT_ERROR_DEVICE_LOST"), 1);
        assert_eq!(code(ErrorKind::Model, "cut"), 1);
        assert_eq!(code(ErrorKind::Option, "q9"), 2);
    }
}
