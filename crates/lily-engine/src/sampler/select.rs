//! Partial selection over a vocabulary: the largest logit, the k largest, log-softmax. Not-a-number counts as minus infinity.

/// A token and its logit (or weight).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub id: u32,
    pub value: f32,
}

/// Best first: larger value, then lower id.
pub(crate) fn best_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.value.total_cmp(&a.value).then(a.id.cmp(&b.id))
}

/// The largest value; minus infinity if there is none above it.
pub(crate) fn largest(logits: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, &v) in lanes.iter_mut().zip(chunk) {
            *best = if v > *best { v } else { *best };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &v| if v > best { v } else { best })
}

/// The id of the largest logit, ties to the lowest id; `None` if no logit is above minus infinity.
pub(crate) fn argmax(logits: &[f32]) -> Option<u32> {
    let best = largest(logits);
    if best == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&v| v == best).map(|i| i as u32)
}

/// The `k` largest logits above minus infinity, best first.
pub(crate) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let k = k.min(logits.len());
    if k == 0 {
        return Vec::new();
    }
    let room = (2 * k).max(64);
    let mut kept: Vec<Candidate> = Vec::with_capacity(room);
    let mut floor = f32::NEG_INFINITY;
    for (id, &value) in logits.iter().enumerate() {
        // A later id with a value equal to the floor is worse than the k kept ones.
        if value > floor {
            kept.push(Candidate { id: id as u32, value });
            if kept.len() == room {
                kept.select_nth_unstable_by(k - 1, best_first);
                kept.truncate(k);
                floor = kept[k - 1].value;
            }
        }
    }
    kept.sort_unstable_by(best_first);
    kept.truncate(k);
    kept
}

/// `ln Σ exp(logit)`: a logit minus this is its log probability.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    let best = largest(logits);
    if best == f32::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    let sum: f64 = logits.iter().filter(|v| !v.is_nan()).map(|&v| f64::from((v - best).exp())).sum();
    best + sum.ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(logits: &[f32]) -> Vec<Candidate> {
        let mut all: Vec<_> = logits
            .iter()
            .enumerate()
            .map(|(id, &value)| Candidate { id: id as u32, value })
            .filter(|c| c.value > f32::NEG_INFINITY)
            .collect();
        all.sort_by(best_first);
        all
    }

    proptest! {
        #[test]
        fn partial_selection_equals_a_full_sort(
            logits in proptest::collection::vec((-20i32..20).prop_map(|v| v as f32 / 4.0), 1..400),
            k in 0usize..100,
        ) {
            let mut expected = sorted(&logits);
            prop_assert_eq!(argmax(&logits), expected.first().map(|c| c.id));
            expected.truncate(k);
            prop_assert_eq!(top_k(&logits, k), expected);
        }
    }

    #[test]
    fn what_is_not_a_number_is_never_chosen() {
        let logits = [f32::NAN, 1.0, f32::NAN, 2.0, f32::NEG_INFINITY];
        assert_eq!(argmax(&logits), Some(3));
        assert_eq!(top_k(&logits, 9).len(), 2);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert!((log_sum_exp(&logits) - (1f32.exp() + 2f32.exp()).ln()).abs() < 1e-6);
    }
}
