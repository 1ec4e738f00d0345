//! What several tests need.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ns_tokenizer::{Segment, Tokenizer, Vocabulary, byte_alphabet};

/// The bundled model's tokenizer. Its file is found through `NS_BUNDLED` (the folder of bundled models).
pub fn bundled() -> &'static Tokenizer {
    static BUNDLED: OnceLock<Tokenizer> = OnceLock::new();
    BUNDLED.get_or_init(|| {
        let folder = std::env::var_os("NS_BUNDLED").expect("NS_BUNDLED must name the folder of bundled models");
        let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
        let file = find(Path::new(&folder), name, 3);
        let file = file.unwrap_or_else(|| panic!("{name} is not under NS_BUNDLED={}", folder.display()));
        let file = ns_weights::ModelFile::open(file).expect("the bundled model opens");
        Tokenizer::from_metadata(&file).expect("the bundled model has a tokenizer")
    })
}

fn find(folder: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let direct = folder.join(name);
    if direct.is_file() {
        return Some(direct);
    }
    let below = (depth > 0).then(|| std::fs::read_dir(folder).ok()).flatten()?;
    below.filter_map(Result::ok).filter(|e| e.path().is_dir()).find_map(|e| find(&e.path(), name, depth - 1))
}

/// A vocabulary of the single bytes, a few merges and some special tokens (type 3 unless the text begins with `+`,
/// which makes it user-defined).
pub fn byte_vocabulary(pre: &str, merges: &[&str], specials: &[&str]) -> Vocabulary {
    let mut tokens: Vec<String> = byte_alphabet().iter().map(char::to_string).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for special in specials {
        types.push(if special.starts_with('+') { 4 } else { 3 });
        tokens.push(special.trim_start_matches('+').to_string());
    }
    Vocabulary {
        model: "gpt2".to_string(),
        pre: Some(pre.to_string()),
        types,
        tokens,
        merges: merges.iter().map(|merge| (*merge).to_string()).collect(),
        ..Vocabulary::default()
    }
}

/// The joint text of segments.
pub fn joined(segments: &[Segment]) -> String {
    segments.iter().map(|segment| segment.text.as_str()).collect()
}
