//! Opening the listening sockets, refusing to take another server's place.

use ns_files::Lock;
use std::io::ErrorKind;
use std::net::ToSocketAddrs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener};

/// Why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something else has the port.
    #[error("port {port} on {host} is in use by another program: choose another port with --port")]
    PortInUse {
        /// The address asked for.
        host: String,
        /// The port asked for.
        port: u16,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {host}, port {port}: {source}")]
    Tcp {
        /// The address asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another server answers on the socket.
    #[error("a server is running already on {}", .0.display())]
    SocketInUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{} exists and is no socket: remove it or choose another with --socket", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be opened.
    #[error("cannot listen on the socket {}: {source}", path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The folder or lock beside the socket failed.
    #[error(transparent)]
    File(#[from] ns_files::Error),
}

/// Listens on a TCP address.
pub async fn listen_tcp(host: &str, port: u16) -> Result<TcpListener, ListenError> {
    let fail = |source: std::io::Error| {
        let host = host.to_owned();
        if source.kind() == ErrorKind::AddrInUse {
            ListenError::PortInUse { host, port }
        } else {
            ListenError::Tcp { host, port, source }
        }
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<_> = (bare, port).to_socket_addrs().map_err(fail)?.collect();
    TcpListener::bind(addresses.as_slice()).await.map_err(fail)
}

/// A TCP listener that was opened by the service manager. Needs a running tokio runtime.
///
/// # Errors
/// It cannot be watched.
pub fn given_tcp(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// A Unix socket this process listens on. When it made the socket file itself, a lock makes it the only one and the file is
/// removed when this is dropped; the file of a socket that it was given belongs to whoever gave it.
#[derive(Debug)]
pub struct UnixListening {
    /// The listener.
    pub listener: UnixListener,
    own: Option<(PathBuf, Lock)>,
}

impl UnixListening {
    /// A socket that was opened by the service manager. Needs a running tokio runtime.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn given(listener: std::os::unix::net::UnixListener) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, own: None })
    }

    /// Where it is in the file system.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }
}

impl Drop for UnixListening {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.own {
            // The next start removes what cannot be removed here.
            let _ = ns_files::remove(path);
        }
    }
}

/// Listens on a Unix socket for its owner alone (mode 0600, in a folder of mode 0700 when it has to be made). A socket
/// file that nobody answers on is replaced.
pub fn listen_unix(path: &Path) -> Result<UnixListening, ListenError> {
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        ns_files::create_dir(dir, true)?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let Some(lock) = Lock::try_exclusive(Path::new(&lock_path))? else {
        return Err(ListenError::SocketInUse(path.to_owned()));
    };
    let fail = |source| ListenError::Unix { path: path.to_owned(), source };
    match StdUnixStream::connect(path) {
        Ok(_) => return Err(ListenError::SocketInUse(path.to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(_) => {
            use std::os::unix::fs::FileTypeExt;
            let is_socket = std::fs::symlink_metadata(path).map_err(fail)?.file_type().is_socket();
            if !is_socket {
                return Err(ListenError::NoSocket(path.to_owned()));
            }
            ns_files::remove(path)?;
        }
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(UnixListening { listener, own: Some((path.to_owned(), lock)) })
}
