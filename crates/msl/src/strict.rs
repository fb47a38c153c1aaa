//! Strict.
