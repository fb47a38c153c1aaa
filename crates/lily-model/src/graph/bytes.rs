//! Bytes each operation must move at least: every needed weight, state and activation byte once.

use super::op::{Op, OpKind};
use super::plan::{BufferRole, Element, Extent, Plan};
use super::weights::{Model, WeightKind};

/// What the bytes depend on besides the plan.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    /// Rows of the step.
    pub rows: usize,
    /// Rows that yield logits.
    pub logit_rows: usize,
    /// Keys each sequence already has in the cache.
    pub context: usize,
    /// Bytes of one matrix input ([`Element::Activation`]).
    pub activation_bytes: usize,
    /// Bytes of one key or value ([`Element::Cache`]).
    pub cache_bytes: usize,
}

/// Bytes of one operation, by what they are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OpBytes {
    /// Weights read.
    pub weights: f64,
    /// Recurrent state and KV cache, read and written.
    pub state: f64,
    /// Inputs, intermediates and outputs, read and written.
    pub activations: f64,
}

impl OpBytes {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.weights + self.state + self.activations
    }

    /// What decides the floor of a step: weights and state. Activations stay in caches.
    pub fn memory(&self) -> f64 {
        self.weights + self.state
    }
}

impl Plan {
    /// Bytes that operation `op` must move. Experts are counted as the expected number of different ones under uniform
    /// routing, `E * (1 - (1 - K/E)^rows)`.
    pub fn op_bytes(&self, model: &Model, op: &Op, traffic: Traffic) -> OpBytes {
        let mut bytes = OpBytes::default();
        let accesses = op.accesses();
        for &id in &accesses.weights {
            let spec = model.weight(id);
            let unit = spec.unit_bytes() as f64;
            bytes.weights += match (spec.kind, op.kind) {
                (WeightKind::Matrix { outputs, .. }, OpKind::Embed { .. }) => {
                    unit / outputs as f64 * traffic.rows as f64
                }
                (WeightKind::Matrix { experts: Some(experts), .. }, _) => {
                    let missed = 1.0 - model.config.num_experts_per_tok as f64 / experts as f64;
                    unit * experts as f64 * (1.0 - missed.powi(traffic.rows as i32))
                }
                _ => unit,
            };
        }
        for (&id, writes) in
            accesses.reads.iter().map(|id| (id, false)).chain(accesses.writes.iter().map(|id| (id, true)))
        {
            let buffer = self.buffer(id);
            let element = match buffer.element {
                Element::F32 | Element::U32 => 4,
                Element::Activation => traffic.activation_bytes,
                Element::Cache => traffic.cache_bytes,
            } as f64;
            let segments = if self.phase == super::Phase::Decode { traffic.rows } else { 1 };
            let count = match buffer.extent {
                Extent::PerRow(n) => n * traffic.rows,
                Extent::PerLogitRow(n) => n * traffic.logit_rows,
                Extent::PerRowBlock(n) => n * segments * (traffic.context / Self::PAGE_TOKENS + 1),
                Extent::PerSlot(n) => n * segments,
                Extent::PerPage(n) => {
                    let a_token = n / Self::PAGE_TOKENS;
                    if writes { a_token * traffic.rows } else { a_token * segments * traffic.context }
                }
                Extent::Fixed(n) => n,
            } as f64;
            if buffer.role == BufferRole::State {
                bytes.state += count * element;
            } else {
                bytes.activations += count * element;
            }
        }
        bytes
    }
}
