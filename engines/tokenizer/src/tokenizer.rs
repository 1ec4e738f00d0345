//! The tokenizer.

use crate::bpe::{Alphabet, Bpe, Scratch};
use crate::error::Error;
use crate::sentencepiece::{SPACE_MARK, SentencePiece};
use crate::special::SpecialSet;
use crate::split::PreTokenizer;
use crate::template::Segment;
use crate::vocabulary::{Metadata, TokenType, Vocabulary};

/// Texts of tokens that end an answer wherever the vocabulary has them as special tokens.
const END_TEXTS: [&str; 11] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|user|>",
    "<|observation|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<EOT>",
];

/// Special tokens that are part of an answer's text even in files that call them control tokens.
const VISIBLE_TEXTS: [&str; 10] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

enum Kind {
    Bpe { pre: PreTokenizer, bpe: Box<Bpe> },
    SentencePiece { model: Box<SentencePiece>, space_prefix: bool },
}

/// Turns text into token ids and ids into bytes.
///
/// Cheap to share (`&Tokenizer` is all that any call needs); nothing is cached between calls.
pub struct Tokenizer {
    kind: Kind,
    texts: Vec<String>,
    types: Vec<TokenType>,
    /// Bytes of each token.
    bytes: Vec<Box<[u8]>>,
    /// Every special token.
    special: SpecialSet,
    /// The special tokens that ordinary text becomes too: user-defined runs of white space.
    blank: SpecialSet,
    ends: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    chat_template: Option<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// As [`Vocabulary::from_metadata`] and [`Tokenizer::new`].
    pub fn from_metadata(file: &dyn Metadata) -> Result<Self, Error> {
        Self::new(Vocabulary::from_metadata(file)?)
    }

    /// A tokenizer from its tables.
    ///
    /// # Errors
    /// If the kind of tokenizer or its pre-tokenizer is not known, or the tables do not fit together.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        let Vocabulary { model, pre, tokens, types, scores, merges, bos, eos, eot, eom, unknown, .. } = vocabulary;
        let n = tokens.len();
        if types.len() != n {
            return Err(Error::Length { key: "tokenizer.ggml.token_type", found: types.len(), expected: n });
        }
        let given = [("bos_token_id", bos), ("eos_token_id", eos), ("eot_token_id", eot), ("eom_token_id", eom)];
        for (key, id) in given.into_iter().chain([("unknown_token_id", unknown)]) {
            if let Some(id) = id.filter(|&id| id as usize >= n) {
                return Err(Error::IdOutOfRange { key, id: u64::from(id), tokens: n });
            }
        }
        let types: Vec<TokenType> = types.into_iter().map(TokenType::from_number).collect();
        let plain = |id: usize| matches!(types[id], TokenType::Normal | TokenType::Unused | TokenType::Byte);
        let raw = |id: usize| tokens[id].clone().into_bytes();
        let (kind, bytes, has_bos, usual_bos): (Kind, Vec<Box<[u8]>>, bool, bool) = match model.as_str() {
            "gpt2" => {
                let name = pre.ok_or(Error::Missing { key: "tokenizer.ggml.pre" })?;
                let pre = PreTokenizer::named(&name).ok_or(Error::UnknownPreTokenizer(name))?;
                if merges.is_empty() {
                    return Err(Error::Missing { key: "tokenizer.ggml.merges" });
                }
                let alphabet = Alphabet::new();
                let mapped = |id: usize| if plain(id) { alphabet.bytes(&tokens[id]) } else { None };
                let bpe = Box::new(Bpe::new(n, mapped, &merges, pre.ignore_merges)?);
                let bytes = (0..n).map(|id| mapped(id).unwrap_or_else(|| raw(id)).into()).collect();
                (Kind::Bpe { pre, bpe }, bytes, pre.has_bos, pre.add_bos)
            }
            "llama" => {
                if scores.len() != n {
                    return Err(Error::Length { key: "tokenizer.ggml.scores", found: scores.len(), expected: n });
                }
                let mut byte_tokens = [None; 256];
                let mut bytes = Vec::with_capacity(n);
                for (id, text) in tokens.iter().enumerate() {
                    let byte = byte_text(text).filter(|_| types[id] == TokenType::Byte);
                    if let Some(byte) = byte {
                        byte_tokens[usize::from(byte)].get_or_insert(id as u32);
                    }
                    bytes.push(match byte {
                        Some(byte) => vec![byte].into(),
                        None if types[id] == TokenType::Control => raw(id).into(),
                        None => text.replace(SPACE_MARK, " ").into_bytes().into(),
                    });
                }
                let normal = |id: &usize| matches!(types[*id], TokenType::Normal | TokenType::Unused);
                let pieces = (0..n).filter(normal).map(|id| (tokens[id].as_str(), id as u32));
                let model = Box::new(SentencePiece::new(pieces, scores, byte_tokens, unknown));
                let space_prefix = vocabulary.add_space_prefix.unwrap_or(true);
                (Kind::SentencePiece { model, space_prefix }, bytes, true, true)
            }
            _ => return Err(Error::UnknownModel(model)),
        };

