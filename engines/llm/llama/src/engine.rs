//! The contract of [`ns_llm::Engine`] over the passes.

use crate::checkpoint;
use crate::fit::Fit;
use crate::params::Params;
use crate::passes::{Pass, Shape, TapFunction};
use crate::session::{Logits, Sessions};
use crate::weights::{self, Weights};
use crate::work::{MAX_ROWS, Sizes, Work};
use crate::{OPTIONS, device_error, kernel_error};
use ns_llm::{
    Checkpoint, CheckpointHead, Decoder, DeviceReport, Engine, EngineFacts, Error, ErrorKind, KernelCheck, LoadOptions,
    Moment, OptionValues, Plan, Progress, Result, Sampling, SessionId, Tap, sampler,
};
use ns_llm_kernels::attention::{Chunk, KvPrecision, splits};
use ns_llm_kernels::product::Products;
use ns_llm_kernels::rows::{ROW_STATE, RowState};
use ns_llm_kernels::{Kernels, Profile};
use ns_sycl::{Buffer, Device, Graph, Locations, Queue, bytes_of};
use ns_weights::ModelFile;
use std::collections::HashMap;
use std::io::{Read, Write};

/// An opened model.
pub struct Llama {
    pub(crate) facts: EngineFacts,
    pub(crate) p: Params,
    pub(crate) sizes: Sizes,
    // Graphs go before what they refer to.
    graphs: HashMap<(usize, usize), Graph>,
    use_graphs: bool,
    products: Products,
    weights: Weights,
    work: Work,
    pub(crate) kv: Buffer,
    precision: KvPrecision,
    kernels: Kernels,
    pub(crate) queue: Queue,
    device: Device,
    profile: Option<Profile>,
    pub(crate) sessions: Sessions,
    file: ModelFile,
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl Llama {
    /// Opens the device and works out everything that follows from file and options.
    fn prepare(file: &ModelFile, options: &LoadOptions) -> Result<(Params, OptionValues, Device, Fit)> {
        let p = Params::read(file)?;
        let values = options.options.clone().with_environment(OPTIONS, Moment::Load, &|n| std::env::var(n).ok())?;
        if options.expert_bytes.is_some() || options.host_expert_bytes.is_some() {
            return Err(Error::new(
                ErrorKind::Option,
                "llama models have no experts: leave out the memory for experts (--expert-gib, --mirror-gib)",
            ));
        }
        let [selector] = options.devices.as_slice() else {
            let n = options.devices.len();
            return Err(Error::new(ErrorKind::Option, format!("the llama engine runs on one device, {n} were given")));
        };
        let device = Device::open(selector).map_err(|e| device_error("cannot open the device", e))?;
        let fit = Fit::new(file, &p, options, &values, &device)?;
        Ok((p, values, device, fit))
    }

    /// What [`Llama::load`] would take of the device.
    pub fn plan(file: &ModelFile, options: &LoadOptions) -> Result<Plan> {
        Ok(Self::prepare(file, options)?.3.plan)
    }

    /// Opens a model: reads its dimensions, checks that it fits, packs its weights.
    pub fn load(file: ModelFile, options: &LoadOptions, progress: Progress<'_>) -> Result<Self> {
        let (p, values, device, fit) = Self::prepare(&file, options)?;
        fit.plan.check()?;
        let Fit { chunk, precision, sizes, scratch, .. } = fit;
        let cells = sizes.cells;

        let folder = Locations::discover().kernels;
        let profile = Profile::start(&device, &folder).map_err(|e| kernel_error("cannot measure the device", e))?;
        let queue = device.queue().map_err(|e| device_error("cannot open a queue", e))?;
        queue.section("load");
        let kernels = Kernels::load(&device, &folder).map_err(|e| kernel_error("cannot load the kernels", e))?;
        kernels.attention.open(precision).map_err(|e| kernel_error("cannot load the kernels", e))?;
        let weights = weights::load(&file, &p, &device, &queue, &kernels, progress)?;
        let work = Work::new(&device, &p, &sizes)?;
        let kv = usize::try_from(sizes.cache(&p))
            .map_err(|_| Error::new(ErrorKind::Memory, "the key-value cache is too large"))
            .and_then(|n| device.alloc(n).map_err(|e| device_error("cannot allocate the key-value cache", e)))?;
        queue
            .write(&work.inv_freq, 0, bytes_of(&p.inv_freq()))
            .map_err(|e| device_error("cannot write the rotation", e))?;
        let products = if values.get("gemm") == Some("own") {
            Products::own(&kernels)
        } else {
            Products::open(&kernels, scratch).map_err(|e| kernel_error("cannot open the prompt products", e))?
        };
        let name = file.get_str("general.name").map_or_else(|| file.stem(), str::to_owned);
        let kv_name = if precision == KvPrecision::F16 { "f16" } else { "f32" };
        let facts = EngineFacts {
            engine: "llama",
            architecture: "llama".into(),
            model: name,
            n_vocab: p.n_vocab,
            context_length: p.context_length,
            prefill_chunk: chunk,
            max_verify: MAX_ROWS,
            truncatable: true,
            draft: false,
            cache_fingerprint: format!("llama kv-{kv_name} {}x{}x{} v1", p.n_layers, p.n_kv, p.head_dim),
        };
        tracing::debug!(cells, "llama model opened");
        Ok(Self {
            facts,
            sizes,
            graphs: HashMap::new(),
            // what a recorded pass costs would be told for every replay alike
            use_graphs: values.get("graph") != Some("0") && profile.is_none(),
            products,
            weights,
            work,
            kv,
            precision,
            kernels,
            queue,
            device,
            profile,
            sessions: Sessions::new(cells),
            file,
            p,
        })
    }

    fn pass(&self) -> Pass<'_> {
        Pass {
            p: &self.p,
            sizes: &self.sizes,
            kernels: &self.kernels,
            products: &self.products,
            queue: &self.queue,
            weights: &self.weights,
            work: &self.work,
            kv: &self.kv,
            precision: self.precision,
            scale: 1.0 / (self.p.head_dim as f32).sqrt(),
        }
    }

