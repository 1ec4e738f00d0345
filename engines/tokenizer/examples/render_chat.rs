//! Renders conversations: `render_chat MODEL.gguf [TEMPLATE.jinja] < REQUESTS`, one JSON request a line with
//! `messages`, `tools`, `add_generation_prompt`, `enable_thinking` and `variables`. Prints one JSON line each: the
//! segments as `[[text, trusted], ...]`, or `{"error": ..}`.

use std::io::{BufRead, Write};

use ns_tokenizer::{ChatRequest, ChatTemplate, Tokenizer};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: render_chat MODEL.gguf [TEMPLATE.jinja] < REQUESTS")?;
    let tokenizer = Tokenizer::from_metadata(&ns_weights::ModelFile::open(path)?)?;
    let template = match args.next() {
        Some(file) => ChatTemplate::new(&std::fs::read_to_string(file)?, &tokenizer)?,
        None => ChatTemplate::of(&tokenizer)?,
    };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let input: Value = serde_json::from_str(&line?)?;
        let list = |key: &str| input.get(key).cloned().unwrap_or_else(|| json!([]));
        let request = ChatRequest {
            messages: serde_json::from_value(list("messages"))?,
            tools: serde_json::from_value(list("tools"))?,
            add_generation_prompt: input["add_generation_prompt"].as_bool().unwrap_or(true),
            enable_thinking: input["enable_thinking"].as_bool(),
            variables: input["variables"].as_object().cloned().unwrap_or_default(),
            now: Some(std::time::UNIX_EPOCH),
        };
        let answer = match template.render(&request) {
            Ok(segments) => segments.iter().map(|s| json!([s.text, s.trusted])).collect(),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
