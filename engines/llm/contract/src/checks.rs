//! Checks that any engine must pass, driven through the contract alone.

use crate::sampler::argmax;
use crate::{Engine, Result, SessionId};

/// One comparison of a verify row with the one-token pass at its position.
#[derive(Debug, Clone)]
pub struct RowCheck {
    /// The first position of the pass.
    pub step: usize,
    /// The row within the pass.
    pub row: usize,
    /// Largest difference of a logit.
    pub max_difference: f32,
    /// Largest logit of the one-token pass, in magnitude.
    pub max_reference: f32,
    /// Whether both choose the same token.
    pub same: bool,
    /// Distance between the two likeliest tokens of the one-token pass.
    pub margin: f32,
}

/// Greedy continuation of a prompt, `rows` tokens a pass, each row against the one-token pass at its position.
///
/// `prompt` is read into a fresh session; `steps` passes are checked.
pub fn verify_rows(engine: &mut dyn Engine, prompt: &[u32], steps: usize, rows: usize) -> Result<Vec<RowCheck>> {
    let n_vocab = engine.facts().n_vocab;
    let session = engine.open_session(prompt.len() + (steps + 1) * rows + 1)?;
    let result = (|| {
        let mut token = argmax(&engine.feed(session, prompt)?);
        let mut checks = Vec::new();
        for _ in 0..steps {
            let start = engine.position(session)?;
            let before = engine.save(session)?;
            let (mut tokens, mut alone) = (Vec::new(), Vec::new());
            for _ in 0..rows {
                tokens.push(token);
                let logits = engine.forward_rows(session, &[token], 1)?;
                token = argmax(&logits);
                alone.push(logits);
            }
            engine.restore(session, &before)?;
            let together = engine.forward_rows(session, &tokens, rows)?;
            for (row, (one, many)) in alone.iter().zip(together.chunks_exact(n_vocab)).enumerate() {
                checks.push(compare(start, row, one, many));
            }
        }
        Ok(checks)
    })();
    engine.close_session(session)?;
    result
}

/// Conversations decoded greedily together against each alone; every row of every step is compared.
pub fn batch_rows(engine: &mut dyn Engine, prompts: &[Vec<u32>], steps: usize) -> Result<Vec<RowCheck>> {
    let n_vocab = engine.facts().n_vocab;
    let mut alone: Vec<Vec<Vec<f32>>> = Vec::new();
    for prompt in prompts {
        let session = engine.open_session(prompt.len() + steps + 1)?;
        let result = (|| {
            let mut logits = engine.feed(session, prompt)?;
            let mut all = vec![logits.clone()];
            for _ in 0..steps {
                logits = engine.forward_rows(session, &[argmax(&logits)], 1)?;
                all.push(logits.clone());
            }
            Ok(all)
        })();
        engine.close_session(session)?;
        alone.push(result?);
    }
    let mut sessions: Vec<SessionId> = Vec::new();
    let result = (|| {
        let mut tokens = Vec::new();
        let mut checks = Vec::new();
        for (row, prompt) in prompts.iter().enumerate() {
            let session = engine.open_session(prompt.len() + steps + 1)?;
            sessions.push(session);
            let logits = engine.feed(session, prompt)?;
            tokens.push(argmax(&logits));
            checks.push(compare(0, row, &alone[row][0], &logits));
        }
        let mut step = 0;
        while step < steps {
            step += 1;
            let rows: Vec<_> = sessions.iter().copied().zip(tokens.iter().copied()).collect();
            let logits = engine.forward_batch(&rows)?;
            for (row, values) in logits.chunks_exact(n_vocab).enumerate() {
                checks.push(compare(step, row, &alone[row][step], values));
                tokens[row] = argmax(values);
            }
        }
        Ok(checks)
    })();
    for session in sessions {
        engine.close_session(session)?;
    }
    result
}

fn compare(step: usize, row: usize, one: &[f32], many: &[f32]) -> RowCheck {
    let best = argmax(one);
    let top = one.get(best as usize).copied().unwrap_or(f32::NAN);
    let second = one
        .iter()
        .enumerate()
        .filter(|&(id, _)| id != best as usize)
        .map(|(_, &v)| v)
        .fold(f32::NEG_INFINITY, f32::max);
    RowCheck {
        step,
        row,
        max_difference: one.iter().zip(many).map(|(a, b)| difference(*a, *b)).fold(0.0, f32::max),
        max_reference: one.iter().map(|v| v.abs()).fold(0.0, f32::max),
        same: argmax(many) == best,
        margin: top - second,
    }
}

/// Equal bits are no difference, even for infinities and NaN; anything else with a NaN is infinite.
fn difference(a: f32, b: f32) -> f32 {
    if a.to_bits() == b.to_bits() {
        0.0
    } else if (a - b).is_nan() {
        f32::INFINITY
    } else {
        (a - b).abs()
    }
}
