//! The interface between a language-model engine and the tool that drives it.
