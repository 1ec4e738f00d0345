//! The draft block at work: it follows the conversation a few rows behind, proposes tokens, and a verify pass of the trunk
//! decides. Cell `j` of its cache pairs the trunk's row `j` with token `j + 1`.

use crate::device_error;
use crate::engine::Qwen35;
use crate::options::DraftSampling;
use crate::passes::Seen;
use crate::run::Table;
use crate::stage::Recorded;
use crate::work::MAX_ROWS;
use ns_llm::{Decoder, Result, SessionId, philox, sampler};

/// Streams of a position's random numbers beside the draw itself: the draft, its acceptance, the draw after a refusal.
const DRAFT_STREAM: u32 = 1;
const ACCEPT_STREAM: u32 = 2;
const RESIDUAL_STREAM: u32 = 3;

/// One proposed token.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    /// The token.
    pub token: u32,
    /// What it was drawn from, for speculative sampling.
    pub from: Vec<(u32, f32)>,
}

impl Qwen35 {
    /// Rows through the draft block: a cell and the token it pairs with each. `fresh` rows are the session's kept ones.
    fn draft_pass(&mut self, session: SessionId, rows: &[(usize, u32)], fresh: bool, choose: bool) -> Result<()> {
        let s = self.sessions.get(session)?;
        let mut table = Table::default();
        for &(cell, token) in rows {
            table.push(self.row_state(s, cell, token));
        }
        let slot = s.slot;
        let last = self.stages.len() - 1;
        let stage = &mut self.stages[last];
        stage.write_table(&table.to_bytes())?;
        if fresh {
            stage.take_rows(&self.p, slot, rows.len())?;
        }
        // without a choice nothing attends
        let n_splits = if choose { table.splits(stage.sizes.max_splits) } else { 1 };
        let what = Recorded::Draft { rows: rows.len(), n_splits, fresh, choose };
        stage.decode(&self.p, (what, Seen { keys: rows.last().map_or(0, |r| r.0 + 1), ..Seen::default() }), &mut None)
    }

    /// Takes the draft block through all rows of the trunk, `next` being the token behind the last; with `choose` it drafts the
    /// token behind that.
    pub(crate) fn catch_up(&mut self, session: SessionId, next: u32, choose: bool) -> Result<()> {
        let s = self.sessions.get(session)?;
        let tokens = s.behind.iter().skip(1).copied().chain([next]);
        let rows: Vec<(usize, u32)> = (s.drafted..).zip(tokens).take(s.behind.len()).collect();
        self.draft_pass(session, &rows, true, choose)?;
        self.sessions.get_mut(session)?.caught_up();
        Ok(())
    }

    /// The token that the last draft pass likes best.
    fn read_drafted(&self) -> Result<u32> {
        let last = self.last();
        let id: Vec<i32> =
            last.queue.read_vec(&last.work.drafted, 0, 1).map_err(|e| device_error("cannot read a draft", e))?;
        Ok(id.first().copied().unwrap_or_default().cast_unsigned())
    }

    /// The logits of the last draft pass.
    pub(crate) fn read_draft_logits(&self) -> Result<Vec<f32>> {
        let last = self.last();
        last.queue
            .read_vec(&last.work.draft_logits, 0, self.p.n_vocab)
            .map_err(|e| device_error("cannot read a draft's logits", e))
    }

    /// Proposes up to `most` tokens behind the decoder's pending one.
    pub(crate) fn propose(&mut self, session: SessionId, decoder: &Decoder, most: usize) -> Result<Vec<Proposal>> {
        let s = self.sessions.get(session)?;
        if most == 0 || s.behind.is_empty() {
            return Ok(Vec::new());
        }
        let position = s.position;
        let sampling = &decoder.sampling;
        let window = if sampling.has_penalties() { sampling.penalty_window } else { 0 };
        let mut history: Vec<u32> = decoder.window().collect();
        let mut proposals: Vec<Proposal> = Vec::with_capacity(most);
        for i in 0..most {
            match proposals.last() {
                None => self.catch_up(session, decoder.pending, true)?,
                Some(before) => {
                    let row = [(position + i - 1, before.token)];
                    self.draft_pass(session, &row, false, true)?;
                }
            }
            let tail = &history[history.len().saturating_sub(window)..];
            // the token at this index of the conversation; the row before it will verify
            let counter = (position + i + 1) as u64;
            let proposal = if sampling.is_greedy() && !sampling.has_penalties() {
                Proposal { token: self.read_drafted()?, from: Vec::new() }
            } else if self.options.draft_sampling == DraftSampling::Coupled || sampling.is_greedy() {
                let logits = self.read_draft_logits()?;
                let token = sampler::sample(&logits, sampling, tail.iter().copied(), counter);
                Proposal { token, from: Vec::new() }
            } else {
                let logits = self.read_draft_logits()?;
                let from = sampler::distribution(&logits, sampling, tail.iter().copied());
                let token = sampler::draw_from(&from, philox::uniform(sampling.seed, counter, DRAFT_STREAM));
                Proposal { token, from }
            };
            history.push(proposal.token);
            proposals.push(proposal);
        }
        Ok(proposals)
    }

