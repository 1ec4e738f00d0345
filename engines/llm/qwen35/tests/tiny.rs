//! The engine against float64 reference outputs of seeded models, and its own invariants. Runs on the CPU device, or on
//! the one that `NS_TEST_DEVICE` names.

// Helpers outside #[test] functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use common::{TOLERANCE, model, open, worst};
use ns_llm::{Engine, LoadOptions, Sampling, checks, sampler};
use ns_llm_qwen35::REGISTRATION;
use ns_tiny::Expected;

fn check_against_reference(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = model(name, &dir);
    let expected = Expected::load(name).unwrap();
    let mut engine = open(&path, &[("kv", "f32")], vec![128, 128]);
    let logits = expected.output("logits").unwrap();
    let n_vocab = engine.facts().n_vocab;
    let mut all = 0.0_f32;
    let mut close = |what: &str, got: &[f32], wanted: &[f32]| {
        let difference = worst(got, wanted);
        assert!(difference < TOLERANCE, "{name}: {what} differs by {difference}");
        all = all.max(difference);
    };

    // one pass over the whole prompt, with every tap
    let session = engine.open_session(128).unwrap();
    let mut taps = Vec::new();
    let rows = engine
        .forward_tapped(session, expected.tokens(), &mut |t| {
            let name = t.layer.map_or_else(|| t.name.to_owned(), |l| format!("{}-{l}", t.name));
            taps.push((name, t.columns, t.values.to_vec()));
        })
        .unwrap();
    for (row, got) in rows.chunks_exact(n_vocab).enumerate() {
        close(&format!("prompt row {row}"), got, logits.row(row).unwrap());
    }
    let mut compared = 0;
    let wanted_taps: Vec<&str> = expected.outputs().filter(|o| o.starts_with("tap.")).collect();
    for output in &wanted_taps {
        let found = taps.iter().find(|t| format!("tap.{}", t.0) == **output);
        let (_, columns, values) = found.unwrap_or_else(|| panic!("{name}: there is no {output}"));
        let wanted = expected.output(output).unwrap();
        for (index, row) in expected.table.tap_rows.iter().enumerate() {
            let got = &values[row * columns..(row + 1) * columns];
            close(&format!("{output} row {row}"), got, wanted.row(index).unwrap());
            compared += 1;
        }
    }
    assert_eq!(compared, wanted_taps.len() * expected.table.tap_rows.len());

    // one token at a time, by replayed graphs
    let single = engine.open_session(128).unwrap();
    for (row, &token) in expected.tokens().iter().enumerate() {
        let got = engine.forward_rows(single, &[token], 1).unwrap();
        close(&format!("decode row {row}"), &got, logits.row(row).unwrap());
    }
    println!("{name}: worst difference {all:e} over rows and {} taps", wanted_taps.len());
}

#[test]
fn own_head_matches_the_reference_on_every_row_and_tap() {
    check_against_reference("qwen35");
}

#[test]
fn tied_head_matches_the_reference_on_every_row() {
    check_against_reference("qwen35-tied");
}

#[test]
fn any_chunking_gives_the_same_text_and_close_logits() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let tokens = Expected::load("qwen35").unwrap().tokens().to_vec();
    let mut engine = open(&path, &[], vec![128]);
    let session = engine.open_session(128).unwrap();
    let whole = engine.feed(session, &tokens).unwrap();
    for size in [1, 2, 3, 7, 8, 9, 16, 33] {
        engine.reset(session).unwrap();
        for part in tokens.chunks(size) {
            engine.feed(session, part).unwrap();
        }
        let parts = engine.logits(session).unwrap();
        assert!(worst(&whole, &parts) < 1e-3, "chunks of {size} differ by {}", worst(&whole, &parts));
        assert_eq!(sampler::argmax(&whole), sampler::argmax(&parts), "chunks of {size}");
    }
}

#[test]
fn rows_together_equal_rows_alone_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35-tied", &dir);
    let tokens = Expected::load("qwen35-tied").unwrap().tokens().to_vec();
    let mut engine = open(&path, &[], vec![64; 9]);
    for rows in 1..=8 {
        for check in checks::verify_rows(engine.as_mut(), &tokens[..20], 3, rows).unwrap() {
            assert_eq!(check.max_difference, 0.0, "{rows} rows: {check:?}");
        }
        let prompts: Vec<Vec<u32>> = (0..rows).map(|i| tokens[i..i + 5 + 3 * i].to_vec()).collect();
        for check in checks::batch_rows(engine.as_mut(), &prompts, 4).unwrap() {
            assert_eq!(check.max_difference, 0.0, "{rows} conversations: {check:?}");
        }
    }
}

