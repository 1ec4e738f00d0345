//! What can go wrong.

use crate::split::known_pre_tokenizers;

/// Why a vocabulary or a template could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file lacks a key the tokenizer needs.
    #[error("the model file has no usable `{key}`: it cannot be tokenized for")]
    Missing {
        /// The metadata key.
        key: &'static str,
    },
    /// Two tables that must have the same length do not.
    #[error("`{key}` has {found} entries, expected {expected} (one for each token)")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Entries in the file.
        found: usize,
        /// Tokens in the file.
        expected: usize,
    },
    /// `tokenizer.ggml.model` names a kind of tokenizer that is not implemented.
    #[error("tokenizer model \"{0}\" (tokenizer.ggml.model) is not supported; known: gpt2, llama")]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented. Guessing another would give wrong tokens.
    #[error("pre-tokenizer \"{0}\" (tokenizer.ggml.pre) is not supported; known: {known}", known = known_pre_tokenizers().collect::<Vec<_>>().join(", "))]
    UnknownPreTokenizer(String),
    /// An id outside the vocabulary.
    #[error("`{key}` is {id}, but there are only {tokens} tokens")]
    IdOutOfRange {
        /// The metadata key.
        key: &'static str,
        /// The id.
        id: u64,
        /// Tokens in the file.
        tokens: usize,
    },
    /// An entry of `tokenizer.ggml.merges` is not two symbols with a space between.
    #[error("tokenizer.ggml.merges[{index}] is not two symbols separated by a space")]
    BadMerge {
        /// Position in the list.
        index: usize,
    },
    /// The chat template cannot be parsed.
    #[error("the chat template cannot be read: {0}")]
    TemplateSyntax(String),
    /// The chat template itself refuses the messages (its `raise_exception`). The caller's request is at fault.
    #[error("{0}")]
    Refused(String),
    /// The chat template failed while running.
    #[error("the chat template failed: {0}")]
    TemplateFailed(String),
    /// The template needed more steps or memory than a template may use.
    #[error("the chat template ran for too long or produced too much text")]
    TemplateTooLong,
    /// The template takes message contents apart in a way that would let them pass for control tokens.
    #[error("the chat template mixes message contents and control tokens in a way that cannot be kept apart safely")]
    Entangled,
    /// A message that cannot be understood.
    #[error("{0}")]
    BadMessage(String),
}

impl Error {
    /// Whether the request is at fault (its messages), rather than the model file.
    pub fn is_request_fault(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::BadMessage(_) | Self::Entangled)
    }
}
