//! The readable truth: every operation in plain f32, one function a unit of work, no threads and no SIMD.
//!
//! `--precision f32` runs these functions; the fast path and every other device are tested against them. They know
//! slices and shapes, not plans, buffers or pages.

mod argmax;
mod attention;
mod combine;
mod embed;
mod experts;
mod gdn_conv;
mod gdn_scan;
mod linear;
mod qk_norm_rope;
mod rms_norm;
mod route_sort;
mod router;

pub use argmax::argmax;
pub use attention::{AttentionShape, BlockPartial, attention, attention_block, finish_attention, merge_block};
pub use combine::combine;
pub use embed::embed;
pub use experts::swiglu;
pub use gdn_conv::{gdn_conv_token, gdn_gates, l2_normalize};
pub use gdn_scan::{gated_norm, gdn_delta_step};
pub use linear::{dequantize_row, dot, linear};
pub use qk_norm_rope::{rope_angles, rope_norm};
pub use rms_norm::rms_norm;
pub use route_sort::route_sort;
pub use router::route;

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests;
