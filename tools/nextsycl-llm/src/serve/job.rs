//! What the HTTP side and the scheduler exchange.

use super::records::Records;
use crate::answer::Piece;
use ns_llm::Sampling;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model's end, or a stop string.
    Stop,
    /// As many tokens as were asked for, or as fit.
    Length,
}

impl Finish {
    /// The word of the APIs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A request that waits, is read or is answered.
pub struct Job {
    /// Its number in the records.
    pub id: u64,
    /// What the model reads.
    pub prompt: Vec<u32>,
    /// Where a checkpoint of the prompt is worth making, ascending: numbers of its tokens.
    pub marks: Vec<usize>,
    /// Tokens the session must hold at least.
    pub room: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Longest answer.
    pub max_tokens: usize,
    /// Goes on after the model's end token.
    pub ignore_end: bool,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Where the answer goes.
    pub events: mpsc::UnboundedSender<Event>,
    /// Set when nobody waits for the answer any more.
    pub cancelled: Arc<AtomicBool>,
}

/// What happens to a request, in order.
#[derive(Debug)]
pub enum Event {
    /// More of the answer.
    Piece(Piece),
    /// The answer is complete.
    Done(Totals),
    /// It failed, in words for the client.
    Failed(String),
}

/// Figures of a finished answer.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the answer.
    pub generated: usize,
    /// Prompt tokens that did not have to be read.
    pub reused: usize,
    /// Seconds until the prompt was read.
    pub read_seconds: f64,
    /// Seconds of decoding.
    pub decode_seconds: f64,
    /// Draft tokens proposed and accepted.
    pub drafts: (u64, u64),
}

/// A message to the scheduler.
pub enum Command {
    /// A new request.
    Job(Box<Job>),
    /// Asks for the devices' state now.
    Report(oneshot::Sender<Report>),
    /// Forgets the prompt cache and what idle sessions hold; the answer is the number of checkpoints, or nothing while a
    /// prompt is read.
    Clear(oneshot::Sender<Option<usize>>),
    /// A waiting request may have been cancelled.
    Wake,
    /// No request will follow: end when all are answered.
    Stop,
}

/// The engine's state as `status` shows it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The devices in use.
    pub devices: Vec<ns_llm::DeviceReport>,
    /// Tokens the sessions hold.
    pub live_tokens: Vec<usize>,
}

/// The cancel flag of one request and its record, for the side that waits: dropping it before the end cancels.
pub struct Waiting {
    /// The request's number.
    pub id: u64,
    /// What happens to it.
    pub events: mpsc::UnboundedReceiver<Event>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) records: Arc<Records>,
    pub(super) wake: std::sync::mpsc::Sender<Command>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
        // A request that ended already is not touched by this.
        self.records.client_gone(self.id);
        // A scheduler that sleeps has nothing to cancel except what still waits in its queue.
        let _ = self.wake.send(Command::Wake);
    }
}
