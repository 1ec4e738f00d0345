//! The thread that writes checkpoints to files.

use super::folder::{self, Folder, Stored, Unwritten};
use super::{Entry, PromptCache, State};
use ns_llm::Checkpoint;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Time between two looks for files that nobody used for long.
const TIDY: Duration = Duration::from_secs(600);
/// Bytes written between two looks whether it is to hurry.
const PIECE: usize = 4 << 20;

/// What is to be written.
struct Task {
    id: u64,
    tokens: Arc<[u32]>,
    checkpoint: Arc<Checkpoint>,
    used: SystemTime,
}

impl Task {
    fn of(entry: &Entry) -> Option<Self> {
        let checkpoint = entry.memory.clone()?;
        Some(Self { id: entry.id, tokens: entry.tokens.clone(), checkpoint, used: entry.used })
    }
}

/// The writer; dropping it writes the rest and ends it.
pub struct Writer {
    cache: Arc<PromptCache>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Writer {
    /// Starts it where there is a folder.
    pub fn start(cache: Arc<PromptCache>) -> std::io::Result<Self> {
        let thread = match cache.folder {
            None => None,
            Some(_) => {
                let cache = cache.clone();
                Some(std::thread::Builder::new().name("prompt cache".into()).spawn(move || cache.write_files())?)
            }
        };
        Ok(Self { cache, thread })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.cache.close();
        if thread.join().is_err() {
            tracing::error!("prompt cache: the thread that writes files ended by a fault in the program");
        }
    }
}

impl PromptCache {
    /// Has the writer store what has no file yet, and end.
    fn close(&self) {
        let mut state = self.lock();
        let mut rest: Vec<(SystemTime, u64)> = Vec::new();
        for entry in state.entries.iter_mut().filter(|e| e.memory.is_some() && e.stored.is_none() && !e.writing) {
            entry.writing = true;
            rest.push((entry.used, entry.id));
        }
        rest.sort_unstable();
        // The newest first: they are the likeliest to be of use, should there be no time for all.
        state.queue.extend(rest.iter().rev().map(|(_, id)| *id));
        if !state.queue.is_empty() {
            tracing::info!("prompt cache: {} checkpoint(s) are written to disk", state.queue.len());
        }
        state.closing = true;
        self.changed.notify_all();
    }

    fn write_files(&self) {
        let Some(folder) = &self.folder else { return };
        let mut state = self.lock();
        loop {
            let Some(id) = state.queue.pop_front() else {
                if state.closing {
                    return;
                }
                let waited = self.changed.wait_timeout(state, TIDY).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                if waited.1.timed_out() {
                    drop(state);
                    let gone = folder.remove_expired();
                    state = self.lock();
                    state.forget_files(&gone);
                }
                continue;
            };
            let Some(task) = state.entry(id).and_then(|e| Task::of(e)) else { continue };
            drop(state);
            let result = self.write(folder, &task);
            let hurry = self.hurry.load(Ordering::Acquire);
            match &result {
                Err(_) if hurry => {
                    tracing::warn!("prompt cache: told to stop at once: the rest is not written to disk");
                }
                Err(error) => self.failed(error),
                Ok(_) => {}
            }
            state = self.lock();
            if state.closing && matches!(result, Err(Unwritten::Failed(_))) {
                // The others would fail the same way.
                state.queue.clear();
            }
            self.note(&mut state, task.id, result);
        }
    }

    fn write(&self, folder: &Folder, task: &Task) -> Result<(Stored, Vec<PathBuf>), Unwritten> {
        let state = &task.checkpoint.state;
        folder.write(&task.tokens, state.len() as u64, task.used, |out| {
            for piece in state.chunks(PIECE) {
                if self.hurry.load(Ordering::Acquire) {
                    return Err("the server was told to stop at once".to_owned());
                }
                out.write_all(piece).map_err(|e| e.to_string())?;
            }
            Ok(())
        })
    }

    /// Notes how a write went.
    fn note(&self, state: &mut MutexGuard<'_, State>, id: u64, result: Result<(Stored, Vec<PathBuf>), Unwritten>) {
        let written = match result {
            Ok((stored, gone)) => {
                state.forget_files(&gone);
                Some(stored)
            }
            Err(_) => None,
        };
        match state.entry(id) {
            Some(entry) => {
                entry.writing = false;
                entry.stored = written;
                if entry.leaving {
                    state.drop_memory(id);
                }
            }
            // Cleared meanwhile.
            None => written.iter().for_each(|s| folder::remove(&s.path)),
        }
        self.changed.notify_all();
    }
}
