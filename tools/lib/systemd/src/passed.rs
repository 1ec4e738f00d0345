//! The listening sockets of a socket unit (`LISTEN_FDS`).

use rustix::net::{AddressFamily, SocketType, sockopt};
use std::net::TcpListener;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sockets that were opened for this process by its service manager.
#[derive(Debug, Default)]
pub struct Passed {
    /// TCP listeners, in the order of the socket unit.
    pub tcp: Vec<TcpListener>,
    /// A listening Unix socket.
    pub unix: Option<UnixListener>,
}

/// Sockets that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// The variables of the handover are damaged, or what they name is not open.
    #[error("the sockets passed by the service manager cannot be taken (LISTEN_FDS): {0}")]
    Handover(#[from] std::io::Error),
    /// It is no listening stream socket of a known family.
    #[error("the socket `{name}` passed by the service manager {what}")]
    Unfit {
        /// Its FileDescriptorName.
        name: String,
        /// What is wrong, with what to write into the unit.
        what: &'static str,
    },
}

/// Takes the sockets passed to this very process (`LISTEN_PID` must be its id); a second call gives none. They are set to not
/// block, and programs started later do not get them.
///
/// # Errors
/// A socket is not a listening TCP or Unix stream socket, or there are two Unix sockets.
pub fn passed() -> Result<Passed, PassedError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Passed::default());
    }
    let mut passed = Passed::default();
    for (number, name) in sd_notify::listen_fds_with_names()? {
        // SAFETY: the service manager opened this descriptor for this process (LISTEN_PID was compared, and the descriptor's
        // flags could be set, so it is open); nobody else here owns it, because this code runs once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        passed.take(fd, &name)?;
    }
    Ok(passed)
}

impl Passed {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_none()
    }

    fn take(&mut self, fd: OwnedFd, name: &str) -> Result<(), PassedError> {
        let unfit = |what| PassedError::Unfit { name: name.to_owned(), what };
        let io = |e: rustix::io::Errno| std::io::Error::from(e);
        let address = rustix::net::getsockname(&fd).map_err(|_| unfit("is no socket: use ListenStream="))?;
        if sockopt::socket_type(&fd).map_err(io)? != SocketType::STREAM {
            return Err(unfit("is no stream socket: use ListenStream="));
        }
        if !sockopt::socket_acceptconn(fd.as_fd()).map_err(io)? {
            return Err(unfit("is a connection, not a listener: use Accept=no"));
        }
        match address.address_family() {
            AddressFamily::INET | AddressFamily::INET6 => {
                let listener = TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                self.tcp.push(listener);
            }
            AddressFamily::UNIX if self.unix.is_some() => {
                return Err(unfit("is a second Unix socket: one is served, the control socket"));
            }
            AddressFamily::UNIX => {
                let listener = UnixListener::from(fd);
                listener.set_nonblocking(true)?;
                self.unix = Some(listener);
            }
            _ => return Err(unfit("is neither TCP nor a Unix socket")),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{TcpStream, UdpSocket};

    #[test]
    fn sockets_go_where_they_belong_or_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut passed = Passed::default();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let (v4, v6) = (tcp.local_addr().unwrap(), TcpListener::bind("[::1]:0").ok());
        let families = 1 + usize::from(v6.is_some());
        let mut take = |fd: OwnedFd, name: &str| passed.take(fd, name).map_err(|e| e.to_string());
        let connection = TcpStream::connect(v4).unwrap();
        take(tcp.into(), "http").unwrap();
        if let Some(v6) = v6 {
            take(v6.into(), "http").unwrap();
        }
        let unix = |n: &str| UnixListener::bind(dir.path().join(n)).unwrap();
        take(unix("a").into(), "control").unwrap();
        let start = |name: &str| format!("the socket `{name}` passed by the service manager ");
        assert_eq!(
            take(unix("b").into(), "more"),
            Err(start("more") + "is a second Unix socket: one is served, the control socket")
        );
        assert_eq!(
            take(connection.into(), "one"),
            Err(start("one") + "is a connection, not a listener: use Accept=no")
        );
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(take(udp.into(), "udp"), Err(start("udp") + "is no stream socket: use ListenStream="));
        let file = std::fs::File::create(dir.path().join("c")).unwrap();
        assert_eq!(take(file.into(), "fifo"), Err(start("fifo") + "is no socket: use ListenStream="));
        assert!(passed.tcp.len() == families && passed.unix.is_some() && !passed.is_empty());
    }

    /// No handover, or one to another process, gives nothing; the descriptors of others are not touched.
    #[test]
    fn another_process_gets_nothing() {
        const CHILD: &str = "SYSTEMD_TEST_CHILD";
        if std::env::var_os(CHILD).is_some() {
            assert!(super::passed().unwrap().is_empty());
            return;
        }
        for (pid, count) in [("1", "1"), ("", "1")] {
            let me = std::env::current_exe().unwrap();
            let mut command = std::process::Command::new(me);
            command.args(["--exact", "passed::tests::another_process_gets_nothing"]);
            command.env(CHILD, "1").env("LISTEN_FDS", count).env_remove("LISTEN_PID");
            if !pid.is_empty() {
                command.env("LISTEN_PID", pid);
            }
            let output = command.output().unwrap();
            assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        }
    }
}
