//! Writing a whole file at once.

use crate::{Error, Result};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file being written beside its final name. Dropping it without [`AtomicFile::commit`] leaves nothing behind.
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    out: BufWriter<tempfile::NamedTempFile>,
}

impl AtomicFile {
    /// Starts a new content for `path`. A symlink is followed: the file it names is the one replaced. The mode of an
    /// existing file is kept (and its owner, where permitted); a new one gets 0644 less the process's mask.
    pub fn create(path: &Path) -> Result<Self> {
        Self::begin(path, ".nextsycl-", 0o666)
    }

    /// The same for a file that its owner alone may read; `prefix` is what its temporary name begins with.
    pub fn create_private(path: &Path, prefix: &str) -> Result<Self> {
        Self::begin(path, prefix, 0o600)
    }

    fn begin(path: &Path, prefix: &str, fresh: u32) -> Result<Self> {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let dir = match target.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let old = std::fs::metadata(&target).ok();
        if old.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(Error::new("write", path, std::io::Error::from(std::io::ErrorKind::IsADirectory)));
        }
        let mode = old.as_ref().map_or(fresh, |m| m.mode() & 0o7777);
        let temp = tempfile::Builder::new()
            .prefix(prefix)
            .permissions(std::fs::Permissions::from_mode(mode))
            .tempfile_in(dir)
            .map_err(|e| Error::new("create a file beside", path, e))?;
        if let Some(old) = old {
            temp.as_file()
                .set_permissions(std::fs::Permissions::from_mode(mode))
                .map_err(|e| Error::new("set the mode of", path, e))?;
            // Only root can give a file away; anyone else keeps their own file.
            let _ = std::os::unix::fs::fchown(temp.as_file(), Some(old.uid()), Some(old.gid()));
        }
        Ok(Self { target, out: BufWriter::with_capacity(1 << 18, temp) })
    }

    /// Puts the content on disk and under its final name.
    pub fn commit(self) -> Result<()> {
        let Self { target, out } = self;
        let temp = out.into_inner().map_err(|e| Error::new("write", &target, e.into_error()))?;
        temp.as_file().sync_all().map_err(|e| Error::new("write", &target, e))?;
        temp.persist(&target).map_err(|e| Error::new("replace", &target, e.error))?;
        let dir = target.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = std::fs::File::open(dir).and_then(|d| d.sync_all());
        synced.map_err(|e| Error::new("sync the directory of", &target, e))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Replaces `path`'s content by `bytes`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes).map_err(|e| Error::new("write", path, e))?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_keeps_the_mode_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, b"one").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let mut dropped = AtomicFile::create(&path).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(dir.path()), ["a.json"]);
    }

    #[test]
    fn follows_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        let real = dir.path().join("state/models.json");
        write(&real, b"one").unwrap();
        let link = dir.path().join("models.json");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, b"two").unwrap();
        assert_eq!(std::fs::read(&real).unwrap(), b"two");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn names_the_file_in_errors() {
        let error = write(Path::new("/nonexistent-directory/x"), b"").unwrap_err();
        assert!(error.to_string().starts_with("cannot create a file beside /nonexistent-directory/x: "), "{error}");
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path(), b"").is_err());
    }
}
