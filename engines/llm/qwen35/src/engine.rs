//! The contract of [`ns_llm::Engine`] over the passes.

use crate::checkpoint;
use crate::files::Files;
use crate::options::{Options, precision_name};
use crate::params::Params;
use crate::run::usage;
use crate::session::{Logits, Sessions};
use crate::stage::Stage;
use crate::weights::{Loading, Source};
use crate::work::{MAX_ROWS, Plan};
use crate::{device_error, fit, kernel_error};
use ns_llm::{
    Checkpoint, CheckpointHead, Decoder, DeviceReport, Engine, EngineFacts, Error, ErrorKind, KernelCheck, LoadOptions,
    Progress, Result, Sampling, SessionId, Tap, sampler,
};
use std::io::{Read, Write};
use std::path::Path;

/// An opened model.
pub struct Qwen35 {
    pub(crate) facts: EngineFacts,
    /// Dimensions.
    pub(crate) p: Params,
    pub(crate) plan: Plan,
    pub(crate) options: Options,
    /// Whether the draft block is there.
    pub(crate) draft: bool,
    /// The devices, in the order of their layers.
    pub(crate) stages: Vec<Stage>,
    pub(crate) sessions: Sessions,
    pub(crate) files: Files,
}

/// Whether the device's own choice is the whole drawing.
pub fn plain(sampling: &Sampling) -> bool {
    sampling.is_greedy() && !sampling.has_penalties() && sampling.logprobs.is_none()
}

/// A model's files as the loading sees them: a draft block only where drafts are wanted.
fn source<'a>(files: &'a Files, options: &Options) -> Source<'a> {
    Source { main: &files.main, p: &files.p, draft: files.draft().filter(|_| options.drafts > 0) }
}

impl Qwen35 {
    /// What [`Qwen35::load`] would take of the devices.
    pub fn plan(path: &Path, load: &LoadOptions) -> Result<ns_llm::Plan> {
        let options = Options::read(load)?;
        let files = Files::open(path, options.mtp.as_deref(), options.drafts > 0)?;
        Ok(fit::plan(&source(&files, &options), &options, load)?.1)
    }

    /// Opens a model: reads its dimensions, plans what goes where, packs its weights.
    pub fn load(path: &Path, load: &LoadOptions, progress: Progress<'_>) -> Result<Self> {
        let options = Options::read(load)?;
        let files = Files::open(path, options.mtp.as_deref(), options.drafts > 0)?;
        let p = files.p.clone();
        let source = source(&files, &options);
        let draft = source.draft.is_some();
        let (placements, memory) = fit::plan(&source, &options, load)?;
        memory.check()?;
        let mut total = 0;
        for placement in &placements {
            total += source.bytes(&placement.share, placement.device.class()).0;
        }
        let plan = placements.first().map(|one| one.sizes.plan).ok_or_else(|| usage("no device takes the model"))?;
        let precision = placements.last().map_or("", |one| precision_name(one.sizes.precision));
        let mut loading = Loading { done: 0, total, progress };
        let mut stages = Vec::with_capacity(placements.len());
        for one in placements {
            // a device that is there twice has one profile
            let known = stages.iter().any(|s: &Stage| s.device.info().selector == one.device.info().selector);
            stages.push(Stage::load(&source, one.device, (one.share, one.sizes), (&options, !known), &mut loading)?);
        }
        let name = files.main.get_str("general.name").map_or_else(|| files.main.stem(), str::to_owned);
        let full = p.full_layers(0..p.n_layers);
        // The layers of each device are together in a state.
        let split: String = stages.iter().skip(1).map(|s| format!(" split-{}", s.share.layers.start)).collect();
        let facts = EngineFacts {
            engine: "qwen35",
            architecture: "qwen35".into(),
            model: name,
            n_vocab: p.n_vocab,
            context_length: p.context_length,
            prefill_chunk: plan.chunk,
            max_verify: MAX_ROWS,
            truncatable: false,
            draft,
            cache_fingerprint: format!(
                "qwen35 kv-{precision} {full}x{}x{} delta {}x{}x{} draft-{}{split} v1",
                p.n_kv,
                p.head_dim,
                p.n_layers - full,
                p.n_key_heads,
                p.n_value_heads,
                u8::from(draft)
            ),
        };
        let sessions = Sessions::new(plan.cells, plan.slots);
        Ok(Self { facts, plan, options, draft, stages, sessions, p, files })
    }

