//! Attention over a block of bf16 keys on lanes: tokens are the lanes of the scores, dimensions those of the sums.

use super::{LANES, Vector, per_isa};
use crate::reference::{AttentionShape, BlockPartial};

/// Query heads scored together: each key is loaded once for them.
const HEADS: usize = 4;

#[inline(always)]
fn scores<V: Vector, const H: usize>(
    shape: AttentionShape,
    query: &[f32],
    keys: &[u16],
    visible: usize,
    out: &mut [f32],
) {
    let AttentionShape { head_dim, page_tokens, .. } = shape;
    assert!(query.len() == H * head_dim && keys.len() == head_dim * page_tokens);
    assert!(visible <= page_tokens && page_tokens.is_multiple_of(LANES) && out.len() >= H * page_tokens);
    for t in (0..visible).step_by(LANES) {
        let mut sums = [V::splat(0.0); H];
        for d in 0..head_dim {
            // SAFETY: `t + 16 <= page_tokens`.
            let key = unsafe { V::load_bf16(keys.as_ptr().add(d * page_tokens + t)) };
            for h in 0..H {
                sums[h] = key.fma(V::splat(query[h * head_dim + d]), sums[h]);
            }
        }
        for (h, sum) in sums.into_iter().enumerate() {
            // SAFETY: `t + 16 <= page_tokens`, and `out` has H of those.
            unsafe { sum.store(out.as_mut_ptr().add(h * page_tokens + t)) };
        }
    }
}

#[inline(always)]
fn sums<V: Vector, const H: usize>(
    shape: AttentionShape,
    weights: &[f32],
    values: &[u16],
    visible: usize,
    out: &mut [f32],
) {
    let AttentionShape { head_dim, page_tokens, .. } = shape;
    assert!(weights.len() >= H * page_tokens && values.len() == page_tokens * head_dim);
    assert!(visible <= page_tokens && out.len() == H * head_dim && head_dim.is_multiple_of(LANES));
    for d in (0..head_dim).step_by(LANES) {
        let mut sums = [V::splat(0.0); H];
        for t in 0..visible {
            // SAFETY: `d + 16 <= head_dim`.
            let value = unsafe { V::load_bf16(values.as_ptr().add(t * head_dim + d)) };
            for h in 0..H {
                sums[h] = value.fma(V::splat(weights[h * page_tokens + t]), sums[h]);
            }
        }
        for (h, sum) in sums.into_iter().enumerate() {
            // SAFETY: `d + 16 <= head_dim`, and `out` has H of those.
            unsafe { sum.store(out.as_mut_ptr().add(h * head_dim + d)) };
        }
    }
}

per_isa! {
    /// One block: see [`crate::reference::attention_block`], with bf16 keys and values. `query` is scaled by
    /// `head_dim^-1/2` already; `scratch` holds `heads * page_tokens`.
    pub fn attention_block<V>(
        shape: AttentionShape, query: &[f32], keys: &[u16], values: &[u16], visible: usize,
        partial: BlockPartial<'_>, scratch: &mut [f32],
    ) {
        let AttentionShape { heads, head_dim, page_tokens } = shape;
        let whole = heads / HEADS * HEADS;
        for h in (0..whole).step_by(HEADS) {
            let query = &query[h * head_dim..(h + HEADS) * head_dim];
            scores::<V, HEADS>(shape, query, keys, visible, &mut scratch[h * page_tokens..]);
        }
        for h in whole..heads {
            let query = &query[h * head_dim..(h + 1) * head_dim];
            scores::<V, 1>(shape, query, keys, visible, &mut scratch[h * page_tokens..]);
        }
        for h in 0..heads {
            let scores = &mut scratch[h * page_tokens..(h + 1) * page_tokens];
            let end = visible.next_multiple_of(LANES);
            // Tokens after the last visible one share its vector: they must not count, whatever the page holds.
            scores[visible..end].fill(f32::NEG_INFINITY);
            let mut largest = V::splat(f32::NEG_INFINITY);
            for s in scores[..end].chunks_exact(LANES) {
                // SAFETY: 16 elements.
                largest = unsafe { V::load(s.as_ptr()) }.max(largest);
            }
            let max = largest.largest();
            let mut weight = V::splat(0.0);
            for (i, s) in scores[..end].chunks_exact_mut(LANES).enumerate() {
                // SAFETY: 16 elements.
                unsafe { V::load(s.as_ptr()).sub(V::splat(max)).exp().store(s.as_mut_ptr()) };
                let beyond = (visible - i * LANES).min(LANES);
                s[beyond..].fill(0.0);
                // SAFETY: 16 elements.
                weight = weight.add(unsafe { V::load(s.as_ptr()) });
            }
            partial.max[h] = max;
            partial.weight[h] = weight.sum();
        }
        for h in (0..whole).step_by(HEADS) {
            let out = &mut partial.sum[h * head_dim..(h + HEADS) * head_dim];
            sums::<V, HEADS>(shape, &scratch[h * page_tokens..], values, visible, out);
        }
        for h in whole..heads {
            let out = &mut partial.sum[h * head_dim..(h + 1) * head_dim];
            sums::<V, 1>(shape, &scratch[h * page_tokens..], values, visible, out);
        }
    }
}

per_isa! {
    /// Adds the partial of the next block to a running one: see [`crate::reference::merge_block`].
    pub fn merge_block<V>(
        sum: &mut [f32], max: &mut f32, weight: &mut f32, next: &[f32], next_max: f32, next_weight: f32
    ) {
        let top = if *max > next_max { *max } else { next_max };
        let (a, b) = (V::splat(*max - top).exp(), V::splat(next_max - top).exp());
        for (sum, next) in sum.chunks_exact_mut(LANES).zip(next.chunks_exact(LANES)) {
            // SAFETY: 16 elements each.
            unsafe {
                let next = V::load(next.as_ptr()).mul(b);
                V::load(sum.as_ptr()).fma(a, next).store(sum.as_mut_ptr());
            }
        }
        *weight = weight.mul_add(a.to_array()[0], next_weight * b.to_array()[0]);
        *max = top;
    }
}

per_isa! {
    /// `out = sum / weight * sigmoid(gate)`, one head whose width is a multiple of 16.
    pub fn finish_attention<V>(sum: &[f32], weight: f32, gate: &[f32], out: &mut [f32]) {
        let inverse = V::splat(1.0 / weight);
        for ((sum, gate), out) in sum.chunks_exact(LANES).zip(gate.chunks_exact(LANES)).zip(out.chunks_exact_mut(LANES)) {
            // SAFETY: 16 elements each.
            unsafe {
                V::load(sum.as_ptr()).mul(inverse).mul(V::load(gate.as_ptr()).sigmoid()).store(out.as_mut_ptr());
            }
        }
    }
}
