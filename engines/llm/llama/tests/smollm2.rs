//! The default model's real weights against a float64 forward pass of the same file (tests/reference/forward.py). The
//! file is the one in `NS_BUNDLED`, as `build.sh test` sets it.

// Helpers outside #[test] functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ns_llm::{Engine, LoadOptions, Sampling, sampler};
use std::path::PathBuf;

/// "The capital of France is"
const PROMPT: [u32; 5] = [504, 3575, 282, 4649, 314];

fn open() -> Box<dyn Engine> {
    let folder = std::env::var("NS_BUNDLED").expect("NS_BUNDLED names the folder of the bundled model");
    let path = PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let device = std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    (ns_llm_llama::REGISTRATION.load)(&path, &LoadOptions::single(&device, 512), &mut |_, _| {}).unwrap()
}

#[test]
fn last_row_and_greedy_text_match_the_reference() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/llm/smollm2-capital.f32");
    let bytes = std::fs::read(fixture).unwrap();
    let wanted: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let mut engine = open();
    let session = engine.open_session(64).unwrap();
    let got = engine.feed(session, &PROMPT).unwrap();
    assert_eq!(got.len(), wanted.len());
    let worst = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("largest difference of a logit: {worst}");
    assert!(worst < 2e-2, "largest difference {worst}");
    let ids = |row: &[f32]| sampler::top_k(row, 5).into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    assert_eq!(ids(&got), ids(&wanted));
    assert_eq!(ids(&got), [7042, 260, 4528, 2250, 1315]);

    let mut decoder = engine.decoder(session, Sampling::greedy(), &PROMPT, false).unwrap();
    let mut text = vec![decoder.pending];
    for _ in 0..15 {
        text.extend(engine.step(session, &mut decoder).unwrap());
    }
    assert_eq!(text, [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33]);
}

#[test]
fn a_long_prompt_in_chunks_is_close_to_one_token_at_a_time() {
    let mut engine = open();
    let prompt: Vec<u32> = (0..300_u32).map(|i| 1000 + (i * 7919) % 40_000).collect();
    let chunked = engine.open_session(310).unwrap();
    let whole = engine.feed(chunked, &prompt).unwrap();
    engine.close_session(chunked).unwrap();
    let single = engine.open_session(310).unwrap();
    for token in &prompt {
        engine.forward_rows(single, &[*token], 1).unwrap();
    }
    let alone = engine.logits(single).unwrap();
    let worst = whole.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("largest difference of a logit: {worst}");
    assert!(worst < 1e-3, "largest difference {worst}");
    assert_eq!(sampler::argmax(&whole), sampler::argmax(&alone));
}
