//! The files of a model: one (or a numbered split), and perhaps a second with the draft block alone.

use crate::params::{DraftBlock, Params, model_error};
use ns_llm::{Error, ErrorKind, Result};
use ns_weights::ModelFile;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// An opened model's files.
pub struct Files {
    /// The main file.
    pub main: ModelFile,
    /// Its dimensions.
    pub p: Params,
    /// The file of the draft block where the main file has none, and the block's place in it.
    pub beside: Option<(ModelFile, DraftBlock)>,
}

fn open_file(path: &Path) -> Result<ModelFile> {
    ModelFile::open(path).map_err(|e| Error::with_source(ErrorKind::Model, "cannot open the model", e))
}

impl Files {
    /// Opens a model; `mtp` names the file of its draft block, `draft` tells whether one is wanted at all.
    pub fn open(path: &Path, mtp: Option<&Path>, draft: bool) -> Result<Self> {
        let main = open_file(path)?;
        let p = Params::read(&main)?;
        let beside = match mtp {
            Some(file) => {
                if p.draft.is_some() {
                    return Err(model_error(format!(
                        "the model has a draft block of its own: leave out the one in {}",
                        file.display()
                    )));
                }
                if draft { Some(Self::draft_file(file, &p)?) } else { None }
            }
            None if draft && p.draft.is_none() => {
                candidates(path).iter().find_map(|file| match Self::draft_file(file, &p) {
                    Ok(found) => {
                        tracing::info!(file = %file.display(), "draft block found beside the model");
                        Some(found)
                    }
                    Err(error) => {
                        // a folder may have those of other models too
                        if is_named_after(file, path) {
                            // a command opens its model more than once
                            static TOLD: Once = Once::new();
                            TOLD.call_once(|| tracing::warn!("no drafts: {} is not used: {error}", file.display()));
                        } else {
                            tracing::debug!(file = %file.display(), %error, "not this model's draft block");
                        }
                        None
                    }
                })
            }
            None => None,
        };
        Ok(Self { main, p, beside })
    }

    fn draft_file(path: &Path, p: &Params) -> Result<(ModelFile, DraftBlock)> {
        let file = open_file(path)?;
        let wrong = |e| Error::with_source(ErrorKind::Model, format!("draft block in {}", path.display()), e);
        if file.architecture() != "qwen35" {
            return Err(model_error(format!("{} is of architecture {}", path.display(), file.architecture())));
        }
        let draft = Params::read_draft(&file, p).map_err(wrong)?.draft;
        draft.map(|d| (file, d)).ok_or_else(|| model_error(format!("{} has no draft block", path.display())))
    }

    /// The draft block and the file it is in.
    pub fn draft(&self) -> Option<(&ModelFile, DraftBlock)> {
        match (&self.beside, self.p.draft) {
            (Some((file, block)), _) => Some((file, *block)),
            (None, Some(block)) => Some((&self.main, block)),
            (None, None) => None,
        }
    }
}

/// Whether a file is named like the model with something behind it.
fn is_named_after(file: &Path, model: &Path) -> bool {
    let name = |path: &Path| path.file_stem().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let stem = name(model);
    let stem = stem.split_once("-00001-of-").map_or(stem.as_str(), |(whole, _)| whole);
    name(file).starts_with(stem)
}

/// Files in a model's folder that may hold its draft block, by name.
fn candidates(model: &Path) -> Vec<PathBuf> {
    let folder = match model.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Vec::new(),
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
            name.contains("mtp") && name.ends_with(".gguf") && path.file_name() != model.file_name()
        })
        .collect();
    // the name most like the model's first
    let stem = model.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let shared = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.bytes().zip(stem.bytes()).take_while(|(a, b)| a == b).count()
    };
    found.sort_by(|a, b| shared(b).cmp(&shared(a)).then_with(|| a.cmp(b)));
    found
}
