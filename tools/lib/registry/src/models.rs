//! The registry (`models.json`) and the models that came with the program.

use crate::{Error, Layout, Result, Settings, layout};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A registered model. Fields this version does not know are kept in `other`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Entry {
    /// One word; the name clients see.
    pub id: String,
    /// llm, image, video, audio or lora; llm when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The main file, the first one of a split set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Devices: `all` or a list of numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    /// Tokens a session holds, or one number a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctx: Option<String>,
    /// Engine settings.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub env: Map<String, Value>,
    /// False: refused.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Everything else.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn yes() -> bool {
    true
}

/// The registry's content.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Registry {
    /// In display order.
    #[serde(default)]
    pub models: Vec<Entry>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Registry {
    /// The registry's file.
    pub fn path(settings: &Settings) -> PathBuf {
        let default = || layout::home_folder("XDG_CONFIG_HOME", ".config").join("nextsycl/models.json");
        settings.get("NS_REGISTRY").map_or_else(default, PathBuf::from)
    }

    /// Reads it; a file that does not exist is an empty registry.
    pub fn load(path: &Path) -> Result<Self> {
        match ns_files::read_optional(path)? {
            Some(bytes) => Self::parse(path, &bytes),
            None => Ok(Self::default()),
        }
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| Error::Registry { path: path.to_owned(), reason: e.to_string() })
    }

    /// Changes the registry under its lock.
    pub fn update(path: &Path, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        ns_files::update(path, |old| {
            let mut registry = old.map_or(Ok(Self::default()), |bytes| Self::parse(path, &bytes))?;
            change(&mut registry)?;
            let mut text = serde_json::to_string_pretty(&registry)
                .map_err(|e| Error::Registry { path: path.to_owned(), reason: e.to_string() })?;
            text.push('\n');
            Ok(Some(text.into_bytes()))
        })
    }
}

/// A language model to open: where it is and how the registry wants it opened.
#[derive(Debug, Clone)]
pub struct Model {
    /// The name clients see.
    pub id: String,
    /// The (first) file.
    pub file: PathBuf,
    /// The registry's entry, where there is one.
    pub entry: Option<Entry>,
}

impl Model {
    /// The model a name, an id or a path stands for; without one `NS_MODEL`, else the bundled model.
    pub fn find(wanted: Option<&str>, settings: &Settings, layout: &Layout) -> Result<Self> {
        let bundled = bundled(&layout.bundled);
        let Some(wanted) = wanted.or_else(|| settings.get("NS_MODEL")) else {
            let first = bundled.first().map_or(layout.bundled.as_path(), |m| &m.file);
            if let Some(blocked) = blocked(first) {
                return Err(blocked);
            }
            return bundled.into_iter().next().ok_or_else(|| Error::NoModel {
                wanted: "(the bundled one)".to_owned(),
                known: format!("no .gguf file is in {}", layout.bundled.display()),
            });
        };
        let path = Path::new(wanted);
        if let Some(blocked) = blocked(path) {
            return Err(blocked);
        }
        if path.is_file() {
            return Ok(Self { id: id_of(path), file: path.to_owned(), entry: None });
        }
        let registry = Registry::load(&Registry::path(settings))?;
        let llm = |e: &&Entry| e.kind.as_deref().is_none_or(|k| k == "llm");
        if let Some(entry) = registry.models.iter().filter(llm).find(|e| e.id == wanted) {
            if !entry.enabled {
                return Err(Error::Disabled(entry.id.clone()));
            }
            let file = entry.file.clone().unwrap_or_default();
            if let Some(blocked) = blocked(&file) {
                return Err(blocked);
            }
            if !file.is_file() {
                return Err(Error::FileMissing { id: entry.id.clone(), file });
            }
            return Ok(Self { id: entry.id.clone(), file, entry: Some(entry.clone()) });
        }
        if let Some(model) = bundled.iter().find(|m| m.id.eq_ignore_ascii_case(wanted)) {
            return Ok(model.clone());
        }
        let mut known: Vec<String> = registry.models.iter().filter(llm).map(|e| e.id.clone()).collect();
        known.extend(bundled.into_iter().map(|m| m.id));
        let known = if path.exists() {
            "it is a folder or a device, not a file".to_owned()
        } else if wanted.contains('/') || wanted.ends_with(".gguf") {
            "the file does not exist".to_owned()
        } else if known.is_empty() {
            "none is registered and none came with the program".to_owned()
        } else {
            format!("there are {}", known.join(", "))
        };
        Err(Error::NoModel { wanted: wanted.to_owned(), known })
    }
}

