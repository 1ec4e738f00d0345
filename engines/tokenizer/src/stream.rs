//! Text out of tokens as they come.

use crate::tokenizer::Tokenizer;

/// Joins bytes to text and holds an incomplete character back until it is whole.
///
/// However the bytes are cut into pieces, the text is the same: that of [`String::from_utf8_lossy`] on all of them.
#[derive(Debug, Clone, Default)]
pub struct Utf8Hold {
    held: Vec<u8>,
}

impl Utf8Hold {
    /// Takes bytes, returns the text that is certain now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(good) => {
                    text.push_str(good);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(good));
                    rest = bad;
                    let Some(length) = error.error_len() else { break }; // may still become whole
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        let kept = rest.len();
        self.held.drain(..self.held.len() - kept);
        text
    }

    /// Ends the text: a character that never became whole is one U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = if self.held.is_empty() { "" } else { "\u{FFFD}" };
        self.held.clear();
        text.to_string()
    }

    /// Bytes held back.
    pub fn held(&self) -> &[u8] {
        &self.held
    }
}

/// Turns the tokens of an answer into text, one at a time.
///
/// Control tokens give no text, see [`Tokenizer::visible_bytes`].
#[derive(Debug, Clone, Default)]
pub struct TokenStream {
    hold: Utf8Hold,
}

impl TokenStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a token, returns the text that is certain now (often empty).
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.hold.push(tokenizer.visible_bytes(id))
    }

    /// Ends the answer: a character that never became whole is one U+FFFD.
    pub fn finish(&mut self) -> String {
        self.hold.finish()
    }
}
