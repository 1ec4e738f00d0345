//! Gated DeltaNet: short convolution, gates, the recurrence, the gated norm.
//!
//! A layer's product of a row is `[qkv C | z Hv*128 | alpha Hv | beta Hv]` ([`Shape::product_cols`]). From it the convolution makes
//! the row's *mix*, `[q Hk*128 | k Hk*128 | v Hv*128 | g Hv | beta Hv]` ([`Shape::mix_cols`]): q and k with norm 1, q also divided by
//! sqrt(128), g the logarithm of the decay, beta after its sigmoid. The recurrence reads mixes only.
//!
//! Decode rows: [`Delta::conv_rows`], [`Delta::recur_rows`], [`Delta::norm_act`]. Prompt chunks: [`Delta::conv_chunk`],
//! [`Delta::recur_chunk`], [`Delta::norm`]. A row's numbers are the same bit for bit in all of them, whatever rows it runs with.
//!
//! What a session has in each layer:
//! - a *state*, [`Shape::state_floats`] values: `[Hv][128 / 16][128 keys][16 values]` (value column 16 b + i of key row k at
//!   `[h][b][k][i]`), zero at the start,
//! - a *conv history*, [`Shape::history_floats`] values: qkv columns of the last three rows, `[3][C]`, the newest last, zero at the
//!   start; it has the same slot numbers as the state,
//! - *kept rows* of a decode pass, [`Shape::kept_floats`]: a row has its qkv columns and its mix, `[C | mix]`.

use std::path::Path;

use ns_llm_kernels::{At, Check, Result, Strided};
use ns_sycl::{Arg, Device, DeviceClass, Kernel, Queue};

use super::{ROW_SLOTS, Slots};

/// Width of a DeltaNet head.
pub const HEAD: usize = 128;
/// Taps of the short convolution.
pub const TAPS: usize = 4;
/// Value columns of one block of a state.
const COLUMNS: usize = 16;

/// Heads of a DeltaNet layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Key heads Hk.
    pub key_heads: usize,
    /// Value heads Hv, a multiple of Hk: value head h uses key head h mod Hk.
    pub value_heads: usize,
}

impl Shape {
    /// Channels C of the convolution: queries, keys, values.
    #[must_use]
    pub const fn channels(self) -> usize {
        (2 * self.key_heads + self.value_heads) * HEAD
    }

    /// Values of all value heads.
    #[must_use]
    pub const fn value_cols(self) -> usize {
        self.value_heads * HEAD
    }

    /// Columns of a row's product.
    #[must_use]
    pub const fn product_cols(self) -> usize {
        self.channels() + self.value_cols() + 2 * self.value_heads
    }

    /// Columns of a row's mix.
    #[must_use]
    pub const fn mix_cols(self) -> usize {
        self.channels() + 2 * self.value_heads
    }

    /// Values of a state.
    #[must_use]
    pub const fn state_floats(self) -> usize {
        self.value_heads * HEAD * HEAD
    }

    /// Values of a conv history.
    #[must_use]
    pub const fn history_floats(self) -> usize {
        (TAPS - 1) * self.channels()
    }

    /// Values of a kept slot for passes of up to `rows` rows of a session.
    #[must_use]
    pub const fn kept_floats(self, rows: usize) -> usize {
        rows * (self.channels() + self.mix_cols())
    }

    fn check(self, c: Check) -> Result<(i32, i32)> {
        c.that(
            self.key_heads > 0 && self.value_heads > 0 && self.value_heads.is_multiple_of(self.key_heads),
            &format!("{} value heads cannot share {} key heads", self.value_heads, self.key_heads),
        )?;
        Ok((c.size("key_heads", self.key_heads)?, c.size("value_heads", self.value_heads)?))
    }
}

/// Bytes and operations of [`Delta::recur_rows`] or [`Delta::recur_chunk`]: each of `sessions` states is read and written once, each
/// of `rows` rows in all decays it, predicts and corrects a value, and reads it out.
#[must_use]
pub const fn recur_cost(shape: Shape, sessions: usize, rows: usize) -> (usize, usize) {
    let floats = 2 * sessions * shape.state_floats() + rows * (shape.mix_cols() + shape.value_cols());
    (floats * 4, 7 * rows * shape.state_floats())
}

/// The file's taps `[C][4]` as [`Taps::conv`] wants them, `[4][C]`.
#[must_use]
pub fn conv_taps(file: &[f32]) -> Vec<f32> {
    let channels = file.len() / TAPS;
    (0..TAPS * channels).map(|i| file[i % channels * TAPS + i / channels]).collect()
}

