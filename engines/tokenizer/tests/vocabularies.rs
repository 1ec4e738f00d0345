//! Small vocabularies against other tokenizers, refusals, and properties.

#![allow(clippy::expect_used, clippy::panic)]

mod support;

use std::collections::HashMap;

use ns_tokenizer::{Error, Metadata, Tokenizer, Vocabulary, known_pre_tokenizers};
use proptest::prelude::*;
use serde::Deserialize;
use support::byte_vocabulary;

#[derive(Deserialize)]
struct Small {
    texts: Vec<String>,
    vocabularies: HashMap<String, Trained>,
}

#[derive(Deserialize)]
struct Trained {
    tokens: Vec<String>,
    merges: Vec<String>,
    ids: Vec<Vec<u32>>,
}

fn small() -> Small {
    serde_json::from_str(include_str!("fixtures/small.json")).expect("the fixture is read")
}

fn trained(pre: &str, trained: &Trained) -> Tokenizer {
    Tokenizer::new(Vocabulary {
        model: "gpt2".to_string(),
        pre: Some(pre.to_string()),
        tokens: trained.tokens.clone(),
        types: vec![1; trained.tokens.len()],
        merges: trained.merges.clone(),
        ..Vocabulary::default()
    })
    .expect("a good vocabulary")
}

/// Ids from Hugging Face's tokenizers (tests/reference/make_fixtures.py).
#[test]
fn ids_equal_tokenizers() {
    let small = small();
    assert_eq!(small.vocabularies.len(), 4);
    for (pre, vocabulary) in &small.vocabularies {
        let tokenizer = trained(pre, vocabulary);
        for (text, ids) in small.texts.iter().zip(&vocabulary.ids) {
            assert_eq!(&tokenizer.encode(text, false), ids, "{pre}: {text:?}");
            assert_eq!(tokenizer.decode(ids), text.as_bytes(), "{pre}");
        }
    }
    // With merges ignored, a word that no merges give is taken whole.
    let glm = &small.vocabularies["glm4"];
    let word = glm.tokens.iter().position(|token| token == "zyzzyva").expect("in the vocabulary") as u32;
    assert_eq!(trained("glm4", glm).encode("zyzzyva", false), [word]);
    assert!(trained("chatglm-bpe", glm).encode("zyzzyva", false).len() > 1);
}

/// B03: a pre-tokenizer that is not known is an error that names it.
#[test]
fn unknown_kinds_are_named() {
    let error = Tokenizer::new(byte_vocabulary("gpt-5x", &["a b"], &[])).expect_err("not known");
    assert!(error.to_string().contains("\"gpt-5x\"") && error.to_string().contains("qwen35"), "{error}");
    let mut vocabulary = byte_vocabulary("gpt-2", &["a b"], &[]);
    vocabulary.pre = None;
    let error = Tokenizer::new(vocabulary.clone()).expect_err("nothing given");
    assert!(error.to_string().contains("tokenizer.ggml.pre"), "{error}");
    vocabulary.model = "bert".to_string();
    let error = Tokenizer::new(vocabulary.clone()).expect_err("not known");
    assert!(error.to_string().contains("\"bert\""), "{error}");
    for name in known_pre_tokenizers() {
        Tokenizer::new(byte_vocabulary(name, &["a b"], &[])).expect(name);
    }
    vocabulary = byte_vocabulary("gpt-2", &["ab"], &[]);
    assert!(matches!(Tokenizer::new(vocabulary), Err(Error::BadMerge { index: 0 })));
    vocabulary = byte_vocabulary("gpt-2", &["a b"], &[]);
    vocabulary.types.pop();
    assert!(matches!(Tokenizer::new(vocabulary), Err(Error::Length { found: 256, expected: 257, .. })));
    vocabulary = byte_vocabulary("gpt-2", &["a b"], &[]);
    vocabulary.eos = Some(257);
    assert!(matches!(Tokenizer::new(vocabulary), Err(Error::IdOutOfRange { id: 257, tokens: 257, .. })));
}

