//! The kernels of a pass, in order. A decode pass has up to eight rows of any sessions and gives a row the same bits
//! whatever rows it runs with; a prompt pass has many rows of one session.

use crate::params::Params;
use crate::weights::{Fused, Layer, Weights};
use crate::work::{Sizes, Work, heads};
use ns_llm::Tap;
use ns_llm_kernels::attention::{Cache, Chunk, KvPrecision, split_cost};
use ns_llm_kernels::product::Products;
use ns_llm_kernels::rows::{ROW_STATE, Rope, RopePairs};
use ns_llm_kernels::{At, Kernels, Result, Strided, at};
use ns_sycl::{Buffer, Queue};

/// Receives intermediate tensors; ends a pass's asynchrony.
pub type TapFunction<'a> = &'a mut dyn FnMut(Tap<'_>);

/// What every kernel of a pass needs.
pub struct Pass<'a> {
    /// Dimensions.
    pub p: &'a Params,
    /// Buffer sizes.
    pub sizes: &'a Sizes,
    /// Kernels of the device.
    pub kernels: &'a Kernels,
    /// Prompt products.
    pub products: &'a Products,
    /// Where commands go.
    pub queue: &'a Queue,
    /// Tensors.
    pub weights: &'a Weights,
    /// Buffers.
    pub work: &'a Work,
    /// Key-value cache.
    pub kv: &'a Buffer,
    /// Its precision.
    pub precision: KvPrecision,
    /// `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// How the rows of a pass attend.
#[derive(Clone, Copy)]
pub enum Shape {
    /// Rows on their own, with this many pieces of keys.
    Decode {
        /// Rows.
        rows: usize,
        /// Pieces launched.
        n_splits: usize,
        /// Cells that the rows see, in all.
        keys: usize,
    },
    /// A run of one session.
    Prompt(Chunk),
}

impl Shape {
    /// The name of a section of the profile: of decode passes, of prompt passes.
    fn section(self, names: [&'static str; 2]) -> &'static str {
        names[usize::from(matches!(self, Self::Prompt(_)))]
    }

    fn rows(self) -> usize {
        match self {
            Self::Decode { rows, .. } => rows,
            Self::Prompt(chunk) => chunk.rows,
        }
    }
}

impl<'a> Pass<'a> {
    fn states(&self) -> At<'a> {
        (&self.work.input, 0)
    }

    fn act(&self) -> Strided<'a> {
        at(&self.work.act, self.sizes.act_stride)
    }

    fn x(&self) -> Strided<'a> {
        at(&self.work.x, self.p.hidden_size)
    }

    fn cache(&self, layer: usize) -> Cache<'a> {
        Cache { buffer: self.kv, precision: self.precision, cells: self.sizes.cells, layer }
    }

    /// All layers, from the token ids in the input buffer to the residual stream.
    pub fn layers(&self, shape: Shape, mut tap: Option<TapFunction<'_>>) -> Result<()> {
        let ids = (&self.work.input, self.sizes.chunk * ROW_STATE);
        self.queue.section(shape.section(["decode: embedding", "prompt: embedding"]));
        self.weights.embedding.embed(self.queue, ids, shape.rows(), (&self.work.x, 0))?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.attention(shape, index, layer, &mut tap)?;
            self.feed_forward(shape, index, layer, &mut tap)?;
        }
        Ok(())
    }

    fn attention(&self, shape: Shape, index: usize, layer: &Layer, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        let (p, rows, queue) = (self.p, shape.rows(), self.queue);
        let norm = (&layer.attn_norm, 0);
        queue.section(shape.section(["decode: attention", "prompt: attention"]));
        self.norm_tap("attn_norm", index, norm, rows, tap)?;
        let qkv = at(&self.work.qkv, p.qkv_rows());
        match shape {
            Shape::Decode { .. } => {
                self.kernels.rows.rms_norm_act(queue, self.x(), norm, self.act(), (rows, p.hidden_size), p.rms_eps)?;
                self.decode_product(&layer.qkv, rows, qkv)?;
            }
            Shape::Prompt(_) => {
                let h = at(&self.work.h, p.hidden_size);
                self.kernels.rows.rms_norm(queue, self.x(), norm, h, (rows, p.hidden_size), p.rms_eps)?;
                self.prompt_product(&layer.qkv, h, rows, qkv)?;
            }
        }
        let rope = Rope {
            pairs: RopePairs::Adjacent,
            rot_dim: p.rot_dim,
            inv_freq: (&self.work.inv_freq, 0),
            attn_factor: 1.0,
        };
        let (cache, heads) = (self.cache(index), heads(p));
        self.kernels.rows.rope_store(queue, qkv, &cache, self.states(), &rope, heads, rows)?;
        if tap.is_some() {
            let (q, kv) = (p.n_heads * p.head_dim, p.n_kv * p.head_dim);
            self.tap("Qcur", index, &self.work.qkv, rows, p.qkv_rows(), 0..q, tap)?;
            self.tap("Kcur", index, &self.work.qkv, rows, p.qkv_rows(), q..q + kv, tap)?;
            self.tap("Vcur", index, &self.work.qkv, rows, p.qkv_rows(), q + kv..q + 2 * kv, tap)?;
        }
        let partial = (&self.work.partial, 0);
        match shape {
            Shape::Decode { n_splits, keys, .. } => {
                let size = (rows, n_splits);
                let (bytes, operations) = split_cost(heads, self.precision, keys);
                queue.cost(bytes, operations);
                self.kernels.attention.split(queue, qkv, &cache, self.states(), partial, heads, size, self.scale)?;
                self.kernels.attention.combine_act(queue, partial, self.states(), self.act(), heads, size)?;
                layer.output.matvec(queue, self.act(), rows, self.x(), true)?;
            }
            Shape::Prompt(chunk) => {
                let attn = at(&self.work.attn, p.n_heads * p.head_dim);
                let scratch = (self.sizes.scratch > 0).then_some((&self.work.scratch, 0));
                self.kernels.attention.prompt(queue, qkv, &cache, scratch, attn, chunk, heads, self.scale)?;
                self.products.run(self.kernels, queue, &layer.output, attn, rows, self.x(), true)?;
            }
        }
        self.tap("ffn_inp", index, &self.work.x, rows, p.hidden_size, 0..p.hidden_size, tap)
    }

    fn feed_forward(&self, shape: Shape, index: usize, layer: &Layer, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        let (p, rows, queue) = (self.p, shape.rows(), self.queue);
        let norm = (&layer.ffn_norm, 0);
        queue.section(shape.section(["decode: feed-forward", "prompt: feed-forward"]));
        self.norm_tap("ffn_norm", index, norm, rows, tap)?;
        let gate_up = at(&self.work.gate_up, 2 * p.n_ff);
        // With taps the down product goes to a buffer of its own and is added afterwards: the same sum, the same bits.
        let (down, add) = if tap.is_some() { (at(&self.work.h, p.hidden_size), false) } else { (self.x(), true) };
        match shape {
            Shape::Decode { .. } => {
                self.kernels.rows.rms_norm_act(queue, self.x(), norm, self.act(), (rows, p.hidden_size), p.rms_eps)?;
                self.decode_product(&layer.gate_up, rows, gate_up)?;
                self.kernels.rows.swiglu_act(queue, gate_up, self.act(), (rows, p.n_ff))?;
                layer.down.matvec(queue, self.act(), rows, down, add)?;
            }
            Shape::Prompt(_) => {
                let (h, ffn) = (at(&self.work.h, p.hidden_size), at(&self.work.ffn, p.n_ff));
                self.kernels.rows.rms_norm(queue, self.x(), norm, h, (rows, p.hidden_size), p.rms_eps)?;
                self.prompt_product(&layer.gate_up, h, rows, gate_up)?;
                self.kernels.rows.swiglu(queue, gate_up, ffn, (rows, p.n_ff))?;
                self.products.run(self.kernels, queue, &layer.down, ffn, rows, down, add)?;
            }
        }
        if tap.is_some() {
            self.tap("ffn_out", index, &self.work.h, rows, p.hidden_size, 0..p.hidden_size, tap)?;
            self.kernels.rows.add(queue, (&self.work.x, 0), (&self.work.h, 0), rows * p.hidden_size)?;
        }
        self.tap("l_out", index, &self.work.x, rows, p.hidden_size, 0..p.hidden_size, tap)
    }

    /// Logits of `rows` rows from row `first` of the residual stream, into the logits buffer; up to eight.
    pub fn head(&self, first: usize, rows: usize) -> Result<()> {
        let p = self.p;
        let x = Strided { buffer: &self.work.x, offset: first * p.hidden_size * 4, ld: p.hidden_size };
        let norm = (&self.weights.output_norm, 0);
        self.queue.section("head");
        self.kernels.rows.rms_norm_act(self.queue, x, norm, self.act(), (rows, p.hidden_size), p.rms_eps)?;
        self.weights.head().matvec(self.queue, self.act(), rows, at(&self.work.logits, p.n_vocab), false)
    }

    /// The likeliest token of each logits row.
    pub fn choose(&self, rows: usize) -> Result<()> {
        let logits = at(&self.work.logits, self.p.n_vocab);
        self.kernels.sampling.argmax(self.queue, logits, (&self.work.chosen, 0), (rows, self.p.n_vocab))
    }

    fn decode_product(&self, fused: &Fused, rows: usize, y: Strided<'a>) -> Result<()> {
        for (matrix, first) in &fused.parts {
            let y = Strided { offset: y.offset + first * 4, ..y };
            matrix.matvec(self.queue, self.act(), rows, y, false)?;
        }
        Ok(())
    }

    fn prompt_product(&self, fused: &Fused, x: Strided<'a>, rows: usize, y: Strided<'a>) -> Result<()> {
        for (matrix, first) in &fused.parts {
            let y = Strided { offset: y.offset + first * 4, ..y };
            self.products.run(self.kernels, self.queue, matrix, x, rows, y, false)?;
        }
        Ok(())
    }

    /// The output norm's rows.
    pub fn result_norm(&self, rows: usize, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        self.norm_tap("result_norm", usize::MAX, (&self.weights.output_norm, 0), rows, tap)
    }

    /// A norm's rows, computed for the tap alone.
    fn norm_tap(
        &self,
        name: &str,
        layer: usize,
        w: At<'a>,
        rows: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        if tap.is_none() {
            return Ok(());
        }
        let d = self.p.hidden_size;
        self.kernels.rows.rms_norm(self.queue, self.x(), w, at(&self.work.h, d), (rows, d), self.p.rms_eps)?;
        self.tap(name, layer, &self.work.h, rows, d, 0..d, tap)
    }

    /// Hands columns of a buffer's rows to the tap; a layer of `usize::MAX` is none.
    #[allow(clippy::too_many_arguments)]
    fn tap(
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
}
