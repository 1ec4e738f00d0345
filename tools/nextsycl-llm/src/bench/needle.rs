//! Passphrases hidden in long prompts.

use super::{Target, Wanted, show, words};
use crate::failure::{Failure, Outcome};
use crate::out;

/// Prompt sizes.
pub const SIZES: [usize; 3] = [32_768, 131_072, 250_000];
/// Where the passphrase is, in percent of the prompt.
pub const DEPTHS: [usize; 3] = [10, 50, 90];
/// Tokens of an answer at most.
pub const NEW: usize = 32;

const QUESTION: &str = "\n\nWhat is the passphrase? Answer with the number only.";

/// A text of so many sentences with the passphrase behind a part of them, and the question.
fn message(salt: u64, sentences: usize, depth: usize, passphrase: &str) -> String {
    let text = words::text(salt, sentences);
    let before = sentences * depth / 100;
    let at = text.match_indices(". ").nth(before.wrapping_sub(1)).map_or(0, |(at, end)| at + end.len());
    format!("{}The passphrase is {passphrase}. {}{QUESTION}", &text[..at], &text[at..])
}

/// Each depth of each size.
pub fn run(target: &mut dyn Target, wanted: &Wanted, report: &mut String) -> Outcome {
    let context = target.context();
    // How many tokens a sentence has here, and everything around the sentences.
    let salt = crate::serve::random();
    let few = target.ask(&message(salt, 2, 50, "123456"), 1)?.0;
    let many = target.ask(&message(salt, 12, 50, "123456"), 1)?.0;
    let sentence = (many as f64 - few as f64) / 10.0;
    if sentence <= 0.0 {
        return Err(Failure::error("a longer text has no more tokens: the prompt's size cannot be told"));
    }
    let around = few as f64 - 2.0 * sentence;
    let mut rows = vec![["Input tokens", "Depth (%)", "Found"].map(str::to_owned).to_vec()];
    let mut lost = 0;
    for &size in &wanted.sizes {
        if size + wanted.new > context {
            super::left_out(size, wanted.new, context);
            continue;
        }
        // A little less: other sentences may have a few tokens more.
        let sentences = ((size as f64 * 0.99 - around) / sentence).max(1.0) as usize;
        for &depth in &wanted.depths {
            let random = crate::serve::random();
            let passphrase = format!("{:06}", random % 1_000_000);
            target.clear()?;
            let (tokens, answer) = target.ask(&message(random, sentences, depth, &passphrase), wanted.new)?;
            let found = answer.contains(&passphrase);
            lost += usize::from(!found);
            rows.push(vec![tokens.to_string(), depth.to_string(), if found { "yes" } else { "NO" }.to_owned()]);
        }
    }
    if rows.len() == 1 {
        return Err(Failure::error(format!("no size fits the context of {context} tokens")));
    }
    show(report, &rows)?;
    let last = format!("{} of {} found", rows.len() - 1 - lost, rows.len() - 1);
    report.push_str(&format!("\n{last}\n"));
    out::line(format_args!("{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passphrase_is_at_its_depth() {
        for (depth, before) in [(0, 0), (10, 2), (50, 10), (100, 20)] {
            let text = message(3, 20, depth, "654321");
            let (head, tail) = text.split_once("The passphrase is 654321. ").unwrap();
            assert_eq!((head.matches(". ").count(), tail.matches(". ").count()), (before, 20 - before), "{depth}");
            assert!(tail.ends_with(QUESTION));
        }
    }
}
