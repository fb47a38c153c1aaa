//! Causal attention of the query heads that share a KV head: the naive form, and the same in blocks of keys.

use super::sigmoid;

/// Sizes of one block of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads that share the KV head.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Keys the page has room for: the stride of the transposed keys.
    pub page_tokens: usize,
}

/// What one block of keys contributes: a sum over values not yet divided by its weight.
#[derive(Debug)]
pub struct BlockPartial<'a> {
    /// `[heads, head_dim]`: `Σ exp(s - max) v`.
    pub sum: &'a mut [f32],
    /// `[heads]`: largest score.
    pub max: &'a mut [f32],
    /// `[heads]`: `Σ exp(s - max)`.
    pub weight: &'a mut [f32],
}

/// Naive attention of one query head over `n` keys: `query` `[head_dim]`, `keys` and `values` `[n, head_dim]`; the scale
/// is `head_dim^-1/2`. Oracle for the block form and for other devices.
pub fn attention(query: &[f32], keys: &[f32], values: &[f32], out: &mut [f32]) {
    let dim = query.len();
    let scale = 1.0 / (dim as f64).sqrt();
    let scores: Vec<f64> = keys
        .chunks_exact(dim)
        .map(|key| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale)
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (d, out) in out.iter_mut().enumerate() {
        let sum: f64 = weights.iter().zip(values.chunks_exact(dim)).map(|(w, v)| w * f64::from(v[d])).sum();
        *out = (sum / total) as f32;
    }
}

/// One block: `query` `[heads, head_dim]`, `keys` `[head_dim, page_tokens]`, `values` `[page_tokens, head_dim]`, of which
/// the first `visible` (at least 1) tokens count.
pub fn attention_block(
    shape: AttentionShape,
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    visible: usize,
    partial: BlockPartial<'_>,
) {
    let AttentionShape { heads, head_dim, page_tokens } = shape;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut scores = vec![0f32; visible];
    for head in 0..heads {
        scores.fill(0.0);
        for d in 0..head_dim {
            let q = query[head * head_dim + d] * scale;
            for (score, k) in scores.iter_mut().zip(&keys[d * page_tokens..]) {
                *score += q * k;
            }
        }
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = &mut partial.sum[head * head_dim..(head + 1) * head_dim];
        sum.fill(0.0);
        let mut weight = 0f32;
        for (t, score) in scores.iter().enumerate() {
            let p = (score - max).exp();
            weight += p;
            for (sum, v) in sum.iter_mut().zip(&values[t * head_dim..]) {
                *sum += p * v;
            }
        }
        partial.max[head] = max;
        partial.weight[head] = weight;
    }
}

/// Adds the partial of the next block to a running one: one head, sums `[head_dim]`.
pub fn merge_block(sum: &mut [f32], max: &mut f32, weight: &mut f32, next: &[f32], next_max: f32, next_weight: f32) {
    let top = max.max(next_max);
    let (a, b) = ((*max - top).exp(), (next_max - top).exp());
    for (sum, next) in sum.iter_mut().zip(next) {
        *sum = *sum * a + next * b;
    }
    *weight = *weight * a + next_weight * b;
    *max = top;
}

/// `out = sum / weight * sigmoid(gate)`, one head.
pub fn finish_attention(sum: &[f32], weight: f32, gate: &[f32], out: &mut [f32]) {
    for ((out, &sum), &gate) in out.iter_mut().zip(sum).zip(gate) {
        *out = sum / weight * sigmoid(gate);
    }
}
