//! The program `lily`: commands ([`cli`]), and where the model comes from ([`source`]).
//!
//! Knows how people and programs talk to Lily, and nothing of how tokens are computed or scheduled.

pub mod cli;
pub mod source;
