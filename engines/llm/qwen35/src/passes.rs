//! The kernels of a pass on one device, in order. A decode pass has up to eight rows of any sessions and gives a row the
//! same bits whatever rows it runs with; a prompt pass has many rows of one session.

use crate::kernels::delta::{Taps, recur_cost};
use crate::kernels::gated::{self, QueryKey};
use crate::kernels::{self, Slots};
use crate::params::Params;
use crate::taps::TapFunction;
use crate::weights::{Delta, Full, Fused, Layer, Mixer, Weights};
use crate::work::{MAX_ROWS, Sizes, Work, table};
use ns_llm_kernels::attention::{Cache, Chunk, split_cost};
use ns_llm_kernels::product::Products;
use ns_llm_kernels::rows::ROW_STATE;
use ns_llm_kernels::silo::Silo;
use ns_llm_kernels::{At, Kernels, Result, Strided, at};
use ns_sycl::{Buffer, Queue};

/// What every kernel of a pass needs.
pub struct Pass<'a> {
    /// Dimensions.
    pub p: &'a Params,
    /// Buffer sizes.
    pub sizes: &'a Sizes,
    /// Shared kernels.
    pub kernels: &'a Kernels,
    /// This model's kernels.
    pub own: &'a kernels::Kernels,
    /// Prompt products.
    pub products: &'a Products,
    /// Tuned kernels, where the device takes them.
    pub silo: Option<&'a Silo>,
    /// Where commands go.
    pub queue: &'a Queue,
    /// Tensors.
    pub weights: &'a Weights,
    /// First layer here.
    pub first_layer: usize,
    /// Buffers.
    pub work: &'a Work,
    /// Key-value cache.
    pub kv: &'a Buffer,
    /// DeltaNet states and conv histories.
    pub states: &'a Buffer,
    /// Rows kept of the last decode passes.
    pub kept: &'a Buffer,
}

/// What a decode pass works on beside its rows, for the profile: the launches alone do not know it.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// Cells that the rows see, in all.
    pub keys: usize,
    /// Sessions that they belong to.
    pub sessions: usize,
    /// Kept rows that are run again.
    pub again: usize,
}

/// How the rows of a pass run.
#[derive(Clone, Copy)]
pub enum Shape {
    /// Rows on their own, with this many pieces of keys.
    Decode {
        /// Rows.
        rows: usize,
        /// Pieces launched.
        n_splits: usize,
        /// What they work on.
        seen: Seen,
    },
    /// A run of one session.
    Prompt {
        /// Its rows and cells.
        chunk: Chunk,
        /// The session's slot.
        slot: usize,
        /// Rows at the end whose results are read; of the others the last layer only leaves its caches and states behind.
        wanted: usize,
    },
}

impl Shape {
    /// Rows of the pass.
    pub fn rows(self) -> usize {
        match self {
            Self::Decode { rows, .. } => rows,
            Self::Prompt { chunk, .. } => chunk.rows,
        }
    }
}

impl Shape {
    /// First row whose results are read.
    fn first_wanted(self) -> usize {
        match self {
            Self::Decode { .. } => 0,
            Self::Prompt { chunk, wanted, .. } => chunk.rows.saturating_sub(wanted),
        }
    }

    /// The name of a section of the profile: of decode passes, of prompt passes.
    fn section(self, names: [&'static str; 2]) -> &'static str {
        names[usize::from(matches!(self, Self::Prompt { .. }))]
    }
}

/// Row `first` of strided rows and those behind it.
fn from_row(x: Strided<'_>, first: usize) -> Strided<'_> {
    Strided { offset: x.offset + first * x.ld * 4, ..x }
}

impl<'a> Pass<'a> {
    pub(crate) fn d(&self) -> usize {
        self.p.hidden_size
    }

    fn act(&self) -> Strided<'a> {
        at(&self.work.act, self.sizes.act_stride)
    }

    /// The residual stream.
    pub fn x(&self) -> Strided<'a> {
        at(&self.work.x, self.d())
    }

    pub(crate) fn h(&self) -> Strided<'a> {
        at(&self.work.h, self.d())
    }

