//! The GPU device: kernels in Metal, one dispatch table, and the drivers that run it.
//!
//! Knows the plan and no requests. [`GpuDevice`] places buffers, writes the inputs of a step and walks the stages; a
//! [`Driver`] compiles sources, owns memory and executes programs.

pub mod roles;
pub mod route;
pub mod source;
pub mod tuning;
