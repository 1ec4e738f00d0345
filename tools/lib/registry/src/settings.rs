//! The one table of settings, and where their values come from.
//!
//! Order of precedence: the environment, the file `NS_CONFIG` names, `nextsycl.conf` one level above the program's
//! folder, `/etc/nextsycl/nextsycl.conf`, `~/.config/nextsycl.conf`. A file has lines `NAME=value` (an optional
//! `export`, optional quotes) and `#` comments; the first occurrence of a name counts; an empty value is none.

use crate::{Error, Result, layout};
use std::path::{Path, PathBuf};

/// A setting that exists.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name, also in the environment.
    pub name: &'static str,
    /// The value without one, in words.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

const fn setting(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, default, help }
}

/// All settings. Code that reads a name that is not here fails the tests.
pub const SETTINGS: &[Setting] = &[
    setting("NS_CONFIG", "none", "a settings file read before the others; environment only"),
    setting("NS_BUNDLED", "../share/nextsycl/models beside the program", "folder of read-only models that came along"),
    setting("NS_REGISTRY", "~/.config/nextsycl/models.json", "the registry of models"),
    setting("NS_SOCKET_DIR", "$XDG_RUNTIME_DIR/nextsycl", "folder of control sockets"),
    setting("NS_ONEAPI", "../lib/nextsycl/oneapi beside the program", "prefix of the SYCL runtime; environment only"),
    setting("NS_LIB", "../lib/nextsycl beside the program", "folder of the runtime libraries; environment only"),
    setting(
        "NS_KERNELS",
        "../lib/nextsycl/kernels beside the program",
        "folder of the compiled kernels; environment only",
    ),
    setting("NS_HOST", "127.0.0.1", "address the language-model server listens on"),
    setting("NS_PORT", "8085", "its port"),
    setting("NS_CORS", "none", "browser origins allowed besides loopback ones: a comma list, * for all"),
    setting("NS_MODEL", "the bundled model", "model to run when none is named"),
    setting("NS_NAME", "the model's id", "name the server answers to"),
    setting("NS_DEVICE", "gpu", "device to run on: gpu, gpu:N or cpu, or a list of them"),
    setting("NS_GPUS", "all", "cards to run on, where NS_DEVICE names no device: numbers in order, or all"),
    setting("NS_CTX", "8192", "tokens a session holds, or a comma list with one number a session"),
    setting("NS_PARALLEL", "2", "requests decoded together, 1 to 8"),
    setting("NS_MAX_TOKENS", "to the context's end", "answer length of requests that name none"),
    setting("NS_KEEP_REQUESTS", "100", "ended requests kept for ps and inspect"),
    setting("NS_KEEP_TEXT", "1", "0 keeps no text of requests and answers in the records"),
    setting("NS_IDLE_EXIT", "0", "seconds without a request after which the server ends, 0 never"),
    setting("NS_WAIT_DEVICE", "0", "seconds the server waits for a device that is not there yet"),
    setting("NS_PROMPT_CACHE_MIB", "4096", "host memory for states of prompts that were read, 0 for no prompt cache"),
    setting("NS_CACHE_DIR", "~/.cache/nextsycl/prompts", "folder for those that memory does not hold and after a stop"),
    setting("NS_CACHE_DISK_GIB", "32", "most of that folder, 0 for none"),
    setting("NS_CACHE_TTL_HOURS", "24", "hours after which an unused one is removed from that folder"),
    setting("NS_NO_MTP", "unset", "1 decodes without the model's draft block"),
    setting("NS_MKL", "1", "0 computes prompt products without oneMKL; environment only"),
    setting("NS_DNN", "1", "0 computes prompt products without oneDNN; environment only"),
    setting("NS_SILO", "1", "0 computes without the kernels tuned for a card's matrix units; environment only"),
    setting("NS_NATIVE", "1", "0 builds kernels from SPIR-V instead of native code; environment only"),
    setting("NS_MODULE_CACHE", "~/.cache/nextsycl/modules", "folder of built kernels, off for none; environment only"),
    setting("NS_VRAM_MARGIN_MIB", "1024", "memory of a card that is left free, in MiB; environment only"),
    setting("NS_GUARD", "on cards", "check of big allocations: off, always; environment only"),
    setting("NS_GUARD_INJECT", "0", "for tests: so many checks fail; environment only"),
    setting(
        "NS_PROFILE",
        "0",
        "1 tells the time of each section of a model's passes, gpu of each kernel; environment only",
    ),
    setting(
        "NS_LOG",
        "info for the server, else warn",
        "what the programs log: error, warn, info, debug, trace, or module=level lists",
    ),
];

/// Where a value was found.
#[derive(Debug, Clone)]
struct File {
    path: PathBuf,
    values: Vec<(String, String)>,
}

/// The settings of this run.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    environment: Vec<(String, String)>,
    files: Vec<File>,
}

impl Settings {
    /// Reads the environment and the settings files.
    pub fn load() -> Result<Self> {
        let environment: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .filter(|(k, v)| k.starts_with("NS_") && !v.is_empty())
            .collect();
        let mut paths = Vec::new();
        if let Some((_, named)) = environment.iter().find(|(k, _)| k == "NS_CONFIG") {
            if !Path::new(named).exists() {
                return Err(Error::SettingsFile(named.into()));
            }
            paths.push(PathBuf::from(named));
        }
        paths.extend(layout::program_folder().parent().map(|p| p.join("nextsycl.conf")));
        paths.push("/etc/nextsycl/nextsycl.conf".into());
        paths.push(layout::home_folder("XDG_CONFIG_HOME", ".config").join("nextsycl.conf"));
        Self::from_sources(environment, &paths)
    }

