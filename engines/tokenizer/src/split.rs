//! Pre-tokenizers: how a text is cut into words before byte pairs are merged.
//!
//! A pre-tokenizer is a list of stages; each cuts every piece the stage before left, and sees nothing outside that
//! piece. Text between two matches of a stage's pattern is a piece of its own, so nothing is ever lost. The patterns
//! are those of llama.cpp (`src/llama-vocab.cpp`, b11434), matched by hand: one pass, no backtracking, so that no
//! input makes them slow. The tests compare them with the patterns themselves.

use crate::class::{Classes, LETTER, MARK, NUMBER, PUNCTUATION, SPACE};

/// One stage of a pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// `\p{N}{1,max}`; 0 means no limit.
    Numbers { max: usize },
    /// `[0-9][0-9][0-9]`
    ThreeDigits,
    /// `[\p{P}\$\+<=>\^~\|]+`, with or without the backtick.
    Punctuation { backtick: bool },
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`
    Gpt2,
    /// `(?:'[sS]|..)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    /// with `marks`: `[\p{L}\p{M}]+` and `[^\s\p{L}\p{M}\p{N}]+`; `digits` 0 means no limit.
    Words { digits: usize, marks: bool, contractions: bool },
}

/// A pre-tokenizer: its stages, and whether a word that is a token is taken whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    pub(crate) stages: &'static [Stage],
    pub(crate) ignore_merges: bool,
    /// Whether a beginning-of-sequence token is added when the file does not say.
    pub(crate) add_bos: bool,
    /// Whether the file's beginning-of-sequence token is real.
    pub(crate) has_bos: bool,
}

const GPT2: &[Stage] = &[Stage::Gpt2];
const DIGITS_THEN_GPT2: &[Stage] = &[Stage::Numbers { max: 1 }, Stage::Gpt2];
const WORDS_1: &[Stage] = &[Stage::Words { digits: 1, marks: false, contractions: true }];
const WORDS_3: &[Stage] = &[Stage::Words { digits: 3, marks: false, contractions: true }];
const WORDS_MARKS: &[Stage] = &[Stage::Words { digits: 1, marks: true, contractions: true }];
const WORDS_PLAIN: &[Stage] = &[Stage::Words { digits: 1, marks: false, contractions: false }];
const DIGITS_THEN_WORDS: &[Stage] =
    &[Stage::Numbers { max: 3 }, Stage::Words { digits: 0, marks: false, contractions: true }];
const FALCON: &[Stage] = &[Stage::Punctuation { backtick: true }, Stage::Gpt2, Stage::ThreeDigits];
const DEFAULT: &[Stage] =
    &[Stage::Punctuation { backtick: false }, Stage::Gpt2, Stage::Numbers { max: 0 }, Stage::ThreeDigits];

/// Names of `tokenizer.ggml.pre`, their stages, and whether merges are ignored for whole-word tokens.
const KNOWN: &[(&str, &[Stage], bool)] = &[
    ("default", DEFAULT, false),
    ("smollm", DIGITS_THEN_GPT2, false),
    ("starcoder", DIGITS_THEN_GPT2, false),
    ("refact", DIGITS_THEN_GPT2, false),
    ("command-r", DIGITS_THEN_GPT2, false),
    ("codeshell", DIGITS_THEN_GPT2, false),
    ("exaone", DIGITS_THEN_GPT2, false),
    ("minerva-7b", DIGITS_THEN_GPT2, false),
    ("mellum2", DIGITS_THEN_GPT2, false),
    ("gpt-2", GPT2, false),
    ("phi-2", GPT2, false),
    ("mpt", GPT2, false),
    ("olmo", GPT2, false),
    ("jais", GPT2, false),
    ("trillion", GPT2, false),
    ("granite-docling", GPT2, false),
    ("exaone4", GPT2, false),
    ("a.x-4.0", GPT2, false),
    ("mellum", GPT2, false),
    ("gigachat", GPT2, false),
    ("modern-bert", GPT2, false),
    ("qwen2", WORDS_1, false),
    ("deepseek-r1-qwen", WORDS_1, false),
    ("stablelm2", WORDS_1, false),
    ("hunyuan", WORDS_1, false),
    ("solar-open", WORDS_1, false),
    ("megrez", WORDS_1, false),
    ("grok-2", WORDS_1, false),
    ("qwen35", WORDS_MARKS, false),
    ("ufakzeka", WORDS_PLAIN, false),
    ("llama3", WORDS_3, true),
    ("llama-v3", WORDS_3, true),
    ("llama-bpe", WORDS_3, true),
    ("falcon3", WORDS_3, true),
    ("falcon-h1", WORDS_3, true),
    ("pixtral", WORDS_3, true),
    ("midm-2.0", WORDS_3, true),
    ("lfm2", WORDS_3, true),
    ("dbrx", WORDS_3, false),
    ("smaug-bpe", WORDS_3, false),
    ("chatglm-bpe", WORDS_3, false),
    ("glm4", WORDS_3, true),
    ("glm5", WORDS_3, true),
    ("minicpm5", DIGITS_THEN_WORDS, true),
    ("falcon", FALCON, false),
];

