//! Text to token ids and back, and chat templates.
//!
//! The parts, each usable alone:
//!
//! - [`Vocabulary`]: what a model file says about its tokens (filled from a GGUF file by
//!   [`Vocabulary::from_metadata`], or by hand);
//! - [`Tokenizer`]: text to ids ([`Tokenizer::encode`]) and ids to bytes ([`Tokenizer::decode`]);
//! - [`TokenStream`]: ids to text as they come, never half a character;
//! - [`StopMatcher`]: cuts a stream of text before a stop string, wherever the pieces break;
//! - [`ChatTemplate`]: the file's own Jinja template, rendered to [`Segment`]s so that what a user wrote can never
//!   become a control token.
//!
//! ```
//! use ns_tokenizer::{Tokenizer, Vocabulary};
//!
//! # fn main() -> Result<(), ns_tokenizer::Error> {
//! // A vocabulary of single bytes (in GPT-2's alphabet) and one merge.
//! let mut tokens: Vec<String> = ns_tokenizer::byte_alphabet().iter().map(|c| c.to_string()).collect();
//! tokens.push("hi".to_string());
//! let vocabulary = Vocabulary {
//!     model: "gpt2".to_string(),
//!     pre: Some("gpt-2".to_string()),
//!     types: vec![1; tokens.len()],
//!     merges: vec!["h i".to_string()],
//!     tokens,
//!     ..Vocabulary::default()
//! };
//! let tokenizer = Tokenizer::new(vocabulary)?;
//! let ids = tokenizer.encode("hi!", false);
//! assert_eq!(ids, [256, 33]);
//! assert_eq!(tokenizer.decode(&ids), b"hi!");
//! # Ok(())
//! # }
//! ```

mod bpe;
mod class;
mod error;
mod gguf;
mod hash;
mod message;
mod sentencepiece;
mod special;
mod split;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use bpe::byte_alphabet;
pub use error::Error;
pub use message::{Content, Message, ToolCall};
pub use split::known_pre_tokenizers;
pub use stop::{StopMatcher, StopOutput};
pub use stream::{TokenStream, Utf8Hold};
pub use template::{ChatRequest, ChatTemplate, Segment, Turns};
pub use tokenizer::Tokenizer;
pub use vocabulary::{Metadata, TokenType, Vocabulary};
