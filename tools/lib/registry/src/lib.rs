//! Settings, the model registry and the models a package brings: which file a model's name stands for.

pub mod layout;
pub mod models;
pub mod settings;

pub use layout::Layout;
pub use models::{Entry, Model, Registry};
pub use settings::{Setting, Settings};

use std::path::PathBuf;

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with settings and the registry.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] ns_files::Error),
    /// The registry is not the JSON it should be.
    #[error("the registry {} cannot be used: {reason}", path.display())]
    Registry {
        /// The registry's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A settings file has a line that is no setting.
    #[error("{}, line {line}: expected NAME=value, a comment or an empty line", path.display())]
    SettingsLine {
        /// The settings file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A settings file named by the user does not exist.
    #[error("the settings file {} (NS_CONFIG) does not exist", .0.display())]
    SettingsFile(PathBuf),
    /// A setting's value has the wrong form.
    #[error("{name} is `{value}` in {origin}; it takes {expected}")]
    Value {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// Where the value was found.
        origin: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// No model has this name and no file is called so.
    #[error("there is no model `{wanted}`: {known}")]
    NoModel {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// A file or folder of models that this user may not use (G05: often it is a folder far above that is closed).
    #[error("the model {} cannot be opened: {} {what}", file.display(), blocks.display())]
    Blocked {
        /// The file.
        file: PathBuf,
        /// The folder above it, or the file itself, that is closed.
        blocks: PathBuf,
        /// In which way, and what to do.
        what: String,
    },
    /// The model is registered and disabled.
    #[error("the model `{0}` is disabled: nextsycl models enable {0}")]
    Disabled(String),
    /// The model is registered and its file is gone.
    #[error("the file of the model `{id}` is missing: {}", file.display())]
    FileMissing {
        /// The model.
        id: String,
        /// Its file.
        file: PathBuf,
    },
}

impl Error {
    /// Whether the thing asked for does not exist (as opposed to being broken).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoModel { .. } | Self::FileMissing { .. })
    }
}
