//! Bringing an answer to the client, whole or piece by piece.

use super::app::{Accepted, App};
use super::error::ApiError;
use super::job::{Event, Totals};
use crate::answer::{Piece, Scored};
use ns_http::{Answer, BodySender, StatusCode, json, stream, with_type};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between signs of life while nothing else is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// An engine that did nothing for so long is stuck.
const STUCK: Duration = Duration::from_secs(600);

/// What a form of answer must tell.
pub struct Facts {
    /// The answer's own id.
    pub id: String,
    /// Unix time of its beginning.
    pub created: u64,
    /// The served name.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Log-probabilities were asked for, with so many alternatives.
    pub logprobs: Option<usize>,
    /// A chunk with usage was asked for.
    pub include_usage: bool,
    /// Text put before the answer.
    pub echo: String,
    /// When it was taken.
    pub begun: Instant,
}

/// One API's form of an answer.
pub trait Form: Send + 'static {
    /// Media type of the streamed form.
    fn media_type(&self) -> &'static str;
    /// What is sent before the first piece.
    fn first(&mut self, facts: &Facts) -> String;
    /// A piece.
    fn piece(&mut self, facts: &Facts, piece: &Piece) -> String;
    /// The end.
    fn last(&mut self, facts: &Facts, totals: &Totals) -> String;
    /// An error after the beginning.
    fn error(&mut self, error: &ApiError) -> String;
    /// A sign of life that clients skip, where the form has one.
    fn keep_alive(&self) -> Option<&'static str>;
    /// The whole answer at once.
    fn whole(&mut self, facts: &Facts, piece: &Piece, totals: &Totals) -> Value;
}

/// Sends a request's answer in a form.
pub async fn deliver(app: Arc<App>, accepted: Accepted, facts: Facts, mut form: impl Form) -> Result<Answer, ApiError> {
    if accepted.generation.stream {
        let media_type = form.media_type();
        let (sender, body) = stream();
        tokio::spawn(pump(app, accepted, facts, form, sender));
        let mut answer = with_type(StatusCode::OK, media_type, body);
        answer
            .headers_mut()
            .insert(ns_http::header::CACHE_CONTROL, ns_http::header::HeaderValue::from_static("no-cache"));
        return Ok(answer);
    }
    let mut waiting = accepted.waiting;
    let mut all = Piece { text: facts.echo.clone(), tokens: Vec::new() };
    loop {
        match waiting.events.recv().await {
            Some(Event::Piece(piece)) => {
                all.text.push_str(&piece.text);
                all.tokens.extend(piece.tokens);
            }
            Some(Event::Done(totals)) => return Ok(json(StatusCode::OK, &form.whole(&facts, &all, &totals))),
            Some(Event::Failed(message)) => return Err(ApiError::server(message)),
            None => return Err(lost()),
        }
    }
}

fn lost() -> ApiError {
    ApiError::server("the answer ended too early: the engine stopped or the request was cancelled")
}

/// Forwards events until the end; leaving it in any way frees the request's session.
async fn pump(app: Arc<App>, accepted: Accepted, facts: Facts, mut form: impl Form, sender: BodySender) {
    let (mut waiting, _busy) = (accepted.waiting, accepted.busy);
    let mut first = form.first(&facts);
    if !facts.echo.is_empty() {
        first.push_str(&form.piece(&facts, &Piece { text: facts.echo.clone(), tokens: Vec::new() }));
    }
    if !first.is_empty() && !sender.send(first).await {
        return;
    }
    let mut progress = (app.pulse.progress.load(Ordering::Relaxed), Instant::now());
    loop {
        let event = tokio::select! {
            () = sender.closed() => return,
            event = tokio::time::timeout(KEEP_ALIVE, waiting.events.recv()) => event,
        };
        let text = match event {
            Ok(Some(Event::Piece(piece))) => form.piece(&facts, &piece),
            Ok(Some(Event::Done(totals))) => {
                sender.send(form.last(&facts, &totals)).await;
                return;
            }
            Ok(Some(Event::Failed(message))) => {
                sender.send(form.error(&ApiError::server(message))).await;
                return;
            }
            Ok(None) => {
                sender.send(form.error(&lost())).await;
                return;
            }
            Err(_) => {
                let now = app.pulse.progress.load(Ordering::Relaxed);
                if now != progress.0 {
                    progress = (now, Instant::now());
                } else if progress.1.elapsed() > STUCK {
                    // D03: no sign of life for an engine that shows none.
                    sender.send(form.error(&ApiError::server("the engine makes no progress"))).await;
                    return;
                }
                let Some(sign) = form.keep_alive() else { continue };
                sign.to_owned()
            }
        };
        if !text.is_empty() && !sender.send(text).await {
            return;
        }
    }
}

/// One event of a stream.
pub fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// OpenAI's usage object.
pub fn usage(facts: &Facts, totals: &Totals) -> Value {
    json!({
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": totals.generated,
        "total_tokens": facts.prompt_tokens + totals.generated,
        "prompt_tokens_details": {"cached_tokens": totals.reused},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

/// Times and speeds, in llama.cpp's names.
pub fn timings(facts: &Facts, totals: &Totals) -> Value {
    let read = facts.prompt_tokens - totals.reused.min(facts.prompt_tokens);
    let three = |v: f64| (v * 1e3).round() / 1e3;
    let per_second = |n: usize, s: f64| if s > 0.0 { three(n as f64 / s) } else { 0.0 };
    json!({
        "cache_n": totals.reused,
        "prompt_n": read,
        "prompt_ms": three(totals.read_seconds * 1e3),
        "prompt_per_second": per_second(read, totals.read_seconds),
        "predicted_n": totals.generated,
        "predicted_ms": three(totals.decode_seconds * 1e3),
        "predicted_per_second": three(super::slot::rate(totals.generated, totals.decode_seconds)),
        "draft_n": totals.drafts.0,
        "draft_n_accepted": totals.drafts.1,
    })
}

/// A token's log-probability in the chat form.
pub fn scored(token: &Scored) -> Value {
    let alternative = |t: &Scored| json!({"token": t.name, "logprob": t.logprob, "bytes": t.bytes, "id": t.id});
    let mut entry = alternative(token);
    entry["top_logprobs"] = token.top.iter().map(alternative).collect();
    entry
}
