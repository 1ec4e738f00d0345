//! Text as tokens come, and stop strings.

#![allow(clippy::expect_used, clippy::panic)]

mod support;

use ns_tokenizer::{StopMatcher, TokenStream, Tokenizer, Utf8Hold};
use proptest::prelude::*;
use support::byte_vocabulary;

fn tokenizer() -> Tokenizer {
    Tokenizer::new(byte_vocabulary("gpt-2", &["a b"], &["<|im_end|>", "+<think>", "</think>"])).expect("good")
}

/// C01: an emoji and a CJK character in pieces; nothing before a character is whole.
#[test]
fn characters_come_whole() {
    let tokenizer = tokenizer();
    let mut stream = TokenStream::new();
    let pieces: Vec<String> = "a🙂你".bytes().map(|byte| stream.push(&tokenizer, u32::from(byte))).collect();
    // The ids of this vocabulary are the bytes in alphabet order, which is the bytes' own.
    assert_eq!(pieces, ["a", "", "", "", "🙂", "", "", "你"]);
    assert_eq!(stream.finish(), "");
}

/// C01: a broken tail is one U+FFFD at the end; a broken character inside gives one where it breaks.
#[test]
fn a_broken_tail_is_one_replacement() {
    let tokenizer = tokenizer();
    for kept in 1..4 {
        let mut stream = TokenStream::new();
        let text: String = "🙂".bytes().take(kept).map(|byte| stream.push(&tokenizer, u32::from(byte))).collect();
        assert_eq!((text.as_str(), stream.finish().as_str()), ("", "\u{FFFD}"));
        assert_eq!(stream.finish(), "");
    }
    let mut hold = Utf8Hold::default();
    assert_eq!(hold.push(&[0xF0, 0x9F]) + &hold.push(b"x"), "\u{FFFD}x");
}

#[test]
fn control_tokens_are_silent() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<think>x</think>y<|im_end|>", true);
    assert_eq!(ids.len(), 5);
    let mut stream = TokenStream::new();
    let text: String = ids.iter().map(|&id| stream.push(&tokenizer, id)).collect();
    assert_eq!(text, "<think>x</think>y");
    assert_eq!(stream.push(&tokenizer, 99_999), "");
}

fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<usize>) {
    let mut matcher = StopMatcher::new(stops);
    let mut out: Vec<String> = pieces.iter().map(|piece| matcher.push(piece).text).collect();
    out.push(matcher.finish().text);
    (out, matcher.stopped())
}

/// C03: a stop string over a border, inside a piece, and several of which one begins another.
#[test]
fn stops_over_borders() {
    assert_eq!(
        run(&["beta gamma"], &["alpha be", "ta gam", "ma delta"]),
        (vec!["alpha ".into(), "".into(), "".into(), "".into()], Some(0))
    );
    assert_eq!(run(&["b"], &["abc", "d"]), (vec!["a".into(), "".into(), "".into()], Some(0)));
    assert_eq!(
        run(&["END.", "END", "\n\n", "x"], &["go EN", "D. \n"]),
        (vec!["go ".into(), "".into(), "".into()], Some(1))
    );
    // One that begins earlier wins even if another ends sooner.
    assert_eq!(run(&["bc", "abcd"], &["xabc", "d"]), (vec!["x".into(), "".into(), "".into()], Some(1)));
    assert_eq!(run(&["bc", "abcd"], &["xabc", "e"]), (vec!["x".into(), "a".into(), "".into()], Some(0)));
    assert_eq!(run(&["bc", "abcd"], &["xabc"]), (vec!["x".into(), "a".into()], Some(0)));
    assert_eq!(run(&["", "q"], &["abc"]), (vec!["abc".into(), "".into()], None));
}

/// C05: text held back for a stop string that does not come is given once.
#[test]
fn failed_matches_are_given_once() {
    assert_eq!(
        run(&["DEFGHIJ"], &["ABCDEF", "GHI", "X"]),
        (vec!["ABC".into(), "".into(), "DEFGHIX".into(), "".into()], None)
    );
    assert_eq!(run(&["aab"], &["aaaa", "b"]), (vec!["aa".into(), "".into(), "".into()], Some(0)));
    assert_eq!(run(&["abc"], &["ab"]), (vec!["".into(), "ab".into()], None));
}

/// What the whole text gives: cut before the stop string that begins first, the shortest of several.
fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
    let first = stops
        .iter()
        .enumerate()
        .filter(|(_, stop)| !stop.is_empty())
        .filter_map(|(index, stop)| Some((text.find(stop.as_str())?, stop.len(), index)))
        .min();
    match first {
        Some((at, _, index)) => (text[..at].to_string(), Some(index)),
        None => (text.to_string(), None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn stops_equal_the_naive_search(stops in prop::collection::vec("[abé]{0,4}", 0..5), pieces in prop::collection::vec("[abcé]{0,5}", 0..10)) {
        let mut matcher = StopMatcher::new(&stops);
        let mut text = String::new();
        for piece in &pieces {
            let out = matcher.push(piece);
            text += &out.text;
            prop_assert_eq!(out.stopped, matcher.stopped());
        }
        text += &matcher.finish().text;
        prop_assert_eq!((text, matcher.stopped()), naive(&stops, &pieces.concat()));
    }

    #[test]
    fn a_stream_gives_what_all_tokens_give(ids in prop::collection::vec(0u32..=256, 0..60)) {
        let tokenizer = tokenizer();
        let mut stream = TokenStream::new();
        let mut text: String = ids.iter().map(|&id| stream.push(&tokenizer, id)).collect();
        text += &stream.finish();
        prop_assert_eq!(text, String::from_utf8_lossy(&tokenizer.decode(&ids)).into_owned());
    }

    #[test]
    fn any_cut_of_bytes_gives_the_same_text(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xF0), Just(0x9F), Just(0x80), Just(b'a')], 0..40), cuts in prop::collection::vec(0usize..40, 0..8)) {
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut hold = Utf8Hold::default();
        let mut text: String = cuts.windows(2).map(|cut| hold.push(&bytes[cut[0]..cut[1]])).collect();
        text += &hold.finish();
        prop_assert_eq!(text, whole);
    }
}
