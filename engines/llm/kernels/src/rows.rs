//! Norms, activation rows, SwiGLU, rotary embedding with the cache store, element-wise kernels.

use std::path::Path;

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Kernel, Queue};

use crate::attention::{Cache, Heads};
use crate::check::{Check, Strided};
use crate::{At, Result};

/// Bytes of a row's entry in the row table.
pub const ROW_STATE: usize = 32;

/// One entry of the row table that a pass reads from device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowState {
    /// The row's token.
    pub token: u32,
    /// Cell of the session that the row is stored in. Must be inside the session's cells, and below 2^24.
    pub position: u32,
    /// First cell of the session times the head width: a multiple of 16 heads, inside the cache.
    pub kv_offset: u64,
    /// Whether the row's results are used.
    pub active: bool,
    /// Which of a position's uniforms draws the token.
    pub draw_stream: u32,
    /// Seed of the draws.
    pub seed: u64,
}

impl RowState {
    /// Its bytes in the table.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ROW_STATE] {
        let mut b = [0; ROW_STATE];
        b[0..4].copy_from_slice(&self.token.to_le_bytes());
        b[4..8].copy_from_slice(&self.position.to_le_bytes());
        b[8..16].copy_from_slice(&self.kv_offset.to_le_bytes());
        b[16..20].copy_from_slice(&u32::from(self.active).to_le_bytes());
        b[20..24].copy_from_slice(&self.draw_stream.to_le_bytes());
        b[24..32].copy_from_slice(&self.seed.to_le_bytes());
        b
    }
}

/// How a head's values are paired for the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Values 2j and 2j + 1.
    Adjacent,
    /// Values j and j + `rot_dim` / 2.
    Neox,
}

/// Rotation of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// Pairing.
    pub pairs: RopePairs,
    /// Rotated values of a head; even.
    pub rot_dim: usize,
    /// Angle per position of each pair: float32, `rot_dim / 2` of them.
    pub inv_freq: At<'a>,
    /// Factor on the rotated values (YaRN); 1 otherwise.
    pub attn_factor: f32,
}

/// The kernels of module `rows`.
pub struct Rows {
    class: DeviceClass,
    rms_norm: Kernel,
    rms_norm_act: Kernel,
    to_act: Kernel,
    swiglu_act: Kernel,
    swiglu: Kernel,
    rope_store: [[Kernel; 3]; 2],
    add: Kernel,
    convert_f16: Kernel,
    convert_rows_f16: Kernel,
}

/// Work-items of a row: all of it in one sub-group on the CPU, where a barrier costs more than the row.
fn row_items(class: DeviceClass, cols: usize) -> usize {
    match class {
        DeviceClass::Cpu => 16,
        DeviceClass::Gpu => cols.next_multiple_of(32).div_ceil(2).next_multiple_of(16).clamp(16, 256),
    }
}

/// Work-groups of a row of SwiGLU or the joining of attention pieces, and their size.
pub(crate) fn shared_row(class: DeviceClass, cols: usize) -> (usize, usize) {
    let blocks = cols.div_ceil(32);
    match class {
        DeviceClass::Cpu => (if blocks >= 32 { 2 } else { 1 }, 16),
        DeviceClass::Gpu => (blocks.div_ceil(4).clamp(1, 64), 64),
    }
}

/// Global and local size of an element-wise kernel.
fn elements(class: DeviceClass, n: usize) -> ([usize; 3], [usize; 3]) {
    let (local, most) = match class {
        DeviceClass::Cpu => (64, 8),
        DeviceClass::Gpu => (256, 1024),
    };
    ([n.div_ceil(4 * local).clamp(1, most) * local, 1, 1], [local, 1, 1])
}

fn groups(count: usize, local: usize) -> ([usize; 3], [usize; 3]) {
    ([count * local, 1, 1], [local, 1, 1])
}

impl Rows {
    pub(crate) fn load(device: &Device, dir: &Path) -> Result<Self> {
        let m = device.load_module(dir, "rows")?;
        let rope = |pairs: &str| -> Result<[Kernel; 3]> {
            let of = |precision: &str| m.kernel(&format!("rope_store_{pairs}_{precision}"));
            Ok([of("kv16")?, of("kv32")?, of("kv8")?])
        };
        Ok(Self {
            class: device.class(),
            rms_norm: m.kernel("rms_norm")?,
            rms_norm_act: m.kernel("rms_norm_act")?,
            to_act: m.kernel("to_act")?,
            swiglu_act: m.kernel("swiglu_act")?,
            swiglu: m.kernel("swiglu")?,
            rope_store: [rope("adjacent")?, rope("neox")?],
            add: m.kernel("add")?,
            convert_f16: m.kernel("convert_f16")?,
            convert_rows_f16: m.kernel("convert_rows_f16")?,
        })
    }

