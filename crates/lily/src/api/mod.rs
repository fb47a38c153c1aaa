//! HTTP: OpenAI's chat completions, completions and responses, Anthropic's messages, and what operators need.
//!
//! A dialect reads its request strictly into an [`ask::Ask`], and writes what comes of it in its own shape; everything
//! between is shared. Nothing here knows how tokens are computed.

pub mod answer;
mod anthropic;
pub mod ask;
mod auth;
mod body;
pub mod choices;
mod connection;
pub mod error;
mod fields;
mod identity;
mod log;
mod openai;
mod ops;
mod origin;
mod responses;
mod router;
mod server;
mod sse;
mod state;
mod tokens;

pub use origin::Callers;
pub use server::Server;
pub use state::{ApiSettings, App, ReceiveTimeouts, Serving};
