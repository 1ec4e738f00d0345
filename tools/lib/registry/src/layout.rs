//! Where the files around a program are, for a movable folder and for a package alike.

use crate::Settings;
use std::path::{Path, PathBuf};

/// Folders relative to the running program, each with its setting that overrides it.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The program's own folder.
    pub programs: PathBuf,
    /// Read-only models that came with the program (`NS_BUNDLED`).
    pub bundled: PathBuf,
    /// Folder of control sockets, private to the user (`NS_SOCKET_DIR`).
    pub sockets: PathBuf,
    /// Folder of logs and process ids.
    pub state: PathBuf,
}

impl Layout {
    /// Finds the folders.
    pub fn discover(settings: &Settings) -> Self {
        let programs = program_folder();
        let path = |name| settings.get(name).map(PathBuf::from);
        let beside = programs.parent().unwrap_or(Path::new("/"));
        Self {
            bundled: path("NS_BUNDLED").unwrap_or_else(|| beside.join("share/nextsycl/models")),
            sockets: path("NS_SOCKET_DIR").unwrap_or_else(|| {
                let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_absolute());
                runtime.map_or_else(std::env::temp_dir, PathBuf::from).join("nextsycl")
            }),
            state: home_folder("XDG_STATE_HOME", ".local/state").join("nextsycl"),
            programs,
        }
    }
}

/// The folder of the running program, symlinks resolved.
pub fn program_folder() -> PathBuf {
    std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned)).unwrap_or_default()
}

/// A folder of the user: the variable's value when absolute, else `under` the home folder.
pub(crate) fn home_folder(variable: &str, under: &str) -> PathBuf {
    match std::env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from).join(under),
    }
}
