//! Random numbers by counter: the number for a token depends on the seed and the token's index alone, so that what else is in
//! a batch, and how often a request was paused, cannot change it.

/// A seed that differs from call to call.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// Uniform in [0, 1), from `seed` and the index of the token. Two rounds of SplitMix64's finalizer.
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_neighbouring_seeds_are_unrelated() {
        let n = 100_000;
        let mean = (0..n).map(|i| uniform(7, i)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let (a, b): (Vec<f64>, Vec<f64>) = (0..n).map(|i| (uniform(1, i) - 0.5, uniform(2, i) - 0.5)).unzip();
        let correlation = a.iter().zip(&b).map(|(x, y)| x * y).sum::<f64>() / n as f64 * 12.0;
        assert!(correlation.abs() < 0.02, "{correlation}");
    }
}
