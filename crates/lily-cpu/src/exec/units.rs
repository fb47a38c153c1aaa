//! Units of work that exist twice: readable f32 and fast. The one place where the precision decides.

use lily_model::config::ModelConfig;
use lily_model::graph::{Model, WeightKind};

use crate::reference::{self, AttentionShape, BlockPartial};
use crate::simd::{self, Isa};
use crate::{Precision, reference as exact};

/// How this device computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    precision: Precision,
    isa: Isa,
    group: usize,
}

impl Units {
    /// `isa` matters to [`Precision::Fast`] alone.
    pub fn new(model: &Model, precision: Precision, isa: Isa) -> Self {
        Units { precision, isa, group: activation_group(model) }
    }

    pub fn precision(self) -> Precision {
        self.precision
    }

    pub fn isa(self) -> Isa {
        self.isa
    }

    /// Inputs that share a scale in the fast path's activations.
    pub fn group(self) -> usize {
        self.group
    }

    pub fn rms_norm(self, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
        match self.precision {
            Precision::F32 => exact::rms_norm(x, gain, eps, out),
            Precision::Fast => simd::rms_norm(self.isa, x, gain, eps, out),
        }
    }

    /// `weight` is `[4, channels]`, of which `first ..` are computed.
    pub fn gdn_conv_token(self, taps: [&[f32]; 4], weight: &[f32], channels: usize, first: usize, out: &mut [f32]) {
        match self.precision {
            Precision::F32 => {
                let some: Vec<f32> =
                    weight.chunks_exact(channels).flat_map(|w| &w[first..first + out.len()]).copied().collect();
                exact::gdn_conv_token(taps, &some, out);
            }
            Precision::Fast => simd::gdn_conv_token(self.isa, taps, weight, channels, first, out),
        }
    }

    pub fn l2_normalize(self, head: &mut [f32], scale: f32) {
        match self.precision {
            Precision::F32 => exact::l2_normalize(head, scale),
            Precision::Fast => simd::l2_normalize(self.isa, head, scale),
        }
    }

    /// `state` is `[key_dim, 32]`: a block of value columns.
    #[allow(clippy::too_many_arguments)] // the delta rule's own arguments
    pub fn delta_step(
        self,
        state: &mut [f32],
        q: &[f32],
        k: &[f32],
        v: &[f32],
        decay: f32,
        beta: f32,
        out: &mut [f32],
    ) {
        match self.precision {
            Precision::F32 => exact::gdn_delta_step(state, q, k, v, decay, beta, out),
            Precision::Fast => simd::delta_step(self.isa, state, q, k, v, decay, beta, out),
        }
    }

    pub fn gated_norm(self, o: &[f32], norm: &[f32], z: &[f32], eps: f32, out: &mut [f32]) {
        match self.precision {
            Precision::F32 => exact::gated_norm(o, norm, z, eps, out),
            Precision::Fast => simd::gated_norm(self.isa, o, norm, z, eps, out),
        }
    }

    pub fn rope_norm(self, head: &[f32], gain: &[f32], eps: f32, cos: &[f32], sin: &[f32], out: &mut [f32]) {
        match self.precision {
            Precision::F32 => exact::rope_norm(head, gain, eps, cos, sin, out),
            Precision::Fast => simd::rope_norm(self.isa, head, gain, eps, cos, sin, out),
        }
    }

    pub fn merge_block(
        self,
        sum: &mut [f32],
        max: &mut f32,
        weight: &mut f32,
        next: &[f32],
        next_max: f32,
        next_weight: f32,
    ) {
        match self.precision {
            Precision::F32 => exact::merge_block(sum, max, weight, next, next_max, next_weight),
            Precision::Fast => simd::merge_block(self.isa, sum, max, weight, next, next_max, next_weight),
        }
    }

    pub fn finish_attention(self, sum: &[f32], weight: f32, gate: &[f32], out: &mut [f32]) {
        match self.precision {
            Precision::F32 => exact::finish_attention(sum, weight, gate, out),
            Precision::Fast => simd::finish_attention(self.isa, sum, weight, gate, out),
        }
    }

    pub fn swiglu(self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self.precision {
            Precision::F32 => exact::swiglu(gate, up, out),
            Precision::Fast => simd::swiglu(self.isa, gate, up, out),
        }
    }

    pub fn combine(self, residual: &mut [f32], down: &[f32], scales: &[f32]) {
        match self.precision {
            Precision::F32 => exact::combine(residual, down, scales),
            Precision::Fast => simd::combine(self.isa, residual, down, scales),
        }
    }

    pub fn argmax(self, logits: &[f32]) -> usize {
        match self.precision {
            Precision::F32 => exact::argmax(logits),
            Precision::Fast => simd::argmax(self.isa, logits),
        }
    }

    /// Keys and values in f32.
    pub fn attention_block_f32(
        self,
        shape: AttentionShape,
        query: &[f32],
        keys: &[f32],
        values: &[f32],
        visible: usize,
        partial: BlockPartial<'_>,
    ) {
        reference::attention_block(shape, query, keys, values, visible, partial);
    }
}

/// 64 where every group of weights and every unit that is quantized at once is a multiple of it, else 32.
fn activation_group(model: &Model) -> usize {
    let c: &ModelConfig = &model.config;
    let widths = [
        c.hidden_size,
        c.linear_value_head_dim,
        c.head_dim,
        c.moe_intermediate_size,
        c.shared_expert_intermediate_size,
    ];
    let groups = model.weights.iter().filter_map(|w| match w.kind {
        WeightKind::Matrix { quantization, .. } => quantization.map(|q| q.group_size),
        _ => None,
    });
    if widths.into_iter().chain(groups).all(|n| n.is_multiple_of(64)) { 64 } else { 32 }
}
