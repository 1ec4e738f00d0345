//! Text to read: plain sentences, never the same twice.

use ns_llm::philox::philox4x32_10;

const NOUNS: [&str; 16] = [
    "river", "garden", "sailor", "window", "mountain", "teacher", "letter", "market", "forest", "doctor", "bridge",
    "painter", "village", "engine", "winter", "library",
];
const QUALITIES: [&str; 16] = [
    "old", "quiet", "green", "distant", "careful", "bright", "narrow", "friendly", "heavy", "early", "famous",
    "simple", "strange", "warm", "silent", "young",
];
const DOINGS: [&str; 8] =
    ["watched", "followed", "remembered", "described", "painted", "crossed", "repaired", "visited"];

/// Sentence `index` of the text `salt`.
fn sentence(salt: u64, index: u32) -> String {
    let words = philox4x32_10([index, 0, 0, 0], [salt as u32, (salt >> 32) as u32]);
    let pick = |list: &[&'static str], bits: u32| list[bits as usize % list.len()];
    format!(
        "The {} {} {} the {} {} near the {}. ",
        pick(&QUALITIES, words[0]),
        pick(&NOUNS, words[0] >> 8),
        pick(&DOINGS, words[1]),
        pick(&QUALITIES, words[1] >> 8),
        pick(&NOUNS, words[2]),
        pick(&NOUNS, words[2] >> 8),
    )
}

/// So many sentences. A number at the start tells the text from every other.
pub fn text(salt: u64, sentences: usize) -> String {
    let begin = format!("{} ", salt % 10_000);
    (0..sentences).map(|i| sentence(salt, i as u32)).fold(begin, |text, next| text + &next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_repeat_by_their_salt_alone() {
        assert_eq!(text(7, 5), text(7, 5));
        assert_ne!(text(7, 5)[5..], text(8, 5)[5..]);
        assert!(text(7, 6).starts_with(&text(7, 5)) && text(7, 3).matches(". ").count() == 3);
    }
}
