//! Listing of ZIP archives whose entries are stored, not compressed. So no entry can be larger than the file.

use crate::error::Fault;
use std::collections::HashMap;
use std::ops::Range;

/// Most entries of an archive, far more than any model's.
const MOST_ENTRIES: u64 = 1 << 20;

fn field<const N: usize>(file: &[u8], at: u64) -> Result<[u8; N], Fault> {
    let bytes = usize::try_from(at).ok().and_then(|at| file.get(at..)?.first_chunk());
    bytes.copied().ok_or_else(|| Fault::invalid("the archive's directory is damaged"))
}

fn u16_at(file: &[u8], at: u64) -> Result<u64, Fault> {
    field(file, at).map(|b| u64::from(u16::from_le_bytes(b)))
}

fn u32_at(file: &[u8], at: u64) -> Result<u64, Fault> {
    field(file, at).map(|b| u64::from(u32::from_le_bytes(b)))
}

fn u64_at(file: &[u8], at: u64) -> Result<u64, Fault> {
    field(file, at).map(u64::from_le_bytes)
}

/// Start of the directory and number of its entries.
fn directory(file: &[u8]) -> Result<(u64, u64), Fault> {
    let cut = || Fault::invalid("the archive has no directory at its end: the file is cut short");
    // The end record is 22 bytes, then a comment of up to 65535.
    let first = file.len().saturating_sub(22 + 65_535);
    let is_end = |at: usize| {
        let length = file.get(at + 20..at + 22).map(|b| usize::from(b[0]) | usize::from(b[1]) << 8);
        file[at..].starts_with(b"PK\x05\x06") && length == Some(file.len() - at - 22)
    };
    let end = (first..=file.len().checked_sub(22).ok_or_else(cut)?).rev().find(|&at| is_end(at)).ok_or_else(cut)?;
    let end = end as u64;
    let (count, start) = (u16_at(file, end + 10)?, u32_at(file, end + 16)?);
    if count != 0xFFFF && start != 0xFFFF_FFFF {
        return Ok((start, count));
    }
    let locator = end.checked_sub(20).ok_or_else(cut)?;
    if &field::<4>(file, locator)? != b"PK\x06\x07" {
        return Ok((start, count));
    }
    let end = u64_at(file, locator + 8)?;
    if end > file.len() as u64 || &field::<4>(file, end)? != b"PK\x06\x06" {
        return Err(Fault::invalid("the archive's directory is damaged"));
    }
    Ok((u64_at(file, end + 48)?, u64_at(file, end + 32)?))
}

/// The 64-bit values in place of those that do not fit, in the order of the format: size, stored size, offset.
fn wide(extra: &[u8], fields: [&mut u64; 3]) -> Result<(), Fault> {
    let mut at = 0;
    while at + 4 <= extra.len() as u64 {
        let (id, len) = (u16_at(extra, at)?, u16_at(extra, at + 2)?);
        at += 4;
        if id == 1 {
            let mut value = at;
            for field in fields {
                if *field == 0xFFFF_FFFF {
                    *field = u64_at(extra, value)?;
                    value += 8;
                }
            }
            return Ok(());
        }
        at += len;
    }
    Ok(())
}

/// Name and place of every entry.
pub(super) fn entries(file: &[u8]) -> Result<HashMap<String, Range<usize>>, Fault> {
    let (mut at, count) = directory(file)?;
    let data_end = at;
    if count > MOST_ENTRIES || count.saturating_mul(46) > (file.len() as u64).saturating_sub(at) {
        return Err(Fault::invalid(format!("the archive cannot hold {count} entries")));
    }
    let (mut entries, mut spans) = (HashMap::new(), Vec::new());
    for index in 0..count {
        if &field::<4>(file, at)? != b"PK\x01\x02" {
            return Err(Fault::invalid(format!("entry {index} of the archive's directory is damaged")));
        }
        let (flags, method) = (u16_at(file, at + 8)?, u16_at(file, at + 10)?);
        let (mut stored, mut size, mut offset) =
            (u32_at(file, at + 20)?, u32_at(file, at + 24)?, u32_at(file, at + 42)?);
        let [name_len, extra_len, comment_len] =
            [u16_at(file, at + 28)?, u16_at(file, at + 30)?, u16_at(file, at + 32)?].map(|n| n as usize);
        let names = at as usize + 46;
        let damaged = || Fault::invalid(format!("entry {index} of the archive's directory is damaged"));
        let name = file.get(names..names + name_len).and_then(|b| std::str::from_utf8(b).ok()).ok_or_else(damaged)?;
        let extra = file.get(names + name_len..names + name_len + extra_len).ok_or_else(damaged)?;
        wide(extra, [&mut size, &mut stored, &mut offset])?;
        let what = format!("archive entry `{}`", super::shown(name));
        if flags & 1 != 0 {
            return Err(Fault::unsupported(format!("{what} is encrypted")));
        }
        if method != 0 || stored != size {
            return Err(Fault::unsupported(format!("{what} is compressed, which PyTorch never does")));
        }
        if offset > data_end || &field::<4>(file, offset)? != b"PK\x03\x04" {
            return Err(Fault::invalid(format!("{what} does not lie where the directory says")));
        }
        let start = offset + 30 + u16_at(file, offset + 26)? + u16_at(file, offset + 28)?;
        let end = start.checked_add(size).filter(|&end| end <= data_end);
        let end = end.ok_or_else(|| Fault::invalid(format!("{what} does not end before the archive's directory")))?;
        spans.push((offset, end, name));
        if entries.insert(name.to_owned(), start as usize..end as usize).is_some() {
            return Err(Fault::invalid(format!("{what} appears twice")));
        }
        at = (names + name_len + extra_len + comment_len) as u64;
    }
    spans.sort_unstable();
    match spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        None => Ok(entries),
        Some(pair) => {
            let (a, b) = (super::shown(pair[0].2), super::shown(pair[1].2));
            Err(Fault::invalid(format!("archive entries `{a}` and `{b}` overlap")))
        }
    }
}