/// The small tensors of a layer that the convolution needs, float32.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    /// `ssm_conv1d`, transposed by [`conv_taps`]: `[4][C]`, the last for the current row.
    pub conv: At<'a>,
    /// `ssm_a`, `[Hv]`.
    pub a: At<'a>,
    /// `ssm_dt.bias`, `[Hv]`.
    pub dt_bias: At<'a>,
}

/// The kernels of module `delta`.
pub struct Delta {
    class: DeviceClass,
    conv_rows: Kernel,
    recur_rows: Kernel,
    conv_chunk: Kernel,
    conv_history: Kernel,
    recur_chunk: Kernel,
    norm_act: Kernel,
    norm: Kernel,
}

fn groups(count: usize, local: usize) -> ([usize; 3], [usize; 3]) {
    ([count * local, 1, 1], [local, 1, 1])
}

impl Delta {
    pub(super) fn load(device: &Device, dir: &Path) -> Result<Self> {
        let m = device.load_module(dir, "delta")?;
        Ok(Self {
            class: device.class(),
            conv_rows: m.kernel("conv_rows")?,
            recur_rows: m.kernel("recur_rows")?,
            conv_chunk: m.kernel("conv_chunk")?,
            conv_history: m.kernel("conv_history")?,
            recur_chunk: m.kernel("recur_chunk")?,
            norm_act: m.kernel("norm_act")?,
            norm: m.kernel("norm")?,
        })
    }

    /// Convolution, norms and gates of decode rows. Reads the rows' products and, for rows that are run again, the kept rows;
    /// writes the mixes into the kept slots and the conv histories as the table says. `rows` entries of the table are read;
    /// `product` may be any block while all entries have `rows` = 0. Up to `kept_rows` rows of a session.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn conv_rows(
        &self,
        queue: &Queue,
        product: Strided<'_>,
        taps: &Taps<'_>,
        history: &Slots<'_>,
        (kept, kept_rows): (&Slots<'_>, usize),
        table: At<'_>,
        shape: Shape,
        rows: usize,
    ) -> Result<()> {
        let c = Check("conv_rows");
        let n = c.size("rows", rows)?;
        let (hk, hv) = shape.check(c)?;
        let ld = c.rows("product", &product, rows, shape.product_cols(), 4)?;
        check_taps(c, taps, shape)?;
        let history_stride = history.check(c, "the conv histories", shape.history_floats())?;
        let kept_stride = kept.check(c, "the kept rows", shape.kept_floats(kept_rows))?;
        c.fits("the slot table", table, rows.saturating_mul(ROW_SLOTS / 4), 4)?;
        // a sub-group a head, and one for the gates
        let (global, local) = groups(self.sessions(rows) * (shape.channels() / HEAD + 1), 16);
        let (channels, gates) = (shape.channels(), 2 * shape.value_heads);
        let floats = rows * (2 * channels + gates + shape.mix_cols()) + 2 * shape.history_floats();
        queue.cost(floats * 4, rows * (2 * TAPS + 10) * channels);
        Ok(queue.launch(
            &self.conv_rows,
            global,
            local,
            &[
                Arg::Buffer(product.buffer, product.offset),
                Arg::Buffer(taps.conv.0, taps.conv.1),
                Arg::Buffer(taps.a.0, taps.a.1),
                Arg::Buffer(taps.dt_bias.0, taps.dt_bias.1),
                Arg::Buffer(history.buffer, history.offset),
                Arg::Buffer(kept.buffer, kept.offset),
                Arg::Buffer(table.0, table.1),
                Arg::I32(ld),
                Arg::I64(history_stride),
                Arg::I64(kept_stride),
                Arg::I32(n),
                Arg::I32(hk),
                Arg::I32(hv),
            ],
        )?)
    }

    /// The recurrence of decode rows, after [`Delta::conv_rows`] with the same table: reads the mixes from the kept slots and the
    /// states, writes the states as the table says and each row's outputs `[Hv*128]` to `out`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn recur_rows(
        &self,
        queue: &Queue,
        (kept, kept_rows): (&Slots<'_>, usize),
        states: &Slots<'_>,
        table: At<'_>,
        out: Strided<'_>,
        shape: Shape,
        rows: usize,
    ) -> Result<()> {
        let c = Check("recur_rows");
        let n = c.size("rows", rows)?;
        let (hk, hv) = shape.check(c)?;
        let kept_stride = kept.check(c, "the kept rows", shape.kept_floats(kept_rows))?;
        let state_stride = states.check(c, "the states", shape.state_floats())?;
        c.fits("the slot table", table, rows.saturating_mul(ROW_SLOTS / 4), 4)?;
        let ldo = c.rows("out", &out, rows, shape.value_cols(), 4)?;
        let (global, local) = groups(self.sessions(rows) * self.state_groups(shape), self.state_items());
        let (bytes, operations) = recur_cost(shape, 1, rows);
        queue.cost(bytes, operations);
        Ok(queue.launch(
            &self.recur_rows,
            global,
            local,
            &[
                Arg::Buffer(kept.buffer, kept.offset),
                Arg::Buffer(states.buffer, states.offset),
                Arg::Buffer(table.0, table.1),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I64(kept_stride),
                Arg::I64(state_stride),
                Arg::I32(ldo),
                Arg::I32(n),
                Arg::I32(hk),
                Arg::I32(hv),
            ],
        )?)
    }

