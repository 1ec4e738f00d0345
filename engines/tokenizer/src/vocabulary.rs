//! What a model file says about its tokens.

use crate::error::Error;

/// Metadata of a model file, by GGUF key.
pub trait Metadata {
    /// A string.
    fn text(&self, key: &str) -> Option<String>;
    /// An integer of any width that is not negative.
    fn unsigned(&self, key: &str) -> Option<u64>;
    /// A boolean.
    fn flag(&self, key: &str) -> Option<bool>;
    /// An array of strings.
    fn texts(&self, key: &str) -> Option<Vec<String>>;
    /// An array of integers of any width.
    fn integers(&self, key: &str) -> Option<Vec<i64>>;
    /// An array of floats.
    fn floats(&self, key: &str) -> Option<Vec<f32>>;
}

/// What a token is (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// The token for text that has none.
    Unknown,
    /// A control token such as a turn marker: never made from ordinary text.
    Control,
    /// A token found as a whole before words are split.
    UserDefined,
    /// A placeholder.
    Unused,
    /// A single byte (`<0xNN>`).
    Byte,
}

impl TokenType {
    pub(crate) fn from_number(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// The tables and flags of a tokenizer, as plain data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut into words (BPE only).
    pub pre: Option<String>,
    /// Token texts, by id.
    pub tokens: Vec<String>,
    /// Token types as numbers, by id (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte).
    pub types: Vec<i32>,
    /// Scores, by id (SentencePiece only).
    pub scores: Vec<f32>,
    /// `LEFT RIGHT`, best first (BPE only).
    pub merges: Vec<String>,
    /// Beginning of a sequence.
    pub bos: Option<u32>,
    /// End of an answer.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message.
    pub eom: Option<u32>,
    /// Text without a token.
    pub unknown: Option<u32>,
    /// Whether a text begins with `bos`; `None`: as the kind of tokenizer usually does.
    pub add_bos: Option<bool>,
    /// Whether a text begins with a space of its own (SentencePiece only; usual: yes).
    pub add_space_prefix: Option<bool>,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Reads the `tokenizer.*` keys of a model file.
    ///
    /// # Errors
    /// If the model or the tokens are missing, or an id does not fit.
    pub fn from_metadata(file: &dyn Metadata) -> Result<Self, Error> {
        let missing = |key| Error::Missing { key };
        let tokens = file.texts("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let n = tokens.len();
        let id = |key: &'static str| match file.unsigned(key) {
            None => Ok(None),
            // Some writers put the largest integer for "none".
            Some(id) if id == u64::from(u32::MAX) => Ok(None),
            Some(id) if id < n as u64 => Ok(Some(id as u32)),
            Some(id) => Err(Error::IdOutOfRange { key, id, tokens: n }),
        };
        Ok(Self {
            model: file.text("tokenizer.ggml.model").ok_or_else(|| missing("tokenizer.ggml.model"))?,
            pre: file.text("tokenizer.ggml.pre"),
            types: file
                .integers("tokenizer.ggml.token_type")
                .map_or_else(|| vec![1; n], |types| types.into_iter().map(|t| i32::try_from(t).unwrap_or(0)).collect()),
            scores: file.floats("tokenizer.ggml.scores").unwrap_or_default(),
            merges: file.texts("tokenizer.ggml.merges").unwrap_or_default(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?,
            add_bos: file.flag("tokenizer.ggml.add_bos_token"),
            add_space_prefix: file.flag("tokenizer.ggml.add_space_prefix"),
            chat_template: file.text("tokenizer.chat_template").filter(|template| !template.trim().is_empty()),
            tokens,
        })
    }
}