    /// Checks rows before anything changes: ids, room, one run or one row a session.
    fn check_tokens(&self, tokens: impl IntoIterator<Item = u32>) -> Result<()> {
        for token in tokens {
            if token as usize >= self.p.n_vocab {
                return Err(Error::new(
                    ErrorKind::Token,
                    format!("token {token} is outside the vocabulary of {}", self.p.n_vocab),
                ));
            }
        }
        Ok(())
    }

    fn check_room(&self, session: SessionId, asked: usize) -> Result<()> {
        let s = self.sessions.get(session)?;
        if asked > s.room() {
            return Err(Error::new(
                ErrorKind::ContextFull,
                format!("{asked} tokens do not fit: the session holds {} of {}", s.position, s.limit),
            ));
        }
        Ok(())
    }

    fn state(&self, session: SessionId, offset: usize, token: u32) -> Result<RowState> {
        let s = self.sessions.get(session)?;
        Ok(RowState {
            token,
            position: (s.position + offset) as u32,
            kv_offset: (s.cells.start * self.p.head_dim) as u64,
            active: true,
            draw_stream: 0,
            seed: 0,
        })
    }

    /// Logits in the device's buffer go to host memory where their session is not in the coming pass.
    fn keep_logits(&mut self, coming: &[SessionId]) -> Result<()> {
        for (id, row) in self.sessions.on_device() {
            let kept = if coming.contains(&id) { Logits::None } else { Logits::Host(self.read_logits(row, 1)?) };
            self.sessions.get_mut(id)?.logits = kept;
        }
        Ok(())
    }

