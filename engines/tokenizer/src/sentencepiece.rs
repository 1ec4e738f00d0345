//! SentencePiece's byte-pair variant (`tokenizer.ggml.model = llama`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The visible stand-in for a space.
pub(crate) const SPACE_MARK: char = '\u{2581}';

const NONE: usize = usize::MAX;

/// Pieces with scores.
pub(crate) struct SentencePiece {
    pieces: HashMap<Box<str>, u32>,
    scores: Vec<f32>,
    /// Token of each byte (`<0xNN>`).
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

struct Symbol {
    start: usize,
    end: usize,
    previous: usize,
    next: usize,
    /// Number of the pair that begins here; older heap entries do not count.
    version: u32,
}

impl SentencePiece {
    pub(crate) fn new<'a>(
        pieces: impl Iterator<Item = (&'a str, u32)>,
        scores: Vec<f32>,
        bytes: [Option<u32>; 256],
        unknown: Option<u32>,
    ) -> Self {
        let mut map = HashMap::new();
        for (text, id) in pieces {
            map.entry(text.into()).or_insert(id);
        }
        Self { pieces: map, scores, bytes, unknown }
    }

    /// Appends the tokens of a text whose spaces are already marked.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                previous: i.checked_sub(1).unwrap_or(NONE),
                next: i + 1,
                version: 0,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut heap = BinaryHeap::new();
        for at in 0..symbols.len() {
            self.offer(text, &mut symbols, at, &mut heap);
        }
        while let Some((_, Reverse(at), version)) = heap.pop() {
            if symbols[at].version != version {
                continue;
            }
            let right = symbols[at].next;
            symbols[at].end = symbols[right].end;
            symbols[at].next = symbols[right].next;
            symbols[right].version += 1;
            let next = symbols[at].next;
            if next != NONE {
                symbols[next].previous = at;
            }
            if symbols[at].previous != NONE {
                let previous = symbols[at].previous;
                self.offer(text, &mut symbols, previous, &mut heap);
            }
            self.offer(text, &mut symbols, at, &mut heap);
        }
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            self.emit(&text[symbols[at].start..symbols[at].end], out);
            at = symbols[at].next;
        }
    }

    /// Puts the pair that begins at symbol `at` into the heap, if the two make a piece.
    fn offer(&self, text: &str, symbols: &mut [Symbol], at: usize, heap: &mut BinaryHeap<(i64, Reverse<usize>, u32)>) {
        symbols[at].version += 1;
        let next = symbols[at].next;
        if next == NONE {
            return;
        }
        if let Some(&id) = self.pieces.get(&text[symbols[at].start..symbols[next].end]) {
            let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
            heap.push((order(score), Reverse(at), symbols[at].version));
        }
    }

    fn emit(&self, piece: &str, out: &mut Vec<u32>) {
        if let Some(&id) = self.pieces.get(piece) {
            out.push(id);
            return;
        }
        for byte in piece.bytes() {
            out.extend(self.bytes[usize::from(byte)].or(self.unknown));
        }
    }
}

/// A number that sorts as the score does.
fn order(score: f32) -> i64 {
    let bits = i64::from((score + 0.0).to_bits() as i32);
    if bits < 0 { i64::from(i32::MIN) - bits } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_keep_their_order() {
        let scores = [f32::NEG_INFINITY, -1e9, -2.5, -1.0, -1e-9, 0.0, 1e-9, 1.0, 7e8];
        assert!(scores.windows(2).all(|pair| order(pair[0]) < order(pair[1])));
        assert_eq!(order(-0.0), order(0.0));
    }
}
