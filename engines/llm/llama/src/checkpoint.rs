//! The parts of the key-value cache that belong to a session, and the bytes of a saved one.

use crate::params::Params;
use crate::work::Sizes;
use ns_llm_kernels::attention::CELL_ALIGN;

/// The first cells of one head in one layer: a run of bytes of the cache.
#[derive(Debug, Clone, Copy)]
pub struct HeadCells {
    base: usize,
    cell_bytes: usize,
    /// Length of the run.
    pub bytes: usize,
}

impl HeadCells {
    /// Where it starts for a session whose first cell is `start`.
    pub fn at(&self, start: usize) -> usize {
        self.base + start * self.cell_bytes
    }
}

/// The runs that hold the first `position` cells of a session, keys in whole blocks.
pub fn heads(p: &Params, sizes: &Sizes, position: usize) -> Vec<HeadCells> {
    if position == 0 {
        return Vec::new();
    }
    let cell_bytes = p.head_dim * sizes.kv_bytes;
    let bytes = position.next_multiple_of(CELL_ALIGN) * cell_bytes;
    (0..p.n_layers * 2 * p.n_kv)
        .map(|head| HeadCells { base: head * sizes.cells * cell_bytes, cell_bytes, bytes })
        .collect()
}

/// State bytes: the cells, then the logits where there are some.
pub fn join(cells: &[u8], logits: Option<&[f32]>) -> Vec<u8> {
    let mut state = cells.to_vec();
    state.extend(logits.unwrap_or_default().iter().flat_map(|v| v.to_le_bytes()));
    state
}

/// Takes them apart again; `None` when the size is neither with nor without logits.
pub fn split(state: &[u8], cells: usize, n_vocab: usize) -> Option<(&[u8], Option<Vec<f32>>)> {
    let (head, tail) = state.split_at_checked(cells)?;
    if tail.is_empty() {
        return Some((head, None));
    }
    if tail.len() != n_vocab * 4 {
        return None;
    }
    Some((head, Some(tail.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())))
}
