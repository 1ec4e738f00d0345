//! The interface between a language-model engine and the tool that drives it.
//!
//! An engine serves one family of models (`general.architecture` of a GGUF file). The tool never sees a tensor: it
//! opens an engine through its [`Registration`], opens sessions (one conversation each), feeds tokens and decodes.
//!
//! Units: positions, lengths and contexts are tokens; sizes are bytes; logits are natural-log scores in float32,
//! `n_vocab` a row.

mod checkpoint;
pub mod checks;
mod decoder;
mod error;
mod options;
pub mod philox;
mod plan;
pub mod sampler;

pub use checkpoint::{Checkpoint, CheckpointHead, CheckpointReader, CheckpointWriter};
pub use decoder::{Decoder, Sampling, TokenLogprob, TokenScores};
pub use error::{Error, ErrorKind, Result};
pub use options::{Moment, OptionSpec, OptionValues};
pub use plan::{DevicePlan, Plan};

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Progress of a load: bytes done, bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// What an engine tells about itself before any model is opened.
pub struct Registration {
    /// The engine's name, as `engines` prints it.
    pub name: &'static str,
    /// Values of `general.architecture` that it serves.
    pub architectures: &'static [&'static str],
    /// Options it takes (`--opt-NAME`).
    pub options: &'static [OptionSpec],
    /// Most devices it spreads a model over; `usize::MAX` for any number.
    pub max_devices: usize,
    /// Tells what [`Registration::load`] would take of each device, without loading anything. A plan that does not fit is
    /// no error here; [`Plan::check`] makes it one, and `load` begins with it.
    pub plan: fn(&Path, &LoadOptions) -> Result<Plan>,
    /// Opens a model for use.
    pub load: fn(&Path, &LoadOptions, Progress<'_>) -> Result<Box<dyn Engine>>,
    /// Reads a model's facts without any device.
    pub info: fn(&Path) -> Result<ModelInfo>,
}

/// How to open a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Device selectors in order, for example `gpu:0` or `cpu`. Where there are several, the layers are laid on them in this order,
    /// and the last device has the head and the draft block.
    pub devices: Vec<String>,
    /// Longest context of each session that will be open at once; memory is reserved for all of them at load.
    pub contexts: Vec<usize>,
    /// Whether a draft block may be used where the model has one.
    pub draft: bool,
    /// Values of the engine's own options, checked against [`Registration::options`].
    pub options: OptionValues,
    /// Device memory for experts in bytes; `None` means what is free.
    pub expert_bytes: Option<u64>,
    /// Host memory for experts in bytes; `None` means what is free less a margin.
    pub host_expert_bytes: Option<u64>,
}

impl LoadOptions {
    /// One session of `context` tokens on one device.
    pub fn single(device: &str, context: usize) -> Self {
        Self {
            devices: vec![device.to_owned()],
            contexts: vec![context],
            draft: true,
            options: OptionValues::default(),
            expert_bytes: None,
            host_expert_bytes: None,
        }
    }
}

/// Facts of a model file, read without a device.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, or the file's name.
    pub name: String,
    /// All files of the model.
    pub files: Vec<PathBuf>,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Number of tensors.
    pub tensor_count: usize,
    /// Longest context the model was trained for.
    pub context_length: usize,
    /// Dimensions in words, in the order to print them.
    pub geometry: Vec<(String, String)>,
    /// One line a tensor role: role, tensors found, their types, bytes.
    pub roles: Vec<RoleInfo>,
}

/// Tensors that play one role in a model.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RoleInfo {
    /// For example `attn_q`.
    pub role: String,
    /// Tensors of it.
    pub count: usize,
    /// Their block formats.
    pub types: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
}

/// A conversation's handle inside one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

