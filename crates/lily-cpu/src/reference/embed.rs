//! The embedding of a token: one dequantized row.

use lily_model::checkpoint::WeightView;

use super::dequantize_row;

/// Row `token` of the `[vocab, hidden]` embedding, f32 `[hidden]`.
pub fn embed(weight: &WeightView<'_>, token: usize, out: &mut [f32]) {
    dequantize_row(weight, 0, token, out);
}
