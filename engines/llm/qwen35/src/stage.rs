//! One device's part of the model: its layers, its caches and states, its recorded passes.

use crate::kernels;
use crate::options::Options;
use crate::params::Params;
use crate::passes::{Pass, Seen, Shape};
use crate::taps::TapFunction;
use crate::weights::{self, Loading, Share, Source, Weights};
use crate::work::{MAX_ROWS, Sizes, Work, table};
use crate::{device_error, kernel_error};
use ns_llm::{Error, ErrorKind, Result};
use ns_llm_kernels::attention::Chunk;
use ns_llm_kernels::product::{Products, Scratch};
use ns_llm_kernels::silo::{Silo, SiloScratch};
use ns_llm_kernels::{Kernels, Profile};
use ns_sycl::{Buffer, Device, Graph, Locations, Queue, bytes_of};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory for weights expanded for oneMKL.
const EXPANDED_WEIGHTS: usize = 64 << 20;

/// A pass that is recorded once and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recorded {
    /// Rows through the layers, with this many pieces of keys.
    Rows(usize, usize),
    /// A session's slot is brought up to date.
    Settle,
    /// Rows through the draft block.
    Draft {
        /// Rows.
        rows: usize,
        /// Pieces of keys.
        n_splits: usize,
        /// Whether they come from the trunk.
        fresh: bool,
        /// Whether a token is drafted.
        choose: bool,
    },
}

/// One device's part.
pub struct Stage {
    /// What it has of the model.
    pub share: Share,
    /// Its buffer sizes.
    pub sizes: Sizes,
    // Graphs go before what they refer to.
    graphs: HashMap<Recorded, Graph>,
    use_graphs: bool,
    products: Products,
    silo: Option<Arc<Silo>>,
    /// Its tensors.
    pub weights: Weights,
    /// Its buffers.
    pub work: Work,
    /// Its key-value cache.
    pub kv: Buffer,
    /// Its DeltaNet states.
    pub states: Buffer,
    kept: Buffer,
    /// Shared kernels.
    pub kernels: Kernels,
    own: kernels::Kernels,
    /// Where its commands go.
    pub queue: Queue,
    /// The device.
    pub device: Device,
    /// Its profile, where one is kept.
    pub profile: Option<Profile>,
}

/// Memory that products of prompt rows need.
pub fn scratch(p: &Params, sizes: &Sizes) -> Scratch {
    Scratch { rows: sizes.plan.chunk, cols: p.widest(sizes.plan.draft), weights: EXPANDED_WEIGHTS }
}

/// Memory that the silo needs, where the device takes one.
pub fn silo_scratch(p: &Params, sizes: &Sizes) -> SiloScratch {
    SiloScratch { rows: sizes.plan.chunk, cols: p.widest(sizes.plan.draft), n_heads: p.n_heads }
}

fn block(device: &Device, bytes: u64, what: &str) -> Result<Buffer> {
    let bytes = usize::try_from(bytes).map_err(|_| Error::new(ErrorKind::Memory, format!("{what}: too large")))?;
    device.alloc(bytes.max(4)).map_err(|e| device_error(&format!("cannot allocate {what}"), e))
}

