//! The language-model engines: the one place that lists them.

use ns_llm::Registration;

/// All engines.
pub const ENGINES: &[&Registration] = &[&ns_llm_llama::REGISTRATION];

/// The engine that serves an architecture.
pub fn for_architecture(architecture: &str) -> Option<&'static Registration> {
    ENGINES.iter().copied().find(|e| e.architectures.contains(&architecture))
}

/// Whether an option is a switch in every engine that has it.
pub fn is_switch(name: &str) -> bool {
    let mut specs = ENGINES.iter().flat_map(|e| e.options).filter(|o| o.name == name || o.env == name).peekable();
    specs.peek().is_some() && specs.all(|o| o.value.is_empty())
}
