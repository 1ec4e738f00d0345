//! Settings, the model registry and model cards.
