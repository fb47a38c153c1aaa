//! Which experts a token uses, and how much of each.

use super::sigmoid;

/// Softmax over `logits` `[experts]`, the `K = experts.len()` largest (ties to the lowest id) by falling weight,
/// renormalized to sum 1. `scales` is `[K + 1]`; the last is `sigmoid(shared_gate)`.
///
/// The softmax's own denominator cancels in the renormalization, so it is not computed.
pub fn route(logits: &[f32], shared_gate: f32, experts: &mut [u32], scales: &mut [f32]) {
    let mut taken = 0;
    for (id, &logit) in logits.iter().enumerate() {
        let rank = experts[..taken].iter().take_while(|&&e| logits[e as usize] >= logit).count();
        if rank < experts.len() {
            taken = (taken + 1).min(experts.len());
            experts.copy_within(rank..taken - 1, rank + 1);
            experts[rank] = id as u32;
        }
    }
    let top = logits[experts[0] as usize];
    let mut total = 0f32;
    for (scale, &id) in scales.iter_mut().zip(experts.iter()) {
        *scale = (logits[id as usize] - top).exp();
        total += *scale;
    }
    for scale in &mut scales[..experts.len()] {
        *scale /= total;
    }
    scales[experts.len()] = sigmoid(shared_gate);
}