    /// The settings of an environment and of files that may not exist, the first one first.
    pub fn from_sources(environment: Vec<(String, String)>, paths: &[PathBuf]) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            if let Some(bytes) = ns_files::read_optional(path)? {
                let values = parse(&String::from_utf8_lossy(&bytes))
                    .map_err(|line| Error::SettingsLine { path: path.clone(), line })?;
                files.push(File { path: path.clone(), values });
            }
        }
        Ok(Self { environment, files })
    }

    fn find(&self, name: &str) -> Option<(&str, String)> {
        if let Some((_, v)) = self.environment.iter().find(|(k, _)| k == name) {
            return Some((v, "the environment".to_owned()));
        }
        self.files.iter().find_map(|file| {
            let (_, v) = file.values.iter().find(|(k, _)| k == name)?;
            (!v.is_empty()).then(|| (v.as_str(), file.path.display().to_string()))
        })
    }

    /// A setting's value.
    pub fn get(&self, name: &'static str) -> Option<&str> {
        debug_assert!(SETTINGS.iter().any(|s| s.name == name), "{name} is not in the table of settings");
        self.find(name).map(|(value, _)| value)
    }

    /// The value of an engine's option, which the engine declares itself.
    pub fn engine_option(&self, name: &str) -> Option<&str> {
        self.find(name).map(|(value, _)| value)
    }

    /// A whole number within bounds.
    pub fn number(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<u64>,
        expected: &'static str,
    ) -> Result<Option<u64>> {
        let Some((value, origin)) = self.find(name) else { return Ok(None) };
        match value.parse::<u64>() {
            Ok(n) if range.contains(&n) => Ok(Some(n)),
            _ => Err(Error::Value { name, value: value.to_owned(), origin, expected }),
        }
    }

    /// A number within bounds, with or without decimals.
    pub fn decimal(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<f64>,
        expected: &'static str,
    ) -> Result<Option<f64>> {
        let Some((value, origin)) = self.find(name) else { return Ok(None) };
        match value.parse::<f64>() {
            Ok(n) if range.contains(&n) => Ok(Some(n)),
            _ => Err(Error::Value { name, value: value.to_owned(), origin, expected }),
        }
    }

    /// A switch: 1 or 0.
    pub fn switch(&self, name: &'static str) -> Result<Option<bool>> {
        Ok(self.number(name, 0..=1, "0 or 1")?.map(|n| n == 1))
    }
}

/// The `NAME=value` lines of a file; `Err` is the number of the first line that is none.
fn parse(text: &str) -> std::result::Result<Vec<(String, String)>, usize> {
    let mut values: Vec<(String, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let (name, value) = line.split_once('=').ok_or(index + 1)?;
        let name = name.trim_end();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(index + 1);
        }
        let value = value.trim();
        let bare =
            ['"', '\''].iter().find_map(|&q| value.strip_prefix(q).and_then(|v| v.strip_suffix(q))).unwrap_or(value);
        if !values.iter().any(|(k, _)| k == name) {
            values.push((name.to_owned(), bare.to_owned()));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_all_their_forms() {
        let text = "# comment\n\nNS_PORT=1\nexport NS_HOST = \"::1\"\nNS_PORT=2\nNS_NAME='a b'\r\nNS_CTX=\n";
        let expected = [("NS_PORT", "1"), ("NS_HOST", "::1"), ("NS_NAME", "a b"), ("NS_CTX", "")];
        assert_eq!(parse(text).unwrap(), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(parse("NS_A=1\nnonsense\n"), Err(2));
        assert_eq!(parse("=1"), Err(1));
        assert_eq!(parse("A B=1"), Err(1));
    }

    #[test]
    fn environment_then_files_in_order_and_empty_is_unset() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("a.conf"), dir.path().join("b.conf"));
        std::fs::write(&first, "NS_PORT=2\nNS_HOST=\nNS_CTX=7\n").unwrap();
        std::fs::write(&second, "NS_PORT=3\nNS_HOST=h\nNS_PARALLEL=nine\n").unwrap();
        let env = vec![("NS_PORT".to_owned(), "1".to_owned())];
        let settings = Settings::from_sources(env, &[first, dir.path().join("none"), second.clone()]).unwrap();
        assert_eq!(settings.get("NS_PORT"), Some("1"));
        assert_eq!(settings.get("NS_CTX"), Some("7"));
        assert_eq!(settings.get("NS_HOST"), Some("h"));
        assert_eq!(settings.get("NS_MODEL"), None);
        let error = settings.number("NS_PARALLEL", 1..=8, "a number from 1 to 8").unwrap_err().to_string();
        assert_eq!(error, format!("NS_PARALLEL is `nine` in {}; it takes a number from 1 to 8", second.display()));
    }

    #[test]
    fn a_bad_file_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conf");
        std::fs::write(&path, "NS_PORT=2\nhello\n").unwrap();
        let error = Settings::from_sources(Vec::new(), std::slice::from_ref(&path)).unwrap_err().to_string();
        assert_eq!(error, format!("{}, line 2: expected NAME=value, a comment or an empty line", path.display()));
    }

    #[test]
    fn names_are_unique() {
        for (i, s) in SETTINGS.iter().enumerate() {
            assert!(SETTINGS[..i].iter().all(|t| t.name != s.name), "{} twice", s.name);
        }
    }
}