    /// Convolution, norms and gates of a chunk of one session. Continues the conv history in slot `from`, writes the rows' mixes,
    /// and leaves the history in slot `to` (which may be `from`). The slot must be settled (see [`super::RowSlots`]).
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn conv_chunk(
        &self,
        queue: &Queue,
        product: Strided<'_>,
        taps: &Taps<'_>,
        history: &Slots<'_>,
        (from, to): (usize, usize),
        mix: Strided<'_>,
        shape: Shape,
        rows: usize,
    ) -> Result<()> {
        let c = Check("conv_chunk");
        let n = c.size("rows", rows)?;
        let (hk, hv) = shape.check(c)?;
        let ld = c.rows("product", &product, rows, shape.product_cols(), 4)?;
        check_taps(c, taps, shape)?;
        let stride = history.check(c, "the conv histories", shape.history_floats())?;
        let (from, to) = (history.slot(c, "history", from)?, history.slot(c, "history", to)?);
        let ldm = c.rows("mix", &mix, rows, shape.mix_cols(), 4)?;
        let (global, local) = groups(rows.div_ceil(CONV_ROWS) * (shape.channels() / HEAD + 1), 16);
        let floats = rows * (shape.channels() + 2 * shape.value_heads + shape.mix_cols()) + shape.history_floats();
        queue.cost(floats * 4, rows * (2 * TAPS + 10) * shape.channels());
        queue.launch(
            &self.conv_chunk,
            global,
            local,
            &[
                Arg::Buffer(product.buffer, product.offset),
                Arg::Buffer(taps.conv.0, taps.conv.1),
                Arg::Buffer(taps.a.0, taps.a.1),
                Arg::Buffer(taps.dt_bias.0, taps.dt_bias.1),
                Arg::Buffer(history.buffer, history.offset),
                Arg::Buffer(mix.buffer, mix.offset),
                Arg::I32(ld),
                Arg::I32(ldm),
                Arg::I64(stride * i64::from(from)),
                Arg::I32(n),
                Arg::I32(hk),
                Arg::I32(hv),
            ],
        )?;
        let (global, local) = groups(shape.channels() / HEAD, 16);
        queue.cost(shape.history_floats() * 8, 0);
        Ok(queue.launch(
            &self.conv_history,
            global,
            local,
            &[
                Arg::Buffer(product.buffer, product.offset),
                Arg::Buffer(history.buffer, history.offset),
                Arg::I32(ld),
                Arg::I64(stride * i64::from(from)),
                Arg::I64(stride * i64::from(to)),
                Arg::I32(n),
                Arg::I32(c.int("channels", shape.channels())?),
            ],
        )?)
    }

