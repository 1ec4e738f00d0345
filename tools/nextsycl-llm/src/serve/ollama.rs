//! /api/chat: JSON lines in Ollama's form and a flat one at once.

use super::clock::rfc3339;
use super::deliver::{Facts, Form, scored};
use super::error::ApiError;
use super::job::Totals;
use super::records::now;
use crate::answer::Piece;
use serde_json::{Value, json};

/// The JSON-lines form.
pub struct LinesForm;

fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// A line with the answer's text in both forms.
fn content(facts: &Facts, piece: &Piece) -> Value {
    let mut value = json!({
        "model": facts.model,
        "created_at": rfc3339(now()),
        "message": {"role": "assistant", "content": piece.text},
        "content": piece.text,
        "done": false,
    });
    if facts.logprobs.is_some() {
        value["logprobs"] = piece.tokens.iter().map(scored).collect();
    }
    value
}

fn add_totals(value: &mut Value, facts: &Facts, totals: &Totals) {
    let nanoseconds = |s: f64| (s * 1e9) as u64;
    let two = |v: f64| (v * 100.0).round() / 100.0;
    let Some(map) = value.as_object_mut() else { return };
    let more = json!({
        "done": true,
        "done_reason": totals.finish.word(),
        "total_duration": facts.begun.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": facts.prompt_tokens,
        "prompt_eval_duration": nanoseconds(totals.read_seconds),
        "eval_count": totals.generated,
        "eval_duration": nanoseconds(totals.decode_seconds),
        "finish": totals.finish.word(),
        "prompt_tokens": facts.prompt_tokens,
        "reused": totals.reused,
        "generated": totals.generated,
        "read_seconds": totals.read_seconds,
        "generate_seconds": totals.decode_seconds,
        "tok_s": two(super::slot::rate(totals.generated, totals.decode_seconds)),
        "energy_wh": null,
    });
    if let Value::Object(more) = more {
        map.extend(more);
    }
}

/// The answer to a request without messages: the model is loaded.
pub fn loaded(model: &str) -> Value {
    json!({
        "model": model, "created_at": rfc3339(now()), "message": {"role": "assistant", "content": ""},
        "done": true, "done_reason": "load",
    })
}

impl Form for LinesForm {
    fn media_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn first(&mut self, _: &Facts) -> String {
        String::new()
    }

    fn piece(&mut self, facts: &Facts, piece: &Piece) -> String {
        line(&content(facts, piece))
    }

    fn last(&mut self, facts: &Facts, totals: &Totals) -> String {
        let mut value = json!({
            "model": facts.model, "created_at": rfc3339(now()), "message": {"role": "assistant", "content": ""},
        });
        add_totals(&mut value, facts, totals);
        line(&value)
    }

    fn error(&mut self, error: &ApiError) -> String {
        line(&json!({"error": error.message}))
    }

    fn keep_alive(&self) -> Option<&'static str> {
        // Clients read every line as JSON.
        None
    }

    fn whole(&mut self, facts: &Facts, piece: &Piece, totals: &Totals) -> Value {
        let mut value = content(facts, piece);
        add_totals(&mut value, facts, totals);
        value
    }
}
