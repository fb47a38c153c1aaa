//! Back from the experts to the residual stream.

/// `residual += Σ_j scales[j] * down[j]`, in order of j; `down` is `[scales.len(), hidden]`, the shared expert last.
pub fn combine(residual: &mut [f32], down: &[f32], scales: &[f32]) {
    let hidden = residual.len();
    for (h, residual) in residual.iter_mut().enumerate() {
        let sum: f32 = scales.iter().enumerate().map(|(j, scale)| scale * down[j * hidden + h]).sum();
        *residual += sum;
    }
}