/// The names of `tokenizer.ggml.pre` that are implemented.
pub fn known_pre_tokenizers() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|entry| entry.0)
}

impl PreTokenizer {
    /// The pre-tokenizer of a name, if it is known.
    pub(crate) fn named(name: &str) -> Option<Self> {
        KNOWN.iter().find(|entry| entry.0 == name).map(|&(name, stages, ignore_merges)| Self {
            stages,
            ignore_merges,
            add_bos: stages == WORDS_3 && ignore_merges && !name.starts_with("glm"),
            has_bos: !matches!(name, "chatglm-bpe" | "glm4" | "glm5"),
        })
    }

    /// Calls `out` with each piece of `text`, in order; together they are the whole text.
    pub(crate) fn split<'t>(&self, text: &'t str, out: &mut impl FnMut(&'t str)) {
        split_stages(self.stages, Classes::get(), text, out);
    }
}

fn split_stages<'t>(stages: &[Stage], classes: &Classes, text: &'t str, out: &mut dyn FnMut(&'t str)) {
    let Some((stage, rest)) = stages.split_first() else {
        if !text.is_empty() {
            out(text);
        }
        return;
    };
    let scan = Scan { text, classes };
    let mut at = 0;
    while at < text.len() {
        let end = stage.next(&scan, at);
        debug_assert!(end > at);
        split_stages(rest, classes, &text[at..end], out);
        at = end;
    }
}

/// A text with class look-ups.
struct Scan<'a> {
    text: &'a str,
    classes: &'a Classes,
}

impl Scan<'_> {
    fn char_at(&self, at: usize) -> Option<char> {
        self.text.get(at..).and_then(|rest| rest.chars().next())
    }

    /// Class bits of the character at `at`; `None` at the end.
    fn class_at(&self, at: usize) -> Option<u8> {
        self.char_at(at).map(|c| self.classes.of(c))
    }

    /// End of the run from `from` of characters that `keep` accepts.
    fn run(&self, from: usize, keep: impl Fn(char, u8) -> bool) -> usize {
        self.text[from..]
            .char_indices()
            .find(|&(_, c)| !keep(c, self.classes.of(c)))
            .map_or(self.text.len(), |(offset, _)| from + offset)
    }

    /// End of at most `max` characters (0: any number) from `from` that `keep` accepts.
    fn run_of(&self, from: usize, max: usize, keep: impl Fn(char, u8) -> bool) -> usize {
        if max == 0 {
            return self.run(from, keep);
        }
        let mut end = from;
        for c in self.text[from..].chars().take(max) {
            if !keep(c, self.classes.of(c)) {
                break;
            }
            end += c.len_utf8();
        }
        end
    }

    /// Length of a contraction ('s, 't, 're, 've, 'm, 'll, 'd) at `at`, 0 if there is none.
    fn contraction(&self, at: usize, any_case: bool) -> usize {
        let bytes = &self.text.as_bytes()[at..];
        if bytes.first() != Some(&b'\'') {
            return 0;
        }
        let letter = |i: usize| {
            let byte = bytes.get(i).copied().unwrap_or(0);
            if any_case { byte.to_ascii_lowercase() } else { byte }
        };
        match (letter(1), letter(2)) {
            (b's' | b't' | b'm' | b'd', _) => 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => 3,
            _ => 0,
        }
    }

    /// White space from `at` as `\s+(?!\S)` takes it: all of it at the end of the text, else all but the last
    /// character, else (a single one) that one.
    fn spaces(&self, at: usize) -> usize {
        let end = self.run(at, |_, class| class & SPACE != 0);
        if end == self.text.len() {
            return end;
        }
        let last = self.text[at..end].chars().next_back().map_or(0, char::len_utf8);
        if end - last > at { end - last } else { end }
    }
}

