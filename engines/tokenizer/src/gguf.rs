//! Metadata out of GGUF files.

use ns_weights::ModelFile;

use crate::vocabulary::Metadata;

impl Metadata for ModelFile {
    fn text(&self, key: &str) -> Option<String> {
        self.get_str(key).map(String::from)
    }

    fn unsigned(&self, key: &str) -> Option<u64> {
        self.get_u64(key)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.get_bool(key)
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
        Some(self.get_array_str(key)?.into_iter().map(String::from).collect())
    }

    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.get_array_i64(key)
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.get_array_f32(key)
    }
}
