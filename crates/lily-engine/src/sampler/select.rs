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

/// Logits whose largest is looked at first: most blocks of a vocabulary hold none of the best.
const BLOCK: usize = 256;

/// The first logit that is no finite number, and its id.
pub(crate) fn not_finite(logits: &[f32]) -> Option<(usize, f32)> {
    const EXPONENT: u32 = 0x7f80_0000;
    // Whole blocks without a branch in between: they are compared many at a time.
    let faulty = |block: &&[f32]| block.iter().fold(false, |any, v| any | (v.to_bits() & EXPONENT == EXPONENT));
    let at = logits.chunks(BLOCK).position(|block| faulty(&block))? * BLOCK;
    let behind = logits[at..].iter().position(|v| !v.is_finite())?;
    Some((at + behind, logits[at + behind]))
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
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if largest(block) <= floor {
            continue;
        }
        for (offset, &value) in block.iter().enumerate() {
            // A later id with a value equal to the floor is worse than the k kept ones.
            if value > floor {
                kept.push(Candidate { id: (index * BLOCK + offset) as u32, value });
                if kept.len() == room {
                    kept.select_nth_unstable_by(k - 1, best_first);
                    kept.truncate(k);
                    floor = kept[k - 1].value;
                }
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
    let sum: f64 = logits.chunks(BLOCK).map(|block| sum_of_exp(block, best)).sum();
    best + sum.ln() as f32
}

/// `Σ exp(value - best)` of at most [`BLOCK`] values up to `best`.
fn sum_of_exp(block: &[f32], best: f32) -> f64 {
    let mut powers = [0.0f32; BLOCK];
    for (power, v) in powers.iter_mut().zip(block) {
        *power = exp(v - best);
    }
    let mut sums = [0.0f32; 8];
    for chunk in powers.chunks_exact(8) {
        for (sum, power) in sums.iter_mut().zip(chunk) {
            *sum += power;
        }
    }
    sums.iter().map(|&sum| f64::from(sum)).sum()
}

/// e^x for x up to 0, within 2e-7 of it; 0 below -87 and for what is not a number. Without branches or calls, so that many are
/// computed at a time: 2^n times a polynomial of degree 7 in the rest (Taylor's, |rest| <= ln 2 / 2).
fn exp(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number in the low bits.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let inside = x >= -87.0;
    let x = if inside { x } else { 0.0 };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let p = 1.0
        + r * (1.0
            + r * (0.5
                + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)))))));
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if inside { p * power } else { 0.0 }
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
            logits in proptest::collection::vec((-20i32..20).prop_map(|v| v as f32 / 4.0), 1..1200),
            k in 0usize..100,
        ) {
            let mut expected = sorted(&logits);
            prop_assert_eq!(argmax(&logits), expected.first().map(|c| c.id));
            expected.truncate(k);
            prop_assert_eq!(top_k(&logits, k), expected);
        }
    }

    #[test]
    fn the_exponential_is_within_its_bound_everywhere() {
        for i in 0..=200_000 {
            let x = -90.0 * i as f32 / 200_000.0;
            let (found, truth) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(if x < -87.0 { found == 0.0 } else { (found / truth - 1.0).abs() < 2e-7 }, "{x}: {found} {truth}");
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(f32::NAN)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn the_first_logit_that_is_no_number_is_found_wherever_it_is() {
        let mut logits = vec![f32::MAX; 1000];
        assert_eq!(not_finite(&logits), None);
        for at in [999, 700, 256, 255, 0] {
            logits[at] = f32::NEG_INFINITY;
            assert_eq!(not_finite(&logits), Some((at, f32::NEG_INFINITY)));
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
