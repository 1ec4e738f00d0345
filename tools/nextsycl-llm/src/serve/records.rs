//! What the server remembers of each request.

use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Characters of previews.
const PREVIEW: usize = 300;

/// A request's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No session is free yet.
    Waiting,
    /// Its prompt is being read.
    Reading,
    /// Its answer is being written.
    Generating,
    /// Answered.
    Done,
    /// Ended with an error.
    Failed,
    /// The client left before the end.
    Cancelled,
}

/// Size and beginning of a text.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Extract {
    /// Characters.
    pub chars: usize,
    /// Its first characters; absent when no text is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
}

/// One request.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Counted from 1 since the server started.
    pub id: u64,
    /// The id in the log and in the answer's x-request-id.
    pub request_id: String,
    /// socket, tcp or web (the JSON-lines API).
    pub via: &'static str,
    /// Where it is.
    pub state: State,
    /// Unix time of its arrival.
    pub started: f64,
    /// Unix time of its end.
    pub ended: Option<f64>,
    /// The served name.
    pub model: String,
    /// The route's family: chat, completions or api-chat.
    pub api: &'static str,
    /// Settings that decide the text.
    pub settings: Map<String, Value>,
    /// Messages of the conversation.
    pub messages: usize,
    /// Characters of the prompt as the client sent it.
    pub prompt_chars: usize,
    /// The last user message's beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_user: Option<String>,
    /// Tokens the model reads.
    pub prompt_tokens: usize,
    /// Longest answer.
    pub max_tokens: usize,
    /// Prompt tokens taken over.
    pub reused: usize,
    /// Where they came from: none, live (a session that held them), cache or disk.
    pub source: &'static str,
    /// Prompt tokens read so far.
    pub read_tokens: usize,
    /// Seconds until the prompt was read.
    pub read_seconds: f64,
    /// Checkpoints made while the prompt was read.
    pub checkpoints_saved: usize,
    /// Tokens of the answer so far.
    pub generated: usize,
    /// Tokens a second while decoding.
    pub tok_s: f64,
    /// Seconds of decoding.
    pub generate_seconds: f64,
    /// Drafts accepted, proposed.
    pub drafts: (u64, u64),
    /// stop, length or client gone.
    pub finish: Option<&'static str>,
    /// Energy of the cards meanwhile in joules; null without sensors.
    pub energy_j: Option<f64>,
    /// Mean power meanwhile in watts; null without sensors.
    pub avg_watts: Option<f64>,
    /// The answer.
    pub answer: Extract,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What is known when a request arrives.
pub struct Arrival {
    /// The id in the log and in the answer.
    pub request_id: String,
    /// See [`Record::via`].
    pub via: &'static str,
    /// See [`Record::api`].
    pub api: &'static str,
    /// The served name.
    pub model: String,
    /// See [`Record::settings`].
    pub settings: Map<String, Value>,
    /// See [`Record::messages`].
    pub messages: usize,
    /// See [`Record::prompt_chars`].
    pub prompt_chars: usize,
    /// The whole last user message.
    pub last_user: Option<String>,
    /// See [`Record::prompt_tokens`].
    pub prompt_tokens: usize,
    /// See [`Record::max_tokens`].
    pub max_tokens: usize,
}

/// All records that are kept.
pub struct Records {
    keep: usize,
    keep_text: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_id: u64,
    served: u64,
    active: Vec<(Record, Instant)>,
    done: VecDeque<Record>,
}