impl Stage {
    /// End of the piece (a match, or the text up to the next match) that begins at `at`, which is before the end.
    fn next(&self, scan: &Scan<'_>, at: usize) -> usize {
        match *self {
            Self::Numbers { max } => match scan.run_of(at, max, |_, class| class & NUMBER != 0) {
                end if end > at => end,
                _ => scan.run(at, |_, class| class & NUMBER == 0),
            },
            Self::ThreeDigits => three_digits(scan.text, at),
            Self::Punctuation { backtick } => {
                let is = |c: char, class: u8| {
                    class & PUNCTUATION != 0
                        || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
                        || (backtick && c == '`')
                };
                match scan.run(at, is) {
                    end if end > at => end,
                    _ => scan.run(at, |c, class| !is(c, class)),
                }
            }
            Self::Gpt2 => gpt2(scan, at),
            Self::Words { digits, marks, contractions } => words(scan, at, digits, marks, contractions),
        }
    }
}

fn three_digits(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let is = |i: usize| bytes[i..].len() >= 3 && bytes[i..i + 3].iter().all(u8::is_ascii_digit);
    if is(at) {
        return at + 3;
    }
    (at + 1..bytes.len()).find(|&i| is(i)).unwrap_or(bytes.len())
}

fn gpt2(scan: &Scan<'_>, at: usize) -> usize {
    let contraction = scan.contraction(at, false);
    if contraction > 0 {
        return at + contraction;
    }
    let from = if scan.text.as_bytes()[at] == b' ' { at + 1 } else { at };
    match scan.class_at(from) {
        Some(class) if class & SPACE == 0 => {
            let kind = class & (LETTER | NUMBER);
            scan.run(from, |_, class| class & SPACE == 0 && class & (LETTER | NUMBER) == kind)
        }
        _ => scan.spaces(at),
    }
}

