//! A position in a mapped file; every step is checked against the file's end.

use crate::error::Fault;
use std::ops::Range;

pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a [u8], at: usize) -> Self {
        Self { file, at }
    }

    pub fn file(&self) -> &'a [u8] {
        self.file
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn remaining(&self) -> u64 {
        self.file.len().saturating_sub(self.at) as u64
    }

    /// Fails unless `len` more bytes are there.
    pub fn expect(&self, len: u64, what: &str) -> Result<(), Fault> {
        match len.checked_sub(self.remaining()) {
            Some(missing) if missing > 0 => Err(Fault::truncated(what, missing)),
            _ => Ok(()),
        }
    }

    pub fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], Fault> {
        self.expect(len as u64, what)?;
        let bytes = self.at.checked_add(len).and_then(|end| self.file.get(self.at..end));
        let bytes = bytes.ok_or_else(|| Fault::truncated(what, len as u64))?;
        self.at += len;
        Ok(bytes)
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        let bytes = self.take(4, what)?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b)))
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        let bytes = self.take(8, what)?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// A string's place: a length of 64 bits, then that many bytes.
    pub fn string(&mut self, what: &str) -> Result<Range<usize>, Fault> {
        let len = self.u64(what)?;
        self.expect(len, what)?;
        let start = self.at;
        self.at += len as usize; // fits: the file holds that many bytes
        Ok(start..self.at)
    }
}
