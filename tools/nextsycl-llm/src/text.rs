//! The text side of a model as the commands need it: tokens in, tokens out.

use serde_json::{Map, Value};

/// Why a text could not become tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The model's chat template refuses the messages, in its own words.
    #[error("the model's chat template refuses these messages: {0}")]
    Template(String),
    /// The model cannot do it.
    #[error("{0}")]
    Other(String),
}

/// A tokenizer with a chat template.
pub trait Text: Send + Sync {
    /// Tokens of a text, with the begin-of-sequence token where the model wants one. Nothing in the text becomes a
    /// control token.
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError>;
    /// Tokens of a conversation up to where the assistant's answer begins. `messages` have `role` and `content`;
    /// `variables` are further inputs of the template. Message content never becomes control tokens.
    fn chat(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<Vec<u32>, TextError>;
    /// A token's bytes; control tokens have none.
    fn bytes(&self, token: u32) -> Vec<u8>;
    /// A token in words, control tokens by their names.
    fn name(&self, token: u32) -> String;
    /// Whether a token ends an answer.
    fn is_end(&self, token: u32) -> bool;
    /// Number of tokens.
    fn len(&self) -> usize;
}
