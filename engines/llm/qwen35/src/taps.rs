//! Intermediate tensors of a pass for a reader on the host, under llama.cpp's graph names. Each read ends the pass's
//! asynchrony. What the kernels keep in another form only (the convolution before its norms) is computed here.

use crate::kernels::delta::TAPS;
use crate::passes::Pass;
use crate::weights::{Delta, Full};
use ns_llm::Tap;
use ns_llm_kernels::Result;
use ns_llm_kernels::attention::{CELL_ALIGN, Chunk, KvPrecision};
use ns_sycl::Buffer;

/// Receives intermediate tensors.
pub type TapFunction<'a> = &'a mut dyn FnMut(Tap<'_>);

impl Pass<'_> {
    /// A norm's rows, computed for the tap alone.
    pub(crate) fn norm_tap(
        &self,
        name: &str,
        layer: usize,
        w: &Buffer,
        rows: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        if tap.is_none() {
            return Ok(());
        }
        let d = self.d();
        self.kernels.rows.rms_norm(self.queue, self.x(), (w, 0), self.h(), (rows, d), self.p.rms_eps)?;
        self.tap(name, layer, &self.work.h, rows, d, 0..d, tap)
    }

    /// Hands columns of a buffer's rows to the tap; a layer of `usize::MAX` is none.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn tap(
        &self,
        name: &str,
        layer: usize,
        buffer: &Buffer,
        rows: usize,
        width: usize,
        columns: std::ops::Range<usize>,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let Some(tap) = tap else { return Ok(()) };
        let all: Vec<f32> = self.queue.read_vec(buffer, 0, rows * width)?;
        let values: Vec<f32> = all.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect();
        tap(Tap { name, layer: (layer != usize::MAX).then_some(layer), columns: columns.len(), values: &values });
        Ok(())
    }

    /// The conv history of a slot.
    pub(crate) fn read_history(&self, delta: &Delta, slot: usize) -> Result<Vec<f32>> {
        let history = self.layer_slots(delta).1;
        let at = history.offset + slot * history.stride;
        Ok(self.queue.read_vec(history.buffer, at, self.p.shape().history_floats())?)
    }

    /// What the convolution gives before the norms, and the gates; `history` is that of before the rows.
    pub(crate) fn convolution_taps(
        &self,
        index: usize,
        rows: usize,
        history: &[f32],
        delta: &Delta,
        tap: TapFunction<'_>,
    ) -> Result<()> {
        let shape = self.p.shape();
        let (c, ld, hv) = (shape.channels(), self.p.product_columns(), shape.value_heads);
        let taps: Vec<f32> = self.queue.read_vec(&delta.conv, 0, TAPS * c)?;
        let product: Vec<f32> = self.queue.read_vec(&self.work.product, 0, rows * ld)?;
        let row = |r: usize, ch: usize| match r.checked_sub(TAPS - 1) {
            Some(own) => product[own * ld + ch],
            None => history[r * c + ch],
        };
        let mut out = vec![0.0_f32; rows * c];
        for (i, value) in out.iter_mut().enumerate() {
            let (r, ch) = (i / c, i % c);
            let sum: f32 = (0..TAPS).map(|j| taps[j * c + ch] * row(r + j, ch)).sum();
            *value = sum / (1.0 + (-sum).exp());
        }
        tap(Tap { name: "conv_output_silu", layer: Some(index), columns: c, values: &out });
        let (ld, mut tap) = (shape.mix_cols(), Some(tap));
        self.tap("gate", index, &self.work.mix, rows, ld, c..c + hv, &mut tap)?;
        self.tap("beta_sigmoid", index, &self.work.mix, rows, ld, c + hv..c + 2 * hv, &mut tap)
    }

    /// The chunk's keys as the cache has them, where it has floats.
    pub(crate) fn key_tap(
        &self,
        chunk: Chunk,
        full: &Full,
        index: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let (d, n_kv) = (self.p.head_dim, self.p.n_kv);
        let cache = self.cache(full.cache_layer);
        let end = (chunk.position + chunk.rows).next_multiple_of(CELL_ALIGN);
        let mut keys = vec![0.0_f32; chunk.rows * n_kv * d];
        for head in 0..n_kv {
            let first = cache.layer_offset(self.p.heads()) as usize + (head * cache.cells + chunk.first_cell) * d;
            let cells: Vec<f32> = match cache.precision {
                KvPrecision::F32 => self.queue.read_vec(self.kv, first * 4, end * d)?,
                KvPrecision::F16 => {
                    let halves: Vec<u16> = self.queue.read_vec(self.kv, first * 2, end * d)?;
                    halves.into_iter().map(half).collect()
                }
                KvPrecision::Q8 => return Ok(()),
            };
            for row in 0..chunk.rows {
                let cell = chunk.position + row;
                let block = cell / CELL_ALIGN * CELL_ALIGN * d + cell % CELL_ALIGN;
                for i in 0..d {
                    keys[(row * n_kv + head) * d + i] = cells[block + i * CELL_ALIGN];
                }
            }
        }
        if let Some(tap) = tap {
            tap(Tap { name: "Kcur", layer: Some(index), columns: n_kv * d, values: &keys });
        }
        Ok(())
    }
}

/// A half-precision number.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0_f32 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2.0_f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        e => sign * (1.0 + fraction / 1024.0) * 2.0_f32.powi(e - 15),
    }
}
