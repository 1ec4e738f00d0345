//! Gated attention around the shared attention kernels, and the draft block's input.
//!
//! A full layer's product of a row is `[per query head: q d, gate d | k n_kv*d | v n_kv*d]` ([`product_cols`]). [`Gated::prepare`] norms
//! and rotates queries and keys, stores keys and values in the cache and puts the queries side by side, ready for
//! `attention.split` (decode) or `attention.prompt`. Then [`Gated::combine_act`] takes the place of `attention.combine_act`, or
//! [`Gated::gate`] follows `attention.prompt`.

use std::path::Path;

use ns_llm_kernels::attention::{Cache, Heads, KvPrecision, partial_bytes};
use ns_llm_kernels::rows::ROW_STATE;
use ns_llm_kernels::{At, Check, Result, Strided};
use ns_sycl::{Arg, Device, DeviceClass, Kernel, Queue};

/// Columns of a row's product: queries with gates, keys, values.
#[must_use]
pub const fn product_cols(heads: Heads) -> usize {
    2 * (heads.n_heads + heads.n_kv) * heads.head_dim
}

/// What happens to queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct QueryKey<'a> {
    /// `attn_q_norm`, `[head_dim]`.
    pub q_norm: At<'a>,
    /// `attn_k_norm`, `[head_dim]`.
    pub k_norm: At<'a>,
    /// Of both norms.
    pub eps: f32,
    /// Rotated values of a head, paired j and j + `rot_dim` / 2; even.
    pub rot_dim: usize,
    /// Angle per position of each pair: float32, `rot_dim / 2` of them.
    pub inv_freq: At<'a>,
}

/// The kernels of module `gated`.
pub struct Gated {
    class: DeviceClass,
    /// By precision of the cache: f16, f32, q8.
    prepare: [Kernel; 3],
    combine_act: Kernel,
    gate: Kernel,
    norm_pair_act: Kernel,
    norm_pair: Kernel,
}

impl Gated {
    pub(super) fn load(device: &Device, dir: &Path) -> Result<Self> {
        let m = device.load_module(dir, "gated")?;
        Ok(Self {
            class: device.class(),
            prepare: [m.kernel("prepare_kv16")?, m.kernel("prepare_kv32")?, m.kernel("prepare_kv8")?],
            combine_act: m.kernel("combine_gate_act")?,
            gate: m.kernel("gate")?,
            norm_pair_act: m.kernel("norm_pair_act")?,
            norm_pair: m.kernel("norm_pair")?,
        })
    }