    /// `out = x / sqrt(mean(x^2) + eps) * w` for each row of `dim` values.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn rms_norm(
        &self,
        queue: &Queue,
        x: Strided<'_>,
        w: At<'_>,
        out: Strided<'_>,
        (rows, dim): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        let c = Check("rms_norm");
        c.size("rows", rows)?;
        let ldx = c.rows("x", &x, rows, dim, 4)?;
        c.fits("w", w, dim, 4)?;
        let ldo = c.rows("out", &out, rows, dim, 4)?;
        let (global, local) = groups(rows, row_items(self.class, dim));
        queue.cost((2 * rows + 1) * dim * 4, 4 * rows * dim);
        Ok(queue.launch(
            &self.rms_norm,
            global,
            local,
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(w.0, w.1),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(c.size("dim", dim)?),
                Arg::I32(ldx),
                Arg::I32(ldo),
                Arg::F32(eps),
            ],
        )?)
    }

    /// [`Rows::rms_norm`] into activation rows.
    ///
    /// # Errors
    /// As there.
    pub fn rms_norm_act(
        &self,
        queue: &Queue,
        x: Strided<'_>,
        w: At<'_>,
        act: Strided<'_>,
        (rows, dim): (usize, usize),
        eps: f32,
    ) -> Result<()> {
        let c = Check("rms_norm_act");
        c.size("rows", rows)?;
        let ldx = c.rows("x", &x, rows, dim, 4)?;
        c.fits("w", w, dim, 4)?;
        let stride = c.act("act", &act, rows, dim, self.class)?;
        let (global, local) = groups(rows, row_items(self.class, dim));
        queue.cost((rows + 1) * dim * 4 + rows * act.ld, 7 * rows * dim);
        Ok(queue.launch(
            &self.rms_norm_act,
            global,
            local,
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(w.0, w.1),
                Arg::Buffer(act.buffer, act.offset),
                Arg::I32(c.size("dim", dim)?),
                Arg::I32(ldx),
                Arg::I32(stride),
                Arg::F32(eps),
            ],
        )?)
    }

    /// Rows as activation rows.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn to_act(&self, queue: &Queue, x: Strided<'_>, act: Strided<'_>, (rows, dim): (usize, usize)) -> Result<()> {
        let c = Check("to_act");
        c.size("rows", rows)?;
        let ldx = c.rows("x", &x, rows, dim, 4)?;
        let stride = c.act("act", &act, rows, dim, self.class)?;
        let (global, local) = groups(rows, row_items(self.class, dim));
        queue.cost(rows * (dim * 4 + act.ld), 3 * rows * dim);
        Ok(queue.launch(
            &self.to_act,
            global,
            local,
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(act.buffer, act.offset),
                Arg::I32(c.size("dim", dim)?),
                Arg::I32(ldx),
                Arg::I32(stride),
            ],
        )?)
    }

    /// `silu(gate) * up` as activation rows; gate is the first `n_ff` columns of a row, up the next.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn swiglu_act(
        &self,
        queue: &Queue,
        gate_up: Strided<'_>,
        act: Strided<'_>,
        (rows, n_ff): (usize, usize),
    ) -> Result<()> {
        let c = Check("swiglu_act");
        let count = c.size("rows", rows)?;
        let ldx = c.rows("gate_up", &gate_up, rows, n_ff.saturating_mul(2), 4)?;
        let stride = c.act("act", &act, rows, n_ff, self.class)?;
        let (parts, items) = shared_row(self.class, n_ff);
        let (global, local) = groups(rows * parts, items);
        queue.cost(rows * (n_ff * 8 + act.ld), 9 * rows * n_ff);
        Ok(queue.launch(
            &self.swiglu_act,
            global,
            local,
            &[
                Arg::Buffer(gate_up.buffer, gate_up.offset),
                Arg::Buffer(act.buffer, act.offset),
                Arg::I32(c.size("n_ff", n_ff)?),
                Arg::I32(ldx),
                Arg::I32(stride),
                Arg::I32(count),
            ],
        )?)
    }

    /// `silu(gate) * up` as float32 rows.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn swiglu(
        &self,
        queue: &Queue,
        gate_up: Strided<'_>,
        out: Strided<'_>,
        (rows, n_ff): (usize, usize),
    ) -> Result<()> {
        let c = Check("swiglu");
        c.size("rows", rows)?;
        let ldx = c.rows("gate_up", &gate_up, rows, n_ff.saturating_mul(2), 4)?;
        let ldo = c.rows("out", &out, rows, n_ff, 4)?;
        let (global, local) = groups(rows, row_items(self.class, n_ff));
        queue.cost(rows * n_ff * 12, 6 * rows * n_ff);
        Ok(queue.launch(
            &self.swiglu,
            global,
            local,
            &[
                Arg::Buffer(gate_up.buffer, gate_up.offset),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(c.size("n_ff", n_ff)?),
                Arg::I32(ldx),
                Arg::I32(ldo),
            ],
        )?)
    }

    /// Rotates the queries of each row in place, and stores its rotated keys and its values in the cache.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn rope_store(
        &self,
        queue: &Queue,
        qkv: Strided<'_>,
        cache: &Cache<'_>,
        row_state: At<'_>,
        rope: &Rope<'_>,
        heads: Heads,
        rows: usize,
    ) -> Result<()> {
        let c = Check("rope_store");
        c.size("rows", rows)?;
        heads.check(c)?;
        let columns = (heads.n_heads + 2 * heads.n_kv).saturating_mul(heads.head_dim);
        let ld = c.rows("qkv", &qkv, rows, columns, 4)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        c.that(
            rope.rot_dim.is_multiple_of(2) && rope.rot_dim <= heads.head_dim,
            &format!("rot_dim is {}: it must be even and at most the head's {}", rope.rot_dim, heads.head_dim),
        )?;
        c.fits("inv_freq", rope.inv_freq, rope.rot_dim / 2, 4)?;
        cache.check(c, heads)?;
        let pairs = usize::from(rope.pairs == RopePairs::Neox);
        let items = match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => 16 * (heads.n_heads + 2 * heads.n_kv).min(16),
        };
        let (global, local) = groups(rows, items);
        let queries = heads.n_heads * heads.head_dim;
        let stored = cache.precision.size(rows * (columns - queries));
        queue.cost(rows * (columns + queries) * 4 + stored, 6 * rows * columns);
        Ok(queue.launch(
            &self.rope_store[pairs][cache.precision.index()],
            global,
            local,
            &[
                Arg::Buffer(qkv.buffer, qkv.offset),
                Arg::Buffer(cache.buffer, 0),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(rope.inv_freq.0, rope.inv_freq.1),
                Arg::I32(ld),
                Arg::I32(c.size("n_heads", heads.n_heads)?),
                Arg::I32(c.size("n_kv", heads.n_kv)?),
                Arg::I32(c.size("head_dim", heads.head_dim)?),
                Arg::I32(c.int("rot_dim", rope.rot_dim)?),
                Arg::I64(cache.layer_offset(heads)),
                Arg::I32(c.size("cells", cache.cells)?),
                Arg::F32(rope.attn_factor),
            ],
        )?)
    }

    /// `x += y` over `n` values.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn add(&self, queue: &Queue, x: At<'_>, y: At<'_>, n: usize) -> Result<()> {
        let c = Check("add");
        c.size("n", n)?;
        c.fits("x", x, n, 4)?;
        c.fits("y", y, n, 4)?;
        let (global, local) = elements(self.class, n);
        let args = [Arg::Buffer(x.0, x.1), Arg::Buffer(y.0, y.1), Arg::I64(n as i64)];
        queue.cost(12 * n, n);
        Ok(queue.launch(&self.add, global, local, &args)?)
    }

    /// `n` values rounded to half.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn convert_f16(&self, queue: &Queue, x: At<'_>, out: At<'_>, n: usize) -> Result<()> {
        let c = Check("convert_f16");
        c.size("n", n)?;
        c.fits("x", x, n, 4)?;
        c.fits("out", out, n, 2)?;
        let (global, local) = elements(self.class, n);
        let args = [Arg::Buffer(x.0, x.1), Arg::Buffer(out.0, out.1), Arg::I64(n as i64)];
        queue.cost(6 * n, n);
        Ok(queue.launch(&self.convert_f16, global, local, &args)?)
    }

    /// Rows rounded to half, side by side without gaps.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn convert_rows_f16(
        &self,
        queue: &Queue,
        x: Strided<'_>,
        out: At<'_>,
        (rows, cols): (usize, usize),
    ) -> Result<()> {
        let c = Check("convert_rows_f16");
        c.size("rows", rows)?;
        let ldx = c.rows("x", &x, rows, cols, 4)?;
        c.fits("out", out, rows.saturating_mul(cols), 2)?;
        let (global, local) = groups(rows, row_items(self.class, cols));
        queue.cost(6 * rows * cols, rows * cols);
        Ok(queue.launch(
            &self.convert_rows_f16,
            global,
            local,
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(out.0, out.1),
                Arg::I32(c.size("cols", cols)?),
                Arg::I32(ldx),
            ],
        )?)
    }
}

/// Writes row states to a table.
///
/// # Errors
/// The table is too small, or the driver failed.
pub fn write_states(queue: &Queue, table: &Buffer, offset: usize, states: &[RowState]) -> Result<()> {
    let bytes: Vec<u8> = states.iter().flat_map(RowState::to_bytes).collect();
    Ok(queue.write(table, offset, &bytes)?)
}
