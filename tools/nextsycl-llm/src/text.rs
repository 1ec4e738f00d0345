//! The text side of a model as the commands need it: tokens in, tokens out.

use crate::failure::{Failure, Outcome};
use ns_tokenizer::{ChatRequest, ChatTemplate, Message, Metadata, Tokenizer, Turns};
use ns_weights::ModelFile;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

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
    /// Where the turns of a conversation are in its tokens, as [`Text::chat`] gave them.
    fn turns(&self, messages: &[Value], variables: &Map<String, Value>, tokens: &[u32]) -> Turns;
    /// A token's bytes; control tokens have none.
    fn bytes(&self, token: u32) -> Vec<u8>;
    /// A token in words, control tokens by their names.
    fn name(&self, token: u32) -> String;
    /// Whether a token ends an answer.
    fn is_end(&self, token: u32) -> bool;
}

/// The tokenizer and template of a model file.
struct FileText {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Text for FileText {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        Ok(self.tokenizer.encode_prompt(text, false))
    }

    fn chat(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<Vec<u32>, TextError> {
        let request = chat_request(messages, variables)?;
        self.template.encode(&self.tokenizer, &request).map_err(|e| match e {
            ns_tokenizer::Error::Refused(words) => TextError::Template(words),
            other => TextError::Other(other.to_string()),
        })
    }

    fn turns(&self, messages: &[Value], variables: &Map<String, Value>, tokens: &[u32]) -> Turns {
        let request = chat_request(messages, variables);
        request.map(|request| self.template.turns(&self.tokenizer, &request, tokens)).unwrap_or_default()
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.visible_bytes(token).to_vec()
    }

    fn name(&self, token: u32) -> String {
        self.tokenizer.token_text(token).unwrap_or_default().to_owned()
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.is_end(token)
    }
}

fn chat_request(messages: &[Value], variables: &Map<String, Value>) -> Result<ChatRequest, TextError> {
    let mut variables = variables.clone();
    let enable_thinking = variables.shift_remove("enable_thinking").and_then(|v| v.as_bool());
    let messages = messages
        .iter()
        .map(|m| serde_json::from_value::<Message>(m.clone()).map_err(|e| TextError::Other(e.to_string())))
        .collect::<Result<_, _>>()?;
    Ok(ChatRequest { messages, add_generation_prompt: true, enable_thinking, variables, ..ChatRequest::default() })
}

/// A model file's metadata as the tokenizer reads it.
struct Keys<'a>(&'a ModelFile);

impl Metadata for Keys<'_> {
    fn text(&self, key: &str) -> Option<String> {
        self.0.get_str(key).map(str::to_owned)
    }

    fn unsigned(&self, key: &str) -> Option<u64> {
        self.0.get_u64(key)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0.get_bool(key)
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
        Some(self.0.get_array_str(key)?.into_iter().map(str::to_owned).collect())
    }

    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.0.get_array_i64(key)
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.0.get_array_f32(key)
    }
}

fn open_file(file: &Path) -> Outcome<ModelFile> {
    ModelFile::open(file).map_err(|e| Failure::error(e.to_string()))
}

/// The text side of a model file.
pub fn open(file: &Path) -> Outcome<Arc<dyn Text>> {
    let wrong = |e: ns_tokenizer::Error| Failure::error(format!("{}: {e}", file.display()));
    let tokenizer = Tokenizer::from_metadata(&Keys(&open_file(file)?)).map_err(wrong)?;
    let template = ChatTemplate::of(&tokenizer).map_err(wrong)?;
    Ok(Arc::new(FileText { tokenizer, template }))
}

/// `general.architecture` of a model file.
pub fn architecture(file: &Path) -> Outcome<String> {
    Ok(open_file(file)?.architecture().to_owned())
}

/// Bytes of each tensor that tell models of one shape apart.
const SAMPLE: usize = 4096;

/// What tells a model from others: SHA-256 of its headers, its size, and a sample of each tensor. Its place does not matter.
pub fn identity(file: &Path) -> Outcome<[u8; 32]> {
    let file = open_file(file)?;
    let mut hash = Sha256::new();
    file.headers().for_each(|header| hash.update(header));
    hash.update(file.file_bytes().to_le_bytes());
    for tensor in file.tensors() {
        hash.update(&tensor.data[..SAMPLE.min(tensor.data.len())]);
    }
    Ok(hash.finalize().into())
}