/// The id of a model that is only a file: its name in lower case, without the extension and a split's number.
pub fn id_of(path: &Path) -> String {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let bytes = stem.as_bytes();
    let digits = |range: &[u8]| range.iter().all(u8::is_ascii_digit);
    // STEM-00001-of-00003
    let split = bytes.len() > 15
        && bytes[bytes.len() - 15] == b'-'
        && digits(&bytes[bytes.len() - 14..bytes.len() - 9])
        && &bytes[bytes.len() - 9..bytes.len() - 5] == b"-of-"
        && digits(&bytes[bytes.len() - 5..]);
    let stem = if split { &stem[..stem.len() - 15] } else { &stem };
    let id: String = stem.chars().map(|c| if c.is_whitespace() || c == '"' || c == '\'' { '-' } else { c }).collect();
    id.to_lowercase()
}

/// Why a file that exists (as far as can be seen) may not be read: the topmost folder on the way to it that this user may not
/// enter, or the file or folder itself that may not be read.
fn blocked(path: &Path) -> Option<Error> {
    use std::io::ErrorKind::PermissionDenied;
    let denied = |result: std::io::Result<()>| result.is_err_and(|e| e.kind() == PermissionDenied);
    let blocks = |folder: &Path, what: &str, right: &str, flag: &str| Error::Blocked {
        file: path.to_owned(),
        blocks: folder.to_owned(),
        what: format!(
            "{what} by {}. {right} (chmod {flag} {}), or keep the models in another folder",
            user(),
            folder.display()
        ),
    };
    let whole = std::path::absolute(path).ok()?;
    let mut steps: Vec<&Path> = whole.ancestors().collect();
    steps.reverse();
    for pair in steps.windows(2) {
        // To see what a name stands for, the folder that holds it must be entered.
        if denied(std::fs::symlink_metadata(pair[1]).map(drop)) {
            return Some(blocks(pair[0], "may not be entered", "Give it the right to pass", "o+x"));
        }
        // A link on the way: what it leads to may be closed.
        if std::fs::symlink_metadata(pair[1]).is_ok_and(|m| m.is_symlink())
            && denied(std::fs::metadata(pair[1]).map(drop))
        {
            let target = std::fs::read_link(pair[1]).ok()?;
            let inner = blocked(&pair[0].join(target))?;
            let Error::Blocked { blocks, what, .. } = inner else { return Some(inner) };
            return Some(Error::Blocked { file: path.to_owned(), blocks, what });
        }
    }
    let metadata = std::fs::metadata(&whole).ok()?;
    if metadata.is_dir() {
        let closed = denied(std::fs::read_dir(&whole).map(drop));
        return closed.then(|| blocks(&whole, "may not be listed", "Give it the right to read", "o+rx"));
    }
    // Opening something else, like a pipe, might wait for somebody.
    let closed = metadata.is_file() && denied(std::fs::File::open(&whole).map(drop));
    closed.then(|| blocks(&whole, "may not be read", "Give it the right to read", "o+r"))
}

/// The user of this process, for people.
fn user() -> String {
    let id = rustix::process::geteuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("the user {id}"), |name| format!("the user {name}"))
}

