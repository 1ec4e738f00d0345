//! The language-model engines: the one place that lists them.

use ns_llm::Registration;

/// All engines.
pub const ENGINES: &[&Registration] = &[&ns_llm_llama::REGISTRATION, &ns_llm_qwen35::REGISTRATION];

/// The engine that serves an architecture.
pub fn for_architecture(architecture: &str) -> Option<&'static Registration> {
    ENGINES.iter().copied().find(|e| e.architectures.contains(&architecture))
}

/// Whether an option is a switch in every engine that has it.
pub fn is_switch(name: &str) -> bool {
    let mut specs = ENGINES.iter().flat_map(|e| e.options).filter(|o| o.name == name || o.env == name).peekable();
    specs.peek().is_some() && specs.all(|o| o.value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !matches!(name.as_str(), "tests" | "target" | "build") {
                sources(&path, found);
            } else if [".rs", ".cpp", ".hpp", ".h"].iter().any(|e| name.ends_with(e)) {
                found.push(path);
            }
        }
    }

    /// Every NS_ name in quotes in the programs' sources is in the table of settings or an engine's option.
    #[test]
    fn code_reads_no_undeclared_setting() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = Vec::new();
        for folder in ["tools", "engines", "kernels/runtime"] {
            sources(&root.join(folder), &mut files);
        }
        assert!(files.len() > 50, "the sources were not found");
        let mut declared: BTreeSet<&str> = ns_registry::settings::SETTINGS.iter().map(|s| s.name).collect();
        let specs = || ENGINES.iter().flat_map(|e| e.options);
        declared.extend(specs().map(|o| o.env).filter(|e| !e.is_empty()));
        let mut undeclared = BTreeSet::new();
        let mut seen = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for quoted in code.split('"').skip(1) {
                let whole = quoted.strip_prefix("NS_").is_some_and(|rest| {
                    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
                });
                seen += usize::from(whole);
                if whole && !declared.contains(quoted) {
                    undeclared.insert(format!("{quoted} in {}", file.display()));
                }
            }
        }
        assert!(seen > 20, "the scan finds nothing");
        assert!(undeclared.is_empty(), "{undeclared:#?}");
        for option in specs() {
            assert!(option.env.is_empty() || option.env.starts_with("NS_"), "{}", option.name);
        }
    }

    #[test]
    fn an_architecture_has_one_engine() {
        let all: Vec<&str> = ENGINES.iter().flat_map(|e| e.architectures.iter().copied()).collect();
        let distinct: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
    }
}
