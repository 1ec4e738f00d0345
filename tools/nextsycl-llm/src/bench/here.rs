//! A model in this process as what is measured.

use super::{Answer, SMALL, Target, Wanted, words};
use crate::cli::Bench;
use crate::device::NoCard;
use crate::failure::{Failure, Outcome};
use crate::local::{Ask, Local, World};
use ns_llm::{Engine, Sampling, SessionId};
use serde_json::{Map, json};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A model in this process.
pub struct Here {
    local: Local,
    model: String,
}

impl Here {
    /// Opens it with room for what is wanted.
    pub fn open(world: &World, args: &Bench, model: &str, wanted: &Wanted) -> Outcome<Self> {
        let found = world.find(Some(model))?;
        let trained = (found.registration.info)(&found.model.file)?.context_length;
        // A draft more than asked for may be read at the end.
        let room = |size: usize| size + wanted.new + 8;
        let longest = wanted.sizes.iter().map(|&s| room(s)).filter(|&n| n <= trained).max();
        let Some(longest) = longest else {
            return Err(Failure::error(format!("no size fits the context of {trained} tokens")));
        };
        let mut contexts = vec![longest];
        if !args.needle {
            let most = wanted.parallel.iter().copied().max().unwrap_or(0).min(8);
            contexts.extend(std::iter::repeat_n(room(SMALL).min(trained), most));
        }
        let local = Local::open_with(world, &found, &args.open, contexts, NoCard::UseCpu)?;
        let mut here = Self { local, model: found.model.id };
        // One pass of each kind warms up what is compiled or recorded at first use.
        let ids = here.ids(SMALL)?;
        let session = here.local.session;
        measure(&mut *here.local.engine, session, &ids, 2)?;
        Ok(here)
    }

    /// So many tokens of text.
    fn ids(&self, size: usize) -> Outcome<Vec<u32>> {
        let salt = crate::serve::random();
        let mut sentences = size / 8 + 2;
        loop {
            let mut ids =
                self.local.text.encode(&words::text(salt, sentences)).map_err(|e| Failure::error(e.to_string()))?;
            if ids.len() >= size {
                ids.truncate(size);
                return Ok(ids);
            }
            sentences *= 2;
        }
    }
}

/// Reads a prompt and decodes `new` tokens.
fn measure(engine: &mut dyn Engine, session: SessionId, ids: &[u32], new: usize) -> Outcome<Answer> {
    engine.reset(session)?;
    let begun = Instant::now();
    engine.feed_until(session, ids, &mut || false)?;
    let mut decoder = engine.decoder(session, Sampling::greedy(), ids, true)?;
    let first = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut generated = 1;
    while generated < new {
        generated += engine.step(session, &mut decoder)?.len();
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Answer {
        prompt: ids.len(),
        prompt_rate: ids.len() as f64 / first,
        first,
        decode_rate: crate::serve::rate(generated, seconds),
        drafts: (decoder.drafts_proposed as f64, decoder.drafts_accepted as f64),
        generated,
    })
}

/// Several prompts read one after the other, then decoded in one pass a token.
fn together(
    engine: &mut dyn Engine,
    sessions: &[SessionId],
    prompts: &[Vec<u32>],
    new: usize,
) -> Outcome<(Vec<Answer>, f64)> {
    let begun = Instant::now();
    let (mut answers, mut decoders) = (Vec::new(), Vec::new());
    for (&session, ids) in sessions.iter().zip(prompts) {
        engine.feed_until(session, ids, &mut || false)?;
        decoders.push(engine.decoder(session, Sampling::greedy(), ids, false)?);
        let first = begun.elapsed().as_secs_f64();
        answers.push(Answer { prompt: ids.len(), first, generated: new, ..Answer::default() });
    }
    for _ in 1..new {
        let mut rows: Vec<_> = sessions.iter().copied().zip(decoders.iter_mut()).collect();
        engine.step_batch(&mut rows)?;
    }
    Ok((answers, begun.elapsed().as_secs_f64()))
}

impl Target for Here {
    fn about(&self) -> Vec<String> {
        let facts = self.local.engine.facts();
        let drafts = if facts.draft { "on" } else { "off" };
        vec![
            self.model.clone(),
            format!("in one process on {}", self.local.chosen.names()),
            format!("context {}, drafts {drafts}", self.local.context),
        ]
    }

    fn pci(&self) -> Vec<String> {
        self.local.chosen.infos.iter().map(|i| i.pci.clone()).collect()
    }

    fn context(&self) -> usize {
        self.local.context
    }

    fn clear(&mut self) -> Outcome {
        self.local.clear()
    }

    fn answer(&mut self, size: usize, new: usize) -> Outcome<Answer> {
        let ids = self.ids(size)?;
        let session = self.local.session;
        measure(&mut *self.local.engine, session, &ids, new)
    }

    fn together(&mut self, n: usize, size: usize, new: usize) -> Outcome<Option<(Vec<Answer>, f64)>> {
        if n > self.local.engine.facts().max_verify {
            return Ok(None);
        }
        let prompts = (0..n).map(|_| self.ids(size)).collect::<Outcome<Vec<_>>>()?;
        let engine = &mut *self.local.engine;
        let mut sessions = Vec::new();
        let result = (|| {
            for _ in 0..n {
                sessions.push(engine.open_session(size + new + 8)?);
            }
            together(engine, &sessions, &prompts, new).map(Some)
        })();
        for session in sessions {
            engine.close_session(session)?;
        }
        result
    }

    fn ask(&mut self, message: &str, new: usize) -> Outcome<(usize, String)> {
        let mut variables = Map::new();
        variables.insert("enable_thinking".into(), json!(false));
        let messages = [json!({"role": "user", "content": message})];
        let prompt = self.local.text.chat(&messages, &variables).map_err(|e| Failure::error(e.to_string()))?;
        let ask = Ask { prompt: &prompt, sampling: Sampling::greedy(), max: Some(new), ignore_end: false };
        let mut text = String::new();
        let mut emit = |piece: &str| {
            text.push_str(piece);
            Ok(())
        };
        self.local.answer(ask, &AtomicBool::new(false), &mut emit, &mut |_| Ok(()))?;
        Ok((prompt.len(), text))
    }

    fn finish(&mut self) -> Outcome {
        self.local.tell_profile()
    }
}
