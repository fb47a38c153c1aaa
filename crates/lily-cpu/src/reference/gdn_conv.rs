//! Gated DeltaNet before the recurrence: causal convolution, SiLU, normalized queries and keys, gates.

use super::silu;

/// One token of the causal depthwise convolution and SiLU.
///
/// `taps[j]` is the `[channels]` input of the token `3 - j` before the current one; `weight` is `[taps, channels]`.
pub fn gdn_conv_token(taps: [&[f32]; 4], weight: &[f32], out: &mut [f32]) {
    let channels = out.len();
    for (c, out) in out.iter_mut().enumerate() {
        let mut sum = 0f32;
        for (j, tap) in taps.iter().enumerate() {
            sum += tap[c] * weight[j * channels + c];
        }
        *out = silu(sum);
    }
}

/// `u / sqrt(Σu² + 1e-6) * scale` in place, for one head.
pub fn l2_normalize(head: &mut [f32], scale: f32) {
    let squares: f64 = head.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let factor = f64::from(scale) / (squares + 1e-6).sqrt();
    for v in head {
        *v = (f64::from(*v) * factor) as f32;
    }
}

/// `(decay, beta)` of a value head: `exp(-exp(A_log) * softplus(a + dt_bias))` and `sigmoid(b)`.
pub fn gdn_gates(a: f32, b: f32, a_log: f32, dt_bias: f32) -> (f32, f32) {
    let x = f64::from(a) + f64::from(dt_bias);
    let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
    let decay = (-f64::from(a_log).exp() * softplus).exp();
    let beta = 1.0 / (1.0 + (-f64::from(b)).exp());
    (decay as f32, beta as f32)
}