    fn product(&self) -> Strided<'a> {
        at(&self.work.product, self.p.product_columns())
    }

    pub(crate) fn cache(&self, layer: usize) -> Cache<'a> {
        Cache { buffer: self.kv, precision: self.sizes.precision, cells: self.sizes.plan.cells, layer }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.p.head_dim as f32).sqrt()
    }

    fn row_states(&self, shape: Shape) -> At<'a> {
        match shape {
            Shape::Decode { .. } => (&self.work.table, 0),
            Shape::Prompt { .. } => (&self.work.states, 0),
        }
    }

    fn slots(&self) -> At<'a> {
        (&self.work.table, table::SLOTS)
    }

    /// The rows' embeddings into the residual stream.
    pub fn embed(&self, shape: Shape) -> Result<()> {
        self.queue.section(shape.section(["decode: embedding", "prompt: embedding"]));
        let ids = match shape {
            Shape::Decode { .. } => (&self.work.table, table::IDS),
            Shape::Prompt { .. } => (&self.work.ids, 0),
        };
        self.weights.embedding()?.embed(self.queue, ids, shape.rows(), (&self.work.x, 0))
    }

    /// All layers of this device, on the residual stream.
    pub fn layers(&self, shape: Shape, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        for (place, layer) in self.weights.layers.iter().enumerate() {
            let index = self.first_layer + place;
            let first = if index + 1 == self.p.n_layers && tap.is_none() { shape.first_wanted() } else { 0 };
            self.norm_tap("attn_norm", index, &layer.norm, shape.rows(), tap)?;
            match &layer.mixer {
                Mixer::Full(full) => {
                    self.queue.section(shape.section(["decode: attention", "prompt: attention"]));
                    self.full_store(shape, &layer.norm, full)?;
                    self.full_attend(shape, first, full, index, tap)?;
                }
                Mixer::Delta(delta) => {
                    self.queue.section(shape.section(["decode: DeltaNet", "prompt: DeltaNet"]));
                    self.delta((shape, first), &layer.norm, delta, index, tap)?;
                }
            }
            self.queue.section(shape.section(["decode: feed-forward", "prompt: feed-forward"]));
            self.feed_forward(shape, first, layer, index, tap)?;
        }
        Ok(())
    }

    /// A norm and a fused product of the residual stream's rows.
    fn normed_product(
        &self,
        shape: Shape,
        first: usize,
        norm: &'a Buffer,
        fused: &Fused,
        y: Strided<'a>,
    ) -> Result<()> {
        let (d, eps, rows) = (self.d(), self.p.rms_eps, shape.rows() - first);
        let x = from_row(self.x(), first);
        match shape {
            Shape::Decode { .. } => {
                self.kernels.rows.rms_norm_act(self.queue, x, (norm, 0), self.act(), (rows, d), eps)?;
            }
            Shape::Prompt { .. } => {
                self.kernels.rows.rms_norm(self.queue, x, (norm, 0), self.h(), (rows, d), eps)?;
            }
        }
        for (matrix, column) in &fused.parts {
            let y = Strided { offset: y.offset + column * 4, ..y };
            match shape {
                Shape::Decode { .. } => matrix.matvec(self.queue, self.act(), rows, y, false)?,
                Shape::Prompt { .. } => {
                    self.products.run(self.kernels, self.queue, matrix, self.h(), rows, y, false)?;
                }
            }
        }
        Ok(())
    }

    /// Products of a full-attention layer; keys and values go to the cache.
    pub fn full_store(&self, shape: Shape, norm: &'a Buffer, full: &'a Full) -> Result<()> {
        self.normed_product(shape, 0, norm, &full.qkv, self.product())?;
        if let Some(bias) = &full.bias {
            let columns = gated::product_cols(self.p.heads());
            for row in 0..shape.rows() {
                let to = from_row(self.product(), row);
                self.kernels.rows.add(self.queue, (to.buffer, to.offset), (bias, 0), columns)?;
            }
        }
        let how = QueryKey {
            q_norm: (&full.q_norm, 0),
            k_norm: (&full.k_norm, 0),
            eps: self.p.rms_eps,
            rot_dim: self.p.rot_dim,
            inv_freq: (&self.work.inv_freq, 0),
        };
        let q = at(&self.work.q, self.p.query_width());
        let (cache, heads) = (self.cache(full.cache_layer), self.p.heads());
        let states = self.row_states(shape);
        self.own.gated.prepare(self.queue, self.product(), q, &cache, states, &how, heads, shape.rows())
    }

    /// Attention of rows `first..`, into the residual stream.
    pub fn full_attend(
        &self,
        shape: Shape,
        first: usize,
        full: &'a Full,
        index: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let (p, rows) = (self.p, shape.rows() - first);
        if rows == 0 {
            return Ok(());
        }
        let q = from_row(at(&self.work.q, p.query_width()), first);
        let (product, heads) = (from_row(self.product(), first), p.heads());
        let cache = self.cache(full.cache_layer);
        let states = self.row_states(shape);
        let states = (states.0, states.1 + first * ROW_STATE);
        let out = self.mixer_output(first, tap);
        if tap.is_some() {
            self.tap("Qcur", index, &self.work.q, rows, p.query_width(), 0..p.query_width(), tap)?;
            if let Shape::Prompt { chunk, .. } = shape {
                self.key_tap(chunk, full, index, tap)?;
            }
        }
        match shape {
            Shape::Decode { n_splits, seen, .. } => {
                let (bytes, operations) = split_cost(heads, cache.precision, seen.keys);
                self.queue.cost(bytes, operations);
                let partial = (&self.work.partial, 0);
                let size = (rows, n_splits);
                self.kernels.attention.split(self.queue, q, &cache, states, partial, heads, size, self.scale())?;
                self.own.gated.combine_act(self.queue, partial, product, states, self.act(), heads, size)?;
                full.output.matvec(self.queue, self.act(), rows, out.0, out.1)?;
            }
            Shape::Prompt { chunk, .. } => {
                let attn = at(&self.work.mixed, p.query_width());
                let scratch = Some((&self.work.scratch, 0));
                let chunk = Chunk { rows, position: chunk.position + first, ..chunk };
                match self.silo.filter(|s| s.takes_prompt(&cache, &attn, chunk, heads)) {
                    Some(silo) => silo.prompt(self.queue, q, &cache, attn, chunk, heads, self.scale())?,
                    None => {
                        let attention = &self.kernels.attention;
                        attention.prompt(self.queue, q, &cache, scratch, attn, chunk, heads, self.scale())?;
                    }
                }
                self.own.gated.gate(self.queue, attn, product, heads, rows)?;
                self.tap("attn_gated", index, &self.work.mixed, rows, attn.ld, 0..attn.ld, tap)?;
                self.products.run(self.kernels, self.queue, &full.output, attn, rows, out.0, out.1)?;
            }
        }
        self.add_tapped("attn_output", index, rows, tap)
    }

    /// Where a mixer's output goes, and whether it is added: to the residual stream, or with taps to a buffer of its own that
    /// [`Pass::add_tapped`] adds. The same sum, the same bits.
    fn mixer_output(&self, first: usize, tap: &Option<TapFunction<'_>>) -> (Strided<'a>, bool) {
        if tap.is_some() { (self.h(), false) } else { (from_row(self.x(), first), true) }
    }

    fn add_tapped(&self, name: &str, index: usize, rows: usize, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        if tap.is_some() {
            let d = self.d();
            self.tap(name, index, &self.work.h, rows, d, 0..d, tap)?;
            self.kernels.rows.add(self.queue, (&self.work.x, 0), (&self.work.h, 0), rows * d)?;
            self.tap("attn_residual", index, &self.work.x, rows, d, 0..d, tap)?;
        }
        Ok(())
    }

    /// A layer's states, conv histories and kept rows.
    pub(crate) fn layer_slots(&self, delta: &Delta) -> (Slots<'a>, Slots<'a>, Slots<'a>) {
        let layer = delta.state_layer;
        (
            self.sizes.state_slots(self.p, self.states, layer),
            self.sizes.history_slots(self.p, self.states, layer),
            self.sizes.kept_slots(self.p, self.kept, layer),
        )
    }

    fn taps(delta: &'a Delta) -> Taps<'a> {
        Taps { conv: (&delta.conv, 0), a: (&delta.a, 0), dt_bias: (&delta.dt, 0) }
    }

    fn delta(
        &self,
        (shape, first): (Shape, usize),
        norm: &'a Buffer,
        delta: &'a Delta,
        index: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let (p, rows, queue, eps) = (self.p, shape.rows(), self.queue, self.p.rms_eps);
        let heads = p.shape();
        self.normed_product(shape, 0, norm, &delta.mixer, self.product())?;
        let (states, history, kept) = self.layer_slots(delta);
        let own = &self.own.delta;
        let mixed = at(&self.work.mixed, heads.value_cols());
        let weight = (&delta.norm, 0);
        if tap.is_some() {
            let (ld, c) = (p.product_columns(), heads.channels());
            self.tap("linear_attn_qkv_mixed", index, &self.work.product, rows, ld, 0..c, tap)?;
        }
        let before = match shape {
            Shape::Prompt { slot, .. } if tap.is_some() => Some(self.read_history(delta, slot)?),
            _ => None,
        };
        let out = self.mixer_output(first, tap);
        match shape {
            Shape::Decode { seen, .. } => {
                let kept = (&kept, MAX_ROWS);
                own.conv_rows(queue, self.product(), &Self::taps(delta), &history, kept, self.slots(), heads, rows)?;
                let (bytes, operations) = recur_cost(heads, seen.sessions, rows + seen.again);
                queue.cost(bytes, operations);
                own.recur_rows(queue, kept, &states, self.slots(), mixed, heads, rows)?;
                own.norm_act(queue, mixed, self.product(), weight, self.act(), heads, rows, eps)?;
                delta.output.matvec(queue, self.act(), rows, out.0, out.1)?;
            }
            Shape::Prompt { slot, .. } => {
                let mix = at(&self.work.mix, heads.mix_cols());
                let (taps, both) = (Self::taps(delta), (slot, slot));
                own.conv_chunk(queue, self.product(), &taps, &history, both, mix, heads, rows)?;
                if let (Some(before), Some(tap)) = (before, tap.as_mut()) {
                    self.convolution_taps(index, rows, &before, delta, *tap)?;
                }
                own.recur_chunk(queue, mix, &states, both, mixed, heads, rows)?;
                if first == rows {
                    return Ok(());
                }
                let (product, mixed) = (from_row(self.product(), first), from_row(mixed, first));
                own.norm(queue, mixed, product, weight, mixed, heads, rows - first, eps)?;
                self.tap("final_output", index, &self.work.mixed, rows, mixed.ld, 0..mixed.ld, tap)?;
                self.products.run(self.kernels, queue, &delta.output, mixed, rows - first, out.0, out.1)?;
            }
        }
        self.add_tapped("linear_attn_out", index, rows, tap)
    }

    /// The feed-forward block on rows `first..`.
    pub fn feed_forward(
        &self,
        shape: Shape,
        first: usize,
        layer: &'a Layer,
        index: usize,
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let (p, d, rows, queue) = (self.p, self.d(), shape.rows() - first, self.queue);
        if rows == 0 {
            return Ok(());
        }
        self.norm_tap("attn_post_norm", index, &layer.ffn_norm, rows, tap)?;
        let gate_up = at(&self.work.gate_up, 2 * p.n_ff);
        self.normed_product(shape, first, &layer.ffn_norm, &layer.gate_up, gate_up)?;
        let (down, add) = self.mixer_output(first, tap);
        match shape {
            Shape::Decode { .. } => {
                self.kernels.rows.swiglu_act(queue, gate_up, self.act(), (rows, p.n_ff))?;
                layer.down.matvec(queue, self.act(), rows, down, add)?;
            }
            Shape::Prompt { .. } => {
                let ffn = at(&self.work.ffn, p.n_ff);
                self.kernels.rows.swiglu(queue, gate_up, ffn, (rows, p.n_ff))?;
                self.products.run(self.kernels, queue, &layer.down, ffn, rows, down, add)?;
            }
        }
        if tap.is_some() {
            self.tap("ffn_out", index, &self.work.h, rows, d, 0..d, tap)?;
            self.kernels.rows.add(queue, (&self.work.x, 0), (&self.work.h, 0), rows * d)?;
        }
        self.tap("l_out", index, &self.work.x, rows, d, 0..d, tap)
    }

    /// Brings the slot of the table's first entry up to date: its kept rows are run again.
    pub fn settle(&self) -> Result<()> {
        self.queue.section("settle");
        let heads = self.p.shape();
        let mixed = at(&self.work.mixed, heads.value_cols());
        for layer in &self.weights.layers {
            let Mixer::Delta(delta) = &layer.mixer else { continue };
            let (states, history, kept) = self.layer_slots(delta);
            let (own, kept) = (&self.own.delta, (&kept, MAX_ROWS));
            let taps = Self::taps(delta);
            own.conv_rows(self.queue, self.product(), &taps, &history, kept, self.slots(), heads, 1)?;
            own.recur_rows(self.queue, kept, &states, self.slots(), mixed, heads, 1)?;
        }
        Ok(())
    }

    /// Logits of `rows` rows from row `first` of the residual stream, into the logits buffer; up to eight.
    pub fn head(&self, first: usize, rows: usize) -> Result<()> {
        self.queue.section("head");
        let norm = (self.weights.output_norm()?, 0);
        let x = from_row(self.x(), first);
        self.kernels.rows.rms_norm_act(self.queue, x, norm, self.act(), (rows, self.d()), self.p.rms_eps)?;
        self.weights.head()?.matvec(self.queue, self.act(), rows, at(&self.work.logits, self.p.n_vocab), false)
    }

    /// The likeliest token of each logits row.
    pub fn choose(&self, rows: usize) -> Result<()> {
        let logits = at(&self.work.logits, self.p.n_vocab);
        self.kernels.sampling.argmax(self.queue, logits, (&self.work.chosen, 0), (rows, self.p.n_vocab))
    }

    /// The output norm's rows, for the tap.
    pub fn result_norm(&self, rows: usize, tap: &mut Option<TapFunction<'_>>) -> Result<()> {
        self.norm_tap("result_norm", usize::MAX, self.weights.output_norm()?, rows, tap)
    }

    /// Rows of the trunk through the draft block's input and its keys and values. `fresh` rows come from the trunk and are
    /// normed; else they are a draft's own. Row i pairs with token id i.
    fn draft_store(&self, shape: Shape, ids: At<'a>, hidden: Strided<'a>, fresh: bool) -> Result<()> {
        let (d, rows, eps, queue) = (self.d(), shape.rows(), self.p.rms_eps, self.queue);
        queue.section(shape.section(["draft", "prompt: draft"]));
        let draft = self.weights.draft()?;
        let embedding = match &draft.embedding {
            Some(own) => own,
            None => self.weights.embedding()?,
        };
        let hidden = if fresh {
            let norm = (self.weights.output_norm()?, 0);
            self.kernels.rows.rms_norm(queue, hidden, norm, self.h(), (rows, d), eps)?;
            self.h()
        } else {
            hidden
        };
        // the product's rows are free until the layer
        let e = at(&self.work.product, d);
        embedding.embed(queue, ids, rows, (&self.work.product, 0))?;
        let (e, h) = ((e, (&draft.embedding_norm, 0)), (hidden, (&draft.hidden_norm, 0)));
        match shape {
            Shape::Decode { .. } => {
                self.own.gated.norm_pair_act(queue, e, h, self.act(), (rows, d), eps)?;
                draft.join.matvec(queue, self.act(), rows, self.x(), false)?;
            }
            Shape::Prompt { .. } => {
                let pair = at(&self.work.pair, 2 * d);
                self.own.gated.norm_pair(queue, e, h, pair, (rows, d), eps)?;
                self.products.run(self.kernels, queue, &draft.join, pair, rows, self.x(), false)?;
            }
        }
        match &draft.layer.mixer {
            Mixer::Full(full) => self.full_store(shape, &draft.layer.norm, full),
            Mixer::Delta(_) => Err(ns_llm_kernels::Error::argument("the draft block has no attention".into())),
        }
    }

    /// Prompt rows through the draft block, whose cells they fill; the residual stream holds the trunk's rows and is lost. Row i
    /// pairs with the token id behind its own, so there is one row fewer than the prompt pass had.
    pub fn draft_prompt(&self, chunk: Chunk) -> Result<()> {
        self.draft_store(Shape::Prompt { chunk, slot: 0, wanted: 0 }, (&self.work.ids, 4), self.x(), true)
    }

    /// Decode rows through the draft block. With `choose`, the last row's draft logits, likeliest token and normed row follow.
    pub fn draft_rows(&self, (rows, seen): (usize, Seen), n_splits: usize, fresh: bool, choose: bool) -> Result<()> {
        let (d, eps, queue) = (self.d(), self.p.rms_eps, self.queue);
        let shape = Shape::Decode { rows, n_splits, seen };
        self.draft_store(shape, (&self.work.table, table::IDS), at(&self.work.hidden, d), fresh)?;
        if !choose {
            return Ok(());
        }
        let (draft, last) = (self.weights.draft()?, rows - 1);
        let Mixer::Full(full) = &draft.layer.mixer else { return Ok(()) };
        self.full_attend(shape, last, full, self.p.n_layers, &mut None)?;
        self.feed_forward(shape, last, &draft.layer, self.p.n_layers, &mut None)?;
        let norm = match &draft.norm {
            Some(own) => own,
            None => self.weights.output_norm()?,
        };
        let head = match &draft.head {
            Some(own) => own,
            None => self.weights.head()?,
        };
        let x = from_row(self.x(), last);
        self.kernels.rows.rms_norm_act(queue, x, (norm, 0), self.act(), (1, d), eps)?;
        let n_vocab = self.p.n_vocab;
        let logits = at(&self.work.draft_logits, n_vocab);
        head.matvec(queue, self.act(), 1, logits, false)?;
        self.kernels.sampling.argmax(queue, logits, (&self.work.drafted, 0), (1, n_vocab))?;
        self.kernels.rows.rms_norm(queue, x, (norm, 0), at(&self.work.hidden, d), (1, d), eps)
    }
}
