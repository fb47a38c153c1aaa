//! The program `lily`: commands ([`cli`]), the HTTP server ([`api`]), and where the model comes from ([`source`])
//! and what computes it ([`device`]).
//!
//! Knows how people and programs talk to Lily, and nothing of how tokens are computed or scheduled.

pub mod api;
pub mod cli;
pub mod device;
pub mod model;
pub mod source;
