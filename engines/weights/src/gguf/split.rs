//! Models split over numbered files: `STEM-00001-of-00003.gguf`.

use super::header::Header;
use super::value::Value;
use crate::error::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// More parts than any model has; a name that says more is no part number.
const MOST_PARTS: usize = 9999;

/// `STEM-00002-of-00003` as stem, part (from 1) and count.
fn numbered(stem: &str) -> Option<(&str, usize, usize)> {
    let number = |digits: &str| match digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()) {
        true => digits.parse::<usize>().ok(),
        false => None,
    };
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    ((1..=count).contains(&part) && count <= MOST_PARTS).then_some((stem, part, count))
}

/// A file stem without its part number.
pub(super) fn unnumbered(stem: &str) -> &str {
    numbered(stem).map_or(stem, |(stem, ..)| stem)
}

/// The part number a file's name gives, when it is one of several.
fn part_of(path: &Path) -> Option<(&str, usize, usize)> {
    if path.extension()? != "gguf" {
        return None;
    }
    numbered(path.file_stem()?.to_str()?).filter(|&(_, _, count)| count > 1)
}

/// All files of a model, in order, from any of them or from the folder that holds only this model. A file without a
/// part number, or numbered 1 of 1, is a model of its own.
pub fn shard_paths(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        return folder(path);
    }
    let Some((stem, _, count)) = part_of(path) else { return Ok(vec![path.to_owned()]) };
    let shards: Vec<PathBuf> =
        (1..=count).map(|i| path.with_file_name(format!("{stem}-{i:05}-of-{count:05}.gguf"))).collect();
    match shards.iter().position(|s| !s.is_file()) {
        None => Ok(shards),
        Some(missing) => Err(Error::new(
            ErrorKind::Io,
            path,
            format!(
                "part {} of {count} is missing: {} is not there (a split model needs all its parts in one folder)",
                missing + 1,
                shards.get(missing).map(|p| p.display().to_string()).unwrap_or_default()
            ),
        )),
    }
}

fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |e| Error::io(path, "cannot list", e);
    let mut models = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let counts = part_of(&file).is_none_or(|(_, part, _)| part == 1);
        if counts && file.extension().is_some_and(|e| e == "gguf") && file.is_file() {
            models.push(file);
        }
    }
    models.sort();
    match models.as_slice() {
        [one] => shard_paths(one),
        [] => Err(Error::new(ErrorKind::Io, path, "a folder without a GGUF model (or without its first part)")),
        [a, b, ..] => Err(Error::new(
            ErrorKind::Io,
            path,
            format!("a folder with several models, such as {} and {}: name the file", a.display(), b.display()),
        )),
    }
}

/// Bytes of all files of a model.
pub fn total_bytes(path: &Path) -> Result<u64> {
    shard_paths(path)?.iter().try_fold(0_u64, |sum, shard| {
        let facts = std::fs::metadata(shard).map_err(|e| Error::io(shard, "cannot open", e))?;
        Ok(sum.saturating_add(facts.len()))
    })
}

fn number(header: &Header, key: &str) -> Option<u64> {
    match &header.metadata.get(*header.keys.get(key)?)?.1 {
        Value::Unsigned(n) => Some(*n),
        Value::Signed(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

/// The parts must say of themselves what their names say.
pub(super) fn check(paths: &[PathBuf], headers: &[Header]) -> Result<()> {
    let count = paths.len() as u64;
    for (i, (path, header)) in paths.iter().zip(headers).enumerate() {
        let said = number(header, "split.count");
        let part = number(header, "split.no");
        if said.unwrap_or(count.min(1)) != count && !(count == 1 && said == Some(0)) {
            let message = match (said, count) {
                (Some(said), 1) => format!(
                    "this is part {} of a model of {said} parts, but its name does not end in -{:05}-of-{said:05}.gguf",
                    part.map_or(0, |n| n.saturating_add(1)),
                    part.map_or(0, |n| n.saturating_add(1))
                ),
                (Some(said), _) => format!("metadata key `split.count` is {said}, but the name says {count} parts"),
                (None, _) => format!("metadata key `split.count` is missing in part {} of {count}", i + 1),
            };
            return Err(Error::new(ErrorKind::Invalid, path, message));
        }
        if count > 1 && part != Some(i as u64) {
            let found = part.map_or("missing".to_owned(), |n| n.to_string());
            let message = format!("metadata key `split.no` is {found}, but the name says part {} of {count}", i + 1);
            return Err(Error::new(ErrorKind::Invalid, path, message));
        }
    }
    let total: u64 = headers.iter().map(|h| h.tensors.len() as u64).sum();
    match headers.first().and_then(|h| number(h, "split.tensors.count")) {
        Some(said) if count > 1 && said != total => Err(Error::new(
            ErrorKind::Invalid,
            paths.first().map_or(Path::new(""), PathBuf::as_path),
            format!("metadata key `split.tensors.count` is {said}, but the {count} parts hold {total} tensors"),
        )),
        _ => Ok(()),
    }
}
