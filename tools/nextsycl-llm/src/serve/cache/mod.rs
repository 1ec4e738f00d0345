//! States of prompts that were read, so that the next request with the same beginning does not read it again.
//!
//! A checkpoint is a session's whole state behind some tokens. They are kept in host memory up to a budget; the least recently
//! used leave it for files in a [`Folder`], which survive the server. A thread writes them: some ahead of need, so that memory
//! can be had at once, those that must leave when there is no room, and the rest at the stop. What is larger than the memory
//! budget is written to its file straight from the engine.

mod folder;
mod writer;

pub use folder::Config as DiskConfig;
pub use writer::Writer;

use folder::{Folder, ReadError, Stored, Unwritten};
use ns_llm::{Checkpoint, Engine, SessionId};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A beginning of fewer tokens is read faster than it is worth.
pub const LEAST_TOKENS: usize = 64;
/// Time after which files are tried again where none could be written.
const TROUBLE: Duration = Duration::from_secs(60);
/// Longest wait for memory; then the checkpoint is not made.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Share of the memory budget that is kept free or quickly freed.
const AHEAD: u64 = 4;

/// How much is kept, and where.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Most bytes of host memory.
    pub memory: u64,
    /// The folder, if any.
    pub disk: Option<DiskConfig>,
}

/// One checkpoint: in memory, in a file, or both.
struct Entry {
    id: u64,
    tokens: Arc<[u32]>,
    /// Bytes of the state.
    state: u64,
    memory: Option<Arc<Checkpoint>>,
    stored: Option<Stored>,
    used: SystemTime,
    /// The writer has it.
    writing: bool,
    /// It leaves memory when it is written.
    leaving: bool,
}

impl Entry {
    /// Bytes of memory it takes.
    fn cost(&self) -> u64 {
        self.memory.as_ref().map_or(0, |m| m.size() as u64 + self.tokens.len() as u64 * 4)
    }
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    last_id: u64,
    memory: u64,
    evictions: u64,
    /// Entries for the writer, in order.
    queue: std::collections::VecDeque<u64>,
    /// No files until then, after a failure.
    trouble: Option<Instant>,
    closing: bool,
}

impl State {
    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|e| e.id == id)
    }

    /// Takes an entry out of memory, and out of the list where it has no file.
    fn drop_memory(&mut self, id: u64) {
        let Some(entry) = self.entry(id) else { return };
        let cost = entry.cost();
        entry.memory = None;
        entry.leaving = false;
        self.memory -= cost;
        self.evictions += 1;
        self.entries.retain(|e| e.memory.is_some() || e.stored.is_some());
    }

    /// Forgets an entry.
    fn remove(&mut self, id: u64) {
        if let Some(at) = self.entries.iter().position(|e| e.id == id) {
            let entry = self.entries.remove(at);
            self.memory -= entry.cost();
        }
    }

    /// Files that are gone are no longer known.
    fn forget_files(&mut self, gone: &[PathBuf]) {
        for entry in &mut self.entries {
            if entry.stored.as_ref().is_some_and(|s| gone.contains(&s.path)) {
                entry.stored = None;
            }
        }
        self.entries.retain(|e| e.memory.is_some() || e.stored.is_some());
    }
}

/// The cache, shared by the engine's thread, the writer's and those that tell about it.
pub struct PromptCache {
    budget: u64,
    folder: Option<Folder>,
    state: Mutex<State>,
    changed: Condvar,
    /// The stop is not to wait for files.
    hurry: AtomicBool,
}

/// A checkpoint that a prompt can use.
pub struct Hit {
    id: u64,
    /// Tokens of the prompt that need not be read.
    pub reuse: usize,
    /// Tokens of the checkpoint; more than `reuse` where the session is cut afterwards.
    pub position: usize,
}

