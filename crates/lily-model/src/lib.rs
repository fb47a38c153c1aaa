//! What is computed: the checkpoint, its text format, and the Qwen graph as a [`graph::Plan`].
//!
//! Knows no device, no HTTP and no request. A device takes a [`graph::Plan`] and the bytes of a checkpoint and computes;
//! the seam between the two is [`device::Device`].

pub mod checkpoint;
pub mod config;
pub mod device;
pub mod graph;
mod json;
pub mod synth;
pub mod text;
