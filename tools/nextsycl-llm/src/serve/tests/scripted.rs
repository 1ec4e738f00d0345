//! An engine whose answers are token lists, and a vocabulary to go with it.
//!
//! Tokens 0 to 255 are bytes, [`END`] ends an answer, [`ASK`] ends a prompt, later ones are given by the test. The
//! answer to a prompt is the script named by the bytes before the last [`ASK`].

use crate::text::{Text, TextError};
use ns_llm::sampler;
use ns_llm::{
    Checkpoint, Decoder, DeviceReport, Engine, EngineFacts, Error, ErrorKind, KernelCheck, Result, Sampling, SessionId,
    Tap,
};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const END: u32 = 256;
pub const ASK: u32 = 257;
pub const FIRST_OWN: u32 = 258;

#[derive(Clone, Default)]
pub struct Script {
    /// Bytes of the tokens from [`FIRST_OWN`] on.
    pub own: Vec<Vec<u8>>,
    pub answers: HashMap<String, Vec<u32>>,
    pub step_time: Duration,
    pub chunk_time: Duration,
    /// Steps after which the device fails.
    pub fails_after: Option<usize>,
    pub not_truncatable: bool,
    /// Further bytes of a saved state for each token.
    pub padding: usize,
    /// Tokens a step with drafts gives; 0 is an engine without drafts.
    pub drafts: usize,
    pub fingerprint: &'static str,
    pub seen: Arc<Seen>,
}

/// What the engine was asked to do.
#[derive(Default)]
pub struct Seen {
    pub fed: AtomicUsize,
    pub steps: AtomicUsize,
    /// Rows of the largest batch.
    pub widest: AtomicUsize,
    /// `f` for a group of chunks read, `s` for a step, `d` behind it for one with drafts, `c` for a checkpoint made and `r` for
    /// one put back.
    pub order: Mutex<String>,
}

impl Script {
    /// Adds an answer made of words, each one token.
    pub fn say(mut self, name: &str, tokens: &[&[u8]]) -> Self {
        let ids = tokens
            .iter()
            .map(|bytes| {
                let known = self.own.iter().position(|o| o == bytes);
                let at = known.unwrap_or_else(|| {
                    self.own.push(bytes.to_vec());
                    self.own.len() - 1
                });
                FIRST_OWN + at as u32
            })
            .collect();
        self.answers.insert(name.to_owned(), ids);
        self
    }
}

pub struct ScriptedText(pub Script);

impl Text for ScriptedText {
    fn encode(&self, text: &str) -> std::result::Result<Vec<u32>, TextError> {
        Ok(text.bytes().map(u32::from).chain([ASK]).collect())
    }

    fn chat(&self, messages: &[Value], _: &Map<String, Value>) -> std::result::Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for message in messages {
            if message["role"] == "tool" {
                return Err(TextError::Template("no tools here".into()));
            }
            ids.extend(message["content"].as_str().unwrap_or_default().bytes().map(u32::from));
            ids.push(if message["role"] == "assistant" { END } else { ASK });
        }
        Ok(ids)
    }

    /// A turn ends with its [`ASK`] or [`END`].
    fn turns(&self, messages: &[Value], _: &Map<String, Value>, tokens: &[u32]) -> ns_tokenizer::Turns {
        let ends: Vec<usize> =
            (0..tokens.len()).filter(|&at| matches!(tokens[at], ASK | END)).map(|at| at + 1).collect();
        let last = messages.len().checked_sub(2).and_then(|at| ends.get(at)).copied();
        ns_tokenizer::Turns { first_end: ends.first().copied(), last_user: last, answer: None }
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        match token {
            0..=255 => vec![token as u8],
            END | ASK => Vec::new(),
            _ => self.0.own[(token - FIRST_OWN) as usize].clone(),
        }
    }

    fn name(&self, token: u32) -> String {
        format!("<{token}>")
    }

    fn is_end(&self, token: u32) -> bool {
        token == END
    }
}