#[test]
fn saved_copied_and_rolled_back_sessions_go_on_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let tokens = Expected::load("qwen35").unwrap().tokens().to_vec();
    let mut engine = open(&path, &[], vec![64, 96, 80]);
    let a = engine.open_session(64).unwrap();
    engine.feed(a, &tokens[..21]).unwrap();
    let saved = engine.save(a).unwrap();
    let go_on = |engine: &mut dyn Engine, session| {
        let sampling = Sampling { seed: 7, repeat_penalty: 1.1, ..Sampling::default() };
        let mut decoder = engine.decoder(session, sampling, &tokens[..21], false).unwrap();
        let mut text = vec![decoder.pending];
        for _ in 0..12 {
            text.extend(engine.step(session, &mut decoder).unwrap());
        }
        text
    };
    let text = go_on(engine.as_mut(), a);

    let b = engine.open_session(96).unwrap();
    let mut stream = Vec::new();
    saved.write_to(&mut stream).unwrap();
    engine.restore(b, &ns_llm::Checkpoint::read_from(&mut stream.as_slice()).unwrap()).unwrap();
    assert_eq!(go_on(engine.as_mut(), b), text);

    let c = engine.open_session(80).unwrap();
    engine.restore(a, &saved).unwrap();
    engine.copy(c, a).unwrap();
    assert_eq!(go_on(engine.as_mut(), c), text);

    engine.restore(a, &saved).unwrap();
    engine.forward_rows(a, &tokens[21..26], 5).unwrap();
    engine.rollback(a, 2).unwrap();
    let rolled = engine.forward_rows(a, &[tokens[40]], 1).unwrap();
    engine.restore(a, &saved).unwrap();
    engine.forward_rows(a, &tokens[21..23], 1).unwrap();
    assert_eq!(engine.forward_rows(a, &[tokens[40]], 1).unwrap(), rolled);

    let mut foreign = saved.clone();
    foreign.fingerprint.push('x');
    assert_eq!(engine.restore(a, &foreign).unwrap_err().kind(), ns_llm::ErrorKind::Checkpoint);
    let mut short = saved.clone();
    short.state.pop();
    assert_eq!(engine.restore(a, &short).unwrap_err().kind(), ns_llm::ErrorKind::Checkpoint);

    // In pieces: the same bytes, the same continuation; a stream that breaks off leaves an empty session.
    engine.restore(a, &saved).unwrap();
    let mut pieces = Vec::new();
    engine.save_to(a, &mut pieces).unwrap();
    assert_eq!((pieces.len() as u64, &pieces), (engine.state_bytes(a).unwrap(), &saved.state));
    engine.restore_from(b, &saved.head(), &mut pieces.as_slice()).unwrap();
    assert_eq!(go_on(engine.as_mut(), b), text);
    for cut in [4, 20, pieces.len() / 2, pieces.len() - 1] {
        let broken = engine.restore_from(b, &saved.head(), &mut &pieces[..cut]);
        assert_eq!(broken.unwrap_err().kind(), ns_llm::ErrorKind::Checkpoint, "{cut}");
    }
    assert_eq!(engine.position(b).unwrap(), 0);
    engine.feed(b, &tokens[..21]).unwrap();
    assert_eq!(go_on(engine.as_mut(), b), text);
}

#[test]
fn wrong_calls_are_errors_that_change_nothing() {
    use ns_llm::ErrorKind;
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let mut engine = open(&path, &[], vec![32]);
    let session = engine.open_session(20).unwrap();
    let kind = |r: ns_llm::Result<Vec<f32>>| r.unwrap_err().kind();
    assert_eq!(kind(engine.logits(session)), ErrorKind::Usage);
    assert_eq!(kind(engine.feed(session, &[5, 320])), ErrorKind::Token);
    assert_eq!(kind(engine.feed(session, &[5; 21])), ErrorKind::ContextFull);
    assert_eq!(kind(engine.forward_rows(session, &[], 0)), ErrorKind::Usage);
    assert_eq!(kind(engine.forward_rows(session, &[5], 2)), ErrorKind::Usage);
    assert_eq!(kind(engine.forward_batch(&[(session, 5), (session, 6)])), ErrorKind::Usage);
    assert_eq!(engine.position(session).unwrap(), 0);
    assert_eq!(engine.open_session(20).unwrap_err().kind(), ErrorKind::Session);
    engine.close_session(session).unwrap();
    assert_eq!(kind(engine.feed(session, &[5])), ErrorKind::Session);
    let again = engine.open_session(32).unwrap();
    engine.feed(again, &[5; 32]).unwrap();
    assert_eq!(kind(engine.forward_rows(again, &[5], 1)), ErrorKind::ContextFull);
}

