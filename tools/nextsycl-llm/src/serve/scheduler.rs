//! The thread that owns the engine: who reads, who decodes, and who waits.
//!
//! Requests wait in order of arrival for a free session; small ones may pass one that only a larger, busy session can hold.
//! The session whose tokens share the longest beginning with the prompt is taken; a longer checkpoint is put into it first.
//! Prompts are read in groups of chunks between the decode steps of others, which get as much time as the group took. One
//! request decodes alone with drafts, several do so in one pass without.

use super::cache::PromptCache;
use super::job::{Command, Event, Finish, Job, Report, Totals};
use super::records::{Records, State};
use super::slot::{Phase, Slot, Work, decode_seconds, rate, scored};
use crate::answer::{Assembler, Scored};
use crate::text::Text;
use ns_llm::{Decoder, Engine, Error, Result, SessionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// Chunks read in one go while others decode.
const GROUP: usize = 3;
/// Time a request that starts decoding gets before the reading of others goes on, until it is known how long that takes.
const FIRST_WINDOW: Duration = Duration::from_secs(15);
/// Requests that may pass one that only a larger, busy session can hold.
const MAX_PASSED: usize = 8;

/// Counters the HTTP side watches.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Grows with every chunk read and every step decoded.
    pub progress: AtomicU64,
    /// Jobs and questions sent and not yet taken by the scheduler: reading stops at a chunk's end for them.
    pub arriving: AtomicUsize,
    /// Requests that wait for a session.
    pub waiting: AtomicUsize,
}

/// Why a request leaves its session.
enum End {
    Done(Finish),
    Cancelled,
    Failed(String),
}

/// The scheduler's state.
pub struct Scheduler {
    engine: Box<dyn Engine>,
    text: Arc<dyn Text>,
    records: Arc<Records>,
    pulse: Arc<Pulse>,
    cache: Option<Arc<PromptCache>>,
    slots: Vec<Slot>,
    queue: VecDeque<Job>,
    passed: usize,
    /// Reading waits until then, so that those who decode get their time.
    decode_until: Instant,
    /// How long a group of chunks takes, as last seen.
    group_time: Duration,
    stopping: bool,
}

impl Scheduler {
    /// Opens a session for each context.
    pub fn new(
        mut engine: Box<dyn Engine>,
        text: Arc<dyn Text>,
        contexts: &[usize],
        cache: Option<Arc<PromptCache>>,
        records: Arc<Records>,
        pulse: Arc<Pulse>,
    ) -> Result<Self> {
        let mut slots = Vec::new();
        for &context in contexts {
            let session = engine.open_session(context)?;
            let capacity = engine.max_context(session)?;
            slots.push(Slot { session, capacity, tokens: Vec::new(), used: Instant::now(), work: None });
        }
        Ok(Self {
            engine,
            text,
            records,
            pulse,
            cache,
            slots,
            queue: VecDeque::new(),
            passed: 0,
            decode_until: Instant::now(),
            group_time: FIRST_WINDOW,
            stopping: false,
        })
    }

    /// Works until told to stop and all requests are answered. An error means that the engine is lost.
    pub fn run(mut self, inbox: &Receiver<Command>) -> Result<()> {
        loop {
            self.take_commands(inbox);
            self.drop_cancelled();
            if self.queue.is_empty() && self.slots.iter().all(|s| s.work.is_none()) {
                self.pulse.waiting.store(0, Ordering::Relaxed);
                if self.stopping {
                    self.engine.profile()?.iter().for_each(|line| tracing::info!("{line}"));
                    return Ok(());
                }
                continue;
            }
            let result = self.admit().and_then(|()| self.read()).and_then(|()| self.decode());
            if let Err(error) = result {
                let message = "the device failed; the server stops";
                for at in 0..self.slots.len() {
                    self.end(at, End::Failed(message.to_owned()));
                }
                for job in self.queue.drain(..) {
                    self.records.close(job.id, State::Failed, |r| r.error = Some(message.to_owned()));
                    let _ = job.events.send(Event::Failed(message.to_owned()));
                }
                return Err(error);
            }
        }
    }