pub struct ScriptedEngine {
    script: Script,
    facts: EngineFacts,
    sessions: Vec<(usize, Vec<u32>)>,
}

impl ScriptedEngine {
    pub fn new(script: Script) -> Self {
        let facts = EngineFacts {
            engine: "scripted",
            architecture: "scripted".into(),
            model: "scripted".into(),
            n_vocab: FIRST_OWN as usize + script.own.len(),
            context_length: 1 << 20,
            prefill_chunk: 8,
            max_verify: 8,
            truncatable: !script.not_truncatable,
            draft: script.drafts > 0,
            cache_fingerprint: script.fingerprint.to_owned(),
        };
        Self { script, facts, sessions: Vec::new() }
    }

    fn tokens(&mut self, session: SessionId) -> &mut Vec<u32> {
        &mut self.sessions[session.0 as usize].1
    }

    fn row(&self, session: SessionId) -> Vec<f32> {
        let tokens = &self.sessions[session.0 as usize].1;
        let ask = tokens.iter().rposition(|&t| t == ASK).unwrap();
        let begin = tokens[..ask].iter().rposition(|&t| t == ASK || t == END).map_or(0, |at| at + 1);
        let name: Vec<u8> = tokens[begin..ask].iter().map(|&t| t as u8).collect();
        let answer = self.script.answers.get(&*String::from_utf8_lossy(&name));
        let next = answer.and_then(|a| a.get(tokens.len() - ask - 1)).copied().unwrap_or(END);
        let mut row = vec![0.0; self.facts.n_vocab];
        row[next as usize] = 1e4;
        row
    }

    fn draw(&self, session: SessionId, decoder: &mut Decoder) -> u32 {
        let row = self.row(session);
        let position = self.sessions[session.0 as usize].1.len() as u64;
        let token = sampler::sample(&row, &decoder.sampling, decoder.window(), position);
        decoder.scores = decoder.sampling.logprobs.map(|top| sampler::scores(&row, token, top)).into_iter().collect();
        decoder.push(token);
        token
    }

    fn pass(&self) -> Result<()> {
        std::thread::sleep(self.script.step_time);
        self.script.seen.order.lock().unwrap().push('s');
        let steps = self.script.seen.steps.fetch_add(1, Ordering::SeqCst);
        match self.script.fails_after {
            Some(n) if steps >= n => Err(Error::new(ErrorKind::Device, "the card fell off the bus")),
            _ => Ok(()),
        }
    }
}

