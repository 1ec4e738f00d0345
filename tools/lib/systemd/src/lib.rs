//! What a server takes from systemd and tells it: listening sockets, readiness, progress.

mod passed;
mod tell;

pub use passed::{Passed, PassedError, passed};
pub use tell::{Stage, tell};

/// Variables of the handover, which are not for the programs a server starts.
pub const HANDOVER: &[&str] =
    &["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
