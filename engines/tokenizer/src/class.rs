//! Unicode classes of characters, as pre-tokenizer patterns name them.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};

/// `\p{L}`
pub(crate) const LETTER: u8 = 1;
/// `\p{M}`
pub(crate) const MARK: u8 = 2;
/// `\p{N}`
pub(crate) const NUMBER: u8 = 4;
/// `\s`
pub(crate) const SPACE: u8 = 8;
/// `\p{P}`
pub(crate) const PUNCTUATION: u8 = 16;
/// `\p{S}`
pub(crate) const SYMBOL: u8 = 32;

/// One byte of class bits for each code point.
pub(crate) struct Classes(Vec<u8>);

impl Classes {
    /// The table, made at first use.
    pub(crate) fn get() -> &'static Self {
        static TABLE: OnceLock<Classes> = OnceLock::new();
        TABLE.get_or_init(|| {
            let mut table = vec![0u8; 0x11_0000];
            let classes = [
                (r"\p{L}", LETTER),
                (r"\p{M}", MARK),
                (r"\p{N}", NUMBER),
                (r"\s", SPACE),
                (r"\p{P}", PUNCTUATION),
                (r"\p{S}", SYMBOL),
            ];
            for (pattern, bit) in classes {
                let Ok(parsed) = regex_syntax::parse(pattern) else { continue };
                let HirKind::Class(Class::Unicode(class)) = parsed.kind() else { continue };
                for range in class.ranges() {
                    for bits in &mut table[range.start() as usize..=range.end() as usize] {
                        *bits |= bit;
                    }
                }
            }
            Self(table)
        })
    }

    /// The class bits of a character.
    #[inline]
    pub(crate) fn of(&self, c: char) -> u8 {
        self.0[c as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_filled() {
        let classes = Classes::get();
        assert_eq!(classes.of('a'), LETTER);
        assert_eq!(classes.of('\u{301}'), MARK);
        assert_eq!(classes.of('½'), NUMBER);
        assert_eq!(classes.of('\u{3000}'), SPACE);
        assert_eq!(classes.of('!'), PUNCTUATION);
        assert_eq!(classes.of('+'), SYMBOL);
        assert_eq!(classes.of('\0'), 0);
    }
}
