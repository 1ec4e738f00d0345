//! Locks between processes. They end with the process that holds them, however it ends.

use crate::{Error, Result};
use fs4::{FileExt, TryLockError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// An exclusive lock on a lock file, held until dropped. The file itself stays: removing it would let two processes
/// hold locks on two files of one name.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock.
    pub fn exclusive(path: &Path) -> Result<Self> {
        let file = open(path)?;
        FileExt::lock(&file).map_err(|e| Error::new("lock", path, e))?;
        Ok(Self { _file: file })
    }

    /// Takes the lock, or tells with `None` that another process has it.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match FileExt::try_lock(&file) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(Error::new("lock", path, e)),
        }
    }
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| Error::new("open the lock", path, e))
}

/// Reads, changes and replaces `path` under the lock `PATH.lock`, so that two writers cannot lose a change.
/// `change` gets the content (`None` when there is no file) and returns the new one, or `None` to leave it.
pub fn update<E: From<Error>>(
    path: &Path,
    change: impl FnOnce(Option<Vec<u8>>) -> std::result::Result<Option<Vec<u8>>, E>,
) -> std::result::Result<(), E> {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(dir) = target.parent().filter(|d| !d.as_os_str().is_empty()) {
        crate::create_dir(dir, false)?;
    }
    let mut lock = target.clone().into_os_string();
    lock.push(".lock");
    let _lock = Lock::exclusive(&PathBuf::from(lock))?;
    if let Some(new) = change(crate::read_optional(&target)?)? {
        crate::write(&target, &new)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let held = Lock::try_exclusive(&path).unwrap().unwrap();
        assert!(Lock::try_exclusive(&path).unwrap().is_none());
        drop(held);
        assert!(Lock::try_exclusive(&path).unwrap().is_some());
    }

    /// E09: two writers at once lose nothing, and a reader never sees half a file.
    #[test]
    fn concurrent_updates_all_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/count");
        let add = |n: usize| {
            for _ in 0..n {
                update::<Error>(&path, |old| {
                    let old = old.map_or(0, |b| String::from_utf8(b).unwrap().trim_end().parse::<u32>().unwrap());
                    Ok(Some(format!("{:>4000}\n", old + 1).replace(' ', "0").into_bytes()))
                })
                .unwrap();
            }
        };
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| add(50));
            }
            for _ in 0..400 {
                if let Some(bytes) = crate::read_optional(&path).unwrap() {
                    assert_eq!(bytes.len(), 4001);
                }
            }
        });
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("0200\n"));
    }

    /// E09: a writer that is killed at any moment leaves the old file or the new one, and the lock free.
    #[test]
    fn killed_writers_leave_whole_files() {
        const CHILD: &str = "FILES_TEST_WRITES_TO";
        let write = |path: &Path| {
            update::<Error>(path, |old| {
                let count = old.map_or(0, |b| b.len() / 1000);
                Ok(Some(vec![b'a' + (count % 26) as u8; 1000 * (count % 7 + 1)]))
            })
        };
        if let Some(path) = std::env::var_os(CHILD) {
            loop {
                write(Path::new(&path)).unwrap();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models.json");
        for round in 0..25 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "lock::tests::killed_writers_leave_whole_files"])
                .env(CHILD, &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..5000 {
                if path.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            std::thread::sleep(std::time::Duration::from_micros(7000 + 1700 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(!bytes.is_empty() && bytes.len().is_multiple_of(1000), "{} bytes", bytes.len());
            assert!(bytes.iter().all(|b| *b == bytes[0]), "two contents are mixed");
        }
        write(&path).unwrap();
    }
}
