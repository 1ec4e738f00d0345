//! The tokens of a tiny checkpoint: control tokens, one token a byte, special tokens, padding.

use crate::table::Tokenizer;

/// Tokens a checkpoint of a named shape has at least: these and 11 special ones.
pub(crate) const SMALLEST: u64 = 3 + 256 + 11;

/// `tokenizer.ggml.token_type` of ordinary, control and unused tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// The printable character GPT-2's tokenizer writes for each byte: the byte's own where it is printable, else one of
/// 256, 257, ... in order.
pub(crate) fn byte_alphabet() -> [char; 256] {
    let plain = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let (mut alphabet, mut next) = (['\0'; 256], 256);
    for (b, c) in (0_u32..).zip(&mut alphabet) {
        let code = if plain(b) {
            b
        } else {
            next += 1;
            next - 1
        };
        *c = char::from_u32(code).unwrap_or('\0');
    }
    alphabet
}

/// All tokens with their types.
pub(crate) fn vocabulary(tokenizer: &Tokenizer) -> Vec<(String, i32)> {
    let mut tokens: Vec<(String, i32)> = ["<unk>", "<s>", "</s>"].map(|t| (t.to_owned(), CONTROL)).to_vec();
    tokens.extend(byte_alphabet().iter().map(|c| (c.to_string(), NORMAL)));
    tokens.extend(tokenizer.specials.iter().map(|t| (t.clone(), CONTROL)));
    for i in tokens.len()..tokenizer.size {
        tokens.push((format!("[PAD{i}]"), UNUSED));
    }
    tokens
}
