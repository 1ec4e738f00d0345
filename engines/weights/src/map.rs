//! Read-only maps of whole files.

use crate::error::{Error, ErrorKind, Result};
use memmap2::{Advice, Mmap};
use std::fs::File;
use std::path::Path;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Map {
    map: Mmap,
}

impl Map {
    /// Maps a regular file; anything else (a pipe would block) is refused before it is opened.
    pub fn open(path: &Path) -> Result<Self> {
        let facts = std::fs::metadata(path).map_err(|e| Error::io(path, "cannot open", e))?;
        if !facts.is_file() {
            return Err(Error::new(ErrorKind::Io, path, "not a regular file"));
        }
        let file = File::open(path).map_err(|e| Error::io(path, "cannot open", e))?;
        // SAFETY: the map is private and read-only. Model files are replaced by rename, never changed in place, so the
        // bytes behind the map stay as they are for as long as it lives.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, "cannot map", e))?;
        Ok(Self { map })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Asks the kernel to read a range ahead. Only a hint: a kernel that refuses it changes nothing.
    pub fn prefetch(&self, start: usize, len: usize) {
        if start.checked_add(len).is_some_and(|end| end <= self.map.len()) && len > 0 {
            let _ = self.map.advise_range(Advice::WillNeed, start, len);
        }
    }

    /// Tells the kernel that the file will be read once from start to end. Only a hint.
    pub fn sequential(&self) {
        if !self.map.is_empty() {
            let _ = self.map.advise(Advice::Sequential);
        }
    }
}
