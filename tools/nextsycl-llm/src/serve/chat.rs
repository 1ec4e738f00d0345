//! /v1/chat/completions.

use super::deliver::{Facts, Form, data, scored, timings, usage};
use super::error::ApiError;
use super::job::Totals;
use crate::answer::Piece;
use serde_json::{Value, json};

/// OpenAI's chat form.
pub struct ChatForm;

impl ChatForm {
    fn chunk(facts: &Facts, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": facts.id, "object": "chat.completion.chunk", "created": facts.created, "model": facts.model,
            "choices": choices,
        });
        if facts.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn logprobs(facts: &Facts, piece: &Piece) -> Value {
    match facts.logprobs {
        Some(_) => json!({"content": piece.tokens.iter().map(scored).collect::<Vec<_>>()}),
        None => Value::Null,
    }
}

impl Form for ChatForm {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn first(&mut self, facts: &Facts) -> String {
        let delta = json!({"role": "assistant", "content": ""});
        data(&Self::chunk(facts, &json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}])))
    }

    fn piece(&mut self, facts: &Facts, piece: &Piece) -> String {
        let logprobs = logprobs(facts, piece);
        let delta = json!({"content": piece.text});
        data(&Self::chunk(facts, &json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": null}])))
    }

    fn last(&mut self, facts: &Facts, totals: &Totals) -> String {
        let finish = totals.finish.word();
        let mut end =
            Self::chunk(facts, &json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": finish}]));
        end["timings"] = timings(facts, totals);
        let mut text = data(&end);
        // C07: only when asked for
        if facts.include_usage {
            let mut last = Self::chunk(facts, &json!([]));
            last["usage"] = usage(facts, totals);
            text.push_str(&data(&last));
        }
        text.push_str("data: [DONE]\n\n");
        text
    }

    fn error(&mut self, error: &ApiError) -> String {
        data(&error.object())
    }

    fn keep_alive(&self) -> Option<&'static str> {
        Some(": keep-alive\n\n")
    }

    fn whole(&mut self, facts: &Facts, piece: &Piece, totals: &Totals) -> Value {
        json!({
            "id": facts.id, "object": "chat.completion", "created": facts.created, "model": facts.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": piece.text, "refusal": null},
                "logprobs": logprobs(facts, piece),
                "finish_reason": totals.finish.word(),
            }],
            "usage": usage(facts, totals),
            "timings": timings(facts, totals),
        })
    }
}
