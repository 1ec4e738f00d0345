//! Where the libraries and kernels are: from the environment, else relative to the program.

use std::path::{Path, PathBuf};

/// Folders of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Locations {
    /// `NS_ONEAPI`: the oneAPI runtime, with `lib/` inside. Default `../lib/nextsycl/oneapi`.
    pub oneapi: PathBuf,
    /// `NS_KERNELS`: the compiled kernels, one folder a kind (`llm/`). Default `../lib/nextsycl/kernels`.
    pub kernels: PathBuf,
    /// `NS_LIB`: `libns_sycl.so` and its side libraries. Default `../lib/nextsycl`.
    pub lib: PathBuf,
}

impl Locations {
    /// Reads the environment; what it does not say is relative to the running program.
    #[must_use]
    pub fn discover() -> Self {
        let program = std::env::current_exe()
            .and_then(std::fs::canonicalize)
            .ok()
            .and_then(|p| p.parent().map(Path::to_path_buf))
            .unwrap_or_else(|| PathBuf::from("."));
        Self::from_values(&program, |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from))
    }

    /// The same, from a program folder and a lookup of settings.
    fn from_values(program: &Path, value: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let lib = value("NS_LIB").unwrap_or_else(|| program.parent().unwrap_or(program).join("lib").join("nextsycl"));
        Self {
            oneapi: value("NS_ONEAPI").unwrap_or_else(|| lib.join("oneapi")),
            kernels: value("NS_KERNELS").unwrap_or_else(|| lib.join("kernels")),
            lib,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_beside_the_program() {
        let l = Locations::from_values(Path::new("/x/dist/bin"), |_| None);
        assert_eq!(l.lib, Path::new("/x/dist/lib/nextsycl"));
        assert_eq!(l.oneapi, Path::new("/x/dist/lib/nextsycl/oneapi"));
        assert_eq!(l.kernels, Path::new("/x/dist/lib/nextsycl/kernels"));
    }

    #[test]
    fn settings_win() {
        let l = Locations::from_values(Path::new("/x/bin"), |n| (n == "NS_LIB").then(|| PathBuf::from("/libs")));
        assert_eq!(l.lib, Path::new("/libs"));
        assert_eq!(l.oneapi, Path::new("/libs/oneapi"));
        let l = Locations::from_values(Path::new("/x/bin"), |n| (n == "NS_KERNELS").then(|| PathBuf::from("/k")));
        assert_eq!(l.kernels, Path::new("/k"));
        assert_eq!(l.lib, Path::new("/x/lib/nextsycl"));
    }
}
