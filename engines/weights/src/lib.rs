//! Model files: memory-mapped GGUF, safetensors and .pth, checked before use.
