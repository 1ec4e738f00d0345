//! Attention over the key-value cache: decode rows and prompt chunks.
//!
//! The cache is one buffer `[layer][key, value][n_kv][cells][head_dim]`; a session owns a range of cells that starts at a multiple
//! of [`CELL_ALIGN`]. Within a head, keys are in blocks of 16 cells, `[cells / 16][head_dim][16]`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Kernel, Queue};

use crate::check::{Check, Strided};
use crate::rows::{ROW_STATE, shared_row};
use crate::{At, Result};

/// Keys of one piece of a decode row.
pub const SPLIT_KEYS: usize = 256;
/// Sessions start at a multiple of this many cells, and the cache has a multiple of it.
pub const CELL_ALIGN: usize = 16;
/// Rows of a prompt that one sub-group works on, as compiled into the kernel.
const fn prompt_rows(class: DeviceClass) -> usize {
    match class {
        DeviceClass::Cpu => 32,
        DeviceClass::Gpu => 16,
    }
}

/// Local memory of such a sub-group, floats. On the CPU only float32 caches are read.
const fn prompt_local_floats(class: DeviceClass, heads: Heads) -> usize {
    match class {
        DeviceClass::Cpu => prompt_rows(class) * (2 * 256 + 64 + 48),
        DeviceClass::Gpu => prompt_rows(class) * (2 * heads.head_dim + 32),
    }
}

/// Type of the cache's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPrecision {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// Eight bits, and a half-precision scale for 32 values of a cell; heads are a multiple of 32 wide.
    Q8,
}

impl KvPrecision {
    /// Bytes of `values` values: whole heads of whole blocks of [`CELL_ALIGN`] cells.
    #[must_use]
    pub const fn size(self, values: usize) -> usize {
        match self {
            Self::F16 => values.saturating_mul(2),
            Self::F32 => values.saturating_mul(4),
            Self::Q8 => values / 16 * 17,
        }
    }

    /// Its place in a list of kernels: halves, singles, eight bits.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::F16 => 0,
            Self::F32 => 1,
            Self::Q8 => 2,
        }
    }
}

/// Heads of an attention block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv: usize,
    /// Values of a head: a multiple of 16, at most 256.
    pub head_dim: usize,
}

impl Heads {
    /// Checks that the kernels can compute them.
    ///
    /// # Errors
    /// They cannot.
    pub fn check(self, c: Check) -> Result<()> {
        c.that(
            self.n_kv > 0 && self.n_heads > 0 && self.n_heads.is_multiple_of(self.n_kv),
            &format!("{} heads cannot share {} key heads", self.n_heads, self.n_kv),
        )?;
        c.that(
            self.head_dim > 0 && self.head_dim.is_multiple_of(16) && self.head_dim <= 256,
            &format!("head_dim is {}: it must be a multiple of 16 up to 256", self.head_dim),
        )
    }
}

/// One layer of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// All layers.
    pub buffer: &'a Buffer,
    /// Type of its values.
    pub precision: KvPrecision,
    /// Cells of all sessions together.
    pub cells: usize,
    /// Which layer.
    pub layer: usize,
}

impl Cache<'_> {
    /// Elements of a layer.
    fn layer_elements(&self, heads: Heads) -> usize {
        (2 * heads.n_kv * heads.head_dim).saturating_mul(self.cells)
    }

    /// Values from the cache's start to the layer.
    #[must_use]
    pub fn layer_offset(&self, heads: Heads) -> i64 {
        // inside the block: checked
        self.layer_elements(heads).saturating_mul(self.layer) as i64
    }

    /// Checks that the layer lies inside the block.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, c: Check, heads: Heads) -> Result<()> {
        c.that(
            self.cells.is_multiple_of(CELL_ALIGN),
            &format!("the cache has {} cells, not a multiple of {CELL_ALIGN}", self.cells),
        )?;
        let end = self.layer_elements(heads).saturating_mul(self.layer.saturating_add(1));
        c.that(
            self.precision != KvPrecision::Q8 || heads.head_dim.is_multiple_of(32),
            &format!("a cache of 8-bit values needs heads of a multiple of 32, not of {}", heads.head_dim),
        )?;
        c.fits("the cache", (self.buffer, 0), self.precision.size(end), 1)
    }
}

/// Bytes of the pieces of `rows` decode rows with at most `n_splits` pieces each.
#[must_use]
pub const fn partial_bytes(rows: usize, n_heads: usize, head_dim: usize, n_splits: usize) -> usize {
    rows * n_heads * n_splits * (head_dim + 2) * 4
}

/// Bytes and operations of [`Attention::split`] where its rows see `keys` cells in all. For [`Queue::cost`]: the launch itself does
/// not know the rows' positions, they are in the row table.
#[must_use]
pub const fn split_cost(heads: Heads, precision: KvPrecision, keys: usize) -> (usize, usize) {
    (precision.size(2 * heads.n_kv * heads.head_dim * keys), 4 * heads.n_heads * heads.head_dim * keys)
}