#[test]
fn special_tokens_only_when_asked() {
    let tokenizer = Tokenizer::new(byte_vocabulary("gpt-2", &["a b"], &["<|a|>", "<|a|>b", "+\n\n", "+<u>", "[PAD1]"]))
        .expect("good");
    assert_eq!(tokenizer.encode("<|a|>b<|a|>", true), [258, 257]);
    assert!(tokenizer.encode("<|a|>b<|a|>", false).iter().all(|&id| id < 257));
    assert!(tokenizer.encode("[PAD1]", true).iter().all(|&id| id < 257));
    assert_eq!(tokenizer.encode("<u>", true), [260]);
    assert_eq!(tokenizer.encode("<u>", false).len(), 3);
    // User-defined white space is ordinary text.
    assert_eq!(tokenizer.encode("\n\n", false), [259]);
    assert_eq!(tokenizer.encode("", true), [0u32; 0]);
    assert!(tokenizer.token_bytes(999_999).is_empty());
}

#[test]
fn stop_tokens_by_text() {
    let mut vocabulary = byte_vocabulary(
        "qwen35",
        &["a b"],
        &["<|endoftext|>", "<|im_end|>", "<|user|>", "<|observation|>", "<x>", "<y>"],
    );
    vocabulary.eos = Some(261);
    vocabulary.eot = Some(258);
    let tokenizer = Tokenizer::new(vocabulary).expect("good");
    assert_eq!(tokenizer.end_ids(), [257, 258, 259, 260, 261]);
    assert!(tokenizer.is_end(258) && !tokenizer.is_end(262));
}

/// Keys of a file, for reading without one.
struct Keys;

impl Metadata for Keys {
    fn text(&self, key: &str) -> Option<String> {
        Some(match key {
            "tokenizer.ggml.model" => "llama".to_string(),
            "tokenizer.chat_template" => "  ".to_string(),
            _ => return None,
        })
    }
    fn unsigned(&self, key: &str) -> Option<u64> {
        Some(match key {
            "tokenizer.ggml.bos_token_id" => 1,
            "tokenizer.ggml.eot_token_id" => 4_294_967_295,
            _ => return None,
        })
    }
    fn flag(&self, key: &str) -> Option<bool> {
        (key == "tokenizer.ggml.add_space_prefix").then_some(false)
    }
    fn texts(&self, key: &str) -> Option<Vec<String>> {
        (key == "tokenizer.ggml.tokens").then(|| ["<unk>", "<s>", "▁", "a", "▁a"].map(String::from).to_vec())
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        (key == "tokenizer.ggml.token_type").then(|| vec![2, 3, 1, 1, 1])
    }
    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        (key == "tokenizer.ggml.scores").then(|| vec![0.0; 5])
    }
}

#[test]
fn keys_of_a_file() {
    let vocabulary = Vocabulary::from_metadata(&Keys).expect("good");
    assert_eq!(
        (vocabulary.bos, vocabulary.eot, vocabulary.unknown, vocabulary.chat_template.clone()),
        (Some(1), None, None, None)
    );
    let tokenizer = Tokenizer::new(vocabulary).expect("good");
    assert!(!tokenizer.adds_space() && tokenizer.adds_bos());
    assert_eq!(tokenizer.encode_prompt("a a", false), [1, 3, 4]);
}