    fn read_logits(&self, first: usize, rows: usize) -> Result<Vec<f32>> {
        let n = self.p.n_vocab;
        self.queue
            .read_vec(&self.work.logits, first * n * 4, rows * n)
            .map_err(|e| device_error("cannot read the logits", e))
    }

    fn write_input(&self, states: &[RowState]) -> Result<()> {
        let table: Vec<u8> = states.iter().flat_map(RowState::to_bytes).collect();
        let ids: Vec<i32> = states.iter().map(|s| s.token as i32).collect();
        self.queue
            .write(&self.work.input, 0, &table)
            .and_then(|()| self.queue.write(&self.work.input, self.sizes.chunk * ROW_STATE, bytes_of(&ids)))
            .map_err(|e| device_error("cannot write the rows", e))
    }

    /// Runs a decode pass over rows; logits and choices are on the device afterwards, sessions are not changed.
    fn decode_rows(&mut self, states: &[RowState], tap: Option<TapFunction<'_>>) -> Result<()> {
        let longest = states.iter().map(|s| s.position as usize).max().unwrap_or(0);
        // few graphs for many lengths: pieces are rounded up to a power of two
        let n_splits = splits(longest).next_power_of_two().min(self.sizes.max_splits.next_power_of_two());
        let n_splits = n_splits.min(self.sizes.max_splits);
        let rows = states.len();
        let keys = states.iter().map(|s| s.position as usize + 1).sum();
        self.write_input(states)?;
        let failed = |e| kernel_error("a decode pass failed", e);
        if tap.is_some() || !self.use_graphs {
            return self.decode_commands((rows, keys), n_splits, tap).map_err(failed);
        }
        if !self.graphs.contains_key(&(rows, n_splits)) {
            // Once plainly, which is this pass: modules that load lazily must be there before the recording.
            self.decode_commands((rows, keys), n_splits, None).map_err(failed)?;
            self.queue.wait().map_err(|e| device_error("a decode pass failed", e))?;
            self.queue.begin_graph().map_err(|e| device_error("cannot record a decode pass", e))?;
            if let Err(error) = self.decode_commands((rows, keys), n_splits, None) {
                // the recording's own error is the one to report
                let _ = self.queue.cancel_graph();
                return Err(failed(error));
            }
            let graph = self.queue.end_graph().map_err(|e| device_error("cannot record a decode pass", e))?;
            tracing::debug!(rows, n_splits, form = graph.form(), "decode graph recorded");
            self.graphs.insert((rows, n_splits), graph);
            return Ok(());
        }
        match self.graphs.get(&(rows, n_splits)) {
            Some(graph) => self.queue.replay(graph).map_err(|e| device_error("a decode pass failed", e)),
            None => Err(usage("the decode graph is missing")),
        }
    }

    fn decode_commands(
        &self,
        (rows, keys): (usize, usize),
        n_splits: usize,
        mut tap: Option<TapFunction<'_>>,
    ) -> ns_llm_kernels::Result<()> {
        let pass = self.pass();
        match &mut tap {
            Some(tap) => {
                pass.layers(Shape::Decode { rows, n_splits, keys }, Some(&mut **tap))?;
                pass.result_norm(rows, &mut Some(&mut **tap))?;
            }
            None => pass.layers(Shape::Decode { rows, n_splits, keys }, None)?,
        }
        pass.head(0, rows)?;
        pass.choose(rows)
    }

