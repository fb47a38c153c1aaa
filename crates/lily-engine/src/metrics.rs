//! Counters of an engine as plain numbers; exporting them is the caller's business.

use std::time::Duration;

/// A histogram with fixed bounds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending.
    pub bounds: Vec<f64>,
    /// Observations at or below each bound and above the one before; the last entry is those above every bound.
    pub counts: Vec<u64>,
    /// Sum of all observations in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Histogram {
    fn with_bounds(bounds: &[f64]) -> Self {
        Histogram { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }
}

/// Counts one observation.
pub(crate) fn observe(histogram: &mut Histogram, value: Duration) {
    let seconds = value.as_secs_f64();
    let bucket = histogram.bounds.partition_point(|&b| b < seconds);
    if let Some(count) = histogram.counts.get_mut(bucket) {
        *count += 1;
        histogram.sum += seconds;
    }
}

impl MetricsSnapshot {
    /// All zero, histograms with their bounds.
    pub(crate) fn new(pages_total: usize) -> Self {
        let slow = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];
        let fast = [0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];
        MetricsSnapshot {
            pages_total: pages_total as u64,
            time_to_first_token: Histogram::with_bounds(&slow),
            inter_token: Histogram::with_bounds(&fast),
            queue_time: Histogram::with_bounds(&slow),
            ..MetricsSnapshot::default()
        }
    }
}

/// Everything an engine counts, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricsSnapshot {
    /// Requests taken since the start.
    pub requests_submitted: u64,
    /// Requests refused because the queue was full.
    pub requests_refused: u64,
    /// Requests ended by an end-of-sequence id or a stop string.
    pub finished_stop: u64,
    /// Requests ended by a length limit.
    pub finished_length: u64,
    /// Requests whose caller went away.
    pub finished_cancelled: u64,
    /// Requests past their deadline.
    pub finished_deadline: u64,
    /// Requests that failed.
    pub finished_error: u64,
    /// Requests that run now.
    pub running: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Admitted requests that resumed from the prefix cache.
    pub cache_hits: u64,
    /// Admitted requests that did not.
    pub cache_misses: u64,
    /// Snapshots dropped for room.
    pub cache_evictions: u64,
    /// Snapshots in the prefix cache now.
    pub cache_snapshots: u64,
    /// Bytes of pages and snapshots in the prefix cache now.
    pub cache_bytes: u64,
    /// Pages of the KV pool.
    pub pages_total: u64,
    /// Pages in use, cached ones included.
    pub pages_used: u64,
    /// Steps the device has executed.
    pub steps: u64,
    /// Steps the device failed.
    pub device_errors: u64,
    /// Submission to first token.
    pub time_to_first_token: Histogram,
    /// Between two tokens of one request.
    pub inter_token: Histogram,
    /// Submission to admission.
    pub queue_time: Histogram,
}
