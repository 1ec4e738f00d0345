//! Device buffers of one device's part of a pass, allocated once at load.

use crate::device_error;
use crate::kernels::ROW_SLOTS;
use crate::kernels::Slots;
use crate::params::Params;
use crate::weights::Share;
use ns_llm::Result;
use ns_llm_kernels::attention::{self, KvPrecision};
use ns_llm_kernels::{act, rows::ROW_STATE};
use ns_sycl::{Buffer, Device, DeviceClass};

/// Rows of a decode pass at most.
pub const MAX_ROWS: usize = 8;

/// Byte offsets in the table of a decode pass: row states, token ids, slots.
pub mod table {
    use super::{MAX_ROWS, ROW_SLOTS, ROW_STATE};
    /// Token ids, i32.
    pub const IDS: usize = MAX_ROWS * ROW_STATE;
    /// Slots.
    pub const SLOTS: usize = IDS + MAX_ROWS * 4;
    /// All of it.
    pub const BYTES: usize = SLOTS + MAX_ROWS * ROW_SLOTS;
}

/// What the load options fix for all devices.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rows of a prompt pass at most.
    pub chunk: usize,
    /// Cells of the caches.
    pub cells: usize,
    /// Sessions at most.
    pub slots: usize,
    /// Whether the draft block is used.
    pub draft: bool,
}

/// Sizes of one device's buffers.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// What all devices have in common.
    pub plan: Plan,
    /// Precision of the cache.
    pub precision: KvPrecision,
    /// Bytes between activation rows.
    pub act_stride: usize,
    /// Pieces of the longest row's keys.
    pub max_splits: usize,
    /// Full-attention layers here, the draft block's among them.
    pub full_layers: usize,
    /// DeltaNet layers here.
    pub delta_layers: usize,
    scratch: usize,
    last: bool,
}

/// Bytes of a layer's slot, on 64-byte boundaries.
fn slot_bytes(floats: usize) -> usize {
    (floats * 4).next_multiple_of(64)
}

impl Sizes {
    /// Sizes of a share on a class of devices.
    pub fn new(p: &Params, plan: Plan, share: &Share, class: DeviceClass, precision: KvPrecision) -> Self {
        let full = p.full_layers(share.layers.clone());
        Self {
            plan,
            precision,
            act_stride: act::stride(p.widest(plan.draft && share.last), class),
            max_splits: plan.cells.div_ceil(attention::SPLIT_KEYS).max(1),
            full_layers: full + usize::from(plan.draft && share.last),
            delta_layers: share.layers.len() - full,
            scratch: attention::prompt_scratch_bytes(class, precision, p.heads(), plan.cells),
            last: share.last,
        }
    }

    /// Bytes of one layer's part of a session's state, and where the conv history starts in it.
    fn state_layer(p: &Params) -> (usize, usize) {
        let shape = p.shape();
        let state = slot_bytes(shape.state_floats());
        (state + slot_bytes(shape.history_floats()), state)
    }

    /// Bytes of one session's states.
    pub fn state(&self, p: &Params) -> usize {
        self.delta_layers * Self::state_layer(p).0
    }

    fn kept_layer(p: &Params) -> usize {
        slot_bytes(p.shape().kept_floats(MAX_ROWS))
    }

    /// Bytes of the states, and of the rows kept of the last passes, of all sessions.
    pub fn states(&self, p: &Params) -> (u64, u64) {
        let slots = self.plan.slots as u64;
        (slots * self.state(p) as u64, slots * 2 * (self.delta_layers * Self::kept_layer(p)) as u64)
    }