    /// One run of a session, at most a chunk; returns the logits of the last `n_out` rows, or none for 0.
    fn run(
        &mut self,
        session: SessionId,
        tokens: &[u32],
        n_out: usize,
        mut tap: Option<TapFunction<'_>>,
    ) -> Result<Vec<f32>> {
        if tokens.is_empty() || tokens.len() > self.sizes.chunk || n_out > tokens.len() {
            return Err(usage(format!(
                "a pass of {} rows with {n_out} results is not possible (1 to {} rows)",
                tokens.len(),
                self.sizes.chunk
            )));
        }
        self.check_tokens(tokens.iter().copied())?;
        self.check_room(session, tokens.len())?;
        self.keep_logits(&[session])?;
        let rows = tokens.len();
        let states = tokens.iter().enumerate().map(|(i, &t)| self.state(session, i, t)).collect::<Result<Vec<_>>>()?;
        let mut out = Vec::with_capacity(n_out * self.p.n_vocab);
        let last_row;
        if rows <= MAX_ROWS {
            self.decode_rows(&states, tap)?;
            if n_out > 0 {
                out = self.read_logits(rows - n_out, n_out)?;
            }
            last_row = rows - 1;
        } else {
            self.write_input(&states)?;
            let s = self.sessions.get(session)?;
            let chunk = Chunk { rows, position: s.position, first_cell: s.cells.start };
            let failed = |e| kernel_error("a prompt pass failed", e);
            match &mut tap {
                Some(tap) => {
                    self.pass().layers(Shape::Prompt(chunk), Some(&mut **tap)).map_err(failed)?;
                    self.pass().result_norm(rows, &mut Some(&mut **tap)).map_err(failed)?;
                }
                None => self.pass().layers(Shape::Prompt(chunk), None).map_err(failed)?,
            }
            let mut first = rows - n_out.max(1);
            let mut count = 0;
            while first < rows {
                count = MAX_ROWS.min(rows - first);
                self.pass().head(first, count).map_err(failed)?;
                if n_out > 0 {
                    out.extend(self.read_logits(0, count)?);
                }
                first += count;
            }
            last_row = count - 1;
        }
        // a failure of the device shows here, before the session moves
        self.queue.wait().map_err(|e| device_error("a pass failed", e))?;
        let s = self.sessions.get_mut(session)?;
        s.pass_start = Some(s.position);
        s.position += rows;
        s.logits = Logits::Row(last_row);
        Ok(out)
    }

    /// One row each of several sessions.
    fn run_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<()> {
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(usage(format!("a batch of {} rows is not possible (1 to {MAX_ROWS})", rows.len())));
        }
        let ids: Vec<SessionId> = rows.iter().map(|r| r.0).collect();
        for (i, id) in ids.iter().enumerate() {
            if ids[..i].contains(id) {
                return Err(usage(format!("session {} is twice in one batch", id.0)));
            }
            self.check_room(*id, 1)?;
        }
        self.check_tokens(rows.iter().map(|r| r.1))?;
        self.keep_logits(&ids)?;
        let states = rows.iter().map(|&(id, t)| self.state(id, 0, t)).collect::<Result<Vec<_>>>()?;
        self.decode_rows(&states, None)?;
        Ok(())
    }

    /// Moves the sessions of a batch one token on; their logits are rows of the device's buffer.
    fn commit_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<()> {
        for (row, (id, _)) in rows.iter().enumerate() {
            let s = self.sessions.get_mut(*id)?;
            s.pass_start = Some(s.position);
            s.position += 1;
            s.logits = Logits::Row(row);
        }
        Ok(())
    }

    pub(crate) fn session_logits(&self, session: SessionId) -> Result<Vec<f32>> {
        match &self.sessions.get(session)?.logits {
            Logits::Host(values) => Ok(values.clone()),
            Logits::Row(row) => self.read_logits(*row, 1),
            Logits::None => Err(usage(format!("session {} has no logits: nothing was read since", session.0))),
        }
    }

    /// Draws a session's next token from a row of logits.
    fn draw(&self, session: SessionId, decoder: &mut Decoder, logits: &[f32]) -> Result<u32> {
        let position = self.sessions.get(session)?.position as u64;
        let token = sampler::sample(logits, &decoder.sampling, decoder.window(), position);
        decoder.scores.clear();
        if let Some(top) = decoder.sampling.logprobs {
            decoder.scores.push(sampler::scores(logits, token, top));
        }
        decoder.push(token);
        Ok(token)
    }
}

