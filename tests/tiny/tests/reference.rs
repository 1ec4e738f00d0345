//! The 64-bit forward pass against the stored outputs of an independent one, and against itself on other files.

#![allow(clippy::unwrap_used)]

use ns_tiny::reference::{Drafted, Model, best};
use ns_tiny::{Draft, Expected, Fill, Layout, Storage, Types, Wanted, checkpoint, shape, write};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The stored values are 64-bit results rounded to 32 bits.
const ROUNDING: f64 = 1e-6;

fn file(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join("m.gguf");
    write(&Expected::load(name).unwrap().table, Storage::F32, &path).unwrap();
    path
}

fn worst(stored: &[f32], found: &[f64]) -> f64 {
    assert_eq!(stored.len(), found.len());
    let error = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() / b.abs().max(1.0);
    stored.iter().zip(found).map(error).fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

#[test]
fn every_stored_row_and_tap_is_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen35", "qwen35-tied"] {
        let (model, expected) = (Model::open(&file(name, folder.path()), None).unwrap(), Expected::load(name).unwrap());
        let (mut sequence, logits) = (model.sequence(), expected.output("logits").unwrap());
        let mut compared = 0;
        for (row, &token) in expected.tokens().iter().enumerate() {
            let mut taps = HashMap::new();
            let hidden = sequence
                .push_tapped(token, &mut |tap, layer, values| {
                    let layer = layer.map_or(String::new(), |l| format!("-{l}"));
                    taps.insert(format!("tap.{tap}{layer}"), values.to_vec());
                })
                .unwrap();
            let error = worst(logits.row(row).unwrap(), &model.logits(&hidden).unwrap());
            assert!(error < ROUNDING, "{name} row {row}: {error}");
            let Some(index) = expected.table.tap_rows.iter().position(|&r| r == row) else { continue };
            for output in expected.outputs().filter(|o| o.starts_with("tap.")) {
                let error = worst(expected.output(output).unwrap().row(index).unwrap(), &taps[output]);
                assert!(error < ROUNDING, "{name} {output} row {row}: {error}");
                compared += 1;
            }
        }
        assert_eq!(compared, if name == "qwen35" { 21 * 6 } else { 0 });
    }
}

#[test]
fn draft_rows_and_chains_are_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen35", "qwen35-tied"] {
        let (model, expected) = (Model::open(&file(name, folder.path()), None).unwrap(), Expected::load(name).unwrap());
        let mut drafted = Drafted::new(&model).unwrap();
        let (rows, chain) = (expected.output("draft.rows").unwrap(), expected.output("draft.chain").unwrap());
        let first = expected.tokens().len() - rows.shape[0];
        let mut hidden = Vec::new();
        for (i, &token) in expected.tokens().iter().enumerate() {
            let (draft, row) = drafted.push(token).unwrap();
            // the row made when token i is known is that of token i - 1
            if i > first {
                let error = worst(rows.row(i - 1 - first).unwrap(), &draft.unwrap());
                assert!(error < ROUNDING, "{name} draft row {}: {error}", i - 1);
            }
            hidden = row;
        }
        let mut tokens = vec![best(&model.logits(&hidden).unwrap())];
        // twice: the first chain must leave nothing behind
        for _ in 0..2 {
            tokens.truncate(1);
            for (step, logits) in drafted.chain(tokens[0], 3).unwrap().iter().enumerate() {
                let error = worst(chain.row(step).unwrap(), logits);
                assert!(error < ROUNDING, "{name} draft {step}: {error}");
                tokens.push(best(logits));
            }
            assert_eq!(tokens, expected.draft_tokens());
        }
    }
}

/// A draft block beside the model gives what one inside gives; and a model of several files what one file gives.
#[test]
fn places_of_the_draft_block_and_parts_make_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let table = shape("qwen35", "tiny", 5).unwrap();
    let inside = folder.path().join("inside.gguf");
    let (trunk, beside) = (folder.path().join("m.gguf"), Draft::beside(&folder.path().join("m.gguf")));
    // in one type: a mix counts the tensors of a file
    let layout = Layout { fill: Some(Fill::Blocks), ..Storage::IQ3_S.into() };
    write(&table, layout, &inside).unwrap();
    let parts = write(&table.without_draft(), Layout { parts: 3, ..layout }, &trunk).unwrap();
    write(&table.only_draft().unwrap(), layout, &beside).unwrap();
    let (one, two) = (Model::open(&inside, None).unwrap(), Model::open(&parts[0], Some(&beside)).unwrap());
    let run = |model| Drafted::new(model).unwrap().speculate(&table.tokens[..6], 8, 3).unwrap();
    assert_eq!(run(&one), run(&two));
    assert!(Drafted::new(&Model::open(&parts[0], None).unwrap()).is_err());
}

/// What `--fitted` promises: drafts that hit, though not all; and a text that is no plain repetition.
#[test]
fn drafts_of_a_fitted_model_hit() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = (0, 0, 0, 0);
    for (shape, types, seed) in [
        ("tiny", Types::Single(Storage::F32), 1),
        ("tiny", Types::Q4_K_M, 2),
        ("small", Types::Single(Storage::Q8_0), 3),
    ] {
        let table = checkpoint(Wanted { architecture: "qwen35", shape, seed, vocabulary: None, fitted: true }).unwrap();
        let path = folder.path().join("fitted.gguf");
        write(&table, types, &path).unwrap();
        let model = Model::open(&path, None).unwrap();
        let made = Drafted::new(&model).unwrap().speculate(&table.tokens[..24], 120, 3).unwrap();
        let rate = made.accepted as f64 / made.steps as f64;
        println!("{shape} {types:?} seed {seed}: {made:?}, {rate} accepted a step");
        // the text is that of the trunk alone
        let (mut sequence, mut hidden) = (model.sequence(), Vec::new());
        for &token in &table.tokens[..24] {
            hidden = sequence.push(token).unwrap();
        }
        for &token in &made.tokens {
            assert_eq!(best(&model.logits(&hidden).unwrap()), token);
            hidden = sequence.push(token).unwrap();
        }
        // of printable bytes and line feeds
        assert!(made.tokens.iter().all(|&t| t == 3 + 10 || (3 + 32..3 + 127).contains(&t)));
        let mut different = made.tokens.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 20, "{different:?}");
        all = (all.0 + made.accepted, all.1 + made.steps, all.2 + made.guessed, all.3 + made.tokens.len());
        assert!(rate > 1.8, "{shape} {types:?}: {rate} drafts accepted a step");
    }
    let (accepted, steps, guessed, tokens) = all;
    println!("{accepted} of {guessed} drafts accepted in {steps} steps of {tokens} tokens");
    assert!(accepted > 2 * steps, "{accepted} accepted in {steps} steps");
    // some are refused, or nothing would be tried
    assert!(accepted < guessed * 95 / 100, "{accepted} of {guessed} accepted");
}
