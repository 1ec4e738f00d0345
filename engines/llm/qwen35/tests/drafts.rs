//! Drafts at work: the text is what it is without them, whatever they propose. Runs on the CPU device, or on the one that
//! `NS_TEST_DEVICE` names.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{fitted, model, open, write};
use ns_llm::{Decoder, Engine, Sampling, SessionId, TokenScores, checks};
use ns_tiny::{Draft, Expected};

const PROMPT: [u32; 24] =
    [70, 103, 111, 111, 114, 35, 119, 107, 104, 117, 104, 47, 35, 122, 100, 105, 102, 107, 60, 80, 90, 100, 110, 120];

struct Text {
    tokens: Vec<u32>,
    scores: Vec<TokenScores>,
    steps: usize,
    proposed: u64,
    accepted: u64,
}

/// `count` tokens or a few more behind what the session has read.
fn go_on(engine: &mut dyn Engine, session: SessionId, sampling: &Sampling, count: usize, draft: bool) -> Text {
    let mut decoder = engine.decoder(session, sampling.clone(), &PROMPT, draft).unwrap();
    let mut text =
        Text { tokens: vec![decoder.pending], scores: decoder.scores.clone(), steps: 0, proposed: 0, accepted: 0 };
    while text.tokens.len() < count {
        let got = engine.step(session, &mut decoder).unwrap();
        assert_eq!(got.last(), Some(&decoder.pending));
        assert_eq!(decoder.scores.len(), if sampling.logprobs.is_some() { got.len() } else { 0 });
        text.scores.extend(decoder.scores.iter().cloned());
        text.tokens.extend(got);
        text.steps += 1;
        assert_eq!(engine.position(session).unwrap(), PROMPT.len() + text.tokens.len() - 1);
    }
    (text.proposed, text.accepted) = (decoder.drafts_proposed, decoder.drafts_accepted);
    text.tokens.truncate(count);
    text.scores.truncate(count);
    text
}

fn text(engine: &mut dyn Engine, sampling: &Sampling, draft: bool) -> Text {
    let session = engine.open_session(128).unwrap();
    engine.feed(session, &PROMPT).unwrap();
    let text = go_on(engine, session, sampling, 40, draft);
    engine.close_session(session).unwrap();
    text
}

#[test]
fn greedy_text_is_the_same_and_comes_in_fewer_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let plain = text(open(&path, &[("drafts", "0")], vec![128]).as_mut(), &Sampling::greedy(), true);
    assert_eq!((plain.steps, plain.proposed), (39, 0));
    for drafts in [1, 2, 3, 7] {
        let mut engine = open(&path, &[("drafts", &drafts.to_string())], vec![128]);
        assert!(engine.facts().draft);
        let drafted = text(engine.as_mut(), &Sampling::greedy(), true);
        assert_eq!(drafted.tokens, plain.tokens, "{drafts} drafts");
        assert!(drafted.steps * 3 < plain.steps * 2, "{drafts} drafts: {} steps", drafted.steps);
        let without = text(engine.as_mut(), &Sampling::greedy(), false);
        assert_eq!((without.tokens, without.steps), (plain.tokens.clone(), 39));
    }
}

#[test]
fn sampled_text_follows_the_seed_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let mut engines: Vec<_> = ["1", "3", "7"].map(|n| open(&path, &[("drafts", n)], vec![128])).into();
    let mut kept = 0;
    let mut texts = Vec::new();
    for seed in 0..4 {
        let sampling = Sampling {
            temperature: 0.8,
            seed,
            repeat_penalty: if seed % 2 == 0 { 1.0 } else { 1.2 },
            penalty_window: 20,
            logprobs: (seed % 3 == 0).then_some(2),
            ..Sampling::default()
        };
        let plain = text(engines[0].as_mut(), &sampling, false);
        for engine in &mut engines {
            let drafted = text(engine.as_mut(), &sampling, true);
            assert_eq!(drafted.tokens, plain.tokens, "seed {seed}");
            assert_eq!(drafted.scores, plain.scores, "seed {seed}");
            assert!(drafted.proposed > 0);
            kept += drafted.accepted;
        }
        texts.push(plain.tokens);
    }
    assert!(kept > 0);
    texts.dedup();
    assert!(texts.len() > 1, "the seed changes nothing");
}

#[test]
fn speculative_sampling_follows_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let mut engine = open(&path, &[("draft-sampling", "speculative")], vec![128, 128]);
    let mut kept = 0;
    for seed in 0..4 {
        let sampling = Sampling { temperature: 0.9, seed, ..Sampling::default() };
        let once = text(engine.as_mut(), &sampling, true);
        let again = text(engine.as_mut(), &sampling, true);
        assert_eq!((&once.tokens, once.accepted), (&again.tokens, again.accepted));
        kept += once.accepted;
    }
    assert!(kept > 0);
    let greedy = text(engine.as_mut(), &Sampling::greedy(), true);
    assert_eq!(greedy.tokens, text(engine.as_mut(), &Sampling::greedy(), false).tokens);
}

