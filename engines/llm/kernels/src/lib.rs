//! Checked launches of the shared language-model kernels.
