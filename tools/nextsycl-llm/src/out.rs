//! stdout is data, stderr is talk. A reader that closes stdout ends the program quietly.

use crate::failure::{Failure, Outcome};
use std::fmt::Arguments;
use std::io::{IsTerminal, Write};

/// Writes data to stdout and flushes it.
pub fn data(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::error(format!("cannot write to stdout: {e}")),
    })
}

/// Writes one formatted line of data.
pub fn line(text: Arguments<'_>) -> Outcome {
    data(&format!("{text}\n"))
}

/// Tells the user something. Nobody is left to tell when stderr is closed.
pub fn talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Whether stdout is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether stderr is a terminal.
pub fn talk_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}
