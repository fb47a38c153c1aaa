//! Norm and rotation of one attention head.

use super::rms_norm;

/// `(cos, sin)` of each rotated pair at a position, each `[rotary_dim / 2]`: the angle of pair i is
/// `position * theta^(-2i / rotary_dim)`, computed in f64.
pub fn rope_angles(position: usize, rotary_dim: usize, theta: f64, cos: &mut [f32], sin: &mut [f32]) {
    for i in 0..rotary_dim / 2 {
        let angle = position as f64 * theta.powf(-((2 * i) as f64) / rotary_dim as f64);
        cos[i] = angle.cos() as f32;
        sin[i] = angle.sin() as f32;
    }
}

/// `out = rope(rms(head, gain))`: pairs `(i, i + rotary_dim / 2)` of the leading dimensions rotate; `cos` and `sin`
/// are `[rotary_dim / 2]`.
pub fn rope_norm(head: &[f32], gain: &[f32], eps: f32, cos: &[f32], sin: &[f32], out: &mut [f32]) {
    rms_norm(head, gain, eps, out);
    let half = cos.len();
    for i in 0..half {
        let (a, b) = (out[i], out[i + half]);
        out[i] = a * cos[i] - b * sin[i];
        out[i + half] = b * cos[i] + a * sin[i];
    }
}