    /// Queries of each row, normed and rotated, to `q` `[n_heads * head_dim]`; keys (normed, rotated) and values to the cells that
    /// the row table names. The product stays as it is.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn prepare(
        &self,
        queue: &Queue,
        product: Strided<'_>,
        q: Strided<'_>,
        cache: &Cache<'_>,
        row_state: At<'_>,
        how: &QueryKey<'_>,
        heads: Heads,
        rows: usize,
    ) -> Result<()> {
        let c = Check("prepare");
        c.size("rows", rows)?;
        heads.check(c)?;
        let ld = c.rows("product", &product, rows, product_cols(heads), 4)?;
        let ldq = c.rows("q", &q, rows, heads.n_heads * heads.head_dim, 4)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        c.that(
            how.rot_dim.is_multiple_of(2) && how.rot_dim <= heads.head_dim,
            &format!("rot_dim is {}: it must be even and at most the head's {}", how.rot_dim, heads.head_dim),
        )?;
        c.fits("inv_freq", how.inv_freq, how.rot_dim / 2, 4)?;
        c.fits("q_norm", how.q_norm, heads.head_dim, 4)?;
        c.fits("k_norm", how.k_norm, heads.head_dim, 4)?;
        cache.check(c, heads)?;
        let kernel = match cache.precision {
            KvPrecision::F16 => &self.prepare[0],
            KvPrecision::F32 => &self.prepare[1],
            KvPrecision::Q8 => &self.prepare[2],
        };
        let (queries, stored) = (rows * heads.n_heads * heads.head_dim, 2 * rows * heads.n_kv * heads.head_dim);
        queue.cost((2 * queries + stored) * 4 + cache.precision.size(stored), 10 * (queries + stored));
        Ok(queue.launch(
            kernel,
            [rows * (heads.n_heads + 2 * heads.n_kv) * 16, 1, 1],
            [16, 1, 1],
            &[
                Arg::Buffer(product.buffer, product.offset),
                Arg::Buffer(q.buffer, q.offset),
                Arg::Buffer(cache.buffer, 0),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(how.q_norm.0, how.q_norm.1),
                Arg::Buffer(how.k_norm.0, how.k_norm.1),
                Arg::Buffer(how.inv_freq.0, how.inv_freq.1),
                Arg::I32(ld),
                Arg::I32(ldq),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("n_kv", heads.n_kv)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I32(c.int("rot_dim", how.rot_dim)?),
                Arg::I64(cache.layer_offset(heads)),
                Arg::I32(c.size("cells", cache.cells)?),
                Arg::F32(how.eps),
            ],
        )?)
    }

    /// Joins the pieces of `attention.split` and multiplies with the gates' sigmoid: the activation rows of `attn_output`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn combine_act(
        &self,
        queue: &Queue,
        partial: At<'_>,
        product: Strided<'_>,
        row_state: At<'_>,
        act: Strided<'_>,
        heads: Heads,
        (rows, n_splits): (usize, usize),
    ) -> Result<()> {
        let c = Check("combine_gate_act");
        let count = c.size("rows", rows)?;
        heads.check(c)?;
        let cols = heads.n_heads * heads.head_dim;
        let pieces = rows.saturating_mul(heads.n_heads).saturating_mul(n_splits);
        c.fits("partial", partial, pieces.saturating_mul(heads.head_dim + 2), 4)?;
        let ld = c.rows("product", &product, rows, product_cols(heads), 4)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        let stride = c.act("act", &act, rows, cols, self.class)?;
        let (parts, items) = shared_row(self.class, cols);
        queue.cost(
            partial_bytes(rows, heads.n_heads, heads.head_dim, n_splits) + rows * (cols * 4 + act.ld),
            2 * pieces * heads.head_dim,
        );
        Ok(queue.launch(
            &self.combine_act,
            [rows * parts * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(partial.0, partial.1),
                Arg::Buffer(product.buffer, product.offset),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(act.buffer, act.offset),
                Arg::I32(ld),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I32(stride),
                Arg::I32(c.size("n_splits", n_splits)?),
                Arg::I32(count),
            ],
        )?)
    }

    /// `attn *= sigmoid(gate)` in place, the gates from the rows' products.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn gate(
        &self,
        queue: &Queue,
        attn: Strided<'_>,
        product: Strided<'_>,
        heads: Heads,
        rows: usize,
    ) -> Result<()> {
        let c = Check("gate");
        c.size("rows", rows)?;
        heads.check(c)?;
        let lda = c.rows("attn", &attn, rows, heads.n_heads * heads.head_dim, 4)?;
        let ld = c.rows("product", &product, rows, product_cols(heads), 4)?;
        queue.cost(rows * heads.n_heads * heads.head_dim * 12, 5 * rows * heads.n_heads * heads.head_dim);
        Ok(queue.launch(
            &self.gate,
            [rows * heads.n_heads * 16, 1, 1],
            [16, 1, 1],
            &[
                Arg::Buffer(attn.buffer, attn.offset),
                Arg::Buffer(product.buffer, product.offset),
                Arg::I32(lda),
                Arg::I32(ld),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
            ],
        )?)
    }

    /// `[rms(e) * enorm | rms(h) * hnorm]` of each row, `2 dim` values, as activation rows: the input of `nextn.eh_proj`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn norm_pair_act(
        &self,
        queue: &Queue,
        (e, enorm): (Strided<'_>, At<'_>),
        (h, hnorm): (Strided<'_>, At<'_>),
        act: Strided<'_>,
        (rows, dim): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        let c = Check("norm_pair_act");
        c.that(dim.is_multiple_of(32), &format!("dim is {dim}: it must be a multiple of 32"))?;
        let stride = c.act("act", &act, rows, 2 * dim, self.class)?;
        self.pair(c, queue, &self.norm_pair_act, (e, enorm), (h, hnorm), (act, stride), (rows, dim), eps)
    }

    /// [`Gated::norm_pair_act`] as float32 rows.
    ///
    /// # Errors
    /// As there.
    pub fn norm_pair(
        &self,
        queue: &Queue,
        (e, enorm): (Strided<'_>, At<'_>),
        (h, hnorm): (Strided<'_>, At<'_>),
        out: Strided<'_>,
        (rows, dim): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        let c = Check("norm_pair");
        let ldo = c.rows("out", &out, rows, 2 * dim, 4)?;
        self.pair(c, queue, &self.norm_pair, (e, enorm), (h, hnorm), (out, ldo), (rows, dim), eps)
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    fn pair(
        &self,
        c: Check,
        queue: &Queue,
        kernel: &Kernel,
        (e, enorm): (Strided<'_>, At<'_>),
        (h, hnorm): (Strided<'_>, At<'_>),
        (out, ldo): (Strided<'_>, i32),
        (rows, dim): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        c.size("rows", rows)?;
        let lde = c.rows("e", &e, rows, dim, 4)?;
        let ldh = c.rows("h", &h, rows, dim, 4)?;
        c.fits("enorm", enorm, dim, 4)?;
        c.fits("hnorm", hnorm, dim, 4)?;
        let items = match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => dim.next_multiple_of(32).div_ceil(2).next_multiple_of(16).clamp(16, 256),
        };
        queue.cost((2 * rows + 1) * 2 * dim * 4, 8 * rows * dim);
        Ok(queue.launch(
            kernel,
            [2 * rows * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(e.buffer, e.offset),
                Arg::Buffer(enorm.0, enorm.1),
                Arg::Buffer(h.buffer, h.offset),
                Arg::Buffer(hnorm.0, hnorm.1),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(c.size("dim", dim)?),
                Arg::I32(lde),
                Arg::I32(ldh),
                Arg::I32(ldo),
                Arg::F32(eps),
            ],
        )?)
    }
}

/// Work-groups of a row of the joining, and their size.
fn shared_row(class: DeviceClass, cols: usize) -> (usize, usize) {
    let blocks = cols.div_ceil(32);
    match class {
        DeviceClass::Cpu => (if blocks >= 32 { 2 } else { 1 }, 16),
        DeviceClass::Gpu => (blocks.div_ceil(4).clamp(1, 64), 64),
    }
}
