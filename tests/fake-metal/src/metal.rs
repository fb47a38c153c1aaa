//! The driver, unmodified.

pub use lily_gpu::metal::{NAME, budget, choice, failed, messages, split, views};

#[path = "../../../crates/lily-gpu/src/metal/host/mod.rs"]
pub mod host;

pub use host::{Metal, MetalOptions, Progress, open};
