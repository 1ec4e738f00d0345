//! The state of one answer being decoded.

use std::collections::VecDeque;

/// How tokens are drawn. The order is: penalties, top-k, temperature, top-p, min-p, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 or less takes the likeliest token.
    pub temperature: f32,
    /// Smallest set of the likeliest tokens whose probability reaches it; 1 keeps all.
    pub top_p: f32,
    /// Tokens kept before the temperature; 0 keeps the 256 likeliest, which is also the most.
    pub top_k: u32,
    /// Drops tokens less likely than this share of the likeliest; 0 drops none.
    pub min_p: f32,
    /// Divides (positive) or multiplies (negative) the logit of tokens in the window; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once for every time a token is in the window.
    pub frequency_penalty: f32,
    /// Subtracted once for a token in the window.
    pub presence_penalty: f32,
    /// Tokens the penalties look back on.
    pub penalty_window: usize,
    /// Key of the draws; text depends on it and the prompt alone.
    pub seed: u64,
    /// Reports this many alternatives with each token's log-probability.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 0.95,
            top_k: 0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether no randomness is left.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Whether past tokens change the logits.
    pub fn has_penalties(&self) -> bool {
        self.penalty_window > 0
            && (self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0)
    }
}

/// A token with the logarithm of its probability under the raw logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Log-softmax of the raw logits, before penalties and temperature.
    pub logprob: f32,
}

/// Log-probabilities of one drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenScores {
    /// The token drawn.
    pub chosen: TokenLogprob,
    /// The likeliest tokens, most likely first.
    pub top: Vec<TokenLogprob>,
}

/// One answer being decoded: its settings, the token drawn but not yet in the session, and counters.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Drawn, not yet read by the model.
    pub pending: u32,
    /// Log-probabilities of the tokens returned by the last step, when asked for.
    pub scores: Vec<TokenScores>,
    /// Draft tokens proposed.
    pub drafts_proposed: u64,
    /// Draft tokens accepted.
    pub drafts_accepted: u64,
    /// Whether drafts may be used.
    pub draft: bool,
    window: VecDeque<u32>,
}

impl Decoder {
    /// A decoder with a token drawn already; `history` ends before it.
    pub fn new(sampling: Sampling, history: &[u32], pending: u32, draft: bool) -> Self {
        let keep = if sampling.has_penalties() { sampling.penalty_window } else { 0 };
        let mut window: VecDeque<u32> = history[history.len().saturating_sub(keep)..].iter().copied().collect();
        if keep > 0 {
            window.push_back(pending);
            if window.len() > keep {
                window.pop_front();
            }
        }
        Self { sampling, pending, scores: Vec::new(), drafts_proposed: 0, drafts_accepted: 0, draft, window }
    }

    /// Makes `token` the pending one and remembers it for the penalties.
    pub fn push(&mut self, token: u32) {
        self.pending = token;
        if self.sampling.has_penalties() {
            self.window.push_back(token);
            while self.window.len() > self.sampling.penalty_window {
                self.window.pop_front();
            }
        }
    }

    /// Takes the pending token and drops drafts, so that the answer can go on in a batch.
    pub fn without_drafts(&mut self) {
        self.draft = false;
    }

    /// Tokens the penalties look at, oldest first.
    pub fn window(&self) -> impl Iterator<Item = u32> + '_ {
        self.window.iter().copied()
    }
}
