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

/// One comparison of a named tensor of a verify row with that of the one-token pass at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct TapCheck {
    /// The first position of the pass.
    pub step: usize,
    /// The row within the pass.
    pub row: usize,
    /// The tensor's name.
    pub name: String,
    /// Its layer.
    pub layer: Option<usize>,
    /// Largest difference of a value.
    pub max_difference: f32,
    /// Largest value of the one-token pass, in magnitude.
    pub max_reference: f32,
}

/// A tensor as it was handed to a tap.
struct Tensor {
    name: String,
    layer: Option<usize>,
    columns: usize,
    values: Vec<f32>,
}

fn tapped(engine: &mut dyn Engine, session: SessionId, tokens: &[u32]) -> Result<(Vec<Tensor>, Vec<f32>)> {
    let mut tensors = Vec::new();
    let logits = engine.forward_tapped(session, tokens, &mut |tap| {
        let (name, values) = (tap.name.to_owned(), tap.values.to_vec());
        tensors.push(Tensor { name, layer: tap.layer, columns: tap.columns, values });
    })?;
    Ok((tensors, logits))
}

/// As [`verify_rows`], for every tensor that the engine hands to a tap, in the order of the pass; the logits come last, as
/// `logits`. Tensors of one pass that the other has not are an error.
pub fn verify_layers(engine: &mut dyn Engine, prompt: &[u32], steps: usize, rows: usize) -> Result<Vec<TapCheck>> {
    let n_vocab = engine.facts().n_vocab;
    let session = engine.open_session(prompt.len() + (steps + 1) * rows + 1)?;
    let result = (|| {
        let mut token = argmax(&engine.feed(session, prompt)?);
        let mut checks = Vec::new();
        for _ in 0..steps {
            let step = engine.position(session)?;
            let before = engine.save(session)?;
            let (mut tokens, mut alone) = (Vec::new(), Vec::new());
            for _ in 0..rows {
                tokens.push(token);
                let (mut tensors, logits) = tapped(engine, session, &[token])?;
                token = argmax(&logits);
                tensors.push(Tensor { name: "logits".to_owned(), layer: None, columns: n_vocab, values: logits });
                alone.push(tensors);
            }
            engine.restore(session, &before)?;
            let (mut together, logits) = tapped(engine, session, &tokens)?;
            together.push(Tensor { name: "logits".to_owned(), layer: None, columns: n_vocab, values: logits });
            for (index, many) in together.iter().enumerate() {
                for (row, one) in alone.iter().enumerate() {
                    let same = |t: &&Tensor| t.name == many.name && t.layer == many.layer && t.columns == many.columns;
                    let pair = one.get(index).filter(same).zip(many.values.chunks_exact(many.columns.max(1)).nth(row));
                    let Some((one, many_row)) = pair.filter(|_| one.len() == together.len()) else {
                        let what =
                            format!("the passes of 1 and {rows} rows hand out different tensors ({})", many.name);
                        return Err(crate::Error::new(crate::ErrorKind::Usage, what));
                    };
                    checks.push(TapCheck {
                        step,
                        row,
                        name: one.name.clone(),
                        layer: one.layer,
                        max_difference: largest_difference(&one.values, many_row),
                        max_reference: one.values.iter().map(|v| v.abs()).fold(0.0, f32::max),
                    });
                }
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
        max_difference: largest_difference(one, many),
        max_reference: one.iter().map(|v| v.abs()).fold(0.0, f32::max),
        same: argmax(many) == best,
        margin: top - second,
    }
}

fn largest_difference(one: &[f32], many: &[f32]) -> f32 {
    if one.len() == many.len() {
        one.iter().zip(many).map(|(a, b)| difference(*a, *b)).fold(0.0, f32::max)
    } else {
        f32::INFINITY
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