/// Constant facts of an opened model.
#[derive(Debug, Clone)]
pub struct EngineFacts {
    /// The engine's name.
    pub engine: &'static str,
    /// `general.architecture`.
    pub architecture: String,
    /// The model's name.
    pub model: String,
    /// Size of a logits row.
    pub n_vocab: usize,
    /// Longest context the model was trained for.
    pub context_length: usize,
    /// Most tokens a single pass reads.
    pub prefill_chunk: usize,
    /// Most rows of [`Engine::forward_rows`] that are bit-equal to one-token passes, and most sessions in one
    /// [`Engine::step_batch`].
    pub max_verify: usize,
    /// Whether [`Engine::truncate`] can cut a session at any position.
    pub truncatable: bool,
    /// Whether decoding uses a draft block.
    pub draft: bool,
    /// What a stored checkpoint must match: cache form, draft model present, format version.
    pub cache_fingerprint: String,
}

/// One device an engine runs on.
#[derive(Debug, Clone, serde::Serialize)]
pub struct DeviceReport {
    /// Position in the engine's order.
    pub index: usize,
    /// The device's own name.
    pub name: String,
    /// PCI address, empty when unknown.
    pub pci: String,
    /// Memory in bytes.
    pub total: u64,
    /// Free memory in bytes, as far as the driver tells.
    pub free: Option<u64>,
    /// Layers `[first, last)` that live there.
    pub layers: (usize, usize),
    /// Experts in its memory.
    pub expert_slots: usize,
    /// Experts in host memory.
    pub host_slots: usize,
}

/// A named intermediate tensor of a pass, as float32 rows.
pub struct Tap<'a> {
    /// llama.cpp's graph name, for example `attn_norm`.
    pub name: &'a str,
    /// The layer, or `None` outside the layers.
    pub layer: Option<usize>,
    /// Values a row.
    pub columns: usize,
    /// Rows one after another, the first fed token first.
    pub values: &'a [f32],
}

/// One result of [`Engine::check_kernels`].
#[derive(Debug, Clone)]
pub struct KernelCheck {
    /// The kernel's name.
    pub kernel: String,
    /// What it was run on.
    pub case: String,
    /// Largest difference from the exact path, relative to the exact values' largest magnitude.
    pub error: f64,
    /// The bound it must keep.
    pub bound: f64,
}

/// An opened model. One thread drives it; calls return when their results are in host memory.
///
/// Token ids outside the vocabulary, a context overflow and a checkpoint of another model are errors that leave every
/// session as it was.
pub trait Engine: Send {
    /// Constant facts.
    fn facts(&self) -> &EngineFacts;
    /// The devices in use.
    fn devices(&self) -> Vec<DeviceReport>;

    /// Opens a session of at most `max_context` tokens out of the memory reserved at load.
    fn open_session(&mut self, max_context: usize) -> Result<SessionId>;
    /// Gives a session's memory back.
    fn close_session(&mut self, session: SessionId) -> Result<()>;
    /// Forgets all tokens of a session.
    fn reset(&mut self, session: SessionId) -> Result<()>;
    /// Makes `to` equal to `from` (tokens, caches, logits).
    fn copy(&mut self, to: SessionId, from: SessionId) -> Result<()>;
    /// Tokens in the session.
    fn position(&self, session: SessionId) -> Result<usize>;
    /// The session's capacity.
    fn max_context(&self, session: SessionId) -> Result<usize>;
    /// Cuts the session to its first `position` tokens. Fails where [`EngineFacts::truncatable`] is false, except at
    /// the session's own position and at 0. The session has no logits afterwards unless the position did not change.
    fn truncate(&mut self, session: SessionId, position: usize) -> Result<()>;