impl Stage {
    /// Packs a share's weights and allocates everything else.
    pub fn load(
        source: &Source<'_>,
        device: Device,
        (share, sizes): (Share, Sizes),
        (options, profiled): (&Options, bool),
        loading: &mut Loading<'_>,
    ) -> Result<Self> {
        let p = source.p;
        let folder = Locations::discover().kernels;
        let profile = if profiled {
            Profile::start(&device, &folder).map_err(|e| kernel_error("cannot measure the device", e))?
        } else {
            None
        };
        let queue = device.queue().map_err(|e| device_error("cannot open a queue", e))?;
        queue.section("load");
        let failed = |e| kernel_error("cannot load the kernels", e);
        let kernels = Kernels::load(&device, &folder).map_err(failed)?;
        kernels.attention.open(sizes.precision).map_err(failed)?;
        let own = kernels::Kernels::load(&device, &folder).map_err(failed)?;
        // before the matrices, which take their kernels from it
        let silo = if options.own_gemm {
            None
        } else {
            Silo::open(&kernels, "qwen35", silo_scratch(p, &sizes)).map_err(failed)?.map(Arc::new)
        };
        let weights = weights::load(source, &share, (&device, &queue, &kernels), loading)?;
        let work = Work::new(&device, p, &sizes)?;
        let kv = block(&device, sizes.cache(p), "the key-value cache")?;
        let (states, kept) = sizes.states(p);
        let states = block(&device, states, "the states")?;
        let kept = block(&device, kept, "the kept rows")?;
        queue
            .write(&work.inv_freq, 0, bytes_of(&p.inv_freq()))
            .map_err(|e| device_error("cannot write the rotation", e))?;
        let products = if options.own_gemm {
            Products::own(&kernels)
        } else {
            let scratch = scratch(p, &sizes);
            Products::open(&kernels, scratch).map_err(|e| kernel_error("cannot open the prompt products", e))?
        };
        let products = products.with_silo(silo.clone());
        Ok(Self {
            share,
            sizes,
            graphs: HashMap::new(),
            // what a recorded pass costs would be told for every replay alike
            use_graphs: options.graphs && !queue.profiled(),
            products,
            silo,
            weights,
            work,
            kv,
            states,
            kept,
            kernels,
            own,
            queue,
            device,
            profile,
        })
    }

    fn pass<'a>(&'a self, p: &'a Params) -> Pass<'a> {
        Pass {
            p,
            sizes: &self.sizes,
            kernels: &self.kernels,
            own: &self.own,
            products: &self.products,
            silo: self.silo.as_deref(),
            queue: &self.queue,
            weights: &self.weights,
            first_layer: self.share.layers.start,
            work: &self.work,
            kv: &self.kv,
            states: &self.states,
            kept: &self.kept,
        }
    }

    /// Writes the table of a decode pass.
    pub fn write_table(&self, bytes: &[u8]) -> Result<()> {
        debug_assert!(bytes.len() <= table::BYTES);
        self.queue.write(&self.work.table, 0, bytes).map_err(|e| device_error("cannot write the rows", e))
    }

    /// Rows of the residual stream, to the host.
    pub fn read_x(&self, rows: usize, width: usize) -> Result<Vec<f32>> {
        self.queue.read_vec(&self.work.x, 0, rows * width).map_err(|e| device_error("cannot hand rows over", e))
    }

    /// Rows of the residual stream, from the host.
    pub fn write_x(&self, rows: &[f32]) -> Result<()> {
        self.queue.write(&self.work.x, 0, bytes_of(rows)).map_err(|e| device_error("cannot hand rows over", e))
    }

    /// Runs a decode pass whose table is written: replayed, or recorded after it ran once. `seen` is for the profile.
    pub fn decode(
        &mut self,
        p: &Params,
        (what, seen): (Recorded, Seen),
        tap: &mut Option<TapFunction<'_>>,
    ) -> Result<()> {
        let failed = |e| kernel_error("a decode pass failed", e);
        let device_failed = |e| device_error("a decode pass failed", e);
        if tap.is_some() || !self.use_graphs {
            return self.commands(p, (what, seen), tap).map_err(failed);
        }
        if let Some(graph) = self.graphs.get(&what) {
            return self.queue.replay(graph).map_err(device_failed);
        }
        // Once plainly, which is this pass: modules that load lazily must be there before the recording.
        self.commands(p, (what, seen), &mut None).map_err(failed)?;
        self.queue.wait().map_err(device_failed)?;
        self.queue.begin_graph().map_err(|e| device_error("cannot record a decode pass", e))?;
        if let Err(error) = self.commands(p, (what, seen), &mut None) {
            // the recording's own error is the one to report
            let _ = self.queue.cancel_graph();
            return Err(failed(error));
        }
        let graph = self.queue.end_graph().map_err(|e| device_error("cannot record a decode pass", e))?;
        tracing::debug!(?what, form = graph.form(), commands = graph.size(), "decode graph recorded");
        self.graphs.insert(what, graph);
        Ok(())
    }

