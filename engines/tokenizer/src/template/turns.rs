//! Where the turns of a rendered conversation begin and end, in tokens.
//!
//! A template is a program: nothing in its text says what a turn is. So parts of the conversation are rendered alone and
//! compared with the whole: as far as the tokens agree, the part is a beginning of it.

use super::{ChatRequest, ChatTemplate};
use crate::message::{Content, Message};
use crate::tokenizer::Tokenizer;
use std::time::SystemTime;

/// Places in a conversation's tokens, each a number of tokens from its beginning; absent where the template has no such
/// place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turns {
    /// Behind the first turn: what comes before the first user message, and that message.
    pub first_end: Option<usize>,
    /// Where the last user message begins.
    pub last_user: Option<usize>,
    /// Where the template opens the answer, behind the last message.
    pub answer: Option<usize>,
}

impl ChatTemplate {
    /// The turns of a conversation whose tokens ([`ChatTemplate::encode`]) are `ids`.
    pub fn turns(&self, tokenizer: &Tokenizer, request: &ChatRequest, ids: &[u32]) -> Turns {
        let now = request.now.or_else(|| Some(SystemTime::now()));
        let is_user = |m: &Message| m.role == "user";
        let place = |messages: Vec<Message>, add_generation_prompt: bool| {
            let part = ChatRequest { messages, add_generation_prompt, now, ..request.clone() };
            let part = self.encode(tokenizer, &part).ok()?;
            let shared = part.iter().zip(ids).take_while(|(a, b)| a == b).count();
            (shared > 0 && shared < ids.len()).then_some(shared)
        };
        let messages = &request.messages;
        let mut turns = Turns::default();
        if request.add_generation_prompt {
            turns.answer = place(messages.clone(), false);
        }
        let (first, last) = (messages.iter().position(is_user), messages.iter().rposition(is_user));
        if let Some(first) = first {
            let rest = first + 1 < messages.len();
            turns.first_end = if rest { place(messages[..=first].to_vec(), false) } else { turns.answer };
        }
        if let Some(last) = last.filter(|&last| last > 0) {
            turns.last_user = place(messages[..last].to_vec(), false).or_else(|| {
                // Some templates refuse a conversation without a user message: then the same one with another message.
                let mut other = messages.clone();
                let text = if messages[last].content.0.trim_start().starts_with('a') { "b" } else { "a" };
                other[last].content = Content::from(text);
                place(other, request.add_generation_prompt)
            });
        }
        turns
    }
}
