//! A session of the engine and the request that has it.

use super::job::Job;
use crate::answer::{Assembler, Scored};
use crate::text::Text;
use ns_llm::{Decoder, SessionId, TokenLogprob};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A session.
pub struct Slot {
    /// The engine's handle.
    pub session: SessionId,
    /// Tokens it can hold.
    pub capacity: usize,
    /// What the session holds.
    pub tokens: Vec<u32>,
    /// When its last request ended.
    pub used: Instant,
    /// Its request.
    pub work: Option<Work>,
}

/// A request in a session.
pub struct Work {
    /// What was asked.
    pub job: Job,
    /// Tokens of the prompt that were there.
    pub reused: usize,
    /// When it got the session.
    pub started: Instant,
    /// Seconds until the prompt was read.
    pub read_seconds: f64,
    /// How far it is.
    pub phase: Phase,
    /// Makes text of its tokens.
    pub assembler: Assembler,
    /// Tokens drawn, end tokens included.
    pub drawn: Vec<u32>,
    /// Tokens of the answer.
    pub generated: usize,
}

/// What is done for it.
pub enum Phase {
    /// The prompt is read.
    Reading,
    /// The answer is written.
    Decoding {
        /// The engine's side of it.
        decoder: Box<Decoder>,
        /// When it began.
        since: Instant,
        /// Decodes with drafts while nobody else does.
        drafts: bool,
    },
}

impl Work {
    /// Whether nobody waits for it any more.
    pub fn is_cancelled(&self) -> bool {
        self.job.cancelled.load(Ordering::Acquire)
    }

    /// Whether its prompt is being read.
    pub fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading)
    }
}

/// Seconds since the answer began.
pub fn decode_seconds(work: &Work) -> f64 {
    match &work.phase {
        Phase::Decoding { since, .. } => since.elapsed().as_secs_f64(),
        Phase::Reading => 0.0,
    }
}

/// Tokens a second; the first token comes with the prompt, so it is not counted.
pub fn rate(generated: usize, seconds: f64) -> f64 {
    if generated > 1 && seconds > 0.0 { (generated - 1) as f64 / seconds } else { 0.0 }
}

/// A token's score with its names.
pub fn scored(text: &dyn Text, token: TokenLogprob) -> Scored {
    let bytes = text.bytes(token.token);
    let name = if bytes.is_empty() { text.name(token.token) } else { String::from_utf8_lossy(&bytes).into_owned() };
    Scored { id: token.token, name, bytes, logprob: token.logprob, top: Vec::new() }
}
