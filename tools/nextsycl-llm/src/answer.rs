//! From tokens to text: holds incomplete characters back, finds stop strings over token borders, sends each byte once.

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
/// The text is cut before the stop string that is complete first (on a tie the one that began first), so it does not
/// depend on where tokens begin and end.
pub struct Assembler {
    stops: Vec<String>,
    /// Bytes of an unfinished character.
    raw: Vec<u8>,
    /// Decoded text that is not sent.
    held: String,
    /// Bytes of text sent.
    sent: usize,
    waiting: VecDeque<Waiting>,
}

impl Assembler {
    /// An answer that ends before any of `stops`.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|s| !s.is_empty()).collect();
        Self { stops, raw: Vec::new(), held: String::new(), sent: 0, waiting: VecDeque::new() }
    }

    /// Adds a token's bytes. Returns what can be sent, and whether a stop string ended the answer.
    pub fn push(&mut self, bytes: &[u8], score: Option<Scored>) -> (Piece, bool) {
        let start = self.sent + self.held.len();
        let from = self.held.len();
        self.raw.extend_from_slice(bytes);
        self.decode();
        if let Some(score) = score {
            self.waiting.push_back(Waiting { start, end: None, score });
        }
        if self.raw.is_empty() {
            let end = self.sent + self.held.len();
            for waiting in self.waiting.iter_mut().rev().take_while(|w| w.end.is_none()) {
                waiting.end = Some(end);
            }
        }
        if let Some(cut) = self.find_stop(from) {
            self.held.truncate(cut);
            let text = std::mem::take(&mut self.held);
            self.sent += text.len();
            let sent = self.sent;
            let tokens = self.waiting.drain(..).filter(|w| w.start < sent).map(|w| w.score).collect();
            self.raw.clear();
            return (Piece { text, tokens }, true);
        }
        let keep = self.partial_stop();
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        self.sent += text.len();
        let mut tokens = Vec::new();
        while self.waiting.front().is_some_and(|w| w.end.is_some_and(|end| end <= self.sent)) {
            tokens.extend(self.waiting.pop_front().map(|w| w.score));
        }
        (Piece { text, tokens }, false)
    }

    /// The rest when the answer ends otherwise; an unfinished character becomes one replacement character.
    pub fn finish(&mut self) -> Piece {
        if !self.raw.is_empty() {
            self.raw.clear();
            self.held.push(char::REPLACEMENT_CHARACTER);
        }
        let text = std::mem::take(&mut self.held);
        self.sent += text.len();
        Piece { text, tokens: self.waiting.drain(..).map(|w| w.score).collect() }
    }

    /// Moves whole characters from `raw` to `held`.
    fn decode(&mut self) {
        loop {
            match std::str::from_utf8(&self.raw) {
                Ok(text) => {
                    self.held.push_str(text);
                    self.raw.clear();
                    return;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    self.held.push_str(&String::from_utf8_lossy(&self.raw[..valid]));
                    let Some(bad) = error.error_len() else {
                        self.raw.drain(..valid);
                        return;
                    };
                    self.held.push(char::REPLACEMENT_CHARACTER);
                    self.raw.drain(..valid + bad);
                }
            }
        }
    }

    /// Where the text is cut, when a stop string is complete with the bytes from `from` on.
    fn find_stop(&self, from: usize) -> Option<usize> {
        self.stops
            .iter()
            .filter_map(|stop| {
                // It cannot be complete before `from`; it would have been found then.
                let mut begin = (from + 1).saturating_sub(stop.len());
                while !self.held.is_char_boundary(begin) {
                    begin -= 1;
                }
                let at = begin + self.held.get(begin..)?.find(stop.as_str())?;
                Some((at + stop.len(), at))
            })
            .min()
            .map(|(_, at)| at)
    }

    /// Length of the longest end of the held text that begins a stop string.
    fn partial_stop(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = self.stops.iter().map(|s| s.len() - 1).max().unwrap_or(0).min(held.len());
        (1..=longest)
            .rev()
            .find(|&n| self.stops.iter().any(|s| s.len() > n && s.as_bytes()[..n] == held[held.len() - n..]))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(tokens: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let mut answer = Assembler::new(stops.iter().map(|&s| s.to_owned()).collect());
        let mut pieces = Vec::new();
        for token in tokens {
            let (piece, stopped) = answer.push(token, None);
            pieces.push(piece.text);
            if stopped {
                return (pieces, true);
            }
        }
        pieces.push(answer.finish().text);
        (pieces, false)
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
        let mut answer = Assembler::new(vec!["stop".into()]);
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
        for (end, _) in text.char_indices().map(|(i, c)| (i + c.len_utf8(), c)) {
            let found = stops.iter().filter(|s| text[..end].ends_with(s.as_str())).map(|s| end - s.len()).min();
            if let Some(at) = found {
                return (text[..at].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        /// Any split of any text gives the same result, equal to looking at it character by character.
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