    /// The device with the head and the draft block.
    pub(crate) fn last(&self) -> &Stage {
        &self.stages[self.stages.len() - 1]
    }

    pub(crate) fn clear(&mut self, session: SessionId) -> Result<()> {
        let s = self.sessions.get_mut(session)?;
        s.clear();
        let slot = s.slot;
        for stage in &self.stages {
            stage.clear_state(&self.p, slot)?;
        }
        Ok(())
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

    /// Checks the rows of a batch before anything changes.
    fn check_batch(&self, rows: &[(SessionId, u32)]) -> Result<()> {
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(usage(format!("a batch of {} rows is not possible (1 to {MAX_ROWS})", rows.len())));
        }
        for (i, (id, token)) in rows.iter().enumerate() {
            if rows[..i].iter().any(|r| r.0 == *id) {
                return Err(usage(format!("session {} is twice in one batch", id.0)));
            }
            self.check_room(*id, 1)?;
            self.check_tokens(&[*token])?;
        }
        Ok(())
    }

    fn run_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<()> {
        self.check_batch(rows)?;
        let groups: Vec<(SessionId, &[u32])> = rows.iter().map(|(id, t)| (*id, std::slice::from_ref(t))).collect();
        self.run_rows(&groups, None)
    }

    fn commit_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<()> {
        let groups: Vec<(SessionId, &[u32])> = rows.iter().map(|(id, t)| (*id, std::slice::from_ref(t))).collect();
        self.commit_rows(&groups)
    }
}

impl Engine for Qwen35 {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn devices(&self) -> Vec<DeviceReport> {
        let report = |(index, stage): (usize, &Stage)| {
            let info = stage.device.info();
            DeviceReport {
                index,
                name: info.name.clone(),
                pci: info.pci.clone(),
                total: info.total_memory,
                free: stage.device.free_memory().ok(),
                layers: (stage.share.layers.start, stage.share.layers.end),
                expert_slots: 0,
                host_slots: 0,
            }
        };
        self.stages.iter().enumerate().map(report).collect()
    }

    fn open_session(&mut self, max_context: usize) -> Result<SessionId> {
        let id = self.sessions.open(max_context)?;
        self.clear(id)?;
        Ok(id)
    }

    fn close_session(&mut self, session: SessionId) -> Result<()> {
        self.sessions.close(session)
    }

    fn reset(&mut self, session: SessionId) -> Result<()> {
        self.clear(session)
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
        if position == 0 {
            return self.clear(to);
        }
        let logits = match &self.sessions.get(from)?.logits {
            Logits::None => Logits::None,
            _ => Logits::Host(self.session_logits(from)?),
        };
        self.settle(from)?;
        let (source, target) = (self.sessions.get(from)?, self.sessions.get(to)?);
        let (drafted, behind) = (source.drafted, source.behind.clone());
        let (from_at, to_at) = ((source.slot, source.cells.start), (target.slot, target.cells.start));
        for stage in &self.stages {
            checkpoint::copy_blocks(&self.p, stage, from_at, to_at, (position, behind.len()))?;
        }
        self.sessions.get_mut(to)?.place(position, drafted, behind, logits);
        Ok(())
    }

