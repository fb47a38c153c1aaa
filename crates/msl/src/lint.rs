//! Lints.
