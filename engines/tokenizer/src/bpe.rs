//! Byte-level byte-pair encoding.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::error::Error;
use crate::hash::WordMap;

/// GPT-2's printable stand-in for each byte.
pub fn byte_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 256u32;
    for (byte, slot) in (0u32..).zip(alphabet.iter_mut()) {
        let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if printable {
            byte
        } else {
            next += 1;
            next - 1
        };
        *slot = char::from_u32(code).unwrap_or('\0');
    }
    alphabet
}

/// The reverse of [`byte_alphabet`].
pub(crate) struct Alphabet(HashMap<char, u8>);

impl Alphabet {
    pub(crate) fn new() -> Self {
        Self((0u8..=255).zip(byte_alphabet()).map(|(byte, c)| (c, byte)).collect())
    }

    /// The bytes a token's text stands for; `None` if a character is not of the alphabet.
    pub(crate) fn bytes(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.0.get(&c).copied()).collect()
    }
}

const NONE: u32 = u32::MAX;

/// Merge rules over symbols. A symbol below the number of tokens is that token; others are texts that merges name but
/// the vocabulary lacks.
pub(crate) struct Bpe {
    /// (left, right) -> (rank, merged symbol)
    merges: WordMap<u64, (u32, u32)>,
    /// Symbol of each byte.
    bytes: [u32; 256],
    /// Whole words, when merges are ignored for them.
    words: Option<HashMap<Box<[u8]>, u32>>,
    /// Bytes of the symbols beyond the vocabulary.
    extra: Vec<Box<[u8]>>,
    n_tokens: u32,
}

/// Reused memory of one encoding.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Rank of the pair that begins at each symbol.
    rank: Vec<u32>,
    /// What that pair merges to.
    merged: Vec<u32>,
    heap: BinaryHeap<Reverse<u64>>,
}

impl Bpe {
    /// `normal(id)` gives the bytes of the tokens that ordinary text may become.
    pub(crate) fn new(
        n_tokens: usize,
        normal: impl Fn(usize) -> Option<Vec<u8>>,
        merges: &[String],
        ignore_merges: bool,
    ) -> Result<Self, Error> {
        let mut ids: HashMap<Box<[u8]>, u32> = HashMap::with_capacity(n_tokens);
        for id in 0..n_tokens {
            if let Some(bytes) = normal(id) {
                ids.entry(bytes.into()).or_insert(id as u32);
            }
        }
        let words = ignore_merges.then(|| ids.clone());
        let mut extra: Vec<Box<[u8]>> = Vec::new();
        let mut intern = |ids: &mut HashMap<Box<[u8]>, u32>, bytes: &[u8]| -> u32 {
            if let Some(&id) = ids.get(bytes) {
                return id;
            }
            let id = (n_tokens + extra.len()) as u32;
            extra.push(bytes.into());
            ids.insert(bytes.into(), id);
            id
        };
        let mut byte_symbols = [0u32; 256];
        for (byte, slot) in (0u8..=255).zip(byte_symbols.iter_mut()) {
            *slot = intern(&mut ids, &[byte]);
        }
        let alphabet = Alphabet::new();
        let mut table = WordMap::default();
        table.reserve(merges.len());
        for (index, merge) in merges.iter().enumerate() {
            // The space separates; a symbol may itself begin with one only in foreign alphabets.
            let cut = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
            let Some(cut) = cut.filter(|&cut| cut + 1 < merge.len()) else { return Err(Error::BadMerge { index }) };
            let (Some(left), Some(right)) = (alphabet.bytes(&merge[..cut]), alphabet.bytes(&merge[cut + 1..])) else {
                continue; // can never apply: no text gives such symbols
            };
            let l = intern(&mut ids, &left);
            let r = intern(&mut ids, &right);
            let merged = intern(&mut ids, &[left, right].concat());
            table.entry(pair(l, r)).or_insert((index as u32, merged));
        }
        Ok(Self { merges: table, bytes: byte_symbols, words, extra, n_tokens: n_tokens as u32 })
    }

    /// Appends the tokens of one word.
    pub(crate) fn encode(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(id) = self.words.as_ref().and_then(|words| words.get(word)) {
            out.push(*id);
            return;
        }
        if let [byte] = word {
            self.emit(self.bytes[usize::from(*byte)], out);
            return;
        }
        self.merge(word, scratch);
        let mut at = 0u32;
        while at != NONE {
            self.emit(scratch.symbols[at as usize], out);
            at = scratch.next[at as usize];
        }
    }

    /// Merges the pair of lowest rank, leftmost first, until none is left. `scratch.next` links what remains.
    fn merge(&self, word: &[u8], scratch: &mut Scratch) {
        let n = word.len();
        let Scratch { symbols, next, previous, rank, merged, heap } = scratch;
        symbols.clear();
        symbols.extend(word.iter().map(|&byte| self.bytes[usize::from(byte)]));
        next.clear();
        next.extend((1..n as u32).chain([NONE]));
        previous.clear();
        previous.extend([NONE].into_iter().chain(0..n as u32 - 1));
        rank.clear();
        rank.resize(n, NONE);
        merged.clear();
        merged.resize(n, 0);
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        for at in 0..n - 1 {
            if let Some(&(r, m)) = self.merges.get(&pair(symbols[at], symbols[at + 1])) {
                rank[at] = r;
                merged[at] = m;
                entries.push(Reverse(u64::from(r) << 32 | at as u64));
            }
        }
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse(entry)) = heap.pop() {
            let at = (entry & u64::from(u32::MAX)) as usize;
            if rank[at] != (entry >> 32) as u32 {
                continue; // the pair is no longer there
            }
            let right = next[at] as usize;
            symbols[at] = merged[at];
            rank[right] = NONE;
            next[at] = next[right];
            if next[at] != NONE {
                previous[next[at] as usize] = at as u32;
            }
            for left in [previous[at], at as u32] {
                if left == NONE {
                    continue;
                }
                let left = left as usize;
                rank[left] = NONE;
                if next[left] == NONE {
                    continue;
                }
                if let Some(&(r, m)) = self.merges.get(&pair(symbols[left], symbols[next[left] as usize])) {
                    rank[left] = r;
                    merged[left] = m;
                    heap.push(Reverse(u64::from(r) << 32 | left as u64));
                }
            }
        }
    }

    /// Appends a symbol: its token, or its bytes' tokens when the vocabulary lacks it. A byte the vocabulary lacks too
    /// has no token and is left out, as llama.cpp and tokenizers do.
    fn emit(&self, symbol: u32, out: &mut Vec<u32>) {
        if symbol < self.n_tokens {
            out.push(symbol);
            return;
        }
        let bytes = &self.extra[(symbol - self.n_tokens) as usize];
        out.extend(bytes.iter().map(|&byte| self.bytes[usize::from(byte)]).filter(|&id| id < self.n_tokens));
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