    /// The states of a layer.
    pub fn state_slots<'a>(&self, p: &Params, buffer: &'a Buffer, layer: usize) -> Slots<'a> {
        let (bytes, _) = Self::state_layer(p);
        Slots { buffer, offset: layer * bytes, stride: self.state(p), count: self.plan.slots }
    }

    /// The conv histories of a layer.
    pub fn history_slots<'a>(&self, p: &Params, buffer: &'a Buffer, layer: usize) -> Slots<'a> {
        let (bytes, history) = Self::state_layer(p);
        Slots { buffer, offset: layer * bytes + history, stride: self.state(p), count: self.plan.slots }
    }

    /// The kept rows of a layer.
    pub fn kept_slots<'a>(&self, p: &Params, buffer: &'a Buffer, layer: usize) -> Slots<'a> {
        let bytes = Self::kept_layer(p);
        Slots { buffer, offset: layer * bytes, stride: self.delta_layers * bytes, count: 2 * self.plan.slots }
    }

    /// Bytes of the key-value cache.
    pub fn cache(&self, p: &Params) -> u64 {
        self.cells(p, self.plan.cells)
    }

    /// Bytes of that many cells.
    fn cells(&self, p: &Params, cells: usize) -> u64 {
        self.precision.size(self.full_layers * 2 * p.n_kv * p.head_dim * cells) as u64
    }

    /// Bytes of caches and states of a session with that many cells.
    pub fn session(&self, p: &Params, cells: usize) -> u64 {
        let slot = self.state(p) + 2 * self.delta_layers * Self::kept_layer(p);
        self.cells(p, cells) + slot as u64
    }

    /// Bytes of the rows of the trunk that wait for the draft block.
    fn backlog(&self, p: &Params) -> usize {
        self.plan.slots * MAX_ROWS * p.hidden_size * 4
    }

    /// Bytes of all buffers of a pass.
    pub fn work(&self, p: &Params) -> u64 {
        self.parts(p).iter().map(|&n| n as u64).sum()
    }

    /// Bytes of each buffer, in the order of [`Work`]'s fields.
    fn parts(&self, p: &Params) -> [usize; 22] {
        let chunk = self.plan.chunk;
        let rows = |columns: usize| chunk * columns * 4;
        let mixed = p.query_width().max(p.shape().value_cols());
        let head = |bytes: usize| if self.last { bytes } else { 4 };
        let draft = |bytes: usize| if self.last && self.plan.draft { bytes } else { 4 };
        [
            table::BYTES,
            chunk * ROW_STATE,
            rows(1),
            rows(p.hidden_size),
            rows(p.hidden_size),
            rows(p.product_columns().max(p.hidden_size)),
            rows(p.query_width()),
            rows(mixed),
            rows(p.shape().mix_cols()),
            rows(2 * p.n_ff),
            rows(p.n_ff),
            MAX_ROWS * self.act_stride,
            attention::partial_bytes(MAX_ROWS, p.n_heads, p.head_dim, self.max_splits),
            (p.rot_dim / 2) * 4,
            self.scratch.max(4),
            head(MAX_ROWS * p.n_vocab * 4),
            head(MAX_ROWS * 4),
            draft(self.backlog(p)),
            draft(MAX_ROWS * p.hidden_size * 4),
            draft(rows(2 * p.hidden_size)),
            draft(p.n_vocab * 4),
            draft(4),
        ]
    }
}

/// The buffers.
pub struct Work {
    /// Table of a decode pass; see [`table`].
    pub table: Buffer,
    /// Row table of a prompt pass.
    pub states: Buffer,
    /// Token ids of a prompt pass, i32.
    pub ids: Buffer,
    /// The residual stream, `[chunk][hidden_size]`.
    pub x: Buffer,
    /// Normed rows, `[chunk][hidden_size]`.
    pub h: Buffer,
    /// A mixer's products, `[chunk][..]`; the draft block's embeddings.
    pub product: Buffer,
    /// Queries, `[chunk][query_width]`.
    pub q: Buffer,
    /// What the mixer gives, `[chunk][..]`.
    pub mixed: Buffer,
    /// What the convolution gives in a prompt pass.
    pub mix: Buffer,
    /// Gate and up products, `[chunk][2 n_ff]`.
    pub gate_up: Buffer,
    /// Input of the down product, `[chunk][n_ff]`.
    pub ffn: Buffer,
    /// Activation rows of a decode pass.
    pub act: Buffer,
    /// Partial attention of a decode pass.
    pub partial: Buffer,
    /// Rotation per position of each pair.
    pub inv_freq: Buffer,
    /// Cells expanded for the prompt attention.
    pub scratch: Buffer,
    /// Logits, `[8][n_vocab]`.
    pub logits: Buffer,
    /// Likeliest token of each logits row, i32.
    pub chosen: Buffer,
    /// Rows of the trunk before their norm that the draft block has not seen, `[slots][8][hidden_size]`.
    pub backlog: Buffer,
    /// The draft block's rows of the trunk, `[8][hidden_size]`.
    pub hidden: Buffer,
    /// The draft block's joined input, `[chunk][2 hidden_size]`.
    pub pair: Buffer,
    /// Logits of a draft.
    pub draft_logits: Buffer,
    /// Its likeliest token, i32.
    pub drafted: Buffer,
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
            table: alloc()?,
            states: alloc()?,
            ids: alloc()?,
            x: alloc()?,
            h: alloc()?,
            product: alloc()?,
            q: alloc()?,
            mixed: alloc()?,
            mix: alloc()?,
            gate_up: alloc()?,
            ffn: alloc()?,
            act: alloc()?,
            partial: alloc()?,
            inv_freq: alloc()?,
            scratch: alloc()?,
            logits: alloc()?,
            chosen: alloc()?,
            backlog: alloc()?,
            hidden: alloc()?,
            pair: alloc()?,
            draft_logits: alloc()?,
            drafted: alloc()?,
        })
    }
}
