//! The delta rule: one value head, one token, and the gated norm that follows.

use super::{rms_norm, silu};

/// One token of the delta rule for a value head. `state` is `[key_dim, value_dim]`, `q` and `k` `[key_dim]`, `v` and
/// `out` `[value_dim]`: `S *= decay; d = (v - Sᵀk) * beta; S += k dᵀ; out = Sᵀq`.
pub fn gdn_delta_step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32, out: &mut [f32]) {
    let value_dim = v.len();
    for s in state.iter_mut() {
        *s *= decay;
    }
    for column in 0..value_dim {
        let read: f32 = k.iter().enumerate().map(|(i, k)| k * state[i * value_dim + column]).sum();
        let delta = (v[column] - read) * beta;
        let mut sum = 0f32;
        for (i, (k, q)) in k.iter().zip(q).enumerate() {
            let s = &mut state[i * value_dim + column];
            *s += k * delta;
            sum += q * *s;
        }
        out[column] = sum;
    }
}

/// `out = rms(o, norm) * silu(z)` for one value head.
pub fn gated_norm(o: &[f32], norm: &[f32], z: &[f32], eps: f32, out: &mut [f32]) {
    rms_norm(o, norm, eps, out);
    for (out, &z) in out.iter_mut().zip(z) {
        *out *= silu(z);
    }
}