impl PromptCache {
    /// The cache for a model; what its folder holds is known from now on.
    pub fn open(config: &CacheConfig, model: [u8; 32], fingerprint: &str) -> Arc<Self> {
        let mut state = State::default();
        let folder = config.disk.clone().filter(|d| d.budget > 0).and_then(|disk| {
            // A folder that cannot be made is no reason not to serve.
            Folder::open(disk, model, fingerprint)
                .inspect_err(|e| tracing::warn!("prompt cache: {e}: prompts are kept in memory only"))
                .ok()
        });
        for found in folder.iter().flat_map(Folder::scan) {
            state.last_id += 1;
            state.entries.push(Entry {
                id: state.last_id,
                tokens: found.tokens,
                state: found.state,
                memory: None,
                stored: Some(found.stored),
                used: found.used,
                writing: false,
                leaving: false,
            });
        }
        let cache = Self {
            budget: config.memory,
            folder,
            state: Mutex::new(state),
            changed: Condvar::new(),
            hurry: AtomicBool::new(false),
        };
        Arc::new(cache)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is changed in whole steps; one that a panic left is still consistent enough for a cache.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest usable beginning of a prompt, if any; one token is left to read.
    pub fn find(&self, prompt: &[u32], truncatable: bool, capacity: usize) -> Option<Hit> {
        let state = self.lock();
        let usable = state.entries.iter().filter(|e| e.tokens.len() <= capacity).filter_map(|e| {
            let shared = e.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let reuse = shared.min(prompt.len().saturating_sub(1));
            let whole = reuse == e.tokens.len();
            // A cut state is copied as a whole: a short beginning of a long one is read sooner.
            let worth = truncatable && reuse >= LEAST_TOKENS && reuse * 16 >= e.tokens.len();
            let rank = (reuse, e.memory.is_some(), std::cmp::Reverse(e.tokens.len()));
            (whole || worth).then_some((rank, Hit { id: e.id, reuse, position: e.tokens.len() }))
        });
        usable.max_by_key(|(rank, _)| *rank).map(|(_, hit)| hit)
    }

    /// Tokens of the longest checkpoint that is a beginning of these tokens.
    fn covered(&self, tokens: &[u32]) -> usize {
        let state = self.lock();
        state.entries.iter().map(|e| &e.tokens).filter(|t| tokens.starts_with(t)).map(|t| t.len()).max().unwrap_or(0)
    }

    /// Whether a checkpoint behind these tokens would be of use: not where one ends shortly before. One that is there
    /// counts as used.
    pub fn wants(&self, tokens: &[u32]) -> bool {
        if tokens.len() < LEAST_TOKENS {
            return false;
        }
        let covered = self.covered(tokens);
        if covered == tokens.len() {
            let mut state = self.lock();
            if let Some(entry) = state.entries.iter_mut().find(|e| *e.tokens == *tokens) {
                entry.used = SystemTime::now();
            }
        }
        tokens.len() - covered >= LEAST_TOKENS
    }

    /// Puts a checkpoint into a session; tells where it was. An error that is not recoverable is the engine's end; after any
    /// other the session is empty.
    pub fn restore(
        &self,
        hit: &Hit,
        engine: &mut dyn Engine,
        session: SessionId,
    ) -> ns_llm::Result<Option<&'static str>> {
        let (tokens, memory, stored) = {
            let mut state = self.lock();
            let Some(entry) = state.entry(hit.id) else { return Ok(None) };
            entry.used = SystemTime::now();
            entry.leaving = false;
            (entry.tokens.clone(), entry.memory.clone(), entry.stored.clone())
        };
        if let Some(checkpoint) = memory {
            if let Some((folder, stored)) = self.folder.as_ref().zip(stored.as_ref()) {
                folder.touch(stored, SystemTime::now());
            }
            return match engine.restore(session, &checkpoint) {
                Ok(()) => Ok(Some("cache")),
                Err(error) if error.is_recoverable() => {
                    tracing::warn!("prompt cache: a checkpoint is dropped: {error}");
                    self.lock().remove(hit.id);
                    engine.reset(session).map(|()| None)
                }
                Err(error) => Err(error),
            };
        }
        let (Some(folder), Some(stored)) = (&self.folder, stored) else { return Ok(None) };
        let why = match folder.read(&stored, &tokens, |head, input| engine.restore_from(session, head, input)) {
            Ok(()) => return Ok(Some("disk")),
            Err(ReadError::Engine(error)) if !error.is_recoverable() => return Err(error),
            Err(ReadError::Engine(error)) => error.to_string(),
            Err(ReadError::Unfit(why)) => why,
        };
        if stored.path.exists() {
            tracing::warn!("prompt cache: {} is of no use and removed: {why}", stored.path.display());
            folder::remove(&stored.path);
        }
        self.lock().forget_files(&[stored.path]);
        engine.reset(session).map(|()| None)
    }

