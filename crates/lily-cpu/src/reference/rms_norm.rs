//! Root-mean-square norm: of the residual stream, of attention heads and of DeltaNet heads.

/// `out = x / sqrt(mean(x²) + eps) * gain`; all of one length.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let inverse = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    for ((out, &v), &g) in out.iter_mut().zip(x).zip(gain) {
        *out = (f64::from(v) * inverse) as f32 * g;
    }
}