    fn position(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions.get(session)?.position)
    }

    fn max_context(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions.get(session)?.limit)
    }

    fn truncate(&mut self, session: SessionId, position: usize) -> Result<()> {
        let s = self.sessions.get(session)?;
        match position {
            _ if position == s.position => Ok(()),
            0 => self.clear(session),
            _ => Err(usage(format!(
                "cannot cut a session of {} tokens at {position}: this model's states cannot go back",
                s.position
            ))),
        }
    }

    fn save(&mut self, session: SessionId) -> Result<Checkpoint> {
        let mut state = Vec::with_capacity(usize::try_from(self.state_len(session)?).unwrap_or_default());
        self.write_state(session, &mut state)?;
        let position = self.sessions.get(session)?.position;
        Ok(Checkpoint { fingerprint: self.facts.cache_fingerprint.clone(), position, state })
    }

    fn restore(&mut self, session: SessionId, checkpoint: &Checkpoint) -> Result<()> {
        self.read_state(session, &checkpoint.head(), &mut checkpoint.state.as_slice())
    }

    fn state_bytes(&mut self, session: SessionId) -> Result<u64> {
        self.state_len(session)
    }

    fn save_to(&mut self, session: SessionId, out: &mut dyn Write) -> Result<()> {
        self.write_state(session, out)
    }

    fn restore_from(&mut self, session: SessionId, head: &CheckpointHead, input: &mut dyn Read) -> Result<()> {
        self.read_state(session, head, input)
    }

    fn feed_until(&mut self, session: SessionId, tokens: &[u32], stop: &mut dyn FnMut() -> bool) -> Result<usize> {
        self.check_tokens(tokens)?;
        self.check_room(session, tokens.len())?;
        let mut done = 0;
        for chunk in tokens.chunks(self.plan.chunk) {
            if done > 0 && stop() {
                break;
            }
            if chunk.len() > MAX_ROWS && self.stages.len() > 1 {
                // the last device may still be at it while the first starts with the next chunk
                self.run_prompt(session, chunk, 0, None)?;
            } else {
                self.run(session, chunk, 0, None)?;
            }
            done += chunk.len();
        }
        self.last().queue.wait().map_err(|e| device_error("a prompt pass failed", e))?;
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
        let mut decoder = Decoder::new(sampling, history, first, draft && self.draft);
        decoder.scores = scores.into_iter().collect();
        Ok(decoder)
    }

    fn step(&mut self, session: SessionId, decoder: &mut Decoder) -> Result<Vec<u32>> {
        if self.draft && decoder.draft {
            return self.step_drafted(session, decoder);
        }
        self.step_batch(&mut [(session, decoder)])
    }

    fn step_batch(&mut self, rows: &mut [(SessionId, &mut Decoder)]) -> Result<Vec<u32>> {
        let input: Vec<(SessionId, u32)> = rows.iter().map(|(id, d)| (*id, d.pending)).collect();
        self.run_batch(&input)?;
        let chosen = self.read_chosen(rows.len())?;
        self.commit_batch(&input)?;
        let mut tokens = Vec::with_capacity(rows.len());
        for (row, (session, decoder)) in rows.iter_mut().enumerate() {
            if plain(&decoder.sampling) {
                decoder.scores.clear();
                decoder.push(chosen[row]);
                tokens.push(chosen[row]);
            } else {
                let logits = self.read_logits(row, 1)?;
                tokens.push(self.draw(*session, decoder, &logits)?);
            }
        }
        Ok(tokens)
    }

    fn rollback(&mut self, session: SessionId, keep: usize) -> Result<()> {
        self.sessions.get_mut(session)?.roll_back(keep)
    }

    fn check_kernels(&mut self) -> Result<Vec<KernelCheck>> {
        crate::kernel_checks::run(self)
    }

    fn profile(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for profile in self.stages.iter().filter_map(|s| s.profile.as_ref()) {
            lines.extend(profile.lines().map_err(|e| kernel_error("cannot read the profile", e))?);
        }
        Ok(lines)
    }
}