    /// The whole state at the session's position.
    fn save(&mut self, session: SessionId) -> Result<Checkpoint>;
    /// Puts a saved state back; the session must be large enough.
    fn restore(&mut self, session: SessionId, checkpoint: &Checkpoint) -> Result<()>;
    /// Bytes of the state that [`Engine::save`] would give now.
    fn state_bytes(&mut self, session: SessionId) -> Result<u64> {
        Ok(self.save(session)?.state.len() as u64)
    }
    /// Writes the state that [`Engine::save`] would give, so that it need not be in memory as a whole.
    fn save_to(&mut self, session: SessionId, out: &mut dyn Write) -> Result<()> {
        let checkpoint = self.save(session)?;
        out.write_all(&checkpoint.state).map_err(not_written)
    }
    /// [`Engine::restore`] from a stream of [`CheckpointHead::state_len`] bytes. A head that does not fit leaves the
    /// session as it was; when the stream fails or ends early, the session is empty afterwards.
    fn restore_from(&mut self, session: SessionId, head: &CheckpointHead, input: &mut dyn Read) -> Result<()> {
        let mut state = Vec::new();
        let CheckpointHead { fingerprint, position, state_len } = head.clone();
        let read = input.take(state_len).read_to_end(&mut state);
        if let Err(error) = read {
            self.reset(session)?;
            return Err(not_read(error));
        }
        self.restore(session, &Checkpoint { fingerprint, position, state })
    }

    /// Reads tokens, asking `stop` between chunks; returns how many were read. The session's logits are those of the
    /// last token read.
    fn feed_until(&mut self, session: SessionId, tokens: &[u32], stop: &mut dyn FnMut() -> bool) -> Result<usize>;
    /// Reads at most [`EngineFacts::prefill_chunk`] tokens in one pass and returns the logits of the last `n_out`
    /// rows (`n_out` x `n_vocab`). Passes of up to [`EngineFacts::max_verify`] rows equal one-token passes bit for bit.
    fn forward_rows(&mut self, session: SessionId, tokens: &[u32], n_out: usize) -> Result<Vec<f32>>;
    /// One token each for several sessions, a logits row each; every row equals the same pass alone, bit for bit.
    fn forward_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<Vec<f32>>;
    /// Like [`Engine::forward_rows`] with every row, handing intermediate tensors to `tap`.
    fn forward_tapped(&mut self, session: SessionId, tokens: &[u32], tap: &mut dyn FnMut(Tap<'_>)) -> Result<Vec<f32>>;
    /// The logits after the session's last token.
    fn logits(&mut self, session: SessionId) -> Result<Vec<f32>>;

    /// Starts decoding after the session's last token: draws the first pending token from its logits. `history` is
    /// what the penalties look at (the newest last). `draft` asks for drafts where the model has them.
    fn decoder(&mut self, session: SessionId, sampling: Sampling, history: &[u32], draft: bool) -> Result<Decoder>;
    /// Commits the decoder's pending token, and with drafts possibly more; afterwards the decoder has a new pending
    /// token. Returns the tokens drawn in this step, the new pending one last. Steps with drafts ([`Decoder::draft`])
    /// and steps without them ([`Engine::step_batch`]) may follow each other in any order.
    fn step(&mut self, session: SessionId, decoder: &mut Decoder) -> Result<Vec<u32>>;
    /// [`Engine::step`] without drafts for several sessions in one pass; returns the new pending token of each. Results
    /// equal those of stepping each session alone.
    fn step_batch(&mut self, rows: &mut [(SessionId, &mut Decoder)]) -> Result<Vec<u32>>;
    /// Takes back the last multi-row pass down to its first `keep` rows.
    fn rollback(&mut self, session: SessionId, keep: usize) -> Result<()>;

    /// Runs each decode kernel of the model against the exact path.
    fn check_kernels(&mut self) -> Result<Vec<KernelCheck>>;
    /// Lines of a profile of everything so far: time, bytes and operations a section or kernel against what the device can do.
    /// Empty unless profiling was asked for at load (`NS_PROFILE`).
    fn profile(&mut self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Reads all tokens and returns the last row's logits.
    fn feed(&mut self, session: SessionId, tokens: &[u32]) -> Result<Vec<f32>> {
        self.feed_until(session, tokens, &mut || false)?;
        self.logits(session)
    }
}

/// The error of an engine whose state could not be written.
pub fn not_written(error: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Checkpoint, "a session's state cannot be written", error)
}

/// The error of an engine whose state could not be read.
pub fn not_read(error: std::io::Error) -> Error {
    Error::with_source(ErrorKind::Checkpoint, "a session's state cannot be read", error)
}
