//! Products of bf16 matrices, for modules that a checkpoint leaves unquantized.

use lily_model::checkpoint::DenseView;

use super::{Isa, LANES, TILE, per_isa};

per_isa! {
    fn dense_dot<V>(weight: &[u8], x: &[f32]) -> f32 {
        assert!(weight.len() == 2 * x.len() && x.len().is_multiple_of(LANES));
        let mut sum = V::splat(0.0);
        for i in (0..x.len()).step_by(LANES) {
            // SAFETY: `i + 16 <= x.len()`; the weights are twice as many bytes and need no alignment.
            sum = unsafe { V::load_bf16(weight.as_ptr().cast::<u16>().add(i)).fma(V::load(x.as_ptr().add(i)), sum) };
        }
        sum.sum()
    }
}

/// Products of outputs `16 tile ..` of matrix `expert` with one row of f32; outputs past the matrix's end are 0.
pub fn dense_outputs(isa: Isa, view: &DenseView<'_>, expert: usize, tile: usize, x: &[f32]) -> [f32; TILE] {
    let mut out = [0f32; TILE];
    for (i, out) in out.iter_mut().enumerate() {
        let output = tile * TILE + i;
        if output < view.outputs {
            let start = (expert * view.outputs + output) * view.inputs * 2;
            *out = dense_dot(isa, &view.weight[start..start + 2 * view.inputs], x);
        }
    }
    out
}