/// Whether the device's own choice is the whole drawing.
fn plain(sampling: &Sampling) -> bool {
    sampling.is_greedy() && !sampling.has_penalties() && sampling.logprobs.is_none()
}

impl Engine for Llama {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn devices(&self) -> Vec<DeviceReport> {
        let info = self.device.info();
        vec![DeviceReport {
            index: 0,
            name: info.name.clone(),
            pci: info.pci.clone(),
            total: info.total_memory,
            free: self.device.free_memory().ok(),
            layers: (0, self.p.n_layers),
            expert_slots: 0,
            host_slots: 0,
        }]
    }

    fn open_session(&mut self, max_context: usize) -> Result<SessionId> {
        self.sessions.open(max_context)
    }

    fn close_session(&mut self, session: SessionId) -> Result<()> {
        self.sessions.close(session)
    }

    fn reset(&mut self, session: SessionId) -> Result<()> {
        self.truncate(session, 0)
    }

    fn copy(&mut self, to: SessionId, from: SessionId) -> Result<()> {
        let position = self.sessions.get(from)?.position;
        let target = self.sessions.get(to)?;
        if position > target.limit {
            return Err(Error::new(
                ErrorKind::ContextFull,
                format!("a session of {position} tokens does not fit into one of {}", target.limit),
            ));
        }
        if to == from {
            return Ok(());
        }
        let logits = match &self.sessions.get(from)?.logits {
            Logits::None => Logits::None,
            _ => Logits::Host(self.session_logits(from)?),
        };
        let (source, target) = (self.sessions.get(from)?.cells.start, self.sessions.get(to)?.cells.start);
        for head in checkpoint::heads(&self.p, &self.sizes, position) {
            self.queue
                .copy(&self.kv, head.at(target), &self.kv, head.at(source), head.bytes)
                .map_err(|e| device_error("cannot copy a session", e))?;
        }
        let s = self.sessions.get_mut(to)?;
        s.position = position;
        s.pass_start = None;
        s.logits = logits;
        Ok(())
    }

