//! The bytes of a saved session: where the draft block stands, DeltaNet states, cells of the caches, rows that wait for the
//! draft block, and the logits where there are some.

use crate::params::Params;
use crate::stage::Stage;
use crate::work::Sizes;
use ns_llm::Result;
use ns_llm_kernels::attention::CELL_ALIGN;

/// The first cells of one head in one layer: a run of bytes of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCells {
    base: usize,
    block_bytes: usize,
    /// Length of the run.
    pub bytes: usize,
}

impl HeadCells {
    /// Where it starts for a session whose first cell is `start`.
    pub fn at(&self, start: usize) -> usize {
        self.base + start / CELL_ALIGN * self.block_bytes
    }
}

/// The runs that hold the first `position` cells of a session in all layers of a device.
pub fn heads(p: &Params, sizes: &Sizes, position: usize) -> Vec<HeadCells> {
    let block_bytes = sizes.precision.size(CELL_ALIGN * p.head_dim);
    let head = sizes.plan.cells / CELL_ALIGN * block_bytes;
    let bytes = position.div_ceil(CELL_ALIGN) * block_bytes;
    (0..sizes.full_layers * 2 * p.n_kv).map(|i| HeadCells { base: i * head, block_bytes, bytes }).collect()
}

/// What a checkpoint says beside the caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Cells of the draft block's cache.
    pub drafted: usize,
    /// Tokens whose rows wait for it.
    pub behind: Vec<u32>,
}

impl Head {
    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.drafted as u32, self.behind.len() as u32];
        words.iter().chain(&self.behind).flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Takes it from the front of a state; `None` when it makes no sense for a session of `position` tokens.
    pub fn split(state: &[u8], position: usize, drafts: bool) -> Option<(Self, &[u8])> {
        let word = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?));
        let (drafted, rest) = state.split_at_checked(4)?;
        let (count, rest) = rest.split_at_checked(4)?;
        let (drafted, count) = (word(drafted)? as usize, word(count)? as usize);
        let right = if drafts { drafted.checked_add(count)? == position } else { drafted == 0 && count == 0 };
        if !right || count > crate::work::MAX_ROWS {
            return None;
        }
        let (tokens, rest) = rest.split_at_checked(4 * count)?;
        let behind = tokens.chunks_exact(4).map(word).collect::<Option<Vec<u32>>>()?;
        Some((Self { drafted, behind }, rest))
    }
}

/// Blocks of a device's memory that a session's state is made of, at `position`.
pub fn blocks<'a>(
    p: &Params,
    stage: &'a Stage,
    (slot, start, position, behind): (usize, usize, usize, usize),
) -> Vec<(&'a ns_sycl::Buffer, usize, usize)> {
    if position == 0 {
        return Vec::new();
    }
    let state = stage.sizes.state(p);
    let mut all = Vec::new();
    if state > 0 {
        all.push((&stage.states, slot * state, state));
    }
    all.extend(heads(p, &stage.sizes, position).iter().map(|h| (&stage.kv, h.at(start), h.bytes)));
    if behind > 0 && stage.share.last {
        let (at, bytes) = stage.backlog_rows(p, slot, behind);
        all.push((&stage.work.backlog, at, bytes));
    }
    all
}

/// Logits from the bytes behind the blocks; `None` when they are neither none nor a row.
pub fn logits(rest: &[u8], n_vocab: usize) -> Option<Option<Vec<f32>>> {
    if rest.is_empty() {
        return Some(None);
    }
    if rest.len() != n_vocab * 4 {
        return None;
    }
    Some(Some(rest.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
}

/// Copies a session's blocks on a device to another session's.
pub fn copy_blocks(
    p: &Params,
    stage: &Stage,
    from: (usize, usize),
    to: (usize, usize),
    at: (usize, usize),
) -> Result<()> {
    let source = blocks(p, stage, (from.0, from.1, at.0, at.1));
    let target = blocks(p, stage, (to.0, to.1, at.0, at.1));
    for ((source, source_at, bytes), (target, target_at, _)) in source.into_iter().zip(target) {
        stage
            .queue
            .copy(target, target_at, source, source_at, bytes)
            .map_err(|e| crate::device_error("cannot copy a session", e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_read_back_and_checked() {
        let head = Head { drafted: 20, behind: vec![7, 9] };
        let mut bytes = head.to_bytes();
        bytes.extend([1, 2, 3]);
        assert_eq!(Head::split(&bytes, 22, true), Some((head, [1, 2, 3].as_slice())));
        assert_eq!(Head::split(&bytes, 23, true), None);
        assert_eq!(Head::split(&bytes, 22, false), None);
        assert_eq!(Head::split(&bytes[..12], 22, true), None);
        assert_eq!(Head::split(&[], 0, true), None);
    }
}