impl Engine for ScriptedEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn devices(&self) -> Vec<DeviceReport> {
        vec![DeviceReport {
            index: 0,
            name: "Intel(R) Arc(TM) Pro B70 Graphics".into(),
            pci: "0000:03:00.0".into(),
            total: 32 << 30,
            free: Some(2 << 30),
            layers: (0, 22),
            expert_slots: 0,
            host_slots: 0,
        }]
    }

    fn open_session(&mut self, max_context: usize) -> Result<SessionId> {
        self.sessions.push((max_context, Vec::new()));
        Ok(SessionId(self.sessions.len() as u32 - 1))
    }

    fn close_session(&mut self, _: SessionId) -> Result<()> {
        Ok(())
    }

    fn reset(&mut self, session: SessionId) -> Result<()> {
        self.tokens(session).clear();
        Ok(())
    }

    fn copy(&mut self, _: SessionId, _: SessionId) -> Result<()> {
        unreachable!("the server does not copy")
    }

    fn position(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions[session.0 as usize].1.len())
    }

    fn max_context(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions[session.0 as usize].0)
    }

    fn truncate(&mut self, session: SessionId, position: usize) -> Result<()> {
        let truncatable = self.facts.truncatable;
        let tokens = self.tokens(session);
        assert!(truncatable || position == tokens.len() || position == 0, "truncated a session that cannot be");
        tokens.truncate(position);
        Ok(())
    }

    fn save(&mut self, session: SessionId) -> Result<Checkpoint> {
        let tokens = &self.sessions[session.0 as usize].1;
        let mut state: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        state.resize(state.len() + tokens.len() * self.script.padding, 7);
        self.script.seen.order.lock().unwrap().push('c');
        Ok(Checkpoint { fingerprint: self.facts.cache_fingerprint.clone(), position: tokens.len(), state })
    }

    fn state_bytes(&mut self, session: SessionId) -> Result<u64> {
        Ok((self.tokens(session).len() * (4 + self.script.padding)) as u64)
    }

    fn restore(&mut self, session: SessionId, checkpoint: &Checkpoint) -> Result<()> {
        let bytes = &checkpoint.state[..checkpoint.position * 4];
        *self.tokens(session) = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        self.script.seen.order.lock().unwrap().push('r');
        Ok(())
    }

    fn feed_until(&mut self, session: SessionId, tokens: &[u32], stop: &mut dyn FnMut() -> bool) -> Result<usize> {
        let mut read = 0;
        self.script.seen.order.lock().unwrap().push('f');
        for chunk in tokens.chunks(self.facts.prefill_chunk) {
            std::thread::sleep(self.script.chunk_time);
            if self.sessions[session.0 as usize].1.len() + chunk.len() > self.sessions[session.0 as usize].0 {
                return Err(Error::new(ErrorKind::ContextFull, "the session is full"));
            }
            self.tokens(session).extend_from_slice(chunk);
            self.script.seen.fed.fetch_add(chunk.len(), Ordering::SeqCst);
            read += chunk.len();
            if read < tokens.len() && stop() {
                break;
            }
        }
        Ok(read)
    }

    fn forward_rows(&mut self, _: SessionId, _: &[u32], _: usize) -> Result<Vec<f32>> {
        unreachable!("the server steps")
    }

    fn forward_batch(&mut self, _: &[(SessionId, u32)]) -> Result<Vec<f32>> {
        unreachable!("the server steps")
    }

    fn forward_tapped(&mut self, _: SessionId, _: &[u32], _: &mut dyn FnMut(Tap<'_>)) -> Result<Vec<f32>> {
        unreachable!("the server does not tap")
    }

    fn logits(&mut self, session: SessionId) -> Result<Vec<f32>> {
        Ok(self.row(session))
    }

    fn decoder(&mut self, session: SessionId, sampling: Sampling, history: &[u32], draft: bool) -> Result<Decoder> {
        let mut decoder = Decoder::new(sampling, history, 0, draft && self.facts.draft);
        self.draw(session, &mut decoder);
        Ok(decoder)
    }

    fn step(&mut self, session: SessionId, decoder: &mut Decoder) -> Result<Vec<u32>> {
        self.pass()?;
        let count = if decoder.draft { self.script.drafts } else { 1 };
        if decoder.draft {
            decoder.drafts_proposed += 3;
            decoder.drafts_accepted += count as u64 - 1;
            self.script.seen.order.lock().unwrap().push('d');
        }
        let mut drawn = Vec::new();
        for _ in 0..count {
            let pending = decoder.pending;
            self.tokens(session).push(pending);
            drawn.push(self.draw(session, decoder));
        }
        Ok(drawn)
    }

    fn step_batch(&mut self, rows: &mut [(SessionId, &mut Decoder)]) -> Result<Vec<u32>> {
        self.pass()?;
        self.script.seen.widest.fetch_max(rows.len(), Ordering::SeqCst);
        assert!(rows.iter().all(|(_, decoder)| !decoder.draft), "drafts in a pass of several");
        let mut drawn = Vec::new();
        for (session, decoder) in rows {
            let pending = decoder.pending;
            self.tokens(*session).push(pending);
            drawn.push(self.draw(*session, decoder));
        }
        Ok(drawn)
    }

    fn rollback(&mut self, _: SessionId, _: usize) -> Result<()> {
        unreachable!("the server does not roll back")
    }

    fn check_kernels(&mut self) -> Result<Vec<KernelCheck>> {
        Ok(Vec::new())
    }
}