/// Pieces of a row at `position`.
#[must_use]
pub const fn splits(position: usize) -> usize {
    position / SPLIT_KEYS + 1
}

/// Bytes that [`Attention::prompt`] needs beside the cache for a session of `cells` cells; 0 where it needs none.
#[must_use]
pub const fn prompt_scratch_bytes(class: DeviceClass, precision: KvPrecision, heads: Heads, cells: usize) -> usize {
    match (class, precision) {
        (DeviceClass::Cpu, KvPrecision::F16 | KvPrecision::Q8) => {
            2 * heads.n_kv * cells.next_multiple_of(CELL_ALIGN) * heads.head_dim * 4
        }
        _ => 0,
    }
}

/// A chunk of a session's prompt.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Rows of the chunk.
    pub rows: usize,
    /// Cell of its first row within the session.
    pub position: usize,
    /// First cell of the session in the cache.
    pub first_cell: usize,
}

impl Chunk {
    /// The cells that its last row sees.
    pub(crate) fn check(self, c: Check, cache: &Cache<'_>) -> Result<usize> {
        let seen = self.position.saturating_add(self.rows);
        c.that(
            self.first_cell.is_multiple_of(CELL_ALIGN) && self.first_cell.saturating_add(seen) <= cache.cells,
            &format!("{seen} cells from cell {} on are not in the cache of {} cells", self.first_cell, cache.cells),
        )?;
        Ok(seen)
    }
}

/// The kernels of one precision, a module of their own.
struct Set {
    /// By head width: 64, 128, 256, others.
    split: [Kernel; 4],
    prompt: Kernel,
}

/// The kernels of attention. Those of a precision are loaded by [`Attention::open`] or when they are first used.
pub struct Attention {
    class: DeviceClass,
    device: Device,
    dir: PathBuf,
    /// By precision.
    sets: [OnceLock<Set>; 3],
    combine_act: Kernel,
    expand_kv: Kernel,
    expand_kv8: Kernel,
}

impl Attention {
    pub(crate) fn load(device: &Device, dir: &Path) -> Result<Self> {
        let m = device.load_module(dir, "attention")?;
        Ok(Self {
            class: device.class(),
            device: device.clone(),
            dir: dir.to_owned(),
            sets: [const { OnceLock::new() }; 3],
            combine_act: m.kernel("attn_combine_act")?,
            expand_kv: m.kernel("expand_kv")?,
            expand_kv8: m.kernel("expand_kv8")?,
        })
    }

    /// Loads the kernels for a cache of this precision, unless they are.
    ///
    /// # Errors
    /// The module is missing or the device cannot run it.
    pub fn open(&self, precision: KvPrecision) -> Result<()> {
        self.set(precision).map(|_| ())
    }

    fn set(&self, precision: KvPrecision) -> Result<&Set> {
        let place = &self.sets[precision.index()];
        if let Some(set) = place.get() {
            return Ok(set);
        }
        let name = match precision {
            KvPrecision::F16 => "kv16",
            KvPrecision::F32 => "kv32",
            KvPrecision::Q8 => "kv8",
        };
        let m = self.device.load_module(&self.dir, &format!("attention_{name}"))?;
        let split = |width: &str| m.kernel(&format!("attn_split_{name}_{width}"));
        let set = Set {
            split: [split("h64")?, split("h128")?, split("h256")?, split("hx")?],
            prompt: m.kernel(&format!("attn_prompt_{name}"))?,
        };
        Ok(place.get_or_init(|| set))
    }

