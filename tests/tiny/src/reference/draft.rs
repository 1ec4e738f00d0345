//! The draft block, and steps of a text that is drafted and checked.

use super::math::{add, rms};
use super::trunk::{Cells, Sequence};
use super::{Model, best};
use crate::error::{Error, Result};

/// A sequence with drafts.
///
/// Row p of the draft block knows the trunk's row p and token p + 1, and guesses token p + 2. A chain of guesses adds rows
/// of the block's own, which are taken back afterwards.
pub struct Drafted<'m> {
    trunk: Sequence<'m>,
    cells: Cells,
    /// The trunk's last row, whose draft row waits for the token after it.
    last: Option<Vec<f64>>,
}

/// What came of a drafted text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Speculation {
    /// The text: greedy, whatever was guessed.
    pub tokens: Vec<u32>,
    /// Passes of the trunk it took after the prompt.
    pub steps: usize,
    /// Guesses, and those of them that were right and not behind a wrong one.
    pub guessed: usize,
    /// See `guessed`.
    pub accepted: usize,
}

impl<'m> Drafted<'m> {
    /// A sequence of no tokens.
    pub fn new(model: &'m Model) -> Result<Self> {
        if !model.params.draft {
            return Err(Error::Table("the model has no draft block".into()));
        }
        Ok(Self { trunk: model.sequence(), cells: Cells::default(), last: None })
    }

    /// Appends a token. Gives the draft block's logits for the token after it, except for the first; and the trunk's row.
    pub fn push(&mut self, token: u32) -> Result<(Option<Vec<f64>>, Vec<f64>)> {
        let draft = match self.last.take() {
            Some(hidden) => Some(self.trunk.model.draft_logits(&self.draft_row(&hidden, token)?)?),
            None => None,
        };
        let hidden = self.trunk.push(token)?;
        self.last = Some(hidden.clone());
        Ok((draft, hidden))
    }

    fn draft_row(&mut self, hidden: &[f64], token: u32) -> Result<Vec<f64>> {
        self.trunk.model.draft_row(&mut self.cells, hidden, token)
    }

    /// Logits of so many chained guesses behind `token`, which is not appended.
    pub fn chain(&mut self, token: u32, count: usize) -> Result<Vec<Vec<f64>>> {
        let kept = self.cells.keys.len();
        let mut hidden = self.last.clone().ok_or_else(|| Error::Table("drafts of an empty sequence".into()))?;
        let (mut token, mut logits) = (token, Vec::new());
        for _ in 0..count {
            hidden = self.draft_row(&hidden, token)?;
            let row = self.trunk.model.draft_logits(&hidden)?;
            token = best(&row);
            logits.push(row);
        }
        self.cells.truncate(kept);
        Ok(logits)
    }

    /// Writes a greedy text behind a prompt, with so many guesses a step.
    pub fn speculate(&mut self, prompt: &[u32], count: usize, drafts: usize) -> Result<Speculation> {
        let model = self.trunk.model;
        let mut hidden = Vec::new();
        for &token in prompt {
            hidden = self.push(token)?.1;
        }
        let mut made = Speculation::default();
        let mut next = best(&model.logits(&hidden)?);
        made.tokens.push(next);
        while made.tokens.len() < count {
            let guesses: Vec<u32> = self.chain(next, drafts)?.iter().map(|row| best(row)).collect();
            made.steps += 1;
            made.guessed += guesses.len();
            // the pass runs over `next` and all guesses; what is behind a wrong one is taken back
            for guess in guesses.into_iter().map(Some).chain([None]) {
                hidden = self.push(next)?.1;
                next = best(&model.logits(&hidden)?);
                made.tokens.push(next);
                if guess != Some(next) {
                    break;
                }
                made.accepted += 1;
            }
        }
        Ok(made)
    }
}

impl Model {
    fn draft_row(&self, cells: &mut Cells, hidden: &[f64], token: u32) -> Result<Vec<f64>> {
        let block = format!("blk.{}.", self.params.layers);
        let name = |role: &str| format!("{block}nextn.{role}");
        let own = name("embed_tokens.weight");
        let embedding = self.row(if self.has(&own) { &own } else { "token_embd.weight" }, token as usize)?;
        let mut both = self.norm(&name("enorm"), &embedding)?;
        both.extend(self.norm(&name("hnorm"), hidden)?);
        let mut x = self.linear(&name("eh_proj"), &both)?;
        let h = self.norm(&format!("{block}attn_norm"), &x)?;
        let position = cells.keys.len();
        add(&mut x, &self.full_attention(&block, None, cells, &h, position, &mut |_, _, _| {})?);
        let h = self.norm(&format!("{block}post_attention_norm"), &x)?;
        add(&mut x, &self.feed_forward(&block, &h)?);
        let own = name("shared_head_norm.weight");
        let gamma = self.vector(if self.has(&own) { &own } else { "output_norm.weight" })?;
        Ok(rms(&x, &gamma, self.params.eps))
    }

    fn draft_logits(&self, hidden: &[f64]) -> Result<Vec<f64>> {
        let own = format!("blk.{}.nextn.shared_head_head", self.params.layers);
        if self.has(&format!("{own}.weight")) { self.linear(&own, hidden) } else { self.logits(hidden) }
    }
}
