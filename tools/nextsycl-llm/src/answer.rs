//! From tokens to text that can be sent, with each token's log-probability beside the text it belongs to.

use ns_tokenizer::{StopMatcher, Utf8Hold};
use std::collections::VecDeque;

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The token's id.
    pub id: u32,
    /// In words: its text, or the name of a control token.
    pub name: String,
    /// Its bytes, possibly a part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability under the raw logits.
    pub logprob: f32,
    /// The likeliest tokens, most likely first (their own `top` is empty).
    pub top: Vec<Scored>,
}

/// Text that can be sent, with the scores of the tokens it came from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Piece {
    /// Whole characters.
    pub text: String,
    /// Scores of the tokens whose text is out, when asked for.
    pub tokens: Vec<Scored>,
}

impl Piece {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }
}

struct Waiting {
    /// Offset in the decoded text where the token began.
    start: usize,
    /// Where it ended; unknown while it ends inside a character.
    end: Option<usize>,
    score: Scored,
}

/// Builds an answer's text.
///
/// The text is cut before the stop string that begins first, however the text is cut into tokens.
pub struct Assembler {
    hold: Utf8Hold,
    stops: StopMatcher,
    /// Bytes of text decoded.
    decoded: usize,
    /// Bytes of text sent.
    sent: usize,
    waiting: VecDeque<Waiting>,
}

impl Assembler {
    /// An answer that ends before any of `stops`.
    pub fn new(stops: &[String]) -> Self {
        Self {
            hold: Utf8Hold::default(),
            stops: StopMatcher::new(stops),
            decoded: 0,
            sent: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Adds a token's bytes. Returns what can be sent, and whether a stop string ended the answer.
    pub fn push(&mut self, bytes: &[u8], score: Option<Scored>) -> (Piece, bool) {
        let start = self.decoded;
        let text = self.hold.push(bytes);
        self.decoded += text.len();
        if let Some(score) = score {
            self.waiting.push_back(Waiting { start, end: None, score });
        }
        if self.hold.held().is_empty() {
            for waiting in self.waiting.iter_mut().rev().take_while(|w| w.end.is_none()) {
                waiting.end = Some(self.decoded);
            }
        }
        let out = self.stops.push(&text);
        self.sent += out.text.len();
        if out.stopped.is_some() {
            return (Piece { text: out.text, tokens: self.sent_tokens() }, true);
        }
        let mut tokens = Vec::new();
        while self.waiting.front().is_some_and(|w| w.end.is_some_and(|end| end <= self.sent)) {
            tokens.extend(self.waiting.pop_front().map(|w| w.score));
        }
        (Piece { text: out.text, tokens }, false)
    }

    /// The rest when the answer ends otherwise, and whether a stop string is in it after all. An unfinished character
    /// becomes one replacement character.
    pub fn finish(&mut self) -> (Piece, bool) {
        let tail = self.hold.finish();
        let mut text = self.stops.push(&tail).text;
        let last = self.stops.finish();
        text.push_str(&last.text);
        self.sent += text.len();
        if last.stopped.is_some() {
            return (Piece { text, tokens: self.sent_tokens() }, true);
        }
        (Piece { text, tokens: self.waiting.drain(..).map(|w| w.score).collect() }, false)
    }

    /// Scores of the tokens that have at least a part of their text before the cut.
    fn sent_tokens(&mut self) -> Vec<Scored> {
        let sent = self.sent;
        self.waiting.drain(..).filter(|w| w.start < sent).map(|w| w.score).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(tokens: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut answer = Assembler::new(&stops);
        let mut pieces = Vec::new();
        for token in tokens {
            let (piece, stopped) = answer.push(token, None);
            pieces.push(piece.text);
            if stopped {
                return (pieces, true);
            }
        }
        let (rest, stopped) = answer.finish();
        pieces.push(rest.text);
        (pieces, stopped)
    }

    fn whole(tokens: &[&[u8]], stops: &[&str]) -> (String, bool) {
        let (pieces, stopped) = run(tokens, stops);
        (pieces.concat(), stopped)
    }

    /// C01: characters split over tokens.
    #[test]
    fn characters_are_held_until_whole() {
        let emoji = "😀".as_bytes();
        let (pieces, _) = run(&[b"a", &emoji[..1], &emoji[1..3], &emoji[3..], "世".as_bytes()], &[]);
        assert_eq!(pieces, ["a", "", "", "😀", "世", ""]);
        assert_eq!(whole(&[b"a", &emoji[..3]], &[]), ("a\u{fffd}".into(), false));
        assert_eq!(whole(&[b"\xff", b"b", &emoji[..2], b"c"], &[]), ("\u{fffd}b\u{fffd}c".into(), false));
    }

    /// C03, C05: stops over token borders, inside tokens, prefixes of each other, partial matches.
    #[test]
    fn stops_cut_exactly() {
        let (pieces, stopped) = run(&[b"alpha ", b"be", b"ta ga", b"mma d"], &["beta gamma"]);
        assert_eq!((pieces.concat(), stopped), ("alpha ".into(), true));
        assert_eq!(whole(&[b"one END two"], &["END"]), ("one ".into(), true));
        assert_eq!(whole(&[b"ab", b"cd"], &["x", "abcde", "bc", "q"]), ("a".into(), true));
        assert_eq!(whole(&[b"DEF", b"GHI", b"X"], &["DEFGHIJ"]), ("DEFGHIX".into(), false));
        assert_eq!(whole(&[b"aa", b"ab"], &["aab"]), ("a".into(), true));
        assert_eq!(whole(&["é".as_bytes(), "ée".as_bytes()], &["ée"]), ("é".into(), true));
        assert_eq!(whole(&[b"text ST"], &["STOP"]), ("text ST".into(), false));
    }

    #[test]
    fn scores_go_out_with_their_text() {
        let score = |id| Some(Scored { id, name: String::new(), bytes: Vec::new(), logprob: -1.0, top: Vec::new() });
        let ids = |p: &Piece| p.tokens.iter().map(|t| t.id).collect::<Vec<_>>();
        let mut answer = Assembler::new(&["stop".into()]);
        assert_eq!(ids(&answer.push(b"a", score(1)).0), [1]);
        assert_eq!(ids(&answer.push(b"\xf0\x9f", score(2)).0), [0; 0]);
        assert_eq!(ids(&answer.push(b"\x98\x80", score(3)).0), [2, 3]);
        assert_eq!(ids(&answer.push(b"b st", score(4)).0), [0; 0]);
        let (piece, stopped) = answer.push(b"op", score(5));
        assert!(stopped && piece.text.is_empty(), "{piece:?}");
        // token 4's first characters were sent, token 5's never
        assert_eq!(ids(&piece), [4]);
    }

    fn reference(text: &str, stops: &[String]) -> (String, bool) {
        for (at, _) in text.char_indices() {
            if stops.iter().any(|s| text[at..].starts_with(s.as_str())) {
                return (text[..at].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        /// Any split of any text gives the same result, equal to looking at the whole.
        #[test]
        fn splits_do_not_matter(
            text in "[abé😀]{0,24}",
            stops in prop::collection::vec("[abé😀]{1,4}", 0..4),
            cuts in prop::collection::vec(0..40_usize, 0..12),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let tokens: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let names: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(whole(&tokens, &names), reference(&text, &stops));
        }
    }
}
