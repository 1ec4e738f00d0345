//! /v1/completions: a text is continued, without the chat template.

use super::deliver::{Facts, Form, data, timings, usage};
use super::error::ApiError;
use super::job::Totals;
use crate::answer::{Piece, Scored};
use serde_json::{Map, Value, json};

/// OpenAI's completion form.
#[derive(Default)]
pub struct CompletionForm {
    /// Characters sent, for `text_offset`.
    sent: usize,
}

impl CompletionForm {
    fn chunk(facts: &Facts, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": facts.id, "object": "text_completion", "created": facts.created, "model": facts.model,
            "choices": choices,
        });
        if facts.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn logprobs(&mut self, facts: &Facts, tokens: &[Scored]) -> Value {
        let Some(top) = facts.logprobs else { return Value::Null };
        let mut offsets = Vec::new();
        for token in tokens {
            offsets.push(self.sent);
            self.sent += token.name.chars().count();
        }
        let alternatives = |t: &Scored| -> Value {
            t.top.iter().map(|a| (a.name.clone(), json!(a.logprob))).collect::<Map<_, _>>().into()
        };
        json!({
            "tokens": tokens.iter().map(|t| &t.name).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|t| t.logprob).collect::<Vec<_>>(),
            "top_logprobs": if top == 0 { Value::Null } else { tokens.iter().map(alternatives).collect() },
            "text_offset": offsets,
        })
    }
}

impl Form for CompletionForm {
    fn media_type(&self) -> &'static str {
        "text/event-stream"
    }

    fn first(&mut self, _: &Facts) -> String {
        String::new()
    }

    fn piece(&mut self, facts: &Facts, piece: &Piece) -> String {
        let logprobs = self.logprobs(facts, &piece.tokens);
        let choice = json!({"index": 0, "text": piece.text, "logprobs": logprobs, "finish_reason": null});
        data(&Self::chunk(facts, &json!([choice])))
    }

    fn last(&mut self, facts: &Facts, totals: &Totals) -> String {
        let finish = totals.finish.word();
        let mut end = Self::chunk(facts, &json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": finish}]));
        end["timings"] = timings(facts, totals);
        let mut text = data(&end);
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
            "id": facts.id, "object": "text_completion", "created": facts.created, "model": facts.model,
            "choices": [{
                "index": 0,
                "text": piece.text,
                "logprobs": self.logprobs(facts, &piece.tokens),
                "finish_reason": totals.finish.word(),
            }],
            "usage": usage(facts, totals),
            "timings": timings(facts, totals),
        })
    }
}
