//! Distances between two rows of logits, in f64.

use serde_json::{Value, json};

/// log(sum(exp(logits))), without overflow.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    f64::from(most) + sum.ln()
}

/// Log probability of entry `index`.
pub(super) fn log_softmax_at(logits: &[f32], index: usize) -> f64 {
    f64::from(logits[index]) - log_sum_exp(logits)
}

/// The largest entry; ties to the lowest index.
fn argmax(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (index, &l)| if l > logits[best] { index } else { best })
}

/// Distances over all rows so far.
#[derive(Debug, Default)]
pub(in crate::cli) struct Comparison {
    rows: usize,
    kl_sum: f64,
    kl_max: f64,
    agreements: usize,
    largest: f32,
}

impl Comparison {
    /// Adds a row: KL(reference || ours), agreement of the largest, and the largest difference.
    pub(in crate::cli) fn add(&mut self, reference: &[f32], ours: &[f32]) {
        let (reference_sum, our_sum) = (log_sum_exp(reference), log_sum_exp(ours));
        let mut kl = 0f64;
        for (&r, &o) in reference.iter().zip(ours) {
            let log_p = f64::from(r) - reference_sum;
            kl += log_p.exp() * (log_p - (f64::from(o) - our_sum));
            let difference = (r - o).abs();
            // Not a number is a difference too.
            if difference.is_nan() || difference > self.largest {
                self.largest = difference;
            }
        }
        self.rows += 1;
        self.kl_sum += kl;
        self.kl_max = if kl.is_nan() { kl } else { self.kl_max.max(kl) };
        self.agreements += usize::from(argmax(reference) == argmax(ours));
    }

    /// Mean KL divergence of the rows so far, nats.
    pub(in crate::cli) fn mean_kl(&self) -> f64 {
        self.kl_sum / self.rows as f64
    }

    /// Adds the figures to a JSON object.
    pub(super) fn report(&self, value: &mut Value) {
        let rows = self.rows as f64;
        value["mean_kl"] = json!(self.mean_kl());
        value["max_kl"] = json!(self.kl_max);
        value["top1_agreement"] = json!(self.agreements as f64 / rows);
        value["max_abs_diff"] = json!(self.largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_have_no_distance_and_a_shift_of_all_logits_has_no_divergence() {
        let row = [1.0f32, -2.0, 3.5, 0.0];
        let shifted = row.map(|l| l + 2.0);
        let mut comparison = Comparison::default();
        comparison.add(&row, &row);
        comparison.add(&row, &shifted);
        assert!(comparison.kl_max < 1e-6);
        assert_eq!((comparison.agreements, comparison.largest), (2, 2.0));
    }

    #[test]
    fn the_divergence_of_two_coins_is_the_textbook_value() {
        let mut comparison = Comparison::default();
        comparison.add(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        // 0.5 ln(0.5 / 0.25) + 0.5 ln(0.5 / 0.75)
        assert!((comparison.kl_sum - 0.143_841).abs() < 1e-5, "{}", comparison.kl_sum);
        assert_eq!(comparison.agreements, 0);
    }
}