    /// The recurrence over a chunk of one session, after [`Delta::conv_chunk`]: from state slot `from` to slot `to` (which may be
    /// `from`), each row's outputs `[Hv*128]` to `out`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn recur_chunk(
        &self,
        queue: &Queue,
        mix: Strided<'_>,
        states: &Slots<'_>,
        (from, to): (usize, usize),
        out: Strided<'_>,
        shape: Shape,
        rows: usize,
    ) -> Result<()> {
        let c = Check("recur_chunk");
        let n = c.size("rows", rows)?;
        let (hk, hv) = shape.check(c)?;
        let ldm = c.rows("mix", &mix, rows, shape.mix_cols(), 4)?;
        let stride = states.check(c, "the states", shape.state_floats())?;
        let (from, to) = (states.slot(c, "states", from)?, states.slot(c, "states", to)?);
        let ldo = c.rows("out", &out, rows, shape.value_cols(), 4)?;
        let (global, local) = groups(self.state_groups(shape) / chunk_blocks(self.class), self.state_items());
        let (bytes, operations) = recur_cost(shape, 1, rows);
        queue.cost(bytes, operations);
        Ok(queue.launch(
            &self.recur_chunk,
            global,
            local,
            &[
                Arg::Buffer(mix.buffer, mix.offset),
                Arg::Buffer(states.buffer, states.offset),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(ldm),
                Arg::I64(stride * i64::from(from)),
                Arg::I64(stride * i64::from(to)),
                Arg::I32(ldo),
                Arg::I32(n),
                Arg::I32(hk),
                Arg::I32(hv),
            ],
        )?)
    }

    /// `rms(o; eps) * weight * silu(z)` of each value head as activation rows of `Hv*128` values: the input of `ssm_out`.
    /// `out` from the recurrence, z from the rows' products, `weight` = `ssm_norm` `[128]`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn norm_act(
        &self,
        queue: &Queue,
        out: Strided<'_>,
        product: Strided<'_>,
        weight: At<'_>,
        act: Strided<'_>,
        shape: Shape,
        rows: usize,
        eps: f32,
    ) -> Result<()> {
        let c = Check("norm_act");
        let (ldo, ld, hv) = check_norm(c, &out, &product, weight, shape, rows)?;
        let stride = c.act("act", &act, rows, shape.value_cols(), self.class)?;
        self.launch_norm(queue, &self.norm_act, out, product, weight, act, (ldo, ld, stride), hv, shape, rows, eps)
    }

    /// [`Delta::norm_act`] as float32 rows; `y` may be `out`.
    ///
    /// # Errors
    /// As there.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn norm(
        &self,
        queue: &Queue,
        out: Strided<'_>,
        product: Strided<'_>,
        weight: At<'_>,
        y: Strided<'_>,
        shape: Shape,
        rows: usize,
        eps: f32,
    ) -> Result<()> {
        let c = Check("norm");
        let (ldo, ld, hv) = check_norm(c, &out, &product, weight, shape, rows)?;
        let ldy = c.rows("y", &y, rows, shape.value_cols(), 4)?;
        self.launch_norm(queue, &self.norm, out, product, weight, y, (ldo, ld, ldy), hv, shape, rows, eps)
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    fn launch_norm(
        &self,
        queue: &Queue,
        kernel: &Kernel,
        out: Strided<'_>,
        product: Strided<'_>,
        weight: At<'_>,
        y: Strided<'_>,
        (ldo, ld, ldy): (i32, i32, i32),
        hv: i32,
        shape: Shape,
        rows: usize,
        eps: f32,
    ) -> Result<()> {
        queue.cost(rows * shape.value_cols() * 12, 9 * rows * shape.value_cols());
        let z = product.offset + shape.channels() * 4;
        let (global, local) = groups(rows * shape.value_heads, 16);
        Ok(queue.launch(
            kernel,
            global,
            local,
            &[
                Arg::Buffer(out.buffer, out.offset),
                Arg::Buffer(product.buffer, z),
                Arg::Buffer(weight.0, weight.1),
                Arg::Buffer(y.buffer, y.offset),
                Arg::I32(ldo),
                Arg::I32(ld),
                Arg::I32(ldy),
                Arg::I32(hv),
                Arg::F32(eps),
            ],
        )?)
    }

    /// Sessions that are worked on at a time. A work-group without work costs the CPU as much as a little of it.
    fn sessions(&self, rows: usize) -> usize {
        match self.class {
            DeviceClass::Cpu => 1,
            DeviceClass::Gpu => rows,
        }
    }

    /// Work-groups of a state: one a head and block of value columns.
    fn state_groups(&self, shape: Shape) -> usize {
        shape.value_heads * (HEAD / COLUMNS)
    }

    /// On a card four sub-groups share a block of columns; on the CPU one has all of it.
    fn state_items(&self) -> usize {
        match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => 64,
        }
    }
}

/// Blocks of a state that a work-group of a chunk takes, as compiled into the kernel.
const fn chunk_blocks(class: DeviceClass) -> usize {
    match class {
        DeviceClass::Cpu => 4,
        DeviceClass::Gpu => 1,
    }
}

/// Rows of a chunk that one sub-group convolves, as compiled into the kernel.
const CONV_ROWS: usize = 32;

fn check_taps(c: Check, taps: &Taps<'_>, shape: Shape) -> Result<()> {
    c.fits("the taps", taps.conv, TAPS * shape.channels(), 4)?;
    c.fits("a", taps.a, shape.value_heads, 4)?;
    c.fits("dt_bias", taps.dt_bias, shape.value_heads, 4)
}

fn check_norm(
    c: Check,
    out: &Strided<'_>,
    product: &Strided<'_>,
    weight: At<'_>,
    shape: Shape,
    rows: usize,
) -> Result<(i32, i32, i32)> {
    c.size("rows", rows)?;
    let (_, hv) = shape.check(c)?;
    let ldo = c.rows("out", out, rows, shape.value_cols(), 4)?;
    let ld = c.rows("product", product, rows, shape.product_cols(), 4)?;
    c.fits("the norm's weight", weight, HEAD, 4)?;
    Ok((ldo, ld, hv))
}
