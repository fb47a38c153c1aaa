//! Gated DeltaNet on lanes: convolution, normalized heads, the delta rule, the gated norm.

use super::norm::{scale_by, sum_of_squares};
use super::{LANES, per_isa};

/// Value columns that [`delta_step`] takes at once: with 128 keys a block of state is 16 KB and stays in the L1 cache.
pub const VALUE_BLOCK: usize = 32;

per_isa! {
    /// One token of the convolution and SiLU over some channels: see [`crate::reference::gdn_conv_token`]. `taps` and
    /// `out` cover the channels `first .. first + out.len()`, a multiple of 16 of them; `weight` is `[4, channels]`.
    pub fn gdn_conv_token<V>(taps: [&[f32]; 4], weight: &[f32], channels: usize, first: usize, out: &mut [f32]) {
        assert!(taps.iter().all(|t| t.len() == out.len()) && weight.len() == 4 * channels);
        assert!(first + out.len() <= channels);
        for c in (0..out.len()).step_by(LANES) {
            let mut sum = V::splat(0.0);
            for (j, tap) in taps.iter().enumerate() {
                // SAFETY: `c + 16` is within the taps, and `first + c + 16` within the channels.
                sum = unsafe {
                    V::load(tap.as_ptr().add(c)).fma(V::load(weight.as_ptr().add(j * channels + first + c)), sum)
                };
            }
            // SAFETY: `c + 16` is within `out`.
            unsafe { sum.silu().store(out.as_mut_ptr().add(c)) };
        }
    }
}

per_isa! {
    /// `u / sqrt(Σu² + 1e-6) * scale` in place, for one head whose width is a multiple of 16.
    pub fn l2_normalize<V>(head: &mut [f32], scale: f32) {
        let factor = V::splat(scale / (sum_of_squares::<V>(head) + 1e-6).sqrt());
        for v in head.chunks_exact_mut(LANES) {
            // SAFETY: 16 elements.
            unsafe { V::load(v.as_ptr()).mul(factor).store(v.as_mut_ptr()) };
        }
    }
}

per_isa! {
    /// `out = rms(o, norm) * silu(z)`: see [`crate::reference::gated_norm`]; the width is a multiple of 16.
    pub fn gated_norm<V>(o: &[f32], norm: &[f32], z: &[f32], eps: f32, out: &mut [f32]) {
        let factor = 1.0 / (sum_of_squares::<V>(o) / o.len() as f32 + eps).sqrt();
        scale_by::<V>(o, factor, norm, out);
        for (out, z) in out.chunks_exact_mut(LANES).zip(z.chunks_exact(LANES)) {
            // SAFETY: 16 elements each.
            unsafe { V::load(out.as_ptr()).mul(V::load(z.as_ptr()).silu()).store(out.as_mut_ptr()) };
        }
    }
}

per_isa! {
    /// One token of the delta rule for a block of [`VALUE_BLOCK`] columns: `state` `[key_dim, 32]`; `q`, `k` `[key_dim]`;
    /// `v`, `out` `[32]`.
    ///
    /// The read-once form: with r = Sᵀk and p = Sᵀq of the state before, d = (v - decay r) beta,
    /// out = decay p + d (q·k), S = decay S + k dᵀ.
    pub fn delta_step<V>(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32, out: &mut [f32]) {
        const N: usize = VALUE_BLOCK / LANES;
        assert!(q.len() == k.len() && k.len().is_multiple_of(LANES) && state.len() == k.len() * VALUE_BLOCK);
        assert!(v.len() == VALUE_BLOCK && out.len() == VALUE_BLOCK);
        let mut qk = V::splat(0.0);
        for (q, k) in q.chunks_exact(LANES).zip(k.chunks_exact(LANES)) {
            // SAFETY: 16 elements each.
            qk = unsafe { V::load(q.as_ptr()).fma(V::load(k.as_ptr()), qk) };
        }
        let qk = qk.sum();
        let (mut r, mut p) = ([V::splat(0.0); N], [V::splat(0.0); N]);
        for (i, row) in state.chunks_exact(VALUE_BLOCK).enumerate() {
            let (key, query) = (V::splat(k[i]), V::splat(q[i]));
            for n in 0..N {
                // SAFETY: a row has 32 elements.
                let s = unsafe { V::load(row.as_ptr().add(n * LANES)) };
                r[n] = s.fma(key, r[n]);
                p[n] = s.fma(query, p[n]);
            }
        }
        let mut d = [V::splat(0.0); N];
        for (n, d) in d.iter_mut().enumerate() {
            // SAFETY: `v` and `out` have 32 elements.
            unsafe {
                let value = V::load(v.as_ptr().add(n * LANES));
                *d = V::splat(0.0).sub(r[n]).fma(V::splat(decay), value).mul(V::splat(beta));
                d.fma(V::splat(qk), p[n].mul(V::splat(decay))).store(out.as_mut_ptr().add(n * LANES));
            }
        }
        for (i, row) in state.chunks_exact_mut(VALUE_BLOCK).enumerate() {
            let key = V::splat(k[i]);
            for (n, d) in d.iter().enumerate() {
                // SAFETY: a row has 32 elements.
                unsafe {
                    let at = row.as_mut_ptr().add(n * LANES);
                    key.fma(*d, V::load(at).mul(V::splat(decay))).store(at);
                }
            }
        }
    }
}