    fn commands(
        &self,
        p: &Params,
        (what, seen): (Recorded, Seen),
        tap: &mut Option<TapFunction<'_>>,
    ) -> ns_llm_kernels::Result<()> {
        let pass = self.pass(p);
        match what {
            Recorded::Rows(rows, n_splits) => {
                let shape = Shape::Decode { rows, n_splits, seen };
                if self.share.first {
                    pass.embed(shape)?;
                }
                pass.layers(shape, tap)?;
                if self.share.last {
                    pass.result_norm(rows, tap)?;
                    pass.head(0, rows)?;
                    pass.choose(rows)?;
                }
                Ok(())
            }
            Recorded::Settle => pass.settle(),
            Recorded::Draft { rows, n_splits, fresh, choose } => pass.draft_rows((rows, seen), n_splits, fresh, choose),
        }
    }

    /// Starts a prompt pass through the layers here. Its row table and ids are written; with the head, `result_norm` is
    /// tapped.
    pub fn prompt(
        &self,
        p: &Params,
        (chunk, slot, wanted): (Chunk, usize, usize),
        tap: &mut Option<TapFunction<'_>>,
    ) -> ns_llm_kernels::Result<()> {
        let pass = self.pass(p);
        let shape = Shape::Prompt { chunk, slot, wanted };
        if self.share.first {
            pass.embed(shape)?;
        }
        pass.layers(shape, tap)?;
        if self.share.last { pass.result_norm(chunk.rows, tap) } else { Ok(()) }
    }

    /// Logits of up to eight rows of the residual stream.
    pub fn head(&self, p: &Params, first: usize, rows: usize) -> Result<()> {
        debug_assert!(rows <= MAX_ROWS);
        self.pass(p).head(first, rows).map_err(|e| kernel_error("the head failed", e))
    }

    /// Prompt rows through the draft block; see [`Pass::draft_prompt`].
    pub fn draft_prompt(&self, p: &Params, chunk: Chunk) -> Result<()> {
        self.pass(p).draft_prompt(chunk).map_err(|e| kernel_error("the draft block failed", e))
    }

    /// Where a session's trunk row waits for the draft block.
    fn backlog(&self, p: &Params, slot: usize, row: usize) -> usize {
        (slot * MAX_ROWS + row) * p.hidden_size * 4
    }

    /// Where the first rows that wait are, and their bytes.
    pub fn backlog_rows(&self, p: &Params, slot: usize, rows: usize) -> (usize, usize) {
        (self.backlog(p, slot, 0), rows * p.hidden_size * 4)
    }

    /// Keeps rows of the residual stream for the draft block.
    pub fn keep_rows(&self, p: &Params, slot: usize, at: usize, first: usize, rows: usize) -> Result<()> {
        let d = p.hidden_size * 4;
        let to = self.backlog(p, slot, at);
        self.queue
            .copy(&self.work.backlog, to, &self.work.x, first * d, rows * d)
            .map_err(|e| device_error("cannot keep rows for the draft block", e))
    }

    /// Puts the kept rows where a draft pass reads them.
    pub fn take_rows(&self, p: &Params, slot: usize, rows: usize) -> Result<()> {
        let d = p.hidden_size * 4;
        self.queue
            .copy(&self.work.hidden, 0, &self.work.backlog, self.backlog(p, slot, 0), rows * d)
            .map_err(|e| device_error("cannot take the rows of the draft block", e))
    }

    /// Zeroes a session's states.
    pub fn clear_state(&self, p: &Params, slot: usize) -> Result<()> {
        let bytes = self.sizes.state(p);
        if bytes == 0 {
            return Ok(());
        }
        self.queue.fill(&self.states, slot * bytes, bytes, 0).map_err(|e| device_error("cannot clear a session", e))
    }
}