    fn take_commands(&mut self, inbox: &Receiver<Command>) {
        let idle = self.slots.iter().all(|s| s.work.is_none());
        if idle && self.queue.is_empty() && !self.stopping {
            match inbox.recv_timeout(Duration::from_secs(3600)) {
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stopping = true,
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Job(job) => {
                self.pulse.arriving.fetch_sub(1, Ordering::Relaxed);
                self.queue.push_back(*job);
            }
            Command::Report(reply) => {
                self.pulse.arriving.fetch_sub(1, Ordering::Relaxed);
                let live_tokens = self.slots.iter().map(|s| s.tokens.len()).collect();
                let _ = reply.send(Report { devices: self.engine.devices(), live_tokens });
            }
            Command::Clear(reply) => {
                self.pulse.arriving.fetch_sub(1, Ordering::Relaxed);
                self.drop_cancelled();
                // Whoever asked and left needs no answer.
                let _ = reply.send(self.clear());
            }
            Command::Wake => {}
            Command::Stop => self.stopping = true,
        }
    }

    /// Forgets checkpoints and what idle sessions hold, unless a prompt is read.
    fn clear(&mut self) -> Option<usize> {
        if self.slots.iter().any(|s| s.work.as_ref().is_some_and(Work::is_reading)) {
            return None;
        }
        for slot in self.slots.iter_mut().filter(|s| s.work.is_none()) {
            slot.tokens.clear();
            if let Err(error) = self.engine.reset(slot.session) {
                tracing::error!("a session could not be reset: {error}");
            }
        }
        Some(self.cache.as_ref().map_or(0, |cache| cache.clear()))
    }

    fn drop_cancelled(&mut self) {
        self.queue.retain(|job| !job.cancelled.load(Ordering::Acquire));
        for at in 0..self.slots.len() {
            if self.slots[at].work.as_ref().is_some_and(Work::is_cancelled) {
                self.end(at, End::Cancelled);
            }
        }
    }

    /// Gives free sessions to those who wait.
    fn admit(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.queue.len() {
            let Some(slot) = self.choose(&self.queue[at]) else {
                if self.passed >= MAX_PASSED {
                    break;
                }
                at += 1;
                continue;
            };
            if at > 0 {
                self.passed += 1;
            } else {
                self.passed = 0;
            }
            if let Some(job) = self.queue.remove(at) {
                self.start(slot, job)?;
            }
        }
        self.pulse.waiting.store(self.queue.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Among free sessions that hold the prompt: the longest shared beginning, then the smallest, then the one unused longest.
    fn choose(&self, job: &Job) -> Option<usize> {
        let fits = |s: &Slot| s.work.is_none() && s.capacity >= job.room;
        let rank = |s: &Slot| {
            let old = (s.tokens.is_empty(), std::cmp::Reverse(s.used));
            (self.reusable(s, &job.prompt), std::cmp::Reverse(s.capacity), old)
        };
        let free = self.slots.iter().enumerate().filter(|(_, s)| fits(s));
        free.max_by_key(|(_, s)| rank(s)).map(|(at, _)| at)
    }

    /// Tokens of the session that the prompt begins with; one is always left to read.
    fn reusable(&self, slot: &Slot, prompt: &[u32]) -> usize {
        let shared = slot.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        if shared == slot.tokens.len() || self.engine.facts().truncatable { shared } else { 0 }
    }

    fn start(&mut self, at: usize, mut job: Job) -> Result<()> {
        let started = Instant::now();
        let capacity = self.slots[at].capacity;
        job.max_tokens = job.max_tokens.min(capacity - job.prompt.len().min(capacity));
        self.records.change(job.id, |r| r.state = State::Reading);
        let begun = self.begin(at, &job.prompt);
        let (reused, source) = *begun.as_ref().unwrap_or(&(0, "none"));
        let slot = &mut self.slots[at];
        slot.tokens.clear();
        slot.tokens.extend_from_slice(&job.prompt[..reused]);
        self.records.change(job.id, |r| {
            r.reused = reused;
            r.source = source;
        });
        slot.work = Some(Work {
            reused,
            started,
            read_seconds: 0.0,
            phase: Phase::Reading,
            assembler: Assembler::new(&job.stops),
            drawn: Vec::new(),
            generated: 0,
            job,
        });
        match begun {
            Ok(_) => Ok(()),
            Err(error) => self.fail(at, error),
        }
    }

    /// Brings a session to the longest beginning of a prompt that can be had: its own, or a checkpoint's. Returns its length
    /// and where it came from.
    fn begin(&mut self, at: usize, prompt: &[u32]) -> Result<(usize, &'static str)> {
        let live = self.reusable(&self.slots[at], prompt);
        let Slot { session, capacity, .. } = self.slots[at];
        let truncatable = self.engine.facts().truncatable;
        if let Some(cache) = &self.cache
            && let Some(hit) = cache.find(prompt, truncatable, capacity).filter(|hit| hit.reuse > live)
        {
            // From here on the session's own tokens are lost.
            self.slots[at].tokens.clear();
            if let Some(source) = cache.restore(&hit, &mut *self.engine, session)? {
                if hit.reuse < hit.position {
                    self.engine.truncate(session, hit.reuse)?;
                }
                return Ok((hit.reuse, source));
            }
            self.engine.reset(session)?;
            return Ok((0, "none"));
        }
        if live == 0 {
            self.engine.reset(session)?;
            return Ok((0, "none"));
        }
        self.engine.truncate(session, live)?;
        Ok((live, "live"))
    }

    /// Reads a group of chunks of the prompt with the least left to read, at most up to where a checkpoint is to be made.
    fn read(&mut self) -> Result<()> {
        let left = |s: &Slot| s.work.as_ref().filter(|w| w.is_reading()).map(|w| w.job.prompt.len() - s.tokens.len());
        let shortest = self.slots.iter().enumerate().filter_map(|(at, s)| Some((left(s)?, at))).min();
        let Some((remaining, at)) = shortest else { return Ok(()) };
        let chunk = self.engine.facts().prefill_chunk.max(1);
        let others = self.slots.iter().any(|s| s.work.as_ref().is_some_and(|w| !w.is_reading()));
        let now = Instant::now();
        if others && remaining > chunk && now < self.decode_until {
            return Ok(());
        }
        let slot = &mut self.slots[at];
        let Some(work) = slot.work.as_mut() else { return Ok(()) };
        let mut chunks = 0;
        let pulse = &self.pulse;
        let cancelled = work.job.cancelled.clone();
        let from = slot.tokens.len();
        let to = self.cache.as_ref().and_then(|_| work.job.marks.iter().copied().find(|&mark| mark > from));
        let to = to.unwrap_or(work.job.prompt.len());
        let (records, id, begun) = (&self.records, work.job.id, from - work.reused);
        let mut stop = || {
            chunks += 1;
            pulse.progress.fetch_add(1, Ordering::Relaxed);
            records.change(id, |r| r.read_tokens = begun + (chunks * chunk).min(to - from));
            cancelled.load(Ordering::Acquire)
                || pulse.arriving.load(Ordering::Relaxed) > 0
                || (others && chunks >= GROUP)
        };
        let result = self.engine.feed_until(slot.session, &work.job.prompt[from..to], &mut stop);
        pulse.progress.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(read) => {
                let end = (from + read).min(to);
                slot.tokens.extend_from_slice(&work.job.prompt[from..end]);
                self.records.change(work.job.id, |r| r.read_tokens = end - work.reused);
            }
            Err(error) => return self.fail(at, error),
        }
        let read = self.slots[at].tokens.len().saturating_sub(from);
        if read >= chunk {
            // Also of a prompt that is read alone: what its groups will take when somebody comes.
            self.group_time = now.elapsed() * GROUP as u32 / read.div_ceil(chunk) as u32;
        }
        self.save_checkpoint(at)?;
        if others {
            let end = Instant::now();
            self.decode_until = end + (end - now);
        }
        if self.slots[at].work.as_ref().is_some_and(|w| self.slots[at].tokens.len() == w.job.prompt.len()) {
            self.begin_answer(at)?;
        }
        Ok(())
    }

    /// Makes a checkpoint where one is worth making.
    fn save_checkpoint(&mut self, at: usize) -> Result<()> {
        let slot = &self.slots[at];
        let (Some(cache), Some(work)) = (&self.cache, &slot.work) else { return Ok(()) };
        if work.job.marks.contains(&slot.tokens.len())
            && cache.wants(&slot.tokens)
            && cache.save(&mut *self.engine, slot.session, &slot.tokens)?
        {
            self.records.change(work.job.id, |r| r.checkpoints_saved += 1);
        }
        Ok(())
    }

    fn begin_answer(&mut self, at: usize) -> Result<()> {
        // Whoever still reads a long prompt lets the new answer go ahead for a while.
        if self.slots.iter().enumerate().any(|(i, s)| i != at && s.work.as_ref().is_some_and(Work::is_reading)) {
            self.decode_until = self.decode_until.max(Instant::now() + self.group_time);
        }
        let slot = &mut self.slots[at];
        let Some(work) = slot.work.as_mut() else { return Ok(()) };
        work.read_seconds = work.started.elapsed().as_secs_f64();
        let seconds = work.read_seconds;
        self.records.change(work.job.id, |r| {
            r.state = State::Generating;
            r.read_seconds = seconds;
        });
        if work.job.max_tokens == 0 {
            self.end(at, End::Done(Finish::Length));
            return Ok(());
        }
        match self.engine.decoder(slot.session, work.job.sampling.clone(), &work.job.prompt, true) {
            Ok(decoder) => {
                let (first, drafts) = (decoder.pending, decoder.draft);
                work.phase = Phase::Decoding { decoder: Box::new(decoder), since: Instant::now(), drafts };
                self.take_tokens(at, &[first]);
                Ok(())
            }
            Err(error) => self.fail(at, error),
        }
    }

    /// One step of all that decode: alone with drafts, several in one pass without.
    fn decode(&mut self) -> Result<()> {
        let decoding: Vec<usize> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| s.work.as_ref().is_some_and(|w| !w.is_reading()))
            .map(|(at, _)| at)
            .collect();
        if let [at] = decoding[..] {
            let slot = &mut self.slots[at];
            let Some(Work { phase: Phase::Decoding { decoder, drafts, .. }, .. }) = slot.work.as_mut() else {
                return Ok(());
            };
            // They come back when the others are gone.
            decoder.draft = *drafts;
            let result = self.engine.step(slot.session, decoder);
            self.pulse.progress.fetch_add(1, Ordering::Relaxed);
            return match result {
                Ok(tokens) => {
                    self.take_tokens(at, &tokens);
                    Ok(())
                }
                Err(error) => self.fail(at, error),
            };
        }
        for group in decoding.chunks(self.engine.facts().max_verify.max(1)) {
            let mut rows: Vec<(SessionId, &mut Decoder)> = Vec::new();
            for (at, slot) in self.slots.iter_mut().enumerate() {
                if !group.contains(&at) {
                    continue;
                }
                if let Some(Work { phase: Phase::Decoding { decoder, .. }, .. }) = slot.work.as_mut() {
                    decoder.without_drafts();
                    rows.push((slot.session, decoder));
                }
            }
            let result = self.engine.step_batch(&mut rows);
            self.pulse.progress.fetch_add(1, Ordering::Relaxed);
            match result {
                Ok(tokens) => {
                    for (&at, token) in group.iter().zip(tokens) {
                        self.take_tokens(at, &[token]);
                    }
                }
                Err(error) if error.is_recoverable() => {
                    for &at in group {
                        self.end(at, End::Failed(error.to_string()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what was drawn and ends the answer where it has to end.
    fn take_tokens(&mut self, at: usize, tokens: &[u32]) {
        let Some(work) = self.slots[at].work.as_mut() else { return };
        let Phase::Decoding { decoder, .. } = &mut work.phase else { return };
        let scores = std::mem::take(&mut decoder.scores);
        let mut end = None;
        let mut sent = crate::answer::Piece::default();
        work.drawn.extend_from_slice(tokens);
        for (i, &token) in tokens.iter().enumerate() {
            if self.text.is_end(token) && !work.job.ignore_end {
                end = Some(Finish::Stop);
                break;
            }
            work.generated += 1;
            let bytes = self.text.bytes(token);
            let score = scores.get(i).map(|s| Scored {
                top: s.top.iter().map(|t| scored(&*self.text, *t)).collect(),
                ..scored(&*self.text, s.chosen)
            });
            let (piece, stopped) = work.assembler.push(&bytes, score);
            sent.text.push_str(&piece.text);
            sent.tokens.extend(piece.tokens);
            if stopped {
                end = Some(Finish::Stop);
                break;
            }
            if work.generated >= work.job.max_tokens {
                end = Some(Finish::Length);
                break;
            }
        }
        let (id, generated) = (work.job.id, work.generated);
        let drafts = (decoder.drafts_accepted, decoder.drafts_proposed);
        if !sent.is_empty() {
            self.records.answer(id, &sent.text);
            // A receiver that is gone has set the cancel flag.
            let _ = work.job.events.send(Event::Piece(sent));
        }
        let seconds = decode_seconds(work);
        self.records.change(id, |r| {
            r.generated = generated;
            r.generate_seconds = seconds;
            r.tok_s = rate(generated, seconds);
            r.drafts = drafts;
        });
        if let Some(finish) = end {
            self.end(at, End::Done(finish));
        }
    }

    fn fail(&mut self, at: usize, error: Error) -> Result<()> {
        if error.is_recoverable() {
            self.end(at, End::Failed(error.to_string()));
            Ok(())
        } else {
            Err(error)
        }
    }

    /// Frees a session and tells whoever waits.
    fn end(&mut self, at: usize, end: End) {
        let slot = &mut self.slots[at];
        let Some(mut work) = slot.work.take() else { return };
        slot.used = Instant::now();
        let id = work.job.id;
        let failed = matches!(end, End::Failed(_));
        match end {
            End::Done(mut finish) => {
                let (rest, stopped) = work.assembler.finish();
                if stopped {
                    finish = Finish::Stop;
                }
                if !rest.is_empty() {
                    self.records.answer(id, &rest.text);
                    let _ = work.job.events.send(Event::Piece(rest));
                }
                let decode_seconds = decode_seconds(&work);
                let drafts = match &work.phase {
                    Phase::Decoding { decoder, .. } => (decoder.drafts_proposed, decoder.drafts_accepted),
                    Phase::Reading => (0, 0),
                };
                let totals = Totals {
                    finish,
                    generated: work.generated,
                    reused: work.reused,
                    read_seconds: work.read_seconds,
                    decode_seconds,
                    drafts,
                };
                self.records.close(id, State::Done, |r| {
                    r.finish = Some(finish.word());
                    r.generated = totals.generated;
                    r.generate_seconds = decode_seconds;
                    r.tok_s = rate(totals.generated, decode_seconds);
                    r.drafts = (drafts.1, drafts.0);
                });
                let _ = work.job.events.send(Event::Done(totals));
            }
            End::Cancelled => self.records.client_gone(id),
            End::Failed(message) => {
                self.records.close(id, State::Failed, |r| r.error = Some(message.clone()));
                let _ = work.job.events.send(Event::Failed(message));
            }
        }
        // The session keeps what it read, for the next request of the same conversation.
        let position = self.engine.position(slot.session);
        slot.tokens = work.job.prompt;
        slot.tokens.extend_from_slice(&work.drawn);
        match position {
            Ok(position) if !failed && position <= slot.tokens.len() => slot.tokens.truncate(position),
            _ => {
                slot.tokens.clear();
                if let Err(error) = self.engine.reset(slot.session) {
                    tracing::error!("a session could not be reset: {error}");
                }
            }
        }
    }
}
