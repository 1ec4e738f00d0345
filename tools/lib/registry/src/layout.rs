//! Where the files around a program are, for a movable folder and for a package alike.

use crate::Settings;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    /// Folder of the prompt cache (`NS_CACHE_DIR`).
    pub prompts: PathBuf,
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
            prompts: path("NS_CACHE_DIR")
                .unwrap_or_else(|| home_folder("XDG_CACHE_HOME", ".cache").join("nextsycl/prompts")),
            programs,
        }
    }
}

/// The folder of the running program, symlinks resolved.
pub fn program_folder() -> PathBuf {
    std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_owned)).unwrap_or_default()
}

/// The version of the running program: the content of `../share/nextsycl/version` beside it, which whoever builds the folder
/// writes; `dev` where there is none.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| version_beside(&program_folder()))
}

fn version_beside(programs: &Path) -> String {
    let file = programs.parent().unwrap_or(Path::new("/")).join("share/nextsycl/version");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let text = text.strip_suffix('\n').unwrap_or(&text);
    // yy.mmdd.NNN; anything else is no version of ours.
    let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').collect();
    match parts[..] {
        [year, day, number] if digits(year, 2) && digits(day, 4) && digits(number, 3) => text.to_owned(),
        _ => "dev".to_owned(),
    }
}

/// A folder of the user: the variable's value when absolute, else `under` the home folder.
pub(crate) fn home_folder(variable: &str, under: &str) -> PathBuf {
    match std::env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from).join(under),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_beside_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        assert_eq!(version_beside(&bin), "dev");
        std::fs::create_dir_all(dir.path().join("share/nextsycl")).unwrap();
        let file = dir.path().join("share/nextsycl/version");
        for (content, version) in [
            ("26.0817.003\n", "26.0817.003"),
            ("26.0817.012", "26.0817.012"),
            ("", "dev"),
            ("26.817.3\n", "dev"),
            ("26.0817.003\nmore\n", "dev"),
            ("26.0817.00x\n", "dev"),
            ("26.0817.003.1\n", "dev"),
            ("\x1b[1m\n", "dev"),
        ] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(version_beside(&bin), version, "{content:?}");
        }
        std::fs::write(&file, [0xff, 0xfe]).unwrap();
        assert_eq!(version_beside(&bin), "dev");
    }
}