    fn position(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions.get(session)?.position)
    }

    fn max_context(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions.get(session)?.limit)
    }

    fn truncate(&mut self, session: SessionId, position: usize) -> Result<()> {
        let s = self.sessions.get_mut(session)?;
        if position > s.position {
            return Err(usage(format!("cannot cut a session of {} tokens at {position}", s.position)));
        }
        if position < s.position {
            s.position = position;
            s.pass_start = None;
            s.logits = Logits::None;
        }
        Ok(())
    }

    fn save(&mut self, session: SessionId) -> Result<Checkpoint> {
        let len = self.state_bytes(session)?;
        let mut state = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        self.save_to(session, &mut state)?;
        let position = self.sessions.get(session)?.position;
        Ok(Checkpoint { fingerprint: self.facts.cache_fingerprint.clone(), position, state })
    }

    fn state_bytes(&mut self, session: SessionId) -> Result<u64> {
        let s = self.sessions.get(session)?;
        let heads = checkpoint::heads(&self.p, &self.sizes, s.position);
        let (without, with) = checkpoint::state_lens(&heads, self.p.n_vocab);
        Ok(if s.logits == Logits::None { without } else { with })
    }

    fn save_to(&mut self, session: SessionId, out: &mut dyn Write) -> Result<()> {
        self.write_state(session, out)
    }

    fn restore(&mut self, session: SessionId, checkpoint: &Checkpoint) -> Result<()> {
        self.restore_from(session, &checkpoint.head(), &mut checkpoint.state.as_slice())
    }

    fn restore_from(&mut self, session: SessionId, head: &CheckpointHead, input: &mut dyn Read) -> Result<()> {
        self.read_state(session, head, input)
    }

    fn feed_until(&mut self, session: SessionId, tokens: &[u32], stop: &mut dyn FnMut() -> bool) -> Result<usize> {
        self.check_tokens(tokens.iter().copied())?;
        self.check_room(session, tokens.len())?;
        let mut done = 0;
        for chunk in tokens.chunks(self.sizes.chunk) {
            if done > 0 && stop() {
                break;
            }
            self.run(session, chunk, 0, None)?;
            done += chunk.len();
        }
        Ok(done)
    }

    fn forward_rows(&mut self, session: SessionId, tokens: &[u32], n_out: usize) -> Result<Vec<f32>> {
        self.run(session, tokens, n_out, None)
    }

    fn forward_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<Vec<f32>> {
        self.run_batch(rows)?;
        let logits = self.read_logits(0, rows.len())?;
        self.commit_batch(rows)?;
        Ok(logits)
    }

    fn forward_tapped(&mut self, session: SessionId, tokens: &[u32], tap: &mut dyn FnMut(Tap<'_>)) -> Result<Vec<f32>> {
        self.run(session, tokens, tokens.len(), Some(tap))
    }

    fn logits(&mut self, session: SessionId) -> Result<Vec<f32>> {
        self.session_logits(session)
    }

    fn decoder(&mut self, session: SessionId, sampling: Sampling, history: &[u32], draft: bool) -> Result<Decoder> {
        self.check_room(session, 1)?;
        let logits = self.session_logits(session)?;
        let keep = history.len().saturating_sub(sampling.penalty_window);
        let position = self.sessions.get(session)?.position as u64;
        let first = sampler::sample(&logits, &sampling, history[keep..].iter().copied(), position);
        let scores = sampling.logprobs.map(|top| sampler::scores(&logits, first, top));
        let mut decoder = Decoder::new(sampling, history, first, draft && self.facts.draft);
        decoder.scores = scores.into_iter().collect();
        Ok(decoder)
    }

    fn step(&mut self, session: SessionId, decoder: &mut Decoder) -> Result<Vec<u32>> {
        self.step_batch(&mut [(session, decoder)])
    }

    fn step_batch(&mut self, rows: &mut [(SessionId, &mut Decoder)]) -> Result<Vec<u32>> {
        let input: Vec<(SessionId, u32)> = rows.iter().map(|(id, d)| (*id, d.pending)).collect();
        self.run_batch(&input)?;
        let chosen: Vec<i32> = self
            .queue
            .read_vec(&self.work.chosen, 0, rows.len())
            .map_err(|e| device_error("cannot read the tokens", e))?;
        self.commit_batch(&input)?;
        let mut tokens = Vec::with_capacity(rows.len());
        for (row, (session, decoder)) in rows.iter_mut().enumerate() {
            if plain(&decoder.sampling) {
                let token = chosen[row] as u32;
                decoder.scores.clear();
                decoder.push(token);
                tokens.push(token);
            } else {
                let logits = self.read_logits(row, 1)?;
                tokens.push(self.draw(*session, decoder, &logits)?);
            }
        }
        Ok(tokens)
    }

    fn rollback(&mut self, session: SessionId, keep: usize) -> Result<()> {
        let s = self.sessions.get(session)?;
        let Some(start) = s.pass_start else {
            return Err(usage(format!("session {} has no pass to take back", session.0)));
        };
        if keep > s.position - start {
            return Err(usage(format!("the last pass had {} rows, {keep} cannot be kept", s.position - start)));
        }
        self.truncate(session, start + keep)
    }

    fn check_kernels(&mut self) -> Result<Vec<KernelCheck>> {
        crate::kernel_checks::run(&self.file, &self.weights, &self.queue, &self.device, &self.kernels, &self.p)
    }

    fn profile(&mut self) -> Result<Vec<String>> {
        let lines = self.profile.as_ref().map_or_else(|| Ok(Vec::new()), Profile::lines);
        lines.map_err(|e| kernel_error("cannot read the profile", e))
    }
}
