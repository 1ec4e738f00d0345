//! Atomic file writes and locks.
