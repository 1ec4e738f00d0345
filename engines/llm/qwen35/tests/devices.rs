//! A model over several devices: the same tokens as on one, the memory as planned.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{device, fitted, load_options, model, open, write};
use ns_llm::{Engine, ErrorKind, Sampling};
use ns_llm_qwen35::REGISTRATION;
use ns_tiny::Expected;
use std::path::Path;

fn open_two(path: &Path, options: &[(&str, &str)], contexts: Vec<usize>) -> Box<dyn Engine> {
    (REGISTRATION.load)(path, &load_options(options, 2, contexts), &mut |_, _| {}).unwrap()
}

#[test]
fn two_devices_give_the_bits_of_one() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["qwen35", "qwen35-tied"] {
        let path = model(name, &dir);
        let tokens = Expected::load(name).unwrap().tokens().to_vec();
        let mut one = open(&path, &[("chunk", "16")], vec![128, 128]);
        let a = one.open_session(100).unwrap();
        let alone = one.feed(a, &tokens).unwrap();
        let row = one.forward_rows(a, &tokens[3..6], 3).unwrap();
        let saved = one.save(a).unwrap();
        for split in ["1", "2", "3"] {
            let mut two = open_two(&path, &[("chunk", "16"), ("split", split)], vec![128, 128]);
            let split: usize = split.parse().unwrap();
            let layers: Vec<_> = two.devices().iter().map(|d| d.layers).collect();
            assert_eq!(layers, [(0, split), (split, 4)]);
            let b = two.open_session(100).unwrap();
            assert_eq!(two.feed(b, &tokens).unwrap(), alone);
            assert_eq!(two.forward_rows(b, &tokens[3..6], 3).unwrap(), row);
            // taken back, copied, saved on both devices
            two.rollback(b, 1).unwrap();
            let c = two.open_session(90).unwrap();
            two.copy(c, b).unwrap();
            let checkpoint = two.save(c).unwrap();
            // the layers are in another order there
            assert_eq!(two.restore(b, &saved).unwrap_err().kind(), ErrorKind::Checkpoint);
            two.reset(b).unwrap();
            two.restore(b, &checkpoint).unwrap();
            let both = two.forward_batch(&[(b, tokens[4]), (c, tokens[4])]).unwrap();
            let n = two.facts().n_vocab;
            assert_eq!(both[..n], row[n..2 * n]);
            assert_eq!(both[n..], row[n..2 * n]);
        }
        assert_eq!(saved.position, tokens.len() + 3);
    }
}

#[test]
fn drafts_over_two_devices_give_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fitted.gguf");
    write(&fitted(), "F32", &path);
    let prompt: Vec<u32> = (60..100).collect();
    let write_text = |engine: &mut dyn Engine| {
        let session = engine.open_session(128).unwrap();
        engine.feed(session, &prompt).unwrap();
        let sampling = Sampling { seed: 4, temperature: 0.7, ..Sampling::default() };
        let mut decoder = engine.decoder(session, sampling, &prompt, true).unwrap();
        let mut text = vec![decoder.pending];
        while text.len() < 40 {
            text.extend(engine.step(session, &mut decoder).unwrap());
        }
        (text, decoder.drafts_accepted)
    };
    let one = write_text(open(&path, &[], vec![128]).as_mut());
    let two = write_text(open_two(&path, &[("split", "2")], vec![128]).as_mut());
    assert_eq!(one, two);
    assert!(one.1 > 0);
}

#[test]
fn the_plan_tells_every_device_and_refuses_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let path = model("qwen35", &dir);
    let plan = |options: &[(&str, &str)], devices, contexts| {
        (REGISTRATION.plan)(&path, &load_options(options, devices, contexts))
    };
    let one = plan(&[], 1, vec![128, 32]).unwrap();
    assert_eq!(one.devices.len(), 1);
    assert_eq!(one.devices[0].parts, ["embedding", "head", "draft block"]);
    assert_eq!(one.devices[0].layers, (0, 4));
    assert!(one.devices[0].caches[0] > one.devices[0].caches[1]);
    let two = plan(&[("split", "3")], 2, vec![128, 32]).unwrap();
    assert_eq!(two.devices.iter().map(|d| d.layers).collect::<Vec<_>>(), [(0, 3), (3, 4)]);
    assert_eq!(two.devices[0].parts, ["embedding"]);
    assert_eq!(two.devices[1].parts, ["head", "draft block"]);
    let caches = |p: &ns_llm::Plan| p.devices.iter().map(ns_llm::DevicePlan::cache).sum::<u64>();
    assert_eq!(caches(&two), caches(&one));
    // what fits on the last device stays there
    let filled = plan(&[], 2, vec![128]).unwrap();
    assert_eq!(filled.devices.iter().map(|d| d.layers.1 - d.layers.0).sum::<usize>(), 4);
    assert!(filled.devices.iter().any(|d| d.needed() == 0));

    let error = plan(&[("split", "4")], 2, vec![128]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Option);
    assert_eq!(plan(&[("split", "2")], 1, vec![128]).unwrap_err().kind(), ErrorKind::Option);
    let huge = vec![512; 200_000];
    assert!(!plan(&[], 1, huge.clone()).unwrap().fits());
    let load = load_options(&[("split", "2")], 2, huge);
    let Err(error) = (REGISTRATION.load)(&path, &load, &mut |_, _| {}) else { panic!("it was opened") };
    assert_eq!(error.kind(), ErrorKind::Memory);
    let text = error.to_string();
    assert!(text.contains("does not fit") && text.contains("GiB") && text.contains(&device()), "{text}");
}
