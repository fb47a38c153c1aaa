//! Elementwise operations on a row, on lanes.

use super::{LANES, per_isa};

per_isa! {
    /// `out = silu(gate) * up`; one length, a multiple of 16.
    pub fn swiglu<V>(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((gate, up), out) in gate.chunks_exact(LANES).zip(up.chunks_exact(LANES)).zip(out.chunks_exact_mut(LANES)) {
            // SAFETY: 16 elements each.
            unsafe { V::load(gate.as_ptr()).silu().mul(V::load(up.as_ptr())).store(out.as_mut_ptr()) };
        }
    }
}

per_isa! {
    /// `residual += Σ_j scales[j] * down[j]`: see [`crate::reference::combine`]; the width is a multiple of 16.
    pub fn combine<V>(residual: &mut [f32], down: &[f32], scales: &[f32]) {
        let hidden = residual.len();
        assert!(down.len() == hidden * scales.len());
        for h in (0..hidden).step_by(LANES) {
            let mut sum = V::splat(0.0);
            for (j, &scale) in scales.iter().enumerate() {
                // SAFETY: `h + 16 <= hidden`, a multiple of 16.
                sum = unsafe { V::load(down.as_ptr().add(j * hidden + h)) }.fma(V::splat(scale), sum);
            }
            // SAFETY: as above.
            unsafe { V::load(residual.as_ptr().add(h)).add(sum).store(residual.as_mut_ptr().add(h)) };
        }
    }
}

per_isa! {
    /// Index of the largest value, the lowest of equals: see [`crate::reference::argmax`].
    pub fn argmax<V>(logits: &[f32]) -> usize {
        let mut best = (0, f32::NEG_INFINITY);
        for (block, values) in logits.chunks(64 * LANES).enumerate() {
            let mut largest = V::splat(f32::NEG_INFINITY);
            let lanes = values.chunks_exact(LANES);
            let tail = lanes.remainder();
            for v in lanes {
                // SAFETY: 16 elements.
                largest = unsafe { V::load(v.as_ptr()) }.max(largest);
            }
            let tail = tail.iter().copied().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m });
            let largest = if tail > largest.largest() { tail } else { largest.largest() };
            if largest > best.1 {
                let index = values.iter().position(|&v| v == largest).unwrap_or(0);
                best = (block * 64 * LANES + index, largest);
            }
        }
        best.0
    }
}
