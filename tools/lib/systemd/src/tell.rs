//! sd_notify.

use sd_notify::NotifyState;
use std::time::Duration;

/// Something the service manager is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Requests are answered from now on.
    Ready,
    /// The service ends in good order.
    Stopping,
    /// One line for people, shown by `systemctl status`.
    Status(String),
    /// The start needs at least that much longer.
    Extend(Duration),
}

/// Tells the service manager; without one (`NOTIFY_SOCKET` is not set) nothing happens.
///
/// # Errors
/// The manager's socket cannot be written to.
pub fn tell(stages: &[Stage]) -> std::io::Result<()> {
    let lines: Vec<String> = stages
        .iter()
        .map(|stage| match stage {
            // A second line would be taken for another message.
            Stage::Status(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
            _ => String::new(),
        })
        .collect();
    let states: Vec<NotifyState> = stages
        .iter()
        .zip(&lines)
        .map(|(stage, line)| match stage {
            Stage::Ready => NotifyState::Ready,
            Stage::Stopping => NotifyState::Stopping,
            Stage::Status(_) => NotifyState::Status(line),
            Stage::Extend(time) => NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX)),
        })
        .collect();
    sd_notify::notify(&states)
}
