//! The CPU device: executes the plan's operations on the processor, weights used where the checkpoint maps them.
//!
//! [`reference`] is the readable mathematics in f32; the fast path computes the same with integers and SIMD lanes. The
//! crate knows plans and checkpoints, not requests or text.

mod device;
mod exec;
mod limits;
mod memory;
mod pool;
pub mod reference;
mod simd;
mod validate;

pub use device::{CpuDevice, CpuOptions};
pub use limits::{Limits, limits};

/// How exactly a device computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// The reference: f32 activations and cache, no SIMD of our own.
    F32,
    /// 15-bit activations with a scale a group, exact integer group sums, bf16 cache.
    #[default]
    Fast,
}
