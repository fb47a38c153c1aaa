//! The fast path: the operations of [`crate::reference`] on SIMD lanes, and matrix products in integers.
//!
//! Every instruction set gives the same bits, and a row gives the same bits in a batch of any size: sums run in one
//! order, group sums of a product are exact integers, and everything else is IEEE operations in a fixed sequence.

mod attention;
mod dense;
mod gdn;
mod isa;
mod matrix;
mod norm;
mod quantize;
mod rope;
mod rowwise;
mod vector;

#[cfg(target_arch = "x86_64")]
mod matrix_avx2;
#[cfg(target_arch = "x86_64")]
mod matrix_avx512;
mod matrix_portable;

pub use attention::{attention_block, finish_attention, merge_block};
pub use dense::dense_outputs;
pub use gdn::{VALUE_BLOCK, delta_step, gated_norm, gdn_conv_token, l2_normalize};
pub use isa::Isa;
pub(crate) use isa::per_isa;
pub use matrix::{Ahead, QuantizedRow, TILE, Tile, multiply_tile, product_of_one_row, unpack_tile};
pub use norm::rms_norm;
pub use quantize::{quantize, restore};
pub use rope::rope_norm;
pub use rowwise::{argmax, combine, swiglu};
#[cfg(target_arch = "x86_64")]
pub use vector::{Avx2, Avx512};
pub use vector::{LANES, Portable, Vector};

#[cfg(test)]
mod tests;