/// The models in the bundled folder or one level below it, by id.
fn bundled(folder: &Path) -> Vec<Model> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    };
    let mut models: Vec<Model> = list(folder)
        .into_iter()
        .flat_map(|p| if p.is_dir() { list(&p) } else { vec![p] })
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .filter(|p| !p.to_string_lossy().contains("-of-") || p.to_string_lossy().contains("-00001-of-"))
        .map(|file| Model { id: id_of(&file), file, entry: None })
        .collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (tempfile::TempDir, Settings, Layout) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("bundled/smol")).unwrap();
        std::fs::write(dir.path().join("bundled/smol/SmolLM2.Q4_1.gguf"), "").unwrap();
        std::fs::write(dir.path().join("m-00001-of-00002.gguf"), "").unwrap();
        let registry = dir.path().join("models.json");
        let file = dir.path().join("m-00001-of-00002.gguf");
        let text = format!(
            r#"{{"version": 3, "models": [{{"id": "m", "file": {file:?}, "title": "M", "ctx": "512"}},
                {{"id": "off", "file": {file:?}, "enabled": false}}, {{"id": "gone", "file": "/none"}},
                {{"id": "pic", "kind": "image", "file": {file:?}}}]}}"#
        );
        std::fs::write(&registry, text).unwrap();
        let env = vec![
            ("NS_REGISTRY".to_owned(), registry.to_string_lossy().into_owned()),
            ("NS_BUNDLED".to_owned(), dir.path().join("bundled").to_string_lossy().into_owned()),
        ];
        let settings = Settings::from_sources(env, &[]).unwrap();
        let layout = Layout::discover(&settings);
        (dir, settings, layout)
    }

    #[test]
    fn a_name_is_a_file_an_id_or_a_bundled_model() {
        let (dir, settings, layout) = world();
        let find = |name: Option<&str>| Model::find(name, &settings, &layout);
        assert_eq!(find(None).unwrap().id, "smollm2.q4_1");
        assert_eq!(find(Some("SmolLM2.Q4_1")).unwrap().id, "smollm2.q4_1");
        assert_eq!(find(Some("m")).unwrap().entry.unwrap().ctx.as_deref(), Some("512"));
        let path = dir.path().join("m-00001-of-00002.gguf");
        assert_eq!(find(Some(path.to_str().unwrap())).unwrap().id, "m");
        let text = |name| find(Some(name)).unwrap_err().to_string();
        assert_eq!(text("nope"), "there is no model `nope`: there are m, off, gone, smollm2.q4_1");
        assert_eq!(text("pic"), "there is no model `pic`: there are m, off, gone, smollm2.q4_1");
        assert_eq!(text("/"), "there is no model `/`: it is a folder or a device, not a file");
        assert_eq!(text("./x.gguf"), "there is no model `./x.gguf`: the file does not exist");
        assert_eq!(text("off"), "the model `off` is disabled: nextsycl models enable off");
        assert_eq!(text("gone"), "the file of the model `gone` is missing: /none");
        assert!(find(Some("nope")).unwrap_err().is_not_found() && !find(Some("off")).unwrap_err().is_not_found());
    }

    #[test]
    fn a_change_keeps_what_is_not_ours() {
        let (dir, settings, _) = world();
        let path = Registry::path(&settings);
        Registry::update(&path, |r| {
            r.models[0].enabled = false;
            Ok(())
        })
        .unwrap();
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(value["version"], 3);
        assert_eq!(value["models"][0]["title"], "M");
        assert_eq!(value["models"][0]["enabled"], false);
        std::fs::write(&path, "{\"models\": [").unwrap();
        assert!(Registry::update(&path, |_| Ok(())).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"{\"models\": [");
        assert!(Registry::load(&path).unwrap_err().to_string().starts_with("the registry "));
        drop(dir);
    }

    #[test]
    fn short_and_odd_names_have_ids() {
        let id = |s: &str| id_of(Path::new(s));
        assert_eq!(id("/x/A b'c.gguf"), "a-b-c");
        assert_eq!(id("a.gguf"), "a");
        assert_eq!(id("X-00001-of-00001.gguf"), "x");
        assert_eq!(id("é-0001-of-00001.gguf"), "é-0001-of-00001");
    }
}
