//! Turning away who waits at sockets of the service manager, when the program ends with an error.
//!
//! A connection that is left in such a socket starts the program again at once, which fails again, until the manager gives the
//! socket up.

use super::error::ApiError;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Time for all of it, and for one client's request.
const TIME: Duration = Duration::from_secs(3);
const REQUEST_TIME: Duration = Duration::from_millis(300);

/// Copies of passed sockets, for the case that the program fails.
#[derive(Default)]
pub struct Doors {
    tcp: Vec<TcpListener>,
    unix: Option<UnixListener>,
}

impl Doors {
    /// Copies them.
    pub fn of(passed: &ns_systemd::Passed) -> std::io::Result<Self> {
        let tcp = passed.tcp.iter().map(TcpListener::try_clone).collect::<std::io::Result<_>>()?;
        Ok(Self { tcp, unix: passed.unix.as_ref().map(UnixListener::try_clone).transpose()? })
    }

    /// Answers every connection that waits with 503.
    pub fn turn_away(&self) {
        let begun = Instant::now();
        for listener in &self.tcp {
            // The sockets do not block: an error means that nobody waits any more.
            while let Ok((stream, _)) = listener.accept()
                && begun.elapsed() < TIME
            {
                let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(REQUEST_TIME)));
                // A client that cannot be answered has left.
                let _ = ready.and_then(|()| answer(stream));
            }
        }
        if let Some(listener) = &self.unix {
            while let Ok((stream, _)) = listener.accept()
                && begun.elapsed() < TIME
            {
                let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(REQUEST_TIME)));
                let _ = ready.and_then(|()| answer(stream));
            }
        }
    }
}

fn answer(mut stream: impl Read + Write) -> std::io::Result<()> {
    // What was sent is read first: closing with something unread would take the answer away from the client.
    let mut bytes = vec![0; 1 << 16];
    let mut read = 0;
    while read < bytes.len() {
        match stream.read(&mut bytes[read..]) {
            Ok(0) | Err(_) => break,
            Ok(n) => read += n,
        }
    }
    let error = ApiError::unavailable("the server cannot start: see its log", 60);
    let body = format!("{}\n", error.object());
    write!(
        stream,
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 60\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}