#[test]
fn memory_for_experts_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let load = LoadOptions { expert_bytes: Some(1 << 30), ..LoadOptions::single("cpu", 16) };
    let Err(error) = (REGISTRATION.load)(&path, &load, &mut |_, _| {}) else { panic!("it was ignored") };
    assert_eq!(error.kind(), ns_llm::ErrorKind::Option);
    assert!(error.to_string().contains("--expert-gib"), "{error}");
}

#[test]
fn every_decode_kernel_matches_the_exact_path() {
    let dir = tempfile::tempdir().unwrap();
    for storage in ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q6_K", "Q4_K"] {
        let path = dir.path().join(format!("{storage}.gguf"));
        let table = Expected::load("qwen35").unwrap().table;
        ns_tiny::write(&table, ns_tiny::Storage::named(storage).unwrap(), &path).unwrap();
        let mut engine = open(&path, &[], vec![32]);
        let results = engine.check_kernels().unwrap();
        assert!(results.len() >= 10);
        for check in results {
            assert!(check.error < check.bound, "{storage}: {check:?}");
        }
    }
}

/// What llama.cpp's own generator adds to its files: factors of matrices, biases, a classifier's head.
#[test]
fn factors_and_biases_are_computed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let expected = Expected::load("qwen35").unwrap();
    let logits = |table: &ns_tiny::Table| {
        let path = dir.path().join("model.gguf");
        common::write(table, "F32", &path);
        let mut engine = open(&path, &[], vec![64]);
        let session = engine.open_session(64).unwrap();
        engine.feed(session, &expected.tokens()[..24]).unwrap();
        engine.forward_rows(session, &expected.tokens()[24..27], 3).unwrap()
    };
    let with = |added: &[(&str, u64, f64, f64)]| {
        let mut table = expected.table.clone();
        for (name, len, mean, std) in added {
            table.tensors.push((name.to_string(), vec![*len], *mean, *std).into());
        }
        table
    };
    let plain = logits(&expected.table);
    let factors = ["attn_qkv", "ffn_down", "ssm_beta"].map(|role| format!("blk.1.{role}.scale"));
    let scaled = with(&factors.each_ref().map(|name| (name.as_str(), 1, 0.5, 0.0)));
    let mut halved = expected.table.clone();
    for tensor in &mut halved.tensors {
        if factors.iter().any(|f| tensor.name == f.replace(".scale", ".weight")) {
            tensor.std *= 0.5;
        }
    }
    let half = logits(&halved);
    assert_ne!(half, plain);
    assert_eq!(logits(&scaled), half);

    let biases = |std| {
        with(&[
            ("blk.3.attn_q.bias", 2048, 0.0, std),
            ("blk.3.attn_v.bias", 512, 0.0, std),
            ("blk.0.ffn_up.input_scale", 1, 0.3, 0.0),
            ("cls.output.bias", 256, 0.1, 0.1),
        ])
    };
    assert_eq!(logits(&biases(0.0)), plain);
    assert!(worst(&logits(&biases(0.3)), &plain) > 1e-3);

    let refused = |table: &ns_tiny::Table, storage: &str| {
        let path = dir.path().join("refused.gguf");
        common::write(table, storage, &path);
        let Err(error) = (REGISTRATION.info)(&path) else { panic!("it was taken") };
        error.to_string()
    };
    assert!(refused(&scaled, "F16").contains("scales matrices of F32 only"));
    assert!(refused(&with(&[("blk.0.ffn_up.bias", 384, 0.0, 0.1)]), "F32").contains("not part of"));
    assert!(refused(&with(&[("blk.3.attn_k.bias", 96, 0.0, 0.1)]), "F32").contains("512 values"));
}
