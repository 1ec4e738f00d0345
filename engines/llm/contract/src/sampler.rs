//! The sampler on the host: the reference the device kernels are compared with, and the path for log-probabilities.
//!
//! Everything is float32 in list order, as on the device.

use crate::{Sampling, TokenLogprob, TokenScores, philox};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Most candidates a draw considers.
pub const MAX_CANDIDATES: usize = 256;

/// The likeliest token, the lowest id on ties. NaN is never chosen; 0 when nothing else is left.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0_usize);
    for (id, &value) in logits.iter().enumerate() {
        if value > best.0 {
            best = (value, id);
        }
    }
    best.1 as u32
}

/// Applies the penalties for the tokens of a window (with repeats) to a logits row.
pub fn penalize(logits: &mut [f32], sampling: &Sampling, window: impl IntoIterator<Item = u32>) {
    if !sampling.has_penalties() {
        return;
    }
    let mut counts: HashMap<u32, u32> = HashMap::new();
    for token in window {
        *counts.entry(token).or_default() += 1;
    }
    for (token, count) in counts {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit > 0.0 { *logit / sampling.repeat_penalty } else { *logit * sampling.repeat_penalty };
            *logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
        }
    }
}

fn better(a: (f32, u32), b: (f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// The `k` largest values with their ids: value descending, lower id first on ties; NaN and -inf never.
pub fn top_k(logits: &[f32], k: usize) -> Vec<(f32, u32)> {
    let mut list: Vec<(f32, u32)> = Vec::with_capacity(2 * k + 1);
    let mut bound = f32::NEG_INFINITY;
    for (id, &value) in logits.iter().enumerate() {
        if value > bound {
            list.push((value, id as u32));
            if list.len() > 2 * k {
                list.select_nth_unstable_by(k - 1, |a, b| better(*a, *b));
                list.truncate(k);
                bound = list[k - 1].0;
            }
        }
    }
    list.sort_unstable_by(|a, b| better(*a, *b));
    list.truncate(k);
    list
}

/// Weights of the candidates that top-p and min-p keep, relative to the likeliest; `candidates` sorted by [`top_k`].
fn kept_weights(candidates: &[(f32, u32)], sampling: &Sampling) -> Vec<f32> {
    let max = candidates.first().map_or(0.0, |c| c.0);
    let mut weights: Vec<f32> = candidates.iter().map(|&(v, _)| ((v - max) / sampling.temperature).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut kept = 0;
    let mut sum = 0.0_f32;
    while kept < weights.len() {
        sum += weights[kept];
        kept += 1;
        if sum >= sampling.top_p * total {
            break;
        }
    }
    if sampling.min_p > 0.0 {
        // weights are descending, the first is 1
        while kept > 1 && weights[kept - 1] < sampling.min_p {
            kept -= 1;
        }
    }
    weights.truncate(kept);
    weights
}

/// Draws a token from a list sorted by [`top_k`] with the uniform `u` in [0, 1).
pub fn draw(candidates: &[(f32, u32)], sampling: &Sampling, u: f32) -> u32 {
    let Some(&(_, first)) = candidates.first() else { return 0 };
    if sampling.is_greedy() {
        return first;
    }
    let weights = kept_weights(candidates, sampling);
    let kept_total: f32 = weights.iter().sum();
    let mut cumulative = 0.0_f32;
    for (weight, &(_, id)) in weights.iter().zip(candidates) {
        cumulative += weight;
        if cumulative > u * kept_total {
            return id;
        }
    }
    candidates[weights.len() - 1].1
}

/// What [`sample`] draws from: tokens with their probabilities, likeliest first. Greedy sampling has one.
pub fn distribution(logits: &[f32], sampling: &Sampling, window: impl IntoIterator<Item = u32>) -> Vec<(u32, f32)> {
    let mut row = logits.to_vec();
    penalize(&mut row, sampling, window);
    if sampling.is_greedy() {
        return vec![(argmax(&row), 1.0)];
    }
    let candidates = top_k(&row, candidates_kept(sampling));
    let weights = kept_weights(&candidates, sampling);
    let total: f32 = weights.iter().sum();
    weights.iter().zip(&candidates).map(|(weight, &(_, id))| (id, weight / total)).collect()
}

/// Draws from weights that need not sum to 1, with the uniform `u` in [0, 1); 0 from an empty list.
pub fn draw_from(weights: &[(u32, f32)], u: f32) -> u32 {
    let total: f32 = weights.iter().map(|w| w.1).sum();
    let mut cumulative = 0.0_f32;
    for &(id, weight) in weights {
        cumulative += weight;
        if cumulative > u * total {
            return id;
        }
    }
    weights.last().map_or(0, |w| w.0)
}

/// Speculative sampling of one token: `draft` was drawn from `from`; what is returned follows `target`. The draft is kept with
/// probability `target(draft) / from(draft)`, decided by `accept`; else the token comes from what `target` has more than `from`,
/// drawn with `redraw`. Tells whether the draft was kept.
pub fn accept_or_redraw(
    target: &[(u32, f32)],
    from: &[(u32, f32)],
    draft: u32,
    accept: f32,
    redraw: f32,
) -> (u32, bool) {
    let probability = |list: &[(u32, f32)], id| list.iter().find(|e| e.0 == id).map_or(0.0, |e| e.1);
    let (wanted, given) = (probability(target, draft), probability(from, draft));
    if accept * given < wanted {
        return (draft, true);
    }
    let given: HashMap<u32, f32> = from.iter().copied().collect();
    let rest: Vec<(u32, f32)> = target
        .iter()
        .map(|&(id, p)| (id, (p - given.get(&id).copied().unwrap_or(0.0)).max(0.0)))
        .filter(|e| e.1 > 0.0)
        .collect();
    // nothing is left only where rounding made two equal lists differ
    (draw_from(if rest.is_empty() { target } else { &rest }, redraw), false)
}

fn candidates_kept(sampling: &Sampling) -> usize {
    if sampling.top_k == 0 { MAX_CANDIDATES } else { (sampling.top_k as usize).min(MAX_CANDIDATES) }
}

/// The token after `position` tokens, from one row of logits.
pub fn sample(logits: &[f32], sampling: &Sampling, window: impl IntoIterator<Item = u32>, position: u64) -> u32 {
    if sampling.is_greedy() && !sampling.has_penalties() {
        return argmax(logits);
    }
    let mut row;
    let logits = if sampling.has_penalties() {
        row = logits.to_vec();
        penalize(&mut row, sampling, window);
        &row
    } else {
        logits
    };
    if sampling.is_greedy() {
        return argmax(logits);
    }
    draw(&top_k(logits, candidates_kept(sampling)), sampling, philox::uniform(sampling.seed, position, 0))
}

/// Log-probabilities of a drawn token and of the `top` likeliest, from the raw logits.
pub fn scores(logits: &[f32], token: u32, top: usize) -> TokenScores {
    let max = logits.iter().copied().filter(|v| !v.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().filter(|v| !v.is_nan()).map(|&v| f64::from(v - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    let logprob = |value: f32| (f64::from(value) - log_sum) as f32;
    let chosen = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&v| logprob(v));
    TokenScores {
        chosen: TokenLogprob { token, logprob: chosen },
        top: if top == 0 {
            Vec::new()
        } else {
            top_k(logits, top).into_iter().map(|(v, id)| TokenLogprob { token: id, logprob: logprob(v) }).collect()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_and_nan() {
        assert_eq!(argmax(&[f32::NAN, 1.0, 3.0, 3.0]), 2);
        assert_eq!(top_k(&[2.0, f32::NAN, 3.0, 3.0, f32::NEG_INFINITY], 4), vec![(3.0, 2), (3.0, 3), (2.0, 0)]);
    }

    #[test]
    fn min_p_top_p_and_top_k_cut() {
        let logits = [3.0_f32, 2.0, 1.0, -20.0];
        let only = |s: Sampling, u| draw(&top_k(&logits, 256), &s, u);
        let base = Sampling { top_p: 1.0, ..Sampling::default() };
        assert_eq!(only(base.clone(), 0.999_999), 2);
        assert_eq!(only(Sampling { top_p: 0.5, ..base.clone() }, 0.999_999), 0);
        assert_eq!(only(Sampling { min_p: 0.3, ..base.clone() }, 0.999_999), 1);
        assert_eq!(sample(&logits, &Sampling { top_k: 1, ..base }, [], 5), 0);
    }

    #[test]
    fn penalties_move_the_choice() {
        let logits = [1.0_f32, 1.1, -1.0];
        let s = Sampling { repeat_penalty: 1.5, ..Sampling::greedy() };
        assert_eq!(sample(&logits, &s, [1], 0), 0);
        let s = Sampling { frequency_penalty: 0.06, ..Sampling::greedy() };
        assert_eq!(sample(&logits, &s, [1], 0), 1);
        assert_eq!(sample(&logits, &s, [1, 1], 0), 0);
        let s = Sampling { presence_penalty: 0.2, ..Sampling::greedy() };
        assert_eq!(sample(&logits, &s, [1], 0), 0);
    }

    /// Chi-square of 20,000 draws against softmax probabilities; 99.9 % quantile for 4 degrees of freedom is 18.5.
    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.5_f32, 1.5, -0.3, 0.0, 0.9];
        let s = Sampling { temperature: 0.8, top_p: 1.0, seed: 11, ..Sampling::default() };
        let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l / 0.8).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut seen = [0_u32; 5];
        for position in 0..20_000 {
            seen[sample(&logits, &s, [], position) as usize] += 1;
        }
        let chi: f64 = weights
            .iter()
            .zip(seen)
            .map(|(w, n)| (f64::from(n) - w / total * 20_000.0).powi(2) / (w / total * 20_000.0))
            .sum();
        assert!(chi < 18.5, "chi-square {chi}, counts {seen:?}");
    }

    /// The distribution is what [`sample`] draws from, and speculative sampling from any other one gives it too: chi-square of
    /// 20,000 draws; the 99.9 % quantile for 4 degrees of freedom is 18.5.
    #[test]
    fn speculative_draws_follow_the_target() {
        let settings = Sampling { temperature: 0.7, top_p: 1.0, seed: 3, ..Sampling::default() };
        let target = distribution(&[0.5, 1.5, -0.3, 0.0, 0.9], &settings, []);
        let from = distribution(&[1.5, 0.2, f32::NEG_INFINITY, 0.4, 0.1], &settings, []);
        assert!((target.iter().map(|e| e.1).sum::<f32>() - 1.0).abs() < 1e-6);
        for position in 0..200 {
            let u = philox::uniform(settings.seed, position, 0);
            assert_eq!(sample(&[0.5, 1.5, -0.3, 0.0, 0.9], &settings, [], position), draw_from(&target, u));
        }
        let (mut seen, mut kept) = ([0_u32; 5], 0);
        for position in 0..20_000 {
            let u = |stream| philox::uniform(settings.seed, position, stream);
            let (token, was_kept) = accept_or_redraw(&target, &from, draw_from(&from, u(1)), u(2), u(3));
            seen[token as usize] += 1;
            kept += u32::from(was_kept);
        }
        let chi: f64 = target
            .iter()
            .map(|&(id, p)| (f64::from(seen[id as usize]) - f64::from(p) * 2e4).powi(2) / (f64::from(p) * 2e4))
            .sum();
        assert!(chi < 18.5, "chi-square {chi}, counts {seen:?}");
        let overlap: f32 =
            target.iter().map(|&(id, p)| p.min(from.iter().find(|e| e.0 == id).map_or(0.0, |e| e.1))).sum();
        assert!((kept as f32 / 2e4 - overlap).abs() < 0.02, "{kept} kept, {overlap} expected");
    }

    #[test]
    fn equal_distributions_always_keep_the_draft() {
        let list = [(4, 0.5), (2, 0.3), (9, 0.2)];
        for u in 0..50 {
            let u = u as f32 / 50.0;
            assert_eq!(accept_or_redraw(&list, &list, draw_from(&list, u), u, 0.5), (draw_from(&list, u), true));
        }
        assert_eq!(accept_or_redraw(&[(1, 1.0)], &[(2, 1.0)], 2, 0.0, 0.9), (1, false));
    }

    proptest! {
        #[test]
        fn top_k_equals_a_full_sort(values in prop::collection::vec(-3..3_i8, 1..700), k in 1..300_usize) {
            let logits: Vec<f32> = values.iter().map(|&v| f32::from(v)).collect();
            let mut all: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
            all.sort_by(|a, b| better(*a, *b));
            all.truncate(k);
            prop_assert_eq!(top_k(&logits, k), all);
        }
    }
}