    /// Pieces of the attention of decode rows; row i of `q` starts with its query heads. Each row sees the cells up to its
    /// position; `n_splits` is at least [`splits`] of the largest position and changes nothing else.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn split(
        &self,
        queue: &Queue,
        q: Strided<'_>,
        cache: &Cache<'_>,
        row_state: At<'_>,
        partial: At<'_>,
        heads: Heads,
        (rows, n_splits): (usize, usize),
        scale: f32,
    ) -> Result<()> {
        let c = Check("attn_split");
        c.size("rows", rows)?;
        heads.check(c)?;
        let ldq = c.rows("q", &q, rows, heads.n_heads * heads.head_dim, 4)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        let pieces = rows.saturating_mul(heads.n_heads).saturating_mul(n_splits);
        c.fits("partial", partial, pieces.saturating_mul(heads.head_dim + 2), 4)?;
        cache.check(c, heads)?;
        let width = match heads.head_dim {
            64 => 0,
            128 => 1,
            256 => 2,
            _ => 3,
        };
        Ok(queue.launch(
            &self.set(cache.precision)?.split[width],
            [pieces * 16, 1, 1],
            [16, 1, 1],
            &[
                Arg::Buffer(q.buffer, q.offset),
                Arg::Buffer(cache.buffer, 0),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(partial.0, partial.1),
                Arg::I32(ldq),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("n_kv", heads.n_kv)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I64(cache.layer_offset(heads)),
                Arg::I32(c.size("cells", cache.cells)?),
                Arg::F32(scale),
                Arg::I32(c.size("n_splits", n_splits)?),
            ],
        )?)
    }

    /// Joins the pieces into activation rows of all heads side by side.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn combine_act(
        &self,
        queue: &Queue,
        partial: At<'_>,
        row_state: At<'_>,
        act: Strided<'_>,
        heads: Heads,
        (rows, n_splits): (usize, usize),
    ) -> Result<()> {
        let c = Check("attn_combine_act");
        let count = c.size("rows", rows)?;
        heads.check(c)?;
        let pieces = rows.saturating_mul(heads.n_heads).saturating_mul(n_splits);
        c.fits("partial", partial, pieces.saturating_mul(heads.head_dim + 2), 4)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        let stride = c.act("act", &act, rows, heads.n_heads * heads.head_dim, self.class)?;
        let (parts, items) = shared_row(self.class, heads.n_heads * heads.head_dim);
        queue.cost(
            partial_bytes(rows, heads.n_heads, heads.head_dim, n_splits) + rows * act.ld,
            2 * pieces * heads.head_dim,
        );
        Ok(queue.launch(
            &self.combine_act,
            [rows * parts * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(partial.0, partial.1),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(act.buffer, act.offset),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I32(stride),
                Arg::I32(c.size("n_splits", n_splits)?),
                Arg::I32(count),
            ],
        )?)
    }

    /// Causal attention of a chunk whose keys and values are in the cache already: row i sees the session's cells up to
    /// `position + i`. `scratch` has [`prompt_scratch_bytes`] of `position + rows` cells.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn prompt(
        &self,
        queue: &Queue,
        q: Strided<'_>,
        cache: &Cache<'_>,
        scratch: Option<At<'_>>,
        out: Strided<'_>,
        chunk: Chunk,
        heads: Heads,
        scale: f32,
    ) -> Result<()> {
        let c = Check("attn_prompt");
        c.size("rows", chunk.rows)?;
        heads.check(c)?;
        cache.check(c, heads)?;
        let columns = heads.n_heads * heads.head_dim;
        let ldq = c.rows("q", &q, chunk.rows, columns, 4)?;
        let ldo = c.rows("out", &out, chunk.rows, columns, 4)?;
        let seen = chunk.check(c, cache)?;
        let kv_offset = (chunk.first_cell * heads.head_dim) as i64;
        let mut source = (cache.buffer, 0, cache.precision, kv_offset, cache.layer_offset(heads), cache.cells);
        let needed = prompt_scratch_bytes(self.class, cache.precision, heads, seen);
        if needed > 0 {
            let scratch = scratch.ok_or_else(|| {
                crate::Error::argument(format!("kernel attn_prompt: {needed} bytes of scratch are needed"))
            })?;
            c.fits("scratch", scratch, needed / 4, 4)?;
            let cells = seen.next_multiple_of(CELL_ALIGN);
            let parts = cells.div_ceil(64).min(16);
            let (kernel, items) = match cache.precision {
                KvPrecision::Q8 => (&self.expand_kv8, 16),
                _ => (&self.expand_kv, 64),
            };
            let values = 2 * heads.n_kv * heads.head_dim * cells;
            queue.cost(cache.precision.size(values) + 4 * values, values);
            queue.launch(
                kernel,
                [2 * heads.n_kv * parts * items, 1, 1],
                [items, 1, 1],
                &[
                    Arg::Buffer(cache.buffer, 0),
                    Arg::Buffer(scratch.0, scratch.1),
                    Arg::I64(source.3),
                    Arg::I64(source.4),
                    Arg::I32(c.size("n_kv", heads.n_kv)?),
                    Arg::I32(c.size("head_dim", heads.head_dim)?),
                    Arg::I32(c.size("cells", cache.cells)?),
                    Arg::I32(c.size("cells", cells)?),
                ],
            )?;
            source = (scratch.0, scratch.1, KvPrecision::F32, 0, 0, cells);
        }
        let pairs = chunk.rows * chunk.position + chunk.rows * (chunk.rows + 1) / 2;
        let (bytes, _) = split_cost(heads, source.2, seen);
        queue.cost(2 * chunk.rows * columns * 4 + bytes, 4 * columns * pairs);
        Ok(queue.launch(
            &self.set(source.2)?.prompt,
            [chunk.rows.div_ceil(prompt_rows(self.class)) * heads.n_heads * 16, 1, 1],
            [16, 1, 1],
            &[
                Arg::Buffer(q.buffer, q.offset),
                Arg::Buffer(source.0, source.1),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(c.size("rows", chunk.rows)?),
                Arg::I32(c.int("position", chunk.position)?),
                Arg::I64(source.3),
                Arg::I32(ldq),
                Arg::I32(ldo),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("n_kv", heads.n_kv)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I64(source.4),
                Arg::I32(c.size("cells", source.5)?),
                Arg::F32(scale),
                Arg::Local(prompt_local_floats(self.class, heads) * 4),
            ],
        )?)
    }
}