    /// Saves a session behind these tokens; whether it was done. Errors of the device only.
    pub fn save(&self, engine: &mut dyn Engine, session: SessionId, tokens: &[u32]) -> ns_llm::Result<bool> {
        let size = engine.state_bytes(session)?;
        let cost = size + engine.facts().cache_fingerprint.len() as u64 + tokens.len() as u64 * 4;
        if cost > self.budget {
            return Ok(self.save_to_file(engine, session, tokens, size));
        }
        if !self.make_room(cost) {
            tracing::warn!("prompt cache: no memory became free in time: a checkpoint is not made");
            return Ok(false);
        }
        let checkpoint = match engine.save(session) {
            Ok(checkpoint) => Arc::new(checkpoint),
            Err(error) if error.is_recoverable() => {
                tracing::warn!("prompt cache: a checkpoint is not made: {error}");
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.insert(tokens, size, Some(checkpoint), None);
        self.write_ahead();
        Ok(true)
    }

    fn save_to_file(&self, engine: &mut dyn Engine, session: SessionId, tokens: &[u32], size: u64) -> bool {
        let Some(folder) = self.folder.as_ref().filter(|_| !self.is_in_trouble()) else {
            tracing::debug!("prompt cache: a checkpoint of {size} bytes is larger than the budget");
            return false;
        };
        let begun = Instant::now();
        let give = |mut out: &mut dyn std::io::Write| engine.save_to(session, &mut out).map_err(|e| e.to_string());
        match folder.write(tokens, size, SystemTime::now(), give) {
            Ok((stored, gone)) => {
                self.lock().forget_files(&gone);
                let seconds = begun.elapsed().as_secs_f64();
                let what = crate::render::size(size);
                tracing::info!(
                    "prompt cache: {what} are more than the memory budget: written to disk in {seconds:.1} s"
                );
                self.insert(tokens, size, None, Some(stored));
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn insert(&self, tokens: &[u32], size: u64, memory: Option<Arc<Checkpoint>>, stored: Option<Stored>) {
        let mut state = self.lock();
        // The same tokens again: the new state takes the old one's place.
        if let Some(old) = state.entries.iter().find(|e| *e.tokens == *tokens).map(|e| e.id) {
            state.remove(old);
        }
        state.last_id += 1;
        let entry = Entry {
            id: state.last_id,
            tokens: tokens.into(),
            state: size,
            memory,
            stored,
            used: SystemTime::now(),
            writing: false,
            leaving: false,
        };
        state.memory += entry.cost();
        state.entries.push(entry);
    }

    fn is_in_trouble(&self) -> bool {
        self.lock().trouble.is_some_and(|until| Instant::now() < until)
    }

    /// Tells that a file was not written, once for a while.
    fn failed(&self, error: &Unwritten) {
        let place = self.folder.as_ref().map(|f| f.path().display().to_string()).unwrap_or_default();
        match error {
            Unwritten::NoPlace => tracing::debug!("prompt cache: {place} has no place beside newer ones"),
            Unwritten::Failed(why) => {
                self.lock().trouble = Some(Instant::now() + TROUBLE);
                tracing::warn!(
                    "prompt cache: nothing can be written to {place}: {why}; it goes on in memory, the disk is tried again \
                     in {} s",
                    TROUBLE.as_secs()
                );
            }
        }
    }

    /// Frees memory for a checkpoint of `need` bytes; the least recently used leave. False when that took too long.
    fn make_room(&self, need: u64) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            self.evict(&mut state, need);
            if state.memory + need <= self.budget {
                return true;
            }
            let Some(left) = LONGEST_WAIT.checked_sub(begun.elapsed()) else { return false };
            let waited = self.changed.wait_timeout(state, left.min(Duration::from_secs(1)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the least recently used leave until `need` more bytes fit; those without a file get one first.
    fn evict(&self, state: &mut State, need: u64) {
        let disk = self.folder.is_some() && state.trouble.is_none_or(|until| Instant::now() >= until) && !state.closing;
        loop {
            let leaving: u64 = state.entries.iter().filter(|e| e.leaving).map(Entry::cost).sum();
            if state.memory - leaving + need <= self.budget {
                return;
            }
            let oldest = state.entries.iter_mut().filter(|e| e.memory.is_some() && !e.leaving).min_by_key(|e| e.used);
            let Some(entry) = oldest else { return };
            let id = entry.id;
            if entry.writing {
                entry.leaving = true;
            } else if entry.stored.is_none() && disk {
                entry.leaving = true;
                entry.writing = true;
                state.queue.push_back(id);
                self.changed.notify_all();
            } else {
                state.drop_memory(id);
            }
        }
    }

    /// Has the writer store the oldest that have no file yet, so that a share of the memory can be freed at once.
    fn write_ahead(&self) {
        if self.folder.is_none() || self.is_in_trouble() {
            return;
        }
        let mut state = self.lock();
        let mut freed = self.budget.saturating_sub(state.memory);
        let mut order: Vec<(SystemTime, u64)> =
            state.entries.iter().filter(|e| e.memory.is_some()).map(|e| (e.used, e.id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            if freed >= self.budget / AHEAD {
                break;
            }
            let Some(entry) = state.entry(id) else { continue };
            freed += entry.cost();
            if entry.stored.is_none() && !entry.writing {
                entry.writing = true;
                state.queue.push_back(id);
            }
        }
        self.changed.notify_all();
    }

    /// Forgets all checkpoints of this model, in memory and on disk; returns how many there were.
    pub fn clear(&self) -> usize {
        let mut state = self.lock();
        let entries = std::mem::take(&mut state.entries);
        state.memory = 0;
        state.queue.clear();
        for stored in entries.iter().filter_map(|e| e.stored.as_ref()) {
            folder::remove(&stored.path);
        }
        entries.len()
    }

    /// The stop does not wait for files any more.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Release);
    }

    /// Totals, as `status` has them; `live` are the tokens of each session.
    pub fn totals(&self, live: &[usize]) -> Value {
        let state = self.lock();
        let of = |present: &dyn Fn(&Entry) -> bool| state.entries.iter().filter(|e| present(e)).count();
        let stored: u64 = state.entries.iter().filter_map(|e| e.stored.as_ref()).map(|s| s.bytes).sum();
        let disk = self
            .folder
            .as_ref()
            .map(|folder| json!({"entries": of(&|e| e.stored.is_some()), "bytes": stored, "budget": folder.budget()}));
        json!({
            "entries": of(&|e| e.memory.is_some()),
            "bytes": state.memory,
            "budget": self.budget,
            "evictions": state.evictions,
            "live_tokens": live.iter().sum::<usize>(),
            "sessions": live,
            "disk": disk,
        })
    }

    /// Every checkpoint, the most recently used first, and the totals.
    pub fn list(&self, live: &[usize]) -> Value {
        let mut value = self.totals(live);
        let state = self.lock();
        let mut entries: Vec<&Entry> = state.entries.iter().collect();
        entries.sort_by_key(|e| std::cmp::Reverse((e.used, e.id)));
        let entries = entries
            .iter()
            .map(|e| json!({"tokens": e.tokens.len(), "bytes": e.state, "disk": e.memory.is_none()}))
            .collect();
        value["memory_entries"] = value["entries"].take();
        value["entries"] = entries;
        value
    }
}
