//! The running server as what is measured.

use super::{Answer, Target, words};
use crate::cli::Bench;
use crate::failure::{Failure, Outcome};
use crate::local::World;
use crate::render::card;
use crate::server::socket;
use ns_http::Method;
use ns_http::client::Client;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The running server.
pub struct Running {
    client: Client,
    about: Vec<String>,
    pci: Vec<String>,
    context: usize,
    /// Tokens of a sentence, and what a text has besides.
    sentence: f64,
    around: f64,
}

impl Running {
    /// Finds it.
    pub fn find(world: &World, args: &Bench) -> Outcome<Self> {
        let client = Client::new(&socket(world, &args.control));
        let (_, body) = client.request(Method::GET, "/server/status", None, Duration::from_secs(30))?;
        let status: Value = serde_json::from_slice(&body).unwrap_or_default();
        let context = status["context"].as_u64().unwrap_or(0) as usize;
        if context == 0 {
            return Err(Failure::busy("the server is still loading its model: ask again"));
        }
        let cards = status["gpus"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = cards.iter().map(|g| card(g["name"].as_str().unwrap_or("-"))).collect();
        let mut running = Self {
            about: vec![
                status["model"].as_str().unwrap_or("-").to_owned(),
                format!("served on {}", names.join(" + ")),
                format!(
                    "context {context}, {} answers at once, drafts {}",
                    status["parallel"],
                    if status["mtp"] == true { "on" } else { "off" }
                ),
            ],
            pci: cards.iter().map(|g| g["pci"].as_str().unwrap_or_default().to_owned()).collect(),
            client,
            context,
            sentence: 0.0,
            around: 0.0,
        };
        if !args.needle {
            running.count()?;
        }
        Ok(running)
    }

    /// Counts the tokens of texts.
    fn count(&mut self) -> Outcome {
        let salt = crate::serve::random();
        let few = request(&self.client, &words::text(salt, 2), 1)?.prompt as f64;
        let many = request(&self.client, &words::text(salt, 12), 1)?.prompt as f64;
        self.sentence = (many - few) / 10.0;
        self.around = few - 2.0 * self.sentence;
        if self.sentence <= 0.0 {
            return Err(Failure::error("the server counts no tokens"));
        }
        Ok(())
    }

    /// A text of about so many tokens, rather less than more.
    fn text(&self, size: usize) -> String {
        let sentences = ((size as f64 - self.around) * 0.99 / self.sentence).max(1.0) as usize;
        words::text(crate::serve::random(), sentences)
    }
}

impl Target for Running {
    fn about(&self) -> Vec<String> {
        self.about.clone()
    }

    fn pci(&self) -> Vec<String> {
        self.pci.clone()
    }

    fn context(&self) -> usize {
        self.context
    }

    fn clear(&mut self) -> Outcome {
        let begun = Instant::now();
        loop {
            let (status, body) =
                self.client.request(Method::POST, "/server/cache/clear", Some(&json!({})), PATIENCE)?;
            match status {
                200 => return Ok(()),
                // A server without a prompt cache remembers the last texts of its sessions alone, and ours share nothing with those.
                404 => return Ok(()),
                409 if begun.elapsed() < Duration::from_secs(60) => std::thread::sleep(Duration::from_millis(200)),
                _ => return Err(Failure::error(format!("the prompt cache cannot be cleared: {}", reason(&body)))),
            }
        }
    }

    fn answer(&mut self, size: usize, new: usize) -> Outcome<Answer> {
        request(&self.client, &self.text(size), new)
    }

    fn together(&mut self, n: usize, size: usize, new: usize) -> Outcome<Option<(Vec<Answer>, f64)>> {
        let texts: Vec<String> = (0..n).map(|_| self.text(size)).collect();
        let begun = Instant::now();
        let client = &self.client;
        let answers: Vec<Outcome<Answer>> = std::thread::scope(|scope| {
            let threads: Vec<_> = texts.iter().map(|text| scope.spawn(move || request(client, text, new))).collect();
            let lost = || Err(Failure::error("a client's thread failed"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Some((answers.into_iter().collect::<Outcome<_>>()?, seconds)))
    }

    fn ask(&mut self, message: &str, new: usize) -> Outcome<(usize, String)> {
        let body = json!({
            "messages": [{"role": "user", "content": message}], "max_tokens": new, "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": false},
        });
        let (status, bytes) = self.client.request(Method::POST, "/v1/chat/completions", Some(&body), PATIENCE)?;
        if status != 200 {
            return Err(Failure::error(format!("the server refused: {}", reason(&bytes))));
        }
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let tokens = value["usage"]["prompt_tokens"].as_u64().unwrap_or(0) as usize;
        Ok((tokens, value["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()))
    }

    fn finish(&mut self) -> Outcome {
        Ok(())
    }
}

fn reason(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    value["error"]["message"].as_str().unwrap_or("no reason given").to_owned()
}

/// One greedy continuation of `new` tokens.
fn request(client: &Client, text: &str, new: usize) -> Outcome<Answer> {
    let body = json!({
        "prompt": text, "max_tokens": new, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let begun = Instant::now();
    let mut first = None;
    let (mut timings, mut usage) = (Value::Null, Value::Null);
    let mut error = None;
    let status = client.lines("/v1/completions", &body, &mut |_, line| {
        let Some(line) = line else { return true };
        let value: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).unwrap_or_default();
        if value["choices"][0]["text"].is_string() {
            first.get_or_insert_with(|| begun.elapsed().as_secs_f64());
        }
        for (kept, field) in [(&mut timings, "timings"), (&mut usage, "usage")] {
            if value[field].is_object() {
                *kept = value[field].clone();
            }
        }
        if let Some(message) = value["error"]["message"].as_str() {
            error = Some(message.to_owned());
        }
        true
    })?;
    if let Some(message) = error {
        return Err(Failure::error(message));
    }
    if status != 200 || timings.is_null() || usage.is_null() {
        return Err(Failure::error(format!("the server answered {status} without timings")));
    }
    let number = |field: &str| timings[field].as_f64().unwrap_or(0.0);
    Ok(Answer {
        prompt: usage["prompt_tokens"].as_u64().unwrap_or(0) as usize,
        prompt_rate: number("prompt_per_second"),
        first: first.unwrap_or_else(|| begun.elapsed().as_secs_f64()),
        decode_rate: number("predicted_per_second"),
        drafts: (number("draft_n"), number("draft_n_accepted")),
        generated: number("predicted_n") as usize,
    })
}
