//! How many prompt tokens a prefill step takes, so that it ends in time: learned from the steps before it.

use std::time::Duration;

/// Fewest rows of a prefill step, where so many are left: below this a step is no faster on any device.
const LEAST: usize = 32;
/// Rows of the first step, when nothing is known.
const FIRST: usize = 128;
/// Without running streams, a prefill step may take so much longer than beside them: cancellation and progress wait for it.
const ALONE_FACTOR: u32 = 6;

/// Who waits for a prefill step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Streams that decode.
    Streams,
    /// Nobody.
    Nobody,
}

/// Learns the device's prefill speed.
#[derive(Debug)]
pub(super) struct Pace {
    max_stall: Duration,
    rows_per_second: Option<f64>,
    most: usize,
}

impl Pace {
    pub fn new(max_stall: Duration, most: usize) -> Self {
        Pace { max_stall, rows_per_second: None, most }
    }

    /// Rows for the next step: a power of two, so that few shapes occur.
    pub fn rows(&self, beside: Beside) -> usize {
        let time = match beside {
            Beside::Streams => self.max_stall,
            Beside::Nobody => self.max_stall * ALONE_FACTOR,
        };
        let fit = match self.rows_per_second {
            Some(rate) => (rate * time.as_secs_f64()).clamp(LEAST as f64, self.most.max(LEAST) as f64) as usize,
            None => FIRST,
        };
        let rounded = 1 << fit.max(1).ilog2();
        // The device's most need not be a power of two.
        if fit >= self.most { self.most } else { rounded }.min(self.most).max(1)
    }

    /// Takes note of a step.
    pub fn observe(&mut self, rows: usize, took: Duration) {
        // Few rows say nothing about the speed of many: such a step is mostly its fixed cost.
        if rows < LEAST {
            return;
        }
        let rate = rows as f64 / took.as_secs_f64().max(1e-6);
        self.rows_per_second = Some(match self.rows_per_second {
            Some(old) => 0.5 * old + 0.5 * rate,
            None => rate,
        });
    }
}

/// Divides `budget` rows among sequences that want so many: each gets the same, and what one does not need goes to the
/// others. In order of `wants`.
pub(super) fn share_rows(budget: usize, wants: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| (wants[i], i));
    let mut shares = vec![0; wants.len()];
    let mut left = budget;
    for (done, &i) in order.iter().enumerate() {
        let waiting = wants.len() - done;
        shares[i] = wants[i].min(left.div_ceil(waiting));
        left -= shares[i];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_beside_streams_takes_about_the_stall_that_is_allowed() {
        let mut pace = Pace::new(Duration::from_millis(300), 2048);
        for _ in 0..8 {
            let rows = pace.rows(Beside::Streams);
            pace.observe(rows, Duration::from_secs_f64(rows as f64 / 500.0));
        }
        assert_eq!((pace.rows(Beside::Streams), pace.rows(Beside::Nobody)), (128, 512));
        pace.observe(512, Duration::from_millis(1));
        assert_eq!(pace.rows(Beside::Streams), 2048);
        for _ in 0..20 {
            pace.observe(32, Duration::from_secs(5));
        }
        assert_eq!(pace.rows(Beside::Streams), 32);
    }

    #[test]
    fn no_step_is_larger_than_the_device_takes_and_none_is_empty() {
        for most in [1, 3, 24, 100, 2048] {
            let mut pace = Pace::new(Duration::from_millis(300), most);
            assert!((1..=most).contains(&pace.rows(Beside::Nobody)));
            pace.observe(64, Duration::from_nanos(1));
            assert_eq!(pace.rows(Beside::Nobody), most);
        }
    }

    #[test]
    fn rows_are_shared_fairly_and_none_is_wasted() {
        assert_eq!(share_rows(100, &[1000, 10, 1000]), [45, 10, 45]);
        assert_eq!(share_rows(100, &[20, 30]), [20, 30]);
        assert_eq!(share_rows(2, &[5, 5, 5]), [1, 1, 0]);
        assert!(share_rows(9, &[]).is_empty());
    }
}