        let special_ids: Vec<u32> = (0..n as u32)
            .filter(|&id| matches!(types[id as usize], TokenType::Control | TokenType::UserDefined))
            .filter(|&id| !tokens[id as usize].is_empty() && !tokens[id as usize].starts_with("[PAD"))
            .collect();
        // User-defined texts are written with ordinary spaces where SentencePiece's vocabulary marks them.
        let special_text = |id: u32| match kind {
            Kind::SentencePiece { .. } if types[id as usize] == TokenType::UserDefined => {
                tokens[id as usize].replace(SPACE_MARK, " ")
            }
            _ => tokens[id as usize].clone(),
        };
        let texts: Vec<(String, u32)> = special_ids.iter().map(|&id| (special_text(id), id)).collect();
        let is_blank = |entry: &&(String, u32)| {
            types[entry.1 as usize] == TokenType::UserDefined && entry.0.chars().all(char::is_whitespace)
        };
        let special = SpecialSet::new(texts.iter().map(|(text, id)| (text.as_str(), *id)));
        let blank = SpecialSet::new(texts.iter().filter(is_blank).map(|(text, id)| (text.as_str(), *id)));
        let mut ends: Vec<u32> = [eos, eot, eom].into_iter().flatten().collect();
        ends.extend(special_ids.iter().filter(|&&id| END_TEXTS.contains(&tokens[id as usize].as_str())));
        ends.sort_unstable();
        ends.dedup();
        Ok(Self {
            kind,
            bytes,
            special,
            blank,
            ends,
            bos: bos.filter(|_| has_bos),
            eos,
            add_bos: vocabulary.add_bos.unwrap_or(usual_bos),
            chat_template: vocabulary.chat_template,
            texts: tokens,
            types,
        })
    }

    /// Token ids of a text, without a beginning-of-sequence token.
    ///
    /// With `parse_special` off nothing in the text becomes a control token or a user-defined one, except that
    /// user-defined runs of white space (Gemma's) count as ordinary text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        self.encode_segments(&[Segment { text: text.to_string(), trusted: parse_special }])
    }

    /// As [`Tokenizer::encode`], with the beginning-of-sequence token in front where the model wants one and the text
    /// does not already begin with it.
    pub fn encode_prompt(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut ids = self.encode(text, parse_special);
        if let Some(bos) = self.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Token ids of the segments' joint text; special tokens are found only where all of their text is trusted.
    ///
    /// Nothing is added: a template writes its own beginning-of-sequence token.
    pub fn encode_segments(&self, segments: &[Segment]) -> Vec<u32> {
        let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        // Ends of the trusted and untrusted stretches, in turn.
        let mut stretches: Vec<(usize, bool)> = Vec::new();
        let mut end = 0;
        for segment in segments {
            end += segment.text.len();
            match stretches.last_mut() {
                Some(last) if last.1 == segment.trusted => last.0 = end,
                _ => stretches.push((end, segment.trusted)),
            }
        }
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        let mut scratch = Scratch::default();
        let bytes = text.as_bytes();
        let (mut done, mut at, mut after_special) = (0, 0, true);
        for (end, trusted) in stretches {
            while at < end {
                let byte = bytes[at];
                let mut found = None;
                if trusted && self.special.may_start(byte) {
                    found = self.special.longest(&bytes[at..end]);
                }
                if self.blank.may_start(byte) {
                    found = found.max(self.blank.longest(&bytes[at..]));
                }
                let Some((length, id)) = found else {
                    at += 1;
                    continue;
                };
                self.encode_plain(&text[done..at], after_special, &mut scratch, &mut out);
                out.push(id);
                after_special = true;
                at += length;
                done = at;
            }
        }
        self.encode_plain(&text[done..], after_special, &mut scratch, &mut out);
        out
    }

    fn encode_plain(&self, text: &str, after_special: bool, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        match &self.kind {
            Kind::Bpe { pre, bpe } => pre.split(text, &mut |word| bpe.encode(word.as_bytes(), scratch, out)),
            Kind::SentencePiece { model, space_prefix } => {
                let prefix = if *space_prefix && after_special { " " } else { "" };
                let marked: String =
                    [prefix, text].concat().chars().map(|c| if c == ' ' { SPACE_MARK } else { c }).collect();
                model.encode(&marked, out);
            }
        }
    }

    /// The bytes of the tokens one after another, control tokens as their texts. An id outside the vocabulary has no
    /// bytes.
    ///
    /// A SentencePiece model that puts a space before a text ([`Tokenizer::adds_space`]) gives that space back too.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect()
    }

    /// A token's bytes: not always whole characters. Empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// A token's bytes as a reader of an answer should see them: control tokens have none, except the marks of
    /// thinking and tool calls.
    pub fn visible_bytes(&self, id: u32) -> &[u8] {
        if self.is_control(id) && !self.texts.get(id as usize).is_some_and(|t| VISIBLE_TEXTS.contains(&t.as_str())) {
            return &[];
        }
        self.token_bytes(id)
    }

    /// A token's text as the vocabulary writes it; `None` for an id outside the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    /// The special token with exactly this text.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.special.longest(text.as_bytes()).filter(|&(length, _)| length == text.len()).map(|(_, id)| id)
    }

    /// A token's type; `None` for an id outside the vocabulary.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// Whether this is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.token_type(id) == Some(TokenType::Control)
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The tokens that end an answer, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.ends
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the vocabulary is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a plain text begins with [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// Whether a text is encoded with a space before it (SentencePiece).
    pub fn adds_space(&self) -> bool {
        matches!(self.kind, Kind::SentencePiece { space_prefix: true, .. })
    }

    /// The file's own chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Texts of the special tokens.
    pub(crate) fn special_texts(&self) -> impl Iterator<Item = &str> {
        self.texts
            .iter()
            .zip(&self.types)
            .filter(|(text, kind)| !text.is_empty() && matches!(kind, TokenType::Control | TokenType::UserDefined))
            .map(|(text, _)| text.as_str())
    }
}

/// The byte that `<0xNN>` stands for.
fn byte_text(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