    /// A step with drafts: proposals, one verify pass, and the tokens it gives.
    pub(crate) fn step_drafted(&mut self, session: SessionId, decoder: &mut Decoder) -> Result<Vec<u32>> {
        self.check_tokens(&[decoder.pending])?;
        self.check_room(session, 1)?;
        let room = self.sessions.get(session)?.room();
        let most = self.options.drafts.min(room - 1).min(MAX_ROWS - 1);
        let proposals = self.propose(session, decoder, most)?;
        let mut rows = vec![decoder.pending];
        rows.extend(proposals.iter().map(|p| p.token));
        let group = [(session, rows.as_slice())];
        self.run_rows(&group, None)?;
        let plain = crate::engine::plain(&decoder.sampling);
        let chosen = self.read_chosen(rows.len())?;
        let logits = if plain { Vec::new() } else { self.read_logits(0, rows.len())? };
        let start = self.sessions.get(session)?.position;
        self.commit_rows(&group)?;
        decoder.scores.clear();
        let mut tokens = Vec::with_capacity(rows.len());
        for (row, &best) in chosen.iter().enumerate() {
            let proposal = proposals.get(row);
            let (token, kept) = if plain {
                (best, proposal.is_some_and(|p| p.token == best))
            } else {
                let logits = &logits[row * self.p.n_vocab..(row + 1) * self.p.n_vocab];
                let counter = (start + row + 1) as u64;
                let drawn = draw(decoder, logits, proposal, counter);
                if let Some(top) = decoder.sampling.logprobs {
                    decoder.scores.push(sampler::scores(logits, drawn.0, top));
                }
                drawn
            };
            decoder.push(token);
            tokens.push(token);
            if !kept {
                break;
            }
        }
        self.sessions.get_mut(session)?.roll_back(tokens.len())?;
        decoder.drafts_proposed += proposals.len() as u64;
        decoder.drafts_accepted += tokens.len() as u64 - 1;
        Ok(tokens)
    }
}

/// Draws a verify row's token; whether it is the proposed one.
fn draw(decoder: &Decoder, logits: &[f32], proposal: Option<&Proposal>, counter: u64) -> (u32, bool) {
    let sampling = &decoder.sampling;
    let Some(proposal) = proposal.filter(|p| !p.from.is_empty()) else {
        let token = sampler::sample(logits, sampling, decoder.window(), counter);
        return (token, proposal.is_some_and(|p| p.token == token));
    };
    let target = sampler::distribution(logits, sampling, decoder.window());
    let uniform = |stream| philox::uniform(sampling.seed, counter, stream);
    sampler::accept_or_redraw(&target, &proposal.from, proposal.token, uniform(ACCEPT_STREAM), uniform(RESIDUAL_STREAM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ns_llm::{Engine, LoadOptions, Moment, OptionValues};
    use ns_tiny::Expected;

    const TOLERANCE: f32 = 5e-5;

    fn worst(a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
    }

    /// Draft rows behind `prompt` rows read by one pass, then a chain, against the float64 reference. Returns the worst difference.
    fn against_reference(name: &str, prompt: usize, one_by_one: bool) -> f32 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        ns_tiny::write_table(ns_tiny::fixtures().join(format!("{name}.json")), &path).unwrap();
        let expected = Expected::load(name).unwrap();
        let device = std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
        let given = [("kv", "f32")];
        let options = OptionValues::check(crate::OPTIONS, given, Moment::Load).unwrap();
        let load = LoadOptions { options, ..LoadOptions::single(&device, 128) };
        let mut engine = Qwen35::load(&path, &load, &mut |_, _| {}).unwrap();
        let session = engine.open_session(128).unwrap();
        let (tokens, drafted) = (expected.tokens(), expected.draft_tokens());
        let (rows, chain) = (expected.output("draft.rows").unwrap(), expected.output("draft.chain").unwrap());
        let first = tokens.len() - rows.shape[0];
        engine.feed(session, &tokens[..prompt]).unwrap();
        let mut all = 0.0_f32;
        let mut step = |engine: &mut Qwen35, row: usize, next: u32| {
            engine.catch_up(session, next, true).unwrap();
            if row >= first {
                let difference = worst(&engine.read_draft_logits().unwrap(), rows.row(row - first).unwrap());
                assert!(difference < TOLERANCE, "{name}: draft row {row} differs by {difference}");
                all = all.max(difference);
            }
        };
        for row in prompt..tokens.len() {
            engine.forward_rows(session, &tokens[row..=row], 1).unwrap();
            // otherwise the block catches up with several rows at once
            if one_by_one || row + 1 == tokens.len() {
                step(&mut engine, row, tokens.get(row + 1).copied().unwrap_or(drafted[0]));
            }
        }
        for link in 0..chain.shape[0] {
            if link > 0 {
                engine.draft_pass(session, &[(tokens.len() - 1 + link, drafted[link])], false, true).unwrap();
            }
            let difference = worst(&engine.read_draft_logits().unwrap(), chain.row(link).unwrap());
            assert!(difference < TOLERANCE, "{name}: draft {link} of the chain differs by {difference}");
            assert_eq!(engine.read_drafted().unwrap(), drafted[link + 1]);
            all = all.max(difference);
        }
        all
    }

    #[test]
    fn draft_rows_and_chains_match_the_reference() {
        for name in ["qwen35", "qwen35-tied"] {
            let a = against_reference(name, 56, true);
            let b = against_reference(name, 20, true);
            assert!(a > 0.0 && b > 0.0);
            against_reference(name, 56, false);
            against_reference(name, 30, false);
            against_reference(name, 63, true);
        }
    }
}