#[test]
fn a_draft_block_beside_the_model_is_found_and_does_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let table = fitted();
    let (inside, beside) = (dir.path().join("inside.gguf"), dir.path().join("beside.gguf"));
    write(&table, "F32", &inside);
    write(&table.without_draft(), "F32", &beside);
    let alone = open(&beside, &[], vec![128]);
    assert!(!alone.facts().draft);
    write(&table.only_draft().unwrap(), "F32", &Draft::beside(&beside));
    let (mut one, mut two) = (open(&inside, &[], vec![128]), open(&beside, &[], vec![128]));
    assert!(two.facts().draft);
    let sampling = Sampling { seed: 5, ..Sampling::default() };
    let (a, b) = (text(one.as_mut(), &sampling, true), text(two.as_mut(), &sampling, true));
    assert_eq!((a.tokens, a.proposed, a.accepted), (b.tokens, b.proposed, b.accepted));

    // by name, from elsewhere
    let elsewhere = dir.path().join("sub/draft.gguf");
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::rename(Draft::beside(&beside), &elsewhere).unwrap();
    assert!(!open(&beside, &[], vec![128]).facts().draft);
    let named = open(&beside, &[("mtp", elsewhere.to_str().unwrap())], vec![128]);
    assert!(named.facts().draft);

    let refused = |path: &std::path::Path, options: &[(&str, &str)]| {
        let load = common::load_options(options, 1, vec![128]);
        let Err(error) = (ns_llm_qwen35::REGISTRATION.load)(path, &load, &mut |_, _| {}) else {
            panic!("it was taken")
        };
        error.to_string()
    };
    assert!(refused(&elsewhere, &[]).contains("draft block only"), "{}", refused(&elsewhere, &[]));
    assert!(refused(&inside, &[("mtp", elsewhere.to_str().unwrap())]).contains("of its own"));
    let other = model("qwen35-tied", &dir);
    assert!(refused(&other, &[("mtp", elsewhere.to_str().unwrap())]).contains("of its own"));
    assert!(refused(&beside, &[("mtp", other.to_str().unwrap())]).contains("other dimensions"));
}

/// A conversation that drafts alone, decodes beside others for a while, is saved, copied and restored: one text.
#[test]
fn drafts_come_and_go_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let mut engine = open(&path, &[], vec![128, 128, 64]);
    for sampling in [Sampling::greedy(), Sampling { seed: 9, ..Sampling::default() }] {
        let wanted = text(engine.as_mut(), &sampling, false).tokens;
        let (a, b) = (engine.open_session(128).unwrap(), engine.open_session(128).unwrap());
        let other = engine.open_session(64).unwrap();
        engine.feed(a, &PROMPT).unwrap();
        engine.feed(other, &PROMPT[..9]).unwrap();
        let mut decoder = engine.decoder(a, sampling.clone(), &PROMPT, true).unwrap();
        let mut second = engine.decoder(other, Sampling::greedy(), &PROMPT[..9], true).unwrap();
        let mut got = vec![decoder.pending];
        let mut session = a;
        let mut round = 0;
        while got.len() < wanted.len() {
            match round % 5 {
                0 | 1 => got.extend(engine.step(session, &mut decoder).unwrap()),
                2 => {
                    for _ in 0..1 + round / 5 * 4 {
                        let rows: &mut [(SessionId, &mut Decoder)] =
                            &mut [(other, &mut second), (session, &mut decoder)];
                        got.push(engine.step_batch(rows).unwrap()[1]);
                    }
                }
                3 => {
                    let saved = engine.save(session).unwrap();
                    engine.reset(session).unwrap();
                    engine.feed(session, &PROMPT).unwrap();
                    engine.restore(session, &saved).unwrap();
                }
                _ => {
                    let to = if session == a { b } else { a };
                    engine.copy(to, session).unwrap();
                    engine.reset(session).unwrap();
                    session = to;
                }
            }
            round += 1;
        }
        got.truncate(wanted.len());
        assert_eq!(got, wanted);
        assert!(decoder.drafts_accepted > 0);
        for id in [a, b, other] {
            engine.close_session(id).unwrap();
        }
    }
}

#[test]
fn drafts_stop_at_the_end_of_the_context() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let mut engine = open(&path, &[("drafts", "7")], vec![48]);
    for limit in 33..=40 {
        let session = engine.open_session(limit).unwrap();
        engine.feed(session, &PROMPT).unwrap();
        let mut decoder = engine.decoder(session, Sampling::greedy(), &PROMPT, true).unwrap();
        while engine.position(session).unwrap() < limit {
            engine.step(session, &mut decoder).unwrap();
        }
        assert!(engine.step(session, &mut decoder).unwrap_err().is_context_full());
        engine.close_session(session).unwrap();
    }
}

/// Rows of verify passes are exact behind drafts too, in every precision of the cache.
#[test]
fn verify_rows_are_exact_in_every_precision() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let expected = Expected::load("qwen35").unwrap();
    let tokens = expected.tokens();
    let logits = expected.output("logits").unwrap();
    for (kv, bound) in [("f32", 5e-5), ("f16", 2e-2), ("q8", 1e-1)] {
        let mut engine = open(&path, &[("kv", kv)], vec![128; 5]);
        let session = engine.open_session(128).unwrap();
        let last = engine.feed(session, tokens).unwrap();
        let difference = common::worst(&last, logits.row(tokens.len() - 1).unwrap());
        assert!(difference < bound, "{kv}: {difference}");
        assert!(kv == "f32" || difference > 5e-5, "{kv} is no rounding: {difference}");
        engine.close_session(session).unwrap();
        for rows in [2, 3, 5, 8] {
            for check in checks::verify_rows(engine.as_mut(), &tokens[..20], 3, rows).unwrap() {
                assert_eq!(check.max_difference, 0.0, "{kv}, {rows} rows: {check:?}");
            }
        }
        let prompts: Vec<Vec<u32>> = (0..5).map(|i| tokens[i..i + 5 + 7 * i].to_vec()).collect();
        for check in checks::batch_rows(engine.as_mut(), &prompts, 4).unwrap() {
            assert_eq!(check.max_difference, 0.0, "{kv}: {check:?}");
        }
    }
}
