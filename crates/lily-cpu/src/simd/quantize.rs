//! The activation format of the fast path: 15-bit integers with one scale a group.
//!
//! `a ≈ scale * q`, `scale = max|a| / 16256`. At 64 inputs of 4-bit weights the sum of `q * weight` stays below 2^24, so
//! that it is exact in f32 too. The error of an input is a 65,000th of the group's largest, 30 times below bf16's.

use super::{LANES, per_isa};

/// Largest magnitude of a quantized activation.
pub const STEPS: f32 = 16_256.0;
/// Added to a float of magnitude below 2^22, leaves its nearest integer in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// Where input i of eight is stored: the pairs (i, i + 4) are neighbours, as shifts of a word of eight 4-bit weights give them.
const PLACE: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

per_isa! {
    /// Quantizes whole groups of `group` inputs. `ints` has the inputs' length (each eight in the order of
    /// 0 4 1 5 2 6 3 7), `scales` and `sums` (`scale * Σ q`) one element a group. `group` is 32 or 64. A group with an input
    /// that is no finite number has the scale NaN, so that no product hides it.
    pub fn quantize<V>(x: &[f32], group: usize, ints: &mut [i16], scales: &mut [f32], sums: &mut [f32]) {
        assert!(x.len() == ints.len() && x.len() == scales.len() * group && scales.len() == sums.len());
        assert!(group == 32 || group == 64);
        let mut rounded = [0f32; 64];
        for (g, x) in x.chunks_exact(group).enumerate() {
            let (mut largest, mut faults) = (V::splat(0.0), V::splat(0.0));
            for i in (0..group).step_by(LANES) {
                // SAFETY: `group` is a multiple of 16 and the length of `x`.
                let v = unsafe { V::load(x.as_ptr().add(i)) };
                largest = largest.max(v).max(V::splat(0.0).sub(v));
                // NaN from the first input on that is no finite number.
                faults = v.fma(V::splat(0.0), faults);
            }
            let largest = largest.largest();
            let ints = &mut ints[g * group..(g + 1) * group];
            if faults.sum().is_nan() {
                ints.fill(0);
                scales[g] = f32::NAN;
                sums[g] = f32::NAN;
                continue;
            }
            if largest < 1e-30 {
                ints.fill(0);
                scales[g] = 0.0;
                sums[g] = 0.0;
                continue;
            }
            let inverse = V::splat(STEPS / largest);
            for i in (0..group).step_by(LANES) {
                // SAFETY: `i + 16 <= group <= 64`.
                unsafe {
                    let v = V::load(x.as_ptr().add(i)).fma(inverse, V::splat(ROUNDING));
                    v.store(rounded.as_mut_ptr().add(i));
                }
            }
            let mut sum = 0i32;
            for (ints, rounded) in ints.chunks_exact_mut(8).zip(rounded.chunks_exact(8)) {
                for i in 0..8 {
                    let q = rounded[i].to_bits() as i32 - ROUNDING.to_bits() as i32;
                    sum = sum.wrapping_add(q);
                    ints[PLACE[i]] = q as i16;
                }
            }
            scales[g] = largest / STEPS;
            sums[g] = sum as f32 * scales[g];
        }
    }
}

/// The values that [`quantize`] stored, in their own order.
pub fn restore(ints: &[i16], scales: &[f32], out: &mut [f32]) {
    let group = ints.len() / scales.len();
    for (g, (ints, out)) in ints.chunks_exact(group).zip(out.chunks_exact_mut(group)).enumerate() {
        for (ints, out) in ints.chunks_exact(8).zip(out.chunks_exact_mut(8)) {
            for i in 0..8 {
                out[i] = f32::from(ints[PLACE[i]]) * scales[g];
            }
        }
    }
}
