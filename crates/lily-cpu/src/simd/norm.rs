//! RMS norm on lanes.

use super::{LANES, Vector, per_isa};

/// `Σ x²` in sixteen lanes, then a tree.
#[inline(always)]
pub(super) fn sum_of_squares<V: Vector>(x: &[f32]) -> f32 {
    let mut sum = V::splat(0.0);
    for x in x.chunks_exact(LANES) {
        // SAFETY: 16 elements.
        let v = unsafe { V::load(x.as_ptr()) };
        sum = v.fma(v, sum);
    }
    sum.sum()
}

/// `out = x * factor * gain`, for lengths that are multiples of 16.
#[inline(always)]
pub(super) fn scale_by<V: Vector>(x: &[f32], factor: f32, gain: &[f32], out: &mut [f32]) {
    let factor = V::splat(factor);
    for ((x, gain), out) in x.chunks_exact(LANES).zip(gain.chunks_exact(LANES)).zip(out.chunks_exact_mut(LANES)) {
        // SAFETY: 16 elements each.
        unsafe { V::load(x.as_ptr()).mul(factor).mul(V::load(gain.as_ptr())).store(out.as_mut_ptr()) };
    }
}

per_isa! {
    /// `out = x / sqrt(mean(x²) + eps) * gain`; one length, a multiple of 16.
    pub fn rms_norm<V>(x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
        let factor = 1.0 / (sum_of_squares::<V>(x) / x.len() as f32 + eps).sqrt();
        scale_by::<V>(x, factor, gain, out);
    }
}