/// SentencePiece with some pieces, byte tokens for the rest; scores with ties.
fn sentencepiece(space_prefix: bool) -> Tokenizer {
    let mut tokens = vec!["<unk>".to_string(), "<s>".to_string()];
    let mut types = vec![2, 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    let mut scores = vec![0.0; tokens.len()];
    for (piece, score) in PIECES {
        tokens.push(piece.to_string());
        types.push(1);
        scores.push(score);
    }
    Tokenizer::new(Vocabulary {
        model: "llama".to_string(),
        tokens,
        types,
        scores,
        unknown: Some(0),
        bos: Some(1),
        add_space_prefix: Some(space_prefix),
        ..Vocabulary::default()
    })
    .expect("good")
}

const PIECES: [(&str, f32); 14] = [
    ("▁", -9.0),
    ("a", -9.0),
    ("b", -9.0),
    ("é", -9.0),
    ("aa", -2.0),
    ("ab", -1.0),
    ("ba", -1.0),
    ("▁a", -0.5),
    ("▁▁", -0.25),
    ("aba", -3.0),
    ("▁aab", -2.0),
    ("▁▁▁▁", 1.5),
    ("bé", -4.0),
    ("aaaa", -0.75),
];

/// Merges by searching all pairs each time.
fn naive_pieces(text: &str) -> Vec<String> {
    let score = |piece: &str| PIECES.iter().find(|entry| entry.0 == piece).map(|entry| entry.1);
    let mut parts: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..parts.len() {
            if let Some(score) = score(&(parts[at - 1].clone() + &parts[at]))
                && best.is_none_or(|(found, _)| score > found)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return parts };
        let right = parts.remove(at);
        parts[at - 1] += &right;
    }
}

#[test]
fn sentencepiece_prefix_and_bytes() {
    let tokenizer = sentencepiece(true);
    let text = |ids: &[u32]| ids.iter().map(|&id| tokenizer.token_text(id).expect("known")).collect::<Vec<_>>();
    assert_eq!(text(&tokenizer.encode("ab", false)), ["▁a", "b"]);
    assert_eq!(text(&tokenizer.encode("z", false)), ["▁", "<0x7A>"]);
    assert_eq!(text(&tokenizer.encode("<s>b<s>", true)), ["<s>", "▁", "b", "<s>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a 你", false)), " a 你".as_bytes());
    assert_eq!(tokenizer.encode_prompt("b", false)[0], 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn sentencepiece_equals_the_naive_merging(text in "[ab éz]{0,20}") {
        let tokenizer = sentencepiece(false);
        let mut expected = Vec::new();
        for piece in naive_pieces(&text) {
            match PIECES.iter().position(|entry| entry.0 == piece) {
                Some(at) => expected.push(258 + at as u32),
                None => expected.extend(piece.bytes().map(|byte| 2 + u32::from(byte))),
            }
        }
        prop_assert_eq!(tokenizer.encode(&text, false), expected);
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, false)), text.into_bytes());
    }

    #[test]
    fn decoding_gives_the_text_back(text in "(\\PC|[ \\n\\t'0-9a-z<|>]|\u{0}){0,60}", special: bool) {
        thread_local!(static ALL: Vec<Tokenizer> = {
            let small = small();
            small.vocabularies.iter().map(|(pre, vocabulary)| trained(pre, vocabulary)).chain([sentencepiece(false)]).collect()
        });
        ALL.with(|all| {
            for tokenizer in all {
                assert_eq!(tokenizer.decode(&tokenizer.encode(&text, special)), text.as_bytes());
            }
        });
    }
}

#[test]
fn hostile_texts_take_less_than_a_second() {
    let small = small();
    let mut tokenizers: Vec<(String, Tokenizer)> =
        small.vocabularies.iter().map(|(pre, vocabulary)| (pre.clone(), trained(pre, vocabulary))).collect();
    tokenizers.push(("sentencepiece".to_string(), sentencepiece(true)));
    for unit in ["a", " ", "\n", " \n", "'", "<|im_", "1", "é", "\u{301}", "ab", "🙂"] {
        let text = unit.repeat(1_000_000 / unit.len());
        for (name, tokenizer) in &tokenizers {
            let best = (0..2)
                .map(|_| {
                    let begun = std::time::Instant::now();
                    assert!(!tokenizer.encode(&text, true).is_empty());
                    begun.elapsed()
                })
                .min();
            assert!(best.is_some_and(|best| best.as_millis() < 1000), "{name}: {unit:?}: {best:?}");
        }
    }
}
