//! Device buffers of a pass, allocated once at load.

use crate::device_error;
use crate::params::Params;
use ns_llm::Result;
use ns_llm_kernels::attention::{self, CELL_ALIGN, Heads, KvPrecision};
use ns_llm_kernels::{act, rows::ROW_STATE};
use ns_sycl::{Buffer, Device, DeviceClass};

/// Rows of a decode pass at most.
pub const MAX_ROWS: usize = 8;

/// Sizes that follow from the model and the load options.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows of a prompt pass at most.
    pub chunk: usize,
    /// Cells of the cache.
    pub cells: usize,
    /// Bytes of one cache value.
    pub kv_bytes: usize,
    /// Bytes between activation rows.
    pub act_stride: usize,
    /// Pieces of the longest row's keys.
    pub max_splits: usize,
    /// Bytes that the prompt attention needs for expanded cells.
    pub scratch: usize,
}

/// The heads as the kernels take them.
pub fn heads(p: &Params) -> Heads {
    Heads { n_heads: p.n_heads, n_kv: p.n_kv, head_dim: p.head_dim }
}

impl Sizes {
    /// Sizes of a model on a class of devices.
    pub fn new(p: &Params, class: DeviceClass, chunk: usize, cells: usize, precision: KvPrecision) -> Self {
        let widest = p.hidden_size.max(p.n_ff).max(p.n_heads * p.head_dim);
        Self {
            chunk: chunk.max(MAX_ROWS),
            cells,
            kv_bytes: precision.size(CELL_ALIGN) / CELL_ALIGN,
            act_stride: act::stride(widest, class),
            max_splits: cells.div_ceil(attention::SPLIT_KEYS).max(1),
            scratch: attention::prompt_scratch_bytes(class, precision, heads(p), cells),
        }
    }

    /// Bytes of one cell of the key-value cache: a token in all layers.
    pub fn cell(&self, p: &Params) -> u64 {
        (p.n_layers * 2 * p.n_kv * p.head_dim) as u64 * self.kv_bytes as u64
    }

    /// Bytes of the key-value cache.
    pub fn cache(&self, p: &Params) -> u64 {
        self.cell(p) * self.cells as u64
    }

    fn rows(&self, columns: usize) -> usize {
        self.chunk * columns * 4
    }

    /// Bytes of all buffers of a pass.
    pub fn work(&self, p: &Params) -> u64 {
        self.parts(p).iter().map(|&n| n as u64).sum()
    }

    /// Bytes of each buffer, in the order of [`Work`]'s fields.
    fn parts(&self, p: &Params) -> [usize; 13] {
        let q = p.n_heads * p.head_dim;
        [
            self.chunk * (ROW_STATE + 4),
            self.rows(p.hidden_size),
            self.rows(p.hidden_size),
            self.rows(p.qkv_rows()),
            self.rows(q),
            self.rows(2 * p.n_ff),
            self.rows(p.n_ff),
            MAX_ROWS * self.act_stride,
            attention::partial_bytes(MAX_ROWS, p.n_heads, p.head_dim, self.max_splits),
            MAX_ROWS * p.n_vocab * 4,
            MAX_ROWS * 4,
            (p.rot_dim / 2) * 4,
            self.scratch.max(4),
        ]
    }
}

/// The buffers.
pub struct Work {
    /// Row table, then the token ids (i32), `chunk` of each.
    pub input: Buffer,
    /// The residual stream, `[chunk][hidden_size]`.
    pub x: Buffer,
    /// Normed rows, `[chunk][hidden_size]`.
    pub h: Buffer,
    /// Queries, keys and values, `[chunk][qkv_rows]`.
    pub qkv: Buffer,
    /// Attention output, `[chunk][n_heads * head_dim]`.
    pub attn: Buffer,
    /// Gate and up products, `[chunk][2 n_ff]`.
    pub gate_up: Buffer,
    /// Input of the down product, `[chunk][n_ff]`.
    pub ffn: Buffer,
    /// Activation rows of a decode pass.
    pub act: Buffer,
    /// Partial attention of a decode pass.
    pub partial: Buffer,
    /// Logits, `[8][n_vocab]`.
    pub logits: Buffer,
    /// Likeliest token of each logits row, i32.
    pub chosen: Buffer,
    /// Rotation per position of each pair.
    pub inv_freq: Buffer,
    /// Cells expanded for the prompt attention.
    pub scratch: Buffer,
}

impl Work {
    /// Allocates all buffers.
    pub fn new(device: &Device, p: &Params, sizes: &Sizes) -> Result<Self> {
        let parts = sizes.parts(p);
        let mut next = parts.iter();
        let mut alloc = || {
            let bytes = next.next().copied().unwrap_or(0);
            device.alloc(bytes).map_err(|e| device_error("cannot allocate the buffers of a pass", e))
        };
        Ok(Self {
            input: alloc()?,
            x: alloc()?,
            h: alloc()?,
            qkv: alloc()?,
            attn: alloc()?,
            gate_up: alloc()?,
            ffn: alloc()?,
            act: alloc()?,
            partial: alloc()?,
            logits: alloc()?,
            chosen: alloc()?,
            inv_freq: alloc()?,
            scratch: alloc()?,
        })
    }
}