fn words(scan: &Scan<'_>, at: usize, digits: usize, marks: bool, contractions: bool) -> usize {
    let contraction = if contractions { scan.contraction(at, true) } else { 0 };
    if contraction > 0 {
        return at + contraction;
    }
    let word = if marks { LETTER | MARK } else { LETTER };
    let Some(first) = scan.char_at(at) else { return at };
    let class = scan.classes.of(first);
    if class & word != 0 {
        return scan.run(at, |_, class| class & word != 0);
    }
    if class & NUMBER != 0 {
        return scan.run_of(at, digits, |_, class| class & NUMBER != 0);
    }
    let second = at + first.len_utf8();
    if !matches!(first, '\r' | '\n') && scan.class_at(second).is_some_and(|class| class & word != 0) {
        return scan.run(second, |_, class| class & word != 0);
    }
    let none_of = SPACE | NUMBER | word;
    let from = if first == ' ' { second } else { at };
    let end = scan.run(from, |_, class| class & none_of == 0);
    if end > from {
        return scan.run(end, |c, _| matches!(c, '\r' | '\n'));
    }
    // White space: up to its last line end, else as `\s+(?!\S)` and `\s+` take it.
    let end = scan.run(at, |_, class| class & SPACE != 0);
    if let Some(line) = scan.text[at..end].rfind(['\r', '\n']) {
        return at + line + 1;
    }
    scan.spaces(at)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        PreTokenizer::named(name).expect("a known name").split(text, &mut |word| words.push(word));
        assert_eq!(words.concat(), text, "nothing may be lost");
        words
    }

    #[derive(serde::Deserialize)]
    struct Case {
        text: String,
        words: HashMap<String, Vec<usize>>,
    }

    /// Lengths of words from llama.cpp's own `unicode_regex_split` (tests/reference/splits.py).
    #[test]
    fn words_equal_llama_cpp() {
        let file = std::env::var("NS_SPLITS").map_or_else(
            |_| include_str!("../tests/fixtures/splits.json").to_string(),
            |path| std::fs::read_to_string(path).expect("NS_SPLITS can be read"),
        );
        let cases: Vec<Case> = serde_json::from_str(&file).expect("the fixture is read");
        assert!(cases.len() > 50);
        let mut compared = HashMap::new();
        for case in &cases {
            for (name, lengths) in &case.words {
                let got: Vec<usize> = words(name, &case.text).iter().map(|word| word.len()).collect();
                assert_eq!(&got, lengths, "{name}: {:?}: {:?}", case.text, words(name, &case.text));
                *compared.entry(name.as_str()).or_insert(0) += 1;
            }
        }
        assert_eq!(compared.len(), 9);
        assert!(compared.values().all(|&n| n > 50), "{compared:?}");
    }

    const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
    const ENDS: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
    const QWEN35: &str =
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn word_pattern(digits: &str) -> String {
        format!(
            r"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    }

    /// The patterns of every pre-tokenizer, as llama.cpp writes them.
    fn patterns() -> Vec<(&'static str, Vec<Regex>)> {
        let list: Vec<(&str, Vec<String>)> = vec![
            (
                "default",
                vec![r"[\p{P}\$\+<=>\^~\|]+".into(), GPT2_PATTERN.into(), r"\p{N}+".into(), "[0-9][0-9][0-9]".into()],
            ),
            ("falcon", vec![r"[\p{P}\$\+<=>\^~\|`]+".into(), GPT2_PATTERN.into(), "[0-9][0-9][0-9]".into()]),
            ("smollm", vec![r"\p{N}".into(), GPT2_PATTERN.into()]),
            ("gpt-2", vec![GPT2_PATTERN.into()]),
            ("qwen2", vec![format!("{ENDS}|{}", word_pattern(""))]),
            ("qwen35", vec![format!("{ENDS}|{QWEN35}")]),
            ("ufakzeka", vec![word_pattern("")]),
            ("glm4", vec![format!("{ENDS}|{}", word_pattern("{1,3}"))]),
            ("minicpm5", vec![r"\p{N}{1,3}".into(), format!("{ENDS}|{}", word_pattern("+"))]),
        ];
        let compile = |pattern: &String| Regex::new(pattern).expect("a good pattern");
        list.into_iter().map(|(name, list)| (name, list.iter().map(compile).collect())).collect()
    }

    fn by_patterns<'t>(patterns: &[Regex], text: &'t str) -> Vec<&'t str> {
        patterns.iter().fold(vec![text], |pieces, pattern| {
            let mut out = Vec::new();
            for piece in pieces {
                let mut at = 0;
                for found in pattern.find_iter(piece) {
                    let found = found.expect("a short text");
                    out.push(&piece[at..found.start()]);
                    out.push(found.as_str());
                    at = found.end();
                }
                out.push(&piece[at..]);
            }
            out.retain(|piece| !piece.is_empty());
            out
        })
    }

    #[test]
    fn every_character_between_letters_digits_and_spaces() {
        let patterns = patterns();
        for first in (0..0x3_2000u32).chain(0xE_0000..0xE_0200).step_by(64) {
            let block: Vec<char> = (first..first + 64).filter_map(char::from_u32).collect();
            let text: String = block.iter().flat_map(|&c| ['a', c, ' ', c, '1', c, c, '\n', ' ']).collect();
            for (name, patterns) in &patterns {
                assert_eq!(words(name, &text), by_patterns(patterns, &text), "{name} from U+{first:04X}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn words_equal_the_patterns(text in "([ \\n\\r\\t\u{a0}\u{3000}'a-dA-Zlrvetsm\u{301}é½0-9你!<>$+`|.\u{0}]|\\PC){0,40}") {
            thread_local!(static PATTERNS: Vec<(&'static str, Vec<Regex>)> = patterns());
            PATTERNS.with(|patterns| {
                for (name, patterns) in patterns {
                    assert_eq!(words(name, &text), by_patterns(patterns, &text), "{name}: {text:?}");
                }
            });
        }
    }

    #[test]
    fn names() {
        assert!(PreTokenizer::named("gpt-5").is_none());
        assert_eq!(PreTokenizer::named("glm5").map(|p| p.ignore_merges), Some(true));
        assert_eq!(PreTokenizer::named("chatglm-bpe").map(|p| p.ignore_merges), Some(false));
        assert_eq!(PreTokenizer::named("llama-bpe").map(|p| (p.add_bos, p.has_bos)), Some((true, true)));
        assert_eq!(PreTokenizer::named("glm4").map(|p| (p.add_bos, p.has_bos)), Some((false, false)));
    }
}