/// Unix time in seconds.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl Records {
    /// Keeps the last `keep` ended requests, with or without pieces of their text.
    pub fn new(keep: usize, keep_text: bool) -> Self {
        Self { keep, keep_text, inner: Mutex::new(Inner::default()) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Records are plain data: one that a panic left half-written is still a record.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a record and returns its number.
    pub fn open(&self, arrival: Arrival) -> u64 {
        let mut inner = self.lock();
        inner.last_id += 1;
        let record = Record {
            id: inner.last_id,
            request_id: arrival.request_id,
            via: arrival.via,
            state: State::Waiting,
            started: now(),
            ended: None,
            model: arrival.model,
            api: arrival.api,
            settings: arrival.settings,
            messages: arrival.messages,
            prompt_chars: arrival.prompt_chars,
            last_user: arrival.last_user.filter(|_| self.keep_text).map(|t| shorten(&t)),
            prompt_tokens: arrival.prompt_tokens,
            max_tokens: arrival.max_tokens,
            reused: 0,
            source: "none",
            read_tokens: 0,
            read_seconds: 0.0,
            checkpoints_saved: 0,
            generated: 0,
            tok_s: 0.0,
            generate_seconds: 0.0,
            drafts: (0, 0),
            finish: None,
            energy_j: None,
            avg_watts: None,
            answer: Extract::default(),
            error: None,
        };
        let id = record.id;
        inner.active.push((record, Instant::now()));
        id
    }

    /// Changes a running request's record.
    pub fn change(&self, id: u64, change: impl FnOnce(&mut Record)) {
        let mut inner = self.lock();
        if let Some((record, _)) = inner.active.iter_mut().find(|(r, _)| r.id == id) {
            change(record);
        }
    }

    /// Adds to the answer's extract.
    pub fn answer(&self, id: u64, text: &str) {
        let keep_text = self.keep_text;
        self.change(id, |record| {
            let before = record.answer.chars;
            record.answer.chars += text.chars().count();
            if keep_text {
                let preview = record.answer.preview.get_or_insert_default();
                preview.extend(text.chars().take(PREVIEW.saturating_sub(before)));
            }
        });
    }

    /// Closes a running request's record.
    pub fn close(&self, id: u64, state: State, change: impl FnOnce(&mut Record)) {
        let mut inner = self.lock();
        let Some(at) = inner.active.iter().position(|(r, _)| r.id == id) else { return };
        let (mut record, begun) = inner.active.remove(at);
        record.state = state;
        record.ended = Some(record.started + begun.elapsed().as_secs_f64());
        change(&mut record);
        if state == State::Done {
            inner.served += 1;
        }
        tracing::info!(
            "{} request #{} {}: {} prompt tokens ({} reused) in {:.1} s, {} generated in {:.1} s{}",
            record.request_id,
            id,
            match state {
                State::Cancelled => "cancelled",
                State::Failed => "failed",
                _ => "done",
            },
            record.prompt_tokens,
            record.reused,
            record.read_seconds,
            record.generated,
            record.generate_seconds,
            record.error.as_ref().map(|e| format!(": {e}")).unwrap_or_default(),
        );
        inner.done.push_front(record);
        inner.done.truncate(self.keep);
    }

    /// Closes the record of a request whose client left, unless it ended before.
    pub fn client_gone(&self, id: u64) {
        self.close(id, State::Cancelled, |r| r.finish = Some("client gone"));
    }

    /// Requests that have not ended, oldest first.
    pub fn active(&self) -> Vec<Record> {
        let mut inner = self.lock();
        for (record, begun) in &mut inner.active {
            if record.state == State::Reading {
                record.read_seconds = begun.elapsed().as_secs_f64();
            }
        }
        inner.active.iter().map(|(r, _)| r.clone()).collect()
    }

    /// Requests that ended, newest first.
    pub fn done(&self) -> Vec<Record> {
        self.lock().done.iter().cloned().collect()
    }

    /// How many were answered.
    pub fn served(&self) -> u64 {
        self.lock().served
    }

    /// How many ended ones are kept.
    pub fn keep(&self) -> usize {
        self.keep
    }

    /// One record.
    pub fn find(&self, id: u64) -> Option<Record> {
        let inner = self.lock();
        inner.active.iter().map(|(r, _)| r).chain(&inner.done).find(|r| r.id == id).cloned()
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(PREVIEW).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(text: &str) -> Arrival {
        Arrival {
            request_id: "req-1".into(),
            via: "tcp",
            api: "chat",
            model: "m".into(),
            settings: Map::new(),
            messages: 1,
            prompt_chars: text.len(),
            last_user: Some(text.into()),
            prompt_tokens: 3,
            max_tokens: 5,
        }
    }

    #[test]
    fn records_end_once_and_only_some_are_kept() {
        let records = Records::new(2, true);
        let ids: Vec<u64> = (0..3).map(|_| records.open(arrival(&"é".repeat(400)))).collect();
        assert_eq!(records.active()[0].last_user.as_ref().unwrap().chars().count(), 303);
        records.answer(ids[0], &"x".repeat(299));
        records.answer(ids[0], "yzw");
        records.close(ids[0], State::Done, |r| r.finish = Some("stop"));
        records.client_gone(ids[0]);
        records.client_gone(ids[1]);
        records.close(ids[2], State::Failed, |_| ());
        let done = records.done();
        assert_eq!(
            done.iter().map(|r| (r.id, r.state)).collect::<Vec<_>>(),
            [(3, State::Failed), (2, State::Cancelled)]
        );
        assert!(records.find(1).is_none());
        assert_eq!((records.served(), records.active().len()), (1, 0));
    }

    #[test]
    fn no_text_is_kept_when_told_so() {
        let records = Records::new(2, false);
        let id = records.open(arrival("secret"));
        records.answer(id, "secret");
        records.close(id, State::Done, |_| ());
        let text = serde_json::to_string(&records.find(id).unwrap()).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("\"chars\":6"));
    }
}
