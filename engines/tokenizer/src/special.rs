//! Finding special tokens' texts in a text.

use crate::hash::WordMap;

/// A set of texts, matched longest first at a position.
#[derive(Debug, Default)]
pub(crate) struct SpecialSet {
    /// Children by (node, byte); node 0 is the root.
    children: WordMap<u64, u32>,
    /// The token that ends at each node.
    ends: Vec<Option<u32>>,
    /// Bytes a text of the set can begin with.
    starts: Vec<bool>,
}

impl SpecialSet {
    pub(crate) fn new<'a>(texts: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut set = Self { children: WordMap::default(), ends: vec![None], starts: vec![false; 256] };
        for (text, id) in texts {
            let mut node = 0u32;
            for &byte in text.as_bytes() {
                let next = set.ends.len() as u32;
                node = *set.children.entry(key(node, byte)).or_insert(next);
                if node == next {
                    set.ends.push(None);
                }
            }
            if let Some(&first) = text.as_bytes().first() {
                set.starts[usize::from(first)] = true;
                // Of several tokens with one text, the first is meant.
                set.ends[node as usize].get_or_insert(id);
            }
        }
        set
    }

    /// Whether a text of the set may begin with this byte.
    #[inline]
    pub(crate) fn may_start(&self, byte: u8) -> bool {
        self.starts[usize::from(byte)]
    }

    /// The longest text of the set that `bytes` begins with: its length and token.
    pub(crate) fn longest(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut node = 0u32;
        let mut best = None;
        for (i, &byte) in bytes.iter().enumerate() {
            match self.children.get(&key(node, byte)) {
                Some(&next) => node = next,
                None => break,
            }
            if let Some(id) = self.ends[node as usize] {
                best = Some((i + 1, id));
            }
        }
        best
    }
}

fn key(node: u32, byte: u8) -> u64 {
    u64::from(node) << 8 | u64::from(byte)
}
