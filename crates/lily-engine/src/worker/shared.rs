//! What the engine's callers and its thread both see: health, counters, how many requests there are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::sequence::Sequence;
use crate::engine::Health;
use crate::generation::FinishReason;
use crate::metrics::{MetricsSnapshot, observe};

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Requests submitted and not over.
    present: AtomicUsize,
}

#[derive(Debug)]
struct State {
    health: Health,
    metrics: MetricsSnapshot,
    /// Running mean of the time a request holds its place.
    service: Option<Duration>,
}

impl Shared {
    pub fn new(metrics: MetricsSnapshot) -> Self {
        let state = State { health: Health::Ready, metrics, service: None };
        Shared { state: Mutex::new(state), present: AtomicUsize::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn health(&self) -> Health {
        self.state().health.clone()
    }

    /// An unhealthy engine stays so.
    pub fn set_health(&self, health: Health) {
        let mut state = self.state();
        if !matches!(state.health, Health::Unhealthy(_)) {
            state.health = health;
        }
    }

    pub fn metrics(&self) -> MetricsSnapshot {
        self.state().metrics.clone()
    }

    /// Changes counters.
    pub fn report(&self, change: impl FnOnce(&mut MetricsSnapshot)) {
        change(&mut self.state().metrics);
    }

    /// Makes a place for one more request if fewer than `most` are there; else says how many are.
    pub fn enter(&self, most: usize) -> Result<(), usize> {
        self.present.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < most).then_some(n + 1)).map(|_| ())
    }

    /// A request is over.
    pub fn leave(&self) {
        self.present.fetch_sub(1, Ordering::AcqRel);
    }

    /// When a place is likely free: a whole number of seconds, at least one.
    pub fn retry_after(&self, ahead: usize, parallel: usize) -> Duration {
        let service = self.state().service.unwrap_or(Duration::from_secs(1));
        let rounds = ahead as f64 / parallel.max(1) as f64;
        Duration::from_secs((service.as_secs_f64() * rounds).ceil().clamp(1.0, 600.0) as u64)
    }

    /// Counts how a request ended.
    pub fn count(&self, reason: &FinishReason) {
        self.report(|m| match reason {
            FinishReason::Eos | FinishReason::StopString(_) => m.finished_stop += 1,
            FinishReason::Length => m.finished_length += 1,
            FinishReason::Cancelled => m.finished_cancelled += 1,
            FinishReason::Deadline => m.finished_deadline += 1,
            FinishReason::Constraint(_) | FinishReason::Error(_) => m.finished_error += 1,
        });
    }

    /// Counts a request that ran and is over.
    pub(super) fn finished(&self, sequence: &Sequence) {
        if let Some(reason) = &sequence.finished {
            self.count(reason);
        }
        let took = sequence.clock.admitted.elapsed();
        {
            let mut state = self.state();
            state.service = Some(state.service.map_or(took, |old| old.mul_f64(0.8) + took.mul_f64(0.2)));
        }
        self.leave();
    }

    /// Counts a generated token; `gap` is the time since the one before, or since submission for the first.
    pub fn token(&self, gap: Duration, first: FirstToken) {
        self.report(|m| {
            m.generated_tokens += 1;
            let histogram = match first {
                FirstToken::Yes => &mut m.time_to_first_token,
                FirstToken::No => &mut m.inter_token,
            };
            observe(histogram, gap);
        });
    }
}

/// Whether a token is the first of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstToken {
    Yes,
    No,
}
